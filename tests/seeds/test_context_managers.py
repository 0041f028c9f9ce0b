"""Graph breaks in `with` blocks: which managers are left and entered again, which stay entered, the state inside and after,
also when an exception passes; managers of the user's own classes run their frame as it stands, unless
`config.resume_in_try` is set. Every observation is eager's."""

from __future__ import annotations

import contextlib
import sys
import traceback

import pytest
import torch
from tests.differential import assert_same
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


@contextlib.contextmanager
def swallows():
    try:
        yield
    except ValueError as error:
        log.append(error.args)


@contextlib.contextmanager
def own_stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


class Own:
    def __init__(self, swallow=False):
        self.swallow = swallow

    def __enter__(self):
        log.append("entered")
        return self

    def __exit__(self, kind, error, trace):
        log.append(("left", kind, str(error)))
        return self.swallow


class OverTorchs:
    def __init__(self):
        self.inner = torch.autocast("cpu", dtype=torch.bfloat16)

    def __enter__(self):
        self.grad = torch.no_grad()
        self.grad.__enter__()
        return self.inner.__enter__()

    def __exit__(self, *error):
        self.inner.__exit__(*error)
        return self.grad.__exit__(*error)


class Looks(Own):
    def __exit__(self, kind, error, trace):
        log.append([frame.lineno for frame in traceback.extract_tb(trace)])


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
    "autocast for a GPU": lambda: torch.autocast("cuda", dtype=torch.float16),
    "torch.cuda.amp.autocast": lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "record_function": lambda: torch.profiler.record_function("here"),
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "sdp_kernel, its old name": lambda: torch.backends.cuda.sdp_kernel(enable_flash=False, enable_math=True),
    "sdpa_kernel in order": lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True),
}
KEPT = {
    "fork_rng": lambda: torch.random.fork_rng(),
    "set_multithreading_enabled": lambda: torch.autograd.set_multithreading_enabled(False),
    "mkldnn.flags": lambda: torch.backends.mkldnn.flags(enabled=False),
    "cudnn.flags": lambda: torch.backends.cudnn.flags(benchmark=True),
    "nnpack.flags": lambda: torch.backends.nnpack.flags(enabled=False),
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "save_on_cpu": lambda: torch.autograd.graph.save_on_cpu(),
    "set_detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "disable_saved_tensors_hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
    "cuda.device": lambda: torch.cuda.device(-1),
    "cuda.stream": lambda: torch.cuda.stream(None),
    "cpu.stream": lambda: torch.cpu.stream(torch.cpu.Stream()),
    "check_sparse_tensor_invariants": lambda: torch.sparse.check_sparse_tensor_invariants(),
    "closing": lambda: contextlib.closing(contextlib.ExitStack()),
    "ExitStack": exit_stack,
    "suppress": lambda: contextlib.suppress(KeyError),
    "suppress what passes": lambda: contextlib.suppress(ValueError),
    "own generator": own_manager,
    "own no_grad": own_no_grad,
    "own nested": nested,
    "own that swallows": swallows,
    "redirect_stdout": lambda: contextlib.redirect_stdout(sys.stderr),
}
GENERIC = {
    "own class": lambda: Own(),
    "own class that swallows": lambda: Own(swallow=True),
    "own class over torch's": lambda: OverTorchs(),
    "own class that looks at the traceback": lambda: Looks(),
}
#: What a machine without a GPU refuses to make or to enter, with an error of torch's.
NEED_A_GPU = {
    "cuda.device of a GPU": lambda: torch.cuda.device(0),
    "own over a cuda.Stream": own_stream,
    "cuda.device_of": lambda: torch.cuda.device_of(torch.ones(1)),
    "a device without a backend": lambda: torch.device("cuda"),
}
MANAGERS = RESUMED | KEPT | GENERIC | NEED_A_GPU


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
    except (ValueError, RuntimeError, AssertionError) as error:
        frames = [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
                  if frame.filename == __file__]
        result = [type(error), error.args, frames[1:]]
    look()
    return result, list(log)


def with_a_return(manager):
    def fn(x):
        with manager():
            y = x @ x
            fxjit.graph_break()
            return y @ x, torch.is_grad_enabled()
        return x
    return fn


