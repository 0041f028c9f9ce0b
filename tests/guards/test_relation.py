"""Relations between numbers as text: what computes is taken, and nothing that may do more."""

from __future__ import annotations

import pytest

from fxjit.guards.relation import Relation

HOLDS = {"v0 + 1 > v1": (True, False), "math.sqrt(v0) < 2.5 and v1 != 0": (True, True), "1/v0 < v1": (True, False),
         "math.sqrt(-v0) < v1": (False, True), "(v1 if v0 > 2 else 0) == 1": (True, False)}


@pytest.mark.parametrize("text", HOLDS)
def test_a_relation_holds_or_not_and_an_error_is_no(text: str) -> None:
    relation = Relation(2, text, None)
    assert (relation(4.0, 1), relation(0.0, 5)) == HOLDS[text]


def test_kinds_are_checked_where_they_are_said() -> None:
    assert Relation(2, "v0 > v1", (False, True))(2.0, 1)
    assert not Relation(2, "v0 > v1", (False, True))(2, 1)
    assert not Relation(2, "v0 > v1", (False, True))(2.0, True)
    assert not Relation(1, "v0 == v0 or v0 != v0", (False,))(float("nan"))


@pytest.mark.parametrize("text", [
    "v0.real", "__import__('os')", "math.__dict__", "torch.os", "torch.load(v0)", "(lambda: 1)()", "[v0 for v0 in ()]", "v9",
    "abs(v0, key=1)", "math", "torch.sym_max.__globals__", "v0(1)", "v0 +", "v0), (print(1)", "'a' * v0", "open", "{v0: 1}",
    "(v0 := 3) > 2", "f'{v0}' == 1",
])
def test_text_that_may_do_more_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Relation(1, text, None)
