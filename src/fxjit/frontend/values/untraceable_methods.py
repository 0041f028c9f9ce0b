"""Methods of objects that are known by name only, and facts about such tensors."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, untraceable
from fxjit.frontend.values.base import Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import AttrSource


class UntraceableMethodValue(Value):
    """A method of such an object, bound: reading one does nothing, so that the graph ends once, at the call. What the instance
    has under the name is read when new bytecode reads it."""

    def __init__(self, owner: UntraceableValue, name: str) -> None:
        super().__init__(None)
        self.owner: Final = owner
        self.name: Final = name

    def pytype(self) -> type:
        return type(getattr(self.owner.obj, self.name))

    def describe(self) -> str:
        return f"`{self.owner.pytype().__name__}.{self.name}`"

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        self.owner.refuse(t)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        self.owner.refuse(t)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        self.owner.refuse(t)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.owner)
        cg.asm.load_attr(self.name)


@untraceable.method_of.provide
def _method_of(t: Tracer, owner: UntraceableValue, name: str) -> Value | None:
    cls = owner.pytype()
    if descriptors.look_up(t, cls, "__getattribute__")[0] is not object.__getattribute__:
        return None
    found, place = descriptors.look_up(t, cls, name)
    if name in _FACTS and owner.reason == "tensor-layout" and cls in (torch.Tensor, torch.nn.Parameter):
        fact = _fact(t, owner, name)
        if fact is not None:
            return fact
    is_method = isinstance(found, (types.MethodDescriptorType, types.FunctionType)) and place is not object
    return UntraceableMethodValue(owner, name) if is_method else None


#: What no call changes but one that breaks the graph, and guards find again: programs choose by it what to do with a sparse
#: tensor.
_FACTS: Final = frozenset({
    "layout", "dtype", "ndim", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_cuda", "is_cpu", "is_meta",
    "is_leaf", "requires_grad",
})


def _fact(t: Tracer, owner: UntraceableValue, name: str) -> Value | None:
    assert owner.source is not None, "asked by who gives it"
    try:
        found = getattr(owner.obj, name)
    except RuntimeError:  # a view that was written past autograd says so when it is asked
        return None
    t.guard(ConstIs(AttrSource(owner.source, name), found))
    return t.make(found)
