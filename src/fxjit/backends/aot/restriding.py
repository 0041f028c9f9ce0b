"""Fake values of a captured graph in which calls were replaced by others that lay out their results otherwise.

On some devices a kernel takes another layout for its result than the one it stands for, and then so does what follows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from fxjit.fake_execution import python_dispatcher
from fxjit.schemas import written


def laid_out_anew(graph: torch.fx.Graph, changed: Collection[torch.fx.Node]) -> bool:
    """Whether the graph is right with these calls changed; their fake values, and those of what follows, are new ones then. It
    is not where the graph's results would be laid out otherwise, be views where they were none, or that can't be said."""
    values: dict[torch.fx.Node, Any] = {}
    waiting = set(changed)
    for node in graph.nodes:
        if node.op == "output":
            if any(each in values for each in node.all_input_nodes):
                return False
            for each, value in values.items():
                each.meta = each.meta | {"example_value": value}
            return True
        if node not in waiting and not any(each in values for each in node.all_input_nodes):
            continue
        if any(each in values for each in written(node)):  # who else reads that memory is another question now
            return False
        try:
            before = node.meta["example_value"]
            with modes_of(before):
                after = _called(node, values)
            leaves = [pytree.tree_leaves(each) for each in (before, after)]
            if [*map(_with_modes, leaves[0])] != [*map(_with_modes, leaves[1])]:
                return False
            is_view = not _memory(after).isdisjoint(_memory(list(values.values())))
            if is_view or [_layout(each) for each in leaves[0]] != [_layout(each) for each in leaves[1]]:
                values[node] = after
        except Exception:  # a view that the layout does not allow, or what fakes cannot say
            return False
    return False


@contextlib.contextmanager
def modes_of(made: Any) -> Iterator[None]:
    """The modes of autograd that these tensors were made in, as far as they show it."""
    tensors = [each for each in pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
    inference = any(each.is_inference() for each in tensors)
    with torch.inference_mode() if inference else torch.set_grad_enabled(any(each.requires_grad for each in tensors)):
        yield


def _called(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    def value(each: torch.fx.Node) -> Any:
        return values[each] if each in values else each.meta["example_value"]

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value)  # type: ignore[misc]  # a tuple of two
    fake = next(each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, FakeTensor))
    with fake.fake_mode, python_dispatcher():  # sizes may be symbols
        return call_of(node, args, kwargs)


def call_of(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    """The node's callee, called with these."""
    target: Any = node.target
    return target(*args, **kwargs) if node.op == "call_function" else getattr(args[0], target)(*args[1:], **kwargs)


def kind_of_value(value: Any) -> Any:
    """Shape, dtype and device of a tensor."""
    return (tuple(value.shape), value.dtype, value.device) if isinstance(value, torch.Tensor) else value


def _with_modes(value: Any) -> Any:
    return (kind_of_value(value), value.requires_grad, value.is_inference()) if isinstance(value, torch.Tensor) else value


def _memory(values: Any) -> set[int]:
    return {each.untyped_storage()._cdata for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor)}


def _layout(value: Any) -> Any:
    return (tuple(value.stride()), value.storage_offset()) if isinstance(value, torch.Tensor) else None
