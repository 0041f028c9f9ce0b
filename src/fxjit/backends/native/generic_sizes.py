"""Layouts of tensors whose sizes vary, as they are for sizes in general.

What torch's fakes calculate of strides depends on questions about sizes: whether there is more than one pixel, whether two
strides are equal. To answer one for all sizes that a graph takes, torch adds a guard or gives up. Where an answer decides on a
layout alone, a guard is not wanted: kernels take strides as they are, and what ATen makes in another layout is copied. So
questions get the answer that they have for sizes in general, which is the same at a few points far from each other; a question
whose answers differ there has none.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import sympy
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv, Max

#: Sizes are looked at as these multiples of those that were seen: what divides those divides these. Large ones first, since
#: what is asked mostly is whether there are few of something; small ones where sizes have a limit.
FACTORS: Final = ((61, 89, 127, 67, 101, 137, 71, 103, 149, 73, 107, 151), (3, 7, 13, 29, 5, 11, 17, 31, 19, 23, 37, 41))
#: Points at which a question has to have one answer.
POINTS: Final = 3

Point = Mapping[sympy.Symbol, sympy.Integer]


class NoGeneralAnswer(RuntimeError):
    """A question about sizes that some answer otherwise than others."""


@contextlib.contextmanager
def in_general(graph: torch.fx.Graph) -> Iterator[bool]:
    """Answers what is asked about the sizes of the graph's values as for sizes in general, adding no guards. False where no
    sizes are known to ask about: nothing is changed then."""
    values = (value for node in graph.nodes for value in pytree.tree_leaves(node.meta.get("val")))
    mode = next((each.fake_mode for each in values if isinstance(each, FakeTensor) and each.fake_mode.shape_env), None)
    points = [] if mode is None else _points(mode.shape_env)
    if mode is None or len(points) < POINTS:
        yield False
        return
    with _answering(mode, points):
        yield True


@contextlib.contextmanager
def _answering(mode: FakeTensorMode, points: list[Point]) -> Iterator[None]:
    environment: Any = mode.shape_env
    seen = _seen(environment)
    answers: dict[Any, Any] = {}

    def evaluate(expr: Any, *_: Any, **__: Any) -> Any:
        if expr not in answers:
            answers[expr] = _answer(environment.replace(sympy.sympify(expr)), points, seen)
        if answers[expr] is None:
            raise NoGeneralAnswer(f"{expr} differs from size to size")
        return answers[expr]

    cached = environment.fake_tensor_cache
    # What is calculated of symbols here is for nobody else, but once for all that is alike: a batch norm takes torch 60 ms.
    environment.evaluate_expr, environment.fake_tensor_cache = evaluate, {}
    try:
        yield
    finally:
        del environment.evaluate_expr
        environment.fake_tensor_cache = cached


def _answer(expr: Any, points: list[Point], seen: Point) -> Any:
    """What an expression is at each of the points. Where that differs, whether there is enough of something is answered for the
    sizes that were seen, and all else has no answer: None."""
    found = {expr.xreplace(dict(point)) for point in points}
    if len(found) > 1 and isinstance(expr, (sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt)):
        found = {expr.xreplace(dict(seen))}
    answer = found.pop()
    return None if found or answer.free_symbols else answer


def _seen(environment: Any) -> Point:
    """The sizes when the graph was traced."""
    known = environment.backed_var_to_val if hasattr(environment, "backed_var_to_val") else environment.var_to_val
    return {symbol: size for symbol, size in known.items() if size.is_Integer}


def _points(environment: Any) -> list[Point]:
    """Sizes far from each other which the graph takes, as far as is known."""
    sizes = {symbol: hint for symbol, hint in _seen(environment).items() if symbol not in environment.replacements}
    guards = [environment.replace(guard.expr) for guard in environment.guards]
    found: list[Point] = []
    for primes, start in ((each, start) for each in FACTORS for start in range(len(each))):
        factors = itertools.islice(itertools.cycle(primes), start, None)
        point = {symbol: hint * factor for (symbol, hint), factor in zip(sizes.items(), factors, strict=False)}
        if _is_taken(point, environment, guards):
            found.append(point)
            if len(found) == POINTS:
                break
    return found


def _is_taken(point: Point, environment: Any, guards: list[Any]) -> bool:
    ranges = (environment.var_to_range.get(symbol) for symbol in point)
    within = all(each is None or each.lower <= size <= each.upper for each, size in zip(ranges, point.values(), strict=True))
    return within and all(guard.xreplace(dict(point)) != sympy.false for guard in guards)


def known(size: Any) -> Any:
    """A size as it was seen when the graph was traced."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def as_elements_lie(value: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    """A tensor with its sizes as they were asked for, where torch's fakes write those that a dimension is split into as
    quotients, and with strides that are products of these, where the fakes have each size at least one: which differ in nothing
    that has elements."""
    strides: Sequence[Any] = value.stride()
    if any(isinstance(stride, torch.SymInt) and stride.node.expr.has(Max, FloorDiv) for stride in strides):
        order = order_of(value)
        strides = strides if order is None else _products(sizes, order)
    if all(_is_same(a, b) for a, b in zip((*value.shape, *value.stride()), (*sizes, *strides), strict=True)):
        return value
    return value.as_strided([*sizes], [*strides])


def is_of_known_layout(value: torch.Tensor) -> bool:
    return all(type(each) is int for each in (*value.shape, *value.stride()))


def order_of(value: torch.Tensor) -> list[int] | None:
    """The dimensions of a tensor without gaps, from the one whose elements lie side by side on; None of others."""
    order = sorted(range(value.dim()), key=lambda dim: (known(value.stride(dim)), -dim))
    made = _products(value.shape, order)
    return order if all(a == b for a, b in zip(made, value.stride(), strict=True)) else None


def is_last(value: torch.Tensor) -> bool:
    """Whether images or volumes are channels last, of sizes in general where they vary: torch 2.11 says no there."""
    if is_of_known_layout(value):
        return value.is_contiguous(memory_format=torch.channels_last_3d if value.dim() == 5 else torch.channels_last)
    made = _products(value.shape, [1, *range(value.dim() - 1, 1, -1), 0])
    return all(bool(size == 1 or a == b) for size, a, b in zip(value.shape, made, value.stride(), strict=True))


def _products(sizes: Sequence[Any], order: Sequence[int]) -> list[Any]:
    products: dict[int, Any] = {}
    running: Any = 1
    for dim in order:
        products[dim] = running
        running = running * sizes[dim]
    return [products[dim] for dim in range(len(sizes))]


def _is_same(a: Any, b: Any) -> bool:
    """Whether two sizes are written alike."""
    a, b = (size.node.expr if isinstance(size, torch.SymInt) else size for size in (a, b))
    return bool(a == b)
