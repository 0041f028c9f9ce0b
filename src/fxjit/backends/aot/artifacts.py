"""The compiled artifacts of one captured graph, noted while AOTAutograd hands its graphs to the compiler, and the call plan
that follows from them.

There is no plan where one of AOTAutograd's runtime wrappers has work to do: a write that autograd follows or that changes a
shape, subclasses, effects, functional random numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta, ViewAndMutationMeta

from fxjit.schemas import replaced_statistics, target_uses_rng, view_base

from ..graph.facts import tangents_of
from .runtime.call_plan import BackwardRecord, CallPlan, InputRecord, OutputKind, OutputRecord, TangentLayout, TangentMask

Boxed = Callable[[list[Any]], Any]

_UNALIASED = (OutputType.non_alias, OutputType.unsafe_view_alias)
_OF_INTERMEDIATE = (OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output,
                    OutputType.alias_of_intermediate_base_is_user_output)
_ALIASES = (*_OF_INTERMEDIATE, OutputType.alias_of_input, OutputType.is_input)


@dataclass(slots=True)
class CompiledArtifacts:
    """Compiled forward, backward or inference graphs, with AOTAutograd's metadata of them."""

    graphs: dict[str, Boxed] = field(default_factory=dict)
    num_inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    meta: ViewAndMutationMeta | None = None
    #: Which inputs require a gradient before the graph runs.
    required_grad: tuple[bool, ...] = ()
    #: For each output of the backward graph: the tangents that it depends on, as bits.
    tangent_dependencies: tuple[int, ...] = ()
    #: For each input of the backward graph that is no tangent: the tangents that it meets, as bits.
    met_tangents: tuple[int, ...] = ()
    #: For each output of the forward graph: the inputs that it depends on, as bits.
    input_dependencies: tuple[int, ...] = ()
    tangent_masks: tuple[TangentMask, ...] = ()
    uses_rng: bool = False
    #: Whether eager's autograd nodes save no tensor.
    saves_nothing: bool = False

    @property
    def trains(self) -> bool:
        return "backward" in self.graphs

    @property
    def mutated_inputs(self) -> tuple[int, ...]:
        """The inputs whose contents AOTAutograd found the graph to change."""
        return () if self.meta is None else tuple(index for index, info in enumerate(self.meta.input_info) if info.mutates_data)

    def note_meta(self) -> ViewAndMutationMeta | None:
        """Records AOTAutograd's metadata of the graph that is being compiled."""
        self.meta = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
        return self.meta

    def note(self, name: str, graph: torch.fx.GraphModule) -> None:
        """Before a graph is compiled, which may rewrite it."""
        if name != "backward":
            self.uses_rng = _uses_rng(graph)
        self.num_inputs[name] = sum(node.op == "placeholder" for node in graph.graph.nodes)
        (values,) = next(iter(graph.graph.find_nodes(op="output"))).args
        self.outputs[name] = tuple(values) if isinstance(values, (list, tuple)) else (values,)
        if name == "forward":
            self.input_dependencies = _dependencies(graph, graph.graph.find_nodes(op="placeholder"), self.outputs[name])
        if name == "backward":
            tangents = tangents_of(graph.graph)
            self.tangent_dependencies = _dependencies(graph, tangents, self.outputs[name])
            self.met_tangents = _met_tangents(graph, tangents, self.outputs[name]) if len(tangents) > 1 else ()

    def gradient_dependencies(self, tangents: tuple[int, ...]) -> tuple[int, ...]:
        """For each gradient: the tangents that it depends on, as bits. One that depends on none is constantly zero, as that of
        `round`: eager gives it for each of the outputs that the input is in."""
        grads = self.outputs.get("backward", ())
        read_by = [sum(1 << place for place, output in enumerate(tangents) if self.input_dependencies[output] >> index & 1)
                   for index in range(len(grads))]
        return tuple(0 if grad is None else bits or readers
                     for grad, bits, readers in zip(grads, self.tangent_dependencies, read_by, strict=True))


