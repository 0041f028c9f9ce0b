"""One run of AOTAutograd: passes over each graph that it makes, and the compiler on each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import budget, config, debug, logs
from fxjit.collectives import made_functional
from fxjit.copied_context import in_copied_context
from fxjit.counters import timed
from fxjit.schemas import is_known

from ..graph.blocks import shortened
from ..graph.edit import outputs_of
from ..graph.facts import without_checks
from . import recurrent, rules, torch_patches
from .artifacts import CompiledArtifacts, mutated_by_wrapper
from .aten_passes import drop_gradients_of_mutated_leaves, mark_module_state, mask_undefined_tangents, restride_outputs
from .backend import BackendConfig, Boxed
from .captured_passes import with_symbols
from .equal_blocks import Lengthening, NotEqual
from .joint_passes import (
    copy_activations_before_mutation,
    leave_unchecked,
    mark_integer_outputs,
    read_by_derivatives,
    read_late,
    recomputing_large_values,
    save_operands_of_extremes,
    select_gradients_of_extremes,
)
from .opaque import hold_opaque_outputs, without_opaque
from .runtime.tangents import with_all_defined

log = logs.artifact("aot_graphs")


@in_copied_context
def trace_and_compile(
    gm: torch.fx.GraphModule, rewritten: torch.fx.GraphModule, example_inputs: Sequence[Any], backend: BackendConfig,
    shortens: bool = False,
) -> tuple[Callable[..., Any], CompiledArtifacts]:
    """AOTAutograd's callable for `rewritten` (the backend's `captured_passes`), with its runtime wrappers, and what was
    compiled. If it `shortens`, only a few of equal blocks are traced, and the callable is of no use; raises NotEqual where none
    are. Raises RunAsCaptured."""
    from torch._functorch.aot_autograd import aot_module_simplified

    required = tuple(isinstance(each, torch.Tensor) and each.requires_grad for each in example_inputs)
    artifacts, pending = CompiledArtifacts(required_grad=required), list[Any]()
    traced, traced_inputs, runs = shortened(rewritten, example_inputs) if shortens else (rewritten, example_inputs, [])
    if shortens and not runs:
        raise NotEqual("no blocks")
    lengthenings = [Lengthening(run) for run in reversed(runs)]

    def compile_as(name: str) -> Callable[..., Any]:
        def run(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
            if lengthenings and name != "backward":
                if name == "inference":
                    _lengthen(lengthenings, graph, states, gradients=False)
                inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
            compiled, with_opaque = _compile_graph(graph, inputs, name, gm, backend, artifacts)
            if hasattr(compiled, "finish"):
                pending.append(compiled)
            compiled = with_opaque(compiled)
            masks = artifacts.tangent_masks if name == "backward" else ()
            return with_all_defined(compiled, masks) if masks else compiled

        return run

    # A graph that ends in another grad mode leaves torch 2.11 in it; what follows here asks for the caller's.
    callers_mode = torch.set_grad_enabled(torch.is_grad_enabled())
    kernels = torch_patches.replaced_kernels(recurrent.kernels())
    # Under inference mode composite operators would be taken apart without autocast.
    without_gradients = torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()
    runs_program = any(not is_known(node.target) for node in gm.graph.nodes if node.op == "call_function")
    rewriting = made_functional() if runs_program else contextlib.nullcontext()
    with (without_gradients, callers_mode, torch_patches.patched(), torch_patches.noted_state() as states,
          torch_patches.noted_saves() as saves, kernels, budget.limited(), timed("aot"), rewriting):
        try:
            compiled: Callable[..., Any] = aot_module_simplified(
                traced,
                with_symbols(traced, traced_inputs),
                fw_compiler=compile_as("forward"),
                bw_compiler=compile_as("backward"),
                inference_compiler=compile_as("inference"),
                partition_fn=functools.partial(_partition, backend, traced, lengthenings, states),
                decompositions=backend.decompositions(),
                keep_inference_input_mutations=True,
            )
        except NotEqual:
            raise
        except Exception as problem:  # which of them mean that the graph runs as captured is in the rules
            rules.check("AOTAutograd", rules.Candidate(gm, example_inputs, problem, artifacts))
            raise
    # The C++ compilers run beside the tracing; wait for them here, where an error can still be dealt with.
    for each in pending:
        each.finish()
    artifacts.saves_nothing = bool(saves) and not any(saves)
    if artifacts.meta is not None:
        # No compiler here writes over what was saved, so that `backward(retain_graph=True)` need not be refused.
        (artifacts.meta.bw_donated_idxs or []).clear()  # a list that AOTAutograd's wrappers for subclasses share
        artifacts.meta.bw_donated_idxs = []
    return compiled, artifacts


def _compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any], name: str, captured: torch.fx.GraphModule,
                   backend: BackendConfig, artifacts: CompiledArtifacts) -> tuple[Boxed, Callable[[Boxed], Boxed]]:
    """One ATen graph: passes over it, notes of it, the compiler; and what puts opaque objects in."""
    readable = functools.partial(graph.print_readable, print_output=False)
    debug.stage(log, f"aot_{name}.py", f"{name} graph\n", readable)
    torch_patches.copied_deeply(graph)
    if name == "backward":
        drop_gradients_of_mutated_leaves(graph, artifacts.meta, artifacts.required_grad)
        artifacts.tangent_masks = mask_undefined_tangents(graph)
        inputs = [*inputs, *(node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")[len(inputs):])]
    else:
        restride_outputs(graph, captured, artifacts.note_meta())
        mark_module_state(graph.graph, captured.graph)
    artifacts.note(name, graph)
    inputs, with_opaque = without_opaque(graph, inputs)
    with timed(f"aot.{name}"):
        compiled = artifacts.graphs[name] = _compile_or_leave_script(backend, graph, inputs, name)
    return compiled, with_opaque


def _lengthen(lengthenings: list[Lengthening], graph: torch.fx.GraphModule, states: list[Any], gradients: bool) -> None:
    """All blocks in AOTAutograd's graph, and their inputs in its metadata."""
    if not states:
        raise NotEqual("AOTAutograd's metadata is not to be had")
    for each in lengthenings:
        each.graph(graph, gradients)
        each.metadata(states[-1].fw_metadata)


