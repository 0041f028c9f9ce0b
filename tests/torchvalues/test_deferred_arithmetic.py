"""Arithmetic on numbers out of tensors that Python refuses of some, and tensors beside such numbers: without a break."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same, number_of_breaks, outcome
from torch import Tensor

import fxjit

pytestmark = pytest.mark.usefixtures("nothing_compiled")


#: Of a float and an integer out of tensors.
PARTIAL: dict[str, Callable[[Any, Any], Any]] = {
    "quotients": lambda n, k: (1 / n, 1 / k, k / n, n / k), "powers": lambda n, k: (n**2, n**3, n**0.5, k**2, k**0.5),
    "floors": lambda n, k: (n // 2, k // 3, 7 // k, 7.5 // n, k // -2), "cube": lambda n, k: (n**3, k**9),
    "remainders": lambda n, k: (n % 2, k % 3, 7 % k, n % -2, 7.5 % n),
    "decay": lambda n, k: (0.9**k, 1.0 - 0.999**k, 0.5**n), "pow": lambda n, k: (pow(n, 2), pow(k, 3)),
    "integers": lambda n, k: (int(n), math.floor(n), math.ceil(n), math.trunc(n), round(n), round(k), math.floor(k)),
    "integers of integers": lambda n, k: (int(n) + k, int(n) // 2, round(n) * 2, float(int(n))),
    "roots": lambda n, k: (math.sqrt(n), math.sqrt(k)), "logarithms": lambda n, k: (math.log(n), math.log2(k), math.log10(n)),
    "near one": lambda n, k: (math.log1p(n), math.expm1(n)), "exponential": lambda n, k: math.exp(n),
    "hyperbolic": lambda n, k: (math.sinh(n), math.cosh(n), math.tanh(n), math.asinh(n)),
    "angles": lambda n, k: (math.sin(n), math.cos(n), math.tan(n), math.atan(n), math.radians(n)),
    "errors": lambda n, k: (math.erf(n), math.erfc(n), math.fabs(n)),
    "NumPy": lambda n, k: (np.exp(n), np.sqrt(n), np.log(n), np.tanh(n), np.abs(n), np.float64(n)),
    "lists": lambda n, k: (np.mean([n, 1.0]), np.max((n, 2.0)), np.array([n, n]), np.asarray([1.0, n])),
    "classes": lambda n, k: (np.isnan(n), np.isinf(n), np.isfinite(n)),
}  # fmt: skip
FLOATS = (2.25, 2.5, 0.0, 1.5, -1.75, math.nan, 0.5, math.inf, -math.inf, 1e200, -1e300, 800.0, 2.0**62, -0.0, 2.25)


@pytest.mark.parametrize("name", PARTIAL)
def test_numbers_that_python_may_refuse(name: str) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return PARTIAL[name]((x * 1).sum().item(), (y * 1).sum().item()), x + 1

    def read(x: Tensor, y: Tensor) -> Any:
        return PARTIAL[name](float(x * 1), int(y * 1))

    def caught(x: Tensor, y: Tensor) -> Any:
        try:
            return program(x, y)
        except (ArithmeticError, ValueError) as error:
            return type(error), str(error)

    for fn in (program, read, caught):
        fxjit.reset()
        compiled = fxjit.compile(fn, backend="eager")
        for at, number in enumerate(FLOATS):
            args = torch.tensor([number], dtype=torch.float64), torch.tensor([(3, 2, 0, -2)[at % 4]])
            with np.errstate(all="ignore"):
                assert repr(outcome(compiled, args)) == repr(outcome(fn, args)), (fn.__name__, args)
            assert at or fn is caught or not number_of_breaks()


def test_an_integer_of_a_tensor_of_floats() -> None:
    def program(x: Tensor, gain: Tensor) -> Any:
        return int(x.sum()), int(x.mean().item()), gain.clone(), x * 2

    compiled = fxjit.compile(program, backend="native")
    for number in (3.7, -3.7, 0.2, 1e18, math.inf, math.nan, 5.5):
        args = torch.full((1, 1), number), torch.ones(1)
        assert_same(outcome(compiled, args), outcome(program, args))
        assert number > 1e18 or number != number or not number_of_breaks()


OPERANDS: dict[str, Callable[[Tensor, Any], Any]] = {
    "product": lambda x, n: x * n, "product to the right": lambda x, n: n * x, "sum": lambda x, n: (x + n, n + x),
    "difference": lambda x, n: (x - n, n - x), "quotient": lambda x, n: x / n, "in place": lambda x, n: _in_place(x, n),
    "of a view": lambda x, n: (x[:, 0] * n, x[0] * n), "of one number": lambda x, n: (x.sum() * n, x.sum() / n, n - x.sum()),
    "negated": lambda x, n: x * -n, "scaled and kept": lambda x, n: (x * n, n, n + 1, f"{n:.2f}"),
    "empty": lambda x, n: x[:0] * n, "quotient to the right": lambda x, n: (n / x, n / x.sum()),
    "computed": lambda x, n: (x * (n + 1), x - (n * 2 - 3), (5 - n) / x),
    "computed of both": lambda x, n: x * (n + n * 0.5) + n,
    "divided": lambda x, n: x * (n / 3 + 1), "greater": lambda x, n: x / max(n, type(n)(1)),
    "lesser": lambda x, n: (x * min(type(n)(2), n), x + min(n, n + 1, type(n)(3))),
    "of a rounded one": lambda x, n: x * int(n * 1),
}  # fmt: skip
#: With another result, or none, where a tensor is in the number's place: eager's, behind a break.
OTHERS: dict[str, Callable[[Tensor, Any], Any]] = {
    "power": lambda x, n: x.abs() ** n, "floor": lambda x, n: x // n,
    "remainder": lambda x, n: x % n, "matrix": lambda x, n: x @ n, "less": lambda x, n: x < n, "equal": lambda x, n: n == x,
    "method": lambda x, n: x.mul(n), "alpha": lambda x, n: x.add(x, alpha=n), "bytes": lambda x, n: x.byte() * n,
    "half": lambda x, n: x.half() * n, "complex": lambda x, n: x.to(torch.complex64) * n, "truths": lambda x, n: (x > 0) * n,
    "small integers": lambda x, n: x.to(torch.int32) + n, "remainder of it": lambda x, n: x * (n % 3),
    "and": lambda x, n: x.int() & n,
    "of a decision": lambda x, n: x * n if n == n else x, "too large": lambda x, n: x * (n * 10**17 + n * n),
}  # fmt: skip


def _in_place(x: Tensor, n: Any) -> Any:
    x = x.clone()
    y = x
    x *= n
    x += n
    x -= n * 1
    return x, y is x


DTYPES = [torch.float32, torch.float64, torch.int64]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("read", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*OPERANDS, *OTHERS])
def test_operands_of_tensors(name: str, dtype: torch.dtype, read: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return {**OPERANDS, **OTHERS}[name](x * 1, (y * 1).sum().item()), x + 1

    compiled = fxjit.compile(program, backend="eager")
    for number in (2.1, 3.3, 0.0, -1.7, math.nan, 1e300, 2.1):
        y = torch.tensor([number if read.is_floating_point or abs(number) < 1e9 else 4.0], dtype=torch.float64)
        args = (torch.arange(1, 7).reshape(2, 3).to(dtype) + (0.1 if dtype.is_floating_point else 0), y.to(read))
        assert repr(outcome(compiled, args)) == repr(outcome(program, args)), args
        in_graph = name in OPERANDS and name not in ("in place", "negated")
        assert number != 2.1 or not in_graph or not number_of_breaks() or (dtype is torch.int64 and read.is_floating_point)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_gradients_of_what_is_scaled(backend: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        loss = (x * w).square().mean()
        scale = loss.item()
        return loss / scale + (w * scale).sum() * scale, scale

    ends = []
    for fn in (program, fxjit.compile(program, backend=backend)):
        w = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
        for at in range(3):
            result, scale = fn(torch.tensor([1.0, 2.0, at + 1.0]), w)
            result.backward()
        ends.append((result.detach(), torch.tensor(scale), w.grad))
    torch.testing.assert_close(ends[1], ends[0])
    assert not number_of_breaks()


def test_a_mode_sees_numbers() -> None:
    from torch.overrides import TorchFunctionMode

    seen: list[type] = []

    class Sees(TorchFunctionMode):
        def __torch_function__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.extend(map(type, args))
            return fn(*args, **(kwargs or {}))

    def program(x: Tensor) -> Any:
        number = x.sum().item()
        with Sees():
            return x * number

    x = torch.ones(3)
    expected = program(x), list(seen)
    seen.clear()
    assert_same((fxjit.compile(program, backend="eager")(x), list(seen)), expected)


def test_a_list_that_grows_behind_its_mean() -> None:
    def program(x: Tensor) -> Any:
        losses = [x.sum().item(), x.max().item()]
        mean = np.mean(losses)
        losses.append(100.0)
        return mean, losses, x * 2

    assert_same(outcome(fxjit.compile(program, backend="eager"), (torch.ones(3),)), outcome(program, (torch.ones(3),)))
    assert not number_of_breaks()


def written_tensor(x: Tensor, k: Tensor) -> Any:
    number = x.sum().item()
    made = torch.tensor(number, dtype=torch.float64)
    made.add_(1)
    return number, made, x * 2


#: Tensors of numbers, without a break.
TENSORS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "of one": lambda x, k: (torch.tensor(x.sum().item()), torch.as_tensor(x.sum().item()), x * 2),
    "of integers": lambda x, k: (torch.tensor([[k.sum().item(), 2], [k.max().item(), 3]]), torch.LongTensor([k[0].item()])),
    "of truths": lambda x, k: (torch.tensor((x > 0).any().item()), torch.tensor([bool((x > 0).all()), True])),
    "of several": lambda x, k: torch.tensor([x.sum().item() for _ in range(3)]).mean() + x,
    "by class": lambda x, k: (torch.Tensor([x.sum().item(), 1.0]), torch.FloatTensor([x.sum().item()])),
    "written": written_tensor,
}  # fmt: skip
OTHER_TENSORS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "leaf": lambda x, k: torch.tensor(x.sum().item(), requires_grad=True),
    "half": lambda x, k: torch.tensor(x.sum().item(), dtype=torch.float16),
    "cut": lambda x, k: torch.tensor(x.sum().item(), dtype=torch.int64),
    "mixed": lambda x, k: torch.tensor([x.sum().item(), 1]),
    "rounded": lambda x, k: torch.tensor(k.sum().item(), dtype=torch.float32),
    "full": lambda x, k: torch.full((2,), x.sum().item()),
    "of both": lambda x, k: torch.tensor([k.sum().item(), x.sum().item()]),
    "of a sum": lambda x, k: torch.tensor(k[1].item() + 1),
    "ragged": lambda x, k: torch.tensor([[x.sum().item()], [1.0, 2.0]]),
    "of no integers": lambda x, k: torch.LongTensor([x.sum().item()]),
}
INPUTS = torch.tensor([0.1, 0.7]), torch.tensor([1e10, 0.3]), torch.full((2,), math.inf), torch.tensor([0.1, 0.7]).double()


@pytest.mark.parametrize("name", [*TENSORS, *OTHER_TENSORS])
def test_tensors_of_numbers(name: str) -> None:
    fn = {**TENSORS, **OTHER_TENSORS}[name]
    compiled = fxjit.compile(fn, backend="eager")
    for at, x in enumerate(INPUTS):
        args = x, torch.tensor([2**61 + 1, 5])
        assert_same(outcome(compiled, args), outcome(fn, args))
        assert at or name in OTHER_TENSORS or not number_of_breaks()