def mutated_by_wrapper(meta: ViewAndMutationMeta) -> tuple[int, ...]:
    """The inputs of the forward graph that AOTAutograd's wrapper writes to behind it, if all are plain tensors."""
    if meta.tokens or not all(isinstance(each, PlainTensorMeta) for each in meta.subclass_inp_meta if each is not None):
        return ()
    return tuple(meta.mutated_inp_runtime_indices)


def _uses_rng(graph: torch.fx.GraphModule) -> bool:
    return any(target_uses_rng(node.target) for node in graph.graph.nodes if node.op == "call_function")


def _dependencies(graph: torch.fx.GraphModule, sources: Sequence[torch.fx.Node], values: tuple[Any, ...]) -> tuple[int, ...]:
    """For each of the values: the sources that it depends on, as bits."""
    bits = {node: 1 << place for place, node in enumerate(sources)}
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output"):
            statistics, _ = replaced_statistics(node)
            bits[node] = 0
            for used in (*node.all_input_nodes, *_statistics_read_by(node)):
                bits[node] |= bits.get(used, 0) if used not in statistics else 0
    return tuple(bits.get(value, 0) if isinstance(value, torch.fx.Node) else 0 for value in values)


def _met_tangents(graph: torch.fx.GraphModule, tangents: Sequence[torch.fx.Node], values: tuple[Any, ...]) -> tuple[int, ...]:
    """For each input that is no tangent: the tangents that it meets on the way to one of the values, as bits: all of them,
    where a value is made of it without any. A backward graph is linear in its tangents, so that each value is a sum of terms
    with one of them, and where that is zero the inputs in the term do not count."""
    given = [node for node in graph.graph.find_nodes(op="placeholder") if node not in tangents]
    places = {node: place for place, node in enumerate(tangents)}
    #: For each node the inputs that it is made of, as bits: of what no tangent is in, and by the tangents in it.
    alone = {node: 1 << place for place, node in enumerate(given)}
    terms: dict[torch.fx.Node, dict[int, int]] = {node: {place: 0} for node, place in places.items()}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        used = node.all_input_nodes
        beside = 0
        for each in used:
            beside |= alone.get(each, 0)
        found: dict[int, int] = {}
        for each in used:
            for place, bits in terms.get(each, {}).items():
                found[place] = found.get(place, 0) | bits | beside
        if found:
            terms[node] = found
        else:
            alone[node] = beside
    met = [0] * len(given)
    for value in values:
        if not isinstance(value, torch.fx.Node):
            continue
        for tangent, bits in ((-1, alone.get(value, 0)), *((1 << place, bits) for place, bits in terms.get(value, {}).items())):
            for place in range(bits.bit_length()):
                if bits >> place & 1:
                    met[place] |= tangent
    return tuple(met)


def _statistics_read_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The running statistics before, where the node takes the next ones out of a call's results."""
    if node.target is not operator.getitem or not isinstance(node.args[0], torch.fx.Node):
        return []
    statistics, results = replaced_statistics(node.args[0])
    return statistics if node.args[1] in results else []


def plan_call(artifacts: CompiledArtifacts, gm: torch.fx.GraphModule, num_inputs: int, autocast: bool,
              preserves_version: tuple[int, ...] = ()) -> CallPlan | None:
    """The plan for a graph of `num_inputs` inputs, of which some keep their version counter when the graph writes to them; None
    where AOTAutograd's wrappers have work to do."""
    meta = artifacts.meta
    if meta is None or not _needs_no_wrapper(meta, gm):
        return None
    if set(artifacts.graphs) == {"inference"} and artifacts.num_inputs["inference"] == num_inputs:
        values = artifacts.outputs["inference"]
        if len(values) != meta.num_outputs or not _returns_views_itself(values, meta):
            return None
        return _plan(artifacts, meta, autocast, preserves_version)
    if set(artifacts.graphs) == {"forward", "backward"} and artifacts.num_inputs["forward"] == num_inputs:
        grads = artifacts.outputs["backward"]
        if len(grads) != num_inputs or any(
            grad is None and info.requires_grad for grad, info in zip(grads, meta.input_info, strict=True)
        ):
            return None  # such inputs must be cut from the autograd graph, which the wrapper does
        return _plan(artifacts, meta, autocast, preserves_version)
    return None


