"""Operators of a higher order that only call a function: `strict_mode`, `hints_wrapper`, `invoke_quant`."""

from __future__ import annotations

import pytest
import torch
from tests.differential import KERNELS, assert_same_as_eager
from torch._higher_order_ops import hints_wrapper
from torch._higher_order_ops._invoke_quant import InvokeQuant, invoke_quant_packed
from torch._higher_order_ops.strict_mode import strict_mode

import fxjit

X = torch.arange(6.0).reshape(2, 3)
SCALE = torch.tensor(3.0)

PROGRAMS = {
    "strict_mode": lambda x: strict_mode(lambda a, b: (a * SCALE, b + 1), (x, x.sin())),
    "strict_mode, a tensor": lambda x: strict_mode(lambda a: a * SCALE, (x,)),
    "hints_wrapper": lambda x: hints_wrapper(lambda a, n: a * n, (x, 2), {}, hints={"offload": True}),
    "invoke_quant": lambda x: invoke_quant_packed(lambda a, b: a * b + 1, x, x + 1, scheme="nf4"),
    "nested": lambda x: hints_wrapper(lambda a: hints_wrapper(torch.sin, (a + 1,), {}, {"b": 1}) * 2, (x,), {}, {"a": 1}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_function_is_part_of_the_graph(name):
    program = PROGRAMS[name]
    got = fxjit.compile(program, backend="eager", fullgraph=True)(X)
    want = {"strict_mode": (X * SCALE, X.sin() + 1), "strict_mode, a tensor": X * SCALE, "hints_wrapper": X * 2,
            "invoke_quant": X * (X + 1) + 1,
            "nested": (X + 1).sin() * 2}[name]
    assert type(got) is type(want)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


QUANTIZING = InvokeQuant(codegen_low_precision=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [
    lambda x: QUANTIZING(lambda a, b: (a @ b.t()).relu() * SCALE, x * 2, x) + 1,
    lambda x: InvokeQuant()(lambda a: (a.sin(), a * 2), x, scheme="nf4")[1] * x,
], ids=["given", "made"])
def test_invoke_quant_is_its_function(fn, backend):
    x = X.clone().requires_grad_()
    assert_same_as_eager(fn, x, backend=backend, rtol=KERNELS if backend == "native" else None)


def test_what_requires_grad_is_left_to_eager():
    """The operators have no derivative, and say so when one is requested."""
    def program(x):
        return hints_wrapper(lambda a: a * 2, (x,), {}, hints={"a": 1})

    x = X.clone().requires_grad_()
    errors = []
    for f in (program, fxjit.compile(program, backend="eager")):
        with pytest.raises(RuntimeError) as caught:
            f(x).sum().backward()
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    with pytest.raises(fxjit.errors.Unsupported, match="no derivative"):
        fxjit.compile(program, backend="eager", fullgraph=True)(x)
