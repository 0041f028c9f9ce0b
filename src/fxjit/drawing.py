"""Which calls in a captured graph may draw random numbers: by their names, since functions of torch do not say."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

#: In the names of what may draw random numbers.
_DRAWING = ("rand", "drop", "bernoulli", "normal", "uniform", "multinomial", "exponential", "poisson", "cauchy", "geometric",
            "rrelu", "attention", "lstm", "gru", "rnn", "binomial", "gamma", "dirichlet", "fractional", "gumbel")
#: Functions of (input, p=0.5, training=True) that give their input where they drop nothing.
_DROPOUTS = frozenset({
    torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout, F.dropout, F.alpha_dropout,
    F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout,
})


def may_draw(node: torch.fx.Node) -> bool:
    """Whether the node may draw random numbers, or stands for a graph that may."""
    if node.op == "get_attr":
        held = node.meta.get("example_value")
        return isinstance(held, torch.fx.GraphModule) and any(map(may_draw, held.graph.nodes))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    named = node.op in ("call_function", "call_method") and any(each in name for each in _DRAWING)
    return named and not drops_nothing(node)


def drops_nothing(node: torch.fx.Node) -> bool:
    """Whether it is one of torch's dropouts outside training, or with a probability of 0."""
    if node.target not in _DROPOUTS:
        return False
    given: dict[str, Any] = dict(zip(("p", "training"), node.args[1:], strict=False)) | node.kwargs
    return bool(given.get("p", 0.5) == 0 or not given.get("train", given.get("training", True)))
