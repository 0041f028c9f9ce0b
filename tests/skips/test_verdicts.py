"""What becomes of a call, and which frames may be touched, by rule."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import inspect
import itertools
import logging
import random
import re
import subprocess
import sys
import unittest
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.reasons import REASONS
from fxjit.skips import Verdict, frame_verdict, frames, function_verdict, is_librarys, marks
from fxjit.skips.functions import ROWS, rows, steering
from fxjit.skips.modules import FUNCTION_RULES, TORCH_ENTERED, longest_prefix
from fxjit.testing import CompileCounter

TRACE, GRAPH, CONSTANT, CALL, SKIP = Verdict.TRACE, Verdict.GRAPH, Verdict.CONSTANT, Verdict.CALL, Verdict.SKIP


def user_function(x):
    return x


@functools.wraps(torch.sin)
def wrapper_of_a_torch_function(x):
    return x


from_torch = torch.ones


class Module(torch.nn.Module):
    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("fn", "verdict"),
    [
        (user_function, TRACE),
        (wrapper_of_a_torch_function, TRACE),
        (lambda x: x, TRACE),
        (Module.forward, TRACE),
        (torch.nn.Linear.forward, TRACE),
        (torch.nn.Module.__call__, TRACE),
        (torch.nn.init.uniform_, TRACE),
        (torch.nn.utils.clip_grad_norm_, TRACE),
        (torch.optim.AdamW.step, TRACE),
        (torch.utils._pytree.tree_map, TRACE),
        (contextlib.contextmanager, TRACE),
        (collections.Counter.update, TRACE),
        (F.relu, GRAPH),
        (F.max_pool2d, GRAPH),
        (F.cross_entropy, GRAPH),
        (re.match, CONSTANT),
        (torch.compiler.disable, CALL),
        (fxjit.disable, CALL),
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value)),
)
def test_what_is_done_with_a_call(fn, verdict):
    assert function_verdict(fn)[0] is verdict


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (logging.Logger.warning, "call-print"),
        (subprocess.run, "call-subprocess"),
        (uuid.uuid4, "call-subprocess"),
        (torch.nn.utils.rnn.pad_packed_sequence, "tensor-data"),
        (frame_verdict, "call-compile-api"),
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value)),
)
def test_what_breaks_the_graph_and_why(fn, reason):
    assert function_verdict(fn) == (SKIP, reason)


def test_what_the_user_said_comes_first():
    def f(x):
        return x

    assert function_verdict(fxjit.disable(f)) == (SKIP, "user-disabled-call")
    assert function_verdict(fxjit.disable(f, recursive=False)) == (SKIP, "user-disabled-inline")
    assert function_verdict(fxjit.compile(f))[0] is TRACE
    fxjit.allow_in_graph(f)
    assert function_verdict(f)[0] is GRAPH
    fxjit.forbid_in_graph(f)
    assert function_verdict(f) == (SKIP, "user-forbidden")


def test_torchs_own_annotations_mean_the_same():
    import torch._dynamo

    def f(x):
        return x

    assert function_verdict(torch.compiler.disable(f)) == (SKIP, "user-disabled-call")
    assert function_verdict(torch._dynamo.disable(f, recursive=False)) == (SKIP, "user-disabled-inline")
    assert function_verdict(torch.compiler.allow_in_graph(f))[0] is GRAPH
    assert function_verdict(torch.compiler.assume_constant_result(lambda: 1))[0] is CONSTANT
    assert steering(torch._dynamo.graph_break) == "user-graph-break" == steering(fxjit.graph_break)
    assert steering(fxjit.compile) == "compile"
    said = marks.disabled(torch.compiler.disable(f, reason="slow"))
    assert said is not None and said.recursive and said.reason == "slow" and said.target is f


def test_wraps_of_a_disabled_function_is_not_disabled():
    disabled = fxjit.disable(user_function)

    @functools.wraps(disabled)
    def wrapper(x):
        return x

    assert marks.disabled(disabled) is not None and marks.disabled(wrapper) is None
    assert marks.unwrapped(fxjit.compile(user_function)) is user_function


def test_frames_of_users_and_model_libraries_are_touched():
    for fn in (user_function, lambda x: x, Module.forward):
        assert not frame_verdict(fn.__code__, fn.__globals__).skip
    code = compile("def f(x): return x", "<string>", "exec").co_consts[0]
    assert not frame_verdict(code, {}).skip
    libraries = compile("def f(x): return x", torch.__file__.replace("/torch/", "/transformers/"), "exec").co_consts[0]
    assert not frame_verdict(libraries, {}).skip


@pytest.mark.parametrize(
    "fn", [torch.nn.Linear.forward, torch.nn.Module._call_impl, F.relu, random.uniform, logging.Logger.info, frame_verdict]
)
def test_frames_of_torch_fxjit_and_the_library_pass_by(fn):
    verdict = frame_verdict(fn.__code__, fn.__globals__)
    assert verdict.skip and not verdict.recursive and verdict.reason == "skip-internal" and verdict.rule


@pytest.mark.parametrize(
    "fn", [torch.nn.Sequential.forward, torch.nn.TransformerEncoderLayer.forward, inspect.unwrap(torch.optim.Adam.step)]
)
def test_frames_of_torch_that_run_many_operators_are_touched(fn):
    assert not frame_verdict(fn.__code__, fn.__globals__).skip
    assert is_librarys(fn.__code__, fn.__globals__)
    assert not is_librarys(user_function.__code__, user_function.__globals__)


def test_every_name_of_a_frame_of_torch_that_is_touched_is_one():
    for name in TORCH_ENTERED:
        owner, method = name.split(".")
        cls = getattr(torch.nn, owner, None) or getattr(torch.optim, owner)
        assert inspect.unwrap(getattr(cls, method)).__code__.co_qualname == name


def test_another_compilers_frames_pass_by_with_all_below_them():
    import torch._dynamo

    def f(x):
        return x

    disabled = torch.compiler.disable(f)
    assert frame_verdict(disabled.__code__, disabled.__globals__).recursive
    assert frame_verdict(torch._dynamo.reset.__code__, {}).recursive


def test_generators_and_huge_code_pass_by(monkeypatch):
    def generator():
        yield 1

    assert frame_verdict(generator.__code__, {}).reason == "skip-code-kind"
    assert not frame_verdict(user_function.__code__, {}).skip
    monkeypatch.setattr(frames, "MAX_CODE_BYTES", 2)
    assert frame_verdict(user_function.__code__, {}).reason == "skip-too-big"


def test_unittest_is_traced_when_asked_for():
    code = unittest.TestCase.assertEqual.__code__
    assert frame_verdict(code, {}).skip
    with fxjit.config.patch(trace_unittest=True):
        assert not frame_verdict(code, {}).skip


class Asserting(unittest.TestCase):
    def checks(self, x):
        self.assertEqual([1, 2], [1] + [2])
        self.assertIn("a", {"a": 1})
        self.assertTrue(3 in {1, 2, 3})
        with self.assertRaises(KeyError) as caught:
            {}["a"]
        self.assertRaises(TypeError, lambda: 1 + "a")
        with self.assertRaisesRegex(ValueError, "no .*"):
            raise ValueError("no number")
        return x + 1, str(caught.exception)


def test_assertions_of_unittest_are_traced_where_the_setting_says_so():
    with fxjit.config.patch(trace_unittest=True):
        assert_same_as_eager(Asserting().checks, torch.ones(2), breaks=0, graphs=1)


@pytest.mark.parametrize("name", FUNCTION_RULES)
def test_a_module_rule_answers_for_some_function(name: str):
    """It says something else than the row around it, of Python functions that there are."""
    around = longest_prefix(name.rpartition(".")[0], FUNCTION_RULES)
    assert around is None or around[1] != FUNCTION_RULES[name], f"the row of {around[0]} says so already"
    try:
        module = importlib.import_module(name)
    except ImportError:
        pytest.skip("not installed")
    folders = [Path(each) for each in getattr(module, "__path__", ())]
    own = [Path(module.__file__)] if getattr(module, "__file__", None) else []
    files = itertools.chain(own, *(each.rglob("*.py") for each in folders))
    assert any(re.search(rb"^\s*(async )?def ", file.read_bytes(), re.M) for file in files), "it has no function of Python"


def test_a_module_rule_is_the_longest_that_fits():
    assert longest_prefix("torch.nn.functional", FUNCTION_RULES)[0] == "torch.nn.functional"
    assert longest_prefix("torch.nn.modules.linear", FUNCTION_RULES)[0] == "torch.nn"
    assert longest_prefix("torchvision.ops", FUNCTION_RULES) is None


def test_every_rule_names_a_verdict_and_a_reason_that_exist():
    for verdict, reason in [*FUNCTION_RULES.values(), *((row[0], row[1]) for row in ROWS)]:
        assert verdict in Verdict.__members__
        assert (reason in REASONS) == (verdict == "SKIP") and (reason == "") == (verdict != "SKIP")


def test_no_function_has_two_rows():
    names = [name for _, _, lines in ROWS for line in lines for name in line.split()]
    assert sorted(names) == sorted(set(names))


def test_rows_that_match_nothing_are_reported():
    for module in "platform uuid datetime importlib.util torch._dynamo torch.onnx torch.utils.checkpoint".split():
        importlib.import_module(module)
    left = [name for name in rows.unresolved() if name.partition(".")[0] in sys.modules]
    assert not left, "these names are of no installed version: " + ", ".join(left)


def test_frames_that_have_nothing_to_do_with_tensors():
    def takes(*args):
        return args

    def names_torch():
        return torch.ones(2)

    def names_a_function_of_torch():
        return from_torch(2)

    module = Module()

    def closes_over(x):
        return module(x)

    class Holder:
        def __init__(self, value):
            self.value = value

    def touched(fn, *args):
        return frames.mentions_tensors(fn.__code__, args, fn.__closure__, fn.__globals__)

    tensor = torch.ones(2)
    assert touched(takes, tensor) and touched(takes, [1, {"a": (tensor,)}]) and touched(takes, Holder([tensor]))
    assert touched(takes, module) and touched(takes, module.forward) and touched(takes, np.ones(2))
    assert touched(names_torch) and touched(names_a_function_of_torch) and touched(closes_over, 3)
    assert not touched(takes) and not touched(takes, 1, "a", [2.0], {"b": None}, Holder(5), len, Module)
    with fxjit.config.patch(trace_numpy=False):
        assert not touched(takes, np.ones(2))


def test_a_frame_without_tensors_may_have_them_another_time():
    counter = CompileCounter()

    def maybe(x):
        return None if x is None else x + 1

    compiled = fxjit.compile(maybe, backend=counter)
    assert compiled(None) is None and counter.frame_count == 0
    compiled(torch.ones(2))
    assert counter.frame_count == 1


def test_modules_can_be_made_in_traced_code_after_torch_compile_ran():
    from torch._dynamo.mutation_guard import install_generation_tagging_init

    init, setstate = torch.nn.Module.__init__, torch.nn.Module.__setstate__
    try:
        install_generation_tagging_init()
        module = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2)])

        def f(x):
            for layer in module[:2]:
                x = layer(x)
            return x

        x = torch.ones(2)
        assert torch.equal(fxjit.compile(f, backend="eager", fullgraph=True)(x), f(x))
    finally:
        torch.nn.Module.__init__, torch.nn.Module.__setstate__ = init, setstate
        torch.nn.Module.___needs_generation_tag_patch = True


def test_optimizers_that_torch_disables_for_its_own_compiler_are_captured():
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # from here on torch keeps away from _init_group
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.grad = torch.ones(3)
    optimizer.step()
    backend = fxjit.testing.EagerAndRecordGraphs()

    def step():
        optimizer.step()

    fxjit.compile(step, backend=backend)()
    assert len(backend.graphs) == 1


def test_switches_of_torch_backends_are_set_when_the_program_runs():
    import fxjit

    def fn(x, enabled):
        torch.backends.cuda.enable_flash_sdp(enabled)
        return x + 1, torch.backends.cuda.flash_sdp_enabled(), torch.backends.mkldnn.is_available()

    before = torch.backends.cuda.flash_sdp_enabled()
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    try:
        for enabled in (False, True, False, False):
            torch.backends.cuda.enable_flash_sdp(not enabled)
            assert compiled(torch.ones(1), enabled)[1:] == (enabled, torch.backends.mkldnn.is_available())
            assert torch.backends.cuda.flash_sdp_enabled() == enabled
    finally:
        torch.backends.cuda.enable_flash_sdp(before)
