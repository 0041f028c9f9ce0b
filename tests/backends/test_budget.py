"""Long graphs: kernels of equal steps are shared, and a graph that takes too long to compile runs as it was captured."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import fxjit
from fxjit import config
from fxjit.backends.native.codegen.graph_kernels import GraphKernels
from fxjit.counters import counters


class Loop(nn.Module):
    """A cell called in a Python loop."""

    def __init__(self, inputs: int = 4, width: int = 3) -> None:
        super().__init__()
        self.cell = nn.GRUCell(inputs, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[1], self.cell.hidden_size)
        for step in x:
            state = self.cell(step, state)
        return state


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    torch.manual_seed(0)
    with config.patch(disk_cache=False):
        yield


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_graph_over_its_budget_runs_as_captured(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Loop()
    compiled = fxjit.compile(model, backend=backend)
    x = torch.randn(20, 2, 4, requires_grad=True)
    with config.patch(compile_budget=0.02), caplog.at_level(logging.WARNING, "fxjit.compile"):
        found = [torch.autograd.grad(call(x).sin().sum(), [x, *model.parameters()]) for call in (model, compiled)]
    torch.testing.assert_close(found[1], found[0])
    assert dict(counters["run_as_captured"]) == {"over-budget": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "config.compile_budget" in caplog.text


def test_explain_says_so() -> None:
    with config.patch(compile_budget=0.02):
        explanation = fxjit.explain(fxjit.compile(Loop(), backend="native"))(torch.randn(20, 2, 4))
    assert "compile_budget" in str(explanation)


def test_no_limit() -> None:
    with config.patch(compile_budget=0), torch.no_grad():
        fxjit.compile(Loop())(torch.randn(3, 2, 4))
    assert not counters["run_as_captured"]


def test_kernels_of_equal_steps_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The translation unit of a loop, whose products ATen computes, does not grow with its steps."""
    sizes: list[int] = []
    source = GraphKernels.source.fget
    assert source is not None

    def measured(kernels: GraphKernels) -> str:
        text: str = source(kernels)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(GraphKernels, "source", property(measured))
    model = Loop(16, 32)
    found = []
    for steps in (8, 16):
        sizes.clear()
        fxjit.reset()
        x = torch.randn(steps, 4, 16)
        with torch.no_grad():
            torch.testing.assert_close(fxjit.compile(model)(x), model(x))
        found.append(max(sizes))
    assert found[0] == found[1]
