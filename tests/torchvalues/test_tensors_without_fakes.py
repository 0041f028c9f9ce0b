"""Tensors of which torch makes no fake tensors: those of the lazy device. What takes one breaks the graph."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
import torch._lazy.ts_backend

torch._lazy.ts_backend.init()  # for the whole process
import fxjit

def fn(x, lazy):
    x = x * 2
    moved = (lazy + 1).cpu()
    return x + moved, lazy.shape

x, lazy = torch.ones(3), torch.ones(3).to("lazy")
for backend in ("eager", "native"):
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(2):
        (ours, shape), (theirs, _) = compiled(x, lazy), fn(x, lazy)
        torch.testing.assert_close(ours, theirs)
        assert shape == (3,)
    assert fxjit.counters["stats"]["unique_graphs"] == 2
try:
    fxjit.compile(fn, fullgraph=True)(x, lazy)
except fxjit.errors.Unsupported as error:
    assert "no fake tensors for it, on lazy" in str(error)
else:
    raise AssertionError("captured")
"""


def test_the_lazy_device() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
