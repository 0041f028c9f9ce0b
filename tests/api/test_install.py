"""The drop-in: a program that calls torch.compile is compiled by fxjit, and torch gets its functions back."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.testing import CompileCounter


def test_install_and_uninstall_put_everything_back():
    import torch._dynamo

    before = {name: getattr(torch.compiler, name) for name in ("disable", "reset", "allow_in_graph", "set_stance")}
    theirs, module_compile, graph_break = torch.compile, torch.nn.Module.compile, torch._dynamo.graph_break
    fxjit.install()
    fxjit.install()
    assert fxjit.installed() and torch.compile is not theirs
    assert torch.compiler.disable is fxjit.disable and torch._dynamo.graph_break is fxjit.graph_break
    fxjit.uninstall()
    assert not fxjit.installed()
    assert torch.compile is theirs and torch.nn.Module.compile is module_compile
    assert torch._dynamo.graph_break is graph_break
    assert {name: getattr(torch.compiler, name) for name in before} == before


def test_torch_compile_is_ours_while_installed():
    fxjit.install()
    counter = CompileCounter()
    f = torch.compile(lambda x: x + 1, backend=counter)
    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0)) and counter.frame_count == 1

    @torch.compile(backend=counter, fullgraph=True)
    def g(x):
        return x * 2

    assert torch.equal(g(torch.ones(2)), torch.full((2,), 2.0)) and fxjit.counters["frames"]["ok"] == 2
    assert torch.compile(lambda x: x).region.key.backend_name == "native"


def test_a_module_compiles_in_place():
    fxjit.install()
    counter = CompileCounter()
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    x = torch.randn(2, 3)
    want = net(x)
    net.compile(backend=counter)
    assert torch.equal(net(x), want) and counter.frame_count == 1


def test_options_of_inductor_are_dropped_and_named():
    fxjit.install()
    with pytest.warns(UserWarning, match="epilogue_fusion"):
        f = torch.compile(lambda x: x + 1, options={"epilogue_fusion": True, "max_autotune": True})
    assert f.region.key.options == {"max_autotune": True}


def run_module(tmp_path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "fxjit", "run", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=config.child_environment())


def test_a_script_nobody_edits(tmp_path):
    (tmp_path / "neighbour.py").write_text("value = 7\n")
    done = run_module(
        tmp_path,
        "import sys, torch, neighbour\n"
        "@torch.compile(backend='eager')\n"
        "def f(x):\n"
        "    torch._dynamo.graph_break()\n"
        "    return x + 1\n"
        "if __name__ == '__main__':\n"
        "    f(torch.ones(2))\n"
        "    import fxjit\n"
        "    print(sys.argv[1:], neighbour.value, dict(fxjit.counters['graph_break']))\n",
        "--flag",
        "3",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['--flag', '3'] 7 {'Call to") and done.stdout.rstrip().endswith(": 1}")


def test_a_module_by_name(tmp_path):
    (tmp_path / "program.py").write_text("import sys, fxjit\nprint(__name__, sys.argv[1:], fxjit.installed())\n")
    command = [sys.executable, "-m", "fxjit", "run", "-m", "program", "--flag"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.strip() == "__main__ ['--flag'] True", done.stderr


def test_a_script_that_is_not_there():
    command = [sys.executable, "-m", "fxjit", "run", "no_such_script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "there is no file no_such_script.py" in done.stderr


def test_installing_costs_no_import_of_torch_dynamo():
    code = "import torch, fxjit, sys; fxjit.install(); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_nothing_warns_on_the_way():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxjit.install()
        assert fxjit.installed()
        fxjit.uninstall()
    assert not fxjit.installed()
