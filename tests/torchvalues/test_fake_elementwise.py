"""Elementwise results in traced code have eager's strides, those of dimensions of size 1 too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import KERNELS, assert_same_as_eager
from torch._subclasses.fake_tensor import FakeTensorMode

import fxjit.fake_execution  # noqa: F401 - corrects the fake kernels

#: Sizes and strides, which are odd where the size is 1.
LAYOUTS = {
    "one channel, last": ((5, 1, 3, 4), (12, 1, 4, 1)),
    "one image, of a sequence": ((1, 2, 3, 4), (1, 1, 8, 2)),
    "one place of many heads": ((2, 4, 1, 3), (12, 3, 12, 1)),
    "one column": ((3, 4, 1), (4, 1, 4)),
    "not dense": ((3, 1, 4), (8, 5, 2)),
    "one row, turned": ((4, 1, 3), (1, 3, 4)),
    "channels last, one image": ((1, 3, 4, 5), (7, 1, 15, 3)),
    "a number": ((1,), (3,)),
}
#: Of several kernels in ATen, and of others on fake tensors.
OTHERWISE = {torch.ops.aten.isinf.default, torch.ops.aten.ldexp.Tensor, torch.ops.aten.silu_backward.default}


def laid_out(name: str) -> torch.Tensor:
    shape, strides = LAYOUTS[name]
    return torch.ones(200).as_strided(shape, strides)


def elementwise_operators() -> Iterator[tuple[torch._ops.OpOverload, int]]:
    """Those that take one or two tensors and nothing else that has no default, with how many they take."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            operator = getattr(packet, overload)
            needed = [each for each in operator._schema.arguments if not each.has_default_value()]
            if torch.Tag.pointwise not in operator.tags or torch.Tag.nondeterministic_seeded in operator.tags:
                continue
            if operator._schema.is_mutable or name.startswith(("_foreach", "sym_")):
                continue
            if needed and len(needed) <= 2 and all(str(each.type) == "Tensor" for each in needed):
                yield operator, len(needed)


def strides_of(operator: Any, given: list[torch.Tensor]) -> Any:
    """Or what it raises, as operators on integers do here."""
    try:
        return operator(*given).stride()
    except Exception as error:
        return type(error)


def test_strides_of_fake_results_are_eagers() -> None:
    mode, compared = FakeTensorMode(), 0
    for operator, count in elementwise_operators():
        for name in LAYOUTS:
            given = [laid_out(name) for _ in range(count)]
            expected = strides_of(operator, given)
            if isinstance(expected, tuple) and operator not in OTHERWISE:
                with mode:
                    assert strides_of(operator, [mode.from_tensor(each) for each in given]) == expected, (operator, name)
                compared += 1
    assert compared > 1000


def gated(x: torch.Tensor) -> Any:
    y = F.silu(x)
    return y, y * x, (x + 1).sigmoid(), x.clamp(0, 1) + y, torch.where(x > 0, x, y), x.double().exp(), -x * 2, x.round()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_graphs_give_the_strides_that_eager_gives(name: str, backend: str) -> None:
    assert_same_as_eager(gated, laid_out(name), backend=backend, rtol=KERNELS)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_mask_of_one_channel(backend: str) -> None:
    """What a convolution to one channel gives is channels last; behind an activation it is not, and neither is what follows."""
    first, second = torch.randn(1, 8, 3, 3), torch.randn(4, 1, 3, 3)

    def masks(image: torch.Tensor) -> Any:
        mask = F.conv2d(image, first)
        return mask, mask.sigmoid(), F.conv2d(mask.sigmoid(), second), F.conv2d(mask, second).relu()

    assert_same_as_eager(masks, torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last), backend=backend, rtol=KERNELS)


