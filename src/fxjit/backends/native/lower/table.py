"""The registry of lowerings and the state of one graph's lowering.

A lowering is a function `(low, node, *args, **kwargs)` registered for ATen overloads with `@lowers("add.Tensor")`; tensors
among the arguments come as `TensorExpr`s. It returns a TensorExpr (or a tuple of them for operators with several results). It
raises `NoLowering` for a case it leaves to ATen, and then the node becomes an extern call, as do all nodes without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.backends.graph.facts import cannot_start_over
from fxjit.schemas import communicates, returns_alias, views_first_argument

from ..choose.recompute import should_keep
from ..index import Size, Sizes, contiguous_strides, same_sizes, size_of, sizes_of, sub
from ..ir import (
    CPU,
    SUPPORTED,
    Buffer,
    Compute,
    Expr,
    Extern,
    Iota,
    Load,
    Statement,
    TensorExpr,
    children,
    compute_type,
    is_plain_load,
    load_all,
    loads,
    raises,
    unit_free,
    walk,
)
from ..ops import cast, const, own_work, work
from ..passes.in_place import CHANGES_PLACES, MARK, REPEATS
from ..target import scalar_tensor

Lowered = Any
LOWERINGS: dict[str, Callable[..., Lowered]] = {}
#: Those that read no numbers of a tensor.
OF_SHAPE: set[str] = set()
#: Those that read their operands in several loops, one after the other.
REREADING: set[str] = set()


class NoLowering(Exception):
    """This call is left to ATen; the text says why."""


def lowers(
    *names: str, of_shape: bool = False, rereads: bool = False
) -> Callable[[Callable[..., Lowered]], Callable[..., Lowered]]:
    """Registers the function for these overloads of aten; `of_shape`: it reads the shape and type of its tensor alone;
    `rereads`: it reads its operands in several loops, each after what was found in the one before."""

    def register(function: Callable[..., Lowered]) -> Callable[..., Lowered]:
        for name in names:
            if name in LOWERINGS:
                raise ValueError(f"aten.{name} has two lowerings")
            LOWERINGS[name] = function
            if of_shape:
                OF_SHAPE.add(name)
            if rereads:
                REREADING.add(name)
        return function

    return register


def op_name(node: torch.fx.Node) -> str:
    """`add.Tensor` for aten's operators and our own, else a name no lowering has."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "fxjit"):
        return f"{target._opname}.{target._overloadname}"
    return ""


def is_view(node: torch.fx.Node) -> bool:
    """Whether the node is lowered to index arithmetic over the memory of its first argument."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and op_name(node) in LOWERINGS and views_first_argument(target)


def meta_of(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


class Number:
    """A Python float that is known only at a call: a learning rate, or what the program calculates of it. Lowerings take it
    through `scalar_like`; one that wants to know its value while compiling leaves the call to ATen."""

    def __init__(self, node: torch.fx.Node) -> None:
        self.node = node

    def _unknown(self, *others: Any) -> Any:
        raise NoLowering("a number that is known only at a call")

    __bool__ = __int__ = __float__ = __index__ = __neg__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown


def overflows(number: Any, dtype: torch.dtype) -> bool:
    """Whether ATen, where it checks, refuses the number as one that the type does not hold. Negative ones may wrap around to
    unsigned types; infinity and NaN are numbers of every floating type."""
    if isinstance(number, bool) or not isinstance(number, (int, float)) or dtype is torch.bool or dtype.is_complex:
        return False
    if dtype.is_floating_point:
        return math.isfinite(number) and abs(number) > torch.finfo(dtype).max
    held = torch.iinfo(dtype)
    return not (held.min or -held.max) <= number <= held.max


def fitting(number: Any, dtype: torch.dtype) -> Any:
    """The number, or tensor, given to an operator that checks numbers; where it refuses this one, ATen's call has to raise."""
    if overflows(number, dtype):
        raise NoLowering("a number that the type does not hold")
    return number


