"""Dispatch to `__torch_function__`: modes that the traced frame has entered, and arguments whose class has one (subclasses of
Tensor, and objects that stand for tensors). They get the calls that torch would give them, modes first.

What torch passes on (which function, which types, how the arguments are given) is found out from torch itself: the call is made
on stand-ins for the tensors under a mode of ours, which sees what the user's would see and lets nothing be computed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, get_overridable_functions
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Value
from fxjit.frontend.values.concrete import builtin_part
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.traits import Alternatives
from fxjit.guards.source import namespace_of
from fxjit.homes import module_of
from fxjit.tensor_wrappers import dispatches_to_operators, is_wrapper

FAMILY: Final = "torch function modes"
#: The C functions that dispatch to modes, by id: torchfn.py's operators.
OPERATORS: Final[dict[int, Any]] = {}
#: Flex attention's mode: by name, since it is defined in a compiler that is not imported here.
_SUBSCRIPTS: Final = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")


def entered_modes(t: Tracer) -> list[Value]:
    """The modes that the trace has entered and not left, innermost last."""
    modes: list[Value] = t.new_source_state(FAMILY).setdefault("entered", [])
    return modes


def entered_transforms(t: Tracer) -> list[str]:
    """The transforms of torch.func whose functions are being traced, innermost last."""
    found: list[str] = t.new_source_state(FAMILY).setdefault("transforms", [])
    return found


def is_subscripts(mode: Value) -> bool:
    cls: Any = mode.pytype()
    return (module_of(cls), cls.__qualname__) == _SUBSCRIPTS


def disabled_by(t: Tracer) -> list[Any]:
    """The managers of torch that switch off all of it, or all but modes, and are entered; innermost last."""
    found: list[Any] = t.new_source_state(FAMILY).setdefault("off", [])
    return found


def begin(t: Tracer) -> None:
    """The trace begins in a program that may have switched some of it off."""
    t.new_source_state(FAMILY)
    if not torch._C._is_torch_function_enabled():
        everything = torch._C._is_torch_function_all_disabled()
        disabled_by(t).append(torch._C.DisableTorchFunction if everything else torch._C.DisableTorchFunctionSubclass)


@contextmanager
def subclasses_disabled(t: Tracer) -> Iterator[None]:
    """Overrides of arguments are disabled inside."""
    off = disabled_by(t)
    off.append(torch._C.DisableTorchFunctionSubclass)
    try:
        yield
    finally:
        off.remove(torch._C.DisableTorchFunctionSubclass)


def note_class(t: Tracer, cls: type) -> None:
    """There is an object of this class: from now on calls are looked at, if it has something to say about them."""
    if has_torch_function(cls):
        t.new_source_state(FAMILY)


def innermost(t: Tracer) -> Value | None:
    """The mode that is dispatched to next: not one of torch's own that only passes calls on."""
    if torch._C.DisableTorchFunction in t.new_source_state(FAMILY).get("off", ()):
        return None
    for mode in reversed(t.new_source_state(FAMILY).get("entered", ())):
        if mode.pytype() is not BaseTorchFunctionMode and not is_subscripts(mode):
            return mode  # type: ignore[no-any-return]  # the scratch space has no types
    return None


def refuse(t: Tracer, why: str, asked: Sequence[Value] = ()) -> NoReturn:
    """The override of the innermost mode, or else of the arguments `asked`, cannot be traced."""
    mode = innermost(t)
    if mode is None:
        t.break_("torch-function", type=", ".join(sorted({each.pytype().__name__ for each in asked})), why=why)
    t.break_("context-unsupported", value=mode.describe(), type=mode.pytype().__name__, why=why)


def has_torch_function(cls: type) -> bool:
    """Whether an argument of this class would take an operator's call over."""
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return False
    raw = next((space["__torch_function__"] for space in map(namespace_of, cls.__mro__) if "__torch_function__" in space), None)
    disabled = torch._C._disabled_torch_function_impl
    if raw is None or raw is disabled or getattr(raw, "__func__", None) is disabled:
        return False
    return not dispatches_to_operators(cls)


