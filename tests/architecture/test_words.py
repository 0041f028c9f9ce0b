"""Names in `src/fxjit` are made of the field's words: none of those that docs/glossary.md retired is left in one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from fxjit import config

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fxjit"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_C_FUNCTION = re.compile(r"^(?:[A-Za-z_][\w]*[ *]+)*?([a-z_]\w*)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Retired:
    """A word, or several in a row, that the glossary replaced: the packages where, and compounds that stay."""

    words: tuple[str, ...]
    packages: tuple[str, ...]
    compounds: tuple[tuple[str, ...], ...]

    def is_in(self, module: str, words: tuple[str, ...]) -> bool:
        if self.packages and not any(module == each or module.startswith(f"{each}.") for each in self.packages):
            return False
        for compound in self.compounds:
            words = without(words, compound)
        return without(words, self.words) != words


def without(words: tuple[str, ...], part: tuple[str, ...]) -> tuple[str, ...]:
    """`words` with each occurrence of `part` as one empty word, which is in no name."""
    for at in range(len(words) - len(part) + 1):
        if words[at : at + len(part)] == part:
            return without((*words[:at], "", *words[at + len(part) :]), part)
    return words


def words_of(name: str) -> tuple[str, ...]:
    """`waiting_text`, `WaitingText` and `_WAITING_TEXT` alike: (waiting, text)."""
    return tuple(word.lower() for word in _WORD.findall(name))


@cache
def retired() -> tuple[Retired, ...]:
    found = []
    for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and cells[2].startswith("`"):
            words, packages, compounds = ([each for each in re.findall("`([^`]+)`", cell)] for cell in cells[2:])
            found += [Retired(words_of(each), tuple(packages), tuple(map(words_of, compounds))) for each in words]
    return tuple(found)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def names_in(path: Path) -> Iterator[str]:
    """The names that a file gives: its own, and those of its classes, functions and settings."""
    yield path.stem
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from _C_FUNCTION.findall(text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not node.name.startswith("meth_"):
                yield node.name
    if path.name == "config.py":
        yield from config.SETTINGS


def found_in(path: Path) -> set[str]:
    module = module_of(path)
    if module.startswith("frontend.polyfills."):
        return set()
    return {name for name in names_in(path) if any(each.is_in(module, words_of(name)) for each in retired())}


def files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.suffix in (".py", ".c", ".h"))


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_no_retired_word_is_in_a_name(path: Path):
    found = found_in(path)
    assert not found, f"{sorted(found)}: docs/glossary.md has the words to use instead"


def test_the_glossary_is_read():
    words = {each.words for each in retired()}
    assert {("continuation",), ("take", "back"), ("mortal",), ("halves",)} <= words and len(words) > 60


@pytest.mark.parametrize(("module", "name", "expected"), [
    ("resume.stop", "stop", True),
    ("resume.entry", "RestValue", True),
    ("resume.entry", "restore", False),
    ("frontend.graph", "take_back", True),
    ("frontend.graph", "take_local", False),
    ("frontend.callables.core", "_stop_values", False),
    ("frontend.interp.ops_generators", "stop_iteration_value", False),
    ("backends.native.lower.reduce", "first_place", False),
])  # fmt: skip
def test_a_word_counts_where_it_is_retired(module: str, name: str, expected: bool):
    assert any(each.is_in(module, words_of(name)) for each in retired()) is expected


def test_the_comparison_with_eager_has_one_place():
    tests = Path(__file__).parents[1]
    paths = [path for path in tests.rglob("*.py") if "\ndef assert_same_as_eager(" in path.read_text()]
    assert {path.relative_to(tests).as_posix() for path in paths} == {"differential.py", "torchvalues/conftest.py"}


if __name__ == "__main__":
    print(*sorted({name for path in files() for name in found_in(path)}))
