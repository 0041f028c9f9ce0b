"""Calling a Python function while tracing: what skips/ says about it (the last stage of `calls.resolve`), binding the
arguments, running its frame.

`Tracer.inline` is `inline`. The error messages of bad calls are CPython's (Python/ceval.c, `initialize_locals`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from fxjit import process_state, progress
from fxjit.errors import BreakGraph, SkipFrameSignal, leave_trace
from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.flow import SEES_ALL_LOCALS, in_loop
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.callables import core
from fxjit.frontend.interp.generators import GeneratorValue
from fxjit.frontend.interp.machine import Machine, user_stack
from fxjit.frontend.interp.nesting import can_break_at_call, is_own, is_resume_function
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import Handler, Stage, Substitute, function, handles, resolves
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.functions import FunctionValue
from fxjit.frontend.values.fxjit_callables import compile_in_trace, other_compilers_manager
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.marked_calls import call_marked
from fxjit.frontend.values.namespaces import namespace_value
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.tensor_methods import specialized
from fxjit.frontend.values.torchfn import call_in_graph
from fxjit.guards.kinds import IdIs
from fxjit.homes import module_of, name_with_module, package_of
from fxjit.skips import Verdict, function_verdict, marks
from fxjit.skips.functions import is_bookkeeping, steering

#: Frames inside frames; each takes a dozen frames of CPython's own.
MAX_DEPTH: Final = 200
_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def inline(t: Tracer, fn: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`fn(*args, **kwargs)` for a Python function that is traced."""
    assert isinstance(fn, FunctionValue), f"inline cannot run {fn!r}"
    progress.tick()
    if is_bookkeeping(fn.fn) and can_break_at_call(t):
        t.break_("call-bookkeeping", function=fn.qualname)
    caller, t.caller = t.caller, None
    return run_function(t, fn, args, kwargs, caller)


# -- functions that are not inlined --------------------------------------------------------------------------------


@resolves(Stage.VERDICT)
def _by_verdict(fn: Any) -> Handler | None:
    """Handler of a Python function that skips/ keeps from being inlined. The front end's own code, and resume functions,
    which were traced up to there, are exempt."""
    if not isinstance(fn, FunctionType) or is_own(fn.__globals__) or is_resume_function(fn.__code__):
        return None
    request = steering(fn)
    if request is not None:
        if request == "compile":
            return lambda t, args, kwargs: compile_in_trace(t, fn, args, kwargs)
        return lambda t, args, kwargs: _steer(t, request, args, kwargs)
    verdict, rule = function_verdict(fn)
    if verdict is Verdict.TRACE:
        stand_in = marks.substitute_for(fn)
        if stand_in is None and marks.is_compiled(fn):
            stand_in = marks.unwrapped(fn)
        return None if stand_in is None or stand_in is fn else Substitute(stand_in)
    if verdict is Verdict.GRAPH:
        if rule.startswith("marked"):
            return lambda t, args, kwargs: call_marked(t, fn, args, kwargs)
        return lambda t, args, kwargs: _call_or_trace(t, fn, args, kwargs)
    if verdict is Verdict.CONSTANT:
        read = _real if rule.startswith("marked") else _plain
        pure = not rule.startswith("marked") and package_of(fn) in _SAME_IN_ALL_PROCESSES
        return lambda t, args, kwargs: _constant_result(t, fn, args, kwargs, read, pure)
    if verdict is Verdict.CALL:
        return lambda t, args, kwargs: t.break_("call-builtin", function=fn.__qualname__,
                                                args=", ".join(arg.describe() for arg in args))
    return lambda t, args, kwargs: _refuse(t, fn, args, rule)


#: Why a call cannot be one node of the graph although what the function does may be in it.
_LESS_THAN_A_CALL: Final = frozenset({"not-a-graph-argument", "data-dependent-operator"})


