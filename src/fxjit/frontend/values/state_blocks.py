"""Blocks that set state of the process around operators: random generators, filters of warnings, what autograd saves.

Entering one, leaving it and what sets such state inside are steps of the graph (fxjit/state_steps.py). A block with a break in
it is entered for real: making its manager is put off until then, so that the graph breaks once, where the block begins.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import torch

from fxjit import state_steps
from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.instruction import CallSpec
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value
from fxjit.frontend.values.calls import handles, resolve
from fxjit.frontend.values.classes import CALLS
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.contexts import (
    ContextMethodValue,
    ContextValue,
    entered_for_real,
    entered_managers,
    methods_of_class,
)
from fxjit.frontend.values.functions import FunctionValue, MadeFunctionValue
from fxjit.frontend.values.namespaces import known_namespace
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import ConstSource
from fxjit.homes import module_of
from fxjit.schemas import is_in_place_name, overloads_of, target_uses_rng


class StateBlockValue(ContextValue):
    """`make(*args, **kwargs)`, a manager that is made where it is entered."""

    resumable = False
    #: See stack_values.py.
    can_be_kept = True
    uses_rng = False

    def __init__(self, make: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value], why: str) -> None:
        super().__init__(make if isinstance(make, type) else contextlib._GeneratorContextManager)
        self.make: Final = make
        self.args: Final = tuple(args)
        self.kwargs: Final = dict(kwargs)
        self.why: Final = why

    def describe(self) -> str:
        return f"`{self.make.__qualname__}(...)`"

    def refuse(self, t: Tracer) -> NoReturn:
        """The block is left to the running program."""
        t.break_("context-unsupported", value=self.make.__qualname__, type=type(self.make).__name__, why=self.why)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name not in ("__enter__", "__exit__"):
            self.refuse(t)
        return ContextMethodValue(self, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self.refuse(t)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        self.refuse(t)

    def known_arguments(self, t: Tracer) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, which a step of the graph is given."""
        try:
            return [concrete(arg) for arg in self.args], {name: concrete(arg) for name, arg in self.kwargs.items()}
        except NotConcrete:
            self.refuse(t)

    def enter(self, t: Tracer) -> Value:
        args, kwargs = self.known_arguments(t)
        given = self.what_entering_gives()
        kept_as = None if given is None else given.step
        emit_step(t, state_steps.entering(self.make, args, kwargs, self.uses_rng, kept_as), [], self.refuse)
        return t.make(None) if given is None else given

    def what_entering_gives(self) -> GivenByBlock | None:
        """None: None."""
        return None

    def leave(self, t: Tracer) -> None:
        emit_step(t, state_steps.leaving(self.uses_rng), [], self.refuse)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.asm.begin_call(self.make)
        for argument in (*self.args, *self.kwargs.values()):
            cg.push(argument)
        cg.asm.call(len(self.args) + len(self.kwargs), tuple(self.kwargs))


class GivenByBlock(UntraceableValue):
    """What entering a block gives, known when the graph has run: it is passed on, and looking at it breaks the graph."""

    def __init__(self, cls: type, block: StateBlockValue) -> None:
        super().__init__(None, None, "context-unsupported", value=block.make.__qualname__, type=type(block.make).__name__,
                         why="what it gives is known when the graph has run")
        self.cls: Final = cls
        self.step: Final = next(_STEPS)

    def pytype(self) -> type:
        return self.cls

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(state_steps.given_by, self.step)


_STEPS: Final = itertools.count()


class RngBlockValue(StateBlockValue):
    """torch.random.fork_rng."""

    uses_rng = True


class HooksValue(StateBlockValue):
    """Hooks for what autograd saves, functions of the program's. They run when the graph does, and nothing sees what they do:
    so they may do no more than compute."""

    def known_arguments(self, t: Tracer) -> tuple[list[Any], dict[str, Any]]:
        return [self._hook(t, arg) for arg in self.args], {name: self._hook(t, arg) for name, arg in self.kwargs.items()}

    def _hook(self, t: Tracer, value: Value) -> types.FunctionType:
        value = value.realize()
        if not isinstance(value, FunctionValue) or not only_computes(value.code, value.globals):
            self.refuse(t)
        if isinstance(value, MadeFunctionValue):
            if value.code.co_freevars or value.default_values is not None or value.kwdefault_values is not None:
                self.refuse(t)
            return types.FunctionType(value.code, value.globals)
        if value.source is not None:
            t.guard(IdIs(value.source, value.fn))
        fn: types.FunctionType = value.fn
        return fn


