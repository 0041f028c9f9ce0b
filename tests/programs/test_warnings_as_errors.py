"""`python -W error`: warnings of torch that tracing and lowering cause are no errors of the program, with any backend."""

from __future__ import annotations

import subprocess
import sys

PROGRAMS = '''
import os, sys, time, warnings
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
import fxjit

torch.manual_seed(0)
lstm, linear = torch.nn.LSTM(4, 4), torch.nn.Linear(4, 4)
spaces = {"__builtins__": __builtins__}
exec("class Bare:\\n  v = 2\\n  def m(self, x): return x * self.v", spaces)
Bare, Made = spaces["Bare"], type("Made", (), {"v": 3})

def versions(x): return x + (sys.version_info >= (3, 8)) + 2 * ((3, 99) <= sys.version_info) + 4 * (sys.version_info[:2] < (4,))
def flags(x): return x + (sys.flags > (0,)) + (sys.hash_info != (1,)) + sys.float_info.max_exp
def times(x): return x + (time.struct_time((2020, 1, 1, 0, 0, 0, 0, 1, 0)) > (2019,))
def stats(x): return x + (os.terminal_size((3, 4)) >= (1, 2)) + (os.stat_result(range(10)) == tuple(range(10)))
def bare(x): return Bare().m(x) + Made().v + isinstance(x, Bare)
def made(x): return x + type("Here", (), {"v": 3, "__module__": None})().v
def executed(x):
    space = {}
    exec("class Q: v = 4", {}, space)
    return x + space["Q"].v
def numpy(x): return torch.from_numpy(np.asarray(x) * 2)
def complex_(x): return torch.view_as_real(torch.complex(x, x) * 2)
def recurrent(x): return lstm(x)[0]
def trained(x): return torch.autograd.grad(linear(x).sin().sum(), linear.weight)[0]
def selected(x): return x[x > 0] + 1
def bytes_(x): return x * int(x.sum().item())
def checkpointed(x): return checkpoint(torch.sin, x, use_reentrant=False)
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linear(x).float()
def attention(x): return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
def halves(x): return torch.where(x > 0, x, 0.0).half().float()
def warned(x):
    warnings.warn("of the program")
    return x
def caught(x):
    try:
        warnings.warn("of the program")
    except UserWarning:
        return x + 2

def run(f, x):
    try:
        return f(x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

wrong = []
for backend in ("eager", "aot_eager", "native"):
  fxjit.reset()
  for f in (versions, flags, times, stats, bare, made, executed, numpy, complex_, recurrent, trained, selected, bytes_,
            checkpointed, autocast, attention, halves, warned, caught):
    x = torch.arange(12.0).reshape(3, 4)
    compiled, eager = run(fxjit.compile(f, backend=backend), x.clone()), run(f, x.clone())
    same = eager == compiled if isinstance(eager, str) or isinstance(compiled, str) else torch.allclose(eager, compiled)
    if not same:
        wrong.append(f"{backend}, {f.__name__}: eager {eager}, compiled {compiled}")
sys.exit("\\n".join(wrong) or None)
'''


def test_programs_do_as_in_eager_where_warnings_are_errors():
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", PROGRAMS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
