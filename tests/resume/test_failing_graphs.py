"""A graph that fails when it runs, because of its data: the call raises and catches what eager does, from the program's own
line, behind the side effects that stand in front of it."""

from __future__ import annotations

import contextlib
import logging
import random

import numpy as np
import pytest
import torch
from tests import differential
from tests.differential import assert_same, outcome_with_tracebacks

import fxjit
from fxjit import _C
from fxjit.counters import counters
from fxjit.resume import deoptimization
from fxjit.resume.deoptimization import UndoableGraph

BACKENDS = ["eager", "aot_eager", "native"]


def outcome(fn, *args):
    """What a call gives or raises, where, and what it wrote."""
    log = []
    return repr(outcome_with_tracebacks(fn, *args, log)), log


def raises_in_the_middle(x, index, log):
    log.append("before")
    y = x * 2
    z = torch.gather(y, 0, index)
    log.append("behind")
    return z + 1


def catches(x, index, log):
    y = x + 1
    try:
        log.append("tried")
        y = y.index_select(0, index)
        log.append("done")
    except (IndexError, RuntimeError) as error:
        log.append(type(error))
        y = y - 1
    finally:
        log.append("finally")
    return y * 3


def raises_while_handling(x, index, log):
    try:
        raise KeyError("first")
    except KeyError:
        log.append("handling")
        return x[index] + 1


@contextlib.contextmanager
def noted(log):
    log.append("enter")
    try:
        yield
    except (IndexError, RuntimeError):
        log.append("swallowed")
    finally:
        log.append("exit")


def swallows(x, index, log):
    with noted(log), torch.no_grad():
        x = x.take(index)
        log.append("taken")
    return x * 2


def helper(x, index):
    y = x.exp()
    return torch.nn.functional.embedding(index, y.reshape(-1, 1))


def raises_in_a_helper(x, index, log):
    log.append(len(log))
    return helper(x, index).sum() + 1


def breaks_within(x, index, log):
    with noted(log):
        try:
            y = x + 1
            log.append("first")
            fxjit.graph_break()
            log.append("second")
            y = y.index_select(0, index)
            log.append("third")
        except TypeError:
            log.append("not this one")
        except (IndexError, RuntimeError) as error:
            log.append(type(error))
            y = -x
        log.append("left")
    return y * 2


PROGRAMS = [raises_in_the_middle, catches, raises_while_handling, swallows, raises_in_a_helper, breaks_within]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("resumes", [False, True], ids=["default", "resume_in_try"])
def test_a_failing_operator_is_the_programs_own_error(program, backend, resumes):
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    x = torch.tensor([1.0, 2.0, 3.0])
    with fxjit.config.patch(resume_in_try=resumes):
        for index in ([0, 2], [0, 7], [1, 1], [9, 9]):
            expected = outcome(program, x, torch.tensor(index))
            assert outcome(compiled, x, torch.tensor(index)) == expected


def process_state():
    kernels = torch.nn.attention._cur_sdpa_kernel_backends(), torch._C._get_sdp_priority_order()
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), kernels


def in_inference_mode(x, index, log):
    with torch.enable_grad(), torch.inference_mode():
        log.append(process_state())
        return x[index].sum() + 1


def outside_inference_mode(x, index, log):
    x = x + 1
    try:
        with torch.enable_grad(), torch.inference_mode(False), torch.autocast("cpu"):
            x = x[index] * 2
    except IndexError:
        log.append(process_state())
    return x


def with_kernels(x, index, log):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH, set_priority=True):
        x = x.reshape(1, 1, 1, 3)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).flatten()[index]


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_kernels_are_as_they_were(backend):
    compiled = fxjit.compile(with_kernels, backend=backend)
    before = process_state()
    with pytest.raises(IndexError):
        compiled(torch.ones(3), torch.tensor([7]), [])
    assert process_state() == before


@pytest.mark.parametrize("program", [in_inference_mode, outside_inference_mode], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad, lambda: torch.autocast("cpu")])
def test_the_state_that_the_graph_set_is_as_it_was(program, backend, around):
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    x = torch.tensor([1.0, 2.0, 3.0])
    for index in ([0, 2], [0, 7], [9, 9]):
        left = []
        for fn in (program, compiled):
            with around():
                found = outcome(fn, x, torch.tensor(index))
                left.append((found, process_state()))
        assert left[0] == left[1]


