"""Texts that show a size: made when somebody looks at them, so that a message nobody reads compiles nothing again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()


def checked(x: torch.Tensor) -> torch.Tensor:
    torch._assert(x.dim() == 2, f"two dimensions, not {x.shape}: {x.shape[0]} by {tuple(x.shape)!r}")
    return x + 1


def returned(x: torch.Tensor) -> Any:
    return x + 1, f"{x.shape} {tuple(x.shape)!r} {x.shape[0] * 2}", str(x.shape[0])


def kept(x: torch.Tensor) -> Any:
    class Note:
        text = ""

    note = Note()
    note.text = f"{x.shape[0]} rows"
    seen = []
    seen.append(f"of {x.shape}")
    return x * 2, note.text, seen, {"size": repr(x.shape[0])}


def across_a_break(x: torch.Tensor) -> Any:
    text = f"{x.shape[0]} rows"
    y = x + 1
    fxjit.graph_break()
    return y * 2, text


def warned(x: torch.Tensor) -> Any:
    warnings.warn(f"{x.shape[0]} rows", stacklevel=1)
    return x + 1


def raised(x: torch.Tensor) -> Any:
    try:
        raise ValueError(f"{x.shape[0]} rows")
    except ValueError as error:
        return x + 1, str(error)


def looked_at(x: torch.Tensor) -> Any:
    known = {f"k{x.shape[0]}": 1, "k3": 2}
    if str(x.shape[0]).startswith("4"):
        return x + 2, hash(f"{x.shape[0]}"), len(f"{x.shape}")
    return x + known[f"k{x.shape[0]}"], known, f"{x.shape[0]:>4}", "n" + str(x.shape[0]) == "n3", f"{x.shape[0]}" + "!"


@pytest.mark.parametrize("fn", [checked, returned, kept, across_a_break, warned, raised, looked_at])
def test_a_text_shows_the_size_of_each_call(fn: Callable[..., Any]) -> None:
    def run(fn: Callable[..., Any], rows: int) -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = fn(torch.ones(rows, 3))
        return [result, [str(each.message) for each in caught]]

    compiled = fxjit.compile(fn, backend="eager")
    for rows in (2, 3, 4, 5, 3):
        assert repr(run(compiled, rows)) == repr(run(fn, rows))


@pytest.mark.parametrize("fn", [checked, returned])
def test_a_text_that_nobody_reads_holds_for_all_sizes(fn: Callable[..., Any]) -> None:
    counter = CompileCounter()
    compiled = fxjit.compile(fn, backend=counter)
    for rows in (2, 3, 4, 5):
        compiled(torch.ones(rows, 3))
    assert counter.frame_count == 2  # the second for sizes that vary


def test_the_message_of_a_check_that_fails() -> None:
    compiled = fxjit.compile(checked, backend="eager")
    for rows in (2, 3, 4):
        compiled(torch.ones(rows, 3))
        with pytest.raises(AssertionError) as ours:
            compiled(torch.ones(rows))
        with pytest.raises(AssertionError) as theirs:
            checked(torch.ones(rows))
        assert str(ours.value) == str(theirs.value)
