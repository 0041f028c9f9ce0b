"""Equal blocks: of a captured graph that repeats a block AOTAutograd is given three, and the others are copied. The graphs that
are compiled are those of the whole trace, node by node, and results and gradients are eager's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxjit
from fxjit.backends.aot import compile as aot_compile
from fxjit.backends.aot import equal_blocks, torch_patches, trace
from fxjit.backends.aot.backend import BackendConfig
from fxjit.backends.graph import blocks

pytestmark = pytest.mark.compiles


@pytest.fixture(autouse=True)
def anew(compiled_anew: None) -> Iterator[None]:
    fxjit.reset()
    yield


WIDTH = 8


class Layer(nn.Module):
    """Attention and two linear layers, twice a dropout."""

    def __init__(self, inner: int = 16) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 5, 2, 12).transpose(1, 2).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2)
        if bias is not None:
            scores += bias
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 5, WIDTH)
        x = x + F.dropout(self.out(mixed), 0.1, self.training)
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.layers, self.bias = nn.ModuleList(layers), nn.Parameter(torch.linspace(-1, 1, 25).view(5, 5))
        self.call = call

    def forward(self, x: torch.Tensor) -> Any:
        if self.call is not None:
            return self.call(self, x)
        for layer in self.layers:
            x = layer(x)
        return x.sin()


def with_bias(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A shared parameter, whose gradients are added up, and writes to what a block made."""
    for layer in self.layers:
        x = layer(x, self.bias)
    return x


