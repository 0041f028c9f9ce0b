"""Lists and tuples ask an iterable for its length before they are filled: a program's own answer runs where eager's does."""

from __future__ import annotations

import itertools

import pytest
import torch

import fxjit

SEEN = []


class Plain:
    def __iter__(self):
        SEEN.append("iter")
        return iter([3, 1, 2])


class Indexed:
    def __getitem__(self, index):
        if index > 2:
            raise IndexError(index)
        return index

    def __len__(self):
        SEEN.append("len")
        return 3


class Once:
    def __init__(self):
        self.left = 3

    def __iter__(self):
        return self

    def __next__(self):
        SEEN.append("next")
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def __length_hint__(self):
        SEEN.append("hint")
        return 7


def answering(base=Plain, **answers):
    def method(name, answer):
        def answering(self):
            SEEN.append(name)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return answering

    named = {f"__{name}__": method(name, answer) for name, answer in answers.items()}
    return type("Answering", (base,), {**named, "__iter__": Plain.__iter__})


OBJECTS = {
    "indexed": Indexed, "once": Once, "plain": Plain,
    "a length": answering(len=3), "a hint": answering(length_hint=2), "both": answering(len=1, length_hint=2),
    "a TypeError, then a hint": answering(len=TypeError("no"), length_hint=5),
    "two TypeErrors": answering(len=TypeError("no"), length_hint=TypeError("no")),
    "a ValueError": answering(len=ValueError("no"), length_hint=5),
    "a hint's ValueError": answering(length_hint=ValueError("no")),
    "a length below zero": answering(len=-1), "a hint below zero": answering(length_hint=-1),
    "a text": answering(len="x", length_hint="y"), "no answer": answering(length_hint=NotImplemented),
    "a fraction": answering(length_hint=1.5), "a bool": answering(len=True),
    "too long": answering(len=10**30), "too much": answering(length_hint=10**30), "no room": answering(length_hint=2**62),
    "a list": answering(list, len=2), "a list's hint": answering(list, length_hint=ValueError("not asked")),
}


def extended(values):
    made = [0]
    made.extend(values)
    return made


def added(values):
    made = [0]
    made += values
    return made


def assigned(values):
    made = [0, 9]
    made[0:1] = values
    return made


def updated(values):
    made = {0}
    made.update(values)
    return made


def unpacked(values):
    first, *others = values
    return first, others


def given(*values):
    return values


def into_arguments(values):
    error = ValueError()
    error.args = values
    return error.args


OPERATIONS = {
    "list": list, "tuple": tuple, "sorted": sorted, "set": set, "frozenset": frozenset, "bytes": bytes, "sum": sum, "max": max,
    "extend": extended, "+=": added, "slice": assigned, "update": updated, "a, *b": unpacked, "args": into_arguments,
    "[*]": lambda values: [*values], "(*,)": lambda values: (0, *values), "{*}": lambda values: {0, *values},
    "f(*)": lambda values: given(*values), "f(0, *)": lambda values: given(0, *values),
    "of its iterator": lambda values: list(iter(values)), "for": lambda values: [each for each in values],
    "by key": lambda values: sorted(values, key=lambda each: -each), "join": lambda values: ",".join(values),
    "product": lambda values: list(itertools.product(values, values)), "Size": torch.Size,
    "enumerate": lambda values: list(enumerate(values)), "fromkeys": dict.fromkeys,
}


def outcome(fn, *args):
    SEEN.clear()
    try:
        found = repr(fn(*args))
    except Exception as error:
        found = type(error), str(error)
    return found, list(SEEN)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_programs_answer_runs_where_eagers_does(operation):
    operate = OPERATIONS[operation]
    objects = OBJECTS if operation in ("list", "tuple", "f(*)") else dict(itertools.islice(OBJECTS.items(), 0, None, 3))
    for name, make in objects.items():
        def f(x, values):
            return operate(values), x + 1

        fxjit.reset()
        compiled = fxjit.compile(f, backend="eager")
        x = torch.zeros(2)
        wanted = outcome(f, x, make())
        assert [outcome(compiled, x, make()) for _ in range(2)] == [wanted] * 2, name


def test_reversed_has_a_hint_of_its_own():
    def f(x, values):
        backwards = reversed(values)
        return next(backwards), list(backwards), list(backwards), x + 1

    compiled = fxjit.compile(f, backend="eager")
    x = torch.zeros(2)
    assert outcome(compiled, x, Indexed()) == outcome(f, x, Indexed())


def test_a_length_that_a_class_gets_later():
    class Later(Plain):
        pass

    def f(x, values):
        return list(values), x + 1

    compiled = fxjit.compile(f, backend="eager")
    x = torch.zeros(2)
    assert outcome(compiled, x, Later()) == outcome(f, x, Later())
    Later.__length_hint__ = lambda self: SEEN.append("later") or 3
    assert outcome(compiled, x, Later()) == outcome(f, x, Later())


def test_one_graph_where_the_length_is_known():
    """That modules say how long they are breaks no graph."""
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])

    def f(x, layers):
        for each in [*layers]:
            x = each(x)
        return x

    x = torch.ones(1, 2)
    torch.testing.assert_close(fxjit.compile(f, backend="eager", fullgraph=True)(x, layers), f(x, layers))
