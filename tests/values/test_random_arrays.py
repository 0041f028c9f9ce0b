"""Arrays that a frame finds, given to random generators of NumPy: drawn from before the graph runs, in the graph's frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fxjit

Array = Any
Program = Callable[[Tensor, Array, np.random.Generator], Any]
weights = np.array([0.2, 0.3, 0.5])


def caught(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    try:
        return x * np.random.choice(array), x + 1
    except ValueError as error:
        return str(error), x


def shuffled(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    np.random.shuffle(array)
    return x * array.sum()


def shuffled_along(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    rows = np.stack([array, array * 2, array + 1])
    rng.shuffle(rows)
    rng.shuffle(rows, axis=1)
    np.random.shuffle(rows)
    return x * rows.sum(1), rows


def shuffled_in_part(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    made = np.arange(6) * len(array)
    part = made[1:5]
    np.random.shuffle(part)
    np.random.shuffle(x=made[::-1])
    rng.shuffle(made)
    return x * made[0], made, part


def of_a_drawn_number(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    return x + 1, np.random.randint(2, 5) * array


def shuffled_list(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    made = [1, 2, 3, len(array)]
    np.random.shuffle(made)
    return x + 1, made


def written_before(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    array += 1
    return x * np.random.choice(array)


def written_through_a_tensor(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    torch.from_numpy(array).mul_(2)
    return x * np.random.choice(array)


def written_behind(x: Tensor, array: Array, rng: np.random.Generator) -> Any:
    drawn = np.random.choice(array)
    array += 1
    return x * drawn, drawn


#: Without a break, where the array has something in it.
IN_FRAME: dict[str, Program] = {
    "an item": lambda x, array, rng: x * np.random.choice(array), "of a generator": lambda x, array, rng: x * rng.choice(array),
    "two": lambda x, array, rng: (x * np.random.choice(array), np.random.choice(array), array * 2),
    "items": lambda x, array, rng: torch.from_numpy(np.random.choice(array, 2)) * x[0],
    "permutation": lambda x, array, rng: x.sum() * torch.from_numpy(np.random.permutation(array)),
    "bounds": lambda x, array, rng: x * np.random.uniform(0.0, array).sum(),
    "weights": lambda x, array, rng: x * np.random.choice(3, p=weights),
    "means": lambda x, array, rng: (np.random.normal(array, 2.0), x + 1), "caught": caught, "written behind": written_behind,
    "permutation of a generator": lambda x, array, rng: x * rng.permutation(array).sum(),
    "shuffled": shuffled, "shuffled along": shuffled_along, "shuffled in part": shuffled_in_part,
    "where there is one": lambda x, array, rng: x * (np.random.choice(array) if len(array) > 0 else 2.0),
}  # fmt: skip
OTHERS: dict[str, Program] = {
    "of a drawn number": of_a_drawn_number, "shuffled list": shuffled_list, "written before": written_before,
    "written through a tensor": written_through_a_tensor,
    "computed": lambda x, array, rng: x * np.random.choice(array * 2),
    "out": lambda x, array, rng: (rng.random(out=array), x + 1),
    "computed weights": lambda x, array, rng: x * np.random.choice(len(array), p=array / array.sum()),
    "a view": lambda x, array, rng: x * np.random.choice(array[:2]),
    "rows": lambda x, array, rng: x * rng.choice(array[:, None]),
    "of a tensor": lambda x, array, rng: x * np.random.choice(x.numpy()),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*IN_FRAME, *OTHERS])
def test_drawn_as_eager_draws(name: str) -> None:
    fn = {**IN_FRAME, **OTHERS}[name]
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for count in (4, 4, 5, 6, 1, 4):
        seen = []
        for call in (fn, compiled):
            np.random.seed(count)
            rng, array = np.random.default_rng(count), np.arange(1.0, count + 1)
            result = call(torch.arange(3.0), array, rng)
            seen.append((repr(result), array.tolist(), np.random.random(), rng.random()))
        assert seen[0] == seen[1], count
    assert name in OTHERS or not sum(fxjit.counters["graph_break"].values())


@pytest.mark.parametrize("fn", [IN_FRAME["an item"], caught])
def test_an_array_with_nothing_in_it(fn: Program) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for count in (3, 0, 4, 0, 3):
        seen = []
        for call in (fn, compiled):
            np.random.seed(count)
            try:
                result = repr(call(torch.ones(2), np.arange(1.0, count + 1), np.random.default_rng(0)))
            except ValueError as error:
                result = str(error)
            seen.append((result, np.random.random()))
        assert seen[0] == seen[1], count


def test_a_break_calls_an_operation_of_numpy_as_the_program_does() -> None:
    fxjit.reset()
    with pytest.raises(fxjit.errors.Unsupported, match="what operator.mul is given"):
        fxjit.compile(lambda array: np.random.choice(5) * array, backend="eager", fullgraph=True)(np.ones(3))
    with pytest.raises(fxjit.errors.Unsupported, match="what numpy.add is given"):
        fxjit.compile(lambda array: np.add(np.random.choice(5), array), backend="eager", fullgraph=True)(np.ones(3))
