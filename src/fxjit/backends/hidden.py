"""Writes that autograd must not see, or must have seen before it saves anything: `x.data[i] = v` and a batch norm's running
statistics leave `x._version` as it was, and `x.t_()` counts as a write before the graph goes on.

AOTAutograd writes an input's new contents or shape back with an operator that counts as a write, after the graph has run, and
a backward that saved the input or a view of it would then be refused, which eager runs: that of a batch norm that ran outside
of the graph, say, which saves the running statistics that the graph's own writes to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

#: What tracing a graph or its derivative raises where a shape or a branch depends on numbers in a tensor.
NEEDS_DATA = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def uncounted_writes(gm: torch.fx.GraphModule, example_inputs: Sequence[Any],
                     meta: ViewAndMutationMeta | None) -> tuple[int, ...]:
    """The inputs that the graph writes to without changing their version: through `.data` alone, or as the running statistics
    of a batch norm, whose operator does not say that it writes. AOTAutograd counts these writes as it does others."""
    written = [] if meta is None else [index for index, info in enumerate(meta.input_info) if info.mutates_data]
    hiding = [node for node in _all_nodes(gm) if _may_hide_a_write(node)]
    if not written or not hiding:
        return ()
    if all(_writes_to_statistics_alone(node) for node in hiding):
        statistics, places = {each for node in hiding for each in node.args[1:3]}, gm.graph.find_nodes(op="placeholder")
        return tuple(index for index in written if places[index] in statistics)
    changed = _changed_versions(gm, example_inputs)
    return tuple(index for index in written if index not in changed)


def _all_nodes(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Those of the graphs inside it, too."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _may_hide_a_write(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return (node.target is getattr and node.args[1] == "data") or "batch_norm" in getattr(node.target, "__name__", "")


def _writes_to_statistics_alone(node: torch.fx.Node) -> bool:
    """Whether it is a batch norm over statistics that nothing else uses: the usual case, which needs no second look."""
    norm = torch.nn.functional.batch_norm
    return node.target is norm and len(node.args) > 2 and all(
        isinstance(each, torch.fx.Node) and each.op == "placeholder" and all(user.target is norm for user in each.users)
        for each in node.args[1:3] if each is not None)


def drop_gradients_of_hidden_writes(backward: torch.fx.GraphModule, meta: ViewAndMutationMeta | None) -> None:
    """A leaf of the autograd graph that is only written to, which is done through `detach()`, `.data` or without recording, has
    no gradient in eager. AOTAutograd gives it that of its new value, which nobody uses, as zeros."""
    written = [] if meta is None else [index for index in meta.mutated_inp_runtime_indices
                                       if meta.input_info[index].mutates_data and meta.input_info[index].requires_grad]
    tangents = [node for node in backward.graph.find_nodes(op="placeholder") if "tangents" in node.name]
    output = next(iter(backward.graph.find_nodes(op="output")))
    grads = list(output.args[0])
    hidden = [index for index, tangent in zip(written, tangents, strict=False) if grads[index] is tangent
              and meta is not None and meta.input_info[index].is_leaf]
    if hidden:
        output.args = ([None if index in hidden else grad for index, grad in enumerate(grads)],)
        backward.recompile()


def _changed_versions(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> set[int]:
    """The inputs whose version a run of the graph changes, by a run over fake tensors; all, where that cannot be done."""
    fakes = [each for each in example_inputs if isinstance(each, FakeTensor)]
    mode = fakes[0].fake_mode if fakes else FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        inputs = [torch.empty_like(each) if isinstance(each, torch.Tensor) else each for each in example_inputs]
        before = [each._version if isinstance(each, torch.Tensor) else 0 for each in inputs]
        try:
            torch.fx.Interpreter(gm).run(*inputs)
        except NEEDS_DATA:
            return set(range(len(inputs)))
    return {index for index, each in enumerate(inputs) if isinstance(each, torch.Tensor) and each._version != before[index]}
