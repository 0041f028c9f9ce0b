"""`python tools/minimax.py`: the minimax polynomials of kernels' elementary functions; `--write` makes codegen/polynomials.py.

Each is fitted to the least largest error of its function's result (Lawson's reweighted least squares on Chebyshev points, of
values that mpmath calculates to 40 digits). Coefficients are rounded to their type one after the other, the weightiest first,
and those left fitted again, so that rounding costs next to nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

MODULE = Path(__file__).parent.parent / "src" / "fxjit" / "backends" / "native" / "codegen" / "polynomials.py"
POINTS, ROUNDS = 300, 40
Numbers = np.ndarray[Any, np.dtype[np.longdouble]]


@dataclass(frozen=True)
class Fit:
    """A polynomial with `count` coefficients for `function` from `low` to `high`. `scale(x)`: what an error of it at x is
    multiplied by to be an error of the result, in units of the result."""

    function: Callable[[Any], Any]
    low: float
    high: float
    count: int
    scale: Callable[[Any], Any]
    double: bool = False


def exp_rest(r: Any) -> Any:
    """What the cube of r is multiplied by in exp(r) = 1 + r + r^2/2 + r^3 * q(r)."""
    return (mp.exp(r) - 1 - r - r * r / 2) / r**3 if abs(r) > 1e-6 else mp.mpf(1) / 6 + r / 24


def log_rest(f: Any) -> Any:
    """The same of log(1 + f) = f - f^2/2 + f^3 * q(f)."""
    return (mp.log1p(f) - f + f * f / 2) / f**3 if abs(f) > 1e-6 else mp.mpf(1) / 3 - f / 4


def atanh_rest(z: Any) -> Any:
    """2 * atanh(s) = 2 * s + s^3 * q(s^2)."""
    s = mp.sqrt(z)
    return 2 * (mp.atanh(s) - s) / s**3 if s > 1e-6 else mp.mpf(2) / 3 + 2 * z / 5


def atanh_ratio_to_base_2(z: Any) -> Any:
    """2 * atanh(s) / ln(2) = s * q(s^2)."""
    s = mp.sqrt(z)
    return 2 * mp.atanh(s) / (s * mp.ln2) if s > 1e-6 else (2 + 2 * z / 3) / mp.ln2


def exp2_ratio(r: Any) -> Any:
    """2^r = 1 + r * q(r)."""
    return mp.expm1(r * mp.ln2) / r if abs(r) > 1e-9 else mp.ln2 + r * mp.ln2**2 / 2


def mills_ratio(u: Any) -> Any:
    """(1 - u) / 4 * q(u) is the normal distribution's tail above a, over exp(-a^2/2); u = a / (a + 4)."""
    a = 4 * u / (1 - u)
    return mp.erfc(a / mp.sqrt(2)) * mp.exp(a * a / 2) / (1 - u) * 2


def centre_ratio(s: Any) -> Any:
    """The normal distribution at a is 1/2 + a * q(a^2)."""
    a = mp.sqrt(s)
    return mp.erf(a / mp.sqrt(2)) / (2 * a) if a > 1e-9 else 1 / mp.sqrt(2 * mp.pi)


def sine_rest(s: Any) -> Any:
    """sin(r) = r - r^3/6 + r^5 * q(r^2), with a sixth rounded to float."""
    r = mp.sqrt(s)
    return (mp.sin(r) - r + r**3 * mp.mpf(float(np.float32(1 / 6)))) / r**5 if r > 1e-4 else mp.mpf(1) / 120


def cosine_rest(s: Any) -> Any:
    """cos(r) = 1 - r^2/2 + r^4 * q(r^2)."""
    return (mp.cos(mp.sqrt(s)) - 1 + s / 2) / s**2 if s > 1e-8 else mp.mpf(1) / 24


def asin_rest(z: Any) -> Any:
    """asin(s) = s + s^3 * q(s^2)."""
    s = mp.sqrt(z)
    return (mp.asin(s) - s) / s**3 if s > 1e-6 else mp.mpf(1) / 6 + 3 * z / 40


def one(x: Any) -> Any:
    return mp.mpf(1)


