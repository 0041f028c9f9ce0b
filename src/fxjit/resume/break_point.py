"""The instruction at a break point: how it runs in the new code, where control goes then, and what the stack looks like there.

entry.py calls it. The instruction runs as it stands, with two liberties: what would leave [method, self] or [NULL, attribute]
on the stack, as it comes, leaves the latter; and a conditional jump behind it is taken at once, into one of two resume
functions, so that none depends on the outcome.
"""

from __future__ import annotations

import dis
from collections.abc import Mapping
from dataclasses import dataclass

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.assemble import Label
from fxjit.frontend.bytecode.instruction import CallSpec, Code, Handler, Instruction
from fxjit.frontend.bytecode.normalize import JUMPS_IF, LEAVES
from fxjit.frontend.bytecode.versions import HAVE_ARGUMENT, OPCODES, VERSION

#: Kinds of breaks whose instruction is left to the resume function.
RUNS_NOTHING = frozenset({"resume", "region"})
_TESTS = frozenset({"POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Control goes on at `index` of the traced code, with a stack of which `nulls` are NULL."""

    index: int
    nulls: tuple[bool, ...]
    label: str | None = None
    """The label of `run_instruction` that stands here; None: right behind the instruction."""
    loop_end: tuple[Instruction, ...] = ()
    """What CPython wants to find where an exhausted loop jumps to."""
    ends: bool = False
    """Control never gets here: the instruction raises or returns."""
    raised: bool = False
    """Control gets here by an exception, which is the last entry of the stack."""
    lasti_at: int | None = None
    """The stack entry, under the exception, that says where it was raised."""

    @property
    def own(self) -> int:
        """How many entries of the stack are there before an exception is pushed."""
        return len(self.nulls) - (self.raised + (self.lasti_at is not None))


def after(code: Code, index: int, kind: str, nulls: tuple[bool, ...], bound: frozenset[str]) -> list[Outcome]:
    """Where control goes after the instruction at `index`; `bound` are the locals that are bound before it."""
    instruction = code.instructions[index]
    if kind in RUNS_NOTHING:
        return [Outcome(index, nulls)]
    if instruction.opname in LEAVES:
        return [Outcome(index, (), ends=True)]
    branch = _branch(code, index)
    if branch is not None:
        if branch is not instruction:
            nulls = _stack_after(instruction, nulls) if instruction.opname != "TO_BOOL" else nulls
        return _branch_outcomes(code, branch, nulls)
    if instruction.opname == "LOAD_FAST_AND_CLEAR":
        return [Outcome(index + 1, (*nulls, instruction.argval not in bound))]
    if instruction.opname == "JUMP":
        assert instruction.target is not None, "a jump goes somewhere"
        return [Outcome(instruction.target, nulls)]
    return [Outcome(index + 1, _stack_after(instruction, nulls))]


def after_raising(handler: Handler | None, nulls: tuple[bool, ...]) -> Outcome | None:
    """Where control goes when the instruction raises and `handler` catches."""
    if handler is None:
        return None
    kept = nulls[: handler.depth]
    lasti_at = handler.depth if handler.push_lasti else None
    return Outcome(handler.target, (*kept, *([False] * (1 + handler.push_lasti))), raised=True, lasti_at=lasti_at)


def bound_after(instruction: Instruction, bound: tuple[str, ...], nulls: tuple[bool, ...]) -> tuple[str, ...]:
    """The locals that are bound after the instruction ran, of those that were before it and its own."""
    name = str(instruction.argval)
    if instruction.opname not in ("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
        return bound
    others = tuple(known for known in bound if known != name)
    return (*others, name) if instruction.opname == "STORE_FAST" and not nulls[-1] else others


def run_instruction(asm: Asm, code: Code, index: int, kind: str, cells: Mapping[str, str]) -> dict[str, Label]:
    """Emit the instruction; `cells` are the locals that hold cells which the traced frame made. The labels of the outcomes
    that it jumps to."""
    instruction = code.instructions[index]
    if kind in RUNS_NOTHING:
        return {}
    asm.at(instruction.positions)
    branch = _branch(code, index)
    if instruction.opname == "JUMP":
        return {}
    if branch is None:
        _run(asm, instruction, cells)
        return {}
    if branch is not instruction and instruction.opname != "TO_BOOL":
        _run(asm, instruction, cells)
    label = asm.label()
    if branch.opname in JUMPS_IF:
        asm.at(branch.positions)
        asm.jump_if(branch.opname.removeprefix("POP_JUMP_IF_"), label)
    else:
        asm.raw(branch, label)
    return {"jump": label}


# -- where control goes --------------------------------------------------------------------------------------------


def _branch(code: Code, index: int) -> Instruction | None:
    """The conditional jump that is taken at run time: the instruction itself, or the test of its result behind it."""
    instruction = code.instructions[index]
    if instruction.target is not None and instruction.opname != "JUMP":
        return instruction
    if instruction.opname in LEAVES or index + 1 >= len(code.instructions) or instruction.opname == "JUMP":
        return None
    following = code.instructions[index + 1]
    if following.opname == "TO_BOOL" and instruction.opname != "TO_BOOL":
        following = code.instructions[index + 2]
    return following if following.opname in _TESTS else None


def _branch_outcomes(code: Code, branch: Instruction, nulls: tuple[bool, ...]) -> list[Outcome]:
    assert branch.target is not None and branch.landing is not None, "a conditional jump goes somewhere"
    falls = jumps = nulls[:-1]
    if branch.opname == "FOR_ITER":
        falls = (*nulls, False)
    elif branch.opname not in JUMPS_IF:
        jumps = nulls
    loop_end = tuple(code.instructions[branch.landing : branch.target])
    return [Outcome(branch.index + 1, falls), Outcome(branch.target, jumps, "jump", loop_end)]


def _stack_after(instruction: Instruction, nulls: tuple[bool, ...]) -> tuple[bool, ...]:
    """Of what follows, only calls take a NULL from the stack, and what an instruction pushes is none."""
    opname = instruction.opname
    if opname == "NOP":
        return nulls
    if opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return (*nulls[: len(nulls) - _taken_by_call(instruction)], False)
    if opname == "PUSH_NULL":
        return (*nulls, True)
    if opname == "COPY":
        return (*nulls, nulls[-instruction.native_arg])
    if opname == "SWAP":
        entries = list(nulls)
        entries[-1], entries[-instruction.native_arg] = entries[-instruction.native_arg], entries[-1]
        return tuple(entries)
    if opname == "LOAD_METHOD":
        return (*nulls[:-1], *_NULL_AND_ATTRIBUTE)
    if opname == "LOAD_GLOBAL" and instruction.flag:
        return (*nulls, *_NULL_AND_ATTRIBUTE)
    if opname == "LOAD_SUPER_ATTR" and isinstance(instruction.argval, tuple):
        return (*nulls[:-3], *(_NULL_AND_ATTRIBUTE if instruction.argval[1] else (False,)))
    opcode = OPCODES[instruction.native]
    effect = dis.stack_effect(opcode, instruction.native_arg if opcode in HAVE_ARGUMENT else None, jump=False)
    depth = len(nulls) + effect
    return nulls[:depth] + (False,) * (depth - len(nulls))


_NULL_AND_ATTRIBUTE = (True, False) if VERSION.null_below else (False, True)


def _taken_by_call(instruction: Instruction) -> int:
    """Entries that a call takes, the callable and its NULL or self included."""
    if isinstance(instruction.argval, CallSpec):
        return instruction.argval.nargs + 2
    if instruction.opname == "CALL_KW":
        return instruction.native_arg + 3
    return 3 + instruction.flag


# -- running it ----------------------------------------------------------------------------------------------------

#: The bit of LOAD_SUPER_ATTR's argument for `super(cls, obj)`.
_SUPER_OF_TWO = 2


def _run(asm: Asm, instruction: Instruction, cells: Mapping[str, str]) -> None:
    opname = instruction.opname
    if opname == "LOAD_METHOD":
        _push_attribute(asm, str(instruction.argval))
    elif opname == "LOAD_SUPER_ATTR" and isinstance(instruction.argval, tuple):
        # With what is on the stack: without the flag it looks at the frame, whose first local need not be what it was.
        asm.raw(instruction, flags=_SUPER_OF_TWO)
        if instruction.argval[1]:
            _null_for_attribute(asm)
    elif isinstance(instruction.argval, CallSpec):
        asm.call(*instruction.argval, seen=True)
    elif opname in _CELL_OPS and str(instruction.argval) in cells:
        _run_on_cell(asm, opname, str(instruction.argval), cells[str(instruction.argval)])
    else:
        asm.raw(instruction)


def _push_attribute(asm: Asm, name: str) -> None:
    """[object] -> its attribute with a NULL, in the order of a call."""
    asm.load_attr(name)
    _null_for_attribute(asm)


def _null_for_attribute(asm: Asm) -> None:
    asm.push_null()
    if VERSION.null_below:
        asm.swap(2)


_CELL_OPS = frozenset({"LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE"})


def _run_on_cell(asm: Asm, opname: str, name: str, cell: str) -> None:
    """The frame's own cell is an object in a local here."""
    if opname in ("LOAD_DEREF", "DELETE_DEREF"):
        asm.begin_call(_C.read_cell)
        asm.load_local(cell)
        asm.load_const(name)
        asm.call(2)
        if opname == "LOAD_DEREF":
            return
        asm.pop()
    asm.load_local(cell)
    if opname == "STORE_DEREF":
        asm.store_attr("cell_contents")
    elif opname == "DELETE_DEREF":
        asm.delete_attr("cell_contents")
