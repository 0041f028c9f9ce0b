"""Channels-last images in graphs with large convolutions: eager's numbers, strides, gradients and random numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxjit
from fxjit import config, counters
from fxjit.backends.native import pipeline
from fxjit.backends.native.choose import channels_last
from fxjit.backends.native.executor.convolutions import is_last
from fxjit.backends.native.lower.table import meta_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    """For each convolution that is compiled whether its images are channels last; all of them are large enough."""
    found: list[bool] = []
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)
    monkeypatch.setattr(channels_last, "work_of_copy", lambda: 0)
    inner = pipeline.use_channels_last

    def use(graph):
        inner(graph)
        for node in graph.nodes:
            if node.target is aten.convolution.default:
                found.append(is_last(meta_of(node.args[0])))

    monkeypatch.setattr(pipeline, "use_channels_last", use)
    return found


class Squeeze(nn.Module):
    """Squeeze and excite around a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.down, self.up = nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.deep(x))
        return x * self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


class Levels(nn.Module):
    """Down and up again: pooling, a transposed convolution, upsampling, what was before beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.back, self.last, self.norm = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(20, 5, 1), nn.GroupNorm(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = F.silu(self.norm(self.first(x)))
        low = self.inner(F.max_pool2d(top, 2))
        return self.last(torch.cat([top, self.back(low), F.interpolate(low, scale_factor=2)], 1))


class Patches(nn.Module):
    """Patches as rows, normalised, with attention among them."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norm, self.out = nn.Conv2d(3, 12, 4, 4), nn.LayerNorm(12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(self.cut(x).flatten(2).transpose(1, 2))
        return self.out(F.scaled_dot_product_attention(rows, rows, rows)) + rows.view(1, -1, 6).sum(1)


class Ways(nn.Module):
    """Views, and calls that read strides or draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.last = nn.Conv2d(8, 4, 3, padding=1, padding_mode="circular")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.dropout(self.first(x), 0.4, self.training)
        noise = torch.rand_like(y) if not self.training else y.detach()
        z = self.last(y + noise)
        batch, rows = z.view(1, 8, 16, 16) * 2, z.permute(0, 2, 3, 1).flatten(1, 2) + 1
        return z.view(z.shape[0], -1), z.as_strided((2, 3), (1, 2), 5) * 2, batch, rows, y.amax((2, 3)), z[:, 1] * 2


class Parts(nn.Module):
    """Attention whose queries, keys and values are parts of one convolution's results, in other shapes: views that
    channels-last strides do not allow, of what begins later in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, 24, 3, 4, 1), nn.Conv2d(8, 6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.into(x)
        q, k, v = y.view(y.shape[0], 2, 12, -1).transpose(-1, -2).chunk(3, -1)
        z = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(-1, -2).reshape(y.shape[0], 8, *y.shape[2:])
        return self.out(z), v.transpose(-1, -2).sum(0), y[1:, 8:].view(-1)[3:] * 2


def block() -> nn.Module:
    def conv(channels: int, results: int, window: int, step: int = 1) -> nn.Module:
        layer = nn.Conv2d(channels, results, window, step, window // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(results), nn.ReLU())

    return nn.Sequential(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), conv(8, 16, 1), conv(16, 16, 3, 2), nn.AvgPool2d(2),
                         nn.Flatten(1), nn.Linear(16, 5))


NETWORKS = {
    "block": block, "levels": Levels, "parts": Parts, "patches": Patches, "ways": Ways,
    "squeeze": lambda: nn.Sequential(nn.Conv2d(3, 8, 1), Squeeze(), nn.Conv2d(8, 6, 3, groups=2)),
}  # fmt: skip


class Norms(nn.Module):
    """Group norms, whose sizes the graph reads, and rows of pixels beside plain images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.rows = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.Linear(8, 8)
        self.last, self.layer = nn.Conv2d(8, 8, 3, 2, 1), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        x = x + self.rows(self.layer(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.last(x).flatten(2).mean(-1, keepdim=True) + self.last(x).flatten(2)


def pooled() -> nn.Module:
    return nn.Sequential(*block()[:-3], nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16, 5))  # type: ignore[index]


VARYING = {"norms": Norms, "pooled": pooled}
#: Batches and sides of images, the first two of which make a graph for more.
SIZES = {
    "pooled": [(2, 16, 16), (3, 24, 40), (5, 40, 32), (4, 30, 24), (2, 10, 19), (2, 64, 8)],
    "levels": [(2, 16, 16), (3, 24, 20), (5, 8, 12), (4, 34, 10), (2, 2, 6), (3, 4, 2)],
    "parts": [(2, 16, 16), (2, 24, 32), (2, 40, 64), (2, 36, 28), (2, 5, 9), (2, 3, 4)],
    "patches": [(2, 16, 16), (4, 24, 20), (6, 8, 12), (8, 35, 10), (2, 4, 6), (2, 4, 4)],
    "squeeze": [(2, 16, 16), (3, 24, 20), (5, 9, 13), (4, 33, 7), (2, 5, 6), (3, 6, 5)],
    "norms": [(2, 16, 16), (3, 24, 20), (5, 9, 13), (4, 33, 7), (2, 2, 6), (3, 2, 2)],
}


def results(call, module, x, training):
    module.train(training)
    torch.manual_seed(3)
    with torch.set_grad_enabled(training):
        given = x.clone().requires_grad_(training)
        out = call(given)
    out = list(out) if isinstance(out, tuple) else [out]
    if training:
        sum((each * torch.linspace(-1, 1, each.numel()).view(each.shape)).sum() for each in out).backward()
        out += [given.grad, *(parameter.grad for parameter in module.parameters())]
    return [*out, *module.buffers()]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [False, True])
def test_networks(name, training, seen):
    torch.manual_seed(0)
    module = NETWORKS[name]()
    other, x = copy.deepcopy(module), torch.randn(2, 3, 16, 16)
    expected, got = results(module, module, x, training), results(fxjit.compile(other), other, x, training)
    for eager, ours in zip(expected, got, strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-4, atol=2e-4)
        assert all(size == 1 or a == b for size, a, b in zip(eager.shape, eager.stride(), ours.stride(), strict=True))
    assert training or (seen and all(seen))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [False, True])
def test_networks_of_bfloat16(name, training, seen):
    """As near to the results in float64 as eager's."""
    torch.manual_seed(0)
    module = NETWORKS[name]().bfloat16()
    other, exact, x = copy.deepcopy(module), copy.deepcopy(module).double(), torch.randn(2, 3, 16, 16).bfloat16()
    if name == "ways" and not training:  # random numbers of another type are others
        exact = copy.deepcopy(module)
    expected, got = results(module, module, x, training), results(fxjit.compile(other), other, x, training)
    true = results(exact, exact, x.to(next(exact.parameters()).dtype), training)
    for eager, ours, right in zip(expected, got, true, strict=True):
        away = (eager - right).abs().max().item()
        assert (ours - right).abs().max().item() <= 2 * away + 0.02 * right.abs().max().item() + 1e-3
        assert ours.dtype is eager.dtype
        assert all(size == 1 or a == b for size, a, b in zip(eager.shape, eager.stride(), ours.stride(), strict=True))
    assert training or (seen and all(seen))


def test_places_in_the_memory_of_a_part_are_those_of_plain_images(seen):
    conv = nn.Conv2d(3, 4, 3)

    def f(x):
        return conv(x)[1].view(2, -1)[1:].as_strided((2, 2), (1, 3), 7) * 2

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(f)(x), f(x))


