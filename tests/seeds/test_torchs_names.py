"""The FAQ's programs in torch's own words, with the drop-in installed: its modules, its settings, its variables of the
environment."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings

import pytest
import torch
from tests.seeds.test_faq import toy_example

import fxjit
from fxjit import config
from fxjit.testing import CompileCounter, EagerAndRecordGraphs


@pytest.fixture(autouse=True)
def installed():
    """fxjit in the place of torch.compile; every setting, of torch's and ours, is as before when the test is over."""
    fxjit.reset()
    before = config.to_dict()
    fxjit.install()
    import torch._dynamo
    import torch._inductor.config

    touched = ((torch._dynamo.config, ("recompile_limit", "capture_func_transforms", "trace_numpy")),
               (torch._inductor.config, ("fallback_random", "triton.cudagraphs")))
    with contextlib.ExitStack() as stack:
        for settings, names in touched:
            stack.enter_context(settings.patch({name: getattr(settings, name) for name in names}))
        yield
        fxjit.uninstall()
    for name, value in before.items():
        if config.to_dict()[name] != value:
            config.patch({name: value}).__enter__()
    fxjit.set_logs()
    fxjit.reset()


# -- Programs ------------------------------------------------------------------------------------------------------------


def test_the_profiler():
    from torch._dynamo.utils import CompileProfiler

    def my_model():
        return torch.ones(2).cos()

    with CompileProfiler() as prof:
        profiler_model = torch.compile(my_model, backend=prof)
        profiler_model()
        report = prof.report()
    assert "Captured: 1 graph" in report and "No recompiles detected." in report


def test_the_profiler_accumulates_past_the_limit_of_recompiles():
    """The report counts each guard failure of the whole run, however many iterations it had."""
    from torch._dynamo.utils import CompileProfiler

    torch._dynamo.config.cache_size_limit = 2
    with CompileProfiler() as prof:
        model = torch.compile(lambda x, text: x * len(text), backend=prof)
        for length in range(1, 8):
            assert torch.equal(model(torch.ones(1), "a" * length), torch.tensor([float(length)]))
    report = prof.report()
    assert sum(prof.get_metrics()["recompiles"].values()) == 6
    assert all(f"'{'a' * length}'" in report for length in range(1, 8)), "and the causes"
    assert config.recompile_limit == 2


def test_frozen_running():
    import torch._dynamo as dynamo

    counter = CompileCounter()
    compiled = torch.compile(lambda a, b: a + b, backend=counter, dynamic=False)
    compiled(torch.randn(10), torch.randn(10))
    frozen = dynamo.run(compiled)
    for size in (10, 11):
        assert torch.equal(frozen(torch.ones(size), torch.ones(size)), torch.full((size,), 2.0))
    assert counter.frame_count == 1


def test_explain(capsys):
    import torch._dynamo as dynamo

    explanation, out_guards, graphs, ops_per_graph = dynamo.explain(toy_example, torch.randn(10), torch.ones(10))
    print(explanation)
    shown = capsys.readouterr().out
    assert "3 graphs" in shown and "2 graph break" in shown and "6 ops" in shown
    assert (len(graphs), len(ops_per_graph)) == (3, 3) and out_guards


@pytest.mark.compiles
def test_compile_times():
    torch.compile(toy_example, backend="eager")(torch.ones(2), torch.ones(2))
    text = torch._dynamo.utils.compile_times()
    assert isinstance(text, str) and "trace toy_example" in text


@pytest.mark.parametrize("compiler", ["optimize", "compile"])
@pytest.mark.parametrize("option", ["nopython", "fullgraph"])
def test_an_error_on_the_first_break(compiler, option):
    if compiler == "compile":
        compiled = torch.compile(toy_example, backend="eager", **{option: True})
    elif option == "nopython":
        compiled = torch._dynamo.optimize("eager", nopython=True)(toy_example)
    else:
        compiled = torch._dynamo.optimize_assert("eager")(toy_example)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="print"):
        compiled(torch.randn(10), torch.randn(10))


