"""Operators of the program's that raise when they run: what the program did before is done, what stands behind is not, and
handlers and managers see what is raised."""

from __future__ import annotations

import contextlib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same, outcome

import fxjit

BACKENDS = ["eager", "aot_eager", "native"]


@torch.library.custom_op("fxjit_tests::limited", mutates_args=())
def limited(x: torch.Tensor) -> torch.Tensor:
    if float(x.sum()) > 100:
        raise ValueError("too large")
    return x.clone()


@limited.register_fake
def _(x):
    return torch.empty_like(x)


@limited.register_autograd
def _(ctx, gradient):
    return gradient * 2


@torch.library.custom_op("fxjit_tests::limited_", mutates_args=("x",))
def limited_(x: torch.Tensor) -> None:
    if float(x.sum()) > 100:
        raise IndexError("too large")
    x.mul_(2)


LIBRARY = torch.library.Library("fxjit_tests_of_a_library", "DEF")
LIBRARY.define("limited(Tensor x) -> Tensor")


def _of_library(x):
    if float(x.sum()) > 100:
        raise KeyError("too large")
    return x + 1


LIBRARY.impl("limited", _of_library, "CPU")
torch.library.register_fake("fxjit_tests_of_a_library::limited", torch.empty_like, lib=LIBRARY)


