"""The program that runs a compiled graph in C: memory, views, matrix products, calls, sizes that vary, errors."""

from __future__ import annotations

import gc
import math
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import _C, config, counters
from fxjit.backends.native import pipeline
from fxjit.backends.native.executor.aten_calls import aten_function
from fxjit.backends.native.lower import table


def compiled(function, *inputs, mode="fake"):
    gm = make_fx(function, tracing_mode=mode)(*inputs)
    return pipeline.compile_graph(gm, inputs).finish()


def test_values_between_kernels_share_an_arena(texts):
    w = torch.randn(64, 64)

    def function(x):
        return (((((x + 1).relu() @ x).relu() * 2 @ x).relu() - 1) @ x,)

    graph = compiled(function, w)
    for got, wanted in zip(graph([w]), function(w), strict=True):
        torch.testing.assert_close(got, wanted)
    # Three values of 16 KB live one after the other in the place of two.
    assert "arena = allocate_bytes(32768)" in texts[0]
    assert texts[0].count("= arena[") == 5 and texts[0].count("empty_strided") == 1 and "torch.ops" not in texts[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("a_layout", ["rows", "columns", "slice", "one row"])
@pytest.mark.parametrize("b_layout", ["rows", "columns", "slice"])
def test_products_read_their_operands_where_they_lie(dtype, a_layout, b_layout, texts):
    x, y, bias = (torch.randn(size, dtype=dtype) for size in ((48, 48), (48, 48), (16,)))

    def matrix(t, layout, rows, columns):
        return {"rows": lambda: t[:rows, :columns], "columns": lambda: t.t()[:rows, :columns],
                "slice": lambda: t[2:2 + rows, 3:3 + columns], "one row": lambda: t[5:6, :columns]}[layout]()  # fmt: skip

    def function(x, y, bias):
        a, b = matrix(x, a_layout, 24, 20), matrix(y, b_layout, 20, 16)
        return a @ b, torch.addmm(bias, a, b), torch.nn.functional.linear(a, y[:16, 2:22], bias)

    for got, wanted in zip(compiled(function, x, y, bias)([x, y, bias]), function(x, y, bias), strict=True):
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()
    assert texts[0].count("gemm(") == (2 if a_layout == "one row" else 3), "BLAS is called with strides, not ATen with views"


@pytest.mark.parametrize("function", [
    lambda x, y: (x.expand(4, 4) @ y, torch.addmm(x[:, :1].expand(4, 4), y, y)),
    lambda x, y: (x[:, ::2] @ y[:2], y.t()[::2] @ y),
    lambda x, y: (torch.addmm(x, y, y), torch.addmm(x[0], y, y, beta=2, alpha=3), torch.addmm(x[0, :1], y, y)),
    lambda x, y: (x[0] @ y, y @ x[0], x @ x.new_zeros(4, 0), x.new_zeros(0, 4) @ y, x[:, :0] @ y[:0]),
])
def test_products_that_blas_takes_otherwise(function):
    x, y = torch.randn(1, 4), torch.randn(4, 4)
    for got, wanted in zip(compiled(function, x, y)([x, y]), function(x, y), strict=True):
        torch.testing.assert_close(got, wanted)


def test_products_of_less_precision_are_atens(texts):
    x = torch.randn(8, 8)
    torch.set_float32_matmul_precision("high")
    try:
        compiled(lambda x: (x @ x,), x)
    finally:
        torch.set_float32_matmul_precision("highest")
    compiled(lambda x: (x @ x,), x)
    assert "gemm" not in texts[0] and "gemm" in texts[1]


def test_sizes_that_vary(texts):
    def function(x, y):
        return (x.t() @ y).relu() + 1, torch.cat([x, y], 1)[: x.shape[0] // 2], torch.bmm(x[None], y.t()[None]).sort().values

    @fxjit.compile(dynamic=True)
    def ours(x, y):
        return function(x, y)

    for n, m in ((4, 6), (7, 9), (12, 5)):
        x, y = torch.randn(n, m), torch.randn(n, m)
        for got, wanted in zip(ours(x, y), function(x, y), strict=True):
            torch.testing.assert_close(got, wanted)
    assert len(texts) == 1 and "s" in texts[0]


def test_views_that_are_returned():
    x = torch.randn(4, 6)

    def function(x):
        y = x * 2
        return y.t(), y[1:, ::2], x.view(-1)[3:], x.t()

    for got, wanted in zip(compiled(function, x)([x]), function(x), strict=True):
        assert torch.equal(got, wanted) and got.stride() == wanted.stride()
    kept = compiled(function, x)([x])
    version = kept[3]._version
    x.add_(1)
    assert kept[3]._version == version + 1, "a view of an input counts the input's versions"


def test_writes_through_views_are_seen():
    def function(x):
        x.t()[1:].mul_(2)
        return (x + 1,)

    x = torch.randn(4, 6)
    expected = x.clone()
    (wanted,) = function(expected)
    version = x._version
    (got,) = compiled(function, torch.randn(4, 6))([x])
    assert torch.equal(got, wanted) and torch.equal(x, expected) and x._version > version


def test_results_with_other_strides_than_promised_are_put_right():
    before = counters["native"]["unexpected strides"]
    library = torch.library.Library("fxjit_test_executor", "DEF")
    library.define("odd(Tensor x) -> Tensor")
    library.impl("odd", lambda x: (x + 1).t().contiguous().t(), "CPU")
    library.impl("odd", lambda x: torch.empty_like(x), "Meta")
    x = torch.randn(3, 5)
    graph = compiled(lambda x: (torch.ops.fxjit_test_executor.odd(x) * 2,), x)
    for _ in range(2):
        assert torch.equal(graph([x])[0], (x + 1) * 2)
    assert counters["native"]["unexpected strides"] == before + 2


def test_an_input_dies_with_its_last_use_and_nothing_stays():
    def function(x, y):
        a = (x + 1) @ y
        return a.sort().values, (a, )[0].t()

    graph = compiled(function, torch.randn(4, 4), torch.randn(4, 4))
    for _ in range(3):
        args = [torch.randn(4, 4), torch.randn(4, 4)]
        gone = [weakref.ref(each) for each in args]
        results = graph(args)
        assert args == [] and all(each() is None for each in gone)
        gone += [weakref.ref(each) for each in results]
        del results
        gc.collect()
        assert all(each() is None for each in gone)


def test_errors_leave_nothing_behind():
    def function(x, index):
        return ((x + 1)[index] * 2, x.sort().values)

    x, index = torch.randn(4, 4), torch.tensor([0, 3])
    graph = compiled(function, x, index)
    graph([x, index])
    x = torch.randn(4, 4)
    gone = weakref.ref(x)
    args = [x, torch.tensor([0, 4])]
    del x
    with pytest.raises(IndexError, match="out of range"):
        graph(args)
    assert gone() is None and args == []
    with pytest.raises(TypeError, match="takes 2 inputs, not 1"):
        graph([torch.randn(4, 4)])
    with pytest.raises(TypeError, match="compiled for a plain tensor"):
        graph([torch.randn(4, 4), 3])


def test_what_a_call_raises_comes_out_as_it_is():
    def root(x):
        if (x < 0).any():
            raise ArithmeticError("a root of less than nothing")
        return x.sqrt()

    library = torch.library.Library("fxjit_test_executor_raises", "DEF")
    library.define("root(Tensor x) -> Tensor")
    library.impl("root", root, "CPU")
    library.impl("root", lambda x: torch.empty_like(x), "Meta")
    graph = compiled(lambda x: (torch.ops.fxjit_test_executor_raises.root(x + 0) * 2,), torch.ones(3))
    assert torch.equal(graph([torch.ones(3)])[0], torch.ones(3) * 2)
    with pytest.raises(ArithmeticError, match="less than nothing"):
        graph([-torch.ones(3)])


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_memory_that_there_is_not_is_eagers_error(mode):
    """On a GPU that is an exception of its own, which programs catch to try less."""

    def function(x):
        return (x.expand(1 << 46, x.shape[0]).exp() + 1,)

    x = torch.randn(8)
    with pytest.raises(RuntimeError) as eager:
        function(x)
    with pytest.raises(type(eager.value)) as ours:
        compiled(function, x, mode=mode)([x])
    assert str(ours.value) == str(eager.value)


CALLS = {
    "cumsum": lambda x: (x.cumsum(1),),
    "sort": lambda x: tuple(x.sort(-1, True)),
    "numbers": lambda x: (torch.ops.aten.renorm(x, 2, 0, 0.5),),
    "lists and None": lambda x: (torch.ops.aten.roll(x, [1, 2], [0, 1]),),
    "keywords": lambda x: (torch.ops.aten.div.Tensor_mode(x.cumsum(0), 0.3, rounding_mode="floor"),),
    "of linalg": lambda x: (torch.linalg.solve_triangular(x @ x.t(), x, upper=False),),
}


@pytest.mark.parametrize("what", CALLS)
def test_operators_are_called_by_the_functions_that_come_to_them(what):
    torch.manual_seed(0)
    x = torch.randn(4, 5)
    for got, wanted in zip(compiled(CALLS[what], x)([x]), CALLS[what](x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_function_of_the_same_name_that_does_another_thing_is_not_called():
    x = torch.randn(3)
    aten = torch.ops.aten
    assert aten_function(aten.cumsum.default, "", (x, 0), {}).name == "_VariableFunctions.cumsum"
    assert aten_function(aten.add.Scalar, "", (x, 2), {}).kind == "operator"  # the function makes a tensor of the number
    assert aten_function(aten.index.Tensor, "", (x, [None]), {}).kind == "operator"  # there is none
    assert aten_function(aten.linear.default, "", (x[None], x[None]), {}).kind == "operator"  # it is several operators


def test_arenas_are_kept_from_call_to_call(texts):
    """Of whatever program: the next one that wants as much gets it, and `reset` gives all of it back."""
    fxjit.reset()

    def layers(x):
        return ((((x @ x).relu() @ x).relu() * 2 @ x).sum(0),)

    graphs = {size: compiled(layers, torch.randn(size, size) / size) for size in (256, 512)}
    for size in (256, 512, 256, 512):
        x = torch.randn(size, size) / size
        torch.testing.assert_close(graphs[size]([x]), list(layers(x)))
    small, large = (int(each) for each in re.findall(r"allocate_bytes\((\d+)\)", "".join(texts)))
    assert _C.drop_arenas() == small + large
    graphs[256]([torch.randn(256, 256)])
    fxjit.reset()
    assert _C.drop_arenas() == 0


def test_kept_arenas_have_a_limit():
    fxjit.reset()

    def layers(x):
        return ((((x @ x.t()).relu() @ x @ x.t()).relu() @ x).sum(0),)

    for rows in range(1500, 2300, 100):
        x = torch.randn(rows, 8) / rows
        torch.testing.assert_close(compiled(layers, x)([x]), list(layers(x)))
    assert 0 < _C.drop_arenas() <= 64 << 20


def test_large_values_have_memory_of_their_own(texts):
    x = torch.randn(2200, 20, dtype=torch.float64)
    graph = compiled(lambda x: ((x.relu() @ x.t()).relu() @ x,), x)
    torch.testing.assert_close(graph([x])[0], (x.relu() @ x.t()).relu() @ x)
    assert "arena = allocate_bytes(352000)" in texts[0], "only the small one is there"


def flags_of(address: int) -> str:
    """What the kernel says of the mapping that holds an address."""
    wanted, inside = "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif line.startswith("VmFlags:") and inside:
            wanted = line
    return wanted


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="large pages are asked for on Linux")
@pytest.mark.parametrize("dynamic", [False, True])
def test_large_results_ask_for_large_pages(dynamic):
    x = torch.randn(3 * 2**20)
    function = fxjit.compile(lambda x: x * 2 + 1, dynamic=dynamic)
    y = function(x)
    torch.testing.assert_close(y, x * 2 + 1)
    assert " hg" in flags_of(y.data_ptr() + 2**22)
    assert torch.equal(function(x[: 2**19]), x[: 2**19] * 2 + 1)


def test_threads_run_one_program_at_once():
    from concurrent.futures import ThreadPoolExecutor

    def function(x):
        return ((x.exp() @ x).relu() * 3 @ x,)

    inputs = [torch.randn(96, 96) * 0.1 for _ in range(4)]
    graph = compiled(function, inputs[0])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = list(pool.map(lambda x: graph([x])[0], inputs))
            for x, result in zip(inputs, results, strict=True):
                torch.testing.assert_close(result, function(x)[0])


def test_a_result_of_another_type_than_was_promised(monkeypatch):
    """ATen's batch norm without its own numbers gives them back in half precision, where its fake kernel says float32."""
    for name in [name for name in table.LOWERINGS if "_native_batch_norm_legit" in name]:
        monkeypatch.delitem(table.LOWERINGS, name)
    monkeypatch.setattr(config, "disk_cache", False)
    monkeypatch.setattr(config, "store_entries", False)

    def normed(x, mean, var):
        return torch.nn.functional.instance_norm(x, mean, var, use_input_stats=True, momentum=0.1)

    x, mean, var = (torch.rand(shape, dtype=torch.bfloat16) for shape in ((3, 5, 4), (5,), (5,)))
    wanted = [x.clone(), mean.clone(), var.clone()]
    result = normed(*wanted)
    got = fxjit.compile(normed, backend="native")(x, mean, var)
    torch.testing.assert_close([got, mean, var], [result, *wanted[1:]])


def test_sizes_that_an_operator_finds_are_known_where_its_results_are_checked(kernels):
    def function(x):
        return x.masked_select(x > 0), *torch.unique(x.round(), return_counts=True)

    compiled = kernels(function, torch.randn(4), mode="symbolic")
    for given in (torch.tensor([1.5, -2.0, 3.0, 3.0]), torch.randn(4), -torch.ones(4)):
        for actual, expected in zip(compiled(given), function(given), strict=True):
            assert torch.equal(actual, expected)


def bags(table, indices, offsets, scales):
    """The second to fourth results say for the derivative which bag an index was in; torch's shapes of them are not always
    those that its kernel for halves gives."""
    return torch.ops.aten._embedding_bag(table, indices, offsets, False, 0, False, scales)


def after_bags(table, indices, offsets, scales):
    return bags(table, indices, offsets, scales)[1] + 1


def given_bags():
    table, scales = torch.randn(10, 4, dtype=torch.bfloat16), torch.rand(6, dtype=torch.bfloat16)
    return table, torch.tensor([1, 9, 2, 2, 0, 5]), torch.tensor([0, 2, 4]), scales


def test_a_result_of_another_shape_than_torch_says_goes_on_as_it_is():
    inputs = given_bags()
    for actual, expected in zip(compiled(bags, *inputs)(list(inputs)), bags(*inputs)):
        assert actual.shape == expected.shape
        torch.testing.assert_close(actual, expected)


def test_what_relies_on_such_a_shape_is_refused():
    inputs = given_bags()
    with pytest.raises(RuntimeError, match=r"a result of shape \(0,\) that torch says is \(6,\)"):
        compiled(after_bags, *inputs)(list(inputs))
    torch.testing.assert_close(fxjit.compile(after_bags, backend="native")(*inputs), after_bags(*inputs))


def test_the_derivative_of_bags_of_halves():
    table, indices, offsets, scales = given_bags()

    def loss(table, scales):
        return torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=scales).sin()

    def gradients(fn):
        leaves = [table.clone().requires_grad_(), scales.clone().requires_grad_()]
        return torch.autograd.grad(fn(*leaves).sum(), leaves)

    for actual, expected in zip(gradients(fxjit.compile(loss, backend="native")), gradients(loss)):
        torch.testing.assert_close(actual, expected)


def mixed_numbers(x, number, count):
    return torch.tensor([number, float(count), math.sin(number), math.sqrt(count)]) * x + number * count


def test_numbers_of_a_call_are_written_where_kernels_read_them(texts):
    x, run = torch.linspace(-1, 1, 4), fxjit.compile(mixed_numbers, fullgraph=True)
    with fxjit.config.patch(cache_graphs=False):
        for number, count in ((0.5, 3), (-1.5, 4), (float("nan"), 6), (1e300, 2**40)):
            torch.testing.assert_close(run(x, number, count), mixed_numbers(x, number, count), equal_nan=True)
    assert "[:] = double(y_sym_float" in texts[-1] and "dtype=torch.float64" not in texts[-1]
