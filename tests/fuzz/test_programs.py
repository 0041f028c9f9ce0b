"""Random programs give what they give eagerly. `FXJIT_FUZZ_SEEDS=1000:2000` runs others; a failure names its seed."""

from __future__ import annotations

import copy
import linecache
import os

import pytest
import torch
from tests import differential
from tests.fuzz import programs

import fxjit

FIRST, LAST = (int(part) for part in os.environ.get("FXJIT_FUZZ_SEEDS", "0:40").split(":"))
INPUTS = (
    (torch.arange(-1.0, 2.0), [1], 2),
    (torch.arange(-1.0, 2.0), [1], 2),
    (torch.arange(1.0, 4.0), [], 0),
    (torch.arange(-2.0, 3.0), [2], 5),
    (torch.arange(-3.0, 4.0), [2, 3], 5),
)


def function(seed: int):
    source, file = programs.program(seed), f"<fuzz {seed}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = {"__name__": f"fuzz{seed}"}
    exec(compile(source, file, "exec"), namespace)
    return namespace["program"]


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_a_random_program(seed):
    fxjit.reset()
    program = function(seed)
    compiled = fxjit.compile(program, backend="eager")
    for inputs in INPUTS:
        for_eager, for_compiled = copy.deepcopy(inputs), copy.deepcopy(inputs)
        expected = differential.outcome(program, for_eager)
        differential.assert_same(expected, differential.outcome(compiled, for_compiled))
        differential.assert_same(for_eager, for_compiled, "inputs")