def test_gradients_flow_through_the_call_that_started_over():
    compiled = fxjit.compile(catches, backend="native")
    for index in ([0, 2], [0, 7]):
        grads = []
        for fn in (catches, compiled):
            x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
            fn(x, torch.tensor(index), []).sum().backward()
            grads.append(x.grad)
        assert torch.equal(*grads)


def test_it_is_said_once_and_counted(caplog):
    fxjit.reset()
    compiled = fxjit.compile(raises_in_the_middle, backend="eager")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(RuntimeError, match="out of bounds"):
                compiled(torch.ones(3), torch.tensor([5]), [])
    assert counters["failed_graphs"]["raises_in_the_middle"] == 3


def test_a_backend_of_ones_own_is_heard():
    def broken(gm, example_inputs):
        def run(*inputs):
            raise RuntimeError("the backend's own fault")

        return run

    compiled = fxjit.compile(lambda x: x + 1, backend=broken)
    with pytest.raises(RuntimeError, match="the backend's own fault"):
        compiled(torch.ones(2))


def test_a_graph_that_wrote_to_its_inputs_is_not_run_again():
    def program(x, y, index, log):
        x.add_(1)
        return y[index]

    compiled = fxjit.compile(program, backend="eager")
    x, y = torch.zeros(2), torch.ones(3)
    with pytest.raises(IndexError):
        compiled(x, y, torch.tensor([8]), [])
    assert x.tolist() == [1.0, 1.0]


class State:
    """What a program may change before it fails, and behind that."""

    def __init__(self) -> None:
        self.calls = 0
        self.pair: tuple[int, int] | None = None
        self.log: list[object] = []
        self.total = torch.zeros(3)
        self.norm = torch.nn.BatchNorm1d(3, affine=False)
        self.kept: torch.Tensor | None = None

    def seen(self):
        buffers = {name: each.tolist() for name, each in self.norm.named_buffers()}
        kept = None if self.kept is None else self.kept.tolist()
        return self.calls, self.pair, self.log, self.total.tolist(), buffers, kept, torch.get_rng_state().tolist()


def writes_an_attribute(state, x, index):
    state.pair = (x.dim(), 2)
    y = state.norm(x)[index]
    state.calls += 1
    return y


def writes_a_tensor_between(state, x, index):
    state.log.append("first")
    state.total.add_(x.sum(0))
    state.log.append("second")
    state.kept = state.total * 2
    y = x[index]
    state.total.mul_(2)
    state.log.append("third")
    return y


def draws(state, x, index):
    state.calls += 1
    x = torch.nn.functional.dropout(x) + torch.rand(3)
    y = torch.nn.functional.embedding(index, x)
    state.calls += 1
    return y


def breaks_between(state, x, index):
    state.calls += 1
    x = state.norm(x)
    print("before", state.calls)
    fxjit.graph_break()
    state.total.add_(1)
    state.log.append(state.calls)
    print("between")
    y = x.index_select(0, index)
    print("behind")
    return y


def catches_what_it_raised(state, x, index):
    y = x
    try:
        state.total.sub_(1)
        state.log.append("tried")
        y = x[index]
        state.log.append("done")
    except IndexError:
        state.total.mul_(2)
        state.log.append("caught")
    state.calls += 1
    return y * 2


WRITING = [writes_an_attribute, writes_a_tensor_between, draws, breaks_between, catches_what_it_raised]


