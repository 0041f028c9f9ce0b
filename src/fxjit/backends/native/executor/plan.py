"""One walk over a graph's schedule gives the executor's instructions: allocate, launch, multiply, call ATen, return.

A view is strides and an offset, which kernels and matrix products read as they are; a tensor is made of it only where ATen or
the caller wants one. Whatever has no instruction of its own is a call of a Python function.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv

from fxjit import _C, tensor_shim
from fxjit.schemas import returns_alias

from ..codegen.kernel import Kernel
from ..codegen.launch import Launch
from ..hints import Hints
from ..index import Found, RoundedSymbol, Size, Sizes, UnprintableSize, equal, prod, size_of, sizes_of, symbols_in
from ..ir import Buffer, Extern
from ..lower.blas import (
    Product,
    blas_is_atens,
    origin,
    product_by_packed,
    product_by_pairs,
    product_of,
    product_of_few_rows,
)
from ..lower.grouped import GroupedProduct, grouped_product_of
from ..lower.table import Lowering, is_view, meta_of, op_name
from ..runtime.own_convolutions import is_preferred
from ..runtime.own_products import Shape, pairs_are_faster
from ..schedule.fuse import group_work
from ..schedule.product_tiles import TiledProduct
from ..target import scalar_tensor
from .aten_calls import FunctionName, aten_function, python_function
from .convolutions import convolution_of
from .encode import is_printable
from .opcodes import (
    SYMBOL_ORIGINS,
    Dependents,
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
from .repeats import OUT_OF_RANGE, repeated

#: Work of a kernel, multiplications of a product, from which other Python threads may run meanwhile.
LONG_KERNEL, LONG_PRODUCT = 50_000, 400_000
#: The types of GEMM, by its number for them.
#: Products that the executor multiplies by itself, by the number of their type, and of those of more rows of bfloat16, also
#: by packed weights.
PRODUCT_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int8)
BY_PAIRS = len(PRODUCT_TYPES)
BY_PACKED = {torch.bfloat16: BY_PAIRS + 1, torch.float32: BY_PAIRS + 2}
#: The devices whose memory programs allocate and look at by torch's shim.
DEVICES = ("cpu", "cuda")


def plan(low: Lowering, gm: torch.fx.GraphModule, hints: Hints, steps: Sequence[Any]) -> Listing:
    """The program of a graph whose schedule is `steps`, its memory not yet planned."""
    return _Planner(low, gm, hints).plan(steps)


class _Planner:
    def __init__(self, low: Lowering, gm: torch.fx.GraphModule, hints: Hints) -> None:
        self.low, self.gm, self.hints = low, gm, hints
        self.instructions: list[Instruction] = []
        self.names: dict[torch.fx.Node, str] = {}
        self.inputs: list[str] = []
        self.defined: set[str] = set()
        self.found: Found[tuple[str, str, int] | None] = Found()
        self.derived: dict[sympy.Symbol, sympy.Expr] = {}
        self.launched: set[str] = set()
        self.products: list[Shape] = []

    def plan(self, steps: Sequence[Any]) -> Listing:
        self.launched = launched_buffers(steps)
        self.take_inputs()
        self.calculate_rounded()
        wrote = False
        for step in steps:
            changed = [] if wrote else self.inputs_changed(step)
            wrote = wrote or bool(changed)
            # A kernel that stores at computed places looks at all of them before it stores.
            checked_first = isinstance(step, Launch) and step.group.scatters
            if changed and not checked_first:
                self.add("WRITES", changed)
            if isinstance(step, Launch):
                self.launch(step)
            else:
                assert isinstance(step, Extern)
                self.extern(step)
            if changed and checked_first:
                self.add("WRITES", changed)
        self.finish()
        return Listing(self.inputs, self.instructions, self.found, self.derived, self.products)

    def add(self, name: str, repeated: Sequence[Value] = (), buffer: Buffer | None = None, **operands: Operand) -> None:
        instruction = Instruction(name, tuple(repeated), buffer, **operands)
        self.instructions.append(instruction)
        if instruction.out is not None:
            self.defined.add(instruction.out)

    # Values

    def value(self, x: Any, real: bool = False) -> Value:
        """An argument of a call, or a result. `real`: a view must be one to autograd too."""
        if isinstance(x, torch.fx.Node):
            return self.value_of(x, real)
        if isinstance(x, torch.SymInt):
            return Number(size_of(x))
        if isinstance(x, (torch.SymBool, torch.SymFloat)):
            return Object(constant_of(x))
        if isinstance(x, (list, tuple)) and varies(x):
            values = [self.value(each, real) for each in x]
            return values if isinstance(x, list) else tuple(values)
        if isinstance(x, slice) and varies(x):
            return slice(self.value(x.start), self.value(x.stop), self.value(x.step))
        if isinstance(x, dict):
            return {name: self.value(each, real) for name, each in x.items()}
        return Object(list(x) if isinstance(x, list) else x)

    def value_of(self, node: torch.fx.Node, real: bool) -> Value:
        meta = meta_of(node)
        if isinstance(meta, torch.SymInt):
            return Number(size_of(meta))
        if isinstance(meta, (torch.SymBool, torch.SymFloat)):
            return Variable(self.calculated(node))
        if isinstance(meta, (int, float, bool)) and node.op != "placeholder":
            return Object(meta)
        return Variable(self.real_view(node) if real else self.tensor(node))

    def calculated(self, node: torch.fx.Node) -> str:
        """The name of a float or a condition that Python calculates, of the graph's inputs and of sizes."""
        if node not in self.names:
            name = f"y_{node.name}"
            self.call(node, name, real=False)
            self.names[node] = name
        return self.names[node]

    def calculate_rounded(self) -> None:
        """Binds the integers that Python makes of floats, where inputs and other sizes give all that they are made of."""
        made: dict[sympy.Symbol, Any] = {}
        for node in self.gm.graph.nodes:
            meta = meta_of(node) if node.op == "call_function" else None
            symbol = size_of(meta) if isinstance(meta, torch.SymInt) else None
            if not isinstance(symbol, RoundedSymbol) or not all(map(self.is_of_inputs, node.all_input_nodes)):
                continue
            if symbol in made and made[symbol] != calculation(node):
                raise UnprintableSize(f"{symbol.made_of}, which is calculated in two orders")
            if symbol not in self.found.places:
                made[symbol] = calculation(node)
                name = f"i_{node.name}"
                self.call(node, name, real=False)
                self.bind(symbol, [], name)

    def is_of_inputs(self, node: torch.fx.Node) -> bool:
        """Whether this is an input (floats that vary come in tensors), or a number calculated of inputs and their sizes."""
        if node.op == "placeholder":
            return True
        meta = meta_of(node)
        if isinstance(meta, torch.SymInt) and all(found in self.found.places for found in symbols_in([size_of(meta)])):
            return True
        is_number = node.op == "call_function" and isinstance(meta, (torch.SymInt, torch.SymFloat))
        return is_number and all(map(self.is_of_inputs, node.all_input_nodes))

    def take_inputs(self) -> None:
        for node in self.gm.graph.find_nodes(op="placeholder"):
            meta = meta_of(node)
            name = self.low.storage[node] if isinstance(meta, torch.Tensor) else f"a_{node.name}"
            assert name not in self.defined, f"{name} is an input twice"
            self.inputs.append(name)
            self.defined.add(name)
            if isinstance(meta, torch.SymInt):
                self.found.tell(size_of(meta), (name, "INTEGER", 0))
            else:
                self.names[node] = name
        for node in self.gm.graph.find_nodes(op="placeholder"):
            meta = meta_of(node)
            if isinstance(meta, torch.Tensor) and meta.layout is torch.strided:
                for kind, values in (("SIZE", meta.shape), ("STRIDE", meta.stride())):
                    for dim, value in enumerate(sizes_of(values)):
                        self.found.tell(value, (self.low.storage[node], kind, dim))
        for node in self.gm.graph.find_nodes(op="placeholder"):
            if is_auxiliary_input(node, self.low, self.launched):
                self.assert_strides(node, self.low.storage[node])
        for node in self.gm.graph.find_nodes(op="get_attr"):
            self.take_attribute(node)

    def take_attribute(self, node: torch.fx.Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        name = self.names[node] = self.low.storage.get(node) or f"m_{node.name}"
        self.add("LOAD", out=Variable(name), object=Object(value, str(node.target)))

    def root(self, node: torch.fx.Node) -> torch.fx.Node:
        while is_view(node) and node not in self.names:
            node = node.args[0]  # type: ignore[assignment]  # a view's first argument is a node
        return node

    def tensor(self, node: torch.fx.Node) -> str:
        """The name of a node's value as a tensor of its own; a view is made at its first use."""
        if node in self.names:
            return self.names[node]
        if not is_view(node):
            assert node in self.low.storage, f"{node} has no memory"
            self.names[node] = self.low.storage[node]
            return self.names[node]
        root = self.root(node)
        meta, base_meta = meta_of(node), meta_of(root)
        if not is_strided(meta) or not is_strided(base_meta) or meta.dtype is not base_meta.dtype:
            return self.real_view(node)
        base, name = self.tensor(root), f"v_{node.name}"
        layout = sizes_of((*meta.shape, *meta.stride(), self.low.relative_offset(meta, base_meta)))
        self.add("VIEW", out=Variable(name), base=Variable(base), ndim=meta.dim(), sizes=Numbers(layout))
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
            layout = tuple(map(Number, buffer.size)), tuple(map(Number, buffer.stride))
            self.call_with(buffer.name, FunctionName("helper", "empty_strided"),
                           (*layout, Object(buffer.dtype), Object(buffer.device)), buffer)
            return
        self.add("ALLOCATE", (), buffer, out=Variable(buffer.name), dtype=code, ndim=len(buffer.size),
                 sizes=Numbers((*buffer.size, *buffer.stride)), device=device, device_index=buffer.device.index or 0)

    # Steps

    def inputs_changed(self, step: Any) -> list[Variable]:
        """The inputs that the step leaves in a state which a second run of the program would not."""
        names = step.mutates if isinstance(step, Extern) else {
            member.compute.out.name for member in step.group.members if self.low.repeats.isdisjoint(member.compute.origins)}
        return [Variable(name) for name in self.inputs if name in names]

    def launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        for name in kernel.buffers:
            if name in launch.written and name not in self.defined:
                self.allocate(launch.written[name])
        if isinstance(launch.group, TiledProduct):
            self.note_product(launch.group.product, rows=launch.group.block)
        buffers, sizes = [Variable(name) for name in kernel.buffers], Numbers(tuple(kernel.sizes))
        if isinstance(kernel, Kernel):
            unlocked = int(group_work(launch.group, self.hints) > LONG_KERNEL)
            self.add("LAUNCH", buffers, kernel=KernelEntry(launch.entry), unlocked=unlocked, sizes=sizes)
            if self.low.fails_for_good:
                self.repeat(repeated(launch, self.low, self.inputs, self.defined))
        else:
            self.add("CALL_KERNEL", buffers, cell=KernelCell(launch.entry), sizes=sizes, num_sizes=len(kernel.sizes))

    def repeat(self, nodes: Sequence[torch.fx.Node]) -> None:
        """What runs where the kernel failed; no other instruction knows of what it defines."""
        if not nodes:
            return
        names, defined, before = dict(self.names), set(self.defined), len(self.instructions)
        try:
            self.add("REPEAT", skip=0)
            for node in nodes:
                name = f"r_{node.name}"
                self.call(node, name, real=False)
                self.names[node] = name
            self.add("FAIL", text=Object(OUT_OF_RANGE))
        except UnprintableSize:
            del self.instructions[before:]
        self.names, self.defined = names, defined

    def extern(self, step: Extern) -> None:
        node = step.node
        product = product_of(node, self.low) or product_of_few_rows(node, self.low, self.low.weights.get(node))
        if product is not None:
            self.multiply(node, product, PRODUCT_TYPES.index(meta_of(self.low.weights.get(node, node)).dtype))
            return
        product = product_by_pairs(node, self.low)
        if product is not None and pairs_are_faster(*map(self.hints, (product.m, product.n, product.k))):
            self.multiply(node, product, BY_PAIRS)
            return
        product = product_by_packed(node, self.low)
        if product is not None:
            self.multiply(node, product, BY_PACKED[meta_of(node).dtype])
            return
        if op_name(node) == "bmm.default" and self.multiply_batches(node):
            return
        groups = grouped_product_of(node, self.low)
        if groups is not None:
            self.multiply_groups(node, groups)
            return
        convolution = convolution_of(node, self.hints)
        if convolution is not None and is_preferred(convolution[0]):
            self.convolve(node, convolution[1])
            return
        name = self.low.storage.get(node) or f"x_{node.name}"
        if node.target is scalar_tensor and len(node.args) == 1:  # for the processor's kernels
            self.call(node, name, real=False, buffer=self.low.buffers[name])
            self.names[node] = name
            return
        self.call(node, name, real=bool(step.mutates) or not returns_new_memory(node))
        self.names[node] = name
        results = {node: name}
        for user in node.users:
            if user.target is operator.getitem and user in self.low.storage:
                item = results[user] = self.names[user] = self.low.storage[user]
                index = user.args[1]
                assert isinstance(index, int)
                self.add("ITEM", out=Variable(item), sequence=Variable(name), index=index)
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
            self.bind(symbol, list(path), name)
        for result, item in results.items():
            self.assert_strides(result, item)

    def call(self, node: torch.fx.Node, name: str, real: bool, buffer: Buffer | None = None) -> None:
        values = [self.value(arg, real) for arg in (*node.args, *node.kwargs.values())]
        self.call_with(name, self.function(node), values, buffer, tuple(node.kwargs))

    def call_with(self, name: str, function: Any, values: Sequence[Value], buffer: Buffer | None = None,
                  keywords: tuple[str, ...] = ()) -> None:
        self.add("CALL", values, buffer, out=Variable(name), function=Object(function),
                 keywords=Object(keywords) if keywords else -1)

    def function(self, node: torch.fx.Node) -> Any:
        if node.op == "call_module":
            return self.gm.get_submodule(str(node.target))
        if node.op == "call_method":
            return getattr(torch.Tensor, str(node.target))
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload):
            return aten_function(target, op_name(node), *example_of(node))
        return python_function(target)

    def bind(self, symbol: sympy.Symbol, path: list[Any], name: str) -> None:
        """A size that the data decides, found in a call's result by torch's path of keys. What is no integer is no size."""
        if not symbol.is_integer:
            return
        kinds = [type(key).__name__ for key in path]
        if "DivideByKey" in kinds:
            if kinds[-1] != "DivideByKey":
                raise UnprintableSize(f"{symbol} found by {kinds}")
            whole = sympy.Symbol(f"{symbol}_undivided", integer=True, nonnegative=True)
            self.derived[symbol] = FloorDiv(whole, size_of(path[-1].divisor))
            self.bind(whole, path[:-1], name)
            return
        origin, dim = "INTEGER", 0
        if kinds[-2:] == ["CallMethodKey", "SequenceKey"] and path[-2].name in ("size", "stride"):
            origin, dim = path[-2].name.upper(), path[-1].idx
            del path[-2:]
        for key in path:
            kind, into = type(key).__name__, f"{name}_{len(self.instructions)}"
            if kind == "CallMethodKey":
                self.call_with(into, getattr(torch.Tensor, key.name), [Variable(name)])
            elif kind == "SequenceKey":
                self.add("ITEM", out=Variable(into), sequence=Variable(name), index=key.idx)
            elif kind == "ConvertIntKey":
                continue  # a truth is an integer
            else:
                raise UnprintableSize(f"{symbol} found by {kind}")
            name = into
        self.found.places[symbol] = None
        self.add("BIND", symbol=Symbol(symbol), source=Variable(name), origin=SYMBOL_ORIGINS[origin], dim=dim,
                 arithmetic=Dependents(symbol))

    def assert_strides(self, node: torch.fx.Node, name: str) -> None:
        """A result is given the strides and the type that kernels were compiled for, where an operator gives it others."""
        meta = meta_of(node)
        if not is_strided(meta) or node not in self.low.storage:
            return
        size, stride = sizes_of(meta.shape), sizes_of(meta.stride())
        if not all(map(is_printable, (*size, *stride))):
            return  # no kernel, and no view, can rely on such
        same_shape = shape_may_differ(node, self.low, self.launched)
        helper = FunctionName("helper", "with_strides_if_same_shape" if same_shape else "with_strides")
        code = tensor_shim.shim_code("dtype", meta.dtype)
        if code is None:
            layout = tuple(map(Number, size)), tuple(map(Number, stride))
            self.call_with(name, helper, (Variable(name), *layout, Object(meta.dtype)))
            return
        self.add("ASSERT_STRIDES", tensor=Variable(name), helper=Object(helper), ndim=len(size),
                 sizes=Numbers((*size, *stride)), dtype=code, torch_dtype=Object(meta.dtype))

    # Matrix products

    def multiply(self, node: torch.fx.Node, product: Product, kind: int) -> None:
        name = self.low.storage[node]
        self.names[node] = name
        self.allocate(self.low.buffers[name])
        a, b, bias = product.a, product.b, product.bias
        given = [Variable(self.tensor(origin(each.node))) for each in (a, b, *(() if bias is None else (bias,)))]
        numbers = [product.m, product.n, product.k, a.row, a.column, a.offset, b.row, b.column, b.offset, product.n, 1, 0,
                   *((0, 0) if bias is None else (bias.column, bias.offset))]
        unlocked = int(self.hints(prod((product.m, product.n, product.k))) > LONG_PRODUCT)
        if PRODUCT_TYPES[kind:kind + 1] == (torch.float32,):
            self.note_product(product)
        self.add("GEMM", into=Variable(name), a=given[0], b=given[1], bias=-1 if bias is None else given[2],
                 type=kind, unlocked=unlocked, sizes=Numbers(sizes_of(numbers)))

    def note_product(self, product: Product | None, rows: Size | None = None) -> None:
        """`rows`: of a block, where it is multiplied by blocks."""
        assert product is not None
        m, n, k = (self.hints(size) for size in (product.m if rows is None else rows, product.n, product.k))
        turned = (not equal(each.column, 1) and not equal(columns, 1) for each, columns in
                  ((product.a, product.k), (product.b, product.n)))
        if min(m, n, k) > 0:
            self.products.append((m, n, k, *turned))  # type: ignore[arg-type]  # two of them

    def note_batches(self, metas: Sequence[torch.Tensor]) -> bool:
        """Whether these are products of float32, which are not always ATen's then."""
        out, a, b = metas
        if any(each.dtype is not torch.float32 for each in metas) or not blas_is_atens():
            return False
        m, n, k = (self.hints(size) for size in sizes_of((*out.shape[1:], a.shape[2])))
        if min(m, n, k) > 0:
            self.products.append((m, n, k, *(not equal(size_of(each.stride(2)), 1) for each in (a, b))))  # type: ignore[arg-type]
        return True

    def multiply_batches(self, node: torch.fx.Node) -> bool:
        metas = [meta_of(node), *(meta_of(arg) for arg in node.args)]  # type: ignore[arg-type]  # arguments that are nodes
        here = all(is_strided(meta) and meta.device.type == "cpu" for meta in metas)
        if not _C.program_can("bmm") or not here or torch.is_autocast_enabled("cpu"):
            return False
        name = self.names[node] = self.low.storage[node]
        a, b = (Variable(self.tensor(arg)) for arg in node.args)  # type: ignore[arg-type]  # arguments that are nodes
        self.allocate(self.low.buffers[name])
        self.add("BMM", into=Variable(name), a=a, b=b, float32=int(self.note_batches(metas)))
        return True

    def multiply_groups(self, node: torch.fx.Node, groups: GroupedProduct) -> None:
        name = self.names[node] = self.low.storage[node]
        self.allocate(self.low.buffers[name])
        a, b, ends = (Variable(self.tensor(origin(arg))) for arg in node.args)  # type: ignore[arg-type]  # nodes
        for product in groups.typical(self.hints):
            self.note_product(product)
        wide = int(meta_of(node.args[2]).dtype is torch.int64)  # type: ignore[arg-type]  # a node
        self.add("GROUPED", into=Variable(name), a=a, b=b, ends=ends, wide=wide, sizes=Numbers(groups.numbers))

    # Convolutions

    def convolve(self, node: torch.fx.Node, numbers: Sizes) -> None:
        x, weight, bias = (Variable(self.tensor(arg)) if isinstance(arg, torch.fx.Node) else -1 for arg in node.args[:3])
        if op_name(node) == "convolution_backward.default":  # of the weight alone: the kernel's operands are others
            (made,) = node.users
            x, weight, bias = Variable(self.tensor(node.args[1])), x, -1  # type: ignore[arg-type]  # nodes
        else:
            made = node
        name = self.names[made] = self.low.storage[made]
        self.allocate(self.low.buffers[name])
        self.add("CONVOLVE", into=Variable(name), x=x, weight=weight, bias=bias, sizes=Numbers(numbers))

    # The end

    def finish(self) -> None:
        output = next(iter(self.gm.graph.find_nodes(op="output")))
        values = output.args[0]
        several = isinstance(values, (list, tuple))
        self.add("RETURN", [self.result(each) for each in (values if several else (values,))], several=int(several))

    def result(self, value: Any) -> Value:
        """A view of an input shares its version counter; a view of what the graph made has nobody to share with."""
        real = False
        if isinstance(value, torch.fx.Node) and isinstance(meta_of(value), torch.Tensor) and is_view(value):
            real = self.low.buffers[self.low.storage[origin(value)]].kind == "input"
        return self.value(value, real)


