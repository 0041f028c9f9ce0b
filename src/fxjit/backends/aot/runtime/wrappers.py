"""The wrappers around compiled graphs, in one order: the innermost is first. Each gives the callable back as it is where the
graph has no work for it. They are the same for a graph that was just compiled and for one from the store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from fxjit import _C

from . import input_aliasing, output_views, version_counters
from .autograd_node import AutogradNode
from .call_plan import CallPlan
from .double_backward import DoubleBackward, refusing_second_derivative
from .input_aliasing import AliasedInputs
from .output_views import CreationRecord
from .version_counters import VersionCounterEffects

Boxed = Callable[[list[Any]], Any]
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CallContext:
    """The data that the wrappers of one graph share."""

    #: The outputs whose creation metadata AOTAutograd drops, and how the inputs that the graph was compiled for share memory.
    creation: tuple[CreationRecord, ...]
    aliases: AliasedInputs | None
    #: None where AOTAutograd's own wrappers are around the compiled graphs.
    plan: CallPlan | None
    versions: VersionCounterEffects
    #: Whether kernels write to the inputs, which count no writes; else ATen may have counted them.
    by_kernels: bool
    #: Whether there is a backward graph.
    trains: bool
    #: The captured graph, for a call whose inputs are not like the example inputs, behind the rule that says so.
    run_as_captured: Call
    double_backward: DoubleBackward | None
    #: Puts the outputs into the program's structure.
    restore_structure: Callable[[Any], Any] | None


def compiled_call(graphs: Mapping[str, Boxed], call: Call | None, context: CallContext) -> Call:
    """The callable over the captured graph's inputs: from its compiled graphs by the call plan, or AOTAutograd's `call`, with
    all wrappers that have work to do."""
    call = call or _call_by_plan(graphs, context)
    for wrapper in WRAPPERS:
        around = wrapper(call, context)
        call = call if around is call else _passed_by(around)
    return call


def _call_by_plan(graphs: Mapping[str, Boxed], context: CallContext) -> Call:
    plan = context.plan
    assert plan is not None, "AOTAutograd's own wrappers are not around these graphs"
    if plan.backward is not None:
        forward, backward = graphs["forward"], graphs["backward"]
        if plan.autocast:
            forward, backward = _without_autocast(forward), _without_autocast(backward)
        return AutogradNode(forward, backward, plan, context.double_backward).apply()
    graph = graphs["inference"]
    unboxed = getattr(graph, "unboxed", None)
    return unboxed() if unboxed is not None else _passed_by(lambda *args: graph(list(args)))


def _passed_by(call: Call) -> Call:
    """A Python function that the frame hook passes by."""
    _C.set_flags(call.__code__, _C.TRANSFORMED)
    return call


def disable_grad(call: Call, context: CallContext) -> Call:
    """An inference graph whose inputs require grad, but whose outputs do not: the program ran it under `no_grad`."""
    if context.plan is None or not context.plan.disables_grad:
        return call

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return call(*args)

    return run


def disable_autocast(call: Call, context: CallContext) -> Call:
    """An inference graph that was compiled under autocast. A training graph's forward and backward are wrapped by
    themselves."""
    plan = context.plan
    return call if plan is None or not plan.autocast or plan.backward is not None else _without_autocast(call)


def _without_autocast(call: Call) -> Call:
    """Its conversions were traced, and ATen is not to convert what a graph calls it with."""
    switched_off = torch._C._DisableAutocast  # type: ignore[attr-defined]  # not in the stubs

    def run(*args: Any) -> Any:
        with switched_off():
            return call(*args)

    return _passed_by(run)


def return_inputs(call: Call, context: CallContext) -> Call:
    """Outputs of an inference graph that are inputs."""
    if context.plan is None or not context.plan.returned_inputs:
        return call
    returned = context.plan.returned_inputs

    def run(*args: Any) -> Any:
        outputs = list(call(*args))
        for index, place in returned:
            outputs[index] = args[place]
        return tuple(outputs)

    return run


def regenerate_views(call: Call, context: CallContext) -> Call:
    """Outputs of a training graph that alias an intermediate or an input, made again as views of it, so that autograd knows
    them as such."""
    if context.plan is None or context.plan.backward is None or not context.plan.backward.regenerates_views:
        return call
    makers = output_views.view_makers(context.plan.outputs)

    def run(*args: Any) -> Any:
        outs = call(*args)  # the outputs, then the intermediates
        return tuple(out if maker is None else maker(args, outs, out) for maker, out in zip(makers, outs, strict=False))

    return run


def run_captured_once_differentiated_twice(call: Call, context: CallContext) -> Call:
    """Runs a graph operator by operator once a gradient of it was differentiated."""
    double_backward = context.double_backward
    if double_backward is None:
        return call

    def run(*args: Any) -> Any:
        return double_backward.run(args) if double_backward.wanted else call(*args)

    return run


def refuse_second_derivative(call: Call, context: CallContext) -> Call:
    """A training graph behind AOTAutograd's own wrappers."""
    if context.plan is not None or not context.trains:
        return call
    return refusing_second_derivative(call, context.versions.bumped)


def preserve_versions(call: Call, context: CallContext) -> Call:
    """Mutations that eager does not count."""
    return version_counters.preserving(call, context.versions.preserved) if context.versions.preserved else call


def bump_versions(call: Call, context: CallContext) -> Call:
    """Mutations inside of the compiled graph that eager counts."""
    bumped = context.versions.bumped
    if not bumped:
        return call
    counts_none = context.by_kernels and context.plan is not None
    return version_counters.bumping(call, bumped) if counts_none else version_counters.bumping_once(call, bumped)


def bump_reshaped_versions(call: Call, context: CallContext) -> Call:
    """Changes of an input's shape, which eager counts before what follows them."""
    return version_counters.bumping_first(call, context.versions.reshaped) if context.versions.reshaped else call


def check_version_counters(call: Call, context: CallContext) -> Call:
    """Inputs of which a write raises behind it: former inference tensors, which got other `data`."""
    versions = context.versions
    places = tuple(sorted({*versions.preserved, *versions.bumped, *versions.reshaped}))
    if not places:
        return call
    return version_counters.checking_counters(call, places, functools.partial(context.run_as_captured, "uncounted-write"))


def restore_creation_meta(call: Call, context: CallContext) -> Call:
    """Restores the CreationMeta of output views, which AOTAutograd drops."""
    restored = output_views.restored_creation_meta(context.creation)
    if not restored:
        return call

    def run(*args: Any) -> Any:
        outputs = list(call(*args))
        for place, restore in restored:
            outputs[place] = restore(outputs[place])
        return tuple(outputs)

    return run


def check_input_aliasing(call: Call, context: CallContext) -> Call:
    """Inputs that share memory otherwise than those that the graph was compiled for, of which it mutates one."""
    if context.aliases is None:
        return call
    return input_aliasing.checking_aliases(call, context.aliases, functools.partial(context.run_as_captured, "input-aliasing"))


def restore_structure(call: Call, context: CallContext) -> Call:
    """Outputs in the structure that the captured graph gave them."""
    restore = context.restore_structure
    return call if restore is None else lambda *args: restore(call(*args))


WRAPPERS: tuple[Callable[[Call, CallContext], Call], ...] = (
    disable_grad, disable_autocast, refuse_second_derivative, return_inputs, regenerate_views, preserve_versions, bump_versions,
    bump_reshaped_versions, check_version_counters, run_captured_once_differentiated_twice, restore_creation_meta,
    check_input_aliasing, restore_structure,
)  # fmt: skip
