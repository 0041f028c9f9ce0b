"""Every break and skip has a row that explains it, and every row is used."""

from __future__ import annotations

import ast
import re
import string
from functools import cache
from pathlib import Path

import pytest

from fxjit.reasons import FAMILIES, REASONS, Reason, explain_reason

SOURCE = Path(__file__).resolve().parents[2] / "src" / "fxjit"
# Functions whose first string argument that looks like an id is one.
TAKES_A_REASON = {"break_", "BreakGraph", "SkipFrameSignal", "report_skip", "report_break", "unsupported", "BreakPoint"}
LOOKS_LIKE_AN_ID = re.compile(r"[a-z]+(-[a-z]+)+$")


@cache
def strings() -> tuple[set[str], dict[str, str]]:
    """Every string of the source, and those that are passed as a reason, with the place."""
    everywhere, passed = set(), {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "reasons.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                everywhere.add(node.value)
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in TAKES_A_REASON:
                    for each in constants(node.args[:3]):
                        if LOOKS_LIKE_AN_ID.match(each):
                            passed[each] = f"{path.relative_to(SOURCE)}:{node.lineno}"
    return everywhere, passed


def constants(args: list[ast.expr]) -> list[str]:
    options = [each for arg in args for each in ([arg.body, arg.orelse] if isinstance(arg, ast.IfExp) else [arg])]
    return [each.value for each in options if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def test_every_reason_that_is_given_has_a_row():
    missing = {reason: place for reason, place in strings()[1].items() if reason not in REASONS}
    assert not missing


def test_every_row_is_used():
    assert not [reason for reason in REASONS if reason not in strings()[0]]


def test_no_id_is_there_twice():
    ids = [row.id for family in FAMILIES for row in family]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("row", REASONS.values(), ids=lambda row: row.id)
def test_a_row_reads_well(row: Reason):
    assert LOOKS_LIKE_AN_ID.match(row.id)
    assert row.title and not row.title.endswith(".")
    assert row.explanation and row.hints, "an explanation, and something to do about it"
    names = {name for text in (row.title, row.explanation, row.debug, *row.hints) for _, name, _, _ in parse(text) if name}
    filled = explain_reason(row.id, **dict.fromkeys(names, "this"))
    assert "{" not in filled.text() and "?" not in filled.reason


def parse(text: str):
    return string.Formatter().parse(text)


def test_what_a_place_does_not_say_does_not_break_the_report():
    assert "?" in explain_reason("call-builtin", function=print).explanation


def test_a_value_whose_repr_raises_does_not_break_the_report():
    class Bad:
        def __repr__(self):
            raise RuntimeError

    assert "repr raised RuntimeError" in explain_reason("call-builtin", function=Bad(), args="").explanation
