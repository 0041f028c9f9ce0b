"""What programs written for torch.compile do besides calling it: settings, logs, counters, exceptions, unwrapping."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.testing import CompileCounter


@pytest.fixture
def dynamo():
    """torch._dynamo with the drop-in installed."""
    fxjit.install()
    import torch._dynamo

    return torch._dynamo


def test_settings_are_handed_on(dynamo):
    dynamo.config.suppress_errors = True
    dynamo.config.cache_size_limit = 3  # torch's older name of recompile_limit
    assert config.suppress_errors and config.recompile_limit == 3
    with dynamo.config.patch(error_on_recompile=True, recompile_limit=2):
        assert config.error_on_recompile and config.recompile_limit == 2
    assert not config.error_on_recompile and config.recompile_limit == 3
    dynamo.config.suppress_errors = False
    dynamo.config.recompile_limit = 8
    fxjit.uninstall()
    dynamo.config.recompile_limit = 5
    assert config.recompile_limit == 8
    dynamo.config.recompile_limit = 8


def test_settings_made_before_hold_too():
    import torch._dynamo

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        fxjit.install()
        counter = CompileCounter()
        assert torch.compile(lambda x: x.sum().item() + x, backend=counter, fullgraph=True)(torch.ones(2)).tolist() == [3, 3]
    assert not config.capture_scalar_outputs


def test_a_value_that_ours_does_not_take_is_said(dynamo):
    with pytest.warns(UserWarning, match=r"torch\._dynamo\.config\.repro_level = 7 has no effect on fxjit.*one of"):
        dynamo.config.repro_level = 7
    dynamo.config.repro_level = 2


def test_a_set_of_functions_that_programs_change_in_place(dynamo, capsys):
    dynamo.config.reorderable_logging_functions.add(print)
    counter = CompileCounter()

    @torch.compile(backend=counter)
    def f(x):
        y = x + 1
        print("between")
        return y * 2

    assert f(torch.ones(2)).tolist() == [4, 4]
    assert capsys.readouterr().out == "between\n" and counter.frame_count == 1
    dynamo.config.reorderable_logging_functions.clear()
    assert config.reorderable_functions == frozenset()
    fxjit.uninstall()
    assert type(dynamo.config.reorderable_logging_functions) is set


def test_counters_are_ours(dynamo):
    from torch._dynamo.utils import CompileProfiler, counters

    @torch.compile(backend="eager")
    def f(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    f(torch.ones(2))
    assert counters["stats"]["unique_graphs"] == 2 and sum(counters["graph_break"].values()) == 1
    assert CompileProfiler is fxjit.CompileProfiler
    fxjit.uninstall()
    assert dynamo.utils.counters is not counters and not hasattr(dynamo.utils, "CompileProfiler")


def test_handlers_of_torchs_exceptions_catch_ours(dynamo):
    def breaks(x):
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        torch.compile(breaks, backend="eager", fullgraph=True)(torch.ones(2))

    def refuses(gm, example_inputs):
        raise ValueError("not today")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="not today") as caught:
        torch.compile(lambda x: x + 1, backend=refuses)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, ValueError)
    with dynamo.config.patch(error_on_recompile=True), pytest.raises(torch._dynamo.exc.RecompileError):
        scaled = torch.compile(lambda x, n: x * n, backend="eager", dynamic=False)
        scaled(torch.ones(2), 2)
        scaled(torch.ones(2), 3)
    fxjit.uninstall()
    assert not issubclass(fxjit.errors.Unsupported, torch._dynamo.exc.Unsupported)


def test_a_compiled_module_passes_for_torchs(dynamo):
    """As accelerate and diffusers ask before they take `_orig_mod`."""
    plain = torch.nn.Linear(2, 2)
    module = torch.compile(plain, backend="eager")
    assert isinstance(module, dynamo.eval_frame.OptimizedModule) and module._orig_mod is plain
    assert not isinstance(plain, dynamo.eval_frame.OptimizedModule)
    assert repr(module).startswith("OptimizedModule(")
    assert torch.equal(module(torch.ones(1, 2)), plain(torch.ones(1, 2)))
    fxjit.uninstall()
    assert isinstance(module, dynamo.eval_frame.OptimizedModule)  # those of fxjit.compile do as well


def test_the_name_of_torchs_default_backend_is_ours(dynamo):
    assert torch.compile(lambda x: x, backend="inductor").region.key.backend_name == "native"
    assert fxjit.compile(lambda x: x, backend="inductor").region.key.backend_name == "inductor"


def test_exporting_stays_torchs(dynamo):
    """Dynamo registers its backends while it exports."""
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=True)
    assert program.module()(torch.ones(1, 2)).shape == (1, 2)


def test_logs_by_torchs_names(capfd):
    fxjit.install()
    before = torch._logging.set_logs
    torch._logging.set_logs(graph_breaks=True, autograd=logging.INFO)
    try:
        assert fxjit.logs.enabled("graph_breaks") and not fxjit.logs.enabled("guards")
    finally:
        torch._logging.set_logs()
    assert not fxjit.logs.enabled("graph_breaks")
    fxjit.uninstall()
    assert torch._logging.set_logs is not before


def test_torchs_variables_of_the_environment(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, fxjit\n"
        "@torch.compile(backend='eager')\n"
        "def f(x):\n"
        "    torch._dynamo.graph_break()\n"
        "    return x + 1\n"
        "f(torch.ones(2))\n"
        "print(fxjit.config.suppress_errors, fxjit.config.verbose)\n"
    )
    variables = {"TORCH_LOGS": "+graph_breaks,autograd", "TORCHDYNAMO_SUPPRESS_ERRORS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "fxjit", "run", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env=config.child_environment(**variables),
    )
    assert done.stdout == "True False\n", done.stderr
    assert "[fxjit.graph_breaks]" in done.stderr
