"""What becomes of compiled code under modes, tracers and transforms that came after it was compiled: they see each operator."""

from __future__ import annotations

import subprocess
import sys

FIRST_CALL = """
import torch, fxjit
from torch.overrides import TorchFunctionMode

class Counts(TorchFunctionMode):
    seen = 0
    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counts.seen += 1
        return func(*args, **(kwargs or {}))

def f(x):
    return torch.sin(x) + 1

compiled = fxjit.compile(f, backend="eager")
with Counts():
    assert torch.equal(compiled(x := torch.ones(3)), f(x))
assert Counts.seen >= 4, Counts.seen
"""


def test_the_first_call_may_stand_under_a_mode() -> None:
    """torch imports its module for default devices when one is first set."""
    subprocess.run([sys.executable, "-c", FIRST_CALL], check=True, timeout=300)