def inside_others(manager):
    def fn(x):
        x = x * 1  # not a leaf: autocast keeps copies of those, whatever their dtype
        with torch.no_grad(), manager(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            fxjit.graph_break()
            look()
            with torch.enable_grad(), manager():
                y = y.float() @ x
                fxjit.graph_break()
                look()
                y = y @ x
            look()
        look()
        return y, y.requires_grad
    return fn


def with_a_helper_that_breaks(manager):
    def helper(x):
        with manager():
            x = x @ x
            fxjit.graph_break()
            look()
            return x @ x

    def fn(x):
        y = helper(x * 2)
        look()
        return helper(y) if y is not None else x
    return fn


PROGRAMS = [
    with_a_break, with_an_exception, with_an_exception_only, with_a_break_that_raises, with_an_exception_caught,
    with_a_manager_from_outside, with_a_return, inside_others, with_a_helper_that_breaks,
]  # fmt: skip


#: Each manager in every third program, with `resume_in_try` in another third: neighbours in the tables, which are alike, have
#: other programs.
COMBINATIONS = [(name, program, resume_in_try) for place, name in enumerate(MANAGERS) for number, program in enumerate(PROGRAMS)
                for resume_in_try in (False, True) if (place + number) % 3 == resume_in_try]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "program", "resume_in_try"), COMBINATIONS)
def test_the_state_inside_and_after_is_eagers(name, program, resume_in_try):
    with fxjit.config.patch(resume_in_try=resume_in_try):
        assert_runs_as_eager(name, program)


def assert_runs_as_eager(name, program):
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


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad, torch.inference_mode, contextlib.nullcontext])
@pytest.mark.parametrize("mode", [False, True])
def test_a_grad_mode_set_in_a_block_lasts_over_a_break(around, mode):
    def fn(x):
        with around():
            y = x @ x
            torch.set_grad_enabled(mode)
            y = y @ x
            fxjit.graph_break()
            look()
            y = y @ x
        look()
        return y, y.requires_grad

    x = torch.rand(2, 2, requires_grad=True)
    seen = []
    for wrap in (lambda fn: fn, lambda fn: fxjit.compile(fn, backend="eager")):
        with torch.enable_grad():
            seen.append(outcome(wrap(fn), x))
    assert_same(*seen)


def frames_and_skips(manager):
    """How many graphs a break inside makes, and the skips."""
    fxjit.reset()
    fxjit.counters.clear()
    counter = CompileCounter()
    fxjit.compile(with_a_break(manager), backend=counter)(torch.rand(2, 2))
    return counter.frame_count, dict(fxjit.counters["skip"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RESUMED | KEPT)
def test_a_break_inside_is_resumed(name):
    frames, skips = frames_and_skips((RESUMED | KEPT)[name])
    assert not skips
    assert frames >= 3, "before the break, the rest of the block, and after it"


@pytest.mark.parametrize("name", GENERIC)
def test_a_break_inside_any_other_skips_the_frame_unless_asked(name):
    frames, skips = frames_and_skips(GENERIC[name])
    assert list(skips) == ["Graph break in a context manager"]
    with fxjit.config.patch(resume_in_try=True):
        frames, skips = frames_and_skips(GENERIC[name])
    assert not skips
    assert frames >= 3, "before the break, the rest of the block, and after it"


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_a_manager_that_stays_entered_is_left_once_and_may_swallow(swallow, raises):
    @fxjit.disable
    def may_raise():
        if raises:
            raise ValueError("inside")

    def fn(x):
        y = x + 1
        with Own(swallow):
            y = y * 2
            fxjit.graph_break()
            y = y + 3
            may_raise()
            y = y * 5
        return y

    x = torch.ones(2, 2)
    theirs = outcome(fn, x)
    assert [entry[0] for entry in theirs[1] if isinstance(entry, tuple)].count("left") == 1
    with fxjit.config.patch(resume_in_try=True):
        fxjit.reset()
        compiled = fxjit.compile(fn, backend="eager")
        for _ in range(2):
            assert_same(without_state(outcome(compiled, x)), without_state(theirs))


def without_state(result):
    return result[0], [entry for entry in result[1] if not isinstance(entry, dict)]


def test_a_graph_that_fails_leaves_the_manager_it_stands_in():
    def fn(x, at):
        with OverTorchs():
            x = x @ x
            fxjit.graph_break()
            return x[at]

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    x = torch.ones(2, 2)
    with fxjit.config.patch(resume_in_try=True):
        assert_same(compiled(x, torch.tensor([1])), fn(x, torch.tensor([1])))
        for _ in range(2):
            with pytest.raises(IndexError):
                compiled(x, torch.tensor([7]))
            assert torch.is_grad_enabled()
            assert not torch.is_autocast_enabled("cpu")


def test_saved_tensor_hooks_see_what_the_graphs_inside_save_and_nothing_while_tracing():
    seen = []

    def pack(tensor):
        seen.append(type(tensor))
        return tensor * 2

    def fn(x):
        y = x * 3
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = y.exp()
            fxjit.graph_break()
            return y.exp()

    grads = []
    for each in (fn, fxjit.compile(fn, backend="aot_eager")):
        x = torch.ones(2, requires_grad=True)
        each(x).sum().backward()
        grads.append(x.grad)
        assert set(seen) == {torch.Tensor}
        seen.clear()
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("make", [
    lambda: OverTorchs(), lambda: torch.autocast("cpu"), lambda: torch.no_grad(), lambda: torch.enable_grad(),
    lambda: torch.inference_mode(), lambda: torch.device("meta"), lambda: torch.profiler.record_function("here"),
])  # fmt: skip
def test_a_manager_entered_in_one_function_is_left_in_another(make):
    def opens(x, manager):
        y = x @ x
        manager.__enter__()
        return (y @ y).dtype, torch.ones(1).device, manager

    def closes(x, manager):
        y = x @ x
        manager.__exit__(None, None, None)
        return y.dtype, (x @ x).dtype, torch.ones(1).device

    x = torch.ones(2, 2)
    results = []
    for wrap in (lambda fn: fn, lambda fn: fxjit.compile(fn, backend="eager")):
        for _ in range(2):
            log.clear()
            *first, manager = wrap(opens)(x, make())
            look()
            second = wrap(closes)(x, manager)
            look()
            results.append((first, second, [{**each, "random": 0} for each in log]))
        fxjit.reset()
    assert results[1:] == results[:-1]


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


@fxjit.disable
def turn(mode):
    torch._C._set_grad_enabled(mode)


@fxjit.disable
def cast(on, dtype):
    torch.set_autocast_enabled("cpu", on)
    torch.set_autocast_dtype("cpu", dtype)


def modes():
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def grad_mode_turned(x):
    log = []
    with torch.no_grad():
        turn(True)
        y = x * 2
        log.append(modes())
        turn(False)
        with torch.enable_grad():
            turn(False)
            log.append(modes())
        turn(True)
        log.append(modes())
    return y, [*log, modes()]


def autocast_turned(x):
    x, log = x.detach(), []
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False), torch.no_grad():
        cast(True, torch.float16)
        turn(True)
        y = x @ x
        log.append(modes())
        cast(False, torch.bfloat16)
        y = y.float() @ x
        log.append(modes())
    return y, [*log, modes()]


