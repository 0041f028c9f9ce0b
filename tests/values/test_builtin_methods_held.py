"""Methods of C that the program holds bound, numbers of objects as keys, and attributes that an OrderedDict has not."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.testing import CompileCounter, same

WORD = re.compile("[a-z]+")


class Holder:
    pass


HOLDER: Any = Holder()
HOLDER.match, HOLDER.sub, HOLDER.find = WORD.match, re.compile("b").sub, re.compile("[0-9]").finditer
HOLDER.append, HOLDER.join = [].append, "-".join


def _match(x: torch.Tensor) -> Any:
    found = HOLDER.match("abc 1", 0)
    return x * found.end(), found[0]


def _sub(x: torch.Tensor) -> Any:
    return x + 1, HOLDER.sub("c", "abc"), [each.span() for each in HOLDER.find("a1b2")]


def _parts(x: torch.Tensor) -> Any:
    return x + 1, HOLDER.match.__name__, HOLDER.match.__self__.pattern, HOLDER.join(["a", "b"])


def _types(x: torch.Tensor) -> Any:
    kinds = type(WORD.match), type(HOLDER.match), type(HOLDER.append), type([].append), type(WORD.__eq__)
    return x + 1, kinds, kinds[0] is kinds[1], kinds[0] is kinds[2]


def _made_inside(x: torch.Tensor) -> Any:
    holder: Any = Holder()
    holder.match = WORD.match
    return x * holder.match("abc").end()


@pytest.mark.parametrize("program", [_match, _sub, _parts, _types, _made_inside])
def test_a_method_of_c_is_held_bound(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same_as_eager(program, torch.ones(2))


def test_another_pattern_is_matched_anew() -> None:
    holder: Any = Holder()

    def program(x: torch.Tensor) -> Any:
        return x * holder.match("abc1").end()

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for pattern in ("[a-z]+", "[a-z]", "[a-z]+"):
        holder.match = re.compile(pattern).match
        assert same(program(torch.ones(2)), compiled(torch.ones(2)))


ORDERED: Any = collections.OrderedDict(a=1)


def _lacks(x: torch.Tensor) -> Any:
    return x + 1, hasattr(ORDERED, "extra"), getattr(ORDERED, "extra", 3)


def _is_caught(x: torch.Tensor) -> Any:
    try:
        return x + ORDERED.extra
    except AttributeError as error:
        return x - 1, str(error)


def _is_deleted(x: torch.Tensor) -> Any:
    try:
        del ORDERED.extra
    except AttributeError as error:
        return x - 1, str(error)
    return x


def _in_c(x: torch.Tensor) -> Any:
    try:
        return super(collections.OrderedDict, ORDERED).__getattribute__("extra")
    except AttributeError:
        return x - 2


@pytest.mark.parametrize("program", [_lacks, _is_caught, _is_deleted, _in_c])
def test_an_ordered_dict_has_not_the_attribute(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same_as_eager(program, torch.ones(2))


@pytest.mark.parametrize("program", [_lacks, _is_caught])
def test_an_ordered_dict_is_given_the_attribute_later(program: Callable[[torch.Tensor], Any]) -> None:
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    assert same(program(torch.ones(2)), compiled(torch.ones(2)))
    ORDERED.extra = 5
    try:
        assert same(program(torch.ones(2)), compiled(torch.ones(2)))
    finally:
        del ORDERED.extra
    assert same(program(torch.ones(2)), compiled(torch.ones(2)))


def _with_memo() -> tuple[Callable[[torch.Tensor], Any], dict[int, float], Holder]:
    known = Holder()
    memo = {id(known): 5.0}

    def program(x: torch.Tensor) -> Any:
        return x * memo.get(id(known), 2.0), id(known) in memo

    return program, memo, known


def test_the_number_of_an_object_of_a_closure_is_a_key() -> None:
    program, memo, known = _with_memo()
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    assert same(program(torch.ones(2)), compiled(torch.ones(2)))
    memo[id(known)] = 3.0
    assert same(program(torch.ones(2)), compiled(torch.ones(2)))
    del memo[id(known)]
    memo[0] = 1.0
    assert same(program(torch.ones(2)), compiled(torch.ones(2)))


def test_the_number_of_another_object_is_another_key() -> None:
    known, other = Holder(), Holder()
    memo = {id(known): 5.0, id(other): 7.0}
    current = known

    def program(x: torch.Tensor) -> Any:
        return x * memo[id(current)]

    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(program, backend=counter, fullgraph=True)
    for current in (known, other, known, other):  # noqa: B007 - the closure's
        assert same(program(torch.ones(2)), compiled(torch.ones(2)))
    assert counter.frame_count == 2


class _Reads(type):
    def __getattribute__(cls, name: str) -> Any:
        return type.__getattribute__(cls, name)


class Base(metaclass=_Reads):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Derived(Base):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return super().scale(x) * 2
        except TypeError:
            return x * 0

    def named(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return super(type(self), self).scale(x) * 3
        except TypeError:
            return x * 0


@pytest.mark.parametrize("name", ["scale", "named"])
def test_super_of_a_class_that_is_not_looked_into_is_no_type_error(name: str) -> None:
    derived = Derived()

    def program(x: torch.Tensor) -> Any:
        return getattr(derived, name)(x)

    fxjit.reset()
    assert same(program(torch.ones(2)), fxjit.compile(program, backend="eager")(torch.ones(2)))
