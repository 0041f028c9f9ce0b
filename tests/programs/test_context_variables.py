"""Context variables that are set, reset and used as scopes, over graph breaks too."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.ones(3)
LEVEL: contextvars.ContextVar[Any] = contextvars.ContextVar("level", default=0)
UNSET: contextvars.ContextVar[Any] = contextvars.ContextVar("unset")


def test_a_variable_is_set_and_reset() -> None:
    def run(x: torch.Tensor) -> Any:
        outer = LEVEL.set(2)
        inner = LEVEL.set(x + 1)
        y = LEVEL.get() * 2
        LEVEL.reset(inner)
        seen = LEVEL.get(), outer.var is LEVEL, outer.old_value is contextvars.Token.MISSING, inner.old_value
        LEVEL.reset(outer)
        return y, seen, LEVEL.get(), LEVEL.get(7), LEVEL.name

    assert_same_as_eager(run, X)


def test_a_variable_that_is_not_set() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            UNSET.get()
        except LookupError as error:
            return type(error), UNSET.get(5), x

    assert_same_as_eager(run, X)


def test_what_is_set_stays_set() -> None:
    def run(x: torch.Tensor) -> Any:
        LEVEL.set(LEVEL.get() + 1)
        return x * LEVEL.get()

    def three_times(fn: Any) -> list[torch.Tensor]:
        return [*[fn(X) for _ in range(3)], torch.tensor(LEVEL.get())]

    expected = contextvars.copy_context().run(three_times, run)
    got = contextvars.copy_context().run(three_times, fxjit.compile(run, backend="eager", fullgraph=True))
    assert [each.tolist() for each in got] == [each.tolist() for each in expected]


def test_tokens_over_a_break() -> None:
    def run(x: torch.Tensor) -> Any:
        first, second, other = LEVEL.set(1), LEVEL.set(2), UNSET.set(x)
        torch._dynamo.graph_break()
        y = UNSET.get() + LEVEL.get()
        UNSET.reset(other)
        LEVEL.reset(second)
        between = LEVEL.get()
        LEVEL.reset(first)
        return y, between, LEVEL.get(), UNSET.get(None), second.old_value

    assert_same_as_eager(run, X, fullgraph=False)
    assert LEVEL.get() == 0 and UNSET.get(None) is None


@contextlib.contextmanager
def at(level: int) -> Iterator[None]:
    token = LEVEL.set(level)
    try:
        yield
    finally:
        LEVEL.reset(token)


def test_a_variable_as_a_scope() -> None:
    def run(x: torch.Tensor) -> Any:
        with at(3):
            y = x * LEVEL.get()
            with at(4):
                y = y + LEVEL.get()
            with contextlib.suppress(ValueError), at(5):
                raise ValueError
            y = y - LEVEL.get()
        return y, LEVEL.get()

    assert_same_as_eager(run, X)


def refuses(token: Any) -> bool:
    try:
        LEVEL.reset(token)
    except (RuntimeError, ValueError):
        return True
    return False


def test_errors_of_tokens() -> None:
    def run(x: torch.Tensor) -> Any:
        token, other = LEVEL.set(1), UNSET.set(2)
        LEVEL.reset(token)
        y = x + 1
        return refuses(token), refuses(other), UNSET.reset(other), y

    assert_same_as_eager(run, X, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_compile_leaves_nothing_in_the_context(backend: str) -> None:
    """Neither torch's settings, which are context variables, nor the context of `decimal`, which sympy asks for."""
    def run() -> list[str]:
        linear = torch.nn.Linear(3, 3)
        compiled = fxjit.compile(lambda x: linear(x).relu() * torch.numel(x), backend=backend)
        for rows in (2, 4, 5):
            compiled(torch.ones(rows, 3)).sum().backward()
        return sorted(variable.name for variable in contextvars.copy_context())

    assert contextvars.Context().run(run) == []


def test_what_a_custom_backend_sets_stays_set() -> None:
    seen: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)

    def counting(gm, inputs):
        seen.set(seen.get() + 1)
        return gm

    fxjit.compile(lambda x: x * 2, backend=counting)(torch.ones(3))
    assert seen.get() == 1
