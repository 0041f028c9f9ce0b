"""An ATen graph as a callable: every pass and stage of the native backend by name, in order, in one function.

AOTAutograd (backends/aot) calls it, through entry.py, for the forward, the backward or the inference graph; what comes out
takes the list of inputs, empties it, and returns the list of outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch.fx

from fxjit import _C, config, debug, logs, tensor_shim
from fxjit.counters import counters, timed

from .choose.aten import leave_to_aten
from .choose.products import is_faster_fused
from .choose.profitability import overhead
from .codegen.graph_kernels import GraphKernels
from .codegen.prelude import prelude
from .codegen.program import ProgramWriter, Unsupported
from .codegen.wrapper import Texts, Wrapper
from .compiled import CompiledGraph
from .hints import Hints, hints_of
from .index import UnprintableSize
from .lower import lower_graph
from .lower.liveness import escaping, live_statements
from .lower.table import Lowering
from .passes.cleanup import PASSES
from .printer import schedule_text
from .runtime import cc
from .runtime.encoded import Encoded
from .runtime.gpu import TritonLaunchers
from .schedule.fuse import fuse
from .schedule.product_fusion import with_products

output_log, fusion_log = logs.artifact("output_code"), logs.artifact("fusion")
# Tests set this to spec.check, which looks at the program after each stage.
verifier: Callable[..., None] | None = None


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str = "graph", *, lone_kernels: bool = False
) -> CompiledGraph:
    """Starts the C++ compiler and returns; the first call waits for it.

    `lone_kernels` makes kernels even of operators that share theirs with no other, which tests of the kernels want.
    """
    tensor_shim.ensure()
    with timed("native.passes", name):
        for run in PASSES:
            run(gm.graph)
    with timed("native.lower", name):
        low, hints = lower_graph(gm), hints_of(gm)
        statements, kept = live_statements(low, gm), escaping(low, gm)
        verify("lower", low, statements)
    with timed("native.schedule", name):
        steps = fuse(statements, hints)
        if not lone_kernels:
            steps = leave_to_aten(steps, low, kept, hints)
        verify("schedule", low, steps)
        cost = overhead(steps, low, hints)
        if config.triton.max_autotune:
            steps = with_products(steps, low, kept, functools.partial(is_faster_fused, low=low, hints=hints))
        debug.stage(fusion_log, "fusion.txt", "", lambda: schedule_text(steps, low))
    with timed("native.codegen", name):
        kernels = GraphKernels()
        try:
            launches = kernels.render(steps, low, kept, hints)
            compilation = cc.start(kernels.source, prelude(kernels.source, config.cpp.simd)) if kernels.cpp else None
            executor = write_executor(low, gm, launches, hints)
        except UnprintableSize as problem:
            logs.artifact("compile").info("%s runs node by node: %s", name, problem)
            counters["native"]["interpreted graphs"] += 1
            return CompiledGraph(gm, None, None, name)
        if kernels.triton:
            launchers = TritonLaunchers(kernels.triton, hints)
            launchers.start()
            executor = with_launchers(executor, launchers)
        debug.stage(output_log, "output_code.txt", "", lambda: kernels.source + kernels.triton_text + executor.text)
    return CompiledGraph(gm, compilation, executor, name, overhead=cost)


def verify(stage: str, low: Lowering, what: Any) -> None:
    if verifier is not None:
        verifier(stage, low, what)


def write_executor(low: Lowering, gm: torch.fx.GraphModule, launches: Sequence[Any], hints: Hints) -> Encoded | Texts:
    """The program, or Python text where a program cannot say it."""
    if tensor_shim.ensure() and _C.program_can("run"):
        try:
            return ProgramWriter(low, gm, hints).write(launches)
        except Unsupported as why:
            logs.artifact("compile").info("the executor is Python text: %s", why)
            counters["native"]["executors in Python"] += 1
    return Wrapper(low, gm).texts([*launches])


def with_launchers(executor: Encoded | Texts, launchers: TritonLaunchers) -> Encoded | Texts:
    if isinstance(executor, Texts):
        return replace(executor, others=launchers.callables)
    return replace(executor, others=launchers.cells)
