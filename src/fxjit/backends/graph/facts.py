"""Facts about a whole FX graph: the memory that its nodes share and write to, what leads to its results, which calls change the
state of the process. What a single call does is told in `fxjit.schemas`.

Captured graphs carry fake tensors as `example_value`; two nodes whose fake tensors have one storage share memory.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from fxjit.homes import module_of
from fxjit.schemas import (
    STRIDED_INSIDE,
    all_nodes,
    is_known,
    may_raise_on,
    name_of,
    runs_once,
    signatures,
    storages_of,
    tensors_of,
    updated_statistics,
    uses_rng,
    view_base,
    writes,
    written,
    written_storages,
)
from fxjit.tensor_wrappers import is_wrapper

Node = torch.fx.Node
#: The key in `node.meta` of a call that is made for what it may raise.
_CHECKS = "fxjit_checks"
#: Operators that take an absolute storage offset, and its position.
_STORAGE_OFFSETS = {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
#: Modules of functions that enter and leave modes, for graphs of torch._dynamo as for ours.
_MODE_MODULES = frozenset({"torch.autograd.grad_mode", "torch.amp.autocast_mode", "torch._functorch.predispatch"})


def data_dependent() -> tuple[type[Exception], ...]:
    """What tracing a graph or its derivative raises where a shape or a branch depends on numbers in a tensor."""
    from fxjit import fake_execution  # with sympy, which no stored graph wants

    return fake_execution.DATA_DEPENDENT


def crosses_wrappers(gm: torch.fx.GraphModule) -> bool:
    """Whether the captured graph takes or gives tensors of wrapper subclasses. AOTAutograd's graphs then take and give what
    these are made of: their inputs and outputs are not those of the captured graph."""
    ends = [*gm.graph.find_nodes(op="placeholder"), *gm.graph.output_node().all_input_nodes]
    return any(is_wrapper(tensor) for node in ends for tensor in tensors_of(node))


def mutated_inputs(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """The positions of the inputs that the captured graph writes to."""
    memory = written_storages(gm.graph)
    return tuple(place for place, node in enumerate(gm.graph.find_nodes(op="placeholder"))
                 if not storages_of([node]).isdisjoint(memory))


def placeholders_written(gm: torch.fx.GraphModule) -> frozenset[int]:
    """The positions of the inputs that an ATen graph writes to."""
    roots = {view_root(each) for node in gm.graph.nodes for each in written(node)}
    return frozenset(place for place, node in enumerate(gm.graph.find_nodes(op="placeholder")) if node in roots)


def may_raise(node: Node) -> bool:
    """Whether a call of an ATen graph may raise because of the numbers that it is given."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return node.op.startswith("call") and not is_known(target)
    return may_raise_on(target, [value for value in map(_tensors_in, (*node.args, *node.kwargs.values())) if value])


def cannot_start_over(graph: torch.fx.Graph) -> bool:
    """Whether an ATen graph has an operator that runs once a call: where the graph fails, the program's code does not run
    instead (resume/deoptimization.py)."""
    return any(map(_runs_once, graph.nodes))


def is_ordered(node: Node) -> bool:
    """Whether what the call does is seen where a graph failed that cannot start over, so that it stands behind all that may
    raise before it: it draws random numbers, or runs once."""
    return node.op == "call_function" and (uses_rng(node) or _runs_once(node))


def _runs_once(node: Node) -> bool:
    # What a higher-order operator calls is an argument of it.
    return node.op == "call_function" and any(
        isinstance(each, OpOverload) and runs_once(each) for each in (node.target, *node.args))


def _tensors_in(argument: Any) -> list[torch.Tensor]:
    """The fake tensors of an argument in an ATen graph."""
    nodes = [each for each in pytree.tree_leaves(argument) if isinstance(each, Node)]
    return [each.meta["val"] for each in nodes if isinstance(each.meta.get("val"), torch.Tensor)]


