"""Speculation on branches on data where one side only raises or warns: the trace takes the other, the graph returns a check.

`Trace.speculate` adds a branch here, and `_freeze` ends it. Where the check fails, the frame deoptimises: its new code runs the
user's code from its beginning instead (resume/deoptimization.py), so what the graph did must be possible to undo.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.fx

from fxjit.frontend.result import RestartPlan, SpeculationCheck, UndoPlan
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.tensor import TensorValue
from fxjit.schemas import (
    all_nodes,
    inner_graphs,
    may_raise_on,
    only_computes,
    overloads_of,
    reaches_beyond,
    runs_once,
    storages_of,
    tensors_of,
    updated_statistics,
    uses_rng,
    written_storages,
)
from fxjit.tensor_wrappers import flattened, has_storage, is_wrapper, storages

#: Elements of all inputs that the graph writes to: they are copied before each run.
_MOST_COPIED = 1 << 16


class Speculation:
    """Of one trace: what it has taken for granted, and the graph's inputs as they were."""

    def __init__(self) -> None:
        #: Off while what is emitted is taken back afterwards.
        self.allowed = True
        self._flag: TensorValue | None = None
        self._inputs: list[tuple[torch.fx.Node, torch.Tensor, int | None]] = []

    def met(self, node: torch.fx.Node, fake: torch.Tensor) -> None:
        """A new input of the graph; of a wrapper what it is made of may be written to by itself."""
        self._inputs.append((node, fake, version(fake)))
        if is_wrapper(fake):
            self._inputs += [(node, each, version(each)) for each in flattened(fake)]

    @property
    def input_count(self) -> int:
        return len(self._inputs)

    def inputs_since(self, count: int) -> list[tuple[torch.Tensor, int | None]]:
        """Those met behind the first `count`, each with how often it had been written to."""
        return [(fake, before) for _, fake, before in self._inputs[count:]]

    def add(self, t: Tracer, tensor: TensorValue, truth: bool) -> bool:
        """Take for granted that `bool(tensor)` is `truth`; False where that cannot be."""
        numel = tensor.fake.numel()
        if not self.allowed or not isinstance(numel, int) or numel != 1:
            return False
        if self._flag is not None and self._flag.fake.device != tensor.fake.device:
            return False
        flag = t.emit("all", [t.emit(torch.ne if truth else torch.eq, [tensor, 0])])
        if self._flag is not None:
            flag = t.emit(torch.logical_and, [self._flag, flag])
        assert isinstance(flag, TensorValue)
        self._flag = flag
        return True

    def written_inputs(self, graph: torch.fx.Graph) -> list[torch.fx.Node]:
        """The inputs that the graph so far writes to, or to what shares memory with them in this call."""
        memory = written_storages(graph)
        return list(dict.fromkeys(node for node, fake, before in self._inputs if _is_written(fake, before, memory)))

    def is_any_written(self, graph: torch.fx.Graph) -> bool:
        """Whether the graph so far writes to an input, or to what shares memory with one."""
        memory = written_storages(graph)
        return any(_is_written(fake, before, memory) for _, fake, before in self._inputs)

    def inputs_written(self, graph: torch.fx.Graph, by: Callable[[torch.fx.Node], bool]) -> list[torch.fx.Node]:
        """The inputs that share memory with what such nodes of the graph so far write to."""
        memory = written_storages(graph, by)
        return [node for node, fake, _ in self._inputs if not memory.isdisjoint(storages(fake))] if memory else []

    def is_repeatable(self, graph: torch.fx.Graph) -> bool:
        """Whether the frame may start over where the graph failed: it wrote to nothing and drew no random numbers."""
        return not self.is_any_written(graph) and _are_repeatable(graph) and not any(
            _holds_state(node) or updated_statistics(node) or uses_rng(node)
            for node in graph.nodes if node.op != "placeholder"
        )

    def may_raise(self, graph: torch.fx.Graph) -> bool:
        """Whether an operator of the graph may raise because of its numbers."""
        return any(map(_is_integer, graph.nodes)) or any(
            may_raise_on(overload, [list(tensors_of(each)) for each in node.all_input_nodes])
            for node in graph.nodes if node.op.startswith("call") for overload in overloads_of(node.target)
        )

    def is_torchs_own(self, graph: torch.fx.Graph) -> bool:
        """Whether the graph calls operators of torch's only, none of which runs code of the program's."""
        return not any(map(_holds_state, graph.nodes)) and _are_repeatable(graph)

    def finish(self, graph: torch.fx.Graph) -> tuple[bool, SpeculationCheck | None]:
        """Whether the speculation holds as it is, and the checks that the graph has to output; None where nothing was
        speculated on."""
        if self._flag is None:
            return True, None
        found = self._copied_inputs(graph)
        if found is None or found.large:
            return False, None
        return True, SpeculationCheck(self._flag, found)

    def undoable(self, graph: torch.fx.Graph) -> UndoPlan | None:
        """What undoes what the graph did before it failed; None where nothing does: autograd's part of a write stays."""
        if any(map(_holds_state, graph.nodes)):
            return None
        if any(fake.requires_grad and fake._version != before for _, fake, before in self._inputs if before is not None):
            return None
        return self._copied_inputs(graph)

    def restart(self, graph: torch.fx.Graph) -> RestartPlan | None:
        """What running again takes, if the inputs are as they were; None where more than they may have changed."""
        nodes = [node for node in graph.nodes if node.op != "placeholder"]
        if any(map(_holds_state, nodes)) or not _are_repeatable(graph) or _writes_data(graph):
            return None
        return RestartPlan(any(map(uses_rng, nodes)), any(map(_is_integer, graph.nodes)))

    def _copied_inputs(self, graph: torch.fx.Graph) -> UndoPlan | None:
        """The inputs that the graph writes to; None if copies of them do not undo what it does."""
        if not _are_repeatable(graph):
            return None
        memory = written_storages(graph)
        whole = any(reaches_beyond(node) and not memory.isdisjoint(storages_of([node])) for node in all_nodes(graph))
        written, copied = [], 0
        for node, fake, before in self._inputs:
            if not _is_written(fake, before, memory):
                continue
            if is_wrapper(node.meta["example_value"]):
                return None  # only its class could copy it
            numel = fake.untyped_storage().nbytes() // fake.element_size() if whole and has_storage(fake) else fake.numel()
            known = numel.node.hint if isinstance(numel, torch.SymInt) else numel
            copied += _MOST_COPIED + 1 if known is None else known
            written.append(node)
        return UndoPlan(tuple(written), any(map(uses_rng, graph.nodes)), copied > _MOST_COPIED, whole)


