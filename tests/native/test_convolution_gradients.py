"""Derivatives of convolutions by our own kernels, in training: errors, strides, layouts, threads, and numbers that Winograd's
algorithm does not serve."""

from __future__ import annotations

import pytest
import torch
from tests.native.test_own_convolutions import EPSILON, KINDS, LAST, SHAPES, images_of, needs_kernels
from torch import nn
from torch.nn import functional as F

import fxjit
from fxjit import config
from fxjit.backends.native.choose import channels_last, convolution_gradients
from fxjit.backends.native.executor import plan
from fxjit.backends.native.runtime.own_convolutions import Convolution, Kind

pytestmark = needs_kernels


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch):
    """All that our kernels can do is theirs, however small, and listed here as programs are built."""
    seen: list[Convolution] = []

    def always(convolution):
        seen.append(convolution)
        return True

    monkeypatch.setattr(plan, "is_preferred", always)
    monkeypatch.setattr(convolution_gradients, "is_preferred", lambda convolution: True)
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)
    monkeypatch.setattr(channels_last, "work_of_copy", lambda: 0)
    fxjit.reset()
    with config.patch(cache_graphs=False):
        yield seen
    fxjit.reset()


def convolved(x, weight, bias, *how):
    return F.conv2d(x, weight, bias, *how)


def compiled(*args):
    fxjit.reset()
    return fxjit.compile(convolved, fullgraph=True, dynamic=False)(*args)


def gradients(call, gradient, tensors, how):
    """Of the images, the weight and the bias."""
    leaves = [None if each is None else each.detach().clone().requires_grad_() for each in tensors]
    call(*leaves, *how).backward(gradient)
    return [each.grad for each in leaves if each is not None]


def errors(gradient, tensors, how):
    """Of ours and of eager's, relative to what rounding errors are relative to; and whether the strides are eager's."""
    wide = [None if each is None else each.double() for each in tensors]
    true = gradients(convolved, gradient.double(), wide, how)
    scale = gradients(convolved, gradient.double().abs(), [None if each is None else each.abs() for each in wide], how)
    found, eager = (gradients(call, gradient, tensors, how) for call in (compiled, convolved))
    assert [each.stride() for each in found] == [each.stride() for each in eager]
    return [[(mine - one) / size.clamp(min=1e-30) for mine, one, size in zip(each, true, scale, strict=True)]
            for each in (found, eager)]  # fmt: skip


def gradient_of(x, weight, how, kind="normal"):
    gradient = torch.randn_like(F.conv2d(x, weight, None, *how))
    if kind == "one pixel":
        gradient[..., 1:, :] = gradient[..., 1:] = 0
    elif kind == "every second":
        gradient[..., ::2, :] = gradient[..., ::2] = 0
    return gradient


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_errors_are_those_of_eager(ours, shape):
    torch.manual_seed(0)
    images, channels, height, width, results, window, *how = shape
    for last in (False, True):
        x, weight = torch.randn(images, channels, height, width).relu(), torch.randn(results, channels, *window)
        tensors = [x, weight, torch.randn(results) if last else None]
        found, eager = errors(gradient_of(x, weight, how), tensors, how)
        for mine, atens in zip(found, eager, strict=True):
            assert mine.abs().max() <= max(2 * atens.abs().max(), 4 * EPSILON)
            if mine.numel() > 1000:
                assert mine.square().mean() <= max(1.3**2 * atens.square().mean(), (0.35 * EPSILON) ** 2)
    kinds = [each.kind for each in ours]
    assert kinds.count(Kind.OF_WEIGHT) == (0 if window == (1, 1) else 2)
    assert kinds.count(Kind.TRANSPOSED) == (2 if results >= 16 else 0)


