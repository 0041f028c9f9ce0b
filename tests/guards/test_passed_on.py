"""What a frame only passes on, stores or asks the type of is guarded for no more than that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fxjit
from fxjit.counters import counters

X = torch.arange(3.0)


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


def given_back(x: torch.Tensor, other: Any) -> Any:
    return x * 2, other


def asked_for_its_type(x: torch.Tensor, other: Any) -> Any:
    if other is None or not isinstance(other, torch.Tensor):
        return x
    return x * 2


def stored(x: torch.Tensor, box: Box) -> Any:
    box.kept = box.value  # type: ignore[attr-defined]
    return x * 2


def unpacked(x: torch.Tensor, pair: list[Any]) -> Any:
    first, second = pair
    return first * 2, second


def in_a_dict(x: torch.Tensor, named: dict[str, Any]) -> Any:
    return {name: value if name != "x" else value * 2 for name, value in named.items()}


def given_to_an_inlined_function(x: torch.Tensor, other: Any) -> Any:
    return given_back(x, other)


def kept_over_a_break(x: torch.Tensor, box: Box) -> Any:
    held = box.value
    y = x * 2
    fxjit.graph_break()
    return y + 1, held


PROGRAMS: dict[Callable[..., Any], Callable[[torch.Tensor], Any]] = {
    given_back: lambda other: other,
    asked_for_its_type: lambda other: other,
    stored: Box,
    unpacked: lambda other: [X, other],
    in_a_dict: lambda other: {"x": X, "other": other},
    given_to_an_inlined_function: lambda other: other,
    kept_over_a_break: Box,
}
OTHERS = (
    torch.ones(2), torch.ones(1), torch.ones(4, 5), torch.ones(0), torch.ones(3, dtype=torch.int64),
    torch.ones(3, requires_grad=True), torch.ones(3, device="meta"), torch.ones(3, 3).T, torch.eye(2).to_sparse(),
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_tensor_of_any_kind_is_passed_on_by_one_entry(program: Callable[..., Any]) -> None:
    compiled = fxjit.compile(program, backend="eager")
    compiles = 0
    for other in OTHERS:
        given = PROGRAMS[program](other)
        result = compiled(X, given)
        expected = program(X, given)
        for ours, theirs in zip(*(_leaves(each) for each in (result, expected)), strict=True):
            assert ours is theirs or (ours is not other and torch.equal(ours, theirs))
        compiles = compiles or counters["frames"]["ok"]
        if other.layout is torch.strided:
            assert counters["frames"]["ok"] == compiles
    assert not isinstance(PROGRAMS[program](X), Box) or given.value is OTHERS[-1]


def _leaves(value: Any) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(value)


def test_what_is_looked_at_is_guarded_from_then_on() -> None:
    """The same tensor is passed on first and read later in the frame."""
    def program(x: torch.Tensor, box: Box) -> tuple[Any, ...]:
        held = box.value
        y = x + 1
        return y, held, held * y

    compiled = fxjit.compile(program, backend="eager", dynamic=False)
    for compiles, other in enumerate((torch.ones(3), torch.ones(1), torch.ones(3, dtype=torch.int64)), start=1):
        box = Box(other)
        for ours, theirs in zip(compiled(X, box), program(X, box), strict=True):
            torch.testing.assert_close(ours, theirs)
        assert counters["frames"]["ok"] == compiles


def test_that_two_are_not_one_is_guarded_even_where_neither_is_looked_at() -> None:
    def program(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x * 2 if a is b else x * 3

    compiled = fxjit.compile(program, backend="eager")
    a, b = torch.ones(2), torch.ones(3)
    for pair in ((a, b), (b, a), (a, a), (b, b), (b, a)):
        assert torch.equal(compiled(X, *pair), program(X, *pair))
    assert counters["frames"]["ok"] == 2


def test_a_parameter_in_the_place_of_a_tensor_is_another_type() -> None:
    def program(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x * 2 if isinstance(other, torch.nn.Parameter) else x * 3

    compiled = fxjit.compile(program, backend="eager")
    for other in (torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(5)):
        assert torch.equal(compiled(X, other), program(X, other))
    assert counters["frames"]["ok"] == 2
