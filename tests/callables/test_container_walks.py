"""Functions of C that walk containers (optree's, dm-tree's) are run while tracing, on containers of stand-ins."""

from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

optree = pytest.importorskip("optree")


class Pair(NamedTuple):
    one: Any
    other: Any


def graphs_and_breaks(fn: Any, *args: Any) -> tuple[int, int]:
    found = fxjit.explain(fn, *args)
    return found.graph_count, found.graph_break_count


def doubled(tree: Any) -> Any:
    return optree.tree_map(lambda leaf: leaf * 2, tree)


def flattened_and_put_together(tree: Any) -> Any:
    leaves, spec = optree.tree_flatten(tree)
    return optree.tree_unflatten(spec, [leaf + 1 for leaf in leaves]), len(leaves)


def summed(tree: Any) -> Any:
    return optree.tree_reduce(lambda one, other: one + other.sum(), tree, torch.zeros(()))


def leaves_chosen(tree: Any) -> Any:
    return optree.tree_map(lambda pair: pair[0] - 1, tree, is_leaf=lambda node: isinstance(node, list))


def with_paths(tree: Any) -> Any:
    return optree.tree_map_with_path(lambda path, leaf: leaf * len(path), tree)


def of_two_trees(tree: Any) -> Any:
    return optree.tree_map(lambda one, other: one + other, tree, doubled(tree))


def structure(tree: Any) -> Any:
    spec = optree.tree_structure(tree)
    first = optree.tree_leaves(tree)[0].cos()
    return first, spec, spec.num_leaves, spec == optree.tree_structure(doubled(tree)), repr(spec), len(spec.children())


def structure_by_choice(tree: Any) -> Any:
    leaves, spec = optree.tree_flatten(tree, is_leaf=lambda node: isinstance(node, list))
    return leaves[0][0].sin(), spec


def the_same_leaves(tree: Any) -> Any:
    leaves = optree.tree_leaves(tree)
    return leaves[0].sin(), leaves[0] is tree["a"][0], leaves


TREES = [
    lambda: {"a": [torch.randn(3), torch.randn(2)], "b": (torch.randn(()), torch.randn(1))},
    lambda: {"a": [torch.randn(3)], "b": [torch.randn(2), torch.randn(2)]},
    lambda: collections.OrderedDict([("b", [torch.randn(2)]), ("a", [torch.randn(3), torch.randn(3)])]),
    lambda: {"a": [torch.randn(1)], "b": [Pair(torch.randn(2), torch.randn(3))]},
]


@pytest.mark.parametrize("fn", [doubled, flattened_and_put_together, summed, with_paths, of_two_trees, structure])
@pytest.mark.parametrize("make", TREES)
def test_trees_are_walked_in_one_graph(fn: Any, make: Any) -> None:
    tree = make()
    assert_same_as_eager(fn, tree)
    assert graphs_and_breaks(fn, tree) == (1, 0)


@pytest.mark.parametrize("fn", [leaves_chosen, structure_by_choice])
def test_what_the_program_says_of_nodes_is_followed_on_the_way(fn: Any) -> None:
    tree = {"a": [torch.randn(3), torch.randn(2)], "b": ([torch.randn(1)],)}
    assert_same_as_eager(fn, tree)
    assert graphs_and_breaks(fn, tree) == (1, 0)


def test_leaves_are_passed_on_as_they_are() -> None:
    tree = TREES[0]()
    assert_same_as_eager(the_same_leaves, tree)
    compiled = fxjit.compile(the_same_leaves, backend="eager")
    assert all(one is other for one, other in zip(compiled(tree)[2], optree.tree_leaves(tree), strict=True))


def test_each_run_makes_a_structure_of_its_own() -> None:
    compiled = fxjit.compile(structure, backend="eager")
    tree = TREES[0]()
    assert compiled(tree)[1] == compiled(tree)[1]
    assert compiled(tree)[1] is not compiled(tree)[1]


@pytest.mark.compiles
def test_a_structure_from_before_is_guarded() -> None:
    def put_together(spec: Any, x: torch.Tensor) -> Any:
        return optree.tree_unflatten(spec, [x + 1, x - 1])

    x = torch.randn(2)
    compiled = fxjit.compile(put_together, backend="eager")
    for tree in ([1, 2], {"a": 1, "b": 2}, (1, [2])):
        spec = optree.tree_structure(tree)
        for _ in range(2):
            got, wanted = compiled(spec, x), put_together(spec, x)
            assert type(got) is type(wanted) and optree.tree_structure(got) == spec
            assert all(map(torch.equal, optree.tree_leaves(got), optree.tree_leaves(wanted)))


