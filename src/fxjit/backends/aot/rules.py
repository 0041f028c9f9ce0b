"""The rules by which a graph, a part of one, or a call of one runs as it was captured: operator by operator, as in eager.

One row for each: an id, the stage that evaluates it, a predicate, and the reason in a sentence. `check` evaluates the rules of
a stage; what is decided is counted (`counters["run_as_captured"]`, by id), logged (`FXJIT_LOGS=compile`) and told to listeners,
such as `fxjit.explain`, by decisions.py. docs/rules.md is made from the table.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._C._autograd import CreationMeta, _get_creation_meta
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from fxjit.budget import OverBudget
from fxjit.collectives import NotFunctional
from fxjit.overlap import have_common_element
from fxjit.schemas import (
    IN_PLACE_FUNCTIONS,
    all_nodes,
    goes_by_element,
    has_kernel,
    name_of,
    overloads_of,
    part_written,
    tensors_of,
    written,
)
from fxjit.tensor_wrappers import flattened, has_storage, held_masks, is_wrapper, storages

from ..graph.buckets import delays_reductions
from ..graph.edit import outputs_of
from ..graph.facts import data_dependent, mutated_inputs, uses_storage_offsets
from ..graph.layout import byte_range, hints, overlaps_itself
from ..graph.split import CannotSplit
from . import decisions
from .artifacts import CompiledArtifacts
from .decisions import Decision, Stage
from .recurrent import CannotKeepWhole
from .runtime.call_plan import CallPlan

#: Whether a captured graph costs less than its compiled artifacts, called by the plan.
IsUnprofitable = Callable[[torch.fx.GraphModule, "CallPlan | None", Mapping[str, Callable[..., Any]]], bool]
_REGENERATED = (OutputType.alias_of_input, OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output,
                OutputType.alias_of_intermediate_base_is_user_output)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The input of the rules: a graph on its way through the driver, with the findings of the stages so far."""

    captured: Any
    example_inputs: Sequence[Any]
    #: What splitting or AOTAutograd raised.
    error: Exception | None = None
    artifacts: CompiledArtifacts = field(default_factory=CompiledArtifacts)
    plan: CallPlan | None = None
    is_unprofitable: IsUnprofitable = lambda gm, plan, graphs: False

    @property
    def meta(self) -> ViewAndMutationMeta | None:
        return self.artifacts.meta


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to run as captured. The driver evaluates `applies`, except for two stages: the native pipeline reports rules
    of the stage "executor", which concern one ATen graph each, and the wrappers of a call those of the stage "call"."""

    id: str
    stage: Stage
    applies: Callable[[Candidate], bool]
    reason: str

    @property
    def decision(self) -> Decision:
        return Decision(self.id, self.stage, self.reason)


class RunAsCaptured(Exception):
    """A rule applies: the driver gives the captured graph in the place of a compiled one."""

    def __init__(self, rule: Rule, because: str = "") -> None:
        super().__init__(f"{rule.id}: {rule.reason}")
        self.rule, self.because = rule, because


def check(stage: Stage, candidate: Candidate) -> None:
    """Raises RunAsCaptured with the first rule of the stage that applies."""
    for rule in RULES:
        if rule.stage == stage and rule.applies(candidate):
            raise RunAsCaptured(rule, str(candidate.error or ""))


def rule(id: str) -> Rule:
    return BY_ID[id]


def report(rule: Rule, graph: Any, because: str = "") -> None:
    """Says that the graph, or a call of it, runs as captured (decisions.py)."""
    decisions.report(rule.decision, graph, because)


# Predicates of captured graphs


def _observes_gradients_of_views(candidate: Candidate) -> bool:
    """Whether an output is a view that stands behind, or shares storage with, one whose gradient the program itself makes or
    sees: by a `backward` of its own (`GradientReversal.apply(x)`, which is `x.view_as(x)`), or by a hook. AOTAutograd makes
    such an output anew, as a view of the input or of another output, and autograd then passes the program's part by. Or
    whether the program goes on to ask for the gradient of an output that other outputs are made from: it would not stand
    behind them."""
    gm = candidate.captured
    if any("observed" in node.meta for node in gm.graph.nodes):
        return True
    if not torch.is_grad_enabled():
        return False
    observed = {each.untyped_storage()._cdata for node in gm.graph.nodes for each in _observed_views(node)}
    if not observed:
        return False
    inputs = [_storage(node) for node in gm.graph.find_nodes(op="placeholder")]
    outputs = [_storage(node) for node in pytree.tree_leaves(gm.graph.output_node().args[0])]
    return any(storage in inputs or outputs.count(storage) > 1 for storage in observed.intersection(outputs))


def _observed_views(node: torch.fx.Node) -> list[torch.Tensor]:
    if getattr(node.target, "gives_data", False):
        return list(tensors_of(node))  # the gradient of a view of these goes to a leaf in other memory
    if not getattr(node.target, "sees_gradients", False):
        return []
    given = [leaf for leaf in pytree.tree_leaves(node.args) if isinstance(leaf, torch.fx.Node)]
    return [each for at in (node, *given[:1]) for each in tensors_of(at) if each.requires_grad and each._is_view()]


def _has_marked(candidate: Candidate, mark: str) -> bool:
    """Whether the graph calls a function of the front end with this attribute."""
    nodes = all_nodes(candidate.captured.graph) if isinstance(candidate.captured, torch.fx.GraphModule) else ()
    return any(getattr(node.target, mark, False) for node in nodes)


def _views_leaf_without_recording(candidate: Candidate) -> bool:
    """Such a view requires grad as the leaf's base does. The trace's inputs have their bases, and AOTAutograd's do not. One of
    another input is a leaf by itself, which AOTAutograd does not know where the graph goes on to record with it."""
    gm = candidate.captured
    if not torch.is_grad_enabled() or not isinstance(gm, torch.fx.GraphModule):
        return False
    leaves, recorded = set(), set()
    for node in gm.graph.find_nodes(op="placeholder"):
        for each in tensors_of(node):
            if each.requires_grad and each._is_view() and not _base_requires_grad(each):
                leaves.add(_storage(node))
            elif each.requires_grad:
                recorded.add(_storage(node))
    if not leaves and not recorded:
        return False
    for node in gm.graph.nodes:
        if node.op == "placeholder" or not any(map(_is_unrecorded_view, tensors_of(node))):
            continue
        requires_grad = any(each.requires_grad for each in tensors_of(node))
        if _storage(node) in (recorded if requires_grad else leaves) and (not requires_grad or _is_recorded(node)):
            return True
    return False


def _gives_history_to_detached_input(candidate: Candidate) -> bool:
    """Whether an output is in an input's memory, has a history by a write, and is no view of that input to autograd (`x.data`,
    `x.detach()`): AOTAutograd makes it anew as a view of the input, whose history is another one, or none."""
    gm = candidate.captured
    if not torch.is_grad_enabled() or not isinstance(gm, torch.fx.GraphModule):
        return False
    bases: dict[int | None, set[int]] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        bases.setdefault(_storage(node), set()).update(id(_base(each)) for each in tensors_of(node))
    return any(
        _storage(node) is not None and _storage(node) in bases and id(_base(each)) not in bases[_storage(node)]
        and _has_history(each)
        for node in gm.graph.output_node().all_input_nodes for each in tensors_of(node))


def _has_history(tensor: torch.Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # a view that was written to in another grad mode
        return False


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._base if tensor._is_view() and tensor._base is not None else tensor


def _reshapes_input(candidate: Candidate) -> bool:
    gm = candidate.captured
    if not torch.is_grad_enabled() or not isinstance(gm, torch.fx.GraphModule):
        return False
    inputs = {_storage(node) for node in gm.graph.find_nodes(op="placeholder")
              if any(each.requires_grad for each in tensors_of(node))}
    return bool(inputs) and any(
        torch.Tag.inplace_view in overload.tags and node.all_input_nodes and _storage(node.all_input_nodes[0]) in inputs
        for node in gm.graph.nodes if node.op.startswith("call") for overload in overloads_of(node.target))


def _writes_view_of_leaf(candidate: Candidate) -> bool:
    meta, inputs = candidate.meta, candidate.example_inputs
    if meta is None or not torch.is_grad_enabled():
        return False
    if len(meta.input_info) == len(inputs):
        written_to = [place for place, info in enumerate(meta.input_info) if info.mutates_data]
    else:  # those that share memory are one to AOTAutograd, their base
        written_to = list(mutated_inputs(candidate.captured))
    return any(isinstance(each, torch.Tensor) and each.requires_grad and each._is_view()
               and each._base is not None and each._base.requires_grad and each._base.is_leaf
               for each in map(inputs.__getitem__, written_to))


def _is_unrecorded_view(tensor: torch.Tensor) -> bool:
    return tensor._is_view() and _get_creation_meta(tensor) == CreationMeta.NO_GRAD_MODE


def _is_recorded(node: torch.fx.Node) -> bool:
    return any(user.op == "output" or any(each.requires_grad and not _is_unrecorded_view(each) for each in tensors_of(user))
               for user in node.users)


def _base_requires_grad(view: torch.Tensor) -> bool:
    return view._base is not None and view._base.requires_grad


def _storage(node: Any) -> int | None:
    tensor = next(tensors_of(node), None) if isinstance(node, torch.fx.Node) else None
    return tensor.untyped_storage()._cdata if tensor is not None and has_storage(tensor) else None


def _uses_storage_offsets(candidate: Candidate) -> bool:
    return isinstance(candidate.captured, torch.fx.GraphModule) and uses_storage_offsets(candidate.captured)


def _writes_unfolding(candidate: Candidate) -> bool:
    """Whether the graph writes to windows that `unfold` made, and that are not all of their tensor: to the elements between and
    behind them, the functional form gives zeros."""
    gm = candidate.captured
    views: set[torch.fx.Node] = set()
    for node in all_nodes(gm.graph) if isinstance(gm, torch.fx.GraphModule) else ():
        if not views.isdisjoint(written(node)):
            return True
        if _leaves_gaps(node) or any(_storage(each) == _storage(node) for each in views.intersection(node.all_input_nodes)):
            views.add(node)
    return False


def _leaves_gaps(node: torch.fx.Node) -> bool:
    if not node.op.startswith("call") or name_of(node.target) != "unfold" or not node.all_input_nodes:
        return False
    base, windows = (next(tensors_of(each), None) for each in (node.all_input_nodes[0], node))
    if base is None or windows is None or not storages(base) & storages(windows):
        return False
    if overlaps_itself(windows.shape, windows.stride()):
        return False  # AOTAutograd refuses those
    sizes = (*base.shape, *windows.shape)
    return not all(type(each) is int for each in sizes) or base.numel() != windows.numel()


def _writes_over_itself(candidate: Candidate) -> bool:
    """Whether an operator writes to a tensor whose elements lie on each other, which eager does element by element: what it
    reads is what it wrote before. Copies have each element apart. A stride of zero eager refuses, and so does AOTAutograd."""
    gm = candidate.captured
    return isinstance(gm, torch.fx.GraphModule) and any(
        _may_overlap(place) for node in all_nodes(gm.graph) for place in written(node))


def _may_overlap(node: torch.fx.Node) -> bool:
    known = True
    for each in filter(has_storage, tensors_of(node)):
        if is_wrapper(each):  # has strides of its own kind
            continue
        known = known and all(type(number) is int for number in (*each.shape, *each.stride()))
        apart = [pair for pair in zip(each.shape, each.stride(), strict=True) if type(pair[1]) is not int or pair[1] != 0]
        if overlaps_itself([size for size, _ in apart], [stride for _, stride in apart]):
            return True
    return not known and _is_made_by_strides(node)


def _is_made_by_strides(node: torch.fx.Node) -> bool:
    """Whether the tensor is a view of what was made by strides, which may be any when they are given at run time."""
    while node.op.startswith("call") and _storage(node) is not None:
        if name_of(node.target) in ("as_strided", "as_strided_", "empty_strided", "new_empty_strided"):
            return True
        base = next((each for each in node.all_input_nodes if _storage(each) == _storage(node)), None)
        if base is None:
            return False
        node = base
    return False


def _writes_over_argument(candidate: Candidate) -> bool:
    """Whether a call writes to memory that is that of another operand too, unless it goes through both element by element and
    they are one. Eager refuses most such calls; others read what they wrote before."""
    gm = candidate.captured
    return isinstance(gm, torch.fx.GraphModule) and any(map(_arguments_overlap, all_nodes(gm.graph)))


def _arguments_overlap(node: torch.fx.Node) -> bool:
    written_to = [each for each in written(node) if _storage(each) is not None]
    if not written_to:
        return False
    others: list[torch.fx.Node] = []
    torch.fx.map_arg((node.args, node.kwargs), others.append)
    for each in written_to:
        others.remove(each)  # `x.addmm_(x, x)` still reads x
    sharing = [(a, b) for a in written_to for b in others if _storage(a) == _storage(b)]
    for place, other in sharing:
        into, read = part_written(node, place), next(tensors_of(other))
        if into is None:
            return True
        if not (_goes_by_element(node) and _is_same_view(into, read)) and have_common_element(into, read):
            return True
    return False


def _goes_by_element(node: torch.fx.Node) -> bool:
    """Of one list with another, too: places of lists are looked at by `_lists_overlap`."""
    if node.target not in IN_PLACE_FUNCTIONS and any(isinstance(each, (list, tuple)) for each in node.args):
        return name_of(node.target).startswith("_foreach")
    return goes_by_element(node)


def _is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and all(hints(x) == hints(y) for x, y in (
        (a.shape, b.shape), (a.stride(), b.stride()), ([a.storage_offset()], [b.storage_offset()])))


def _writes_overlapping_list(candidate: Candidate) -> bool:
    """Whether an operator over lists of tensors writes to memory of a tensor at another place of the lists. Eager goes through
    them one after the other; the functional form takes all as they were before."""
    gm = candidate.captured
    return isinstance(gm, torch.fx.GraphModule) and any(map(_lists_overlap, all_nodes(gm.graph)))


def _lists_overlap(node: torch.fx.Node) -> bool:
    lists = [each for each in (*node.args, *node.kwargs.values()) if isinstance(each, (list, tuple)) and len(each) > 1]
    written_to = set(written(node)) if lists else set()
    if not written_to:
        return False
    ranges: dict[int | None, list[tuple[int, int, int, bool]]] = {}
    for at, each in (pair for every in lists for pair in enumerate(every)):
        if isinstance(each, torch.fx.Node) and (storage := _storage(each)) is not None:
            ranges.setdefault(storage, []).append((*byte_range(next(tensors_of(each))), at, each in written_to))
    for found in ranges.values():
        reaching: list[tuple[int, int, int, bool]] = []
        for start, end, at, writes in sorted(found):
            reaching = [each for each in reaching if each[1] > start]
            if any(each[2] != at and (each[3] or writes) for each in reaching):
                return True
            reaching.append((start, end, at, writes))
    return False


def _lacks_autograd_kernel(candidate: Candidate) -> bool:
    """Eager then derives the operators that the kernel is made of, which AOTAutograd does not see: it derives nothing."""
    return torch.is_grad_enabled() and any(
        isinstance(node.target, (OpOverload, OpOverloadPacket))
        and any(tensor.requires_grad for each in node.all_input_nodes for tensor in tensors_of(each))
        and not any(map(_has_autograd_kernel, overloads_of(node.target)))
        for node in all_nodes(candidate.captured.graph))


@functools.cache
def _has_autograd_kernel(overload: OpOverload) -> bool:
    return any(has_kernel(overload, key) for key in ("Autograd", "AutogradCPU", "CompositeImplicitAutograd"))


def _mutates_aliased_wrapper(candidate: Candidate) -> bool:
    """AOTAutograd does not look for memory that what wrappers are made of shares with other inputs."""
    gm, inputs = candidate.captured, candidate.example_inputs
    if not isinstance(gm, torch.fx.GraphModule) or not any(map(is_wrapper, inputs)):
        return False
    memories = [storages(each) if isinstance(each, torch.Tensor) else set[int]() for each in inputs]
    mutated = mutated_inputs(gm)
    if any(is_wrapper(inputs[place]) and len(memories[place]) < len([*flattened(inputs[place])]) for place in mutated):
        return True
    return any(not memories[place].isdisjoint(other) for place in mutated for at, other in enumerate(memories) if at != place)


def _returns_masked(candidate: Candidate) -> bool:
    """The mask is no part of what wrappers are put together of."""
    gm = candidate.captured
    values = pytree.tree_leaves(gm.graph.output_node().args) if isinstance(gm, torch.fx.GraphModule) else ()
    return any(held_masks(tensor) for node in values if isinstance(node, torch.fx.Node) for tensor in tensors_of(node))


def _cannot_regenerate_wrapper(candidate: Candidate) -> bool:
    """AOTAutograd makes an output that is a view of an input, or of another output, by `as_strided`."""
    gm, meta = candidate.captured, candidate.meta
    if meta is None or not isinstance(gm, torch.fx.GraphModule):
        return False
    views = [(node, info) for node, info in zip(outputs_of(gm.graph), meta.output_info, strict=False)
             if info.output_type in _REGENERATED and isinstance(node, torch.fx.Node)]
    inputs: dict[int | None, torch.Tensor] = {
        at: each for at, each in enumerate(candidate.example_inputs) if isinstance(each, torch.Tensor)}
    return any(is_wrapper(tensor) and not _has_strides(tensor)
               and not (info.output_type in _OF_INPUTS and _have_one_layout(inputs.get(info.base_idx), tensor))
               for node, info in views for tensor in tensors_of(node))


def _have_one_layout(base: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Whether a view is laid out like its base: that much `as_strided` distributed tensors know."""
    return base is not None and (base.shape, base.stride()) == (view.shape, view.stride())


