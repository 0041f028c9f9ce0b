"""Random generators that are given numbers which vary from call to call: they are found before the graph runs, and what is
drawn has sizes in terms of them. Shuffled arrays, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import KERNELS, assert_same_call, number_of_breaks

import fxjit

Program = Callable[[torch.Tensor], Any]


def mixed_up(x: torch.Tensor) -> Any:
    part = np.random.beta(0.4, 0.4)
    order = torch.from_numpy(np.random.permutation(len(x)))
    return part * x + (1 - part) * x[order]


def written(x: torch.Tensor) -> Any:
    noise = np.random.rand(len(x), 3)
    noise[0] = 1.0
    return x + torch.from_numpy(noise), noise


def own_state(x: torch.Tensor) -> Any:
    rng = np.random.RandomState(3)
    return x[rng.permutation(len(x))], rng.rand()


def own_generator(x: torch.Tensor) -> Any:
    rng = np.random.default_rng(3)
    return x + torch.from_numpy(rng.normal(size=(len(x), 3))), rng.random()


def of_torch(draw: Callable[[torch.Tensor, torch.Generator], Any]) -> Program:
    def fn(x: torch.Tensor) -> Any:
        generator = torch.Generator().manual_seed(3)
        return x.sum() * draw(x, generator), torch.rand(1, generator=generator)
    return fn


def shuffled(x: torch.Tensor) -> Any:
    order = np.arange(len(x))
    np.random.shuffle(order)
    return x[torch.from_numpy(order)], order


def batches(x: torch.Tensor) -> Any:
    order = np.arange(6)
    np.random.shuffle(order)
    return [x.sum() * torch.from_numpy(order[first:first + 2]) for first in range(0, 6, 2)], order


def shuffled_memory(x: torch.Tensor) -> Any:
    np.random.shuffle(x.numpy())
    return x * 2


def shuffled_view(x: torch.Tensor) -> Any:
    places = np.arange(2 * len(x))
    np.random.shuffle(places[::2])
    return x.sum() * torch.from_numpy(places), places


def shuffled_by(make: Callable[[], Any], rows: bool) -> Program:
    def fn(x: torch.Tensor) -> Any:
        rng = make()
        array = x.numpy() * 2 if rows else np.arange(len(x) * 3)
        rng.shuffle(array)
        return x.sum() * torch.from_numpy(array), rng.random()
    return fn


def shuffled_list(x: torch.Tensor) -> Any:
    order = [0, 1, 2]
    np.random.shuffle(order)
    return x[order], order


WITHOUT_BREAKS: dict[str, Program] = {
    "permutation": lambda x: x[torch.from_numpy(np.random.permutation(x.shape[0]))], "mixup": mixed_up, "written": written,
    "choice": lambda x: x[torch.from_numpy(np.random.choice(len(x), 2))],
    "choice of half": lambda x: x[np.random.choice(len(x), len(x) // 2, replace=False)],
    "normal": lambda x: x + torch.from_numpy(np.random.normal(0, 1, x.shape)),
    "by name": lambda x: x + torch.FloatTensor(np.random.normal(size=(x.shape[0], 3))),
    "twice as many": lambda x: x + torch.from_numpy(np.random.normal(0, 1, (2 * x.shape[0], x.shape[1]))).sum(0),
    "as many": lambda x: x + torch.from_numpy(np.random.rand(x.numel())).view_as(x),
    "only its size": lambda x: torch.from_numpy(np.random.rand(x.shape[0] * 2, 2)) * 2,
    "of one size": lambda x: x.sum(0) + torch.from_numpy(np.random.rand(12)).reshape(-1, 3),
    "reshaped": lambda x: x + torch.from_numpy(np.random.rand(len(x) * 3)).reshape(-1, 3),
    "places": lambda x: x[torch.from_numpy(np.random.randint(0, len(x), size=5))],
    "rows and columns": lambda x: x * torch.tensor(np.random.randn(*x.shape), dtype=torch.float32),
    "vectors": lambda x: x[:, :2] + torch.from_numpy(np.random.multivariate_normal([0.0, 1.0], [[1, 0.5], [0.5, 2]], len(x))),
    "a number": lambda x: x * np.random.randint(0, len(x)), "own state": own_state, "own generator": own_generator,
    "Python's": lambda x: x * random.randint(1, len(x)) + random.uniform(0, x.shape[0]),
    "torch's": of_torch(lambda x, g: torch.randn(x.shape[0], 3, generator=g)),
    "torch's, a shape": of_torch(lambda x, g: torch.rand(size=x.shape, generator=g)),
    "torch's order": of_torch(lambda x, g: torch.randperm(len(x), generator=g)),
    "torch's integers": of_torch(lambda x, g: torch.randint(len(x), (2, len(x)), generator=g)),
    "shuffled": shuffled, "batches": batches, "shuffled memory": shuffled_memory, "shuffled view": shuffled_view,
    "rows of a state": shuffled_by(lambda: np.random.RandomState(1), True),
    "numbers of a state": shuffled_by(lambda: np.random.RandomState(1), False),
    "rows of a generator": shuffled_by(lambda: np.random.default_rng(1), True),
    "numbers of a generator": shuffled_by(lambda: np.random.default_rng(1), False), "shuffled list": shuffled_list,
}  # fmt: skip


def assert_drawn_as_eager(fn: Program, backend: str, sizes: tuple[int, ...]) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for seed, rows in enumerate(sizes):
        x = torch.randn(rows, 3, dtype=torch.float64)
        assert_same_call(fn, compiled, x, seed=seed, rtol=KERNELS if backend == "native" else 0.0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITHOUT_BREAKS)
def test_numbers_that_vary(name: str) -> None:
    assert_drawn_as_eager(WITHOUT_BREAKS[name], "eager", (4, 5, 5, 6, 7))
    assert number_of_breaks() == 0
    assert fxjit.counters["frames"]["ok"] <= 2, "one size, and all others"


@pytest.mark.parametrize("name", ["mixup", "written", "twice as many", "of one size", "torch's order", "shuffled view"])
def test_with_kernels(name: str) -> None:
    assert_drawn_as_eager(WITHOUT_BREAKS[name], "native", (4, 5, 6))
    assert number_of_breaks() == 0


def empty_range(x: torch.Tensor) -> Any:
    return x * random.randrange(len(x) - 4)


def empty_range_of_numpy(x: torch.Tensor) -> Any:
    return x * np.random.randint(0, len(x) - 4)


def negative_size(x: torch.Tensor) -> Any:
    return x.sum() * torch.from_numpy(np.random.rand(len(x) - 5))


def caught(x: torch.Tensor) -> Any:
    try:
        return x * np.random.randint(0, len(x) - 4)
    except ValueError as error:
        return x + 1, str(error)


def size_drawn(x: torch.Tensor) -> Any:
    drawn = torch.from_numpy(np.random.rand(np.random.randint(1, 6)))
    return x * len(drawn), drawn


def chosen_row(x: torch.Tensor) -> Any:
    return x[random.randint(0, x.shape[0] - 1)]


def window(x: torch.Tensor) -> Any:
    first = np.random.randint(0, x.shape[0] - 1)
    return x[first:first + 2] * 1


def along_the_second(x: torch.Tensor) -> Any:
    rng, array = np.random.default_rng(1), x.numpy() * 2
    rng.shuffle(array, axis=1)
    return x + torch.from_numpy(array)


@pytest.mark.parametrize("fn", [empty_range, empty_range_of_numpy, negative_size, caught, size_drawn, chosen_row, window,
                                along_the_second])
def test_what_is_left_to_the_running_program(fn: Program) -> None:
    assert_drawn_as_eager(fn, "eager", (6, 5, 7, 4, 6, 3, 8))
