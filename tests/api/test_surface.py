"""The public surface of torch.compile: every name has a decision (src/fxjit/surface.tsv), and the drop-in does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch._dynamo.config
import torch._dynamo.decorators
import torch._dynamo.testing
import torch._inductor.config

import fxjit
from fxjit import surface, torch_compat
from fxjit.errors import ConfigError
from fxjit.surface import DIFFERS, REFUSED, SAME, WARNS, decisions

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import torch_surface  # noqa: E402


@pytest.fixture
def installed():
    surface._warn.cache_clear()
    fxjit.install()
    yield
    torch.compiler.set_default_backend(None)
    fxjit.uninstall()
    fxjit.reset()


SURFACE = torch_surface.places()


@pytest.mark.parametrize("place", SURFACE)
def test_every_public_name_has_a_decision(place):
    assert sorted(name for name in SURFACE[place] if surface.decision(place, name) is None) == []


@pytest.mark.parametrize("place", SURFACE)
def test_the_table_of_releases_knows_what_this_torch_has(place):
    """docs/coverage.md says from it what each release brought (`python tools/torch_surface.py`)."""
    here = torch_compat.release(torch.__version__)
    if not torch_compat.OLDEST <= here <= torch_compat.NEWEST:
        pytest.skip("not a release of the table")
    for (of, name), (first, last) in torch_surface.spans().items():
        if of == place:
            assert (name in SURFACE[place]) == (first <= here <= last), name


def test_every_name_of_the_table_of_releases_has_a_decision():
    assert [key for key in torch_surface.spans() if surface.decision(*key) is None] == []


def test_a_decision_that_is_not_sameness_says_how_or_why():
    for row in decisions().values():
        assert row.decision in (SAME, surface.BETTER, DIFFERS, REFUSED, WARNS), row
        assert row.note or row.decision == SAME, row


def test_what_is_refused_says_why(installed):
    for place, module in (("torch.compiler", torch.compiler), ("torch._dynamo.eval_frame", torch._dynamo.eval_frame)):
        for row in decisions().values():
            if row.place == place and row.decision == REFUSED:
                with pytest.raises(ConfigError, match="does not work with fxjit: "):
                    getattr(module, row.name)()
    for row in decisions().values():
        if row.place in ("torch.compile(backend=)", "torch.compile(mode=)") and row.decision == REFUSED:
            argument = row.place.removeprefix("torch.compile(").rstrip("=)")
            with pytest.raises((ConfigError, fxjit.errors.InvalidBackend)):
                torch.compile(lambda x: x, **{argument: row.name})
        if row.place == "torch.compiler.set_stance" and row.decision == REFUSED:
            with pytest.raises(ConfigError):
                torch.compiler.set_stance(**({row.name: "eager"} if row.name == "force_backend" else {"stance": row.name}))


def test_what_has_no_effect_says_so_once(installed, recwarn):
    for _ in range(2):
        torch._dynamo.on_compile_start(print)
        torch._dynamo.on_compile_end(print)
        torch._dynamo.config.capture_sparse_compute = torch._dynamo.config.capture_sparse_compute
        torch.compiler.config.job_id = None
    torch._dynamo.callback_handler.remove_start_callback(print)
    torch._dynamo.callback_handler.remove_end_callback(print)
    said = [str(each.message) for each in recwarn if "torch." in str(each.message)]
    names = ["torch._dynamo.on_compile_start", "torch._dynamo.on_compile_end",
             "torch._dynamo.config.capture_sparse_compute", "torch.compiler.config.job_id"]
    assert [each.partition(":")[0] for each in said] == names


def test_a_setting_of_inductor_says_once_that_it_is_inductors(installed, recwarn):
    for _ in range(2):
        with torch._inductor.config.patch(epilogue_fusion=False):
            pass
    with torch._inductor.config.patch(fallback_random=True):
        assert fxjit.config.fallback_random
    said = [str(each.message) for each in recwarn if "torch._inductor" in str(each.message)]
    assert said == ['torch._inductor.config.epilogue_fusion: no effect on fxjit\'s own kernels; backend="inductor" follows it.']


@pytest.mark.parametrize("name", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_a_pass_over_inductors_graphs_says_once_that_it_is_not_run(installed, recwarn, name):
    for _ in range(2):
        with torch._inductor.config.patch({name: lambda graph: pytest.fail("it is run")}):
            x = torch.ones(3)
            assert torch.equal(torch.compile(lambda x: x * 2 + 1)(x), x * 2 + 1)
    (said,) = [str(each.message) for each in recwarn if "torch._inductor" in str(each.message)]
    assert said.startswith(f"torch._inductor.config.{name}: passes over Inductor's graphs are not run; register a backend")


def test_functions_of_the_drop_in_take_what_torchs_take():
    """By keyword too: a release that adds an argument is noticed here. In a process of its own, where torch has its functions
    still."""
    text = """if True:
        import inspect, torch, torch._dynamo, torch._dynamo.decorators
        import fxjit
        modules = torch, torch.compiler, torch._dynamo, torch._dynamo.decorators
        def taken(function):
            return inspect.signature(function, follow_wrapped=False).parameters
        theirs = {(module, name): taken(value) for module in modules for name, value in vars(module).items()
                  if inspect.isfunction(value) and not name.startswith("_")}
        theirs[torch._dynamo, "error_on_graph_break"] = ("error_on_graph_break",)
        fxjit.install()
        for (module, name), wanted in theirs.items():
            ours = taken(getattr(module, name))
            if not any(each.kind is each.VAR_KEYWORD for each in ours.values()):
                lacked = [each for each in wanted if each not in ours]
                assert not lacked, (module.__name__, name, lacked)
    """
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_signed_zeros_and_strides_are_eagers_without_a_setting():
    """Inductor asks for them (`strict_signed_zero`, `strict_output_strides`)."""
    zeros = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 0.0, -0.0], [-0.0, -0.0, -0.0]])

    def f(x):
        larger, smaller = torch.maximum(x, x.t()), torch.minimum(x, x.t())
        return x.amax(1), x.amin(1), larger, smaller, x.relu(), x.clamp(min=-0.0), x.max(0).values

    def views(x):
        y = (x + 1).expand(2, 3, 3)
        return y.transpose(0, 2), (x * 2)[:, ::2], (x * 2).t()

    for got, want in zip(fxjit.compile(f)(zeros), f(zeros), strict=True):
        assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())
    for got, want in zip(fxjit.compile(views)(zeros), views(zeros), strict=True):
        assert torch.equal(got, want) and got.stride() == want.stride()


def test_the_default_backend(installed):
    counter = fxjit.testing.CompileCounter()
    torch.compiler.set_default_backend(counter)
    assert torch.compiler.get_default_backend() is counter
    assert torch.equal(torch.compile(lambda x: x + 1)(torch.zeros(2)), torch.ones(2)) and counter.frame_count == 1
    with pytest.raises(fxjit.errors.InvalidBackend):
        torch.compiler.set_default_backend("no such")


def test_the_older_spellings_are_ours(installed):
    counter = fxjit.testing.CompileCounter()
    compiled = torch._dynamo.optimize_assert(counter)(lambda x: x * 2)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0)) and counter.frame_count == 1
    torch._dynamo.reset_code_caches()
    compiled(torch.ones(2))
    assert counter.frame_count == 2
    with torch._dynamo.decorators.set_stance("force_eager"):
        assert fxjit.stance.current().name == "force_eager"
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(torch.compile(torch.sin, backend="aot_eager_default_partitioner")(x), x.sin())


def test_installing_reads_no_settings_that_torch_sets_itself():
    """torch.export sets settings of torch._dynamo by itself: nobody is warned of that."""
    text = ("import warnings; warnings.simplefilter('error', UserWarning); import fxjit, torch; fxjit.install()\n"
            "program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=False)")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=200)
    assert "no effect on fxjit" not in done.stderr, done.stderr
