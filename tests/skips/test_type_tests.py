"""Functions of packages that run as they stand are traced where all that they do is to look at types."""

from __future__ import annotations

from abc import ABC
from types import FunctionType
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch import Tensor

import fxjit
from fxjit.skips import Verdict, function_verdict


class Sparse(ABC):
    pass


class Virtual:
    pass


Sparse.register(Virtual)
KINDS = (Sparse, float)


def is_sparse(x: Any) -> bool:
    """Whether it is."""
    return isinstance(x, Sparse)


def is_kind(x: Any) -> bool:
    return isinstance(x, KINDS) or not issubclass(type(x), Tensor)


def calls_another(x: Any) -> bool:
    return isinstance(x, Sparse) or is_sparse(x)


def reads_an_attribute(x: Any) -> bool:
    return isinstance(x, Sparse) and x.shape is not None


def returns(x: Any) -> Any:
    return x


def _of_scipy(fn: Any) -> FunctionType:
    return FunctionType(fn.__code__, {**fn.__globals__, "__name__": "scipy._lib._sparse"}, fn.__name__)


@pytest.mark.parametrize("fn", [is_sparse, is_kind])
def test_a_type_test_is_traced(fn: Any) -> None:
    fxjit.reset()
    moved = _of_scipy(fn)
    assert function_verdict(moved)[0] is Verdict.TRACE

    def call(x: torch.Tensor, other: Any) -> torch.Tensor:
        return x.sin() if moved(other) else x.cos() if moved(x) else x.exp()

    compiled = fxjit.compile(call, backend="eager", fullgraph=True)
    x = torch.ones(3)
    for other in (Virtual(), 1.5, "text", None, x, torch.nn.Parameter(x)):
        assert torch.equal(compiled(x, other), call(x, other))


@pytest.mark.parametrize("fn", [calls_another, reads_an_attribute, returns])
def test_others_run_as_they_stand(fn: Any) -> None:
    assert function_verdict(_of_scipy(fn)) == (Verdict.SKIP, "call-skipped-module")


def test_methods_of_containers_are_traced() -> None:
    """Results with names, as `scipy.optimize.OptimizeResult`: a dict whose items are attributes, too."""
    namespace: dict[str, Any] = {"__name__": "scipy.optimize._made"}
    exec("""
class Result(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error
    __setattr__ = dict.__setitem__

def helper(x):
    return x
""", namespace)
    made: Any = namespace["Result"]
    assert function_verdict(made.__getattr__)[0] is Verdict.TRACE
    assert function_verdict(namespace["helper"])[0] is Verdict.SKIP

    def call(x: torch.Tensor) -> tuple[torch.Tensor, Any, list[str]]:
        result = made(x=x * 2, steps=3)
        result.total = x.sum()
        return result.x + result.total, getattr(result, "missing", result.steps), list(result)

    assert_same_as_eager(call, torch.ones(3), breaks=0, skips=False)