#: What such a function is made of: no loops, and no stores but to its own variables.
_COMPUTING: Final = frozenset({
    "NOP", "LOAD_FAST", "LOAD_CONST", "LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "BINARY_OP", "BINARY_SUBSCR",
    "UNARY_NEGATIVE", "TO_BOOL", "UNARY_NOT", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "PUSH_NULL",
    "CALL", "RETURN_VALUE", "RETURN_CONST", "STORE_FAST", "UNPACK_SEQUENCE", "IS_OP", "COMPARE_OP", "COPY", "SWAP", "POP_TOP",
    "JUMP", "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE",
})


def only_computes(code: types.CodeType, namespace: Mapping[str, Any]) -> bool:
    """Whether a function of tensors does nothing but compute on what it is given: by operators, and by torch's functions and
    methods that write to nothing and draw nothing."""
    for each in decode(code).instructions:
        name = each.argval
        if each.opname not in _COMPUTING or (each.opname == "BINARY_OP" and str(name).endswith("=")):
            return False
        if (each.target is not None and each.target <= each.index) or (isinstance(name, CallSpec) and "out" in name.kwnames):
            return False
        if each.opname == "LOAD_GLOBAL" and namespace.get(str(name)) is not torch:
            return False
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and not _reads_or_computes(str(name)):
            return False
    return True


def _reads_or_computes(name: str) -> bool:
    """Whether reading `torch.name` or `tensor.name`, and calling it, changes nothing."""
    if name.startswith("_") or is_in_place_name(name):
        return False
    overloads = overloads_of(name)
    if overloads:
        writes = any(each._schema.is_mutable and not each._overloadname.endswith("out") for each in overloads)
        return not target_uses_rng(name) and not writes
    found = protocol.type_lookup(torch.Tensor, name)
    if found is NOT_IMPLEMENTED:
        return isinstance(getattr(torch, name, None), (torch.dtype, torch.layout, torch.memory_format))
    return isinstance(found, (types.MethodDescriptorType, types.GetSetDescriptorType))


class FiltersValue(StateBlockValue):
    """warnings.catch_warnings. The filters are set while tracing, too: what they ignore is no warning."""

    def enter(self, t: Tracer) -> Value:
        args, kwargs = self.known_arguments(t)
        if args or kwargs.get("module"):
            self.refuse(t)
        namespace, filters = known_namespace(t, vars(warnings)), t.known(warnings.filters)
        if (namespace is not None and namespace.written) or (filters is not None and t.effects.is_written(filters)):
            self.refuse(t)  # that is not yet so when the graph runs
        given = super().enter(t)
        manager = self.make(**kwargs)
        manager.__enter__()
        entered_for_real(t).append(manager)
        return given

    def what_entering_gives(self) -> GivenByBlock | None:
        record = self.kwargs.get("record")
        return None if record is None or not record.realize().as_constant() else GivenByBlock(list, self)

    def leave(self, t: Tracer) -> None:
        super().leave(t)
        entered_for_real(t).pop().__exit__(None, None, None)


def emit_step(t: Tracer, fn: Callable[..., object], args: Sequence[Value | object],
              refuse: Callable[[Tracer], NoReturn]) -> Value:
    """A step of the graph. In a graph that an operator is given it would be seen by nobody."""
    if overrides.innermost(t) is not None or overrides.entered_transforms(t):
        refuse(t)
    t.effects.reach_back()
    return t.emit(fn, args)


def filters_are_set(t: Tracer) -> bool:
    """Whether the trace is inside a block that keeps the filters of warnings."""
    return any(isinstance(manager, FiltersValue) for manager in entered_managers(t))


