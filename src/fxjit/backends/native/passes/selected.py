"""The gradient of what is read part by part, put together from the parts' gradients instead of added up."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.fx

from fxjit.backends.graph.layout import expressions

aten = torch.ops.aten
SELECTED, SLICED = aten.select_backward.default, aten.slice_backward.default


def join_selected(graph: torch.fx.Graph) -> None:
    """A loop over `x[:, t]` has for its derivative the sum of tensors as large as x, each zero but for one step. Where the
    steps lie apart, and are at least half of all, that sum is their concatenation: one pass over it instead of some for each
    step, and none of these tensors. So it is for `x[..., :n]` and `x[..., n:]`."""
    for node in list(graph.nodes):
        if node.target is aten.add.Tensor and not node.kwargs and not is_part_of_sum(node):
            terms = terms_of(node)
            if sum(each.target in (SELECTED, SLICED) for each in terms) > 1:
                join_terms(graph, node, terms)


def is_part_of_sum(node: torch.fx.Node) -> bool:
    users = list(node.users)
    return len(users) == 1 and users[0].target is aten.add.Tensor and not users[0].kwargs and same_kind(node, users[0])


def same_kind(a: Any, b: torch.fx.Node) -> bool:
    """Whether both are floats of one type, shape and layout: no term of the sum is converted or expanded."""
    x = a.meta.get("val") if isinstance(a, torch.fx.Node) else None
    y = b.meta["val"]
    return (isinstance(x, torch.Tensor) and x.dtype is y.dtype and y.dtype.is_floating_point
            and all(expressions(a) == expressions(b) for a, b in ((x.shape, y.shape), (x.stride(), y.stride()))))  # fmt: skip


def terms_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The terms of the sum, from left to right; the sum itself where a term is of another kind."""
    found: list[torch.fx.Node] = []
    waiting: list[Any] = [*reversed(node.args)]
    while waiting:
        term = waiting.pop()
        if not same_kind(term, node):
            return [node]
        inner = term.target is aten.add.Tensor and not term.kwargs and len(term.users) == 1
        if inner and all(same_kind(each, node) for each in term.args):
            waiting += reversed(term.args)
        else:
            found.append(term)
    return found


def join_terms(graph: torch.fx.Graph, node: torch.fx.Node, terms: Sequence[torch.fx.Node]) -> None:
    val = node.meta["val"]
    ways: dict[int, list[Part]] = {}
    rest: list[torch.fx.Node] = []
    for term in terms:
        part = part_of(term)
        if part is not None and all(part.apart_from(each) for each in ways.setdefault(part.dim, [])):
            ways[part.dim].append(part)
        else:
            rest.append(term)
    for dim, parts in list(ways.items()):
        covered = sum(part.stop - part.start for part in parts)
        known = covered == val.shape[dim] or all(isinstance(size, int) for size in val.shape)
        if len(parts) < 2 or 2 * covered < val.shape[dim] or not known:
            rest += [part.term for part in ways.pop(dim)]
    if not ways:
        return

    def call(target: Any, *args: Any) -> torch.fx.Node:
        new = graph.call_function(target, args)
        with val.fake_mode:
            new.meta = {**node.meta, "val": target(*torch.fx.node.map_arg(args, lambda each: each.meta["val"]))}
        return new

    with graph.inserting_before(node):
        joined = [put_together(call, sorted(parts, key=lambda part: part.start), val) for parts in ways.values()]
        total = reduce(lambda a, b: call(aten.add.Tensor, a, b), [*joined, *rest])
    if expressions(total.meta["val"].stride()) == expressions(val.stride()):
        node.replace_all_uses_with(total)


@dataclass(frozen=True)
class Part:
    """A term that is zero but from `start` to `stop` along `dim`."""

    term: torch.fx.Node
    dim: int
    start: int
    stop: int

    def apart_from(self, other: Part) -> bool:
        return self.stop <= other.start or other.stop <= self.start


def part_of(term: torch.fx.Node) -> Part | None:
    """None where the term is no such part, is used elsewhere, or has places that are known only at a call."""
    if term.target not in (SELECTED, SLICED) or len(term.users) != 1:
        return None
    whole = term.meta["val"].shape
    given: tuple[Any, ...] = term.args[2:]
    dim, places = operator.index(given[0]) % len(whole), given[1:]
    count = whole[dim]
    if not isinstance(count, int) or not all(isinstance(place, int) for place in places):
        return None
    if term.target is SELECTED:
        start = places[0] % count
        return Part(term, dim, start, start + 1)
    start, stop, _ = slice(*places).indices(count)
    return Part(term, dim, start, stop) if places[2] == 1 and start < stop else None


def put_together(call: Callable[..., torch.fx.Node], parts: list[Part], val: torch.Tensor) -> torch.fx.Node:
    """The parts in order, with zeros where there are none. Zero is added: a sum has no -0.0."""
    dim, before = parts[0].dim, 0
    pieces: list[torch.fx.Node] = []
    for part in parts:
        given: Any = part.term.args[0]
        piece = call(aten.unsqueeze.default, given, dim) if part.term.target is SELECTED else given
        if part.start > before:
            pieces.append(nothing(call, piece, val, dim, part.start - before))
        pieces.append(piece)
        before = part.stop
    if before < val.shape[dim]:
        pieces.append(nothing(call, pieces[-1], val, dim, val.shape[dim] - before))
    return call(aten.add.Tensor, call(aten.cat.default, pieces, dim), 0.0)


def nothing(call: Callable[..., torch.fx.Node], like: Any, val: torch.Tensor, dim: int, count: int) -> torch.fx.Node:
    return call(aten.new_zeros.default, like, [*val.shape[:dim], count, *val.shape[dim + 1 :]])
