"""Tensors of traceable wrapper subclasses (`__torch_dispatch__`, `__tensor_flatten__`) in traced code.

One is a tensor of the graph like others: its fake is an instance of the class over fake inner tensors, and an operator on it
is a node, whose fake result the class's own `__torch_dispatch__` gives. Here is what differs: attributes of the
instance, of which the inner tensors are nodes too, and calls of the class, which are one node.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import AttrSource, ClassItemSource, class_source
from fxjit.tensor_wrappers import has_own_dispatch, inner_tensors, is_wrapper, is_wrapper_class, opaque_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Why a tensor of a class with a `__torch_dispatch__` cannot be traced.
NO_WRAPPER: Final = "it has a `__torch_dispatch__`, but no `__tensor_flatten__` and `__tensor_unflatten__`"


def refuse_write(t: Tracer, value: GraphTensor, name: str) -> None:
    """Refuses a write to an attribute of a wrapper: its operators depend on it, and the graph is keyed by its parts."""
    t.break_("value-set-attribute", name=name, value=value.describe(), type=value.cls.__name__,
             why="a graph cannot change what a wrapper subclass is made of, or what its operators may go by")


def attribute(t: Tracer, value: GraphTensor, name: str) -> Value | None:
    """The instance's own attribute of this name, in its `__dict__` or a slot; None for none."""
    fake = value.fake
    held = dict(_held(fake))
    if name in dict(inner_tensors(fake)):
        inner: torch.Tensor = getattr(fake, name)
        if inner.requires_grad and value.source is not None:
            t.break_("tensor-subclass", type=value.cls.__qualname__,
                     why=f"its inner tensor `{name}` requires a gradient, which a graph gives to the wrapper alone")
        return t.emit(getattr, [value, t.make(name)])
    opaque = dict(opaque_parts(fake))
    if name in opaque:
        return t.make(opaque[name]) if value.source is None else t.wrap(opaque[name], AttrSource(value.source, name))
    if value.source is not None and value.real is not None:
        real = dict(_held(value.real))
        return t.wrap(real[name], AttrSource(value.source, name)) if name in real else None
    if name not in held:
        return None
    found = held[name]
    if isinstance(found, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return t.emit(getattr, [value, t.make(name)])
    return t.make(found)


def _held(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    yield from vars(tensor).items()
    for cls in type(tensor).__mro__:
        if cls is torch.Tensor:
            return
        for name, raw in vars(cls).items():
            if isinstance(raw, types.MemberDescriptorType) and hasattr(tensor, name):
                yield name, getattr(tensor, name)


def construct(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """`cls(...)` of a wrapper class as one node, which runs its own `__new__` and `__init__`; None for other classes."""
    if not is_wrapper_class(cls) or not has_own_dispatch(cls):
        return None
    for name in ("__new__", "__init__"):
        owner = next(each for each in cls.__mro__ if name in vars(each))
        raw = vars(owner)[name]
        if owner is not torch.Tensor and owner is not object:
            t.guard(IdIs(ClassItemSource(class_source(owner), name), raw))
    made = t.emit(cls, args, kwargs)
    if not isinstance(made, GraphTensor) or not is_wrapper(made.fake):
        t.break_("tensor-subclass", type=cls.__qualname__, why="calling the class gives no tensor of it")
    if made.fake.requires_grad and made.fake.is_leaf and not t.make_leaf(made, True):
        t.break_("value-set-attribute", name="requires_grad", value=made.describe(), type=cls.__name__,
                 why="a graph cannot make a leaf of the autograd graph")
    return made
