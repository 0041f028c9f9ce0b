"""`requires_grad` of tensors that the program has outside of the graph: an input that no operator has taken is set before the
graph runs, and what no operator takes afterwards when it has run. Parameters that are made in the function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter

BACKENDS = ("eager", "aot_eager", "native")
LINEAR = torch.nn.Linear(3, 3)
with torch.no_grad():
    for _parameter in LINEAR.parameters():
        _parameter.mul_(8).round_()  # sums are exact in any order


def set_first(x):
    return (x.requires_grad_() * 2).square()


def set_as_an_attribute(x):
    x.requires_grad = True
    return (x * 2).square(), x.requires_grad, x.is_leaf, x.grad_fn


def set_last(x):
    y = x * 2
    x.requires_grad_()
    return y, x.requires_grad, x.is_leaf, x.grad_fn


def set_and_nothing_else(x):
    x.requires_grad_()
    return torch.ones(3) + 1


def made_and_returned(x):
    weight = (torch.ones(3) + 1).requires_grad_()
    return weight, weight.requires_grad, x + 1


def frozen_for_a_while(x):
    for parameter in LINEAR.parameters():
        parameter.requires_grad = False
    y = LINEAR(x)
    for parameter in LINEAR.parameters():
        parameter.requires_grad = True
    return y


def as_it_was_before(x):
    before = x.requires_grad
    y = x.requires_grad_() * 2
    x.detach()
    return y, before


def turned_off_again(x):
    y = x * 2
    x.requires_grad_()
    x.requires_grad_(False)
    return y, x.requires_grad


def made_without_gradients(x):
    with torch.no_grad():
        x.requires_grad_()
        y = x * 2
    return y, x * 3


IN_ONE = [set_first, set_as_an_attribute, set_last, set_and_nothing_else, made_and_returned, frozen_for_a_while,
          as_it_was_before, turned_off_again, made_without_gradients]  # fmt: skip


def taken_afterwards(x):
    y = x * 2
    x.requires_grad_()
    return x * y


def taken_by_an_item(x):
    y = x * 2
    x.requires_grad_()
    return y + x[0]


def written_to_afterwards(x):
    x.requires_grad_()
    with torch.no_grad():
        x.add_(1)
    return x * 2


def differentiated(x):
    x.requires_grad_()
    y = (x * 2).square().sum()
    return torch.autograd.grad(y, x)[0], x.requires_grad


def decided_on(x):
    before = x.requires_grad
    y = x.requires_grad_() * 2
    if (y < 0).any():
        raise ValueError(str(before))
    return y, before


IN_SEVERAL = [taken_afterwards, taken_by_an_item, written_to_afterwards, differentiated, decided_on]


def state(result: Any) -> Any:
    """What can be told of results: numbers, classes, and what they require."""
    if isinstance(result, torch.Tensor):
        return type(result), result.tolist(), result.requires_grad, result.is_leaf, result.grad_fn is None
    return [state(each) for each in result] if isinstance(result, (tuple, list)) else result


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> Any:
    """What a call comes to, the state of its argument and the gradients that arrive at it."""
    try:
        result = fn(x)
    except Exception as error:
        return type(error), str(error), x.requires_grad
    found = state(result)
    for each in result if isinstance(result, tuple) else (result,):
        if isinstance(each, torch.Tensor) and each.grad_fn is not None:
            each.sum().backward()
    return found, state(x), None if x.grad is None else x.grad.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [*IN_ONE, *IN_SEVERAL], ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for shape in ((2, 3), (2, 3), (4, 3), (5, 3)):
        x = torch.randint(1, 9, shape).float()
        assert outcome(compiled, x.clone()) == outcome(fn, x.clone())
    assert outcome(compiled, -x) == outcome(fn, -x)
    assert all(parameter.requires_grad for parameter in LINEAR.parameters())


@pytest.mark.parametrize("fn", IN_ONE, ids=lambda fn: fn.__name__)
def test_in_one_graph(fn: Callable[..., Any]) -> None:
    fxjit.reset()
    counter = CompileCounter()
    fxjit.compile(fn, backend=counter, fullgraph=True)(torch.randn(2, 3))
    assert counter.frame_count == 1


def test_what_requires_one_already_is_compiled_for_that() -> None:
    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(set_first, backend=counter, fullgraph=True)
    x = torch.randn(2, 3)
    for _ in range(3):
        assert torch.equal(compiled(x), (x * 2).square())
    assert counter.frame_count == 2


def test_an_index_out_of_range_is_told_as_in_eager() -> None:
    """The user's code does not begin anew where it would find the input set."""

    def looks_up(x, index):
        before = x.requires_grad
        y = x.requires_grad_()[index]
        return y, before

    fxjit.reset()
    compiled = fxjit.compile(looks_up, backend="eager")
    for index in (torch.tensor([1]), torch.tensor([9])):
        one, other = torch.randn(3), torch.randn(3)
        wanted = outcome(lambda x, at=index: looks_up(x, at), one)
        got = outcome(lambda x, at=index: compiled(x, at), other)
        assert got[-1] == wanted[-1] and type(got[0]) is type(wanted[0])
        assert one.requires_grad and other.requires_grad