def state_block(make: Any, kind: type[StateBlockValue], why: str) -> None:
    """Calls of `make` give blocks of this kind."""
    @handles(make)
    def made(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = kind(make, [arg.realize() for arg in args], kwargs, why)
        try:
            inspect.signature(make).bind(*args, **kwargs)
        except TypeError:
            value.refuse(t)
        return value


for _make, _kind, _why in (
    (torch.autograd.graph.saved_tensors_hooks, HooksValue, "what autograd saves is given to functions of the program's"),
    (torch.autograd.graph.save_on_cpu, StateBlockValue, "what autograd saves is decided by the compiled graph"),
    (torch.autograd.graph.disable_saved_tensors_hooks, StateBlockValue, "what autograd saves is decided by the compiled graph"),
    (torch.random.fork_rng, RngBlockValue, "it saves and restores the state of generators"),
    (warnings.catch_warnings, FiltersValue, "it changes the filters of warnings"),
):
    state_block(_make, _kind, _why)
for _cls in (torch.autograd.graph.saved_tensors_hooks, warnings.catch_warnings, contextlib._GeneratorContextManager):
    methods_of_class(_cls)


def _manager_of_generator(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """`_GeneratorContextManager(fn, args, kwds)`, by which a manager that decorates a function makes one for each call: where
    `fn` is what a decorated function of torch wraps, the call of that one."""
    fn = args[0].realize() if cls is contextlib._GeneratorContextManager and len(args) == 3 and not kwargs else None
    if not isinstance(fn, FunctionValue) or not isinstance(fn.fn, types.FunctionType):  # one that the trace makes has none
        return None
    decorated = getattr(sys.modules.get(module_of(fn.fn)), fn.fn.__name__, None)
    if getattr(decorated, "__wrapped__", None) is not fn.fn or resolve(decorated) is None:
        return None
    keys = protocol.unpack(t, args[2])
    return t.call(t.make(decorated), protocol.unpack(t, args[1]),
                  {key.as_constant(): protocol.getitem(t, args[2], key) for key in keys})


CALLS.register(contextlib._GeneratorContextManager, _manager_of_generator)


# -- filters of warnings -------------------------------------------------------------------------------------------


def _sets_filters(fn: Any) -> None:
    """Inside a traced block; anywhere else they stay as they are set."""
    def refuse(t: Tracer) -> NoReturn:
        t.break_("call-print", function=f"warnings.{fn.__name__}")

    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not filters_are_set(t):
            refuse(t)
        try:
            given, named = [concrete(arg) for arg in args], {name: concrete(arg) for name, arg in kwargs.items()}
        except NotConcrete:
            refuse(t)
        emit_step(t, state_steps.calling(fn, given, named), [], refuse)
        try:
            fn(*given, **named)
        except Exception as error:  # all arguments are known: the program raises the same
            t.raise_(type(error), *error.args)
        return t.make(None)


for _fn in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    _sets_filters(_fn)


# -- torch's random generators -------------------------------------------------------------------------------------


def _refuse_rng(name: str) -> Callable[[Tracer], NoReturn]:
    def refuse(t: Tracer) -> NoReturn:
        t.break_("call-rng-state", function=f"torch.{name}")
    return refuse


@handles(torch.manual_seed)
def _manual_seed(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    refuse = _refuse_rng("manual_seed")
    given = [*args, *(kwargs[name] for name in ("seed",) if name in kwargs)]
    number = given[0].realize() if len(given) == 1 == len(args) + len(kwargs) else None
    is_symbol = isinstance(number, SymValue) and isinstance(number.sym, torch.SymInt)
    if number is None or not (is_symbol or (number.is_constant() and type(number.as_constant()) is int)):
        refuse(t)
    if number.is_constant() and not -(2**63) <= number.as_constant() < 2**64:
        refuse(t)
    emit_step(t, state_steps.seed, [number], refuse)
    return t.wrap(torch.default_generator, ConstSource(torch.default_generator, "torch.default_generator"))


@handles(torch.get_rng_state)
def _get_rng_state(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    refuse = _refuse_rng("get_rng_state")
    if args or kwargs:
        refuse(t)
    return emit_step(t, state_steps.rng_state, [], refuse)


@handles(torch.set_rng_state)
def _set_rng_state(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    refuse = _refuse_rng("set_rng_state")
    state = args[0].realize() if len(args) == 1 and not kwargs else kwargs.get("new_state")
    if not isinstance(state, TensorValue) or len(args) + len(kwargs) != 1:
        refuse(t)
    emit_step(t, state_steps.restore_rng, [state], refuse)
    return t.make(None)
