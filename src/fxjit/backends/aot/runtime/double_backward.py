"""Double backward: a backward graph cannot be differentiated, so under `create_graph=True` the captured graph runs once more,
operator by operator, and autograd derives that.

Tangents that are batches of them go through it, too. The autograd node keeps the graph's inputs for it. A graph of which a
second derivative was wanted once runs as it was captured from then on: to run the compiled one as well would cost more than
eager does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import _C

from .call_plan import CallPlan, OutputKind

#: The inputs of one run, and the version counters of those that are differentiated.
Kept = tuple[tuple[Any, ...], list[int]]


class DoubleBackward:
    """The captured graph, run again for its derivative. `on_first` is called where a second derivative is wanted first."""

    def __init__(self, gm: Callable[..., Any], plan: CallPlan, on_first: Callable[[], None]) -> None:
        self._graph = _C.DisabledFunction(gm, opaque=True)
        self._differentiated = tuple(index for index, info in enumerate(plan.inputs) if info.requires_grad)
        #: For each intermediate that outputs are views of: one of them.
        view_of = {info.base_index: index for index, info in enumerate(plan.outputs)
                   if info.kind in (OutputKind.alias_of_intermediate, OutputKind.alias_of_intermediate_save_as_output)}
        self._views = tuple(view_of[base] for base in range(plan.num_intermediate_bases))
        self._on_first = on_first
        self.wanted = False

    def keep(self, inputs: tuple[Any, ...]) -> Kept:
        """Keeps the part of a run that `gradients` needs."""
        return inputs, _C.tensor_versions(inputs, self._differentiated)

    def run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The graph's outputs, with what autograd recorded of each operator."""
        return tuple(self._graph(*inputs))

    def gradients(self, kept: Kept, tangents: Sequence[int], given: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of the inputs, which can be differentiated while gradients are recorded, from those of the outputs at
        `tangents`: the graph's, and after them the intermediates that some are views of."""
        if not self.wanted:
            self._on_first()
        self.wanted = True
        inputs, versions = kept
        if versions != _C.tensor_versions(inputs, self._differentiated):
            raise RuntimeError("an input of a compiled graph was written to in place between its forward and its second "
                               "derivative, which is computed from that input's old contents: give the graph a clone")
        records = torch.is_grad_enabled()
        with torch.enable_grad():
            given_to = list(inputs)
            for index in self._differentiated:  # one tensor may be several inputs
                given_to[index] = inputs[index].view_as(inputs[index])
            by = [given_to[index] for index in self._differentiated]
            outputs = [*self.run(tuple(given_to))]
            outputs += [outputs[index]._base for index in self._views]
            pairs = [(outputs[index], given[index]) for index in tangents if given[index] is not None]
            found = torch.autograd.grad([output for output, _ in pairs], by, [grad for _, grad in pairs],
                                        create_graph=records, allow_unused=True)
        gradients: list[Any] = [None] * len(inputs)
        for index, gradient in zip(self._differentiated, found, strict=True):
            gradients[index] = gradient
        return tuple(gradients)


def may_run_twice(plan: CallPlan) -> bool:
    """Whether running a captured training graph twice is running it once: it uses no random numbers and writes to no input."""
    mutates = plan.mutated_in_graph or any(info.mutates_data for info in plan.inputs)
    return plan.backward is not None and not (plan.uses_rng or plan.autocast or mutates)


def graph_is_retained() -> bool:
    """Whether autograd may run this backward again, and request a second derivative then. Valid inside a backward only."""
    try:
        return bool(_C.state_now("keeps_graph"))
    except ValueError:  # torch does not export it: the inputs are let go, and with them that second derivative
        return False
