"""Batch norms whose statistics average over all batches (`momentum=None`): one graph, with a step that reads the count."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.differential import assert_same
from torch import nn

import fxjit


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None), nn.ReLU(), nn.BatchNorm1d(4, momentum=None, affine=False),
        nn.BatchNorm1d(4, momentum=None, track_running_stats=False), nn.Linear(4, 4), nn.BatchNorm1d(4),
    )


class Frozen(nn.BatchNorm1d):
    """One whose statistics a program may set to None, or stop to count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.compiles
def test_in_training_and_out_of_it(backend: str) -> None:
    torch.manual_seed(0)
    mine = layers()
    eager = copy.deepcopy(mine)
    fxjit.reset()
    compiled = fxjit.compile(mine, backend=backend, fullgraph=True)
    rtol = 0.0 if backend == "eager" else 1e-3
    for call in range(7):
        for each in (mine, eager):
            each.train(call != 4)
            each.zero_grad()
        x = torch.randn(5 + call // 3, 4)
        y, expected = compiled(x), eager(x)
        assert_same(y.detach(), expected.detach(), rtol=rtol)
        y.square().mul(x).sum().backward()
        expected.square().mul(x).sum().backward()
        assert_same([each.grad for each in mine.parameters()], [each.grad for each in eager.parameters()], rtol=rtol)
        assert_same(list(mine.buffers()), list(eager.buffers()), rtol=rtol)
        assert [each._version for each in mine.buffers()] == [each._version for each in eager.buffers()]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_in_other_states(backend: str) -> None:
    for change in (lambda m: setattr(m, "num_batches_tracked", None), lambda m: setattr(m, "track_running_stats", False),
                   lambda m: m.half(), lambda m: m.requires_grad_(False), lambda m: m.num_batches_tracked.fill_(7)):
        mine = Frozen(4, momentum=None)
        change(mine)
        eager = copy.deepcopy(mine)
        fxjit.reset()
        compiled = fxjit.compile(mine, backend=backend)
        for _ in range(2):
            x = torch.randn(6, 4)
            outcomes = []
            for each in (compiled, eager):
                try:
                    outcomes.append(each(x).detach())
                except Exception as error:  # compared with eager's
                    outcomes.append(str(error))
            assert_same(*outcomes, rtol=0.0 if backend == "eager" else 1e-4)
            assert_same(list(mine.buffers()), list(eager.buffers()))


def test_a_wrong_shape_leaves_the_count_as_eager_does() -> None:
    mine, eager = nn.BatchNorm2d(4, momentum=None), nn.BatchNorm2d(4, momentum=None)
    fxjit.reset()
    compiled = fxjit.compile(mine, backend="eager")
    for wrong in (torch.ones(4), torch.ones(2, 3, 4, 4), torch.ones(1, 4, 1, 1)):
        for each in (compiled, eager):
            with pytest.raises((ValueError, RuntimeError)):
                each(wrong)
        assert mine.num_batches_tracked == eager.num_batches_tracked


def test_under_transforms_and_without_recording() -> None:
    def fn(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return layer(x) + 1

    for backend in ("eager", "native"):
        mine, eager = nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, momentum=None)
        fxjit.reset()
        compiled = fxjit.compile(fn, backend=backend)
        for _ in range(2):
            x = torch.randn(6, 4)
            assert_same(compiled(x, mine), fn(x, eager), rtol=0.0 if backend == "eager" else 1e-4)
        assert_same(list(mine.buffers()), list(eager.buffers()))
