"""Programs that put something of their own in the place of torch's functions and methods (counters of operations, casts): it
runs once for each call, as in eager, and never while compiling."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit

PLACES: list[tuple[Any, str, Callable[[torch.Tensor], Any]]] = [
    (torch.Tensor, "relu", lambda x: x.relu()), (torch.Tensor, "__add__", lambda x: x + 1),
    (torch.Tensor, "__radd__", lambda x: 1 + x), (torch.Tensor, "__rsub__", lambda x: 1 - x),
    (torch.Tensor, "__mul__", lambda x: x * x), (torch.Tensor, "__matmul__", lambda x: x @ x),
    (torch.Tensor, "__getitem__", lambda x: x[0] * 2), (torch.Tensor, "add_", lambda x: x.clone().add_(1)),
    (torch.Tensor, "view", lambda x: x.view(-1) * 2), (torch.Tensor, "sum", lambda x: x.sum() + x.mean()),
    (torch.Tensor, "to", lambda x: x.to(torch.float64)), (torch.Tensor, "split", lambda x: x.split(1)[0] + 1),
    (torch.Tensor, "norm", lambda x: x.norm()), (torch.Tensor, "size", lambda x: x * x.size(0)),
    (torch, "relu", lambda x: torch.relu(x)), (torch, "matmul", lambda x: torch.matmul(x, x)),
    (torch.nn.functional, "relu", lambda x: torch.nn.functional.relu(x)),
    (torch.nn.functional, "linear", lambda x: torch.nn.functional.linear(x, x)),
    (torch.linalg, "norm", lambda x: torch.linalg.norm(x)),
]


def replaced(owner: Any, name: str, wraps: bool, calls: list[str], patch: pytest.MonkeyPatch) -> None:
    original = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    patch.setattr(owner, name, functools.wraps(original)(counting) if wraps else counting)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_runs_once_a_call(place: Any, wraps: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, program = place
    x, calls = torch.randn(3, 3), list[str]()
    expected = program(x)
    with monkeypatch.context() as patch:
        replaced(owner, name, wraps, calls, patch)
        compiled = fxjit.compile(program, backend=backend)
        for _ in range(3):
            calls.clear()
            torch.testing.assert_close(compiled(x), expected)
            assert calls == [name]
    calls.clear()
    torch.testing.assert_close(compiled(x), expected)
    assert not calls, "put back"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_replaced_behind_a_compile(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, program = place
    x, calls = torch.randn(3, 3), list[str]()
    compiled = fxjit.compile(program, backend="eager")
    expected = compiled(x)
    with monkeypatch.context() as patch:
        replaced(owner, name, False, calls, patch)
        torch.testing.assert_close(compiled(x), expected)
        assert calls == [name]
    torch.testing.assert_close(compiled(x), expected)
    assert calls == [name]


def test_gradients_and_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    x, calls = torch.randn(5, 3), list[str]()
    model(x).sum().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    with monkeypatch.context() as patch:
        for owner, name in ((torch.nn.functional, "linear"), (torch.nn.functional, "relu"), (torch.Tensor, "sum")):
            replaced(owner, name, False, calls, patch)
        compiled = fxjit.compile(lambda x: model(x).sum(), backend="native")
        for _ in range(2):
            calls.clear()
            model.zero_grad()
            compiled(x).backward()
            assert calls == ["linear", "relu", "linear", "sum"]
            for each, gradient in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(each.grad, gradient)
