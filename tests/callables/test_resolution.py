"""Which stage of call resolution answers for a callable, and that each row of the tables behind the last stage can answer."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import math
import subprocess
import sys
from types import FunctionType, MethodType

import pytest
import torch
import torch.nn.functional as F

import fxjit
import fxjit.frontend.trace
from fxjit.frontend.values.calls import _FINDERS, Stage, resolve
from fxjit.skips.functions import ROWS, STEERING, steering
from fxjit.skips.functions import resolve as named


def user_function(x):
    return x


def stage_of(fn) -> Stage | None:
    return next((stage for stage in Stage if _FINDERS[stage](fn) is not None), None)


@pytest.mark.parametrize(
    ("fn", "stage"),
    [
        (len, Stage.EXACT),
        (dict, Stage.EXACT),
        (functools.reduce, Stage.EXACT),
        (itertools.chain, Stage.EXACT),
        (math.prod, Stage.EXACT),
        (torch.cond, Stage.EXACT),
        (torch.ops.higher_order.flex_attention, Stage.EXACT),
        (torch.autograd.grad, Stage.EXACT),
        (torch.tensor, Stage.EXACT),
        (str.maketrans, Stage.EXACT),
        (int.from_bytes, Stage.FAMILY),
        (torch.sin, Stage.TORCH),
        (torch.fft.fft, Stage.TORCH),
        (torch._foreach_add, Stage.TORCH),
        (torch.Tensor.add, Stage.TORCH),
        (torch.Tensor.split, Stage.TORCH),
        (torch.Tensor.shape.__get__, Stage.TORCH),
        (torch._C._get_cudnn_deterministic, Stage.EXACT),
        (torch._C._get_nnpack_enabled, Stage.TORCH),
        (F.relu, Stage.VERDICT),
        (fxjit.graph_break, Stage.VERDICT),
        (logging.Logger.info, Stage.EXACT),
        (torch.nn.Linear.forward, None),
        (user_function, None),
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value)),
)
def test_the_first_stage_that_answers(fn, stage):
    assert stage_of(fn) == stage


def test_every_stage_is_answered_by_somebody():
    assert set(_FINDERS) == set(Stage)


def test_a_deferred_call_comes_before_its_handler():
    with fxjit.config.patch(reorderable_functions=(print,)):
        assert stage_of(print) is Stage.DEFERRED
    assert stage_of(print) is Stage.EXACT


def test_a_function_that_torch_wraps_later_keeps_its_handler():
    """Importing torch._dynamo puts a wrapper in the place of `torch.manual_seed`, at any time."""
    wrapped = torch._disable_dynamo(torch.random.manual_seed)
    assert stage_of(wrapped) in (Stage.EXACT, Stage.FAMILY)
    assert stage_of(torch._disable_dynamo(user_function)) is Stage.VERDICT


@pytest.mark.parametrize("order", [("fxjit.frontend.trace", "torch._dynamo"), ("torch._dynamo", "fxjit.frontend.trace")])
def test_what_torch_wraps_has_its_handler_in_either_order(order):
    """In a process of its own: torch._dynamo wraps `torch.manual_seed` when it is imported, once."""
    program = f"""
import importlib
for name in {order}:
    importlib.import_module(name)
import torch
from fxjit.frontend.values.calls import _FINDERS, Stage
assert torch.manual_seed is not torch.random.manual_seed
for fn in torch.manual_seed, torch.random.manual_seed:
    assert _FINDERS[Stage.EXACT](fn) or _FINDERS[Stage.FAMILY](fn), fn
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_later_stages_alone():
    assert resolve(len) is not None
    assert resolve(len, after=Stage.EXACT) is None


#: Of C, unless the program has put Python code in their place.
REPLACEABLE = ("builtins.", "time.", "sys.")


def names(table) -> list[str]:
    return [name for _, _, lines in table for name in " ".join(lines).split() if not name.startswith(REPLACEABLE)]


@pytest.mark.parametrize("table", [ROWS, STEERING], ids=["rows", "steering"])
def test_each_row_answers(table):
    """It is a Python function, which no earlier stage claims."""
    for module in "platform uuid pdb importlib.util torch._dynamo torch.nn.utils.rnn torch.utils._foreach_utils".split():
        importlib.import_module(module)
    for name in names(table):
        fn = named(name)
        fn = fn.__func__ if isinstance(fn, MethodType) else fn
        assert fn is None or isinstance(fn, FunctionType), name
        assert fn is None or stage_of(fn) is Stage.VERDICT or name in traced(), name
        assert fn is None or table is STEERING or steering(fn) is None, name


def traced() -> list[str]:
    return [name for verdict, _, lines in ROWS for name in " ".join(lines).split() if verdict == "TRACE"]
