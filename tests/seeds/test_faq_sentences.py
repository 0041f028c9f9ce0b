"""Sentences of the FAQ that have no example of their own, in its order: training, diagnosing, recompiles, shapes, random
numbers, NumPy. The examples are in test_faq.py."""

from __future__ import annotations

import contextlib
import io
import re
import zlib

import pytest
import torch
from tests.distributed.ranks import Ranks

import fxjit
from fxjit.testing import CompileCounter, EagerAndRecordGraphs

OFFSET = 1


@pytest.fixture(autouse=True)
def fresh():
    fxjit.reset()
    fxjit.counters.clear()


# -- Training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_each_segment_of_forward_has_its_backward_with_eager_operators_between(backend):
    def fn(x, w):
        y = torch.tanh(x @ w)
        fxjit.graph_break()
        return (y.sin() @ w).sum()

    def kinds(loss):
        found, pending = set(), [loss.grad_fn]
        while pending:
            node = pending.pop()
            if node is not None and node not in found:
                found.add(node)
                pending += [each for each, _ in node.next_functions]
        return sorted(type(node).__name__ for node in found)

    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    grads = []
    for each in (fn, fxjit.compile(fn, backend=backend)):
        x.grad = w.grad = None
        loss = each(x, w)
        names = kinds(loss)
        loss.backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(grads[0], grads[1])
    assert names.count("CompiledGraphBackward") == 2, names


def test_backward_of_eager_operators_runs_between_the_compiled_graphs():
    """The program calls `backward()` as ever: autograd walks the graph, a compiled piece is one node of it, and the nodes of
    what was not compiled stand between them."""
    @fxjit.disable
    def eager_op(x):
        return torch.erfinv(x / 2)

    def fn(x):
        return eager_op(x.tanh().sin()).cos().sum()

    def order(loss):
        node, names = loss.grad_fn, []
        while node is not None:
            names.append(type(node).__name__)
            node = node.next_functions[0][0] if node.next_functions else None
        return names

    x = torch.randn(3, requires_grad=True)
    expected = torch.autograd.grad(fn(x), x)
    loss = fxjit.compile(fn, backend="aot_eager")(x)
    assert order(loss) == ["CompiledGraphBackward", "ErfinvBackward0", "DivBackward0", "CompiledGraphBackward",
                           "AccumulateGrad"]
    torch.testing.assert_close(torch.autograd.grad(loss, x), expected)


def test_the_partition_saves_little_between_forward_and_backward():
    """The partitioner keeps as few activations between a forward graph and its backward graph as a minimal cut needs."""
    def fn(x):
        return x.sin().cos().sin().cos().sum()

    def saved(run, x):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            run(x).backward()
        return len(kept)

    x = torch.randn(5, requires_grad=True)
    assert saved(fn, x) == 4
    expected, x.grad = x.grad, None
    assert saved(fxjit.compile(fn, backend="native"), x) == 1
    torch.testing.assert_close(x.grad, expected)


def test_the_steps_of_optimizers_are_captured():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    twin = torch.nn.Linear(2, 2)
    twin.load_state_dict(model.state_dict())
    other = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    backend = EagerAndRecordGraphs()
    step = fxjit.compile(optimizer.step, backend=backend)
    x = torch.ones(1, 2)
    for _ in range(3):
        for net, go, opt in ((model, step, optimizer), (twin, other.step, other)):
            opt.zero_grad()
            net(x).sum().backward()
            go()
    assert backend.graphs
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


# -- Distributed code -----------------------------------------------------------------------------------------------------


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())


