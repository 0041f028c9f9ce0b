"""Stages of a pipeline (torch.distributed.pipelining), each compiled: losses and gradients are eager's under each schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.distributed.models import Block
from torch import distributed, nn

import fxjit

pytestmark = pytest.mark.filterwarnings("ignore")


def run_stages(schedule: str, backend: Any) -> list[torch.Tensor]:
    """The losses of two steps, and the gradients of this rank's stage after them."""
    from torch.distributed import pipelining

    torch.manual_seed(0)
    rank, count = distributed.get_rank(), distributed.get_world_size()
    module: nn.Module = [Block() for _ in range(count)][rank]
    compiled = module if backend is None else fxjit.compile(module, backend=backend)
    stage = pipelining.PipelineStage(compiled, rank, count, torch.device("cpu"))
    run: Any = getattr(pipelining, schedule)(stage, 2, loss_fn=lambda found, target: (found - target).square().mean())
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))
    losses: list[torch.Tensor] = []
    for _ in range(2):
        run.step(*((x,) if rank == 0 else ()), **({"target": x.cos(), "losses": losses} if rank == count - 1 else {}))
    return [*(loss.detach() for loss in losses), *(parameter.grad for parameter in module.parameters())]


def run_each_schedule() -> list[int]:
    """The graphs that train of each schedule. Before torch 2.13 a stage runs once without gradients, to know its shapes."""
    graphs, native = [], fxjit.lookup_backend("native")
    for schedule in ("ScheduleGPipe", "Schedule1F1B"):
        fxjit.reset()
        trains: list[bool] = []

        def noting(gm: Any, inputs: Any, trains: list[bool] = trains) -> Any:
            trains.append(torch.is_grad_enabled())
            return native(gm, inputs)

        torch.testing.assert_close(run_stages(schedule, noting), run_stages(schedule, None))
        graphs.append(trains.count(True))
    return graphs


def test_compiled_stages_give_losses_and_gradients_of_eager_in_one_graph(ranks):
    assert ranks(run_each_schedule) == [[1, 1], [1, 1]]
