"""Plain Python in frames without tensors: what raised errors of fxjit's own, or gave another answer than Python."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fxjit
from fxjit import config


@pytest.fixture(autouse=True)
def every_frame() -> Iterator[None]:
    fxjit.reset()
    with config.patch(compile_tensorless_frames=True):
        yield


def outcome(fn: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    try:
        result = fn(*args)
    except Exception as error:
        return type(error), str(error)
    return type(result), repr(result)


def assert_same_as_python(fn: Callable[..., Any], *args: Any) -> None:
    assert outcome(fxjit.compile(fn, backend="eager"), *args) == outcome(fn, *args)


class Slotted:
    __slots__ = ("a",)


class Borrower:
    """Has a slot of another class."""

    x = Slotted.a


def _read(o):
    return o.x


def _write(o):
    o.x = 3


def _delete(o):
    del o.x


def _get(o):
    return Slotted.a.__get__(o, type(o))


@pytest.mark.parametrize("use", [_read, _write, _delete, _get], ids=lambda use: use.__name__[1:])
def test_a_slot_of_another_class(use: Callable[[Any], Any]):
    assert_same_as_python(use, Borrower())


#: What struct sequences are asked for: as tuples, and by their names, of which some are no items.
QUESTIONS: list[Callable[[Any], Any]] = [
    lambda s: s >= (3, 8), lambda s: s < (3, 8), lambda s: s == tuple(s), lambda s: s != s, lambda s: s[:2], lambda s: s[0],
    lambda s: s[-1], lambda s: len(s), lambda s: list(s), lambda s: hash(s) == hash(tuple(s)), lambda s: 3 in s, repr,
    lambda s: s + (1,), lambda s: s * 2, lambda s: max(s, (1, 2)), lambda s: {s: 1}[tuple(s)], lambda s: s.n_fields,
    lambda s: [getattr(s, name) for name in s.__match_args__], lambda s: s.count(3), lambda s: isinstance(s, tuple),
]
STRUCTS: dict[str, Callable[[], Any]] = {
    "version_info": lambda: sys.version_info,
    "flags": lambda: sys.flags,
    "float_info": lambda: sys.float_info,
    "hash_info": lambda: sys.hash_info,
    "int_info": lambda: sys.int_info,
    "thread_info": lambda: sys.thread_info,
    "struct_time": lambda: time.gmtime(10**9),
    "stat_result": lambda: os.stat(os.sep),
    "terminal_size": lambda: os.terminal_size((80, 24)),
    "times_result": lambda: os.times_result(range(5)),
    "max": lambda: torch.return_types.max((1, 2)),
}


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_sequences(name: str):
    struct = STRUCTS[name]()
    for question in QUESTIONS:
        assert_same_as_python(question, struct)


def test_struct_sequences_that_the_frame_finds():
    assert_same_as_python(lambda: (sys.version_info >= (3, 8), sys.version_info[:2], sys.version_info.major))
    assert_same_as_python(lambda s: (s.st_mtime_ns > 0, s.st_size >= 0, s.st_atime > 0), os.stat(os.sep))


#: `n` varies; a bool beside it is a number.
EXPRESSIONS = """
(n > 2) == 1;(n > 2) == n;(n > 1) == (n > 2);(n > 1) != (n > 6);(n > 1) == True;n if (n > 1) == True else 3;n > True;(n > 2) < n
(n > 1) > 0.5;(n > 1) <= (n > 7);(n > 1) + 1;(n > 1) * 2.5;(n > 1) + (n > 2);n + (n > 4);(n > 1) - n;n * True;n ** (n > 1)
n // (n > 0);(n > 6) % n;(n > 1) & (n < 9);(n > 1) & n;n & (n > 1);(n > 1) | n;(n > 1) | 0;(n > 1) ^ n;(n > 1) ^ True
(n > 1) << n;n << (n > 1);-(n > 1);~(n > 1);+(n > 1);abs(n > 6);divmod(n, n > 0);(n > 1).real;(n > 1).numerator
(n > 1).bit_length();int(n > 1) + n;bool(n) + n;(not n) + n;(n / 2) + (n > 1);(n / 2) * (n > 6);(n / 2) > (n > 1)
(n > 1) * 1j;[0, 1][n > 1];sum([n > 1, n > 2]);(n > 1) * "ab";[n] * (n > 1);hash(n > 2);(n > 2) in (1,);{True: 1}[n > 2]
""".replace("\n", ";").strip(";").split(";")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_bool_of_a_size_that_varies(expression: str):
    namespace: dict[str, Any] = {}
    exec(f"def program(x):\n    n = x.shape[0]\n    return {expression}\n", namespace)
    program = namespace["program"]
    compiled = fxjit.compile(program, backend="eager", dynamic=True)
    for size in (5, 7, 2):
        assert outcome(compiled, torch.ones(size)) == outcome(program, torch.ones(size))
