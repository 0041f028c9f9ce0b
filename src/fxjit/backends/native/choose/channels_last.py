"""Channels-last images in graphs whose convolutions have enough work: of inference, and of training (joint graphs), where our
kernels take the derivatives too (convolution_gradients.py).

oneDNN convolves channels-last images faster than plain ones, a convolution of one pixel by one is a single matrix product over
their rows, and norms, activations and residuals go along with it. A convolution's images are turned where they are plain, which
mostly is once at the graph's beginning; all that follows takes its layout from its arguments, as in eager. The graph's outputs
keep their strides, and so does what an operator reads that may depend on them: random numbers are drawn in the order of memory.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from fxjit.schemas import target_uses_rng, view_base, views_first_argument, writes

from ..generic_sizes import NoGeneralAnswer, as_elements_lie, in_general, is_last, is_of_known_layout, known, order_of
from ..lower.table import LOWERINGS, op_name
from ..passes import frames
from ..runtime.low_precision import LOW_PRECISION
from .model import channels_last_work, work_of_copy
from .volumes import is_by_images, speedup_by_images

aten = torch.ops.aten
#: Types of images that are turned. On a Zen 5, one thread, ResNet-50 of bfloat16 takes 0.9 times as long so in inference and in
#: training, EfficientNet 0.8 (docs/performance_kernels.md).
_TYPES = (torch.float32, *LOW_PRECISION)
#: Channels that make a vector.
THIN = 16
#: What takes strides from its caller.
_OF_STRIDES = frozenset(("as_strided.default", "as_strided_scatter.default", "view.dtype"))
#: Operators of ATen alone whose numbers the strides do not change.
_OF_ANY_LAYOUT = frozenset((
    "linear.default", "convolution.default", "convolution_backward.default",
))  # fmt: skip
#: Operators that read sizes alone, which stay what they are.
_OF_SIZES = frozenset((aten.sym_size.int, aten.sym_numel.default))
#: Operators of ATen alone that read a gradient and images as if both were laid out as the images' strides suggest.
_OF_ONE_LAYOUT = frozenset((aten.native_group_norm_backward.default,))
#: The largest numbers of windows of volumes, which ATen finds in a tenth of the time where channels are last: which arguments
#: are volumes, first those that the windows lie in.
_POOLS: dict[Any, tuple[int, ...]] = {
    aten.max_pool3d_with_indices.default: (0,),
    aten.max_pool3d_with_indices_backward.default: (1, 0, 7),
}
#: Operators whose images are turned, and how many of their first arguments are images.
IMAGES = {aten.convolution.default: 1, aten.convolution_backward.default: 2}


def use_channels_last(graph: torch.fx.Graph) -> None:
    """Gives the graph's convolutions channels-last images, if they have enough work. Where sizes vary, those that were seen say
    how much work there is, and layouts are those of sizes in general (generic_sizes.py)."""
    convolutions = [node for target in IMAGES for node in graph.find_nodes(op="call_function", target=target)]
    if convolutions and is_known(graph):
        _use_channels_last(graph, convolutions)
    elif convolutions and _has_hints(graph):
        with contextlib.suppress(NoGeneralAnswer), in_general(graph) as answered:
            if answered:
                _use_channels_last(graph, convolutions)


def _use_channels_last(graph: torch.fx.Graph, convolutions: list[torch.fx.Node]) -> None:
    """The same; the graph is as it was where this raises."""
    if sum(map(_work, convolutions)) < channels_last_work():
        return  # before anything is measured
    turned = set(filter(_is_plane, convolutions))
    volumes = [node for node in convolutions if _of_volumes(node)]
    saved = sum(_work(node) * max(1.0, speedup_by_images(node)) for node in turned.intersection(volumes))
    if saved < sum(_work(node) for node in volumes if node not in turned):
        turned.difference_update(volumes)
    work = sum(map(_work, turned))
    if work < channels_last_work() or shares_outputs(graph) or reads_storage(graph):
        return
    rewriter = Rewriter(graph, turned)
    wanted = False
    try:
        rewriter.run()
        wanted = rewriter.copied_elements() * work_of_copy() <= work
    finally:
        if not wanted:
            rewriter.undo()


def _has_hints(graph: torch.fx.Graph) -> bool:
    """Whether all sizes were seen, none being an operator's result."""
    values = (value for node in graph.nodes for value in pytree.tree_leaves(node.meta.get("val")))
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.layout is torch.strided]
    return all(isinstance(known(size), int) for value in tensors for size in (*value.shape, *value.stride()))


