"""Bounds of random numbers: between which two every number lies that a step may give, whatever the generator draws.

The trace may rely on them without knowing the number: `random.randint(0, 4) + 3` is no more than 7, so that eight rows do not
end there, and `random.random() < 1.0` is true. They are found by making the calls on both ends: that is exact for what grows or
falls with each of its operands, also where floats are rounded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

#: The least and the greatest, of one type.
Bounds = tuple[int, int] | tuple[float, float]

#: `random()` is a multiple of this, and less than one.
_STEP: Final = 2.0 ** -53
_UNIT: Final = (0.0, 1.0 - _STEP)
_MOST_BITS: Final = 62


def between(numbers: Sequence[Any]) -> Bounds | None:
    """The bounds of numbers of one type, each of which it may be."""
    kinds = set(map(type, numbers))
    if kinds not in ({int}, {float}) or not all(map(math.isfinite, numbers)):
        return None
    return min(numbers), max(numbers)


def of_method(name: str, given: Sequence[Bounds | None]) -> Bounds | None:
    """Those of what the method `name` of a generator gives for arguments within `given`."""
    if name == "random":
        return _UNIT
    known = [each for each in given if each is not None]
    if len(known) < len(given):
        return None
    if name == "uniform" and len(known) == 2 and all(low == high for low, high in known):
        return _by_ends(lambda low, high, part: float(low + (high - low) * part), [*known, _UNIT])
    if any(type(end) is not int for each in known for end in each):
        return None
    if name == "getrandbits" and len(known) == 1 and 0 < known[0][1] <= _MOST_BITS:
        return 0, (1 << int(known[0][1])) - 1
    if name == "randint" and len(known) == 2:
        return between((known[0][0], known[1][1]))
    if name == "randrange" and known and (len(known) < 3 or known[2][0] > 0):
        first, end = (0, known[0][1]) if len(known) == 1 else (known[0][0], known[1][1])
        return between((first, end - 1))
    return None


def of_operator(op: str, fn: Callable[..., Any], left: Bounds | None, right: Bounds | None) -> Bounds | None:
    """Those of `left op right`."""
    if left is None or right is None:
        return None
    if op == "%":
        return (0, right[0] - 1) if right[0] == right[1] > 0 and type(left[0]) is type(right[0]) is int else None
    if op not in ("+", "-", "*") and not (op in ("/", "//") and right[0] > 0):
        return None
    return _by_ends(fn, [left, right])


#: Operators of one number that grow with it; `neg` falls.
_MONOTONOUS: Final = frozenset({"neg", "pos", "int", "float", "index", "trunc", "floor", "ceil", "round", "sqrt"})


def of_function(op: str, fn: Callable[..., Any], given: Bounds | None) -> Bounds | None:
    """Those of `op` of a number."""
    if given is None or (op == "sqrt" and given[0] < 0):
        return None
    if op == "abs":
        ends = between((abs(given[0]), abs(given[1])))
        return between((type(given[0])(0), *ends)) if ends is not None and given[0] < 0 < given[1] else ends
    return _by_ends(fn, [given]) if op in _MONOTONOUS else None


def of_extreme(fn: Callable[..., Any], given: Sequence[Bounds | None]) -> Bounds | None:
    """Those of the least or the greatest of numbers of one type, which is `fn` of them."""
    known = [each for each in given if each is not None]
    if len(known) < len(given):
        return None
    return between((fn(each[0] for each in known), fn(each[1] for each in known)))


def comparison(op: str, left: Bounds | None, right: Bounds | None) -> bool | None:
    """`left op right`, where it is the same for all numbers within the bounds; else None."""
    if left is None or right is None:
        return None
    if op in (">", ">="):
        return comparison("<" if op == ">" else "<=", right, left)
    if op == "<":
        return True if left[1] < right[0] else False if left[0] >= right[1] else None
    if op == "<=":
        return True if left[1] <= right[0] else False if left[0] > right[1] else None
    apart = left[1] < right[0] or right[1] < left[0]
    return op == "!=" if apart else None


def _by_ends(fn: Callable[..., Any], given: Sequence[Bounds]) -> Bounds | None:
    try:
        return between([fn(*ends) for ends in itertools.product(*given)])
    except ArithmeticError:
        return None
