"""The public surface of torch.compile, and what became of each name: surface.tsv has one row for each, docs/coverage.md is made
from it, and `install` does what it says.

`same`, `better` and `differs` are functions of fxjit's, or torch's own where nothing of it is about compiling. `refused`
raises, with the row's note. `warns once` does what torch does, which has no effect on what fxjit compiles, and says so
the first time.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NoReturn, Protocol

from .errors import ConfigError
from .replacements import copy_of

#: The name of a row for all names of its place that have none of their own.
OTHERS: Final = "*"
SAME, BETTER, DIFFERS, REFUSED, WARNS = "same", "better", "differs", "refused", "warns once"
TABLE: Final = Path(__file__).with_name("surface.tsv")


@dataclass(frozen=True, slots=True)
class Decision:
    """The treatment of `place`.`name` while the drop-in is installed."""

    place: str
    name: str
    decision: str
    note: str


class Replacements(Protocol):
    """How the drop-in changes torch, and changes it back (replacements.py)."""

    def claim(self, holder: Any, name: str, ours: Callable[..., Any]) -> None: ...


@functools.cache
def decisions() -> dict[tuple[str, str], Decision]:
    """The table, by place and name."""
    rows = (Decision(*line.split("\t")) for line in TABLE.read_text().splitlines()[1:])
    return {(row.place, row.name): row for row in rows}


def decision(place: str, name: str) -> Decision | None:
    """What becomes of that name, by its own row or by its place's for all others."""
    if (row := decisions().get((place, name))) is not None:
        return row
    others = decisions().get((place, OTHERS))
    return None if others is None else dataclasses.replace(others, name=name)


def apply(module: ModuleType, made: Replacements) -> None:
    """Replaces the functions of a module that are refused, or that have no effect on fxjit."""
    for row in decisions().values():
        theirs = getattr(module, row.name, None) if row.place == module.__name__ else None
        if callable(theirs) and row.decision == REFUSED:
            made.claim(module, row.name, _refusing(row))
        elif callable(theirs) and row.decision == WARNS:
            made.claim(module, row.name, _warning(_copy(theirs), row))


def warn_of_setting(place: str, name: str) -> None:
    """For an assignment to a setting of torch's, unless torch assigns it: says once if it has no effect on fxjit."""
    row = decision(place, name)
    if row is not None and row.decision == WARNS and _is_setting(place, name) and not _is_torchs_doing():
        _warn(row)


def _is_setting(place: str, name: str) -> bool:
    """Whether torch's module of settings declares it: until torch 2.12 it assigns its own state (`_is_dirty`) as it does
    settings."""
    declared = getattr(sys.modules.get(place), "_config", None)
    return declared is None or name in declared


def _is_torchs_doing() -> bool:
    """Whether the nearest caller outside of fxjit and of torch's classes of settings is torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("fxjit.", "contextlib", "torch.utils._config_module")):
            return name.partition(".")[0] == "torch"
        frame = frame.f_back
    return False


def _refusing(row: Decision) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(f"{row.place}.{row.name} does not work with fxjit: {row.note}.")

    return refused


def _copy(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """What still does what `theirs` did once that was claimed."""
    return copy_of(theirs) if isinstance(theirs, FunctionType) else theirs


def _warning(theirs: Callable[..., Any], row: Decision) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def with_warning(*args: Any, **kwargs: Any) -> Any:
        if not _is_torchs_doing():
            _warn(row)
        return theirs(*args, **kwargs)

    return with_warning


@functools.cache
def _warn(row: Decision) -> None:
    warnings.warn(f"{row.place}.{row.name}: {row.note}.", stacklevel=4)