def _product(sizes: Iterable[Any]) -> int:
    return int(math.prod(map(known, sizes)))


def _numel(value: torch.Tensor) -> int:
    return _product(value.shape)


def _is_plane(node: torch.fx.Node) -> bool:
    """Whether it is of images, or of volumes where it is one of images in another shape."""
    at: Any = IMAGES[node.target]  # type: ignore[index]  # its target is one of these
    values: list[Any] = [getattr(each, "meta", {}).get("val") for each in node.args[: at + 1]]
    if node.kwargs or _is_thin(node) or not all(isinstance(each, torch.Tensor) for each in values):
        return False
    dims = {each.dim() for each in values}
    volumes = dims == {5} and all(type(size) is int for each in values for size in (*each.shape[1:], *each.stride()))
    return (dims == {4} or (volumes and is_by_images(node))) and all(
        each.dtype in _TYPES and each.device.type == "cpu" and each.layout is torch.strided for each in values
    )


def _of_volumes(node: torch.fx.Node) -> bool:
    value = getattr(node.args[IMAGES[node.target]], "meta", {}).get("val")  # type: ignore[index]  # its target is one of these
    return isinstance(value, torch.Tensor) and value.dim() == 5


def _is_thin(node: torch.fx.Node) -> bool:
    """A depthwise convolution of fewer channels than a vector has, which had better go along rows of pixels."""
    x, weight = (getattr(each, "meta", {}).get("val") for each in node.args[IMAGES[node.target] - 1 :][:2])  # type: ignore[index]
    if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor):
        return False
    sizes = _groups(node), x.shape[1], weight.shape[0]
    return all(type(each) is int for each in sizes) and len(set(sizes)) == 1 and weight.shape[0] < THIN


def _groups(node: torch.fx.Node) -> Any:
    return node.args[8 if node.target is aten.convolution.default else 9]


def _work(node: torch.fx.Node) -> int:
    """Multiplications of a convolution, and of the first of the derivatives."""
    images: Any = IMAGES[node.target]  # type: ignore[index]  # its target is one of these
    weight: Any = node.args[images]
    made: Any = node.meta["val"] if images == 1 else node.args[0].meta["val"]  # type: ignore[union-attr]  # a node
    return _numel(made) * _product(weight.meta["val"].shape[1:])


def _value(node: Any) -> Any:
    return node.meta["val"]


def _format(value: torch.Tensor) -> torch.memory_format:
    return torch.channels_last_3d if value.dim() == 5 else torch.channels_last


def _is_both(value: torch.Tensor) -> bool:
    """Whether images of one channel have the strides of plain ones, which what is made of them would have then."""
    return value.shape[1] == 1 and value.stride()[1] != 1


def is_known(graph: torch.fx.Graph) -> bool:
    """Whether no size in the graph varies: looking at one that does may be a guard."""
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return False
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                if not all(type(each) is int for each in (*value.shape, *value.stride(), value.storage_offset())):
                    return False
    return True


def shares_outputs(graph: torch.fx.Graph) -> bool:
    """Whether the graph returns two tensors in one memory, which must stay one."""
    roots = []
    for node in graph.output_node().all_input_nodes:
        while (base := view_base(node)) is not None:
            node = base
        roots.append(node)
    return len(roots) != len(set(roots))


def reads_storage(graph: torch.fx.Graph) -> bool:
    """Whether elements are looked up by their place in all of a memory, of which what is given is a part that begins later."""
    return any(_value(node.args[0]).storage_offset() for node in graph.nodes
               if op_name(node) in ("as_strided.default", "as_strided_scatter.default"))


