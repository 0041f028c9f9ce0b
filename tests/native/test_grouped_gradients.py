"""Gradients of the weights of convolutions in groups, as products of each group (passes/grouped_gradients.py)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import fxjit
from fxjit.backends.native import pipeline

aten = torch.ops.aten
BACKWARD = aten.convolution_backward.default
#: Images, groups, channels and results of each, side, window, stride, padding, dilation.
FEW = [(1, 16, 24, 24, 1, 3, 1, 1, 1), (1, 8, 5, 7, 4, 3, 1, 1, 1), (1, 4, 6, 9, 5, 3, 2, 1, 1), (4, 3, 5, 4, 2, 3, 1, 1, 1),
       (2, 3, 4, 8, 6, 3, 1, 0, 2), (1, 6, 16, 8, 3, 1, 1, 0, 1), (1, 5, 3, 2, 1, 5, 2, 2, 1)]  # fmt: skip
#: Of more pixels, and with one result a group.
LEFT = [(1, 4, 6, 8, 5, 3, 1, 1, 1), (8, 4, 6, 8, 2, 3, 1, 1, 1), (1, 12, 1, 1, 2, 3, 1, 1, 1)]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many gradients of convolutions' weights each graph has behind the passes."""
    counts: list[int] = []

    def count(graph: torch.fx.Graph) -> None:
        counts.append(sum(node.target is BACKWARD and node.args[-1][1] for node in graph.nodes))

    monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES, count))
    fxjit.reset()
    with fxjit.config.patch(small_graphs_as_captured=False, cache_graphs=False):
        yield counts
    fxjit.reset()


def gradient_of(gradients, x, weight, ways, groups):
    return aten.convolution_backward(gradients, x, weight, None, *ways, False, [0, 0], groups, [False, True, False])[1]


def operands(case, dtype=torch.float32):
    images, groups, channels, results, side, window, stride, padding, dilation = case
    x = torch.rand(images, groups * channels, side, side, dtype=dtype) - 0.5
    weight = torch.empty(groups * results, channels, window, window, dtype=dtype)
    out = (side + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    gradients = torch.rand(images, groups * results, out, out, dtype=dtype) - 0.5
    return gradients, x, weight, ([stride] * 2, [padding] * 2, [dilation] * 2), groups


@pytest.mark.parametrize("case", [*FEW, *LEFT], ids=str)
def test_gradients_are_those_of_float64(left, case):
    given = operands(case)
    found = fxjit.compile(gradient_of, fullgraph=True)(*given)
    assert left == [int(case in LEFT)]
    true = gradient_of(*(each.double() for each in given[:3]), *given[3:])
    eager = gradient_of(*given)
    assert found.stride() == eager.stride() and found.dtype is eager.dtype
    torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_types_are_atens(left, dtype):
    given = operands(FEW[1], dtype)
    torch.testing.assert_close(fxjit.compile(gradient_of)(*given), gradient_of(*given), rtol=0, atol=0)
    assert left == [1]


def test_channels_last_images_are_atens(left):
    gradients, x, *rest = operands(FEW[3])
    given = gradients, x.to(memory_format=torch.channels_last), *rest
    found, eager = fxjit.compile(gradient_of)(*given), gradient_of(*given)
    torch.testing.assert_close(found, eager)
    assert left == [1] and found.stride() == eager.stride()


def test_gradients_of_each_sample(left):
    """Of differential privacy: no loss of the batch, but a gradient of each image, in one graph with their norms."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.Flatten(),
                          nn.Linear(64, 4))
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    images, targets = torch.rand(5, 3, 8, 8), torch.tensor([0, 3, 1, 1, 2])

    def loss(parameters, image, target):
        return nn.functional.cross_entropy(functional_call(model, parameters, (image[None],)), target[None])

    def clipped(images, targets):
        each = vmap(grad(loss), (None, 0, 0))(parameters, images, targets)
        norms = torch.stack([one.flatten(1).norm(dim=1) for one in each.values()]).norm(dim=0)
        return {name: torch.einsum("i,i...", 1 / norms, one) for name, one in each.items()}

    found, eager = fxjit.compile(clipped, fullgraph=True)(images, targets), clipped(images, targets)
    assert left == [0]
    for name, one in eager.items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)