def _call_or_trace(t: Tracer, fn: FunctionType, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A Python function of torch's over tensors: one node, or the operators that it calls, where an argument is an object of
    options or a function, or where it looks at numbers itself to raise an error."""
    try:
        return call_in_graph(t, fn, args, kwargs)
    except BreakGraph as signal:
        if signal.reason not in _LESS_THAN_A_CALL:
            raise
    return t.inline(t.make(fn), args, kwargs)


#: Packages whose constant functions give the same of the same arguments wherever torch, Python and the machine are the same.
_SAME_IN_ALL_PROCESSES: Final = ("torch", "re", "textwrap", "fractions", "hashlib")

#: Modules whose functions are traced where an argument is no constant: they look at what they are given, and compute.
_TRACED_OTHERWISE: Final = frozenset({"inspect"})


def _refuse(t: Tracer, fn: FunctionType, args: Sequence[Value], rule: str) -> NoReturn:
    """Break the graph at a call of a function that runs as it stands."""
    said = marks.disabled(fn)
    if said is None and rule == "call-compile-api" and args:
        said = marks.disabled_module(getattr(args[0].realize(), "obj", None))
        rule = rule if said is None else "user-disabled-call"
    if said is not None:
        of_module = args and fn.__name__ == "_wrapped_call_impl" and issubclass(args[0].pytype(), torch.nn.Module)
        target = f"module {args[0].pytype().__qualname__}" if of_module else marks.shown(said.target)
        t.break_(rule, function=target, message=said.reason)
    t.break_(rule, function=fn.__qualname__, module=fn.__globals__.get("__name__"), rule=rule, message=None,
             why="is run as it stands")


#: Its `step` requests breaks because of how another compiler writes updated parameters back.
_OPTIMIZER_FILE: Final = torch.optim.Optimizer.profile_hook_step.__code__.co_filename


def _steer(t: Tracer, request: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """A call that directs the compiler: `graph_break()`, `skip_frame()`, `mark_static()`."""
    if request == "error-on-graph-break":
        return t.call(t.make(marks.error_on_graph_break), args, kwargs)
    if request == "manager":
        return other_compilers_manager(t, args, kwargs)
    if request == "mark-static":
        return _mark_static(t, *args)
    if request == "comptime-print":
        print(", ".join(arg.describe() for arg in args))  # what the program asks of a compiler
        return t.make(None)
    if request == "user-debugger":
        return _leave_whole(t, "user-debugger", "pdb.set_trace")
    if request == "user-graph-break" and t.frame is not None and t.frame.code.code.co_filename == _OPTIMIZER_FILE:
        return t.make(None)
    given = [arg.as_constant() if arg.is_constant() else arg.describe() for arg in (*args, *kwargs.values())]
    shown = {name: value.as_constant() if value.is_constant() else value.describe() for name, value in kwargs.items()}
    context = {"message": given[0] if given else None, "args": given[: len(args)], "kwargs": shown}
    if request == "user-skip-frame" and t.frame is t.root:
        leave_trace(SkipFrameSignal(request, context, user_stack(t.frame)))
    t.break_(request, **context)


def _mark_static(t: Tracer, tensor: Value, *dimensions: Value) -> Value:
    """Sizes that are constants from here on; what the tensor is marked with would speak to a later call."""
    if not isinstance(tensor, TensorValue) or len(dimensions) != 1 or not dimensions[0].is_constant():
        t.break_("call-compile-api", function="mark_static")
    size = tensor.size(t, dimensions[0].as_constant())
    specialized(t, size)
    return t.make(None)


def _leave_whole(t: Tracer, reason: str, function: str) -> NoReturn:
    """The frame is wanted as it is, with all of its locals: it is not compiled, rather than split."""
    if t.frame is t.root:
        leave_trace(SkipFrameSignal(reason, {"function": function}, user_stack(t.frame)))
    t.break_(reason, function=function)


@handles(breakpoint)
def _breakpoint(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _leave_whole(t, "user-debugger", "breakpoint")


#: Attributes of the running frame that are the same whether it was split or not.
_NOT_LOCALS: Final = frozenset({"f_back", "f_builtins", "f_code", "f_globals", "f_lineno"})


def _reads_own_frame(function: Callable[..., object]) -> None:
    @handles(function)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        name = name_with_module(function)
        frame = t.frame
        is_other = len(args) == 1 and not (args[0].is_constant() and args[0].as_constant() == 0)
        if frame is None or is_other or frame.instructions[frame.index + 1].argval in _NOT_LOCALS:
            t.break_("call-subprocess", function=name)
        _leave_whole(t, "call-own-frame", name)


_reads_own_frame(sys._getframe)
_reads_own_frame(inspect.currentframe)


@function(locals)
def _locals(t: Tracer) -> Value:
    _look_at_all(t, "locals")
    return core.locals_(t)


@function(vars)
def _vars(t: Tracer, obj: Value | None = None) -> Value:
    if obj is None:
        _look_at_all(t, "vars")
    return core.vars_(t, obj)


@function(dir)
def _dir(t: Tracer, obj: Value | None = None) -> Value:
    if obj is None:
        _look_at_all(t, "dir")
    return core.dir_(t, obj)


def _look_at_all(t: Tracer, function: str) -> None:
    """Before Python 3.13 a frame has one dict for all that look at its locals by name, which each of them brings up to date:
    where there is more than one look the frame runs as it stands."""
    frame = t.frame
    if frame is None or not VERSION.locals_are_kept:
        return
    if in_loop(frame.code, frame.index) or sum(_is_look(frame, at) for at in range(len(frame.instructions))) > 1:
        _leave_whole(t, "call-own-frame", function)


def _is_look(frame: Machine, at: int) -> bool:
    """Whether the instruction loads a function that may look at all locals, to call it so."""
    instruction = frame.instructions[at]
    if instruction.opname != "LOAD_GLOBAL" or instruction.argval not in SEES_ALL_LOCALS:
        return False
    behind = next((each for each in frame.instructions[at + 1:] if each.opname not in ("NOP", "PUSH_NULL")), None)
    return instruction.argval not in ("vars", "dir") or (behind is not None and behind.opname == "CALL")


@handles(exec)
def _exec(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Before Python 3.13 what it sets among the frame's own variables stays there, for whoever looks at all of them."""
    if len(args) == 1 and not kwargs:
        _look_at_all(t, "exec")
    t.break_("call-builtin", function="exec", args=", ".join(arg.describe() for arg in args))


def _constant_result(t: Tracer, fn: FunctionType, args: Sequence[Value], kwargs: Mapping[str, Value],
                     read: Callable[[Tracer, Value], object], pure: bool) -> Value:
    try:
        known = [read(t, arg) for arg in args]
        named = {name: read(t, arg) for name, arg in kwargs.items()}
    except NotConcrete:
        if module_of(fn) in _TRACED_OTHERWISE:
            return run_function(t, t.make(fn), args, kwargs)  # type: ignore[arg-type]  # a FunctionValue
        t.break_("call-builtin", function=fn.__qualname__, args=", ".join(arg.describe() for arg in args))
    said: str | process_state.ResultOf = f"the result of {fn.__qualname__}"
    on_fakes = any(isinstance(each, FakeTensor) for each in (*known, *named.values()))
    try:
        result = _on_fakes(t, fn, known, named) if on_fakes else protocol.fold(
            t, lambda: fn(*known, **named), promised=read is _real)
        if result.is_constant() and not on_fakes:
            said = process_state.ResultOf(fn, tuple(known), named, result.as_constant())
    finally:  # what it raises is one, too
        if not pure:
            process_state.bind(said)
    return result


def _on_fakes(t: Tracer, fn: FunctionType, args: Sequence[object], kwargs: Mapping[str, object]) -> Value:
    """What it gives for tensors that the frame makes: of these there are facts, and no numbers."""
    why = ""
    try:
        with t.fake_execution():
            result = fn(*args, **kwargs)
    except Exception as error:  # the program's own, or one of fake tensors
        why = f"on tensors without numbers it raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    else:
        if not any(isinstance(each, torch.Tensor) for each in pytree.tree_leaves(result)):
            return t.make(result)
        why = "it gives a tensor made of tensors that the frame makes"
    t.break_("call-builtin", function=fn.__qualname__, args=why)


def _plain(t: Tracer, value: Value) -> object:
    """The result of a function of a module of pure functions: a constant, and no object that may change later."""
    return concrete(value.realize())


def _real(t: Tracer, value: Value) -> object:
    """The object that a function marked with `assume_constant_result` gets: a constant, a tensor that the frame was given (the
    promise is that the next one gives the same), or another object that exists, which entries are then bound to."""
    value = value.realize()
    if isinstance(value, TensorValue) and value.cls is torch.Tensor and value.source is None:
        return value.fake
    if isinstance(value, TensorValue) and isinstance(real := getattr(value, "real", None), torch.Tensor):
        return real
    obj = getattr(value, "obj", None)
    if value.source is None or obj is None or value.is_constant():
        return concrete(value)
    t.guard(IdIs(value.source, obj))
    return obj


def run_function(t: Tracer, fn: FunctionValue, args: Sequence[Value], kwargs: Mapping[str, Value],
                 caller: Machine | None = None) -> Value:
    """Run the function's bytecode in a frame of its own; a generator function gives its generator. `caller` takes what it
    returns as it is."""
    code = fn.code
    if code.co_flags & _ASYNC:
        kind = "coroutine" if code.co_flags & inspect.CO_COROUTINE else "asynchronous generator"
        t.break_("call-generator", function=fn.qualname, kind=kind)
    parent = t.frame
    depth = parent.depth + 1 if parent is not None else 0
    if depth > MAX_DEPTH:
        t.break_("call-recursion", function=fn.qualname, depth=depth)
    locals_ = bind(t, fn, args, kwargs)
    decoded = decode(code)
    builtins = t.root.globals.builtins if fn.fn is None else fn.fn.__builtins__
    namespace = namespace_value(t, fn.globals, builtins, function=fn.fn)
    closure = dict(zip(decoded.freevars, fn.closure(t), strict=True)) if decoded.freevars else {}
    machine = Machine(t, decoded, namespace, locals_, closure, parent, fn)
    if caller is not None and caller is parent:
        machine.is_tail_call, machine.forwarders, machine.constructor_result = True, t.forwarders, t.constructor_result
    result = machine.run()
    if isinstance(result, GeneratorValue) and result.machine is machine:
        result.made_by = (fn, list(args), dict(kwargs))
    return result


# -- binding arguments ---------------------------------------------------------------------------------------------


def bind(t: Tracer, fn: FunctionValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> dict[str, Value]:
    """The argument slots of a call, by name."""
    code = fn.code
    count, names = code.co_argcount, code.co_varnames
    total = count + code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:count], args, strict=False))
    slot = total
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[slot]] = TupleValue(list(args[count:]))
        slot += 1
    extra: dict[str, Value] | None = {} if code.co_flags & inspect.CO_VARKEYWORDS else None
    if kwargs:
        _bind_keywords(t, fn, kwargs, bound, extra)
    if len(args) > count and not code.co_flags & inspect.CO_VARARGS:
        _too_many(t, fn, len(args), bound)
    if extra is not None:
        bound[names[slot]] = DictValue(t, [(t.make(name), value) for name, value in extra.items()])
    if len(args) < count:
        _fill_defaults(t, fn, len(args), bound)
    if code.co_kwonlyargcount:
        _fill_keyword_defaults(t, fn, names[count:total], bound)
    return bound


