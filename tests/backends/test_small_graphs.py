"""Training graphs of a few operators run as they were captured, where an autograd node of ours would cost more than they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.counters import counters


@pytest.fixture(autouse=True)
def chosen(compiled_anew: None) -> Iterator[None]:
    fxjit.reset()
    with config.patch(small_graphs_as_captured=True):
        yield


def left() -> int:
    return counters["run_as_captured"]["unprofitable"]


def leaf(*size: int) -> torch.Tensor:
    numbers = torch.linspace(-1, 1, torch.Size(size).numel()).view(size)
    return (numbers + 4 * torch.eye(*size) if len(size) == 2 else numbers).requires_grad_()


def embedding_with_a_norm(table: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.embedding(torch.tensor([3, 1, 3]), table, max_norm=1.0)


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.detach().mul_(2)
    return x @ y


SMALL: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "one operator": (lambda x, y: x + y, (4,), (4,)),
    "a view": (lambda x, y: (x * y).view(2, 2), (4,), (4,)),
    "a part of it": (lambda x, y: (x * y)[1:], (4,), (4,)),
    "several results": (lambda x, y: (x * y, y), (4,), (4,)),
    "a linear layer": (lambda x, y: F.linear(x, y), (3, 3), (3, 3)),
    "solve": (lambda x, y: torch.linalg.solve(x, y), (5, 5), (5,)),
    "slogdet": (lambda x, y: torch.linalg.slogdet(x)[1] + y, (4, 4), (1,)),
    "an embedding with a norm": (embedding_with_a_norm, (6, 6), (1,)),
    "a write": (written, (3, 3), (3, 3)),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_few_operators_are_eagers(name: str) -> None:
    fn, *sizes = SMALL[name]
    said = []
    for run in (fn, fxjit.compile(fn, fullgraph=True)):
        inputs = [leaf(*size) for size in sizes]
        results = run(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        for result in results:
            result.square().sum().backward()
        said.append(([*results, *inputs, *(each.grad for each in inputs)], [each.grad_fn for each in results]))
    (expected, nodes), (actual, own) = said
    for theirs, mine in zip(expected, actual, strict=True):
        assert (theirs is None) == (mine is None)
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
            assert mine.stride() == theirs.stride()
            assert (mine.requires_grad, mine._version) == (theirs.requires_grad, theirs._version)
    assert [type(each) for each in own] == [type(each) for each in nodes]
    assert left() == 1


def test_what_fuses_is_compiled() -> None:
    def many(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x * y).sin() + y).exp().sum()

    def large(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    fxjit.compile(many)(leaf(4), leaf(4)).backward()
    fxjit.compile(large)(leaf(1 << 18)).sum().backward()
    fxjit.compile(lambda x: x + 1)(torch.ones(4))
    assert left() == 0


def test_the_setting_is_part_of_what_was_compiled() -> None:
    run = fxjit.compile(lambda x: x + 1)
    run(leaf(4))
    assert left() == 1
    with config.patch(small_graphs_as_captured=False):
        fxjit.reset()
        out = run(leaf(4))
    assert left() == 0 and type(out.grad_fn).__name__ == "CompiledGraphBackward"


@pytest.mark.compiles
def test_the_choice_is_kept_on_the_disk(tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path), cache_graphs=True):
        for hits in (0, 1):
            fxjit.reset()
            out = fxjit.compile(lambda x: x + 1)(leaf(4))
            assert type(out.grad_fn).__name__ == "AddBackward0" and left() == 1
            assert counters["cache"]["graph hit"] == hits
