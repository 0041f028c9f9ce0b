"""An ATen graph as a callable: every pass and stage of the native backend by name, in order, in one function.

AOTAutograd (backends/aot) calls it, through entry.py, for the forward, the backward or the inference graph; what comes out
takes the list of inputs, empties it, and returns the list of outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from fxjit import _C, config, debug, logs, tensor_shim
from fxjit.backends.aot import rules
from fxjit.counters import timed

from .choose.aten import leave_to_aten
from .choose.channels_last import use_channels_last
from .choose.channels_last_on_gpu import use_channels_last_on_gpu
from .choose.integer_products import multiply_integers
from .choose.machine import used
from .choose.packed_weights import pack_weights
from .choose.probe import measure_later, present
from .choose.products import is_faster_fused
from .choose.profitability import overhead
from .choose.upcast import upcast_slow_calls
from .choose.volumes import convolve_volumes
from .codegen.graph_kernels import GraphKernels
from .codegen.prelude import prelude
from .compiled import CompiledGraph
from .executor.encode import encode
from .executor.memory import plan_memory
from .executor.plan import plan
from .executor.python_text import python_text
from .folded import CONSTANTS, FoldedGraph
from .hints import hints_of
from .index import UnprintableSize
from .input_sizes import in_terms_of_inputs
from .lower import lower_graph
from .lower.liveness import escaping, live_statements
from .lower.table import Lowering
from .passes.cleanup import PASSES
from .passes.constants import take_out_constants
from .passes.convolution import convolve_rows, write_out_ways
from .printer import schedule_text
from .runtime import cc
from .runtime.gpu import TritonLaunchers
from .schedule.deferred import defer_results
from .schedule.fuse import fuse
from .schedule.product_fusion import with_products
from .schedule.product_tiles import tiled_products, with_tiles

output_log, fusion_log = logs.artifact("output_code"), logs.artifact("fusion")
# Tests set this to spec.check, which looks at the program after each stage.
verifier: Callable[..., None] | None = None


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str = "graph", *, lone_kernels: bool = False
) -> CompiledGraph | FoldedGraph:
    """Starts the C++ compiler and returns; the first call waits for it.

    `lone_kernels` makes kernels even of operators that share theirs with no other, which tests of the kernels want.
    """
    if not (tensor_shim.ensure() and _C.program_can("run")):
        return node_by_node(gm, name, "no-executor")
    with used(present()):
        made = through_stages(gm, name, lone_kernels)
    if not isinstance(made, CompiledGraph) or made.compilation is not None:  # what is measured is the processor
        measure_later()
    return made


def through_stages(gm: torch.fx.GraphModule, name: str, lone_kernels: bool) -> CompiledGraph | FoldedGraph:
    """The passes and stages by name, in order."""
    with timed("native.passes", name):
        layouts = [
            write_out_ways, upcast_slow_calls, convolve_rows, use_channels_last, convolve_volumes, use_channels_last_on_gpu,
        ]  # fmt: skip
        for run in (*(layouts if name == "inference" else []), multiply_integers, *PASSES):
            run(gm.graph)
        parts = None
        if name == "inference" and freezes():
            pack_weights(gm.graph, hints_of(gm))
            parts = take_out_constants(gm)
    if parts is None:
        return through_lowering(gm, name, lone_kernels)
    constants = through_lowering(parts.constants, CONSTANTS, lone_kernels)
    return FoldedGraph(through_lowering(parts.rest, name, lone_kernels), constants, parts.inputs)


def freezes() -> bool:
    """Whether what depends on module state alone is calculated once. What a CUDA graph recorded is replayed as it was."""
    return config.freezing and not config.triton.cudagraphs


def through_lowering(gm: torch.fx.GraphModule, name: str, lone_kernels: bool) -> CompiledGraph:
    """The stages behind the passes."""
    with in_terms_of_inputs(gm):
        return lowered(gm, name, lone_kernels)


def lowered(gm: torch.fx.GraphModule, name: str, lone_kernels: bool) -> CompiledGraph:
    with timed("native.lower", name):
        low, hints = lower_graph(gm, by_aten=name == CONSTANTS), hints_of(gm)
        statements, returned = live_statements(low, gm), escaping(low, gm)
        verify("lower", low, statements)
    with timed("native.schedule", name):
        steps = fuse(statements, hints)
        tiles = tiled_products(steps, low, returned, hints, config.num_threads or torch.get_num_threads())
        if not lone_kernels:
            steps = leave_to_aten(steps, low, returned, hints, tiles)
        if name == "backward":
            steps = defer_results(steps, low, returned, hints)
        verify("schedule", low, steps)
        cost = overhead(steps, low, hints)
        steps = with_tiles(steps, tiles)
        if config.triton.max_autotune:
            steps = with_products(steps, low, returned, functools.partial(is_faster_fused, low=low, hints=hints))
        debug.stage(fusion_log, "fusion.txt", "", lambda: schedule_text(steps, low))
    with timed("native.codegen", name):
        kernels = GraphKernels()
        try:
            launches = kernels.render(steps, low, returned, hints)
            compilation = cc.start(kernels.source, prelude(kernels.source, config.cpp.simd)) if kernels.cpp else None
            listing = plan_memory(plan(low, gm, hints, launches))
            program = encode(listing)
        except UnprintableSize as problem:
            return node_by_node(gm, name, "uncomputable-size", str(problem))
        if kernels.triton:
            launchers = TritonLaunchers(kernels.triton, hints)
            launchers.start()
            program = replace(program, others=launchers.cells)
        debug.stage(output_log, "output_code.txt", "", lambda: kernels.text + python_text(listing))
    return CompiledGraph(gm, compilation, program, name, overhead=cost)


def node_by_node(gm: torch.fx.GraphModule, name: str, rule: str, because: str = "") -> CompiledGraph:
    """A graph that the executor cannot run, by a rule of aot/rules.py: ATen for every operator."""
    rules.report(rules.rule(rule), gm, f"{name}: {because}" if because else name)
    return CompiledGraph(gm, None, None, name)


def verify(stage: str, low: Lowering, what: Any) -> None:
    if verifier is not None:
        verifier(stage, low, what)
