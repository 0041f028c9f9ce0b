"""Gradients for a batch of tangents (`is_grads_batched`, `vectorize=True`), which reach a compiled backward graph as tensors of
vmap's."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import functional

import fxjit

FUNCTIONS = {
    "square": lambda x: x**2,
    "sine": lambda x: x.sin() * x.sum(),
    "views": lambda x: (x * 2).view(3, 1)[1:].flatten(),
    "two": lambda x: (x.exp(), x.sum() * x),
}
WAYS = {
    "jacobian": lambda f, x: functional.jacobian(f, x, vectorize=True),
    "jacobian to be differentiated": lambda f, x: functional.jacobian(f, x, vectorize=True, create_graph=True),
    "hessian": lambda f, x: functional.hessian(
        lambda x: sum(each.sum() for each in torch.utils._pytree.tree_leaves(f(x))), x, vectorize=True),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the program", "of a compiled function"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_of_tangents(name, way, inside, backend):
    def program(x):
        return WAYS[way](FUNCTIONS[name], x)

    if inside:
        compiled = fxjit.compile(program, backend=backend)
    else:
        function = fxjit.compile(lambda x: FUNCTIONS[name](x), backend=backend)

        def compiled(x):
            return WAYS[way](function, x)

    for _ in range(2):
        x = torch.arange(3.0, requires_grad=way == "jacobian to be differentiated")
        expected, actual = (torch.utils._pytree.tree_leaves(each(x)) for each in (program, compiled))
        assert [each.requires_grad for each in actual] == [each.requires_grad for each in expected]
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b)
