"""The driver: a captured graph of torch functions, through AOTAutograd, to a callable.

Captured passes -> split into parts -> rules -> the store, or AOTAutograd with a compiler -> call plan -> wrappers. A rule that
applies at any of these stages has the graph run as it was captured (rules.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
import torch.fx

from ..eager import eager
from ..graph.facts import mutated_without_version
from ..graph.split import CannotSplit, split_by_autograd_component, split_by_inference_mode
from . import rules
from .artifacts import plan_call
from .backend import BackendConfig, CompileResult, StoreEntry
from .captured_passes import (
    with_dropout_between_layers,
    with_flat_outputs,
    with_plain_views,
    with_random_outputs,
    with_recording_off,
    with_size_inputs,
)
from .runtime.double_backward import DoubleBackward, may_run_twice
from .runtime.version_counters import VersionCounterEffects, reshaped_inputs
from .runtime.wrappers import CallContext, compiled_call
from .trace import trace_and_compile

Call = Callable[..., Any]


def compile_with_aot(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig) -> Call:
    """The graph, compiled; called with its own inputs."""
    if not isinstance(gm, torch.nn.Module):
        raise TypeError(f"a backend is given an fx.GraphModule, not {type(gm).__name__}")
    try:
        return _compile(with_plain_views(with_dropout_between_layers(gm)), example_inputs, backend)
    except rules.RunAsCaptured as decision:
        rules.report(decision.rule, gm, decision.because)
        return eager(gm, example_inputs)


def _compile(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig) -> Call:
    try:
        for split in (split_by_inference_mode, split_by_autograd_component):
            in_parts = split(gm, example_inputs, functools.partial(compile_with_aot, backend=backend))
            if in_parts is not None:
                return in_parts
    except CannotSplit as problem:
        rules.check("split", rules.Candidate(gm, example_inputs, problem))
    try:
        return _compile_whole(gm, example_inputs, backend)
    except KeyError as missing:
        if not missing.args or not isinstance(missing.args[0], sympy.Symbol):
            raise
    # Torch's pass that makes tensors of numbers (the mean's divisor, say) wants a node for each size a number is made of.
    wider, inputs, places = with_size_inputs(gm, example_inputs)
    compiled = _compile_whole(wider, inputs, backend)
    return lambda *args: compiled(*args, *(args[position].shape[dim] for position, dim in places))


def _compile_whole(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig) -> Call:
    """One autograd node for all of the graph; from the store, if it is there."""
    if not torch.is_grad_enabled() and (recording := with_recording_off(gm)) is not None:
        with torch.enable_grad():
            compiled_on = _compile_whole(recording, example_inputs, backend)
        return torch.enable_grad()(compiled_on)  # type: ignore[no-any-return]  # a decorator without types
    rules.check("captured graph", rules.Candidate(gm, example_inputs))
    gm, restore = with_random_outputs(*with_flat_outputs(gm))
    entry = backend.store_entry(gm, example_inputs)
    result = (None if entry is None else entry.find()) or _compile_anew(gm, example_inputs, backend, entry)
    if result.rule is not None:
        raise rules.RunAsCaptured(rules.rule(result.rule), result.because)
    return compiled_call(result.graphs, result.call, _context(gm, example_inputs, result, restore))


def _compile_anew(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig,
                  entry: StoreEntry | None) -> CompileResult:
    with contextlib.nullcontext() if entry is None else entry.recording():
        try:
            result = _through_aot(gm, example_inputs, backend)
        except rules.RunAsCaptured as decision:
            result = CompileResult(rule=decision.rule.id, because=decision.because)
    if entry is not None and result.call is None:
        entry.keep(result)
    return result


def _through_aot(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig) -> CompileResult:
    autocast = torch._C._is_any_autocast_enabled()  # type: ignore[attr-defined]  # not in the stubs
    call, artifacts = trace_and_compile(gm, example_inputs, backend)
    candidate = rules.Candidate(gm, example_inputs, artifacts=artifacts, is_unprofitable=backend.is_unprofitable)
    rules.check("compiled graphs", candidate)
    preserved = mutated_without_version(gm, example_inputs, artifacts.mutated_inputs)
    plan = plan_call(artifacts, gm, len(example_inputs), autocast, preserved)
    rules.check("call plan", replace(candidate, plan=plan))
    if plan is not None:
        return CompileResult(artifacts.graphs, plan)
    return CompileResult(artifacts.graphs, None, call, VersionCounterEffects(preserved, (), reshaped_inputs(artifacts.meta)))


def _context(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], result: CompileResult,
             restore: Callable[[Any], Any] | None) -> CallContext:
    """What the wrappers go by; the same for a graph that was just compiled and for one from the store."""
    plan, versions = result.plan, result.versions
    if plan is not None:
        versions = VersionCounterEffects(plan.preserves_version, plan.bumps_version)

    def run_as_captured(*args: Any) -> Any:
        rules.report(rules.rule("input-aliasing"), gm)
        return eager(gm, example_inputs)(*args)

    differentiated_twice = functools.partial(rules.report, rules.rule("double-backward"), gm)
    double_backward = DoubleBackward(gm, plan, differentiated_twice) if plan is not None and may_run_twice(plan) else None
    by_kernels = hasattr(result.graphs.get("inference", result.graphs.get("forward")), "unboxed")
    return CallContext(gm, example_inputs, plan, versions, by_kernels, run_as_captured, double_backward, restore)
