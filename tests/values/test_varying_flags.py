"""Booleans and numbers that vary from call to call, where a manager or an operator looks at them: as with plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


def within(manager: Callable[[bool], Any]) -> Callable[[torch.Tensor, int], Any]:
    def run(x: torch.Tensor, n: int) -> Any:
        with manager(n % 2 == 0):
            y = x * 2
        return y, y.requires_grad, y.is_inference()

    return run


def decorated(x: torch.Tensor, n: int) -> Any:
    @torch.inference_mode(n % 2 == 0)
    def body() -> torch.Tensor:
        return x * n

    return body(), body().is_inference()


def given_no_bool(x: torch.Tensor, n: int) -> Any:
    with torch.inference_mode(n):  # a decorator, of what is no function
        return x * 2


PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "inference_mode": within(lambda flag: torch.inference_mode(flag)),
    "inference_mode by name": within(lambda flag: torch.inference_mode(mode=flag)),
    "inference_mode around a function": decorated,
    "inference_mode of a number": given_no_bool,
    "set_grad_enabled": within(lambda flag: torch.set_grad_enabled(flag)),
    "autocast": within(lambda flag: torch.autocast("cpu", torch.bfloat16, flag)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_managers_of_a_flag_that_varies(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = fxjit.compile(program, backend="eager", dynamic=dynamic)
    for n in (2, 3, 4, 5, 6, 2):
        x = torch.randn(2, 2, requires_grad=True)
        assert told(compiled, x, n) == told(program, x, n)


def told(fn: Callable[..., Any], x: torch.Tensor, n: int) -> Any:
    try:
        result, *facts = fn(x, n)
    except TypeError as error:
        return str(error)
    return result.tolist(), facts


REFUSED: dict[str, Callable[[torch.Tensor, bool], torch.Tensor]] = {
    "x - flag": lambda x, flag: x - flag,
    "flag - x": lambda x, flag: flag - x,
    "sub_": lambda x, flag: x.clone().sub_(flag),
    "alpha": lambda x, flag: torch.sub(x, x, alpha=flag),
    "a constant": lambda x, flag: x - True,
    "masks": lambda x, flag: (x > 0) - (x > 1),
    "a mask and a number": lambda x, flag: (x > 0) - 1,
    "a mask's negative": lambda x, flag: -(x > 0),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_operator_takes_of_booleans(name: str, backend: str) -> None:
    assert_same_as_eager(REFUSED[name], torch.ones(3), True, backend=backend, fullgraph=False)
