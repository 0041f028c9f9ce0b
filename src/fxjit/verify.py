"""`config.verify_correctness`: the first call of each compiled graph is compared with eager.

`options.py` wraps what a backend returned; a difference raises AccuracyError with the graph and where it differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from .errors import AccuracyError

# What reordered sums and fused operators may differ by, as a part of the largest number in the result.
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 2e-2, torch.float32: 1e-4, torch.float64: 1e-8}


def verified(compiled: Callable[..., Any], gm: Any, backend: str) -> Callable[..., Any]:
    """`compiled`, compared with the graph's own operators at its first call."""
    checked = False

    def run(*args: Any) -> Any:
        nonlocal checked
        if checked:
            return compiled(*args)
        checked = True
        copies = [tree_map_only(torch.Tensor, _copy, each) for each in args]
        rng = torch.get_rng_state()
        wanted = gm.forward(*copies)
        torch.set_rng_state(rng)
        got = compiled(*args)
        _compare(gm, backend, "result", tree_flatten(wanted)[0], tree_flatten(got)[0])
        _compare(gm, backend, "input", copies, list(args))  # what the graph wrote to
        return got

    return run


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _compare(gm: Any, backend: str, what: str, wanted: Sequence[Any], got: Sequence[Any]) -> None:
    problem = None if len(wanted) == len(got) else f"{len(got)} {what}s instead of {len(wanted)}"
    for number, (want, have) in enumerate(zip(wanted, got, strict=False)):
        problem = problem or _difference(f"{what} {number}", want, have)
    if problem is not None:
        raise AccuracyError(f"backend={backend!r} and eager do not agree: {problem}\n{gm.print_readable(print_output=False)}")


def _difference(what: str, want: Any, have: Any) -> str | None:
    if not isinstance(want, torch.Tensor):
        return None if isinstance(have, torch.Tensor) is False and want == have else f"{what} is {have!r}, not {want!r}"
    if not isinstance(have, torch.Tensor):
        return f"{what} is {have!r}, not a tensor"
    if (want.shape, want.dtype, want.device) != (have.shape, have.dtype, have.device):
        return (
            f"{what} is {have.dtype} {tuple(have.shape)} on {have.device}, "
            f"not {want.dtype} {tuple(want.shape)} on {want.device}"
        )
    limit = TOLERANCE.get(want.dtype)
    if limit is None:
        return None if torch.equal(want, have) else f"{what} differs"
    wide_want, wide_have = want.detach().double(), have.detach().double()
    finite = wide_want[wide_want.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if torch.allclose(wide_want, wide_have, rtol=limit, atol=limit * max(largest, 1e-6), equal_nan=True):
        return None
    worst = (wide_want - wide_have).abs().nan_to_num(float("inf")).max().item()
    return f"{what} differs by up to {worst:.3g}"
