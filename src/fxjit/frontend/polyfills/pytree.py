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
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


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
    if not rests:
        return _mapped(func, tree, is_leaf)
    leaves = [tree_leaves(tree, is_leaf)]
    for rest in rests:  # what does not fit raises before anything is called
        found: list[Any] = []
        _collect_up_to(tree, rest, is_leaf, found)
        leaves.append(found)
    results = iter([func(*each) for each in zip(*leaves, strict=True)])
    return _mapped(lambda _: next(results), tree, is_leaf)


def _mapped(func: Callable[..., Any], tree: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    if is_leaf is not None and is_leaf(tree):
        return func(tree)
    kind = type(tree)
    if kind is list or kind is tuple:
        return kind([_mapped(func, item, is_leaf) for item in tree])
    if kind is dict:
        return {key: _mapped(func, item, is_leaf) for key, item in tree.items()}
    if kind is collections.OrderedDict:
        return collections.OrderedDict([(key, _mapped(func, item, is_leaf)) for key, item in tree.items()])
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return kind(*[_mapped(func, item, is_leaf) for item in tree])
    if kind in _REGISTRY:
        node = _REGISTRY[kind]
        items, context = node.flatten_fn(tree)
        return node.unflatten_fn([_mapped(func, item, is_leaf) for item in items], context)
    return func(tree)


def _collect_up_to(tree: Any, rest: Any, is_leaf: Callable[[Any], bool] | None, found: list[Any]) -> None:
    """The parts of `rest` that stand where `tree` has its leaves."""
    kind, other = type(tree), type(rest)
    if is_leaf is not None and is_leaf(tree):
        found.append(rest)
    elif kind in _DICTS:
        if other not in _DICTS:
            raise ValueError(f"Node type mismatch; expected {kind!r}, but got {_node_type(rest)!r}.")
        if len(tree) != len(rest):
            raise ValueError(f"Node arity mismatch; expected {len(tree)}, but got {len(rest)}.")
        if set(tree) != set(rest):
            missing, extra = set(tree).difference(set(rest)), set(rest).difference(set(tree))
            raise ValueError(f"Node keys mismatch; missing key(s): {missing}; extra key(s): {extra}.")
        for key, item in tree.items():
            _collect_up_to(item, rest[key], is_leaf, found)
    elif kind is list or kind is tuple or (isinstance(tree, tuple) and hasattr(kind, "_fields")):
        if _node_type(rest) is not _node_type(tree):
            raise ValueError(f"Node type mismatch; expected {_node_type(tree)!r}, but got {_node_type(rest)!r}.")
        if len(tree) != len(rest):
            raise ValueError(f"Node arity mismatch; expected {len(tree)}, but got {len(rest)}.")
        if kind is not other:
            raise ValueError(f"Node context mismatch for node type {_node_type(tree)!r}; expected {kind!r}, but got {other!r}.")
        for each, item in zip(tree, rest, strict=True):
            _collect_up_to(each, item, is_leaf, found)
    elif kind in _REGISTRY:
        if kind is not other:
            raise ValueError(f"Type mismatch; expected {kind!r}, but got {_node_type(rest)!r}.")
        items, context = _REGISTRY[kind].flatten_fn(tree)
        others, others_context = _REGISTRY[kind].flatten_fn(rest)
        if len(items) != len(others):
            raise ValueError(f"Node arity mismatch; expected {len(items)}, but got {len(others)}.")
        if kind is not collections.deque and context != others_context:
            raise ValueError(f"Node context mismatch for custom node type {kind!r}.")
        for each, item in zip(items, others, strict=True):
            _collect_up_to(each, item, is_leaf, found)
    else:
        found.append(rest)


def _node_type(tree: Any) -> Any:
    """What torch registers a container as."""
    kind = type(tree)
    return collections.namedtuple if isinstance(tree, tuple) and hasattr(kind, "_fields") else kind


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
