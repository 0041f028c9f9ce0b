"""Passes over AOTAutograd's joint graph before it is partitioned, and over what the partitioner made of it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from fxjit.applied import Plan, apply_traced
from fxjit.schemas import returns_alias, tensors_of

from ..graph.edit import copy_in_layout, outputs_of, set_outputs, where_or_zero
from ..graph.facts import mutated_inputs, view_root

aten = torch.ops.aten
#: From how many bytes on what a product of backward reads is computed again, and what that may take: operators between
#: products, and how many of them more than arithmetic. Below, and with more, keeping it is faster
#: (docs/performance_kernels.md).
LARGE, FEW, COSTLY = 4 << 20, 16, 1
_ARITHMETIC = {aten.add, aten.sub, aten.rsub, aten.mul, aten.neg, aten.abs, aten.relu, aten.maximum, aten.minimum, aten.clamp,
               aten.where, aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne, aten._to_copy, aten.logical_not}  # fmt: skip
#: What the partitioner takes for fused with what it reads, beside pointwise operators.
_FUSED = {aten.sum, aten.mean, aten.amax, aten.var, aten.var_mean, aten.std, aten.any, aten.argmax, aten.clone, aten._to_copy,
          aten.sum_to_size, aten.index, aten.gather}  # fmt: skip
_EXTREMES = {aten.max.default, aten.min.default, aten.amax.default, aten.amin.default, aten.linalg_vector_norm.default}


def select_gradients_of_extremes(joint: torch.fx.GraphModule) -> None:
    """Gradients of `max()`, `min()` and the medians of all numbers, as eager computes them on a CPU: shared out among the
    numbers that are equal to the result, zero for the others. AOTAutograd traces what CUDA does: the others get the gradient
    times zero, which is NaN where the gradient is."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        mask, share = node.args
        if _is_mask_of_extreme(mask) and _is_share(share, mask) and node.meta["val"].device.type == "cpu":
            node.replace_all_uses_with(where_or_zero(joint.graph, node, mask, share, node))
            joint.graph.erase_node(node)


def _is_mask_of_extreme(mask: Any) -> bool:
    """`x == found or (isnan(x) and isnan(found))`"""
    if not _calls(mask, aten.logical_or.default):
        return False
    equal, unknown = mask.args
    return _calls(equal, aten.eq.Tensor) and _calls(unknown, aten.logical_and.default)


def _is_share(share: Any, mask: torch.fx.Node) -> bool:
    """Some number through how many are in the mask."""
    return _calls(share, aten.div.Tensor) and _calls(share.args[1], aten.sum.default) and share.args[1].args[0] is mask


