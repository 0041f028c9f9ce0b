"""Products of groups, as mixtures of experts have them, as our operator `fxjit::grouped_mm`: a pass of `cleanup.PASSES`.

ATen's operator, and those that libraries define in its place, call a product for each group by themselves, where nobody chooses
what multiplies. Ours is an instruction of the executor (_grouped_products.c), but for layouts that no library takes, of which
the kernel here is.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, Final

import torch
import torch.fx

from fxjit.backends.graph.edit import call_like

aten = torch.ops.aten
Tensor = torch.Tensor
_library = torch.library.Library("fxjit", "FRAGMENT")
_library.define("grouped_mm(Tensor a, Tensor b, Tensor ends) -> Tensor")


def shape_of(a: Tensor, b: Tensor, ends: Tensor) -> tuple[int | torch.SymInt, ...]:
    """The shape of the product: groups of terms make a matrix each."""
    groups = (ends.shape[0],) if a.dim() == b.dim() == 2 else ()
    return (*groups, a.shape[-2], b.shape[-1])


def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """The product of each group, which lasts from where the one before it ends to where `ends` (groups) says.

    a (m, k) and b (groups, k, n): groups of rows, to (m, n). a (groups, m, k) and b (k, n): of columns, to (m, n). a (m, k) and
    b (k, n): of terms, to (groups, m, n). What no group covers is zero.
    """
    out = a.new_zeros(shape_of(a, b, ends))
    for group, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        if b.dim() == 3:
            torch.mm(a[start:end], b[group], out=out[start:end])
        elif a.dim() == 3:
            out[:, start:end] = torch.mm(a[group], b[:, start:end])
        else:
            torch.mm(a[:, start:end], b[start:end], out=out[group])
    return out


_library.impl("grouped_mm", grouped_mm, "CompositeExplicitAutograd")
torch.library.register_fake("fxjit::grouped_mm", lambda a, b, ends: a.new_empty(shape_of(a, b, ends)), lib=_library)
GROUPED: Final = torch.ops.fxjit.grouped_mm.default

#: Operators that are a product of groups of rows: (rows, a matrix for each group, where each group ends). What no group covers
#: is zero. By the name, since whoever defines it need not be there. Of ATen's, groups may be of columns or of terms, too.
_PRODUCTS: Final = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")
#: The derivatives of such: (rows, matrices, ends, the result's gradient) to those of the rows and of the matrices.
_DERIVATIVES: Final = ("transformers::grouped_mm_fallback_backward",)
_NAMES: Final = frozenset((*_PRODUCTS, *_DERIVATIVES))


def join_groups(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.name() not in _NAMES or not _fits(node):
            continue
        a, b, ends, *others = node.args
        if node.target.name() in _DERIVATIVES:
            with graph.inserting_before(node):
                turned = [call_like(graph, each, aten.transpose.int, each, -1, -2) for each in (b, a)]
            of_rows, of_matrices = (others[0], turned[0]), (turned[1], others[0])
            _replace(graph, {item: of_matrices if item.args[1] else of_rows for item in node.users}, ends)
        elif ends is not None and not any(others):
            _replace(graph, {node: (a, b)}, ends)


def _fits(node: torch.fx.Node) -> bool:
    """Whether all operands are on the processor, what is multiplied is float32, and each result is looked at by itself."""
    values = [each.meta.get("val") for each in node.all_input_nodes]
    several = isinstance(node.meta.get("val"), (list, tuple))
    if node.kwargs or (several and any(user.target is not operator.getitem for user in node.users)):
        return False
    return all(isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided
               and value.dtype in (torch.float32, torch.int32, torch.int64) for value in values)  # fmt: skip


def _replace(graph: torch.fx.Graph, products: dict[torch.fx.Node, tuple[torch.fx.Node, torch.fx.Node]], ends: Any) -> None:
    """Each by a product with the same strides: the transposed one's, where its columns are contiguous."""
    values = [node.meta["val"] for node in products]
    if not all(value.is_contiguous() or value.transpose(-1, -2).is_contiguous() for value in values):
        return
    for node, (a, b) in products.items():
        with graph.inserting_before(node):
            if node.meta["val"].is_contiguous():
                new = call_like(graph, node, GROUPED, a, b, ends)
            else:
                left, right = (call_like(graph, each, aten.transpose.int, each, -1, -2) for each in (b, a))
                new = call_like(graph, node, aten.transpose.int, call_like(graph, node, GROUPED, left, right, ends), -1, -2)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
