"""Attention that a program writes out, as two products with a softmax between them, in the place of which ATen's is called.

Scores are not in memory then, and a derivative computes them again. AOTAutograd traces the graph with these calls; where the
graph runs as it was captured, and for a second derivative, which ATen's attention has none of, it is the program's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Final

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from fxjit.schemas import name_of, storages_of, written_storages

from ..graph.edit import call_captured, copied
from ..graph.layout import expressions, hints
from .known_masks import CAUSAL, KnownValues
from .restriding import laid_out_anew, modes_of

Node = torch.fx.Node
#: Whether attention of queries of this type is to be ATen's call.
IsPreferred = Callable[[torch.dtype], bool]

_ATTENTION: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
#: Calls of one tensor that change neither its numbers, beyond their type, nor its shape.
_CONVERSIONS: Final = frozenset({"to", "type", "type_as", "float", "half", "bfloat16", "contiguous"})
#: What a number is at most that stands in the place of scores which have no part in the result. The lowest of float16 is above
#: it: scores are as large.
_LOWEST: Final = -1e9
#: What is added to scores in the place of such a number: with it nothing is left of them.
_LOWEST_SUM: Final = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of two tensors. Their dimensions and those of the result have letters, as in `torch.einsum`."""

    left: Node
    right: Node
    letters: tuple[str, str, str]
    factor: float = 1.0

    def swapped(self) -> _Product:
        (left, right, result) = self.letters
        return _Product(self.right, self.left, (right, left, result), self.factor)


@dataclass(frozen=True, slots=True)
class _Heads:
    """A tensor of (batch, heads, length, width), or without the batch, once its dimensions are in this order."""

    node: Node
    order: tuple[int, ...]

    def sizes(self) -> list[Any]:
        sizes = expressions(self.node.meta["example_value"].shape)
        return [sizes[dim] for dim in self.order]

    def has_contiguous_rows(self) -> bool:
        return bool(expressions(self.node.meta["example_value"].stride())[self.order[-1]] == 1)


@dataclass(slots=True)
class _Scores:
    """Scores before their softmax: `scale` times the product of queries and keys, to which tensors are added, or in whose place
    a number stands where one of the masks says so."""

    query: _Heads
    key: _Heads
    scale: float
    masks: list[Node] = field(default_factory=list)
    number: float | None = None


@dataclass(frozen=True, slots=True)
class _Attention:
    scores: _Scores
    value: _Heads
    #: The product of probabilities and values, and the order of its dimensions.
    last: Node
    order: tuple[int, ...]

    def mask(self, graph: torch.fx.Graph) -> Node | None:
        """What is added to the scores, of four dimensions: calls in the graph, at the insertion point."""
        total: Node | None = None
        for each in self.scores.masks:
            if self.scores.number is not None:
                start = total or call_captured(graph, torch.zeros_like, each, dtype=torch.float32)
                total = call_captured(graph, torch.masked_fill, start, each, self.scores.number)
            elif total is None:
                total = each
            else:
                total = call_captured(graph, torch.add, _in_float32(graph, total), _in_float32(graph, each))
        if total is None:
            return None
        for _ in range(total.meta["example_value"].dim(), 4):
            total = call_captured(graph, torch.unsqueeze, total, 0)
        return total

    def call(self, graph: torch.fx.Graph, made: dict[Node, Node], mask: Node | None, is_causal: bool,
             rows_may_be_empty: bool) -> Node:
        """The call of ATen's attention that stands for it, at the insertion point. `made`: what stands for results of others. A
        row is empty where all of it is masked."""
        heads = self.scores.query, self.scores.key, self.value
        query, key, value = (_with_order(graph, made.get(each.node, each.node), each.order) for each in heads)
        trains, number = self.last.meta["example_value"].requires_grad, self.scores.number
        empty = None
        if mask is not None and rows_may_be_empty and (trains or number != _LOWEST_SUM):
            what = -float("inf") if number is None else number
            empty = call_captured(graph, torch.all, call_captured(graph, torch.eq, mask, what), -1, True)
        if empty is not None and number == _LOWEST_SUM:
            # Such a row looks at all keys alike, without a gradient to do otherwise. ATen's derivative subtracts a logarithm
            # from the scores, of which nothing would be left beside such a number.
            query = call_captured(graph, torch.masked_fill, query, empty, 0)
            mask = call_captured(graph, torch.masked_fill, mask, empty, 0)
        kwargs = {"attn_mask": mask, "scale": self.scores.scale}
        out = call_captured(graph, _ATTENTION, query, key, value, 0.0, is_causal, **kwargs)
        out = call_captured(graph, getitem, out, 0)
        if empty is not None and number != _LOWEST_SUM:
            out = _with_nan(graph, out, empty, value, trains)
        if len(self.order) == 3:
            out = call_captured(graph, torch.squeeze, out, 0)
        return call_captured(graph, torch.permute, out, self.order)


