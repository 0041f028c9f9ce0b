"""An ATen graph as a callable: every stage of the native backend by name, in order, in one function.

AOTAutograd (backends/aot) calls `compile_graph` for the forward, the backward or the inference graph; what comes out
takes the list of inputs, empties it, and returns the list of outputs.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit import _C, config, debug, logs, tensor_shim
from fxjit.counters import counters, timed
from fxjit.errors import CppCompileError

from .codegen.folds import WIDTH
from .codegen.launch import Launch
from .codegen.scatter import render
from .compiled import CompiledGraph
from .executor.encode import encode
from .executor.memory import plan_memory
from .executor.plan import plan
from .executor.program import EncodedProgram
from .executor.python_text import python_text
from .index import UnprintableSize, size_of
from .ir import Extern, Statement
from .lower import lower_graph
from .lower.table import Lowering, is_view, meta_of, op_name
from .passes.cleanup import PASSES
from .printer import schedule_text
from .runtime import cc
from .runtime.gpu import GraphKernels
from .runtime.gpu_products import worth_it
from .schedule.fuse import Group, Hints, Step, fuse, group_work, reads_of
from .schedule.products import with_products
from .target import by_triton
from .worth import overhead

output_log, fusion_log = logs.artifact("output_code"), logs.artifact("fusion")
Boxed = Callable[[list[Any]], Any]
# Tests set this to spec.check, which looks at the program after each stage.
verifier: Callable[..., None] | None = None


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str = "graph", *, lone_kernels: bool = False
) -> CompiledGraph:
    """Starts the C++ compiler and returns; the first call waits for it.

    `lone_kernels` makes kernels even of operators that share theirs with no other, which tests of the kernels want.
    """
    if not (tensor_shim.ensure() and _C.program_can("run")):
        return node_by_node(gm, name, "torch does not export what programs call")
    with timed("native.passes", name):
        for run in PASSES:
            run(gm.graph)
    with timed("native.lower", name):
        low = lower_graph(gm)
        hints = Hints(size_hints(gm))
        statements = live(low, gm)
        verify("lower", low, statements)
    with timed("native.schedule", name):
        steps = fuse(statements, hints)
        if not lone_kernels:
            steps = leave_to_aten(steps, low, gm, hints)
        verify("schedule", low, steps)
    with timed("native.codegen", name):
        try:
            compiled = CompiledGraph(gm, *generate(gm, low, steps, hints), name)
        except UnprintableSize as problem:
            return node_by_node(gm, name, str(problem))
    compiled.overhead = overhead(steps, low, hints)
    return compiled


def node_by_node(gm: torch.fx.GraphModule, name: str, reason: str) -> CompiledGraph:
    """The rule for a graph that the executor cannot run: ATen for every operator."""
    logs.artifact("compile").info("%s runs node by node: %s", name, reason)
    counters["native"]["interpreted graphs"] += 1
    return CompiledGraph(gm, None, None, name)


def verify(stage: str, low: Lowering, what: Any) -> None:
    if verifier is not None:
        verifier(stage, low, what)


def size_hints(gm: torch.fx.GraphModule) -> dict[sympy.Symbol, int]:
    """What each symbol was when the graph was traced."""
    for node in gm.graph.nodes:
        for value in pytree.tree_leaves(meta_of(node)):
            symbolic: list[torch.SymInt] = [value] if isinstance(value, torch.SymInt) else []
            if isinstance(value, torch.Tensor):
                sizes: list[object] = [*value.shape]
                symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
            for size in symbolic:
                env = size.node.shape_env
                found = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
                return {symbol: int(hint) for symbol, hint in found.items()}
    return {}


def live(low: Lowering, gm: torch.fx.GraphModule) -> list[Statement]:
    """The statements that something the graph returns or changes depends on."""
    wanted = set(escaping(low, gm))
    kept: list[Statement] = []
    for statement in reversed(low.statements):
        if isinstance(statement, Extern):
            wanted |= statement.reads
            kept.append(statement)
        elif statement.out.name in wanted or low.buffers[statement.out.name].kind != "temp":
            wanted |= reads_of(statement)
            kept.append(statement)
    return kept[::-1]


def escaping(low: Lowering, gm: torch.fx.GraphModule) -> set[str]:
    """The buffers that outputs live in."""
    output = next(iter(gm.graph.find_nodes(op="output")))
    return {low.home[leaf] for leaf in pytree.tree_leaves(output.args) if isinstance(leaf, torch.fx.Node) and leaf in low.home}


# Which groups ATen does as well

# Operators whose kernel is at least as fast as ATen's own by itself, measured at 4096 and 131072 elements on one thread: 1.1 to
# 1.7 times (arithmetic, means, norms, softmax), 2 to 30 times (variance, where, indexing, powers, pooling). Sums over columns,
# transposing copies, exp, tanh, erf, log and sqrt are not among them: 0.6 to 0.9 times.
KERNELS_ALONE = frozenset(
    {
        "argmax.default",
        "argmin.default",
        "max.dim",
        "min.dim",
        "max_pool2d_with_indices.default",
        "avg_pool2d.default",
        "avg_pool2d_backward.default",
        "_adaptive_avg_pool2d.default",
        "_adaptive_avg_pool2d_backward.default",
        "upsample_nearest2d.default",
        "upsample_nearest2d_backward.default",
        "_native_batch_norm_legit_functional.default",
        "native_batch_norm_backward.default",
        "native_layer_norm.default",
        "native_layer_norm_backward.default",
        "native_group_norm.default",
        "_fused_rms_norm.default",
        "_softmax.default",
        "_log_softmax.default",
        "_softmax_backward_data.default",
        "_log_softmax_backward_data.default",
        "gelu_backward.default",
        "silu.default",
        "silu_backward.default",
        "var.correction",
        "var_mean.correction",
        "std.correction",
        "where.self",
        "index.Tensor",
        "tril.default",
        "triu.default",
        "pow.Tensor_Scalar",
        "pow.Tensor_Tensor",
        "add.Tensor",
        "add.Scalar",
        "sub.Tensor",
        "mul.Tensor",
        "mul.Scalar",
        "div.Tensor",
        "relu.default",
        "sigmoid.default",
        "threshold_backward.default",
        "sigmoid_backward.default",
        "tanh_backward.default",
        "mean.dim",
        "sum.dim_IntList",
        "linalg_vector_norm.default",
        "embedding.default",
        "cat.default",
        "_native_batch_norm_legit_no_training.default",
    }
)


#: How long the rows of a softmax by itself must be for a kernel, measured. Shorter ones wait for their maximum and their sum
#: longer than they calculate.
LONG_ROWS = {torch.float32: 128, torch.bfloat16: 512, torch.float16: 512}
#: The same where a row is whole vectors and little more (codegen/folds.py): 1.4 to 2 times as fast. The last 7 of 31 elements
#: are calculated one by one, which takes longer than the row.
LITTLE_MORE = 4
LONG_ROWS_OF_VECTORS = {
    ("_softmax.default", torch.float32): 16,
    ("_softmax.default", torch.bfloat16): 32,
    ("_softmax.default", torch.float16): 32,
    ("_log_softmax.default", torch.float16): 32,
    ("logsumexp.default", torch.float32): 16,
}


#: Those whose kernels lose where numbers are float16, measured at 0.7 to 1.0 times ATen's speed: rows are converted in passes
#: of their own (codegen/halves.py), where ATen's loop does it in registers.
NOT_OF_FLOAT16 = frozenset({"div.Tensor", "sum.dim_IntList", "cat.default"})


def is_float16(node: torch.fx.Node) -> bool:
    result = meta_of(node)
    results = result if isinstance(result, (tuple, list)) else [result]
    return any(isinstance(each, torch.Tensor) and each.dtype is torch.float16 for each in results)


def rows_are_long(name: str, x: torch.Tensor, hints: Hints) -> bool:
    """Whether the rows of a softmax, or of what is like one, are long enough for a kernel."""
    length = size_of(x.shape[-1])
    whole = isinstance(length, int) and length % WIDTH <= LITTLE_MORE
    least = LONG_ROWS_OF_VECTORS.get((name, x.dtype)) if whole else None
    return hints(length) >= (LONG_ROWS.get(x.dtype, 0) if least is None else least)


def kernel_wins(node: torch.fx.Node, hints: Hints) -> bool:
    """Whether the node's kernel is at least as fast as ATen's."""
    name = op_name(node)
    if name in NOT_OF_FLOAT16 and is_float16(node):
        return False
    if name == "logsumexp.default":
        x, dims = meta_of(node.all_input_nodes[0]), pytree.tree_leaves(node.args[1])
        if len(dims) == 1 and dims[0] % max(x.ndim, 1) == x.ndim - 1:
            return x.dtype is torch.float32 and rows_are_long(name, x, hints)
    if name in ("_softmax.default", "_log_softmax.default"):
        x, dim = meta_of(node.args[0]), int(node.args[1])  # type: ignore[arg-type]
        if dim % max(x.ndim, 1) == x.ndim - 1:
            return rows_are_long(name, x, hints)
    return name in KERNELS_ALONE


#: Elements times work up to which a call of ATen costs more than a kernel of any operator.
SMALL_WORK = 32768


def leave_to_aten(steps: list[Step], low: Lowering, gm: torch.fx.GraphModule, hints: Hints) -> list[Step]:
    """A group that is one operator of the graph, all of it, becomes a call of that operator, unless it is small."""
    outside = escaping(low, gm)
    readers: dict[str, set[int]] = {}
    for position, step in enumerate(steps):
        for name in step.reads() if isinstance(step, Group) else step.reads:
            readers.setdefault(name, set()).add(position)
    owners: dict[torch.fx.Node, set[int]] = {}
    for position, step in enumerate(steps):
        if isinstance(step, Group):
            for member in step.members:
                for node in member.compute.origins:
                    owners.setdefault(node, set()).add(position)
    out: list[Step] = []
    for position, step in enumerate(steps):
        alone = sole_origin(step) if isinstance(step, Group) else None
        if (
            isinstance(step, Group)
            and alone is not None
            and group_work(step, hints) > SMALL_WORK
            and owners[alone] == {position}
            and not kernel_wins(alone, hints)
            and callable_by_itself(step, alone, low, outside, readers, position)
        ):
            out.append(as_extern(alone, low))
        else:
            out.append(step)
    return out


def sole_origin(step: Group) -> torch.fx.Node | None:
    origins = frozenset().union(*(member.compute.origins for member in step.members))
    return next(iter(origins)) if len(origins) == 1 else None


def results_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [node, *(user for user in node.users if user.target is operator.getitem)]


def callable_by_itself(
    step: Step, node: torch.fx.Node, low: Lowering, outside: set[str], readers: dict[str, set[int]], position: int
) -> bool:
    """The node's arguments are in memory, and no one reads what the kernel would have made beside its results."""
    assert isinstance(step, Group)
    if by_triton(step.device):
        return False
    if (
        node.op != "call_function"
        or is_view(node)
        or any(name in low.buffers and low.buffers[name].kind == "input" for name in step.writes())
    ):
        return False
    homes = {low.home[each] for each in results_of(node) if each in low.home}
    for name in step.writes():
        read_elsewhere = bool(readers.get(name, set()) - {position}) or name in outside
        if read_elsewhere and name not in homes:
            return False
    if not homes & step.writes():
        return False
    return all(is_in_memory(low, arg) for arg in node.all_input_nodes if isinstance(meta_of(arg), torch.Tensor))


