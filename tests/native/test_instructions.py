"""The executor's instruction set: one table, of which the encoder and the printer both have every row, and what it can say."""

from __future__ import annotations

import ast
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit import _C, tensor_shim
from fxjit.backends.native import pipeline
from fxjit.backends.native.executor.aten_calls import FunctionName
from fxjit.backends.native.executor.encode import encode, is_printable
from fxjit.backends.native.executor.memory import plan_memory
from fxjit.backends.native.executor.opcodes import (
    OPCODES,
    SIZE_OPS,
    VALUES,
    Dependents,
    Instruction,
    KernelCell,
    KernelEntry,
    Listing,
    Number,
    Numbers,
    Object,
    Symbol,
    Variable,
)
from fxjit.backends.native.executor.python_text import FORMS, python_text
from fxjit.backends.native.index import Found
from fxjit.backends.native.ir import Buffer

assert tensor_shim.ensure(), "programs look at tensors through torch's shim"
n = sympy.Symbol("n", integer=True)
x, y, out = Variable("x"), Variable("y"), Variable("out")
buffer = Buffer("out", torch.float32, (2, 3), (3, 1), "temp")

#: An instruction of each opcode, and the line that it is printed as.
SAMPLES: dict[str, tuple[Instruction, str]] = {
    "ALLOCATE": (
        Instruction("ALLOCATE", (), buffer, out=out, dtype=6, ndim=2, sizes=Numbers((2, 3, 3, 1)), device=0, device_index=0),
        "out = empty_strided((2, 3), (3, 1), dtype=torch.float32)",
    ),
    "ARENA": (Instruction("ARENA", out=out, offset=256), "out = arena[256:]"),
    "LAUNCH": (Instruction("LAUNCH", (x, y), kernel=KernelEntry("k0"), unlocked=1, sizes=Numbers((7,))), "k0(x, y, 7)"),
    "CALL_KERNEL": (
        Instruction("CALL_KERNEL", (x, y), cell=KernelCell("g0"), sizes=Numbers((7, 8)), num_sizes=2), "g0(x, y, 7, 8)"
    ),
    "VIEW": (
        Instruction("VIEW", out=out, base=x, ndim=1, sizes=Numbers((4, 2, 1))), "out = view(x, (4,), (2,), offset=1)"
    ),
    "CALL": (
        Instruction(
            "CALL",
            ([x, Number(7)], slice(Object(None), Number(7), Object(2)), {"name": (y, Object(1.5))}, Object(True)),
            out=out, function=Object(FunctionName("operator", "aten.sort.stable")), keywords=Object(("stable",)),
        ),
        "out = torch.ops.aten.sort.stable([x, 7], slice(None, 7, 2), dict(name=(y, 1.5)), stable=True)",
    ),
    "ITEM": (Instruction("ITEM", out=out, sequence=x, index=1), "out = x[1]"),
    "BIND": (
        Instruction("BIND", symbol=Symbol(n), source=x, origin=_C.SYMBOL_ORIGINS.index("SIZE"), dim=1,
                    arithmetic=Dependents(n)),
        "n = x.size(1)",
    ),
    "ASSERT_STRIDES": (
        Instruction("ASSERT_STRIDES", tensor=x, helper=Object(FunctionName("helper", "with_strides")), ndim=1,
                    sizes=Numbers((5, 1)), dtype=6, torch_dtype=Object(torch.float32)),
        "x = with_strides(x, (5,), (1,), torch.float32)",
    ),
    "GEMM": (
        Instruction("GEMM", into=out, a=x, b=y, bias=-1, type=0, unlocked=0, sizes=Numbers((2, 3, 4))),
        "gemm(x, y, out=out, sizes=(2, 3, 4))",
    ),
    "BMM": (Instruction("BMM", into=out, a=x, b=y, float32=1), "bmm(x, y, out=out)"),
    "CONVOLVE": (
        Instruction("CONVOLVE", into=out, x=x, weight=y, bias=-1, sizes=Numbers((2, 3, 4))),
        "convolve(x, y, out=out, sizes=(2, 3, 4))",
    ),
    "GROUPED": (
        Instruction("GROUPED", into=out, a=x, b=y, ends=x, wide=0, sizes=Numbers((2, 3, 4))),
        "grouped_mm(x, y, x, out=out, sizes=(2, 3, 4))",
    ),
    "REPEAT": (Instruction("REPEAT", skip=0), "pass  # where it looked up out of range:"),
    "STORE_NUMBER": (Instruction("STORE_NUMBER", into=out, number=x), "out[:] = double(x)"),
    "LOAD": (Instruction("LOAD", out=out, object=Object(torch.ones(2), "self.weight")), "out = self.weight"),
    "FREE": (Instruction("FREE", (x, y)), "del x, y"),
    "WRITES": (Instruction("WRITES", (x, y)), "writes(x, y)"),
    "FAIL": (Instruction("FAIL", text=Object("out of range")), "raise IndexError('out of range')  # up to here"),
    "RETURN": (Instruction("RETURN", (out, Object(None)), several=1), "return [out, None]"),
}  # fmt: skip


