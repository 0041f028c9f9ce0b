"""Convolutions of volumes that are compiled as those of images of several frames, where that was measured to be faster."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fxjit
from fxjit import config
from fxjit.backends.native.choose import channels_last, volumes
from fxjit.backends.native.passes import frames
from fxjit.backends.native.passes.stacked_frames import Place, stack_of
from fxjit.counters import counters

aten = torch.ops.aten


@pytest.fixture
def by_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are faster by images, and of enough work."""
    monkeypatch.setattr(volumes, "speedup", lambda *_: 2.0)
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)
    monkeypatch.setattr(channels_last, "work_of_copy", lambda: 0)
    fxjit.reset()


#: Frames of the volume, window, stride, padding, dilation.
WINDOWS = [
    (7, (3, 3, 3), 1, 1, 1), (7, (3, 3, 3), 2, 1, 1), (6, (3, 3, 3), (2, 1, 1), 1, 1), (1, (3, 3, 3), 1, 1, 1),
    (2, (3, 3, 3), 2, 1, 1), (5, (2, 3, 1), 1, 0, 1), (7, (2, 2, 2), 2, 0, 1), (4, (5, 1, 3), 1, (2, 0, 1), 1),
    (7, (3, 1, 3), 3, (1, 0, 2), 1), (9, (3, 3, 3), 1, 2, 2), (3, (3, 3, 3), 1, 0, 1), (2, (5, 3, 3), 1, (2, 1, 1), 1),
]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.usefixtures("by_images")
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(("count", "window", "stride", "padding", "dilation"), WINDOWS, ids=str)
def test_windows_of_all_kinds_are_as_in_eager(count, window, stride, padding, dilation, images):
    torch.manual_seed(0)
    given = torch.randn(images, 16, count, 9, 8), torch.randn(18, 16, *window), torch.randn(18)

    def call(x, weight, bias):
        return F.relu(F.conv3d(F.relu(x), weight, bias, stride, padding, dilation)) + 1

    found = []
    for function in (call, fxjit.compile(call, fullgraph=True, dynamic=False)):
        leaves = [each.clone().requires_grad_() for each in given]
        made = function(*leaves)
        (made * torch.linspace(-1, 1, made.numel()).view_as(made)).sum().backward()
        with torch.no_grad():
            found.append([made.detach(), function(*given), *(each.grad for each in leaves)])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4 * max(1.0, float(eager.abs().max())))
        assert mine.stride() == eager.stride()


def _graph(call: Any, *given: torch.Tensor) -> torch.fx.GraphModule:
    """The ATen graph of a call, its volumes turned and convolved by images."""
    gm = make_fx(call, tracing_mode="fake")(*given)
    gm.graph.eliminate_dead_code()
    channels_last.use_channels_last(gm.graph)
    volumes.convolve_volumes(gm.graph)
    gm.recompile()
    return gm


def _dims(gm: torch.fx.GraphModule) -> list[int]:
    targets = aten.convolution.default, aten.convolution_backward.default
    return [node.args[0].meta["val"].dim() for node in gm.graph.nodes if node.target in targets]


