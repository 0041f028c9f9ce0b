"""That two objects are one, or two, is a guard where the trace relied on it.

Each question is put to each kind of object: compiled where the two are different, then called where they are one, and the
other way round.
"""

from __future__ import annotations

import collections
import copy
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter


class Thing:
    def method(self) -> None: ...


#: Each makes one more object, equal to the others where its kind compares by contents.
KINDS: dict[str, Callable[[], Any]] = {
    "instance": Thing,
    "object": object,
    "class": lambda: type("Made", (), {}),
    "function": lambda: lambda: 0,
    "method": lambda: Thing().method,
    "slot wrapper": lambda: Thing().__init__,
    "partial": lambda: functools.partial(len),
    "module": torch.nn.ReLU,
    "exception": lambda: ValueError("x"),
    "generator": lambda: (i for i in [1]),
    "iterator": lambda: iter([1, 2]),
    "list": lambda: [1],
    "dict": lambda: {1: 2},
    "ordered dict": lambda: collections.OrderedDict(a=1),
    "set": lambda: {1},
    "deque": lambda: collections.deque([1]),
    "bytearray": lambda: bytearray(b"a"),
    "tuple": lambda: tuple([1, 2]),
    "frozenset": lambda: frozenset([1, 2]),
    "size": lambda: torch.Size([1, 2]),
    "range": lambda: range(3, 9),
    "slice": lambda: slice(1, 2),
    "large int": lambda: int("123456789012"),
    "float": lambda: float("1.5"),
    "complex": lambda: complex("1+2j"),
    "string": lambda: "".join(["two ", "words"]),
    "bytes": lambda: bytes([1, 2, 3]),
    "tensor": lambda: torch.ones(2),
}


def is_(x, s, o):
    return x + 10 if s is o else x + 1


def is_not(x, s, o):
    return x + 10 if s is not o else x + 1


def operator_is(x, s, o):
    return x + 10 if operator.is_(s, o) else x + 1


def equals(x, s, o):
    return x + 10 if s == o else x + 1


def contains(x, s, o):
    return x + 10 if s in [o] else x + 1


def index(x, s, o):
    return x + [s, o].index(o)


def count(x, s, o):
    return x + [s, o].count(o)


def dict_keys(x, s, o):
    return x + len({s: 1, o: 2})


def set_elements(x, s, o):
    return x + len({s, o})


def ids_in_a_set(x, s, o):
    return x + len({id(each) for each in (s, o)})


def equal_ids(x, s, o):
    return x + 10 if id(s) == id(o) else x + 1


def memo_of_deepcopy(x, s, o):
    first, second = copy.deepcopy([s, o])
    return x + 10 if first is second else x + 1


QUESTIONS = [is_, is_not, operator_is, equals, contains, index, count, dict_keys, set_elements, ids_in_a_set, equal_ids]


def assert_same_as_eager_in_turn(question: Callable[..., Any], kind: str, one_first: bool) -> None:
    a, b, x = KINDS[kind](), KINDS[kind](), torch.zeros(1)
    calls = [(a, a), (a, b), (a, a)] if one_first else [(a, b), (a, a), (a, b)]
    try:
        wanted = [question(x, s, o) for s, o in calls]
    except (TypeError, ValueError, RuntimeError):
        pytest.skip("the question cannot be put to such objects")
    fxjit.reset()
    compiled = fxjit.compile(question, backend="eager")
    for (s, o), result in zip(calls, wanted, strict=True):
        assert compiled(x, s, o).equal(result), f"{kind}: {question.__name__}({'one' if s is o else 'two'})"


#: Each question to each kind of object; which of the two answers comes first alternates.
ASKED = [pytest.param(kind, question, (place + number) % 2 == 1, id=f"{kind}-{question.__name__}")
         for place, kind in enumerate(KINDS) for number, question in enumerate(QUESTIONS)]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("kind", "question", "one_first"), ASKED)
def test_a_question_of_identity(kind: str, question: Callable[..., Any], one_first: bool):
    assert_same_as_eager_in_turn(question, kind, one_first)


@pytest.mark.parametrize("one_first", [False, True], ids=["two, then one", "one, then two"])
@pytest.mark.parametrize("kind", ["instance", "list", "dict", "set", "deque", "bytearray", "module"])
def test_the_memo_of_deepcopy(kind: str, one_first: bool):
    assert_same_as_eager_in_turn(memo_of_deepcopy, kind, one_first)


PARENT = Thing()


def test_an_attribute_and_a_global():
    def f(x, a, b):
        return x + (a.parent is b) + 2 * (b is PARENT)

    compiled, a, b = fxjit.compile(f, backend="eager"), Thing(), Thing()
    x = torch.zeros(1)
    a.parent = Thing()
    for parent, other in ((a.parent, b), (b, b), (PARENT, b), (b, PARENT), (PARENT, PARENT)):
        a.parent = parent
        assert compiled(x, a, other).equal(f(x, a, other))


def test_modules_that_become_shared():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.ReLU(), torch.nn.ReLU()

        def forward(self, x):
            return x + len(list(self.named_modules()))

    net = Net()
    compiled = fxjit.compile(net, backend="eager")
    x = torch.zeros(1)
    assert compiled(x).equal(net(x))
    net.second = net.first
    assert compiled(x).equal(net(x))


@pytest.mark.parametrize("reach", [lambda box: box.q, lambda box: box.q.inner, lambda box: box.q[0]],
                         ids=["an attribute", "an attribute's attribute", "an attribute's item"])
@pytest.mark.parametrize("container", [list, collections.deque])
def test_a_write_is_seen_through_another_path(container: type, reach: Callable[[Any], Any]):
    def box(leaf: Any) -> Thing:
        made = Thing()
        if reach(Probe()) == "inner":
            made.q = Thing()
            made.q.inner = leaf
        else:
            made.q = [leaf] if reach(Probe()) == "item" else leaf
        return made

    class Probe:
        """What a path is, said by what it reaches."""

        @property
        def q(self) -> Any:
            return type("Q", (str,), {"inner": "inner", "__getitem__": lambda self, at: "item"})("q")

    def f(x, a, b):
        reach(a).append(1)
        return x * len(reach(b))

    compiled, x = fxjit.compile(f, backend="eager"), torch.ones(1)
    compiled(x, box(container()), box(container()))
    for shared in (False, True, False):
        pairs = []
        for _ in range(2):
            leaf = container()
            pairs.append((box(leaf), box(leaf if shared else container())))
        assert compiled(x, *pairs[0]).equal(f(x, *pairs[1]))


def test_equal_strings_and_numbers_are_no_reason_to_compile_again():
    """A look-up by value says nothing of identity."""
    counter = CompileCounter()

    @fxjit.compile(backend=counter, dynamic=False)
    def f(x, mode, scale):
        return x * scale if mode in ("first mode", "second mode") and mode == "first mode" else x

    for _ in range(3):
        f(torch.ones(1), "".join(["first", " mode"]), float("1.5"))
    assert counter.frame_count == 1
