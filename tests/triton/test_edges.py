"""Sizes, types, places and orders at which kernels change their kind or arithmetic, in Triton's interpreter against eager."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.runtime import gpu, interpreted
from fxjit.backends.native.runtime.launch_configuration import NARROW, is_wide
from fxjit.backends.native.schedule.gpu import LONGEST_ROW, TALLEST_COLUMN

from .conftest import assert_same, run_interpreted


def reductions(x):
    return x.sum(-1), x.amax(-1), torch.softmax(x, -1), x.mean(0), x.amin(0), (x > 2).any(-1), x.argmax(-1)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("length", [1, 2, 33, LONGEST_ROW - 1, LONGEST_ROW, LONGEST_ROW + 1, 2 * LONGEST_ROW + 5])
def test_rows_of_any_length(length):
    """None of these but three is a power of two, as blocks are; the longest is looped over."""
    x = torch.randn(2, length, dtype=torch.float64)
    assert_same(run_interpreted(reductions, x), reductions(x), str(length))


@pytest.mark.parametrize("height", [1, TALLEST_COLUMN - 1, TALLEST_COLUMN, TALLEST_COLUMN + 1, 200])
def test_columns_of_any_height(height):
    x = torch.randn(height, 5, dtype=torch.float64)
    assert_same(run_interpreted(reductions, x), reductions(x), str(height))


def test_a_dimension_of_one_along_and_across():
    for shape in ((1, 700), (700, 1), (1, 1, 1), (2, 1, 3)):
        x = torch.randn(shape)
        assert_same(run_interpreted(reductions, x), reductions(x), str(shape))


ROWS_AT_ONCE = {
    "softmax": lambda x: torch.softmax(x * 2, -1),
    "log softmax": lambda x: torch.log_softmax(x, -1) + 1,
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:], x[0], x[1]).relu(),
    "rms norm": lambda x: x[0] * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
    "group norm": lambda x: F.group_norm(x[None], 3)[0],
    "variance and mean": lambda x: torch.var_mean(x, -1),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("length", [40, LONGEST_ROW + 4])
@pytest.mark.parametrize("name", list(ROWS_AT_ONCE))
def test_softmax_and_norms_are_one_kernel(seen, name, length):
    x = torch.randn(6, length)
    assert_same(run_interpreted(ROWS_AT_ONCE[name], x), ROWS_AT_ONCE[name](x), name)
    assert len(seen.kernels) == 1


# Places


@pytest.fixture
def wide(monkeypatch):
    """Whether each kernel that ran had indices of 64 bits."""
    found = []
    plain = gpu.InterpretedKernel.__call__

    def call(self, *args):
        count = len(self.kernel.buffers)
        found.append(is_wide(self.kernel, args[count:]))
        return plain(self, *args)

    monkeypatch.setattr(gpu.InterpretedKernel, "__call__", call)
    return found


def sparse(size):
    """Memory that is there when it is touched."""
    return torch.empty(size, dtype=torch.int8)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_strides_that_pass_2_to_the_31st(wide, mode):
    memory = sparse(3 * 2**30)
    x = memory.as_strided((3, 7), (2**30, 1))
    x.copy_(torch.arange(21).reshape(3, 7))

    def function(x):
        return x * 2 + 1, x.t().contiguous() + 1, x.sum(1)

    assert_same(run_interpreted(function, x, mode=mode), function(x))
    assert any(wide)


def test_computed_places_that_pass_2_to_the_31st(wide):
    table, size = sparse(2**31 + 64).view(-1, 2), 2**30 + 32
    table[-3:] = torch.arange(6, dtype=torch.int8).view(3, 2)
    places = torch.tensor([size - 1, -2, size - 3, size - 1])

    def read(table, places):
        return table[places] * 2

    assert_same(run_interpreted(read, table, places), read(table, places))

    def write(table, places):
        return table.index_put_((places[:3],), table[places[:3]] + 1)

    wide.clear()
    run_interpreted(write, table, places)
    assert table[-3:].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert any(wide)


def test_a_place_in_memory_that_passes_2_to_the_31st(wide):
    memory = sparse(2**31 + 64)

    def function(memory):
        return memory[2**31 - 10 : 2**31 + 10] + 1

    memory[2**31 - 10 : 2**31 + 10] = torch.arange(20, dtype=torch.int8)
    assert_same(run_interpreted(function, memory), function(memory))
    assert wide == [True]


@pytest.mark.parametrize("number", [NARROW - 1, NARROW, 5 * 10**12 + 1, -5 * 10**12])
def test_numbers_and_sizes_are_told_apart(number):
    """What is computed from sizes and numbers has 64 bits, whatever indices have."""
    def function(x, n):
        return x + n, x * len(x) ** 4 + torch.arange(len(x)) * n, x[len(x) // 2 :] + n // 1000

    compiled, x = fxjit.compile(function, dynamic=True), torch.arange(3000)
    with config.patch(**{"triton.interpret": True}):
        assert_same(compiled(x, number), function(x, number))


@pytest.mark.parametrize("function", [lambda x: x * 2, lambda x: x.t() + x, lambda x: x.sum(-1)], ids=["flat", "tiled", "rows"])
def test_blocks_do_not_depend_on_the_first_of_several_sizes(seen, function):
    for size in (9, 900):
        x = torch.randn(size, size)
        with config.patch(**{"triton.interpret": True}):
            pipeline.compile_graph(make_fx(function, tracing_mode="symbolic")(x), (x,), "test", lone_kernels=True)
    small, large = seen.kernels
    assert small.configs == large.configs


def test_small_tensors_have_indices_of_32_bits(wide):
    run_interpreted(lambda x: x * 2, torch.randn(5, 7))
    assert wide == [False]


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_parts_of_memory(start, step):
    memory = torch.randn(400)
    x = memory.flip(0)[start : start + 99 * abs(step) : abs(step)] if step < 0 else memory[start : start + 99 * step : step]

    def function(x):
        return x.exp() + 1, x.view(9, 11).sum(0), x.view(11, 9).t() * 2

    x = x if step == 1 else x.clone()
    assert_same(run_interpreted(function, x), function(x))


# Types


TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
PAIRS = [(TYPES[k], TYPES[(k + step) % len(TYPES)]) for k in range(len(TYPES)) for step in (1, 3)]


@pytest.mark.parametrize("dtype, other", PAIRS, ids=lambda each: str(each).removeprefix("torch."))
def test_two_types_in_one_kernel(dtype, other):
    """Types promote as eager's do, in arithmetic, choices, comparisons and conversions."""
    x, y = (torch.arange(1, 41).remainder(7).reshape(5, 8)).to(dtype), torch.arange(3, 11).remainder(5).to(other)

    def function(x, y):
        return x + y, x * y, torch.where(x > y, x, y), x == y, x.to(y.dtype), (x + y).sum(0), torch.cat([x, x * y])

    assert_same(run_interpreted(function, x, y), function(x, y))