def mark_checks(graph: torch.fx.Graph) -> None:
    """Marks the calls of an ATen graph that nobody uses and that may raise. One that looks at memory which nobody has written
    says nothing of the program: torch asks so for the shape of a result (DTensor's, before torch 2.12)."""
    dead: set[Node] = set()
    for node in reversed(graph.nodes):
        if not dead.issuperset(node.users) or node.is_impure():
            continue
        if may_raise(node) and not any(map(_is_unwritten, node.all_input_nodes)):
            node.meta[_CHECKS] = True
        else:
            dead.add(node)


def _is_unwritten(node: Node) -> bool:
    """Whether it is memory as it was allocated. Writes of a functional graph are calls that make another tensor."""
    root = view_root(node).target
    return isinstance(root, OpOverload) and root.namespace == "aten" and "empty" in root._opname


def is_check(node: Node) -> bool:
    """Whether the call is made for what it may raise alone: no dead code."""
    return _CHECKS in node.meta


def without_checks(graph: torch.fx.Graph) -> None:
    """Drops them from a graph: another one makes them."""
    for node in graph.nodes:
        node.meta.pop(_CHECKS, None)
    graph.eliminate_dead_code()


def view_root(node: Node) -> Node:
    """The node of an ATen graph that made the memory of this one's result."""
    while (base := view_base(_call_of(node))) is not None:
        node = base
    return node


def _call_of(node: Node) -> Node | None:
    """The node itself, or for an element of several views, as of `split`, the call that made them."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return node.args[0]
    return node


def needed(graph: torch.fx.Graph) -> set[Node]:
    """Nodes that the graph's results, or a write, depend on."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or writes(node) or any(user in found for user in node.users):
            found.add(node)
    return found


def changes_state(node: Node) -> bool:
    """Whether the call sets a mode of the process, such as recording by autograd or autocast, for the nodes behind it."""
    if node.op != "call_function":
        return False
    target: Any = node.target
    if getattr(target, "changes_state", False) or module_of(target) in _MODE_MODULES:
        return True
    # A function of torch's C++ that is no operator and gives no tensor is called for such an effect.
    is_builtin = isinstance(target, types.BuiltinFunctionType) and module_of(target).startswith("torch")
    return is_builtin and not signatures(target) and next(tensors_of(node), None) is None


def state_changed_by(graph: torch.fx.Graph) -> str:
    """What the graph's calls set of the modes of the process: "" for nothing, "grad mode" for that alone, or "modes"."""
    changing = [node for node in graph.nodes if changes_state(node)]
    only_grad = all(node.target is torch._C._set_grad_enabled for node in changing)
    return "" if not changing else "grad mode" if only_grad else "modes"


def tangents_of(backward: torch.fx.Graph) -> list[Node]:
    """The inputs of AOTAutograd's backward graph that are gradients of outputs, in their order."""
    return [node for node in backward.find_nodes(op="placeholder") if "tangents" in node.name]


def uses_storage_offsets(gm: torch.fx.GraphModule) -> bool:
    """Whether the captured graph uses absolute storage offsets on an input or on a view: by `as_strided`, and by
    `fill_diagonal_`, which calls it. AOTAutograd's graphs have them as numbers that hold for these tensors alone, and copy
    parts of storages, which then begin elsewhere."""
    inputs = storages_of(gm.graph.find_nodes(op="placeholder"))
    bases = [_laid_out_like(base) for base in map(_strided_base, gm.graph.nodes) if base is not None]
    return any(_is_behind_start(base) or not storages_of([base]).isdisjoint(inputs) for base in bases)


def _strided_base(node: Node) -> Node | None:
    """The tensor to whose storage the call's offset refers."""
    if not node.op.startswith("call") or not node.args or not isinstance(node.args[0], Node):
        return None
    name = name_of(node.target)
    place = _STORAGE_OFFSETS.get(name)
    offset = None if place is None else node.args[place] if len(node.args) > place else node.kwargs.get("storage_offset")
    return node.args[0] if offset is not None or name in STRIDED_INSIDE else None


