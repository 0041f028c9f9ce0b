"""`import fxjit` costs next to nothing beside `import torch`."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_import_is_cheap_and_pulls_in_nothing_heavy():
    out = run(
        "import torch, sys, time\n"
        "before, start = set(sys.modules), time.process_time()\n"
        "import fxjit\n"
        "print(time.process_time() - start, *sorted(set(sys.modules) - before))"
    )
    seconds, *modules = out.split()
    # A tenth of a second of the processor is what is promised; on a busy machine it may take a little longer.
    assert float(seconds) < 0.3
    heavy = ("torch._dynamo", "torch._inductor", "torch.fx.experimental", "torch._functorch", "sympy", "triton", "bytecode")
    assert not [name for name in modules if name.startswith(heavy)]
    assert "fxjit.pipeline" not in modules and "fxjit.frontend.trace" not in modules


def test_the_module_for_tests_is_there_without_an_import_of_its_own():
    assert run("import fxjit; print('fxjit.testing' in __import__('sys').modules, fxjit.testing.CompileCounter.__name__)") == (
        "False CompileCounter\n"
    )


def test_a_size_that_varies_imports_nothing_more_of_torch():
    """Its ShapeEnv would import `torch.export` and the code generators of `torch._inductor` to name places in its logs."""
    out = run(
        "import torch, sys, fxjit\n"
        "compiled = fxjit.compile(lambda x: x.reshape(-1)[1:] * x.shape[0], backend='eager')\n"
        "compiled(torch.ones(3, 2))\n"
        "before = set(sys.modules)\n"
        "compiled(torch.ones(4, 2))\n"
        "new = set(sys.modules) - before\n"
        "print(fxjit.counters['frames']['ok'], *[name for name in new if name.startswith('torch.')])"
    )
    assert out.split() == ["2"]
