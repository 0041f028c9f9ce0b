"""Numbers that are known when the program runs: the identity of an object, and of a tensor behind its Python object."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, NoReturn

import torch

from fxjit import process_state
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import CellContentsSource, ClosureCellSource, ClosureSource, ConstSource, GlobalSource, Source

#: What holds objects that live longer than a call, the identity of which may be relied on: globals and closures.
LONG_LIVED: Final = (GlobalSource, ConstSource, ClosureSource, ClosureCellSource, CellContentsSource)


def is_long_lived(source: Source) -> bool:
    """Whether it is found in what lives longer than a call."""
    step: Source | None = source
    while step is not None and not isinstance(step, LONG_LIVED):
        step = step.base
    return step is not None


def tensor_identity(tensor: torch.Tensor) -> int:
    """`tensor._cdata`: two tensors have the same if they are one."""
    return tensor._cdata


class LateNumber(Value):
    """`id(obj)`, `tensor._cdata` or the thread's identity: an int that is known when the program runs, and good for
    nothing but being compared, being a key, and leaving the frame; that of a module or a parameter is a constant where more is
    asked of it."""

    def __init__(self, fn: Callable[..., int], *args: Value) -> None:
        super().__init__()
        self.fn = fn
        self.args = args

    def pytype(self) -> type:
        return int

    def hash_key(self) -> Hashable:
        """The key it is in a dict."""
        return (self.fn, self.args)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(self.fn, *self.args)

    def settle(self, t: Tracer) -> Value | None:
        """The identity of an object that lives longer than a call, to which the entry is bound; None of any other."""
        if self.fn not in (id, object.__hash__):
            return None
        value = self.args[0].realize()
        if value.source is None:
            return None
        obj = getattr(value, "real" if issubclass(value.pytype(), torch.Tensor) else "obj", None)
        if obj is None:
            obj = t.object_of(value)  # of containers, whose values have none at hand
        if obj is None:
            return None
        if not isinstance(obj, (torch.nn.Module, torch.nn.Parameter)) and not is_long_lived(value.source):
            return None
        t.guard(IdIs(value.source, obj))
        process_state.bind("the identity of an object")
        return t.make(self.fn(obj))

    def _settled(self, t: Tracer) -> Value:
        settled = self.settle(t)
        if settled is None:
            self._refuse(t)
        return settled

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if not isinstance(other, LateNumber) and other.pytype() is not int:
            return NOT_IMPLEMENTED
        if op not in ("==", "!=") or not isinstance(other, LateNumber) or other.fn is not self.fn:
            return protocol.compare(t, op, self._settled(t), other)
        same = len(self.args) == len(other.args) and all(map(partial(protocol.is_, t), self.args, other.args))
        return t.make(same == (op == "=="))

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(True)

    def _refuse(self, t: Tracer) -> NoReturn:
        t.break_("call-builtin", function=self.fn.__name__, args=", ".join(arg.describe() for arg in self.args))

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        fixed = self._settled(t)
        return protocol.binary(t, op, other, fixed) if reflected else protocol.binary(t, op, fixed, other)

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        return protocol.unary(t, op, self._settled(t))

    def tp_hash(self, t: Tracer) -> Value:
        return protocol.hash_(t, self._settled(t))

    def tp_repr(self, t: Tracer) -> Value:
        return protocol.repr_(t, self._settled(t))
