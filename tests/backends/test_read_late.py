"""Tensors that a `backward` of an `autograd.Function` reads as attributes or globals, and that are written to after forward."""

from __future__ import annotations

import pytest
import torch

import fxjit

MASK = torch.ones(8)


class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * MASK

    @staticmethod
    def backward(ctx, gradient):
        return gradient * MASK


class Kept(torch.autograd.Function):
    """Reads it in forward and in backward in one and the same way."""

    @staticmethod
    def forward(ctx, x, mask, settings):
        ctx.mask = mask
        return x * (mask + 1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.mask + 1) + ctx.mask[0] * ctx.mask.sum(), None, None


class Made(torch.autograd.Function):
    """Keeps what forward made of it, too."""

    @staticmethod
    def forward(ctx, x, mask, settings):
        ctx.mask, ctx.doubled = mask, mask * 2
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask * ctx.doubled, None, None


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.save_for_backward(MASK)
        return x * MASK

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


SETTINGS = object()
PROGRAMS = {
    "global": lambda x, mask: Masked.apply(x.sin()) * 2,
    "result is differentiated": lambda x, mask: Masked.apply(x.sin()).exp().cos(),
    "attribute": lambda x, mask: Kept.apply(x.sin(), mask, SETTINGS).tanh(),
    "saved": lambda x, mask: Saved.apply(x.sin(), SETTINGS),
    "differentiated too": lambda x, mask: Masked.apply(x.sin()) * MASK,
}


def trained(call):
    found = []
    mask = torch.linspace(0, 1, 8)
    for at in range(3):
        MASK.fill_(1)
        x = torch.linspace(-1, 1, 24).view(3, 8).requires_grad_()
        result = call(x, mask)
        MASK[at] = 0
        mask[at] = 5
        try:
            result.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append(torch.tensor(0))
        found += [result.detach(), x.grad]
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_read_as_eager_reads_them(name, backend):
    fxjit.reset()
    found = trained(fxjit.compile(PROGRAMS[name], backend=backend, fullgraph=True))
    torch.testing.assert_close(found, trained(PROGRAMS[name]))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_old_and_new_contents_are_not_mixed_up(backend):
    """A backward graph that would make what forward keeps raises, where eager has both."""
    fxjit.reset()
    compiled = fxjit.compile(lambda x, mask: Made.apply(x.sin(), mask, SETTINGS), backend=backend, fullgraph=True)
    mask, x = torch.ones(8), torch.ones(8, requires_grad=True)
    result = compiled(x, mask)
    mask[0] = 5
    try:
        result.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        torch.testing.assert_close(x.grad, x.detach().cos() * torch.tensor([10.0, *[2.0] * 7]))


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        return x * FACTOR

    @staticmethod
    def backward(ctx, gradient):
        return gradient * FACTOR * (1 + FACTOR), None


FACTOR = 3


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_whole_numbers_that_vary_are_no_tensors(backend, monkeypatch):
    fxjit.reset()
    compiled = fxjit.compile(lambda x: Times.apply(x.sin(), SETTINGS), backend=backend, fullgraph=True)
    for factor in (3, 5, 7):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        x = torch.ones(4, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * factor * (1 + factor))
