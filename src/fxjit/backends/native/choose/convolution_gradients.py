"""The derivatives of convolutions of channels-last images by our own kernels, in joint graphs of training.

That of the images is a transposed convolution; that of the weight is asked for by itself, and laid out as the weight; that of
the bias is a sum. What ATen does as fast stays its own, together.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from fxjit.schemas import view_base

from ..executor.convolutions import convolution_of, is_offered
from ..hints import Hints, hints_of
from ..passes.convolution import Calls, is_pixelwise
from ..runtime.own_convolutions import is_preferred
from .channels_last import use_channels_last
from .volumes import convolve_volumes

aten = torch.ops.aten
#: Of the derivatives: that of the images, of the weight and of the bias.
IMAGES, WEIGHT, BIAS = range(3)


def use_channels_last_in_training(joint: torch.fx.GraphModule) -> None:
    """Gives a joint graph channels-last images, where our kernels convolve those, and the kernels their derivatives."""
    if not is_offered():
        return
    use_channels_last(joint.graph)
    convolve_volumes(joint.graph)
    hints = hints_of(joint)
    for node in joint.graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        _split(joint.graph, node, hints)


def _split(graph: torch.fx.Graph, node: torch.fx.Node, hints: Hints) -> None:
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = node.args
    users: dict[Any, torch.fx.Node] = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if node.kwargs or groups != 1 or len(users) != len(node.users) or is_pixelwise(node):
        return
    call, how, left = Calls(graph, node), (stride, padding, dilation), list(wanted)  # type: ignore[arg-type]  # a list
    nothing = [0 for _ in stride]  # type: ignore[union-attr]  # a list
    with graph.inserting_before(node):
        more = nothing if transposed else _more(grad, x, weight, *how)
        if IMAGES in users and all(type(each) is int for each in more):
            images = call(aten.convolution.default, grad, weight, None, *how, not transposed, more, groups)
            left[IMAGES] = not _is_taken(images, users[IMAGES], images, hints)
        if WEIGHT in users:
            given = *((x, grad) if transposed else (grad, x)), weight, None, *how, False, nothing, groups
            derivative = call(aten.convolution_backward.default, *given, [False, True, False])
            item = call(operator.getitem, derivative, WEIGHT)
            _lay_out_as(weight, derivative, item)
            left[WEIGHT] = not _is_taken(derivative, users[WEIGHT], item, hints)
        if left == list(wanted):  # type: ignore[arg-type]  # a list
            return
        if BIAS in users:
            left[BIAS] = False
            users[BIAS].replace_all_uses_with(call(aten.sum.dim_IntList, grad, [0, 2, 3]))
        for at, user in users.items():
            if not left[at]:
                graph.erase_node(user)
    if any(left):
        node.args = (*node.args[:-1], left)
        node.meta["val"] = tuple(value if left[at] else None for at, value in enumerate(node.meta["val"]))
    else:
        graph.erase_node(node)


def _more(grad: Any, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any) -> list[int]:
    """Pixels that a convolution has not looked at, since a step was left over: those of its images' gradient. Symbols where a
    step goes over sizes that vary."""
    sizes, made, windows = (each.meta["val"].shape[2:] for each in (x, grad, weight))
    return [size - ((out - 1) * step - 2 * pad + apart * (window - 1) + 1) if step > 1 else 0
            for size, out, window, step, pad, apart in zip(sizes, made, windows, stride, padding, dilation, strict=True)]


def _is_taken(call: torch.fx.Node, before: torch.fx.Node, now: torch.fx.Node, hints: Hints) -> bool:
    """Whether a call is our kernels', and if so puts what it makes in the place of what there was before; else takes it out."""
    found = convolution_of(call, hints)
    if found is None or not is_preferred(found[0]):
        if now is not call:
            call.graph.erase_node(now)
        call.graph.erase_node(call)
        return False
    _replace(before, now)
    return True


def _lay_out_as(weight: Any, derivative: torch.fx.Node, item: torch.fx.Node) -> None:
    """The kernel writes a weight's gradient in the weight's layout, whatever that of the images."""
    like, made = weight.meta["val"], item.meta["val"]
    if like.is_contiguous() and not made.is_contiguous():
        with made.fake_mode:
            item.meta["val"] = torch.empty(made.shape, dtype=made.dtype, device=made.device)
        derivative.meta["val"] = (None, item.meta["val"], None)


def _replace(before: torch.fx.Node, now: torch.fx.Node) -> None:
    """Copies of the one that only lay it out as the other is are left out; views of it and of those copies are taken anew."""
    laid_out = before.meta["val"].stride() == now.meta["val"].stride()
    for user in list(before.users):
        if user.target is aten.clone.default and user.meta["val"].stride() == now.meta["val"].stride() and not laid_out:
            _take_views_anew(user, now)  # a copy begins its own memory, and a part of a gradient lies somewhere in it
            user.replace_all_uses_with(now)
            user.graph.erase_node(user)
        elif view_base(user) is before and not laid_out:
            view = _taken_anew(user, now)
            _replace(user, view)
            user.graph.erase_node(user)
    before.replace_all_uses_with(now)


def _take_views_anew(before: torch.fx.Node, now: torch.fx.Node) -> None:
    for user in list(before.users):
        if view_base(user) is before:
            view = _taken_anew(user, now)
            _take_views_anew(user, view)
            user.replace_all_uses_with(view)
            user.graph.erase_node(user)


def _taken_anew(view: torch.fx.Node, base: torch.fx.Node) -> torch.fx.Node:
    with view.graph.inserting_before(view):
        return Calls(view.graph, view)(view.target, base, *view.args[1:], **view.kwargs)