def test_nopython_of_a_module():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module.forward = lambda x: toy_example(x, x)
    module.compile(nopython=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="print"):
        module(torch.randn(10))


def test_transforms_need_no_setting_and_obey_it():
    def my_fn(x):
        return torch.vmap(lambda x: x.sum(1))(x)

    x = torch.randn(3, 3, 3)
    for setting, graphs in ((True, 1), (False, 0)):
        torch._dynamo.config.capture_func_transforms = setting
        fxjit.reset()
        counter = CompileCounter()
        torch.testing.assert_close(torch.compile(my_fn, backend=counter)(x), x.sum(2))
        assert counter.frame_count == graphs


def test_numpy_is_wrapped_and_left_alone():
    np = pytest.importorskip("numpy")

    @torch.compile(fullgraph=True, backend="aot_eager")
    @torch.compiler.wrap_numpy
    def numpy_fn(X, Y):
        return np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1)).mean()

    x, y = torch.randn(8, 4, requires_grad=True), torch.randn(8, 4)
    z = numpy_fn(x, y)
    assert isinstance(z, torch.Tensor)
    z.backward()
    torch.testing.assert_close(x.grad, y.sum(1, keepdim=True).expand(8, 4) / 8)
    torch._dynamo.config.trace_numpy = False
    counter = CompileCounter()
    torch.compile(lambda a: np.tanh(a) + 1, backend=counter)(np.arange(3.0))
    assert counter.frame_count == 0


@pytest.mark.parametrize("mark", ["disable", "recursive=False", "disallow_in_graph", "graph_break", "skip"])
def test_the_ways_to_keep_a_function_out(mark):
    """The three annotations that keep code out of the graph, by the graphs that each leaves."""
    dynamo = torch._dynamo

    def aa_fn(x):
        return x + 1

    def a_fn(x):
        if mark == "graph_break":
            dynamo.graph_break()
        return torch.sub(aa_fn(x), 1)

    marked = {
        "disable": dynamo.disable,
        "recursive=False": dynamo.disable(recursive=False),
        "skip": dynamo.decorators.skip,  # what `recursive=False` was called before
    }.get(mark, lambda fn: fn)(a_fn)

    def fn(x):
        return marked(x * 2) * 3

    backend = EagerAndRecordGraphs()
    if mark == "disallow_in_graph":
        dynamo.disallow_in_graph(torch.sub)
    try:
        assert torch.equal(torch.compile(fn, backend=backend)(torch.ones(2)), torch.full((2,), 6.0))
    finally:
        if mark == "disallow_in_graph":
            dynamo.allow_in_graph(torch.sub)
    graphs = [[node.name for node in graph.graph.nodes if node.op == "call_function"] for graph in backend.graphs]
    assert graphs == {
        "disable": [["mul"], ["mul"]],
        "recursive=False": [["mul"], ["add"], ["mul"]],
        "skip": [["mul"], ["add"], ["mul"]],
        "disallow_in_graph": [["mul", "add"], ["mul"]],
        "graph_break": [["mul"], ["add", "sub", "mul"]],
    }[mark]


# -- Settings ------------------------------------------------------------------------------------------------------------


def test_settings_of_inductor():
    inductor = torch._inductor.config
    inductor.fallback_random = True
    assert config.fallback_random
    inductor.triton.cudagraphs = True
    assert config.triton.cudagraphs
    inductor.triton.cudagraphs = False
    assert not config.triton.cudagraphs
    with inductor.patch({"trace.enabled": True, "max_autotune": True, "freezing": True}):
        assert config.debug and config.triton.max_autotune and config.freezing
    assert not config.debug and not config.triton.max_autotune and not config.freezing
    with pytest.warns(UserWarning, match=r"trace\.graph_diagram has no effect on fxjit: config\.debug"):
        with inductor.patch({"trace.graph_diagram": True}):
            pass
    fxjit.uninstall()
    inductor.fallback_random = False
    assert config.fallback_random, "uninstalled, torch's are torch's"