def on_one_rank(compiled_inside):
    """What the hooks on the parameters of a module saw in two steps, beside what they should, and what the graphs call."""
    net, x, seen = TwoLayers(), torch.randn(5, 3), []
    expected = torch.autograd.grad(net(x).sum(), net.parameters())
    backend = EagerAndRecordGraphs()
    parallel = torch.nn.parallel.DistributedDataParallel
    if compiled_inside:
        model = parallel(fxjit.compile(net, backend=backend))
    else:
        model = fxjit.compile(parallel(net), backend=backend)
    for parameter in net.parameters():
        parameter.register_hook(lambda grad: seen.append(grad.shape))
    for _ in range(2):
        net.zero_grad()
        model(x).sum().backward()
        torch.testing.assert_close(tuple(parameter.grad for parameter in net.parameters()), expected)
    called = [[node.name for node in graph.graph.nodes if node.op.startswith("call")] for graph in backend.graphs]
    return len(seen), 2 * len(expected), called


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without its distributed package")
@pytest.mark.parametrize("compiled_inside", [False, True])
def test_distributed_data_parallel_modules_are_compiled(compiled_inside, tmp_path):
    """Of the module that is wrapped, whichever is compiled; the hooks on its parameters see their gradients."""
    with contextlib.closing(Ranks(1, tmp_path)) as ranks:
        ((seen, expected, called),) = ranks(on_one_rank, compiled_inside)
    assert called == [["linear", "relu", "linear_1"]]
    assert seen == expected


# -- Crashes, and the time of compilation -----------------------------------------------------------------------------


def test_the_backends_to_try_one_after_the_other_are_there():
    assert {"eager", "aot_eager", "inductor", "native"} <= set(fxjit.list_backends(exclude_tags=None))


def test_a_function_is_compiled_again_up_to_the_limit():
    def fn(x, text):
        return x + len(text)

    counter = CompileCounter()
    with fxjit.config.patch(cache_size_limit=3):
        compiled = fxjit.compile(fn, backend=counter)
        for length in range(1, 7):
            assert torch.equal(compiled(torch.ones(1), "a" * length), torch.ones(1) + length)
    assert counter.frame_count == 3


@pytest.mark.compiles
def test_the_time_spent_in_each_phase_can_be_asked_for():
    fxjit.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    text = fxjit.compile_times()
    assert isinstance(text, str) and all(phase in text for phase in ("trace", "backend", "guards"))


def test_each_step_of_the_search_for_a_crash_names_its_part():
    """The ladder of backends: a failure that begins at one rung comes from what that rung adds."""
    def fn(x):
        return (x * 2).sin().sum()

    def step(backend):
        fxjit.reset()
        x = torch.arange(3.0, requires_grad=True)
        fxjit.compile(fn, backend=backend)(x).backward()
        return x.grad

    expected = (torch.arange(3.0) * 2).cos() * 2
    for backend in ("eager", "aot_eager", "native"):
        torch.testing.assert_close(step(backend), expected)

    def broken(gm, inputs):
        raise RuntimeError("the last step")

    with pytest.raises(fxjit.errors.BackendCompilerFailed, match="broken'(.|\n)*the last step"):
        step(broken)


# -- What makes it faster -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fn", "results"), [
    (lambda x: x.cos().cos(), 1), (lambda x: (x.cos(), x.sin()), 2), (lambda x: (x.cos(), (x.cos() * 2).sum()), 2),
], ids=["one behind the other", "beside each other", "with a reduction"])  # fmt: skip
def test_operators_are_fused_to_one_kernel(fn, results):
    """Two cosines in a row are one kernel that reads once and writes once; so are two that stand beside each other."""
    x = torch.randn(1000)
    torch.testing.assert_close(fxjit.compile(fn, backend="native")(x), fn(x))
    assert fxjit.counters["native"]["kernels"] == 1


def test_memory_is_used_again_behind_its_last_reader(caplog):
    """The compiled graph may reorder its kernels, and lets buffers share memory where their lifetimes do not overlap."""
    def fn(x, w):
        return x @ w @ w @ w @ w

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    fxjit.set_logs(output_code=True)
    try:
        torch.testing.assert_close(fxjit.compile(fn, backend="native")(x, w), fn(x, w))
    finally:
        fxjit.set_logs()
    places = re.findall(r"^ *\w+ = arena\[(\d+):\]$", caplog.text, re.MULTILINE)
    assert len(places) == 3 and len(set(places)) == 2, "three products on the way, two places"


# -- What keeps it slow --------------------------------------------------------------------------------------------------


