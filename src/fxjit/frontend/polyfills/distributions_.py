"""Checks of torch.distributions that return early on data, without the branch: the same answers in one graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import constraints, distribution

from fxjit import torch_private
from fxjit.frontend.values.calls import polyfill

_SQUARE: Any = constraints.square
_SYMMETRIC: Any = constraints.symmetric


@polyfill(type(_SYMMETRIC).check)
def is_symmetric(self: Any, value: torch.Tensor) -> torch.Tensor:
    """Whether matrices are square is a matter of their shape."""
    if value.shape[-2] != value.shape[-1] and 0 not in value.shape[:-2]:
        return _SQUARE.check(value)  # type: ignore[no-any-return]  # torch leaves it open
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


@polyfill(type(constraints.positive_semidefinite).check)
def is_positive_semidefinite(self: Any, value: torch.Tensor) -> torch.Tensor:
    """Whether matrices are positive semidefinite; eigenvalues are computed of symmetric matrices only, as of others they
    may not exist."""
    symmetric = _SYMMETRIC.check(value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric  # type: ignore[no-any-return]  # torch leaves it open
    all_symmetric = symmetric.all()
    positive = torch.linalg.eigvalsh(torch.where(all_symmetric, value, torch.zeros_like(value))).ge(0).all(-1)
    return torch.where(all_symmetric, positive, symmetric)


@polyfill(type(constraints.positive_definite).check)
def is_positive_definite(self: Any, value: torch.Tensor) -> torch.Tensor:
    """Whether matrices are positive definite: False for those that are not symmetric, else by a Cholesky decomposition."""
    symmetric = _SYMMETRIC.check(value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric  # type: ignore[no-any-return]  # torch leaves it open
    return torch.where(symmetric.all(), torch.linalg.cholesky_ex(value).info.eq(0), symmetric)


_ALL_TRUE: Any = getattr(distribution, "_all_true_or_runtime_assert", None)  # from torch 2.14 on

_IS_ALL_TRUE: Any = torch_private.optional("torch._is_all_true")

if _ALL_TRUE is not None:

    @polyfill(_ALL_TRUE)
    def all_true(valid: torch.Tensor, error_message: str) -> torch.Tensor:
        """All elements, left a tensor: it is for a branch of which one side raises, which the graph checks."""
        return _IS_ALL_TRUE(valid)  # type: ignore[no-any-return]  # read by name
