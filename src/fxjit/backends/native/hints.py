"""The sizes seen at compile time, for choices that only speed depends on."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
import torch.fx
from torch.utils import _pytree as pytree

from .index import Size

#: What a size is taken for that nothing is known about.
UNKNOWN = 512


class Hints:
    """A number for each size: itself, or what its symbols were when the graph was traced."""

    def __init__(self, values: Mapping[sympy.Symbol, int]) -> None:
        self.values = dict(values)

    def __call__(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        value = size.subs({symbol: self.values.get(symbol, UNKNOWN) for symbol in size.free_symbols})
        return int(value) if value.is_number else UNKNOWN


def hints_of(gm: torch.fx.GraphModule) -> Hints:
    """The hints of the graph's symbols."""
    for node in gm.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            symbolic: list[torch.SymInt] = [value] if isinstance(value, torch.SymInt) else []
            if isinstance(value, torch.Tensor):
                sizes: list[object] = [*value.shape]
                symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
            for size in symbolic:
                env = size.node.shape_env
                found = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
                return Hints({symbol: int(hint) for symbol, hint in found.items() if hint.is_number})
    return Hints({})
