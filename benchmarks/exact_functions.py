"""Elementwise functions of ATen beside their values in 80-bit floating point, for `benchmarks.accuracy`.

Each row has the call that is measured, on tensors of any floating type, and the same function of NumPy arrays of
`numpy.longdouble`, written so that nothing cancels: 11 bits more than float64 has. What NumPy lacks comes from mpmath.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import torch
import torch.nn.functional as F

Wide = np.ndarray[Any, np.dtype[np.longdouble]]
Call = Callable[..., torch.Tensor]
L = np.longdouble
aten = torch.ops.aten
#: The most that is computed by mpmath of one sample, element by element; the rest is not measured there.
PI, LN2 = L("3.14159265358979323846264338327950288"), L("0.693147180559945309417232121458176568")


def by_mpmath(function: Callable[[Any], Any]) -> Callable[[Wide], Wide]:
    """A function of mpmath's, element by element, at 30 digits."""

    def one(x: Any) -> Any:
        if not np.isfinite(x):
            return L("nan")
        mantissa, exponent = np.frexp(x)
        high = int(np.ldexp(mantissa, 64))
        with mpmath.workdps(30):
            value = function(mpmath.ldexp(mpmath.mpf(high), int(exponent) - 64))
            return L(mpmath.nstr(value, 24, strip_zeros=False)) if mpmath.isfinite(value) else L("inf")

    mapped = np.vectorize(one, otypes=[np.longdouble])
    return lambda x: mapped(x) if x.size else x


# Of erf nothing is left to tell beyond 200, and mpmath takes long for more; lgamma is measured above -50, and off its poles.
erf_exact = by_mpmath(lambda x: mpmath.erf(max(-200, min(200, x))))
erfc_exact = by_mpmath(lambda x: mpmath.erfc(max(-200, min(200, x))))
lgamma_exact = by_mpmath(lambda x: mpmath.loggamma(x).real if x > -50 and not (x <= 0 and x == int(x)) else mpmath.inf)


def by_double(function: Call, exact: Callable[[Wide], Wide]) -> Callable[[Wide], Wide]:
    """float64's own where that is exact enough, which it is for samples of the smaller types."""

    def value(x: Wide) -> Wide:
        small = x.astype(np.float32).astype(L) == x
        if np.all(small | ~np.isfinite(x)):
            return function(torch.from_numpy(x.astype(np.float64))).numpy().astype(L)
        return exact(x)

    return value


erf, erfc, lgamma = by_double(torch.erf, erf_exact), by_double(torch.erfc, erfc_exact), by_double(torch.lgamma, lgamma_exact)


def normal_cdf(x: Wide) -> Wide:
    return erfc_exact(-x / np.sqrt(L(2))) / 2


def sigmoid(x: Wide) -> Wide:
    return 1 / (1 + np.exp(-x))


def softplus(x: Wide) -> Wide:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, L(20)))))


def gelu_tanh_inner(x: Wide) -> Wide:
    return np.sqrt(2 / PI) * (x + L("0.044715") * x**3)


def gelu_tanh(x: Wide) -> Wide:
    """x * (1 + tanh(u)) / 2, which is x times the logistic function of 2u."""
    return x * sigmoid(2 * gelu_tanh_inner(x))


def gelu_tanh_derivative(x: Wide) -> Wide:
    u = gelu_tanh_inner(x)
    slope = np.sqrt(2 / PI) * (1 + 3 * L("0.044715") * x * x)
    return sigmoid(2 * u) + x / 2 * slope / np.cosh(u) ** 2


def gelu_derivative(x: Wide) -> Wide:
    return normal_cdf(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * PI)


def remainder(a: Wide, b: Wide) -> Wide:
    r = np.fmod(a, b)
    return np.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


def logaddexp(a: Wide, b: Wide) -> Wide:
    return np.maximum(a, b) + np.log1p(np.exp(-np.abs(a - b)))


def logaddexp2(a: Wide, b: Wide) -> Wide:
    return np.maximum(a, b) + np.log1p(np.exp2(-np.abs(a - b))) / LN2


def silu_derivative(x: Wide) -> Wide:
    return sigmoid(x) * (1 + x * sigmoid(-x))


@dataclass(frozen=True)
class Function:
    """One function: `call` on tensors, `exact` on arrays. `where`: samples from the intervals of INTERVALS with this name,
    beside those from the whole range; `slow`: computed by mpmath, so that samples are few."""

    name: str
    call: Call
    exact: Callable[..., Wide]
    arity: int = 1
    slow: bool = False


def rows() -> list[Function]:
    """All of them, one a lowering that rounds."""
    return [*unary_rows(), *activation_rows(), *derivative_rows(), *binary_rows()]


