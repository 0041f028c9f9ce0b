"""Stores at computed places against eager: duplicates and their order, negative and wrong indices, layouts, gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.counters import counters

aten = torch.ops.aten
TYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
]  # fmt: skip


def numbers(*shape, dtype=torch.float32):
    torch.manual_seed(len(shape))
    return (torch.randn(shape) * 3).to(dtype) if dtype is not torch.uint8 else torch.randint(0, 9, shape).to(dtype)


# Each type in one mode: floats, halves, and integers of several widths in either.
@pytest.mark.parametrize("dtype,mode", [
    *((dtype, "symbolic") for dtype in (torch.float32, torch.float16, torch.int64, torch.int16)),
    *((dtype, "fake") for dtype in TYPES if dtype not in (torch.float16, torch.int64, torch.int16)),
])  # fmt: skip
def test_all_ways_to_store(assert_kernels_same, dtype, mode):
    """Indices repeat: the last value stands, sums are added in eager's order."""

    def function(x, index, source):
        few = index % 4
        return [
            x.scatter(1, index, source), x.scatter(0, few, source), x.scatter(1, index, 2), x.scatter_add(1, index, source),
            x.scatter_add(0, few, source * 2), x.scatter(1, index, source, reduce="multiply"),
            *(x.scatter_reduce(1, index, source, how) for how in ("sum", "prod", "amax", "amin")),
            *(x.scatter_reduce(0, few, source, how, include_self=False) for how in ("sum", "prod", "amax", "amin", "mean")),
            x.index_add(1, index[0], source[:, :3], alpha=2), x.index_add(0, few[0], x[:3]),
            x.index_copy(1, index[0], source[:, :3] + 1), x.index_fill(1, index[0] - 2, 3),
            x.index_put((few, index), source), x.index_put((few[0] - 4,), x[:3]),
            aten.index_put(x, [None, index[0] - 5], source[:, :3], True), x.index_put((few, index), source, accumulate=True),
            x.t().index_put((index[0],), x[:3, :4].sum(0).to(x.dtype), accumulate=True),
        ]  # fmt: skip

    x, source = numbers(4, 5, dtype=dtype), numbers(4, 3, dtype=dtype)
    assert_kernels_same(function, x, torch.tensor([[0, 2, 2], [4, 4, 4], [1, 0, 3], [2, 2, 2]]), source, mode=mode)


def test_bools_and_masks(assert_kernels_same):
    def function(x, mask, row):
        flags = mask.clone()
        return [
            flags.scatter(1, torch.tensor([[0, 0, 2]]), True), flags.index_put((torch.tensor([1, 1]),), mask[:2]),
            x.index_put((mask,), torch.tensor(2.0)), x.index_put((mask[:, 0],), row),
            x.index_put((mask[:, 0],), row[None]),
            aten.index_put(x, [None, mask[0]], torch.tensor([1.5]), True),
            x[None].index_put((mask[None],), torch.tensor([7.0])),
            aten.index_put(x[None], [None, mask], torch.tensor([[3.0]]), True),
        ]  # fmt: skip

    x = numbers(4, 5)
    assert_kernels_same(function, x, x > 0, torch.arange(5.0))
    # As many values as the mask has places.
    values = torch.arange(float((x > 0).sum()))
    compiled = fxjit.compile(lambda x, v: torch.clone(x).index_put_((x > 0,), v))
    assert torch.equal(compiled(x, values), x.clone().index_put_((x > 0,), values))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 7, 200, 3000])
def test_sums_are_eagers_to_the_bit(kernels, threads, width):
    """Whatever the threads share: rows, pieces of a row, or nothing."""
    torch.manual_seed(0)
    rows, grad = torch.randint(0, 50, (300,)), torch.randn(300, width)

    def function(rows, grad):
        return [
            aten.embedding_dense_backward(grad, rows, 50, 3, False), torch.zeros(50, width).index_add(0, rows, grad),
            torch.zeros(50, width).index_put((rows,), grad, accumulate=True),
            torch.zeros(width, 50).scatter_add(1, rows.expand(width, 300), grad.t()),
            torch.zeros(50, width).scatter(0, rows[:, None].expand(300, width).contiguous(), grad),
        ]  # fmt: skip

    with config.patch(num_threads=threads):
        compiled = kernels(function, rows, grad)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, eager's own sums are in no order
    try:
        wanted = function(rows, grad)
    finally:
        torch.set_num_threads(before)
    for actual, expected in zip(compiled(rows, grad), wanted, strict=True):
        assert torch.equal(actual, expected)


