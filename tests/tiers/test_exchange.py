"""Tiers: a graph runs as it was captured until a helper process has compiled it, and both tiers do what eager does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same
from tests.tiers.stress import autograd_survives_fork
from torch import nn

import fxjit
from fxjit import config, events
from fxjit.backends.aot import compile as compile_module
from fxjit.backends.aot import driver
from fxjit.backends.tiers import process
from fxjit.counters import counters


@pytest.fixture(autouse=True)
def tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fxjit.reset()
    monkeypatch.setattr(process, "NICENESS", 0)
    with config.patch(tiers=True, cache_dir=str(tmp_path), cache_graphs=True):
        yield
    fxjit.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.linear(F.gelu(self.norm(self.conv(x))).mean((2, 3))), 0.3, self.training)


def train(compile_: Callable[[Any], Any]) -> Iterator[Any]:
    """Statistics are written, random numbers used, gradients added up."""
    torch.manual_seed(3)
    net = Net()
    run = compile_(net)
    while True:
        x = torch.randn(4, 3, 8, 8, requires_grad=True)
        out = run(x)
        out.square().sum().backward()
        yield [out.detach(), x.grad, torch.rand(1), *(each.grad.clone() for each in net.parameters()),
               *(each.clone() for each in net.buffers())]


def mutate(compile_: Callable[[Any], Any]) -> Iterator[Any]:
    """An input is written to, and a view of it returned."""

    def fn(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state.mul_(0.5).add_(x)
        return state.sin(), state[1:]

    run, state = compile_(fn), torch.arange(6.0)
    while True:
        whole = state.view(2, 3)
        out, view = run(whole, torch.ones(2, 3))
        yield [out, state.clone(), view, view.stride(), view.storage_offset(), view._is_view(), state._version > 0,
               view.untyped_storage().data_ptr() == state.untyped_storage().data_ptr()]


def layouts(compile_: Callable[[Any], Any]) -> Iterator[Any]:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.transpose(0, 2).exp(), x.to(memory_format=torch.channels_last) * 2, x[:, ::2].sin().sum(1)

    run = compile_(fn)
    while True:
        results = run(torch.linspace(-1, 1, 120).view(2, 3, 4, 5))
        yield [results, [each.stride() for each in results]]


def random(compile_: Callable[[Any], Any]) -> Iterator[Any]:
    torch.manual_seed(5)
    run = compile_(lambda x: (torch.rand_like(x) + F.dropout(x, 0.5), torch.randn(3)))
    while True:
        yield [run(torch.ones(4)), torch.rand(2)]


def modes(compile_: Callable[[Any], Any]) -> Iterator[Any]:
    """Each state of torch has an entry of its own."""
    run = compile_(lambda x: (x @ x).relu())
    while True:
        x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        with torch.no_grad():
            off = run(x)
        with torch.inference_mode():
            plain = run(x)
        with torch.autocast("cpu", torch.bfloat16):
            half = run(x)
        half.float().sum().backward()
        yield [off, off.requires_grad, plain.is_inference(), plain.clone(), half.detach(), x.grad]


def halves(compile_: Callable[[Any], Any]) -> Iterator[Any]:
    """A graph break, and a graph of two parts."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.cos() * 2
        fxjit.graph_break()
        return x.sin(), y.exp() + 1

    run = compile_(fn)
    while True:
        x, y = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)
        a, b = run(x, y)
        a.sum().backward()
        yield [a.detach(), b.detach(), x.grad, y.grad]


def second_derivative(compile_: Callable[[Any], Any]) -> Iterator[Any]:
    run = compile_(lambda x: (x.sin() * x).sum())
    while True:
        x = torch.linspace(0.1, 1, 5).requires_grad_()
        (grad,) = torch.autograd.grad(run(x), x, create_graph=True)
        grad.square().sum().backward()
        yield [grad.detach(), x.grad]


PROGRAMS = [train, mutate, layouts, random, modes, halves, second_derivative]
WITH_GRADIENTS = {train, modes, halves, second_derivative}


def need_autograd_in_helpers() -> None:
    """A helper is a forked process. Where autograd does not run there, graphs with gradients stay on their first tier."""
    if not autograd_survives_fork():
        pytest.skip("this build of torch has no autograd in a forked process")


