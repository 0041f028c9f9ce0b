"""The function that runs a compiled graph: allocates, launches kernels, calls ATen, in the order of the schedule.

It is Python text, `call(args)` over a list of inputs which it empties, so that an input dies with its last use. A second
text, used for the first call, also checks that each ATen call returned the strides its fake tensor promised. Both exist
also as `call(a, b, ...)`, which returns a tuple: what an inference graph is called by where nothing stands between.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit import _C
from fxjit.schemas import returns_alias

from ..index import Found, UnprintableSize, prod, size_of, sizes_of, symbols_in, to_python
from ..ir import Buffer, Extern
from ..lower.table import Lowering, is_view, meta_of, op_name
from ..runtime import cc
from ..runtime.callees import METHODS, callee_of, promised, promised_layout
from ..schedule.fuse import Group, Step
from ..target import has_kernels
from .kernel import Kernel
from .triton import TritonKernel


@dataclass(slots=True)
class Line:
    text: str
    uses: set[str] = field(default_factory=set)
    defines: set[str] = field(default_factory=set)
    allocates: Buffer | None = None
    checked_only: bool = False


@dataclass(slots=True)
class Launch:
    """A group with one of its kernels; `entry` is the function's name, `written` the buffers it writes."""

    group: Group
    kernel: Kernel | TritonKernel
    entry: str
    written: dict[str, Buffer]


@dataclass(slots=True)
class Texts:
    """The four functions as text, with what they refer to and how many tensors and sizes each kernel takes."""

    texts: tuple[str, str, str, str]
    namespace: dict[str, Any]
    kernels: dict[str, tuple[int, int]]
    #: Gives the kernels that no C++ compiler made, by name.
    others: Callable[[], dict[str, Callable[..., Any]]] = dict

    @property
    def text(self) -> str:
        return self.texts[0]

    def build(self, library: Any) -> list[Any]:
        """(later calls, the first call), over a list, and both over plain arguments."""
        namespace = dict(self.namespace)
        for entry, (tensors, integers) in self.kernels.items():
            namespace[entry] = _C.Kernel(cc.address(library, entry), tensors, integers, library)
        namespace.update(self.others())
        namespace["_odd"].clear()
        made = []
        for text in self.texts:
            scope = dict(namespace)
            exec(compile(text, "<fxjit executor>", "exec"), scope)
            _C.set_flags(scope["call"].__code__, _C.TRANSFORMED)
            made.append(scope["call"])
        return made


