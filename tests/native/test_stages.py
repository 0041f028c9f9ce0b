"""The stages one by one: lowering against the reference interpreter, what shares a kernel, how memory is reused, the text."""

from __future__ import annotations

import math
import re

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, FloorDiv, FloorToInt, ToFloat, TruncToInt

from fxjit import counters
from fxjit.backends.native import pipeline, reference, spec
from fxjit.backends.native.codegen.cpp import operation
from fxjit.backends.native.codegen.scatter import render
from fxjit.backends.native.decompositions import define_own_operators
from fxjit.backends.native.hints import Hints
from fxjit.backends.native.index import contiguous_strides, exact_quotient, refine, segments, solve_sums, without_floats
from fxjit.backends.native.ir import Const, Extern, Load, Op, TensorExpr, load_all
from fxjit.backends.native.lower import lower_graph
from fxjit.backends.native.lower.liveness import escaping, live_statements
from fxjit.backends.native.lower.table import LOWERINGS, lowers
from fxjit.backends.native.ops import REDUCTIONS, SCALARS
from fxjit.backends.native.passes.cleanup import PASSES
from fxjit.backends.native.printer import program_text, schedule_text
from fxjit.backends.native.schedule.fuse import Group, fuse


def lowered(function, *inputs):
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    for run in PASSES:
        run(gm.graph)
    low = lower_graph(gm)
    return gm, low, live_statements(low, gm)


def steps_of(function, *inputs):
    gm, low, statements = lowered(function, *inputs)
    steps = fuse(statements, Hints({}))
    spec.check("schedule", low, steps)
    return gm, low, steps


def groups_of(function, *inputs):
    return [step for step in steps_of(function, *inputs)[2] if isinstance(step, Group)]


PROGRAMS = {
    "pointwise": lambda x: ((x * 2 + 1).relu() - x.T.exp() / 3).sigmoid(),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax over columns": lambda x: torch.log_softmax(x, 0),
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "reductions": lambda x: (x.sum(0) + x.amax(0), x.mean(), (x > 0).any(1), x.var(1), x.prod(0)),
    "views": lambda x: (x.view(4, 2, 8)[:, 0].transpose(0, 1) + 1, x.flip(0) * 2, x[1:5, ::2].exp()),
    "cat and pad": lambda x: (torch.cat([x, x + 1], 1) * 2, F.pad(x, (1, 2), value=3.0) + 1),
    "indexing": lambda x: (x[torch.tensor([1, -1])] + 1, x.gather(1, torch.zeros(3, 2, dtype=torch.int64)) * 2),
    "scatters": lambda x: (
        x.scatter_add(1, (x > 0).long(), x * 2), x.scatter(0, torch.tensor([[1, 1, 0]]), x) + 1,
        x.index_put((torch.tensor([1, -1, 1]),), x[:3], accumulate=True), x.index_put((x > 0,), torch.tensor(2.0)),
        x.scatter_reduce(0, (x < 0).long(), x, "amin"),
    ),
    "scans": lambda x: (x.cumsum(0) * 2, x.exp().cumsum(0), x.cumprod(1), *x.cummax(0), *x.cummin(0), x.logcumsumexp(0)),
    "triangles": lambda x: x.tril(1) + torch.eye(8) + torch.arange(8),
    "types": lambda x: (x.half() * 2).float() + (x > 0) + x.to(torch.int32),
}  # fmt: skip


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_lowered_programs_mean_what_eager_does(name):
    """Run by the reference interpreter: what is tested is lowering alone."""
    torch.manual_seed(0)
    x = torch.randn(8, 8)
    gm, low, statements = lowered(PROGRAMS[name], x)
    spec.check("lower", low, statements)
    placeholder = next(iter(gm.graph.find_nodes(op="placeholder")))
    constants = {low.storage[node]: getattr(gm, node.target) for node in gm.graph.find_nodes(op="get_attr")}
    memory = reference.run(low, statements, {low.storage[placeholder]: x, **constants})
    outputs = next(iter(gm.graph.find_nodes(op="output"))).args[0]
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    expected = PROGRAMS[name](x)
    for node, value in zip(outputs, expected if isinstance(expected, tuple) else (expected,)):
        home, meta = memory[low.storage[node]], node.meta["val"]
        torch.testing.assert_close(home.as_strided(meta.shape, meta.stride()), value, rtol=1e-3, atol=1e-3)


