"""Plans the memory of a program: when each variable goes, and which share the arena.

A value that only kernels and matrix products touch needs no tensor: it gets a place in the arena, which is laid out here by
lifetimes and kept from call to call (_arena.c). Every other value is freed after the instruction that reads it last.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import replace

from .opcodes import Instruction, Listing, Variable

#: Bytes from which a value has an allocation of its own, so that its memory goes back when it is done with; and the same where
#: the arena would exceed what is kept from call to call.
LARGE, MIDDLING, ARENA_MOST = 1 << 25, 1 << 22, 1 << 26
ALIGNMENT = 128


def plan_memory(listing: Listing) -> Listing:
    """The same program with its memory shared and freed."""
    last = last_uses(listing.instructions)
    offsets, arena = arena_layout(listing.instructions, last)
    out = list(freed((name for name in listing.inputs if name not in last), offsets))
    done: dict[int, list[str]] = {}
    for name, position in last.items():
        done.setdefault(position, []).append(name)
    for position, each in enumerate(listing.instructions):
        out += in_arena(each, offsets[each.out]) if each.out in offsets else [each]
        if each.name != "RETURN":
            out += freed(sorted(done.get(position, ())), offsets)
    return replace(listing, instructions=out, arena=arena)


def in_arena(instruction: Instruction, offset: int) -> list[Instruction]:
    """The form of an instruction that makes a tensor where memory in the arena suffices."""
    out = instruction.operands["out"]
    placed = [Instruction("ARENA", out=out, offset=offset)]
    if instruction.name == "CALL":  # of the function that makes a tensor of a number
        placed.append(Instruction("STORE_NUMBER", into=out, number=instruction.repeated[0]))
    return placed


def freed(names: Iterable[str], offsets: dict[str, int]) -> list[Instruction]:
    gone = [Variable(name) for name in names if name not in offsets]
    return [Instruction("FREE", tuple(gone))] if gone else []


def last_uses(instructions: list[Instruction]) -> dict[str, int]:
    """Where each variable is read last; one that is not, where it is defined. A step with what it repeats where it fails counts
    as one instruction, behind whose FAIL the call goes on: what is defined in it goes with the call."""
    last: dict[str, int] = {}
    for part in parts_of(instructions):
        inside: set[str] = set()
        for each in (instructions[position] for position in part):
            outs = () if each.out is None else (each.out,)
            inside.update(outs if len(part) > 1 else ())
            for name in (*each.reads(), *outs):
                if name not in inside:
                    last[name] = part[-1]
    return last


def parts_of(instructions: list[Instruction]) -> Iterator[range]:
    """The positions of each instruction; those of one that may fail with what it then repeats, up to the FAIL."""
    first, repeating = 0, False
    for position, each in enumerate(instructions):
        after = instructions[position + 1].name if position + 1 < len(instructions) else ""
        repeating = (repeating or after == "REPEAT") and each.name != "FAIL"
        if not repeating:
            yield range(first, position + 1)
            first = position + 1


def arena_layout(instructions: list[Instruction], last: dict[str, int]) -> tuple[dict[str, int], int]:
    """Where in the arena each value is that need not be a tensor, and the arena's size. The largest first, each at the lowest
    place that is free during its lifetime."""
    tensors = {name for each in instructions if not each.opcode.by_pointer for name in each.reads()}
    spans: list[tuple[int, int, int, str]] = []
    for position, each in enumerate(instructions):
        if each.buffer is None or each.out is None or each.out in tensors or each.buffer.device.type != "cpu":
            continue
        count = each.buffer.extent
        if not isinstance(count, int) or count * each.buffer.dtype.itemsize > LARGE:
            continue
        size = -(-max(count * each.buffer.dtype.itemsize, 1) // ALIGNMENT) * ALIGNMENT
        spans.append((size, position, last[each.out], each.out))
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[str, int] = {}
    for size, first, end_of_life, name in sorted(spans, key=lambda span: (-span[0], span[1])):
        at = 0
        for start, end, other_first, other_last in placed:
            if other_last >= first and end_of_life >= other_first and start < at + size and end > at:
                at = end
        if size > MIDDLING and at + size > ARENA_MOST:
            continue
        insort(placed, (at, at + size, first, end_of_life))
        offsets[name] = at
    return offsets, max((end for _, end, _, _ in placed), default=0)
