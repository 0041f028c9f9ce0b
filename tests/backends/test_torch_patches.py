"""Compile-time patches of torch: graphs and what torch says of them stay the same."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch.fx import graph as fx_graph
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

import fxjit
from fxjit import torch_compat
from fxjit.backends.aot.torch_patches import (
    copied_deeply,
    quick_nodes,
    shared_random_states,
    shared_with_compiled_autograd,
)


@pytest.fixture
def traced() -> Iterator[torch.fx.GraphModule]:
    yield torch.fx.symbolic_trace(lambda x: torch.cat([x, x.sin()], dim=0))


def arguments() -> list[tuple[object, ...]]:
    node = torch.fx.Graph().placeholder("x")
    return [
        (),
        (node, 2, 1.5, "mean", None, True, torch.float32),
        ([node, node], immutable_list([1, 2]), (3, (4, [5, node]))),
        (slice(node, 2, None), {"a": node, "b": [1]}, torch.Size([2, 3]), range(3), Ellipsis, 2j),
    ]


@pytest.mark.parametrize("args", arguments())
@pytest.mark.parametrize("kwargs", [{}, {"dim": 0}, immutable_dict({"sizes": [1, (2, 3)], "dtype": torch.int64})])
def test_the_same_leaves_in_the_same_order(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    expected = list(pytree.tree_iter((args, kwargs)))
    with quick_nodes():
        assert list(fx_graph.pytree.tree_iter((args, kwargs))) == expected
        assert list(fx_graph.pytree.tree_iter(args)) == list(pytree.tree_iter(args))
    assert fx_graph.pytree is pytree


SEARCHES = torch_compat.release(torch.__version__) >= (2, 13)


@pytest.mark.skipif(not SEARCHES, reason="this torch does not look for symbolic numbers there")
def test_a_symbolic_number_among_the_arguments_is_told_of() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    size = ShapeEnv().create_unbacked_symint()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for args in ((x, size), (x, [1, size]), (x, (1, [size]))):
        with quick_nodes(), pytest.warns(UserWarning, match="Raw SymInt"):
            graph.call_function(torch.ops.aten.view.default, args)


def test_a_backward_graph_is_its_own_copy_until_it_is_compiled(traced: torch.fx.GraphModule) -> None:
    assert copy.deepcopy(shared_with_compiled_autograd(traced)) is traced
    copied_deeply(traced)
    another = copy.deepcopy(traced)
    assert another is not traced and another.graph is not traced.graph


def test_the_states_of_random_generators_share_their_tensors_and_nothing_else() -> None:
    from torch._decomp.decompositions_for_rng import PhiloxState

    with shared_random_states():
        first, second = PhiloxState(), PhiloxState()
        assert first.seed is second.seed
        first.advance_offset(4)
        assert (first.relative_offset, second.relative_offset) == (4, 0)
        first.set_state(torch.tensor(1), torch.tensor(2))
        assert second.seed.numel() == 0
        first.reset()
        assert vars(first) == vars(second)
    assert PhiloxState().seed is not second.seed


def test_graphs_are_trained_as_in_eager() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(torch.cat([x @ w, x], 1), (48,)).tanh().square().mean()

    x, w = torch.randn(16, 24, requires_grad=True), torch.randn(24, 24, requires_grad=True)
    expected = torch.autograd.grad(fn(x, w), (x, w))
    with fxjit.config.patch(small_graphs_as_captured=False):
        compiled = torch.autograd.grad(fxjit.compile(fn)(x, w), (x, w))
    torch.testing.assert_close(compiled, expected)
