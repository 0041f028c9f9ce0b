"""The code objects that the bytecode tests walk over: every function, class body and module of the standard library."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from zlib import crc32

LIBRARY = Path(os.__file__).parent
SAMPLED = 40
"""One file in so many is looked at, unless the whole library is asked for (`--whole-library`)."""


def nested(code: CodeType) -> Iterator[CodeType]:
    """`code` and every code object inside it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield from nested(item)


def code_objects(pattern: str) -> Iterator[CodeType]:
    """Those of the files that match, relative to the library."""
    for path in sorted(LIBRARY.glob(pattern)):
        yield from _of_file(path)


def all_files() -> list[Path]:
    """Every Python file of the standard library, its tests included, that is no installed package."""
    return [path for path in sorted(LIBRARY.rglob("*.py")) if "site-packages" not in path.parts]


def sampled(path: Path) -> bool:
    """Chosen by the name alone, so that every machine with the same Python looks at the same files."""
    return crc32(path.relative_to(LIBRARY).as_posix().encode()) % SAMPLED == 0


@cache
def library(whole: bool) -> tuple[CodeType, ...]:
    """The code objects of the whole library, or of the sample."""
    return tuple(code for path in all_files() if whole or sampled(path) for code in _of_file(path))


def _of_file(path: Path) -> Iterator[CodeType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):  # the library's tests of its own parser
            return
    yield from nested(code)
