"""ATen graph -> loop IR. `lower_graph(gm)` walks the nodes once; the other files hold the lowerings by family."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, budget
from fxjit.backends.graph.facts import is_check, is_ordered
from fxjit.schemas import written

from ..index import same_sizes, sizes_of
from ..ir import CPU, SUPPORTED, Buffer, Extern, Load, NotAffine, TensorExpr, is_plain_load, raises
from ..passes.collectives import is_wait, read_until
from ..passes.in_place import MARK
from ..target import by_triton, has_kernels
from . import attention, create, depthwise, indexing, loss, matmul, norm, pointwise, pool, reduce, scan, scatter, views
from .blas import product_of_few_rows, second_operand, weight_of_eight_bits
from .functions import require_functions
from .table import LOWERINGS, Lowering, NoLowering, Number, Opaque, is_stored, is_view, meta_of, op_name

FAMILIES = (pointwise, reduce, views, create, indexing, loss, norm, pool, matmul, depthwise, scatter, scan, attention)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def lower_graph(gm: torch.fx.GraphModule, by_aten: bool = False) -> Lowering:
    """Lowers every node; the result holds the statements, the buffers, and which buffer each node that needs one has.
    `by_aten`: ATen is called for every operator."""
    low = Lowering(gm.graph, by_aten)
    for node in gm.graph.nodes:
        low.node = node
        if node.op == "placeholder":
            lower_given(low, node, meta_of(node))
        elif node.op == "get_attr":
            held = attribute(gm, str(node.target))
            lower_given(low, node, meta_of(node) if meta_of(node) is not None else held)
            if type(held) is torch.Tensor and held.dim() == 0 and held.device == CPU:
                with _disable_current_modes():
                    low.constants[node] = held.item()
        elif node.op == "output":
            lower_output(low, node)
        else:
            lower_call(low, node)
    return low


def attribute(gm: torch.fx.GraphModule, target: str) -> Any:
    value: Any = gm
    for name in target.split("."):
        value = getattr(value, name)
    return value


def lower_given(low: Lowering, node: torch.fx.Node, meta: Any) -> None:
    """An input or a constant of the graph: memory that is there."""
    if isinstance(meta, torch.Tensor):
        node.meta.setdefault("val", meta)
        give_memory(low, node, meta, "input")
    else:
        low.env[node] = Number(node) if isinstance(meta, torch.SymFloat) else meta


def give_memory(low: Lowering, node: torch.fx.Node, meta: torch.Tensor, kind: str) -> Buffer:
    strided = meta.layout is torch.strided and not meta.is_quantized and not is_subclass(meta)
    sizes = sizes_of(meta.shape) if strided else ()
    strides = sizes_of(meta.stride()) if strided else ()
    low.device = meta.device
    buffer = low.new_buffer(sizes, strides, meta.dtype, kind)
    low.storage[node] = buffer.name
    lazy_bits = meta.is_conj() or meta.is_neg()
    if strided and meta.dtype in SUPPORTED and has_kernels(meta.device) and not lazy_bits:
        low.set_storage(node, buffer)
    else:
        low.env[node] = Opaque(buffer)
    return buffer


def is_subclass(meta: torch.Tensor) -> bool:
    return type(meta) not in (torch.Tensor, torch.nn.Parameter) and type(meta).__name__ not in (
        "FakeTensor",
        "FunctionalTensor",
    )


def lower_output(low: Lowering, node: torch.fx.Node) -> None:
    low.settle_unread()
    for leaf in pytree.tree_leaves(node.args):
        if isinstance(leaf, torch.fx.Node) and isinstance(meta_of(leaf), torch.Tensor):
            low.materialize(leaf)


def lower_call(low: Lowering, node: torch.fx.Node) -> None:
    _C.safe_point()
    budget.spend("lowering")
    meta = meta_of(node)
    if isinstance(meta, SYMBOLIC) and not unbacked(node):
        low.env[node] = Number(node) if isinstance(meta, torch.SymFloat) else meta
        return
    name = op_name(node)
    late = node.meta.get(MARK) or any(is_input(low, arg) for arg in written(node)) or (low.fails_for_good and is_ordered(node))
    if low.raising and late:
        low.settle_raising(node)
    if node.target is getitem and node.args[0] in low.env and isinstance(low.env[node.args[0]], tuple):  # type: ignore[index]  # getitem's first argument is a node
        value = low.env[node.args[0]][node.args[1]]  # type: ignore[index]  # getitem's first argument is a node
        low.origins[node] = low.origins.get(node.args[0], frozenset())  # type: ignore[arg-type]  # getitem's first argument is a node
        finish(low, node, value, low.marks[node.args[0]])  # type: ignore[index]  # getitem's first argument is a node
        return
    if node.target is getitem and node in low.storage:
        return  # made by the extern call it belongs to
    stored = is_check(node)  # whose value nobody reads: it is calculated all the same
    if name in LOWERINGS and not low.by_aten and kernels_can(node, meta) and (isinstance(meta, torch.Tensor) or not stored):
        mark = (len(low.statements), low.counter)
        try:
            low.device = device_of(meta)
            value = call_lowering(low, name, node)
            require_functions(low, value, mark[0])
            low.note_reader(node, value, mark[0])
            low.origins[node] = pending(low, node)
            finish(low, node, value, mark[1])
            if stored:
                low.materialize(node)
            return
        except (NoLowering, NotAffine) as refusal:
            low.reasons[node] = str(refusal)
            # What other nodes are stored in stays; what was written to memory that was there, the call will write again.
            stored_since = {name for name in low.storage.values() if low.made_since(name, mark[1])}
            low.statements[mark[0] :] = [
                each for each in low.statements[mark[0] :] if isinstance(each, Extern) or each.out.name in stored_since
            ]
    lower_extern(low, node, meta)


def kernels_can(node: torch.fx.Node, meta: Any) -> bool:
    """Kernels are for strided tensors on one device, of the types computed with, whose memory holds what they are (and not its
    negative), here for results and arguments alike."""
    values = [each for each in pytree.tree_leaves(meta) if isinstance(each, torch.Tensor)]
    values += [meta_of(arg) for arg in node.all_input_nodes if isinstance(meta_of(arg), torch.Tensor)]
    if len({each.device for each in values}) > 1:
        return False
    return all(
        each.dtype in SUPPORTED and each.layout is torch.strided and has_kernels(each.device) and not each.is_neg()
        for each in values
    ) and not any(is_subclass(each) for each in values)


def device_of(meta: Any) -> torch.device:
    return next(each.device for each in pytree.tree_leaves(meta) if isinstance(each, torch.Tensor))


def pending(low: Lowering, node: torch.fx.Node) -> frozenset[torch.fx.Node]:
    if is_view(node):
        return low.pending_origins(node.args[0])  # type: ignore[arg-type]  # getitem's first argument is a node
    return low.current_origins()


def call_lowering(low: Lowering, name: str, node: torch.fx.Node) -> Any:
    def argument(x: Any) -> Any:
        if not isinstance(x, torch.fx.Node):
            return x
        value = low.env[x]
        if isinstance(value, Opaque):
            raise NoLowering("an argument kernels cannot read")
        return value

    if is_view(node) and node.args[0] in low.storage:
        low.storage[node] = low.storage[node.args[0]]  # type: ignore[index]  # getitem's first argument is a node
        low.refresh_view(node)
        value = low.env[node]
        del low.storage[node]
        if isinstance(value, Opaque):
            raise NoLowering("a view that changes the type")
        return value
    try:
        args, kwargs = torch.fx.node.map_aggregate(node.args, argument), torch.fx.node.map_aggregate(node.kwargs, argument)
        return LOWERINGS[name](low, node, *args, **kwargs)  # type: ignore[misc]  # lowerings sign up with arguments of their own
    except (NotAffine, NoLowering):
        if not is_view(node) or unbacked(node):
            raise
    # The view cannot follow its unstored argument: store that, and offset and strides are known. A call of ATen would give it
    # memory of its own by name, and writes to the argument's would not be seen as writes to it.
    base = node.args[0]
    low.materialize(base)  # type: ignore[arg-type]  # a node: a view's base
    return call_lowering(low, name, node)


def finish(low: Lowering, node: torch.fx.Node, value: Any, mark: int) -> None:
    """Files a lowering's result; decides whether it is stored now."""
    if isinstance(value, tuple):
        low.env[node] = value
        low.marks[node] = mark
        return
    meta = meta_of(node)
    assert isinstance(value, TensorExpr), f"{node.target} was lowered to {value!r}"
    assert value.dtype is meta.dtype and same_sizes(value.size, sizes_of(meta.shape)), (
        f"{node.target}: lowered to {value.dtype}{value.size}, expected {meta.dtype}{tuple(meta.shape)}"
    )
    low.env[node] = value
    if node in low.storage:
        return
    expr = value.expr
    if is_view(node):
        if raises(expr) and not by_triton(meta.device):
            low.note_lookup(node)
        return
    if is_plain_load(expr) and isinstance(expr, Load):
        buffer = low.buffers[expr.buffer]
        made_here = low.made_since(expr.buffer, mark) and buffer.kind == "temp"
        alike = buffer.dtype is value.dtype and same_sizes(buffer.size, value.size)
        if made_here and alike and same_layout(buffer, meta):
            low.storage[node] = buffer.name
            low.origins[node] = frozenset()
        return
    if is_stored(node, value):
        low.realize(node)
    elif raises(expr) and not by_triton(meta.device):
        low.note_lookup(node)


