"""Graph breaks in `with` blocks: which managers are entered again, the state inside and after, also when an exception
passes; the others run their frame as it stands. Every observation is eager's."""

from __future__ import annotations

import contextlib
import sys
import traceback

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import fxjit
from fxjit.testing import CompileCounter

log: list[object] = []


@contextlib.contextmanager
def own_manager():
    log.append("in")
    try:
        yield 3
    finally:
        log.append("out")


@contextlib.contextmanager
def own_no_grad():
    with torch.no_grad():
        yield


def exit_stack():
    stack = contextlib.ExitStack()
    stack.enter_context(torch.no_grad())
    stack.callback(log.append, "closed")
    return stack


@contextlib.contextmanager
def nested():
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        yield


RESUMED = {
    "nullcontext": lambda: contextlib.nullcontext(2),
    "no_grad": lambda: torch.no_grad(),
    "enable_grad": lambda: torch.enable_grad(),
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "inference_mode": lambda: torch.inference_mode(),
    "inference_mode off": lambda: torch.inference_mode(False),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "torch.amp.autocast": lambda: torch.amp.autocast("cpu"),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "device": lambda: torch.device("meta"),
    "record_function": lambda: torch.profiler.record_function("here"),
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "sdpa_kernel in order": lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True),
}
SKIPPED = {
    "fork_rng": lambda: torch.random.fork_rng(),
    "set_multithreading_enabled": lambda: torch.autograd.set_multithreading_enabled(False),
    "mkldnn.flags": lambda: torch.backends.mkldnn.flags(enabled=False),
    "cudnn.flags": lambda: torch.backends.cudnn.flags(benchmark=True),
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "save_on_cpu": lambda: torch.autograd.graph.save_on_cpu(),
    "set_detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "ExitStack": exit_stack,
    "suppress": lambda: contextlib.suppress(KeyError),
    "own manager": own_manager,
    "own no_grad": own_no_grad,
    "own nested": nested,
    "redirect_stdout": lambda: contextlib.redirect_stdout(sys.stderr),
}
MANAGERS = RESUMED | SKIPPED


def state():
    return {
        "grad": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"), "autocast dtype": torch.get_autocast_dtype("cpu"),
        "device": torch.ones(1).device, "threads": torch._C._is_multithreading_enabled(),
        "kernels": torch.nn.attention._cur_sdpa_kernel_backends(), "order": torch._C._get_sdp_priority_order(),
        "mkldnn": torch.backends.mkldnn.enabled, "benchmark": torch.backends.cudnn.benchmark,
        "anomaly": torch.is_anomaly_enabled(), "random": torch.rand(1, device="cpu").item(),
    }  # fmt: skip


@fxjit.disable
def look():
    log.append(state())


def with_a_break(manager):
    def fn(x):
        y = x @ x
        with manager():
            y = y @ x
            fxjit.graph_break()
            look()
            y = y @ x
            z = torch.zeros(2)
        fxjit.graph_break()
        look()
        return y, y.requires_grad, z.device, torch.ones(1) * 3
    return fn


def with_an_exception(manager):
    def fn(x):
        y = x @ x
        with manager():
            y = y @ x
            fxjit.graph_break()
            y = y @ x
            raise ValueError("passes")
    return fn


def with_an_exception_only(manager):
    def fn(x):
        y = x @ x
        with manager():
            y = y @ x
            raise ValueError("passes")
    return fn


def with_a_break_that_raises(manager):
    @fxjit.disable
    def fails():
        raise ValueError("passes")

    def fn(x):
        y = x @ x
        with manager():
            y = y @ x
            fails()
        return y
    return fn


def with_an_exception_caught(manager):
    def fn(x):
        try:
            with manager():
                y = x @ x
                raise ValueError("passes")
        except ValueError:
            look()
        return x + 1, torch.is_grad_enabled()
    return fn


def with_a_manager_from_outside(manager):
    made = manager()

    def fn(x):
        with made:
            y = x @ x
            fxjit.graph_break()
            y = y @ x
        look()
        return y
    return fn


def outcome(fn, x):
    """Result or exception with its traceback, what was seen on the way, and the state left behind."""
    log.clear()
    torch.manual_seed(0)
    try:
        result = fn(x)
    except ValueError as error:
        frames = [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        result = [type(error), error.args, frames[1:]]
    look()
    return result, list(log)


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.device, ours.requires_grad) == (theirs.dtype, theirs.device, theirs.requires_grad)
        assert ours.is_inference() == theirs.is_inference()
        if theirs.device.type != "meta":
            torch.testing.assert_close(ours, theirs)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for mine, its in zip(ours, theirs, strict=True):
            assert_same(mine, its)
    else:
        assert ours == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [
    with_a_break, with_an_exception, with_an_exception_only, with_a_break_that_raises, with_an_exception_caught,
    with_a_manager_from_outside,
])  # fmt: skip
@pytest.mark.parametrize("name", MANAGERS)
def test_the_state_inside_and_after_is_eagers(name, program):
    before = state()
    x = torch.rand(2, 2, requires_grad=True)
    once = program is with_a_manager_from_outside
    with torch.set_grad_enabled(True):
        theirs = outcome(program(MANAGERS[name]), x)
    with torch.set_grad_enabled(True):
        fxjit.reset()
        compiled = fxjit.compile(program(MANAGERS[name]), backend=CompileCounter())
        for _ in range(1 if once else 2):
            assert_same(outcome(compiled, x), theirs)
    after = state()
    assert {**before, "random": 0} == {**after, "random": 0}


@pytest.mark.parametrize("name", RESUMED)
def test_a_break_inside_is_resumed(name):
    fxjit.reset()
    fxjit.counters.clear()
    counter = CompileCounter()
    fxjit.compile(with_a_break(RESUMED[name]), backend=counter)(torch.rand(2, 2))
    assert not fxjit.counters["skip"]
    assert counter.frame_count >= 3, "before the break, the rest of the block, and after it"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SKIPPED)
def test_a_break_inside_skips_the_frame_and_says_why(name):
    fxjit.reset()
    fxjit.counters.clear()
    fxjit.compile(with_a_break(SKIPPED[name]), backend="eager")(torch.rand(2, 2))
    assert "Graph break in a context manager" in fxjit.counters["skip"]


def test_autocast_blocks_nest():
    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x
            with torch.autocast("cpu", enabled=False):
                b = x @ x
                fxjit.graph_break()
                c = x @ x
            d = x @ x
        return a, b, c, d, x @ x

    x = torch.rand(2, 2)
    fxjit.reset()
    fxjit.counters.clear()
    assert_same(fxjit.compile(fn, backend="eager")(x), fn(x))
    assert not fxjit.counters["skip"]


def test_a_made_grad_mode_restores_what_was_before_it_was_made():
    def fn(x, made):
        y = x * 2
        with made:
            y = y * 2
            fxjit.graph_break()
            y = y * 2
        return y, torch.is_grad_enabled()

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for mode in (False, True, False):
        x = torch.ones(2, requires_grad=True)
        results = []
        for each in (fn, compiled):
            results.append(each(x, torch.set_grad_enabled(mode)))
            assert torch.is_grad_enabled()
        assert_same(results[1], results[0])


def test_managers_made_and_used_in_a_loop_after_a_resumed_block():
    def fn(x):
        with torch.set_grad_enabled(False):
            x = x + 1
            fxjit.graph_break()
            for _ in range(2):
                x = x + 1
                fxjit.graph_break()
        return x, torch.is_grad_enabled()

    fxjit.reset()
    assert_same(fxjit.compile(fn, backend="eager")(torch.ones(2)), fn(torch.ones(2)))