def _has_strides(fake: torch.Tensor) -> bool:
    mode = next(each.fake_mode for each in flattened(fake) if isinstance(each, FakeTensor))
    other = (0,) * (fake.dim() + 1)
    try:
        with mode:
            return fake.as_strided(other, other, 0) is not None
    except RuntimeError:  # what the class says to it
        return False


def _mutates_other_dtype(candidate: Candidate) -> bool:
    """Whether the graph writes to an input, and another one sees the same memory as elements of another type."""
    gm, inputs = candidate.captured, candidate.example_inputs
    if not isinstance(gm, torch.fx.GraphModule):
        return False
    strided = {at: each for at, each in enumerate(inputs) if isinstance(each, torch.Tensor) and has_storage(each)}
    dtypes: dict[int, set[torch.dtype]] = {}
    for each in strided.values():
        dtypes.setdefault(each.untyped_storage()._cdata, set()).add(each.dtype)
    if all(len(seen) == 1 for seen in dtypes.values()):
        return False
    return any(len(dtypes[strided[at].untyped_storage()._cdata]) > 1 for at in mutated_inputs(gm) if at in strided)


def _cannot_desugar(candidate: Candidate) -> bool:
    """Whether AOTAutograd itself failed on a graph over wrapper subclasses, and not a compiler behind it."""
    gm = candidate.captured
    return candidate.artifacts.meta is None and isinstance(gm, torch.fx.GraphModule) and any(
        is_wrapper(tensor) for node in gm.graph.nodes for tensor in tensors_of(node))


