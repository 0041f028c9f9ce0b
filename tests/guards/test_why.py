"""The guard that failed, in one line of words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frames import Frame, X, Y

from fxjit.guards.kinds import (
    AmbientIs,
    ConstIs,
    Guard,
    IdIs,
    KeysAre,
    LengthIs,
    NotSameObject,
    SetIs,
    TensorIs,
    TensorSpec,
    TypeIs,
)
from fxjit.guards.source import AttrSource, ClosureSource, GlobalSource, ItemSource
from fxjit.guards.why import explain_failure


class Thing:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def why(guard: Guard, frame: Frame) -> str | None:
    return explain_failure(frame.tree(guard), frame.arg_names, frame.freevars, *frame.parts)


CASES = [
    (TypeIs(X, int), Frame(x="s"), "x: expected type int, found type str"),
    (
        ConstIs(AttrSource(X, "training"), True),
        Frame(x=Thing(training=False)),
        "x.training: expected True, found False",
    ),
    (LengthIs(ItemSource(X, "layers"), 2), Frame(x={"layers": [1]}), "x['layers']: expected length 2, found length 1"),
    (KeysAre(X, ("a",)), Frame(x={"b": 1}), "x: expected the keys ['a'], found ['b']"),
    (TensorIs(X, TensorSpec.of(torch.ones(2, 3))), Frame(x=torch.ones(2, 4)), "x: expected size(1) 3, found 4"),
    (ConstIs(ClosureSource("k"), 1), Frame(closure={"k": 2}), "k: expected 1, found 2"),
    (IdIs(GlobalSource("G"), len), Frame(globals={"G": abs}), "G: expected the object len, found abs"),
    (TypeIs(AttrSource(X, "gone"), int), Frame(x=Thing()), "x.gone: it was there when the code was compiled"),
    (NotSameObject((X, Y)), Frame(x=1, y=1), "x, y: expected different objects, found x is y"),
    (LengthIs(X, 2), Frame(x=5), "asking gave TypeError"),
    (AmbientIs("grad_mode", False), Frame(), "expected grad_mode False, found True"),
]


@pytest.mark.parametrize(("guard", "frame", "expected"), CASES, ids=[case[2] for case in CASES])
def test_a_failure_in_words(guard: Guard, frame: Frame, expected: str) -> None:
    line = why(guard, frame)
    assert line is not None and expected in line and "\n" not in line


def test_no_failure_no_words() -> None:
    assert why(TypeIs(X, int), Frame(x=1)) is None


def test_a_hint_says_what_to_do() -> None:
    line = why(TensorIs(X, TensorSpec.of(torch.ones(2, 3))), Frame(x=torch.ones(2, 4)))
    assert line is not None and "mark_dynamic(x, 1)" in line
    assert "tensor" in str(why(ConstIs(X, 1), Frame(x=2)))


def test_thousands_of_keys_are_not_written_out() -> None:
    keys = tuple(range(5000))
    for guard in (KeysAre(X, keys), SetIs(X, frozenset(keys))):
        given = {*keys, "more"} if isinstance(guard, SetIs) else dict.fromkeys((*keys, "more"))
        expected, found = str(why(guard, Frame(x=given))).split("found")
        assert "... (5000 in all)" in expected and "... (5001 in all)" in found and len(expected) + len(found) < 500


def test_words_run_no_repr_of_the_user() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("asked for its repr")

    for guard in (IdIs(X, Loud()), TypeIs(X, int), ConstIs(X, 5), KeysAre(X, (Loud(),))):
        assert why(guard, Frame(x=Loud()))
