"""torch.utils._pytree in compiled code: containers that fit each other or do not, and how vmap reads `in_dims`."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree

import fxjit

X, Y = torch.arange(6.0).reshape(3, 2), torch.arange(6.0, 12.0).reshape(3, 2)
Pair = collections.namedtuple("Pair", "a b")
Other = collections.namedtuple("Other", "a b")
Ordered, Default = collections.OrderedDict, collections.defaultdict


class Box:
    """A container that looks at what it is given."""

    def __init__(self, held: Any) -> None:
        if not isinstance(held, (torch.Tensor, Box)):
            raise RuntimeError(f"a Box holds tensors, and no {type(held).__name__}")
        self.held = held


_pytree.register_pytree_node(Box, lambda box: ([box.held], None), lambda items, _: Box(*items))

TREES: list[tuple[Any, Any]] = [
    ([X, Y], (X, Y)), ([X, Y], [X]), ([X], [X, Y]), ((X, Y), [X, Y]), ({"a": X}, {"a": Y}),
    ({"a": X, "b": Y}, {"b": Y, "a": X}), ({"a": X}, {"b": X}), ({"a": X}, Ordered(a=Y)), (Ordered(a=X), {"a": Y}),
    (Pair(X, Y), Pair(Y, X)), (Pair(X, Y), (Y, X)),
    ((X, Y), Pair(X, Y)), (Pair(X, Y), Other(X, Y)), (Default(int, a=X), {"a": Y}), ({"a": X}, [X]), ([X, [X, Y]], [X, [Y, Y]]),
    (collections.deque([X]), collections.deque([Y], maxlen=3)), (collections.deque([X]), [X]), (X, [X]), ([X, [X]], [X, Y]),
    ({"a": [X]}, {"a": [X, Y]}), ([], []), ([], [X]), (Box(X), Box(Y)), (Box(X), [X]), ([Box(X)], [Y]), ({}, {"a": X}),
]


def _told(fn: Callable[[], Any]) -> Any:
    try:
        found, calls = fn()
    except Exception as error:
        return type(error), str(error)
    return type(found), [leaf if isinstance(leaf, str) else leaf.tolist() for leaf in _pytree.tree_leaves(found)], calls


def _assert_as_eager(program: Callable[[], Any]) -> None:
    def caught() -> Any:
        try:
            return program()
        except (ValueError, TypeError, RuntimeError) as error:
            return [str(error)], 0

    for fn in (program, caught):
        fxjit.reset()
        expected = _told(fn)
        assert _told(fxjit.compile(fn, backend="eager")) == expected


@pytest.mark.parametrize("at", range(len(TREES)))
def test_tree_map_of_two(at: int) -> None:
    one, other = TREES[at]

    def program() -> Any:
        calls = []

        def add(a: Any, b: Any) -> Any:
            calls.append(1)
            return a + b

        return _pytree.tree_map(add, one, other), len(calls)

    _assert_as_eager(program)


def test_nothing_is_called_where_trees_do_not_fit() -> None:
    calls: list[int] = []

    def program(x: torch.Tensor) -> Any:
        def add(a: Any, b: Any) -> Any:
            calls.append(1)
            return a + b

        try:
            return _pytree.tree_map(add, [x, [x]], [x, x])
        except ValueError:
            return x

    fxjit.compile(program, backend="eager")(X)
    assert calls == []


VMAPS: dict[str, Callable[[], Any]] = {
    "fewer": lambda: torch.vmap(lambda a, b: a + b, in_dims=(0,))(X, Y),
    "more": lambda: torch.vmap(lambda a: a + 1, in_dims=(0, 0))(X),
    "nested": lambda: torch.vmap(lambda a: a[0] + a[1], in_dims=((0, 0),))((X, Y)),
    "nested, fewer": lambda: torch.vmap(lambda a: a[0] + a[1], in_dims=((0,),))((X, Y)),
    "one for several": lambda: torch.vmap(lambda a: a[0] + a[1], in_dims=(0,))((X, Y)),
    "a list for a tuple": lambda: torch.vmap(lambda a: a[0] + a[1], in_dims=([0, 0],))((X, Y)),
    "dict": lambda: torch.vmap(lambda a: a["p"] + a["q"], in_dims=({"p": 0, "q": None},))({"p": X, "q": Y[0]}),
    "dict in another order": lambda: torch.vmap(lambda a: a["p"] + a["q"], in_dims=({"q": None, "p": 0},))({"p": X, "q": Y[0]}),
    "dict with another key": lambda: torch.vmap(lambda a: a["p"], in_dims=({"p": 0, "r": None},))({"p": X, "q": Y[0]}),
    "dict without a key": lambda: torch.vmap(lambda a: a["p"] + a["q"], in_dims=({"p": 0},))({"p": X, "q": Y}),
    "OrderedDict for dict": lambda: torch.vmap(lambda a: a["p"] + a["q"], in_dims=(Ordered(p=0, q=0),))({"p": X, "q": Y}),
    "named tuple": lambda: torch.vmap(lambda a: a.a + a.b, in_dims=(Pair(0, 0),))(Pair(X, Y)),
    "a tuple for a named one": lambda: torch.vmap(lambda a: a.a + a.b, in_dims=((0, 0),))(Pair(X, Y)),
    "a container that looks": lambda: torch.vmap(lambda a: a.held * 2, in_dims=(0,))(Box(X)),
    "two in a tuple": lambda: torch.vmap(lambda a: a[0].held + a[1].held, in_dims=((0, None),))((Box(X), Box(Y[0]))),
    "results": lambda: torch.vmap(lambda a: (a, a * 2), out_dims=(0, 1))(X),
    "fewer results": lambda: torch.vmap(lambda a: (a, a * 2), out_dims=(0,))(X),
    "nested results": lambda: torch.vmap(lambda a: {"k": (a, a * 2)}, out_dims={"k": (1, 0)})(X),
    "one for all results": lambda: torch.vmap(lambda a: {"k": (a, a * 2)}, out_dims=1)(X),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap_reads_its_dimensions(name: str) -> None:
    _assert_as_eager(lambda: (VMAPS[name](), 0))


@pytest.mark.parametrize("name", ["nested", "one for several", "dict", "named tuple", "nested results"])
def test_vmap_is_captured_whole(name: str) -> None:
    fxjit.compile(VMAPS[name], backend="eager", fullgraph=True)()
