"""Code object -> `Code`: every instruction in canonical form, jumps as indices, the exception table as handlers.

Called by the interpreter for each frame it traces and by `resume` for resume functions. Decoding is remembered for as
long as the code object lives, without keeping it alive."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any, NamedTuple
from weakref import ref

from .instruction import CallSpec, Code, Handler, Instruction, Positions, Protected
from .normalize import canonical, own_slot
from .versions import BACKWARD, CACHES, EXTENDED_ARG, HAVE_ARGUMENT, JUMPS, OPNAMES, VERSION

_NOWHERE = Positions(None, None, None, None)

_decoded: dict[int, tuple[ref[CodeType], list[Instruction], tuple[Protected, ...], dict[str, Any]]] = {}


def decode(code: CodeType) -> Code:
    """The instructions of `code`. The lists are shared by all callers and must not be mutated."""
    known = _decoded.get(id(code))
    if known is None or known[0]() is not code:
        instructions, index_at = _instructions(code)
        protected = tuple(_protected(code, index_at, len(instructions)))
        key = id(code)
        known = (ref(code, partial(_forget, _decoded, key)), instructions, protected, {})
        _decoded[key] = known
    varnames, cellvars = code.co_varnames, code.co_cellvars
    if not {*varnames, *cellvars}.isdisjoint(code.co_freevars):
        varnames = tuple(own_slot(code, name) for name in varnames)
        cellvars = tuple(own_slot(code, name) for name in cellvars)
    return Code(code, known[1], known[2], varnames, cellvars, code.co_freevars, known[3])


def _forget(table: dict[int, Any], key: int, dead: ref[CodeType]) -> None:
    """May run when this module's globals are gone."""
    known = table.get(key)
    if known is not None and known[0] is dead:
        del table[key]


class _Unit(NamedTuple):
    """A native instruction: where it starts (EXTENDED_ARG included), where its opcode stands, where the next begins."""

    start: int
    offset: int
    end: int
    opcode: int
    arg: int


def _units(raw: bytes) -> Iterator[_Unit]:
    """The native instructions, without EXTENDED_ARG and CACHE."""
    start = offset = extended = 0
    while offset < len(raw):
        number, arg = raw[offset], raw[offset + 1] | extended
        if number == EXTENDED_ARG:
            extended = arg << 8
            offset += 2
            continue
        end = offset + 2 + 2 * CACHES[number]
        yield _Unit(start, offset, end, number, arg)
        start = offset = end
        extended = 0


def _instructions(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """The canonical instructions, and the index of the instruction that begins at each byte offset."""
    positions = [Positions(*entry) for entry in code.co_positions()]
    instructions: list[Instruction] = []
    index_at: dict[int, int] = {}
    jumps: list[tuple[Instruction, int]] = []
    kwnames: tuple[str, ...] = ()
    for unit in _units(code.co_code):
        native = OPNAMES[unit.opcode]
        index_at[unit.start] = index_at[unit.offset] = len(instructions)
        where = positions[unit.offset // 2] if unit.offset // 2 < len(positions) else _NOWHERE
        for nth, form in enumerate(canonical(code, native, unit.arg)):
            instruction = Instruction(
                opname=form.opname,
                arg=unit.arg if unit.opcode in HAVE_ARGUMENT else None,
                argval=form.argval,
                flag=form.flag,
                index=len(instructions),
                offset=unit.offset,
                positions=where,
                native=form.native or native,
                native_arg=unit.arg if form.native_arg is None else form.native_arg,
                original=nth == 0,
            )
            instructions.append(instruction)
        if native == "KW_NAMES":
            kwnames = code.co_consts[unit.arg]
        elif native == "CALL":
            instruction.argval = CallSpec(unit.arg, kwnames)
            kwnames = ()
        elif unit.opcode in JUMPS:
            distance = -unit.arg if unit.opcode in BACKWARD else unit.arg
            jumps.append((instruction, unit.end + 2 * distance))
    for instruction, offset in jumps:
        instruction.landing = instruction.target = index_at[offset]
        if instruction.opname == "FOR_ITER":
            instruction.target += _skipped(instructions, index_at[offset])
    return instructions, index_at


def _skipped(instructions: list[Instruction], landing: int) -> int:
    """How many instructions an exhausted FOR_ITER jumps over at its target."""
    for nth, opname in enumerate(VERSION.loop_end):
        assert instructions[landing + nth].opname == opname, "FOR_ITER jumps to where a loop ends"
    return len(VERSION.loop_end)


def _protected(code: CodeType, index_at: dict[int, int], count: int) -> Iterator[Protected]:
    """The exception table, see CPython's Objects/exception_handling_notes.txt."""
    numbers = _varints(code.co_exceptiontable)
    for start in numbers:
        length, target, depth_lasti = next(numbers), next(numbers), next(numbers)
        first = index_at[start * 2]
        last = index_at.get((start + length) * 2, count)
        yield Protected(first, last, Handler(index_at[target * 2], depth_lasti >> 1, bool(depth_lasti & 1)))


def _varints(table: bytes) -> Iterator[int]:
    """Numbers of 6-bit groups, most significant first, bit 6 set on all but the last."""
    number = 0
    for byte in table:
        number = number << 6 | byte & 63
        if not byte & 64:
            yield number
            number = 0