def _needs_no_wrapper(meta: ViewAndMutationMeta, gm: torch.fx.GraphModule) -> bool:
    """No writes but those in the graph, no subclass, no effect, no functional random numbers; nothing held by the module."""
    written = {index for index, info in enumerate(meta.input_info) if info.mutates_data}
    if written - set(meta.mutated_graph_handled_indices) or any(info.mutates_metadata for info in meta.input_info):
        return False
    if any(info.output_type not in (*_UNALIASED, *_ALIASES) for info in meta.output_info):
        return False
    plain = (*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta, *meta.subclass_tangent_meta)
    if not all(isinstance(each, PlainTensorMeta) for each in plain if each is not None):
        return False
    work = (
        meta.num_mutated_inp_runtime_indices, len(meta.tokens), meta.num_backward_tokens, meta.num_outputs_rng_offset,
        getattr(meta, "num_graphsafe_rng_states", 0),
        getattr(meta, "num_opaque_objects_saved_for_bw", 0) or 0, int(meta.is_rng_op_functionalized),
        len(getattr(meta, "act_input_indices", ())), int(meta.grad_enabled_mutation is not None),
        len(meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw),
    )  # fmt: skip
    return not any(work) and next(gm.parameters(), None) is None and next(gm.buffers(), None) is None


def _returns_views_itself(values: tuple[Any, ...], meta: ViewAndMutationMeta) -> bool:
    """Whether what an inference graph returns is what its caller is to get: no output has a gradient, and one that shares
    storage with an input is the input, or made of it by views alone. Inputs among the outputs are put there by the caller."""
    placeholders: dict[Any, int] = {}
    for value, info in zip(values, meta.output_info, strict=True):
        if info.output_type is OutputType.is_input:
            continue
        if info.requires_grad or info.output_type not in (*_UNALIASED, OutputType.alias_of_input):
            return False
        if info.output_type is OutputType.alias_of_input:
            root = _viewed_input(value)
            if not placeholders and root is not None:
                placeholders = {node: index for index, node in enumerate(root.graph.find_nodes(op="placeholder"))}
            place = placeholders.get(root)
            # Of an input that requires a gradient a view does so too, under no_grad as well: what it was detached by is gone.
            if place is None or place != info.base_idx or meta.input_info[place].mutates_data or (
                    meta.input_info[place].requires_grad):
                return False
    return True


def _viewed_input(value: Any) -> torch.fx.Node | None:
    """The input that a node is a view of, by operators that are nothing but views; None for other nodes."""
    while isinstance(value, torch.fx.Node) and value.op != "placeholder":
        value = view_base(value)
    return value if isinstance(value, torch.fx.Node) else None


def _plan(artifacts: CompiledArtifacts, meta: ViewAndMutationMeta, autocast: bool,
          preserves_version: tuple[int, ...]) -> CallPlan:
    """Of a graph known to need no wrapper."""
    trains = artifacts.trains
    return CallPlan(
        inputs=tuple(InputRecord(info.requires_grad, info.mutates_data) for info in meta.input_info),
        outputs=tuple(OutputRecord(OutputKind[info.output_type.name], info.base_idx, info.requires_grad, _view_steps(info))
                      for info in meta.output_info),
        num_intermediate_bases=meta.num_intermediate_bases,
        mutated_in_graph=tuple(meta.mutated_graph_handled_indices),
        read_before_written=_read_before_written(artifacts, meta) if trains else (),
        bumps_version=tuple(index for index in meta.mutated_graph_handled_indices_seen_by_autograd
                            if index not in preserves_version),
        preserves_version=preserves_version,
        uses_rng=artifacts.uses_rng,
        autocast=autocast,
        returned_inputs=() if trains else tuple(
            (index, info.base_idx) for index, info in enumerate(meta.output_info)
            if info.output_type is OutputType.is_input and info.base_idx is not None),
        disables_grad=not trains and torch.is_grad_enabled() and any(info.requires_grad for info in meta.input_info),
        backward=_backward(artifacts, meta) if trains else None,
    )


