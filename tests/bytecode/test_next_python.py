"""CPython 3.14, which nothing here has run: its facts are data, its new opcodes are spelled or listed, and it is refused."""

from __future__ import annotations

import pytest

from fxjit import pythons
from fxjit.frontend.bytecode import normalize, versions

#: What 3.14's compiler leaves in code that 3.13's does not, and the other way round (documentation of `dis`; the magic numbers
#: 3600 to 3627 in pycore_magic_number.h).
ADDED = {"BUILD_INTERPOLATION", "BUILD_TEMPLATE", "LOAD_COMMON_CONSTANT", "LOAD_FAST_BORROW",
         "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_SMALL_INT", "LOAD_SPECIAL", "NOT_TAKEN", "POP_ITER"}
REMOVED = {"BEFORE_ASYNC_WITH", "BEFORE_WITH", "BINARY_SUBSCR", "BUILD_CONST_KEY_MAP", "LOAD_ASSERTION_ERROR", "RETURN_CONST"}


def test_its_opcodes_are_spelled_as_others_or_listed_as_unread():
    assert {name for name in ADDED if normalize.canonical_name(name) not in normalize.CANONICAL} == set(normalize.UNREAD)
    assert REMOVED <= normalize.CANONICAL  # so what was read of 3.13 does not depend on them being there


@pytest.mark.parametrize("native, arg, expected", [
    ("LOAD_FAST_BORROW", 1, [("LOAD_FAST", "b")]), ("LOAD_SMALL_INT", 200, [("LOAD_CONST", 200)]),
    ("LOAD_FAST_BORROW_LOAD_FAST_BORROW", 0x01, [("LOAD_FAST", "a"), ("LOAD_FAST", "b")]),
    ("POP_ITER", 0, [("POP_TOP", 0)]), ("NOT_TAKEN", 0, [("NOP", 0)]), ("BINARY_OP", 26, [("BINARY_SUBSCR", "[]")]),
    ("BINARY_OP", 0, [("BINARY_OP", "+")])])
def test_its_spellings(monkeypatch, native, arg, expected):
    monkeypatch.setattr(normalize, "BINARY_OPERATORS", (*versions.BINARY_OPERATORS[:26], "[]"))
    code = (lambda a, b: None).__code__
    assert [(each.opname, each.argval) for each in normalize.canonical(code, native, arg)] == expected


def test_it_is_refused_until_it_has_been_run():
    (later,) = versions._VERSIONS.keys() - set(pythons.SUPPORTED)
    assert later == (3, 14) and set(pythons.SUPPORTED) < versions._VERSIONS.keys()
    assert "does not know yet" in pythons.refusal(later)
    assert versions._VERSIONS[later].loop_end == ("END_FOR", "POP_ITER")
