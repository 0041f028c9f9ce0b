"""Objects of torch.distributed that are known while tracing: process groups, device meshes, placements, kinds of reduction, and
handles of collectives under way.

Each is guarded by identity where the frame found it, placements by value. What a group or a mesh says of itself does not change
while it lives, so that is read while tracing; whatever communicates breaks the graph (callables/collectives.py has what does
not).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed
import torch.distributed.device_mesh

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import classes, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Value, _NotImplemented
from fxjit.frontend.values.bound_arguments import BoundArgument
from fxjit.frontend.values.calls import fold_call
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.constant import ConstantValue
from fxjit.frontend.values.natives import BuiltinMethodValue
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs, TypeIs
from fxjit.guards.placements import PlacementIs
from fxjit.guards.source import AttrSource, ConstSource, Source


class FixedObjectValue(ConstantValue):
    """An object that does not change while it lives: attributes, and the methods in `reads`, are read while tracing."""

    reads: ClassVar[frozenset[str]] = frozenset()

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(type(self.obj))
        try:
            found = getattr(self.obj, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        if isinstance(found, torch.Tensor):
            return t.wrap(found, AttrSource(self.source or ConstSource(self.obj, type(self.obj).__name__), name)).realize()
        is_method = callable(found) and getattr(found, "__self__", None) is self.obj
        return FixedMethodValue(self, name) if is_method else t.make(found)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def graph_arg(self, t: Tracer) -> Any:
        return BoundArgument(self.obj)

    def read(self, t: Tracer, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """A call of one of its methods."""
        if name not in self.reads:
            self._refuse(t, name)
        try:
            given, named = [concrete(arg) for arg in args], {key: concrete(arg) for key, arg in kwargs.items()}
        except NotConcrete:
            self._refuse(t, name)
        return protocol.fold(t, lambda: getattr(self.obj, name)(*given, **named))

    def _refuse(self, t: Tracer, name: str) -> NoReturn:
        t.break_("call-collective", function=f"{type(self.obj).__name__}.{name}", why="it may communicate with other ranks")


class FixedMethodValue(BuiltinMethodValue):
    """A method of a `FixedObjectValue`."""

    self_value: FixedObjectValue

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return self.self_value.read(t, self.name, args, kwargs)


class ProcessGroupValue(FixedObjectValue):
    """A process group: its size, this process's rank in it and its names are known, all else communicates."""

    reads = frozenset({"size", "rank", "name"})


class DeviceMeshValue(FixedObjectValue):
    """A device mesh. Meshes that are made of it by indexing have the groups that it has."""

    reads = frozenset({"size", "get_group", "get_all_groups", "get_rank", "get_local_rank", "get_coordinate", "__getitem__",
                       "_is_current_rank_part_of_mesh", "_get_root_mesh"})

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        return self.read(t, "__getitem__", [key], {})


class PlacementValue(FixedObjectValue):
    """How a distributed tensor lies along one dimension of a mesh: a value, compared by `==`."""

    def read(self, t: Tracer, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return fold_call(t, getattr(self.obj, name), args, dict(kwargs))

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if not other.is_constant():
            return NOT_IMPLEMENTED
        return protocol.fold(t, lambda: protocol.COMPARE[op](self.obj, other.as_constant()))

    def tp_hash(self, t: Tracer) -> Value:
        return t.make(hash(self.obj))


def _make_placement(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`Shard(0)`: made while tracing."""
    made = fold_call(t, cls, args, dict(kwargs))
    return PlacementValue(made.as_constant())


class WorkValue(UntraceableValue):
    """The handle of a collective under way, another one each time: the running program waits for it."""

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        is_method = callable(getattr(type(self.obj), name, None))
        return _WorkMethodValue(self, name) if is_method else super().tp_getattro(t, name)


class _WorkMethodValue(BuiltinMethodValue):
    self_value: WorkValue

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        t.break_("call-collective", function=f"Work.{self.name}", why="the running program started the collective")


if torch.distributed.is_available():
    _PLACEMENT: Any = torch_private.optional("torch._C._distributed.Placement")

    @wraps(torch.distributed.ProcessGroup, subclasses=True)
    def _wrap_group(t: Tracer, obj: Any, source: Source) -> Value:
        t.guard(IdIs(source, obj))
        return ProcessGroupValue(obj, source)

    @wraps(torch.distributed.device_mesh.DeviceMesh, subclasses=True)
    def _wrap_mesh(t: Tracer, obj: Any, source: Source) -> Value:
        t.guard(IdIs(source, obj))
        return DeviceMeshValue(obj, source)

    @wraps(_PLACEMENT, subclasses=True)
    def _wrap_placement(t: Tracer, obj: Any, source: Source) -> Value:
        t.guard(PlacementIs(source, obj))
        return PlacementValue(obj, source)

    classes.CALLS.register(_PLACEMENT, _make_placement)

    @wraps(torch.distributed.Work, subclasses=True)
    def _wrap_work(t: Tracer, obj: Any, source: Source) -> Value:
        t.guard(TypeIs(source, type(obj)))
        return WorkValue(obj, source, "call-collective", function="Work", why="a collective is under way")

    @wraps(torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType)
    def _wrap_reduction(t: Tracer, obj: Any, source: Source) -> Value:
        t.guard(IdIs(source, obj))
        return FixedObjectValue(obj, source)
