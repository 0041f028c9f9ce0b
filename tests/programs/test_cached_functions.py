"""`functools.cache` and `lru_cache`: what they hold and count, made inside and outside of traced code."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tests.differential import assert_same_as_eager

X = torch.ones(3)


@functools.lru_cache(maxsize=None)
def twice(n: Any) -> Any:
    return n * 2


def test_a_cache_made_inside_counts() -> None:
    def run(x: torch.Tensor) -> Any:
        @functools.lru_cache(maxsize=2)
        def scaled(a: float, k: float = 1) -> float:
            return a * k

        @functools.lru_cache(typed=True)
        def typed(a: object) -> object:
            return a

        seen = [scaled(1), scaled(2), scaled(1), scaled(3), scaled(2), scaled(1, k=2), scaled(1, 2), scaled(1.0, 2.0)]
        seen += [typed(1), typed(1.0), typed(True)]
        return seen, tuple(scaled.cache_info()), tuple(typed.cache_info()), scaled.cache_parameters(), x

    assert_same_as_eager(run, X)


def test_the_same_object_comes_out_again() -> None:
    def run(x: torch.Tensor) -> Any:
        calls = []

        @functools.cache
        def doubled(t: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return t * 2

        return doubled(x) is doubled(x), len(calls), tuple(doubled.cache_info())

    assert_same_as_eager(run, X)


def test_a_cache_goes_on_after_a_break() -> None:
    def run(x: torch.Tensor) -> Any:
        calls = []

        @functools.cache
        def scaled(k: int) -> torch.Tensor:
            calls.append(k)
            return x * k

        first = scaled(1)
        scaled(2)
        scaled(2)
        torch._dynamo.graph_break()
        return scaled(1) is first, scaled(3), calls, tuple(scaled.cache_info()), scaled.__wrapped__.__name__

    assert_same_as_eager(run, X, fullgraph=False)


def test_a_cache_is_cleared() -> None:
    def run(x: torch.Tensor) -> Any:
        @functools.cache
        def same(a: int) -> int:
            return a

        same(1)
        same.cache_clear()
        return same(1), same(1), tuple(same.cache_info()), x

    assert_same_as_eager(run, X)


def test_a_recursion_through_its_cache() -> None:
    def run(x: torch.Tensor) -> Any:
        @functools.cache
        def fib(n: int) -> int:
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        return fib(60) * 1.0 * x, tuple(fib.cache_info())

    assert_same_as_eager(run, X)


def test_what_has_no_hash() -> None:
    def run(x: torch.Tensor) -> Any:
        seen = []
        for argument in ([1], ({},), 2):
            try:
                seen.append(twice(argument))
            except TypeError as error:
                seen.append(str(error))
        return seen, functools.lru_cache(maxsize=0)(len)([1, 2]), x

    assert_same_as_eager(run, X)


def test_a_cache_from_outside_that_is_asked() -> None:
    def run(x: torch.Tensor) -> Any:
        twice.cache_clear()
        seen = twice(1), twice(1), twice(2)
        return seen, tuple(twice.cache_info()), twice.cache_parameters(), x

    assert_same_as_eager(run, X, fullgraph=False)