def _calls(node: Any, target: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target is target


def save_operands_of_extremes(joint: torch.fx.GraphModule) -> None:
    """Has the partitioner save what an extreme was found among, of half types. The derivative divides by how many numbers equal
    the extreme: that may be none where the backward graph computes the numbers again, from what was rounded to be saved, which
    the forward graph had in registers."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        sides = [view_root(each) for each in node.args if isinstance(each, torch.fx.Node)]
        if any(each.target in _EXTREMES for each in sides):
            for each in sides:
                if each.op == "call_function" and each.meta["val"].dtype in (torch.float16, torch.bfloat16):
                    each.meta["recompute"] = CheckpointPolicy.MUST_SAVE


@contextlib.contextmanager
def recomputing_large_values(joint: torch.fx.GraphModule, num_forward_outputs: int) -> Iterator[None]:
    """Has the partitioner, meanwhile, compute large values again which a product of backward reads (a weight's gradient: GELU's
    results), where that is cheap and what they are computed from is kept for another derivative anyway. Left to itself it saves
    each value that backward has to store, whatever its size."""
    from torch._functorch import config as functorch_config

    forward = _ancestors(outputs_of(joint.graph)[:num_forward_outputs])
    read = [node for node in joint.graph.nodes if node in forward and node.op == "call_function" and _is_stored(node, forward)]
    large = {node for node in read if _bytes_of(node) >= LARGE and not _is_output(node) and _is_cheap(node)}
    if not large or functorch_config.activation_memory_budget < 1:
        yield
        return
    for node in read:
        if node not in large:
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    with functorch_config.patch(ban_recompute_materialized_backward=False):
        yield


def _ancestors(values: list[Any]) -> set[torch.fx.Node]:
    waiting, found = [value for value in values if isinstance(value, torch.fx.Node)], set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _is_stored(node: torch.fx.Node, forward: set[torch.fx.Node]) -> bool:
    """Whether backward reads it, or a view of it, by what is not fused with it. Of a view its base says that."""
    if _is_view(node) or node.target is operator.getitem:
        return False
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if _is_view(user):
                waiting.append(user)
            elif user not in forward and not (_is_pointwise(user) or _packet(user) in _FUSED):
                return True
    return False


def _is_output(node: torch.fx.Node) -> bool:
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output":
                return True
            if _is_view(user):
                waiting.append(user)
    return False


def _bytes_of(node: torch.fx.Node) -> int:
    """Of sizes that vary, those of the call that is compiled for; 0 where they depend on data."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    size = value.numel()
    if isinstance(size, torch.SymInt):
        size = size.node.hint if size.node.has_hint() else 0
    return size * value.dtype.itemsize


def _is_cheap(node: torch.fx.Node) -> bool:
    """Whether few pointwise operators, and all but one of them arithmetic, lead to it from one value of its size that comes
    from none: a gated pair, read again, takes longer than what it makes."""
    chain: set[torch.fx.Node] = set()
    sources: set[torch.fx.Node] = set()
    waiting, costly = [node], 0
    if not _is_pointwise(node):
        return False
    while waiting:
        each = waiting.pop()
        if each in chain:
            continue
        if not (_is_pointwise(each) or _is_view(each)):
            sources.update([each] if _bytes_of(each) * 2 >= _bytes_of(node) else [])
            continue
        chain.add(each)
        # Powers of a given exponent are products.
        plain = _packet(each) in _ARITHMETIC or _is_view(each) or each.target is aten.pow.Tensor_Scalar
        costly += not plain
        if len(chain) > FEW or costly > COSTLY:
            return False
        waiting += each.all_input_nodes
    return len(sources) <= 1


def _is_view(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and returns_alias(node.target)


def _is_pointwise(node: torch.fx.Node) -> bool:
    tags = getattr(node.target, "tags", ()) if node.op == "call_function" else ()
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def _packet(node: torch.fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def read_late(captured: torch.fx.GraphModule) -> frozenset[int]:
    """The inputs that nothing in the captured graph differentiates but traced functions of autograd, to which they are no saved
    tensors: `ctx.mask`, a global. Eager's `backward` reads what they are by then, whoever wrote to them."""
    placeholders = captured.graph.find_nodes(op="placeholder")
    late, others = set[torch.fx.Node](), set[torch.fx.Node]()
    for node in captured.graph.nodes:
        if node.target is not apply_traced:
            others.update(node.all_input_nodes)
            continue
        plan, values = Plan(*node.args[2]), [*node.args[4:], *node.args[3]]
        late.update(values[place] for place in plan.kept if place < len(values))
        others.update(values[place] for place in plan.saved if 0 <= place < len(values))
    written = mutated_inputs(captured) if late else ()
    return frozenset(place for place, node in enumerate(placeholders)
                     if node in late - others and place not in written and next(tensors_of(node), None) is not None)


def leave_unchecked(joint: torch.fx.GraphModule, positions: frozenset[int], num_forward_outputs: int) -> None:
    """Has autograd not look at the versions of these inputs. What the forward graph makes of one is saved, not made again by
    the backward graph, and what that makes is not taken from the forward graph. An input of which forward makes something for
    backward alone stays as it is: the partitioner has that made by backward."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    forward = _ancestors(outputs_of(joint.graph)[:num_forward_outputs])
    for position in positions:
        given = placeholders[position]
        later = [user for user in given.users if user.meta.get("partitioner_tag") == "is_backward"]
        made = _made_of(given)
        if not later or not forward.issuperset(made):
            continue
        given.meta["saved_tensor_with_no_vc_check"] = True  # torch's mark of what is kept as `ctx.x = x`
        with joint.graph.inserting_before(later[0]):
            read = joint.graph.call_function(aten.clone.default, (given,))
        read.meta |= {"val": given.meta["val"], "partitioner_tag": "must_be_in_backward"}
        for user in later:
            user.replace_input_with(given, read)
        for node in made:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _made_of(given: torch.fx.Node) -> list[torch.fx.Node]:
    """What the operators of forward that read it, or a view of it, give."""
    waiting, found = [given], list[torch.fx.Node]()
    while waiting:
        for user in waiting.pop().users:
            if user.op != "call_function" or user.meta.get("partitioner_tag") == "is_backward":
                continue
            (waiting if _is_view(user) else found).append(user)
    return found


def read_by_derivatives(joint: torch.fx.GraphModule) -> frozenset[str]:
    """The names of the values, or of what they are views of, that derivatives read as autograd traced them: what eager saves.
    What a checkpoint runs again, or a memory budget may, is read then, whatever it is by then."""
    from torch._functorch import config as functorch_config

    def runs_later(node: torch.fx.Node) -> bool:
        return (functorch_config.activation_memory_budget < 1 or node.meta.get("partitioner_tag") == "is_backward"
                or node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE))

    later = (node for node in joint.graph.nodes if node.op == "call_function" and not _is_view(node) and runs_later(node))
    return frozenset(view_root(given).name for node in later for given in node.all_input_nodes)


def copy_activations_before_mutation(forward: torch.fx.GraphModule, num_outputs: int, mutated: Sequence[int],
                                     read: Container[str]) -> None:
    """Copies activations saved for backward whose memory a write may change until then, in which eager's derivatives do not see
    it: that of an input which the forward graph mutates at its end, or that AOTAutograd's wrapper mutates behind it (their
    indices are `mutated`), and that of an input or output which no derivative reads (`read` are the names of what one does),
    so that the program is free to write to it (an optimizer's step before another loss's backward). The partitioner may save
    such a value, to compute from it again what the derivative needs: autograd refuses it after a write. A copy of a large one
    (the logits that a model returns beside its loss) would be as much memory as computing it again saves."""
    graph = forward.graph
    placeholders = graph.find_nodes(op="placeholder")
    values = outputs_of(graph)
    returned = [view_root(each) for each in values[:num_outputs] if isinstance(each, torch.fx.Node)]
    exposed = (each for each in [*placeholders, *returned]
               if each.name not in read and _is_differentiable(each) and _bytes_of(each) < LARGE)
    mutations = dict.fromkeys(exposed, graph.output_node())
    mutations.update({placeholders[index]: graph.output_node() for index in mutated})
    mutations.update((view_root(node.args[0]), node) for node in reversed(graph.nodes)  # type: ignore[arg-type]  # a node
                     if node.target is aten.copy_.default)  # fmt: skip
    if not mutations:
        return
    for place in range(num_outputs, len(values)):
        value = values[place]
        if isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
            mutation = mutations.get(view_root(value))
            if mutation is not None:
                values[place] = _clone_of(value) or _copy_before(mutation, value)
    set_outputs(graph, values)
    graph.lint()
    forward.recompile()


def _is_differentiable(node: torch.fx.Node) -> bool:
    """Whether its dtype has gradients: not offsets of a jagged tensor, of which a copy would be those of another."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _clone_of(value: torch.fx.Node) -> torch.fx.Node | None:
    """The copy that AOTAutograd begins with of an input which its wrapper writes to: the graph writes to none such."""
    return next((each for each in value.users if value.op == "placeholder" and _calls(each, aten.clone.default)
                 and each.meta["val"].stride() == value.meta["val"].stride()), None)  # fmt: skip


def _copy_before(mutation: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
    with mutation.graph.inserting_before(mutation):
        return copy_in_layout(mutation.graph, value)


def mark_integer_outputs(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
    """Marks the inputs of the backward graph that are auxiliary integer outputs of an operator, as indices: theirs is the one
    shape that an operator may not keep to (native/executor), so who relies on it has to look."""
    auxiliary = {node.name for node in forward.graph.find_nodes(op="call_function", target=operator.getitem)
                 if isinstance(meta := node.meta.get("val"), torch.Tensor)
                 and not (meta.is_floating_point() or meta.is_complex())}
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name in auxiliary:
            node.meta["fxjit_auxiliary_output"] = True