def test_not_a_number_and_signs(kernels):
    x = torch.tensor([0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf")])
    source = torch.tensor([-0.0, 0.0, float("nan"), 2.0, float("nan"), float("inf")])

    def function(x, source):
        index = torch.arange(6)
        return [x.scatter_reduce(0, index, source, how) for how in ("sum", "prod", "amax", "amin")]

    for actual, expected in zip(kernels(function, x, source)(x, source), function(x, source), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=0, atol=0)
        finite = ~expected.isnan()
        assert torch.equal(actual.signbit()[finite], expected.signbit()[finite])


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_nothing_to_store_and_nowhere(assert_kernels_same, mode):
    def function(x, none, empty):
        few = none[:, 0]
        return [
            x.scatter(1, none, x), x.scatter_add(0, none, x * 2), x.index_add(0, few, x[:0]), x.index_put((few,), x[:0]),
            empty.scatter(0, none, empty), empty.index_add(1, few, empty[:, :0] * 2),
        ]  # fmt: skip

    assert_kernels_same(function, torch.randn(4, 5), torch.zeros(0, 5, dtype=torch.int64), torch.randn(0, 5), mode=mode)


WRONG = {
    "scatter": lambda x, i: x.scatter(1, i[None], 1.0), "scatter_add": lambda x, i: x.scatter_add(0, i[None] * 2, x),
    "index_put": lambda x, i: x.index_put((i,), x[:2]), "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]), "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("index", [[0, 9], [-9, 1], [-1, 0]], ids=str)
@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_index_raises_what_eager_raises(name, index):
    function, x, i = WRONG[name], torch.randn(4, 4), torch.tensor(index)

    def outcome(call):
        try:
            return call(x, i)
        except (IndexError, RuntimeError) as error:
            return type(error), str(error).split(" with size")[0]

    fxjit.reset()
    compiled = fxjit.compile(lambda x, i: function(x * 2, i) + 1)
    compiled(x, torch.tensor([1, 0]))
    actual, expected = outcome(compiled), outcome(lambda x, i: function(x * 2, i) + 1)
    assert torch.equal(actual, expected) if isinstance(expected, torch.Tensor) else actual == expected


GRADIENTS = {
    "embedding": lambda x, i: F.embedding(i, x, padding_idx=1).sin(), "gather": lambda x, i: x.gather(1, i[:, :3]) * x[:, :3],
    "index": lambda x, i: x[i[0], i[1] - 4] ** 2, "index of columns": lambda x, i: x[:, i[0]].exp(),
    "index_select": lambda x, i: x.index_select(0, i[0]).tanh(), "scatter": lambda x, i: x.sin().scatter(1, i, x * 2),
    "scatter_add": lambda x, i: (x * 2).scatter_add(0, i, x).cos(),
    "index_put": lambda x, i: x.sin().index_put((i[0],), x[:4] * 3),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i, x.sin(), "amax"),
    "mean": lambda x, i: x.scatter_reduce(0, i, x, "mean"), "max_pool2d": lambda x, i: F.max_pool2d(x[None, None], 2, 1).sin(),
    "index_add": lambda x, i: x.index_add(1, i[0], x[:, :4] * x[:, :4]),
}  # fmt: skip


# With sizes that vary by turns; both for what adds, looks up and stores.
@pytest.mark.parametrize("name,dynamic", [
    *((name, (None, True)[k % 2]) for k, name in enumerate(GRADIENTS)), ("scatter_add", None), ("index", True),
    ("index_put", None), ("embedding", True)])  # fmt: skip
def test_gradients(name, dynamic):
    function, index = GRADIENTS[name], torch.tensor([[0, 3, 3, 1], [2, 2, 2, 2], [1, 0, 3, 2], [3, 1, 0, 0]])
    results = []
    fxjit.reset()
    for each in (function, fxjit.compile(function, dynamic=dynamic)):
        x = numbers(4, 4).requires_grad_()
        out = each(x, index)
        out.backward(out.detach() + 1)
        results.append((out.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])


def test_a_store_takes_in_what_it_stores(kernels):
    """One kernel for the zeros, and one for the values and the stores."""

    def function(rows, grad, scale):
        return torch.zeros(50, 8).index_add(0, rows, grad * scale - 1)

    inputs = torch.randint(0, 50, (30,)), torch.randn(30, 8), torch.randn(30, 1)
    before = counters["native"]["kernels"]
    compiled = kernels(function, *inputs)
    assert counters["native"]["kernels"] - before == 2
    torch.testing.assert_close(compiled(*inputs), function(*inputs))


MADE_LIKE = {
    "zeros": torch.zeros_like, "ones": torch.ones_like, "full": lambda x: torch.full_like(x, 2),
    "new": lambda x: x.new_zeros(x.shape), "filled": lambda x: torch.fill(x, 3),
    "new full": lambda x: x.new_full(x.shape, 4),
}  # fmt: skip


@pytest.mark.parametrize("made", MADE_LIKE.values(), ids=MADE_LIKE)
def test_what_is_made_of_a_shape_alone_does_not_keep_the_numbers(kernels, made):
    """A lookup whose shape something else has is not stored for it: one kernel less than there are operators."""

    def function(x, rows):
        picked = torch.index_select(x, 0, rows)
        return made(picked).index_add(0, rows, picked)

    inputs = torch.randn(30, 8), torch.randint(0, 30, (30,))
    before = counters["native"]["kernels"]
    compiled = kernels(function, *inputs)
    assert counters["native"]["kernels"] - before == 2  # what is made, and the stores
    torch.testing.assert_close(compiled(*inputs), function(*inputs))


def test_derivative_of_added_messages_looks_up_where_it_stores():
    def messages(x, source, target):
        return torch.zeros_like(x).index_add(0, target, x[source])

    source, target = torch.randint(0, 40, (3000,)), torch.randint(0, 40, (3000,))
    gradients = []
    before = counters["native"]["left to ATen"]
    for each in (messages, fxjit.compile(messages)):
        x = numbers(40, 16).mul(4).round().requires_grad_()  # whole numbers, whose sums are the same in any order
        each(x, source, target).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert counters["native"]["left to ATen"] == before


def test_mutated_arguments():
    def function(cache, at, new, counts):
        cache.index_copy_(1, at, new * 2)
        counts.scatter_add_(0, at, torch.ones_like(at))
        cache[:, at - 1] += 1
        return cache.sum(0), counts * 2

    results = []
    for each in (function, fxjit.compile(function)):
        cache, counts = torch.zeros(3, 8, 2), torch.zeros(8, dtype=torch.int64)
        outs = [each(cache, torch.tensor([k, k + 2]), numbers(3, 2, 2), counts) for k in range(4)]
        results.append((outs, cache, counts))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_of_halves_are_rounded_once(dtype: torch.dtype) -> None:
    """As eager's: of a thousand numbers at one place, errors were twenty times as large."""
    values, places = torch.rand(64, 1000).to(dtype), torch.randint(0, 3, (64, 1000))
    functions = {
        "scatter_add": lambda v, i: torch.zeros(64, 4, dtype=v.dtype).scatter_add(1, i, v),
        "in place": lambda v, i: torch.ones(4, 1000, dtype=v.dtype).scatter_add_(0, i, v) * 2,
        "index_add": lambda v, i: torch.zeros(64, 4, dtype=v.dtype).index_add(1, i[0], v),
        "index_add of rows": lambda v, i: torch.zeros(4, 1000, dtype=v.dtype).index_add(0, i[:, 0], v, alpha=2),
    }
    for name, function in functions.items():
        exact = function(values.double(), places)
        eager, ours = (f(values, places).double() for f in (function, fxjit.compile(function)))
        assert (ours - exact).abs().max() <= 1.01 * (eager - exact).abs().max(), name
