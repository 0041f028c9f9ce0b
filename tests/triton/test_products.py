"""Matrix products with the loops around them in one kernel (`mode="max-autotune"`), and how they are chosen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.choose import products
from fxjit.backends.native.runtime.gpu import job_of
from fxjit.backends.native.runtime.triton_compile import compiler
from fxjit.backends.store.artifacts import get_facts

from .conftest import assert_same, for_gpu
from .test_cubins import resources, usual


@pytest.fixture(autouse=True)
def products_of_our_own():
    with config.patch(**{"triton.max_autotune": True}):
        yield


def run(function, *inputs, mode="fake"):
    gm = make_fx(function, tracing_mode=mode)(*inputs)
    with config.patch(**{"triton.interpret": True}):
        return pipeline.compile_graph(gm, inputs, "test").finish()(list(inputs))


def mat(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


A, B, ROW = mat(40, 50), mat(50, 33), mat(33)
THREE, WEIGHT = mat(4, 10, 50), mat(33, 50)

# Sizes are on both sides of the interpreter's blocks of 16.
PROGRAMS = {
    "epilogue": (lambda a, b: (a @ b).relu(), A, B),
    "bias and activation": (lambda c, a, b: F.gelu(torch.addmm(c, a, b)), ROW, A, B),
    "a matrix as bias": (lambda c, a, b: torch.addmm(c, a, b).tanh(), mat(40, 33), A, B),
    "a column as bias": (lambda c, a, b: torch.addmm(c, a, b).tanh(), mat(40, 1), A, B),
    "prologue": (lambda a, b: (a * 2).relu() @ b, A, B),
    "both": (lambda a, b: ((a * 2).relu() @ b + 1).sigmoid(), A, B),
    "both operands computed": (lambda a, b: (a.exp() + a) @ (b.tanh() * b), A, B),
    "exp of nothing is not nothing": (lambda a, b: (a.exp() @ b.exp()).log(), A, B),
    "transposed": (lambda a, b: (a.t() @ b.t()).relu(), mat(50, 40), mat(33, 50)),
    "a transposed prologue": (lambda a, b: ((a + 1).t().abs() @ b).relu(), mat(50, 40), B),
    "linear of more dimensions": (lambda x, w, c: F.silu(F.linear(x, w, c)), THREE, WEIGHT, ROW),
    "a residual": (lambda x, w, c, r: F.linear(x, w, c) + r, THREE, WEIGHT, ROW, mat(4, 10, 33)),
    "kept beside what is made of it": (lambda a, b: (lambda y: (y, F.gelu(y)))(a @ b), A, B),
    "batches": (lambda x: torch.bmm(x, x.transpose(1, 2)).relu(), THREE),
    "batches with prologue": (lambda x, y: torch.bmm(x * 2 + 1, y).tanh(), THREE, mat(4, 50, 20)),
    "batches with bias": (lambda c, x, y: torch.baddbmm(c, x, y).tanh(), mat(4, 10, 20), THREE, mat(4, 50, 20)),
    "a part of a matrix": (lambda a, b: (a[:, 3:43] @ b[2:42]).relu(), A, B),
    "both operands the same": (lambda a: ((a + 1) @ (a + 1)).relu(), mat(20, 20)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_one_kernel_gives_eagers_numbers(seen, name):
    function, *inputs = PROGRAMS[name]
    assert_same(run(function, *inputs), function(*inputs), name)
    assert seen.kinds == ["product"], seen.kinds


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_added_up_in_float32(seen, dtype):
    inputs = [each.to(dtype) for each in (ROW, A, B)]
    function = PROGRAMS["both"][0]
    assert_same(run(function, *inputs[1:]), function(*inputs[1:]))
    assert seen.kinds == ["product"] and "tl.dot(" in seen.text


@pytest.mark.parametrize("rows", [40, 48])
def test_sizes_that_vary(seen, rows):
    """One kernel, whose sizes are arguments."""
    function = PROGRAMS["linear of more dimensions"][0]
    gm = make_fx(function, tracing_mode="symbolic")(THREE, WEIGHT, ROW)
    with config.patch(**{"triton.interpret": True}):
        compiled = pipeline.compile_graph(gm, (THREE, WEIGHT, ROW), "test").finish()
    x = mat(3, rows, 50)
    assert_same(compiled([x, WEIGHT, ROW]), function(x, WEIGHT, ROW))
    assert seen.kinds == ["product"]


LEFT_ALONE = {
    "nothing to take in": lambda a, b: a @ b,
    "read by two kernels that reduce": lambda a, b: (a @ b).sum(1),
    "scaled": lambda a, b: torch.addmm(b[:40], a, b, alpha=2).relu() if b.shape[1] == 33 else a,
    "a double": lambda a, b: (a.double() @ b.double()).relu(),
    "a single row": lambda a, b: (a[:1] @ b).relu(),
    "written to in between": lambda a, b: (lambda y: (a.mul_(2), y.relu())[1])(a @ b),
}


@pytest.mark.parametrize("name", list(LEFT_ALONE))
def test_what_is_left_to_aten(seen, name):
    function = LEFT_ALONE[name]
    given = [A.clone(), B.clone()]
    expected = function(*[each.clone() for each in given])
    assert_same(run(function, *given), expected, name)
    assert "product" not in seen.kinds


def test_without_the_mode_aten_multiplies(seen):
    with config.patch(**{"triton.max_autotune": False}):
        run(*PROGRAMS["epilogue"])
    assert seen.kinds == ["pointwise"]


# Precision


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("allowed", "word"), [("highest", "ieee"), ("high", "tf32")])
def test_float32_is_rounded_only_where_that_is_allowed(seen, precision, allowed, word):
    precision(allowed)
    run(*PROGRAMS["epilogue"])
    assert f'input_precision="{word}"' in seen.text


# Choosing


@pytest.fixture
def trials(monkeypatch):
    """Each trial that is made, run on the CPU by the interpreter, with the times that it is told."""
    made = []

    class Told(products.Trial):
        told = (1.0, 2.0)

        def times(self):
            made.append(self)
            return self.told

    monkeypatch.setattr(products, "Trial", Told)
    monkeypatch.setattr(products, "is_here", lambda: True)
    monkeypatch.setattr(products, "gpu_name", lambda device: "a GPU")
    monkeypatch.setattr(products.torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(products.torch.cuda, "is_current_stream_capturing", lambda: False)
    return made, Told


@pytest.fixture
def text_for_gpu(texts):
    """The program of a function of tensors on a GPU, as text."""

    def text(function, *shapes):
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs = [torch.empty(shape, device="cuda") for shape in shapes]
            gm = make_fx(function)(*inputs)
        pipeline.compile_graph(gm, inputs, "test")
        return texts[-1]

    return text


@pytest.mark.parametrize(("times", "one"), [((1.0, 2.0), True), ((2.0, 1.0), False)])
def test_the_faster_way_is_taken_and_remembered(trials, tmp_path, text_for_gpu, times, one):
    made, told = trials
    told.told = times
    with config.patch(cache_dir=str(tmp_path)):
        for _ in range(2):
            text = text_for_gpu(lambda a, b: (a @ b).relu(), (512, 256), (256, 384))
            assert ("aten.mm" not in text) == one
        assert len(made) == 1
        assert get_facts(made[0].key())["milliseconds"] == list(times)


def test_where_nothing_can_be_measured_the_product_is_atens(trials, tmp_path, text_for_gpu, monkeypatch):
    made, told = trials

    def times(self):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with config.patch(cache_dir=str(tmp_path)):
        with monkeypatch.context() as patch:
            patch.setattr(told, "times", times)
            assert "aten.mm" in text_for_gpu(lambda a, b: (a @ b).relu(), (512, 256), (256, 384))
        with monkeypatch.context() as patch:
            patch.setattr(products.torch.cuda, "is_current_stream_capturing", lambda: True)
            assert "aten.mm" in text_for_gpu(lambda a, b: (a @ b).relu(), (512, 256), (256, 384))
        assert not made
        assert "aten.mm" not in text_for_gpu(lambda a, b: (a @ b).relu(), (512, 256), (256, 384)) and len(made) == 1


def test_a_trial_computes_the_same_both_ways(monkeypatch, interpreter):
    """The measured calls themselves, on the CPU."""
    results = []
    trials = []

    def is_faster_fused(group, low, hints):
        trial = products.Trial(group, low, hints)
        monkeypatch.setattr(products, "measure", lambda call, args: results.append(after(trial, call)) or 1.0)
        monkeypatch.setattr(products.torch.random, "fork_rng", lambda devices: torch.no_grad())
        trials.append(trial.times())
        return True

    def after(trial, call):
        for name in trial.group.wanted:
            trial.tensors[name].zero_()
        call()
        return [trial.tensors[name].clone() for name in sorted(trial.group.wanted)]

    monkeypatch.setattr(pipeline, "is_faster_fused", is_faster_fused)
    for function, *inputs in (PROGRAMS["both"], PROGRAMS["kept beside what is made of it"], PROGRAMS["a part of a matrix"]):
        run(function, *inputs)
        ours, atens = results[-2:]
        assert ours and all(each.abs().sum() > 0 for each in ours)
        assert_same(ours, atens)
    assert trials == [(1.0, 1.0)] * 3


# Binaries


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_binaries(seen, dtype, arch):
    """Nothing is spilled by the tiles that are taken where nothing is measured; bfloat16 is for the tensor cores."""
    for_gpu(lambda x, w, b: F.gelu(torch.addmm(b, (x * 2).relu(), w)), (4096, 1024), (1024, 4096), (4096,), dtype=dtype)
    (kernel,) = seen.kernels
    job = job_of(kernel, usual(kernel), kernel.configs[0], arch)
    used = resources(compiler.submit(job).result())
    assert used["STACK"] == used["LOCAL"] == 0 and used["SHARED"] <= 160 * 1024, used
    text = compiler.answer({**job, "wanted": ["ptx"]})["ptx"]
    assert ("mma" in text) == (dtype is torch.bfloat16)