def _with_nan(graph: torch.fx.Graph, out: Node, empty: Node, value: Node, trains: bool) -> Node:
    """The results with NaN in empty rows, as a softmax over infinities is: ATen's attention is zero there."""
    nan = float("nan")
    if not trains:
        return call_captured(graph, torch.masked_fill, out, empty, nan)
    # The masks let no gradient through to queries and keys. That of the values is NaN.
    somewhere = call_captured(graph, torch.any, empty, 2, True)
    zeros = call_captured(graph, torch.zeros_like, somewhere, dtype=out.meta["example_value"].dtype)
    factors = call_captured(graph, torch.masked_fill, zeros, somewhere, nan)
    sums = call_captured(graph, torch.mul, call_captured(graph, torch.sum, value, 2, True), factors)
    return call_captured(graph, torch.where, empty, sums, out)


def with_attention(gm: torch.fx.GraphModule, is_preferred: IsPreferred) -> torch.fx.GraphModule:
    """The graph with ATen's attention where it is written out; the graph itself where that is nowhere."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(map(_is_softmax, gm.graph.nodes)):
        return gm
    for copies in (False, True):
        changed = copied(gm)
        found = [each for each in _attentions(changed.graph, is_preferred)
                 if not copies or each.last.meta["example_value"].is_contiguous()]
        if found and laid_out_anew(changed.graph, _put_in(changed.graph, found, copies)):
            changed.recompile()
            return changed
    return gm


def _put_in(graph: torch.fx.Graph, found: list[_Attention], copies: bool) -> list[Node]:
    """Puts the calls into the graph, with `copies` in the layout of a product's result. Returns what stands for the results,
    with the fake values of these."""
    masks = []
    for each in found:
        with graph.inserting_before(each.last), modes_of(each.last.meta["example_value"]):
            masks.append(each.mask(graph))
    known, made = KnownValues(graph), dict[Node, Node]()
    for each, mask in zip(found, masks, strict=True):
        kind = None if mask is None else known.kind_of_mask(mask)
        empty = mask is not None and not known.answer(mask, _no_row_is_empty)
        with graph.inserting_before(each.last), modes_of(each.last.meta["example_value"]):
            new = each.call(graph, made, mask if kind is None else None, kind == CAUSAL, empty)
            new = call_captured(graph, torch.clone, new, memory_format=torch.contiguous_format) if copies else new
        new.meta["example_value"] = each.last.meta["example_value"]
        each.last.replace_all_uses_with(new)
        made[each.last] = new
    for each in reversed(found):
        _drop(graph, each)
    known.erase_dead(graph)
    return list(made.values())


def _drop(graph: torch.fx.Graph, found: _Attention) -> None:
    """Takes the products and what is between them out."""
    heads = {found.scores.query.node, found.scores.key.node, found.value.node, *found.scores.masks}
    waiting = [found.last]
    while waiting:
        node = waiting.pop()
        for unread in [each for each in node.users if not each.users and _is_conversion(each)]:
            graph.erase_node(unread)
        if not node.users and node not in heads:
            waiting += node.all_input_nodes
            graph.erase_node(node)


def _no_row_is_empty(mask: torch.Tensor) -> bool:
    return not bool((mask <= _LOWEST).all(-1).any())


def _in_float32(graph: torch.fx.Graph, node: Node) -> Node:
    if node.meta["example_value"].dtype is torch.float32:
        return node
    new = graph.call_method("to", (node, torch.float32))
    new.meta["example_value"] = node.meta["example_value"].to(torch.float32)
    return new


def _with_order(graph: torch.fx.Graph, node: Node, order: tuple[int, ...]) -> Node:
    if order != tuple(range(len(order))):
        node = call_captured(graph, torch.permute, node, order)
    return node if len(order) == 4 else call_captured(graph, torch.unsqueeze, node, 0)


# -- finding it -----------------------------------------------------------------------------------------------------


def _attentions(graph: torch.fx.Graph, is_preferred: IsPreferred) -> Iterator[_Attention]:
    changed: set[int] | None = None
    known: KnownValues | None = None
    for node in filter(_is_softmax, graph.nodes):
        found = _attention(node)
        if found is None or not _is_attention(found) or not is_preferred(found.last.meta["example_value"].dtype):
            continue
        if found.last.meta["example_value"].requires_grad and found.scores.masks and found.scores.number is None:
            # The derivative of ATen's is not that of eager in rows where numbers of any size were added to all scores.
            known = known or KnownValues(graph)
            if len(found.scores.masks) > 1 or not known.answer(found.scores.masks[0], _no_row_is_empty):
                continue
        # All of it is read where the last product is.
        changed = written_storages(graph) if changed is None else changed
        read = [found.scores.query.node, found.scores.key.node, *found.scores.masks, found.value.node]
        if changed.isdisjoint(storages_of(read)):
            yield found


def _attention(softmax: Node) -> _Attention | None:
    """The attention that the softmax is in."""
    scores = _scores(softmax.args[0])
    shares = softmax
    while scores is not None and len(readers := _readers(shares)) == 1:
        (user,) = readers
        product = _product(user)
        if product is not None:
            return _weighted(scores, product if product.left is shares else product.swapped(), user, shares)
        if not (_is_conversion(user) or _drops_nothing(user)) or user.args[0] is not shares:
            return None
        shares = user
    return None


def _weighted(scores: _Scores, product: _Product, last: Node, shares: Node) -> _Attention | None:
    """The sums of values by these probabilities."""
    left, right, result = product.letters
    batch, query, key = left[:-2], left[-2], left[-1]
    width = set(right) - set(left)
    if product.left is not shares or product.right is shares or product.factor != 1.0 or len(width) != 1:
        return None
    made = [*batch, query, *width]
    if set(right) != {*batch, key, *width} or set(result) != set(made):
        return None
    value = _Heads(product.right, tuple(right.index(letter) for letter in (*batch, key, *width)))
    return _Attention(scores, value, last, tuple(made.index(letter) for letter in result))


def _scores(node: Any) -> _Scores | None:
    """The node as scores, if nobody else reads what they are made of."""
    if not isinstance(node, Node) or len(_readers(node)) != 1 or not isinstance(node.meta.get("example_value"), FakeTensor):
        return None
    product = _product(node)
    if product is not None:
        return _multiplied(product) or _multiplied(product.swapped())
    if _is_conversion(node):
        return _scores(node.args[0])
    for inner, change, number in _changes(node):
        scores = _scores(inner) if _shape(inner) == _shape(node) else None
        if scores is None:
            continue
        if isinstance(change, float):
            scores.scale *= change
            return None if scores.masks else scores
        if scores.masks and scores.number != number:
            return None
        scores.masks.append(change)
        scores.number = number
        return scores
    return None


def _multiplied(product: _Product) -> _Scores | None:
    """The product as one of queries and keys, whose result ends in these."""
    left, right, result = product.letters
    batch, query, key = result[:-2], result[-2], result[-1]
    width = set(left) & set(right) - set(result)
    if len(width) != 1 or set(left) != {*batch, query, *width} or set(right) != {*batch, key, *width}:
        return None
    queries = tuple(left.index(letter) for letter in (*batch, query, *width))
    keys = tuple(right.index(letter) for letter in (*batch, key, *width))
    return _Scores(_Heads(product.left, queries), _Heads(product.right, keys), product.factor)


def _is_attention(found: _Attention) -> bool:
    """Whether types, sizes and layouts are those of ATen's attention."""
    scores = found.scores
    heads = scores.query, scores.key, found.value
    given = [each.node.meta["example_value"] for each in heads]
    masks = [mask.meta["example_value"] for mask in scores.masks]
    result = found.last.meta["example_value"]
    plain = all(type(each) is FakeTensor and each.layout is torch.strided for each in (*given, *masks))
    if not plain or not all(each.device.type == "cpu" for each in (*given, *masks)):
        return False
    if result.dtype not in _TYPES or any(each.dtype is not result.dtype for each in given):
        return False
    if any((mask.requires_grad and result.requires_grad) or mask.dim() > len(found.order) for mask in masks):
        return False
    if scores.number is None and any(mask.dtype not in _TYPES for mask in masks):
        return False
    *batch, _, width = heads[0].sizes()
    if any(each.sizes()[:-2] != batch or each.sizes()[-1] != width for each in heads[1:]):
        return False
    if any(0 in hints(each.shape) or None in hints(each.shape) for each in given):
        return False
    return all(each.has_contiguous_rows() for each in heads)