def calculation(value: Any) -> Any:
    """How Python comes to a number: its operations on sizes and inputs, in their order."""
    if isinstance(value, (tuple, list)):
        return tuple(map(calculation, value))
    if not isinstance(value, torch.fx.Node) or value.op == "placeholder":
        return value
    meta = meta_of(value)
    if isinstance(meta, torch.SymInt) and not isinstance(size_of(meta), RoundedSymbol):
        return size_of(meta)
    return value.target, calculation(value.args), tuple(value.kwargs.items())


def varies(values: Any) -> bool:
    """Whether some of this is known only at a call."""
    if isinstance(values, (list, tuple)):
        return any(map(varies, values))
    if isinstance(values, slice):
        return varies((values.start, values.stop, values.step))
    if isinstance(values, dict):
        return varies(list(values.values()))
    return isinstance(values, (torch.fx.Node, torch.SymInt, torch.SymFloat, torch.SymBool))


def constant_of(x: torch.SymBool | torch.SymFloat) -> Any:
    """The number that a symbolic one is, where it is one."""
    expr = x.node.expr
    if expr.free_symbols:
        raise UnprintableSize(f"{expr}, which no node calculates")
    return bool(expr) if isinstance(x, torch.SymBool) else float(expr)


def is_strided(meta: Any) -> bool:
    """A tensor whose memory programs know how to look at."""
    return (isinstance(meta, torch.Tensor) and meta.layout is torch.strided and meta.device.type in DEVICES
            and not meta.is_quantized and not meta.is_conj() and not meta.is_neg())