class Builds(torch.nn.Module):
    """Makes its parameters when it is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.is_built = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_built:
            self.scale = torch.nn.Parameter(torch.ones(x.shape[-1]) * 0.5 + 0.25)
            self.shift = torch.nn.Parameter(torch.Tensor(np.arange(float(x.shape[-1]))))
            self.fixed = torch.nn.Parameter(torch.full((3,), 2.0), requires_grad=False)
            self.is_built = True
        return x * self.scale + self.shift * self.fixed


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_of_a_module_that_builds_itself(backend: str) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    eager = Builds()
    built = copy.deepcopy(eager)
    compiled = fxjit.compile(built, backend=backend)
    for _ in range(3):
        x = torch.randn(2, 3)
        one, other = eager(x), compiled(x)
        assert torch.allclose(one, other)
        one.sum().backward()
        other.sum().backward()
        for (name, a), (_, b) in zip(eager.named_parameters(), built.named_parameters(), strict=True):
            assert state(a) == state(b), name
            assert (a.grad is None) == (b.grad is None) and (a.grad is None or torch.allclose(a.grad, b.grad)), name
    assert sum(fxjit.counters["graph_break"].values()) == 1  # where an operator takes the first of them


def of_a_result(x):
    weight = torch.nn.Parameter(x * 2)
    return weight, isinstance(weight, torch.nn.Parameter), weight.requires_grad, weight.is_leaf, weight.grad_fn


def of_an_argument(x):
    return torch.nn.Parameter(x), x + 1


def beside_its_data(x):
    y = x * 2
    return torch.nn.Parameter(y), y


def that_stays_inside(x):
    return (x * torch.nn.Parameter(x * 2, requires_grad=False)).detach()


def with_an_attribute(x):
    weight = torch.nn.Parameter(x * 2)
    weight.mine = 5
    return weight, weight.mine


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [of_a_result, of_an_argument, beside_its_data, that_stays_inside, with_an_attribute],
                         ids=lambda fn: fn.__name__)  # fmt: skip
def test_a_parameter(fn: Callable[..., Any], backend: str) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(2, 3)
        one, other = fn(x.clone()), compiled(x)
        assert state(one) == state(other)
        if fn is of_an_argument:
            assert other[0].data_ptr() == x.data_ptr()
        if fn is beside_its_data:
            assert other[0].data_ptr() == other[1].data_ptr()
        if fn is with_an_attribute:
            assert vars(other[0]) == vars(one[0])


def array(x, numbers):
    made = torch.Tensor(numbers)
    numbers[0] = 7
    return made + x


def of_another_kind(x, numbers):
    return torch.LongTensor(numbers), torch.DoubleTensor(numbers[::2]), x + 1


@pytest.mark.parametrize("fn", [array, of_another_kind])
@pytest.mark.parametrize("numbers", [np.arange(3.0), np.arange(3.0, dtype=np.float32), np.arange(3), np.arange(3.0)[::-1],
                                     np.arange(3) > 1, np.array(2.0)])  # fmt: skip
def test_tensors_of_arrays_by_their_classes(fn: Callable[..., Any], numbers: Any) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        one, other = numbers.copy(), numbers.copy()
        if numbers.strides and numbers.strides[0] < 0:
            one, other = one[::-1], other[::-1]
        assert outcome(lambda x, given=one: fn(x, given), torch.ones(3)) == outcome(
            lambda x, given=other: compiled(x, given), torch.ones(3))  # fmt: skip
        assert one.tolist() == other.tolist()
