"""What a program puts in the place of torch's own: layers' methods and functions of torch.nn.functional; and switches of the
process that a program asks for: each is seen at the next call."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxjit
from fxjit.counters import counters

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


@contextlib.contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)


def negated(*args: Any, **kwargs: Any) -> Any:
    return -next(arg for arg in args if isinstance(arg, torch.Tensor))


NET = nn.Sequential(nn.Linear(4, 4), nn.GELU())
PATCHES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Any, str]] = {
    "a layer's forward": (lambda x: NET(x), nn.Linear, "forward"),
    "a container's forward": (lambda x: NET(x), nn.Sequential, "forward"),
    "a function that a layer calls": (lambda x: NET(x), F, "linear"),
    "a function of torch.nn.functional": (lambda x: F.scaled_dot_product_attention(x, x, x), F, "scaled_dot_product_attention"),
    "a function of torch": (lambda x: torch.sin(x), torch, "sin"),
}


@pytest.mark.parametrize("what", PATCHES)
def test_a_function_of_torchs_is_replaced_and_put_back(what: str) -> None:
    program, owner, name = PATCHES[what]
    compiled = fxjit.compile(lambda x: program(x), backend="native")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), program(X))
        with replaced(owner, name, negated):
            torch.testing.assert_close(compiled(X), program(X))
        torch.testing.assert_close(compiled(X), program(X))
        owner.unread = 3  # does not matter
        torch.testing.assert_close(compiled(X), program(X))
        del owner.unread
    assert counters["frames"]["ok"] == 2


SWITCHES: dict[str, tuple[Callable[[], object], Callable[[], object], Callable[[], object]]] = {
    "cuDNN": (torch._C._get_cudnn_enabled, lambda: torch._C._set_cudnn_enabled(False),
              lambda: torch._C._set_cudnn_enabled(True)),
    "autocast's cache": (torch.is_autocast_cache_enabled, lambda: torch.set_autocast_cache_enabled(False),
                         lambda: torch.set_autocast_cache_enabled(True)),
    "autocast's dtype": (lambda: torch.get_autocast_dtype("cpu"), lambda: torch.set_autocast_dtype("cpu", torch.float16),
                         lambda: torch.set_autocast_dtype("cpu", torch.bfloat16)),
    "precision of products": (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("high"),
                              lambda: torch.set_float32_matmul_precision("highest")),
    "number of threads": (torch.get_num_threads, lambda: torch.set_num_threads(THREADS + 1),
                          lambda: torch.set_num_threads(THREADS)),
}
THREADS = torch.get_num_threads()


@pytest.mark.parametrize("what", SWITCHES)
def test_a_switch_of_the_process_that_the_program_asks_for(what: str) -> None:
    ask, change, undo = SWITCHES[what]
    compiled = fxjit.compile(lambda x: (x * 2, ask()), backend="eager")
    try:
        first = ask()
        assert compiled(X)[1] == first
        change()
        assert compiled(X)[1] == ask() != first
    finally:
        undo()
    assert compiled(X)[1] == first
    assert counters["frames"]["ok"] == 2


def test_a_builtin_is_replaced_and_put_back() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * abs(-2)

    compiled = fxjit.compile(program, backend="eager")
    torch.testing.assert_close(compiled(X), program(X))
    with replaced(builtins, "abs", lambda number: 7):
        torch.testing.assert_close(compiled(X), program(X))
    torch.testing.assert_close(compiled(X), program(X))
    assert counters["frames"]["ok"] == 2


def test_autocast_that_the_program_switches_on_itself_is_no_switch_from_outside() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, object]:
        with torch.autocast("cpu", torch.float16):
            return x @ x.T, torch.get_autocast_dtype("cpu")

    compiled = fxjit.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(X)[1] is torch.float16
    assert counters["frames"]["ok"] == 1
