"""Truths of tensors that a program passes on (`bool(x.any())`, `torch.allclose(x, y)`): known when the graph has run, without a
break, and checked in the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.differential import assert_same, outcome
from torch import Tensor

import fxjit

Program = Callable[[Tensor, Tensor], Any]


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def asserted_equal(x: Tensor, y: Tensor) -> Any:
    z = x * 1
    assert torch.equal(z, x), "not equal"
    return z + 1


def asserted_close(x: Tensor, y: Tensor) -> Any:
    assert torch.allclose(x * 1, y), "not close"
    return x * 2


def raised_behind(x: Tensor, y: Tensor) -> Any:
    fine, z = bool((x > 0).any()), x * 3
    if not fine:
        raise ValueError("not fine")
    return z, fine


def of_the_last(x: Tensor, y: Tensor) -> Any:
    done = False
    for _ in range(3):
        x = x * 1.5
        done = bool((x > 3).all())
    return x, done


def decided(x: Tensor, y: Tensor) -> Any:
    return x * 3 if torch.equal(x * 1, y) else x * 4


def decided_later(x: Tensor, y: Tensor) -> Any:
    same = not (x != y).any()
    z = x * 3
    return z + 1 if same else z - 1


#: Without a break, of float tensors.
IN_GRAPH: dict[str, Program] = {
    "truths": lambda x, y: (bool((x > 0).any()), bool(x.sum()), bool(x.sum().reshape(1, 1)), x * 2),
    "negated": lambda x, y: (not (x > 0).any(), not x.sum(), [not x.sum(), x], not x.sum() > 1),
    "twice": lambda x, y: (not not x.sum(), bool(bool(x.sum())), x * 2),
    "of numbers": lambda x, y: (bool(x.sum().item()), not x.sum().item(), bool((x > 0).sum().item()), not (x > 0).any().item()),
    "shown": lambda x, y: (f"{bool(x.sum())}", str(not x.sum()), int(bool(x.sum())), x * 2),
    "is not zero": lambda x, y: (torch.is_nonzero(x.sum()), x.sum().is_nonzero(), x * 2),
    "close": lambda x, y: (torch.allclose(x, y), x.allclose(y, rtol=1e-2, equal_nan=True), x * 2),
    "close within": lambda x, y: (torch.allclose(x, y * 1.0001, atol=1e-2), torch.allclose(x, y[:1]), x * 2),
    "equal": lambda x, y: (torch.equal(x, x + 1), torch.equal(x, x * 1), (x * 1).equal(y), x * 2),
    "equal truths": lambda x, y: (torch.equal(x > 0, y > 0), (x > 0).equal(x > 0), x * 2),
    "asserted equal": asserted_equal, "asserted close": asserted_close, "raised behind": raised_behind,
    "of the last": of_the_last,
}  # fmt: skip
OTHERS: dict[str, Program] = {
    "maybe one in memory": lambda x, y: (torch.equal(x, y), x * 2), "one in memory": lambda x, y: (x.equal(x), x * 2),
    "views": lambda x, y: (torch.equal(x, x.view_as(x)), x * 2), "other sizes": lambda x, y: (torch.equal(x * 1, y[:1]), x * 2),
    "another type": lambda x, y: torch.equal(x * 1, y.double()),
    "close to another type": lambda x, y: torch.allclose(x, y.double()),
    "several": lambda x, y: bool(x), "several negated": lambda x, y: not x, "is": lambda x, y: bool(x.sum()) is True,
    "plus": lambda x, y: bool(x.sum()) + 1, "and": lambda x, y: bool((x > 0).any()) and bool((y > 0).any()),
    "or": lambda x, y: not (x > 0).any() or not (y > 0).any(), "decided": decided, "decided later": decided_later,
    "key": lambda x, y: {True: x, False: y}[bool(x.sum())], "not zero of several": lambda x, y: torch.is_nonzero(x),
    "too many": lambda x, y: torch.equal(x, y, x), "nothing": lambda x, y: torch.allclose(x),
}  # fmt: skip


def _inputs() -> Iterator[tuple[Tensor, Tensor]]:
    ones, nan = torch.ones(3), torch.full((3,), math.nan)
    yield from ((ones, ones.clone()), (ones, ones + 1), (ones * 0, ones), (ones, ones), (nan, nan), (nan, nan.clone()))
    yield -ones, nan


@pytest.mark.parametrize("name", [*IN_GRAPH, *OTHERS])
def test_truths(name: str) -> None:
    fn = {**IN_GRAPH, **OTHERS}[name]
    compiled = fxjit.compile(fn, backend="eager")
    for at, args in enumerate(_inputs()):
        assert_same(outcome(compiled, args), outcome(fn, args), f"{name} of {args}")
        assert at or name in OTHERS or not sum(fxjit.counters["graph_break"].values())


@pytest.mark.parametrize("name", ["truths", "close", "asserted equal", "of the last"])
def test_truths_through_the_native_backend(name: str) -> None:
    compiled = fxjit.compile(IN_GRAPH[name], backend="native")
    for args in _inputs():
        assert_same(outcome(compiled, args), outcome(IN_GRAPH[name], args), f"{name} of {args}")


def test_truths_of_sizes_that_vary() -> None:
    compiled = fxjit.compile(lambda x, y: (torch.equal(x * 1, y), torch.allclose(x, y), bool(x.sum()), x * 2), backend="eager")
    for size in (3, 4, 5, 6):
        equal, close, truth, _ = compiled(torch.ones(size), torch.ones(size))
        assert (equal, close, truth) == (True, True, True)
    assert fxjit.counters["stats"]["unique_graphs"] <= 2


def test_a_tensor_that_requires_grad() -> None:
    def program(x: Tensor) -> Any:
        return bool(x.sum()), not x.sum(), torch.allclose(x, x * 1), (x * x).sum()

    ends = []
    for fn in (program, fxjit.compile(program, backend="native")):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        *truths, loss = fn(x)
        loss.backward()
        ends.append((truths, loss.item(), x.grad))
    assert_same(ends[1], ends[0])