def _partition(backend: BackendConfig, captured: torch.fx.GraphModule, lengthenings: list[Lengthening], states: list[Any],
               joint: torch.fx.GraphModule, inputs: Any, **keywords: Any) -> Any:
    """Forward and backward, from the graph that has both."""
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    if lengthenings:
        _lengthen(lengthenings, joint, states, gradients=True)
        keywords["static_lifetime_input_indices"] = states[-1].fw_metadata.static_input_indices
        infos = states[-1].fw_metadata.input_info
        gradients = outputs_of(joint.graph)[-len(infos):]
        if any(value is None and info.requires_grad for value, info in zip(gradients, infos, strict=True)):
            raise NotEqual("an input without a gradient")  # there will be no call plan, and the callable is needed
    hold_opaque_outputs(joint)
    select_gradients_of_extremes(joint)
    read = read_by_derivatives(joint)
    late = () if lengthenings else read_late(captured)
    if late and len(inputs[0]) == len(captured.graph.find_nodes(op="placeholder")):
        leave_unchecked(joint, late, keywords["num_fwd_outputs"])
    backend.joint_passes(joint)
    if backend.min_cut:
        save_operands_of_extremes(joint)
        with recomputing_large_values(joint, keywords["num_fwd_outputs"]):
            forward, backward = min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **keywords)
    else:
        forward, backward = default_partition(joint, inputs, **keywords)
    without_checks(backward.graph)
    mutated = mutated_by_wrapper(states[-1].fw_metadata) if states else ()
    copy_activations_before_mutation(forward, keywords["num_fwd_outputs"], mutated, read)
    mark_integer_outputs(forward, backward)
    return forward, torch_patches.shared_with_compiled_autograd(backward)


def _compile_or_leave_script(backend: BackendConfig, graph: torch.fx.GraphModule, inputs: Sequence[Any], name: str) -> Boxed:
    """One ATen graph, compiled; under `repro_after="aot"` one that fails leaves a script."""
    if config.repro_after != "aot":
        return backend.compiler(graph, inputs, name)
    from fxjit import repro

    def compile_graph(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Boxed:
        compiled = backend.compiler(gm, examples, name)
        if hasattr(compiled, "finish"):
            compiled.finish()
        return compiled

    return repro.watched(compile_graph, graph, inputs, "aot", backend.name, lambda fn, args: fn(args))  # type: ignore[no-any-return]  # gives what compile_graph gives