def from_the_start(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Every block reads the first value, too."""
    start, x = x * 2, x + 1
    for layer in self.layers:
        x = layer(x) + start.tanh() * x
    return x


def all_of_them(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What each block makes is a result."""
    seen = []
    for layer in self.layers:
        x = layer(x)
        seen.append(x)
    return tuple(seen)


def constants_differ(self: Any, x: torch.Tensor) -> torch.Tensor:
    for number, layer in enumerate(self.layers):
        x = layer(x) * (0.5 + number)
    return x


def middle_is_other(self: Any, x: torch.Tensor) -> torch.Tensor:
    for number, layer in enumerate(self.layers):
        x = layer(x.relu() if number == 3 else x)
    return x


def with_the_input(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A view of an input beside a result."""
    y = x
    for layer in self.layers:
        y = layer(y)
    return x.transpose(0, 1), y


def twice_each(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Each layer's parameters are read by one block, in two calls."""
    for layer in self.layers:
        x = layer(layer(x).tanh())
    return x


def tied(self: Any, x: torch.Tensor) -> torch.Tensor:
    """All blocks are of one layer."""
    for _ in range(6):
        x = self.layers[0](x)
    return x


def alternating(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Two kinds of layers: a block is one of each."""
    for number, layer in enumerate(self.layers):
        x = layer(x) if number % 2 else layer(x).sigmoid()
    return x


def two_runs(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Another kind of block, which reads what the first run made, as a decoder does."""
    for layer in self.layers[:5]:
        x = layer(x)
    y = x.flip(1)
    for layer in self.layers[5:]:
        y = layer(y) + x @ layer.out.weight
    return y


def without_recording(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        for layer in self.layers[:-1]:
            x = layer(x)
    return self.layers[-1](x)


def layers(count: int, frozen: Sequence[int] = (), inner: Callable[[int], int] = lambda _: 16) -> list[nn.Module]:
    made = [Layer(inner(number)) for number in range(count)]
    for number in frozen:
        made[number].requires_grad_(False)
    return made


class ConvolutionAndNorm(nn.Sequential):
    """Batch norm writes to its running statistics while it trains."""

    def __init__(self) -> None:
        super().__init__(nn.Conv1d(5, 5, 3, padding=1), nn.BatchNorm1d(5), nn.ReLU(), nn.Conv1d(5, 5, 1), nn.BatchNorm1d(5),
                         nn.SiLU(), nn.Conv1d(5, 5, 1), nn.Tanh(), nn.Conv1d(5, 5, 1))


#: name -> what is built, and how many blocks of each run are not traced (in training, if that differs).
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...] | None]] = {
    "four": (lambda: Stack(*layers(4)), (1,), None),
    "nine": (lambda: Stack(*layers(9)), (6,), None),
    "three": (lambda: Stack(*layers(3)), (), None),
    "a shared bias": (lambda: Stack(*layers(6), call=with_bias), (3,), None),
    "the first value": (lambda: Stack(*layers(6), call=from_the_start), (3,), None),
    "the first are frozen": (lambda: Stack(*layers(9, frozen=(0, 1))), (4,), None),
    "one is frozen": (lambda: Stack(*layers(6, frozen=(3,))), (), None),
    "all results": (lambda: Stack(*layers(6), call=all_of_them), (), None),
    "other constants": (lambda: Stack(*layers(6), call=constants_differ), (), None),
    "another in the middle": (lambda: Stack(*layers(6), call=middle_is_other), (), None),
    "another width in the middle": (lambda: Stack(*layers(9, inner=lambda number: 12 if number == 2 else 16)), (2, 1), None),
    "a view of the input": (lambda: Stack(*layers(6), call=with_the_input), (3,), None),
    "twice each": (lambda: Stack(*layers(5), call=twice_each), (2,), None),
    "tied": (lambda: Stack(*layers(1), call=tied), (3,), None),
    "alternating": (lambda: Stack(*layers(10), call=alternating), (2,), None),
    "two runs": (lambda: Stack(*layers(11), call=two_runs), (2, 3), None),
    "without recording": (lambda: Stack(*layers(7), call=without_recording), (4,), ()),
    "written statistics": (lambda: Stack(*(ConvolutionAndNorm() for _ in range(6))), (3,), ()),
}


def described(graph: torch.fx.GraphModule) -> list[tuple[Any, ...]]:
    """A graph without the names of its nodes."""
    places = {node: place for place, node in enumerate(graph.graph.nodes)}

    def plain(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return f"%{places[value]}"
        if isinstance(value, (tuple, list)):
            return [plain(each) for each in value]
        return repr(value)

    rows = []
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        layout = (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else None
        called = () if node.op == "placeholder" else (str(node.target), plain(node.args))
        rows.append((node.op, called, sorted((key, plain(each)) for key, each in node.kwargs.items()), layout))
    return rows


class Run:
    """One compile and one call of a model: its ATen graphs, results, gradients, and the blocks that were not traced."""

    def __init__(self, build: Callable[[], nn.Module], trains: bool, shortens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs: dict[str, list[tuple[Any, ...]]] = {}
        self.missing: tuple[int, ...] = ()
        shorten, compile_graph = blocks.shortened, trace._compile_graph

        def noted(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            found = shorten(gm, inputs) if shortens else (gm, list(inputs), [])
            self.missing += tuple(len(run.calls) - blocks.KEPT for run in found[2])
            return found

        def compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any], name: str, *rest: Any) -> Any:
            self.graphs[name] = described(graph)
            assert len(inputs) == len(graph.graph.find_nodes(op="placeholder"))
            return compile_graph(graph, inputs, name, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(trace, "shortened", noted)
            patch.setattr(trace, "_compile_graph", compiled)
            fxjit.reset()
            self.values = called(build, trains, fxjit.compile)


def called(build: Callable[[], nn.Module], trains: bool, wrap: Callable[[nn.Module], Callable[..., Any]]) -> list[Any]:
    """Results, gradients and buffers."""
    torch.manual_seed(3)
    model = build().train(trains).double()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=trains)
    with torch.set_grad_enabled(trains):
        results = wrap(model)(x)
    values = list(results) if isinstance(results, tuple) else [results]
    if trains:
        torch.stack([value.square().sum() for value in values]).sum().backward()
    return [*(value.detach() for value in values), x.grad, *(each.grad for each in model.parameters()), *model.buffers()]


def assert_close(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


#: Without gradients: those whose captured graph or plan is another then.
IN_INFERENCE = ("nine", "a shared bias", "one is frozen", "a view of the input", "two runs", "without recording",
                "written statistics")


@pytest.mark.sweep(6)
@pytest.mark.parametrize(("name", "trains"), [*((name, True) for name in CASES), *((name, False) for name in IN_INFERENCE)])
def test_the_graphs_are_those_of_the_whole_trace(name: str, trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    build, missing, in_training = CASES[name]
    whole, short = (Run(build, trains, shortens, monkeypatch) for shortens in (False, True))
    assert short.missing == (missing if in_training is None or not trains else in_training)
    assert short.graphs == whole.graphs
    for mine, other in zip(short.values, whole.values, strict=True):
        assert mine is other is None or torch.equal(mine, other)
    assert_close(short.values, called(build, trains, lambda model: model))


def test_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        def call(self: Any, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return with_bias(self, x).float()
        return Stack(*layers(6), call=call)

    whole, short = (Run(build, True, shortens, monkeypatch) for shortens in (False, True))
    assert short.graphs == whole.graphs


@pytest.mark.parametrize("stage", ["graph", "metadata", "plan"])
def test_blocks_that_become_different_are_traced_whole(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd may make other things of equal blocks, need a wrapper, or not be known: then all of the graph is traced."""
    build = CASES["nine"][0]
    refused: list[Any] = []
    if stage == "graph":
        looks_like = equal_blocks._looks_like

        def differ(value: Any, other: Any) -> bool:
            refused.append(value)
            return len(refused) < 9 and looks_like(value, other)

        monkeypatch.setattr(equal_blocks, "_looks_like", differ)
    elif stage == "metadata":
        monkeypatch.setattr(torch_patches, "noted_state", lambda: contextlib.nullcontext(refused.append(0) or []))
    else:
        planned = aot_compile._planned

        def without_plan(gm: Any, rewritten: Any, inputs: Any, backend: BackendConfig, shortens: bool) -> Any:
            result = planned(gm, rewritten, inputs, backend, shortens)
            refused.append(result)
            return aot_compile.replace(result, plan=None) if shortens else result

        monkeypatch.setattr(aot_compile, "_planned", without_plan)
    short = Run(build, True, True, monkeypatch)
    assert short.missing == (6,) and refused
    assert short.graphs == Run(build, True, False, monkeypatch).graphs
    assert_close(short.values, called(build, True, lambda model: model))


@pytest.mark.parametrize("how", ["unused", "no gradient"])
def test_without_a_call_plan_nothing_is_compiled_twice(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd's wrapper cuts off inputs that require a gradient and get none: its callable of the whole trace is needed."""
    compiled: list[str] = []
    compile_graph = trace._compile_graph

    def noted(graph: torch.fx.GraphModule, inputs: Sequence[Any], name: str, *rest: Any) -> Any:
        compiled.append(name)
        return compile_graph(graph, inputs, name, *rest)

    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        unused = self.bias * 2
        return x if how == "unused" else x + unused.detach().sum()

    monkeypatch.setattr(trace, "_compile_graph", noted)
    found = called(lambda: Stack(*layers(6), call=call), True, fxjit.compile)
    assert sorted(compiled) == ["backward", "forward"]
    assert_close(found, called(lambda: Stack(*layers(6), call=call), True, lambda model: model))


def test_another_run_of_the_same_layers_reads_its_own_parameters() -> None:
    """Which input belongs to which block is not mixed up: each layer is scaled by a number of its own."""
    torch.manual_seed(0)
    model = Stack(*layers(12)).eval().double()
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            for each in layer.parameters():
                each.mul_(1 + number / 10)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(fxjit.compile(model)(x), model(x), rtol=1e-7, atol=1e-9)
    model(x).sum().backward()
    theirs = [each.grad for each in model.parameters()]
    model.zero_grad()
    fxjit.compile(model)(x).sum().backward()
    assert_close([each.grad for each in model.parameters()], theirs)


def test_a_second_derivative_goes_through_all_of_them() -> None:
    torch.manual_seed(0)
    model, x = Stack(*layers(6)).eval().double(), torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (model, fxjit.compile(model)):
        (first,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *model.layers.parameters()]))
    assert_close(list(found[1]), list(found[0]))
