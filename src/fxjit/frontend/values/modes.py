"""Modes of `__torch_function__` that the traced frame has entered: the innermost is asked whatever torch would ask it.

What torch asks (which function, which types, how the arguments are given) is found out by asking torch: the call is made on
stand-ins for the tensors under a mode of ours, which sees what the user's would see and lets nothing be computed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, get_overridable_functions
from torch.utils._python_dispatch import _disable_current_modes

from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Tracer, Value
from fxjit.frontend.values.sequence import TupleValue

FAMILY: Final = "torch function modes"
#: The C functions that ask modes, by id: torchfn.py's operators.
OPERATORS: Final[dict[int, Any]] = {}
#: Flex attention's mode: by name, since it lives in a compiler that is not imported here.
_SUBSCRIPTS: Final = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")


def entered(t: Tracer) -> list[Value]:
    """The modes that the trace has entered and not left, innermost last."""
    modes: list[Value] = t.new_source_state(FAMILY).setdefault("entered", [])
    return modes


def is_subscripts(mode: Value) -> bool:
    cls: Any = mode.pytype()
    return (cls.__module__, cls.__qualname__) == _SUBSCRIPTS


def innermost(t: Tracer) -> Value | None:
    """The mode that is asked next: not one of torch's own that only passes calls on."""
    for mode in reversed(t.new_source_state(FAMILY).get("entered", ())):
        if mode.pytype() is not BaseTorchFunctionMode and not is_subscripts(mode):
            return mode  # type: ignore[no-any-return]  # the scratch space has no types
    return None


def refuse(t: Tracer, why: str) -> NoReturn:
    mode = innermost(t)
    assert mode is not None
    t.break_("context-unsupported", value=mode.describe(), type=mode.pytype().__name__, why=why)


def ask(t: Tracer, call: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value] | None = None) -> Value | None:
    """What a mode makes of `call(*args, **kwargs)`; None where no mode is entered, or the call asks none."""
    if innermost(t) is None:
        return None
    stand_ins = _StandIns(t)
    given = [stand_ins.of(arg) for arg in args]
    named = {name: stand_ins.of(arg) for name, arg in (kwargs or {}).items()}
    try:
        with _Observer():
            call(*given, **named) if named else call(*given)  # C functions tell whether there was a dict
    except _Seen as seen:
        func, classes, seen_args, seen_kwargs = seen.what
        passed = [stand_ins.value(arg) for arg in seen_args]
        passed_named = None if seen_kwargs is None else {name: stand_ins.value(arg) for name, arg in seen_kwargs.items()}
        return tell(t, func, classes, passed, passed_named)
    except Exception as error:  # before torch came to ask: eager raises it for the real arguments, or something else
        refuse(t, f"`{getattr(call, '__name__', call)}` could not be asked what it would tell a mode: {error}")
    return None


def tell(t: Tracer, func: Any, classes: Sequence[type], args: Sequence[Value], kwargs: Mapping[str, Value] | None) -> Value:
    """Call the innermost mode's `__torch_function__`, inside which it is not in force."""
    mode = innermost(t)
    assert mode is not None
    handler = protocol.getattr_(t, mode, "__torch_function__")
    told: list[Value] = [t.make(func), TupleValue([t.make(cls) for cls in classes]), TupleValue(args)]
    if kwargs is not None:
        named = t.call(t.make(dict), [], dict(kwargs))
        told.append(named)
    with _left(t, mode):
        result = t.call(handler, told)
    if result.is_constant() and result.as_constant() is NotImplemented:
        refuse(t, "its `__torch_function__` gives NotImplemented")
    return result


@contextmanager
def _left(t: Tracer, mode: Value) -> Iterator[None]:
    modes = entered(t)
    inside = modes[modes.index(mode):]
    del modes[-len(inside):]
    try:
        yield
    finally:
        modes += inside


def ask_about_call(t: Tracer, fn: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """The same for a call of a value, if it is one of torch's functions that ask modes."""
    if innermost(t) is None:
        return None
    bound_to, name = getattr(fn, "tensor", None), getattr(fn, "name", "")
    if isinstance(bound_to, Value):  # a method of a tensor
        def method(tensor: Any, *rest: Any, **named: Any) -> Any:
            return getattr(tensor, name)(*rest, **named) if named else getattr(tensor, name)(*rest)

        return ask(t, method, [bound_to, *args], kwargs)
    callee: Any = getattr(fn, "fn", None)
    if isinstance(callee, HigherOrderOperator):
        refuse(t, "operators that take functions are not traced under a mode")
    return ask(t, callee, args, kwargs) if _asks_modes(callee) else None


def _asks_modes(fn: Any) -> bool:
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return fn.__objclass__ is torch._C.TensorBase
    if isinstance(fn, types.BuiltinFunctionType):
        return id(fn) in OPERATORS
    if isinstance(fn, (OpOverload, OpOverloadPacket)):
        return True
    return isinstance(fn, types.FunctionType) and fn in _overridable()


def _overridable() -> frozenset[Any]:
    if not _OVERRIDABLE:
        _OVERRIDABLE.append(frozenset(
            fn for fns in get_overridable_functions().values() for fn in fns if isinstance(fn, types.FunctionType)))
    return _OVERRIDABLE[0]


_OVERRIDABLE: Final[list[frozenset[Any]]] = []


def is_descriptor(cls: type, name: str) -> bool:
    """Whether reading or writing an attribute of a tensor is a call that modes see."""
    raw = protocol.type_lookup(cls, name)
    return raw is not NOT_IMPLEMENTED and isinstance(raw, (types.GetSetDescriptorType, property))


# -- what torch would tell a mode ----------------------------------------------------------------------------------


class _Seen(BaseException):
    """What a mode was told."""

    def __init__(self, *what: Any) -> None:
        super().__init__()
        self.what = what


class _Observer(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _Seen(func, types, args, kwargs)


class _StandIns:
    """Real objects in the place of values, and back. They are known by identity: torch passes on what it was given."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
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
        refuse(self.t, f"a function of torch is given `{value.describe()}` under it")

    def value(self, made: Any) -> Value:
        found = self._values.get(id(made))
        if found is not None:
            return found[1]
        if made is None or isinstance(made, (bool, int, float, str, torch.dtype, torch.device)):
            return self.t.make(made)
        if type(made) in (tuple, list):
            items = [self.value(item) for item in made]
            return TupleValue(items) if type(made) is tuple else self.t.call(self.t.make(list), [TupleValue(items)])
        refuse(self.t, f"torch passes a `{type(made).__name__}` to it")


def _tensor_like(cls: type) -> torch.Tensor:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        plain = torch.empty(0)
        if cls is torch.Tensor:
            return plain
        return torch.Tensor._make_subclass(cls, plain)