@pytest.mark.parametrize("program", PROGRAMS)
def test_both_tiers_are_eager(program: Callable[[Any], Iterator[Any]]) -> None:
    if program in WITH_GRADIENTS:
        need_autograd_in_helpers()
    """Two calls in the first tier (the helper may be done before the second), two in the second, where each step continues
    from what the one before it left: buffers, generators, gradients."""
    expected = program(lambda fn: fn)
    wanted = [copy.deepcopy(next(expected)) for _ in range(4)]
    steps = program(fxjit.compile)
    got = [copy.deepcopy(next(steps)) for _ in range(2)]
    assert counters["tiers"]["deferred"]
    assert fxjit.wait_for_compiles(120)
    got += [copy.deepcopy(next(steps)) for _ in range(2)]
    for want, found in zip(wanted, got, strict=True):
        assert_same(want, found, rtol=1e-4)
    done = counters["tiers"]
    assert done["exchanged"] + done["refused"] == done["deferred"]


def held(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Any]) -> None:
    """Helpers do `before` when they begin to compile."""
    compile_anew = driver.compile_anew
    monkeypatch.setattr(driver, "compile_anew", lambda *args: (before(), compile_anew(*args))[1])


def test_a_backward_belongs_to_the_tier_of_its_forward() -> None:
    need_autograd_in_helpers()
    fn, x = (lambda x: (x.sin() * x.exp()).sum()), torch.linspace(0, 1, 7).requires_grad_()
    compiled = fxjit.compile(fn)
    first = compiled(x)
    assert fxjit.wait_for_compiles(120)
    second = compiled(x)
    assert "fxjit" not in first.grad_fn.name().lower()
    assert first.grad_fn.name() != second.grad_fn.name()
    (wanted,) = torch.autograd.grad(fn(x), x)
    for out in (second, first):
        torch.testing.assert_close(torch.autograd.grad(out, x)[0], wanted)


def test_the_first_tier_draws_what_eager_draws_at_any_number_of_calls() -> None:
    compiled = fxjit.compile(lambda x: F.dropout(x, 0.5))
    torch.manual_seed(1)
    wanted = [F.dropout(torch.ones(9), 0.5) for _ in range(40)]
    torch.manual_seed(1)
    assert_same(wanted, [compiled(torch.ones(9)) for _ in range(40)])


def test_a_graph_that_the_disk_has_runs_compiled_at_once() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * 3).tanh().sum(0)

    fxjit.compile(fn)(torch.ones(4, 4))
    assert fxjit.wait_for_compiles(120)
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(fn)(torch.ones(4, 4)), fn(torch.ones(4, 4)))
    assert counters["cache"]["graph hit"] == 1 and not counters["tiers"]


def test_without_a_disk_the_code_is_handed_over() -> None:
    with config.patch(disk_cache=False):
        compiled = fxjit.compile(lambda x: (x * 5).tanh())
        compiled(torch.ones(4))
        assert fxjit.wait_for_compiles(120)
        torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 5.0).tanh())
    assert counters["tiers"]["exchanged"] == 1


def test_sizes_that_vary_are_compiled_in_the_background_too() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.shape[0]).sum(0)

    compiled = fxjit.compile(fn)
    for size in (3, 4, 7, 9):
        torch.testing.assert_close(compiled(torch.ones(size, 2)), fn(torch.ones(size, 2)))
        assert fxjit.wait_for_compiles(120)
    assert counters["frames"]["ok"] == 2 and counters["tiers"]["exchanged"] == 2


def test_code_that_cannot_be_handed_over_is_compiled_in_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no recompile to anyone: not to the stance, the limits or the report."""
    from fxjit.backends.store import graphs

    def refuse(self: Any, result: Any) -> Any:
        raise graphs.NotSerialisable("a test")

    monkeypatch.setattr(graphs.StoredGraph, "_facts", refuse)
    compiled = fxjit.compile(lambda x: x.exp() * 2)
    results = [compiled(torch.ones(3))]
    assert fxjit.wait_for_compiles(120)
    with config.patch(error_on_recompile=True, recompile_limit=1), fxjit.set_stance("fail_on_recompile"):
        results += [compiled(torch.ones(3)), compiled(torch.ones(3))]
    assert_same([torch.ones(3).exp() * 2 for _ in range(3)], results, rtol=1e-6)
    assert counters["tiers"] == {"deferred": 1, "refused": 1} and not counters["recompiles"]
    assert counters["native"]["kernels"] == 1


def test_a_size_that_the_backend_fixes_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper's code holds for one size only: no call of another size may see it."""
    through_aot = compile_module._through_aot

    def fixes(gm: Any, *rest: Any) -> Any:
        for node in gm.graph.find_nodes(op="placeholder"):
            value = node.meta["example_value"]
            if isinstance(value, torch.Tensor) and isinstance(value.shape[0], torch.SymInt):
                int(value.shape[0])
        return through_aot(gm, *rest)

    monkeypatch.setattr(compile_module, "_through_aot", fixes)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum(0)

    compiled = fxjit.compile(fn, dynamic=True)
    for size in (3, 3, 4, 3, 5, 4):
        torch.testing.assert_close(compiled(torch.ones(size, 2)), fn(torch.ones(size, 2)))
        assert fxjit.wait_for_compiles(120)
    assert counters["tiers"]["refused"] == 1 and not counters["tiers"]["exchanged"]