def test_a_chain_of_operators_is_one_kernel():
    (group,) = groups_of(lambda x, y: ((x + y) * x).tanh() - y, torch.randn(4, 5), torch.randn(4, 5))
    assert len(group.members) == 1 and not group.reducing


def test_values_used_twice_are_computed_once():
    def function(x):
        y = x.exp() * 2
        return y + 1, y * 3, y

    (group,) = groups_of(function, torch.randn(10))
    body = render(group, frozenset(), Hints({}), 0).body
    assert body.count("fx_exp(") == 1


def test_softmax_is_one_kernel_whose_exponentials_stay_on_the_stack():
    gm, low, steps = steps_of(lambda x: torch.softmax(x * 2, -1), torch.randn(6, 50))
    (group,) = steps
    assert group.reducing and [member.loop_nest for member in group.members] == [0, 1, 1, 2]
    outside = escaping(low, gm)
    kernel = render(group, frozenset(group.writes() - outside), Hints({}), 0)
    assert len(kernel.buffers) == 2 and re.search(r"float s_\d+\[50\]", kernel.body)


def test_layer_norm_with_what_feeds_and_follows_it_is_one_kernel():
    def function(x, r, w, b):
        return F.gelu(F.layer_norm(x + r, (32,), w, b)) * 2

    (group,) = groups_of(function, torch.randn(6, 32), torch.randn(6, 32), torch.randn(32), torch.randn(32))
    assert group.reducing and not group.column_reduction


def test_a_reduction_of_columns_runs_across_lanes():
    (group,) = groups_of(lambda x: (x * 2).sum(0), torch.randn(100, 30))
    assert group.column_reduction


def test_rows_do_not_join_columns_whose_number_divides_theirs():
    """512 x 128 is 128 x 4 x 128, too: lanes of the columns would store rows 512 elements apart."""

    def function(x, g, w):
        row = g * w
        return row, (g * x).sum(0), (row * x).sum(1)

    groups = groups_of(function, *torch.randn(2, 512, 128), torch.randn(128))
    assert sorted((group.column_reduction, len(group.members)) for group in groups) == [(False, 2), (True, 1)]


def test_rows_that_are_looked_up_and_added_run_across_lanes():
    (group,) = groups_of(lambda t, i: F.embedding(i, t).sum(1), torch.randn(50, 32), torch.zeros(4, 10, dtype=torch.int64))
    assert group.column_reduction


def test_one_long_sum_is_shared_by_threads():
    (group,) = groups_of(lambda x: (x * 2).sum(), torch.randn(100_000))
    assert group.split


def test_batch_norm_in_training_is_one_kernel_with_its_running_statistics():
    def function(x, w, b, m, v):
        y, _, _, mean, var = torch.ops.aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5)
        return torch.relu(y), mean, var

    c = torch.rand(5)
    (group,) = groups_of(function, torch.randn(4, 5, 6, 6), c, c.clone(), c.clone(), c.clone())
    assert group.reducing


def test_what_reads_a_transposed_value_is_a_kernel_of_its_own():
    def function(x):
        y = x.exp() + 1
        return y, y.T.contiguous() * 2

    assert len(groups_of(function, torch.randn(6, 7))) == 2


def test_a_kernel_is_not_joined_across_a_call_it_depends_on():
    gm, low, steps = steps_of(lambda x: (x.relu() @ x).relu() + x.relu(), torch.randn(4, 4))
    kinds = [type(step) for step in steps]
    assert kinds[0] is Group and Extern in kinds and kinds[-1] is Group


def test_operators_alone_are_left_to_aten_where_it_is_the_faster():
    """A sigmoid of doubles is, on every processor, unless there is so little to do that the call costs more than the work."""
    for size, atens in ((4, False), (256, True)):
        x = torch.randn(size, size, dtype=torch.float64)
        gm = make_fx(lambda x: (x @ x).sigmoid().t() @ x, tracing_mode="fake")(x)
        compiled = pipeline.compile_graph(gm, [x])
        assert (compiled.compilation is None) == atens
        torch.testing.assert_close(compiled([x]), (x @ x).sigmoid().t() @ x)


