"""Steps: calls in a graph that set state of the process which no operator names. They enter and leave blocks (`fork_rng`,
`catch_warnings`, hooks of saved tensors), seed the random generators, and add filters of warnings. One more reads a number out
of a tensor.

A backend is given the graph without its steps, in the parts between them (backends/graph/steps.py). While a graph is traced
they do nothing. A graph that raises leaves the blocks that it is in, the innermost first (`leaving_blocks`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch

from fxjit import torch_private

F = TypeVar("F", bound=Callable[..., Any])
#: Gives what sets a setting of the process back to its present value.
Saved = Callable[[], Callable[[], object]]
_active_fake_mode: Final[Any] = torch_private.optional("torch._guards.active_fake_mode")


class _Open(threading.local):
    """The managers that steps of this thread have entered and not left."""

    def __init__(self) -> None:
        self.managers: list[Any] = []
        #: What entering gave, by the step, until the code around the graph takes it.
        self.given: dict[int, Any] = {}
        #: What sets each setting back that a trace or a compile under way has applied.
        self.applied: dict[Saved, Callable[[], object]] = {}


_open: Final = _Open()


def step(uses_rng: bool = False) -> Callable[[F], F]:
    """Marks a function as a step. `uses_rng`: it reads or sets the state of random generators."""
    def mark(fn: F) -> F:
        fn.is_step = fn.changes_state = True  # type: ignore[attr-defined]  # for backends, and for graph/facts.py
        fn.uses_rng = uses_rng  # type: ignore[attr-defined]  # for schemas.py
        return fn
    return mark


def is_traced() -> bool:
    """Whether operators run on fake tensors: the call is made by a trace."""
    return _active_fake_mode() is not None


def entering(make: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], uses_rng: bool,
             kept_as: int | None = None) -> Callable[[], None]:
    """A step that makes a manager and enters it. `kept_as`: by which number `given_by` finds what entering gives."""
    @step(uses_rng)
    def enter_block() -> None:
        if not is_traced():
            manager = make(*args, **kwargs)
            given = manager.__enter__()
            _open.managers.append(manager)
            if kept_as is not None:
                _open.given[kept_as] = given
    return enter_block


def given_by(step: int) -> Any:
    """Run-time helper of new bytecode: what entering a block gave, once the graph has run."""
    return _open.given.pop(step)


def leaving(uses_rng: bool) -> Callable[[], None]:
    """A step that leaves the innermost of the blocks."""
    @step(uses_rng)
    def leave_block() -> None:
        if not is_traced():
            _open.managers.pop().__exit__(None, None, None)
    return leave_block


def calling(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
            saved: Saved | None = None) -> Callable[[], None]:
    """A step that calls `fn`, for what that sets. `saved`: it is a setting, which a graph that raises sets back. In a block of
    another step that does so by itself."""
    @step()
    def call_for_state() -> None:
        if not is_traced():
            fn(*args, **kwargs)
    if saved is not None:
        call_for_state.saved = saved  # type: ignore[attr-defined]  # for what runs the graph, and what compiles its parts
        call_for_state.apply = functools.partial(fn, *args, **kwargs)  # type: ignore[attr-defined]
    return call_for_state


def apply(step: Any) -> None:
    """What a setting's step sets, for the trace, or the compile, of what stands behind it: until `applying` ends."""
    if hasattr(step, "saved"):
        if step.saved not in _open.applied:
            _open.applied[step.saved] = step.saved()
        step.apply()


@contextlib.contextmanager
def applying() -> Iterator[None]:
    """Settings that are applied inside are as before afterwards."""
    outer, _open.applied = _open.applied, {}
    try:
        yield
    finally:
        inner, _open.applied = _open.applied, outer
        for set_back in reversed(inner.values()):
            set_back()


@step(uses_rng=True)
def seed(number: int) -> None:
    """`torch.manual_seed`."""
    if not is_traced():
        torch.manual_seed(number)


@step(uses_rng=True)
def rng_state() -> torch.Tensor:
    """`torch.get_rng_state`."""
    if is_traced():
        return torch.empty(_size_of_state(), dtype=torch.uint8, device="cpu")
    return torch.get_rng_state()


@functools.cache
def _size_of_state() -> int:
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.get_rng_state().numel()


@step(uses_rng=True)
def restore_rng(state: torch.Tensor) -> None:
    """`torch.set_rng_state`."""
    if not is_traced():
        torch.set_rng_state(state)


def batch_norm_by_count(given: torch.Tensor, running_mean: torch.Tensor, running_var: torch.Tensor, weight: torch.Tensor | None,
                        bias: torch.Tensor | None, training: bool, momentum: torch.Tensor, eps: float) -> torch.Tensor:
    """`torch.nn.functional.batch_norm` with the momentum that the count of the batches, a tensor, says."""
    pace = 0.0 if is_traced() else 1.0 / float(momentum)
    return torch.nn.functional.batch_norm(given, running_mean, running_var, weight, bias, training, pace, eps)


batch_norm_by_count.is_step = True  # type: ignore[attr-defined]  # it cannot be traced: it reads a number out of a tensor


def leaving_blocks(run: Callable[..., Any], settings: Sequence[Saved] = ()) -> Callable[..., Any]:
    """`run`, which leaves the blocks that its steps have entered, and sets the settings back, where it raises: the program's
    code starts over then, if nothing else stands against that."""
    def call(*args: Any) -> Any:
        before = len(_open.managers)
        set_back = [saved() for saved in settings]
        try:
            return run(*args)
        except BaseException:  # whatever ends the graph
            while len(_open.managers) > before:
                _open.managers.pop().__exit__(None, None, None)
            for each in set_back:
                each()
            raise
    return call
