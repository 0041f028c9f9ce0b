"""Through AOTAutograd: a graph of torch functions becomes functional ATen graphs, one for inference or a forward and a
backward with what is saved between them, each handed to a compiler.

`aot_eager` and `aot_eager_decomp_partition` run those graphs as they are: they tell a mistake of the tracer from one of a
compiler. The native backend gives its own compiler (`compile_with_aot`). Mutation of inputs and aliases of inputs among
the outputs are put right by AOTAutograd's wrapper around the compiled graphs; graphs without either are called directly
(direct.py).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch.utils import _pytree as pytree

from fxjit import config, debug, logs
from fxjit.counters import counters, timed
from fxjit.schemas import uses_rng, written

from ..components import compile_parts
from ..derivatives import choose_extremes
from ..direct import Parts, describe, direct_call
from ..eager import eager
from ..expansions import with_plain_views
from ..graph.facts import storages_of
from ..hidden import NEEDS_DATA, count_new_shapes_first, drop_gradients_of_hidden_writes, keep_versions, uncounted_writes
from ..inference import compile_blocks
from ..layouts import counts_from_the_start, keep_layouts
from ..overlaps import as_they_meet
from ..plan import Plan
from ..rnn import keep_workspace, with_dropout_between_layers
from ..saved import keep_old_values, mark_results_beside, save_what_extremes_are_of
from ..siblings import keep_refusals, loses_gradients
from ..sizes import hints
from ..spared import given_as_it_is, may_be_copied, nodes_made_plainly
from ..unused import guard_against_unused, with_flags

log = logs.artifact("aot_graphs")
# What tracing says of operators that it cannot see through: the fused optimizer steps, whose list of maxima is empty unless
# `amsgrad` is on, or which have no kernel for fake tensors; of writes to expanded tensors, which eager refuses; and of writes
# over what a derivative wants, which eager refuses once somebody asks for the derivative.
_LIMITS = ("mutating a non-functional tensor with a functional tensor", "no fake impl or Meta kernel registered",
           "more than one element of the written-to tensor refers to a single memory location",
           "has been modified by an inplace operation",
           # Two sparse gradients of sizes that are symbols are added.
           "dispatch_on_subclass called with NO overloaded args",
           # Inputs that share memory that the graph writes to, of sizes that are symbols: what they are views of has no input.
           "is not tracked with proxy",
           # Writes to views of a view that `as_strided` made.
           "as_strided() is non-compositional",
           # Writes to elements that lie apart in a view whose elements overlap, such as the diagonal of an unfolding.
           "being mutated that has internal overlap",
           # `fill_diagonal_` of an input whose memory has gaps.
           "as_strided_scatter: sizes",
           # A few in-place operators have no functional form.
           "operator whose output has alias annotations",
           # An operator without a derivative: eager says so where somebody asks for one.
           "derivative for aten::")


# It gives nothing and raises where a factorization failed. From torch 2.13 on AOTAutograd keeps it by itself.
torch.fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)


class GraphCompiler(Protocol):
    """Compiles one ATen graph; `name` is forward, backward or inference. The result takes a list and empties it."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> Callable[[list[Any]], Any]: ...


class Stored(Protocol):
    """Where one captured graph's compiled parts are kept from process to process."""

    def find(self) -> tuple[Plan | None, Mapping[str, Callable[[list[Any]], Any]]] | None:
        """The plan and the parts; without a plan for a graph that runs as it was captured. None if nothing is there."""

    def noting(self) -> AbstractContextManager[None]:
        """Around the compile of a graph that was not found."""

    def keep(self, plan: Plan | None, graphs: Mapping[str, Callable[[list[Any]], Any]]) -> None: ...


@dataclass(frozen=True, slots=True)
class Way:
    """How a backend has graphs compiled."""

    compiler: GraphCompiler
    backend: str
    decompositions: Callable[[], dict[Any, Callable[..., Any]] | None] = lambda: None
    min_cut: bool = True
    #: The place of a graph with such inputs on the disk, if it has one.
    stored: Callable[[torch.fx.GraphModule, Sequence[Any]], Stored | None] = lambda gm, inputs: None
    #: Whether a captured graph had better run as it is than by this plan and these compiled parts.
    better_as_captured: Callable[[torch.fx.GraphModule, Plan | None, Mapping[str, Callable[..., Any]]], bool] = (
        lambda gm, plan, graphs: False)