def _is_softmax(node: Node) -> bool:
    """Whether it is a softmax over the last dimension, of one tensor that it takes as its first argument."""
    if node.op not in ("call_function", "call_method") or name_of(node.target) != "softmax" or not node.args:
        return False
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    value = node.meta.get("example_value")
    return isinstance(value, FakeTensor) and value.dim() in (3, 4) and dim in (-1, value.dim() - 1)


def _readers(node: Node) -> list[Node]:
    """Who reads it, without conversions that nobody reads."""
    return [each for each in node.users if each.users or not _is_conversion(each)]


def _is_conversion(node: Node) -> bool:
    if node.op not in ("call_function", "call_method") or name_of(node.target) not in _CONVERSIONS or not node.args:
        return False
    value = node.meta.get("example_value")
    return isinstance(value, FakeTensor) and value.dtype in _TYPES and value.device.type == "cpu"


def _drops_nothing(node: Node) -> bool:
    """Whether it is a dropout that is off."""
    if node.op != "call_function" or name_of(node.target) != "dropout":
        return False
    given = dict(zip(("input", "p", "training"), node.args[:3], strict=False)) | dict(node.kwargs)
    training = given.get("training", given.get("train", True))
    inplace = given.get("inplace", node.args[3] if len(node.args) > 3 else False)
    p = given.get("p", 0.5)
    return not inplace and (training is False or (isinstance(p, (int, float)) and p == 0))


