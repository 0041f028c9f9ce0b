"""Encodes a program: names become slots, sizes places among its numbers, and instructions the words that `_program.c` reads.

Sizes that vary become code of the stack machine in `_sizes.c`. What needs nothing but the inputs is calculated at the start of
a call, the others after the instruction that binds the last of its symbols.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import sympy

from fxjit import _C

from ..index import Size, UnprintableSize, sizes_of, symbols_in
from .aten_calls import FunctionName
from .opcodes import (
    SIZE_OPS,
    SYMBOL_ORIGINS,
    VALUES,
    Instruction,
    KernelCell,
    KernelEntry,
    Listing,
    Number,
    Numbers,
    Object,
    Operand,
    Symbol,
    Value,
    Variable,
)
from .program import EncodedProgram


def encode(listing: Listing) -> EncodedProgram:
    """Raises UnprintableSize where the executor cannot calculate a size."""
    return _Encoder(listing).encode()


class _Encoder:
    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.slots = {name: place for place, name in enumerate(listing.inputs)}
        self.numbers: list[Size] = []
        self.places: dict[Any, int] = {}
        self.objects: list[Any] = []
        self.object_places: dict[int | FunctionName, int] = {}
        self.entries: list[str] = []
        self.cells: dict[str, int] = {}
        #: The place of each symbol, and after how many of the bound ones it is known.
        self.symbols: dict[sympy.Symbol, int] = {}
        self.bound: dict[sympy.Symbol, int] = {}

    def encode(self) -> EncodedProgram:
        listing = self.listing
        for each in listing.instructions:
            if isinstance(symbol := each.operands.get("symbol"), Symbol):
                self.bound[symbol.symbol] = len(self.bound) + 1
        for each in listing.instructions:
            self.collect(each)
        origins, arithmetic, starts = self.arithmetic()
        code = self.code(starts)
        numbers = [size if isinstance(size, int) else 0 for size in self.numbers]
        return EncodedProgram(
            len(listing.inputs), len(self.slots), packed(code), packed(numbers), packed(origins), packed(arithmetic),
            listing.arena, tuple(self.objects), tuple(self.entries), dict(self.cells),
            products=tuple(dict.fromkeys(listing.products)),
            convolves=any(each.name == "CONVOLVE" for each in listing.instructions),
        )

    def collect(self, instruction: Instruction) -> None:
        """Gives the instruction's sizes their places, so that the arithmetic is known before any code."""
        for operand in instruction.operands.values():
            if isinstance(operand, Numbers):
                self.place_of(operand.sizes)
        self.collect_values(instruction.repeated)

    def collect_values(self, value: Value) -> None:
        if isinstance(value, Number):
            self.place_of((value.size,))
        else:
            for each in children(value):
                self.collect_values(each)

    # Words

    def code(self, starts: dict[int, int]) -> list[int]:
        code: list[int] = []
        skipped: int | None = None  # where the words begin that the last REPEAT passes over
        for each in self.listing.instructions:
            code += self.words(each, starts)
            if each.name == "REPEAT":
                skipped = len(code)
            elif each.name == "FAIL" and skipped is not None:
                code[skipped - 1] = len(code) - skipped
        return code

    def words(self, instruction: Instruction, starts: dict[int, int]) -> list[int]:
        opcode, words = instruction.opcode, [instruction.opcode.code]
        for name in opcode.operands:
            if name == "count" and opcode.repeated is not None:
                words.append(len(instruction.repeated))
            else:
                words.append(self.operand(instruction.operands[name], starts))
        for each in instruction.repeated:
            if opcode.repeated == "values":
                self.value(each, words)
            else:
                words.append(self.operand(each, starts))
        return words

    def operand(self, operand: Operand, starts: dict[int, int]) -> int:
        if isinstance(operand, int):
            return operand
        if isinstance(operand, Variable):
            return self.slots.setdefault(operand.name, len(self.slots))
        if isinstance(operand, Numbers):
            return self.place_of(operand.sizes)
        if isinstance(operand, Object):
            return self.object(operand.value)
        if isinstance(operand, KernelEntry):
            if operand.name not in self.entries:
                self.entries.append(operand.name)
            return self.entries.index(operand.name)
        if isinstance(operand, KernelCell):
            if operand.name not in self.cells:
                self.cells[operand.name] = self.object([])
            return self.cells[operand.name]
        if isinstance(operand, Symbol):
            return self.symbols[operand.symbol]
        return starts.get(self.bound[operand.symbol], -1)

    def value(self, value: Value, words: list[int]) -> None:
        """Appends the kind of a value and its number, then the values that it is made of."""
        parts = children(value)
        if isinstance(value, Variable):
            words += [VALUES["VARIABLE"], self.operand(value, {})]
        elif isinstance(value, Number):
            words += [VALUES["NUMBER"], self.place_of((value.size,))]
        elif isinstance(value, dict):
            words += [VALUES["DICT"], len(value)]
        elif isinstance(value, (list, tuple, slice)):
            words += [VALUES[type(value).__name__.upper()], len(parts)]
        else:
            assert isinstance(value, Object), f"{value!r} is no value of a program"
            words += [VALUES["CONSTANT"], self.object(value.value)]
        for each in parts:
            self.value(each, words)

    def object(self, value: Any) -> int:
        # `objects` keeps the value, so that its id stays its own.
        key = value if isinstance(value, FunctionName) else id(value)
        if key not in self.object_places:
            self.object_places[key] = len(self.objects)
            self.objects.append(value)
        return self.object_places[key]

    # Sizes

    def place_of(self, sizes: Sequence[Any]) -> int:
        """Where these sizes stand, one after the other."""
        found = sizes_of(sizes)
        key = tuple((type(size).__name__, size) for size in found)
        if key not in self.places:
            self.places[key] = len(self.numbers)
            self.numbers += found
        return self.places[key]

    def arithmetic(self) -> tuple[list[int], list[int], dict[int, int]]:
        """(where each symbol is found, the code that fills in the numbers that vary, where in it the part begins that runs
        after each symbol is bound)."""
        found = self.listing.symbols
        varying = [(place, size) for place, size in enumerate(self.numbers) if not isinstance(size, int)]
        varying = [(place, size.xreplace(self.listing.derived)) for place, size in varying]
        if solved := found.solved(symbols_in(size for _, size in varying)):
            varying = [(place, size.xreplace(solved)) for place, size in varying]
        origins: list[int] = []
        for symbol in sorted({*symbols_in(size for _, size in varying), *self.bound}, key=str):
            self.symbols[symbol] = len(self.symbols)
            name, origin, dim = found.place(symbol) or ("", "INTEGER", 0)
            origins += [self.slots[name] if name else -1, SYMBOL_ORIGINS[origin], dim]
        parts: dict[int, list[int]] = {}
        for place, size in varying:
            known = max((self.bound.get(symbol, 0) for symbol in symbols_in([size])), default=0)
            code = parts.setdefault(known, [])
            postfix(size, self.symbols, code, 1)
            code += [SIZE_OPS["STORE"], place]
        code, starts = [*parts.pop(0, ()), SIZE_OPS["END"]] if varying or self.bound else [], {}
        for known, part in parts.items():
            starts[known] = len(code)
            code += [*part, SIZE_OPS["END"]]
        return origins, code, starts


