"""Composite operators (`einsum`, `tensordot`) under autocast: their products are cast as in eager, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxjit

COMPOSITES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "tensordot": lambda x, y: torch.tensordot(x, y, 1),
    "inner": torch.inner,
    "multi_dot": lambda x, y: torch.linalg.multi_dot([x, y, y]),
    "chain_matmul": lambda x, y: torch.chain_matmul(x, y),
    "matrix_power": lambda x, y: torch.linalg.matrix_power(x, 3),
    "linear": F.linear,
    "bilinear": lambda x, y: F.bilinear(x, y, torch.ones(2, 3, 3)),
    "cosine_similarity": F.cosine_similarity,
    "cdist": torch.cdist,
    "kron": torch.kron,
    "layer_norm": lambda x, y: F.layer_norm(x @ y, (3,)),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_operator_is_cast(name: str, mode: Callable[[], Any], backend: str) -> None:
    composite = COMPOSITES[name]

    def around(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        result = composite(x, y)
        return result, result.dtype

    def within(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        with torch.autocast("cpu", torch.bfloat16):
            return around(x, y)

    fxjit.reset()
    x, y = torch.randn(2, 3, 3)
    with mode():
        wanted, dtype = within(x, y)
        found, known = fxjit.compile(within, backend=backend)(x, y)
        with torch.autocast("cpu", torch.bfloat16):
            outside, also_known = fxjit.compile(around, backend=backend)(x, y)
    assert [found.dtype, known, outside.dtype, also_known] == [dtype] * 4
    for each in (found, outside):
        torch.testing.assert_close(each, wanted, rtol=3e-2, atol=3e-2)