class Wrapper:
    """Writes the text; `namespace` holds the objects it refers to."""

    def __init__(self, low: Lowering, gm: torch.fx.GraphModule) -> None:
        self.low, self.gm = low, gm
        self.lines: list[Line] = []
        self.namespace: dict[str, Any] = {**HELPERS, "_odd": []}
        self.roots: dict[str, str] = {}
        self.pinned: set[str] = set()
        self.named: dict[torch.fx.Node, str] = {}
        self.found: Found[str] = Found()
        self.inputs: list[str] = []
        self.prologue: list[str] = []
        self.wanted_symbols: set[sympy.Symbol] = set()
        self.launched: set[str] = set()

    # Text of values

    def constant(self, value: Any) -> str:
        name = f"c{sum(1 for key in self.namespace if key.startswith('c') and key[1:].isdigit())}"
        self.namespace[name] = value
        return name

    def symbolic(self, size: Any) -> str:
        expr = size_of(size)
        if isinstance(expr, int):
            return str(expr)
        self.wanted_symbols |= symbols_in([expr])
        return to_python(expr)

    def shape(self, sizes: Iterable[Any]) -> str:
        return "(" + "".join(f"{self.symbolic(size)}, " for size in sizes) + ")"

    def argument(self, x: Any, uses: set[str]) -> str:
        if isinstance(x, torch.fx.Node):
            return self.node_value(x, uses)
        if isinstance(x, (list, tuple)):
            inside = "".join(f"{self.argument(each, uses)}, " for each in x)
            return f"[{inside}]" if isinstance(x, list) else f"({inside})"
        if isinstance(x, dict):
            return "{" + ", ".join(f"{key!r}: {self.argument(value, uses)}" for key, value in x.items()) + "}"
        if x is None or x is Ellipsis or isinstance(x, (bool, int, str)):
            return repr(x)
        if isinstance(x, float) and x - x == 0:
            return repr(x)
        if isinstance(x, slice):
            return f"slice({self.argument(x.start, uses)}, {self.argument(x.stop, uses)}, {self.argument(x.step, uses)})"
        if isinstance(x, (torch.SymInt, sympy.Expr)):
            return self.symbolic(x)
        return self.constant(x)

    def node_value(self, node: torch.fx.Node, uses: set[str]) -> str:
        meta = meta_of(node)
        if isinstance(meta, torch.SymInt) and node not in self.named:
            return self.symbolic(meta)
        if isinstance(meta, (int, float, bool)) and node not in self.named and node.op != "placeholder":
            return repr(meta)
        if isinstance(meta, (torch.SymBool, torch.SymFloat)) and node.op == "call_function" and node not in self.named:
            self.calculate(node)
        name = self.tensor(node)
        uses.add(name)
        return name

    def calculate(self, node: torch.fx.Node) -> None:
        """A condition or a float made of symbolic sizes: Python calculates it."""
        uses: set[str] = set()
        text = self.call_text(node, uses)
        self.named[node] = f"y_{node.name}"
        self.lines.append(Line(f"{self.named[node]} = {text}", uses, {self.named[node]}))

    def tensor(self, node: torch.fx.Node) -> str:
        """The variable of a node's value; a view is made when it is first asked for."""
        if node in self.named:
            return self.named[node]
        if is_view(node):
            return self.make_view(node)
        name = self.low.home.get(node)
        if name is None:
            raise KeyError(f"{node} has no memory")
        self.named[node] = name
        return name

    def make_view(self, node: torch.fx.Node) -> str:
        uses: set[str] = set()
        text = self.call_text(node, uses)
        name = f"v_{node.name}"
        base = self.tensor(node.args[0])  # type: ignore[arg-type]  # an argument that is a node
        self.roots[name] = self.roots.get(base, base)
        self.lines.append(Line(f"{name} = {text}", uses, {name}))
        self.named[node] = name
        return name

    def call_text(self, node: torch.fx.Node, uses: set[str]) -> str:
        args = [self.argument(arg, uses) for arg in node.args]
        kwargs = {name: self.argument(arg, uses) for name, arg in node.kwargs.items()}
        if node.op == "call_method":
            receiver, *rest = args
            return f"{receiver}.{node.target}({joined(rest, kwargs)})"
        method = METHODS.get(op_name(node))
        if method is not None and not kwargs:
            return f"{args[0]}.{method}({', '.join(args[1:])})"
        return f"{self.function(node)}({joined(args, kwargs)})"

    def function(self, node: torch.fx.Node) -> str:
        if node.op == "call_module":
            return self.constant(self.gm.get_submodule(str(node.target)))
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload):
            callee = callee_of(target, op_name(node), *example_of(node))
            kind = "op" if callee.kind == "operator" else "f"
            key = f"{kind}_{target.namespace}_{target._opname}_{target._overloadname}"
            self.namespace[key] = callee.find()
            return key
        return self.constant(target)

    # Lines

    def take_inputs(self) -> None:
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                meta = meta_of(node)
                if isinstance(meta, torch.Tensor):
                    name = self.low.home[node]
                    self.pinned.add(name)
                    if is_given_beside(node, self.low, self.launched):
                        self.check(name, node)
                else:
                    name = f"a_{node.name}"
                    if isinstance(meta, torch.SymInt):
                        self.found.tell(size_of(meta), name)
                    if not isinstance(meta, torch.SymInt):
                        self.named[node] = name
                self.inputs.append(name)
            elif node.op == "get_attr":
                self.take_attribute(node)

    def take_attribute(self, node: torch.fx.Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        name = self.low.home.get(node) or f"m_{node.name}"
        self.namespace[name] = value
        self.named[node] = name
        self.pinned.add(name)

    def bind_symbols(self) -> None:
        """Where each symbol that is used comes from: an input that is it, or a size of an input that is it."""
        for node in self.gm.graph.find_nodes(op="placeholder"):
            meta = meta_of(node)
            if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided:
                continue
            for what, values in (("size", meta.shape), ("stride", meta.stride())):
                for dim, value in enumerate(sizes_of(values)):
                    self.found.tell(value, f"{self.low.home[node]}.{what}({dim})")
        solved = self.found.solved(self.wanted_symbols)
        told = [solved.get(symbol, symbol) for symbol in self.wanted_symbols]
        for symbol in sorted(symbols_in(told), key=str):
            if (text := self.found.place(symbol)) != str(symbol):
                self.prologue.append(f"{symbol} = {text}")
        for symbol in sorted(self.wanted_symbols & solved.keys(), key=str):
            self.prologue.append(f"{symbol} = {to_python(solved[symbol])}")

    def launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        for name in kernel.buffers:
            if name in launch.written and not self.defined(name):
                self.allocate(launch.written[name])
        sizes = [self.symbolic(symbol) for symbol in kernel.symbols]
        self.lines.append(Line(f"{launch.entry}({', '.join([*kernel.buffers, *sizes])})", set(kernel.buffers)))

    def defined(self, name: str) -> bool:
        return name in self.pinned or any(name in line.defines for line in self.lines)

    def allocate(self, buffer: Buffer) -> None:
        dtype = self.dtype(buffer.dtype)
        layout = f"{self.shape(buffer.size)}, {self.shape(buffer.stride)}"
        text = f"{buffer.name} = empty_strided({layout}, dtype={dtype}{self.on(buffer)})"
        self.lines.append(Line(text, set(), {buffer.name}, buffer))

    def on(self, buffer: Buffer) -> str:
        """The device as a further argument, where it is not torch's own default."""
        if buffer.device.type == "cpu":
            return ""
        name = f"on_{buffer.device.type}{buffer.device.index or 0}"
        self.namespace[name] = buffer.device
        return f", device={name}"

    def extern(self, step: Extern) -> None:
        node = step.node
        uses: set[str] = set()
        text = self.call_text(node, uses)
        if not has_plain_results(node):
            self.pinned |= {self.roots.get(name, name) for name in uses}
        name = self.low.home.get(node) or f"x_{node.name}"
        self.named[node] = name
        self.lines.append(Line(f"{name} = {text}", uses, {name}))
        results = {node: name}
        for user in node.users:
            if user.target is operator.getitem and user in self.low.home:
                item = results[user] = self.low.home[user]
                self.lines.append(Line(f"{item} = {name}[{user.args[1]}]", {name}, {item}))
                self.named[user] = item
        self.bind_unbacked(node, name)
        for result, item in results.items():
            self.check(item, result)

    def bind_unbacked(self, node: torch.fx.Node, name: str) -> None:
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
            text = name
            for key in path:
                kind = type(key).__name__
                if kind == "CallMethodKey":
                    text = f"{text}.{key.name}()"
                elif kind == "SequenceKey":
                    text = f"{text}[{key.idx}]"
                elif kind == "DivideByKey":
                    text = f"{text} // {self.symbolic(key.divisor)}"
                elif kind == "ConvertIntKey":
                    text = f"int({text})"
                else:
                    raise UnprintableSize(f"{symbol} found by {kind}")
            self.found.places[symbol] = str(symbol)
            self.lines.append(Line(f"{symbol} = {text}", {name}))

    def dtype(self, dtype: torch.dtype) -> str:
        name = f"d_{str(dtype).removeprefix('torch.')}"
        self.namespace[name] = dtype
        return name

    def check(self, name: str, node: torch.fx.Node) -> None:
        meta = meta_of(node)
        if (
            isinstance(meta, torch.Tensor)
            and meta.layout is torch.strided
            and has_kernels(meta.device)
            and node in self.low.home
        ):
            try:
                size, stride = self.shape(sizes_of(meta.shape)), self.shape(sizes_of(meta.stride()))
                helper = "_promised_layout" if may_differ(node, self.low, self.launched) else "_promised"
                text = f"{name} = {helper}({name}, {size}, {stride}, {self.dtype(meta.dtype)}, _odd)"
            except UnprintableSize:
                return
            self.lines.append(Line(text, {name}, {name}, checked_only=True))

    def result(self) -> Line:
        output = next(iter(self.gm.graph.find_nodes(op="output")))
        uses: set[str] = set()
        values = output.args[0]
        text = self.argument(list(values) if isinstance(values, (list, tuple)) else values, uses)
        return Line(f"return {text}", uses)

    # The whole text

    def texts(self, steps: list[Step | Launch]) -> Texts:
        kernels = {step.entry: (len(step.kernel.buffers), len(step.kernel.symbols)) for step in steps
                   if isinstance(step, Launch) and isinstance(step.kernel, Kernel)}
        return Texts(self.sources(steps), self.namespace, kernels)

    def sources(self, steps: list[Step | Launch]) -> tuple[str, str, str, str]:
        """(the text for every later call, the text for the first one), over a list, and both over plain arguments."""
        self.launched = launched_buffers(steps)
        self.take_inputs()
        for step in steps:
            if isinstance(step, Launch):
                self.launch(step)
            else:
                assert isinstance(step, Extern)
                self.extern(step)
        last = self.result()
        self.bind_symbols()
        self.lines.append(last)
        return self.assemble(False), self.assemble(True), self.assemble(False, True), self.assemble(True, True)

    def assemble(self, checked: bool, unboxed: bool = False) -> str:
        lines = [line for line in self.lines if checked or not line.checked_only]
        death = self.deaths(lines)
        names = "".join(name + ", " for name in self.inputs)
        unpack = [f"({names}) = args" if self.inputs else "pass", "args.clear()"]
        body = [*(() if unboxed else unpack), *self.prologue]
        used = set().union(*(line.uses for line in lines)) if lines else set()
        unused = [name for name in self.inputs if name not in used and not any(name in text for text in self.prologue)]
        if unused:
            body.append(f"del {', '.join(unused)}")
        free: dict[Any, list[str]] = {}
        kept = lines[-1].uses | self.pinned
        kept |= {self.roots.get(name, name) for name in kept}
        for position, line in enumerate(lines):
            text = line.text
            if line.allocates is not None:
                found = self.take(free, line.allocates)
                if found is not None:
                    text = f"{line.allocates.name} = {found}"
            body.append(text)
            gone = [name for name in death.get(position, ()) if name not in self.namespace]
            if gone and position != len(lines) - 1:
                # Memory that may be used again keeps a variable of another name.
                body += [f"r_{name} = {name}" for name in gone if self.release(free, name, kept)]
                body.append(f"del {', '.join(gone)}")
        if unboxed:
            values = lines[-1].text.removeprefix("return ")
            body[-1] = f"return ({values[1:-1]})" if values.startswith("[") and values != "[]" else "return ()"
        return f"def call({names if unboxed else 'args'}):\n" + "".join(f"    {text}\n" for text in body)

    def take(self, free: dict[Any, list[str]], buffer: Buffer) -> str | None:
        names = free.get(self.pool_key(buffer))
        return names.pop() if names else None

    def release(self, free: dict[Any, list[str]], name: str, kept: set[str]) -> bool:
        buffer = self.low.buffers.get(name)
        if buffer is None or buffer.kind != "temp" or name in kept or name in self.pinned:
            return False
        if isinstance(prod(buffer.size), int) and prod(buffer.size) * buffer.dtype.itemsize < 4096:  # type: ignore[operator]  # an int: asked just before
            return False
        free.setdefault(self.pool_key(buffer), []).append(f"r_{name}")
        return True

    @staticmethod
    def pool_key(buffer: Buffer) -> Any:
        return buffer.dtype, buffer.size, buffer.stride, buffer.device

    def deaths(self, lines: list[Line]) -> dict[int, list[str]]:
        """After which line each variable goes. One whose memory views refer to stays as long as they do."""
        last: dict[str, int] = {}
        for position, line in enumerate(lines):
            for name in (*line.uses, *line.defines):
                last[name] = position
                last[self.roots.get(name, name)] = position
        out: dict[int, list[str]] = {}
        for name, position in sorted(last.items()):
            out.setdefault(position, []).append(name)
        return out


def example_of(node: torch.fx.Node) -> tuple[Any, Any]:
    """What a call is given, positionally and by name, with fake tensors for tensors and sizes as they were while tracing."""
    def value(x: Any) -> Any:
        x = meta_of(x) if isinstance(x, torch.fx.Node) else x
        return x.node.hint if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) else x

    return pytree.tree_map(value, (tuple(node.args), dict(node.kwargs)))  # type: ignore[no-any-return]  # untyped in torch