class Rewriter:
    """Walks over a graph and calculates anew what has another layout than before. The convolutions' weights are turned too on a
    GPU, and on a processor those of half types. On a GPU group norms of channels-last images are left to who calls this: ATen
    has no kernel for them."""

    def __init__(self, graph: torch.fx.Graph, turned: set[torch.fx.Node], *, gpu: bool = False) -> None:
        self.graph, self.turned, self.gpu = graph, turned, gpu
        #: The values whose strides are no longer these, as they were.
        self.before: dict[torch.fx.Node, Any] = {}
        self.copies: dict[tuple[torch.fx.Node, str], torch.fx.Node] = {}
        #: The nodes as they were.
        self.nodes: list[tuple[torch.fx.Node, tuple[Any, ...], dict[str, Any], Any]] = []

    def run(self) -> None:
        for node in list(self.graph.nodes):
            self.nodes.append((node, node.args, node.kwargs, node.meta.get("val")))
            if node.op == "output":
                with self.graph.inserting_before(node):
                    node.args = torch.fx.node.map_arg(node.args, self.as_before)
            elif node in self.turned or (
                    node.target not in _OF_SIZES and any(each in self.before for each in node.all_input_nodes)):
                self.rewrite(node)

    def copied_elements(self) -> int:
        return sum(_numel(made.meta["val"]) for (_, kind), made in self.copies.items() if kind in ("last", "before"))

    def undo(self) -> None:
        """Leaves the graph as it was."""
        for node, args, kwargs, value in self.nodes:
            node.args, node.kwargs = args, kwargs
            if value is not None:
                node.meta["val"] = value
        for made in reversed(self.copies.values()):
            self.graph.erase_node(made)

    def rewrite(self, node: torch.fx.Node) -> None:
        with self.graph.inserting_before(node):
            if node in self.turned:
                images: int = IMAGES[node.target]  # type: ignore[index]  # its target is one of these
                for at in range(images):
                    node.update_arg(at, self.last(node.args[at]))  # type: ignore[arg-type]  # a node
                if not is_last(_value(node.args[images])) and (self.gpu or _value(node.args[images]).dtype in LOW_PRECISION):
                    # oneDNN has weights of half types laid out as the images, and ATen would copy them in each call.
                    node.update_arg(images, self.last(node.args[images]))  # type: ignore[arg-type]  # a node
            elif node.target in _POOLS and frames.is_last(_value(node.args[_POOLS[node.target][0]])):
                for at in _POOLS[node.target]:
                    node.update_arg(at, self.last(node.args[at]))  # type: ignore[arg-type]  # a node
            elif node.target in _OF_ONE_LAYOUT and not node.kwargs:
                self.lay_out_alike(node)
            elif not _takes_any_layout(node) or (self.gpu and node.target is aten.native_group_norm.default and not (
                    _value(node.args[0]).dim() == 4 and is_last(_value(node.args[0])))):
                node.args = torch.fx.node.map_arg(node.args, self.as_before)
                node.kwargs = torch.fx.node.map_arg(node.kwargs, self.as_before)
                return
            try:
                value = self.calculated(node)
            except (RuntimeError, ValueError):  # a view that these strides do not allow
                node.args = torch.fx.node.map_arg(node.args, self.as_before)
                value = self.calculated(node)  # of a copy, whose elements begin elsewhere in its memory
        old, now = (pytree.tree_leaves(each) for each in (node.meta["val"], value))
        assert [_shape(each) for each in old] == [_shape(each) for each in now], f"{node} has another shape in another layout"
        if [_strides(each) for each in old] != [_strides(each) for each in now]:
            self.before[node] = node.meta["val"]
        node.meta["val"] = value

    def lay_out_alike(self, node: torch.fx.Node) -> None:
        """Gradients channels last where the images are; all as it was where those are neither plain nor channels last."""
        gradients, images, *others = node.args
        value: Any = images.meta["val"]  # type: ignore[union-attr]  # a node
        if value.dim() == 4 and is_last(value):
            side_by_side = self.gpu and gradients.meta["val"].stride()[1] == 1  # type: ignore[union-attr]  # a node
            given = gradients if side_by_side else self.last(gradients)  # type: ignore[arg-type]  # a node
            node.args = (given, images, *torch.fx.node.map_arg(others, self.as_before))  # type: ignore[arg-type]  # nodes
        else:
            node.args = torch.fx.node.map_arg(node.args, self.as_before)

    def calculated(self, node: torch.fx.Node) -> Any:
        target: Any = node.target
        given = [torch.fx.node.map_arg(each, lambda each: each.meta["val"]) for each in (node.args, node.kwargs)]
        with torch.no_grad(), _mode_of(node):
            if node in self.turned and _of_volumes(node):
                return frames.calculated(node, given[0])  # type: ignore[arg-type]  # a tuple
            value = target(*given[0], **given[1])  # type: ignore[arg-type]  # a dict
            before = node.meta["val"] if node.meta["val"] is not None else value
            if isinstance(value, (tuple, list)):
                return type(value)(map(_as_elements_lie, value, before))
            return _as_elements_lie(value, before)

    def last(self, node: torch.fx.Node) -> torch.fx.Node:
        """The images, channels last."""
        if is_last(node.meta["val"]) and not _is_both(node.meta["val"]):
            return node
        return self.copied(node, "last", aten.clone.default, node, memory_format=_format(node.meta["val"]))

    def as_before(self, node: torch.fx.Node) -> torch.fx.Node:
        """The value with the strides that it had."""
        was = self.before.get(node)
        if not isinstance(was, torch.Tensor) or was.stride() == node.meta["val"].stride():
            return node
        if self.gpu and _lie_alike(was, node.meta["val"]):
            return self.copied(node, "view", aten.as_strided.default, node, [*was.shape], [*was.stride()])
        if was.is_contiguous():
            return self.copied(node, "before", aten.clone.default, node, memory_format=torch.contiguous_format)
        layout = ([*was.shape], [*was.stride()]) if is_of_known_layout(was) else self.layout_of(node, was)
        memory = self.copied(node, "memory", aten.new_empty_strided.default, node, *layout)
        return self.copied(node, "before", aten.copy.default, memory, node)

    def layout_of(self, node: torch.fx.Node, was: torch.Tensor) -> tuple[list[Any], list[Any]]:
        """The sizes of the value, and the strides that it had, as nodes of the graph where they vary; those of a part of
        something as they are."""
        order = order_of(was)
        if order is None:
            return [*was.shape], [*was.stride()]
        sizes = [self.copied(node, f"size {dim}", aten.sym_size.int, node, dim) if isinstance(size, torch.SymInt) else size
                 for dim, size in enumerate(was.shape)]
        strides: dict[int, Any] = {}
        running: Any = 1
        for dim in order:
            strides[dim] = running
            if isinstance(running, int) and (running == 1 or isinstance(sizes[dim], int)):
                running = sizes[dim] if running == 1 else running * sizes[dim]
            else:
                running = self.copied(node, f"stride {dim}", operator.mul, running, sizes[dim])
        return sizes, [strides[dim] for dim in range(len(sizes))]

    def copied(self, node: torch.fx.Node, kind: str, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A call that is made once for all users of a node."""
        made = self.copies.get((node, kind))
        if made is None:
            made = self.copies[node, kind] = self.graph.call_function(target)
            made.args, made.kwargs = args, kwargs  # sizes that vary stand there as they are, of which torch warns above
            made.meta = node.meta | {"val": None}
            made.meta["val"] = self.calculated(made)
        return made


def _as_elements_lie(value: Any, before: Any) -> Any:
    known_layout = not isinstance(value, torch.Tensor) or is_of_known_layout(value)
    return value if known_layout else as_elements_lie(value, before.shape)


def _takes_any_layout(node: torch.fx.Node) -> bool:
    """Whether the operator's numbers do not depend on the strides of its arguments."""
    if node.op != "call_function":
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    name = op_name(node)
    known = name in LOWERINGS or name in _OF_ANY_LAYOUT or views_first_argument(node.target)
    return known and name not in _OF_STRIDES and not target_uses_rng(node.target) and not writes(node)


def _lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the strides say the same of where the elements are: those of dimensions of size 1 do not matter."""
    steps = zip(a.shape, a.stride(), b.stride(), strict=True)
    return a.storage_offset() == b.storage_offset() and all(size == 1 or one == two for size, one, two in steps)


def _shape(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else value


def _strides(value: Any) -> Any:
    return (value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else None


def _mode_of(node: torch.fx.Node) -> Any:
    values = (value for each in (node, *node.all_input_nodes) for value in pytree.tree_leaves(each.meta.get("val")))
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), contextlib.nullcontext())  # of sizes
