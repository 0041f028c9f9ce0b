"""The executor's instructions as Python data: `Instruction` and its operands, checked against the table that C has of them.

plan.py makes instructions of variables, sizes and objects; memory.py adds those that free and share memory; encode.py turns
them into the words that `_program.c` reads, python_text.py prints them. Opcodes and operands are defined once, in opcodes.def.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy

from fxjit import _C

from ..index import Found, Size, Sizes
from ..ir import Buffer
from ..runtime.own_products import Shape


@dataclass(frozen=True, slots=True)
class Opcode:
    code: int
    name: str
    #: The operands before those that are repeated; the last is `count` where there are such.
    operands: tuple[str, ...]
    repeated: str | None
    #: Its variables need have no tensor, only memory.
    by_pointer: bool


def _opcode(code: int, name: str, access: str, declared: str) -> Opcode:
    *operands, last = declared.split(", ")
    repeated = last.removesuffix("[]") if last.endswith("[]") else None
    return Opcode(code, name, tuple(operands if repeated else [*operands, last]), repeated, access == "POINTER")


OPCODES: dict[str, Opcode] = {row[0]: _opcode(code, *row) for code, row in enumerate(_C.OPCODES)}
VALUES: dict[str, int] = {name: code for code, (name, _) in enumerate(_C.VALUES)}
SYMBOL_ORIGINS: dict[str, int] = {name: code for code, name in enumerate(_C.SYMBOL_ORIGINS)}
SIZE_OPS: dict[str, int] = {name: code for code, (name, _) in enumerate(_C.SIZE_OPS)}


# Operands, and values of calls


@dataclass(frozen=True, slots=True)
class Variable:
    """A value of the program, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """Sizes, strides and offsets that an instruction reads one after the other."""

    sizes: Sizes


@dataclass(frozen=True, slots=True, eq=False)
class Object:
    """A Python object; `label` is what a person would call it."""

    value: Any
    label: str = ""


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """A compiled function of the kernels' library."""

    name: str


@dataclass(frozen=True, slots=True)
class KernelCell:
    """The list that holds a kernel which is a Python object."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol whose value an instruction finds."""

    symbol: sympy.Symbol


@dataclass(frozen=True, slots=True)
class Dependents:
    """The arithmetic of all numbers that are known once the symbol is."""

    symbol: sympy.Symbol


@dataclass(frozen=True, slots=True)
class Number:
    """A size as a value of a call."""

    size: Size


Operand: TypeAlias = "int | Variable | Numbers | Object | KernelEntry | KernelCell | Symbol | Dependents"
#: An argument of a call, or a result: a variable, an object, a number, or a list, tuple, slice or dict of such.
Value: TypeAlias = "Any"


class Instruction:
    """One instruction, with its operands by name."""

    __slots__ = ("buffer", "opcode", "operands", "repeated")

    def __init__(self, name: str, repeated: tuple[Value, ...] = (), buffer: Buffer | None = None, **operands: Operand) -> None:
        opcode = OPCODES[name]
        wanted = opcode.operands if opcode.repeated is None else opcode.operands[:-1]
        assert operands.keys() == set(wanted), f"{name} takes {wanted}, not {tuple(operands)}"
        assert opcode.repeated is not None or not repeated, f"{name} repeats no operand"
        self.opcode, self.operands, self.repeated = opcode, operands, repeated
        #: What the memory that it defines is for, where the arena may have it.
        self.buffer = buffer

    @property
    def name(self) -> str:
        return self.opcode.name

    @property
    def out(self) -> str | None:
        """The variable that it defines."""
        out = self.operands.get("out")
        return out.name if isinstance(out, Variable) else None

    def reads(self) -> Iterator[str]:
        """The variables that it reads, or writes to."""
        for name, operand in self.operands.items():
            if isinstance(operand, Variable) and name != "out":
                yield operand.name
        yield from variables_in(self.repeated)


def variables_in(value: Value) -> Iterator[str]:
    if isinstance(value, Variable):
        yield value.name
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from variables_in(each)
    elif isinstance(value, slice):
        yield from variables_in((value.start, value.stop, value.step))
    elif isinstance(value, dict):
        yield from variables_in(list(value.values()))


@dataclass(slots=True)
class Listing:
    """A graph's program as a list of instructions, with what is known of its inputs and sizes."""

    inputs: list[str]
    instructions: list[Instruction]
    #: (input, origin, dimension) of each symbol; None for one that an instruction binds.
    symbols: Found[tuple[str, str, int] | None]
    #: Symbols that are calculated from others which are bound.
    derived: dict[sympy.Symbol, sympy.Expr]
    #: The matrix products of float32, of the sizes that were seen.
    products: list[Shape] = field(default_factory=list)
    #: Bytes of the arena.
    arena: int = 0