@pytest.mark.usefixtures("by_images")
def test_what_images_of_several_frames_would_fill_memory_with_is_made_in_pieces(monkeypatch):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 9, 8, 8), torch.randn(20, 16, 3, 3, 3)
    monkeypatch.setattr(frames, "PIECE", 2 * 3 * 16 * 8 * 8 * 3)  # three frames of each volume

    def call(x, weight):
        return F.conv3d(x, weight, padding=1)

    gm = _graph(call, x, weight)
    assert _dims(gm) == [4, 4, 4]
    torch.testing.assert_close(gm(x, weight), call(x, weight), rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("by_images")
def test_a_derivative_whose_images_would_fill_memory_stays_one_of_volumes(monkeypatch):
    monkeypatch.setattr(volumes, "MOST_NUMBERS", 1000)
    x, weight = torch.randn(1, 16, 4, 8, 8, requires_grad=True), torch.randn(20, 16, 3, 3, 3)
    gm = _graph(lambda x, weight: torch.autograd.grad(F.conv3d(x, weight).square().sum(), [x]), x, weight)
    assert sorted(_dims(gm)) == [4, 5]


@pytest.mark.usefixtures("by_images")
@pytest.mark.parametrize("call", [
    lambda x, weight: F.conv_transpose3d(x, weight[:, :16]), lambda x, weight: F.conv3d(x, weight[:, :4], groups=4),
    lambda x, weight: F.conv3d(x.double(), weight.double())], ids=["transposed", "groups", "float64"])  # fmt: skip
def test_other_convolutions_stay_those_of_volumes(call):
    x, weight = torch.randn(2, 16, 6, 7, 8), torch.randn(16, 16, 3, 3, 3)
    gm = _graph(call, x, weight)
    assert _dims(gm) == [5]
    torch.testing.assert_close(gm(x, weight), call(x, weight), rtol=1e-4, atol=1e-3)


class Network(nn.Module):
    """A residual block of volumes with norms, steps and a pool, as video and medical models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(3, 16, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(16)
        self.one, self.two = nn.Conv3d(16, 24, 3, 2, 1), nn.Conv3d(24, 24, 3, padding=1)
        self.beside, self.last = nn.Conv3d(16, 24, 1, 2), nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.two(F.relu(self.one(x))) + self.beside(x))
        return self.last(x.mean((2, 3, 4)))


@pytest.mark.usefixtures("by_images")
def test_a_network_trains_as_in_eager():
    torch.manual_seed(0)
    model, x = Network(), torch.randn(2, 3, 6, 16, 16)
    found = []
    for compiles in (False, True):
        module = copy.deepcopy(model)
        call = fxjit.compile(module, fullgraph=True, dynamic=False) if compiles else module
        optimizer = torch.optim.SGD(module.parameters(), 0.01)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(x).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found.append([*losses, *module.parameters(), *module.buffers()])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-3)
        assert mine.stride() == eager.stride()


def test_places_of_a_window_that_look_beside_the_volume_alone_are_left_out():
    x, weight = torch.empty(1, 4, 1, 8, 8), torch.empty(4, 4, 3, 3, 3)
    ones = [(1, 1, 1)] * 3
    stack = stack_of(x, weight, ones, 1)
    assert stack is not None and stack.places == (Place(1, 0, 0, 0),)
    stack = stack_of(torch.empty(1, 4, 5, 8, 8), weight, ones, 1)
    assert stack is not None
    assert [(each.first, each.last, each.start) for each in stack.places] == [(1, 4, 0), (0, 4, 0), (0, 3, 1)]


@pytest.mark.parametrize(("size", "theirs"), [((1, 16, 4, 8, 8), False), ((2, 16, 4, 8, 8), True), ((1, 16, 48, 48, 48), True)])
def test_beside_onednn_images_are_made_only_where_a_cache_holds_them(monkeypatch, size: tuple[int, ...], theirs: bool):
    x, weight, ways = torch.empty(size), torch.empty(16, 16, 3, 3, 3), ([1, 1, 1], [1, 1, 1], [1, 1, 1])
    trial = volumes.trial_of(x, weight, ways)
    assert trial.onednn is theirs
    assert volumes.speedup(x, weight, ways) == (0 if theirs else volumes.MARGIN)  # as long as no measurement may decide
    monkeypatch.setattr(config, "measure_machine", True)
    monkeypatch.setattr(volumes, "_measured", {trial: (1000, 100)})
    assert volumes.speedup(x, weight, ways) == (0 if size[-1] == 48 else 10)
    monkeypatch.setattr(volumes, "MOST_BESIDE_ONEDNN", 0)
    assert volumes.speedup(x, weight, ways) == (0 if theirs else 10)


def test_both_ways_are_measured_by_what_each_library_does():
    for size in ((1, 16, 4, 8, 8), (2, 16, 4, 8, 8)):
        trial = volumes.trial_of(torch.empty(size), torch.empty(24, 16, 3, 3, 3), ([1, 1, 1], [1, 1, 1], [1, 1, 1]))
        assert all(each > 0 for each in volumes.measure(trial))


def test_each_is_measured_once_and_what_was_found_is_kept(tmp_path, monkeypatch):
    x, weight, ways = torch.empty(1, 4, 9, 8, 8), torch.empty(4, 4, 3, 3, 3), ([1, 1, 1], [1, 1, 1], [1, 1, 1])
    trial = volumes.trial_of(x, weight, ways)
    assert trial.volume == (1, 4, volumes.MOST_FRAMES, 8, 8)
    with config.patch(cache_dir=str(tmp_path), measure_machine=True):
        before = counters["native"]["convolutions of volumes compared"]
        for _ in range(2):  # two processes
            monkeypatch.setattr(volumes, "_measured", {})
            volumes.speedup(x, weight, ways)
        assert counters["native"]["convolutions of volumes compared"] == before + 1


@pytest.mark.parametrize(("times", "faster"), [((100, 100), False), ((105, 100), False), ((120, 100), True)])
def test_what_decides_is_how_much_faster_images_are(monkeypatch, times: tuple[int, int], faster: bool):
    x, weight, ways = torch.empty(1, 16, 4, 8, 8), torch.empty(16, 16, 3, 3, 3), ([1, 1, 1], [1, 1, 1], [1, 1, 1])
    monkeypatch.setattr(config, "measure_machine", True)
    monkeypatch.setattr(volumes, "_measured", {volumes.trial_of(x, weight, ways): times})
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)
    gm = _graph(lambda x, weight: F.conv3d(x, weight, padding=1), x, weight)
    assert _dims(gm) == [4 if faster else 5]
