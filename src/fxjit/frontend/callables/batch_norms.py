"""`BatchNorm*d(momentum=None)`, which averages over all batches so far: how far its statistics move is a number out of a
tensor, the count of the batches. Its operator is a step of the graph (fxjit/state_steps.py), which reads that number itself.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from fxjit import state_steps
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles, pass_on
from fxjit.frontend.values.tensor import TensorValue

_FORWARD: Final = torch.nn.BatchNorm1d.forward  # all of them have this one
_COUNTED: Final = ("running_mean", "running_var", "num_batches_tracked")


def _counts(module: Any, given: torch.Tensor) -> torch.Tensor:
    """The layer in training."""
    module._check_input_dim(given)
    module.num_batches_tracked.add_(1)
    return state_steps.batch_norm_by_count(given, module.running_mean, module.running_var, module.weight, module.bias, True,
                                           module.num_batches_tracked, module.eps)


@handles(state_steps.batch_norm_by_count)
def _batch_norm_by_count(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    t.effects.reach_back()
    return t.emit(state_steps.batch_norm_by_count, args)


@handles(_FORWARD)
def _forward(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2 and not kwargs and _is_averaging(t, args[0].realize(), args[1].realize()):
        return t.inline(t.make(_counts), args, {})
    return pass_on(t, _FORWARD, args, kwargs)


def _is_averaging(t: Tracer, module: Value, given: Value) -> bool:
    """Whether the statistics of the layer move by the count of batches in this call."""
    if not isinstance(given, TensorValue) or overrides.innermost(t) is not None or overrides.entered_transforms(t):
        return False
    facts = [protocol.getattr_(t, module, name).realize() for name in ("momentum", "training", "track_running_stats", "eps")]
    if not all(fact.is_constant() for fact in facts):
        return False
    momentum, training, tracks, _ = (fact.as_constant() for fact in facts)
    if momentum is not None or training is not True or tracks is not True:
        return False
    return all(isinstance(protocol.getattr_(t, module, name).realize(), TensorValue) for name in _COUNTED)
