"""Whole functions and modules through AOTAutograd: training, mutation, aliasing, symbolic sizes, under torch.compile."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import fxjit
from fxjit.backends.aot.node_by_node import aot_eager
from fxjit.backends.native import aot_eager_decomp_partition, native
from fxjit.counters import counters

BACKENDS = {"native": native, "aot_eager": aot_eager, "aot_eager_decomp_partition": aot_eager_decomp_partition}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def through(function, backend=native, **options):
    return torch.compile(function, backend=backend, **options)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1, self.c2, self.fc = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.Linear(32, 10),
        )

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.b1(self.c1(x))), 2)
        return self.fc(F.max_pool2d(F.silu(self.c2(x)), 2).flatten(1))


class Attention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads = heads
        self.n1, self.qkv, self.out, self.n2 = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
            nn.LayerNorm(dim),
        )
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) / (dim // self.heads) ** 0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, dim))
        return x + self.mlp(self.n2(x))


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(20, 12), nn.LayerNorm(12), nn.Linear(12, 20)

    def forward(self, tokens):
        return self.head(self.norm(self.table(tokens)).tanh())


MODULES = {
    "conv": (ConvNet, lambda: torch.randn(4, 1, 8, 8)),
    "attention": (Attention, lambda: torch.randn(2, 6, 16)),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)), lambda: torch.randn(5, 8)),
    "embedding": (Embedded, lambda: torch.randint(0, 20, (3, 7))),
    "groupnorm": (
        lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: torch.randn(2, 2, 6, 6),
    ),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("name", list(MODULES))
def test_training_step_has_eagers_outputs_gradients_and_buffers(name, backend):
    make, example = MODULES[name]
    eager = make()
    ours = copy.deepcopy(eager)
    compiled = through(ours, BACKENDS[backend])
    for _ in range(3):
        x = example()
        a, b = eager(x), compiled(x)
        torch.testing.assert_close(b, a)
        for model, out in ((eager, a), (ours, b)):
            model.zero_grad()
            out.square().mean().backward()
        for (parameter_name, p), q in zip(eager.named_parameters(), ours.parameters()):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6, msg=lambda text: f"{parameter_name}: {text}")
        for p, q in zip(eager.buffers(), ours.buffers()):
            torch.testing.assert_close(q, p)


@pytest.mark.parametrize("name", list(MODULES))
def test_inference(name):
    make, example = MODULES[name]
    model = make().eval()
    compiled = through(model)
    with torch.no_grad():
        for _ in range(2):
            x = example()
            torch.testing.assert_close(compiled(x), model(x))


def test_gradients_of_inputs_and_of_inputs_alone():
    def function(x, y):
        return (x.sin() * y).sum(0), (x * 2).detach(), y.exp()

    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(5)
    for f in (function, through(function)):
        x.grad = None
        outs = f(x, y)
        assert [out.requires_grad for out in outs] == [True, False, False]
        outs[0].sum().backward()
        if f is function:
            expected = x.grad
    torch.testing.assert_close(x.grad, expected)


def test_double_use_of_a_compiled_function_with_and_without_grad():
    compiled = through(lambda x: (x * 2).tanh())
    x = torch.randn(6, requires_grad=True)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * (1 - (x * 2).tanh() ** 2))


def test_mutation_of_inputs():
    def function(x, y):
        x.add_(1)
        y[1:].mul_(x[1:])
        return x * 2

    def check(f):
        x, y = torch.arange(5.0), torch.ones(5)
        return f(x, y), x, y

    for a, b in zip(check(through(function)), check(function)):
        assert torch.equal(a, b)


def test_overlapping_inputs_of_sizes_that_vary():
    """What the first is written shows in the second."""

    def function(a, b):
        a.mul_(2)
        return b + 1

    compiled = fxjit.compile(function)
    for size in (20, 22, 24):
        mine, theirs = torch.arange(40.0), torch.arange(40.0)
        assert torch.equal(compiled(mine[:size], mine[5 : 5 + size]), function(theirs[:size], theirs[5 : 5 + size]))
        assert torch.equal(mine, theirs)


def test_a_value_computed_before_a_mutation_is_the_old_one():
    def function(x):
        before = x + 1
        x.mul_(2)
        return before, x + 1

    x, y = torch.randn(4), None
    y = x.clone()
    for a, b in zip(through(function)(x), function(y)):
        assert torch.equal(a, b)
    assert torch.equal(x, y)


def test_outputs_that_alias():
    def function(x):
        y = x + 1
        return x, x.view(-1), y, y[0], x.t()

    x = torch.randn(3, 3)
    a, b, c, d, e = through(function)(x)
    assert a is x
    assert b.data_ptr() == x.data_ptr() and e.data_ptr() == x.data_ptr() and e.stride() == x.t().stride()
    assert d.data_ptr() == c.data_ptr()
    c[0] = 5
    assert (d == 5).all()


def test_the_same_value_returned_twice():
    def function(x):
        y = x + 1
        return y, y, y.detach()

    for a, b in zip(through(function)(torch.ones(3)), function(torch.ones(3))):
        assert torch.equal(a, b)


def test_outputs_are_fresh_at_each_call():
    compiled = through(lambda x: x * 2)
    x = torch.randn(2000)
    first = compiled(x)
    kept = first.clone()
    compiled(x + 1)
    assert torch.equal(first, kept)


def test_random_numbers_are_eagers():
    def function(x):
        return F.dropout(x, 0.5) * 2, torch.rand(4) + x[:4], torch.randn_like(x) * x, torch.bernoulli(torch.full((5,), 0.5))

    x = torch.randn(64)
    compiled = through(function)
    compiled(x)
    torch.manual_seed(3)
    actual = compiled(x)
    torch.manual_seed(3)
    for a, b in zip(actual, function(x)):
        torch.testing.assert_close(a, b)


def test_dropout_in_training():
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.2))
    x = torch.randn(8, 16)
    compiled = through(model)
    compiled(x)
    results = []
    for f in (model, compiled):
        model.zero_grad()
        torch.manual_seed(5)
        out = f(x)
        out.sum().backward()
        results.append((out.detach(), model[0].weight.grad.clone()))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


def test_one_compile_serves_several_sizes():
    def function(x, y):
        z = (x * y).relu()
        return (
            torch.softmax(z, -1),
            z.sum(0),
            z.reshape(-1)[: x.shape[0]] + x.shape[0],
            torch.cat([x, y]) * 2,
            F.layer_norm(x, x.shape[-1:]),
        )

    compiled = through(function, dynamic=True)
    before = counters["cache"]["hit"] + counters["cache"]["miss"]
    for rows, columns in ((4, 8), (5, 9), (64, 100), (33, 3)):
        x, y = torch.randn(rows, columns), torch.randn(rows, columns)
        for a, b in zip(compiled(x, y), function(x, y)):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
    assert counters["cache"]["hit"] + counters["cache"]["miss"] - before == 1


def test_symbolic_sizes_in_training():
    model = MODULES["attention"][0]()
    compiled = through(model, dynamic=True)
    for batch, length in ((2, 6), (3, 9), (4, 5)):
        x = torch.randn(batch, length, 16)
        grads = []
        for f in (model, compiled):
            model.zero_grad()
            f(x).square().mean().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_sizes_that_depend_on_data():
    def function(x):
        return x[x > 0].exp().sum(), x.nonzero() * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled = through(function, fullgraph=True)
        for _ in range(3):
            x = torch.randn(20)
            for a, b in zip(compiled(x), function(x)):
                torch.testing.assert_close(a, b)


def test_types_without_kernels_are_called_from_aten():
    def function(x):
        c = torch.complex(x, x * 2)
        return (c * c).abs() + x, torch.fft.rfft(x).real * 2

    x = torch.randn(16)
    for a, b in zip(through(function)(x), function(x)):
        torch.testing.assert_close(a, b)


def test_operators_without_lowerings():
    def function(x):
        values, indices = (x + 1).sort(dim=-1)
        top = torch.topk(x * 2, 3).values
        return (
            values * 2,
            indices + 1,
            top + 1,
            x.cumsum(0) * 2,
            torch.einsum("ij,kj->ik", x, x).relu(),
            x.max(1).values + 1,
            x.argmax(1),
        )

    x = torch.randn(6, 7)
    for a, b in zip(through(function)(x), function(x)):
        torch.testing.assert_close(a, b)


def test_autocast():
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x = torch.randn(8, 16)

    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    torch.testing.assert_close(through(function)(x), function(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(8),
        nn.BatchNorm2d(8).eval(),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.BatchNorm2d(8, affine=False),
        nn.GroupNorm(2, 8),
        nn.LayerNorm(6),
    ],
    ids=str,
)
def test_halves_normalized_with_float_parameters(norm):
    """What autocast makes of a convolution and what follows it: the statistics are float32 ones."""
    ours, theirs = copy.deepcopy(norm), copy.deepcopy(norm)
    x = torch.randn(4, 8, 6, 6).bfloat16()
    weight = torch.randn(x.shape)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    results = []
    for model, given in zip((through(ours), theirs), inputs):
        y = model(given)
        (y * weight).sum().backward()
        results.append(y)
    pairs = [tuple(results), (inputs[0].grad, inputs[1].grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(ours.parameters(), theirs.parameters())]
    pairs += list(zip(ours.buffers(), theirs.buffers()))
    for mine, expected in pairs:
        assert mine.dtype is expected.dtype
        torch.testing.assert_close(mine, expected, rtol=2e-2, atol=0.5 if expected.dim() == 1 else 2e-2)


def test_a_graph_module_with_parameters_of_its_own():
    """Without a front end that lifts them: what torch.fx.symbolic_trace gives."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    gm = torch.fx.symbolic_trace(model)
    x = torch.randn(3, 4)
    compiled = native(gm, [x])
    out = compiled(x)
    torch.testing.assert_close(out, model(x))
    out.sum().backward()
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for p, g in zip(model.parameters(), expected):
        torch.testing.assert_close(p.grad, g)


