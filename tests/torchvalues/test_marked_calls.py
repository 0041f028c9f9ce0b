"""Arguments of functions that were marked for the graph: instances of classes that pytrees know, and frozen dataclasses."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.utils._pytree as pytree
from tests.differential import assert_same_as_eager

import fxjit

x, y = torch.randn(3), torch.randn(3)


@dataclasses.dataclass(frozen=True)
class Pair:
    first: torch.Tensor
    second: torch.Tensor
    scale: int = 3


class Point:
    def __init__(self, first, second, tag="t"):
        self.first, self.second, self.tag = first, second, tag

    @fxjit.allow_in_graph
    def shifted(self, other):
        return other + self.first


class Unknown(Point):
    pass


pytree.register_pytree_node(
    Point, lambda point: ((point.first, point.second), point.tag), lambda parts, tag: Point(*parts, tag))


@fxjit.allow_in_graph
def of_pair(pair):
    return pair.first + pair.second * pair.scale


@fxjit.allow_in_graph
def of_point(point, more=2):
    return point.first * point.second + more if point.tag == "t" else point.first


@fxjit.allow_in_graph
def of_containers(items, named):
    return items[0].first + named["a"].second + named["b"]


def changed(x, point):
    point.first = x + 1
    return of_point(point)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(("fn", "given"), [
    (lambda x, pair: of_pair(pair) + x, Pair(x, y)), (lambda x, y: of_pair(Pair(x, y, 4)), y),
    (lambda x, point: (of_point(point), point.first), Point(x, y)),
    (lambda x, point: of_point(more=x, point=point), Point(x, y)),
    (lambda x, y: of_point(Point(x, y, "q")), y), (changed, Point(x, y)),
    (lambda x, point: of_containers([point, Point(x, x)], {"a": point, "b": x}), Point(x, y)),
    (lambda x, number: Point(number, 1).shifted(x), 42),
])
def test_they_are_taken_apart(fn, given, backend):
    assert_same_as_eager(fn, x, given, fullgraph=True, breaks=0, backend=backend)


def test_gradients_go_through():
    leaf = x.clone().requires_grad_()
    compiled = fxjit.compile(lambda x: of_point(Point(x, x + 1)).sum(), backend="native", fullgraph=True)
    assert torch.allclose(torch.autograd.grad(compiled(leaf), leaf)[0], 2 * x + 1)


def test_others_break_the_graph():
    with pytest.raises(fxjit.errors.Unsupported, match="cannot stand in a graph"):
        fxjit.compile(lambda x: of_point(Unknown(x, x)), backend="eager", fullgraph=True)(x)
