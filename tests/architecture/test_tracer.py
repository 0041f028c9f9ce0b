"""What the front end may know of a trace is one protocol, `frontend/tracer.py: Tracer`: all of it is used, none lies beside it.

That `Trace` has all of it, with these types, and that nobody uses more, is mypy's to see: every `t` is annotated as a Tracer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fxjit.frontend.trace import Trace

FRONTEND = Path(__file__).resolve().parents[2] / "src" / "fxjit" / "frontend"
PROTOCOL = FRONTEND / "tracer.py"


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def users() -> list[Path]:
    return sorted(path for path in FRONTEND.rglob("*.py") if path.name not in ("tracer.py", "trace.py"))


def members(cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id  # type: ignore[union-attr]  # a plain name


def classes() -> dict[str, ast.ClassDef]:
    return {node.name: node for node in parsed(PROTOCOL).body if isinstance(node, ast.ClassDef)}


def subjects() -> list[str]:
    """The protocols that `Tracer` is composed of."""
    return [base.id for base in classes()["Tracer"].bases if isinstance(base, ast.Name) and base.id != "Protocol"]


@cache
def used() -> frozenset[str]:
    """Attributes of what is called `t`, `tracer` or `effects` anywhere in the front end."""
    found = set()
    for path in users():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute):
                owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                if owner in ("t", "tracer", "_tracer", "effects"):
                    found.add(node.attr)
    return frozenset(found)


def test_the_protocol_is_composed_of_all_that_is_in_its_file():
    assert {*subjects(), "EffectLog", "Tracer"} == set(classes())


@pytest.mark.parametrize("name", [*subjects(), "EffectLog"])
def test_every_member_is_used(name: str):
    assert not set(members(classes()[name])) - used()


def test_a_trace_has_every_member():
    wanted = {member for name in subjects() for member in members(classes()[name])}
    given = set(dir(Trace)) | {node.attr for node in ast.walk(parsed(FRONTEND / "trace.py"))
                               if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    annotated = {node.target.attr for node in ast.walk(parsed(FRONTEND / "trace.py"))
                 if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)}
    assert not wanted - given - annotated


@pytest.mark.parametrize("path", users(), ids=lambda path: path.relative_to(FRONTEND).as_posix())
def test_there_is_no_second_protocol(path: Path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            assert "Tracer" not in node.name and not any("Tracer" in ast.unparse(base) for base in node.bases), node.name
    text = path.read_text(encoding="utf-8")
    assert not [line for line in text.splitlines() if "type: ignore" in line and "racer" in line.partition("type: ignore")[2]]
