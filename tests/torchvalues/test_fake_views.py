"""Views in traced code have eager's strides, those of dimensions of size 1 too: channels-last or not is read from them."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from tests.differential import KERNELS, assert_same_as_eager
from torch._subclasses.fake_tensor import FakeTensorMode

import fxjit.fake_execution  # noqa: F401 - corrects the fake kernels


def random_view(rng: random.Random) -> tuple[torch.Tensor, list[int]]:
    """A tensor, permuted and with odd strides where its size is 1, and another shape with as many elements."""
    x = torch.empty([rng.choice([1, 1, 2, 3, 4]) for _ in range(rng.randint(1, 4))])
    x = x.permute(rng.sample(range(x.dim()), x.dim()))
    if rng.random() < 0.3:
        x = x.as_strided(x.shape, [rng.choice([1, 7]) if size == 1 else stride for size, stride in zip(x.shape, x.stride())])
    shape, left = list[int](), x.numel()
    while left > 1:
        shape.append(rng.choice([each for each in range(1, left + 1) if left % each == 0]))
        left //= shape[-1]
    for _ in range(rng.randint(0, 2)):
        shape.insert(rng.randint(0, len(shape)), 1)
    return x, shape


def test_strides_of_fake_views_are_eagers() -> None:
    rng, mode, compared = random.Random(0), FakeTensorMode(), 0
    for _ in range(600):
        x, shape = random_view(rng)
        for name in ("view", "reshape"):
            try:
                real = getattr(x, name)(shape)
            except RuntimeError:
                continue
            compared += 1
            with mode:
                fake = getattr(mode.from_tensor(x), name)(shape)
            assert fake.stride() == real.stride(), (x.shape, x.stride(), shape)
    assert compared > 600


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_image_made_of_a_sequence(backend: str, gradients: bool) -> None:
    """As attention in an image model: one image is channels-last or not by the stride of its batch."""
    weight, scale = torch.randn(4, 8, 3, 3), torch.ones(8)

    def attend(rows: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        mixed = rows.transpose(1, 2).reshape(image.shape) + image
        return F.conv2d(F.silu(F.group_norm(mixed, 4, scale, scale)), weight)

    for batch in (1, 2):
        rows = torch.randn(batch, 64, 8, requires_grad=gradients)
        assert_same_as_eager(attend, rows, torch.randn(batch, 8, 8, 8), backend=backend, rtol=KERNELS)
