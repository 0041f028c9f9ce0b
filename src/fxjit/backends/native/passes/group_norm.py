"""Group norms in parts: recomputation in the backward graph, which saves the memory of keeping results; and on a GPU those of
channels-last images, which ATen has no kernels for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from .convolution import Calls

aten = torch.ops.aten


def open_group_norm(graph: torch.fx.Graph) -> None:
    """The normalized numbers as those of x and two numbers a group. Run on the joint graph before it is cut in two: these are
    then enough for what reads the results (an activation's derivative), where those of ATen's operator, whose statistics are
    not calculated twice, are kept beside x. Not for half types, to which eager rounds what comes between."""
    for node in list(graph.find_nodes(op="call_function", target=aten.native_group_norm.default)):
        x = node.args[0].meta["val"]  # type: ignore[union-attr]  # a node
        normalized = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
        plain = x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu" and x.numel() != 0 and not node.kwargs
        if plain and len(normalized) == 1 and all(type(size) is int for size in x.shape):
            _open(graph, node, normalized[0])


def _open(graph: torch.fx.Graph, node: torch.fx.Node, normalized: torch.fx.Node) -> None:
    x, weight, bias, images, channels, _, groups, _ = node.args
    call, ones = Calls(graph, node), [1] * (x.meta["val"].dim() - 2)  # type: ignore[union-attr]  # a node

    def of_channels(statistic: int) -> torch.fx.Node:
        each = call(aten.unsqueeze.default, call(operator.getitem, node, statistic), 2)
        spread: Any = call(aten.expand.default, each, [images, groups, channels // groups])  # type: ignore[operator]  # numbers
        return call(aten.view.default, call(aten.clone.default, spread, memory_format=torch.contiguous_format),
                    [images, channels, *ones])

    with graph.inserting_before(normalized):
        y = call(aten.mul.Tensor, call(aten.sub.Tensor, x, of_channels(1)), of_channels(2))
        for target, parameter in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
            if parameter is not None:
                y = call(target, y, call(aten.view.default, parameter, [1, channels, *ones]))
    if y.meta["val"].stride() == normalized.meta["val"].stride():
        normalized.replace_all_uses_with(y)
        graph.erase_node(normalized)


def open_group_norm_of_last(graph: torch.fx.Graph) -> None:
    """Group norms of channels-last images on a GPU, and their derivatives, by sums over the pixels of each channel, which lie
    side by side where those of a group do not. ATen's kernels read plain images."""
    both = (aten.native_group_norm.default, _normalized), (aten.native_group_norm_backward.default, _derivatives)
    for target, opened in both:
        for node in list(graph.find_nodes(op="call_function", target=target)):
            x = node.args[1 if opened is _derivatives else 0].meta["val"]  # type: ignore[union-attr]  # a node
            last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
            if last and x.device.type == "cuda" and not node.kwargs and all(u.target is operator.getitem for u in node.users):
                _replace_items(graph, node, opened)


def _replace_items(graph: torch.fx.Graph, node: torch.fx.Node, opened: Callable[[_Groups], dict[int, Any]]) -> None:
    with graph.inserting_before(node):
        groups = _Groups(graph, node)
        made = opened(groups)
        for user in list(node.users):
            was, now = user.meta["val"], made[user.args[1]]  # type: ignore[index]  # a number
            now = groups.rounded(now, was.dtype)
            if was.stride() != now.meta["val"].stride():
                layout = torch.channels_last if was.dim() == 4 and not was.is_contiguous() else torch.contiguous_format
                now = groups.call(aten.clone.default, now, memory_format=layout)
            user.replace_all_uses_with(now)
            graph.erase_node(user)
    graph.erase_node(node)


class _Groups:
    """Calls in front of a group norm, over its images, channels and groups; numbers are float32 where they are halves."""

    def __init__(self, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
        self.call, self.node = Calls(graph, node), node
        *_, self.images, self.channels, self.pixels, self.groups, self.last = node.args
        self.each: int = self.channels // self.groups  # type: ignore[operator, assignment]  # numbers
        self.count: int = self.each * self.pixels  # type: ignore[operator, assignment]  # numbers

    def wide(self, x: Any) -> Any:
        return self.rounded(x, torch.float32) if x.meta["val"].dtype in (torch.float16, torch.bfloat16) else x

    def rounded(self, x: Any, dtype: torch.dtype) -> Any:
        return x if x.meta["val"].dtype is dtype else self.call(aten._to_copy.default, x, dtype=dtype)

    def do(self, name: str, a: Any, b: Any) -> Any:
        return self.call(getattr(aten, name).Tensor, a, b)

    def pixel_sum(self, x: Any) -> Any:
        """[images, channels]"""
        return self.call(aten.sum.dim_IntList, x, [2, 3])

    def group_sum(self, x: Any) -> Any:
        """[images, groups] of [images, channels]"""
        return self.call(aten.sum.dim_IntList, self.call(aten.view.default, x, [self.images, self.groups, self.each]), [2])

    def of_channels(self, x: Any) -> Any:
        """[images, channels, 1, 1] of [images, groups]"""
        spread = self.call(aten.expand.default, self.call(aten.unsqueeze.default, x, 2), [self.images, self.groups, self.each])
        whole = self.call(aten.clone.default, spread, memory_format=torch.contiguous_format)
        return self.call(aten.view.default, whole, [self.images, self.channels, 1, 1])

    def parameter(self, x: Any) -> Any:
        """[1, channels, 1, 1] of [channels]"""
        return self.call(aten.view.default, self.wide(x), [1, self.channels, 1, 1])


def _normalized(of: _Groups) -> dict[int, Any]:
    x, weight, bias = of.node.args[:3]
    wide = of.wide(x)
    mean = of.do("div", of.group_sum(of.pixel_sum(wide)), of.count)
    centred = of.do("sub", wide, of.of_channels(mean))
    variance = of.do("div", of.group_sum(of.pixel_sum(of.do("mul", centred, centred))), of.count)
    rstd = of.call(aten.rsqrt.default, of.do("add", variance, of.last))
    y = of.do("mul", centred, of.of_channels(rstd))
    if weight is not None:
        y = of.do("mul", y, of.parameter(weight))
    if bias is not None:
        y = of.do("add", y, of.parameter(bias))
    return {0: y, 1: mean, 2: rstd}


def _derivatives(of: _Groups) -> dict[int, Any]:
    """With s the sum of the gradient times what is normalized, and b that of the gradient, over the pixels of a channel."""
    grad, x, mean, rstd, weight = of.node.args[:5]
    mean, rstd, grad = of.wide(mean), of.wide(rstd), of.wide(grad)
    centred = of.do("sub", of.wide(x), of.of_channels(mean))
    normal = of.do("mul", centred, of.of_channels(rstd))
    s, b = of.pixel_sum(of.do("mul", grad, normal)), of.pixel_sum(grad)
    made = {1: of.call(aten.sum.dim_IntList, s, [0]), 2: of.call(aten.sum.dim_IntList, b, [0])}
    scaled = grad
    if weight is not None:
        row = of.call(aten.view.default, of.wide(weight), [1, of.channels])
        scaled, s, b = of.do("mul", grad, of.parameter(weight)), of.do("mul", s, row), of.do("mul", b, row)
    by_normal, by_mean = (of.of_channels(of.do("div", of.group_sum(each), of.count)) for each in (s, b))
    less = of.do("sub", of.do("sub", scaled, by_mean), of.do("mul", normal, by_normal))
    return made | {0: of.do("mul", less, of.of_channels(rstd))}
