"""The program that runs a compiled graph: allocate, launch, multiply, call ATen, return; run by `runtime/_program.c`.

`ProgramWriter` goes through the schedule and writes instructions over named values; `Encoded` is what they become: arrays of
numbers. A value that only kernels and matrix products touch is memory in one arena, laid out here; every other value is a
tensor. A view is strides and an offset, read by kernels and matrix products as they are; a tensor is made of it only where
ATen or the caller wants one. What a program cannot say raises `Unsupported`, and wrapper.py writes Python instead.
"""

from __future__ import annotations

import operator
from array import array
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx

from fxjit import _C, tensor_shim

from ..hints import Hints
from ..index import Found, Size, UnprintableSize, prod, size_of, sizes_of, symbols_in
from ..ir import Buffer, Extern
from ..lower.table import Lowering, is_view, meta_of, op_name
from ..runtime.callees import Callee, as_tensor, callee_of, python_callee
from ..runtime.encoded import Encoded
from ..schedule.blas import Product, origin, product_of
from ..schedule.fuse import group_work
from .graph_kernels import Launch
from .kernel import Kernel
from .wrapper import example_of, has_plain_results, is_given_beside, launched_buffers, may_differ

ALLOC, RAW, LAUNCH, VIEW, CALL, ITEM, EXPECT, GEMM, BMM, FREE, RETURN, OBJECT, KERNEL, NUMBER = range(14)
V_CONST, V_SLOT, V_NUMBER, V_LIST, V_TUPLE = range(5)
S_CONST, S_SYMBOL, S_ADD, S_MUL, S_FLOORDIV, S_MOD, S_MAX, S_MIN, S_STORE, S_END = range(10)
#: Bytes from which a value has an allocation of its own, so that its memory goes back when it is done with.
LARGE = 1 << 22
ALIGNMENT = 128
#: Work of a kernel, multiplications of a product, from which other Python threads may run meanwhile.
LONG_KERNEL, LONG_PRODUCT = 50_000, 400_000
#: The devices whose memory a program allocates and looks at.
DEVICES = ("cpu", "cuda")
MOST_POINTERS, MOST_ARGUMENTS, MOST_STACK = 256, 64, 30


class Unsupported(Exception):
    """A graph that a program cannot run; the text says why."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A value's name among an instruction's operands."""

    name: str


@dataclass(slots=True)
class Instruction:
    code: int
    operands: list[int | Slot]
    text: str
    #: What is read through pointers, and what must be a tensor.
    uses: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)
    defines: str | None = None
    buffer: Buffer | None = None
    #: The Python number that the buffer holds, which is written there where it need not be a tensor.
    number: Slot | None = None


