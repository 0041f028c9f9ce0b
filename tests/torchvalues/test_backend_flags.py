"""Flags of torch.backends.cudnn and how tensors are printed, set in the function: steps of the graph, in its order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fxjit

cudnn = torch.backends.cudnn
BACKENDS = ("eager", "aot_eager", "native")
#: Of torch.backends, which is another module by now.
_GLOBALS = torch.backends.flags_frozen.__globals__
_MAY_BE_SET = "__allow_nonbracketed_mutation_flag"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flags can be set, also where the modules of torch's own tests have frozen them."""
    monkeypatch.setitem(_GLOBALS, _MAY_BE_SET, True)
    before, options = (cudnn.benchmark, cudnn.deterministic), dict(vars(torch._tensor_str.PRINT_OPTS))
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
        vars(torch._tensor_str.PRINT_OPTS).update(options)


def set_first(x):
    cudnn.benchmark = True
    cudnn.deterministic = False
    return x * 2


def read_afterwards(x):
    y = x * 2
    cudnn.benchmark = not cudnn.benchmark
    cudnn.deterministic = True
    return y + 1, cudnn.benchmark, cudnn.deterministic


def set_between(x):
    y = x.sin()
    cudnn.deterministic = True
    z = y.cos()
    cudnn.deterministic = False
    return y, z


def printed_otherwise(x):
    torch.set_printoptions(precision=2, sci_mode=False)
    return x * 2


def by_profile(x):
    torch.set_printoptions(profile="short")
    return x * 2


def in_a_block(x):
    with cudnn.flags(enabled=False, deterministic=True):
        y = x * 2
    with cudnn.flags(benchmark=True):
        return y + 1


def set_to_another_thing(x):
    cudnn.benchmark = "yes"
    return x * 2


def with_an_unknown_option(x):
    torch.set_printoptions(mine=2)
    return x * 2


IN_GRAPH = [set_first, read_afterwards, set_between, printed_otherwise, by_profile, in_a_block]


def state() -> tuple[Any, ...]:
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, repr(torch.tensor([1.23456, 1e-7]))


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> Any:
    """What a call comes to, from the same flags on, and the flags behind it."""
    cudnn.benchmark, cudnn.deterministic = False, False
    torch.set_printoptions(profile="default")
    try:
        result = fn(x)
    except Exception as error:  # noqa: BLE001 - what eager raises
        return type(error), str(error), state()
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in
            (result if isinstance(result, tuple) else (result,))], state()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [*IN_GRAPH, set_to_another_thing, with_an_unknown_option], ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(2):
        x = torch.zeros(3)
        assert outcome(compiled, x) == outcome(fn, x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="blocks of flags choose operators of cuDNN")
@pytest.mark.parametrize("fn", IN_GRAPH, ids=lambda fn: fn.__name__)
def test_no_break(fn: Callable[..., Any]) -> None:
    """One graph, of which a backend is given the parts on both sides of a step."""
    fxjit.reset()
    fxjit.counters.clear()
    fxjit.compile(fn, backend="eager", fullgraph=True)(torch.zeros(3))
    assert fxjit.counters["stats"]["unique_graphs"] == 1 and not fxjit.counters["graph_break"]


def test_flags_at_a_break_behind_them() -> None:
    def fn(x):
        y = x * 2
        cudnn.benchmark = True
        fxjit.graph_break()
        return y + 1, cudnn.benchmark

    fxjit.reset()
    x = torch.zeros(3)
    assert outcome(fxjit.compile(fn, backend="eager"), x) == outcome(fn, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_handlers_see_what_is_raised_behind_a_flag(backend: str) -> None:
    """The flags are as before where the graph raises, and the program starts over."""
    def fn(x, at):
        before = cudnn.benchmark
        cudnn.benchmark = not before
        try:
            return x[at] * 2, cudnn.benchmark
        except IndexError:
            return x - 1, cudnn.benchmark

    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for at in (1, 7, 2):
        x, index = torch.zeros(3), torch.tensor([at])
        assert outcome(functools.partial(compiled, at=index), x) == outcome(functools.partial(fn, at=index), x)


def test_what_is_set_from_outside_later() -> None:
    """A flag that is read, and set again outside."""
    def fn(x):
        before = cudnn.benchmark
        cudnn.benchmark = True
        return x + 1, before, cudnn.benchmark

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for value in (False, True, False):
        cudnn.benchmark = value
        assert compiled(torch.zeros(2))[1:] == (value, True) and cudnn.benchmark


@pytest.mark.parametrize("frozen_first", [True, False])
def test_flags_that_are_frozen_are_refused_as_in_eager(monkeypatch: pytest.MonkeyPatch, frozen_first: bool) -> None:
    fxjit.reset()
    compiled = fxjit.compile(set_first, backend="eager")
    if not frozen_first:
        compiled(torch.ones(3))
    monkeypatch.setitem(_GLOBALS, _MAY_BE_SET, False)
    for fn in (set_first, compiled):
        with pytest.raises(RuntimeError, match="not allowed to set torch.backends.cudnn flags"):
            fn(torch.ones(3))
    monkeypatch.setitem(_GLOBALS, _MAY_BE_SET, True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
