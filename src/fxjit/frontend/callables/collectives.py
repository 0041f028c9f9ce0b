"""Collectives of torch.distributed: what asks about process groups is known while tracing, and a collective that writes to the
tensors it is given becomes one that makes a new tensor, which is waited for and copied (fxjit/collectives.py).

Functional collectives (torch.distributed._functional_collectives) are traced: each is an operator, and one that waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
import torch.distributed

from fxjit import collectives, torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import callable_name, fold_call, handles
from fxjit.frontend.values.distributed import ProcessGroupValue
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.guards.kinds import LengthIs
from fxjit.guards.source import AttrSource, ConstSource, Source
from fxjit.torch_private import optional

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
        self.t.break_("call-collective", function=callable_name(self.fn), why=why)

    def constant(self, name: str) -> Any:
        value = self.given[name]
        if not value.is_constant():
            self.refuse(f"`{name}` is not known while tracing")
        return value.as_constant()

    def group(self) -> ProcessGroupValue:
        """The group, in which this rank is, and which does not collect calls to make them at once."""
        if self.constant("async_op") is not False:
            self.refuse("it is asynchronous (`async_op=True`), and its handle belongs to the running program")
        group = self.given["group"]
        if group.is_constant() and group.as_constant() is None:
            group = default_group(self.t)
        if not isinstance(group, ProcessGroupValue):
            self.refuse("there is no process group, or this rank is not in it")
        waiting, source = _state("_pg_coalesce_state")
        if waiting or overrides.innermost(self.t) is not None:
            self.refuse("a manager around it takes the call")
        self.t.guard(LengthIs(source, 0))
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
        operators = [self.t.make(each) for each in (start, collectives.wait_operator())]
        group = self.group().as_constant()
        settings = [self.t.make(each) for each in (group.group_name, group.size(), *rest)]
        self.t.call(self.t.make(body), [*operators, TupleValue(outs), TupleValue(given), *settings])
        return self.t.make(None)


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
    start, order = torch_private.get("torch.ops._c10d_functional.all_reduce"), collectives.memory_order(outs[0].fake, "tensor")
    return call.emit(collectives.all_reduce, start, outs, [], call.reduction(), order)


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
        start = torch_private.get("torch.ops._c10d_functional.all_gather_into_tensor")
        return call.emit(collectives.all_gather, start, outs, read)

    return call_all_gather


def _reduce_scatter_from(given: str) -> Callable[[_InPlace], Value]:
    def call_reduce_scatter(call: _InPlace) -> Value:
        outs, size = call.contiguous("output"), call.group().as_constant().size()
        read = call.contiguous(given)
        _require_fit(read, outs, size)
        start = torch_private.get("torch.ops._c10d_functional.reduce_scatter_tensor")
        return call.emit(collectives.reduce_scatter, start, outs, read, call.reduction())

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
