"""What a special method gives is checked as Python checks it, and what no operand has is a TypeError."""

from __future__ import annotations

import collections
import decimal
import fractions
import itertools
import math
import operator

import pytest
import torch
from tests.differential import assert_same

import fxjit


class Gives:
    """Each of its special methods gives the same."""

    def __init__(self, given):
        self.given = given

    def _give(self, *args):
        return self.given

    __float__ = __complex__ = __int__ = __hash__ = __iter__ = __bool__ = __len__ = __index__ = __contains__ = __abs__ = _give
    __round__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __bytes__ = __reversed__ = __next__ = _give


GIVEN = [1, 2.5, "a", None, True, -1, 2**70, 1j, [1]]
READERS = {
    "float": float, "complex": complex, "int": int, "hash": hash, "iter": lambda o: next(iter(o)), "bool": bool, "len": len,
    "index": operator.index, "contains": lambda o: 1 in o, "round": round, "trunc": math.trunc, "floor": math.floor,
    "ceil": math.ceil, "abs": abs, "divmod": lambda o: divmod(o, 1), "sqrt": math.sqrt, "gcd": lambda o: math.gcd(o, 4),
    "subscript": lambda o: [1, 2, 3][o], "slice": lambda o: (1, 2, 3)[:o], "range": lambda o: list(range(0, 3, o)),
    "indices": lambda o: slice(o).indices(3), "hex": hex, "zip": lambda o: list(zip(o)),
    "list": list, "unpacked": lambda o: [*o], "bytes": bytes, "repeat": lambda o: itertools.repeat(1, o).__length_hint__(),
    "islice": lambda o: list(itertools.islice([1, 2], o)), "bound": lambda o: collections.deque([1], o).maxlen,
    "times": lambda o: len([0] * o) if o.given != 2**70 else None, "next": next,
}


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("reader", READERS)
def test_what_a_special_method_gives_is_checked(reader: str):
    for given in GIVEN:
        fxjit.reset()

        def fn(o, x):
            return READERS[reader](o), x + 1

        assert_same(outcome(fxjit.compile(fn, backend="eager"), Gives(given), torch.ones(2)),
                    outcome(fn, Gives(given), torch.ones(2)), f"{given!r}")


class Divides:
    def __floordiv__(self, other):
        return 1

    __mod__ = __rfloordiv__ = __rmod__ = __floordiv__


class Declines(Divides):
    def __divmod__(self, other):
        return NotImplemented

    def __rdivmod__(self, other):
        return NotImplemented if other == 1 else "reflected"


class Derived(Declines):
    def __rdivmod__(self, other):
        return "derived"


class Whole(int):
    def __floordiv__(self, other):
        return "floor"


OPERANDS = [Divides(), Declines(), Derived(), Whole(7), 7, 7.5, True, "a", None, fractions.Fraction(7, 2), decimal.Decimal(7),
            torch.tensor(7.0), torch.ones(2)]


@pytest.mark.parametrize("first", range(len(OPERANDS)))
def test_divmod_is_an_operation_of_its_own(first: int):
    for other in (*OPERANDS, 1, 2):
        fxjit.reset()

        def fn(a, b, x):
            return divmod(a, b), x + 1

        args = OPERANDS[first], other, torch.ones(2)
        assert_same(outcome(fxjit.compile(fn, backend="eager"), *args), outcome(fn, *args), repr(other))


@pytest.mark.parametrize("fn", [
    lambda x: x.stride(0), lambda x: x.stride(-3), lambda x: x.size(0), lambda x: x.size(-1), lambda x: x.stride(),
    lambda x: x[None].stride(1), lambda x: x[None].size(-2), lambda x: x[None].stride(-1),
], ids=range(8))
def test_dimensions_of_a_tensor_without_any(fn):
    def program(x):
        return fn(x), x + 1

    x = torch.tensor(3.0)
    assert_same(outcome(fxjit.compile(program, backend="eager"), x), outcome(program, x))
