"""Traits: what values of single families can do beyond `Value`. Who needs one looks for it with `isinstance`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.guards.source import Source


class Undoable(Value):
    """A container whose changes may be undone by the program itself."""

    def undo_check(self) -> Callable[[], bool]:
        """Called before a change of its state; gives a predicate of whether the change is undone later."""
        raise AssertionError(f"{type(self).__name__} is not undoable")


class AttributeErrorValue(Value):
    """An exception that may be an AttributeError, which remembers what was looked up where."""

    def set_lookup(self, t: Tracer, obj: Value, name: str) -> None:
        """`getattr(obj, name)` raised this, and has not said so."""
        raise AssertionError(f"{type(self).__name__} takes no lookup")


class SuperLookup(Value):
    """A value with rules of its own for attributes that its class overrides."""

    def super_getattr(self, t: Tracer, name: str, raw: object) -> Value | None:
        """`super().name`, where a class behind its own has `raw` under that name; None where the usual rules hold."""
        raise AssertionError(f"{type(self).__name__} has no rule for super()")


class GuardedOperators(Value):
    """A constant whose operators a program may replace: a class, by its metaclass."""

    def guard_operators(self, t: Tracer, *names: str) -> None:
        """Python's own operators are applied to the constant: what its class has under these names matters, and breaks the
        graph where it is the program's code, which may do and give anything."""
        raise AssertionError(f"{type(self).__name__} guards nothing")


class LateText(Value):
    """A str, a constant that the trace relies on only where it looks at it: what it is joined with is one, too."""

    def has_numbers(self) -> bool:
        """Whether numbers stand in it that vary: it is another text in each call."""
        return False


class ScalarOperand(Value):
    """A number that the graph computes, which an operator of a tensor may take as the tensor that holds it."""

    def operand_for(self, t: Tracer, tensor: torch.Tensor, op: str) -> Value | None:
        """The tensor, where `tensor op number` gives what it gives with a Python number; None elsewhere."""
        raise AssertionError(f"{type(self).__name__} is no operand")


class WrappedOutput(Value):
    """Lives in the graph, and leaves it in another form: `rebuild` makes that of the graph's output."""


class Indistinct(Value):
    """One of several objects, of which only the running program knows which."""

    def may_be(self, other: Value) -> bool:
        """Whether another value may be one of these objects."""
        raise AssertionError(f"{type(self).__name__} does not say so")

    def distinguish(self, t: Tracer) -> NoReturn:
        """Which of them it is, matters."""
        raise AssertionError(f"{type(self).__name__} does not say so")


class Alternatives(Indistinct):
    """The same of objects of different types. An operator is applied to each of them."""

    def applied(self, t: Tracer, fn: Callable[..., Any], before: tuple[Value, ...], after: tuple[Value, ...]) -> Value:
        """`fn(*before, self, *after)`, one of Python's operators that changes nothing."""
        raise AssertionError(f"{type(self).__name__} takes no operators")

    def given_to(self, t: Tracer, tensor: Value, name: str, args: Sequence[Value]) -> Value:
        """`tensor.name(*args)`, one argument of which it is."""
        self.distinguish(t)


class Reference(Value):
    """A weak reference: its hash is that of its referent, and two are equal if their referents are."""

    def alive(self, t: Tracer) -> Value:
        """The referent, for its hash and its comparisons; where they cannot be known, the graph breaks."""
        raise AssertionError(f"{type(self).__name__} does not say so")


class LateIndex(Value):
    """A number that only the running program knows, and that containers may be indexed with all the same."""

    def item_of(self, t: Tracer, items: Sequence[Value]) -> Value:
        """`items[self]`, of a list or a tuple of these."""
        raise AssertionError(f"{type(self).__name__} does not say so")

    def in_graph(self, t: Tracer) -> Value:
        """The number as an input of the graph."""
        raise AssertionError(f"{type(self).__name__} does not say so")

    def in_tensor(self, t: Tracer, numbers: Sequence[Value], shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        """A tensor of numbers of which it is one, or several are like it, as an input of the graph."""
        raise AssertionError(f"{type(self).__name__} does not say so")


class Places(Value):
    """A container, cell or namespace: what is kept in places of its own."""

    def places(self) -> Iterator[tuple[Source, Value]]:
        """Where each thing that is kept now would be found by the next call; of an object that existed before."""
        raise AssertionError(f"{type(self).__name__} does not tell its places")


class ObjectMethods(Value):
    """An instance of a class of the program's: its `meth_` methods are object's, and a class of C between may have others."""
