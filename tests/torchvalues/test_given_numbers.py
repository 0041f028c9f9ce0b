"""Numbers in integer tensors that the frame was given: numbers that vary in subscripts and branches, and never stale."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fxjit

TABLE = torch.arange(60.0).reshape(5, 4, 3)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    fxjit.reset()


def _told(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except (IndexError, RuntimeError, TypeError) as error:
        return type(error), str(error)


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return (isinstance(found, Tensor) and found.dtype is expected.dtype and found.stride() == expected.stride()
                and found.storage_offset() == expected.storage_offset() and torch.equal(found, expected))
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


SUBSCRIPTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "row": lambda a, i: a[i],
    "computed": lambda a, i: a[i] * 2,
    "with a number": lambda a, i: a[1, i],
    "with a slice": lambda a, i: a[:, i],
    "behind an ellipsis": lambda a, i: a[..., i],
    "with another": lambda a, i: a[i, i],
    "of a new dimension": lambda a, i: a[None, i],
    "one further": lambda a, i: a[i + 1],
    "one before": lambda a, i: a[i - 1] + a[i],
    "from the end": lambda a, i: a[4 - i],
    "a view that is written": lambda a, i: a.clone()[i].add_(1),
}


@pytest.mark.parametrize("name", SUBSCRIPTS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_subscripts(name: str, dtype: torch.dtype) -> None:
    f = SUBSCRIPTS[name]
    compiled = fxjit.compile(f, backend="eager")
    for number in (2, 1, 0, -1, -3, -5, 4, 7, -9):
        index = torch.tensor(number, dtype=dtype)
        assert _same(_told(compiled, TABLE, index), _told(f, TABLE, index)), number


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_subscripts_with_gradients(backend: str) -> None:
    def f(a: Tensor, i: Tensor) -> Tensor:
        return (a[i] * a[:, i].sum()).sum()

    compiled = fxjit.compile(f, backend=backend, fullgraph=True)
    for number in (2, 0, 1):
        grads = []
        for fn in (f, compiled):
            a = TABLE.clone().requires_grad_()
            fn(a, torch.tensor(number)).backward()
            grads.append(a.grad)
        torch.testing.assert_close(grads[0], grads[1])


def test_other_numbers_need_no_other_graph() -> None:
    compiled = fxjit.compile(lambda a, i: a[i] + i, backend="eager", fullgraph=True)
    for number in (3, 1, 0, 2, 4):
        index = torch.tensor(number)
        assert torch.equal(compiled(TABLE, index), TABLE[number] + number)
    assert fxjit.counters["stats"]["unique_graphs"] == 1


def test_sizes_that_vary_bound_the_subscript() -> None:
    compiled = fxjit.compile(lambda a, i: a[i] * 2, backend="eager", dynamic=True)
    for rows in (3, 5, 4):
        for number in (0, 2, -1, 4, 5):
            given = (torch.arange(rows * 2.0).reshape(rows, 2), torch.tensor(number))
            assert _same(_told(compiled, *given), _told(lambda a, i: a[i] * 2, *given))


def test_without_symbols_the_graph_breaks() -> None:
    compiled = fxjit.compile(lambda a, i: a[i] * 2, backend="eager", dynamic=False)
    for number in range(5):
        assert torch.equal(compiled(TABLE, torch.tensor(number)), TABLE[number] * 2)
    assert fxjit.counters["graph_break"]
    assert fxjit.counters["stats"]["unique_graphs"] == 1


def _masks(a: Tensor, i: Tensor) -> Tensor:
    return a[i]


@pytest.mark.parametrize("index", [torch.tensor(True), torch.tensor(1).byte(), torch.tensor([2]), torch.tensor(2.0)])
def test_what_is_no_number(index: Tensor) -> None:
    assert _same(_told(fxjit.compile(_masks, backend="eager"), TABLE, index), _told(_masks, TABLE, index))


# -- branches ------------------------------------------------------------------------------------------------------------------

COMPARISONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge}


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("reflected", [False, True])
def test_branches(compare: str, reflected: bool) -> None:
    test = COMPARISONS[compare]

    def f(x: Tensor, step: Tensor) -> Tensor:
        before = step - 3
        return x.sin() if (test(0, before) if reflected else test(before, 0)) else x.cos()

    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    for number in (5, 3, 2, -4, 3, 4, 0, 2**61 - 1):
        step = torch.tensor(number)
        assert torch.equal(compiled(TABLE, step), f(TABLE, step)), number
    assert fxjit.counters["stats"]["unique_graphs"] <= 4


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "methods": lambda n: n.add(2).sub(1).gt(3),
    "functions": lambda n: torch.ge(torch.sub(n, 2), 3),
    "reflected": lambda n: 7 - n < 3,
    "itself": lambda n: n > 3,
    "scaled": lambda n: n * 3 > 10,
    "alpha": lambda n: torch.add(n, 2, alpha=3) > 10,
    "a float": lambda n: n - 2.5 > 0,
    "in place": lambda n: n.clone().add_(2) > 5,
    "narrow": lambda n: n.to(torch.int8) - 100 > 0,
    "remainder": lambda n: n % 3 == 0,
    "both": lambda n: (n > 2) & (n < 6),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        return x.sin() if FORMS[name](n) else x.cos()

    compiled = fxjit.compile(f, backend="eager")
    for number in (0, 3, 4, 5, 9, -120):
        n = torch.tensor(number)
        assert torch.equal(compiled(TABLE, n), f(TABLE, n)), number


def test_sums_that_start_over() -> None:
    """Of an int64 near its ends eager's sums wrap around."""
    def f(x: Tensor, n: Tensor) -> Tensor:
        return x.sin() if n - 10 > 0 else x.cos()

    compiled = fxjit.compile(f, backend="eager")
    for number in (-(2**63), 2**63 - 1, -(2**62), 2**62, 5, 20, -(2**63) + 5, 2**61, -(2**61)):
        n = torch.tensor(number)
        assert torch.equal(compiled(TABLE, n), f(TABLE, n)), number