def _read_before_written(artifacts: CompiledArtifacts, meta: ViewAndMutationMeta) -> tuple[int, ...]:
    read = 0
    for bits in artifacts.input_dependencies[:meta.num_forward_returns]:
        read |= bits
    return tuple(index for index in meta.mutated_graph_handled_indices
                 if read >> index & 1 or meta.input_info[index].requires_grad)


def _backward(artifacts: CompiledArtifacts, meta: ViewAndMutationMeta) -> BackwardRecord:
    bases = range(meta.num_outputs, meta.num_outputs + meta.num_intermediate_bases)
    own = [(index, info) for index, info in enumerate(meta.output_info)
           if info.output_type in _UNALIASED and issubclass(info.raw_type, torch.Tensor)]
    tangents = (*(index for index, info in own if getattr(info, "requires_grad_for_backward", info.requires_grad)), *bases)
    symbols, unchecked = meta.num_symints_saved_for_bw or 0, getattr(meta, "num_tensors_saved_with_no_vc_check", 0) or 0
    met = _met_by_activations(artifacts, meta.num_forward_returns, symbols, unchecked, len(tangents))
    return BackwardRecord(
        num_returned=meta.num_forward_returns,
        num_saved_symbols=symbols,
        num_saved_unchecked=unchecked,
        aliases=tuple(index for index, info in enumerate(meta.output_info) if info.output_type in _ALIASES),
        non_differentiable=tuple(index for index, info in own if not info.requires_grad),
        fresh=(*(index for index, _ in own), *bases),
        tangents=tangents,
        tangent_layouts=_tangent_formats(meta, len(tangents)),
        tangent_masks=artifacts.tangent_masks,
        gradient_dependencies=artifacts.gradient_dependencies(tangents),
        met_tangents=met,
        activation_outputs=_outputs_among_activations(artifacts, meta.num_forward_returns, len(met)),
        nondeterministic=meta.deterministic is False,
        regenerates_views=bool(meta.num_outputs_aliased),
        saves_nothing=artifacts.saves_nothing,
    )


def _met_by_activations(artifacts: CompiledArtifacts, num_returned: int, symbols: int, unchecked: int,
                        tangents: int) -> tuple[int, ...]:
    """See BackwardRecord.met_tangents. A backward graph takes the symbols, then what is saved."""
    saved = len(artifacts.outputs["forward"]) - num_returned - symbols
    met = artifacts.met_tangents[symbols:symbols + saved - unchecked]
    every = (1 << tangents) - 1
    return met if any(bits & every != every for bits in met) else ()


def _outputs_among_activations(artifacts: CompiledArtifacts, num_returned: int, saved: int) -> tuple[int, ...]:
    values = artifacts.outputs["forward"]
    returned = {value for value in values[:num_returned] if isinstance(value, torch.fx.Node)}
    return tuple(place for place, value in enumerate(values[num_returned:num_returned + saved]) if value in returned)


def _view_steps(info: Any) -> tuple[Any, ...] | None:
    """The view operators that functionalization recorded from the base to an output view; unknown with symbolic sizes."""
    steps = () if info.view_meta_sequence is None else tuple(info.view_meta_sequence.sequence)
    return None if info.view_meta_sequence is None or any(step.has_symbolic_inputs for step in steps) else steps


def _tangent_formats(meta: ViewAndMutationMeta, count: int) -> tuple[tuple[bool, TangentLayout | None], ...]:
    formats = [tangent.memory_format for tangent in meta.subclass_tangent_meta]  # type: ignore[union-attr]  # plain tensors only: checked before
    assert len(formats) == count, "AOTAutograd knows of other gradients"
    return tuple((False, None) if each is None else (each.memory_format is torch.contiguous_format, TangentLayout(
        each.memory_format, _numbers(each.size), _numbers(each.stride))) for each in formats)


def _numbers(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if sizes is None else tuple(sizes)
