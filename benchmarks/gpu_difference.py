"""How what is computed on a GPU differs from eager (benchmarks.gpu)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

#: Relative and absolute, by dtype.
TOLERANCE = {"float32": (2e-3, 2e-4), "bfloat16": (5e-2, 5e-2), "float16": (2e-2, 1e-2), "float64": (1e-6, 1e-8)}


def difference(ours: Callable[..., Any], eager: Callable[..., Any], inputs: list[Any], dtype: str) -> str:
    """How the two differ in results or gradients; empty if they do not, or if ours is as near to what float64 gives."""
    def run(function: Callable[..., Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        for each in inputs:
            each.grad = None
        outputs = [each for each in tree_leaves(function(*inputs)) if isinstance(each, torch.Tensor)]
        wanted = [each.float().square().mean() for each in outputs if each.requires_grad]
        if wanted:
            torch.stack(wanted).sum().backward()
        return [each.detach() for each in outputs], [each.grad for each in inputs]

    expected, actual = run(eager, inputs), run(ours, inputs)
    rtol, atol = TOLERANCE[dtype]
    for place, what in enumerate(("result", "gradient")):
        for k, (one, other) in enumerate(zip(actual[place], expected[place], strict=True)):
            try:
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True, check_stride=True)
            except AssertionError as problem:
                exact = run(eager, [each.detach().double().requires_grad_() for each in inputs])
                if not as_near(one, other, exact[place][k]):
                    return f"{what} {k}: {' '.join(str(problem).split())}"[:300]
    return ""


def as_near(one: Any, other: Any, exact: Any) -> bool:
    """Whether the first is laid out as the second, and no further from the exact numbers."""
    if not one.is_floating_point() or (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride()):
        return False
    first, second = (float((each.double() - exact).abs().max()) for each in (one, other))
    return first <= second


def about_as_near(one: Any, other: Any, exact: Any) -> bool:
    """Whether the first is laid out as the second, and as a whole no more than half as far again from the exact numbers: sums
    of many halves, and convolutions in TF32, are far from them in eager, too."""
    if exact is None or not one.is_floating_point() or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    first, second = (float((each.double() - exact).norm()) for each in (one, other))
    return first <= 1.5 * second + torch.finfo(one.dtype).eps * float(exact.norm())