def _laid_out_like(node: Node) -> Node:
    """The tensor that this one is a copy of with its place in the storage, as `slice_scatter` and its like make."""
    name = name_of(node.target)
    of_view = name.endswith("_scatter") and hasattr(torch.ops.aten, name.removesuffix("_scatter"))
    if node.op.startswith("call") and of_view and node.args and isinstance(node.args[0], Node):
        return _laid_out_like(node.args[0])
    return node


def _is_behind_start(node: Node) -> bool:
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or type(value.storage_offset()) is not int or value.storage_offset() > 0


def mutated_without_version(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], mutated: Sequence[int]) -> tuple[int, ...]:
    """Those of the `mutated` inputs whose version counter the captured graph leaves as it is: it writes to them through `.data`
    alone, or as running statistics."""
    silent = [node for node in all_nodes(gm.graph) if _reads_data(node) or updated_statistics(node)]
    if not mutated or not silent or any(map(is_wrapper, example_inputs)):
        return ()  # fake tensors of wrappers cannot be made here
    if all(map(_updates_inputs_alone, silent)):
        statistics = {each for node in silent for each in updated_statistics(node)}
        placeholders = gm.graph.find_nodes(op="placeholder")
        return tuple(index for index in mutated if placeholders[index] in statistics)
    changed = changed_versions(gm, example_inputs)
    return tuple(index for index in mutated if index not in changed)


def _reads_data(node: Node) -> bool:
    return node.op == "call_function" and node.target is getattr and node.args[1] == "data"


def _updates_inputs_alone(node: Node) -> bool:
    """Whether it is a batch norm (an instance norm's updates count) over statistics that are inputs and that are used as such
    alone: the usual case, which needs no second look."""
    statistics = updated_statistics(node)
    return name_of(node.target) == "batch_norm" and all(
        each.op == "placeholder" and all(each in updated_statistics(user) for user in each.users) for each in statistics)


def changed_versions(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> set[int]:
    """The inputs whose version a run of the graph changes, by a run over fake tensors; all, where that cannot be done."""
    fakes = [each for each in example_inputs if isinstance(each, FakeTensor)]
    mode = fakes[0].fake_mode if fakes else FakeTensorMode(allow_non_fake_inputs=True)
    records = differentiates(gm)
    with torch.inference_mode(False), mode, torch.set_grad_enabled(records):  # inference tensors count no writes
        faked = [mode.from_tensor(each) if _wants_fake(each, bool(fakes)) else each for each in example_inputs]
        inputs = [_another(each, records) if isinstance(each, torch.Tensor) else each for each in faked]
        before = [each._version if isinstance(each, torch.Tensor) else 0 for each in inputs]
        try:
            torch.fx.Interpreter(gm).run(*inputs)
        except data_dependent():
            return set(range(len(inputs)))
    return {index for index, each in enumerate(inputs) if isinstance(each, torch.Tensor) and each._version != before[index]}


def differentiates(gm: torch.fx.GraphModule) -> bool:
    """Whether a backward pass is part of the graph."""
    return any(node.target is torch.autograd.grad for node in all_nodes(gm.graph))


def _another(tensor: torch.Tensor, records: bool) -> torch.Tensor:
    made = torch.empty_like(tensor)
    return made.requires_grad_() if records and tensor.requires_grad else made


def _wants_fake(example: Any, others_are_fakes: bool) -> bool:
    """Whether a fake mode may not be given it as it is: by itself the mode knows plain tensors, but none of a subclass."""
    if type(example) is torch.Tensor:
        return others_are_fakes
    return isinstance(example, torch.Tensor) and not isinstance(example, FakeTensor) and not is_wrapper(example)


def has_symbols(gm: torch.fx.GraphModule) -> bool:
    """Whether an input is a symbol or has a symbolic size, or the inputs' metadata are missing."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value", node.meta.get("val"))
        sizes = list(value.shape) if isinstance(value, torch.Tensor) else [value]
        if any(size is None or isinstance(size, torch.SymInt) for size in sizes):
            return True
    return False
