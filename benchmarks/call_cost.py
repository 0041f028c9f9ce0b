"""`python -m benchmarks.call_cost`: what a call costs beside its kernels, against eager and torch.compile.

Each row is a graph so small that time goes to guards, dispatch and outputs. Eager, torch.compile (default backend) and
fxjit take turns in one process; only the ratios mean something. Printed as Markdown; docs/performance_calls.md has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import fxjit
from benchmarks.timing import case_arguments, interleaved, markdown, measured_beside

Compile = Callable[..., Callable[..., Any]]
Calls = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """`make(compile)` gives the call to measure; what it is to reach against eager and torch.compile (None: no aim)."""

    name: str
    make: Callable[[Compile], Callable[[], object]]
    of_eager: float | None
    of_torch: float | None


def _no_grad(call: Callable[..., object], *args: object) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return call(*args)

    return run


def add_case(compile_: Compile) -> Callable[[], object]:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    compiled = compile_(add)
    x, y = torch.randn(8), torch.randn(8)
    return lambda: compiled(x, y)


def add_grad_case(compile_: Compile) -> Callable[[], object]:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    compiled = compile_(add)
    x, y = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    return lambda: compiled(x, y)


def backward_case(compile_: Compile) -> Callable[[], object]:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).sum()

    compiled = compile_(loss)
    x, y = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    return lambda: compiled(x, y).backward()


def deep_case(compile_: Compile) -> Callable[[], object]:
    torch.manual_seed(0)
    module = nn.Sequential(*(layer for _ in range(50) for layer in (nn.Linear(8, 8), nn.ReLU())))
    return _no_grad(compile_(module), torch.randn(8))


class Layer(nn.Module):
    """The parameters of a transformer layer; only the guards look at most of them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("query", "key", "value", "out")})
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first, self.second = nn.LayerNorm(4), nn.LayerNorm(4)

    def look(self, ready: bool) -> bool:
        """True when every parameter is as it should be: decided while tracing, so only guards remain of it."""
        for linear in self.attention.values():
            ready = ready and linear.weight.dim() == 2 and linear.bias.dim() == 1
        for part in (self.up, self.down):
            ready = ready and part.weight.dim() == 2 and part.bias.dim() == 1
        for norm in (self.first, self.second):
            ready = ready and norm.weight.dim() == 1 and norm.bias.dim() == 1
        return ready


class Layers(nn.Module):
    """`count` transformer layers, all looked at, and one addition."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ready = True
        for layer in self.layers:
            ready = layer.look(ready)
        return x + 1 if ready else x


def guards_case(count: int) -> Callable[[Compile], Callable[[], object]]:
    def make(compile_: Compile) -> Callable[[], object]:
        return _no_grad(compile_(Layers(count).eval(), backend="eager"), torch.randn(8))

    return make


def entries_case(compile_: Compile) -> Callable[[], object]:
    def scale(x: torch.Tensor, by: str) -> torch.Tensor:
        return x * len(by)

    compiled = compile_(scale)
    x = torch.randn(8)
    for n in range(50):
        compiled(x, "a" * (n + 1))
    last = "a" * 50
    return lambda: compiled(x, last)


def turns_case(compile_: Compile) -> Callable[[], object]:
    def scale(x: torch.Tensor, by: str) -> torch.Tensor:
        return x * len(by)

    compiled = compile_(scale)
    x = torch.randn(8)
    names = ["a" * (n + 1) for n in range(50)]

    def run() -> None:
        for name in names:
            compiled(x, name)

    run()
    return run


def _cut() -> None:
    """The break of break_case."""


def break_case(compile_: Compile) -> Callable[[], object]:
    disabled = fxjit.disable(_cut) if compile_ is fxjit_compile else torch.compiler.disable(_cut)

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        disabled()
        return x * 2

    compiled = compile_(broken)
    x = torch.randn(8)
    return lambda: compiled(x)


def list_case(compile_: Compile) -> Callable[[], object]:
    def two_of(tensors: list[torch.Tensor]) -> torch.Tensor:
        return tensors[3] + tensors[60]

    compiled = compile_(two_of)
    tensors = [torch.randn(8) for _ in range(64)]
    return lambda: compiled(tensors)


CASES = (
    Case("`x + y`, 8 floats, no grad", add_case, 2.0, 1 / 6),
    Case("the same, inputs that require grad, forward", add_grad_case, None, 1 / 4),
    Case("forward and backward of `(x * y).sum()`", backward_case, None, 1 / 2),
    Case("50 x (Linear(8) + ReLU), no grad", deep_case, None, 0.6),
    Case("guards of 12 layers", guards_case(12), None, 1 / 8),
    Case("guards of 48 layers", guards_case(48), None, None),
    Case("50 entries, the last one hit", entries_case, None, 1 / 4),
    Case("50 entries, all hit in turns (50 calls)", turns_case, None, 1 / 4),
    Case("one graph break", break_case, None, 1 / 4),
    Case("a list of 64 tensors, two used", list_case, None, 1 / 6),
)


def eager_compile(fn: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    return fn


def torch_compile(fn: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return torch.compile(fn, **kwargs)


def fxjit_compile(fn: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return fxjit.compile(fn, **kwargs)  # type: ignore[no-any-return]  # gives what it is given


WAYS: dict[str, Compile] = {"eager": eager_compile, "torch": torch_compile, "fxjit": fxjit_compile}


def measure(case: Case, seconds: float, without: frozenset[str] = frozenset()) -> dict[str, float]:
    """Median seconds of a call, each way."""
    calls = {name: case.make(compile_) for name, compile_ in WAYS.items() if name not in without}
    for call in calls.values():
        for _ in range(5):
            call()
    return interleaved(calls, seconds)


def _ratio(part: float, whole: float | None, aim: float | None) -> str:
    if not whole:
        return ""
    text = f"{part / whole:.2f}x"
    return text if aim is None else f"{text} (to reach {aim:.2f}x)"


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    chosen = case_arguments(__doc__).parse_args(argv)
    torch.set_num_threads(1)
    without = frozenset({"torch"} if chosen.without_torch_compile else ())
    if not without:
        from torch import _dynamo

        _dynamo.config.recompile_limit = 100
    rows: list[tuple[str, ...]] = []
    found: dict[str, dict[str, float]] = {}
    for case in CASES:
        if chosen.only not in case.name:
            continue
        with fxjit.config.patch(recompile_limit=100):
            times = found[case.name] = measure(case, chosen.seconds, without)
        eager, ours, theirs = times["eager"], times["fxjit"], times.get("torch")
        rows.append((
            case.name, f"{eager * 1e6:.1f}", "" if theirs is None else f"{theirs * 1e6:.1f}", f"{ours * 1e6:.1f}",
            _ratio(ours, eager, case.of_eager), _ratio(ours, theirs, case.of_torch),
        ))
    print(markdown(("case", "eager, µs", "torch.compile, µs", "fxjit, µs", "fxjit / eager", "fxjit / torch.compile"), rows))
    print(f"\n{measured_beside()}")
    few, many = found.get("guards of 12 layers"), found.get("guards of 48 layers")
    for way in WAYS if few and many else ():
        if way != "eager" and way not in without:
            print(f"\n{way}: 48 layers cost {many[way] / few[way]:.2f} times what 12 cost")


if __name__ == "__main__":
    main()
