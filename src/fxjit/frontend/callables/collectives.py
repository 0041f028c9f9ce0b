"""Collectives of torch.distributed: what asks about process groups is known while tracing, and a collective that writes to the
tensors it is given becomes one that makes a new tensor, which is waited for and copied (fxjit/collectives.py).

Functional collectives (torch.distributed._functional_collectives) are traced: each is an operator, and one that waits for it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed

from fxjit import collectives, torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import fold_call, handles
from fxjit.frontend.values.contexts import ContextValue, entered_managers
from fxjit.frontend.values.distributed import ProcessGroupValue
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.guards.kinds import LengthIs
from fxjit.guards.source import AttrSource, ConstSource, Source
from fxjit.homes import name_with_module
from fxjit.torch_private import optional

_coalescing_manager: Any = optional("torch.distributed.distributed_c10d._coalescing_manager")
_CoalescingManager: Any = optional("torch.distributed.distributed_c10d._CoalescingManager")

# -- what the program asks about groups --------------------------------------------------------------------------------


def _state(name: str) -> tuple[Any, Source]:
    """An attribute of the object that holds all groups of the process."""
    world = torch_private.get("torch.distributed.distributed_c10d._world")
    return getattr(world, name), AttrSource(ConstSource(world, "torch.distributed.distributed_c10d._world"), name)


def default_group(t: Tracer) -> Value:
    """The group of all ranks, or None: guarded, since a program may destroy it and make another."""
    return t.wrap(*_state("_default_pg")).realize()


def _answered_by_groups(fn: Any) -> None:
    """The answer follows from the arguments and from the default group."""
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        default_group(t)
        return fold_call(t, fn, args, kwargs)


# -- whether one may stand in a graph ----------------------------------------------------------------------------------


class _InPlace:
    """A call of a collective that writes to its arguments, with them by name."""

    def __init__(self, t: Tracer, fn: Any, args: list[Value], kwargs: Mapping[str, Value]) -> None:
        self.t, self.fn = t, fn
        try:
            bound = _signature(fn).bind(*args, **kwargs)
        except TypeError:
            self.refuse("its arguments are not those that it takes")
        bound.apply_defaults()
        self.given = {name: t.make(each).realize() for name, each in bound.arguments.items()}

    def refuse(self, why: str) -> NoReturn:
        self.t.break_("call-collective", function=name_with_module(self.fn), why=why)

    def constant(self, name: str) -> Any:
        value = self.given[name]
        if not value.is_constant():
            self.refuse(f"`{name}` is not known while tracing")
        return value.as_constant()

    def group(self) -> ProcessGroupValue:
        """The group, in which this rank is, and which does not collect calls to make them at once."""
        if self.constant("async_op") is not False:
            self.refuse("it is asynchronous (`async_op=True`), and its handle belongs to the running program")
        group = self.group_given()
        if overrides.innermost(self.t) is not None or not _nothing_collected(self.t):
            self.refuse("a manager around it takes the call")
        return group

    def group_given(self) -> ProcessGroupValue:
        """The group that is named, or that of all ranks."""
        group = self.given["group"]
        if group.is_constant() and group.as_constant() is None:
            group = default_group(self.t)
        if not isinstance(group, ProcessGroupValue):
            self.refuse("there is no process group, or this rank is not in it")
        return group

    def reduction(self) -> str:
        return collectives.reduction_name(self.constant("op"))

    def tensors(self, name: str) -> list[TensorValue]:
        """The tensor or the list of tensors under this name."""
        value = self.given[name]
        many = protocol.unpack(self.t, value) if isinstance(value, (ListValue, TupleValue)) else [value]
        found = [each.realize() for each in many]
        for each in found:
            if not isinstance(each, TensorValue) or each.pytype() not in (torch.Tensor, torch.nn.Parameter):
                self.refuse(f"`{name}` is no plain tensor")
        return found  # type: ignore[return-value]  # the loop has seen each

    def contiguous(self, name: str) -> list[TensorValue]:
        """The tensors under this name, with autograd out of it, each of which lies in memory as its dimensions say."""
        found = self.untracked(name)
        for each in found:
            collectives.require_plain(each.fake, name)
        return found

    def untracked(self, name: str) -> list[TensorValue]:
        """The same, with autograd out of it: it would see the copy, and not the write of eager, or eager refuses it."""
        found = self.tensors(name)
        if torch.is_grad_enabled() and any(each.fake.requires_grad for each in found):
            self.refuse(f"`{name}` requires a gradient, which a collective does not pass on; use `torch.no_grad()`")
        return found

    def check(self, fits: bool) -> None:
        """Where the tensors do not fit each other, eager says what it has to say."""
        collectives.require(fits, "the tensors' sizes or types do not fit each other")

    def emit(self, body: Callable[..., None], start: Any, outs: list[TensorValue], given: list[TensorValue],
             *rest: object) -> Value:
        _emit(self.t, body, start, outs, given, self.group().as_constant(), rest)
        return self.t.make(None)

    def emit_or_collect(self, kind: _Kind, outs: list[TensorValue], given: list[TensorValue], rest: tuple[object, ...] = (),
                        alone: tuple[object, ...] = ()) -> Value:
        """At once, or together with others at the end of the block of a `_coalescing_manager` around it. `alone` are arguments
        of the body that makes one at once."""
        group = self.group().as_constant()
        for manager in _open_managers(self.t, group):
            for each in outs:  # what others are sent with lies in memory as its dimensions say
                collectives.require_plain(each.fake, "tensor")
            manager.collected.append(_Collected(kind, outs[0], given, rest))
            return self.t.make(None)
        return self.emit(kind.body, kind.operator(), outs, given, *rest, *alone)


def _emit(t: Tracer, body: Callable[..., None], start: Any, outs: Sequence[Value], given: Sequence[Value], group: Any,
          rest: tuple[object, ...]) -> None:
    operators = [t.make(each) for each in (start, collectives.wait_operator())]
    settings = [t.make(each) for each in (group.group_name, group.size(), *rest)]
    t.call(t.make(body), [*operators, TupleValue(list(outs)), TupleValue(list(given)), *settings])


def _nothing_collected(t: Tracer) -> bool:
    """Whether no manager that was entered before the trace collects calls: guarded."""
    collected, source = _state("_pg_coalesce_state")
    if not collected:
        t.guard(LengthIs(source, 0))
    return not collected


# -- calls that are made together --------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A collective that `_coalescing_manager` collects: its body and operator alone, and those of many together."""

    body: Callable[..., None]
    operator: Callable[[], Any]
    body_together: Callable[..., None]
    operator_together: Callable[[], Any]


