"""The door of a backend whose own code reads private names of torch: where this torch lacks one, graphs run as captured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fxjit import torch_private
from fxjit.counters import counters

from .eager import eager

Backend = Callable[..., Any]
#: What an access of a missing name, its import, or a call with another signature raises.
LACKING = (AttributeError, ImportError, TypeError, torch_private.MissingName)


def needs(feature: str) -> Callable[[Backend], Backend]:
    """A decorator: the backend, or torch's operators one by one where this torch lacks a name of `feature`.

    Names in modules that are not imported yet are looked at after a failure only: nothing is imported to ask."""

    def decorate(backend: Backend) -> Backend:
        @functools.wraps(backend)
        def compile(gm: Any, example_inputs: Any, **options: Any) -> Callable[..., Any]:
            if torch_private.is_on(feature):
                try:
                    compiled = backend(gm, example_inputs, **options)
                except LACKING:
                    if torch_private.is_on(feature, thoroughly=True):
                        raise
                else:
                    if (results := _results.get()) is not None:
                        results.append((compiled, backend.__name__))
                    return compiled  # type: ignore[no-any-return]  # a backend is any callable
            counters["run_as_captured"]["torch-lacks-name"] += 1
            return eager(gm, example_inputs)

        return compile

    return decorate


_results: ContextVar[list[tuple[Callable[..., Any], str]] | None] = ContextVar("results", default=None)


@contextmanager
def noted_results() -> Iterator[list[tuple[Callable[..., Any], str]]]:
    """What such backends return inside, each with the backend's name: somebody's backend may give it on."""
    results: list[tuple[Callable[..., Any], str]] = []
    token = _results.set(results)
    try:
        yield results
    finally:
        _results.reset(token)
