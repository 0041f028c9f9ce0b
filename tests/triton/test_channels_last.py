"""Channels-last images in graphs for a GPU, over CUDA tensors that do not exist: which layouts the pass gives, and that the
graph's numbers are the same. tests/triton/pretended runs whole networks."""

from __future__ import annotations

import pytest
import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit.backends.native.choose.channels_last_on_gpu import use_channels_last_on_gpu
from fxjit.backends.native.decompositions import kept_whole

aten = torch.ops.aten
SAME = [1, 1], [1, 1], [1, 1], False, [0, 0]


@pytest.fixture(autouse=True)
def cudnn(monkeypatch):
    """What cuDNN makes is channels last where its images or the weight are."""

    def layout(x, weight, *how):
        last = torch.channels_last in map(suggest_memory_format, (x, weight))
        return torch.channels_last if last else torch.contiguous_format

    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", layout)


def convolved(x, weight, bias=None, groups=1):
    return aten.convolution.default(x, weight, bias, *SAME, groups)


def backward(grad, x, weight):
    return aten.convolution_backward.default(grad, x, weight, [weight.shape[0]], *SAME, 1, [True, True, True])


def network(x, first, second, third, scale):
    """Convolutions, group norm, pooling and enlarging, with all derivatives of a part of it."""
    y = convolved(x, first)
    z, mean, rstd = aten.native_group_norm.default(y, scale, scale, x.shape[0], 8, x.shape[2] * x.shape[3], 4, 1e-5)
    z = z * z.sigmoid()
    top, _ = aten.max_pool2d_with_indices.default(z, [2, 2], [2, 2])
    low = aten.upsample_nearest2d.default(convolved(top, second), [x.shape[2], x.shape[3]])
    out = convolved(torch.cat([z, low], 1), third)
    grad, of_third, of_bias = backward(out * 2, torch.cat([z, low], 1), third)
    mask = [True, True, True]
    part = aten.clone.default(aten.slice.Tensor(grad, 1, 0, 8), memory_format=torch.contiguous_format)
    of_norm = aten.native_group_norm_backward.default(
        part, y, mean, rstd, scale, x.shape[0], 8, x.shape[2] * x.shape[3], 4, mask)
    return out, of_third, of_bias, *of_norm, out.flatten(1) + 1, out.view(x.shape[0], -1).sum(1)


SHAPES = (2, 3, 8, 8), (8, 3, 3, 3), (8, 8, 3, 3), (4, 16, 3, 3), (8,)


def traced(function, shapes, dtype=torch.float32, device="cuda"):
    with FakeTensorMode(allow_non_fake_inputs=True), kept_whole(False):
        return make_fx(function)(*(torch.empty(shape, device=device, dtype=dtype) for shape in shapes))


def turned(gm):
    """For each convolution whether its images are channels last."""
    found = []
    for target, at in ((aten.convolution.default, 0), (aten.convolution_backward.default, 1)):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            x, weight = (node.args[place].meta["val"] for place in (at, at + 1))
            found.append(x.is_contiguous(memory_format=torch.channels_last))
            assert weight.is_contiguous(memory_format=torch.channels_last) is found[-1]
    return found


def copies(gm):
    """Shapes of what is turned to channels last."""
    nodes = gm.graph.find_nodes(op="call_function", target=aten.clone.default)
    return [tuple(n.meta["val"].shape) for n in nodes if n.kwargs.get("memory_format") is torch.channels_last]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_images_stay_channels_last(dtype):
    plain, gm = (traced(network, SHAPES, dtype) for _ in range(2))
    outputs = [node.meta["val"].stride() for node in plain.graph.output_node().all_input_nodes]
    use_channels_last_on_gpu(gm.graph)
    gm.graph.lint()
    gm.recompile()
    assert turned(gm) == [True] * 4
    # The images and each weight once, and what the graph itself had made plain.
    assert sorted(copies(gm)) == sorted([*SHAPES[:4], (2, 8, 8, 8)])
    assert [node.meta["val"].stride() for node in gm.graph.output_node().all_input_nodes] == outputs
    assert not gm.graph.find_nodes(op="call_function", target=aten.native_group_norm.default)
    assert not gm.graph.find_nodes(op="call_function", target=aten.native_group_norm_backward.default)
    if dtype is torch.float32:  # by the processor's operators, which do not round differently in float64
        given = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
        for ours, eager in zip(gm(*given), plain(*given), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)
            assert ours.stride() == eager.stride()


def left_alone(function, shapes, **options):
    plain, gm = (traced(function, shapes, **options) for _ in range(2))
    use_channels_last_on_gpu(gm.graph)
    return str(plain.graph) == str(gm.graph)


def test_one_convolution_is_turned_by_cudnn():
    assert left_alone(lambda x, weight: convolved(x, weight) * 2, [(2, 8, 16, 16), (8, 8, 3, 3)])


def two(groups):
    def function(x, first, second):
        return convolved(convolved(x, first, groups=groups).relu(), second)

    return function


def test_graphs_of_convolutions_by_channel_are_left_alone():
    assert left_alone(two(8), [(2, 8, 16, 16), (8, 1, 3, 3), (8, 8, 3, 3)])
    assert not left_alone(two(1), [(2, 8, 16, 16), (8, 8, 3, 3), (8, 8, 3, 3)])


def test_what_is_not_cudnns_is_left_alone(monkeypatch):
    shapes = [(2, 8, 18, 18), (8, 8, 3, 3), (8, 8, 3, 3)]  # torch keeps what it found for others
    assert left_alone(two(1), shapes, device="cpu")
    assert left_alone(two(1), shapes, dtype=torch.float64)
    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", lambda *how: torch.contiguous_format)
    assert left_alone(two(1), shapes)


def test_gradients_of_small_windows_are_views():
    """A weight of one pixel by one lies the same either way."""

    def function(grad, x, first, second):
        y = convolved(x, first)
        return *backward(grad, y, second)[:2], convolved(y * 2, first)

    gm = traced(function, [(2, 8, 8, 8), (2, 8, 8, 8), (8, 8, 1, 1), (8, 8, 1, 1)])
    gm.graph.lint()
    expected = [node.meta["val"].stride() for node in gm.graph.output_node().all_input_nodes]
    use_channels_last_on_gpu(gm.graph)
    assert [node.meta["val"].stride() for node in gm.graph.output_node().all_input_nodes] == expected