class ProgramWriter:
    """Writes one graph's program; see `write`."""

    def __init__(self, low: Lowering, gm: torch.fx.GraphModule, hints: Hints) -> None:
        self.low, self.gm, self.hints = low, gm, hints
        self.instructions: list[Instruction] = []
        self.names: dict[torch.fx.Node, str] = {}
        self.inputs: list[str] = []
        self.defined: set[str] = set()
        #: (input, 0 for itself, 1 for a size, 2 for a stride, dimension) of each symbol.
        self.found: Found[tuple[str, int, int]] = Found()
        self.numbers: list[Size] = []
        self.places: dict[Any, int] = {}
        self.objects: list[Any] = []
        self.object_places: dict[int | Callee, int] = {}
        self.entries: list[str] = []
        #: Where the objects are that stand for kernels which are Python objects, by entry.
        self.cells: dict[str, int] = {}
        self.launched: set[str] = set()

    def write(self, steps: Sequence[Any]) -> Encoded:
        self.launched = launched_buffers(steps)
        self.take_inputs()
        for step in steps:
            if isinstance(step, Launch):
                self.launch(step)
            else:
                assert isinstance(step, Extern)
                self.extern(step)
        self.finish()
        return Encoder(self).encode()

    # Numbers, constants and arguments

    def number(self, *sizes: Any) -> int:
        """Where these sizes stand, one after the other."""
        found = sizes_of(sizes)
        key = tuple((type(size).__name__, size) for size in found)
        if key not in self.places:
            self.places[key] = len(self.numbers)
            self.numbers += found
        return self.places[key]

    def constant(self, value: Any) -> int:
        # `objects` keeps the value, so that its id stays its own.
        key = value if isinstance(value, Callee) else id(value)
        if key not in self.object_places:
            self.object_places[key] = len(self.objects)
            self.objects.append(value)
        return self.object_places[key]

    def argument(self, x: Any, tensors: set[str], real: bool = False) -> tuple[list[int | Slot], str]:
        """An argument of a call, or a result, with its text. `real`: a view must be one to autograd too."""
        if isinstance(x, torch.fx.Node):
            meta = meta_of(x)
            if isinstance(meta, torch.SymInt):
                return [V_NUMBER, self.number(meta)], str(meta)
            if isinstance(meta, torch.SymBool):
                raise Unsupported("a condition on sizes")
            if isinstance(meta, torch.SymFloat):
                name = self.calculated(x)
                tensors.add(name)
                return [V_SLOT, Slot(name)], name
            if isinstance(meta, (int, float, bool)) and x.op != "placeholder":
                return [V_CONST, self.constant(meta)], repr(meta)
            name = self.real_view(x) if real else self.tensor(x)
            tensors.add(name)
            return [V_SLOT, Slot(name)], name
        if isinstance(x, torch.SymInt):
            return [V_NUMBER, self.number(x)], str(x)
        if isinstance(x, (torch.SymBool, torch.SymFloat)):
            raise Unsupported("a number that is calculated from sizes")
        if isinstance(x, (list, tuple)) and varies(x):
            parts = [self.argument(each, tensors, real) for each in x]
            operands: list[int | Slot] = [V_LIST if isinstance(x, list) else V_TUPLE, len(parts)]
            return [*operands, *(each for part, _ in parts for each in part)], f"[{', '.join(text for _, text in parts)}]"
        if isinstance(x, slice) and (varies([x.start, x.stop, x.step])):
            raise Unsupported("a slice of sizes that vary")
        if isinstance(x, dict):
            raise Unsupported("a dict among arguments")
        return [V_CONST, self.constant(list(x) if isinstance(x, list) else x)], repr(x)

    def calculated(self, node: torch.fx.Node) -> str:
        """The name of a float that Python calculates, of the graph's inputs and of sizes."""
        if node not in self.names:
            name = f"y_{node.name}"
            self.call(node, name, real=False)
            self.names[node] = name
        return self.names[node]

    # Values

    def take_inputs(self) -> None:
        for node in self.gm.graph.find_nodes(op="placeholder"):
            meta = meta_of(node)
            name = self.low.home[node] if isinstance(meta, torch.Tensor) else f"a_{node.name}"
            self.inputs.append(name)
            self.defined.add(name)
            if isinstance(meta, torch.SymInt):
                self.found.tell(size_of(meta), (name, 0, 0))
            else:
                self.names[node] = name
        for node in self.gm.graph.find_nodes(op="placeholder"):
            meta = meta_of(node)
            if isinstance(meta, torch.Tensor) and meta.layout is torch.strided:
                for kind, values in ((1, meta.shape), (2, meta.stride())):
                    for dim, value in enumerate(sizes_of(values)):
                        self.found.tell(value, (self.low.home[node], kind, dim))
        for node in self.gm.graph.find_nodes(op="placeholder"):
            if is_given_beside(node, self.low, self.launched):
                self.expect(node, self.low.home[node])
        for node in self.gm.graph.find_nodes(op="get_attr"):
            self.take_attribute(node)

    def take_attribute(self, node: torch.fx.Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        name = self.names[node] = self.low.home.get(node) or f"m_{node.name}"
        self.add(OBJECT, [Slot(name), self.constant(value)], f"{name} = {node.target}", defines=name)

    def add(self, code: int, operands: list[int | Slot], text: str, *, uses: Iterable[str] = (), tensors: Iterable[str] = (),
            defines: str | None = None, buffer: Buffer | None = None) -> None:
        self.instructions.append(Instruction(code, operands, text, set(uses), set(tensors), defines, buffer))
        if defines is not None:
            self.defined.add(defines)

    def root(self, node: torch.fx.Node) -> torch.fx.Node:
        while is_view(node) and node not in self.names:
            node = node.args[0]  # type: ignore[assignment]  # a view's first argument is a node
        return node

    def tensor(self, node: torch.fx.Node) -> str:
        """The name of a node's value as a tensor of its own; a view is made when it is first asked for."""
        if node in self.names:
            return self.names[node]
        if not is_view(node):
            if node not in self.low.home:
                raise Unsupported(f"{node} has no memory")
            self.names[node] = self.low.home[node]
            return self.names[node]
        root = self.root(node)
        meta, base_meta = meta_of(node), meta_of(root)
        if not is_plain(meta) or not is_plain(base_meta) or meta.dtype is not base_meta.dtype:
            return self.real_view(node)
        base, name = self.tensor(root), f"v_{node.name}"
        size, stride = sizes_of(meta.shape), sizes_of(meta.stride())
        at = self.number(*size, *stride, self.low.relative_offset(meta, base_meta))
        self.add(VIEW, [Slot(name), Slot(base), len(size), at], f"{name} = {base} as {size}, {stride}", tensors=[base],
                 defines=name)
        self.names[node] = name
        return name

    def real_view(self, node: torch.fx.Node) -> str:
        """The same by the operators themselves: for results, and for what ATen writes to, whose versions autograd counts."""
        if not is_view(node):
            return self.tensor(node)
        name = f"w_{node.name}"
        if name not in self.defined:
            self.call(node, name, real=True)
        return name

    def allocate(self, buffer: Buffer) -> None:
        code, device = tensor_shim.shim_code("dtype", buffer.dtype), tensor_shim.shim_code("device_type", buffer.device.type)
        if code is None or device is None or buffer.device.type not in DEVICES:
            raise Unsupported(f"tensors of {buffer.dtype} on {buffer.device}")
        at, place = self.number(*buffer.size, *buffer.stride), "" if buffer.device.type == "cpu" else f" on {buffer.device}"
        text = f"{buffer.name} = empty {buffer.dtype} {buffer.size}, {buffer.stride}{place}"
        self.add(ALLOC, [Slot(buffer.name), code, len(buffer.size), at, device, buffer.device.index or 0], text,
                 defines=buffer.name, buffer=buffer)

    # Steps

    def launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        for name in kernel.buffers:
            if name in launch.written and name not in self.defined:
                self.allocate(launch.written[name])
        if len(kernel.buffers) > MOST_POINTERS or len(kernel.symbols) > MOST_ARGUMENTS:
            raise Unsupported("a kernel of very many arguments")
        sizes = "".join(f", {symbol}" for symbol in kernel.symbols)
        text = f"{launch.entry}({', '.join(kernel.buffers)}{sizes})"
        if not isinstance(kernel, Kernel):
            if launch.entry not in self.cells:
                self.cells[launch.entry] = self.constant([])
            given = [self.cells[launch.entry], len(kernel.buffers), len(kernel.symbols), self.number(*kernel.symbols)]
            self.add(KERNEL, [*given, *map(Slot, kernel.buffers)], text, tensors=kernel.buffers)
            return
        if launch.entry not in self.entries:
            self.entries.append(launch.entry)
        unlocked = int(group_work(launch.group, self.hints) > LONG_KERNEL)
        entry, at = self.entries.index(launch.entry), self.number(*kernel.symbols)
        operands: list[int | Slot] = [entry, unlocked, len(kernel.buffers), at]
        self.add(LAUNCH, [*operands, *map(Slot, kernel.buffers)], text, uses=kernel.buffers)

    def extern(self, step: Extern) -> None:
        node = step.node
        if node.meta.get("unbacked_bindings"):
            raise Unsupported("a size that the data decides")
        product = product_of(node, self.low)
        if product is not None:
            self.multiply(node, product)
            return
        if op_name(node) == "bmm.default" and self.multiply_batches(node):
            return
        name = self.low.home.get(node) or f"x_{node.name}"
        if node.target is as_tensor and len(node.args) == 1:  # for the processor's kernels
            self.take_number(node, name)
            return
        self.call(node, name, real=bool(step.mutates) or not has_plain_results(node))
        self.names[node] = name
        self.expect(node, name)
        for user in node.users:
            if user.target is operator.getitem and user in self.low.home:
                item = self.names[user] = self.low.home[user]
                index = user.args[1]
                assert isinstance(index, int)
                self.add(ITEM, [Slot(item), Slot(name), index], f"{item} = {name}[{index}]", tensors=[name], defines=item)
                self.expect(user, item)

    def take_number(self, node: torch.fx.Node, name: str) -> None:
        """Memory that holds a number which only the call knows; a tensor where ATen reads it."""
        self.call(node, name, real=False)
        made = self.instructions[-1]
        (_, source), _ = self.argument(node.args[0], set())
        if isinstance(source, Slot):
            made.number, made.buffer = source, self.low.buffers[name]
        self.names[node] = name

    def call(self, node: torch.fx.Node, name: str, real: bool) -> None:
        tensors: set[str] = set()
        parts = [self.argument(arg, tensors, real) for arg in (*node.args, *node.kwargs.values())]
        if len(parts) > MOST_ARGUMENTS:
            raise Unsupported("a call of very many arguments")
        keywords = self.constant(tuple(node.kwargs)) if node.kwargs else -1
        function = self.function(node)
        operands: list[int | Slot] = [Slot(name), self.constant(function), len(parts), keywords]
        text = f"{name} = {node.target}({', '.join(text for _, text in parts)})"
        self.add(CALL, [*operands, *(each for part, _ in parts for each in part)], text, tensors=tensors, defines=name)

    def function(self, node: torch.fx.Node) -> Any:
        if node.op == "call_module":
            return self.gm.get_submodule(str(node.target))
        if node.op == "call_method":
            return getattr(torch.Tensor, str(node.target))
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload):
            return callee_of(target, op_name(node), *example_of(node))
        return python_callee(target)

    def expect(self, node: torch.fx.Node, name: str) -> None:
        meta = meta_of(node)
        if isinstance(meta, torch.Tensor) and is_plain(meta) and node in self.low.home:
            size, stride = sizes_of(meta.shape), sizes_of(meta.stride())
            code = tensor_shim.shim_code("dtype", meta.dtype)
            if code is None:
                raise Unsupported(f"tensors of {meta.dtype}")
            helper = Callee("helper", "put_layout_right" if may_differ(node, self.low, self.launched) else "put_right")
            operands: list[int | Slot] = [Slot(name), self.constant(helper), len(size), self.number(*size, *stride),
                                          code, self.constant(meta.dtype)]
            self.add(EXPECT, operands, f"{name} must be {size}, {stride}", tensors=[name])

    # Matrix products

    def multiply(self, node: torch.fx.Node, product: Product) -> None:
        name = self.low.home[node]
        self.names[node] = name
        self.allocate(self.low.buffers[name])
        a, b, bias = product.a, product.b, product.bias
        names = [self.tensor(origin(each.node)) for each in (a, b)]
        numbers: list[Any] = [product.m, product.n, product.k, a.row, a.column, a.offset, b.row, b.column, b.offset,
                              product.n, 1, 0, 0, 0]
        bias_slot: int | Slot = -1
        text = f"{name} = {names[0]} x {names[1]}, {product.m} {product.n} {product.k}"
        if bias is not None:
            names.append(self.tensor(origin(bias.node)))
            numbers[12:] = [bias.column, bias.offset]
            bias_slot = Slot(names[2])
            text += f" + {names[2]}"
        unlocked = int(self.hints(prod((product.m, product.n, product.k))) > LONG_PRODUCT)
        wide = int(meta_of(node).dtype is torch.float64)
        self.add(GEMM, [wide, Slot(name), Slot(names[0]), Slot(names[1]), bias_slot, unlocked, self.number(*numbers)], text,
                 uses=[name, *names])

    def multiply_batches(self, node: torch.fx.Node) -> bool:
        metas = [meta_of(node), *(meta_of(arg) for arg in node.args)]  # type: ignore[arg-type]  # arguments that are nodes
        here = all(is_plain(meta) and meta.device.type == "cpu" for meta in metas)
        if not _C.program_can("bmm") or not here or torch.is_autocast_enabled("cpu"):
            return False
        name = self.names[node] = self.low.home[node]
        given = [self.tensor(arg) for arg in node.args]  # type: ignore[arg-type]  # arguments that are nodes
        self.allocate(self.low.buffers[name])
        self.add(BMM, [Slot(name), *map(Slot, given)], f"{name} = bmm({', '.join(given)})", tensors=[name, *given])
        return True

    # The end

    def finish(self) -> None:
        output = next(iter(self.gm.graph.find_nodes(op="output")))
        values = output.args[0]
        tensors: set[str] = set()
        several = isinstance(values, (list, tuple))
        parts = [self.result(each, tensors) for each in (values if several else (values,))]
        text = f"return {', '.join(text for _, text in parts)}"
        count = len(parts) if several else -1
        self.add(RETURN, [count, *(each for part, _ in parts for each in part)], text, tensors=tensors)

    def result(self, value: Any, tensors: set[str]) -> tuple[list[int | Slot], str]:
        """A view of an input shares its version counter; a view of what the graph made has nobody to share with."""
        real = False
        if isinstance(value, torch.fx.Node) and isinstance(meta_of(value), torch.Tensor) and is_view(value):
            real = self.low.buffers[self.low.home[origin(value)]].kind == "input"
        return self.argument(value, tensors, real)