def test_what_does_not_fit_raises_as_in_eager() -> None:
    def too_few(tree: Any) -> Any:
        try:
            return optree.tree_unflatten(optree.tree_structure(tree), [tree["a"][0].sin()])
        except ValueError as error:
            return str(error)

    assert_same_as_eager(too_few, TREES[0](), fullgraph=False)


class Held:
    """A container of the program's own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def test_containers_of_the_program_are_walked_by_their_own_code() -> None:
    optree.register_pytree_node(Held, lambda held: ((held.inner,), None), lambda _, inner: Held(*inner), namespace="held")
    try:
        def inside(x: torch.Tensor) -> Any:
            return optree.tree_map(lambda leaf: leaf.sin(), {"a": [Held(x), x]}, namespace="held")["a"][0].inner

        assert_same_as_eager(inside, torch.randn(2), fullgraph=False)
    finally:
        optree.unregister_pytree_node(Held, namespace="held")


def test_a_container_that_is_signed_up_later_is_found() -> None:
    def leaves(x: torch.Tensor) -> Any:
        return x + 1, len(optree.tree_leaves([Held([x, x])], namespace="later"))

    compiled = fxjit.compile(leaves, backend="eager")
    x = torch.randn(2)
    assert compiled(x)[1] == 1
    optree.register_pytree_node(Held, lambda held: (held.inner, None), lambda _, inner: Held(inner), namespace="later")
    try:
        assert compiled(x)[1] == leaves(x)[1] == 2
    finally:
        optree.unregister_pytree_node(Held, namespace="later")
    assert compiled(x)[1] == 1


def test_the_order_of_dicts_is_guarded() -> None:
    def leaves(x: torch.Tensor) -> Any:
        return torch.stack(optree.tree_leaves({"b": x, "a": x * 2}))

    compiled = fxjit.compile(leaves, backend="eager")
    x = torch.randn(2)
    sorted_by_key = compiled(x)
    with optree.dict_insertion_ordered(True, namespace="__default_order__"):
        assert torch.equal(compiled(x), leaves(x))
    assert torch.equal(compiled(x), sorted_by_key)


def test_leaves_of_any_kind_are_leaves() -> None:
    def of_many(x: torch.Tensor, number: int, other: Any) -> Any:
        leaves, spec = optree.tree_flatten({"x": x, "number": number, "other": other, "text": "a", "none": None})
        return x * number, leaves, spec

    for number in (2, 3, 5):
        assert_same_as_eager(of_many, torch.randn(2), number, "text")
    found = fxjit.compile(of_many, backend="eager")(torch.randn(2), 3, namespace := SimpleNamespace(a=1))
    assert any(leaf is namespace for leaf in found[1])


def test_trees_of_dm_tree_are_walked_in_one_graph() -> None:
    tree = pytest.importorskip("tree")

    def normalised(batch: Any) -> Any:
        scaled = tree.map_structure(lambda x: x - x.mean(), batch)
        named = tree.map_structure_with_path(lambda path, x: x * len(path), scaled)
        total = sum(each.sum() for each in tree.flatten(named))
        return tree.map_structure(lambda a, b: a + b * total, scaled, named), len(tree.flatten(batch)), tree.is_nested(batch)

    pair = Pair(torch.ones(2), torch.ones(1))
    batch = {"image": torch.randn(3, 4), "state": [torch.randn(3, 2), (torch.randn(3),)], "pair": pair}
    assert_same_as_eager(normalised, batch)
    assert graphs_and_breaks(normalised, batch) == (1, 0)


def test_what_torch_makes_of_optree() -> None:
    """`torch.utils._cxx_pytree`, which parts of torch take where optree is installed."""
    from torch.utils import _cxx_pytree

    def fn(x: torch.Tensor) -> Any:
        leaves, spec = _cxx_pytree.tree_flatten({"a": [x, x * 2], "b": (x + 1,)})
        twice = _cxx_pytree.tree_map(lambda each: each * 2, [x, {"c": x.sin()}])
        return _cxx_pytree.tree_unflatten([each + 1 for each in leaves], spec), twice, len(_cxx_pytree.tree_leaves(twice))

    assert_same_as_eager(fn, torch.ones(3))
