"""Collectives of a graph: small neighbours are made one call (`config.bucket_collectives_mb`), and a graph waits for one just
before it needs the result, so that what stands between runs meanwhile. Passes of `cleanup.PASSES`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from fxjit import config
from fxjit.schemas import communicates, name_of, returns_alias, target_uses_rng, writes

#: Collectives that copy what they are given before they return; the others read it until they are waited for.
_COPYING = ("all_reduce", "broadcast")


#: Collectives of which torch has a form for a list of tensors.
_OF_LISTS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


def bucket_collectives(graph: torch.fx.Graph) -> None:
    """Makes collectives of one kind, none of which needs the result of another, one call for all their tensors, up to the
    configured number of bytes; it stands where the last of them stood, and what uses the results comes behind it.

    Messages of some kilobytes cost their latency. Each rank runs the same calls only if each compiles the same graph: off
    unless asked for."""
    limit = config.bucket_collectives_mb * 2**20
    if limit <= 0:
        return
    for bucket in list(_buckets(graph, limit)):
        _join(graph, bucket)


def _buckets(graph: torch.fx.Graph, limit: float) -> Iterator[list[torch.fx.Node]]:
    bucket: list[torch.fx.Node] = []
    behind: set[torch.fx.Node] = set()  # what needs a result of the bucket's
    key, size = None, 0
    for node in graph.nodes:
        needs = bool(behind.intersection(node.all_input_nodes))
        if needs:
            behind.add(node)
        kind = _kind(node)
        ends = kind != key or needs or size + _bytes(node) > limit if kind is not None else _keeps_its_place(node)
        if ends:
            yield bucket
            bucket, behind, key, size = [], set(), None, 0
        if kind is not None and _bytes(node) <= limit:
            bucket.append(node)
            behind.add(node)
            key, size = kind, size + _bytes(node)


def _kind(node: torch.fx.Node) -> Any:
    """What collectives that become one call have in common; None: it is none of them."""
    if node.op != "call_function" or not communicates(node.target) or name_of(node.target) not in _OF_LISTS or node.kwargs:
        return None
    given = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None
    known = isinstance(given, torch.Tensor) and isinstance(given.numel(), int)
    return (node.target, node.args[1:], given.dtype, given.device) if known else None  # type: ignore[union-attr]  # a tensor


def _bytes(node: torch.fx.Node) -> int:
    """Of the larger side of a collective."""
    sides: list[torch.Tensor] = [each.meta["val"] for each in (node.all_input_nodes[0], node)]
    return max(each.numel() * each.element_size() for each in sides)


def _keeps_its_place(node: torch.fx.Node) -> bool:
    """Whether collectives are not moved past a call: it writes, draws random numbers or communicates itself."""
    if node.op == "output" or writes(node) or (communicates(node.target) and not is_wait(node)):
        return True
    return node.op == "call_function" and target_uses_rng(node.target)


def _join(graph: torch.fx.Graph, bucket: list[torch.fx.Node]) -> None:
    if len(bucket) < 2:
        return
    first, last = bucket[0], bucket[-1]
    behind, moved = set(bucket), []
    node = first.next
    while node is not last:
        if behind.intersection(node.all_input_nodes):
            behind.add(node)
        if node in behind and node not in bucket:
            moved.append(node)
        node = node.next
    of_lists = getattr(torch.ops._c10d_functional, f"{name_of(first.target)}_coalesced").default
    with graph.inserting_after(last):
        joined = graph.call_function(of_lists, ([node.args[0] for node in bucket], *first.args[1:]))
    joined.meta["val"] = [node.meta["val"] for node in bucket]
    place = joined
    for index, node in enumerate(bucket):
        with graph.inserting_after(place):
            part = graph.call_function(operator.getitem, (joined, index))
        part.meta = dict(node.meta)
        node.replace_all_uses_with(part)
        place = part
    for node in moved:
        place.append(node)
        place = node
    for node in bucket:
        graph.erase_node(node)


def delay_wait_tensor(graph: torch.fx.Graph) -> None:
    """Moves each wait down to the first call that uses its result, that writes to memory, or that may be given memory which the
    collective still reads. Collectives keep their order, which must be that of the other ranks."""
    for wait in [node for node in graph.nodes if is_wait(node)]:
        held = {_memory(node) for node in read_until(wait)}
        behind = wait.next
        while not (behind.op == "output" or wait in behind.all_input_nodes or writes(behind)
                   or held.intersection(map(_memory, behind.all_input_nodes))):  # fmt: skip
            behind = behind.next
        behind.prepend(wait)


def is_wait(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and communicates(node.target) and name_of(node.target) == "wait_tensor"


def read_until(wait: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that the collective reads until this wait has returned."""
    started = _memory(wait.all_input_nodes[0])
    if not communicates(started.target) or name_of(started.target).startswith(_COPYING):
        return []
    return [node for node in started.all_input_nodes if isinstance(node.meta.get("val"), torch.Tensor)]


def _memory(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one's result is in, or is a part of."""
    while node.op == "call_function" and node.all_input_nodes and not communicates(node.target):
        if node.target is not operator.getitem and not returns_alias(node.target):
            break
        node = node.all_input_nodes[0]
    return node