def same_layout(buffer: Buffer, meta: torch.Tensor) -> bool:
    strides = zip(buffer.size, buffer.stride, sizes_of(meta.stride()), strict=True)
    return all(size == 1 or a == b for size, a, b in strides)


def unbacked(node: torch.fx.Node) -> bool:
    return bool(node.meta.get("unbacked_bindings"))


def lower_extern(low: Lowering, node: torch.fx.Node, meta: Any) -> None:
    """An ATen call. Its tensor arguments must be in memory; its results are memory it makes, or views of its arguments."""
    mutated = written(node)
    for arg in mutated:
        low.settle_readers(low.materialize(arg), node)
    reads = frozenset(low.materialize(arg) for arg in operands(low, node) if holds_memory(low, arg))
    if is_wait(node):
        reads |= frozenset(low.materialize(arg) for arg in read_until(node))
    writes = frozenset(low.storage[arg] for arg in mutated)
    first = low.counter
    if isinstance(meta, torch.Tensor):
        give_memory(low, node, meta, "extern")
    elif isinstance(meta, (tuple, list)):
        low.env[node] = None
        for user in node.users:
            if user.target is getitem and isinstance(meta_of(user), torch.Tensor):
                give_memory(low, user, meta_of(user), "extern")
    else:
        low.env[node] = meta
    results = frozenset(f"b{number}" for number in range(first, low.counter))
    low.statements.append(Extern(node, reads, writes, results, low.fails_for_good and is_ordered(node)))


def operands(low: Lowering, node: torch.fx.Node) -> list[torch.fx.Node]:
    """What the call reads: for weights of eight bits that were converted for a product of ours, those themselves."""
    given = node.all_input_nodes
    weight = weight_of_eight_bits(node)
    if weight is None:
        return given
    (converted,) = (arg for arg in given if arg is second_operand(node))
    if converted in low.storage:
        return given
    rest = [arg for arg in given if arg is not converted]
    for arg in (*rest, weight):
        low.materialize(arg)
    if product_of_few_rows(node, low, weight) is None:
        return given
    low.weights[node] = weight
    return [*rest, weight]


def is_input(low: Lowering, node: torch.fx.Node) -> bool:
    """Whether the node is memory that the graph was given."""
    buffer = low.buffers.get(low.storage.get(node, ""))
    return buffer is not None and buffer.kind == "input"


def holds_memory(low: Lowering, node: torch.fx.Node) -> bool:
    return isinstance(meta_of(node), torch.Tensor) or node in low.storage
