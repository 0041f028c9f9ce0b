"""Tensors whose elements are known while tracing: small ones that the graph computes from constants alone (`torch.arange(3)`,
`torch.tensor(sizes).prod()`). They are computed once more, outside of the graph, where the program asks for their numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import torch
import torch.fx

from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.homes import module_of
from fxjit.schemas import is_known, name_of, storages_of, uses_rng, writes, written

_MOST_ELEMENTS: Final = 64
#: Operators behind one another: what is longer is a computation rather than a way to write numbers down.
_MOST_OPERATORS: Final = 16


class _Unknown(Exception):
    """The tensor depends on what only a run gives."""


def known_elements(tensor: GraphTensor) -> torch.Tensor | None:
    """The tensor, computed while tracing; None where it depends on more than constants, or was written to."""
    constant: torch.Tensor | None = getattr(tensor.fake, "constant", None)
    if tensor.node is None:
        return constant
    made: dict[torch.fx.Node, Any] = {tensor.node: constant}
    if constant is None:
        made.clear()
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                constant = _value(tensor.node, made)
        except _Unknown:
            return None
    return constant if isinstance(constant, torch.Tensor) and not _is_written(made) else None


def _is_written(made: Collection[torch.fx.Node]) -> bool:
    """Whether the graph writes to one of these. Version counters say that of most writes: not of those to statistics, to lists
    of tensors, or to what an operator tells about them."""
    memory, missing = storages_of(made), set(made)
    for node in reversed(next(iter(made)).graph.nodes):
        if not storages_of(written(node)).isdisjoint(memory):
            return True
        missing.discard(node)
        if not missing:
            break
    return False


def _value(node: torch.fx.Node, done: dict[torch.fx.Node, Any]) -> Any:
    if node in done:
        return done[node]
    _require_small(node)
    if len(done) == _MOST_OPERATORS or not _is_pure(node):
        raise _Unknown
    done[node] = None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: _value(each, done))
    try:
        if isinstance(node.target, str):
            computed = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            computed = node.target(*args, **kwargs)
    except Exception as error:
        raise _Unknown from error
    _require_alike(computed, node.meta["example_value"])
    done[node] = computed
    return computed


def _tensors(fake: Any) -> list[torch.Tensor]:
    leaves = list(fake) if isinstance(fake, (list, tuple)) else [fake]
    if not leaves or not all(type(leaf).__name__ == "FakeTensor" for leaf in leaves):
        raise _Unknown
    return leaves


def _require_small(node: torch.fx.Node) -> None:
    """A processor's strided tensors of few elements, never written to."""
    for fake in _tensors(node.meta.get("example_value")):
        if fake.device.type != "cpu" or fake.layout is not torch.strided or fake.is_inference():
            raise _Unknown
        if not all(isinstance(size, int) for size in fake.shape) or fake.numel() > _MOST_ELEMENTS or fake._version:
            raise _Unknown


def _is_pure(node: torch.fx.Node) -> bool:
    """Whether elements follow from the arguments: memory that nobody filled, random numbers and writes are none of that."""
    target: Any = node.target
    if node.op not in ("call_function", "call_method") or target is getattr:
        return False
    module = module_of(target) or "torch"
    is_plain = isinstance(target, str) or module.partition(".")[0] in ("torch", "_operator") or module == "fxjit.interop.numpy_"
    if not is_plain or not is_known(target) or "empty" in name_of(target) or writes(node) or uses_rng(node):
        return False
    return not any(user.target is getattr and user.args[1:2] == ("data",) for user in node.users)


def _require_alike(computed: Any, fake: Any) -> None:
    """What the graph was traced with has to be of the same kind: a decomposition or a mode may have made another."""
    made = list(computed) if isinstance(computed, (list, tuple)) else [computed]
    for one, other in zip(made, _tensors(fake), strict=True):
        if type(one) is not torch.Tensor or one.device.type != "cpu":
            raise _Unknown
        if one.dtype is not other.dtype or one.shape != other.shape:
            raise _Unknown