def test_settings_of_inductor_that_were_made_before_hold_too():
    fxjit.uninstall()
    torch._inductor.config.fallback_random = True
    fxjit.install()
    assert config.fallback_random


# -- Variables of the environment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variable", "text", "ours"), [
    ("TORCH_COMPILE_DEBUG", "1", {"debug": True}),
    ("TORCH_COMPILE_DEBUG", "0", {"debug": False}),
    ("TORCH_COMPILE_DISABLE", "1", {"disable": True}),
    ("TORCHDYNAMO_SUPPRESS_ERRORS", "1", {"suppress_errors": True}),
    ("TORCHDYNAMO_VERBOSE", "1", {"verbose": True}),
    ("TORCHINDUCTOR_FREEZING", "1", {"freezing": True}),
    ("TORCHDYNAMO_DYNAMIC_SHAPES", "1", {"dynamic_shapes": True, "assume_static_by_default": False}),
    ("TORCHDYNAMO_DYNAMIC_SHAPES", "0", {"dynamic_shapes": False}),
    ("TORCHDYNAMO_REPRO_AFTER", "aot", {"repro_after": "aot"}),
    ("TORCHDYNAMO_REPRO_AFTER", "dynamo", {"repro_after": "dynamo"}),
    ("TORCHDYNAMO_REPRO_LEVEL", "4", {"repro_level": 4}),
])  # fmt: skip
def test_a_variable_of_torchs_sets_ours_of_the_same_meaning(variable, text, ours, monkeypatch):
    fxjit.uninstall()
    monkeypatch.setenv(variable, text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxjit.install()
    assert {name: config.to_dict()[name] for name in ours} == ours


def test_the_switch_that_torch_reads_at_each_decoration(monkeypatch):
    """What was compiled before it was set stays compiled, and so is what comes once it is gone."""
    counter = CompileCounter()

    def doubled(x):
        return x * 2

    def tripled(x):
        return x * 3

    class Model(torch.nn.Linear):
        pass

    before = torch.compile(doubled, backend=counter)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    model, placed = Model(2, 2), Model(2, 2)
    placed.compile(backend=counter)
    assert torch.compile(tripled, backend=counter) is tripled and torch.compile(backend=counter)(tripled) is tripled
    assert torch.compile(model, backend=counter) is model and placed._compiled_call_impl is None
    assert torch._dynamo.optimize(counter)(tripled) is tripled
    before(torch.ones(2))
    assert counter.frame_count == 1 and not config.disable
    for text in ("0", ""):
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", text)
        assert torch.compile(tripled, backend=counter) is not tripled
    torch.compile(tripled, backend=counter)(torch.ones(2))
    assert counter.frame_count == 2


def test_ours_goes_before_torchs(monkeypatch):
    fxjit.uninstall()
    monkeypatch.setenv("TORCHDYNAMO_REPRO_LEVEL", "4")
    monkeypatch.setenv("FXJIT_REPRO_LEVEL", "2")
    fxjit.install()
    assert config.repro_level == 2


@pytest.mark.parametrize(("variable", "ours"), [
    ("TORCHDYNAMO_REPRO_AFTER", "FXJIT_REPRO_AFTER"), ("TORCHDYNAMO_REPRO_LEVEL", "FXJIT_REPRO_LEVEL"),
    ("TORCH_COMPILE_DEBUG", "FXJIT_DEBUG"),
])  # fmt: skip
def test_a_value_that_means_nothing_is_said_with_the_name_to_use(variable, ours, monkeypatch):
    fxjit.uninstall()
    monkeypatch.setenv(variable, "everything")
    with pytest.warns(UserWarning, match=f"{variable}='everything' has no effect on fxjit.* Its own is {ours}"):
        fxjit.install()


@pytest.mark.parametrize(("text", "compiles"), [("1", 1), ("0", 3)])
def test_with_dynamic_shapes_by_the_environment_another_shape_is_no_recompile(text, compiles, monkeypatch):
    fxjit.uninstall()
    monkeypatch.setenv("TORCHDYNAMO_DYNAMIC_SHAPES", text)
    fxjit.install()
    counter = CompileCounter()
    compiled = torch.compile(lambda x: x.sum(0) * 2, backend=counter)
    for size in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(size, 2)), torch.full((2,), 2.0 * size))
    assert counter.frame_count == compiles