@pytest.mark.parametrize("program", WRITING, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_came_before_a_failing_operator_is_done_and_what_comes_behind_is_not(program, backend, capsys):
    def run(call):
        torch.manual_seed(0)
        state = State()
        outcomes = []
        for index in ([0, 2], [0, 7], [1, 1], [9, 9]):
            told = repr(outcome_with_tracebacks(call, state, torch.arange(9.0).view(3, 3), torch.tensor(index)))
            outcomes.append((told, repr(state.seen()), capsys.readouterr().out))
        return outcomes

    expected = run(program)
    fxjit.reset()
    assert run(fxjit.compile(program, backend=backend)) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_came_before_an_operator_that_only_fails_on_real_tensors_is_done(backend):
    """In inference mode the fake batch norm takes dtypes that the real one does not."""
    def program(state, x):
        state.pair = (x.dim(), 2)
        y = state.norm(x)
        state.calls += 1
        return y

    def run(call):
        state = State()
        with torch.inference_mode(), pytest.raises(RuntimeError, match="mixed dtype"):
            call(state, torch.ones(4, 3, dtype=torch.float64))
        return repr(state.seen())

    assert run(fxjit.compile(program, backend=backend)) == run(program)


def test_inputs_are_copied_only_for_effects_that_would_be_lost():
    def writes(x, y, log):
        return y.add_(x)

    def appends(x, y, log):
        log.append(1)
        return y + x

    def does_both(x, y, log):
        log.append(1)
        return y.add_(x)

    for fn, copies in ((writes, False), (appends, False), (does_both, True)):
        compiled = fxjit.compile(fn, backend="eager")
        compiled(torch.ones(2), torch.ones(2), [])
        (entry,) = (entry for key in _C.keys(fn.__code__) for entry in _C.entries(fn.__code__, key))
        assert any(isinstance(each, UndoableGraph) for each in entry.code.co_consts) == copies


def test_what_a_signal_raises_while_inputs_are_copied_has_no_context(monkeypatch):
    class TimeIsUp(Exception):
        pass

    def interrupted(tensors):
        raise TimeIsUp

    monkeypatch.setattr(deoptimization, "_buffers_for", interrupted)
    with pytest.raises(TimeIsUp) as caught:
        UndoableGraph((0,), draws=False)(lambda x: (x,), torch.ones(2))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", ["native", "aot_eager"])
@pytest.mark.parametrize("fn", [raises_in_the_middle, catches])
def test_a_backend_that_gives_on_what_one_of_ours_made_starts_over_as_that_does(fn, name):
    inner = fxjit.lookup_backend(name)
    seen = []

    def counting(gm, inputs):
        seen.append(gm)
        return inner(gm, inputs)

    x, index = torch.arange(3.0), torch.tensor([7, 0, 1])
    before = counters["failed_graphs"][fn.__name__]
    compiled = fxjit.compile(fn, backend=counting)
    assert outcome(compiled, x, index) == outcome(fn, x, index)
    assert seen and counters["failed_graphs"][fn.__name__] == before + 1


def test_a_backend_with_a_callable_of_its_own_is_told_what_that_raises():
    def wrapping(gm, inputs):
        compiled = fxjit.lookup_backend("native")(gm, inputs)

        def run(*args):
            try:
                return compiled(*args)
            except Exception as error:
                raise KeyError("seen by the backend") from error

        return run

    with pytest.raises(KeyError, match="seen by the backend"):
        fxjit.compile(raises_in_the_middle, backend=wrapping)(torch.ones(3), torch.tensor([7, 0, 1]), [])


# What debuggers see of a call that raised


def raises_itself(x, other):
    count, y = 5, x + 1
    pair = [y, (count, "text")]
    if count:
        raise ValueError(len(pair))
    return y


def raises_in_an_operator(x, other):
    count, y = 5, x * 2
    z = y.sin()
    return z @ torch.ones(77, 77)


def raises_in_a_loop(x, other):
    total = 0
    for step in range(5):
        total = total + x * step
        if step == 3:
            raise KeyError(step)
    return total


def raises_in_what_it_calls(x, other):
    y = x + 1

    def inner(z, table):
        doubled, name = z * 2, "inner"
        return table[name]

    return inner(y, other)


def finds_nothing(x, other):
    y = x.exp()
    missing = other.get("missing")
    return y + missing


def raises_beside_a_closure(x, other):
    scale, total = x * 2, 0

    def add(value):
        nonlocal total
        total += value
        return total * scale

    z = add(3) + add(4)
    return z @ torch.ones(77, 77)


def raises_beside_one_in_what_it_calls(x, other):
    def inner(z, table):
        width = z.shape[-1]
        rows = [z * width for _ in range(2)]
        return (lambda: rows[width])()

    return inner(x, other)


def raises_beside_one_over_an_argument(x, other):
    names = sorted(other)
    y = (lambda: x + len(names))()
    return y.reshape(1000)


def raises_beside_functions(x, other):
    scale = 2

    def plain(y, by=3):
        return y * by + 1

    def closing(y):
        return plain(y) * scale

    def unread(y, by=(1, 2)):
        return closing(y) * by[0]

    several = [lambda: scale, lambda y=3: y]
    return plain(x) + len(several) + closing(x).reshape(1000)


def frames_of(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the program raises
        call()
    frames, trace = [], caught.value.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == __file__:
            found = {name: value.__qualname__ if callable(value) else value for name, value in trace.tb_frame.f_locals.items()}
            frames.append((trace.tb_frame.f_code.co_name, trace.tb_lineno, found))
        trace = trace.tb_next
    return frames[-2:] if frames[-1][0] == "inner" else frames[-1:]


@pytest.mark.parametrize("program", [raises_itself, raises_in_an_operator, raises_in_a_loop, raises_in_what_it_calls,
                                     finds_nothing, raises_beside_a_closure, raises_beside_one_in_what_it_calls,
                                     raises_beside_one_over_an_argument, raises_beside_functions], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_traceback_has_the_locals_of_every_frame(program, backend):
    x = torch.linspace(-1, 1, 6).view(2, 3)
    expected = frames_of(lambda: program(x, {}))
    compiled = fxjit.compile(program, backend=backend)
    for _ in range(2):
        found = frames_of(lambda: compiled(x, {}))
        assert [each[:2] for each in found] == [each[:2] for each in expected]
        for (_, _, mine), (_, _, eager) in zip(found, expected, strict=True):
            assert mine.keys() == eager.keys()
            for name, value in eager.items():
                assert_same(mine[name], value, name, rtol=1e-6)


def of_each(x, index):
    return torch.func.vmap(lambda row: row.gather(0, index))(x[None])


def of_each_written(x, index):
    return torch.func.vmap(lambda row: row.mul_(2).gather(0, index))(x[None])


def of_each_with_noise(x, index):
    return torch.func.vmap(lambda row: (row + torch.rand(3)).gather(0, index), randomness="same")(x[None])


def of_gradients(x, index):
    return torch.func.vmap(torch.func.grad(lambda row: row.gather(0, index).sum()))(x[None])


def of_a_branch(x, index):
    return torch.cond(x.sum() > 0, lambda: x.gather(0, index) + 0, lambda: x[:1] * 2, ())


INNER = [of_each, of_each_written, of_each_with_noise, of_gradients, of_a_branch]


@pytest.mark.parametrize("inner", INNER, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_an_operator_in_a_graph_inside_of_the_graph_fails_as_one_of_its_own_does(inner, backend):
    def caught(x, index, log):
        log.append("before")
        x.add_(1)
        try:
            y = inner(x, index)
        except (IndexError, RuntimeError):
            log.append("caught")
            y = x
        return y + 1

    def raised(x, index, log):
        log.append("before")
        x.add_(1)
        y = inner(x, index)
        log.append("behind")
        return y + 1

    for program in (caught, raised):
        compiled = fxjit.compile(program, backend=backend)
        for place in (1, 7, 1):
            seen = []
            for fn in (program, compiled):
                torch.manual_seed(0)
                x = torch.arange(3.0)
                log = []
                seen.append((differential.outcome(fn, (x, torch.tensor([place]), log)), log, x))
            assert_same(seen[0], seen[1])
        counters.clear()
        compiled(torch.arange(3.0), torch.tensor([1]), [])
        assert not counters["graph_break"]


class Draws:
    """What programs may draw from, beside torch's own generators."""

    def __init__(self):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        self.python = random.Random(1)
        self.numpy = np.random.default_rng(2)
        self.torchs = torch.Generator().manual_seed(3)

    def next(self):
        return (random.random(), np.random.rand(), torch.rand(1), self.python.random(), self.numpy.random(),
                torch.rand(1, generator=self.torchs))


def draws_around(x, index, draws):
    y = x * random.random()
    y = y[index]
    return y + random.random()


def draws_of_all_kinds(x, index, draws):
    y = x * random.random() + torch.rand(3) * draws.python.random()
    y = y + np.random.rand() + draws.numpy.random()
    y = y.index_select(0, index)
    return y + draws.python.randint(0, 5) + torch.rand(1) + np.random.rand() + draws.numpy.random()


def draws_and_catches(x, index, draws):
    x = x + random.random()
    try:
        x = x[index] + random.random()
    except IndexError:
        x = x - draws.python.random()
    return x * random.random()


def draws_and_writes(x, index, draws):
    x.add_(random.random())
    y = x.gather(0, index)
    x.mul_(random.random())
    return y


def checks_and_draws(x, index, draws):
    if (index > 5).any():
        raise ValueError("too far")
    return x * random.random() + index.sum()


def draws_and_checks(x, index, draws):
    y = x * random.randrange(3) + draws.python.random()
    if (index > 5).any():
        raise ValueError(f"too far behind {random.random()}")
    return y + draws.numpy.random()


def checks_amid_draws_of_all_kinds(x, index, draws):
    y = x * random.random() + torch.rand(3) * draws.python.random()
    if (index > 5).any():
        raise ValueError(f"too far behind {draws.python.random()}")
    y = y + np.random.rand() + draws.numpy.random() + torch.rand(1, generator=draws.torchs)
    if (y + index.max() > 20).any():
        raise ValueError("too much")
    return y + draws.python.randint(0, 5) + torch.rand(1) + np.random.rand()


def checks_what_was_drawn(x, index, draws):
    if (x + index.max() * (2 + random.random()) > 15).any():
        raise ValueError("too much")
    return x + draws.python.random()


def draws_checks_and_writes(x, index, draws):
    x.add_(random.random())
    if (index > 5).any():
        raise ValueError("too far")
    x.mul_(draws.python.random())
    return x + 1


def draws_checks_and_catches(x, index, draws):
    try:
        x = draws_and_checks(x, index, draws)
    except ValueError:
        x = x - draws.python.random()
    return x * random.random()


def seeds_and_checks(x, index, draws):
    y = x * random.random()
    random.seed(7)
    if (index > 5).any():
        raise ValueError(f"too far behind {random.random()}")
    return y * random.random()


CHECKING = [checks_and_draws, draws_and_checks, checks_amid_draws_of_all_kinds, checks_what_was_drawn, draws_checks_and_writes,
            draws_checks_and_catches, seeds_and_checks]


def _assert_draws_as_eager(program, backend, dtype):
    compiled = fxjit.compile(program, backend=backend)
    found = []
    for call in (program, compiled):
        draws = Draws()
        results = []
        for index in ([0, 2], [0, 7], [1, 1], [9, 9], [0, 0]):
            x = torch.tensor([1.0, 2.0, 3.0])
            given = torch.tensor(index, dtype=dtype)
            results.append((differential.outcome(call, (x, given, draws)), x, draws.next()))
        found.append(results)
    assert_same(*found, rtol=1e-6)


@pytest.mark.parametrize("program", [draws_around, draws_of_all_kinds, draws_and_catches, draws_and_writes],
                         ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_generators_are_where_eager_leaves_them(program, backend):
    _assert_draws_as_eager(program, backend, torch.int64)


@pytest.mark.parametrize("program", CHECKING, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_generators_are_as_before_where_a_check_of_data_fails(program, backend):
    """The program then draws once more, from its beginning; where the check holds, it is no break."""
    fxjit.reset()
    counters.clear()
    fxjit.compile(program, backend=backend, fullgraph=True)(torch.ones(3), torch.tensor([0.0, 1.0]), Draws())
    assert not counters["graph_break"] and not counters["deoptimizations"]
    _assert_draws_as_eager(program, backend, torch.float32)
    assert counters["deoptimizations"]


def test_the_steps_of_a_frame_that_breaks_behind_a_check_are_taken_back():
    def program(x, index, draws):
        y = x * random.random()
        if (index > 5).any():
            raise ValueError("too far")
        fxjit.graph_break()
        return y + random.random()

    fxjit.reset()
    counters.clear()
    _assert_draws_as_eager(program, "eager", torch.float32)
    assert counters["graph_break"] and counters["deoptimizations"]