def example_of(node: torch.fx.Node) -> tuple[Any, Any]:
    """Example arguments of a call, positional and by name, with fake tensors for tensors and sizes as they were while
    tracing."""
    def value(x: Any) -> Any:
        x = meta_of(x) if isinstance(x, torch.fx.Node) else x
        return x.node.hint if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) else x

    return pytree.tree_map(value, (tuple(node.args), dict(node.kwargs)))  # type: ignore[no-any-return]  # untyped in torch


def returns_new_memory(node: torch.fx.Node) -> bool:
    """The call's results are no aliases of an argument."""
    return node.target is operator.getitem or not returns_alias(node.target)


def launched_buffers(steps: Iterable[Any]) -> set[str]:
    return {name for step in steps if isinstance(step, Launch) for name in step.kernel.buffers}


def read_by_shape(node: torch.fx.Node, low: Lowering, launched: set[str]) -> bool:
    """Whether the node's tensor is read by what was made for its shape: kernels, and views, whose sizes are in the graph."""
    return low.storage[node] in launched or any(map(is_view, node.users))


def shape_may_differ(node: torch.fx.Node, low: Lowering, launched: set[str]) -> bool:
    """Whether the result may have another shape than torch says: integers among an operator's auxiliary outputs, which tell its
    derivative what it did. Others may be read by matrix products."""
    meta = meta_of(node)
    auxiliary = node.target is operator.getitem and not meta.is_floating_point() and not meta.is_complex()
    return auxiliary and not read_by_shape(node, low, launched)


def is_auxiliary_input(node: torch.fx.Node, low: Lowering, launched: set[str]) -> bool:
    """Whether an input is such a result of the forward graph, and its shape is relied on here."""
    return bool(node.meta.get("fxjit_auxiliary_output")) and node in low.storage and read_by_shape(node, low, launched)
