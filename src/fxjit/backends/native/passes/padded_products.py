"""Products of half types on a GPU whose rows are no multiple of 16 bytes, padded to such: a pass of `cleanup.PASSES`.

Tensor cores are fed by loads of 16 bytes, which start at multiples of that. Where a row's length does not allow them (the
50,257 columns of GPT-2's last layer), cuBLAS has kernels that load single numbers, at a fraction of the speed. The operands are
copied into longer rows first, zeros where a sum goes over them, and what is past the end of the result is cut off.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxjit.backends.graph.edit import call_like

aten = torch.ops.aten
#: Numbers of a half type in 16 bytes.
ALIGNED = 8
HALVES = (torch.float16, torch.bfloat16)
#: Floating-point operations a second of products with such rows and without, and bytes a second of copies. Measured with torch
#: 2.11 on an H200 in bfloat16: 2,048 x 768 x 50,257 in 227 and 1,680 us, its two gradients in 1,138 and 1,109 us; what is
#: chosen depends on the ratios, which are alike from Ampere on.
FAST, SLOW, COPIED = 650e12, 120e12, 3e12
#: Seconds of one more kernel, its launch included.
KERNEL = 8e-6
#: Target -> where its two matrices are.
_PRODUCTS = {
    aten.mm.default: (0, 1), aten.bmm.default: (0, 1), aten.addmm.default: (1, 2), aten.baddbmm.default: (1, 2),
}


def pad_products(graph: torch.fx.Graph) -> None:
    """Pads each product for which that is faster. Operands that several products read are padded once."""
    made: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        places = _PRODUCTS.get(node.target)
        if places is None or node.kwargs:
            continue
        a, b = (node.args[place] for place in places)
        if all(map(_is_half_matrix, (node, a, b))):
            values = a.meta["val"], b.meta["val"], node.meta["val"]
            dims = _unaligned(*values)
            if dims and _gain(*values, dims) > 0:
                _pad(graph, node, places, dims, made)


def _is_half_matrix(node: Any) -> bool:
    value = getattr(node, "meta", {}).get("val")
    return (isinstance(value, torch.Tensor) and value.device.type == "cuda" and value.dtype in HALVES
            and value.layout is torch.strided and value.dim() in (2, 3) and value.numel() > 0
            and all(type(each) is int for each in (*value.shape, *value.stride())))  # fmt: skip


def _unaligned(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> frozenset[str]:
    """Which of the product's sizes m, k and n are lengths of rows, of an operand or of the result, and no multiples of 8."""
    rows = {_along(a, "mk"), _along(b, "kn"), "n"}
    sizes = {"m": a.shape[-2], "k": a.shape[-1], "n": b.shape[-1]}
    return frozenset(dim for dim in rows if sizes[dim] % ALIGNED)


def _along(matrix: torch.Tensor, names: str) -> str:
    """The dimension that the matrix is contiguous along."""
    return names[0] if matrix.stride(-2) == 1 and matrix.stride(-1) != 1 else names[1]


def _changed(dims: frozenset[str]) -> tuple[bool, bool]:
    """Whether the operands are copied."""
    return bool(dims & {"m", "k"}), bool(dims & {"k", "n"})


def _gain(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, dims: frozenset[str]) -> float:
    """Seconds that padding saves, by the numbers above."""
    work = 2.0 * out.numel() * a.shape[-1]
    copies = [each for each, changed in zip((a, b), _changed(dims), strict=True) if changed]
    copies += [out] if "n" in dims else []
    moved = sum(2 * each.numel() * each.itemsize for each in copies)
    return work / SLOW - work / FAST - moved / COPIED - KERNEL * len(copies)


def _pad(
    graph: torch.fx.Graph, node: torch.fx.Node, places: tuple[int, int], dims: frozenset[str], made: dict[Any, torch.fx.Node]
) -> None:
    arguments: list[Any] = list(node.args)
    sizes = dict(zip("mkn", (*arguments[places[0]].meta["val"].shape[-2:], node.meta["val"].shape[-1]), strict=True))
    more = {dim: -sizes[dim] % ALIGNED for dim in dims}
    with graph.inserting_before(node):
        for place, names in zip(places, ("mk", "kn"), strict=True):
            arguments[place] = _padded(graph, arguments[place], [more.get(name, 0) for name in names], made)
        if len(arguments) > 2:
            arguments[0] = _padded_addend(graph, arguments[0], node.meta["val"], more)
        product = call_like(graph, node, node.target, *arguments)
        cut = product
        for dim, name in ((-2, "m"), (-1, "n")):
            if more.get(name):
                cut = call_like(graph, node, aten.slice.Tensor, cut, cut.meta["val"].dim() + dim, 0, sizes[name])
        if not cut.meta["val"].is_contiguous():
            cut = call_like(graph, node, aten.clone.default, cut, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(cut)
    graph.erase_node(node)


def _padded(graph: torch.fx.Graph, node: torch.fx.Node, more: list[int], made: dict[Any, torch.fx.Node]) -> torch.fx.Node:
    """The matrix with so many more rows and columns of zeros, contiguous along the dimension that it was contiguous along."""
    if not any(more):
        return node
    turned = _along(node.meta["val"], "mk") == "m"
    source: Any = node
    if turned:
        source = node.args[0] if node.target is aten.t.default else call_like(graph, node, aten.transpose.int, node, -2, -1)
    rows, columns = reversed(more) if turned else more
    key = source, rows, columns
    if key not in made:
        made[key] = call_like(graph, node, aten.constant_pad_nd.default, source, [0, columns, 0, rows], 0.0)
    return call_like(graph, node, aten.transpose.int, made[key], -2, -1) if turned else made[key]


def _padded_addend(graph: torch.fx.Graph, node: torch.fx.Node, out: torch.Tensor, more: dict[str, int]) -> torch.fx.Node:
    """The addend of a padded result: along dimensions that it is not repeated over, as long as that."""
    value: Any = node.meta["val"]
    shape = [1] * (out.dim() - value.dim()) + list(value.shape)
    wanted = [more.get(name, 0) if shape[dim] != 1 else 0 for dim, name in ((-2, "m"), (-1, "n"))]
    if not any(wanted):
        return node
    pads = [0, wanted[1], 0, wanted[0]][: 2 * value.dim()]
    return call_like(graph, node, aten.constant_pad_nd.default, node, pads, 0.0)
