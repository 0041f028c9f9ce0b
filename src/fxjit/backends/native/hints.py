"""The sizes seen at compile time, for choices that only speed depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils import _pytree as pytree

from .index import InputSize, RoundedSymbol, Size

#: What a size is taken for that nothing is known about.
UNKNOWN = 512


class Hints:
    """A number for each size: itself, or what its symbols were when the graph was traced."""

    def __init__(self, values: Mapping[sympy.Symbol, int], numbers: Mapping[sympy.Symbol, sympy.Expr] | None = None) -> None:
        self.values = dict(values)
        #: The same and the floats, as they were.
        self.numbers = dict(numbers or {})

    def __call__(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        value = size.subs({symbol: self.of_symbol(symbol) for symbol in size.free_symbols})
        return int(value) if value.is_number else UNKNOWN

    def of_symbol(self, symbol: sympy.Symbol) -> int:
        if symbol not in self.values and isinstance(symbol, (RoundedSymbol, InputSize)):
            value: Any = symbol.made_of.xreplace(self.numbers)
            self.values[symbol] = int(value) if value.is_number else UNKNOWN
        known: int = self.values.get(symbol, UNKNOWN)
        return known


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
                numbers = {symbol: hint for symbol, hint in found.items() if hint.is_number}
                return Hints({symbol: int(hint) for symbol, hint in numbers.items()}, numbers)
    return Hints({})