def joined(args: list[str], kwargs: dict[str, str]) -> str:
    return ", ".join([*args, *(f"{name}={value}" for name, value in kwargs.items())])


def has_plain_results(node: torch.fx.Node) -> bool:
    """The call's results are new memory: no alias of an argument."""
    return node.target is operator.getitem or not returns_alias(node.target)


def launched_buffers(steps: Iterable[Any]) -> set[str]:
    return {name for step in steps if isinstance(step, Launch) for name in step.kernel.buffers}


def read_by_shape(node: torch.fx.Node, low: Lowering, launched: set[str]) -> bool:
    """Whether the node's tensor is read by what was made for its shape: kernels, and views, whose sizes are in the graph."""
    return low.home[node] in launched or any(map(is_view, node.users))


def may_differ(node: torch.fx.Node, low: Lowering, launched: set[str]) -> bool:
    """Whether the result may have another shape than torch says: integers beside an operator's result, which tell its
    derivative what it did. Others may be read by matrix products."""
    meta = meta_of(node)
    beside = node.target is operator.getitem and not meta.is_floating_point() and not meta.is_complex()
    return beside and not read_by_shape(node, low, launched)


def is_given_beside(node: torch.fx.Node, low: Lowering, launched: set[str]) -> bool:
    """Whether an input is such a result of the forward graph, and its shape is relied on here."""
    return bool(node.meta.get("fxjit_result_beside")) and node in low.home and read_by_shape(node, low, launched)


HELPERS: dict[str, Any] = {
    "empty_strided": torch.empty_strided,
    "_floordiv": operator.floordiv,
    "_mod": operator.mod,
    "_promised": promised,
    "_promised_layout": promised_layout,
}