def children(value: Value) -> Sequence[Value]:
    """The values that a value is made of, in the order in which they are encoded; keys are constants."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, dict):
        return [part for name, each in value.items() for part in (Object(name), each)]
    return ()


def packed(numbers: Sequence[int]) -> bytes:
    return array("q", numbers).tobytes()


_OPERATIONS = {"FloorDiv": "FLOORDIV", "CleanDiv": "FLOORDIV", "Mod": "MOD", "PythonMod": "MOD", "Max": "MAX", "Min": "MIN"}


def is_printable(size: Size) -> bool:
    """Whether the executor can calculate the size."""
    try:
        if not isinstance(size, int):
            postfix(size, dict.fromkeys(symbols_in([size]), 0), [], 1)
    except UnprintableSize:
        return False
    return True


def postfix(expr: Any, places: dict[sympy.Symbol, int], code: list[int], depth: int) -> None:
    """Appends the stack code that leaves the value of a size on top."""
    if depth >= _C.SIZE_STACK - 1:
        raise UnprintableSize("a very deep expression")
    if isinstance(expr, int) or expr.is_Integer:
        code += [SIZE_OPS["CONSTANT"], int(expr)]
        return
    if expr.is_Symbol:
        code += [SIZE_OPS["SYMBOL"], places[expr]]
        return
    name = type(expr).__name__
    operands: Sequence[Any] = expr.args
    if expr.is_Add or expr.is_Mul:
        operation = "ADD" if expr.is_Add else "MUL"
    elif expr.is_Pow and expr.exp.is_Integer and 0 < int(expr.exp) <= 8:
        operation, operands = "MUL", [expr.base] * int(expr.exp)
    elif name == "ModularIndexing":
        postfix(operands[0], places, code, depth)
        postfix(operands[1], places, code, depth + 1)
        code.append(SIZE_OPS["FLOORDIV"])
        postfix(operands[2], places, code, depth + 1)
        code.append(SIZE_OPS["MOD"])
        return
    elif name in _OPERATIONS:
        operation = _OPERATIONS[name]
    else:
        raise UnprintableSize(f"{name} in {expr}")
    postfix(operands[0], places, code, depth)
    for each in operands[1:]:
        postfix(each, places, code, depth + 1)
        code.append(SIZE_OPS[operation])