def test_roundings_to_halves_are_to_nearest_even():
    """Numbers halfway between two of the type, past its largest, and too small for it."""

    def rounded(x):
        return (x * 1.0).to(dtype)

    for dtype in (torch.float16, torch.bfloat16):
        ulp = torch.finfo(dtype).eps
        x = torch.tensor([1 + ulp / 2, 1 + 3 * ulp / 2, -1 - ulp / 2, torch.finfo(dtype).max * 1.001, 3e38, 1e-9])
        actual = run_interpreted(rounded, x)
        assert torch.equal(actual, x.to(dtype)), f"{dtype}: {actual}, eager {x.to(dtype)}"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_types_without_kernels_are_atens(interpreter, dtype):
    """Loops stand on both sides of a conversion to eight bits, which is a call."""
    x = torch.randn(6, 20) * 10

    def function(x):
        return (x * 2).to(dtype), (x.exp().clamp(max=100).to(dtype).float() + 1).sum(1)

    ours, eager = fxjit.compile(function)(x), function(x)
    assert torch.equal(ours[0].float(), eager[0].float()) and ours[0].dtype is dtype
    torch.testing.assert_close(ours[1], eager[1])


# Orders


@contextlib.contextmanager
def deterministic(on):
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SUMS = {
    "index_add": lambda x, places: x.index_add(0, places, x * 2),
    "scatter_add": lambda x, places: x.scatter_add(0, places[:, None].expand(-1, 4), x),
    "index_put": lambda x, places: x.index_put((places,), x.exp(), accumulate=True),
    "embedding": lambda x, places: torch.ops.aten.embedding_dense_backward(x, places, 9, -1, False),
}


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("name", list(SUMS))
def test_sums_are_atomic_unless_their_order_is_to_be_the_same(seen, name, on):
    x, places = torch.randn(6, 4), torch.tensor([0, 2, 2, 5, 0, 2])
    with deterministic(on):
        assert_same(run_interpreted(SUMS[name], x, places), SUMS[name](x, places), name)
    assert ("tl.atomic_add" in seen.text) is not on


def test_sums_of_integers_have_no_order(seen):
    x, places = torch.arange(24).reshape(6, 4), torch.tensor([0, 2, 2, 5, 0, 2])
    with deterministic(True):
        assert_same(run_interpreted(SUMS["scatter_add"], x, places), SUMS["scatter_add"](x, places))
    assert "tl.atomic_add" in seen.text


# Programs of one kernel run in any order


def in_place(x, y):
    x.add_(x[-1:].clone())
    y.mul_(y[:1] * 2).add_(y.flip(0))
    return x * 2


def rows_and_their_sums(x, y):
    total = x.sum(0)
    x.sub_(x.mean(1, keepdim=True)).mul_(total)
    y.copy_(x.exp() + y[:1] + y[-1:])
    return torch.softmax(y, 0)


def turned(x, y):
    x.copy_(x[: x.shape[0], : x.shape[0]].t() + y[: x.shape[0]].t()[: x.shape[0]])
    return x


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("function", [in_place, rows_and_their_sums, turned])
def test_no_program_reads_what_another_one_writes(monkeypatch, function, backwards):
    monkeypatch.setattr(interpreted, "BACKWARDS", backwards)
    x, y = torch.randn(150, 150, dtype=torch.float64), torch.randn(150, 150, dtype=torch.float64)
    ours, eager = (x.clone(), y.clone()), (x.clone(), y.clone())
    assert_same(run_interpreted(function, *ours), function(*eager))
    assert_same(ours, eager)
