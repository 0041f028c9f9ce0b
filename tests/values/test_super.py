"""`super()` without arguments where the first argument is not, or no longer, what it was at the call."""

from __future__ import annotations

import pytest
import torch

import fxjit

X = torch.ones(1)


class Base:
    def f(self, x):
        return x + 1


class Derived(Base):
    def rebound(self, x, other):
        self = other
        return super().f(x)

    def rebound_behind_a_break(self, x, other):
        y = x * 2
        self = other
        fxjit.graph_break()
        return super().f(y)

    def changed_in_a_cell(self, x, other):
        def inner():
            return self

        self = other
        return super().f(x) * 2

    def changed_in_a_cell_behind_a_break(self, x, other):
        def inner():
            return self

        fxjit.graph_break()
        self = other
        return super().f(x) * 2

    def changed_by_an_inner_function(self, x, other):
        def inner():
            nonlocal self
            self = other

        y = x * 2
        inner()
        return super().f(y)

    def deleted_from_a_cell(self, x, other):
        def inner():
            return self  # noqa: F821  # deleted below

        y = x * 2
        fxjit.graph_break()
        del self
        return super().f(y)

    def kept_in_a_cell(self, x, other):
        def inner():
            return self

        y = x * 2
        fxjit.graph_break()
        return super().f(y) if inner() is self else other

    def deleted(self, x, other):
        del self
        return super().f(x)

    def all_in_one(*args):
        y = args[1] * 2
        return super().f(y)

    def all_in_one_behind_a_break(*args):
        y = args[1] * 2
        fxjit.graph_break()
        return super().f(y)

    def all_in_one_and_caught(*args):
        try:
            return super().f(args[1])
        except RuntimeError as error:
            said = str(error)
        fxjit.graph_break()
        return said, args[1] * 2

    def in_a_generator(self, x, other):
        return [super().f(x) for _ in range(2)]

    def in_a_function(self, x, other):
        def inner(y):
            return super().f(y)

        return inner(other)

    def set(self, x, other):
        super().y = other  # raises: there is no such attribute
        return x


METHODS = [name for name, value in vars(Derived).items() if callable(value)]


def told(call, *args):
    try:
        return repr(call(*args))
    except (TypeError, RuntimeError, AttributeError, UnboundLocalError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("other", [Derived(), Base(), 5, X], ids=["derived", "base", "number", "tensor"])
def test_super_finds_what_it_finds_in_python_or_says_so_in_its_words(name, other):
    method = vars(Derived)[name]
    compiled = fxjit.compile(method, backend="eager")
    for _ in range(2):
        assert told(compiled, Derived(), X, other) == told(method, Derived(), X, other)


@pytest.mark.parametrize("name", METHODS)
def test_in_a_function_that_is_inlined(name):
    def outer(obj, x):
        y = x * 2
        return told(getattr(obj, name), y, Derived())

    compiled = fxjit.compile(outer, backend="eager")
    assert compiled(Derived(), X) == outer(Derived(), X)


def test_by_keyword_alone():
    class Named(Base):
        def f(*, self, x):
            fxjit.graph_break()
            return super().f(x * 2)

    compiled = fxjit.compile(Named.f, backend="eager")
    with pytest.raises(RuntimeError, match=r"super\(\): no arguments"):
        compiled(self=Named(), x=X)