def test_equal_kernels_are_one_function(kernels, monkeypatch):
    sources = []
    start = pipeline.cc.start
    monkeypatch.setattr(pipeline.cc, "start", lambda source, *before: sources.append(source) or start(source, *before))

    def layer(x, w):
        return (x @ w).relu() * 2

    def function(x, *weights):
        for w in weights:
            x = layer(x, w)
        return x

    weights = [torch.randn(6, 6) for _ in range(5)]
    torch.testing.assert_close(kernels(function, weights[0], *weights)(weights[0], *weights), function(weights[0], *weights))
    assert sources[0].count('extern "C"') == 1


def test_where_programs_cannot_run_graphs_run_node_by_node(monkeypatch):
    monkeypatch.setattr(pipeline._C, "program_can", lambda what: False)
    counters.clear()
    w = torch.randn(6, 6)
    gm = make_fx(lambda x: ((x + 1).relu() @ x).relu() * 2, tracing_mode="fake")(w)
    compiled = pipeline.compile_graph(gm, [w])
    torch.testing.assert_close(compiled([w]), ((w + 1).relu() @ w).relu() * 2)
    assert counters["run_as_captured"] == {"no-executor": 1}


def test_inputs_die_with_their_last_use():
    import weakref

    gm = make_fx(lambda x, y: (x + 1) @ y, tracing_mode="fake")(torch.randn(4, 4), torch.randn(4, 4))
    compiled = pipeline.compile_graph(gm, [])
    for _ in range(2):
        x = torch.randn(4, 4)
        gone, args = weakref.ref(x), [x, torch.randn(4, 4)]
        del x
        compiled(args)
        assert gone() is None and args == []


def test_texts_are_stable():
    """The same program prints the same twice: these are golden files, logs, and keys of the cache."""
    one, two = (program_text(lowered(PROGRAMS["softmax"], torch.randn(8, 8))[2]) for _ in range(2))
    assert one == two
    _, low, steps = steps_of(PROGRAMS["softmax"], torch.randn(8, 8))
    assert schedule_text(steps, low).startswith("kernel over [8] reducing from ")


# The tables


def test_every_scalar_operation_has_a_text_and_a_meaning():
    for name, row in SCALARS.items():
        if name == "cast":
            continue
        dtype = torch.float32 if not row.integers else torch.int64
        args = tuple(Const(1, dtype) for _ in range(row.arity))
        assert operation(Op(name, args, dtype), ["a", "b", "c"][: row.arity])
        assert callable(row.torch)
    assert all(callable(kind.torch) for kind in REDUCTIONS.values())


def test_an_operator_has_one_lowering():
    assert "add.Tensor" in LOWERINGS
    with pytest.raises(ValueError, match="two lowerings"):
        lowers("add.Tensor")(lambda low, node: None)


def test_lowered_operators_exist():
    """A name that neither a torch has nor we define would silently never match."""
    define_own_operators()

    def exists(name):
        packet, _, overload = name.partition(".")
        return any(hasattr(getattr(space, packet, None), overload) for space in (torch.ops.aten, torch.ops.fxjit))

    assert {name for name in LOWERINGS if not exists(name)} <= {
        "_fused_rms_norm.default",
        "contiguous.default",
        "convert_element_type.default",
        "_safe_softmax.default",
        "iota.default",
    }


def test_the_verifier_refuses_what_is_illegal():
    _, low, statements = lowered(lambda x: x + 1, torch.randn(3))
    compute = statements[0]
    wrong = type(compute)(
        compute.out,
        compute.size,
        (),
        Op("add", (Const(1.0, torch.float32), Const(1, torch.int64)), torch.float32),
        compute.stride,
    )
    with pytest.raises(spec.IllegalProgram, match="add of"):
        spec.check("lower", low, [wrong])
    unknown = Load("b99", torch.float32, torch.float32, (1,), 0)
    with pytest.raises(spec.IllegalProgram):
        spec.check("lower", low, [type(compute)(compute.out, compute.size, (), unknown, compute.stride)])
    assert isinstance(load_all(compute.out), TensorExpr)


