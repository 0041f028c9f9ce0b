"""Leaf tensors that a trace made: `requires_grad_()`, `requires_grad=True`.

A graph cannot make a leaf of the autograd graph that anybody could get hold of. The gradient of one that stays
inside it is never read, so that the graph goes on with the tensor as it is: `Leaves` has the fake tensors that were set to
require one, and finds out at the end whether the program could see the difference.

An input that no operator has taken yet is set before the graph runs: new code gives the graph the tensor so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import config
from fxjit.errors import RestartTrace, leave_trace
from fxjit.frontend.values.tensor import GivenTensor
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.tensor_leaves import set_before, unset_before
from fxjit.guards.source import ApplySource

if TYPE_CHECKING:
    from fxjit.frontend.trace import Trace


class Leaves:
    """The leaves that one trace made."""

    def __init__(self) -> None:
        self._made: dict[int, torch.Tensor] = {}
        #: The inputs that are set before the graph runs, and their versions.
        self._set_before: list[tuple[torch.Tensor, int]] = []

    def set(self, trace: Trace, value: GraphTensor, wanted: bool) -> bool:
        """`value.requires_grad_(wanted)`; False where that would raise, or the graph cannot hold it."""
        history = trace.policy.history
        if isinstance(value, GivenTensor):
            return history.sets_before and self._set_input(trace, value, wanted)
        return value.source is None and history.leaves and self._set_made(value.fake, wanted)

    def take_passes(self, trace: Trace, gradients_alone: bool) -> bool:
        """Whether backward passes are part of the graph, and with them the leaves that they arrive at. At one that gives
        gradients and leaves none anywhere, the trace begins anew where it was not made for that."""
        if not trace.policy.history.backward_passes:
            return False
        taken = config.trace_autograd_ops or trace.break_points.takes_gradients
        if gradients_alone and not taken:
            trace.break_points.takes_gradients = True
            leave_trace(RestartTrace("gradients are computed in the graph, of which leaves are part then"))
        return taken

    def _set_made(self, fake: torch.Tensor, wanted: bool) -> bool:
        if not wanted and id(fake) not in self._made:
            return False
        try:
            fake.requires_grad_(wanted)
        except RuntimeError:  # of integers, or no leaf any more
            return False
        self._made[id(fake)] = fake
        return True

    def _set_input(self, trace: Trace, value: GivenTensor, wanted: bool) -> bool:
        """The input requires a gradient, or none, when the graph begins; False where an operator of the graph has taken it as
        it was."""
        given, real = trace.builder.input_of(value.node), value.real
        if given is None or real is None or given.example is not real or value.node.users:
            return False
        if real.is_inference() or torch.is_inference_mode_enabled():
            return False
        with _disable_current_modes(), torch._C.DisableTorchFunctionSubclass():
            fake, example = value.fake.detach(), real.detach()
            try:
                fake.requires_grad_(wanted)
                example.requires_grad_(wanted)
            except RuntimeError:  # of integers
                return False
        trace.policy.contexts += [(example, context) for tensor, context in trace.policy.contexts if tensor is real]
        source = ApplySource(given.source, set_before if wanted else unset_before)
        trace.builder.replace_input(value.node, source, example, fake)
        value.goes_on_as(fake)
        self._set_before.append((fake, fake._version))
        return True

    @property
    def sets_inputs(self) -> bool:
        """Whether inputs are set before the graph runs."""
        return bool(self._set_before)

    def inputs_are_read_only(self) -> bool:
        """Whether the graph writes to none of them: autograd counts writes to leaves in its own way."""
        return all(fake._version == version for fake, version in self._set_before)

    def stay_inside(self, seen: Iterable[object]) -> bool:
        """Whether of the tensors among `seen`, those that outlive the graph, none is such a leaf, and none requires a gradient
        for the sake of such leaves alone."""
        return not self._made or all(self._requires_grad_anyway(each) for each in seen if isinstance(each, torch.Tensor))

    def _requires_grad_anyway(self, fake: torch.Tensor) -> bool:
        if not fake.requires_grad:
            return True
        if fake.grad_fn is None:
            return id(fake) not in self._made
        known: set[Any] = set()
        waiting: list[Any] = [fake.grad_fn]
        while waiting:
            node = waiting.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in self._made:
                return True
            following = [each for each, _ in node.next_functions if each is not None and each not in known]
            known.update(following)
            waiting += following
        return False