_ALL_REDUCE = _Kind(
    collectives.all_reduce, lambda: torch_private.get("torch.ops._c10d_functional.all_reduce"),
    collectives.all_reduce_together, lambda: torch_private.get("torch.ops._c10d_functional.all_reduce_coalesced"))
_ALL_GATHER = _Kind(
    collectives.all_gather, lambda: torch_private.get("torch.ops._c10d_functional.all_gather_into_tensor"),
    collectives.all_gather_together, lambda: torch_private.get("torch.ops._c10d_functional.all_gather_into_tensor_coalesced"))
_REDUCE_SCATTER = _Kind(
    collectives.reduce_scatter, lambda: torch_private.get("torch.ops._c10d_functional.reduce_scatter_tensor"),
    collectives.reduce_scatter_together,
    lambda: torch_private.get("torch.ops._c10d_functional.reduce_scatter_tensor_coalesced"))


class _Collected(NamedTuple):
    """A call that was collected, with what it writes and reads, and the other arguments of its body."""

    kind: _Kind
    out: TensorValue
    given: list[TensorValue]
    rest: tuple[object, ...]


class CoalescingValue(ContextValue):
    """`torch.distributed._coalescing_manager`: collectives of one group in its block are one call when it is left. They are
    waited for there, so that the handle which it gives has nothing to wait for."""

    resumable = False

    def __init__(self, group: ProcessGroupValue, asynchronous: bool) -> None:
        super().__init__(contextlib._GeneratorContextManager)
        self.group = group
        self.asynchronous = asynchronous
        self.collected: list[_Collected] = []

    def push_manager(self, cg: Rebuilder) -> None:
        cg.call(_coalescing_manager, self.group, None, self.asynchronous)

    def enter(self, t: Tracer) -> Value:
        if not _nothing_collected(t) or len(_open_managers(t, self.group.as_constant())) > 1:  # this one is among them
            self.refuse(t, "another one of its group is entered")
        return CoalescedValue()

    def leave(self, t: Tracer) -> None:
        calls, self.collected = self.collected, []
        for each in calls:
            same_types = each.out.fake.dtype == calls[0].out.fake.dtype and each.out.fake.device == calls[0].out.fake.device
            if (each.kind, each.rest) != (calls[0].kind, calls[0].rest) or not same_types:
                self.refuse(t, "the calls in its block are of different kinds, or their tensors of different types")
        if calls:
            kind, rest = calls[0].kind, calls[0].rest
            given = [read for each in calls for read in each.given]
            _emit(t, kind.body_together, kind.operator_together(), [each.out for each in calls], given,
                  self.group.as_constant(), rest)

    def leave_for(self, t: Tracer, exception: Value) -> None:
        if not (exception.is_constant() and exception.as_constant() is None):
            self.refuse(t, "its block ends in an exception, which leaves its calls waiting")
        self.leave(t)

    def refuse(self, t: Tracer, why: str) -> NoReturn:
        t.break_("context-unsupported", value=self.describe(), type="_coalescing_manager", why=why)