class Lowering:
    """Walks a graph once, in order; see `lower_graph`."""

    def __init__(self, graph: torch.fx.Graph, by_aten: bool = False) -> None:
        self.graph, self.by_aten = graph, by_aten
        self.env: dict[torch.fx.Node, Any] = {}
        self.statements: list[Statement] = []
        self.buffers: dict[str, Buffer] = {}
        self.storage: dict[torch.fx.Node, str] = {}
        self.origins: dict[torch.fx.Node, frozenset[torch.fx.Node]] = {}
        self.node: torch.fx.Node | None = None
        self.device = CPU
        self.counter = 0
        self.marks: dict[torch.fx.Node, int] = {}
        self.reasons: dict[torch.fx.Node, str] = {}
        #: The number that all random numbers of a device are made from, made by ATen at each call, and how often it was used.
        self.seeds: dict[torch.device, TensorExpr] = {}
        self.draws = 0
        #: By identity, with the expression, which is thereby kept.
        self.loaded: dict[int, tuple[Expr, frozenset[str]]] = {}
        #: Of the graph's own tensors of one number: the number.
        self.constants: dict[torch.fx.Node, Any] = {}
        #: Numbers that are known only at a call, and that kernels read.
        self.numbers: dict[tuple[torch.fx.Node, torch.device], Expr] = {}
        #: Values not stored yet, of which computing one may raise.
        self.raising: list[torch.fx.Node] = []
        #: All that were among them; and users of theirs that read their values, not only their shapes.
        self.lookups: dict[torch.fx.Node, None] = {}
        self.readers: set[torch.fx.Node] = set()
        #: Whether the program does not run instead where the graph fails.
        self.fails_for_good = cannot_start_over(graph)
        #: Of products: their weights of eight bits, which no conversion is stored of.
        self.weights: dict[torch.fx.Node, torch.fx.Node] = {}
        #: Nodes that write to an input where they stand, as a second run would again.
        self.repeats: set[torch.fx.Node] = set()

    # What lowerings use

    def value(self, x: Any) -> TensorExpr:
        if not isinstance(x, TensorExpr):
            raise NoLowering("a tensor argument was expected")
        return x

    def store(
        self, expr: Expr, size: Sizes, dtype: torch.dtype, *, rsize: Sizes = (), reduction: str | None = None
    ) -> TensorExpr:
        """Adds a Compute statement that writes a new, contiguous buffer and returns the value that reads it back."""
        return self.store_in(
            self.new_buffer(size, contiguous_strides(size), dtype), expr, size, None, rsize=rsize, reduction=reduction
        )

    def store_in(
        self,
        buffer: Buffer,
        expr: Expr,
        size: Sizes,
        stride: Sizes | None,
        offset: Size = 0,
        *,
        rsize: Sizes = (),
        reduction: str | None = None,
    ) -> TensorExpr:
        """The same into a given buffer; `stride` is that of `size`, where the buffer's own shape is another."""
        stride = buffer.stride if stride is None else stride
        narrowed = reduction is not None and not self.results_in_double()
        self.statements.append(
            Compute(buffer, size, rsize, expr, stride, offset, reduction, self.current_origins(), narrowed=narrowed)
        )
        return TensorExpr(
            size, buffer.dtype, Load(buffer.name, compute_type(buffer.dtype), buffer.dtype, unit_free(size, stride), offset)
        )

    def new_buffer(
        self, size: Sizes, stride: Sizes, dtype: torch.dtype, kind: str = "temp", device: torch.device | None = None
    ) -> Buffer:
        buffer = Buffer(f"b{self.counter}", dtype, size, stride, kind, device or self.device)
        self.counter += 1
        self.buffers[buffer.name] = buffer
        return buffer

    def made_since(self, name: str, mark: int) -> bool:
        """Whether the buffer was made when `counter` was that, or later."""
        return int(name[1:]) >= mark

    def load(self, buffer: Buffer) -> Load:
        return load_all(buffer).expr  # type: ignore[return-value]  # a buffer loads as one value

    def scalar_like(self, x: Any, dtype: torch.dtype) -> Expr:
        """A Python number or symbolic integer as an expression of the type computed with for `dtype`."""
        dtype = compute_type(dtype)
        if isinstance(x, (bool, int, float)):
            if not dtype.is_floating_point and isinstance(x, float):
                raise NoLowering("a float with an integer tensor")
            return const(x, dtype)
        if isinstance(x, torch.SymInt):
            return cast(Iota((), size_of(x)), dtype)
        if isinstance(x, Number):
            if not dtype.is_floating_point:
                raise NoLowering("a float with an integer tensor")
            return cast(self.in_memory(x), dtype)
        raise NoLowering(f"a scalar of type {type(x).__name__}")

    def in_memory(self, number: Number) -> Expr:
        """The number where kernels can read it: the tensor whose number it is, or one that is made of it."""
        node = number.node
        if (node, self.device) not in self.numbers:
            given = node.args[0] if op_name(node) == "_local_scalar_dense.default" else None
            value = self.env[given] if isinstance(given, torch.fx.Node) and given.op == "placeholder" else None
            if (
                not isinstance(given, torch.fx.Node) or not isinstance(value, TensorExpr) or value.size
                or not value.dtype.is_floating_point or self.buffers[self.storage[given]].device != self.device
            ):  # fmt: skip
                value = self.made_tensor(node)
            self.numbers[node, self.device] = cast(value.expr, torch.float64)
        return self.numbers[node, self.device]

    def made_tensor(self, node: torch.fx.Node) -> TensorExpr:
        assert self.node is not None
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(scalar_tensor, (node,) if self.device == CPU else (node, self.device))
        tensors = (each for each in pytree.tree_leaves(meta_of(self.node)) if isinstance(each, torch.Tensor))
        made.meta["val"] = next(tensors).new_empty((), dtype=torch.float64)
        buffer = self.new_buffer((), (), torch.float64, "extern")
        self.set_storage(made, buffer)
        self.statements.append(Extern(made, frozenset(), frozenset(), frozenset({buffer.name})))
        return self.value(self.env[made])

    def memory_to_change(self, node: torch.fx.Node, base: Expr, part: Expr | None = None) -> Buffer:
        """The node's memory with `base` in it, for writes to a part of it: the first argument's own, where that may be. `part`
        is what is written, where the caller takes care of one that reads this memory."""
        given, meta = node.args[0], meta_of(node)
        assert isinstance(given, torch.fx.Node)
        buffer = self.buffers.get(self.storage.get(given, ""))
        if buffer is not None and self.may_change(buffer, given, node) and (
                part is not None or not self.reads(node, given, buffer.name)):
            self.settle_readers(buffer.name, node)
            self.set_storage(node, buffer)
            if node.meta.get(REPEATS):
                self.repeats.add(node)
            return buffer
        buffer = self.new_buffer(sizes_of(meta.shape), sizes_of(meta.stride()), meta.dtype)
        self.store_in(buffer, base, buffer.size, None)
        return buffer

    def may_change(self, buffer: Buffer, given: torch.fx.Node, node: torch.fx.Node) -> bool:
        """Whether the node may write to the memory of its first argument: an input's where a pass found that nobody reads what
        was there (passes/in_place.py), else memory of the graph's own, of which nothing is read later."""
        if buffer.kind == "input":
            return bool(node.meta.get(MARK))
        if node.target not in CHANGES_PLACES or (buffer.kind == "extern" and not is_made_by_aten(given)):
            return False
        before, after = meta_of(given), meta_of(node)
        alike = same_sizes(buffer.size, sizes_of(after.shape)) and all(
            same_sizes(buffer.stride, sizes_of(each.stride())) for each in (before, after))
        return alike and not is_view(given) and not self.is_read_after(buffer.name, node)

    def is_read_after(self, buffer: str, node: torch.fx.Node) -> bool:
        """Whether a value that is in the buffer is used after the node."""
        return any(used_after(user, node) for each, name in self.storage.items() if name == buffer for user in each.users)

    def reads(self, node: torch.fx.Node, but: torch.fx.Node, buffer: str) -> bool:
        """Whether another argument of the node is in the buffer, or is computed from what is there."""
        others = [each for each in node.all_input_nodes if each is not but]
        values = [self.env[each] for each in others if isinstance(self.env[each], TensorExpr)]
        reads = {load.buffer for value in values for load in loads(value.expr)}
        return buffer in reads or any(self.storage.get(each) == buffer for each in others)

    # Who made what is being computed now

    def results_in_double(self) -> bool:
        """Whether a result of the operator that is lowered is float64."""
        metas = pytree.tree_leaves(self.node.meta.get("val")) if self.node is not None else []
        return any(isinstance(meta, torch.Tensor) and meta.dtype is torch.float64 for meta in metas)

    def current_origins(self) -> frozenset[torch.fx.Node]:
        assert self.node is not None
        found = {self.node}
        for arg in self.node.all_input_nodes:
            found |= self.pending_origins(arg)
        return frozenset(found)

    def pending_origins(self, node: torch.fx.Node) -> frozenset[torch.fx.Node]:
        """The nodes whose work is still inside the node's unstored expression."""
        return self.origins.get(node, frozenset())

    # Storing

    def realize(self, node: torch.fx.Node) -> None:
        """Makes sure that a node which is not a view has memory of its own."""
        if node in self.storage:
            return
        value = self.env[node]
        if not isinstance(value, TensorExpr):
            raise NoLowering("not a tensor")
        meta = meta_of(node)
        self.device = meta.device
        buffer = self.new_buffer(value.size, sizes_of(meta.stride()), value.dtype)
        origins = self.pending_origins(node) or frozenset({node})
        self.statements.append(Compute(buffer, value.size, (), value.expr, buffer.stride, 0, None, origins))
        self.set_storage(node, buffer)

    def set_storage(self, node: torch.fx.Node, buffer: Buffer) -> None:
        self.storage[node] = buffer.name
        self.env[node] = load_all(buffer) if buffer.dtype in SUPPORTED else Opaque(buffer)
        self.origins[node] = frozenset()

    def settle_readers(self, buffer: str, before: torch.fx.Node) -> None:
        """Values not stored yet that read memory which `before` writes, and are used after it, are stored first. Their views,
        which were lowered over the computation itself, look at what is stored from then on."""
        late = [
            node
            for node, value in self.env.items()
            if isinstance(value, TensorExpr) and node not in self.storage and buffer in self.read_by(value.expr)
            if any(used_after(user, before) for user in node.users)
        ]
        for node in late:
            if not is_view(node):
                self.realize(node)
        for node in late:
            if is_view(node) and self.storage.get(root_of(node)) != buffer:
                self.materialize(node)

    def settle_raising(self, before: torch.fx.Node) -> None:
        """Values not stored yet, of which computing one may raise, are stored before `before` writes to an input or does what
        is not undone: what raises leaves all as it was."""
        pending, self.raising = self.raising, []
        self.store_values(
            node
            for node in pending
            if any(user is before or used_after(user, before) for user in node.users) or self.readers.isdisjoint(node.users)
        )

    def settle_unread(self) -> None:
        """Values of which computing one may raise, and that nobody reads, are stored at the end: they raise as in eager."""
        self.store_values(node for node in self.lookups if self.readers.isdisjoint(node.users))

    def store_values(self, nodes: Iterable[torch.fx.Node]) -> None:
        wanted = [node for node in nodes if node not in self.storage]
        for node in wanted:
            if not is_view(node):
                self.realize(node)
        for node in wanted:
            if is_view(node):
                self.materialize(node)

    def note_lookup(self, node: torch.fx.Node) -> None:
        self.raising.append(node)
        self.lookups[node] = None

    def note_reader(self, node: torch.fx.Node, value: Any, statements: int) -> None:
        """The node was lowered to a value, and to statements behind the first so many."""
        if self.lookups.keys().isdisjoint(node.all_input_nodes):
            return
        made = [each for each in self.statements[statements:] if not isinstance(each, Extern)]
        exprs = [each.expr for each in pytree.tree_leaves(value) if isinstance(each, TensorExpr)]
        if any(map(raises, exprs)) or any(each.gathers() for each in made):
            self.readers.add(node)

    def read_by(self, expr: Expr) -> frozenset[str]:
        """The buffers that an expression loads from; found once, since every write needs it."""
        known = self.loaded.get(id(expr))
        if known is None:
            known = self.loaded[id(expr)] = (expr, frozenset(load.buffer for load in loads(expr)))
        return known[1]

    def materialize(self, node: torch.fx.Node) -> str:
        """The buffer of a node's tensor; a view's is its base's."""
        if node in self.storage:
            return self.storage[node]
        if is_view(node):
            base = self.materialize(node.args[0])  # type: ignore[arg-type]  # a view's first argument is a node
            self.storage[node] = base
            self.refresh_view(node)
            return base
        self.realize(node)
        return self.storage[node]

    def refresh_view(self, node: torch.fx.Node) -> None:
        """A view of stored memory: read it by the strides that the fake tensors know."""
        buffer = self.buffers[self.storage[node]]
        meta = meta_of(node)
        base = meta_of(self.owner_of(node))
        if meta.dtype not in SUPPORTED or meta.dtype is not base.dtype:
            self.env[node] = Opaque(buffer)
            return
        offset = self.relative_offset(meta, base)
        load = Load(buffer.name, compute_type(meta.dtype), meta.dtype, sizes_of(meta.stride()), offset)
        self.env[node] = TensorExpr(sizes_of(meta.shape), meta.dtype, load)
        self.origins[node] = frozenset()

    def owner_of(self, node: torch.fx.Node) -> torch.fx.Node:
        """The node that the memory of a stored view begins with: the root of its chain, or a view that ATen was called for."""
        while is_view(node) and self.storage.get(node.args[0]) == self.storage[node]:  # type: ignore[arg-type]  # as in root_of
            node = node.args[0]  # type: ignore[assignment]
        return node

    @staticmethod
    def relative_offset(meta: torch.Tensor, base: torch.Tensor) -> Size:
        return sub(size_of(meta.storage_offset()), size_of(base.storage_offset()))


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """The root of the node's chain of views."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]  # a view's first argument is a node
    return node


def used_after(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether a user, or what looks through it as a view, comes after the node."""
    return user > node or (shares_memory(user) and any(used_after(each, node) for each in user.users))