def inlined_in(gm: torch.fx.GraphModule) -> bool:
    """Whether tensors of the graph have a `__torch_function__`, which the trace has called: the graph has what it came to."""
    values = (leaf for node in gm.graph.nodes for leaf in pytree.tree_leaves(node.meta.get("example_value")))
    return any(isinstance(value, torch.Tensor) and is_wrapper(value) and has_torch_function(type(value)) for value in values)


def without_torch_function(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, in which no `__torch_function__` of a subclass is called."""
    def run(*args: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return call(*args)

    return run


def overriding_arguments(t: Tracer, values: Iterable[Value]) -> list[Value]:
    """The arguments whose `__torch_function__` torch calls, also those in lists and tuples: one of each class."""
    if disabled_by(t):
        return []
    found: dict[type, Value] = {}
    for value in values:
        value = value.realize()
        if isinstance(value, Alternatives):  # a number or a plain tensor
            continue
        cls = value.pytype()
        if cls in (list, tuple):
            for each in overriding_arguments(t, protocol.unpack(t, value)):
                found.setdefault(each.pytype(), each)
        elif has_torch_function(cls):
            found.setdefault(cls, value)
    return list(found.values())


def dispatch(t: Tracer, call: Callable[..., Any], args: Sequence[Value],
             kwargs: Mapping[str, Value] | None = None) -> Value | None:
    """The result of a mode or an argument for `call(*args, **kwargs)`; None where torch calls no override."""
    named = kwargs or {}
    asked = overriding_arguments(t, [*args, *named.values()])
    if innermost(t) is None and not asked:
        return None
    stand_ins = _StandIns(t, asked)
    given = [stand_ins.of(arg) for arg in args]
    given_named = {name: stand_ins.of(arg) for name, arg in named.items()}
    try:
        with torch._C._EnableTorchFunction(), _Observer():  # the trace itself runs with that switched off
            call(*given, **given_named) if given_named else call(*given)  # C functions distinguish whether there was a dict
    except _Seen as seen:
        func, classes, seen_args, seen_kwargs = seen.what
        by_class = {each.pytype(): each for each in asked}
        in_turn = [by_class[cls] for cls in classes if cls in by_class]
        if innermost(t) is None and not in_turn:
            return None
        passed = [stand_ins.value(arg) for arg in seen_args]
        passed_named = None if seen_kwargs is None else {name: stand_ins.value(arg) for name, arg in seen_kwargs.items()}
        return call_torch_function(t, func, classes, in_turn, passed, passed_named)
    except Exception as error:  # before torch dispatches: eager raises it for the real arguments, or something else
        refuse(t, f"`{getattr(call, '__name__', call)}` could not be asked what it would tell it: {error}", asked)
    return None


def call_torch_function(t: Tracer, func: Any, classes: Sequence[type], asked: Sequence[Value], args: Sequence[Value],
         kwargs: Mapping[str, Value] | None) -> Value:
    """Call the `__torch_function__` of the innermost mode, inside which it is not in force, or else of the arguments `asked`,
    one after the other until one has an answer."""
    mode = innermost(t)
    for each in [mode] if mode is not None else asked:
        told: list[Value] = [t.make(func), TupleValue([t.make(cls) for cls in classes]), TupleValue(args)]
        if kwargs is not None:
            told.append(t.call(t.make(dict), [], dict(kwargs)))
        handler = protocol.getattr_(t, each, "__torch_function__")
        with _left(t, mode):
            result = t.call(handler, told)
        if not result.is_constant() or result.as_constant() is not NotImplemented:
            return result
    refuse(t, "its `__torch_function__` gives NotImplemented", asked)


@contextmanager
def _left(t: Tracer, mode: Value | None) -> Iterator[None]:
    if mode is None:
        yield
        return
    modes = entered_modes(t)
    inside = modes[modes.index(mode):]
    del modes[-len(inside):]
    try:
        yield
    finally:
        modes += inside


def dispatch_call(t: Tracer, fn: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """The same for a call of a value, if it is one of torch's functions that dispatch to overrides."""
    bound_to, name = getattr(fn, "tensor", None), getattr(fn, "name", "")
    if isinstance(bound_to, Value):  # a method of a tensor
        def method(tensor: Any, *rest: Any, **named: Any) -> Any:
            torchs = getattr(torch.Tensor, name)  # the class may have one of its own
            return torchs(tensor, *rest, **named) if named else torchs(tensor, *rest)

        return dispatch(t, method, [bound_to, *args], kwargs)
    callee: Any = getattr(fn, "fn", None)
    if isinstance(callee, HigherOrderOperator):
        if innermost(t) is not None:
            refuse(t, "operators that take functions are not traced under a mode")
        return None
    return dispatch(t, callee, args, kwargs) if _is_overridable(callee) else None


def _is_overridable(fn: Any) -> bool:
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return fn.__objclass__ is torch._C.TensorBase
    if isinstance(fn, types.BuiltinFunctionType):
        return id(fn) in OPERATORS
    if isinstance(fn, (OpOverload, OpOverloadPacket)):
        return True
    return isinstance(fn, types.FunctionType) and fn in _overridable()


@functools.cache
def _overridable() -> frozenset[Any]:
    return frozenset(fn for fns in get_overridable_functions().values() for fn in fns if isinstance(fn, types.FunctionType))


def dispatch_attribute(t: Tracer, tensor: Value, name: str) -> Value | None:
    """The same for `tensor.name`."""
    if not intercepts_attribute(t, tensor, name):
        return None
    return dispatch(t, lambda stand_in: getattr(stand_in, name), [tensor])


def intercepts_attribute(t: Tracer, tensor: Value, name: str) -> bool:
    """Whether reading or writing an attribute of a tensor is dispatched to an override."""
    if innermost(t) is None and (not has_torch_function(tensor.pytype()) or disabled_by(t)):
        return False
    raw = protocol.type_lookup(tensor.pytype(), name)
    if name == "__dict__":  # which is Python's own
        return False
    is_torchs = raw is not NOT_IMPLEMENTED and raw is protocol.type_lookup(torch.Tensor, name)
    return is_torchs and isinstance(raw, (types.GetSetDescriptorType, property))


# -- what torch would pass to a mode ----------------------------------------------------------------------------------


class _Seen(BaseException):
    """The arguments that a mode was called with."""

    def __init__(self, *what: Any) -> None:
        super().__init__()
        self.what = what


class _Observer(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _Seen(func, types, args, kwargs)


class _StandIns:
    """Real objects in the place of values, and back. They are known by identity: torch passes on what it was given."""

    def __init__(self, t: Tracer, asked: Sequence[Value]) -> None:
        self.t = t
        self.asked = asked
        self._values: dict[int, tuple[Any, Value]] = {}

    def of(self, value: Value) -> Any:
        value = value.realize()
        made = self._make(value)
        self._values[id(made)] = made, value
        return made

    def _make(self, value: Value) -> Any:
        cls = value.pytype()
        if isinstance(getattr(value, "fake", None), torch.Tensor):
            return _tensor_like(cls)
        if value.is_constant():
            return value.as_constant()
        if cls in (list, tuple, torch.Size):
            return (list if cls is list else tuple)(self.of(item) for item in protocol.unpack(self.t, value))
        if cls in (int, float):
            return cls(1000.0 + len(self._values))  # an object of its own
        if cls is slice:
            return slice(None)
        if has_torch_function(cls) and protocol.type_lookup(cls, "__del__") is NOT_IMPLEMENTED:
            part = builtin_part(value)
            if isinstance(part, TupleValue):  # a list of tensors to a function that takes one
                return tuple.__new__(cls, map(self.of, part.items))
            with suppress(TypeError):  # of abstract classes, and those that C lays out
                return object.__new__(cls)  # torch looks at nothing but its class
        refuse(self.t, f"a function of torch is given `{value.describe()}` with it", self.asked)

    def value(self, made: Any) -> Value:
        found = self._values.get(id(made))
        if found is not None:
            return found[1]
        if made is None or isinstance(made, (bool, int, float, str, torch.dtype, torch.device)):
            return self.t.make(made)
        if type(made) in (tuple, list):
            items = [self.value(item) for item in made]
            return TupleValue(items) if type(made) is tuple else self.t.call(self.t.make(list), [TupleValue(items)])
        refuse(self.t, f"torch passes a `{type(made).__name__}` to it", self.asked)


def _tensor_like(cls: type) -> torch.Tensor:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        plain = torch.empty(0)
        if cls is torch.Tensor:
            return plain
        made: torch.Tensor = torch_private.get("torch.Tensor._make_subclass")(cls, plain)
        return made
