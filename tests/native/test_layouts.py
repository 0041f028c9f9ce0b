"""Results are laid out as eager's kernels lay them out, also where torch's fake tensors promise other strides: what a program
does with them after a graph break needs those, and dropout draws in the order of memory."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.schedule.fuse import Group

TURNED = {"features last": (3, 7, 5), "images turned": (2, 4, 3, 5), "channels last": (2, 4, 5, 3)}


def turned(name: str) -> torch.Tensor:
    x = torch.arange(float(torch.Size(TURNED[name]).numel())).sin().reshape(TURNED[name])
    return x.permute(0, 3, 1, 2) if name == "channels last" else x.transpose(1, 2)


def batch_norm(x):
    return F.batch_norm(x, None, None, training=True)


def frozen_batch_norm(x):
    return F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]))


def dropout_of_batch_norm(x):
    return F.dropout(batch_norm(x))


def rolled(x):
    return x.roll(1, -1), x.roll((1, 2), (0, 1)), x.roll(1)


def found_in(x):
    return torch.isin(x, torch.tensor([0.0, 1.0]))


def shuffled(x):
    return F.channel_shuffle(torch.cat([x, x * 2], 1), 2)


def leaking(x):
    return F.rrelu(x), F.rrelu(x, training=True)


def written_element_by_element(x):
    moved, mixed = x.roll(1, -1), shuffled(x)
    mixed[0] = 1.0
    return moved.mul_(2), mixed, F.relu(batch_norm(x), inplace=True)


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize("function", [
    batch_norm, frozen_batch_norm, dropout_of_batch_norm, rolled, found_in, shuffled, leaking, written_element_by_element,
])  # fmt: skip
def test_the_layout_of_a_result_is_eagers(function, name):
    x = turned(name)
    results = []
    for run in (function, fxjit.compile(function, backend="native", fullgraph=True)):
        torch.manual_seed(0)
        results.append(run(x))
    torch.testing.assert_close(results[1], results[0], check_stride=True)


def test_the_derivative_of_a_batch_norm_in_another_layout():
    x = turned("features last")
    grads = []
    for run in (batch_norm, fxjit.compile(batch_norm, backend="native", fullgraph=True)):
        leaf = x.clone().requires_grad_()
        out = run(leaf)
        grads.append(torch.autograd.grad(out, leaf, torch.arange(float(out.numel())).cos().reshape(out.shape)))
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 4, 0), (0, 4, 3)])
def test_the_derivative_of_a_group_norm_of_nothing(shape):
    """torch 2.15 refuses some of these shapes, which torch 2.13 takes."""
    def normalized(x, weight, bias):
        return F.group_norm(x * 2, 2, weight, bias)

    def gradients(run):
        inputs = [torch.ones(size).requires_grad_() for size in (shape, shape[1], shape[1])]
        return torch.autograd.grad(run(*inputs).sum(), inputs)

    compiled = fxjit.compile(normalized, backend="native")
    try:
        wanted = gradients(normalized)
    except RuntimeError as refusal:
        with pytest.raises(RuntimeError, match=re.escape(str(refusal))):
            gradients(compiled)
        return
    torch.testing.assert_close(gradients(compiled), wanted, equal_nan=True)


@pytest.mark.parametrize("loss", [F.mse_loss, F.huber_loss, F.smooth_l1_loss, F.l1_loss, F.soft_margin_loss,
                                  F.binary_cross_entropy_with_logits])  # fmt: skip
def test_the_derivative_of_a_loss_of_nothing(loss):
    def of_nothing(x, y):
        return loss(x * 2, y)

    results = []
    for run in (of_nothing, fxjit.compile(of_nothing, backend="native", fullgraph=True)):
        x = torch.ones(0, 3, requires_grad=True)
        out = run(x, torch.ones(0, 3))
        results.append((out.detach(), *torch.autograd.grad(out, x)))
    torch.testing.assert_close(results[1], results[0], equal_nan=True)


def test_a_view_after_a_graph_break():
    def flat(x):
        return batch_norm(x).view(x.shape[0], -1)

    x = turned("features last")
    torch.testing.assert_close(fxjit.compile(flat, backend="native")(x), flat(x))


def test_images_times_a_number_of_each_channel_stay_in_their_order(monkeypatch):
    """Squeeze and excite: what makes a number of each channel goes along rows, the images along pixels, whose channels lie side
    by side. One kernel of both would step over all channels from pixel to pixel."""
    steps = []
    fuse = pipeline.fuse
    monkeypatch.setattr(pipeline, "fuse", lambda *args: steps.extend(made := fuse(*args)) or made)
    x = torch.randn(2, 24, 9, 7).to(memory_format=torch.channels_last)
    weight = torch.randn(24, 6)

    def f(x, few):
        return x * (few[:, None] * weight).sum(-1).sigmoid()[:, :, None, None]

    few = torch.randn(2, 6)
    with torch.no_grad(), config.patch(small_graphs_as_captured=False):
        torch.testing.assert_close(fxjit.compile(f, dynamic=False)(x, few), f(x, few))
    groups = [step for step in steps if isinstance(step, Group)]
    writers = [group for group in groups for member in group.members if member.compute.out.size == (2, 24, 9, 7)]
    assert [step.reducing for step in writers] == [False]


@pytest.mark.parametrize("channels", [32, 48, 128, 512])
def test_loops_that_step_by_powers_of_two_are_vectors(channels: int, sources) -> None:
    """GCC makes none where it sees the step: GELU and a transpose of 128 channels had a sixth of eager's speed."""
    x = torch.randn(2, 96, channels)

    def f(x):
        return F.gelu(x).transpose(1, 2).contiguous(), (x * 1.5).transpose(1, 2).contiguous()

    with torch.no_grad(), config.patch(small_graphs_as_captured=False):
        for ours, eager in zip(fxjit.compile(f, dynamic=False)(x), f(x), strict=True):
            torch.testing.assert_close(ours, eager)
            assert ours.stride() == eager.stride()
    assert (f"fx_hidden<int64_t>({channels})" in sources[0]) == (channels != 48)


@pytest.mark.parametrize(("dtype", "step", "hidden"), [
    (torch.bfloat16, 32, True), (torch.float16, 64, True), (torch.uint8, 64, True), (torch.bfloat16, 48, False),
    (torch.bfloat16, 16, False), (torch.float32, 64, False),
])
def test_light_loops_over_narrow_types_step_by_powers_of_two(dtype: torch.dtype, step: int, hidden: bool, sources) -> None:
    """A transpose of 64 x 64 of bfloat16 had less than half of eager's speed."""
    x = (torch.randn(5, 40, step) * 9).to(dtype)

    def f(x):
        return (x + x).transpose(1, 2).contiguous()

    with torch.no_grad(), config.patch(small_graphs_as_captured=False):
        ours = fxjit.compile(f, backend="native", dynamic=False)(x)
    torch.testing.assert_close(ours, f(x), rtol=0, atol=0)
    assert ours.stride() == f(x).stride()
    assert (f"fx_hidden<int64_t>({step})" in sources[0]) == hidden


def test_columns_that_step_by_powers_of_two(assert_kernels_same) -> None:
    x = torch.randn(7, 40, 64)

    def f(x):
        return F.silu(x)[:, :, ::32].sum(1), (F.silu(x) * x).transpose(1, 2).sum(1), F.gelu(x)[..., ::16]

    assert_kernels_same(f, x)