def shares_memory(node: torch.fx.Node) -> bool:
    """Whether what the node gives is memory of an argument: a view, by index arithmetic or by ATen, or one of several. A
    collective reads its argument until it is waited for."""
    target = node.target
    if target is getitem or is_view(node):
        return True
    return isinstance(target, torch._ops.OpOverload) and (returns_alias(target) or communicates(target))


def is_made_by_aten(node: torch.fx.Node) -> bool:
    """Whether the node's memory is new: of a call of ATen's that gives one tensor, and no view."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" and not returns_alias(target)


class Opaque:
    """A tensor that only extern calls may touch (complex, sparse, a type without kernels); `buffer` is its memory."""

    def __init__(self, buffer: Buffer | None) -> None:
        self.buffer = buffer


def kernel_uses(node: torch.fx.Node) -> int:
    """How many statements read the node's values, looking through views."""
    return sum(kernel_uses(user) if is_view(user) else op_name(user) not in OF_SHAPE for user in node.users)


def is_stored(node: torch.fx.Node, value: TensorExpr) -> bool:
    """Whether a pointwise value gets memory (or, fused, a register) of its own instead of being recomputed by its users."""
    if isinstance(value.expr, Load) and is_plain_load(value.expr):
        return False
    work_here, reads = of_elements(value)
    return should_keep(
        work(value.expr),
        sum(1 for _ in loads(value.expr)),
        work_here,
        reads,
        kernel_uses(node),
        rounded=lambda: value.dtype.itemsize == 2 and extreme_is_taken(node),
        broadcast=lambda: grows(node),
        again=lambda: is_read_apart(node) or is_reread(node),
    )


