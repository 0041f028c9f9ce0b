"""`forward` of an `autograd.Function` that gives its own arguments back among other results: views of them."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager


def function(forward):
    class Passing(torch.autograd.Function):
        @staticmethod
        def backward(ctx, *gradients):
            known = [gradient for gradient in gradients if gradient is not None]
            return tuple(sum(known) * (nth + 2) if known else None for nth in range(2))

    Passing.forward = staticmethod(forward)
    return Passing.apply


def saving(ctx, x, y):
    ctx.save_for_backward(x)
    return x, y.sum()


def fixed(ctx, x, y):
    ctx.mark_non_differentiable(x)
    return x, y * 2


FORWARDS = {
    "first": lambda ctx, x, y: (x, y * 2), "twice": lambda ctx, x, y: (x, x), "both": lambda ctx, x, y: (x, y),
    "beside a list": lambda ctx, x, y: (y, [1, 2], x + 1), "beside constants": lambda ctx, x, y: (y * 2, 4, x, None),
    "alone": lambda ctx, x, y: (x,),
    "in a list": lambda ctx, x, y: [x, y * 3], "views": lambda ctx, x, y: (x[0], y.view(-1)), "saved": saving, "fixed": fixed,
}
USES = {
    "plain": lambda apply, x, y: apply(x, y),
    "of an activation": lambda apply, x, y: apply(x * 2, y),
    "without a gradient": lambda apply, x, y: apply(x, y.detach()),
    "used": lambda apply, x, y: [each * 2 if isinstance(each, torch.Tensor) else each for each in apply(x, y)],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("forward", FORWARDS)
def test_arguments_among_the_results(forward, use, backend):
    apply = function(FORWARDS[forward])
    given = [torch.randn(3, requires_grad=True) for _ in range(2)]
    assert_same_as_eager(lambda x, y: USES[use](apply, x, y), *given, breaks=0, backend=backend, strides=False)