def varies(values: Iterable[Any]) -> bool:
    """Whether some of these is known only at a call."""
    return any(isinstance(each, (torch.fx.Node, torch.SymInt)) or (isinstance(each, (list, tuple)) and varies(each))
               for each in values)


def is_plain(meta: Any) -> bool:
    return (isinstance(meta, torch.Tensor) and meta.layout is torch.strided and meta.device.type in DEVICES
            and not meta.is_quantized and not meta.is_conj() and not meta.is_neg())


class Encoder:
    """Turns instructions into numbers: slots for names, the arena, and where each value goes."""

    def __init__(self, writer: ProgramWriter) -> None:
        self.writer = writer
        self.instructions = writer.instructions
        self.last = self.last_uses()

    def encode(self) -> Encoded:
        writer = self.writer
        arena, offsets = self.plan()
        symbols, arithmetic = self.arithmetic()
        slots = {name: place for place, name in enumerate(dict.fromkeys(writer.inputs))}
        if len(slots) != len(writer.inputs):
            raise Unsupported("an input that is given twice")
        code: list[int] = []
        lines: list[str] = []

        def emit(instruction: int, operands: Sequence[int | Slot], text: str) -> None:
            code.append(instruction)
            code.extend(slots.setdefault(each.name, len(slots)) if isinstance(each, Slot) else each for each in operands)
            lines.append(text)

        self.free(emit, [name for name in writer.inputs if name not in self.last], offsets)
        done: dict[int, list[str]] = {}
        for name, last in self.last.items():
            done.setdefault(last, []).append(name)
        for position, each in enumerate(self.instructions):
            if each.defines in offsets:
                assert each.defines is not None and each.buffer is not None
                emit(RAW, [Slot(each.defines), offsets[each.defines]], each.text + f" at {offsets[each.defines]}")
                if each.number is not None:
                    emit(NUMBER, [Slot(each.defines), each.number], f"{each.defines} holds the number {each.number.name}")
            else:
                emit(each.code, each.operands, each.text)
            if each.code != RETURN:
                self.free(emit, sorted(done.get(position, ())), offsets)
        numbers = [size if isinstance(size, int) else 0 for size in writer.numbers]
        text = f"arena of {arena} bytes\n" * bool(arena) + "\n".join(lines) + "\n"
        return Encoded(len(writer.inputs), len(slots), packed(code), packed(numbers), packed(symbols), packed(arithmetic),
                       arena, tuple(writer.objects), tuple(writer.entries), dict(writer.cells), text=text)

    @staticmethod
    def free(emit: Callable[..., None], names: list[str], offsets: dict[str, int]) -> None:
        gone = [name for name in names if name not in offsets]
        if gone:
            emit(FREE, [len(gone), *map(Slot, gone)], f"free {', '.join(gone)}")

    def last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for position, each in enumerate(self.instructions):
            for name in (*each.uses, *each.tensors, *((each.defines,) if each.defines is not None else ())):
                last[name] = position
        return last

    def plan(self) -> tuple[int, dict[str, int]]:
        """The size of the arena, and where in it each value is that need not be a tensor. The largest first, each at the
        lowest place that is free while it lives."""
        tensors = set().union(*(each.tensors for each in self.instructions))
        spans: list[tuple[int, int, int, str]] = []
        for position, each in enumerate(self.instructions):
            if each.buffer is None or each.defines in tensors or each.buffer.device.type != "cpu":
                continue
            count = each.buffer.extent
            if not isinstance(count, int) or count * each.buffer.dtype.itemsize > LARGE:
                continue
            size = -(-max(count * each.buffer.dtype.itemsize, 1) // ALIGNMENT) * ALIGNMENT
            spans.append((size, position, self.last[each.buffer.name], each.buffer.name))
        placed: list[tuple[int, int, int, int]] = []
        offsets: dict[str, int] = {}
        for size, first, last, name in sorted(spans, key=lambda span: (-span[0], span[1])):
            at = 0
            for start, end, other_first, other_last in placed:
                if other_last >= first and last >= other_first and start < at + size and end > at:
                    at = end
            insort(placed, (at, at + size, first, last))
            offsets[name] = at
        return max((end for _, end, _, _ in placed), default=0), offsets

    def arithmetic(self) -> tuple[list[int], list[int]]:
        """(where each symbol is found, the code that fills in the numbers that vary)."""
        writer = self.writer
        varying = [(place, size) for place, size in enumerate(writer.numbers) if not isinstance(size, int)]
        if solved := writer.found.solved(symbols_in(size for _, size in varying)):
            varying = [(place, size.xreplace(solved)) for place, size in varying]
        wanted = sorted(symbols_in(size for _, size in varying), key=str)
        symbols: list[int] = []
        for symbol in wanted:
            name, kind, dim = writer.found.place(symbol)
            symbols += [writer.inputs.index(name), kind, dim]
        places = {symbol: place for place, symbol in enumerate(wanted)}
        code: list[int] = []
        for place, size in varying:
            postfix(size, places, code, 1)
            code += [S_STORE, place]
        return symbols, [*code, S_END] if code else []


def packed(numbers: Sequence[int]) -> bytes:
    return array("q", numbers).tobytes()


_OPERATIONS = {"FloorDiv": S_FLOORDIV, "CleanDiv": S_FLOORDIV, "Mod": S_MOD, "PythonMod": S_MOD, "Max": S_MAX, "Min": S_MIN}


def postfix(expr: Any, places: dict[sympy.Symbol, int], code: list[int], depth: int) -> None:
    """Appends the stack code that leaves the value of a size on top."""
    if depth > MOST_STACK:
        raise UnprintableSize("a very deep expression")
    if isinstance(expr, int) or expr.is_Integer:
        code += [S_CONST, int(expr)]
        return
    if expr.is_Symbol:
        code += [S_SYMBOL, places[expr]]
        return
    name = type(expr).__name__
    operands: Sequence[Any] = expr.args
    if expr.is_Add or expr.is_Mul:
        operation = S_ADD if expr.is_Add else S_MUL
    elif expr.is_Pow and expr.exp.is_Integer and 0 < int(expr.exp) <= 8:
        operation, operands = S_MUL, [expr.base] * int(expr.exp)
    elif name == "ModularIndexing":
        postfix(operands[0], places, code, depth)
        postfix(operands[1], places, code, depth + 1)
        code.append(S_FLOORDIV)
        postfix(operands[2], places, code, depth + 1)
        code.append(S_MOD)
        return
    elif name in _OPERATIONS:
        operation = _OPERATIONS[name]
    else:
        raise UnprintableSize(f"{name} in {expr}")
    postfix(operands[0], places, code, depth)
    for each in operands[1:]:
        postfix(each, places, code, depth + 1)
        code.append(operation)
