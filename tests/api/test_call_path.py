"""What a call runs once everything is compiled: no Python but the compiled code's own, no wrapper of AOTAutograd's around an
inference graph, and one autograd node around a training graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit

X, Y = torch.linspace(-1, 1, 8), torch.linspace(1, 2, 8)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


def python_run(call: Callable[[], object]) -> list[str]:
    """The Python functions that a call runs, the lambdas here that make it left out."""
    seen: list[str] = []

    def note(frame: Any, event: str, arg: object) -> None:
        if event == "call":
            seen.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in seen if name != f"{__name__}.<lambda>"]


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sin() + x


def of_a_list(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] * tensors[-1]


CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], object], str]] = {
    "a function": (lambda: add, lambda fn: fn(X, Y), "add"),
    "by name": (lambda: add, lambda fn: fn(y=Y, x=X), "add"),
    "a module": (Net, lambda net: net(X), "forward"),
    "a list of tensors": (lambda: of_a_list, lambda fn: fn([X, Y, X + Y]), "of_a_list"),
}


@pytest.mark.parametrize("what", CALLS)
def test_an_inference_call_runs_no_python_but_the_compiled_code(what: str) -> None:
    make, call, name = CALLS[what]
    compiled = fxjit.compile(make(), backend="native")
    with torch.no_grad():
        for _ in range(4):
            call(compiled)
        assert python_run(lambda: call(compiled)) == [f"{__name__}.{name}"]


def test_a_training_call_runs_the_compiled_code_and_one_node() -> None:
    compiled = fxjit.compile(mixed, backend="native")
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    for _ in range(4):
        result = compiled(x, y)
        result.sum().backward()
    ran = python_run(lambda: compiled(x, y))
    assert ran[0] == f"{__name__}.mixed"
    of_torch = [name for name in ran[1:] if not name.startswith("fxjit.backends.")]
    assert {name.rpartition(".")[0] for name in of_torch} <= {"torch.autograd.function"}  # that the node keeps its inputs
    node = result.grad_fn
    assert type(node).__name__ == "CompiledGraphBackward"
    assert {type(behind).__name__ for behind, _ in node.next_functions if behind is not None} == {"AccumulateGrad"}
