"""Transposed convolutions that are matrix products (passes/transposed.py)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.backends.native.passes import transposed

aten = torch.ops.aten
LAYOUTS = {"plain": torch.contiguous_format, "channels last": torch.channels_last}
#: Images, channels, side, results, window, stride, padding, more of the results.
FEW = [(2, 16, 5, 3, 4, 2, 1, 0), (1, 24, 7, 1, 3, 1, 0, 0), (3, 16, 4, 4, 5, 3, 2, 1), (2, 32, 6, 2, 2, 2, 0, 0)]
PIXEL = [(4, 30, 1, 24, 4, 1, 0, 0), (1, 8, 1, 5, 3, 2, 0, 0), (3, 20, 1, 16, 1, 1, 0, 0)]


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch):
    fxjit.reset()
    monkeypatch.setattr(transposed, "WORK", 0)
    with config.patch(small_graphs_as_captured=False):
        yield


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the pass leaves in graphs."""
    found: list[object] = []

    def noted(graph: torch.fx.Graph) -> None:
        transposed.multiply_transposed(graph)
        found.extend(node.target for node in graph.nodes if node.op == "call_function")

    monkeypatch.setattr("fxjit.backends.native.pipeline.PASSES", (noted,))
    return found


def operands(case, layout, *, bias=True, dtype=torch.float32, groups=1):
    images, channels, side, results, window, stride, padding, more = case
    torch.manual_seed(0)
    x = torch.randn(images, channels, side, side, dtype=dtype).to(memory_format=layout)
    weight = torch.randn(channels, results, window, window, dtype=dtype)
    ways = {"stride": stride, "padding": padding, "output_padding": more, "groups": groups}
    return x, weight, torch.randn(results * groups, dtype=dtype) if bias else None, ways


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("case", [*FEW, *PIXEL], ids=str)
def test_results_are_eagers(case, bias, layout, targets):
    x, weight, bias, ways = operands(case, layout, bias=bias)

    def f(x, weight, bias):
        return F.conv_transpose2d(x, weight, bias, **ways)

    with torch.no_grad():
        ours, eager = fxjit.compile(f, fullgraph=True, dynamic=False)(x, weight, bias), f(x, weight, bias)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
    assert all(size == 1 or a == b for size, a, b in zip(eager.shape, ours.stride(), eager.stride(), strict=True))
    assert (aten.mm.default if case in PIXEL else aten.col2im.default) in targets and aten.convolution.default not in targets


@pytest.mark.parametrize("case", [FEW[0], PIXEL[0]], ids=str)
def test_gradients_are_eagers(case):
    x, weight, bias, ways = operands(case, torch.contiguous_format)

    def gradients(call):
        leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
        return torch.autograd.grad(call(*leaves).square().sum(), leaves)

    def f(x, weight, bias):
        return F.conv_transpose2d(x, weight, bias, **ways)

    for ours, eager in zip(gradients(fxjit.compile(f, dynamic=False)), gradients(f), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", ["groups", "float64", "many results", "a stepped view", "padded pixel", "many windows"])
def test_others_stay_convolutions(case, targets, monkeypatch):
    monkeypatch.setattr(transposed, "MOST", 1 << 14)
    layout = torch.contiguous_format
    x, weight, bias, ways = {
        "groups": lambda: operands((2, 32, 5, 2, 3, 2, 1, 0), layout, groups=2),
        "float64": lambda: operands(FEW[0], layout, dtype=torch.float64),
        "many results": lambda: operands((2, 16, 5, 9, 3, 2, 1, 0), layout),
        "a stepped view": lambda: operands(FEW[0], layout),
        "many windows": lambda: operands((2, 16, 40, 3, 4, 2, 1, 0), layout),
        "padded pixel": lambda: operands((2, 16, 1, 9, 4, 1, 1, 0), layout),
    }[case]()
    if case == "a stepped view":
        x = x.repeat(1, 1, 1, 2)[..., ::2]

    def f(x, weight, bias):
        return F.conv_transpose2d(x, weight, bias, **ways)

    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(f, dynamic=False)(x, weight, bias), f(x, weight, bias), rtol=1e-4, atol=1e-4)
    assert aten.convolution.default in targets