def version(fake: torch.Tensor) -> int | None:
    """The version counter, as counted while tracing; None for a tensor without one."""
    return None if fake.is_inference() else fake._version


def _is_written(fake: torch.Tensor, before: int | None, memory: set[int]) -> bool:
    """Whether a graph that writes to these storages may write to an input. Not all writes are counted by fake tensors: those of
    lists of tensors, of running statistics and to inference tensors are not."""
    return before is None or fake._version != before or not memory.isdisjoint(storages(fake))


def _is_integer(node: torch.fx.Node) -> bool:
    fake = node.meta.get("example_value")
    if not isinstance(fake, torch.Tensor) or fake.dtype is torch.bool:
        return False
    return not (fake.is_floating_point() or fake.is_complex())


def _holds_state(node: torch.fx.Node) -> bool:
    """Whether it stands for a module or tensor that the graph has beside its inputs; graphs inside of it are none."""
    return node.op == "call_module" or (node.op == "get_attr" and next(inner_graphs(node), None) is None)


def _are_repeatable(graph: torch.fx.Graph) -> bool:
    """Whether what the nodes do is done again with the same outcome, once its inputs and the generators are as before."""
    return all(map(_is_repeatable, graph.nodes))


def _is_repeatable(node: torch.fx.Node) -> bool:
    inner = list(inner_graphs(node))
    if any(_holds_state(each) for graph in inner for each in graph.graph.nodes) or not all(
            _are_repeatable(graph.graph) for graph in inner):
        return False
    if node.op != "call_function" or node.target is getattr:
        return True
    return not runs_once(node.target) or only_computes(node.target)


def _writes_data(graph: torch.fx.Graph) -> bool:
    """Whether the graph writes to `x.data`, which leaves no trace in the version of `x`."""
    data = [node for node in all_nodes(graph) if node.target is getattr and node.args[1] == "data"]
    return bool(data) and not written_storages(graph).isdisjoint(storages_of(data))
