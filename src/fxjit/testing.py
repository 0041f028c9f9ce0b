"""For tests of programs that are compiled: what torch._dynamo.testing has, under the same names.

As a context manager each of the backends here begins with a `reset`, so that nothing compiled before is in the way:
`with CompileCounter() as counter: ...`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy
import torch
import torch.fx

from .api import reset
from .backends.registry import lookup_backend

__all__ = ["CompileCounter", "CompileCounterWithBackend", "EagerAndRecordGraphs", "reset", "same"]


class _StartsAnew:
    def __enter__(self) -> Self:
        reset()
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None


class CompileCounter(_StartsAnew):
    """A backend that runs graphs eagerly and counts them: `frame_count` graphs, `op_count` operators."""

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += _operators(gm)
        forward: Callable[..., Any] = gm.forward
        return forward

    def clear(self) -> None:
        self.frame_count = 0
        self.op_count = 0


class CompileCounterWithBackend(CompileCounter):
    """Counts graphs, keeps them in `graphs`, and compiles them with the backend of this name."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        super().__init__()
        self.backend = backend
        self.graphs: list[torch.fx.GraphModule] = []
        lookup_backend(backend)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        super().__call__(gm, example_inputs)
        self.graphs.append(gm)
        compiled: Callable[..., Any] = lookup_backend(self.backend)(gm, example_inputs)
        return compiled

    def clear(self) -> None:
        super().clear()
        self.graphs = []


class EagerAndRecordGraphs(_StartsAnew):
    """A backend that runs graphs eagerly and keeps them in `graphs`, and their inputs in `example_inputs`."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.example_inputs: list[Sequence[Any]] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        self.example_inputs.append(example_inputs)
        forward: Callable[..., Any] = gm.forward
        return forward


def same(a: Any, b: Any, *, tol: float = 1e-4, equal_nan: bool = True, exact_dtype: bool = True) -> bool:
    """Whether two results agree: the same types and structure, and numbers that differ by no more than `tol`."""
    return _Comparison(tol, equal_nan, exact_dtype).agree(a, b)


class _Comparison:
    """One comparison of two results, which may hold themselves."""

    def __init__(self, tol: float, equal_nan: bool, exact_dtype: bool) -> None:
        self.tol, self.equal_nan, self.exact_dtype = tol, equal_nan, exact_dtype
        #: Pairs of containers and objects that are being compared: where one is met again, it differs no further in.
        self.under_way: set[tuple[int, int]] = set()

    def agree(self, a: Any, b: Any) -> bool:
        pair = (id(a), id(b))
        if pair in self.under_way:
            return True
        self.under_way.add(pair)
        try:
            return self._agree(a, b)
        finally:
            self.under_way.remove(pair)

    def _agree(self, a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return isinstance(b, torch.Tensor) and _same_tensors(a, b, self.tol, self.equal_nan, self.exact_dtype)
        if isinstance(a, types.ModuleType):
            return a is b  # there is one of each, and it leads to all that the process holds
        if isinstance(a, (list, tuple, torch.nn.ParameterList, torch.Size)):
            alike = isinstance(b, (list, tuple, torch.nn.ParameterList, torch.Size)) and len(a) == len(b)
            return alike and all(map(self.agree, a, b))
        if isinstance(a, Mapping):
            return isinstance(b, Mapping) and a.keys() == b.keys() and all(self.agree(a[key], b[key]) for key in a)
        if isinstance(a, (set, frozenset)):
            return type(a) is type(b) and a == b
        if isinstance(a, (numpy.ndarray, numpy.generic)):
            return type(a) is type(b) and _same_tensors(
                torch.from_numpy(numpy.asarray(a)), torch.from_numpy(numpy.asarray(b)), self.tol, self.equal_nan, True)
        if isinstance(a, float) and isinstance(b, (int, float)):
            return _same_tensors(torch.tensor(a), torch.tensor(float(b)), self.tol, self.equal_nan, True)
        if type(a) is not type(b):
            return False
        if hasattr(a, "__dict__") and "__eq__" not in type(a).__dict__:
            return self.agree(vars(a), vars(b))
        return bool(a == b)


def _same_tensors(a: torch.Tensor, b: torch.Tensor, tol: float, equal_nan: bool, exact_dtype: bool) -> bool:
    if a.shape != b.shape or a.device != b.device or (exact_dtype and a.dtype != b.dtype):
        return False
    if a.is_sparse != b.is_sparse:
        return False
    if a.is_sparse:
        a, b = a.to_dense(), b.to_dense()
    if a.dtype == torch.bool or b.dtype == torch.bool:
        return bool(torch.equal(a.to(torch.bool), b.to(torch.bool)))
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    wide = torch.float64
    return torch.allclose(a.detach().to(wide), b.detach().to(wide), atol=tol, rtol=tol, equal_nan=equal_nan)


def _operators(gm: torch.fx.GraphModule) -> int:
    return sum(node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes)
