"""Paths and spans of time: immutable, made while tracing of constants, and compared by value where the frame is given them."""

from __future__ import annotations

import datetime
import fractions
import pathlib
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.counters import counters

X = torch.arange(3.0)


def test_paths_are_made_and_joined() -> None:
    def run(x: torch.Tensor) -> Any:
        path = pathlib.Path("runs", "first") / "weights.pt"
        return x + len(path.parts), path.suffix, path.stem, str(path.parent), path.with_suffix(".bin"), f"{path}"

    assert_same_as_eager(run, X, graphs=1, breaks=0)


def test_spans_of_time_are_made() -> None:
    def run(x: torch.Tensor) -> Any:
        span = datetime.timedelta(minutes=3) + datetime.timedelta(seconds=2)
        return x * span.total_seconds(), span.days, str(span), span * 2, span < datetime.timedelta(days=1)

    assert_same_as_eager(run, X, graphs=1, breaks=0)


@pytest.mark.parametrize("make, change", [
    (lambda: pathlib.Path("runs/first"), pathlib.Path("other")),
    (lambda: pathlib.PurePosixPath("runs/first"), pathlib.PurePosixPath("other")),
    (lambda: datetime.timedelta(hours=1), datetime.timedelta(hours=2)),
    (lambda: fractions.Fraction(1, 3), fractions.Fraction(2, 3)),
])  # fmt: skip
def test_equal_objects_are_one_entry_and_others_are_noticed(make: Any, change: Any) -> None:
    def run(x: torch.Tensor, given: Any) -> Any:
        return x + len(str(given)), given, given == given

    fxjit.reset()
    compiled = fxjit.compile(run, backend="eager", fullgraph=True)
    counters["recompiles"].clear()
    for _ in range(3):
        given = make()
        found = compiled(X, given)
        assert torch.equal(found[0], run(X, given)[0]) and found[1] is given
    assert not counters["recompiles"]
    assert torch.equal(compiled(X, change)[0], run(X, change)[0])


def test_what_is_only_passed_on_may_be_another_each_time() -> None:
    def run(x: torch.Tensor, path: Any) -> Any:
        y = x.sin()
        fxjit.graph_break()
        return y + 1, path

    compiled = fxjit.compile(run, backend="eager")
    counters["recompiles"].clear()
    for number in range(4):
        path = pathlib.Path(f"checkpoint_{number}")
        assert compiled(X, path)[1] is path
    assert not counters["recompiles"]


def test_whether_two_are_one_object_is_noticed() -> None:
    def run(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x + 1 if a is b else x - 1, a == b

    compiled = fxjit.compile(run, backend="eager", fullgraph=True)
    path, equal, other = pathlib.Path("a"), pathlib.Path("a"), pathlib.Path("b")
    for a, b in ((path, path), (path, equal), (equal, path), (path, other), (other, other), (path, path)):
        found, expected = compiled(X, a, b), run(X, a, b)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]


def test_a_path_with_a_number_that_varies_is_not_compiled_for_each() -> None:
    def run(x: torch.Tensor, step: int) -> Any:
        y = x.sin() * 2
        return y, pathlib.Path("runs") / f"step_{step}.pt", pathlib.Path(f"step_{step}")

    fxjit.reset()
    counters["recompiles"].clear()
    compiled = fxjit.compile(run, backend="eager")
    for step in range(12):
        found, expected = compiled(X, step), run(X, step)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
    assert sum(counters["recompiles"].values()) < 4


def test_files_are_read_and_written_when_the_program_runs(tmp_path: pathlib.Path) -> None:
    def run(x: torch.Tensor, folder: str) -> Any:
        path = pathlib.Path(folder) / "text"
        before = path.exists()
        path.write_text("hello")
        y = x + len(path.read_text())
        path.unlink()
        return y, before, path.exists()

    assert_same_as_eager(run, X, str(tmp_path), fullgraph=False)


def test_what_is_no_path_is_refused() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            return x, pathlib.Path(3)
        except TypeError as error:
            return x + 1, str(error)

    assert_same_as_eager(run, X, fullgraph=False)