def unary_rows() -> list[Function]:
    plain = {
        "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
        "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
        "atanh": np.arctanh, "exp2": np.exp2, "expm1": np.expm1, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
        "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "square": lambda x: x * x,
        "sigmoid": sigmoid, "deg2rad": lambda x: x * (PI / 180), "rad2deg": lambda x: x * (180 / PI), "logit": None,
        "erf": erf, "erfc": erfc, "lgamma": lgamma,
    }  # fmt: skip
    plain["logit"] = lambda x: np.log(x) - np.log1p(-x)
    slow = ("erf", "erfc", "lgamma")
    return [Function(name, getattr(torch, name), exact, slow=name in slow) for name, exact in plain.items()]


def activation_rows() -> list[Function]:
    scale, alpha = L("1.0507009873554804934193349852946"), L("1.6732632423543772848170429916717")
    return [
        Function("gelu", F.gelu, lambda x: x * normal_cdf(x), slow=True),
        Function("gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), gelu_tanh),
        Function("silu", F.silu, lambda x: x * sigmoid(x)),
        Function("mish", F.mish, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        Function("softplus", F.softplus, softplus),
        Function("logsigmoid", F.logsigmoid, lambda x: np.minimum(x, L(0)) - np.log1p(np.exp(-np.abs(x)))),
        Function("elu", F.elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, L(0))))),
        Function("celu", lambda x: F.celu(x, 1.5), lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, L(0)) / 1.5) * L(1.5))),
        Function("selu", F.selu, lambda x: scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, L(0))))),
        Function("hardswish", F.hardswish, lambda x: x * np.clip(x + 3, L(0), L(6)) / 6),
        Function("hardsigmoid", F.hardsigmoid, lambda x: np.clip(x + 3, L(0), L(6)) / 6),
    ]


def derivative_rows() -> list[Function]:
    backward = lambda name, *more: lambda g, x: getattr(aten, name)(g, x, *more)  # noqa: E731  # one a row
    return [
        Function("gelu_backward", backward("gelu_backward"), lambda g, x: g * gelu_derivative(x), 2, slow=True),
        Function("gelu_backward, tanh", lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
                 lambda g, x: g * gelu_tanh_derivative(x), 2),
        Function("silu_backward", backward("silu_backward"), lambda g, x: g * silu_derivative(x), 2),
        Function("sigmoid_backward", backward("sigmoid_backward"), lambda g, y: g * (1 - y) * y, 2),
        Function("tanh_backward", backward("tanh_backward"), lambda g, y: g * (1 - y) * (1 + y), 2),
        Function("elu_backward", lambda g, x: aten.elu_backward(g, 1.0, 1.0, 1.0, False, x),
                 lambda g, x: np.where(x > 0, g, g * np.exp(np.minimum(x, L(0)))), 2),
        Function("softplus_backward", lambda g, x: aten.softplus_backward(g, x, 1, 20),
                 lambda g, x: np.where(x > 20, g, g * sigmoid(x)), 2),
        Function("hardswish_backward", backward("hardswish_backward"),
                 lambda g, x: np.where(x <= -3, L(0), np.where(x >= 3, g, g * (x / 3 + L(0.5)))), 2),
    ]  # fmt: skip


def binary_rows() -> list[Function]:
    return [
        Function("div", torch.div, lambda a, b: a / b, 2),
        Function("pow", torch.pow, np.power, 2),
        Function("pow, 2.5", lambda a: a**2.5, lambda a: np.power(a, L(2.5))),
        Function("pow, 3", lambda a: a**3, lambda a: a * a * a),
        Function("pow, -2", lambda a: a**-2, lambda a: 1 / (a * a)),
        Function("atan2", torch.atan2, np.arctan2, 2),
        Function("hypot", torch.hypot, np.hypot, 2),
        Function("fmod", torch.fmod, np.fmod, 2),
        Function("remainder", torch.remainder, remainder, 2),
        Function("logaddexp", torch.logaddexp, logaddexp, 2),
        Function("logaddexp2", torch.logaddexp2, logaddexp2, 2),
        Function("xlogy", torch.xlogy, lambda a, b: np.where(a == 0, L(0), a * np.log(b)), 2),
        Function("lerp", lambda a, b: torch.lerp(a, b, 0.25), lambda a, b: a + (b - a) / 4, 2),
        Function("addcmul", lambda a, b: torch.addcmul(a, a, b), lambda a, b: a + a * b, 2),
        Function("addcdiv", lambda a, b: torch.addcdiv(a, a, b), lambda a, b: a + a / b, 2),
    ]
