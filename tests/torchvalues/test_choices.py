"""Builtin `min` and `max` of tensors with one element: in the graph, and the very object that eager finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

NAN = float("nan")


def arithmetic(a: torch.Tensor, b: torch.Tensor) -> Any:
    return 0.01 / max(a, b), min(a, b, a * b) ** 2, max([a + 1, b, a]) - min((b,)), torch.stack([max(a, b), min(b, a)])


def the_object(a: torch.Tensor, b: torch.Tensor) -> Any:
    found, both = max(a, b), a + b
    return found, [min(found, both)], both


def written_meanwhile(a: torch.Tensor, b: torch.Tensor) -> Any:
    a, b = a.clone(), b.clone()
    found = max(a, b)
    least = min(found, b)
    before = found * 2 + least
    a.add_(10)
    b.mul_(-1)
    return before, found * 2, least + 1, found, a, b


def elements(a: torch.Tensor, b: torch.Tensor) -> Any:
    parts = torch.stack([a, b, a - b])
    found = max(parts)
    parts[0] = 100.0
    return found * 2, max(parts.unbind()), found


def beside_numbers(a: torch.Tensor, b: torch.Tensor) -> Any:
    x = torch.arange(3.0)
    step = 0.1 / max(a, 1.5)
    return x * step, x / min(1.5, b), step, max(a, 1.5) < 2, -max(0, b) * x, x.double() + min(a, 1.5), max(b, 1)


@pytest.mark.parametrize("fn", [arithmetic, the_object, written_meanwhile, elements, beside_numbers])
@pytest.mark.parametrize("numbers", [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (NAN, 1.0), (1.0, NAN)])
def test_one_of_several_stays_in_the_graph(fn: Callable[..., Any], numbers: tuple[float, float]) -> None:
    backends = ("eager", "native") if numbers == (NAN, 1.0) else "eager"
    assert_same_as_eager(fn, make=lambda: tuple(map(torch.tensor, numbers)), backend=backends)


def test_the_object_itself_is_given() -> None:
    import fxjit

    compiled = fxjit.compile(the_object, backend="eager", fullgraph=True)
    a, b = torch.tensor(1.0), torch.tensor(2.0)
    found, (least,), both = compiled(a, b)
    assert found is b and least is b
    found, (least,), both = compiled(b, -a)
    assert found is b and least is both


def by_identity(a: torch.Tensor, b: torch.Tensor) -> Any:
    return max(a, b) is a


def as_a_key(a: torch.Tensor, b: torch.Tensor) -> Any:
    return {max(a, b): 1}[b]


def written(a: torch.Tensor, b: torch.Tensor) -> Any:
    a, b = a.clone(), b.clone()
    max(a, b).add_(5)
    return a, b


def written_through_a_view(a: torch.Tensor, b: torch.Tensor) -> Any:
    a, b = a.clone(), b.clone()
    view = max(a, b).view(1)
    view += 5
    return a, b, view


def marked(a: torch.Tensor, b: torch.Tensor) -> Any:
    max(a, b).seen = 1  # type: ignore[attr-defined]  # any name will do
    return hasattr(a, "seen"), hasattr(b, "seen"), a + b


def differentiated(a: torch.Tensor, b: torch.Tensor) -> Any:
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    (max(a, b) * 2).backward()
    return a.grad, b.grad


def its_type(a: torch.Tensor, b: torch.Tensor) -> Any:
    return type(max(a, 1.5)), isinstance(max(b, 1.5), torch.Tensor), f"{min(a, 0.5)}", torch.ones(3).clamp(max=max(a, 0.5))


def in_place_of_either(a: torch.Tensor, b: torch.Tensor) -> Any:
    a, found = a.clone(), b.clone()
    found = max(found, 1.5)
    found += 1
    a += max(b, 3.0)
    return a, b, found


def fails_for_a_number(a: torch.Tensor, b: torch.Tensor) -> Any:
    return 1 / max(a, 0.0), 1.0 / max(b - 5, 0)


class Best:
    found = 0.5


def kept_by_an_object(a: torch.Tensor, b: torch.Tensor) -> Any:
    best = Best()
    best.found = max(a, 1.5)
    doubled = best.found * 2
    best.found = max(b, best.found)
    return vars(best), doubled


@pytest.mark.parametrize("fn", [
    kept_by_an_object, by_identity, as_a_key, written, written_through_a_view, marked, differentiated, its_type,
    in_place_of_either, fails_for_a_number,
])
def test_what_tells_one_from_another_breaks(fn: Callable[..., Any]) -> None:
    assert_same_as_eager(fn, make=lambda: (torch.tensor(1.0), torch.tensor(2.0)), fullgraph=False)


def test_what_is_not_one_number_is_as_in_eager() -> None:
    assert_same_as_eager(lambda a, b: max(a, b), make=lambda: (torch.tensor(1.0), torch.tensor([2.0])), fullgraph=False)
    assert_same_as_eager(lambda a, b: max(a, b), make=lambda: (torch.tensor(1), torch.tensor(2.0)), fullgraph=False)
    assert_same_as_eager(lambda a, b: max(a, b), make=lambda: (torch.ones(2), torch.zeros(2)), fullgraph=False)


def chosen(x: torch.Tensor) -> torch.Tensor:
    return min(x.sum(), x.mean()) * 2 + max(x[0], x[1], x[2]).exp()


def test_gradients_through_what_was_chosen() -> None:
    """Where no break is allowed the graph chooses; else it breaks."""
    import fxjit

    gradients = []
    for run in (chosen, fxjit.compile(chosen, backend="eager", fullgraph=True), fxjit.compile(chosen, backend="eager"),
                fxjit.compile(chosen, fullgraph=True)):
        x = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
        result = run(x)
        result.backward()
        gradients.append((result.detach(), x.grad))
    for each in gradients[1:]:
        torch.testing.assert_close(each, gradients[0], rtol=1e-6, atol=1e-6)


METHODS: list[Callable[..., Any]] = [
    lambda x, found: x.mul(found), lambda x, found: x.clone().mul_(found), lambda x, found: x.clone().add_(found),
    lambda x, found: x.clone().div_(found), lambda x, found: x.sub(found), lambda x, found: x.clone().pow_(found),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fn", METHODS)
@pytest.mark.parametrize("numbers", [(0.5, 2.0), (2.0, 0.5), (1.0, 1.0)])
def test_a_method_by_element_is_given_a_number_or_a_tensor(
    fn: Callable[..., Any], dtype: torch.dtype, numbers: tuple[float, float]
) -> None:
    """transformers' Adafactor: `update.mul_(max(eps, rms) * rate)`."""
    number, other = numbers
    x = torch.tensor([1.0, 3.0], dtype=dtype)

    def program(x: torch.Tensor, a: torch.Tensor) -> Any:
        written = x * 1
        return fn(written, max(number, a) * 0.1), written

    assert_same_as_eager(program, x, torch.tensor(other))


