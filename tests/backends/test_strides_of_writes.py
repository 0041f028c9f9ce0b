"""What follows a write in place to a tensor whose dimensions lie in another order than rows has eager's layout, and random
numbers are drawn in eager's order: the functional forms in graphs of AOTAutograd have a layout of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.differential import KERNELS, assert_same_as_eager

import fxjit

PLACES = torch.tensor([0, 1])
WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "addmm_": lambda x: x.addmm_(torch.ones(2, 4), torch.ones(4, 3)),
    "addbmm_": lambda x: x.addbmm_(torch.ones(2, 2, 2), torch.ones(2, 2, 3)),
    "addr_": lambda x: x.addr_(torch.ones(2), torch.ones(3)),
    "bernoulli_": lambda x: x.bernoulli_(),
    "bernoulli_ by keyword": lambda x: x.bernoulli_(p=0.3),
    "bernoulli_ of a tensor": lambda x: x.bernoulli_(torch.full((2, 3), 0.4)),
    "cumsum_": lambda x: x.cumsum_(1),
    "index_add_": lambda x: x.index_add_(0, PLACES, torch.ones(2, 3)),
    "index_copy_": lambda x: x.index_copy_(0, PLACES, torch.ones(2, 3)),
    "index_reduce_": lambda x: x.index_reduce_(0, PLACES, torch.ones(2, 3), "amax"),
    "masked_fill_": lambda x: x.masked_fill_(torch.ones(2, 3, dtype=torch.bool), 2.0),
    "masked_scatter_": lambda x: x.masked_scatter_(torch.ones(2, 3, dtype=torch.bool), torch.arange(6.0)),
    "mvlgamma_": lambda x: x.mvlgamma_(1),
    "normal_": lambda x: x.normal_(),
    "renorm_": lambda x: x.renorm_(2, 0, 1.0),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3)),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3), "sum"),
    "tril_": lambda x: x.tril_(),
    "of itself": lambda x: x.addmm_(x, torch.ones(3, 3)),
    "out=": lambda x: torch.mm(torch.ones(2, 4), torch.ones(4, 3), out=x),
    "random out=": lambda x: torch.randn(2, 3, out=x),
}
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: (torch.arange(6.0).reshape(3, 2) / 4 + 0.3).t(),
    "transposed, with gaps": lambda: (torch.arange(12.0).reshape(3, 4) / 4 + 0.3)[:, ::2].t(),
    "recorded": lambda: (torch.arange(6.0).reshape(3, 2).requires_grad_() / 4 + 0.3).t(),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("name", WRITES)
def test_layout_and_order_behind_a_write(name: str, make: Callable[[], torch.Tensor], backend: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        WRITES[name](x)
        return x, x * 2, x.t() + 1

    assert_same_as_eager(program, make=lambda: (make(),), backend=backend, fullgraph=False, rtol=KERNELS)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_out_that_requires_a_gradient_is_refused_in_any_layout(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.add(torch.ones(2, 3), 1, out=x)

    assert_same_as_eager(program, make=lambda: (INPUTS["recorded"](),), backend=backend, fullgraph=False)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_another_shape_writes_to_no_element(backend):
    """`transpose_` of a view: it was a copy of the elements to where they are."""
    def program(x, y):
        view = x.detach()
        view.transpose_(0, 1)
        return y * 2, view + 1

    fxjit.reset()
    compiled, ends = fxjit.compile(program, backend=backend), []
    for call in (program, compiled):
        for base in (torch.arange(9.0).reshape(3, 3), torch.arange(9.0).reshape(3, 3).requires_grad_()):
            results = call(base, base[:2])
            ends.append([(each.tolist(), each.stride()) for each in (*results, base)])
    assert ends[:2] == ends[2:]
