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


class Layer(torch.nn.Module):
    by = 3.0

    @tells_its_instance
    def shifted(self, x: torch.Tensor, times: float = 2.0) -> torch.Tensor:
        """Times, and then more."""
        return x * times

    @doubled
    @tells_its_instance
    def wrapped_twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    @classmethod
    @doubled
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + cls.by

    @staticmethod
    @doubled
    def of_nothing(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @property
    @doubled
    def twice(self) -> float:
        return self.by

    @doubled
    def breaks(self, x: torch.Tensor) -> torch.Tensor:
        fxjit.graph_break()
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.shifted(x) + self.shifted(x, times=3.0) + self.wrapped_twice(x)
        return y + self.of_class(x) + self.of_nothing(x) + self.twice


def test_wrapped_methods_are_in_the_graph_with_their_wrappers() -> None:
    assert_same_as_eager(Layer(), X, graphs=1, breaks=0)


def test_a_wrapped_method_that_is_called_through_its_class() -> None:
    layer = Layer()
    assert_same_as_eager(lambda x: Layer.shifted(layer, x) + 1, X)


def test_a_wrapped_method_tells_of_its_function() -> None:
    layer = Layer()

    def run(x: torch.Tensor) -> Any:
        method = layer.shifted
        return method(x), method.__name__, method.__doc__, method.__self__ is layer, method.__wrapped__.__qualname__

    assert_same_as_eager(run, X, graphs=1, breaks=0)


def test_a_wrapped_method_that_leaves_the_graph() -> None:
    layer = Layer()

    def run(x: torch.Tensor) -> Any:
        return x + 1, layer.wrapped_twice

    for fn in (run, fxjit.compile(run, backend="eager", fullgraph=True)):
        method = fn(X)[1]
        assert type(method) is type(layer.wrapped_twice) and method._self_instance is layer
        assert torch.equal(method(X), (X * 3 + 3) * 2)


def test_a_break_in_a_wrapped_method() -> None:
    layer = Layer()
    assert_same_as_eager(lambda x: layer.breaks(x) * 2, X, fullgraph=False)


def test_another_instance_and_another_wrapper_are_noticed() -> None:
    class Changing:
        def __init__(self, by: float) -> None:
            self.by = by

        @tells_its_instance
        def shifted(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    def run(x: torch.Tensor, changing: Any) -> Any:
        return changing.shifted(x)

    compiled = fxjit.compile(run, backend="eager", fullgraph=True)
    for by in (1.0, 2.0):
        assert torch.equal(compiled(X, Changing(by)), run(X, Changing(by)))
    Changing.shifted = doubled(Changing.__dict__["shifted"].__wrapped__)
    assert torch.equal(compiled(X, Changing(1.0)), run(X, Changing(1.0)))
