"""`out=` of another type than the operator's result: cast to, or refused, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "argmax": lambda x, out: torch.argmax(x, 1, out=out),
    "isin": lambda x, out: torch.isin(x, x[0], out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "multinomial": lambda x, out: torch.multinomial(x, 1, out=out),
    "searchsorted": lambda x, out: torch.searchsorted(torch.tensor([0.1, 0.6]), x, out=out),
    "solve_triangular": lambda x, out: torch.linalg.solve_triangular(x, x, upper=True, out=out),
    "stack": lambda x, out: torch.stack([x, x], out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
}
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int32, torch.int64, torch.bool)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_each_type_is_taken_or_refused(name: str, dtype: torch.dtype, backend: str) -> None:
    x = torch.tensor([[2.0, 0.5], [0.25, 3.0]])
    size = {"argmax": (2,), "multinomial": (2, 1), "stack": (2, 2, 2), "sum": (2,)}.get(name, (2, 2))

    def program(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return CALLS[name](x, out), out * 2

    fxjit.reset()
    assert_same_as_eager(program, make=lambda: (x.clone(), torch.zeros(size, dtype=dtype)), backend=backend, fullgraph=False)
