"""The decoded form of a code object: instructions in the canonical vocabulary, exception handlers, and the code object
itself. Made by `decode`, read by the interpreter, `flow`, `asm` and `resume`; facts only, no behaviour that depends on
the Python version."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple


class CallSpec(NamedTuple):
    """The argument of CALL: how many arguments stand on the stack (keyword values included), and the keywords' names."""

    nargs: int
    kwnames: tuple[str, ...] = ()


class Positions(NamedTuple):
    """The source range of an instruction, as in `co_positions()`."""

    line: int | None
    end_line: int | None
    column: int | None
    end_column: int | None


class Handler(NamedTuple):
    """Where an exception raised under it goes: the stack is cut to `depth`, then (if `push_lasti`) the index of the
    raising instruction and the exception are pushed, and execution goes on at instruction `target`."""

    target: int
    depth: int
    push_lasti: bool


class Protected(NamedTuple):
    """Instructions start <= index < end are under `handler`."""

    start: int
    end: int
    handler: Handler


@dataclass(slots=True)
class Instruction:
    """One instruction. `opname`, `argval`, `flag` and `target` are canonical; `native` and `native_arg` are what the
    running Python has in its place."""

    opname: str
    arg: int | None
    argval: object
    flag: bool
    index: int
    offset: int
    positions: Positions
    native: str
    native_arg: int
    target: int | None = None
    """Index where a jump goes. For FOR_ITER this is where an exhausted loop goes on, after END_FOR and its like."""
    landing: int | None = None
    """Index that the native jump names; differs from `target` for FOR_ITER since 3.12 (END_FOR stands there)."""
    original: bool = True
    """False for the second half of a superinstruction: no instruction of the code object begins there."""

    @property
    def line(self) -> int | None:
        return self.positions.line

    def __str__(self) -> str:
        shown = f" {self.argval!r}" if self.arg is not None else ""
        flag = " flag" if self.flag else ""
        target = f" -> {self.target}" if self.target is not None else ""
        return f"{self.index} {self.opname}{shown}{flag}{target}"


@dataclass(slots=True, eq=False)
class Code:
    """A decoded code object. Its slots have names of their own: `varnames` and `cellvars` have none of `freevars`."""

    code: CodeType
    instructions: list[Instruction]
    protected: tuple[Protected, ...]
    varnames: tuple[str, ...]
    cellvars: tuple[str, ...]
    freevars: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    """What `flow` found out; shared by all decodings of one code object."""
    _starts: Sequence[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._starts = [region.start for region in self.protected]

    def handler_at(self, index: int) -> Handler | None:
        """The innermost handler of an exception raised by the instruction at `index`."""
        at = bisect_right(self._starts, index) - 1
        if at < 0 or index >= self.protected[at].end:
            return None
        return self.protected[at].handler

    @property
    def argument_slots(self) -> tuple[str, ...]:
        """The names of the slots that the caller fills: positional, keyword-only, *args, **kwargs."""
        return argument_slots(self.code)


def argument_slots(code: CodeType) -> tuple[str, ...]:
    """The names of the argument slots of `code`, in the order of the frame's locals."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]
