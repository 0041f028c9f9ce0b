"""Collectives of torch.distributed: what asks about process groups is known while tracing, and a collective that writes to the
tensors it is given becomes one that makes a new tensor, which is waited for and copied.

Functional collectives (torch.distributed._functional_collectives) are traced: each is an operator, and one that waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
import torch.distributed

from fxjit import torch_private
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


# -- collectives that write to their arguments, as they stand in a graph: `outs` and `given` are lists of tensors ------


def _all_reduce(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, reduction: str) -> None:
    outs[0].copy_(wait(start(given[0], reduction, group)))


def _broadcast(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, root: int) -> None:
    outs[0].copy_(wait(start(given[0], root, group)))


def _all_gather(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int) -> None:
    gathered = wait(start(given[0].view(-1), size, group))
    if len(outs) == 1:
        outs[0].copy_(gathered.view(outs[0].shape))
        return
    for out, part in zip(outs, gathered.chunk(size), strict=True):
        out.copy_(part.view(out.shape))


def _reduce_scatter(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, reduction: str) -> None:
    parts = given[0].view(-1) if len(given) == 1 else torch.cat([each.view(-1) for each in given])
    reduced = wait(start(parts, reduction, size, group))
    outs[0].copy_(reduced.view(outs[0].shape))


def _all_to_all(start: Any, wait: Any, outs: Any, given: Any, group: str, size: int, received: Any, sent: Any) -> None:
    outs[0].copy_(wait(start(given[0], received, sent, group)))


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
        """The operator's name for the kind of reduction."""
        op = self.constant("op")
        name = getattr(op, "name", "PREMUL_SUM")
        if not isinstance(name, str) or name == "PREMUL_SUM":
            self.refuse(f"a graph has no reduction {op}")
        return name.lower()

    def tensors(self, name: str) -> list[TensorValue]:
        """The tensor or the list of tensors under this name."""
        value = self.given[name]
        many = protocol.unpack(self.t, value) if isinstance(value, (ListValue, TupleValue)) else [value]
        found = [each.realize() for each in many]
        for each in found:
            if not isinstance(each, TensorValue) or each.pytype() not in (torch.Tensor, torch.nn.Parameter):
                self.refuse(f"`{name}` is no plain tensor")
            if not each.fake.is_contiguous() or each.fake.is_complex() or each.fake.layout is not torch.strided:
                self.refuse(f"`{name}` is not contiguous, or is complex")
        return found  # type: ignore[return-value]  # the loop has seen each

    def untracked(self, name: str) -> list[TensorValue]:
        """The same, with autograd out of it: it would see the copy, and not the write of eager, or eager refuses it."""
        found = self.tensors(name)
        if torch.is_grad_enabled() and any(each.fake.requires_grad for each in found):
            self.refuse(f"`{name}` requires a gradient, which a collective does not pass on; use `torch.no_grad()`")
        return found

    def check(self, fits: bool) -> None:
        """Where the tensors do not fit each other, eager says what it has to say."""
        if not fits:
            self.refuse("the tensors' sizes or types do not fit each other")

    def emit(self, body: Callable[..., None], start: Any, outs: list[TensorValue], given: list[TensorValue],
             *rest: object) -> Value:
        torch_private.get("torch.distributed._functional_collectives.all_reduce")  # registers what fake tensors do
        wait = torch_private.get("torch.ops._c10d_functional.wait_tensor")
        group = self.group().as_constant()
        settings = [self.t.make(each) for each in (group.group_name, group.size(), *rest)]
        self.t.call(self.t.make(body), [self.t.make(start), self.t.make(wait), TupleValue(outs), TupleValue(given), *settings])
        return self.t.make(None)


def _signature(fn: Any) -> inspect.Signature:
    return inspect.signature(fn)


def _fit(whole: list[TensorValue], part: list[TensorValue], size: int) -> bool:
    """Whether `whole` is a tensor of `size` times as many rows as the tensor `part`, or a list of so many tensors like it. Some
    backends take other shapes too."""
    if len({(each.fake.dtype, each.fake.device) for each in (*whole, *part)}) != 1 or len(part) != 1:
        return False
    shape = part[0].fake.shape
    if len(whole) == 1:
        rows, rest = shape[:1], shape[1:]
        return bool(rows) and whole[0].fake.shape == (rows[0] * size, *rest)
    return len(whole) == size and all(each.fake.shape == shape for each in whole)


def _rewrite(call: Callable[[_InPlace], Value], *fns: Any) -> None:
    for fn in fns:
        if not isinstance(fn, torch_private.Absent):
            def handler(t: Tracer, args: list[Value], kwargs: dict[str, Value], fn: Any = fn) -> Value:
                return call(_InPlace(t, fn, args, kwargs))

            handles(fn)(handler)


def _call_all_reduce(call: _InPlace) -> Value:
    outs = call.untracked("tensor")
    call.check(len(outs) == 1)
    return call.emit(_all_reduce, torch_private.get("torch.ops._c10d_functional.all_reduce"), outs, outs, call.reduction())


def _call_broadcast(call: _InPlace) -> Value:
    outs, group = call.untracked("tensor"), call.group().as_constant()
    call.check(len(outs) == 1)
    root, root_in_group = call.constant("src"), call.constant("group_src")
    if (root is None) == (root_in_group is None):
        call.refuse("`src` and `group_src` are both given, or neither")
    if root_in_group is None:
        if root not in torch.distributed.get_process_group_ranks(group):
            call.refuse(f"rank {root} is not in the group")
        root_in_group = torch.distributed.get_group_rank(group, root)
    return call.emit(_broadcast, torch_private.get("torch.ops._c10d_functional.broadcast"), outs, outs, root_in_group)


def _all_gather_from(out: str, given: str) -> Callable[[_InPlace], Value]:
    def call_all_gather(call: _InPlace) -> Value:
        outs, size = call.untracked(out), call.group().as_constant().size()
        read = call.untracked(given)
        call.check(_fit(outs, read, size))
        return call.emit(_all_gather, torch_private.get("torch.ops._c10d_functional.all_gather_into_tensor"), outs, read)

    return call_all_gather


def _reduce_scatter_from(given: str) -> Callable[[_InPlace], Value]:
    def call_reduce_scatter(call: _InPlace) -> Value:
        outs, size = call.untracked("output"), call.group().as_constant().size()
        read = call.untracked(given)
        call.check(_fit(read, outs, size))
        start = torch_private.get("torch.ops._c10d_functional.reduce_scatter_tensor")
        return call.emit(_reduce_scatter, start, outs, read, call.reduction())

    return call_reduce_scatter


def _call_all_to_all(call: _InPlace) -> Value:
    outs, read, size = call.untracked("output"), call.untracked("input"), call.group().as_constant().size()
    call.check(len(outs) == len(read) == 1 and read[0].fake.dim() > 0 and outs[0].fake.dim() > 0)
    splits = []
    for tensor, name in ((outs[0], "output_split_sizes"), (read[0], "input_split_sizes")):
        length = tensor.fake.shape[0]
        given = call.given[name]
        if given.is_constant() and given.as_constant() is None:
            call.check(bool(length % size == 0))
            splits.append(call.t.make([length // size] * size) if isinstance(length, int) else None)
        else:
            splits.append(given)
    if any(each is None for each in splits):
        call.refuse("sizes that vary are divided among the ranks")
    return call.emit(_all_to_all, torch_private.get("torch.ops._c10d_functional.all_to_all_single"), outs, read, *splits)


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
