"""Floats that vary: a constant at first, a number of the graph once a second value is met, unless the program decides on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit import torch_compat
from fxjit.counters import counters

SCALES = (0.1, 0.2, 0.3, 0.7, 1.0, 0.0, 2.5)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


def compiles() -> int:
    return int(counters["frames"]["ok"])


ONE_GRAPH: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "times a tensor": lambda x, s: x * s,
    "times integers": lambda x, s: torch.arange(4) * s,
    "times a scalar tensor": lambda x, s: torch.ones(()) * s,
    "alpha": lambda x, s: torch.add(x, x, alpha=s),
    "in place": lambda x, s: x.clone().add_(x, alpha=-s),
    "arithmetic": lambda x, s: x * (1 - s) + s**2 / 3,
    "reflected": lambda x, s: s - x,
    "a bound": lambda x, s: x.clamp(min=s),
    "a power": lambda x, s: (x.abs() + 1) ** s,
    "compared with a tensor": lambda x, s: torch.where(x > s, x, s),
    "a function of math": lambda x, s: x * math.sqrt(s + 1),
    "rounded": lambda x, s: x + int(s * 10),
    "returned": lambda x, s: (x + 1, s * 2, s),
    "in a list": lambda x, s: x * [s, 2 * s][1],
    "fills a tensor": lambda x, s: torch.full((3,), s) + x[0, 0],
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("what", ONE_GRAPH)
def test_a_float_that_varies_is_compiled_twice(what: str, backend: str) -> None:
    fn = ONE_GRAPH[what]
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    x = torch.randn(4, 5)
    for scale in SCALES:
        found, expected = compiled(x, scale), fn(x, scale)
        torch.testing.assert_close(found, expected)
        assert type(found) is type(expected)
    # Before torch 2.13 the reference of a power compares its exponent with 1: an entry of its own for that value.
    asks = what == "a power" and torch_compat.release(torch.__version__) <= (2, 12)
    assert compiles() == 2 + asks


@pytest.mark.parametrize("what", sorted(set(ONE_GRAPH) - {"rounded"}))
def test_a_float_that_varies_runs_through_kernels(what: str) -> None:
    fn = ONE_GRAPH[what]
    compiled = fxjit.compile(fn, fullgraph=True)
    for scale in SCALES[:3]:
        compiled(torch.randn(4, 5), scale)
    assert not counters["run_as_captured"]


def test_python_calculates_with_floats_that_vary() -> None:
    """To the last bit, and it raises where it would."""
    def fn(x: torch.Tensor, s: float) -> tuple[torch.Tensor, float]:
        return x * (s * 0.1 * 3 - 1 / s), s * 0.1 * 3 - 1 / s

    compiled = fxjit.compile(fn)
    x = torch.ones(3, dtype=torch.float64)
    for scale in SCALES[:5]:
        (found, number), (expected, same) = compiled(x, scale), fn(x, scale)
        assert torch.equal(found, expected) and number == same
    for call in (fn, compiled):
        with pytest.raises(ZeroDivisionError):
            call(x, 0.0)


def test_a_division_by_a_number_that_is_zero_when_it_is_traced_raises_in_the_program() -> None:
    """As in optimizers that divide by a sum of learning rates, which are zero at first."""
    def fn(x: torch.Tensor, n: int, total: float) -> tuple[torch.Tensor, float]:
        for _ in range(2):
            try:
                share = 0.5 / (total * n)
            except ZeroDivisionError as error:
                share = float(len(str(error)))
            x = x * share + n % (n - 3) if n != 3 else x * n
        return x, share

    calls = (1, 0.0), (2, 0.0), (5, 0.0), (6, 1.5), (7, 0.0), (8, 2.5), (3, 0.0)
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for n, total in calls:
        (found, number), (expected, same) = compiled(torch.ones(3), n, total), fn(torch.ones(3), n, total)
        assert torch.equal(found, expected) and number == same
    assert not counters["graph_break"] and not counters["skip_cause"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_a_float_that_varies_is_a_number_to_other_types(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, s: float) -> tuple[torch.Tensor, ...]:
        return x * s, torch.add(x, x.abs(), alpha=s) if x.is_floating_point() else x - s, x > s, torch.full_like(x, 2) / s

    compiled = fxjit.compile(fn)
    x = torch.linspace(-3, 3, 11).to(dtype)
    for scale in (0.1, 0.3, 1 / 3, 1.7):
        torch.testing.assert_close(compiled(x, scale), fn(x, scale))  # types, too


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_gradients_go_through(backend: str) -> None:
    def fn(x: torch.Tensor, s: float) -> torch.Tensor:
        return (x * s).sin() / (s + 1)

    compiled = fxjit.compile(fn, backend=backend)
    for scale in SCALES:
        x = torch.randn(4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x, scale).sum().backward()
        fn(y, scale).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert compiles() == 2


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_a_branch_decides_is_guarded(backend: str) -> None:
    def fn(x: torch.Tensor, s: float) -> torch.Tensor:
        return x * s if s > 0.5 else x + s

    compiled = fxjit.compile(fn, backend=backend)
    x = torch.randn(4)
    for scale in SCALES:
        torch.testing.assert_close(compiled(x, scale), fn(x, scale))
    assert compiles() == 3  # the constant 0.1, then each side


@pytest.mark.parametrize("fn", [
    lambda x, s: x + len(str(s)), lambda x, s: x + torch.tensor(s), lambda x, s: x + {0.1: 1}.get(s, 2),
], ids=["its text", "a tensor of it", "a key"])
def test_a_float_that_must_be_known_is_guarded_to_the_bit(fn: Callable[[torch.Tensor, float], torch.Tensor]) -> None:
    compiled = fxjit.compile(fn, backend="eager")
    x = torch.randn(4)
    for scale in (*SCALES, 0.1 + 0.2, -0.0):
        torch.testing.assert_close(compiled(x, scale), fn(x, scale))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_infinities_nan_and_negative_zero(backend: str) -> None:
    def fn(x: torch.Tensor, s: float) -> torch.Tensor:
        return x / s

    compiled = fxjit.compile(fn, backend=backend)
    x = torch.tensor([1.0, -2.0])
    for scale in (1.5, 2.5, math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-320, 1e308):
        torch.testing.assert_close(compiled(x, scale), fn(x, scale), equal_nan=True)


def test_another_type_is_another_program() -> None:
    def fn(x: torch.Tensor, s: Any) -> torch.Tensor:
        return x * s

    compiled = fxjit.compile(fn, backend="eager")
    x = torch.arange(4)
    for scale in (0.5, 1.5, 2, True, 2.0):
        found, expected = compiled(x, scale), fn(x, scale)
        torch.testing.assert_close(found, expected)


def test_specialize_float_keeps_constants() -> None:
    compiled = fxjit.compile(lambda x, s: x * s, backend="eager")
    x = torch.randn(4)
    with fxjit.config.patch(specialize_float=True):
        for scale in SCALES[:5]:
            compiled(x, scale)
    assert compiles() == 5


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_scheduled_learning_rate_is_compiled_twice(kind: Any, backend: str) -> None:
    torch.manual_seed(0)
    nets = [nn.Linear(4, 4), nn.Linear(4, 4)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [kind(net.parameters(), lr=0.1) for net in nets]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers]
    steps = [fxjit.compile(lambda: optimizers[0].step(), backend=backend), optimizers[1].step]
    for _ in range(6):
        x = torch.randn(3, 4)
        for net, optimizer, scheduler, step in zip(nets, optimizers, schedulers, steps, strict=True):
            optimizer.zero_grad()
            net(x).tanh().sum().backward()
            step()
            scheduler.step()
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert compiles() <= 3  # the state of the first step is not yet there


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_the_sign_of_a_zero_that_a_branch_decides_on(backend: str) -> None:
    def fn(x: torch.Tensor, s: float) -> Any:
        return (x, math.copysign(1.0, s)) if not s else (x * s, 0.0)

    compiled = fxjit.compile(fn, backend=backend)
    x = torch.randn(4)
    for scale in (1.0, 2.0, -0.0, 0.0, 3.0, -0.0):
        torch.testing.assert_close(compiled(x, scale), fn(x, scale))