@pytest.mark.parametrize("gradient", ["normal", "one pixel", "every second"])
@pytest.mark.parametrize("kind", KINDS)
def test_images_and_gradients_that_differ_much_from_pixel_to_pixel(ours, kind, gradient):
    x, weight, how = images_of(kind).contiguous(), torch.randn(40, 24, 3, 3), (1, 1)
    if kind == "almost too large":
        x *= 1e-2  # the sum over all pixels is finite
    tensors, gradient = [x, weight, None], gradient_of(images_of("tiny"), weight, how, gradient)
    found, eager = errors(gradient, tensors, how)
    (_, mine), (_, atens) = found, eager
    finite = atens.isfinite()
    assert torch.equal(mine.isfinite(), finite)
    if finite.any():
        assert mine[finite].abs().max() <= max(2 * atens[finite].abs().max(), 8 * EPSILON)
    assert [each.kind for each in ours] == [Kind.IN_ONE_GROUP, Kind.TRANSPOSED, Kind.OF_WEIGHT]


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_changes_no_result(ours, threads: int):
    before = torch.get_num_threads()
    x, gradient = torch.rand(3, 64, 25, 26), None
    layers = nn.Sequential(nn.Conv2d(64, 70, 3, padding=1, bias=False), nn.Conv2d(70, 40, 5, 2, bias=False))
    call = fxjit.compile(layers, dynamic=False)
    alone = None
    try:
        for count in (1, threads, threads):
            torch.set_num_threads(count)
            layers.zero_grad()
            leaf = x.clone().requires_grad_()
            y = call(leaf)
            gradient = torch.rand(y.shape, generator=torch.Generator().manual_seed(0))
            y.backward(gradient)
            found = [y.detach(), leaf.grad, *(each.grad.clone() for each in layers.parameters())]
            alone = alone or found
            assert all(map(torch.equal, found, alone))
    finally:
        torch.set_num_threads(before)
    assert [each.kind for each in ours].count(Kind.OF_WEIGHT) == 2


@pytest.mark.parametrize("layout", ["plain", "last", "part"])
def test_gradients_of_weights_lie_as_the_weights_do(ours, layout):
    torch.manual_seed(0)
    x, whole = torch.randn(2, 32, 12, 11), torch.randn(60, 40, 3, 3)
    part = whole[7:31, 4:36]
    weight = {"plain": part.contiguous(), "last": part.contiguous(memory_format=LAST), "part": part}[layout]
    found = []
    for call in (convolved, compiled):
        leaves = [x.clone().requires_grad_(), weight.detach().requires_grad_()]
        call(*leaves, None, 1, 1).square().sum().backward()
        found.append([each.grad for each in leaves])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=2e-3)
        assert mine.stride() == eager.stride()
    if layout != "part":
        assert [each.weight_last for each in ours if each.kind is Kind.OF_WEIGHT] == [layout == "last"]


@pytest.mark.parametrize("how", [(1, 2), (2, 0)], ids=str)
def test_strides_of_windows_of_one_pixel(ours, how):
    for layout in (torch.contiguous_format, LAST):
        x, weight = torch.randn(2, 32, 9, 9).to(memory_format=layout), torch.randn(48, 32, 1, 1)
        found, _ = errors(gradient_of(x, weight, how), [x, weight, None], how)  # which compares strides
        assert all(each.abs().max() <= 4 * EPSILON for each in found)