#: Not all are elementwise; numbers, broadcasts, several results and random numbers are among them.
RESULTS = {
    "numbers": lambda x: (1 - x, x + 1, x / 2, x % 2, 2 % x, x // 2, 2 // x, torch.div(x, 2, rounding_mode="trunc"), x > 0),
    "powers": lambda x: (2 ** x, x ** 2, torch.float_power(x, 2)),
    "moved": lambda x: (x.diff(), x.roll(1), x.roll(1, 0), x.flip(0), x.flip(-1), torch.rot90(x) if x.dim() > 1 else x * 1),
    "losses": lambda x: (F.huber_loss(x, x * 2, reduction="none"), F.binary_cross_entropy(x, x * 0.5, reduction="none"),
                         F.binary_cross_entropy_with_logits(x, x * 0.5, reduction="none"), F.logsigmoid(x)),
    "new": lambda x: (torch.zeros_like(x), torch.full_like(x, 2), torch.rand_like(x), torch.nan_to_num(x), x.clone()),
    "sorted": lambda x: (*torch.sort(x), *torch.cummax(x, 0), *torch.frexp(x)),
    "norms": lambda x: (x.norm(dim=0, keepdim=True), F.log_softmax(x, -1), F.softmax(x, 0)),
    "broadcast": lambda x: (x * x.sum(-1, keepdim=True), x + torch.ones(x.shape[-1]), F.prelu(x, torch.tensor([0.1])),
                            torch.where(x > 0.5, x, 0.0), x.mT + x.mT.contiguous() if x.dim() > 1 else x + 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("program", RESULTS)
def test_results_of_other_operators(name: str, program: str) -> None:
    x = laid_out(name)
    if name == "a number" and program == "moved":
        pytest.skip("nothing to move")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = mode.from_tensor(x, static_shapes=True)
    before = torch.get_rng_state()
    with mode:
        found = RESULTS[program](fake)
    assert torch.equal(before, torch.get_rng_state())
    for eager, result in zip(RESULTS[program](x), found, strict=True):
        assert result.stride() == eager.stride() or result.numel() == 0, (eager.shape, eager.stride(), result.stride())


@pytest.mark.parametrize("name", LAYOUTS)
def test_large_operands_are_told_by_the_operator(name: str) -> None:
    shape, strides = LAYOUTS[name]
    by = 4096
    x = torch.ones(by * 200).as_strided((by, *shape), (0 if name == "not dense" else 200, *strides))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = mode.from_tensor(x, static_shapes=True)
    for program in (lambda x: x + 1, lambda x: 1 - x, lambda x: x > 0, lambda x: x * x, lambda x: x + torch.ones(x.shape[-1])):
        with mode:
            found = program(fake)
        assert found.stride() == program(x).stride()


EMPTY: dict[str, Any] = {
    "transposed": lambda x: (x.t() + 1, x.t() * 2.5, x.t().bool()),
    "transposed in place": lambda x: (x.mul(2).t_(), x.mul(2).t_() + 1),
    "parts": lambda x: (x[:, 1:].t() + 1, x[:, :0] + 1, x.t()[:0] * 2, x.expand(3, *x.shape) + 1),
    "reduced": lambda x: (x.t().sum(0), x.t().sum(0, keepdim=True), x.t().softmax(0)),
    "joined": lambda x: (torch.cat([x, x]), torch.stack([x, x]).transpose(0, 2) + 1),
    "made like it": lambda x: (torch.zeros_like(x.t()), x.t().to(torch.float64), x.t().clone(), x.t().contiguous()),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors_have_eagers_strides(name: str, backend: str) -> None:
    program = EMPTY[name]
    for shape in ((0, 3), (3, 0), (0, 0), (1, 0), (0, 1)):
        for given in (torch.ones(shape), torch.ones(shape[::-1]).t()):
            expected = [(each.shape, each.stride()) for each in program(given.clone())]
            found = fxjit.compile(program, backend=backend)(given.clone())
            assert [(each.shape, each.stride()) for each in found] == expected, shape
            fxjit.reset()
