"""Random programs of nested state managers give, and leave behind, what they do eagerly. `FXJIT_FUZZ_CONTEXTS=100:200` runs
others; a failure names its seed."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os

import pytest
import torch
from tests import differential
from tests.fuzz import contexts

import fxjit

FIRST, LAST = (int(part) for part in os.environ.get("FXJIT_FUZZ_CONTEXTS", "0:8").split(":"))
#: What the caller has set around the call.
AROUND = (contextlib.nullcontext, torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16), contextlib.nullcontext)


def function(seed: int):
    source, file = contexts.program(seed), f"<contexts {seed}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = {"__name__": f"contexts{seed}"}
    exec(compile(source, file, "exec"), namespace)
    return namespace["program"], namespace["state"]


def run(call, state, around, flag):
    """The outcome, the gradients, and the state that the call leaves behind."""
    x = torch.arange(8.0).reshape(2, 4).div(8).requires_grad_()
    w = torch.arange(16.0).reshape(4, 4).div(16).requires_grad_()
    with around():
        found = differential.outcome(call, (x, w, flag))
        left = state(x)
    results = found if isinstance(found, tuple) else ()
    for each in results:
        if isinstance(each, torch.Tensor) and each.requires_grad:
            each.float().sum().backward(retain_graph=True)
    return found, x.grad, w.grad, left


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_random_program(seed):
    fxjit.reset()
    gc.collect()  # a generator left inside `with torch.autocast` keeps torch's cache of casts for all, until it is collected
    program, state = function(seed)
    compiled = fxjit.compile(program, backend="eager")
    for around in AROUND:
        for flag in (True, False):
            expected = run(program, state, around, flag)
            differential.assert_same(expected, run(compiled, state, around, flag))