# Sizes


def test_arithmetic_of_sizes():
    s, t = sympy.symbols("s t", integer=True, positive=True)
    assert segments((6, 4), (2, 12)) == [([0, 1], [0, 1])]
    assert segments((6, 4), (6, 2, 2)) == [([0], [0]), ([1], [1, 2])]
    assert segments((s, 8), (s * 8,)) == [([0, 1], [0])]
    assert segments((s,), (t,)) is None
    assert refine((24,), (4, 6)) == (4, 6) and refine((6, 4), (3, 8)) == (3, 2, 4) and refine((s * 4,), (s, 4)) == (s, 4)
    assert refine((6,), (5,)) is None
    assert exact_quotient(s * t, t) == s and exact_quotient(s, t) is None and exact_quotient(12, 5) is None
    third = FloorDiv(s + 2, 3)
    assert exact_quotient(2 * t * third, 2 * third) == t and exact_quotient(s * third, FloorDiv(s, 3)) is None
    assert segments((t, 2 * third), (t, 2, third)) == [([0], [0]), ([1], [1, 2])]
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)


def test_symbols_that_inputs_tell_in_sums():
    n, m, k, first, second, third = sympy.symbols("n m k first second third", integer=True)
    assert solve_sums({n}, {first: n + m}) == {m: first - n}
    assert solve_sums({n}, {first: m + k, second: n + m}) == {m: second - n, k: first - second + n}
    assert solve_sums([], {first: 3 * n + 1}) == {n: FloorDiv(first - 1, 3)}
    assert solve_sums([], {first: n + m, second: n * m, third: FloorDiv(n, 2)}) == {}


@pytest.mark.parametrize("factor", [0.5, 0.75, 1.5, 2.0, 3.25])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_made_of_floats_are_quotients(factor, sign):
    """A kernel's sizes are integers: `int(n * 1.5)`, which is how images are enlarged, has to be one."""
    size = sympy.Symbol("n", integer=True, positive=True if sign > 0 else None)
    for rounding, python in ((TruncToInt, int), (FloorToInt, math.floor), (CeilToInt, math.ceil)):
        scaled = without_floats(rounding(factor * ToFloat(size)))
        divided = without_floats(rounding(FloatTrueDiv(ToFloat(size), sympy.Float(factor))))
        for n in range(sign, 50 * sign, sign):
            assert scaled.subs(size, n) == python(n * factor)
            assert divided.subs(size, n) == python(n / factor)
        assert not (scaled.has(ToFloat) or divided.has(ToFloat))


def test_a_float_that_is_no_small_fraction_stays_one():
    size = sympy.Symbol("n", integer=True, positive=True)
    kept = TruncToInt(0.1 * ToFloat(size))
    assert without_floats(kept) == kept


def test_a_statement_joins_who_makes_what_it_reads_however_far_back():
    """An optimizer goes over its parameters step by step: the second step of each stands far behind the first."""
    def step(parameters, moments, gradients):
        torch._foreach_lerp_(moments, gradients, 0.1)
        scaled = [moment.square().mul(0.5) + gradient for moment, gradient in zip(moments, gradients, strict=True)]
        roots = [each.exp().sqrt() for each in scaled]
        return [parameter + root * each for parameter, root, each in zip(parameters, roots, scaled, strict=True)]

    given = [[torch.randn(128, 80) for _ in range(60)] for _ in range(3)]
    gm = make_fx(lambda *flat: step(flat[:60], flat[60:120], flat[120:]), tracing_mode="fake")(*sum(given, []))
    for run in PASSES:
        run(gm.graph)
    low = lower_graph(gm)
    groups = [each for each in fuse(live_statements(low, gm), Hints({})) if isinstance(each, Group)]
    between = {name for one in groups for other in groups if other is not one for name in one.writes() & other.reads()}
    assert not between, "in memory between two kernels"
