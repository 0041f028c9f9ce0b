"""`agrees(program, *inputs)`: the program gives the same compiled as it does eagerly, in one graph, twice."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit


def outcome(program: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """What a call gives, or the exception it raises."""
    try:
        return program(*inputs)
    except Exception as error:  # noqa: BLE001 - an exception is an outcome
        return type(error), error.args


def assert_same(expected: Any, got: Any, where: str = "result") -> None:
    """Equal values of equal types, all the way down."""
    assert type(expected) is type(got), f"{where}: {type(expected)} against {type(got)} ({expected!r}, {got!r})"
    if expected is got:
        return
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(got), f"{where}: {expected!r} against {got!r}"
        for index, (left, right) in enumerate(zip(expected, got, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(expected, dict):
        assert list(expected) == list(got), f"{where}: keys {list(expected)} against {list(got)}"
        for key in expected:
            assert_same(expected[key], got[key], f"{where}[{key!r}]")
    elif hasattr(expected, "__dict__") and not isinstance(expected, (type, types.FunctionType)):
        assert_same(vars(expected), vars(got), where)
    else:
        assert expected == got, f"{where}: {expected!r} against {got!r}"


@pytest.fixture
def agrees() -> Callable[..., Any]:
    """See the module's docstring. `fullgraph=False` admits graph breaks."""

    def check(program: Callable[..., Any], *inputs: Any, fullgraph: bool = True) -> Any:
        fxjit.reset()
        compiled = fxjit.compile(program, backend="eager", fullgraph=fullgraph)
        result: Any = None
        for _ in range(2):
            for_eager, for_compiled = copy.deepcopy(inputs), copy.deepcopy(inputs)
            expected = outcome(program, for_eager)
            with fxjit.config.patch(compile_tensorless_frames=True):
                result = outcome(compiled, for_compiled)
            assert_same(expected, result)
            assert_same(for_eager, for_compiled, "inputs")
        return result

    return check
