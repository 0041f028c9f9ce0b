"""Emitted instructions -> code object: jumps, EXTENDED_ARG, caches, line and exception tables, stack depth.

`asm.Asm` collects the instructions, `assemble` is its last step. Written here rather than over the `bytecode` library:
constants may be any objects (the library marshals and merges them), original instructions are copied by their number
(the library wants each argument in its own enums, a second table of versions), and it takes half the time.
Formats: CPython's Objects/locations.md and Objects/exception_handling_notes.txt; stack effects come from `dis`."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .instruction import Positions
from .versions import BACKWARD, CACHE, CACHES, EXTENDED_ARG, HAVE_ARGUMENT, OPCODES

NOWHERE = Positions(None, None, None, None)


@dataclass(slots=True, eq=False)
class Label:
    """A place in emitted code: the index of the instruction it stands before, once it is placed."""

    at: int = -1


@dataclass(slots=True, eq=False)
class Guarding:
    """A handler that emitted instructions stand under. `depth` None: the depth at the first of them."""

    target: Label
    push_lasti: bool
    depth: int | None = None


@dataclass(slots=True, eq=False)
class Emitted:
    """One native instruction. `label` is where a jump goes; `slot` names a local, cell or free variable."""

    opcode: int
    arg: int
    positions: Positions
    label: Label | None = None
    slot: str | None = None
    handler: Guarding | None = None


@dataclass(slots=True)
class Assembled:
    """The parts of a code object that follow from its instructions."""

    code: bytes
    linetable: bytes
    exceptiontable: bytes
    stacksize: int
    depths: list[int] = field(default_factory=list)


def assemble(instructions: Sequence[Emitted], first_line: int) -> Assembled:
    """Encode `instructions`; slots must have been resolved to numbers."""
    depths, stacksize = _stack_depths(instructions)
    starts = _place(instructions)
    raw = bytearray()
    for nth, instruction in enumerate(instructions):
        arg = _argument(instruction, nth, starts)
        for shift in (24, 16, 8):
            if arg >> shift:
                raw += bytes((EXTENDED_ARG, arg >> shift & 255))
        raw += bytes((instruction.opcode, arg & 255))
        raw += bytes((CACHE, 0)) * CACHES[instruction.opcode]
    table = bytes(_exception_table(instructions, starts, depths))
    return Assembled(bytes(raw), bytes(_line_table(instructions, starts, first_line)), table, stacksize, depths)


# -- where instructions stand --------------------------------------------------------------------------------------


def _place(instructions: Sequence[Emitted]) -> list[int]:
    """The code unit at which each instruction starts, and at the end where the next one would. Distances only grow with the
    sizes, so this ends, with no jump having more room than it needs."""
    sizes = [_units(instruction.opcode, instruction.arg) for instruction in instructions]
    while True:
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        stable = True
        for nth, instruction in enumerate(instructions):
            if instruction.label is not None:
                size = _units(instruction.opcode, _argument(instruction, nth, starts))
                if size > sizes[nth]:
                    sizes[nth] = size
                    stable = False
        if stable:
            return starts


def _units(opcode: int, arg: int) -> int:
    return 1 + (arg > 0xFF) + (arg > 0xFFFF) + (arg > 0xFFFFFF) + CACHES[opcode]


def _argument(instruction: Emitted, nth: int, starts: Sequence[int]) -> int:
    if instruction.label is None:
        return instruction.arg
    target = starts[instruction.label.at]
    after = starts[nth + 1]
    distance = after - target if instruction.opcode in BACKWARD else target - after
    assert distance >= 0, f"{dis.opname[instruction.opcode]} jumps the other way"
    return distance


# -- stack depth ---------------------------------------------------------------------------------------------------


def _stack_depths(instructions: Sequence[Emitted]) -> tuple[list[int], int]:
    """The depth before each instruction (-1 where control never comes) and the greatest one."""
    depths = [-1] * len(instructions)
    deepest = 0
    pending = [(0, 0)]
    while pending:
        at, depth = pending.pop()
        deepest = max(deepest, depth)  # a handler begins with the exception on its stack, and may take it off at once
        while at < len(instructions) and depths[at] < 0:
            depths[at] = depth
            instruction = instructions[at]
            opcode = instruction.opcode
            arg = instruction.arg if opcode in HAVE_ARGUMENT else None
            guarding = instruction.handler
            if guarding is not None:
                if guarding.depth is None:
                    guarding.depth = depth
                pending.append((guarding.target.at, guarding.depth + 1 + guarding.push_lasti))
            if instruction.label is not None:
                pending.append((instruction.label.at, depth + dis.stack_effect(opcode, arg, jump=True)))
            # A generator begins with what was sent to it on its stack, which `dis` counts only since 3.13.
            depth += 1 if opcode == _RETURN_GENERATOR else dis.stack_effect(opcode, arg, jump=False)
            assert depth >= 0, f"{dis.opname[opcode]} takes more than the stack holds"
            deepest = max(deepest, depth)
            if opcode in _NO_NEXT:
                break
            at += 1
            if at < len(instructions) and depths[at] >= 0:
                assert depths[at] == depth, f"two ways to {dis.opname[instructions[at].opcode]} with different stacks"
    return depths, deepest


_RETURN_GENERATOR = OPCODES["RETURN_GENERATOR"]
_NO_NEXT = frozenset(
    OPCODES[name]
    for name in ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
                 "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT")
    if name in OPCODES
)  # fmt: skip


# -- exception table -----------------------------------------------------------------------------------------------


def _exception_table(instructions: Sequence[Emitted], starts: Sequence[int], depths: Sequence[int]) -> Iterator[int]:
    at = 0
    while at < len(instructions):
        guarding = instructions[at].handler
        first = at
        while at < len(instructions) and instructions[at].handler is guarding:
            at += 1
        if guarding is None or guarding.depth is None:
            continue
        yield from _varint(starts[first], begins=True)
        yield from _varint(starts[at] - starts[first])
        yield from _varint(starts[guarding.target.at])
        yield from _varint(guarding.depth << 1 | guarding.push_lasti)


def _varint(number: int, begins: bool = False) -> Iterator[int]:
    """6-bit groups, most significant first; bit 6: more follow; bit 7: an entry begins."""
    groups = [number & 63]
    while number > 63:
        number >>= 6
        groups.append(number & 63)
    groups.reverse()
    for nth, group in enumerate(groups):
        yield group | (64 if nth < len(groups) - 1 else 0) | (128 if begins and nth == 0 else 0)


# -- line table ----------------------------------------------------------------------------------------------------


def _line_table(instructions: Sequence[Emitted], starts: Sequence[int], first_line: int) -> Iterator[int]:
    line = first_line
    at = 0
    while at < len(instructions):
        positions = instructions[at].positions
        first = at
        while at < len(instructions) and instructions[at].positions == positions:
            at += 1
        units = starts[at] - starts[first]
        while units > 0:
            yield from _location(min(units, 8), positions, line)
            units -= 8
            if positions.line is not None:
                line = positions.line


def _location(units: int, positions: Positions, line: int) -> Iterator[int]:
    here, end_line, column, end_column = positions
    if here is None:
        yield 0x80 | 15 << 3 | units - 1
        return
    delta = here - line
    if column is None or end_column is None or end_line is None:
        yield 0x80 | 13 << 3 | units - 1
        yield from _signed(delta)
        return
    if end_line == here and delta == 0 and column < 80 and 0 <= end_column - column < 16:
        yield 0x80 | column >> 3 << 3 | units - 1
        yield (column & 7) << 4 | end_column - column
    elif end_line == here and 0 <= delta < 3 and column < 128 and end_column < 128:
        yield 0x80 | 10 + delta << 3 | units - 1
        yield column
        yield end_column
    elif end_line < here:
        yield 0x80 | 13 << 3 | units - 1
        yield from _signed(delta)
    else:
        yield 0x80 | 14 << 3 | units - 1
        yield from _signed(delta)
        yield from _unsigned(end_line - here)
        yield from _unsigned(column + 1)
        yield from _unsigned(end_column + 1)


def _unsigned(number: int) -> Iterator[int]:
    """6-bit groups, least significant first; bit 6: more follow."""
    while number > 63:
        yield number & 63 | 64
        number >>= 6
    yield number


def _signed(number: int) -> Iterator[int]:
    yield from _unsigned(-number << 1 | 1 if number < 0 else number << 1)