def turned_in_a_function(x):
    def inner(x):
        with torch.set_grad_enabled(False):
            turn(True)
            x = x * 2
            log.append(modes())
        return x

    log = []
    with torch.no_grad():
        y = inner(x)
        log.append(modes())
        turn(True)
        log.append(modes())
    return y, [*log, modes()]


def turned_under_a_frame_that_waits(x):
    """The block is that of a frame between the one that stops and the compiled one."""
    def inner(x):
        y = x * 2
        turn(False)
        cast(False, torch.float16)
        return y * 2

    def middle(x):
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16), contextlib.nullcontext():
            y = inner(x) * 3
            log.append(modes())
        log.append(modes())
        return y

    log = []
    with torch.no_grad():
        y = middle(middle(x) + 1)
        log.append(modes())
    return y, [*log, modes()]


@pytest.mark.parametrize("setting", [{}, {"nested_graph_breaks": False}, {"resume_in_try": True}])
@pytest.mark.parametrize("fn", [grad_mode_turned, autocast_turned, turned_in_a_function, turned_under_a_frame_that_waits])
def test_state_that_untraced_code_sets_in_a_block_lasts_over_the_break(fn, setting):
    x = torch.ones(2, 2, requires_grad=True)
    expected = repr(fn(x))
    fxjit.reset()
    fxjit.counters.clear()
    with fxjit.config.patch(setting):
        compiled = fxjit.compile(fn, backend="eager")
        for _ in range(2):
            assert repr(compiled(x)) == expected
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


def test_a_break_while_a_block_is_entered_again(monkeypatch):
    from fxjit.frontend.values import contexts

    enter = contexts.GradModeValue.enter

    def enter_or_break(self, t):
        if self.source is not None:
            t.break_("value-global-state", function="entering again")
        return enter(self, t)

    def fn(x, z=3):
        a = x * 2
        with torch.no_grad():
            y = x + 1
            fxjit.graph_break()
            y = y * z + a
            look()
        return y, torch.is_grad_enabled()

    monkeypatch.setattr(contexts.GradModeValue, "enter", enter_or_break)
    fxjit.reset()
    fxjit.counters.clear()
    x = torch.ones(2, requires_grad=True)
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        assert_same(outcome(compiled, x), outcome(fn, x))
    assert not fxjit.counters["skip"]


def test_a_dtype_of_autocast_that_is_off_is_read_in_its_block():
    def fn(x):
        before = modes()
        with torch.autocast("cpu", dtype=torch.float16, enabled=False):
            inside = modes(), torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()
        return x + 1, before, inside, modes()

    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(fn, backend=counter)
    x = torch.ones(2)
    for dtype in (torch.bfloat16, torch.float16):
        torch.set_autocast_dtype("cuda", dtype)
        try:
            for _ in range(2):
                assert repr(compiled(x)) == repr(fn(x))
        finally:
            torch.set_autocast_dtype("cuda", torch.float16)
    assert counter.frame_count == 2, "what another device's block would do is guarded"
