"""e3nn's equivariant layers and Pyro's inference: eager's numbers and gradients, with e3nn's layers in one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


def a_convolution_of_points() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Messages between points: spherical harmonics, weights of a network, a tensor product, a sum for each point, a gate."""
    o3, e3nn_nn = pytest.importorskip("e3nn.o3"), pytest.importorskip("e3nn.nn")
    irreps = o3.Irreps("4x0e + 2x1o + 1x2e")

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.harmonics = o3.Irreps.spherical_harmonics(2)
            self.product = o3.FullyConnectedTensorProduct(irreps, self.harmonics, irreps, shared_weights=False)
            self.weights = e3nn_nn.FullyConnectedNet([1, 8, self.product.weight_numel], torch.relu)
            self.gate = e3nn_nn.NormActivation(irreps, torch.sigmoid)

        def forward(self, x: torch.Tensor, places: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
            edges = places[src] - places[dst]
            harmonics = o3.spherical_harmonics(self.harmonics, edges, normalize=True, normalization="component")
            messages = self.product(x[src], harmonics, self.weights(edges.norm(dim=1, keepdim=True)))
            return self.gate(torch.zeros_like(x).index_add_(0, dst, messages))

    torch.manual_seed(0)
    model, points = Convolution(), 6
    src = torch.arange(20) % points
    dst = (src + 1 + torch.arange(20) // points) % points
    return model, (irreps.randn(points, -1), torch.randn(points, 3), src, dst)


def test_an_equivariant_convolution_is_one_graph():
    model, inputs = a_convolution_of_points()
    compiled = fxjit.compile(model, backend="native", fullgraph=True)
    parameters = list(model.parameters())
    for _ in range(2):
        wanted, found = model(*inputs), compiled(*inputs)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        pairs = [torch.autograd.grad(out.square().sum(), parameters) for out in (found, wanted)]
        torch.testing.assert_close(*pairs, rtol=1e-3, atol=1e-4)
    assert fxjit.counters["stats"]["unique_graphs"] == 1


def steps_of_inference(kind: str, run: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Any]:
    """Losses and parameters of a few steps of stochastic variational inference, `run` applied to the step."""
    pyro = pytest.importorskip("pyro")
    dist = pytest.importorskip("pyro.distributions")
    from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
    from pyro.infer.autoguide import AutoNormal

    def model(x: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, scale), obs=x)

    def guide(x: torch.Tensor) -> None:
        loc = pyro.param("loc", torch.tensor(0.3))
        spread = pyro.param("spread", torch.tensor(0.5), constraint=dist.constraints.positive)
        pyro.sample("mean", dist.Normal(loc, spread))
        pyro.sample("scale", dist.LogNormal(pyro.param("log scale", torch.tensor(0.1)), 0.1))

    pyro.clear_param_store()
    torch.manual_seed(0)
    chosen, loss = {"by hand": (guide, Trace_ELBO()), "mean field": (guide, TraceMeanField_ELBO()),
                    "automatic": (AutoNormal(model), Trace_ELBO())}[kind]
    step = run(SVI(model, chosen, pyro.optim.Adam({"lr": 0.05}), loss).step)
    losses = [step(torch.randn(rows)) for rows in (8, 8, 10)]
    found = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
    pyro.clear_param_store()
    return [losses, found, torch.get_rng_state()]


@pytest.mark.parametrize(("kind", "backend"), [("by hand", "eager"), ("mean field", "eager"), ("automatic", "native")])
def test_steps_of_pyros_inference_are_eagers(kind: str, backend: str):
    wanted = steps_of_inference(kind, lambda step: step)
    found = steps_of_inference(kind, lambda step: fxjit.compile(step, backend=backend))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert fxjit.counters["stats"]["unique_graphs"] > 3
