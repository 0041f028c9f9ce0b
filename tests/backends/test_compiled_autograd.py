"""torch's compiled autograd around compiled graphs: the backward of each is one call in the graph that is traced of the whole
backward pass, and gradients are eager's, whoever compiles that graph."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo
from torch._dynamo.external_utils import call_backward
from torch.nn import GELU, LayerNorm, Linear, Sequential

import fxjit
from fxjit import surface

torch.manual_seed(0)
MODEL = Sequential(Linear(64, 64), GELU(), LayerNorm(64), Linear(64, 64))
COMPILERS = {
    "as traced": lambda graph: graph,
    "torch's compiler": torch.compile(backend="eager"),
    "torch's compiler, through AOTAutograd": torch.compile(backend="aot_eager"),
    "fxjit": fxjit.compile,
}


@pytest.fixture(autouse=True)
def clean():
    fxjit.reset()
    torch._dynamo.reset()
    yield
    fxjit.uninstall()
    torch._dynamo.reset()


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def gradients(model, x, times=2):
    """Of `times` steps, the second of which adds to what the first left."""
    x = x.clone().requires_grad_()
    for _ in range(times):
        model(x).square().sum().backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


def both(compile_graph):
    """Eager's gradients, and those under compiled autograd with the graphs that it traced."""
    x, traced = torch.randn(8, 64), []
    eager, compiled = copy.deepcopy(MODEL), copy.deepcopy(MODEL)

    def note(graph):
        traced.append(graph)
        return compile_graph(graph)

    with torch._dynamo.compiled_autograd._enable(note):
        found = gradients(fxjit.compile(compiled), x)
    return gradients(eager, x), found, traced


@pytest.mark.parametrize("compiler", COMPILERS)
def test_gradients_under_compiled_autograd(compiler):
    expected, found, traced = both(COMPILERS[compiler])
    assert_close(found, expected)
    assert traced and all(any(node.target is call_backward for node in graph.graph.nodes) for graph in traced)


def test_fullgraph_graphs_of_the_drop_in():
    """The graph that compiled autograd traced may not be an error to a program that did not write it."""
    fxjit.install()
    expected, found, traced = both(lambda graph: torch.compile(graph, fullgraph=True))
    assert_close(found, expected)
    assert traced


def test_a_forward_compiled_outside():
    x, model = torch.randn(8, 64), copy.deepcopy(MODEL)
    loss = fxjit.compile(model)(x).square().sum()
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        loss.backward()
    expected = copy.deepcopy(MODEL)
    expected(x).square().sum().backward()
    assert_close([p.grad for p in model.parameters()], [p.grad for p in expected.parameters()])


def test_the_setting_has_no_effect_and_says_so():
    surface._warn.cache_clear()
    fxjit.install()
    x, model = torch.randn(8, 64), copy.deepcopy(MODEL)
    with pytest.warns(UserWarning, match=r"torch\._dynamo\.config\.compiled_autograd: .*no effect on fxjit"):
        with torch._dynamo.config.patch(compiled_autograd=True):
            found = gradients(torch.compile(model), x)
    assert_close(found, gradients(copy.deepcopy(MODEL), x))


def test_a_node_called_by_hand_takes_gradients_as_they_come():
    x = torch.randn(8, 64, requires_grad=True)
    out = fxjit.compile(copy.deepcopy(MODEL))(x)
    (again,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    node = out.grad_fn
    by_hand = node.apply(torch.ones(8, 64)) if hasattr(node, "_forward_cls") else node(torch.ones(8, 64))
    of_x = [grad for grad in by_hand if isinstance(grad, torch.Tensor) and grad.shape == x.shape]
    assert any(torch.allclose(grad, again, atol=1e-4) for grad in of_x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_the_backward_of_an_eager_model_is_one_graph(backend):
    """The functions that compiled autograd has for autograd's nodes are objects that it allows in graphs."""
    x, expected, found = torch.randn(8, 64), copy.deepcopy(MODEL), copy.deepcopy(MODEL)
    fxjit.counters.clear()
    with torch._dynamo.compiled_autograd._enable(fxjit.compile(backend=backend)):
        actual = gradients(found, x)
    assert_close(actual, gradients(expected, x))
    assert not fxjit.counters["graph_break"] and 1 <= fxjit.counters["stats"]["unique_graphs"] <= 2
