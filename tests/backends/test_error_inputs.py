"""Inputs that torch's operators refuse (`error_inputs` of torch's operator database): the same exception, with what the program
did before it done and nothing behind it, however the graph ran."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import fxjit

OPERATORS = {f"{op.name}.{op.variant_test_name}": op for op in op_db if op.error_inputs_func is not None}
WAYS: dict[str, dict[str, Any]] = {"native": {}, "eager": {"dynamic": True}}


def inputs_of(op: Any) -> Any:
    """As `op.error_inputs("cpu")`, which looks up the stack at each."""
    return op.error_inputs_func(op, "cpu")


def outcome(fn: Callable[..., Any], op: Any, number: int) -> tuple[Any, ...]:
    """What the call raises for one of the inputs, made anew, and the state behind it."""
    torch.manual_seed(0)
    sample = list(inputs_of(op))[number].sample_input
    state = types.SimpleNamespace(before=0, after=0, written=torch.ones(4))
    raised = None
    try:
        fn(state, sample.input, sample.args, sample.kwargs)
    except Exception as error:  # noqa: BLE001 - it is what is compared
        raised = type(error), str(error).partition("\n")[0]
    return raised, state.before, state.after, state.written.tolist()


@pytest.mark.sweep(6)
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("name", OPERATORS)
def test_refused_inputs_raise_as_in_eager(name: str, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # each failed graph says so
    op = OPERATORS[name]
    try:
        count = len(list(inputs_of(op)))
    except Exception as error:  # noqa: BLE001 - a device or a library that is not here
        pytest.skip(str(error))

    def fn(state: Any, input: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state.before += 1
        state.written.mul_(0.5)
        result = op.op(input, *args, **kwargs)
        state.after += 1
        return result

    for number in range(count):
        expected = outcome(fn, op, number)
        fxjit.reset()
        assert outcome(fxjit.compile(fn, backend=backend, **WAYS[backend]), op, number) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("call", [torch.celu, torch.celu_, torch.nn.CELU(0.0)], ids=["celu", "celu_", "module"])
def test_celu_refuses_to_divide_by_zero(call, backend):
    def program(x):
        try:
            return call(x * 1, 0.0) if call in (torch.celu, torch.celu_) else call(x)
        except RuntimeError as error:
            return str(error), x + 1

    expected, found = program(torch.ones(3)), fxjit.compile(program, backend=backend)(torch.ones(3))
    assert expected[0] == found[0] and expected[1].tolist() == found[1].tolist()