def of_elements(value: TensorExpr) -> tuple[int, int]:
    """The work of one element, and what it reads, without what is the same for many, as a channel's numbers are."""
    dims = {dim for dim, size in enumerate(value.size) if size != 1}
    along: dict[int, set[int]] = {}  # the dimensions that a part differs in
    total = reads = 0
    for node in walk(value.expr):
        if isinstance(node, Load):
            own = dims if node.gathers else {dim for dim in dims if node.strides[dim] != 0}
        else:
            own = dims if isinstance(node, Iota) else set().union(*(along[id(each)] for each in children(node)))
        along[id(node)] = own
        if own == dims:
            total += own_work(node)
            reads += isinstance(node, Load)
    return total, reads


def is_read_apart(node: torch.fx.Node) -> bool:
    """Whether it is the gradient of a layer norm: that of the input is made of it along rows, those of the parameters along
    columns."""
    return any(
        is_read_apart(user) if is_view(user)
        else op_name(user) == "native_layer_norm_backward.default" and any(user.args[7][1:])  # type: ignore[arg-type, index]  # flags
        for user in node.users
    )  # fmt: skip


def is_reread(node: torch.fx.Node) -> bool:
    """Whether a reader has several loops over the values, and would compute them in each. Of a processor: a GPU's kernels wait
    for memory rather than for what they calculate."""
    if meta_of(node).device.type != "cpu":
        return False
    return any(is_reread(user) if is_view(user) else op_name(user) in REREADING for user in node.users)


def extreme_is_taken(node: torch.fx.Node) -> bool:
    """Who else uses the numbers may look for the extreme among them. It has to see the same ones: not those computed again from
    what a half type's memory holds, where the extreme's kernel had that in a register."""
    return any(
        extreme_is_taken(user) if is_view(user) else op_name(user).split(".")[0] in ("amax", "amin", "max", "min")
        for user in node.users
    )


def grows(node: torch.fx.Node) -> bool:
    """A user reads more elements than there are: each would be computed again and again."""
    size = meta_of(node).numel()
    for user in node.users:
        meta = meta_of(user)
        if is_view(user):
            if (isinstance(meta, torch.Tensor) and not statically_equal(meta.numel(), size)) or grows(user):
                return True
        elif isinstance(meta, torch.Tensor) and op_name(user) in LOWERINGS and statically_more(meta.numel(), size):
            return True
    return False


def statically_equal(a: Any, b: Any) -> bool:
    return (isinstance(a, int) and isinstance(b, int) and a == b) or size_of(a) == size_of(b)


def statically_more(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a > b
    return size_of(a) != size_of(b)
