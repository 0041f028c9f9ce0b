"""Complex arithmetic as real arithmetic on real and imaginary parts, which kernels can fuse; ATen has one operator after
another for it. A pass of `cleanup.PASSES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from fxjit.backends.graph.edit import call_like

aten = torch.ops.aten
Node = torch.fx.Node
Parts = tuple[Any, Any]


class _Writer:
    """Writes calls in the place of one node."""

    def __init__(self, graph: torch.fx.Graph, parts: dict[Node, Parts], node: Node) -> None:
        self._graph = graph
        self._parts = parts
        self._node = node
        self._real = node.meta["val"].dtype.to_real()

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return call_like(self._graph, self._node, target, *args, **kwargs)

    def of(self, value: Any) -> Parts:
        """Real and imaginary part of an argument. That of a real one is zero and takes part, as in ATen: inf * 0 is NaN."""
        if not isinstance(value, Node):
            return value.real, float(value.imag)
        if value.target is aten.full.default and not value.args[0]:
            return self.of(value.args[1])
        if value not in self._parts:
            self._parts[value] = self._read(value)
        re, im = self._parts[value]
        return self._converted(re), self._converted(im)

    def _read(self, value: Node) -> Parts:
        if not value.meta["val"].is_complex():
            return value, 0.0
        pairs = self.call(aten.view_as_real.default, value)
        return self.call(aten.select.int, pairs, -1, 0), self.call(aten.select.int, pairs, -1, 1)

    def _converted(self, part: Any) -> Any:
        if not isinstance(part, Node) or part.meta["val"].dtype is self._real:
            return part
        return self.call(aten._to_copy.default, part, dtype=self._real)

    def tensor(self, part: Any) -> Node:
        """A part as a tensor."""
        like = self._node.meta["val"]
        return part if isinstance(part, Node) else self.call(aten.full.default, [], part, dtype=self._real, device=like.device)

    def calculate(self, target: Any, a: Any, b: Any) -> Any:
        """`a` and `b` are tensors or numbers; of numbers the result is one."""
        if isinstance(a, Node):
            return self.call(target, a, b)
        if isinstance(b, Node):
            return self.call(target, self.tensor(a), b)
        return {aten.add.Tensor: a + b, aten.sub.Tensor: a - b, aten.mul.Tensor: a * b}[target]


def _multiplied(w: _Writer, x: Any, y: Any) -> Parts:
    return _product(w, w.of(x), w.of(y))


def _product(w: _Writer, x: Parts, y: Parts) -> Parts:
    (a, b), (c, d) = x, y
    times, plus, minus = aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor
    return (w.calculate(minus, w.calculate(times, a, c), w.calculate(times, b, d)),
            w.calculate(plus, w.calculate(times, a, d), w.calculate(times, b, c)))


def _sum(alpha: float) -> Callable[..., Parts]:
    """ATen multiplies the second term by its factor as complex numbers, which makes NaN beside infinity."""
    def parts(w: _Writer, x: Any, y: Any) -> Parts:
        (a, b), (c, d) = w.of(x), _product(w, w.of(y), (alpha, 0.0))
        return w.calculate(aten.add.Tensor, a, c), w.calculate(aten.add.Tensor, b, d)

    return parts


def _negated(w: _Writer, x: Any) -> Parts:
    a, b = map(w.tensor, w.of(x))
    return w.call(aten.neg.default, a), w.call(aten.neg.default, b)


def _conjugated(w: _Writer, x: Any) -> Parts:
    a, b = w.of(x)
    return a, w.call(aten.neg.default, w.tensor(b))


def _chosen(w: _Writer, mask: Any, x: Any, y: Any) -> Parts:
    (a, b), (c, d) = w.of(x), w.of(y)
    return w.call(aten.where.self, mask, w.tensor(a), w.tensor(c)), w.call(aten.where.self, mask, w.tensor(b), w.tensor(d))


def _masked(w: _Writer, x: Any, mask: Any, value: Any) -> Parts:
    return _chosen(w, mask, value, x)


def _squared(w: _Writer, x: Any, exponent: Any) -> Parts:
    return _multiplied(w, x, x)


def _filled(w: _Writer, size: Any, value: Any, **kwargs: Any) -> Parts:
    given = {key: kept for key, kept in kwargs.items() if key == "device"}
    re, im = (w.call(aten.full.default, size, part, dtype=w._real, **given) for part in w.of(value))
    return re, im


def _zeros(w: _Writer, x: Node, **kwargs: Any) -> Parts:
    return _filled(w, [*x.meta["val"].shape], 0.0, device=x.meta["val"].device)


def _copied(w: _Writer, x: Any, **kwargs: Any) -> Parts:
    return w.of(x)


#: By operators with complex results, what their parts are.
_RULES: Final[dict[Any, Callable[..., Parts]]] = {
    aten.add.Tensor: _sum(1.0), aten.sub.Tensor: _sum(-1.0), aten.mul.Tensor: _multiplied,
    aten.neg.default: _negated, aten._conj_physical.default: _conjugated, aten.conj_physical.default: _conjugated,
    aten.where.self: _chosen, aten.pow.Tensor_Scalar: _squared,
    aten.pow.Tensor_Tensor: _squared, aten.full.default: _filled, aten._to_copy.default: _copied,
    aten.zeros_like.default: _zeros, aten.masked_fill.Scalar: _masked, aten.masked_fill.Tensor: _masked,
}  # fmt: skip
#: The arguments by name that rules have understood.
_KEYWORDS: Final[dict[Any, set[str]]] = {aten.full.default: {"dtype", "device", "pin_memory", "layout"},
                    aten.zeros_like.default: {"dtype", "device", "pin_memory", "layout", "memory_format"},
                    aten._to_copy.default: {"dtype"}}


def conjugate_numbers(graph: torch.fx.Graph) -> None:
    """The conjugate of a number (as the derivative of `x * 1j` has it) as a tensor without a lazy bit: fake tensors do not know
    of that bit, and what reads the memory then would read the number itself."""
    for node in graph.find_nodes(op="call_function", target=aten._conj.default):
        if isinstance(node.args[0], complex):
            with graph.inserting_before(node):
                new = call_like(graph, node, aten.full.default, [], node.args[0].conjugate(), dtype=node.meta["val"].dtype,
                                device=node.meta["val"].device)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def split_complex(graph: torch.fx.Graph) -> None:
    """Chains of complex operators that make one another's arguments, or end in absolute values, as chains of real ones."""
    candidates = {node for node in graph.nodes if _is_candidate(node)}
    chains = {node for node in candidates if any(each in candidates for each in _neighbours(node))}
    parts: dict[Node, Parts] = {}
    for node in [node for node in graph.nodes if node in chains]:
        with graph.inserting_before(node):
            writer = _Writer(graph, parts, node)
            if node.target is aten.abs.default:
                a, b = writer.of(node.args[0])
                new = writer.call(aten.hypot.default, writer.tensor(a), writer.tensor(b))
            else:
                made = _RULES[node.target](writer, *node.args, **node.kwargs)
                new = writer.call(aten.complex.default, *map(writer.tensor, made))
                parts[new] = made
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    _read_parts(graph, parts)


