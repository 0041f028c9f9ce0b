"""The driver: a captured graph of torch functions, through AOTAutograd, to a callable.

Captured passes -> split into parts -> rules -> the store, or AOTAutograd with a compiler -> call plan -> wrappers. A rule that
applies at any of these stages has the graph run as it was captured (rules.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from ..eager import eager
from ..graph import recipe
from ..graph.facts import has_symbols
from ..graph.split import CannotSplit, split_by_autograd_component, split_by_inference_mode
from ..tiers import Offer, deferrable
from . import rules
from .backend import BackendConfig, StoreEntry
from .call_context import call_context
from .captured_passes import (
    with_flat_outputs,
    with_plain_views,
    with_random_outputs,
    with_recording_off,
    with_size_inputs,
)
from .compile import compile_anew
from .runtime.input_aliasing import aliased_inputs
from .runtime.output_views import creation_records
from .runtime.wrappers import compiled_call
from .strides_of_writes import with_strides_of_writes
from .unfinished import compile_finished, places_of_unfinished

Call = Callable[..., Any]


def compile_with_aot(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig) -> Call:
    """The graph, compiled; called with its own inputs."""
    if not isinstance(gm, torch.nn.Module):
        raise TypeError(f"a backend is given an fx.GraphModule, not {type(gm).__name__}")
    if places := places_of_unfinished(example_inputs):
        return compile_finished(gm, example_inputs, places, functools.partial(compile_with_aot, backend=backend))
    try:
        return _compile(with_strides_of_writes(with_plain_views(gm)), example_inputs, backend)
    except rules.RunAsCaptured as decision:
        rules.report(decision.rule, gm, decision.because)
        recipe.note(recipe.Recipe(gm, rule=decision.rule.decision, because=decision.because))
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
    with recipe.noted() as notes:
        compiled = _compile_whole(wider, inputs, backend)
    inner = recipe.only(notes)
    recipe.note(None if inner is None else recipe.SizedRecipe(inner, gm, tuple(places)))
    return recipe.with_sizes(compiled, places)


def _compile_whole(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig) -> Call:
    """One autograd node for all of the graph; from the store, if it is there."""
    records = torch.is_grad_enabled() or torch.is_inference_mode_enabled()  # where nothing is recorded in any grad mode
    if not records and (recording := with_recording_off(gm)) is not None:
        with torch.enable_grad(), recipe.noted() as notes:
            compiled_on = _compile_whole(recording, example_inputs, backend)
        inner = recipe.only(notes)
        recipe.note(None if inner is None else recipe.RecordedRecipe(inner))
        return torch.enable_grad()(compiled_on)  # type: ignore[no-any-return]  # a decorator without types
    rules.check("captured graph", rules.Candidate(gm, example_inputs))
    captured = gm
    gm, restore = with_random_outputs(*with_flat_outputs(gm))
    entry = backend.store_entry(gm, example_inputs)
    result = None if entry is None else entry.find()
    if result is None and entry is not None and (offer := deferrable()) is not None:
        deferred = _deferred(captured, gm, example_inputs, backend, entry, restore, offer)
        if deferred is not None:
            return deferred
    result = result or compile_anew(gm, example_inputs, backend, entry)
    if result.rule is not None:
        raise rules.RunAsCaptured(rules.rule(result.rule), result.because)
    aliases, creation = aliased_inputs(gm, example_inputs), creation_records(gm)
    whole = entry is not None and entry.is_kept and restore is None
    recipe.note(recipe.Recipe(gm, key=entry.key, aliases=aliases, creation=creation) if whole and entry is not None else None)
    return compiled_call(result.graphs, result.call, call_context(gm, aliases, result, restore, creation))


def _deferred(captured: torch.fx.GraphModule, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig,
              entry: StoreEntry, restore: Callable[[Any], Any] | None, offer: Offer) -> Call | None:
    """`captured` as it is until a helper process has compiled `gm`. The example inputs are let go with this call."""
    aliases, creation = aliased_inputs(gm, example_inputs), creation_records(gm)
    pending = recipe.PendingRecipe(captured)

    def work() -> bytes:
        return entry.message(compile_anew(gm, example_inputs, backend, entry))

    def build(message: bytes) -> Call:
        result = entry.receive(message)
        if result.rule is not None:
            rule = rules.rule(result.rule)
            rules.report(rule, captured, result.because)
            pending.made = recipe.Recipe(captured, rule=rule.decision, because=result.because)
            return eager(captured, ())
        if entry.is_kept and restore is None:
            pending.made = recipe.Recipe(gm, key=entry.key, aliases=aliases, creation=creation)
        return compiled_call(result.graphs, result.call, call_context(gm, aliases, result, restore, creation))

    deferred = offer.defer(work, build, eager(captured, ()), abandon=backend.abandon, mends=has_symbols(gm))
    if deferred is not None:
        recipe.note(pending)
    return deferred
