"""What becomes of compiled code under modes, tracers and transforms that came after it was compiled: they see each operator."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.differential import assert_same
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._vmap_internals import _vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fxjit

Fn = Callable[[torch.Tensor], torch.Tensor]

FIRST_CALL = """
import torch, fxjit
from torch.overrides import TorchFunctionMode

class Counts(TorchFunctionMode):
    seen = 0
    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counts.seen += 1
        return func(*args, **(kwargs or {}))

def f(x):
    return torch.sin(x) + 1

compiled = fxjit.compile(f, backend="eager")
with Counts():
    assert torch.equal(compiled(x := torch.ones(3)), f(x))
assert Counts.seen >= 4, Counts.seen
"""


def test_the_first_call_may_stand_under_a_mode() -> None:
    """torch imports its module for default devices when one is first set."""
    subprocess.run([sys.executable, "-c", FIRST_CALL], check=True, timeout=300)


def smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + 1


class SeesFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class SeesOperators(TorchDispatchMode):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def under_jit_trace(fn: Fn, x: torch.Tensor) -> Any:
    traced = torch.jit.trace(fn, (x,), check_trace=False)
    return [node.kind() for node in traced.graph.nodes()], traced(x), traced(x + 1)


def under_make_fx(fn: Fn, x: torch.Tensor) -> Any:
    graph = make_fx(fn)(x)
    return [str(node.target) for node in graph.graph.nodes], graph(x), graph(x + 1)


def under_symbolic_trace(fn: Fn, x: torch.Tensor) -> Any:
    traced = torch.fx.symbolic_trace(lambda given: fn(given))  # which takes functions of Python only
    return [node.target for node in traced.graph.nodes], traced(x), traced(x + 1)


def under_fake_tensors(fn: Fn, x: torch.Tensor) -> Any:
    with FakeTensorMode() as mode:
        fake = fn(mode.from_tensor(x))
    return type(fake), fake.shape, fake.dtype


def under_a_function_mode(fn: Fn, x: torch.Tensor) -> Any:
    with SeesFunctions() as mode:
        y = fn(x)
    return y, mode.seen


def under_a_dispatch_mode(fn: Fn, x: torch.Tensor) -> Any:
    with SeesOperators() as mode:
        y = fn(x)
    return y, mode.seen


def within(manager: Callable[[], Any]) -> Callable[[Fn, torch.Tensor], Any]:
    def run(fn: Fn, x: torch.Tensor) -> Any:
        with manager():
            y = fn(x)
        return y, y.requires_grad, y.is_inference(), y.dtype, y.device

    return run


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def saves_through_hooks(fn: Fn, x: torch.Tensor) -> Any:
    x = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        y = fn(x)
    return torch.autograd.grad(y.sum(), x)


def with_default_dtype(fn: Fn, x: torch.Tensor) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return fn(x)
    finally:
        torch.set_default_dtype(before)


STATES: dict[str, Callable[[Fn, torch.Tensor], Any]] = {
    "jit.trace": under_jit_trace,
    "make_fx": under_make_fx,
    "symbolic_trace": under_symbolic_trace,
    "fake tensors": under_fake_tensors,
    "function mode": under_a_function_mode,
    "dispatch mode": under_a_dispatch_mode,
    "vmap": lambda fn, x: torch.func.vmap(fn)(x.reshape(2, 2)),
    "grad": lambda fn, x: torch.func.grad(lambda y: fn(y).sum())(x),
    "jvp": lambda fn, x: torch.func.jvp(fn, (x,), (torch.ones_like(x),)),
    "the older vmap": lambda fn, x: _vmap(fn)(x.reshape(2, 2)),
    "functionalize": lambda fn, x: torch.func.functionalize(fn)(x),
    "forward differentiation": lambda fn, x: torch.autograd.functional.jvp(fn, x, torch.ones_like(x)),
    "dispatch disabled": within(torch._C._DisableTorchDispatch),
    "inference mode": within(torch.inference_mode),
    "no_grad": within(torch.no_grad),
    "enable_grad": within(torch.enable_grad),
    "autocast": within(lambda: torch.autocast("cpu")),
    "a default device": within(lambda: torch.device("cpu")),
    "anomaly mode": within(lambda: torch.autograd.set_detect_anomaly(True, False)),
    "profiler": within(torch.profiler.profile),
    "deterministic": within(deterministic),
    "saved_tensors_hooks": saves_through_hooks,
    "default dtype": with_default_dtype,
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_compiled_before_and_called_under(state: str, backend: str) -> None:
    check(state, backend, warm=True)


@pytest.mark.parametrize("state", STATES)
def test_compiled_under_and_called_after(state: str) -> None:
    check(state, "eager", warm=False)


def check(state: str, backend: str, warm: bool) -> None:
    fxjit.reset()
    x = torch.linspace(-1, 1, 4)
    compiled = fxjit.compile(smooth, backend=backend)
    if warm:
        for each in (x, x.clone().requires_grad_()):
            compiled(each)
            compiled(each)
    for _ in range(2):
        expected, actual = STATES[state](smooth, x), STATES[state](compiled, x)
        assert_same(expected, actual, rtol=1e-5)
    assert_same(smooth(x), compiled(x), rtol=1e-5)


class Cosines(TorchFunctionMode):
    """Replaces a function."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.cos if func is torch.sin else func)(*args, **(kwargs or {}))