HALF_LN2 = 0.34658
#: An eighth of a turn, and what reducing 2^17 to it may be beside.
EIGHTH = 0.794
FITS = {
    "EXP": Fit(exp_rest, -HALF_LN2, HALF_LN2, 5, lambda r: r**3 / mp.exp(r)),
    "LOG": Fit(log_rest, 0.5**0.5 - 1, 2**0.5 - 1, 9, lambda f: f**2),
    "ATANH": Fit(atanh_rest, 0, 1 / 9, 5, lambda z: z),
    "MILLS": Fit(mills_ratio, 0, 0.8, 11, lambda u: 1 / mills_ratio(u)),
    "CENTRE": Fit(centre_ratio, 0, 1, 7, lambda s: mp.sqrt(s) / (mp.erfc(mp.sqrt(s / 2)) / 2)),
    "LOG2_WIDE": Fit(atanh_ratio_to_base_2, 0, 0.029438, 5, one, double=True),
    "SINE": Fit(sine_rest, 0, EIGHTH**2, 3, lambda s: s**2 * mp.sqrt(s) / mp.sin(mp.sqrt(s))),
    "COSINE": Fit(cosine_rest, 0, EIGHTH**2, 3, lambda s: s**2 / mp.cos(mp.sqrt(s))),
    "ASIN": Fit(asin_rest, 0, 0.25, 5, lambda z: z * mp.sqrt(z) / mp.asin(mp.sqrt(z))),
    "EXP2": Fit(exp2_ratio, -0.5, 0.5, 5, lambda r: r / 2**r),
    "EXP2_WIDE": Fit(exp2_ratio, -0.5, 0.5, 6, lambda r: r / 2**r, double=True),
}


def rounded(x: Any, double: bool) -> Any:
    return np.longdouble(np.float64(x)) if double else np.longdouble(np.float32(x))


def solve(x: Numbers, y: Numbers, weights: Numbers, powers: list[int]) -> list[Any]:
    """Weighted least squares, by QR of what mpmath need not calculate: longdouble has no solver, two steps of double do."""
    largest = np.max(np.abs(x))
    a = np.stack([(x / largest) ** power for power in powers], 1) * weights[:, None]
    q, r = np.linalg.qr(a.astype(np.float64))
    rest, total = y * weights, np.zeros(len(powers), np.longdouble)
    for _ in range(4):
        step = np.linalg.solve(r, q.T @ rest.astype(np.float64))
        total = total + step
        rest = y * weights - a @ total
    return [c / largest**power for c, power in zip(total, powers, strict=True)]


def coefficients(fit: Fit) -> tuple[list[float], float]:
    """(coefficients from the constant up, the largest error of the result as a power of two)"""
    angles = (np.arange(POINTS) + 0.5) * np.pi / POINTS
    x = (fit.low + fit.high) / 2 + (fit.high - fit.low) / 2 * np.cos(angles).astype(np.longdouble)
    with mp.workdps(40):
        exact = [mp.mpf(float(each)) for each in x]
        x = np.array([float(each) for each in exact], np.longdouble)
        y = np.array([np.longdouble(mp.nstr(fit.function(each), 25)) for each in exact])
        scale = np.abs(np.array([np.longdouble(mp.nstr(mp.mpf(fit.scale(each)), 25)) for each in exact]))
    importance = np.ones(POINTS, np.longdouble)
    fixed: dict[int, Any] = {}
    while len(fixed) < fit.count:
        free = [power for power in range(fit.count) if power not in fixed]
        rest = y - sum(c * x**power for power, c in fixed.items())
        for _ in range(ROUNDS):
            found = solve(x, rest, scale * np.sqrt(importance), free)
            away = np.abs(rest - sum(c * x**power for power, c in zip(free, found, strict=True))) * scale
            importance = importance * (away / away.max() + 0.01)
            importance /= importance.sum()
        fixed[free[0]] = rounded(found[0], fit.double)
        importance = np.ones(POINTS, np.longdouble) / POINTS + importance
    error = np.max(np.abs(y - sum(c * x**power for power, c in fixed.items())) * scale)
    return [float(fixed[power]) for power in range(fit.count)], float(np.log2(error))


def literal(x: float, double: bool) -> str:
    """A hexadecimal number without zeros at its end."""
    mantissa, exponent = x.hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}" + ("" if double else "f")


HEAD = '''"""Minimax polynomials of elementary functions, from the constant up; made by tools/minimax.py, which says of what.

Beside each: the largest error that it makes in the function's result, relative to it.
"""

from __future__ import annotations

from typing import Final

'''


def module() -> str:
    lines = []
    for name, fit in FITS.items():
        found, error = coefficients(fit)
        lines.append(f"#: 2^{error:.1f}, from {fit.low:.6g} to {fit.high:.6g}\n{name}: Final = (")
        lines += [f'    "{literal(c, fit.double)}",' for c in found]
        lines.append(")")
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="make codegen/polynomials.py")
    text = module()
    if parser.parse_args().write:
        MODULE.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
