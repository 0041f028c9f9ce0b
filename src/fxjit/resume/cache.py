"""The cache of resume functions, one for each (original code, index, stack shape, blocks, bound locals), and their origins.

entry.py gets resume functions here. A break inside a resume function gives one of the *original* code, so that two
ways to one resume point share it, and chains of breaks do not nest code in code. Nothing here keeps code objects alive: the
resume functions of a code object go with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from weakref import ref

from fxjit.frontend.bytecode.decode import decode
from fxjit.resume.function import HandOver, ResumeFunction, ResumePoint, write_resume_function
from fxjit.resume.region import region_exits
from fxjit.skips import marks


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a resume function came from: `code.instructions[index]` is where it goes on."""

    code: CodeType
    index: int


@dataclass(slots=True)
class _Known:
    """Resume data of a live code object."""

    alive: ref[CodeType]
    resume_functions: dict[ResumePoint, ResumeFunction] = field(default_factory=dict)
    # Of a resume function itself: the original it enters, weakly, and for each of its instructions that one's index there.
    original: ref[CodeType] | None = None
    indices: tuple[int | None, ...] = ()
    index: int = 0
    point: ResumePoint | None = None
    first: str | None = None


_known: dict[int, _Known] = {}


def _of(code: CodeType) -> _Known:
    known = _known.get(id(code))
    if known is None or known.alive() is not code:
        key = id(code)
        known = _known[key] = _Known(ref(code, partial(_forget, _known, key)))
    return known


def _forget(table: dict[int, _Known], key: int, dead: ref[CodeType]) -> None:
    """May run when this module's globals are gone."""
    known = table.get(key)
    if known is not None and known.alive is dead:
        del table[key]


def locate(code: CodeType, index: int) -> Origin:
    """The same instruction in the original code: `code` itself unless it is a resume function. What only such a function
    has (its prologue) is located there."""
    known = _known.get(id(code))
    if known is None or known.alive() is not code or known.original is None:
        return Origin(code, index)
    original = known.original()
    there = known.indices[index] if index < len(known.indices) else None
    if original is None or there is None:
        return Origin(code, index)
    return Origin(original, there)


def origin_of(code: CodeType) -> Origin | None:
    """For messages: what `code` continues; None where it is no resume function."""
    known = _known.get(id(code))
    if known is None or known.alive() is not code or known.original is None:
        return None
    original = known.original()
    return None if original is None else Origin(original, known.index)


def line_gone_on_at(code: CodeType) -> int | None:
    """For messages: the line of the program where a resume function goes on; None for other code."""
    origin = origin_of(code)
    return None if origin is None else decode(origin.code).instructions[origin.index].line


def resume_point_of(code: CodeType) -> tuple[CodeType, ResumePoint, str | None] | None:
    """The original that a resume function enters, how, and the parameter that is the first argument; None for other code."""
    known = _known.get(id(code))
    if known is None or known.alive() is not code or known.original is None or known.point is None:
        return None
    original = known.original()
    return None if original is None else (original, known.point, known.first)


def resume_function_of(code: CodeType, point: ResumePoint) -> ResumeFunction:
    """The code that goes on at `entrance` of `code`, which is an original (see `locate`)."""
    point = replace(point, locals=_by_slot(code, point.locals))
    known = _of(code)
    made = known.resume_functions.get(point)
    return made if made is not None else keep(code, point, write_resume_function(decode(code), point))


def region_function_of(code: CodeType, point: ResumePoint) -> ResumeFunction:
    """The code that CPython runs from there to the end of the region (region.py), which hands over to resume functions."""
    decoded = decode(code)
    exits = region_exits(decoded, point.index, point.nulls, frozenset(point.locals))
    leaves = tuple(HandOver(each.index, each.nulls, resume_function_of(code, ResumePoint(
        each.index, each.nulls, (), each.locals, doubtful=each.doubtful)), each.doubtful) for each in exits)
    return resume_function_of(code, replace(point, leaves=leaves))


def known_resume_function(code: CodeType, point: ResumePoint) -> ResumeFunction | None:
    """The resume function of `code` for this point, if it was made."""
    return _of(code).resume_functions.get(point)


def keep(code: CodeType, point: ResumePoint, made: ResumeFunction) -> ResumeFunction:
    """The resume function of `code` for this point: `made`, unless there is one already."""
    known = _of(code)
    kept = known.resume_functions.setdefault(point, made)
    if kept is made:
        if point.leaves is None:
            marks.set_code_resumes(made.code)
        else:
            marks.set_code_interpreted(made.code)
        own = _of(made.code)
        own.original, own.indices, own.index = known.alive, made.indices, point.index
        own.point, own.first = point, made.first
    return kept


def _by_slot(code: CodeType, names: tuple[str, ...]) -> tuple[str, ...]:
    """Locals in the order of the frame of `code`: that is the order in which it lets go of them at its end."""
    slots = {name: at for at, name in enumerate(decode(code).varnames)}
    return tuple(sorted(names, key=lambda name: (slots.get(name, len(slots)), name)))
