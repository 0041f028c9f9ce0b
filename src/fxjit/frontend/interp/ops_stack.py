"""Instructions that only move stack entries."""

from __future__ import annotations

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values.base import NULL


@op("NOP")
def nop(m: Machine, i: Instruction) -> None:
    return None


@op("POP_TOP", "END_FOR")
def pop_top(m: Machine, i: Instruction) -> None:
    m.stack.pop()


@op("END_SEND")
def end_send(m: Machine, i: Instruction) -> None:
    del m.stack[-2]


@op("PUSH_NULL")
def push_null(m: Machine, i: Instruction) -> None:
    m.stack.append(NULL)


@op("COPY")
def copy(m: Machine, i: Instruction) -> None:
    assert i.arg is not None
    m.stack.append(m.stack[-i.arg])


@op("SWAP")
def swap(m: Machine, i: Instruction) -> None:
    assert i.arg is not None
    stack = m.stack
    stack[-1], stack[-i.arg] = stack[-i.arg], stack[-1]