class Limited(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return limited(x) * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def in_graph(x, places):
    """Allowed in the graph."""
    return x.index_select(0, places)


class State:
    def __init__(self):
        self.calls = 0
        self.log = []
        self.total = torch.zeros(3)
        self.kept = None
        self.table = {"a": 1}
        self.names = {"a"}

    def seen(self):
        return (self.calls, self.log, self.total, self.kept, self.table, list(self.table), self.names,
                self.__dict__.get("late"), GLOBAL)


GLOBAL = [0]


# Effects


def writes_an_attribute(state, x):
    state.calls += 1


def appends(state, x):
    state.log.append(x.shape[0])


def keeps_a_tensor(state, x):
    state.kept = x * 2


def writes_a_tensor(state, x):
    state.total.add_(x)


def both(state, x):
    state.total.mul_(2).add_(x)
    state.log.append(state.calls)
    state.kept = state.total


def of_a_dict(state, x):
    state.table["b"] = x.dim()
    del state.table["a"]


def of_a_set(state, x):
    state.names.add("b")


def of_an_attribute(state, x):
    setattr(state, "late", 1)
    del state.calls
    state.calls = 5


def of_a_global(state, x):
    GLOBAL[0] += 1


def of_the_argument(state, x):
    x.add_(1)
    state.log.append("x")


def prints(state, x):
    print("before", state.calls)


EFFECTS = [writes_an_attribute, appends, keeps_a_tensor, writes_a_tensor, both, of_a_dict, of_a_set, of_an_attribute,
           of_a_global, of_the_argument, prints]


# Operators


def direct(x):
    return limited(x)


def by_name(x):
    return torch.ops.fxjit_tests.limited.default(x * 1)


def in_place(x):
    y = x.clone()
    limited_(y)
    return y


def of_library(x):
    return torch.ops.fxjit_tests_of_a_library.limited(x)


def of_a_function(x):
    return Limited.apply(x)


def in_a_branch(x):
    return torch.cond(x.sum() > 0, lambda x: limited(x) + 1, lambda x: x - 1, (x,))


def behind_one(x):
    return limited(x / 100)[x.sum().long().clamp(max=1000) // 40]


def marked(x):
    return in_graph(x, (x.sum().long() // 40).clamp(max=20).reshape(1))


OPERATORS = [direct, by_name, in_place, of_library, of_a_function, in_a_branch, behind_one, marked]


@pytest.fixture(autouse=True)
def marks():
    fxjit.allow_in_graph(in_graph)
    yield
    fxjit.reset()


def one_by_one(effect, operator):
    def program(state, x):
        y = x.sin()
        effect(state, x)
        y = y + operator(x)
        effect(state, x)
        state.log.append("behind")
        return y * 2

    return program


def run(call, capsys, values=(1.0, 90.0, 2.0, 50.0), grad=False):
    found = []
    GLOBAL[0] = 0
    state = State()
    for value in values:
        x = torch.full((3,), value)
        if grad:
            x = x.requires_grad_().clone()
        result = outcome(call, (state, x))
        seen = [each.detach().clone() if isinstance(each, torch.Tensor) else repr(each) for each in state.seen()]
        found.append((result, seen, x.detach().clone(), capsys.readouterr().out))
    return found


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_stands_before_an_operator_that_raises_is_done(effect, backend, capsys):
    program = one_by_one(effect, direct)
    expected = run(program, capsys)
    fxjit.reset()
    assert_same(expected, run(fxjit.compile(program, backend=backend), capsys), rtol=1e-6)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_by_whatever_operator(operator, backend, grad, capsys):
    program = one_by_one(both, operator)
    expected = run(program, capsys, grad=grad)
    fxjit.reset()
    assert_same(expected, run(fxjit.compile(program, backend=backend), capsys, grad=grad), rtol=1e-6)


@contextlib.contextmanager
def noted(log):
    log.append("enter")
    try:
        yield
    except (ValueError, IndexError, KeyError, RuntimeError) as error:
        log.append(type(error))
    finally:
        log.append("exit")


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, kind, error, traceback):
        self.log.append(kind)
        return kind is not None


def under_a_handler(state, x, operator):
    try:
        y = operator(x)
    except (ValueError, IndexError, KeyError, RuntimeError) as error:
        state.log.append((type(error), str(error)))
        y = x
    return y + 1


def under_a_manager(state, x, operator):
    y = x
    with Manager(state.log):
        y = operator(x)
        state.log.append("done")
    return y + 1


def under_a_generators_manager(state, x, operator):
    y = x
    with torch.no_grad(), noted(state.log):
        y = operator(x)
    return y + 1


def under_a_suppressing_manager(state, x, operator):
    with contextlib.suppress(ValueError, IndexError, KeyError):
        x = operator(x)
        state.calls += 1
    return x + 1


def under_finally(state, x, operator):
    try:
        return operator(x) + 1
    finally:
        state.calls += 1


HANDLING = [under_a_handler, under_a_manager, under_a_generators_manager, under_a_suppressing_manager, under_finally]


@pytest.mark.parametrize("program", HANDLING, ids=lambda each: each.__name__)
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_handlers_and_managers_see_it(program, operator, backend, capsys):
    def call(state, x):
        return program(state, x, operator)

    expected = run(call, capsys)
    fxjit.reset()
    assert_same(expected, run(fxjit.compile(call, backend=backend), capsys), rtol=1e-6)


def test_one_graph_where_nothing_is_lost():
    def nothing_before(state, x):
        y = limited(x.sin())
        state.calls += 1
        return limited(y.cos()) if y is None else y.cos()

    def made_here(state, x):
        made = [x.dim()]
        made.append(x.sin())
        return limited(made[1]) + made[0]

    for fn in (nothing_before, made_here):
        assert fxjit.explain(fn)(State(), torch.ones(3)).graph_break_count == 0


def test_in_a_loop_it_is_in_the_graph():
    """Where the frame could not go on behind a break, all of it would run as it stands."""

    def program(state, x):
        for _ in range(3):
            x = limited(x.sin())
            state.log.append(x.shape[0])
        return x

    fxjit.reset()
    fxjit.counters.clear()
    ours, eagers = State(), State()
    x = torch.ones(3)
    compiled = fxjit.compile(program, backend="eager")
    assert_same((program(eagers, x), eagers.log), (compiled(ours, x), ours.log))
    assert fxjit.counters["frames"]["ok"] == 1 and not fxjit.counters["graph_break"] and not fxjit.counters["skip"]


def test_with_fullgraph_it_is_in_the_graph_and_what_stands_before_is_lost():
    def program(state, x):
        state.calls += 1
        return limited(x)

    state = State()
    compiled = fxjit.compile(program, fullgraph=True, backend="eager")
    compiled(state, torch.ones(3))
    with pytest.raises(ValueError, match="too large"):
        compiled(state, torch.full((3,), 90.0))
    assert state.calls == 1


def test_an_operator_in_a_function_of_autograds_runs_once():
    seen = []

    @torch.library.custom_op("fxjit_tests::counted_and_limited", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        if float(x.sum()) > 100:
            raise ValueError("too large")
        return x.clone()

    counted.register_fake(lambda x: torch.empty_like(x))

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return counted(x) + 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    compiled = fxjit.compile(lambda x: Counted.apply(x) * 2, backend="eager")
    compiled(torch.ones(3, requires_grad=True))
    seen.clear()
    with pytest.raises(ValueError, match="too large"):
        compiled(torch.full((3,), 90.0, requires_grad=True))
    assert len(seen) == 1


def test_a_decorated_function_in_the_graph_writes_to_its_arguments():
    import functools

    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args)

        return wrapper

    @decorate
    def doubled(x):
        return x.mul_(2)

    fxjit.allow_in_graph(doubled)

    def program(x):
        y = x + 1
        doubled(y)
        z = y.sin()
        doubled(x)
        return y, z, x + 1

    for backend in BACKENDS:
        fxjit.reset()
        ours, eagers = torch.ones(3), torch.ones(3)
        assert_same((program(eagers), eagers), (fxjit.compile(program, backend=backend)(ours), ours), rtol=1e-6)


def goes_on_without(looks):
    def goes_on(x):
        try:
            return looks(x)
        except Exception:
            return x.int()

    return goes_on


WITHOUT_FAKES = {
    "item": lambda x: x * float(x.sum()),
    "int": lambda x: x.new_ones(int(x.sum())),
    "bool": lambda x: x * 2 if x.sum() > 4 else x.double(),
    "tolist": lambda x: torch.tensor(x.tolist()),
    "mask": lambda x: x[x > 1],
    "nonzero": lambda x: x * len(x.nonzero()),
    "unique": lambda x: x.unique() + 1,
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2),
    "asarray": lambda x: torch.from_numpy(np.asarray(x) * 2),
}


@pytest.mark.parametrize("looks", WITHOUT_FAKES)
def test_a_function_in_the_graph_that_goes_on_without_numbers_breaks(looks: str):
    """What fake tensors refuse, it catches, so that a trace of it says something else than its runs: an error where no break
    may be."""
    goes_on = fxjit.allow_in_graph(goes_on_without(WITHOUT_FAKES[looks]))

    def program(x):
        return goes_on(x + 1) * 2

    for backend in BACKENDS:
        fxjit.reset()
        compiled = fxjit.compile(program, backend=backend)
        for value in (1.0, 2.0, 0.0):
            x = torch.full((3,), value)
            assert_same(program(x), compiled(x), rtol=1e-6)
        with pytest.raises(fxjit.errors.Unsupported):
            fxjit.compile(program, backend=backend, fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_functions_that_an_installed_package_allows_in_graphs_may_run_again(backend: str, tmp_path: Path) -> None:
    """einops gives its functions to `allow_in_graph`: lookups behind them break no graph, and what fails starts over."""
    file = tmp_path / "site-packages" / "turning.py"
    file.parent.mkdir()
    file.write_text("def turn(x):\n    return x.mT\n")
    package = types.ModuleType("turning")
    exec(compile(file.read_text(), str(file), "exec"), package.__dict__)
    torch.compiler.allow_in_graph(package.turn)

    def program(x: torch.Tensor, at: torch.Tensor, seen: list[int]) -> torch.Tensor:
        seen.append(1)
        y = package.turn(x) * 2
        seen.append(at.shape[0] * (2 if at.device.type == "cpu" else 3))
        return y[at] + y.gather(0, at[:, None])

    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(program, backend=backend)
    for places in ([0, 1], [2, 0, 1], [0, 7], [1]):
        found: list[Any] = []
        for fn in (program, compiled):
            seen: list[int] = []
            try:
                found.append((fn(torch.arange(6.0).reshape(2, 3), torch.tensor(places), seen).tolist(), seen))
            except (IndexError, RuntimeError) as error:
                found.append((type(error), str(error), seen))
        assert found[0] == found[1]
    assert not fxjit.counters["graph_break"]
