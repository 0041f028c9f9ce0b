"""Backward graphs whose inputs tell sizes only together (`n * m`, `n // 2`): they are compiled, for every size."""

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config


def interleaved(x, size):
    return x.reshape(-1, size, *x.shape[1:]).transpose(0, 1).flatten(0, 1)


#: What is done to the batch, which needs no gradient, and batches of some size.
BATCHES = {
    "a product": (lambda x: x.flatten(0, 1), lambda n: (torch.rand(n, n + 1, 6),)),
    "a quotient": (lambda x: x.reshape(-1, 6), lambda n: (torch.rand(n, 12),)),
    "half": (lambda x: x[: x.shape[0] // 2], lambda n: (torch.rand(2 * n + 1, 6),)),
    "a product and a sum": (
        lambda x, y: torch.cat((x.flatten(0, 1), y)),
        lambda n: (torch.rand(n, n + 1, 6), torch.rand(n + 2, 6)),
    ),
    "a quotient of a sum": (
        lambda x, y: interleaved(torch.cat((x, y, y)), 5),
        lambda n: (torch.rand(n, 6), torch.rand(2 * n, 6)),
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_backward_of_sizes_told_together(name):
    prepare, batch = BATCHES[name]
    layers = torch.nn.Linear(6, 3).double()

    def forward(*batch):
        return F.relu(layers(prepare(*batch)) + 0.3).log_softmax(0).square().mean()

    fxjit.reset()
    with config.patch(small_graphs_as_captured=False):
        compiled = fxjit.compile(forward, backend="native", dynamic=True, fullgraph=True)
        for n in (3, 4, 6):
            inputs = [x.double() for x in batch(n)]
            results = []
            for fn in (forward, compiled):
                layers.zero_grad()
                loss = fn(*inputs)
                loss.backward()
                results.append([loss.detach(), *(parameter.grad.clone() for parameter in layers.parameters())])
            torch.testing.assert_close(results[1], results[0])
    assert not fxjit.counters["run_as_captured"]
