"""Cuts the captured graph of a module in DistributedDataParallel where one of its gradient buckets is complete.

A compiled graph is one autograd node: its backward ends before autograd sees the first gradient, so that no bucket is
all-reduced while gradients are still computed. In parts, each a node of its own, the backward of a part ends with a full
bucket, whose reduction runs while the backward of the part before it computes (Li et al., "PyTorch Distributed", VLDB 2020,
section 3.2.3, for eager's overlap).

Only where the graph is cut depends on the buckets, not what it computes: a graph that was cut is right outside of
DistributedDataParallel, too. Every rank cuts alike: by the order of the graph and the sizes of the parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
import torch.fx
from torch.nn.parallel import DistributedDataParallel

from fxjit import config, logs, torch_private

from .split import (
    Compile,
    Modes,
    can_be_passed,
    compile_segments,
    connected,
    differentiates_writes_to_inputs,
    joined_by_writes,
)

log = logs.artifact("compile")
Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class Buckets:
    """The gradients that a DistributedDataParallel reduces, and how many bytes it reduces at once."""

    #: Identities of the parameters whose gradients are reduced.
    parameters: frozenset[int]
    #: Bytes at which the first bucket is full: small, so that the first reduction starts early.
    first: int
    #: Bytes at which each later bucket is full.
    later: int

    @classmethod
    def active(cls) -> Buckets | None:
        """Those of the module in whose forward the process is; None outside of one, or where no gradient is recorded."""
        module = _active_module() if config.optimize_ddp else None
        if module is None:
            return None
        later = module.bucket_bytes_cap
        default: int = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]  # from C
        first = default if module.bucket_bytes_cap_default else later
        reduced = frozenset(id(each) for each in module._module_parameters if each.requires_grad)
        return cls(reduced, min(first, later), later)


def _active_module() -> DistributedDataParallel | None:
    """The module in whose forward the process is, where a gradient is recorded."""
    if not torch.distributed.is_available() or not torch.is_grad_enabled():
        return None
    if not torch_private.is_on("buckets of DistributedDataParallel"):
        return None
    module: DistributedDataParallel | None = DistributedDataParallel._get_active_ddp_module()
    return module


def described() -> tuple[Any, ...] | None:
    """Of the module in whose forward the process is, all that decides where graphs are cut, and whether they are compiled: no
    guard names it. None outside of one."""
    module, buckets = _active_module(), Buckets.active()
    if module is None:
        return None
    sizes = [each.numel() * each.element_size() if each.requires_grad else 0 for each in module._module_parameters]
    return (delays_reductions(), *(() if buckets is None else (buckets.first, buckets.later)), *sizes)


def delays_reductions() -> bool:
    """Whether the module in whose forward the process is reduces some gradients when that of one parameter is there, for which
    they have to come first (`delay_all_reduce_named_params`)."""
    module = _active_module()
    return module is not None and bool(getattr(module, "_delay_all_reduce_params", ()))


def split_by_ddp_bucket(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_part: Compile
) -> Callable[..., Any] | None:
    """The graph with the part of each bucket compiled by itself; None outside of DistributedDataParallel, and where nothing
    is to be cut."""
    buckets = Buckets.active()
    segments = None if buckets is None else bucket_segments(gm, example_inputs, buckets)
    in_parts = None if segments is None else compile_segments(gm, example_inputs, segments, compile_part)
    if in_parts is not None and segments is not None:
        log.info("a graph in DistributedDataParallel is cut into %d parts, one for each bucket", len({*segments.values()}))
    return in_parts


def bucket_segments(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], buckets: Buckets) -> dict[Node, int] | None:
    """The number of the part that each node belongs to, in the order they run; None where there is one part only."""
    nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    ready = _gradients_ready(gm, example_inputs, buckets)
    if sum(ready.values()) <= buckets.first or differentiates_writes_to_inputs(gm, example_inputs, connected(gm)):
        return None
    allowed = _allowed_cuts(nodes)
    starts: list[Node] = []
    pending, limit = 0, buckets.first
    for node in reversed(nodes):  # the order of the backward
        pending += ready[node]
        if pending >= limit and node in allowed:
            starts.append(node)
            pending, limit = 0, buckets.later
    if starts and pending == 0:
        starts.pop()  # what comes before has no gradient to reduce
    segments, number = {}, 0
    for node in nodes:
        number += node in starts
        segments[node] = number
    segments = joined_by_writes(gm, segments)
    return segments if len({*segments.values()}) > 1 else None


def _gradients_ready(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], buckets: Buckets) -> Counter[Node]:
    """For each node: bytes of the reduced gradients that are complete when its backward has run. That of a parameter which is
    used several times is complete after its first use, which the backward reaches last."""
    ready: Counter[Node] = Counter()
    order = {node: place for place, node in enumerate(gm.graph.nodes)}
    for node, given in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        users = [user for user in node.users if user.op != "output"]
        if id(given) in buckets.parameters and users:
            ready[min(users, key=order.__getitem__)] += given.numel() * given.element_size()
    return ready


def _allowed_cuts(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that a part may start with: in the modes that the graph starts in, and where only tensors cross."""
    last_use = {used: place for place, node in enumerate(nodes) for used in node.all_input_nodes}
    allowed: set[Node] = set()
    modes, crossing_until = Modes(), -1
    for place, node in enumerate(nodes):
        if place and modes.plain and crossing_until < place:
            allowed.add(node)
        if modes.seen(node):
            return set()
        if not can_be_passed(node):
            crossing_until = max(crossing_until, last_use.get(node, -1))
    return allowed
