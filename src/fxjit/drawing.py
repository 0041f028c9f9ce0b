"""Which calls in a captured graph may draw random numbers: by their names, since functions of torch do not say."""

from __future__ import annotations

import torch.fx

#: In the names of what may draw random numbers.
_DRAWING = ("rand", "drop", "bernoulli", "normal", "uniform", "multinomial", "exponential", "poisson", "cauchy", "geometric",
            "rrelu", "attention", "lstm", "gru", "rnn", "binomial", "gamma", "dirichlet", "fractional", "gumbel")


def may_draw(node: torch.fx.Node) -> bool:
    """Whether the node may draw random numbers, or stands for a graph that may."""
    if node.op == "get_attr":
        held = node.meta.get("example_value")
        return isinstance(held, torch.fx.GraphModule) and any(map(may_draw, held.graph.nodes))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return node.op in ("call_function", "call_method") and any(each in name for each in _DRAWING)
