"""Containers that change while they are iterated over: compiled code meets, or raises, what plain Python does; what depends on
how much room a table has runs as it stands. And `op=` between sequences and what has a say about them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit import config

X = torch.ones(2)


def assert_same_as_python(program: Callable[..., Any], make: Callable[[], Any]) -> None:
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    with config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
        for _ in range(2):
            mine, theirs = make(), make()
            assert str(compiled(X, mine)) == str(program(X, theirs))
            assert str(mine) == str(theirs)


CONTAINERS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "dict": (lambda: {1: 1, 2: 2, 3: 3}, [
        "d[len(d) + 10] = 1", "d.pop(k)", "d.clear()", "d.update({77: 1})", "d.pop(k); d[k] = 1", "d.popitem()", "d[k] = 9",
        "d.pop(k); d[k + 100] = 1"]),
    "OrderedDict": (lambda: collections.OrderedDict({1: 1, 2: 2, 3: 3}), [
        "d[len(d) + 10] = 1", "d.pop(k)", "d.move_to_end(k)", "d.move_to_end(3)", "d.clear()", "d[1] = 5", "d.pop(k); d[k] = 1",
        "d.move_to_end(1, last=False)", "d.setdefault(k + 9, 1) if k == 3 else None"]),
    "defaultdict": (lambda: collections.defaultdict(int, {1: 1, 2: 2}), ["d[len(d) + 10]", "d[k]", "d.pop(k)"]),
    "set": (lambda: {1, 2, 3}, [
        "d.add(len(d) + 10)", "d.discard(k)", "d.clear()", "d.remove(k); d.add(k)", "d.update([k])", "d.pop()",
        "d.discard(k); d.add(k + 10)"]),
    "deque": (lambda: collections.deque([1, 2, 3]), ["d.append(1)", "d.pop()", "d.rotate(1)", "d[0] = 5",
        "d.append(1); d.popleft()"]),
    "list": (lambda: [1, 2, 3], ["d.append(1) if len(d) < 8 else None", "d.pop()", "d.clear()",
        "d.insert(0, 9) if len(d) < 8 else None"]),
}  # fmt: skip
ITERATORS = ["d", "reversed(list(d))", "zip(d, d)", "(e for e in d)", "getattr(d, 'items', list)()"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_changes_while_it_is_iterated_over(name: str) -> None:
    make, changes = CONTAINERS[name]
    for change in changes:
        for iterator in ITERATORS:
            namespace: dict[str, Any] = {}
            exec(
                f"""
def program(x, d):
    met = []
    try:
        for k in {iterator}:
            met.append(str(k))
            k = k[0] if isinstance(k, tuple) else k
            if len(met) > 9:
                break
            {change}
    except (RuntimeError, KeyError, IndexError) as error:
        met.append(str(error))
    return x + len(met), met, list(d)
""",
                namespace,
            )
            assert_same_as_python(namespace["program"], make)


class Greedy:
    """Takes part in every sum and product."""

    def __radd__(self, other: Any) -> Any:
        return ("sum", list(other))

    def __rmul__(self, other: Any) -> Any:
        return ("product", list(other))

    def __index__(self) -> int:
        return 2

    def __repr__(self) -> str:
        return "Greedy"


class Own(list):  # type: ignore[type-arg]
    def __iadd__(self, other: Any) -> Any:  # type: ignore[misc]
        self.append(other)
        return self


@pytest.mark.parametrize(
    "kind", [list, collections.deque, bytearray, collections.UserList, Own], ids=lambda kind: kind.__name__
)
def test_who_is_asked_first_about_a_sequence(kind: Any) -> None:
    operands: list[Callable[[], Any]] = [
        lambda: collections.UserList([7]), Greedy, lambda: [5], lambda: kind([1]), lambda: 3,
        lambda: torch.ones(2), lambda: None, lambda: iter([1]),
    ]  # fmt: skip
    if kind in (list, collections.deque):  # the others keep the array, which no comparison takes
        operands.append(lambda: np.array([1, 2]))
    for operand in operands:
        for statement in ("a += b", "a *= b", "a = a + b", "a += a"):
            namespace: dict[str, Any] = {}
            exec(
                f"""
def program(x, a, b):
    {statement}
    return x + 1, type(a).__name__, [type(each).__name__ for each in a]
""",
                namespace,
            )
            assert_same_as_eager(namespace["program"], fullgraph=False, make=lambda: (X, kind([1, 2]), operand()))  # noqa: B023