# -- what was written to is read when the graph has run ------------------------------------------------------------------------


def _written(a: Tensor, b: Tensor) -> Any:
    b[0] += 1
    return a[b[0]]


def _written_through_another(a: Tensor, b: Tensor) -> Any:
    index = b[0]
    b.add_(1)
    return a[index]


def _written_view(a: Tensor, b: Tensor) -> Any:
    index = b[0].clone()
    index.view(1).add_(1)
    return a[index]


def _computed_and_written(a: Tensor, b: Tensor) -> Any:
    index = b[0] - 1
    index += 2
    return a[index] if index > 1 else a


def _data(a: Tensor, b: Tensor) -> Any:
    index = b[0].clone()
    index.data = torch.tensor(3)
    return a[index]


def _copied(a: Tensor, b: Tensor) -> Any:
    b.copy_(torch.tensor([1, 2, 3]))
    return a[b[0]], a[b[1]]


@pytest.mark.parametrize("f", [_written, _written_through_another, _written_view, _computed_and_written, _data, _copied])
def test_written_before(f: Callable[[Tensor, Tensor], Any]) -> None:
    compiled = fxjit.compile(f, backend="eager")
    for number in (0, 1, 2):
        one, other = torch.tensor([number, 2, 1]), torch.tensor([number, 2, 1])
        assert _same(compiled(TABLE, one), f(TABLE, other))
        assert torch.equal(one, other)


def _scalar_written(a: Tensor, index: Tensor, memory: Tensor) -> Any:
    memory.add_(1)
    return a[index]


def _scalar_in_place(a: Tensor, index: Tensor, memory: Tensor) -> Any:
    index += 1
    return a[index] if index > 1 else a


def _scalar_data(a: Tensor, index: Tensor, memory: Tensor) -> Any:
    index.data = memory[1]
    return a[index]


def _scalar_set(a: Tensor, index: Tensor, memory: Tensor) -> Any:
    index.set_(memory[2].clone())
    return a[index]


def _scalar_read_twice(a: Tensor, index: Tensor, memory: Tensor) -> Any:
    first = a[index]
    memory.add_(1)
    return first + a[index]


@pytest.mark.parametrize("f", [_scalar_written, _scalar_in_place, _scalar_data, _scalar_set, _scalar_read_twice])
@pytest.mark.parametrize("shared", [True, False])
def test_a_scalar_that_shares_memory(f: Callable[..., Any], shared: bool) -> None:
    """Whether it does may differ from one call to the next."""
    compiled = fxjit.compile(f, backend="eager")
    for number, share in ((0, shared), (1, not shared), (2, shared), (1, shared)):
        made = []
        for _ in range(2):
            memory = torch.tensor([number, 2, 1])
            made.append((memory[0] if share else memory[0].clone(), memory))
        (one, memory), (other, others) = made
        assert _same(compiled(TABLE, one, memory), f(TABLE, other, others))
        assert torch.equal(memory, others)


@torch.library.custom_op("fxjit_given_numbers::count", mutates_args=())
def count(x: Tensor) -> Tensor:
    COUNTER.add_(1)
    return x.clone()


@count.register_fake
def _(x: Tensor) -> Tensor:
    return x.clone()


COUNTER = torch.tensor(0)


def test_an_operator_of_the_programs_may_write_to_it() -> None:
    def f(a: Tensor, index: Tensor) -> Tensor:
        a = count(a)
        return a[index]

    compiled = fxjit.compile(f, backend="eager")
    for number in (0, 2):
        COUNTER.fill_(number)
        assert torch.equal(compiled(TABLE, COUNTER), TABLE[number + 1])


def test_transforms_see_no_number() -> None:
    def f(a: Tensor, i: Tensor) -> Tensor:
        return torch.vmap(lambda row, i: row * 2 + i, in_dims=(0, None))(a, i) + a[i]

    compiled = fxjit.compile(f, backend="eager")
    for number in (0, 2):
        assert torch.equal(compiled(TABLE, torch.tensor(number)), f(TABLE, torch.tensor(number)))


def test_an_attribute_that_counts() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("step", torch.tensor(0))

        def forward(self, x: Tensor) -> Tensor:
            y = TABLE[self.step] * x if self.step < 3 else x
            self.step += 1
            return y

    one, other = Counts(), Counts()
    compiled = fxjit.compile(one, backend="eager", fullgraph=True)
    for _ in range(6):
        assert torch.equal(compiled(TABLE[0]), other(TABLE[0]))
        assert int(one.step) == int(other.step)
    assert fxjit.counters["stats"]["unique_graphs"] == 2