def _bind_keywords(
    t: Tracer, fn: FunctionValue, kwargs: Mapping[str, Value], bound: dict[str, Value], extra: dict[str, Value] | None
) -> None:
    code = fn.code
    positional_only = code.co_posonlyargcount
    by_name = frozenset(code.co_varnames[positional_only : code.co_argcount + code.co_kwonlyargcount])
    for name, value in kwargs.items():
        if name in by_name:
            if name in bound:
                t.raise_(TypeError, f"{fn.qualname}() got multiple values for argument '{name}'")
            bound[name] = value
        elif extra is not None:
            extra[name] = value
        else:
            wrong = [given for given in kwargs if given in code.co_varnames[:positional_only]]
            if wrong:
                t.raise_(TypeError, f"{fn.qualname}() got some positional-only arguments passed as keyword arguments: "
                                    f"'{', '.join(wrong)}'")
            t.raise_(TypeError, f"{fn.qualname}() got an unexpected keyword argument '{name}'")


def _fill_defaults(t: Tracer, fn: FunctionValue, given: int, bound: dict[str, Value]) -> None:
    code = fn.code
    names = code.co_varnames[: code.co_argcount]
    missing = [index for index in range(given, len(names)) if names[index] not in bound]
    if not missing:
        return
    defaults = fn.defaults(t)
    first = len(names) - len(defaults)
    without = [names[index] for index in missing if index < first]
    if without:
        _missing(t, fn, "positional", without)
    for index in missing:
        bound[names[index]] = defaults[index - first]


