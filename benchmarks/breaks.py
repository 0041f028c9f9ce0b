"""`python -m benchmarks.breaks`: what graph breaks in called functions and in loops cost, with the settings off and on.

Each program breaks where `config.nested_graph_breaks` or `config.resume_in_loops` makes a difference, but the loops over
numbers and tensors with decisions on data, which are resumed there whatever the setting is. Eager, torch.compile (default
backend), fxjit without the setting and with it take turns in one process; only the ratios mean something. Printed as
Markdown; docs/performance_calls.md has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import fxjit
from benchmarks.timing import case_arguments, interleaved, markdown, measured_beside

Program = Callable[..., Any]


@fxjit.disable
@torch.compiler.disable
def note(value: object = None) -> None:
    """What breaks the graph: a call that both compilers leave alone."""


def _work(x: torch.Tensor) -> torch.Tensor:
    return (x * 1.5 + 1).tanh() * x.sigmoid() - x * 0.25


def _inner(x: torch.Tensor) -> torch.Tensor:
    y = _work(x)
    note()
    return _work(y)


def inner_and_outer(x: torch.Tensor) -> torch.Tensor:
    return _work(_inner(_work(x)))


def _deep(x: torch.Tensor, depth: int) -> torch.Tensor:
    return _inner(_work(x)) if depth == 0 else _work(_deeper(_work(x), depth - 1))


def _deeper(x: torch.Tensor, depth: int) -> torch.Tensor:
    return _work(_deep(_work(x), depth))


def four_deep(x: torch.Tensor) -> torch.Tensor:
    return _deeper(x, 1)


class Block(nn.Module):
    """A layer that tells of its activations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.norm(x))
        note()
        return x + nn.functional.gelu(y)


class Blocks(nn.Module):
    """Four layers, one after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = (Block(width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fourth(self.third(self.second(self.first(x))))


def loop(x: torch.Tensor) -> torch.Tensor:
    y = _work(_work(x))
    for _ in range(10):
        y = _work(y)
        note()
        y = _work(y)
    return _work(_work(y))


def loop_itself(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(10):
        y = (y * 1.5 + 1).tanh() * y.sigmoid() - y * 0.25
        note()
        y = (y * 1.5 + 1).tanh() * y.sigmoid() - y * 0.25
    return y


def loop_on_data(x: torch.Tensor) -> torch.Tensor:
    y = _work(x)
    while bool((y.abs().sum() > 1.0).item()):
        y = _work(y) * y * 0.3
    return _work(y)


def decisions_in_loop(x: torch.Tensor) -> torch.Tensor:
    for step in range(20):
        x = _work(x) + step * 0.01
        if x.sum() > 5:
            x = x - 1
    return x


def decisions_over_rows(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[1])
    for row in x.unbind():
        total = total + _work(row) if row.max() > 2 else total - _work(row)
    return total


def call_in_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = _work(_inner(x))
    return x


def loop_in_call(x: torch.Tensor) -> torch.Tensor:
    return _work(loop(_work(x)))


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Program]
    shape: tuple[int, ...]
    setting: str


def _is(program: Program) -> Callable[[], Program]:
    return lambda: program


CASES = (
    Case("a break in a function that is called", _is(inner_and_outer), (100_000,), "nested_graph_breaks"),
    Case("the same, 1,000 floats", _is(inner_and_outer), (1_000,), "nested_graph_breaks"),
    Case("a break four calls deep", _is(four_deep), (100_000,), "nested_graph_breaks"),
    Case("four modules, a break in each", lambda: Blocks(64).eval(), (128, 64), "nested_graph_breaks"),
    Case("a break in a loop of 10", _is(loop), (100_000,), "resume_in_loops"),
    Case("the same, 1,000 floats", _is(loop), (1_000,), "resume_in_loops"),
    Case("the work in the loop itself", _is(loop_itself), (100_000,), "resume_in_loops"),
    Case("the work in the loop itself, 1,000 floats", _is(loop_itself), (1_000,), "resume_in_loops"),
    Case("a loop while the data says so", _is(loop_on_data), (100_000,), "resume_in_loops"),
    Case("20 decisions on data in a loop", _is(decisions_in_loop), (100_000,), "resume_in_loops"),
    Case("the same, 1,000 floats", _is(decisions_in_loop), (1_000,), "resume_in_loops"),
    Case("decisions in a loop over 40 rows of 64", _is(decisions_over_rows), (40, 64), "resume_in_loops"),
    Case("a loop that calls what breaks", _is(call_in_loop), (100_000,), "resume_in_loops"),
    Case("a function that is called loops and breaks", _is(loop_in_call), (100_000,), "resume_in_loops"),
)


def _ours(program: Program, x: torch.Tensor, setting: str, on: bool) -> tuple[Callable[..., Any], int]:
    """Compiled and warmed up with the setting as given; and how many graphs there are."""
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return fxjit.lookup_backend("native")(graph, examples)  # type: ignore[no-any-return]  # a backend gives a callable

    compiled = fxjit.compile(program, backend=backend)
    expected = program(x)
    with fxjit.config.patch({setting: on}):
        for _ in range(4):
            torch.testing.assert_close(compiled(x), expected)
    return compiled, len(graphs)


def measure(case: Case, seconds: float, with_torch: bool) -> tuple[dict[str, float], dict[str, int]]:
    """Median seconds of a call, and graphs, each way."""
    torch.manual_seed(0)
    program, x = case.make(), torch.randn(case.shape)
    ways: dict[str, Callable[..., Any]] = {"eager": program}
    counts: dict[str, int] = {}
    with torch.no_grad():
        for name in ("off", "on"):
            ways[name], counts[name] = _ours(program, x, case.setting, on=name == "on")
        if with_torch:
            from torch._dynamo.utils import counters

            torch.compiler.reset()
            counters.clear()
            ways["torch"] = torch.compile(program)
            for _ in range(4):
                torch.testing.assert_close(ways["torch"](x), program(x))
            counts["torch"] = counters["stats"]["unique_graphs"]
        times = interleaved({name: partial(way, x) for name, way in ways.items()}, seconds)
    return times, counts


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    chosen = case_arguments(__doc__).parse_args(argv)
    torch.set_num_threads(1)
    header = ("program", "setting", "graphs off -> on", "graphs of torch.compile", "eager, ms", "fxjit off -> on, ms",
              "of eager's time, off -> on", "on, of torch.compile's time")
    print(markdown(header, []), flush=True)
    for case in CASES:
        if chosen.only not in case.name:
            continue
        times, graphs = measure(case, chosen.seconds, not chosen.without_torch_compile)
        theirs = times.get("torch")
        row = (
            case.name, case.setting, f"{graphs['off']} -> {graphs['on']}", str(graphs.get("torch", "")),
            f"{times['eager'] * 1e3:.3f}", f"{times['off'] * 1e3:.3f} -> {times['on'] * 1e3:.3f}",
            f"{times['off'] / times['eager']:.2f}x -> {times['on'] / times['eager']:.2f}x",
            "" if theirs is None else f"{times['on'] / theirs:.2f}x",
        )
        print("| " + " | ".join(row) + " |", flush=True)
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