def test_an_optimizer_step():
    def update(p, g, m):
        m.mul_(0.9).add_(g)
        p.sub_(0.1 * m)

    def run(f):
        torch.manual_seed(1)
        p, g, m = torch.randn(50), torch.randn(50), torch.randn(50)
        f(p, g, m)
        return p, m

    for a, b in zip(run(through(update)), run(update)):
        torch.testing.assert_close(a, b)


def test_a_derivative_whose_sizes_depend_on_data_runs_as_captured():
    def function(x, mask, v):
        y = x * 2
        y[mask] = v
        return y.sin()

    x, v = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    mask = torch.tensor([True, False, True, True])
    before = counters["run_as_captured"]["data-dependent-shape"]
    out = fxjit.compile(function)(x, mask, v)
    assert counters["run_as_captured"]["data-dependent-shape"] == before + 1
    torch.testing.assert_close(out, function(x, mask, v))
    ours, eagers = (torch.autograd.grad(each.sum(), (x, v)) for each in (out, function(x, mask, v)))
    torch.testing.assert_close(ours, eagers)


def test_a_write_to_a_view_of_a_strided_view_runs_as_captured():
    def function(x):
        y = x * 2
        view = y.unflatten(1, (2, 2)).as_strided((2, 4), (4, 1))
        row = view[..., 1:3]
        row[0] = row[1] * 5
        return y, view

    x = torch.randn(4, 4)
    torch.testing.assert_close(fxjit.compile(function)(x), function(x))