def is_in_memory(low: Lowering, node: torch.fx.Node) -> bool:
    while node not in low.home and is_view(node):
        node = node.args[0]  # type: ignore[assignment]  # a view's first argument is a node
    return node in low.home


def as_extern(node: torch.fx.Node, low: Lowering) -> Extern:
    for arg in node.all_input_nodes:
        if isinstance(meta_of(arg), torch.Tensor):
            low.materialize(arg)
    reads = frozenset(low.home[arg] for arg in node.all_input_nodes if arg in low.home)
    results = frozenset(low.home[each] for each in results_of(node) if each in low.home)
    for name in results:
        low.buffers[name] = low.buffers[name].as_kind("extern")
    counters["native"]["left to ATen"] += 1
    return Extern(node, reads, frozenset(), results)


# Text


def hidden_buffers(
    step: Group, position: int, outside: set[str], readers: dict[str, set[int]], writers: Counter[str]
) -> frozenset[str]:
    """What a group writes and only it reads."""
    kept = {member.compute.out.name for member in step.members if member.compute.out.kind == "input"} | outside
    return frozenset(name for name in step.writes() - kept if not readers.get(name, set()) - {position} and writers[name] == 1)


def generate(
    gm: torch.fx.GraphModule, low: Lowering, steps: list[Step], hints: Hints
) -> tuple[cc.Compilation | None, EncodedProgram]:
    """The translation unit, on its way to the compiler, and the program to be run once it has come back."""
    outside = escaping(low, gm)
    if config.triton.max_autotune:
        steps = with_products(steps, low, outside, functools.partial(worth_it, low=low, hints=hints))
    readers: dict[str, set[int]] = {}
    for position, step in enumerate(steps):
        for name in step.reads() if isinstance(step, Group) else step.reads:
            readers.setdefault(name, set()).add(position)
    writers = Counter(name for step in steps if isinstance(step, Group) for name in step.writes())
    planned: list[Any] = []
    functions: dict[str, str] = {}
    gpu = GraphKernels()
    for position, step in enumerate(steps):
        if not isinstance(step, Group):
            planned.append(step)
            continue
        hidden = hidden_buffers(step, position, outside, readers, writers)
        if by_triton(step.device):
            planned += gpu.launches(step, hidden, hints)
            continue
        fresh = frozenset(name for name in step.writes() & outside if low.buffers[name].kind == "temp" and writers[name] == 1)
        kernel = render(step, hidden, hints, config.num_threads, fresh)
        entry = functions.setdefault(kernel.body, f"k{len(functions)}")
        planned.append(Launch(step, kernel, entry, {member.compute.out.name: member.compute.out for member in step.members}))
        counters["native"]["kernels"] += 1
    debug.stage(fusion_log, "fusion.txt", "", lambda: schedule_text(steps, low))
    compilation = None
    source = ""
    if functions:
        source = "".join(
            f'extern "C" int {entry}(void *const *P, const int64_t *S) {{\n{body}\n}}\n' for body, entry in functions.items()
        )
        compilation = cc.start(source)
    listing = plan_memory(plan(low, gm, hints, planned))
    encoded = encode(listing)
    if gpu.kernels:
        gpu.start()
        encoded = replace(encoded, others=gpu.cells)
    debug.stage(output_log, "output_code.txt", "", lambda: source + gpu.text() + python_text(listing))
    return compilation, encoded


_warned = False


def without_compiler(gm: torch.fx.GraphModule, name: str, error: CppCompileError) -> CompiledGraph:
    """The named fallback for a machine without a C++ compiler: ATen for every operator, with a warning once."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"{error}\nfxjit calls ATen for every operator instead, which is slower.", RuntimeWarning, stacklevel=2)
    counters["native"]["without compiler"] += 1
    return CompiledGraph(gm, None, None, name)
