"""Operators that an installed package declares to compute alone: they break no graph, and where one raises, or what is
behind it, the frame starts over, so that handlers and effects are eager's."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fxjit

SOURCE = '''
import torch

@torch.library.custom_op("fxjit_tests_package::scaled", mutates_args=())
def scaled(x: torch.Tensor, most: float) -> torch.Tensor:
    if float(x.detach().abs().max()) > most:
        raise ValueError("too large")
    return x * 2

scaled.register_fake(lambda x, most: torch.empty_like(x))
scaled.register_autograd(lambda ctx, grad: (grad * 2, None))

@torch.library.custom_op("fxjit_tests_package::filled", mutates_args=("x",))
def filled(x: torch.Tensor, most: float) -> torch.Tensor:
    if float(x.max()) > most:
        raise ValueError("too large")
    x.add_(1)
    return x * 2

filled.register_fake(lambda x, most: torch.empty_like(x))
'''
PACKAGE = types.ModuleType("scaling")
DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("DEPTH", default=0)
Program = Callable[[torch.Tensor, torch.Tensor, list[Any]], Any]


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    file = tmp_path_factory.mktemp("installed") / "site-packages" / "scaling.py"
    file.parent.mkdir()
    file.write_text(SOURCE)
    exec(compile(SOURCE, str(file), "exec"), PACKAGE.__dict__)
    yield
    del PACKAGE.scaled, PACKAGE.filled  # their libraries go with them


def in_a_finally(x: torch.Tensor, at: torch.Tensor, seen: list[Any]) -> Any:
    """As transformers' models are, around all of their layers."""
    token = DEPTH.set(DEPTH.get() + 1)
    try:
        y = PACKAGE.scaled(x, 5.0)
        seen.append(DEPTH.get())
        return y[at] * 2
    finally:
        DEPTH.reset(token)
        seen.append(DEPTH.get())


def under_a_handler(x: torch.Tensor, at: torch.Tensor, seen: list[Any]) -> Any:
    try:
        seen.append("tried")
        y = torch.ops.fxjit_tests_package.scaled(x.sin() * 4 + x, 5.0)
        return y.index_select(0, at)
    except (ValueError, IndexError) as error:
        seen.append(str(error))
        return x - 1


def in_a_loop(x: torch.Tensor, at: torch.Tensor, seen: list[Any]) -> Any:
    for factor in (1.0, 0.5, 2.0):
        try:
            x = PACKAGE.scaled(x * factor, 5.0)[at] + x[at]
        except (ValueError, IndexError):
            seen.append(factor)
    return x


def behind_writes(x: torch.Tensor, at: torch.Tensor, seen: list[Any]) -> Any:
    seen.append(len(seen))
    at.add_(0)
    y = PACKAGE.scaled(x + 1, 5.0)
    at.add_(1)
    seen.append(len(seen))
    return y.cos() + PACKAGE.scaled(y, 6.0)


def outside(x: torch.Tensor, at: torch.Tensor, seen: list[Any]) -> Any:
    return PACKAGE.scaled(x, 5.0)[at]


def outcome(fn: Program, value: float, place: int, gradients: bool) -> Any:
    x, at, seen = torch.linspace(-1, 1, 4) * value, torch.tensor([0, place, 1, 2]), list[Any]()
    x.requires_grad_(gradients)
    try:
        result = fn(x, at, seen)
        if gradients:
            result.sum().backward()
        told = result.detach()
    except (ValueError, IndexError, RuntimeError) as error:
        told = type(error), str(error)
    return told, seen, at, x.grad, DEPTH.get()


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", [in_a_finally, under_a_handler, in_a_loop, behind_writes, outside])
def test_they_run_again_where_the_graph_fails(program: Program, gradients: bool, backend: str) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(program, backend=backend)
    for value, place in ((1.0, 3), (2.0, 0), (9.0, 3), (1.0, 9), (1.5, 2)):
        expected, actual = outcome(program, value, place, gradients), outcome(compiled, value, place, gradients)
        if isinstance(expected[0], torch.Tensor):
            torch.testing.assert_close(actual[0], expected[0])
            torch.testing.assert_close(actual[3], expected[3])
        else:
            assert actual[0] == expected[0]
        assert actual[1] == expected[1] and torch.equal(actual[2], expected[2]) and actual[4] == expected[4]
    assert not fxjit.counters["graph_break"]


def test_one_that_writes_runs_once() -> None:
    def program(x: torch.Tensor, at: torch.Tensor, seen: list[Any]) -> Any:
        try:
            return PACKAGE.filled(x, 5.0) + 1
        except ValueError:
            seen.append("caught")
            return x * 3

    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(program, backend="eager")
    for value in (1.0, 9.0):
        expected, actual = outcome(program, value, 1, False), outcome(compiled, value, 1, False)
        torch.testing.assert_close(actual[0], expected[0])
        assert actual[1] == expected[1]
    assert fxjit.counters["skip_cause"]