def test_an_extension_of_c_that_is_not_torchs_ends_the_graph_and_runs_as_it_is():
    seen = []

    def fn(x):
        y = x + 1
        seen.append(zlib.crc32(y.numpy()))
        return y * 2

    expected = fn(torch.ones(3))
    counter = CompileCounter()
    compiled = fxjit.compile(fn, backend=counter)
    torch.testing.assert_close(compiled(torch.ones(3)), expected)
    assert counter.frame_count == 2 and seen[0] == seen[1]


# -- Code that changes --------------------------------------------------------------------------------------------------


def test_with_dynamic_shapes_another_shape_is_no_recompile():
    counter = CompileCounter()
    compiled = fxjit.compile(lambda x: x.sum(0) * 2, dynamic=True, backend=counter)
    for size in (3, 4, 50):
        torch.testing.assert_close(compiled(torch.ones(size, 2)), torch.full((2,), 2.0 * size))
    assert counter.frame_count == 1


def test_only_the_graph_that_a_change_is_about_is_compiled_again():
    def fn(x):
        x = x * 2
        fxjit.graph_break()
        x = x + OFFSET
        fxjit.graph_break()
        return x * 3

    global OFFSET
    counter = CompileCounter()
    compiled = fxjit.compile(fn, backend=counter)
    compiled(torch.ones(1))
    assert counter.frame_count == 3
    try:
        OFFSET = 7
        assert torch.equal(compiled(torch.ones(1)), torch.tensor([27.0]))
        assert counter.frame_count == 4
        compiled(torch.ones(1))
        assert counter.frame_count == 4
    finally:
        OFFSET = 1


# -- Random numbers, accuracy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_random_numbers_are_those_of_eager(backend):
    def fn(x):
        x = torch.nn.functional.dropout(x, 0.5) + torch.rand(4)
        fxjit.graph_break()
        return x * torch.randn(4), torch.randint(0, 9, (3,))

    results = []
    for each in (fn, fxjit.compile(fn, backend=backend)):
        torch.manual_seed(3)
        results.append((each(torch.ones(4)), torch.rand(1)))
    torch.testing.assert_close(results[0], results[1])


# -- torch.func ----------------------------------------------------------------------------------------------------------

#: What the FAQ says vmap is not supported over.
ASKED_UNDER_VMAP = """
    stride requires_grad storage_offset layout data is_coalesced is_complex is_conj is_contiguous is_cpu is_cuda is_distributed
    is_floating_point is_inference is_ipu is_leaf is_meta is_mkldnn is_mps is_neg is_nested is_nonzero is_ort is_pinned
    is_quantized is_same_size is_set_to is_shared is_signed is_sparse is_sparse_csr is_vulkan is_xla is_xpu
""".split()


@pytest.mark.parametrize("name", ASKED_UNDER_VMAP)
def test_what_is_asked_of_a_tensor_under_vmap_is_answered_as_in_eager(name):
    def asks(x):
        answer = getattr(x, name)
        if callable(answer):
            answer = answer(x) if name in ("is_same_size", "is_set_to") else answer()
        return x + answer if isinstance(answer, torch.Tensor) else x * len(str(answer))

    def my_fn(x):
        return torch.func.vmap(asks)(x) + 1

    def outcome(fn):
        try:
            return fn(x).tolist()
        except (RuntimeError, AttributeError) as error:
            return type(error), str(error)

    x = torch.randn(3, 2, 2)
    compiled = fxjit.compile(my_fn, backend="eager")
    assert outcome(compiled) == outcome(my_fn) == outcome(compiled)


def test_transforms_over_what_a_compiled_function_calls_and_of_one_that_writes_inside():
    """A list made inside the transformed function may be changed there."""
    def f(x, y):
        made = []
        made.append(x + y)
        made.append(made[0] * 2)
        return made[1]

    counter = CompileCounter()
    x, y = torch.ones(2, 3), torch.randn(2, 3)
    compiled = fxjit.compile(lambda x, y: torch.func.vmap(f)(x, y), backend=counter)
    torch.testing.assert_close(compiled(x, y), (x + y) * 2)
    assert counter.frame_count == 1