class Announced(SeesFunctions):
    """What it does when it is entered is done once."""

    def __enter__(self) -> Any:
        self.seen.append("entered")
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.seen.append("left")
        super().__exit__(*error)


def called_under(fn: Any, *modes: TorchFunctionMode) -> list[Any]:
    """What calls under modes come to, and what the modes saw."""
    results = []
    for x in (torch.linspace(-1, 1, 4), torch.ones(4), torch.ones(4)):
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            try:
                results.append(fn(x))
            except ZeroDivisionError as error:
                results.append(error.args)
            results.append([type(each) for each in torch.overrides._get_current_function_mode_stack()])
    return [*results, *(getattr(mode, "seen", None) for mode in modes), torch._C._len_torch_function_stack()]


def with_arguments(x: torch.Tensor, by: float = 2.0, *more: torch.Tensor, add: int = 1, **named: torch.Tensor) -> torch.Tensor:
    for each in (*more, *named.values()):
        x = x + each
    return torch.sin(x) * by + add


OFFSET = torch.ones(4)
LAYER = torch.nn.Linear(4, 4)


def given_arguments(x: torch.Tensor) -> torch.Tensor:
    return with_arguments(x, 3.0, OFFSET, add=2, last=OFFSET * 2)


def raising(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * (1 // (x.dim() - 1))


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    fxjit.graph_break()
    return y * 2


def deciding(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) if x.sum() > 1 else x * 2


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [smooth, with_arguments, given_arguments, LAYER, LAYER.forward, raising, breaking, deciding,
                                lambda x: x * OFFSET + 1])
@pytest.mark.parametrize("kinds", [(Cosines,), (Announced,), (Cosines, SeesFunctions), (SeesFunctions, Cosines)])
def test_under_modes_of_the_programs(fn: Any, kinds: Any, backend: str) -> None:
    fxjit.reset()
    with torch.no_grad():
        expected = called_under(fn, *(kind() for kind in kinds))
        assert_same(expected, called_under(fxjit.compile(fn, backend=backend), *(kind() for kind in kinds)), rtol=1e-5)


def test_what_is_called_under_modes_is_one_graph() -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(smooth, backend="eager")
    for _ in range(3):  # a mode is a new one in each block
        with Cosines(), SeesFunctions():
            compiled(torch.ones(3))
    assert fxjit.counters["stats"]["unique_graphs"] == 1 and not fxjit.counters["graph_break"]
    assert not fxjit.counters["skip"]


@pytest.mark.parametrize("outer", [False, True])
def test_a_default_device_beside_a_mode(outer: bool) -> None:
    def making(x: torch.Tensor) -> Any:
        made = torch.ones(4) + torch.sin(torch.zeros(4))
        return made.device, x + 1 if made.is_meta else x + made

    compiled = fxjit.compile(making, backend="eager")
    for device in ("cpu", "meta", "cpu"):
        results = []
        for fn in (making, compiled):
            managers = (torch.device(device), Cosines()) if outer else (Cosines(), torch.device(device))
            with managers[0], managers[1]:
                results.append(fn(torch.ones(4)))
        assert_same(*results)


def test_modes_are_back_where_a_graph_fails() -> None:
    def indexed(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)[at] + 1

    compiled = fxjit.compile(indexed, backend="eager")
    for at in (1, 2, 7, 3):
        results = []
        for fn in (indexed, compiled):
            mode = SeesFunctions()
            with mode, contextlib.suppress(IndexError):
                results.append(fn(torch.arange(4.0), torch.tensor([at])))
            results.append(mode.seen)
            assert not torch._C._len_torch_function_stack()
        assert_same(results[:len(results) // 2], results[len(results) // 2:])


def test_frames_that_are_traced_symbolically_run_as_they_stand() -> None:
    """Tensors are none there: each frame broke where it would have used one."""
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(x) + 1) * self.layer.bias

    model = Model()

    def traces(x: torch.Tensor) -> Any:
        return torch.fx.symbolic_trace(model)(x)

    fxjit.reset()
    fxjit.counters.clear()
    with torch.no_grad():
        assert_same(traces(torch.ones(2, 4)), fxjit.compile(traces, backend="eager")(torch.ones(2, 4)))
    assert sum(fxjit.counters["graph_break"].values()) == 1, "at the call of symbolic_trace"


def test_backwards_of_functions_in_vectorized_jacobians() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    def fn(x: torch.Tensor) -> Any:
        return torch.autograd.functional.jacobian(Square.apply, x, vectorize=True)

    fxjit.reset()
    x = torch.rand(3, requires_grad=True)
    for _ in range(2):
        assert_same(fn(x), fxjit.compile(fn, backend="eager")(x))


def test_a_kernel_for_a_key_that_the_program_includes() -> None:
    library = torch.library.Library("_", "IMPL")
    name = "TESTING_ONLY_GenericMode"
    key = torch._C._parse_dispatch_key(name)
    seen: list[str] = []

    def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(str(op))
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set().remove(key),
                                             torch._C._dispatch_tls_local_exclude_set()):
            return op(*args, **kwargs)

    def smoothed(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    library.fallback(fallback, name)
    try:
        seen_by = []
        for fn in (smoothed, fxjit.compile(smoothed, backend="eager")):
            seen.clear()
            with torch._C._IncludeDispatchKeyGuard(key):
                fn(torch.ones(3))
            seen_by.append([each for each in seen if "ones" not in each and "fill" not in each])
        assert seen_by[0] == seen_by[1]
    finally:
        library._destroy()
