"""Callables of fxjit in traced code: `disable(fn)`, `compile(fn)`, `error_on_graph_break(...)`, and `_C.Continue`, the call of
a resume function with which the resume function of its caller begins.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Final

import torch

from fxjit import _C, config
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Callee, Rebuilder, Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.contexts import ContextValue, PassThroughValue, known
from fxjit.frontend.values.wrap import wraps, wraps_if
from fxjit.frontend.values.wrapped import made_partial
from fxjit.guards.kinds import ConstIs, IdIs, TypeIs
from fxjit.guards.source import AttrSource, Source
from fxjit.homes import module_of
from fxjit.skips import marks


class DisabledValue(Value):
    """The result of `disable(fn)`: a call of it ends the graph."""

    def __init__(self, fn: Any, source: Source) -> None:
        super().__init__(source)
        self.fn = fn

    def pytype(self) -> type:
        return _C.DisabledFunction

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        assert self.source is not None
        try:
            found = getattr(self.fn, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        return t.wrap(found, AttrSource(self.source, name))

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        said = marks.disabled(self.fn)
        message = said.reason if said is not None else None
        t.break_("user-disabled-call", function=marks.shown(getattr(self.fn, "__wrapped__", self.fn)), message=message)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


class CompiledValue(DisabledValue):
    """The result of `compile(fn)`: compiled code inlines the function itself."""

    def pytype(self) -> type:
        return _C.CompiledFunction

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.call(self.tp_getattro(t, "__wrapped__"), args, kwargs)


class NewCompiledValue(Value):
    """The result of a `compile(fn)` that the frame calls: the function itself where it is called, and compiled where it is
    kept."""

    def __init__(self, compiler: FunctionType, model: Value, kwargs: Mapping[str, object]) -> None:
        super().__init__(None)
        self.compiler, self.model, self.kwargs = compiler, model, dict(kwargs)

    def pytype(self) -> type:
        return _C.CompiledFunction

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__wrapped__":
            return self.model
        if name in functools.WRAPPER_ASSIGNMENTS:
            return protocol.getattr_(t, self.model, name)
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        return Callee(self.model, args)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.call(self.model, args, kwargs)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(compile_kept, self.compiler, tuple(self.kwargs.items()), self.model)


class NewCompiledModuleValue(NewCompiledValue):
    """The result of a `compile(module)` that the frame calls."""

    def __init__(self, compiler: FunctionType, model: Value, kwargs: Mapping[str, object]) -> None:
        super().__init__(compiler, model, kwargs)
        self.alike = _compiled_empty(compiler)

    def pytype(self) -> type:
        return type(self.alike)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        """What a compiled module reads from its original: all but what modules have themselves, hooks among it."""
        if name == "_orig_mod":
            return self.model
        if name == "training" or not hasattr(self.alike, name):
            return protocol.getattr_(t, self.model, name)
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        return self.model.callee(t, args)


@functools.cache
def _compiled_empty(compiler: FunctionType) -> torch.nn.Module:
    """A compiled module that has nothing but what all of them have."""
    made: torch.nn.Module = compiler(torch.nn.Module())
    return made


def compile_kept(compiler: Callable[..., Any], kwargs: tuple[tuple[str, object], ...], model: Any) -> Any:
    """Run-time helper of new bytecode: makes the result of a `compile` that was called while tracing."""
    return compiler(model, **dict(kwargs))


#: Arguments of `compile` that cannot be wrong, and those of each that are right.
_UNDOUBTED: Final[Mapping[str, tuple[object, ...]]] = {
    "fullgraph": (True, False), "dynamic": (True, False, None), "disable": (True, False), "options": (None,),
    "backend": (None, "eager", "aot_eager"),
    "mode": (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
}


def compile_in_trace(t: Tracer, compiler: FunctionType, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`compile(...)` called while tracing: of functions and modules, with undoubted arguments."""
    given = dict(kwargs)
    model = given.pop("model", None) if not args else args[0]
    known = {name: value.as_constant() for name, value in given.items() if value.is_constant()}
    if len(args) > 1 or len(known) < len(given) or not all(_is_undoubted(name, value) for name, value in known.items()):
        t.break_("call-compile-api", function=compiler.__qualname__)
    if model is None or (model.is_constant() and model.as_constant() is None):
        return made_partial(t, t.make(compiler), [], given)
    made = _result_class(model.pytype())
    if made is None:
        t.break_("call-compile-api", function=compiler.__qualname__)
    return model if known.get("disable") else made(compiler, model, known)


def _result_class(compiled: type) -> type[NewCompiledValue] | None:
    """Of what a `compile` of an instance of `compiled` makes. Modules with a `__call__` of their own, compiled ones among them,
    are left to the compiler."""
    if issubclass(compiled, (FunctionType, MethodType)):
        return NewCompiledValue
    if issubclass(compiled, torch.nn.Module) and compiled.__call__ is torch.nn.Module.__call__:
        return NewCompiledModuleValue
    return None


