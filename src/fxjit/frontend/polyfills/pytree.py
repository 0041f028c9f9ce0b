"""torch.utils._pytree in plain Python: containers flattened and put together again.

Containers that are no list, tuple, dict, OrderedDict or named tuple are looked up in torch's own registry.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from torch.utils import _pytree

from fxjit import torch_private
from fxjit.frontend.values.calls import polyfill

_REGISTRY = torch_private.optional("torch.utils._pytree.SUPPORTED_NODES")


@polyfill(_pytree.tree_leaves)
def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    leaves: list[Any] = []
    _collect(tree, is_leaf, leaves)
    return leaves


def _collect(tree: Any, is_leaf: Callable[[Any], bool] | None, leaves: list[Any]) -> None:
    if is_leaf is not None and is_leaf(tree):
        leaves.append(tree)
        return
    kind = type(tree)
    if kind is list or kind is tuple:
        for item in tree:
            _collect(item, is_leaf, leaves)
    elif kind is dict or kind is collections.OrderedDict:
        for item in tree.values():
            _collect(item, is_leaf, leaves)
    elif isinstance(tree, tuple) and hasattr(kind, "_fields"):
        for item in tree:
            _collect(item, is_leaf, leaves)
    elif kind in _REGISTRY:
        for item in _REGISTRY[kind].flatten_fn(tree)[0]:
            _collect(item, is_leaf, leaves)
    else:
        leaves.append(tree)


@polyfill(_pytree.tree_map)
def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    if is_leaf is not None and is_leaf(tree):
        return func(tree, *rests)
    kind = type(tree)
    if kind is list or kind is tuple:
        return kind([tree_map(func, item, *[rest[i] for rest in rests], is_leaf=is_leaf)
                     for i, item in enumerate(tree)])
    if kind is dict:
        return {key: tree_map(func, item, *[rest[key] for rest in rests], is_leaf=is_leaf)
                for key, item in tree.items()}
    if kind is collections.OrderedDict:
        return collections.OrderedDict([
            (key, tree_map(func, item, *[rest[key] for rest in rests], is_leaf=is_leaf)) for key, item in tree.items()])
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return kind(*[tree_map(func, item, *[rest[i] for rest in rests], is_leaf=is_leaf)
                      for i, item in enumerate(tree)])
    if kind in _REGISTRY:
        node = _REGISTRY[kind]
        items, context = node.flatten_fn(tree)
        others = [node.flatten_fn(rest)[0] for rest in rests]
        return node.unflatten_fn([tree_map(func, item, *[other[i] for other in others], is_leaf=is_leaf)
                                  for i, item in enumerate(items)], context)
    return func(tree, *rests)


@polyfill(torch_private.optional("torch.utils._pytree.tree_map_"))
def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


@polyfill(torch_private.optional("torch.utils._pytree.tree_map_only"))
def tree_map_only(type_or_types: Any, func: Any = None, tree: Any = None,
                  is_leaf: Callable[[Any], bool] | None = None) -> Any:
    chosen = type_or_types

    def on_leaf(leaf: Any) -> Any:
        return func(leaf) if isinstance(leaf, chosen) else leaf

    return tree_map(on_leaf, tree, is_leaf=is_leaf)


@polyfill(torch_private.optional("torch.utils._pytree.tree_all"))
def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    for leaf in tree_leaves(tree, is_leaf):
        if not pred(leaf):
            return False
    return True


@polyfill(torch_private.optional("torch.utils._pytree.tree_any"))
def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    for leaf in tree_leaves(tree, is_leaf):
        if pred(leaf):
            return True
    return False
