"""Work that torch does for others while AOTAutograd runs, and that is spared here: none of it changes a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.fx
from torch.fx import graph as fx_graph
from torch.fx.immutable_collections import immutable_list
from torch.utils import _pytree as pytree

_LEAVES = frozenset({torch.fx.Node, int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout})
_LISTS = frozenset({list, tuple, immutable_list})


class _PlainTrees:
    """torch's module for trees, as torch.fx's graphs use it: each new node's arguments are searched for symbolic numbers, by
    a walk that asks of each value which kind of tree it is. Nearly all are nodes and numbers, or lists of them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pytree, name)

    @staticmethod
    def tree_iter(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
        if is_leaf is not None or not (type(tree) is tuple and len(tree) == 2 and type(tree[0]) is tuple):
            yield from pytree.tree_iter(tree, is_leaf)
            return
        arguments, keywords = tree
        for value in (*arguments, *keywords.values()) if isinstance(keywords, dict) else (*arguments, keywords):
            if type(value) in _LEAVES:
                yield value
            elif type(value) in _LISTS and all(type(each) in _LEAVES for each in value):
                yield from value
            else:
                yield from pytree.tree_iter(value)


@contextlib.contextmanager
def nodes_made_plainly() -> Iterator[None]:
    """A third of the time that it takes to make a node, and AOTAutograd makes each of a graph's some six times."""
    module: Any = fx_graph
    original = module.pytree
    module.pytree = _PlainTrees()
    try:
        yield
    finally:
        module.pytree = original


def given_as_it_is(backward: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """AOTAutograd hands a copy of the backward graph to its compiler and keeps the original for compiled autograd; a
    compiler's graph computes the same, so that both may be one."""
    backward.__dict__["__deepcopy__"] = lambda memo: backward
    return backward


def may_be_copied(graph: torch.fx.GraphModule) -> None:
    """From here on a copy of it is one again."""
    graph.__dict__.pop("__deepcopy__", None)