class Network(nn.Module):
    """Batch and group norms, a residual, a pooling, a step of two, groups, a transposed convolution and one of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.branch = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
                                    nn.Conv2d(32, 32, 3, padding=1, groups=2), nn.Conv2d(32, 32, 1))
        self.down, self.up = nn.Conv2d(32, 48, 3, 2, 1), nn.ConvTranspose2d(48, 32, 3, 1, 1)
        self.last = nn.Conv2d(64, 16, 5, padding=2, dilation=1)

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(x + self.branch(x))
        y = F.interpolate(self.up(F.gelu(self.down(x))), scale_factor=2)
        return F.dropout(self.last(torch.cat([x, y], 1)), 0.0).mean((2, 3))


def test_a_network_trains_as_eager_does(ours):
    torch.manual_seed(0)
    model = Network()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    images, found = torch.randn(2, 3, 24, 24), []
    for call in (model, fxjit.compile(model, fullgraph=True)):
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        x = images.clone().requires_grad_()
        for _ in range(3):
            optimizer.zero_grad()
            call(x).square().sum().backward()
            optimizer.step()
        state_now = [each.clone() for each in model.state_dict().values()]
        found.append([x.grad, *(each.grad for each in model.parameters()), *state_now])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=2e-3, atol=2e-4)
        assert mine.stride() == eager.stride()
    kinds = [each.kind for each in ours]
    assert {Kind.IN_ONE_GROUP, Kind.TRANSPOSED, Kind.OF_WEIGHT} <= set(kinds)


#: Of transposed convolutions: window, stride, padding, output padding, dilation. Steps that no tap falls on, and
#: that divide the dilation.
TRANSPOSED = [
    (3, 1, 1, 0, 1), (3, 1, 0, 0, 1), (5, 1, 6, 0, 2), (2, 1, 0, 0, 1), (2, 2, 0, 0, 1), (4, 2, 1, 0, 1), (3, 2, 1, 1, 1),
    (1, 2, 0, 1, 1), (3, (3, 2), (0, 1), (2, 1), 1), (3, 2, 2, 1, 2), (2, 4, 0, 3, 3), (3, (1, 3), 1, (0, 2), (2, 1)),
    (5, 2, 2, 1, 3),
]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("how", TRANSPOSED, ids=str)
def test_a_transposed_convolution_and_its_derivatives(ours, how):
    torch.manual_seed(0)
    window, stride, padding, more, dilation = how

    def call(x, weight, bias):
        return F.conv_transpose2d(x, weight, bias, stride, padding, more, 1, dilation)

    for layout in (torch.contiguous_format, LAST):
        tensors = torch.randn(2, 20, 9, 10), torch.randn(20, 17, window, window).to(memory_format=layout), torch.randn(17)
        gradient = torch.randn_like(call(*tensors))
        fxjit.reset()
        with torch.no_grad():
            found = [fxjit.compile(call, dynamic=False)(*tensors)]
        fxjit.reset()
        found += gradients(fxjit.compile(call, dynamic=False), gradient, tensors, ())
        eager = [call(*tensors), *gradients(call, gradient, tensors, ())]
        true = gradients(call, gradient.double(), [each.double() for each in tensors], ())
        for mine, one in zip(found, eager, strict=True):
            assert mine.stride() == one.stride()
        torch.testing.assert_close(found[0], eager[0], rtol=1e-4, atol=1e-4)
        for mine, atens, exact in zip(found[1:], eager[1:], true, strict=True):
            assert (mine - exact).norm() <= 1.3 * (atens - exact).norm() + 2 * EPSILON * exact.norm()
    kinds = [each.kind for each in ours]
    assert kinds.count(Kind.TRANSPOSED) == 4
    assert (kinds.count(Kind.IN_ONE_GROUP), kinds.count(Kind.OF_WEIGHT)) == ((2, 2) if window > 1 else (2, 0))


def test_weights_put_together_of_products_have_the_gradients_of_their_parts(ours):
    """As hypernetworks make them. The second part of a weight's gradient lies behind the first in memory, and the products that
    go on from it began where the first does."""
    torch.manual_seed(0)
    x, rows, factor = torch.randn(2, 16, 16, 16), torch.randn(4, 16, 8), torch.randn(8, 144)

    def network(x, rows, factor):
        first, second = (torch.cat([(part @ factor).view(16, 16, 3, 3) for part in pair]) for pair in rows.split(2))
        return F.conv2d(F.conv2d(x, first, padding=1).relu(), torch.cat([second, second], 1), padding=1).square().mean()

    found = []
    for call in (network, fxjit.compile(network, fullgraph=True)):
        leaves = [each.clone().requires_grad_() for each in (rows, factor)]
        call(x, *leaves).backward()
        found.append([each.grad for each in leaves])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-3 * eager.abs().max().item())
    assert Kind.OF_WEIGHT in {each.kind for each in ours}


def test_without_our_kernels_images_stay_as_they_are(ours, monkeypatch):
    monkeypatch.setattr(convolution_gradients, "is_offered", lambda: False)
    x, weight = torch.randn(2, 32, 12, 12), torch.randn(24, 32, 3, 3, requires_grad=True)
    compiled(x, weight, None, 1, 1).sum().backward()
    mine, weight.grad = weight.grad, None
    convolved(x, weight, None, 1, 1).sum().backward()
    torch.testing.assert_close(mine, weight.grad, rtol=1e-4, atol=1e-3)
    assert not ours