def listing_of(*instructions: Instruction) -> Listing:
    found: Found[tuple[str, str, int] | None] = Found()
    found.places[n] = None
    return Listing(["x", "y"], list(instructions), found, {})


def decoded(code: bytes) -> Iterator[tuple[str, dict[str, int], list[int]]]:
    """The instructions that `_program.c` reads in these words, by C's table: (opcode, operands, the rest)."""
    words = iter(array("q", code))
    for code_ in words:
        name, _, declared = _C.OPCODES[code_]
        *operands, last = declared.split(", ")
        read = {each: next(words) for each in (operands if last.endswith("[]") else [*operands, last])}
        rest: list[int] = []
        for _ in range(read["count"] if last.endswith("[]") else 0):
            rest += value_words(words) if last == "values[]" else [next(words)]
        yield name, read, rest


def value_words(words: Iterator[int]) -> list[int]:
    kind, number = next(words), next(words)
    parts = [word for _ in range(_C.VALUES[kind][1] * number) for word in value_words(words)]
    return [kind, number, *parts]


def test_each_opcode_has_a_sample_an_encoding_and_a_printed_form():
    assert SAMPLES.keys() == OPCODES.keys() == FORMS.keys() == {name for name, _, _ in _C.OPCODES}


@pytest.mark.parametrize("name", OPCODES)
def test_an_instruction_is_printed_as_python_and_encoded_as_its_row_of_the_table_says(name: str):
    instruction, line = SAMPLES[name]
    assert FORMS[name](instruction) == line
    ast.parse(f"def call():\n    {line}")
    listing = listing_of(instruction)
    ((found, operands, rest),) = decoded(encode(listing).code)
    assert found == name and tuple(operands) == OPCODES[name].operands
    assert (len(rest) > 0) == (OPCODES[name].repeated is not None)
    for each, value in instruction.operands.items():
        assert not isinstance(value, int) or operands[each] == value
    places = {name: place for place, name in enumerate(listing.inputs)}
    for each, value in instruction.operands.items():
        assert not isinstance(value, Variable) or operands[each] == places.setdefault(value.name, len(places))


def test_a_program_is_encoded_and_printed_in_the_same_order():
    listing = listing_of(*(instruction for instruction, _ in SAMPLES.values()))
    assert [name for name, _, _ in decoded(encode(listing).code)] == list(SAMPLES)
    lines = python_text(listing).splitlines()
    assert lines[0] == "def call(x, y):" and [line.strip() for line in lines[1:]] == [line for _, line in SAMPLES.values()]


def test_an_instruction_takes_the_operands_of_its_row():
    with pytest.raises(AssertionError, match="ITEM takes"):
        Instruction("ITEM", out=out, sequence=x)
    with pytest.raises(AssertionError, match="BMM repeats no operand"):
        Instruction("BMM", (x,), into=out, a=x, b=y, float32=1)