def run_script(folder, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "repro.py").write_text(text)
    return subprocess.run([sys.executable, "-m", "fxjit", "run", "repro.py"], cwd=folder, capture_output=True, text=True,
                          timeout=200, env=config.child_environment(**variables), check=False)


def test_debug_shows_each_stage_of_a_compile(tmp_path):
    """`TORCH_COMPILE_DEBUG=1` leaves a folder with the generated code, the loops and a picture of the graph."""
    text = "import torch\ntorch.compile(lambda x: x.cos().cos())(torch.randn(99))\n"
    done = run_script(tmp_path, text, TORCH_COMPILE_DEBUG="1")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "fxjit_debug").iterdir()
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert "fx_cos(" in files["output_code.txt"] or "tl_math.cos" in files["output_code.txt"]
    assert files["graph.svg"].startswith("<svg") and "cos_1" in files["graph.svg"]
    assert "cos(cos(" in files["fusion.txt"] and "torch.ops.aten.cos" in files["aot_inference.py"]
    assert {"timing.txt", "guards.txt", "bytecode_after.txt", "source.py"} <= files.keys()


def test_wrong_results_are_minified(tmp_path):
    """`TORCHDYNAMO_REPRO_AFTER=... TORCHDYNAMO_REPRO_LEVEL=4`: a script with the smallest graph whose results differ."""
    text = """if True:
        import torch
        def wrong(gm, inputs):
            bad = any("tanh" in str(node.target) for node in gm.graph.nodes if node.op.startswith("call"))
            return lambda *args: tuple(each + 0.5 * bad for each in gm.forward(*args))
        @torch.compile(backend=wrong)
        def program(x):
            return torch.tanh(x.relu().sin() + 1) * 2
        program(torch.randn(4))
    """
    done = run_script(tmp_path, text, TORCHDYNAMO_REPRO_AFTER="dynamo", TORCHDYNAMO_REPRO_LEVEL="4")
    assert done.returncode != 0 and "AccuracyError" in done.stderr, done.stderr
    (script,) = tmp_path.glob("fxjit_debug/repro_*/repro.py")
    forward = script.read_text().partition("def forward")[2].partition("return")[0]
    assert "tanh(" in forward and "sin" not in forward and "relu" not in forward


def test_output_code_by_torchs_variable(tmp_path):
    """What `TORCH_LOGS=output_code` shows of the NumPy example: product and sum in one C++ kernel, over several threads."""
    pytest.importorskip("numpy")
    text = """if True:
        import numpy as np, torch
        @torch.compile
        def numpy_fn(X, Y):
            return np.sum(X[:, :, None] * Y[:, None, :], axis=(-2, -1))
        Z = numpy_fn(np.random.randn(1024, 64), np.random.randn(1024, 64))
        assert isinstance(Z, np.ndarray)
    """
    done = run_script(tmp_path, text, TORCH_LOGS="output_code", FXJIT_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('extern "C" int k') == 1 and "#pragma omp parallel for" in done.stderr
    kernel = done.stderr.partition('extern "C"')[2].partition("\n}\n")[0]
    assert "*" in kernel and "reduction(+:" in kernel


def test_printing_between_graphs_is_not_lost():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        torch.compile(toy_example, backend="eager")(torch.ones(2), torch.ones(2))
    assert out.getvalue() == "woo\n"
