"""Graphs called without AOTAutograd's wrappers do what they did with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit.backends.aot import artifacts
from fxjit.backends.aot import compile as compile_module
from fxjit.backends.aot.runtime.call_plan import CallPlan

BACKENDS = ("aot_eager", "native")


pytestmark = pytest.mark.compiles


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each graph could be called directly."""
    seen: list[bool] = []
    real = artifacts.plan_call

    def noted(*args: Any) -> CallPlan | None:
        found = real(*args)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(compile_module, "plan_call", noted)
    return seen


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_plain_inference_and_training_graphs_are_called_directly(backend: str, taken: list[bool]) -> None:
    x, y = torch.randn(4), torch.randn(4)
    compiled = fxjit.compile(product, backend=backend)
    torch.testing.assert_close(compiled(x, y), product(x, y))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(a, y).backward()
    product(b, y).backward()
    torch.testing.assert_close(a.grad, b.grad)
    assert taken == [True, True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_writes_to_its_input_is_called_directly(backend: str, taken: list[bool]) -> None:
    def mutates(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x, y = torch.zeros(3), torch.zeros(3)
    torch.testing.assert_close(fxjit.compile(mutates, backend=backend)(x), mutates(y))
    torch.testing.assert_close(x, y)
    assert taken == [True]


VIEWS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "one view": lambda x: (x.view(-1), x + 1),
    "a view of a view": lambda x: (x.t()[1:].unsqueeze(0), x.sum()),
    "views by other operators": lambda x: (x.diagonal()[:2], x.unfold(1, 2, 1)[1:], x.sum()),
    "the input": lambda x: (x * 2, x),
    "the input and its view": lambda x: (x, x[0], x.cos()),
    "detached": lambda x: (x.detach(), x.sin()),
    "expanded": lambda x: (x[:, :1].expand(3, 5), x.exp()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", VIEWS)
def test_views_of_inputs_are_called_directly(what: str, backend: str, taken: list[bool]) -> None:
    """They share the input's memory and count its writes."""
    fn = VIEWS[what]
    x, y = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)
    found, expected = fxjit.compile(fn, backend=backend)(x), fn(y)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert (mine.stride(), mine.storage_offset()) == (theirs.stride(), theirs.storage_offset())
        assert (mine is x) == (theirs is y) and (mine._base is x) == (theirs._base is y)
        assert mine.untyped_storage().data_ptr() != x.data_ptr() or theirs.untyped_storage().data_ptr() == y.data_ptr()
    before = x._version, y._version
    found[0][..., 0].mul_(3)
    expected[0][..., 0].mul_(3)
    torch.testing.assert_close(x, y)
    assert x._version - before[0] == y._version - before[1]
    assert taken == [True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_input_that_a_graph_writes_to_and_gives_back(backend: str, taken: list[bool]) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        return x, x + 1

    x, y = torch.arange(3.0), torch.arange(3.0)
    (mine, more), (_, expected) = fxjit.compile(fn, backend=backend)(x), fn(y)
    assert mine is x and x._version == y._version
    torch.testing.assert_close((x, more), (y, expected))
    assert taken == [True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_with_views_of_inputs_among_the_results(backend: str, taken: list[bool]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * w, x.t(), w, w[1:].view(-1)

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        leaves = [torch.arange(6.0).view(2, 3).requires_grad_(), torch.ones(2, 3).mul(0.5).requires_grad_()]
        x, w = leaves[0] * 1, leaves[1]
        product, turned, same, part = fn(x, w)
        assert same is w and turned._base is x
        (product.sum() + turned.square().sum() + (same * 2).sum() + part.sin().sum()).backward()
        return [product, turned, part, *(leaf.grad for leaf in leaves)]

    torch.testing.assert_close(run(fxjit.compile(fn, backend=backend)), run(fn))
    assert taken == [True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_autocast(backend: str, taken: list[bool]) -> None:
    """The conversions are in the graph: the operators that it calls do not convert again."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).requires_grad_(True)

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        layers.zero_grad()
        x = torch.linspace(-1, 1, 24).view(3, 8)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                quiet = fn(x)
            out = fn(x)
            first = torch.mm(x, x.t())  # autocast is as it was
        out.float().square().sum().backward()
        return [quiet, out, first, *(p.grad.clone() for p in layers.parameters())]

    found, expected = run(fxjit.compile(lambda x: layers(x).relu() + x.new_ones(2), backend=backend)), run(
        lambda x: layers(x).relu() + x.new_ones(2))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    assert taken == [True, True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_twice_over_a_kept_graph(backend: str) -> None:
    x = torch.randn(4, requires_grad=True)
    loss = fxjit.compile(product, backend=backend)(x, x)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_derivative_of_one_tensor_given_twice(backend: str) -> None:
    x = torch.randn(4, requires_grad=True)
    (grad,) = torch.autograd.grad(fxjit.compile(product, backend=backend)(x, x), x, create_graph=True)
    torch.testing.assert_close(grad.detach(), 2 * x.detach())
    grad.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_saved_tensor_changed_in_place_is_noticed(backend: str) -> None:
    x = torch.randn(4, requires_grad=True)
    y = torch.randn(4)
    loss = fxjit.compile(product, backend=backend)(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_without_gradient_and_gradients_of_other_strides(backend: str) -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 3, x.detach() * 2

    x = torch.randn(3, 4, requires_grad=True)
    first, second = fxjit.compile(two, backend=backend)(x)
    assert first.requires_grad and not second.requires_grad
    first.backward(torch.ones(4, 3).t())
    torch.testing.assert_close(x.grad, torch.full((3, 4), 3.0))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_an_output_made_as_a_view_may_be_written_in_place(backend):
    """Training graphs are one autograd node; its outputs are no views to autograd, whatever buffer they lie in."""
    def split_heads(x, weight):
        return (x @ weight).view(2, 3, 2, 2).transpose(1, 2)

    def step(fn, x, weight):
        heads = fn(x, weight)
        heads[:, :1] = 0.0
        heads.mul_(2.0)
        heads.square().sum().backward()
        return heads.detach().clone(), x.grad, weight.grad

    torch.manual_seed(0)
    leaves = [torch.randn(2, 3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    twins = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    compiled = fxjit.compile(split_heads, backend=backend)
    for ours, theirs in zip(step(compiled, *twins), step(split_heads, *leaves), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_that_writes_to_buffers_is_called_directly(backend: str, taken: list[bool]) -> None:
    """Running statistics are written, their versions counted; what only an unused result depends on has no gradient."""
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    layers = [copy.deepcopy(layer) for _ in range(2)]
    extra = [torch.ones(3, requires_grad=True) for _ in range(2)]

    def step(layer, x, extra):
        y = layer(x)
        return y.square(), extra.exp() * x.sum()

    compiled = fxjit.compile(step, backend=backend)
    for _ in range(3):
        x = torch.randn(5, 4)
        for way, layer, other in zip((step, compiled), layers, extra, strict=True):
            way(layer, x, other)[0].sum().backward()
    assert taken and all(taken)
    assert extra[0].grad is None and extra[1].grad is None
    for eager, ours in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, eager.grad, atol=1e-4, rtol=1e-4)
    for eager, ours in zip(layers[0].buffers(), layers[1].buffers(), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours._version == eager._version


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_buffer_that_is_read_before_it_is_written(backend: str) -> None:
    """The derivative wants what the buffer held: without one the program runs, and with one it is refused, as in eager."""

    def step(x, state):
        y = x * state
        state.mul_(2)
        return y

    results = []
    for way in (step, fxjit.compile(step, backend=backend)):
        x, state = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        y = way(x, state)
        results.append((y.detach(), state))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_written_without_grad(backend: str, taken: list[bool]) -> None:
    """An optimizer's step in a graph: leaves that require grad are written, and what saved them before notices."""

    @torch.no_grad()
    def step(parameter, grad):
        parameter.sub_(grad * 0.1)

    compiled = fxjit.compile(step, backend=backend)
    parameter = torch.ones(4, requires_grad=True)
    saved = (parameter * parameter).sum()
    compiled(parameter, torch.ones(4))
    torch.testing.assert_close(parameter.detach(), torch.full((4,), 0.9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()
    assert taken == [True]


def two_views(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x * w
    return rows.t(), rows.view(-1), x * v


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_share_memory_are_views_of_one_tensor(backend: str, taken: list[bool]) -> None:
    def run(fn: Callable[..., Any]) -> list[Any]:
        x, w, v = (torch.arange(6.0).reshape(2, 3).add(n).requires_grad_() for n in range(3))
        turned, flat, other = fn(x, w, v)
        layout = (turned.stride(), turned._is_view(), flat.is_set_to(turned.t().view(-1)), other.requires_grad)
        flat.mul_(3)
        (turned.sum() * other.sum()).backward()
        return [layout, turned.detach(), flat.detach(), x.grad, w.grad, v.grad]

    torch.testing.assert_close(run(fxjit.compile(two_views, backend=backend)), run(two_views))
    assert taken and all(taken)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", ([0], [1], [2], [0, 1], [1, 2]))
def test_what_only_unused_results_depend_on_has_no_gradient_beside_views(backend: str, used: list[int]) -> None:
    def grads(fn: Callable[..., Any]) -> list[torch.Tensor | None]:
        args = [torch.arange(6.0).reshape(2, 3).add(n).requires_grad_() for n in range(3)]
        outs = fn(*args)
        sum(outs[index].sum() for index in used).backward()  # type: ignore[union-attr]
        return [arg.grad for arg in args]

    compiled, eager = grads(fxjit.compile(two_views, backend=backend)), grads(two_views)
    assert [grad is None for grad in compiled] == [grad is None for grad in eager]
    torch.testing.assert_close(compiled, eager)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_beside_the_result_it_is_of_and_one_without_a_gradient(backend: str, taken: list[bool]) -> None:
    def with_base(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.sin()
        return rows, rows[0], rows.detach()[1]

    def run(fn: Callable[..., Any]) -> list[Any]:
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        rows, first, second = fn(x)
        rows.sum().backward(retain_graph=True)
        first.sum().backward()
        memory = [first.data_ptr() - rows.data_ptr(), second.data_ptr() - rows.data_ptr()]
        second.add_(1)
        return [memory, rows.detach(), first.detach(), second, second.requires_grad, x.grad]

    torch.testing.assert_close(run(fxjit.compile(with_base, backend=backend)), run(with_base))
    assert taken == [True]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_derivative_through_views(backend: str) -> None:
    def second(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        turned, flat, _ = fn(x, x, x)
        (grad,) = torch.autograd.grad((turned.square().sum() * flat.sum()), x, create_graph=True)
        return [grad.detach(), *torch.autograd.grad(grad.square().sum(), x)]

    torch.testing.assert_close(second(fxjit.compile(two_views, backend=backend)), second(two_views))
