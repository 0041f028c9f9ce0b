"""Matches one by one, texts replaced by functions, templates."""

from __future__ import annotations

import collections
import os
import re
import string
import time
from typing import Any

import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager

import fxjit

X = torch.ones(3)


NUMBERS = re.compile(r"(?P<name>[a-z])(?P<number>\d+)")


def test_matches_one_by_one() -> None:
    def run(x: torch.Tensor) -> Any:
        found = {match["name"]: int(match["number"]) for match in re.finditer(NUMBERS, "a1 b22 c3")}
        rest = NUMBERS.finditer("a1 b2 c3")
        first = next(rest)
        return found, first.span(), [match.start() for match in rest], x * found["b"], type(rest).__name__

    assert_same_as_eager(run, X)


def test_matches_over_a_break() -> None:
    def run(x: torch.Tensor) -> Any:
        rest = NUMBERS.finditer("a1 b2 c3")
        next(rest)
        torch._dynamo.graph_break()
        return next(rest).group(), next(rest).group(), next(rest, None), x

    assert_same_as_eager(run, X, fullgraph=False)


@pytest.mark.parametrize(("pattern", "text"), [("x*", "abxd"), (r"\w", "a b c"), ("b", ""), ("q", "abc"), (b"a", b"banana")])
def test_replacing_by_a_function(pattern: Any, text: Any) -> None:
    def run(x: torch.Tensor) -> Any:
        seen: list[Any] = []

        def upper(match: re.Match[Any]) -> Any:
            seen.append((match.group(), x * match.start()))
            return match.group().upper() if len(seen) < 3 else None

        compiled = re.compile(pattern)
        return re.sub(pattern, upper, text), compiled.sub(upper, text, 1), compiled.subn(upper, text), seen

    assert_same_as_eager(run, X)


def test_a_replacement_that_is_no_text() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            re.sub("a", lambda match: 3, "banana")  # type: ignore[arg-type, return-value]
        except TypeError as error:
            return str(error), x

    assert_same_as_eager(run, X)


def test_templates() -> None:
    def run(x: torch.Tensor) -> Any:
        template = string.Template("$a is ${b}, $$5")
        seen = [template.substitute(a=1, b=tuple(x.shape)), template.safe_substitute({"a": 2}), string.capwords("ab cd")]
        for broken in (lambda: template.substitute(a=1), lambda: string.Template("$").substitute()):
            try:
                broken()
            except (KeyError, ValueError) as error:
                seen.append(repr(error))
        formatter = string.Formatter()
        return seen, formatter.format("{0} {k.real:>5} {1[0]!r}", 1, "a", k=2), list(formatter.parse("a{b!r:c}d")), x

    assert_same_as_eager(run, X)


class Text(str):
    """As `torch.__version__` is one."""


def test_texts_of_a_subclass_are_looked_through() -> None:
    text = Text("a1 b22")

    def run(x: torch.Tensor) -> Any:
        found = re.search("b(\\d+)", text), NUMBERS.match(text), re.fullmatch("a", text)
        parts = NUMBERS.findall(text), re.split(" ", text), re.sub("a", "c", text), NUMBERS.sub(lambda match: "-", text)
        return [each and each[0] for each in found], parts, [each.span() for each in NUMBERS.finditer(text)], x + 1

    assert_same_as_eager(run, X)


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024 - this kind is what is tried


class Swapped(Pair):
    a = property(lambda self: "seldom")


#: Tuples of other classes, of a number that varies.
TUPLES = [
    lambda n: Pair(n, n / 2), lambda n: Swapped(n, [n]), lambda n: torch.Size([n, 2]),
    lambda n: time.struct_time(range(n, n + 9)), lambda n: time.struct_time([*range(n, n + 9), "zone", n]),
    lambda n: os.stat_result(range(n, n + 10)),
    lambda n: os.stat_result(range(n, n + 19)), lambda n: os.terminal_size((n, 2)), lambda n: torch.return_types.max((n, 2)),
]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("make", TUPLES)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("show", [repr, str, "{0!r:>90}|{0}".format, "%r".__mod__, lambda each: "%s" % [each]])
def test_the_text_of_tuples_of_other_classes(make: Any, dynamic: bool | None, show: Any) -> None:
    def run(x: torch.Tensor, given: Any) -> Any:
        return x + 1, show([given]), f"{given!r:>80}", f"{given}", "%s %r" % (given[0], [given])

    fxjit.reset()
    compiled = fxjit.compile(run, dynamic=dynamic, backend="eager")
    for n in (1, 2, 3, 0):
        assert_same(run(X, make(n)), compiled(X, make(n)))
