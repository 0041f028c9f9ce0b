"""New code as data: instructions, names and tables as they are, constants as values, references and what only an entry has.

Constants of an entry's code are its graph, the run-time helper of a graph that fails, objects by name, code objects of the
program (by their place in the frame's own code, or in that of a function that a guard names), the frame's code as it stands,
resume functions, and what runs in inner frames of a nested break.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any, Final

from fxjit import _C
from fxjit.frontend.bytecode.asm import Held
from fxjit.resume import cache
from fxjit.resume.deoptimization import FailedGraph, UndoableGraph, as_it_stands
from fxjit.resume.function import HandOver, ResumeFunction, ResumePoint

from .objects import Changed, NotStorable, code_digest, digest_of, find, refer_to_function_of
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
    #: The code of functions that the entry's guards name, each by the place of its source.
    guarded: Mapping[int, CodeType] = field(default_factory=dict)

    @property
    def original(self) -> CodeType:
        """The program's own code object: that which a resume function enters, or the frame's."""
        return _original(self.code)

    def originals(self) -> Iterator[tuple[int | None, CodeType]]:
        """The program's code objects: the frame's (None), and those of the functions that guards name."""
        yield None, self.original
        yield from ((place, _original(code)) for place, code in self.guarded.items())

    def at(self, place: int | list[Any] | None) -> CodeType:
        """The one of that number, or of the function with that reference. Raises Changed."""
        if isinstance(place, list):
            function: FunctionType = find(place)
            return function.__code__
        return self.original if place is None else _original(self.guarded[place])


def _original(code: CodeType) -> CodeType:
    found = cache.resume_point_of(code)
    return code if found is None else found[0]


# -- writing -------------------------------------------------------------------------------------------------------


def pack_code(code: CodeType, frame: FrameCode) -> dict[str, Any]:
    """New code, as plain data. Raises NotStorable."""
    packed: dict[str, Any] = {name: getattr(code, name) for name in _PLAIN}
    packed.update((name, base64.b64encode(getattr(code, name)).decode()) for name in _BYTES)
    packed.update((name, list(getattr(code, name))) for name in _NAMES)
    return {**packed, "co_consts": [_pack_constant(each, frame) for each in code.co_consts]}


def _pack_constant(value: Any, frame: FrameCode) -> Any:
    if value is frame.graph and value is not None:
        return ["graph"]
    if isinstance(value, FailedGraph):
        return ["failed", value.name, value.if_unwritten]
    if isinstance(value, UndoableGraph):
        return ["undoable", list(value.written), value.draws, value.if_unwritten, value.whole]
    if isinstance(value, Held):
        return ["held", _pack_constant(value.obj, frame)]
    if isinstance(value, CodeType):
        return _pack_inner(value, frame)
    if isinstance(value, FunctionType) and _is_generated(value.__code__):  # of an inner frame with globals of its own
        return ["function", _pack_inner(value.__code__, frame), pack(value.__globals__)]
    return ["value", pack(value)]


def _pack_inner(code: CodeType, frame: FrameCode) -> Any:
    for whose, original in frame.originals():
        place = next((place for place, each in _inside(original, ()) if each is code), None)
        if place is not None:
            return ["inside", whose, list(place)]
    found = cache.resume_point_of(code)
    if found is not None:
        return ["resume", *_pack_resume_function(code, found[0], found[1], frame)]
    if _C.get_flags(code) & _C.TRANSFORMED:
        return ["inner frame", pack_code(code, frame)]
    plain = as_it_stands(frame.code, code.co_argcount)
    if _same_text(plain, code):
        return ["as it stands", code.co_argcount]
    raise NotStorable(f"code of {code.co_qualname} that is not the frame's own")


def _is_generated(code: CodeType) -> bool:
    """Whether it was written for inner frames of a nested break."""
    return bool(_C.get_flags(code) & _C.TRANSFORMED) or cache.resume_point_of(code) is not None


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


def _pack_resume_function(code: CodeType, original: CodeType, point: ResumePoint, frame: FrameCode) -> list[Any]:
    """Whose it is, how it enters that, and its code. The function that it begins with has the same form."""
    whose: int | list[Any] | None = next((place for place, each in frame.originals() if each is original), -1)
    if whose == -1:
        whose = refer_to_function_of(original)
    made = cache.resume_function_of(original, point)
    inner = None if point.inner is None else _pack_inner(point.inner.code, frame)[1:]
    leaves = None if point.leaves is None else [
        [each.index, list(each.nulls), _pack_inner(each.to.code, frame)[1:], list(each.doubtful)] for each in point.leaves]
    entered = [point.index, list(point.nulls), list(point.exits), list(point.locals), list(point.handled), inner,
               point.constructs, list(point.doubtful), leaves, list(point.loops)]
    return [whose, {"point": entered, "digest": _digest(code), "code": pack_code(code, frame), "stack": list(made.stack),
                    "locals": list(made.locals), "freevars": list(made.freevars), "first": made.first,
                    "indices": list(made.indices)}]


# -- reading -------------------------------------------------------------------------------------------------------


def read_code(packed: dict[str, Any], frame: FrameCode) -> CodeType:
    """The code object. Raises Changed."""
    fields: dict[str, Any] = {name: packed[name] for name in _PLAIN}
    fields.update((name, base64.b64decode(packed[name])) for name in _BYTES)
    fields.update((name, tuple(packed[name])) for name in _NAMES)
    fields["co_consts"] = tuple(_read_constant(each, frame) for each in packed["co_consts"])
    return frame.code.replace(**fields)


def _read_constant(packed: list[Any], frame: FrameCode) -> Any:
    kind, *rest = packed
    if kind == "graph":
        return frame.graph
    if kind == "failed":
        return FailedGraph(*rest)
    if kind == "undoable":
        return UndoableGraph(*rest)
    if kind == "held":
        return Held(_read_constant(rest[0], frame))
    if kind == "function":
        return FunctionType(_read_constant(rest[0], frame), unpack(rest[1]))
    if kind == "inner frame":
        code = read_code(rest[0], frame)
        _C.set_flags(code, _C.TRANSFORMED)
        return code
    if kind == "inside":
        found = frame.at(rest[0])
        for index in rest[1]:
            found = found.co_consts[index]
        if not isinstance(found, CodeType):
            raise Changed("the frame's code has other constants")
        return found
    if kind == "as it stands":
        return as_it_stands(frame.code, rest[0])
    if kind == "resume":
        return _read_resume_function(rest[0], rest[1], frame).code
    if kind == "value":
        return unpack(rest[0])
    raise ValueError(f"{kind} is no kind of constant")


def _digest(code: CodeType) -> str | None:
    """The digest of a resume function; None where constants have no text."""
    try:
        return digest_of(code)
    except NotStorable:
        return None


def _read_resume_function(whose: int | list[Any] | None, packed: dict[str, Any], frame: FrameCode) -> ResumeFunction:
    """The resume function that the process has for this point, or the stored one, which it then has."""
    index, nulls, exits, locals_, handled, first, constructs, doubtful, leaves, loops = packed["point"]
    inner = None if first is None else _read_resume_function(first[0], first[1], frame)
    ends = None if leaves is None else tuple(HandOver(at, tuple(left), _read_resume_function(to[0], to[1], frame), tuple(names))
                 for at, left, to, names in leaves)
    point = ResumePoint(index, tuple(nulls), tuple(exits), tuple(locals_), tuple(handled), inner, constructs, tuple(doubtful),
                        ends, tuple(loops))
    known = cache.known_resume_function(frame.at(whose), point)
    if known is not None and packed["digest"] is not None and _digest(known.code) == packed["digest"]:
        return known
    code = read_code(packed["code"], replace(frame, graph=None))
    made = ResumeFunction(code, tuple(packed["stack"]), tuple(packed["locals"]), tuple(packed["freevars"]), packed["first"],
                          tuple(packed["indices"]))
    kept = cache.keep(frame.at(whose), point, made)
    if kept.code is not code and digest_of(kept.code) != code_digest(code):
        raise Changed("the resume function is another one")
    return kept
