"""Convolutions in graphs for a GPU, over CUDA tensors that do not exist: which layouts their images get, and that the graph's
numbers are the same. tests/triton/pretended runs whole networks."""

from __future__ import annotations

import pytest
import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit.backends.native.choose.channels_last_on_gpu import use_channels_last_on_gpu
from fxjit.backends.native.decompositions import group_norm_of_last, group_norm_of_last_backward, kept_whole, table

from .conftest import for_gpu, run_interpreted

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


def test_biases_are_sums_of_their_own():
    def function(x, weight, bias, grad):
        return convolved(x, weight, bias), *backward(grad, x, weight)

    shapes = (2, 3, 6, 5), (4, 3, 3, 3), (4,), (2, 4, 6, 5)
    names = aten.convolution.default, aten.convolution_backward.default
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty(shape, device="cuda") for shape in shapes]
        gm = make_fx(function, decomposition_table={name: table()[name] for name in names})(*fake)
    forward, derivative = (next(iter(gm.graph.find_nodes(op="call_function", target=name))) for name in names)
    assert forward.args[2] is None and derivative.args[-1] == [True, True, False]
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    torch.testing.assert_close(gm(*given), function(*given))


def by_pixels(x, scale, shift):
    """A group norm of images whose channels are last, and its derivatives."""
    images = x.permute(0, 3, 1, 2)
    sizes = images.shape[0], images.shape[1], images.shape[2] * images.shape[3], 4
    y, mean, rstd = group_norm_of_last()(images, scale, shift, *sizes, 1e-5)
    return y, mean, rstd, *group_norm_of_last_backward()(y.sin(), images, mean, rstd, scale, *sizes, [True, True, True])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norms_of_channels_last_images(dtype):
    torch.manual_seed(0)
    given = torch.randn(2, 5, 7, 12).to(dtype) + 3, torch.randn(12).to(dtype), torch.randn(12).to(dtype)
    exact = by_pixels(*(each.double() for each in given))
    for ours, eager, right in zip(run_interpreted(by_pixels, *given), by_pixels(*given), exact, strict=True):
        assert ours.dtype is eager.dtype and ours.stride() == eager.stride()
        off, eager_off = (float((each.double() - right).norm()) for each in (ours, eager))
        assert off <= 1.5 * eager_off + 1e-5 * float(right.norm())


def test_group_norms_keep_the_gpu_busy(seen):
    """What few groups normalize is no loop in a kernel of their sums: that would have as few programs."""

    def forward(x, scale, shift):
        images = aten.permute.default(x, [0, 3, 1, 2])
        return group_norm_of_last()(images, scale, shift, 8, 64, 128 * 128, 8, 1e-5)[0]

    for_gpu(forward, (8, 128, 128, 64), (64,), (64,), dtype=torch.bfloat16)
    assert seen.kinds == ["split", "persistent", "persistent"] * 2 + ["pointwise"]