def _read_parts(graph: torch.fx.Graph, parts: Mapping[Node, Parts]) -> None:
    """Arithmetic with the real or the imaginary part of a number that is made of parts takes that part."""
    for node in [node for node in parts if node.target is aten.complex.default]:
        for pairs in [user for user in node.users if user.target is aten.view_as_real.default]:
            for read in [user for user in pairs.users if user.target is aten.select.int]:
                _, dim, index = read.args
                re, im = parts[node]
                part = (im if index else re) if dim in (-1, pairs.meta["val"].dim() - 1) else None
                if isinstance(part, Node) and part.meta["val"].shape == read.meta["val"].shape and \
                        all(torch.Tag.pointwise in getattr(user.target, "tags", ()) for user in read.users):
                    read.replace_all_uses_with(part)


def _is_candidate(node: Node) -> bool:
    if node.target is aten.abs.default:
        given: Any = node.args[0]
        return _is_plain(given.meta.get("val")) if isinstance(given, Node) else False
    if node.target not in _RULES or not _is_plain(node.meta.get("val")):
        return False
    if node.kwargs.keys() - _KEYWORDS.get(node.target, set()):
        return False
    if node.target in (aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor) and _number(node.args[1]) != 2:
        return False
    if not all(isinstance(size, int) for size in node.meta["val"].shape):
        return False
    return all(_is_readable(each.meta.get("val")) for each in node.all_input_nodes)


def _number(value: Any) -> Any:
    """The number that an argument is, also as a tensor that the traced code made of one."""
    while isinstance(value, Node) and value.target in (aten.lift_fresh_copy.default, aten.lift_fresh.default):
        value = value.args[0]
    if not isinstance(value, Node) or value.op != "get_attr":
        return value
    held = getattr(value.graph.owning_module, str(value.target), None)
    if not isinstance(held, torch.Tensor) or held.dim() != 0:
        return value
    with _disable_current_modes():  # the graph's own are of fake tensors, and this one is real
        return held.item()


def _is_plain(value: Any) -> bool:
    """Whether it is what `torch.complex` gives of two tensors without gaps."""
    return isinstance(value, torch.Tensor) and value.is_complex() and value.device.type == "cpu" and value.is_contiguous() \
        and value.dtype is not torch.complex32 and _is_readable(value) and value.dim() > 0


def _is_readable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_conj() and not value.is_neg() and value.layout is torch.strided


def _neighbours(node: Node) -> Iterator[Node]:
    yield from node.all_input_nodes
    yield from node.users
