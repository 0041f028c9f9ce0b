"""New code as data: instructions, names and tables as they are, constants as values, references and what only an entry has.

Constants of an entry's code are its graph, the run-time helper of a graph that fails, objects by name, code objects of the
program (by their place in the frame's own code), the frame's code as it stands, and resume functions.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from fxjit.frontend.bytecode.asm import Held
from fxjit.resume import cache
from fxjit.resume.deoptimization import FailedGraph, UndoableGraph, as_it_stands
from fxjit.resume.function import ResumeFunction, ResumePoint

from .objects import Changed, NotStorable, code_digest
from .values import pack, unpack

_BYTES: Final = ("co_code", "co_linetable", "co_exceptiontable")
_PLAIN: Final = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize", "co_flags",
                 "co_filename", "co_firstlineno", "co_name", "co_qualname")
_NAMES: Final = ("co_names", "co_varnames", "co_cellvars", "co_freevars")


@dataclass(frozen=True, slots=True)
class FrameCode:
    """The code of the frame that an entry is for, and what the constants of new code may refer to."""

    code: CodeType
    #: The callable of the entry's graph.
    graph: Callable[..., Any] | None

    @property
    def original(self) -> CodeType:
        """The program's own code object: that which a resume function enters, or the frame's."""
        found = cache.resume_point_of(self.code)
        return self.code if found is None else found[0]


# -- writing -------------------------------------------------------------------------------------------------------


def pack_code(code: CodeType, frame: FrameCode) -> dict[str, Any]:
    """New code, as plain data. Raises NotStorable."""
    packed: dict[str, Any] = {name: getattr(code, name) for name in _PLAIN}
    packed.update((name, base64.b85encode(getattr(code, name)).decode()) for name in _BYTES)
    packed.update((name, list(getattr(code, name))) for name in _NAMES)
    return {**packed, "co_consts": [_pack_constant(each, frame) for each in code.co_consts]}


def _pack_constant(value: Any, frame: FrameCode) -> Any:
    if value is frame.graph and value is not None:
        return ["graph"]
    if isinstance(value, FailedGraph):
        return ["failed", value.name]
    if isinstance(value, UndoableGraph):
        return ["undoable", list(value.written), value.draws]
    if isinstance(value, Held):
        return ["held", _pack_constant(value.obj, frame)]
    if isinstance(value, CodeType):
        return _pack_inner(value, frame)
    return ["value", pack(value)]


def _pack_inner(code: CodeType, frame: FrameCode) -> Any:
    place = next((place for place, each in _inside(frame.original, ()) if each is code), None)
    if place is not None:
        return ["inside", list(place)]
    found = cache.resume_point_of(code)
    if found is not None and found[0] is frame.original:
        return ["resume", _pack_resume_function(code, found[1], frame)]
    if frame.code in (frame.original, code) or found is None:
        plain = as_it_stands(frame.code, code.co_argcount)
        if _same_text(plain, code):
            return ["as it stands", code.co_argcount]
    raise NotStorable(f"code of {code.co_qualname} that is not the frame's own")


def _same_text(first: CodeType, second: CodeType) -> bool:
    fields = (*_BYTES, *_PLAIN, *_NAMES)
    same = all(getattr(first, name) == getattr(second, name) for name in fields)
    return same and len(first.co_consts) == len(second.co_consts) and all(map(_is, first.co_consts, second.co_consts))


def _is(first: object, second: object) -> bool:
    return first is second


def _inside(code: CodeType, place: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], CodeType]]:
    """The code objects among the constants, each with the indices that lead to it."""
    for index, each in enumerate(code.co_consts):
        if isinstance(each, CodeType):
            yield (*place, index), each
            yield from _inside(each, (*place, index))


def _pack_resume_function(code: CodeType, point: ResumePoint, frame: FrameCode) -> dict[str, Any]:
    if point.inner is not None:
        raise NotStorable("a resume function that begins with another")
    made = cache.resume_function_of(frame.original, point)
    entered = [point.index, list(point.nulls), list(point.exits), list(point.locals), list(point.handled), point.constructs]
    return {"point": entered, "code": pack_code(code, frame), "stack": list(made.stack), "locals": list(made.locals),
            "freevars": list(made.freevars), "first": made.first, "indices": list(made.indices)}


# -- reading -------------------------------------------------------------------------------------------------------


def read_code(packed: dict[str, Any], frame: FrameCode) -> CodeType:
    """The code object. Raises Changed."""
    fields: dict[str, Any] = {name: packed[name] for name in _PLAIN}
    fields.update((name, base64.b85decode(packed[name])) for name in _BYTES)
    fields.update((name, tuple(packed[name])) for name in _NAMES)
    fields["co_consts"] = tuple(_read_constant(each, frame) for each in packed["co_consts"])
    return frame.code.replace(**fields)


def _read_constant(packed: list[Any], frame: FrameCode) -> Any:
    kind, *rest = packed
    if kind == "graph":
        return frame.graph
    if kind == "failed":
        return FailedGraph(rest[0])
    if kind == "undoable":
        return UndoableGraph(*rest)
    if kind == "held":
        return Held(_read_constant(rest[0], frame))
    if kind == "inside":
        found = frame.original
        for index in rest[0]:
            found = found.co_consts[index]
        if not isinstance(found, CodeType):
            raise Changed("the frame's code has other constants")
        return found
    if kind == "as it stands":
        return as_it_stands(frame.code, rest[0])
    if kind == "resume":
        return _read_resume_function(rest[0], frame)
    if kind == "value":
        return unpack(rest[0])
    raise ValueError(f"{kind} is no kind of constant")


def _read_resume_function(packed: dict[str, Any], frame: FrameCode) -> CodeType:
    """The resume function that the process has for this point, or the stored one, which it then has."""
    index, nulls, exits, locals_, handled, constructs = packed["point"]
    point = ResumePoint(index, tuple(nulls), tuple(exits), tuple(locals_), tuple(handled), None, constructs)
    code = read_code(packed["code"], FrameCode(frame.code, None))
    made = ResumeFunction(code, tuple(packed["stack"]), tuple(packed["locals"]), tuple(packed["freevars"]), packed["first"],
                          tuple(packed["indices"]))
    kept = cache.keep(frame.original, point, made)
    if kept.code is not code and code_digest(kept.code) != code_digest(code):
        raise Changed("the resume function is another one")
    return kept.code