@pytest.mark.parametrize("other", [0.25, 2.0])
def test_a_method_whose_result_could_not_be_written_back_breaks(other: float) -> None:
    """Eager refuses to write float32 to int64."""
    def program(x: torch.Tensor, a: torch.Tensor) -> Any:
        y = x.clone() + 1
        return y.mul_(max(0.5, a))

    with pytest.raises(RuntimeError) as expected:
        program(torch.tensor([1, 2]), torch.tensor(other))
    with pytest.raises(RuntimeError) as found:
        fxjit.compile(program, backend="eager")(torch.tensor([1, 2]), torch.tensor(other))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("wanted", [torch.Tensor, int, (int, torch.Tensor)], ids=str)
def test_isinstance_of_torchscript(wanted: Any) -> None:
    """monai's UNets ask it of each skip connection."""
    assert_same_as_eager(lambda x: x * 2 if torch.jit.isinstance(x + 1, wanted) else x * 3, torch.ones(2))


@pytest.mark.parametrize("other", [0.25, 2.0])
@pytest.mark.parametrize("rate", [float, int, lambda step: 1.0 / math.sqrt(step)], ids=["float", "int", "root"])
def test_a_number_that_varies_scales_a_number_or_a_tensor(rate: Callable[[int], float], other: float) -> None:
    """transformers' Adafactor: its relative step depends on how many there were."""
    def program(x: torch.Tensor, a: torch.Tensor, step: int) -> Any:
        scale = max(0.5, a) * rate(step) - step
        return x.clone().mul_(scale), x + abs(-scale), scale, min(a, float(step)), max(step, a)

    compiled = fxjit.compile(program, backend="eager", fullgraph=True, dynamic=True)
    for step in (2, 3, 5, 7):
        x, a = torch.tensor([1.0, 3.0]), torch.tensor(other)
        expected, found = program(x, a, step), compiled(x, a, step)
        assert list(map(type, found)) == list(map(type, expected))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_quotient_by_a_number_or_a_tensor_that_may_be_zero() -> None:
    """Eager raises only where the number is the greater."""
    def program(a: torch.Tensor, step: int) -> Any:
        return 1 / max(a, step - 3.0)

    compiled = fxjit.compile(program, backend="eager", dynamic=True)
    for step in (2, 4, 5, 3):
        assert torch.equal(compiled(torch.tensor(4.0), step), program(torch.tensor(4.0), step))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            compiled(torch.tensor(-1.0), 3)