# -- NumPy -------------------------------------------------------------------------------------------------------------------

np = pytest.importorskip("numpy")


def as_plain(value):
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in value]
    if isinstance(value, np.ma.MaskedArray):
        return value.filled(-1).tolist()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic, torch.Tensor)) else value


def kind_of(value):
    return type(value), getattr(value, "dtype", None)


class Sub(np.ndarray):
    pass


UNTRACED = {
    "datetimes": lambda a: (np.array(["2020-01-01"], dtype="datetime64[D]") + 1, a + 1),
    "strings": lambda a: (np.char.add(np.array(["a", "b"]), "c"), a + 1),
    "structured": lambda a: (np.array([(1, 2.0)], dtype=[("k", int), ("v", float)])["v"], a + 1),
    "long double": lambda a: ((a.astype(np.longdouble) + 1).astype(float), a + 1),
    "unsigned": lambda a: (a.astype(np.uint16) + 1, a.astype(np.uint64) * 2),
    "subclass": lambda a: (type(a.view(Sub) + 1).__name__, a + 1),
    "masked": lambda a: (np.ma.masked_greater(a, 2) * 2, a + 1),
    "axes": lambda a: (np.matmul(a, a, axes=[(0, 1), (0, 1), (0, 1)]), a + 1),
    "ufunc method": lambda a: (np.add.reduce(a, axis=0), np.multiply.outer(a[0], a[1])),
    "sorting complex": lambda a: (np.sort(a[0] + 1j), a + 1),
    "poly1d": lambda a: (np.poly1d([1, 2])(3), a + 1),
    "out of two": lambda a: (np.divmod(a, 2, np.empty_like(a), np.empty_like(a)), a + 1),
    "array function": lambda a: (a.__array_function__(np.sum, (np.ndarray,), (a,), {}), a + 1),
    "ctypes": lambda a: (a.ctypes.shape[0], a + 1),
    "chars": lambda a: (np.char.upper(np.array([b"a", b"bc"])), a + 1),
    "void": lambda a: (np.array([b"ab"], dtype="V2").tobytes(), a + 1),
    "recarray": lambda a: (np.rec.array([(1, 2.0)], dtype=[("k", int), ("v", float)]).v, a + 1),
    "long complex": lambda a: (a.astype(np.clongdouble).astype(complex) * 2, a + 1),
    "unsigned of 32 bits": lambda a: (a.astype(np.uint32) * 3 + np.uint32(1), a + 1),
    "masked mean": lambda a: (float(np.ma.masked_array(a, a > 4).mean()), a + 1),
    "accumulate": lambda a: (np.add.accumulate(a, axis=1), np.maximum.at(a, 0, 5), a),
    "polynomial": lambda a: (np.polynomial.Polynomial([1, 2, 3])(a), a + 1),
    "a polynomial's fit": lambda a: (np.polyval(np.poly1d([1, 2]), a[0]), a + 1),
    "out as a tuple": lambda a: (np.divmod(a, 2, out=(np.empty_like(a), np.empty_like(a))), a + 1),
    "array interface": lambda a: (a.__array_interface__["shape"], a + 1),
    "array wrap": lambda a: (a.__array_wrap__(np.ones(2)), a + 1),
    "triu_indices": lambda a: (np.triu_indices(3)[0] * 2, type(np.tril_indices(3)).__name__, a[np.triu_indices_from(a)]),
    "scalars as Python's": lambda a: (a * float(np.float32(3)), int(np.int8(3)), bool(np.bool_(True))),
    "promotion with a Python number": lambda a: (a.astype(np.float32) + 3.5, a.astype(np.int8) + 3, np.int8(1) + 3),
    "promotion of two arrays": lambda a: (a.astype(np.float32) + a, a.astype(np.int8) * a.astype(np.int16)),
    "promotion with a NumPy scalar": lambda a: (a.astype(np.float32) + np.float64(3), np.float32(3) + np.int64(2)),
    "a copy with a negative step": lambda a: (np.flip(a, 0).strides, a[:, ::-1].flags.owndata, a),
    "branches on data": lambda a: a * 2 if a.sum() > 3 else a - 1,
    "while on data": lambda a: [a := a / 2 for _ in range(9) if a.max() > 1][-1],
    "negative step": lambda a: (a[::-1] * 2, np.flip(a) + 1),
    "a scalar": lambda a: (a + np.float32(3), np.float32(3) * 2),
    "tril_indices_from": lambda a: (a[np.tril_indices_from(a)], a + 1),
    "mask": lambda a: (a[a > 2], a + 1),
    "in place": lambda a: (np.add(a, 1, out=np.empty_like(a)), a.__iadd__(1)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNTRACED)
def test_numpy_that_is_not_traced_is_left_to_numpy(name):
    fn, start = UNTRACED[name], np.arange(9.0).reshape(3, 3)
    expected = fn(start.copy())
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        got = compiled(start.copy())
        assert as_plain(got) == as_plain(expected)
        assert [kind_of(item) for item in got] == [kind_of(item) for item in expected]


def test_a_graph_break_in_numpy_code_is_resumed():
    def numpy_fn(a, b):
        prod = a[:, :, None] * b[:, None, :]
        print("oops, a graph break!")
        return np.sum(prod, axis=(-2, -1))

    a, b = np.random.randn(8, 4), np.random.randn(8, 4)
    counter, out = CompileCounter(), io.StringIO()
    with contextlib.redirect_stdout(out):
        result = fxjit.compile(numpy_fn, backend=counter)(a, b)
    assert counter.frame_count == 2 and out.getvalue() == "oops, a graph break!\n"
    np.testing.assert_allclose(result, np.sum(a[:, :, None] * b[:, None, :], axis=(-2, -1)))


def test_gradients_go_through_numpy_code():
    @fxjit.wrap_numpy
    def numpy_fn(a, b):
        return np.sum(a[:, :, None] * b[:, None, :])

    x, y = torch.randn(4, 2, requires_grad=True), torch.randn(4, 2)
    fxjit.compile(numpy_fn, fullgraph=True, backend="aot_eager")(x, y).backward()
    torch.testing.assert_close(x.grad, y.sum(1, keepdim=True).expand(4, 2))


def test_a_graph_break_loses_the_gradient_as_numpy_arrays_do():
    @fxjit.wrap_numpy
    def numpy_fn(a):
        b = a * 2
        fxjit.graph_break()
        return np.sum(b)

    result = fxjit.compile(numpy_fn, backend="eager")(torch.ones(3, requires_grad=True))
    assert result.item() == 6 and not result.requires_grad


def test_numpy_code_makes_its_tensors_on_the_device_of_the_moment():
    """The FAQ's `with torch.device("cuda")`, on the device that every machine has; over a graph break too."""
    @fxjit.wrap_numpy
    def numpy_fn(a, b):
        prod = a[:, :, None] * b[:, None, :]
        print("oops, a graph break!")
        return np.sum(prod, axis=(-2, -1))

    x, y = torch.randn(4, 2), torch.randn(4, 2)
    counter = CompileCounter()
    compiled = fxjit.compile(numpy_fn, backend=counter)
    with torch.device("cpu"), contextlib.redirect_stdout(io.StringIO()) as out:
        result = compiled(x, y)
    assert isinstance(result, torch.Tensor) and result.device.type == "cpu"
    assert counter.frame_count == 2 and out.getvalue() == "oops, a graph break!\n"
    torch.testing.assert_close(result, (x[:, :, None] * y[:, None, :]).sum((-2, -1)))


def test_torchs_own_numpy_runs_eagerly_and_compiled():
    import torch._numpy as tnp

    def fn(x):
        return tnp.sum(tnp.asarray(x) * 2).tensor

    x = torch.arange(3.0)
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(x), fn(x))


def test_trace_numpy_off_lets_numpy_run_its_own_code():
    def fn(a):
        return np.tanh(a) + 1

    a = np.arange(3.0)
    counter = CompileCounter()
    with fxjit.config.patch(trace_numpy=False):
        np.testing.assert_array_equal(fxjit.compile(fn, backend=counter)(a), fn(a))
    assert counter.frame_count == 0
