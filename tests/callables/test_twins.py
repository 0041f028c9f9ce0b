"""Methods of classes of C whose package has them in Python as well (wrapt's wrappers of functions): those are traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.skips.functions import twin_of

wrapt = pytest.importorskip("wrapt")
X = torch.arange(4.0)


@pytest.fixture(autouse=True)
def _needs_the_twins() -> None:
    if twin_of(wrapt.FunctionWrapper.__call__) is None:
        pytest.skip("this wrapt has its wrappers either in C or in Python")


@wrapt.decorator
def doubled(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs) * 2


@doubled
def plus(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x + by


SWITCH = [True]


@wrapt.decorator(enabled=lambda: SWITCH[0])
def negated(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return -wrapped(*args, **kwargs)


@negated
def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


class Scale:
    by = 3.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


@wrapt.decorator
def tells_its_instance(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs) + instance.by


def test_a_wrapped_function_is_in_the_graph_with_its_wrapper() -> None:
    assert_same_as_eager(lambda x: plus(x) + plus(x, by=2.0), X, graphs=[5], breaks=0)


def test_a_wrapper_that_is_switched_off_later() -> None:
    def run(x: torch.Tensor) -> Any:
        return squared(x)

    compiled = fxjit.compile(run, backend="eager", fullgraph=True)
    try:
        for SWITCH[0] in (True, False, True):
            assert torch.equal(compiled(X), run(X))
    finally:
        SWITCH[0] = True


def test_a_bound_method_that_is_wrapped_has_its_instance() -> None:
    wrapped = tells_its_instance(Scale().scaled)
    assert_same_as_eager(lambda x: wrapped(x) - 1, X, breaks=0)


def test_a_proxy_that_is_called() -> None:
    proxy = wrapt.CallableObjectProxy(lambda x: x * 3)
    assert_same_as_eager(lambda x: proxy(x) + 1, X, graphs=[2], breaks=0)


def test_a_wrapper_that_raises() -> None:
    @wrapt.decorator
    def refuses(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        raise ValueError(f"{len(args)} given")

    @refuses
    def refused(x: torch.Tensor) -> torch.Tensor:
        return x

    def run(x: torch.Tensor) -> Any:
        try:
            return refused(x)
        except ValueError as error:
            return x + 1, str(error)

    assert_same_as_eager(run, X, breaks=0)


def test_wrong_arguments_are_refused_by_the_wrapped_function() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            return plus(x, 1.0, 2.0)
        except TypeError as error:
            return x + 1, str(error)

    assert_same_as_eager(run, X, fullgraph=False)
