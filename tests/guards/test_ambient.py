"""The state of the process that a trace relies on: each item is guarded, and only itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from frames import Frame
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit.guards import ambient
from fxjit.guards.ambient import AmbientState
from fxjit.guards.kinds import AmbientIs, Guard
from fxjit.guards.tree import GuardTree
from fxjit.process_state import QUERYABLE


class QuietMode(TorchFunctionMode):
    pass


class QuietDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic(warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def functorch_level() -> Iterator[None]:
    torch._C._functorch._grad_increment_nesting()
    try:
        yield
    finally:
        torch._C._functorch._grad_decrement_nesting()


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def convolutions_in(name: str) -> Iterator[None]:
    torch.backends.mkldnn.conv.fp32_precision = name  # torch's newer setting
    try:
        yield
    finally:
        torch.backends.mkldnn.conv.fp32_precision = "none"


#: What is changed, and the items that must notice.
STATES: dict[str, tuple[Any, set[str]]] = {
    "no_grad": (torch.no_grad, {"grad_mode"}),
    "inference_mode": (torch.inference_mode, {"grad_mode", "inference_mode"}),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), {"autocast"}),
    "autocast to half": (lambda: torch.autocast("cpu", torch.float16), {"autocast"}),
    "autocast without cache": (lambda: torch.autocast("cpu", cache_enabled=False), {"autocast"}),
    "default dtype": (default_dtype, {"default_dtype"}),
    "default device": (default_device, {"default_device", "torch_function_modes"}),
    "device context": (lambda: torch.device("meta"), {"torch_function_modes"}),
    "deterministic": (lambda: deterministic(False), {"deterministic"}),
    "deterministic, warn": (lambda: deterministic(True), {"deterministic"}),
    "function mode": (QuietMode, {"torch_function_modes"}),
    "dispatch mode": (QuietDispatch, {"dispatch_modes"}),
    "no subclasses": (torch._C.DisableTorchFunctionSubclass, {"torch_function"}),
    "no torch function": (torch._C.DisableTorchFunction, {"torch_function"}),
    "functorch": (functorch_level, {"functorch_level"}),
    "float32 products in tf32": (lambda: precision("high"), {"float32_precision"}),
    "float32 products in bfloat16": (lambda: precision("medium"), {"float32_precision"}),
    "float32 convolutions in bfloat16": (lambda: convolutions_in("bf16"), {"float32_precision"}),
}


def tree_of_now() -> tuple[dict[str, Guard], GuardTree]:
    states = {**dict(AmbientState.capture().items()), **{name: ambient.read(name) for name in QUERYABLE}}
    guards: dict[str, Guard] = {name: AmbientIs(name, value) for name, value in states.items()}
    return guards, Frame().tree(*guards.values())


def noticing(guards: dict[str, Guard]) -> set[str]:
    """The items whose guards fail now; Python and C must agree."""
    in_c = {name for name, guard in guards.items() if not Frame().holds(guard)}
    assert in_c == {name for name, guard in guards.items() if not guard.holds()}
    return in_c


def holds(tree: GuardTree) -> bool:
    return tree.check((), None, {}, {})


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_noticed_on_the_way_in_and_out(name: str) -> None:
    enter, expected = STATES[name]
    outside, tree_outside = tree_of_now()
    assert not noticing(outside) and holds(tree_outside) and tree_outside.num_python == 0
    with enter():
        # The device context sets a default device as well, in some versions of torch.
        assert expected <= noticing(outside) <= expected | {"default_device"}
        assert not holds(tree_outside)
        inside, tree_inside = tree_of_now()
        assert not noticing(inside) and holds(tree_inside)
    assert holds(tree_outside) and not holds(tree_inside)
    assert expected <= noticing(inside)


def test_two_autocasts_are_told_apart() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        _, tree = tree_of_now()
    with torch.autocast("cpu", torch.bfloat16):
        assert holds(tree)
    with torch.autocast("cpu", torch.float16):
        assert not holds(tree)


def test_a_device_context_made_anew_is_the_same() -> None:
    with torch.device("meta"):
        _, tree = tree_of_now()
    with torch.device("meta"):
        assert holds(tree)
    with torch.device("cpu"):
        assert not holds(tree)


def test_the_state_is_the_threads_own() -> None:
    _, tree = tree_of_now()
    answers: list[bool] = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: answers.append(holds(tree)))
        thread.start()
        thread.join()
        assert answers == [True] and not holds(tree)


def test_states_compare_and_print() -> None:
    assert AmbientState.capture() == AmbientState.capture()
    with torch.no_grad():
        assert AmbientState.capture() != (outside := AmbientState.capture()) or outside.grad_mode is False
        guard = AmbientIs("grad_mode", True)
        assert guard.why() == "expected grad_mode True, found False"
    assert str(guard) == "<AmbientIs grad_mode is True>"
