"""Objects that share their `__dict__` have the attributes of one another: `self.__dict__ = cls._state`, and the dict itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same

import fxjit


class Plain:
    v, w = 1, 2


class Other(Plain):
    pass


class Layer(torch.nn.Module):
    pass


def shown(state: Any) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not name.startswith(("_", "training"))}


def stored(x, a, b):
    a.v = 3
    return x * b.v, getattr(b, "new", 0)


def stored_anew(x, a, b):
    a.new = 3
    return x * getattr(b, "new", 1)


def deleted(x, a, b):
    del a.v
    return x * getattr(b, "v", 7)


def through_vars(x, a, b):
    vars(a)["v"] = 4
    return x * b.v


def seen_as_a_whole(x, a, b):
    a.new = 4
    return x * vars(b)["v"], list(vars(b))


def popped(x, a, b):
    a.__dict__.pop("v")
    return x * ("v" in b.__dict__)


def taken_before(x, a, b):
    state = a.__dict__
    b.v = 11
    return x * state["v"], len(state)


def one_dict(x, a, b):
    return x * (a.__dict__ is b.__dict__)


def both(x, a, b):
    a.v += 1
    b.v += 1
    return x * a.v, b.v


def a_list(x, a, b):
    a.n = [1]
    if hasattr(b, "n"):
        b.n.append(2)
    return x * len(a.n)


OF_OBJECTS = [stored, stored_anew, deleted, through_vars, seen_as_a_whole, popped, taken_before, one_dict, both, a_list]


def item_stored(x, a, d):
    d["v"] = 3
    return x * a.v


def attribute_stored(x, a, d):
    a.v, a.new = 3, 4
    return x * d["v"], d.get("new"), len(d)


def cleared(x, a, d):
    d.clear()
    return x * getattr(a, "v", 9)


def is_it(x, a, d):
    return x * (a.__dict__ is d), a.v


def dict_first(x, a, d):
    before = d["v"]
    a.v = 9
    return x * d["v"], before


OF_DICTS = [item_stored, attribute_stored, cleared, is_it, dict_first]


def observed(function: Callable[..., Any], program: Callable[..., Any], kind: type, shared: bool) -> Any:
    a = kind()
    a.v = 5
    if program in OF_DICTS:
        second: Any = a.__dict__ if shared else {"v": 6}
        return function(torch.ones(2), a, second), shown(a.__dict__), shown(second)
    b = (Other if kind is Plain else kind)()
    b.v = 6
    if shared:
        b.__dict__ = a.__dict__
    return function(torch.ones(2), a, b), shown(a.__dict__), shown(b.__dict__), a.__dict__ is b.__dict__


@pytest.mark.parametrize("kind", [Plain, Layer])
@pytest.mark.parametrize("program", [*OF_OBJECTS, *OF_DICTS], ids=lambda program: program.__name__)
def test_attributes_of_objects_that_share_them(program: Callable[..., Any], kind: type):
    for order in ([True, False, True], [False, True, False]):
        fxjit.reset()
        compiled = fxjit.compile(program, backend="eager")
        for shared in order:
            wanted = observed(program, program, kind, shared)
            assert str(observed(compiled, program, kind, shared)) == str(wanted), shared


def test_a_state_of_all_instances():
    class State:
        _shared: dict[str, Any] = {}

        def __init__(self) -> None:
            self.__dict__ = State._shared
            if not self.initialized:
                self.count = 0

        @property
        def initialized(self) -> bool:
            return self._shared != {}

    def made(x):
        first, second = State(), State()
        first.count += 1
        second.count += 1
        return x * first.count

    def given(x, first, second):
        first.count += 1
        second.count += 1
        return x * first.count + first.initialized, State._shared["count"]

    def run(compile: Callable[..., Any]) -> list[Any]:
        State._shared.clear()
        program = compile(made)
        results = [program(torch.ones(1)).tolist() for _ in range(3)]
        program = compile(given)
        return results + [str(program(torch.ones(1), State(), State())) for _ in range(3)]

    assert run(lambda fn: fxjit.compile(fn, backend="eager")) == run(lambda fn: fn)


class Slotted:
    __slots__ = ("__dict__", "place")


def test_slots_beside_a_shared_dict():
    def program(x, a, b):
        a.place, a.v = 1, 2
        b.place = 3
        return x * a.place, b.v

    def run(function: Callable[..., Any]) -> str:
        a, b = Slotted(), Slotted()
        b.__dict__ = a.__dict__
        return str((function(torch.ones(1), a, b), a.place, b.place, a.__dict__))

    assert run(fxjit.compile(program, backend="eager")) == run(program)


class Empty:
    first = 1
    second = 0


LOOKS = [
    list, sorted, len, tuple, set, dict, repr, bool, lambda d: list(d.keys()), lambda d: sorted(d.items()),
    lambda d: [*d.values()], lambda d: [key for key in d], lambda d: "first" in d, lambda d: d.get("second"), lambda d: {**d},
    lambda d: next(iter(d), None), lambda d: list(enumerate(d)), lambda d: max(d, default=None), lambda d: [*reversed(d)],
    lambda d: d == {"first": 2, "second": 3},
]  # fmt: skip


def writes(owner):
    owner.first = 2
    owner.second = 3


def writes_and_deletes(owner):
    owner.second = 3
    owner.first = 2
    del owner.second


def writes_nothing(owner):
    pass


@pytest.mark.sweep(2)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("write", [writes, writes_and_deletes, writes_nothing], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("make", [Empty, lambda: lambda: None], ids=["object", "function"])
def test_what_was_written_is_in_a_dict_that_was_empty(look, write, make):
    def program(x, owner):
        write(owner)
        return x + 1, look(owner.__dict__), look(vars(owner))

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    ours, eagers = make(), make()
    for _ in range(3):
        assert_same(program(torch.ones(2), eagers), compiled(torch.ones(2), ours))
        assert list(vars(ours).items()) == list(vars(eagers).items())