def _changes(node: Node) -> Iterator[tuple[Node, float | Node, float | None]]:
    """Which tensor the call may be a change of, and how: a factor; or a tensor that is added; or a mask and the number that
    stands where it says so."""
    name = name_of(node.target)
    if node.op not in ("call_function", "call_method") or node.kwargs:
        return
    match name, node.args:
        case ("mul" | "multiply", (Node() as scores, int() | float() as factor)):
            yield scores, float(factor), None
        case ("mul" | "multiply", (int() | float() as factor, Node() as scores)):
            yield scores, float(factor), None
        case ("div" | "divide" | "truediv" | "true_divide", (Node() as scores, int() | float() as divisor)) if divisor:
            yield scores, 1.0 / divisor, None
        case ("add", (Node() as one, Node() as other)) if one is not other:
            yield one, other, None
            yield other, one, None
        case ("masked_fill", (Node() as scores, Node() as mask, int() | float() as number)):
            if number <= _LOWEST:
                yield scores, mask, number if number == -float("inf") else _LOWEST_SUM


def _product(node: Node) -> _Product | None:
    if node.op not in ("call_function", "call_method"):
        return None
    match name_of(node.target), node.args:
        case ("matmul" | "bmm", (Node() as left, Node() as right)) if not node.kwargs:
            return _of_matrices(left, right, 1.0)
        case ("baddbmm", (Node(), Node() as left, Node() as right)) if node.kwargs.get("beta") == 0:
            return _of_matrices(left, right, float(node.kwargs.get("alpha", 1)))  # type: ignore[arg-type]  # a number
        case ("einsum", (str() as equation, *operands)) if not node.kwargs:
            return _of_equation(equation, operands)
    return None


def _of_matrices(left: Node, right: Node, factor: float) -> _Product | None:
    shapes = _shape(left), _shape(right)
    if len(shapes[0]) not in (3, 4) or len(shapes[0]) != len(shapes[1]):
        return None
    batch = "ab"[: len(shapes[0]) - 2]
    return _Product(left, right, (batch + "rc", batch + "cs", batch + "rs"), factor)


def _of_equation(equation: str, operands: list[Any]) -> _Product | None:
    """A product that `torch.einsum` names the dimensions of."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    given, _, result = equation.replace(" ", "").partition("->")
    letters = [*given.split(","), result]
    if len(operands) != 2 or len(letters) != 3 or not all(isinstance(each, Node) for each in operands):
        return None
    if not all(each.isalpha() and len(set(each)) == len(each) in (3, 4) for each in letters):
        return None
    return _Product(operands[0], operands[1], (letters[0], letters[1], letters[2]))


def _shape(node: Node) -> list[Any]:
    value = node.meta.get("example_value")
    return expressions(value.shape) if isinstance(value, FakeTensor) else []