def test_an_error_in_the_background_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    held(monkeypatch, fail)

    def unlucky(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    compiled = fxjit.compile(unlucky)
    with pytest.warns(RuntimeWarning, match=r"(?s)unlucky.*ValueError: no such luck"):
        compiled(torch.ones(3))
        assert fxjit.wait_for_compiles(120)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    assert counters["tiers"] == {"deferred": 1, "failed": 1}


@pytest.mark.parametrize("how", ["max-autotune", "reduce-overhead"])
def test_modes_that_measure_or_record_compile_in_the_foreground(how: str) -> None:
    torch.testing.assert_close(fxjit.compile(lambda x: x * 2 + 1, mode=how)(torch.ones(3)), torch.full((3,), 3.0))
    assert not counters["tiers"]


def test_a_frame_that_is_listened_to_is_compiled_in_the_foreground() -> None:
    """A profiler and the page of a run are told of what a helper would do in another process."""
    with events.listen(lambda event: None):
        fxjit.compile(lambda x: x.sin() * 7)(torch.ones(3))
    assert not counters["tiers"] and counters["native"]["kernels"] == 1


def test_a_promise_about_a_size_is_checked_at_the_call() -> None:
    x = torch.ones(4, 3)
    fxjit.mark_dynamic(x, 0)
    with pytest.raises(fxjit.errors.ConstraintViolationError):
        fxjit.compile(lambda x: x * (2 if x.shape[0] == 4 else 3))(x)


def test_explain_and_the_log_say_the_tier(caplog: pytest.LogCaptureFixture) -> None:
    fxjit.set_logs(tiers=True)
    try:
        with caplog.at_level("INFO", "fxjit.tiers"):
            def told(x: torch.Tensor) -> torch.Tensor:
                return x.cos() + 2

            compiled = fxjit.compile(told)
            compiled(torch.ones(3))
            before = str(fxjit.explain(compiled)(torch.ones(3)))
            assert fxjit.wait_for_compiles(120)
            after = str(fxjit.explain(compiled)(torch.ones(3)))
    finally:
        fxjit.set_logs(tiers=False)
    assert "runs as it was captured" in before or "runs compiled code" in before
    assert "told: graph 1 runs compiled code" in after
    assert "told: its compiled code is in place" in caplog.text


@pytest.mark.parametrize("program", [layouts, halves])
def test_the_next_process_starts_compiled(program: Callable[[Any], Iterator[Any]]) -> None:
    """An entry is kept once compiled code is in place for all of its graphs."""
    if program in WITH_GRADIENTS:
        need_autograd_in_helpers()
    with config.patch(store_entries=True):
        for tiers in (True, True, False):
            fxjit.reset()
            counters.clear()
            with config.patch(tiers=tiers):
                expected, steps = program(lambda fn: fn), program(fxjit.compile)
                for _ in range(2):
                    wanted = copy.deepcopy(next(expected))
                    assert_same(next(steps), wanted, rtol=1e-5)
                    assert fxjit.wait_for_compiles(120)
            found, graphs = counters["cache"]["entry hit"], counters["tiers"]["exchanged"]
            assert (found > 0) is (graphs == 0)
            assert counters["cache"]["entry not kept"] == 0
        assert found > 0


def test_a_graph_that_stays_as_it_was_captured_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*rest: Any) -> Any:
        raise ValueError("no code")

    with config.patch(store_entries=True):
        with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="no code"):
            patch.setattr(driver, "compile_anew", fails)
            step = layouts(fxjit.compile)
            next(step)
            assert fxjit.wait_for_compiles(120)
            next(step)
        fxjit.reset()
        counters.clear()
        next(layouts(fxjit.compile))
        assert counters["cache"]["entry hit"] == 0 and counters["tiers"]["deferred"]