def _open_managers(t: Tracer, group: Any) -> list[CoalescingValue]:
    """Those that collect calls of a group."""
    return [each for each in entered_managers(t) if isinstance(each, CoalescingValue) and each.group.as_constant() is group]


class CoalescedValue(Value):
    """The handle that `_coalescing_manager` gives: what it waits for is over."""

    def pytype(self) -> type:
        cls: type = _CoalescingManager
        return cls

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "wait":
            return t.make(collectives.wait_for_nothing)
        return super().tp_getattro(t, name)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(_CoalescingManager)


def _signature(fn: Any) -> inspect.Signature:
    return inspect.signature(fn)


def _require_fit(whole: list[TensorValue], part: list[TensorValue], size: int) -> None:
    collectives.require_fit([each.fake for each in whole], [each.fake for each in part], size)


def _rewrite(call: Callable[[_InPlace], Value], *fns: Any) -> None:
    for fn in fns:
        if isinstance(fn, torch_private.Absent):
            continue

        def handler(t: Tracer, args: list[Value], kwargs: dict[str, Value], fn: Any = fn) -> Value:
            found = _InPlace(t, fn, args, kwargs)
            try:
                return call(found)
            except collectives.NotFunctional as problem:
                found.refuse(str(problem))

        handles(fn)(handler)


def _call_all_reduce(call: _InPlace) -> Value:
    outs = call.untracked("tensor")
    call.check(len(outs) == 1)
    order = collectives.memory_order(outs[0].fake, "tensor")
    return call.emit_or_collect(_ALL_REDUCE, outs, [], (call.reduction(),), alone=(order,))


def _call_broadcast(call: _InPlace) -> Value:
    outs, group = call.untracked("tensor"), call.group().as_constant()
    call.check(len(outs) == 1)
    root = collectives.root_in_group(group, call.constant("src"), call.constant("group_src"))
    start, order = torch_private.get("torch.ops._c10d_functional.broadcast"), collectives.memory_order(outs[0].fake, "tensor")
    return call.emit(collectives.broadcast, start, outs, [], root, order)


