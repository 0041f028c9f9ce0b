"""Channels-last images on a GPU, in graphs of inference and in joint graphs.

Tensor cores convolve channels-last images. cuDNN turns plain ones before each convolution and what it makes of them back, which
is a fourth of a network's time; where the images stay turned from one convolution to the next, that is gone. What is counted
here are the elements that are turned, with cuDNN's own turns and with ours: each costs memory's time, whatever the machine.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from ..passes.group_norm import use_group_norm_of_last
from .channels_last import IMAGES, Rewriter, is_known, reads_storage, shares_outputs

aten = torch.ops.aten
#: The types that tensor cores multiply, float32 as TF32.
TYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Elements of grouped convolutions that weigh as much as one that is turned: their kernels for channels-last images are no
#: faster than those for plain ones, and slower in some versions.
OF_GROUPS = 2


def use_channels_last_on_gpu(graph: torch.fx.Graph) -> None:
    """Gives the graph's convolutions channels-last images and weights, if that turns fewer elements and all sizes are known."""
    calls = (node for target in IMAGES for node in graph.find_nodes(op="call_function", target=target))
    convolutions = list(filter(_is_plane, calls))
    if not convolutions or not is_known(graph) or shares_outputs(graph) or reads_storage(graph):
        return
    turned = sum(map(_turned, convolutions))
    if turned <= 0:
        return
    rewriter = Rewriter(graph, set(convolutions), gpu=True)
    rewriter.run()
    if rewriter.copied_elements() >= turned or not all(map(_stays_last, convolutions)):
        rewriter.undo()
    else:
        use_group_norm_of_last(graph)


def _is_plane(node: torch.fx.Node) -> bool:
    if node.kwargs:
        return False
    values = _operands(node)
    return all(
        isinstance(each, torch.Tensor) and each.device.type == "cuda" and each.dtype in TYPES and each.layout is torch.strided
        and each.dim() == 4 for each in values
    )  # fmt: skip


def _operands(node: torch.fx.Node) -> list[Any]:
    """The images and the weight."""
    images: int = IMAGES[node.target]  # type: ignore[index]  # its target is one of these
    return [getattr(each, "meta", {}).get("val") for each in node.args[: images + 1]]


def _results(node: torch.fx.Node) -> list[torch.Tensor]:
    """Images, and the gradient of a weight."""
    leaves = (each for each in pytree.tree_leaves(node.meta["val"]) if isinstance(each, torch.Tensor))
    return [each for each in leaves if each.dim() == 4]


def _turned(node: torch.fx.Node) -> int:
    """Elements that cuDNN turns for a convolution of plain images; what channels-last ones cost those with groups, negative."""
    elements = sum(each.numel() for each in (*_operands(node), *_results(node)) if each.shape[2:] != (1, 1))
    groups: Any = node.args[8 if node.target is aten.convolution.default else 9]
    return int(elements) if groups == 1 else -OF_GROUPS * int(elements)


def _stays_last(node: torch.fx.Node) -> bool:
    """Whether what is made of channels-last images is so too: not where another library than cuDNN convolves."""
    return all(each.is_contiguous(memory_format=torch.channels_last) for each in _results(node))
