"""Calls of compiled modules: nothing of nn.Module's Python runs where it would only call `forward`; whatever it would do
besides is done, and arguments are bound as Python binds them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.modules.module as torch_module
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit.frontend import entries
from fxjit.module import compile_in_place
from fxjit.options import region_options
from fxjit.testing import CompileCounter


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: torch.Tensor, /, add: float = 1.0, *, times: int = 1, **more: float) -> torch.Tensor:
        return (x * self.weight + add) * times + sum(more.values())


X = torch.tensor([1.0, 2.0])


def compiled(module: nn.Module) -> Any:
    result: Any = fxjit.compile(module, backend="eager")
    for _ in range(4):
        result(X)
    return result


def functions_called(call: Callable[[], object]) -> list[str]:
    seen: list[str] = []

    def note(frame: Any, event: str, arg: object) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def python_of_torch(call: Callable[[], object]) -> set[str]:
    return {"__call__", "_wrapped_call_impl", "_call_impl"} & set(functions_called(call))


CALLS: list[Callable[[Any], Any]] = [
    lambda m: m(X),
    lambda m: m(X, 2.0),
    lambda m: m(X, add=2.0),
    lambda m: m(X, times=3),
    lambda m: m(X, 2.0, times=3, extra=4.0, another=5.0),
    lambda m: m(X, extra=4.0, times=2, add=0.5),
]


@pytest.mark.parametrize("call", CALLS)
def test_arguments_are_bound_as_by_python(call: Callable[[Any], Any]) -> None:
    module = Scale()
    fast = fxjit.compile(module, backend="eager")
    for _ in range(4):
        torch.testing.assert_close(call(fast), call(module))
    assert not python_of_torch(lambda: call(fast))


BAD: list[Callable[[Any], Any]] = [
    lambda m: m(),
    lambda m: m(X, 1.0, 2.0),
    lambda m: m(X, 1.0, add=2.0),
]


@pytest.mark.parametrize("call", BAD)
def test_arguments_that_do_not_fit_raise_as_in_eager(call: Callable[[Any], Any]) -> None:
    fast = compiled(Scale())
    with pytest.raises(TypeError) as eager:
        call(fast._orig_mod)
    with pytest.raises(TypeError) as ours:
        call(fast)
    assert str(ours.value) == str(eager.value)


def test_a_name_that_only_more_can_take() -> None:
    """`x` can be given by place only, so that a keyword of this name goes to **more."""
    module = Scale()
    fast = compiled(module)
    torch.testing.assert_close(fast(X, **{"x": 7.0}), module(X, **{"x": 7.0}))


def add_forward_hook(module: nn.Module) -> Any:
    return module.register_forward_hook(lambda m, args, out: out + 100)


def add_pre_hook(module: nn.Module) -> Any:
    return module.register_forward_pre_hook(lambda m, args: (args[0] + 100,))


def add_global_hook(module: nn.Module) -> Any:
    return torch_module.register_module_forward_hook(lambda m, args, out: out + 100)


@pytest.mark.parametrize("add", [add_forward_hook, add_pre_hook, add_global_hook])
def test_hooks_that_come_and_go_run(add: Callable[[nn.Module], Any]) -> None:
    module = Scale()
    fast = compiled(module)
    handle = add(module)
    try:
        torch.testing.assert_close(fast(X), module(X))
    finally:
        handle.remove()
    torch.testing.assert_close(fast(X), module(X))


def test_hooks_of_the_compiled_module_run() -> None:
    fast = compiled(Scale())
    plain = fast(X)
    fast.register_forward_hook(lambda m, args, out: out + 100)
    torch.testing.assert_close(fast(X), plain + 100)


def other_forward(self: Scale, x: torch.Tensor) -> torch.Tensor:
    return x - 1


def test_another_forward_on_the_instance_or_the_class_runs() -> None:
    module = Scale()
    fast = compiled(module)
    module.forward = lambda x: x - 2  # type: ignore[method-assign]
    torch.testing.assert_close(fast(X), X - 2)
    del module.forward
    torch.testing.assert_close(fast(X), module(X))
    before = Scale.forward
    Scale.forward = other_forward  # type: ignore[method-assign,assignment]
    try:
        torch.testing.assert_close(fast(X), X - 1)
    finally:
        Scale.forward = before  # type: ignore[method-assign]


@pytest.mark.parametrize("owner", ["the class", "a base", "nn.Module"])
@pytest.mark.parametrize("hooked", [False, True])
def test_another_call_of_the_class_runs_from_then_on(owner: str, hooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    base = type("Base", (Scale,), {})
    module: Any = type("Derived", (base,), {})()
    fast = compiled(module)
    if hooked:
        fast.register_forward_hook(lambda module, args, result: result * 1)
    with monkeypatch.context() as patch:
        kind = {"the class": type(module), "a base": base, "nn.Module": nn.Module}[owner]
        patch.setattr(kind, "__call__", lambda self, x: x * self.weight * 7, raising=False)
        torch.testing.assert_close(fast(X), X * module.weight * 7)
    torch.testing.assert_close(fast(X), module(X))


class Counting(Scale):
    calls = 0

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super()._call_impl(*args, **kwargs)


def test_a_call_that_the_user_wrote_runs() -> None:
    module = Counting()
    fast = compiled(module)
    before = module.calls
    fast(X)
    assert module.calls == before + 1


class Spying(Scale):
    def __getattribute__(self, name: str) -> Any:
        if name == "_forward_hooks":
            seen.append(name)
        return super().__getattribute__(name)


seen: list[str] = []


def test_attributes_that_the_user_watches_are_read() -> None:
    fast = compiled(Spying())
    seen.clear()
    fast(X)
    assert seen


def test_torch_jit_traces_the_original() -> None:
    module = nn.Linear(2, 2).requires_grad_(False)
    fast = compiled(module)
    traced = torch.jit.trace(lambda x: fast(x), (X,), check_trace=False)
    torch.testing.assert_close(traced(X + 1), module(X + 1))


def test_a_subclass_with_a_call_of_its_own() -> None:
    fast = compiled(Scale())

    class Mine(type(fast)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs) + 1

    mine = Mine(fast._orig_mod, fast.options)
    torch.testing.assert_close(mine(X), fast(X) + 1)


def test_arguments_are_not_kept() -> None:
    fast = compiled(Scale())
    x = torch.ones(2)
    before = sys.getrefcount(x)
    for _ in range(10):
        fast(x, times=1, extra=1.0)
    assert sys.getrefcount(x) == before


class Counted(nn.Module):
    """A module with hooks of which one is kept out of graphs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[str] = []
        self.register_forward_pre_hook(self.before)
        self.register_forward_hook(doubles)

    @fxjit.disable
    def before(self, module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        self.seen.append(f"{args[0].sum().item():.1f}")
        return (args[0] + 1,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 3


def doubles(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output * 2


@pytest.mark.parametrize("in_place", [False, True])
def test_hooks_that_are_never_traced_run_around_the_graph(in_place: bool) -> None:
    fxjit.counters.clear()
    module, plain = Counted(Scale()), Counted(Scale())
    counter = CompileCounter()
    run: Any = module
    if in_place:
        compile_in_place(module, region_options(backend=counter, fullgraph=True))
    else:
        run = fxjit.compile(module, backend=counter, fullgraph=True)

    for _ in range(3):
        torch.testing.assert_close(run(X), plain(X))

    assert module.seen == plain.seen == ["3.0"] * 3
    assert not fxjit.counters["graph_break"]
    # `forward`, and the other hook, which is a frame of its own
    assert counter.frame_count == 2


@pytest.mark.parametrize("in_place", [False, True], ids=["compiled", "in place"])
def test_a_trace_of_another_thread_changes_nothing_that_guards_look_at(in_place: bool, monkeypatch) -> None:
    """While AOTAutograd traces, each module's class calls a wrapper of its `__call__`, in all threads: the compiled
    module took that for its class's own, and what was compiled with it as a part was compiled anew. A call that misses its
    entry meanwhile waits for the compile, which here waits for the call: it runs eagerly."""
    monkeypatch.setattr(entries, "WAIT_SECONDS", 0.5)
    model, counting, results = nn.Linear(3, 3), CompileCounter(), []
    expected = model(torch.ones(2, 3)) + 1
    if in_place:
        compile_in_place(model, region_options(backend=counting))
        module: Any = model
    else:
        module = fxjit.compile(model, backend=counting)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return module(x) + 1

    compiled = fxjit.compile(whole, backend=counting)
    compiled(torch.ones(2, 3))
    module(torch.ones(2, 3))
    before = (counting.frame_count, vars(module).get("forward"))

    def call_in_another_thread() -> None:
        thread = threading.Thread(target=lambda: results.append(module(torch.ones(2, 3)) + 1))
        thread.start()
        thread.join()

    def traces(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        make_fx(lambda x: (call_in_another_thread(), x.sin())[1])(torch.ones(2))
        return gm.forward

    fxjit.compile(lambda x: x.sin(), backend=traces)(torch.ones(2))
    assert results and all(torch.equal(result, expected) for result in results)
    results.append(compiled(torch.ones(2, 3)))
    assert torch.equal(results[-1], expected)
    assert (counting.frame_count, vars(module).get("forward")) == before