def test_results_in_one_memory_stay_there(seen):
    conv = nn.Conv2d(3, 4, 3)

    def f(x):
        y = conv(x).relu()
        return y, y.flatten(1), y[0]

    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected, got = f(x), fxjit.compile(f)(x)
    torch.testing.assert_close(got, expected)
    assert len({each.untyped_storage().data_ptr() for each in got}) == 1


def test_written_inputs(seen):
    conv = nn.Conv2d(3, 3, 3, padding=1)

    def f(x, total):
        total.add_(conv(x).tanh())
        return total.sum(1)

    x = torch.randn(2, 3, 8, 8)
    ours, eager = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(f)(x, ours), f(x, eager))
    torch.testing.assert_close(ours, eager)
    assert ours.stride() == eager.stride() and seen == [True]


@pytest.mark.sweep(2)
@pytest.mark.compiles
@pytest.mark.parametrize("name", ["block", "levels", "patches", "squeeze"])  # the others are of two images
@pytest.mark.parametrize("training", [False, True])
def test_batches_that_vary(name, training, seen, caplog):
    torch.manual_seed(0)
    module = NETWORKS[name]()
    other = copy.deepcopy(module)
    compiled = fxjit.compile(other)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 16, 16)
        for each in (module, other):
            each.zero_grad()
        for eager, ours in zip(results(module, module, x, training), results(compiled, other, x, training), strict=True):
            torch.testing.assert_close(ours, eager, rtol=5e-4, atol=5e-4)
            assert all(size == 1 or a == b for size, a, b in zip(eager.shape, eager.stride(), ours.stride(), strict=True))
    assert not caplog.records
    if not training:
        convolutions = sum(isinstance(each, nn.Conv2d | nn.ConvTranspose2d) for each in module.modules())
        assert any(seen[-convolutions:])  # of the graph for all batches, the last one