def aot_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """AOTAutograd's graphs, run node by node."""
    return compile_with_aot(gm, example_inputs, Way(run_nodes, "aot_eager", min_cut=False))


def aot_eager_decomp_partition(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The same with the native backend's decompositions and partitioner."""
    from fxjit.backends.native.decompositions import table

    return compile_with_aot(gm, example_inputs, Way(run_nodes, "aot_eager_decomp_partition", table))


def run_nodes(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> Callable[[list[Any]], Any]:
    def run(args: list[Any]) -> Any:
        # One a call: it keeps the values of the run it is in, and threads run beside each other.
        return torch.fx.Interpreter(gm).boxed_run(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd looks for
    return run


def compile_with_aot(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], way: Way) -> Callable[..., Any]:
    """The graph, compiled through AOTAutograd; called with the graph's own inputs."""
    gm = with_plain_views(with_dropout_between_layers(gm))
    for cut in (compile_blocks, compile_parts):
        in_parts = cut(gm, example_inputs, lambda part, inputs: compile_with_aot(part, inputs, way))
        if in_parts is not None:
            return in_parts
    try:
        return _compile_whole(gm, example_inputs, way)
    except KeyError as missing:
        if not missing.args or not isinstance(missing.args[0], sympy.Symbol):
            raise
    # Torch's pass that makes tensors of numbers (the mean's divisor, say) wants a node for each size a number is made of.
    wider, inputs, places = with_size_inputs(gm, example_inputs)
    compiled = _compile_whole(wider, inputs, way)
    return lambda *args: compiled(*args, *(args[position].shape[dim] for position, dim in places))


def _compile_whole(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], way: Way) -> Callable[..., Any]:
    """One autograd node for all of the graph; from the disk, if it is there."""
    if not torch.is_grad_enabled() and (recording := _recording(gm)) is not None:
        with torch.enable_grad():
            compiled_on = _compile_whole(recording, example_inputs, way)
        return torch.enable_grad()(compiled_on)  # type: ignore[no-any-return]  # a decorator without types
    counts = isinstance(gm, torch.fx.GraphModule) and counts_from_the_start(gm)
    if counts or (torch.is_grad_enabled() and loses_gradients(gm)):
        counters["aot"]["graphs run as captured"] += 1
        return eager(gm, example_inputs)
    gm, restore = with_unused_draws(*with_flat_outputs(ensure_module(gm)))
    place = way.stored(gm, example_inputs)
    found = None if place is None else place.find()
    if found is not None:
        plan, graphs = found
        compiled = gm if plan is None else keep_refusals(direct_call(plan, graphs, gm), gm)
    else:
        with contextlib.nullcontext() if place is None else place.noting():
            compiled, plan, parts = _compile_anew(gm, example_inputs, way)
        if place is not None and (plan is not None or compiled is gm):
            place.keep(plan, parts.graphs if plan is not None else {})
    compiled = eager(gm, example_inputs) if compiled is gm else as_they_meet(compiled, gm, example_inputs)
    return compiled if restore is None else lambda *args: restore(compiled(*args))


def _compile_anew(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], way: Way
) -> tuple[Callable[..., Any], Plan | None, Parts]:
    """The callable; how it calls the compiled parts, where it does so directly; the parts."""
    from torch._functorch import config as functorch_config
    from torch._functorch.aot_autograd import aot_module_simplified

    pending, parts = list[Any](), Parts()
    autocast = torch._C._is_any_autocast_enabled()  # type: ignore[attr-defined]  # not in the stubs

    def compile_as(name: str) -> Callable[..., Any]:
        def run(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            readable = functools.partial(graph.print_readable, print_output=False)
            debug.stage(log, f"aot_{name}.py", f"{name} graph\n", readable)
            may_be_copied(graph)
            if name == "backward":
                drop_gradients_of_hidden_writes(graph, parts.meta)
                parts.flags = guard_against_unused(graph)
                inputs = [*inputs, *(node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")[len(inputs):])]
            else:
                keep_layouts(graph, gm, parts.note_meta())
            parts.note(name, graph)
            keep_workspace(graph, name == "forward")
            with timed(f"aot.{name}"):
                compiled = parts.graphs[name] = _compile_part(way, graph, inputs, name)
            if hasattr(compiled, "finish"):
                pending.append(compiled)
            return with_flags(compiled, parts.flags) if name == "backward" and parts.flags else compiled

        return run

    settings = functorch_config.patch(cse=False, functionalize_rng_ops=False, force_non_lazy_backward_lowering=True)
    with floats_kept(), settings, _without_text(), _without_blame(), nodes_made_plainly(), timed("aot"):
        try:
            compiled: Callable[..., Any] = aot_module_simplified(
                gm,
                with_symbols(gm, example_inputs),
                fw_compiler=compile_as("forward"),
                bw_compiler=compile_as("backward"),
                inference_compiler=compile_as("inference"),
                partition_fn=functools.partial(_partition, way.min_cut),
                decompositions=way.decompositions(),
                keep_inference_input_mutations=True,
            )
        except (*NEEDS_DATA, RuntimeError) as problem:
            # The derivative of indexing by a mask, say: its sizes are known only when it runs.
            if not isinstance(problem, NEEDS_DATA) and not any(limit in str(problem) for limit in _LIMITS):
                raise
            logs.artifact("compile").info("a graph runs as it was captured, node by node: %s", problem)
            counters["aot"]["graphs run as captured"] += 1
            return gm, None, parts
    # The C++ compilers run beside the tracing; wait for them here, where an error can still be dealt with.
    for each in pending:
        each.finish()
    if parts.meta is not None:
        # No compiler here writes over what was saved, so that `backward(retain_graph=True)` need not be refused.
        parts.meta.bw_donated_idxs = []
    trains = "backward" in parts.graphs
    if trains and (_writes_beside(parts.meta, example_inputs) or _takes_overlapping_gradients(parts.meta)):
        counters["aot"]["graphs run as captured"] += 1
        return gm, None, parts
    if parts.meta is not None and _gives_views_of_written(parts.meta):
        counters["aot"]["graphs run as captured"] += 1
        return gm, None, parts
    if parts.meta is not None and _gives_only_inputs(parts.meta):
        return gm, None, parts
    uncounted = uncounted_writes(gm, example_inputs, parts.meta)
    plan = describe(parts, gm, len(example_inputs), autocast, uncounted)
    if way.better_as_captured(gm, plan, parts.graphs):
        counters["aot"]["small graphs run as captured"] += 1
        return gm, None, parts
    compiled = keep_versions(compiled, uncounted) if plan is None else direct_call(plan, parts.graphs, gm)
    compiled = count_new_shapes_first(compiled, parts.meta)
    return keep_refusals(compiled, gm), plan, parts


@contextlib.contextmanager
def _without_text() -> Iterator[None]:
    """AOTAutograd's graphs become Python only where that is asked for: it prints and compiles each of them several times,
    for logs and for callers that no one here is, which took an eighth of a large graph's first call."""
    from torch._functorch import aot_autograd
    from torch._functorch._aot_autograd import graph_compile
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    whole: Any = aot_autograd
    original = whole.AOTConfig
    logged = (graph_compile.aot_joint_log, graph_compile.aot_graphs_log)
    if not any(each.isEnabledFor(logging.INFO) for each in logged) and not config.environment("TORCH_TRACE"):
        whole.AOTConfig = functools.partial(original, enable_log=False)
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        whole.AOTConfig = original


@contextlib.contextmanager
def _without_blame() -> Iterator[None]:
    """AOTAutograd differentiates under autograd's search for anomalies, which warns of the line that a failure comes from. Such
    a graph is no error yet: it runs as it was captured, and perhaps nobody ever asks for the gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Error detected in ")
        yield


@contextlib.contextmanager
def floats_kept() -> Iterator[None]:
    """Floats that vary stay what they are in AOTAutograd's graphs: its pass that makes tensors of them knows few operators,
    takes them for constants in the others, and calculates by rules of algebra, which round otherwise than Python does."""
    from torch._functorch._aot_autograd import graph_compile

    stages: Any = graph_compile
    original = stages.tensorify_python_scalars
    stages.tensorify_python_scalars = lambda *args, **keywords: None
    try:
        yield
    finally:
        stages.tensorify_python_scalars = original


def _partition(min_cut: bool, joint: torch.fx.GraphModule, inputs: Any, **keywords: Any) -> Any:
    """Forward and backward, from the graph that has both."""
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    from ..native.passes.cleanup import share_equal
    from ..native.passes.softmax import open_log_softmax

    choose_extremes(joint)
    if min_cut:
        # Instead of functorch's own pass (`cse`), which imports the whole of inductor for one of its functions.
        share_equal(joint.graph)
        open_log_softmax(joint.graph)
        save_what_extremes_are_of(joint)
        forward, backward = min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **keywords)
    else:
        forward, backward = default_partition(joint, inputs, **keywords)
    keep_old_values(forward, keywords["num_fwd_outputs"])
    mark_results_beside(forward, backward)
    return forward, given_as_it_is(backward)


def _recording(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """A graph that is called where autograd does not record and switches recording on: the same for a caller that records,
    which is where AOTAutograd gives a graph a derivative at all. None for others."""
    if not any(node.args == (True,) for node in gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)):
        return None
    changed = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    first = next(node for node in changed.graph.nodes if node.op != "placeholder")
    with changed.graph.inserting_before(first):
        changed.graph.call_function(torch._C._set_grad_enabled, (False,))
    changed.recompile()
    return changed


def _writes_beside(meta: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether an input is written to under autograd whose memory holds another one, too. Autograd counts the writes to a
    memory: it would refuse to derive by what AOTAutograd saved of the other before it does the write."""
    if meta is None or len(meta.input_info) != len(example_inputs):
        return False
    given = [(info, each.untyped_storage()._cdata) for info, each in zip(meta.input_info, example_inputs, strict=True)
             if isinstance(each, torch.Tensor) and each.layout is torch.strided and info.requires_grad]
    memories = [memory for _, memory in given]
    return any(info.mutates_data and memories.count(memory) > 1 for info, memory in given)


def _takes_overlapping_gradients(meta: Any) -> bool:
    """Whether the gradient of a result is brought into a layout whose elements lie on each other, as those of
    `(x * 2).unfold(0, 3, 1)` do: AOTAutograd copies it into the layout that the result had, which loses part of it."""
    formats = [] if meta is None else [getattr(each, "memory_format", None) for each in meta.subclass_tangent_meta]
    return any(each is not None and each.size is not None and _overlaps(each.size, each.stride) for each in formats)


def _overlaps(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Of sizes that vary it is asked of those at hand."""
    known: Any = zip(hints(stride), hints(size), strict=True)
    reach = 0
    for step, extent in sorted(pair for pair in known if None not in pair and pair[1] > 1):
        if step <= reach:
            return True
        reach += step * (extent - 1)
    return False


def _gives_views_of_written(meta: Any) -> bool:
    """Whether a result is a view, with sizes that vary, of an input that the graph writes to. AOTAutograd then makes it anew
    from where it lies in the memory of the compiled graph's result, which may begin elsewhere than the input's own."""
    for info in meta.output_info:
        if info.output_type is OutputType.alias_of_input and meta.input_info[info.base_idx].mutates_data:
            steps = None if info.view_meta_sequence is None else info.view_meta_sequence.sequence
            if steps is None or any(step.has_symbolic_inputs for step in steps):
                return True
    return False


def _gives_only_inputs(meta: Any) -> bool:
    """Whether a graph does nothing but make views of its inputs: eager calls cost least then."""
    ways = (OutputType.alias_of_input, OutputType.is_input)
    return all(info.output_type in ways for info in meta.output_info) and not any(info.mutates_data or info.mutates_metadata
                                                                                for info in meta.input_info)


def _compile_part(way: Way, graph: torch.fx.GraphModule, inputs: Sequence[Any], name: str) -> Callable[[list[Any]], Any]:
    """One ATen graph, compiled; under `repro_after="aot"` one that fails leaves a script."""
    if config.repro_after != "aot":
        return way.compiler(graph, inputs, name)
    from fxjit import repro

    def compile_graph(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        compiled = way.compiler(gm, examples, name)
        if hasattr(compiled, "finish"):
            compiled.finish()
        return compiled

    return repro.watched(compile_graph, graph, inputs, "aot", way.backend, lambda fn, args: fn(args))  # type: ignore[no-any-return]  # gives what compile_graph gives


def with_symbols(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The example inputs, with the front end's symbol in the place of a number that varies: AOTAutograd would make a symbol
    of its own for it, which no guard could name, as it would for the number in a tensor without dimensions."""
    symbols = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    if len(symbols) != len(example_inputs):
        return list(example_inputs)
    return [symbol if isinstance(symbol, torch.SymInt) and isinstance(each, int) else without_number(each)
            for symbol, each in zip(symbols, example_inputs, strict=True)]


def without_number(example: Any) -> Any:
    """A fake tensor for a real one of no dimensions, with no symbol for what it holds."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fake_mode is None or not is_plain_scalar(example):
        return example
    return context.fake_mode.from_tensor(example, static_shapes=True)


def is_plain_scalar(example: Any) -> bool:
    return type(example) is torch.Tensor and example.dim() == 0 and example.layout is torch.strided


def with_size_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[Any], list[tuple[int, int]]]:
    """The graph with one more input for each symbol that is a size of an input, its example inputs, and of which input and
    dimension each is the size."""
    changed = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    placeholders = changed.graph.find_nodes(op="placeholder")
    found: dict[sympy.Symbol, tuple[torch.SymInt, tuple[int, int]]] = {}
    for position, node in enumerate(placeholders):
        for dim, size in enumerate(getattr(node.meta.get("example_value"), "shape", ())):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found.setdefault(size.node.expr, (size, (position, dim)))
    last = placeholders[-1]
    for symbol, (size, _) in found.items():
        with changed.graph.inserting_after(last):
            last = changed.graph.placeholder(f"size_{symbol}")
        last.meta["example_value"] = size
    changed.recompile()
    return changed, [*example_inputs, *(size for size, _ in found.values())], [place for _, place in found.values()]


def with_flat_outputs(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, Callable[[Any], Any] | None]:
    """A graph that returns a flat tuple, as AOTAutograd wants it, and what puts the results back into their structure."""
    if not isinstance(gm, torch.fx.GraphModule):
        return gm, None
    output = next(iter(gm.graph.find_nodes(op="output")))
    given = output.args[0]
    if isinstance(given, (tuple, list)) and not any(isinstance(each, (tuple, list, dict)) for each in given):
        return gm, None
    leaves, spec = pytree.tree_flatten(given)
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(gm.graph, copies)
    graph.output(tuple(copies[leaf] if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves))
    return torch.fx.GraphModule(gm, graph), lambda results: pytree.tree_unflatten(list(results), spec)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def with_unused_draws(
    gm: torch.fx.GraphModule, restore: Callable[[Any], Any] | None
) -> tuple[torch.fx.GraphModule, Callable[[Any], Any] | None]:
    """Random numbers that nobody uses are drawn too, so that those that follow are eager's: AOTAutograd drops operators without
    users, so what these give becomes a result of the graph, which `restore` leaves out."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(map(uses_rng, gm.graph.nodes)):
        return gm, restore
    output = next(iter(gm.graph.find_nodes(op="output")))
    used = {output}
    for node in reversed(gm.graph.nodes):
        if not used.isdisjoint(node.users):
            used.add(node)
    inputs = storages_of(gm.graph.find_nodes(op="placeholder"))  # what is written to them stays in AOTAutograd's graphs, too
    unused = [node for node in gm.graph.nodes if node not in used and uses_rng(node) and _is_tensor(node)
              and inputs.isdisjoint(storages_of(written(node)))]
    if not unused:
        return gm, restore
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(gm.graph, copies)
    results = [torch.fx.node.map_arg(each, copies.__getitem__) for each in output.args[0]]
    for node in unused:
        drawn = graph.call_method("detach", (copies[node],))
        drawn.meta = node.meta | {"example_value": node.meta["example_value"].detach()}
        results.append(drawn)
    graph.output(tuple(results))
    count = len(results) - len(unused)
    return torch.fx.GraphModule(gm, graph), lambda given: (restore or tuple)(given[:count])


def ensure_module(gm: Any) -> torch.fx.GraphModule:
    if isinstance(gm, torch.nn.Module):
        return gm  # type: ignore[return-value]  # any module that can be called will do
    raise TypeError(f"a backend is given an fx.GraphModule, not {type(gm).__name__}")
