"""Integers out of arrays that follow from constants are numbers wherever Python or torch wants one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same_as_eager

PROGRAMS: dict[str, Any] = {
    "index": lambda x: x[np.array([2, 0, 1])[0]],
    "slice": lambda x: x[: np.array([2, 0, 1])[0]],
    "dimension": lambda x: x.sum(np.array([1, 0])[0]),
    "size": lambda x: x.view(np.array([2, 8])[0], -1),
    "sizes": lambda x: (x.repeat(np.cumsum([1, 2])[0], np.cumsum([1, 2])[1]), torch.zeros(np.cumsum([1, 2])[1])),
    "split": lambda x: torch.split(x, list(np.cumsum([1, 2, 1])[[0, 1]]))[1],
    "padding": lambda x: torch.nn.functional.pad(x, (np.arange(3)[1], np.arange(3)[2])),
    "key": lambda x: {i: x * int(i) for i in np.unique([3, 1, 1])}[1],
    "roll": lambda x: torch.stack([x.roll(shift, 0) for shift in np.arange(3)]),
    "argsort": lambda x: x[np.argsort([3, 1, 2])[0]: np.argsort([3, 1, 2])[1] + 3],
    "type": lambda x: (x, type(np.array([1, 2], np.int16)[1]), np.array([1, 100], np.uint8)[1] + np.uint8(100)),
    "text": lambda x: (x + 1, f"{np.arange(3)[1]} {np.arange(3)[1]!r}"),
    "condition": lambda x: x * 2 if np.array([2, 3]).max() > 2 and np.array([0, 1])[0] == 0 else x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_a_number(name: str) -> None:
    assert_same_as_eager(PROGRAMS[name], torch.randn(4, 4), breaks=0, skips=False)


def test_in_loops() -> None:
    def all_but_one(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for crop in range(2):
            for other in np.delete(np.arange(np.sum([2, 1])), crop):
                total = total + x[2 * other: 2 * (other + 1)].sum() * other
        return total / (np.sum([2, 1]) - 1)

    assert_same_as_eager(all_but_one, torch.randn(6, 3), breaks=0, skips=False)


def test_what_was_written_is_seen() -> None:
    def written(x: torch.Tensor) -> tuple[Any, ...]:
        places = np.zeros(3, dtype=np.int64)
        before = places[1]
        places[1] = 2
        places[2] += places[1]
        return x[before], x[places[1]], x[: places[2]], before, places

    assert_same_as_eager(written, torch.randn(4, 2), breaks=None, fullgraph=False)


def test_numbers_that_are_given_vary() -> None:
    def given(x: torch.Tensor, places: np.ndarray[Any, Any]) -> Any:
        return x * places[1], np.arange(3)[1]

    assert_same_as_eager(given, torch.randn(4, 2), np.array([0, 1]), fullgraph=False)
