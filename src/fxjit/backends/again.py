"""Second derivatives of a compiled graph: a backward graph cannot be differentiated, so under `create_graph=True` the captured
graph runs once more, operator by operator, and autograd derives that.

direct.py asks for it where a training graph is compiled, and keeps the graph's inputs with its autograd node. A graph of which
that was wanted once runs as it was captured from then on: to run the compiled one as well would cost more than eager does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta

from fxjit import _C
from fxjit.schemas import target_uses_rng

#: The inputs of one run, and how often each that is derived by had been written to.
Kept = tuple[tuple[Any, ...], list[int]]


class SecondRun:
    """The captured graph, run again for its derivative."""

    def __init__(self, gm: torch.fx.GraphModule, meta: ViewAndMutationMeta) -> None:
        self._graph = _C.DisabledFunction(gm, opaque=True)
        self._derived_by = tuple(index for index, info in enumerate(meta.input_info) if info.requires_grad)
        #: For each intermediate that results are views of: one of them.
        view_of = {info.base_idx: index for index, info in enumerate(meta.output_info)
                   if info.output_type in (OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output)}
        self.wanted = False
        self._views = tuple(view_of[base] for base in range(meta.num_intermediate_bases))

    def keep(self, inputs: tuple[Any, ...]) -> Kept:
        """What `gradients` needs of a run."""
        return inputs, _C.tensor_versions(inputs, self._derived_by)

    def run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The graph's results, with what autograd recorded of each operator."""
        return tuple(self._graph(*inputs))

    def gradients(self, kept: Kept, results: Sequence[int], given: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of the inputs, which can be differentiated, from those of `results`: the graph's, and after
        them the intermediates that some are views of."""
        self.wanted = True
        inputs, versions = kept
        if versions != _C.tensor_versions(inputs, self._derived_by):
            raise RuntimeError("an input of a compiled graph was written to in place between its forward and its second "
                               "derivative, which is computed from that input's old contents: give the graph a clone")
        with torch.enable_grad():
            given_to = list(inputs)
            for index in self._derived_by:  # one tensor may be several inputs
                given_to[index] = inputs[index].view_as(inputs[index])
            by = [given_to[index] for index in self._derived_by]
            outputs = [*self.run(tuple(given_to))]
            outputs += [outputs[index]._base for index in self._views]
            pairs = [(outputs[index], given[index]) for index in results if given[index] is not None]
            found = torch.autograd.grad([output for output, _ in pairs], by, [grad for _, grad in pairs],
                                        create_graph=True, allow_unused=True)
        gradients: list[Any] = [None] * len(inputs)
        for index, gradient in zip(self._derived_by, found, strict=True):
            gradients[index] = gradient
        return tuple(gradients)


def second_run(gm: torch.fx.GraphModule, meta: ViewAndMutationMeta, draws: bool) -> SecondRun | None:
    """None where running twice is not running once: the graph draws random numbers or writes to its inputs."""
    if draws or meta.mutated_graph_handled_indices or any(info.mutates_data for info in meta.input_info):
        return None
    return SecondRun(gm, meta)


def graph_is_retained() -> bool:
    """Inside backward: whether autograd may come here again, and ask for a second derivative then."""
    try:
        return bool(_C.state_now("keeps_graph"))
    except ValueError:  # torch does not export it: the inputs are let go, and with them that second derivative
        return False


def draws_numbers(graph: torch.fx.GraphModule) -> bool:
    """Whether an ATen graph has an operator that draws random numbers."""
    return any(target_uses_rng(node.target) for node in graph.graph.nodes if node.op == "call_function")
