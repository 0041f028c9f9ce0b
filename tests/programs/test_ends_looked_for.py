"""What an instruction lets go of is looked at, not all that frames hold, where no container can have lost anything."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fxjit
from fxjit.frontend.interp.ends import Ends
from fxjit.testing import same


class Node:
    def __init__(self, scale: float) -> None:
        self.scale, self.next = scale, None


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted = [0]
    whole = Ends._held

    def held(self: Ends, *args: Any) -> Iterator[object]:
        counted[0] += 1
        return whole(self, *args)

    monkeypatch.setattr(Ends, "_held", held)
    return counted


def test_not_all_is_walked_for_each_instruction(walks: list[int]) -> None:
    node = Node(2.0)
    seen = weakref.ref(node)

    def program(x: torch.Tensor, node: Node) -> Any:
        other = node
        for _ in range(100):
            scale = other.scale
            if scale > 1.0:
                other = node
            x = x + scale
        return x

    fxjit.reset()
    assert same(program(torch.ones(2), node), fxjit.compile(program, backend="eager")(torch.ones(2), node))
    assert not fxjit.counters["graph_break"]
    assert seen() is node
    assert 0 < walks[0] < 250  # 2,000 instructions


def _overwritten(x: torch.Tensor, given: Any, seen: Any) -> Any:
    node = given.pop()
    kept = node
    node = 1
    before = seen() is None
    kept = x + 1
    return kept, before, seen() is None


def _deleted(x: torch.Tensor, given: Any, seen: Any) -> Any:
    node = given.pop()
    kept = node
    del node
    before = seen() is None
    del kept
    return x + 1, before, seen() is None


def _moved_into_a_list(x: torch.Tensor, given: Any, seen: Any) -> Any:
    node = given.pop()
    held = [node]
    node = None
    before = seen() is None
    held.pop()
    return x + 1, before, seen() is None


def _a_list_overwritten(x: torch.Tensor, given: Any, seen: Any) -> Any:
    node = given.pop()
    held: Any = (1, [node])
    node = None
    before = seen() is None
    held = x + 1
    return held, before, seen() is None


def _taken_out_of_an_attribute(x: torch.Tensor, given: Any, seen: Any) -> Any:
    node = given.pop()
    holder = Node(1.0)
    holder.next = node
    node = None
    before = seen() is None
    holder.next = None
    return x + 1, before, seen() is None


def _held_by_a_call(x: torch.Tensor, given: Any, seen: Any) -> Any:
    node = given.pop()
    def inner(one: Any) -> bool:
        taken, one = one, None
        return taken is None and one is None

    held = [node]
    node = None
    before = inner(held.pop()), seen() is None
    return x + 1, before


@pytest.mark.parametrize("program", [
    _overwritten, _deleted, _moved_into_a_list, _a_list_overwritten, _taken_out_of_an_attribute, _held_by_a_call])
def test_the_last_that_holds_it_lets_go(program: Any) -> None:
    def call(fn: Any) -> Any:
        node = Node(2.0)
        given, seen = [node], weakref.ref(node)
        del node
        return fn(torch.ones(2), given, seen)

    fxjit.reset()
    expected = call(program)
    compiled = fxjit.compile(program, backend="eager")
    for _ in range(2):
        assert same(expected, call(compiled))


class Watched:
    """As a profiler of a trainer: its end is seen."""

    def __init__(self, ended: list[str]) -> None:
        self.ended = ended

    def __del__(self) -> None:
        self.ended.append("ended")


class Owner:
    def __init__(self, ended: list[str]) -> None:
        self.watched, self.results = Watched(ended), []


class Logging(torch.nn.Module):
    def __init__(self, ended: list[str]) -> None:
        super().__init__()
        self.owner: Any = Owner(ended)
        self.calls = 0

    def log(self, value: torch.Tensor) -> None:
        owner = self.owner
        _append(owner.results, value)
        owner.logged = True

    def forward(self, x: torch.Tensor, mode: str) -> Any:
        y = x * 2
        if mode == "kept":
            self.log(y.sum())
            self.calls += 1
        else:
            owner, self.owner = self.owner, None
            _append(owner.results, y.sum())
            del owner
        return y + len(self.ended_so_far)


@fxjit.disable
def _append(results: list[Any], value: torch.Tensor) -> None:
    results.append(value)


@pytest.mark.parametrize("mode", ["kept", "moved out"])
def test_what_a_module_of_the_frame_holds_does_not_end_where_a_name_does(mode: str) -> None:
    """Lightning's trainer has a profiler with a `__del__`, and a frame that goes on behind the call of `self.log` is given the
    trainer: each broke once more where that name ended, though the module has the trainer, too."""
    found = []
    for compiles in (False, True):
        ended: list[str] = []
        module = Logging(ended)
        module.__dict__["ended_so_far"] = ended
        fxjit.reset()
        fxjit.counters.clear()
        called: Any = fxjit.compile(module, backend="eager") if compiles else module
        found.append((called(torch.ones(2), mode), list(ended)))
    assert same(found[0], found[1])
    assert found[1][1] == ([] if mode == "kept" else ["ended"])
    if mode == "kept":
        assert sum(fxjit.counters["graph_break"].values()) == 1  # at the disabled call