def _is_undoubted(name: str, value: object) -> bool:
    return any(type(value) is type(right) and value == right for right in _UNDOUBTED.get(name, ()))


@wraps(_C.DisabledFunction)
def _wrap_disabled(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return DisabledValue(obj, source)


@wraps(_C.CompiledFunction)
def _wrap_compiled(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return CompiledValue(obj, source)


class BreakErrorsValue(ContextValue):
    """`error_on_graph_break(error)`: what is in force at a break decides whether it is raised."""

    def __init__(self, error: bool, source: Source | None = None) -> None:
        super().__init__(marks.error_on_graph_break, (error,), source)
        self.error = error

    def enter(self, t: Tracer) -> Value:
        _in_force(t).append(self.error)
        return t.make(None)

    def leave(self, t: Tracer) -> None:
        _in_force(t).pop()


def _in_force(t: Tracer) -> list[bool]:
    found: list[bool] = t.new_source_state("error_on_graph_break").setdefault("entered", [])
    return found


def breaks_are_errors(t: Tracer) -> bool:
    """Whether a graph break at this point of the trace is to be raised."""
    entered = _in_force(t)
    return entered[-1] if entered else marks.breaks_are_errors()


@handles(marks.error_on_graph_break)
def _error_on_graph_break(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return BreakErrorsValue(*known(t, "error_on_graph_break", *args, **kwargs))


@wraps(marks.error_on_graph_break)
def _wrap_error_on_graph_break(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, marks.error_on_graph_break))
    t.guard(ConstIs(AttrSource(source, "error"), obj.error))
    return BreakErrorsValue(obj.error, source)


class OtherCompilersManagerValue(PassThroughValue):
    """A manager of torch._dynamo that says how torch's compiler is to trace. It says to this one at most that numbers out of
    tensors are symbols of the graph, for as long as it is entered."""

    def __init__(self, source: Source | None = None, with_scalars: bool = False) -> None:
        super().__init__(contextlib.nullcontext, ())
        self.source = source
        self.with_scalars = with_scalars

    def enter(self, t: Tracer) -> Value:
        t.break_points.blocks_with_scalars += self.with_scalars
        return super().enter(t)

    def leave(self, t: Tracer) -> None:
        t.break_points.blocks_with_scalars -= self.with_scalars
        super().leave(t)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """As a decorator: the function itself, where the manager says nothing here."""
        return t.call(t.make(_inside), [self, args[0]]) if self.with_scalars else args[0]


def _inside(manager: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Traced: `fn` under `manager`."""
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with manager:
            return fn(*args, **kwargs)
    return decorated


def other_compilers_manager(t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`patch_dynamo_config(...)`, `override_cudagraphs(...)` and their like, called while tracing. Settings that hold for this
    compiler too are made where the program runs."""
    if args and issubclass(args[0].pytype(), FunctionType):
        return args[0]
    if args:
        t.break_("value-global-state", function="torch._dynamo.patch_dynamo_config")
    changes = {name: value.as_constant() if value.is_constant() else value for name, value in kwargs.items()}
    return _manager_of(t, changes)


#: Settings that change nothing of what a compiled program does, for a part of it: graphs are verified when they are compiled.
_OF_COMPILING_ALONE: Final = frozenset({"nested_graph_breaks", "verbose", "verify_correctness"})


def _manager_of(t: Tracer, changes: Mapping[str, object], source: Source | None = None) -> OtherCompilersManagerValue:
    """Breaks where they change a setting of fxjit that cannot be changed while tracing."""
    in_force = {"capture_scalar_outputs": t.break_points.captures_scalars,
                "capture_dynamic_output_shape_ops": t.break_points.captures_shapes}
    with_scalars = False
    for name, wanted in changes.items():
        if name not in config.SETTINGS or name in _OF_COMPILING_ALONE or wanted == in_force.get(name, getattr(config, name)):
            continue
        if name != "capture_scalar_outputs" or wanted is not True:
            t.break_("value-global-state", function="torch._dynamo.patch_dynamo_config")
        with_scalars = True
    return OtherCompilersManagerValue(source, with_scalars)


@wraps_if(lambda obj: module_of(type(obj)) == "torch._dynamo.decorators" and hasattr(type(obj), "__enter__"))
def _wrap_other_compilers_manager(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return _manager_of(t, getattr(obj, "changes", {}), source)


class ContinueValue(Value):
    """A pending call of a resume function, with the values that it is passed."""

    def __init__(self, fn: Value, args: list[Value]) -> None:
        super().__init__(None)
        self.fn, self.args = fn, args

    def pytype(self) -> type:
        return _C.Continue

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        return Callee(self.fn, self.args)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.call(self.fn, self.args)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(_C.Continue, self.fn, *self.args)


@handles(_C.Continue)
def _continue(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ContinueValue(args[0], args[1:])