def test_a_backward_knows_a_size_from_a_sum():
    """The backward is given the sizes of the nodes and of the edges with a loop at each node, and of no edges alone."""

    def function(x, source, target):
        loops = torch.arange(x.size(0))
        source, target = torch.cat([source, loops]), torch.cat([target, loops])
        return torch.zeros_like(x).index_add(0, target, x[source] * source[:, None]).sin()

    counters.clear()
    compiled = fxjit.compile(function, dynamic=True)
    for nodes, edges in ((5, 12), (7, 9)):
        x = torch.randn(nodes, 3, requires_grad=True)
        source, target = torch.randint(0, nodes, (2, edges))
        ours, eagers = compiled(x, source, target), function(x, source, target)
        torch.testing.assert_close(ours, eagers)
        torch.testing.assert_close(*(torch.autograd.grad(each.sum(), x) for each in (ours, eagers)))
    assert not counters["run_as_captured"]


def test_a_size_that_is_found_to_be_one():
    """The norm asks whether `n // 2` is 1; what was sliced before says `n // 2` still."""

    def function(x):
        half = x[: x.shape[0] // 2]
        normed = F.group_norm(half, 1)
        wide = torch.cat([normed, normed], 1)
        normed.copy_(normed.log1p())
        return half, wide, normed

    compiled = fxjit.compile(function, dynamic=True)
    for n in (3, 2, 5, 8):
        x = torch.rand(n, 1, 4)
        torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
def test_tensors_without_dimensions_are_inputs_like_others(dtype, dynamic):
    """torch makes a symbol of the number in one, and would have the trace start again for it."""

    def function(x, s):
        y = x * s.clone() + s
        s.add_(1)
        return y, s * 2

    compiled = fxjit.compile(function, dynamic=dynamic)
    for number in (2, 3):
        ours, eagers = torch.tensor(number, dtype=dtype), torch.tensor(number, dtype=dtype)
        x = torch.randn(3, requires_grad=True)
        a, e = compiled(x, ours), function(x, eagers)
        torch.testing.assert_close(a, e)
        assert torch.equal(ours, eagers)
        if dtype is not torch.int64:
            torch.testing.assert_close(*(torch.autograd.grad(each[0].sum(), x) for each in (a, e)))


@pytest.mark.parametrize("layout", ["plain", "scalar", "strided", "view"])
def test_a_derivative_uses_the_values_from_before_a_mutation(layout):
    """Whatever the partitioner saves: here an input that is written to at the end of the forward graph."""

    def function(x, s):
        y = x * (s.t() if layout == "view" else s).clone().sin() + 1
        s.add_(1)
        return y, s * 2

    made = {
        "plain": lambda: torch.full((3, 3), 2.0), "scalar": lambda: torch.tensor(2.0),
        "strided": lambda: torch.arange(18.0).view(3, 6)[:, ::2],
        "view": lambda: torch.arange(9.0).view(3, 3),
    }[layout]  # fmt: skip
    x = torch.randn(3, 3, requires_grad=True)
    for backend in ("native", "aot_eager"):
        ours, eagers = made(), made()
        a, e = fxjit.compile(function, backend=backend)(x, ours), function(x, eagers)
        torch.testing.assert_close(a, e)
        torch.testing.assert_close(ours, eagers)
        torch.testing.assert_close(torch.autograd.grad(a[0].sum(), x), torch.autograd.grad(e[0].sum(), x))


def test_kernels_of_sizes_that_were_floats():
    def fn(x):
        shrunk = F.interpolate(x * 2.0, scale_factor=0.5, mode="bilinear", align_corners=False)
        return shrunk + 1.0, x.new_zeros(int(x.shape[0] / 2.5)) + x.sum()

    counters.clear()
    compiled = fxjit.compile(fn, dynamic=True, fullgraph=True)
    for size in (8, 10, 15):
        x = torch.randn(size, 3, size + 1, 2 * size)
        torch.testing.assert_close(compiled(x), fn(x))
    assert not counters["run_as_captured"]


def test_a_check_with_an_effect_is_called_directly(monkeypatch):
    """`torch.linalg` looks at each factorization: torch has an operator written in Python around that, at 0.1 ms a call."""

    def fn(x, y):
        return torch.linalg.inv(x) @ torch.linalg.cholesky(y) + 1.0

    compiled = fxjit.compile(fn, fullgraph=True)
    x, y = torch.eye(3) * 2.0 + 0.1, torch.eye(3) * 3.0
    torch.testing.assert_close(compiled(x, y), fn(x, y))
    monkeypatch.setattr(type(torch.ops.higher_order.with_effects), "__call__", None)
    torch.testing.assert_close(compiled(y, x), fn(y, x))
    for bad in ((torch.zeros(3, 3), y), (x, -y)):
        with pytest.raises(torch.linalg.LinAlgError) as eager:
            fn(*bad)
        with pytest.raises(torch.linalg.LinAlgError) as ours:
            compiled(*bad)
        assert str(ours.value) == str(eager.value)