@pytest.mark.sweep(5)
@pytest.mark.compiles
@pytest.mark.parametrize("name", ["levels", "norms", "parts", "patches", "pooled", "squeeze"])
@pytest.mark.parametrize("training", [False, True])
def test_sides_that_vary(name, training, seen, caplog):
    """Odd and tiny ones too: down to one pixel, whose strides say nothing of a layout."""
    torch.manual_seed(0)
    module = (NETWORKS | VARYING)[name]()
    other = copy.deepcopy(module)
    compiled = fxjit.compile(other)
    for number, sizes in enumerate(SIZES[name]):
        if number < 2:
            del seen[:]
        x = torch.randn(sizes[0], 3, *sizes[1:])
        for each in (module, other):
            each.zero_grad()
        for eager, ours in zip(results(module, module, x, training), results(compiled, other, x, training), strict=True):
            torch.testing.assert_close(ours, eager, rtol=5e-4, atol=5e-4)
            assert all(size == 1 or a == b for size, a, b in zip(eager.shape, eager.stride(), ours.stride(), strict=True))
        if number == 1:
            assert training or any(seen)  # in the graph for more sizes
    assert not any("could not be compiled" in record.getMessage() for record in caplog.records)


@pytest.mark.compiles
def test_a_guard_that_is_not_needed_is_not_added(seen):
    """What is asked about a layout is answered for sizes in general."""

    def asking(x):
        return conv(x).relu()

    conv = nn.Conv2d(3, 8, 3)
    compiled = fxjit.compile(asking)
    before = counters["frames"]["ok"]
    with torch.no_grad():
        for sizes in ((2, 3, 9, 9), (3, 3, 12, 10), (17, 3, 4, 40), (4, 3, 7, 5), (5, 3, 30, 6)):
            x = torch.randn(sizes)
            torch.testing.assert_close(compiled(x), asking(x), rtol=1e-4, atol=1e-5)
    assert counters["frames"]["ok"] - before == 2 and all(seen)


@pytest.mark.compiles
def test_a_question_without_an_answer_leaves_the_graph_as_it_was(seen, monkeypatch):
    calculated = channels_last.Rewriter.calculated

    def asking(self, node):
        if node.target is aten.relu.default and not isinstance(batch := meta_of(node).shape[0], int):
            assert int(batch) > 0
        return calculated(self, node)

    monkeypatch.setattr(channels_last.Rewriter, "calculated", asking)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    compiled = fxjit.compile(module)
    with torch.no_grad():
        for batch in (2, 4, 17):
            x = torch.randn(batch, 3, 9, 9)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert len(seen) == 4 and not all(seen[2:])


def test_small_convolutions_are_as_they_were(seen, monkeypatch):
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 1 << 40)
    with torch.no_grad():
        fxjit.compile(nn.Conv2d(3, 4, 3))(torch.randn(2, 3, 8, 8))
        fxjit.compile(nn.Conv2d(3, 4, 3), dynamic=True)(torch.randn(2, 3, 8, 8))
    assert seen == [False, False]


def test_images_that_would_be_copied_often_stay_as_they_are(monkeypatch: pytest.MonkeyPatch):
    """Instance norm's operator and the paddings take plain images only."""
    blocks = ([nn.ReflectionPad2d(1), nn.Conv2d(16, 16, 3), nn.InstanceNorm2d(16)] for _ in range(3))
    layers = nn.Sequential(*(layer for block in blocks for layer in block))
    x = torch.randn(1, 16, 24, 24)
    seen = []
    undo = channels_last.Rewriter.undo

    def undone(rewriter):
        before = [each.name for each in rewriter.graph.nodes if each not in set(rewriter.copies.values())]
        undo(rewriter)
        assert [each.name for each in rewriter.graph.nodes] == before
        rewriter.graph.lint()
        assert not any(
            made.is_contiguous(memory_format=torch.channels_last) for node in rewriter.turned
            if isinstance(made := node.meta["val"], torch.Tensor)
        )
        seen.append(rewriter)

    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)

    monkeypatch.setattr(channels_last, "work_of_copy", lambda: 0)
    monkeypatch.setattr(channels_last.Rewriter, "undo", undone)
    for work, count in ((10_000, 2), (0, 2)):
        monkeypatch.setattr(channels_last, "work_of_copy", lambda: work)
        fxjit.reset()
        with config.patch(cache_graphs=False, small_graphs_as_captured=False):
            call = fxjit.compile(layers, dynamic=False)
            found = []
            for function in (layers, call):
                leaf = x.clone().requires_grad_()
                layers.zero_grad()
                y = function(leaf)
                y.square().sum().backward()
                with torch.no_grad():
                    found.append([y.detach(), function(x), leaf.grad, *(each.grad for each in layers.parameters())])
        for eager, mine in zip(*found, strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-3)
            assert mine.stride() == eager.stride()
        assert len(seen) == count
