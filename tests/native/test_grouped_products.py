"""Products of groups (mixtures of experts): groups of rows, of columns and of terms, in all layouts, also empty ones."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import pytest
import torch
from tests.differential import KERNELS, assert_same_as_eager
from torch._subclasses.fake_tensor import FakeTensorMode

import fxjit
from fxjit import _C, config
from fxjit.backends.native.passes.grouped_products import GROUPED

#: Where groups of 70 rows (columns, terms) end: also empty ones, and such as leave rows to none.
ENDS = {"all": (20, 37, 70), "empty": (0, 41, 41, 70, 70), "some": (20, 52), "none": (0, 0), "one": (70,)}
ROWS, COLUMNS, TERMS = "rows", "columns", "terms"


def laid_out(*sizes: int, turned: bool = False, gap: int = 0) -> torch.Tensor:
    """Matrices of random numbers; `gap`: numbers between their lines that are not their own."""
    if turned:
        return laid_out(*sizes[:-2], sizes[-1], sizes[-2], gap=gap).transpose(-1, -2)
    return torch.randn(*sizes[:-1], sizes[-1] + gap)[..., :sizes[-1]]


def operands(divided: str, groups: int, turned: Sequence[bool] = (False, False), gap: int = 0) -> list[torch.Tensor]:
    a, b = {ROWS: ((70, 40), (groups, 40, 36)), COLUMNS: ((groups, 33, 40), (40, 70)), TERMS: ((33, 70), (70, 36))}[divided]
    return [laid_out(*sizes, turned=way, gap=gap) for sizes, way in zip((a, b), turned, strict=True)]


def by_hand(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Each group's product by itself, in float64."""
    a, b, starts = a.double(), b.double(), [0, *ends.tolist()]
    pairs = list(itertools.pairwise(starts))
    if b.dim() == 3:
        parts = [a[first:last] @ b[group] for group, (first, last) in enumerate(pairs)]
        return torch.cat([*parts, a.new_zeros(len(a) - starts[-1], b.shape[2])])
    if a.dim() == 3:
        parts = [a[group] @ b[:, first:last] for group, (first, last) in enumerate(pairs)]
        return torch.cat([*parts, a.new_zeros(a.shape[1], b.shape[1] - starts[-1])], 1)
    return torch.stack([a[:, first:last] @ b[first:last] for first, last in pairs])