# Predicates of what AOTAutograd made


def _raised(*texts: str) -> Callable[[Candidate], bool]:
    """Whether AOTAutograd raised an error that says so, in the words of one release or of another."""
    kinds = (RuntimeError, AssertionError)
    return lambda candidate: isinstance(candidate.error, kinds) and any(text in str(candidate.error) for text in texts)


def _refused_by_operator(candidate: Candidate) -> bool:
    """Whether an operator of torch's raised while AOTAutograd ran the graph on fake tensors: the last frame is torch's."""
    error = candidate.error
    if not isinstance(error, (IndexError, NotImplementedError, RuntimeError, ValueError, AssertionError)):
        return False
    return _raised_in(error).partition(".")[0] == "torch" and not _is_unforeseen(candidate)


def _is_unforeseen(candidate: Candidate) -> bool:
    """Whether AOTAutograd, or a graph that a pass edits, is not what it is taken for: an error in torch or here."""
    editing = ("torch._functorch", "torch.fx.graph", "torch.fx.node")
    return isinstance(candidate.error, AssertionError) and _raised_in(candidate.error).startswith(editing)


def _raised_in(error: Exception) -> str:
    """The module that raised it."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return str(frames[-1][0].f_globals.get("__name__")) if frames else ""


def _mutates_aliased_input(candidate: Candidate) -> bool:
    """Autograd counts the writes to a storage: it would refuse to derive by what AOTAutograd saved of the other input before it
    does the write."""
    meta = candidate.meta
    if meta is None or not candidate.artifacts.trains or len(meta.input_info) != len(candidate.example_inputs):
        return False
    given = [(info, each.untyped_storage()._cdata) for info, each in zip(meta.input_info, candidate.example_inputs, strict=True)
             if isinstance(each, torch.Tensor) and each.layout is torch.strided and info.requires_grad]
    storages = [storage for _, storage in given]
    return any(info.mutates_data and storages.count(storage) > 1 for info, storage in given)


def _takes_overlapping_tangents(candidate: Candidate) -> bool:
    """As of `(x * 2).unfold(0, 3, 1)`: AOTAutograd copies the tangent into the layout that the output had, which loses part."""
    meta = candidate.meta
    if meta is None or not candidate.artifacts.trains:
        return False
    formats = [getattr(each, "memory_format", None) for each in meta.subclass_tangent_meta or ()]
    return any(each is not None and each.size is not None and overlaps_itself(each.size, each.stride) for each in formats)


_OF_INPUTS = (OutputType.alias_of_input, OutputType.is_input)


def _views_mutated_input(candidate: Candidate) -> bool:
    """AOTAutograd then makes the output anew from where it lies in the storage of the compiled graph's result, which may begin
    elsewhere than the input's own. Of inputs that share memory it makes one, their synthetic base, and replays on that one
    the views that the program took of an input. Under inference mode the views that it makes require no gradient."""
    meta = candidate.meta
    if meta is None:
        return False
    of_inputs = [info for info in meta.output_info if info.output_type in _OF_INPUTS]  # others' bases are no inputs
    bases = [(info, meta.input_info[info.base_idx]) for info in of_inputs if info.base_idx is not None]
    views = [info for info, base in bases if base.mutates_data]
    if views and _have_synthetic_base(candidate.example_inputs, mutated_inputs(candidate.captured)):
        return True
    if torch.is_inference_mode_enabled() and any(
            base.mutates_data and base.requires_grad for _, base in bases):
        return True
    if _loses_views(candidate.captured, meta):
        return True
    sequences = [info.view_meta_sequence for info in views if info.output_type is OutputType.alias_of_input]
    return any(steps is None or any(step.has_symbolic_inputs for step in steps.sequence) for steps in sequences)


def _loses_views(gm: torch.fx.GraphModule, meta: ViewAndMutationMeta) -> bool:
    """Whether AOTAutograd takes an output for one of its own memory that is a view of an input which the graph writes to: one
    of several that one operator gave (`chunk`, `unbind`)."""
    inputs = gm.graph.find_nodes(op="placeholder")
    written_to = {_storage(inputs[place]) for place in mutated_inputs(gm)} - {None}
    outputs = pytree.tree_leaves(outputs_of(gm.graph)) if written_to else []
    return len(outputs) == len(meta.output_info) and any(
        info.output_type not in _OF_INPUTS and _storage(node) in written_to
        for node, info in zip(outputs, meta.output_info, strict=True))


def _have_synthetic_base(values: Sequence[Any], mutated: Sequence[int]) -> bool:
    """Whether one of these inputs shares its storage with a mutated one."""
    storages = [each.untyped_storage()._cdata if isinstance(each, torch.Tensor) and each.layout is torch.strided
                and not is_wrapper(each) else None for each in values]
    return any(storages[place] is not None and storages.count(storages[place]) > 1 for place in mutated)


def _only_views(candidate: Candidate) -> bool:
    meta = candidate.meta
    return meta is not None and all(info.output_type in _OF_INPUTS for info in meta.output_info) and not any(
        info.mutates_data or info.mutates_metadata for info in meta.input_info)


def _mutates_data_and_metadata(candidate: Candidate) -> bool:
    meta = candidate.meta
    return meta is not None and any(info.mutates_data and info.mutates_metadata for info in meta.input_info)


def _unprofitable(candidate: Candidate) -> bool:
    return candidate.is_unprofitable(candidate.captured, candidate.plan, candidate.artifacts.graphs)


def _elsewhere(candidate: Candidate) -> bool:
    raise AssertionError("the native pipeline, or the wrapper of a call, decides this")


RULES: tuple[Rule, ...] = (
    Rule("inference-mode-block", "split", lambda candidate: isinstance(candidate.error, CannotSplit),
         "A block of torch.inference_mode cannot be compiled by itself: it takes or gives more than tensors, turns the mode "
         "off, ends out of order, or writes to storage that it shares with the graph around it."),
    Rule("storage-offset", "captured graph", _uses_storage_offsets,
         "The graph uses absolute storage offsets (`as_strided`, `fill_diagonal_`) on an input or on a view. Compiled graphs "
         "copy parts of storages, which then begin elsewhere."),
    Rule("written-unfolding", "captured graph", _writes_unfolding,
         "The graph writes to windows that `unfold` made, which leave elements between or behind them: AOTAutograd sets those "
         "to zero."),
    Rule("overlapping-write", "captured graph", _writes_over_itself,
         "An operator writes to a tensor whose elements lie on each other (`as_strided`, overlapping windows of `unfold`): "
         "eager goes from element to element, and reads what it wrote before."),
    Rule("overlapping-argument", "captured graph", _writes_over_argument,
         "An operator writes to memory that is that of another operand too (`x[1:].copy_(x[:-1])`, `torch.mm(x, x, out=x)`), "
         "which eager refuses when it runs, or reads as far as it is written."),
    Rule("overlapping-list", "captured graph", _writes_overlapping_list,
         "An operator over a list of tensors (`torch._foreach_add_`) writes to memory that a tensor at another place of its "
         "lists shares: eager goes through the list one by one."),
    Rule("observed-view", "captured graph", _observes_gradients_of_views,
         "The program sees the gradient of an output that is a view, or asks for that of an output which others are made from: "
         "in a compiled graph it would not stand between them and the input. Or it reads the `_base` of an output."),
    Rule("recorded-past-input", "captured graph", _gives_history_to_detached_input,
         "An output is in an input's memory, detached from it (`x.data`), and was written to under autograd: its gradient "
         "flows to what was written, and the input has no part in it."),
    Rule("unrecorded-view-of-leaf", "captured graph", _views_leaf_without_recording,
         "The graph makes, under `no_grad`, a view of an input that requires grad and is itself a view of a tensor that does "
         "not: neither does the view. Or the graph records what it does with the view, of which the input has no part."),
    Rule("reshaped-input", "captured graph", _reshapes_input,
         "The graph gives an input that requires grad, or a view of one, another shape in place (`x.unsqueeze_(0)`): "
         "AOTAutograd forgets what was computed from it before."),
    Rule("forward-level", "captured graph", lambda candidate: _has_marked(candidate, "sees_tangents"),
         "The graph enters a level of forward differentiation (`torch.autograd.forward_ad.dual_level`), in which operators "
         "compute tangents as well."),
    Rule("resized-storage", "captured graph", lambda candidate: _has_marked(candidate, "resizes_storage"),
         "The program gives the storage of a tensor another size (`untyped_storage().resize_()`): compiled graphs reuse memory "
         "by what their operators need."),
    Rule("no-autograd-kernel", "captured graph", _lacks_autograd_kernel,
         "The derivative of an operator is asked for that registers none: eager takes that of the operators it is made of."),
    Rule("mutates-aliased-wrapper", "captured graph", _mutates_aliased_wrapper,
         "The graph writes to an input whose memory an inner tensor of a wrapper subclass shares."),
    Rule("returns-masked", "captured graph", _returns_masked,
         "The graph gives out the unreduced result of an embedding that is sharded by its rows."),
    Rule("delayed-reduction", "captured graph", lambda candidate: delays_reductions(),
         "DistributedDataParallel is to reduce gradients once that of one parameter is there (`param_to_hook_all_reduce`): a "
         "compiled graph has all of its gradients at once, and autograd takes them in any order."),
    Rule("mutates-other-dtype", "captured graph", _mutates_other_dtype,
         "The graph writes to an input whose memory another input sees as elements of another type."),
    Rule("data-dependent-shape", "AOTAutograd", lambda candidate: isinstance(candidate.error, data_dependent()),
         "A shape or a branch of the graph, or of its derivative, depends on numbers in a tensor."),
    Rule("opaque-mutation", "AOTAutograd", _raised("mutating a non-functional tensor with a functional tensor"),
         "An operator that tracing cannot see through writes to a tensor, as fused optimizer steps do."),
    Rule("collective-in-place", "AOTAutograd", lambda candidate: isinstance(candidate.error, NotFunctional),
         "Code of the program's own that the graph calls, or its `backward`, communicates with other ranks by a collective "
         "that has no functional form."),
    Rule("no-meta-kernel", "AOTAutograd", _raised("no fake impl or Meta kernel registered"),
         "An operator has no kernel for fake tensors."),
    Rule("mutates-expanded", "AOTAutograd",
         _raised("more than one element of the written-to tensor refers to a single memory location"),
         "The graph writes to an expanded tensor, which eager refuses when it runs."),
    Rule("mutates-saved-activation", "AOTAutograd", _raised("has been modified by an inplace operation"),
         "The graph writes over a saved activation, which eager refuses once somebody asks for the derivative."),
    Rule("sparse-gradients", "AOTAutograd",
         _raised("dispatch_on_subclass called with NO overloaded args", "cannot access PyObject for Tensor"),
         "The derivative adds sparse gradients of symbolic sizes."),
    Rule("untracked-base", "AOTAutograd", _raised("is not tracked with proxy"),
         "The graph writes to inputs of symbolic sizes that share storage with each other, and whose base is no input."),
    Rule("mixed-bases", "AOTAutograd", _raised("aot_autograd() does not yet handle"),
         "The graph writes to one of several inputs that share storage and are no views of each other to autograd: one is a "
         "view, and another, made by `detach` or `.data`, is none."),
    Rule("view-of-as-strided", "AOTAutograd", _raised("as_strided() is non-compositional"),
         "The graph writes to a view of a view that `as_strided` made."),
    Rule("mutates-overlapping", "AOTAutograd", _raised("being mutated that has internal overlap"),
         "The graph writes to elements that lie apart in a view whose elements overlap, such as the diagonal of an unfolding."),
    Rule("mutates-with-gaps", "AOTAutograd", _raised("as_strided_scatter: sizes"),
         "`fill_diagonal_` or `as_strided` writes to an input whose storage has gaps."),
    Rule("no-functional-form", "AOTAutograd", _raised("operator whose output has alias annotations"),
         "An in-place operator has no functional form."),
    Rule("no-derivative", "AOTAutograd", _raised("derivative for aten::"),
         "An operator has no derivative, which eager says where somebody asks for one."),
    Rule("over-budget", "AOTAutograd", lambda candidate: isinstance(candidate.error, OverBudget),
         "Compiling the graph took longer than it may (setting `compile_budget`): it is a loop over many steps, mostly."),
    Rule("recurrent-under-transform", "AOTAutograd", lambda candidate: isinstance(candidate.error, CannotKeepWhole),
         "A recurrent layer runs under `vmap`, `grad` or forward-mode AD, or on tensors of a wrapper subclass: only ATen can "
         "do that, step by step."),
    Rule("wrapper-subclass", "AOTAutograd", _cannot_desugar,
         "AOTAutograd cannot take the graph's tensors of wrapper subclasses apart, as where two outputs share memory."),
    Rule("refused-by-operator", "AOTAutograd", _refused_by_operator,
         "An operator of the graph or of its derivative refuses what it is given (a dimension or an index out of range, types "
         "that do not go together): eager raises that where the program comes to it."),
    Rule("unforeseen", "AOTAutograd", _is_unforeseen,
         "An assertion of AOTAutograd's own failed, or of torch.fx about a graph that was edited: the graph is one that is not "
         "foreseen, such as one that writes to inputs that are views of one tensor, under autograd and past it."),
    Rule("mutates-aliased-input", "compiled graphs", _mutates_aliased_input,
         "The graph writes under autograd to an input that shares storage with another one that is differentiated."),
    Rule("mutates-view-of-leaf", "compiled graphs", _writes_view_of_leaf,
         "The graph writes, past autograd (`x.detach().add_(1)`), to an input that is a view of a leaf: AOTAutograd's own "
         "write would be refused."),
    Rule("mutates-data-and-metadata", "compiled graphs", _mutates_data_and_metadata,
         "The graph writes to an input and changes its shape (`x.zero_(); x.unsqueeze_(0)`): AOTAutograd writes to a copy, and "
         "gives the input the copy's offset in its storage."),
    Rule("overlapping-tangent", "compiled graphs", _takes_overlapping_tangents,
         "An output's elements overlap in memory, and so would those of its gradient."),
    Rule("view-of-mutated-input", "compiled graphs", _views_mutated_input,
         "An output is a view of an input that the graph writes to, and has symbolic sizes, or other inputs share its memory, "
         "or the input requires a gradient under inference mode."),
    Rule("wrapper-view", "compiled graphs", _cannot_regenerate_wrapper,
         "An output is a view, and of a wrapper subclass that knows no `as_strided`, by which AOTAutograd would make it."),
    Rule("only-views", "compiled graphs", _only_views,
         "The graph does nothing but make views of its inputs: eager calls cost least."),
    Rule("unprofitable", "call plan", _unprofitable,
         "The compiled graph's autograd node would cost more than it saves (setting `small_graphs_as_captured`)."),
    Rule("no-executor", "executor", _elsewhere,
         "This torch does not export what programs of the native backend call: each of its ATen graphs runs node by node."),
    Rule("uncomputable-size", "executor", _elsewhere,
         "An ATen graph has a size that the native backend's executor cannot calculate, and runs node by node."),
    Rule("input-aliasing", "call", _elsewhere,
         "Inputs, of which the graph mutates one, share memory otherwise in this call than in the one it was compiled for."),
    Rule("uncounted-write", "call", _elsewhere,
         "The graph writes to a tensor that counts no writes: one that was made in inference mode and then got another's "
         "`data`. Eager writes to it, and then raises."),
    Rule("double-backward", "call", _elsewhere,
         "A second derivative was asked for, which a compiled backward graph does not have: from then on every call of it."),
)  # fmt: skip
BY_ID = {each.id: each for each in RULES}
