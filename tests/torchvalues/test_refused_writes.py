"""Writes that eager refuses raise what they raise in eager, and what the program did before them stays done."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit

BACKENDS = ("eager", "aot_eager")


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> Any:
    log: list[int] = []
    try:
        result = fn(x, log)
    except RuntimeError as error:
        return log, str(error), x.detach().tolist()
    return log, result.tolist(), x.detach().tolist()


def adds(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(len(log))
    x.add_(1)
    return x * 2


def writes_a_part(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(len(log))
    x[0].mul_(2)
    return x * 2


def in_a_block(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(len(log))
    x = x * 2
    with torch.enable_grad():
        y = x.expand(2, *x.shape)
        y.copy_(x)
    return y


ONES: list[Callable[[], torch.Tensor]] = [
    lambda: torch.ones(2, 3), lambda: torch.ones(1, 3).expand(2, 3), lambda: torch.ones(2, 1).expand(2, 3)[:, 1:],
    lambda: torch.ones(2, 3, requires_grad=True) * 1, lambda: torch.ones(2, 3, requires_grad=True),
    lambda: torch.ones(2, 3, requires_grad=True)[:1], lambda: (torch.ones(2, 3, requires_grad=True) * 1)[:1],
    lambda: (torch.ones(2, 3, requires_grad=True) * 1).unbind()[0].view(1, 3),
    lambda: torch.ones(2, 3, requires_grad=True).detach(),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [adds, writes_a_part, in_a_block])
def test_one_compiled_function_given_what_may_and_may_not_be_written_to(backend: str, fn: Callable[..., Any]) -> None:
    for first in (3, 6, 0):  # what it is compiled for
        fxjit.reset()
        compiled = fxjit.compile(fn, backend=backend)
        for make in (ONES[first], *ONES, *ONES):
            assert outcome(compiled, make()) == outcome(fn, make())
        with torch.no_grad():
            for make in ONES:
                assert outcome(compiled, make()) == outcome(fn, make())


def test_what_an_operator_raises_in_a_graph_of_aten_is_what_it_raises_alone() -> None:
    """Word for word, though the graph has written to a buffer before."""
    norm = torch.nn.BatchNorm1d(4)
    x = torch.ones(3, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError) as expected:
        norm(x)
    with pytest.raises(RuntimeError) as caught:
        fxjit.compile(norm, backend="aot_eager")(x)
    assert str(caught.value) == str(expected.value)


ROWS = torch.tensor([0, 2, 1])
OVERLAPPING: dict[str, Callable[[torch.Tensor], object]] = {
    "by element, another view": lambda x: x.t().add_(x),
    "by element, the same": lambda x: x.mul_(x[:]),
    "rows by their place": lambda x: x.index_add_(0, ROWS, x),
    "shifted": lambda x: x[1:].copy_(x[:-1]),
    "shifted by a subscript": lambda x: operator.setitem(x, slice(0, 2), x[1:]),
    "one row to another": lambda x: operator.setitem(x, 0, x[1]),
    "one column and another": lambda x: x[:, 0].add_(x[:, 1]),
    "a column to the transposed's": lambda x: operator.setitem(x, (slice(None), 1), x.t()[:, 0]),
    "an operator of Python": lambda x: operator.iadd(x, x.t()),
    "out": lambda x: torch.add(x, x.t(), out=x),
    "rows of a mask": lambda x: operator.setitem(x, x > 1, x[0, 0]),
    "by a table": lambda x: operator.setitem(x, ROWS, x),
    "scattered": lambda x: x.scatter_(0, ROWS[None].expand(3, 3).clone(), x),
    "a product": lambda x: x.addmm_(x, x),
    "the transposed": lambda x: x.copy_(x.t()),
}
GIVEN: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.arange(9.0).reshape(3, 3), "result": lambda: torch.arange(9.0, requires_grad=True).reshape(3, 3) * 1,
    "a view": lambda: (torch.arange(9.0, requires_grad=True).reshape(3, 3) * 1).t(),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_write_to_what_another_operand_is(name: str, backend: str, dynamic: bool | None) -> None:
    def program(x: torch.Tensor, other: torch.Tensor, log: list[str]) -> torch.Tensor:
        other.add_(1)
        try:
            OVERLAPPING[name](x)
        except RuntimeError as error:
            log.append(str(error))
        return other * 2

    for given in GIVEN.values():
        fxjit.reset()
        ends = []
        for call in (program, fxjit.compile(program, backend=backend, dynamic=dynamic)):
            x, other, log = given(), torch.ones(2), list[str]()
            ends.append((call(x, other, log).tolist(), x.tolist(), other.tolist(), log))
        assert ends[0] == ends[1]


@pytest.mark.parametrize("name", [
    "by element, the same", "one row to another", "one column and another", "a column to the transposed's"])
def test_what_eager_lets_be_written_is_in_the_graph(name: str) -> None:
    x = torch.arange(9.0).reshape(3, 3)
    fxjit.compile(lambda x: OVERLAPPING[name](x), backend="eager", fullgraph=True)(x)
    expected = torch.arange(9.0).reshape(3, 3)
    OVERLAPPING[name](expected)
    assert x.tolist() == expected.tolist()


IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "addmm": lambda x: torch.addmm(x, x[:] * 2, x.t() * 3, beta=0.5, out=x),
    "cumsum": lambda x: torch.cumsum(x, 0, out=x),
    "index_add": lambda x: torch.index_add(x, 0, ROWS, x * 2, out=x),
    "addmv": lambda x: torch.addmv(x[0], x * 2, x[1] + 1, out=x[0]),
    "tril": lambda x: torch.tril(x, out=x),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.25, out=x),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_out_that_is_the_first_operand_is_the_operator_in_place(name: str, backend: str) -> None:
    """`torch.addmm(a, x, y, out=a)`: `a.addmm_(x, y)`. What else an operand is of what is written, is refused as before."""
    found = []
    for call in (IN_PLACE[name], fxjit.compile(IN_PLACE[name], backend=backend, fullgraph=name != "addmv")):
        x = torch.arange(9.0).reshape(3, 3)
        result = call(x)
        assert isinstance(result, torch.Tensor) and result._version == x._version
        found.append((result.tolist(), x.tolist(), result.data_ptr() == x.data_ptr()))
    assert found[0] == found[1]