def _all_gather_from(out: str, given: str) -> Callable[[_InPlace], Value]:
    def call_all_gather(call: _InPlace) -> Value:
        outs, size = call.contiguous(out), call.group().as_constant().size()
        read = call.contiguous(given)
        _require_fit(outs, read, size)
        if len(outs) == 1 and out != "tensor_list":
            return call.emit_or_collect(_ALL_GATHER, outs, read)
        return call.emit(_ALL_GATHER.body, _ALL_GATHER.operator(), outs, read)

    return call_all_gather


def _reduce_scatter_from(given: str) -> Callable[[_InPlace], Value]:
    def call_reduce_scatter(call: _InPlace) -> Value:
        outs, size = call.contiguous("output"), call.group().as_constant().size()
        read, reduction = call.contiguous(given), call.reduction()
        _require_fit(read, outs, size)
        if len(read) == 1 and given != "input_list":
            return call.emit_or_collect(_REDUCE_SCATTER, outs, read, (reduction,))
        return call.emit(_REDUCE_SCATTER.body, _REDUCE_SCATTER.operator(), outs, read, reduction)

    return call_reduce_scatter


def _call_all_to_all(call: _InPlace) -> Value:
    outs, read, size = call.contiguous("output"), call.contiguous("input"), call.group().as_constant().size()
    call.check(len(outs) == len(read) == 1)
    splits = [call.given[name] for name in ("output_split_sizes", "input_split_sizes")]
    for tensor, rows in zip((outs[0], read[0]), splits, strict=True):
        collectives.require_divisible(tensor.fake, protocol.truth(call.t, rows), size)
    start = torch_private.get("torch.ops._c10d_functional.all_to_all_single")
    return call.emit(collectives.all_to_all, start, outs, read, *splits)


if torch.distributed.is_available():
    for _fn in (
        torch.distributed.get_rank, torch.distributed.get_world_size, torch.distributed.get_backend,
        torch.distributed.is_initialized, torch.distributed.get_process_group_ranks, torch.distributed.get_group_rank,
        torch.distributed.get_global_rank,
        optional("torch.distributed.distributed_c10d._find_or_create_pg_by_ranks_and_tag"),
        optional("torch.distributed.distributed_c10d._get_default_group"),
        optional("torch.distributed.distributed_c10d._get_group_size"),
        optional("torch.distributed.distributed_c10d._get_group_size_by_name"),
        optional("torch.distributed.distributed_c10d._get_group_tag"),
        optional("torch.distributed.distributed_c10d._rank_not_in_group"),
        optional("torch.distributed.distributed_c10d._resolve_group_name_by_ranks_and_tag"),
        optional("torch.distributed.distributed_c10d._resolve_process_group"),
    ):
        _answered_by_groups(_fn)

    @handles(type(torch.distributed.group).WORLD.fget)  # type: ignore[attr-defined]  # a property of the metaclass
    def _world_group(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return default_group(t)

    @handles(_coalescing_manager)
    def _coalesce(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        call = _InPlace(t, _coalescing_manager, args, kwargs)
        if call.constant("device") is not None:
            call.refuse("it is given a device")
        return CoalescingValue(call.group_given(), bool(call.constant("async_ops")))

    _rewrite(_call_all_reduce, torch.distributed.all_reduce)
    _rewrite(_call_broadcast, torch.distributed.broadcast)
    _rewrite(_all_gather_from("output_tensor", "input_tensor"), torch.distributed.all_gather_into_tensor,
             *filter(None, [getattr(torch.distributed, "all_gather_single", None)]),
             optional("torch.distributed.distributed_c10d._all_gather_base"))
    _rewrite(_all_gather_from("tensor_list", "tensor"), torch.distributed.all_gather)
    _rewrite(_reduce_scatter_from("input"), torch.distributed.reduce_scatter_tensor,
             *filter(None, [getattr(torch.distributed, "reduce_scatter_single", None)]),
             optional("torch.distributed.distributed_c10d._reduce_scatter_base"))
    _rewrite(_reduce_scatter_from("input_list"), torch.distributed.reduce_scatter)
    _rewrite(_call_all_to_all, torch.distributed.all_to_all_single)
