"""Subclasses of Tensor: how a tensor gets another class, and that a graph computes with plain ones.

A graph computes with plain tensors: one of a subclass that existed before goes in as a plain tensor over the same memory, one
made while tracing is a plain tensor of the graph that gets its class where it leaves. What the class has to say about operators
is asked while tracing (overrides.py). Classes with a `__torch_dispatch__` stay what they are (wrappers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import torch

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import classes, overrides, protocol, tensor_methods, wrappers
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.tensor import TensorValue, can_be_traced, views_sparse
from fxjit.frontend.values.traits import WrappedOutput
from fxjit.guards.source import ApplySource, Source

#: torch's own, whatever a library puts in the place of `Tensor.as_subclass`.
_AS_SUBCLASS: Final[Callable[[torch.Tensor, type], torch.Tensor]] = torch._C.TensorBase.__dict__["as_subclass"]


class SubclassTensorValue(TensorValue, WrappedOutput):
    """A tensor of a subclass, made while tracing: `plain` is what the graph gives out for it."""

    shell = True

    def __init__(self, plain: TensorValue, cls: type) -> None:
        super().__init__(plain.node, plain.fake, cls)
        self.plain = plain

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(to_subclass, self.plain, self.cls)


class ParameterValue(SubclassTensorValue):
    """A `Parameter` made while tracing."""

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(to_parameter, self.plain)


def to_parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    """Run-time helper of new bytecode: a parameter over the memory of `tensor`; what it requires is set with the effects."""
    with torch._C.DisableTorchFunction():
        return torch.nn.Parameter(tensor, requires_grad=False)


def to_subclass(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """Run-time helper of new bytecode: `tensor` as an instance of `cls`, with the gradient that it has."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        return _AS_SUBCLASS(tensor, cls)


def as_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor over the same memory, through which gradients arrive at this one."""
    return to_subclass(tensor, torch.Tensor)


def as_base_tensor(tensor: torch.Tensor, source: Source) -> tuple[torch.Tensor, Source]:
    """The graph's input for a tensor of a subclass, and its source."""
    plain = as_tensor(tensor)
    plain.__dict__.update(tensor.__dict__)  # marks of sizes that vary
    return plain, ApplySource(source, as_tensor)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Another view of the same memory, of which autograd knows nothing; writes to it are counted for both."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def graph_alias(tensor: torch.Tensor, source: Source) -> tuple[torch.Tensor, Source]:
    """What a graph is given for a tensor of the program's: itself, or an alias where its class, or its base, is none that fake
    tensors have."""
    if overrides.has_torch_function(type(tensor)):
        return as_base_tensor(tensor, source)
    if views_sparse(tensor):
        return detached(tensor), ApplySource(source, detached)
    return tensor, source


def as_subclass(t: Tracer, tensor: Value, cls: type, parameters: bool = False) -> Value:
    """`tensor.as_subclass(cls)`: another object over the same memory. `parameters`: classes of parameters are given, too."""
    if not isinstance(tensor, TensorValue) or not issubclass(cls, torch.Tensor) or not _can_be_given(cls, parameters):
        t.break_("tensor-subclass", type=cls.__qualname__, why="a graph cannot make one of another tensor")
    alias = cast(TensorValue, t.emit(torch.ops.aten.alias.default, [tensor]))
    if cls is torch.Tensor:
        return alias
    made = SubclassTensorValue(alias, cls)
    overrides.note_class(t, cls)
    t.register_tensor(made)
    return made


def _can_be_given(cls: type, parameters: bool) -> bool:
    """Whether a tensor that gets this class is no more than that."""
    special: tuple[type, ...] = (torch.nn.parameter.UninitializedTensorMixin,)  # type: ignore[attr-defined]  # not in the stubs
    special += () if parameters else (torch.nn.Parameter,)
    return can_be_traced(cls) and not issubclass(cls, special) and protocol.type_lookup(cls, "__del__") is protocol.type_lookup(
        torch.Tensor, "__del__")


@tensor_methods.method("as_subclass")
def _as_subclass(t: Tracer, tensor: TensorValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    wanted = [*args, *kwargs.values()]
    if len(wanted) != 1 or not wanted[0].is_constant() or not isinstance(wanted[0].as_constant(), type):
        t.break_("tensor-method", name="as_subclass", why="was not given a class.")
    return as_subclass(t, tensor, wanted[0].as_constant())


@handles(torch_private.optional("torch.Tensor._make_subclass"))
def _make_subclass(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`Tensor._make_subclass(cls, data, require_grad=False)`: the result has no autograd history."""
    given = dict(zip(("cls", "data", "require_grad"), args, strict=False)) | kwargs
    cls: Any = given["cls"].as_constant() if given["cls"].is_constant() else None
    unknown = given.keys() - {"cls", "data", "require_grad"}
    if unknown or not isinstance(given.get("data"), TensorValue) or not isinstance(cls, type):
        t.break_("tensor-subclass", type=str(cls), why="`Tensor._make_subclass` is given more than a class and a tensor")
    requires_grad = "require_grad" in given and protocol.truth(t, given["require_grad"])
    plain = t.emit("detach", [given["data"]])
    if cls is not torch.nn.Parameter or not isinstance(plain, TensorValue) or plain.cls is not torch.Tensor:
        if requires_grad:
            t.break_("value-set-attribute", name="requires_grad", value=given["data"].describe(), type=cls.__name__,
                     why="a graph cannot make a leaf of the autograd graph")
        return as_subclass(t, plain, cls, parameters=cls is not torch.nn.Parameter)
    made = ParameterValue(plain, cls)
    t.register_tensor(made)
    made.make_leaf(t, requires_grad)
    return made


def _new(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`Tensor.__new__(cls, ...)`: of a tensor, another one over its memory; else what `torch.Tensor(...)` gives."""
    plain = args[0] if len(args) == 1 and not kwargs and isinstance(args[0], TensorValue) else None
    return as_subclass(t, plain or t.call(t.make(torch.Tensor), args, kwargs), cls)


classes.NEW.register(torch.Tensor, _new)
classes.CALLS.register(torch.Tensor, wrappers.construct)
