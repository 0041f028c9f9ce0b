"""Sizes that a graph's inputs have only together: a symbol for `n * m`, or `n // 2`, where no input tells `n` and `m`.

A backward graph is often given no more of a batch: activations of shape `(n * m, 64)`, of which all sizes in it are made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from .index import InputSize, replaced, replaced_sizes, size_of, sizes_of, solve_sums, symbols_in


def replacements(gm: torch.fx.GraphModule) -> dict[sympy.Expr, sympy.Expr]:
    """What to replace in sizes, one after the other, for them to be said in terms of those that inputs have.

    Empty if the inputs tell every symbol of the graph.
    """
    placeholders = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    given = sorted({size for value in placeholders for size in _sizes(value) if not isinstance(size, int)}, key=_order)
    known = {size for size in given if size.is_Symbol}
    composite = [size for size in given if not size.is_Symbol]
    if not composite:
        return {}
    wanted = symbols_in(size for node in gm.graph.nodes for size in _sizes(node.meta.get("val")))
    totals = {sympy.Symbol(f"total{i}", integer=True): size for i, size in enumerate(composite)}
    if wanted <= known | solve_sums(known, totals).keys():
        return {}
    found: dict[sympy.Expr, sympy.Expr] = {}
    for size in composite:
        left = replaced(size, found)
        if left.free_symbols <= known:
            continue
        symbol = InputSize.of(size)
        part, value = _solved(left, symbol, known)
        found[part] = value
        known.add(symbol)
    return found


@contextlib.contextmanager
def in_terms_of_inputs(gm: torch.fx.GraphModule) -> Iterator[None]:
    """While this graph is lowered, sizes are said in terms of those that its inputs have."""
    token = replaced_sizes.set(replacements(gm))
    try:
        yield
    finally:
        replaced_sizes.reset(token)


def _solved(size: sympy.Expr, symbol: sympy.Symbol, known: set[sympy.Symbol]) -> tuple[sympy.Expr, sympy.Expr]:
    """(part, its value) such that `size` is `symbol`: a factor or summand that is nowhere else in it, or all of it."""
    parts = sorted({*size.free_symbols.difference(known), *size.atoms(FloorDiv)}, key=_order)
    for part in parts:
        factor = size.coeff(part) if part.free_symbols.difference(known) else sympy.S.Zero
        rest = sympy.expand(size - factor * part)
        if not factor.is_zero and not factor.has(part) and not rest.has(part):
            return part, sympy.expand((symbol - rest) / factor)
    return size, symbol


def _sizes(value: object) -> Iterable[int | sympy.Expr]:
    if isinstance(value, torch.SymInt):
        return (size_of(value),)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return sizes_of((*value.shape, *value.stride()))
    if isinstance(value, (list, tuple)):
        return (size for each in value for size in _sizes(each))
    return ()


def _order(size: sympy.Expr) -> tuple[int, str]:
    return int(size.count_ops()), str(size)
