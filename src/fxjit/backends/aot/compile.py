"""A graph that the store does not have: through AOTAutograd, by the rules, to compiled graphs and a call plan."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from fxjit import logs
from fxjit.tensor_wrappers import is_wrapper

from ..graph.facts import changed_versions, crosses_wrappers, mutated_inputs, mutated_without_version, needed
from . import rules, torch_patches
from .artifacts import plan_call
from .backend import BackendConfig, CompileResult, StoreEntry
from .equal_blocks import NotEqual
from .runtime.version_counters import VersionCounterEffects, reshaped_inputs
from .trace import trace_and_compile

log = logs.artifact("aot_graphs")


def compile_anew(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig,
                 entry: StoreEntry | None) -> CompileResult:
    """The compiled graphs and how they are called, kept in the store; or the rule by which the graph runs as captured."""
    with contextlib.nullcontext() if entry is None else entry.recording():
        try:
            result = _through_aot(gm, example_inputs, backend)
        except rules.RunAsCaptured as decision:
            result = CompileResult(rule=decision.rule.id, because=decision.because)
    if entry is not None and result.call is None:
        entry.keep(result)
    return result


def _through_aot(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig) -> CompileResult:
    rewritten = backend.captured_passes(gm)
    try:
        if torch.is_grad_enabled() and _has_inputs_without_gradient(gm):
            raise NotEqual("AOTAutograd's wrapper cuts inputs off that get no gradient")
        result = _planned(gm, rewritten, example_inputs, backend, shortens=True)
    except NotEqual as difference:
        log.info("all of the graph is traced: %s", difference)
    else:
        if result.plan is not None:
            return result
    return _planned(gm, rewritten, example_inputs, backend, shortens=False)


def _has_inputs_without_gradient(gm: torch.fx.GraphModule) -> bool:
    """Whether an input that requires a gradient leads to no result: such a graph gets no call plan."""
    used = needed(gm.graph)
    return any(node not in used and getattr(node.meta.get("example_value"), "requires_grad", False)
               for node in gm.graph.find_nodes(op="placeholder"))


def _planned(gm: torch.fx.GraphModule, rewritten: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig,
             shortens: bool) -> CompileResult:
    """Compiled graphs of `rewritten`, with a plan or AOTAutograd's callable. If it `shortens`, only a few of equal blocks are
    traced, and the callable is of no use."""
    autocast = torch._C._is_any_autocast_enabled()  # type: ignore[attr-defined]  # not in the stubs
    call, artifacts = trace_and_compile(gm, rewritten, example_inputs, backend, shortens)
    candidate = rules.Candidate(gm, example_inputs, artifacts=artifacts, is_unprofitable=backend.is_unprofitable)
    rules.check("compiled graphs", candidate)
    if crosses_wrappers(gm):
        versions = VersionCounterEffects(mutated_without_version(gm, example_inputs, mutated_inputs(gm)))
        return CompileResult(artifacts.graphs, None, call, versions)
    preserved = mutated_without_version(gm, example_inputs, artifacts.mutated_inputs)
    plan = plan_call(artifacts, gm, len(example_inputs), autocast, preserved)
    rules.check("call plan", replace(candidate, plan=plan))
    if plan is not None:
        return CompileResult(artifacts.graphs, plan)
    reshaped = reshaped_inputs(artifacts.meta)
    # AOTAutograd counts no write to memory that inputs share without being views of one another.
    mutated = () if any(map(is_wrapper, example_inputs)) else mutated_inputs(gm)
    with torch_patches.no_progress_bars():
        counted = changed_versions(gm, example_inputs) if mutated else ()
    bumped = tuple(index for index in mutated if index in counted and index not in (*preserved, *reshaped))
    return CompileResult(artifacts.graphs, None, call, VersionCounterEffects(preserved, bumped, reshaped))