def grouped(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return GROUPED(a, b, ends)


def assert_right(a: torch.Tensor, b: torch.Tensor, where: torch.Tensor, tolerance: float = 1e-5) -> torch.Tensor:
    fxjit.reset()
    result = fxjit.compile(grouped, fullgraph=True)(a, b, where)
    torch.testing.assert_close(result.double(), by_hand(a, b, where), rtol=tolerance, atol=tolerance)
    return result


@pytest.mark.parametrize("wide", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("divided", [ROWS, COLUMNS, TERMS])
def test_each_group_is_multiplied_by_itself(divided: str, ends: tuple[int, ...], wide: torch.dtype) -> None:
    a, b = operands(divided, len(ends))
    where = torch.tensor(ends, dtype=wide)
    result = assert_right(a, b, where)
    torch.testing.assert_close(result, grouped(a, b, where))
    assert result.is_contiguous()


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("turned", [*itertools.product([False, True], repeat=2)], ids=str)
@pytest.mark.parametrize("divided", [ROWS, COLUMNS, TERMS])
def test_operands_of_all_layouts(divided: str, turned: tuple[bool, bool], gap: int) -> None:
    a, b = operands(divided, 3, turned, gap)
    where = torch.tensor(ENDS["all"], dtype=torch.int32)
    assert_right(a, b, where)


@pytest.mark.parametrize("divided", [ROWS, COLUMNS, TERMS])
def test_operands_that_no_library_takes(divided: str) -> None:
    """Neither the rows nor the columns are contiguous."""
    a, b = (laid_out(*each.shape[:-1], 2 * each.shape[-1])[..., ::2] for each in operands(divided, 3))
    where = torch.tensor(ENDS["all"])
    assert_right(a, b, where)


@pytest.mark.parametrize("ends", [(90, 100), (-30, 70), (50, 20, 70), (-200, 12)], ids=str)
@pytest.mark.parametrize("divided", [ROWS, COLUMNS, TERMS])
def test_ends_beyond_the_matrix_are_those_of_slices(divided: str, ends: tuple[int, ...]) -> None:
    a, b = operands(divided, len(ends))
    where = torch.tensor(ends)
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(grouped, fullgraph=True)(a, b, where), grouped(a, b, where))


def test_sizes_that_vary() -> None:
    compiled = fxjit.compile(grouped, dynamic=True, fullgraph=True)
    for rows in (70, 33, 128, 1):
        a, b = torch.randn(rows, 40), torch.randn(3, 40, 36)
        where = torch.tensor([rows // 3, rows // 2, rows])
        torch.testing.assert_close(compiled(a, b, where).double(), by_hand(a, b, where), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own", [True, False], ids=["measured", "BLAS"])
def test_on_several_threads(own: bool) -> None:
    a, b = torch.randn(700, 300), torch.randn(5, 300, 400)
    where, before = torch.tensor([100, 101, 300, 600, 700]), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with config.patch({"cpp.own_products": own}):
                fxjit.reset()
                results.append(fxjit.compile(grouped, fullgraph=True)(a, b, where))
    finally:
        torch.set_num_threads(before)
    for each in results:
        torch.testing.assert_close(each.double(), by_hand(a, b, where), rtol=1e-4, atol=1e-4)


def _traces_float32() -> bool:
    """Before 2.15 torch traces grouped products of bfloat16 alone."""
    try:
        with FakeTensorMode():
            torch._grouped_mm(torch.empty(8, 8), torch.empty(2, 8, 8), offs=torch.empty(2, dtype=torch.int32))
    except (AttributeError, RuntimeError):
        return False
    return True


needs_atens = pytest.mark.skipif(not _traces_float32(), reason="this torch does not trace grouped products of float32")


@needs_atens
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_atens_operator_and_its_derivatives(training: bool) -> None:
    """As a layer of experts has it: weights (experts, out, in)."""
    where = torch.tensor(ENDS["all"], dtype=torch.int32)

    def experts(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, weight.transpose(1, 2), offs=where).relu()

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        made = (torch.randn(sizes, generator=generator) for sizes in ((70, 40), (3, 36, 40)))
        first, second = (each.requires_grad_(training) for each in made)
        return first, second

    assert_same_as_eager(experts, *inputs(), backend="native", rtol=KERNELS)


@needs_atens
def test_the_executor_multiplies_what_aten_would(caplog: pytest.LogCaptureFixture) -> None:
    if not _C.program_can("gemm"):
        pytest.skip("programs do not multiply here")
    where = torch.tensor(ENDS["all"], dtype=torch.int32)
    with caplog.at_level(logging.DEBUG, logger="fxjit.output_code"):
        fxjit.compile(lambda x, w: torch._grouped_mm(x, w, offs=where) + 1)(torch.randn(70, 40), torch.randn(3, 40, 36))
    assert "grouped_mm(" in caplog.text and "torch.ops.aten._grouped_mm" not in caplog.text


def operators_of_a_library() -> None:
    """The operators of a library that has no grouped products, or not in compiled code (transformers 5)."""

    def product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return grouped(input, weight, offs)

    def derivatives(
        input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        of_weight = torch.empty_like(weight).copy_(grouped(input.t(), grad_output, offs))
        return torch.empty_like(input).copy_(grouped(grad_output, weight.transpose(1, 2), offs)), of_weight

    def save(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    first = torch.library.custom_op("transformers::grouped_mm_fallback", product, mutates_args=())
    second = torch.library.custom_op("transformers::grouped_mm_fallback_backward", derivatives, mutates_args=())
    first.register_fake(lambda input, weight, offs: input.new_empty(input.shape[0], weight.shape[2]))
    second.register_fake(lambda input, weight, offs, grad: (torch.empty_like(input), torch.empty_like(weight)))
    first.register_autograd(lambda ctx, grad: (*second(*ctx.saved_tensors, grad), None), setup_context=save)


def test_operators_that_stand_for_it() -> None:
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        operators_of_a_library()
    call = torch.ops.transformers.grouped_mm_fallback

    def experts(x: torch.Tensor, weight: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return call(x, weight.transpose(1, 2), where).sigmoid()

    for ends, turned in itertools.product(ENDS.values(), (False, True)):
        x, weight = laid_out(70, 40, turned=turned), torch.randn(len(ends), 36, 40)
        where = torch.tensor(ends)
        assert_same_as_eager(experts, x.requires_grad_(), weight.requires_grad_(), where, backend="native", rtol=KERNELS)