def test_nested_values_are_built_as_they_were_said():
    """By the executor itself, from a program that no graph was needed for."""
    value = [Number(3), (Variable("x"), {"a": slice(Number(2), Object(None), Object(None))}), [], Object("text")]
    listing = listing_of(Instruction("RETURN", (value, Variable("y")), several=1))
    program = encode(listing).build(None)
    given = object()
    assert program(given, 1) == ([3, (given, {"a": slice(2, None, None)}), [], "text"], 1)
    assert program.boxed([given, 1]) == [[3, (given, {"a": slice(2, None, None)}), [], "text"], 1]


def test_a_call_of_more_values_than_fit_on_the_stack():
    values = tuple(Object(number) for number in range(200))
    listing = listing_of(
        Instruction("CALL", values, out=out, function=Object(lambda *args: sum(args)), keywords=-1),
        Instruction("RETURN", (out,), several=0),
    )
    assert encode(listing).build(None)(None, None) == sum(range(200))


def sizes_by_program(expressions: list[Any], **symbols: int) -> list[int]:
    found: Found[tuple[str, str, int] | None] = Found()
    for name in symbols:
        found.tell(sympy.Symbol(name, integer=True), (name, "INTEGER", 0))
    listing = Listing(list(symbols), [Instruction("RETURN", tuple(map(Number, expressions)), several=1)], found, {})
    return list(encode(listing).build(None)(*symbols.values()))


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (12, 5), (0, 3)])
def test_sizes_are_calculated_as_python_does(a: int, b: int):
    from torch.utils._sympy.functions import FloorDiv, Max, Min, ModularIndexing, PythonMod

    i, j = (sympy.Symbol(name, integer=True) for name in "ij")
    expressions = [i + 2 * j, i * j - 3, i**3, FloorDiv(i, j), PythonMod(i, j), Max(i, j, 1), Min(i, j)]
    wanted = [a + 2 * b, a * b - 3, a**3, a // b, a % b, max(a, b, 1), min(a, b)]
    assert sizes_by_program(expressions, i=a, j=b) == wanted
    if b > 0:
        assert sizes_by_program([ModularIndexing(i, j, 3)], i=a, j=b) == [a // b % 3]
    assert {"FLOORDIV", "MOD", "MAX", "MIN"} <= SIZE_OPS.keys() and not is_printable(sympy.sin(i))


def test_a_symbol_that_data_decides_is_bound_before_what_needs_it():
    """Whole numbers of a call, a size and a stride of its result, each with the sum of all that are known by then."""
    names = ["a", "b", "c"]
    a, b, c = symbols = [sympy.Symbol(name, integer=True) for name in names]
    found: Found[tuple[str, str, int] | None] = Found()
    found.places.update(dict.fromkeys(symbols))
    found.tell(n, ("x", "INTEGER", 0))
    origins = [("INTEGER", 0), ("SIZE", 1), ("STRIDE", 0)]
    binds = [
        Instruction("BIND", symbol=Symbol(symbol), source=Variable("x" if kind == "INTEGER" else "y"),
                    origin=_C.SYMBOL_ORIGINS.index(kind), dim=dim, arithmetic=Dependents(symbol))
        for symbol, (kind, dim) in zip(symbols, origins, strict=True)
    ]
    results = tuple(map(Number, (n, n + a, a * b, a + b + c, sympy.Integer(4))))
    listing = Listing(["x", "y"], [*binds, Instruction("RETURN", results, several=1)], found, {})
    run = encode(listing).build(None)
    assert run(5, torch.empty(3, 7)) == (5, 10, 35, 5 + 7 + 7, 4)
    assert run(2, torch.empty(4, 1)) == (2, 4, 2, 2 + 1 + 1, 4)
    with pytest.raises(TypeError, match="compiled for a plain tensor"):
        run(2, 3)


def test_memory_is_shared_by_values_that_do_not_live_at_once():
    def buffer_of(name: str) -> Buffer:
        return Buffer(name, torch.float32, (64,), (1,), "temp")

    def allocate(name: str) -> Instruction:
        return Instruction("ALLOCATE", (), buffer_of(name), out=Variable(name), dtype=6, ndim=1, sizes=Numbers((64, 1)),
                           device=0, device_index=0)

    def launch(*names: str) -> Instruction:
        return Instruction("LAUNCH", tuple(map(Variable, names)), kernel=KernelEntry("k0"), unlocked=0, sizes=Numbers(()))

    listing = listing_of(
        allocate("a"), launch("x", "a"), allocate("b"), launch("a", "b"), allocate("c"), launch("b", "c"),
        allocate("d"), launch("c", "d"), Instruction("RETURN", (Variable("d"),), several=1),
    )  # fmt: skip
    planned = plan_memory(listing)
    offsets = [each.operands["offset"] for each in planned.instructions if each.name == "ARENA"]
    assert planned.arena == 512 and sorted(offsets) == [0, 0, 256] and offsets[0] == offsets[2] != offsets[1]
    freed = [variable.name for each in planned.instructions if each.name == "FREE" for variable in each.repeated]
    assert freed == ["y", "x"], "an input goes after its last use, one that is not used at once"
    assert [each.name for each in planned.instructions].count("ALLOCATE") == 1, "what is returned is a tensor"
    assert replace(listing, arena=1).arena == 1 and listing.arena == 0


def compiled(function: Any, *inputs: Any, mode: str = "fake") -> Any:
    graph = pipeline.compile_graph(make_fx(function, tracing_mode=mode)(*inputs), inputs).finish()
    assert isinstance(graph.program, _C.Program)
    return graph


def test_a_kernel_of_more_buffers_than_fit_on_the_stack():
    inputs = [torch.randn(8) for _ in range(300)]
    (total,) = compiled(lambda *xs: (sum(xs[1:], xs[0] * 2),), *inputs)(list(inputs))
    torch.testing.assert_close(total, sum(inputs[1:], inputs[0] * 2))


def chosen(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[x > 0].exp().sum(), x.nonzero() * 2, x.nonzero().t().float() @ x.nonzero().float()


def uniques(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.unique(x.round(), return_inverse=True, return_counts=True)


def scaled_by_an_item(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(3) + x.sum().item() * 2


def sized_by_an_item(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count: Any = (x > 0).sum().item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    return x[:count] * 2, x.new_ones(count + x.shape[0]), x.new_full((count, 2), 2.5) + 1


def assert_all_close(results: Any, expected: Any) -> None:
    several = isinstance(expected, tuple)
    for result, wanted in zip(results if several else [results], expected if several else [expected], strict=True):
        torch.testing.assert_close(result, wanted)
        assert result.stride() == wanted.stride() or wanted.numel() == 0 or 1 in wanted.shape


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("function", [chosen, uniques, scaled_by_an_item])
def test_sizes_and_numbers_that_data_decides(function: Any, mode: str):
    run = compiled(function, torch.randn(6, 4), mode=mode)
    for given in (torch.randn(6, 4), torch.ones(6, 4), -torch.ones(6, 4), torch.zeros(6, 4)):
        assert_all_close(run([given]), function(given))


def test_a_size_that_is_an_item_and_one_of_the_inputs():
    run = compiled(sized_by_an_item, torch.rand(6), mode="symbolic")
    for size in (6, 9, 2):
        for given in (torch.randn(size), torch.ones(size), -torch.ones(size)):
            assert_all_close(run([given]), sized_by_an_item(given))


def test_values_are_of_every_kind_that_calls_take():
    assert VALUES.keys() == {"CONSTANT", "VARIABLE", "NUMBER", "LIST", "TUPLE", "SLICE", "DICT"}