def _fill_keyword_defaults(t: Tracer, fn: FunctionValue, names: Sequence[str], bound: dict[str, Value]) -> None:
    missing = [name for name in names if name not in bound]
    if not missing:
        return
    defaults = fn.kwdefaults(t)
    without = [name for name in missing if name not in defaults]
    if without:
        _missing(t, fn, "keyword-only", without)
    for name in missing:
        bound[name] = defaults[name]


def _missing(t: Tracer, fn: FunctionValue, kind: str, names: list[str]) -> NoReturn:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) == 1:
        shown = quoted[0]
    elif len(quoted) == 2:
        shown = f"{quoted[0]} and {quoted[1]}"
    else:
        shown = f"{', '.join(quoted[:-1])}, and {quoted[-1]}"
    plural = "" if len(names) == 1 else "s"
    t.raise_(TypeError, f"{fn.qualname}() missing {len(names)} required {kind} argument{plural}: {shown}")


def _too_many(t: Tracer, fn: FunctionValue, given: int, bound: Mapping[str, Value]) -> NoReturn:
    code: CodeType = fn.code
    count, defaults = code.co_argcount, len(fn.defaults(t))
    takes = f"from {count - defaults} to {count}" if defaults else str(count)
    plural = "" if count == 1 and not defaults else "s"
    keyword_only = [name for name in code.co_varnames[count : count + code.co_kwonlyargcount] if name in bound]
    also = ""
    if keyword_only:
        one = "" if len(keyword_only) == 1 else "s"
        also = (f" positional argument{'' if given == 1 else 's'} (and {len(keyword_only)} "
                f"keyword-only argument{one})")
    verb = "was" if given == 1 and not keyword_only else "were"
    t.raise_(TypeError, f"{fn.qualname}() takes {takes} positional argument{plural} but {given}{also} {verb} given")
