"""The modules of torch's own database (`module_db`), with its arguments: results, gradients and buffers are eager's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

#: Of each module, in each mode.
SAMPLES = 3
#: Their graphs break as torch.compile's do: lengths, and the mask of what is padding, are read.
BREAKING = ("nn.CTCLoss", "nn.TransformerEncoder", "nn.TransformerEncoderLayer", "nn.Transformer")


def samples(info: ModuleInfo, training: bool) -> Iterator[ModuleInput]:
    found = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    return itertools.islice((each for each in found if each.forward_input is not None), SAMPLES)


def modules() -> list[Any]:
    infos = [info for info in module_db if torch.float32 in info.dtypes]
    return [pytest.param(info, training, id=f"{info.name}-{'training' if training else 'evaluation'}")
            for info in infos for training in (True, False)]


class Named(torch.nn.Module):
    """A module that is given some arguments by their names."""

    def __init__(self, module: torch.nn.Module, named: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.named = module, named

    def forward(self, *args: Any) -> Any:
        return self.module(*args, **self.named)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("info", "training"), modules())
def test_results_gradients_and_buffers(info: ModuleInfo, training: bool) -> None:
    torch.manual_seed(0)
    for sample in samples(info, training):
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(torch.float32)
        program = Named(module, sample.forward_input.kwargs).train(training)
        assert_same_as_eager(program, *sample.forward_input.args, fullgraph=info.name not in BREAKING)
