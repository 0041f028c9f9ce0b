"""What shares memory, what was written to and what is a view after a call: as in eager, whatever the backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit.counters import counters
from fxjit.testing import same

BACKENDS = ["eager", "aot_eager", "native"]


@dataclass
class Given:
    """What a function is called with, and the leaves of the autograd graph behind it."""

    inputs: Sequence[torch.Tensor]
    leaves: Sequence[torch.Tensor] = ()


Make = Callable[[], Given]


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def plain(*shapes: tuple[int, ...]) -> Make:
    return lambda: Given([numbers(*shape) + k for k, shape in enumerate(shapes)])


one, two = plain((4, 3)), plain((4, 3), (4, 3))


def leaf() -> Given:
    x = numbers(4, 3).requires_grad_()
    return Given([x], [x])


def grown() -> Given:
    """Not a leaf: may be written to."""
    x = numbers(4, 3).requires_grad_()
    return Given([x * 2], [x])


def twice_the_same() -> Given:
    x = numbers(4, 3)
    return Given([x, x])


def with_its_view() -> Given:
    x = numbers(4, 3)
    return Given([x, x.t()])


def overlapping() -> Given:
    x = numbers(6)
    return Given([x[:4], x[2:]])


def apart() -> Given:
    x = numbers(8)
    return Given([x[:4], x[4:]])


def halves_with_grad() -> Given:
    x = numbers(8).requires_grad_()
    base = x * 1
    return Given([base[:4], base[4:]], [x])


def also(change: Any, result: Any) -> Any:
    """For lambdas: the change is made, the result returned."""
    return result


CASES: dict[str, tuple[Make, Callable[..., Any]]] = {
    # What is returned is, or is a view of, what was given.
    "the input": (one, lambda x: x),
    "the input beside a result": (one, lambda x: (x, x + 1)),
    "the input twice": (one, lambda x: (x, x)),
    "a view": (one, lambda x: x.t()),
    "a view of a view": (one, lambda x: x[1:].t()[::2]),
    "a detached input": (leaf, lambda x: (x.detach(), x * 2)),
    "a view with grad": (leaf, lambda x: (x.view(-1), x.sin())),
    "an expanded input": (one, lambda x: x[:1].expand(5, 3)),
    "as_strided": (one, lambda x: x.as_strided((2, 2), (1, 4), 1)),
    "all of it as a view": (one, lambda x: x.view_as(x)),
    "another type of the same": (one, lambda x: x.view(torch.int32)),
    "real numbers of complex": (lambda: Given([torch.tensor([1 + 2j, 3 - 1j])]), lambda x: torch.view_as_real(x)),
    "no copy where none is needed": (one, lambda x: (x.contiguous(), x.float(), x.reshape(4, 3), x.clone())),
    # Results that share memory with one another.
    "a result and its view": (one, lambda x: (lambda y: (y, y.t()))(x + 1)),
    "a result twice": (one, lambda x: (lambda y: (y, y))(x + 1)),
    "two views of a hidden result": (one, lambda x: (lambda y: (y[1:], y[:2].t()))(x * 2)),
    "chunks of a result": (one, lambda x: (x + 1).chunk(2)),
    "split of an input": (one, lambda x: x.split(2)),
    "unbound rows": (one, lambda x: x.unbind()),
    "a view with grad of a result": (leaf, lambda x: (lambda y: (y, y[1:]))(x * 2)),
    # Writes.
    "a write": (one, lambda x: x.add_(1)),
    "a write and nothing returned": (one, lambda x: also(x.mul_(2), None)),
    "a write through a view": (one, lambda x: also(x[1:].mul_(2), x + 1)),
    "a write through two views": (one, lambda x: also((x[1:].mul_(2), x.t()[0].zero_()), x.t())),
    "an assignment": (one, lambda x: also(x.__setitem__((slice(1, 3), 0), 5.0), x.sum())),
    "a masked assignment": (one, lambda x: also(x.__setitem__(x > 5, 0.0), x)),
    "a diagonal": (one, lambda x: also(x.diagonal().zero_(), x * 2)),
    "unfolded": (one, lambda x: also(x.unfold(0, 2, 2).mul_(3), x)),
    "a strided write": (one, lambda x: also(x.as_strided((2,), (5,), 2).fill_(9), x + 0)),
    "a write into an expansion of a copy": (one, lambda x: also(x.select(1, 0).copy_(x[:, 2]), x)),
    "into an expansion to the size that is there": (
        plain((1, 3)), lambda x: (lambda y: also((y[:, 1:].fill_(-torch.inf), y[:, 2:].fill_(2)), y))((x + 1).expand(1, -1))),
    "into such an expansion of an input": (plain((1, 3)), lambda x: also(x.expand(1, 3)[0].mul_(2), x + 1)),
    "into such an expansion of booleans": (
        plain((1, 3)), lambda x: (lambda y: also(y.logical_or_(x > 2), y))(torch.broadcast_to(x < 2, (1, 3)))),
    "a view taken before the write": (one, lambda x: (lambda v: also(x.add_(1), (v, v * 2)))(x[1])),
    "a result taken before the write": (one, lambda x: (lambda y: also(x.add_(1), y))(x * 2)),
    "a copy into the other": (two, lambda x, y: also(x.copy_(y), x * y)),
    "the two exchanged": (two, lambda x, y: (lambda t: also((x.copy_(y), y.copy_(t)), None))(x.clone())),
    "a write to what is not returned": (two, lambda x, y: also(y.zero_(), x + y)),
    "a detached write": (grown, lambda x: also(x.detach().add_(1), x * 2)),
    "a write to a non-leaf": (grown, lambda x: also(x.mul_(3), x.sin())),
    "a write to a row of a non-leaf": (grown, lambda x: also(x[0].mul_(3), x.sin())),
    "a write to .data": (leaf, lambda x: also(x.data.add_(1), x * 2)),
    # Inputs that share memory.
    "the same twice": (twice_the_same, lambda x, y: x + y),
    "the same twice, written": (twice_the_same, lambda x, y: also(x.add_(1), x * y)),
    "with its view": (with_its_view, lambda x, v: x + v.t()),
    "with its view, written": (with_its_view, lambda x, v: also(v.mul_(2), x + 1)),
    "with its view, both written": (with_its_view, lambda x, v: also((v.mul_(2), x.add_(1)), (x, v))),
    "overlapping": (overlapping, lambda x, y: x + y),
    "overlapping, written": (overlapping, lambda x, y: also(x.mul_(2), y + 0)),
    "overlapping, both written": (overlapping, lambda x, y: also((x.mul_(2), y.add_(1)), x * y)),
    "apart": (apart, lambda x, y: also(x.mul_(2), x + y)),
    "views with grad of one base": (halves_with_grad, lambda x, y: x * y),
    "written views with grad of one base": (halves_with_grad, lambda x, y: also(x.mul_(2), x * y)),
    # `out=`
    "out=": (two, lambda x, y: torch.add(x, 1, out=y)),
    "out= and more": (two, lambda x, y: also(torch.mul(x, y, out=y), y + 1)),
    "out= the operand": (one, lambda x: torch.exp(x, out=x)),
    "out= a view": (two, lambda x, y: also(torch.sum(x, 0, out=y[1]), y)),
    "out= of another size": (plain((4, 3), (0,)), lambda x, y: torch.add(x, 1, out=y)),
    "two of out=": (lambda: Given([numbers(4, 3), numbers(4), numbers(4).long()]),
                    lambda x, v, i: torch.max(x, 1, out=(v, i))),
    "out= turned": (one, lambda x: torch.add(x, 1, out=torch.empty(3, 4).t())),
    "out= of a turned operand": (one, lambda x: torch.mul(x.t(), 2, out=torch.empty(3, 4)).view(-1)),
    "out= an input, of a turned operand": (plain((4, 3), (3, 4)), lambda x, y: also(torch.mul(x.t(), 2, out=y), y.view(-1))),
    "two of out=, turned": (one, lambda x: torch.sort(x, 0, out=(torch.empty(3, 4).t(), torch.empty(3, 4).long().t()))),
    # Sizes, strides and storages that change.
    "t_": (one, lambda x: x.t_()),
    "squeeze_": (plain((1, 3)), lambda x: also(x.squeeze_(), x + 1)),
    "unsqueeze_": (one, lambda x: also(x.unsqueeze_(0), x * 2)),
    "resize_": (one, lambda x: also(x.resize_(2, 3), x * 2)),
    "resize_ to more": (one, lambda x: also(x.resize_(5, 3)[4].fill_(1), x * 2)),
    "set_": (two, lambda x, y: also(x.set_(y), x * 2)),
    ".data of another": (two, lambda x, y: also(setattr(x, "data", y), x * 2)),
    "requires_grad_": (one, lambda x: also(x.requires_grad_(), x * 2)),
    "detach_": (grown, lambda x: also(x.detach_(), x * 2)),
}  # fmt: skip
RAISING: dict[str, tuple[Make, Callable[..., Any]]] = {
    "a write to a leaf": (leaf, lambda x: x.add_(1)),
    "a write to a view of a leaf": (leaf, lambda x: x[0].add_(1)),
    "a write to an expanded input": (lambda: Given([numbers(3).expand(4, 3)]), lambda x: x.add_(1)),
    "a write to a part of a split with grad": (leaf, lambda x: (x * 1).split(2)[0].add_(1)),
    "a write to a part of an unbind with grad": (grown, lambda x: x.unbind()[0].mul_(2)),
    "a write to a chunk with grad": (grown, lambda x: x.chunk(2)[1].mul_(2)),
    "out= with grad": (lambda: Given([*leaf().inputs, numbers(4, 3)]), lambda x, y: torch.add(x, 1, out=y)),
    "out= of another type": (lambda: Given([numbers(3), numbers(3).long()]), lambda x, y: torch.mul(x, 1.5, out=y)),
    "a result that does not fit": (lambda: Given([torch.arange(3)]), lambda x: x.add_(1.5)),
    "a result of another shape": (plain((3,), (4, 3)), lambda x, y: x.add_(y)),
}


def leaves(result: Any) -> list[torch.Tensor]:
    return [each for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def facts(inputs: Sequence[torch.Tensor], outputs: list[torch.Tensor]) -> list[tuple[object, ...]]:
    """What can be seen of each tensor but its values; memory is named by the first tensor that is in it."""
    every = [*inputs, *outputs]
    storages = [storage(each) for each in every]
    return [
        (
            each.dtype, tuple(each.shape), each.stride(), each.storage_offset(), storages.index(storages[k]),
            next(j for j, other in enumerate(every) if other is each), each.requires_grad, each.is_leaf,
        )
        for k, each in enumerate(every)
    ]  # fmt: skip


def run(function: Callable[..., Any], make: Make, grad: bool) -> tuple[list[Any], list[torch.Tensor]]:
    """Facts; then values, gradients of the leaves, and what a write to each result changes."""
    given = make()
    with torch.set_grad_enabled(grad):
        outputs = leaves(function(*given.inputs))
    every = [*given.inputs, *outputs]
    values = [each.detach().clone() for each in every]
    differentiable = [each for each in every if each.requires_grad and not each.is_leaf]
    if differentiable and given.leaves:
        sums = [each.square().sum() for each in differentiable]
        values += [each for each in torch.autograd.grad(sums, given.leaves, allow_unused=True) if each is not None]
    seen = facts(given.inputs, outputs)
    for each in outputs:
        each.detach()[(0,) * each.dim()] = 7
        values += [other.detach().clone() for other in every]
    return seen, values


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(CASES))
def test_memory_is_shared_as_in_eager(name, backend):
    make, function = CASES[name]
    compiled = fxjit.compile(function, backend=backend)
    for grad in (True, False, True):
        (seen, values), (wanted, expected) = run(compiled, make, grad), run(function, make, grad)
        assert seen == wanted
        torch.testing.assert_close(values, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(RAISING))
def test_what_may_not_be_written_to_raises_as_in_eager(name, backend):
    make, function = RAISING[name]
    wanted, after = error_of(function, make)
    compiled = fxjit.compile(function, backend=backend)
    for _ in range(2):
        got, inputs = error_of(compiled, make)
        assert type(got) is type(wanted) and said(got) == said(wanted)
        assert all(torch.equal(a, b) for a, b in zip(inputs, after, strict=True))


def said(error: Exception) -> str:
    """A compiled graph's result is not the output of the operator that eager names."""
    return re.sub(r"^Output \d+ of \w+", "Output", str(error))


def error_of(function: Callable[..., Any], make: Make) -> tuple[Exception, Sequence[torch.Tensor]]:
    inputs = make().inputs
    with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
        function(*inputs)
    return caught.value, inputs


def unrecorded_view_of_an_input(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.view(-1)


def unrecorded_view_beside_what_it_is_of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    with torch.no_grad():
        z = y.view(-1)
    return y, z


def unrecorded_part_beside_what_is_made_of_it(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        z = x.view(-1)[1:]
    return z * 2, z, (z * z).sum()


UNRECORDED = [unrecorded_view_of_an_input, unrecorded_view_beside_what_it_is_of, unrecorded_part_beside_what_is_made_of_it,
              torch.no_grad()(lambda x: (x.t(), x[0], x * 2)), lambda x: (unrecorded_view_of_an_input(x), x.sum())]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("of_a_view", [False, True])
@pytest.mark.parametrize("fn", UNRECORDED)
def test_a_view_made_without_recording_passes_no_gradient_on(fn: Callable[..., Any], backend: str, of_a_view: bool) -> None:
    def run(call: Callable[..., Any]) -> tuple[Any, ...]:
        x = (torch.ones(6).view(2, 3) if of_a_view else torch.ones(2, 3)).requires_grad_()
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        facts = [(each.requires_grad, each.is_leaf, each._is_view(), each.grad_fn is None) for each in results]
        loss = sum((at + 1) * each.sum() for at, each in enumerate(results))
        if loss.requires_grad:
            loss.backward()
        try:
            results[0].mul_(2)
        except RuntimeError as error:
            return x.grad, facts, str(error)
        return x.grad, facts, x.detach()

    (expected, facts, after), (grad, same_facts, same_after) = run(fn), run(fxjit.compile(fn, backend=backend))
    assert same(grad, expected) and same_facts == facts and same(same_after, after)


DROPPING_NOTHING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda x: F.dropout(x, 0.0),
    "in evaluation": lambda x: F.dropout(input=x, p=0.5, training=False),
    "torch's own": lambda x: torch.dropout(x, p=0.5, train=False),
    "in place": lambda x: F.dropout(x, 0.5, False, True),
    "of channels": lambda x: F.dropout2d(x.view(1, 2, 3, 1), 0.0),
    "alpha": lambda x: F.alpha_dropout(x, 0.5, False),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", DROPPING_NOTHING)
def test_a_dropout_that_drops_nothing_gives_what_it_was_given(what: str, dynamic: bool, backend: str) -> None:
    dropout = DROPPING_NOTHING[what]

    def given(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return dropout(x), x + 1

    def written(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        inner = x * 2
        y = dropout(inner)
        y.add_(1)
        return inner + 1, y is inner

    said = []
    for way in (lambda fn: fn, lambda fn: fxjit.compile(fn, backend=backend, dynamic=dynamic)):
        x, leaf = numbers(2, 3), numbers(2, 3).requires_grad_()
        result, _ = way(given)(x)
        inner, identical = way(written)(leaf)
        inner.square().sum().backward()
        said.append((result is x, result._base is x, result.data_ptr() == x.data_ptr(), identical, inner.tolist(), leaf.grad))
    assert said[1][:-1] == said[0][:-1]
    torch.testing.assert_close(said[1][-1], said[0][-1])


def turned_and_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.permute(2, 0, 1).tril_()
    return y


def written_where_it_is_turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x + 1).permute(2, 0, 1)
    y.index_copy_(0, torch.tensor([1]), torch.zeros(1, *y.shape[1:]))
    return y, y.tril_().sum(0)


def written_by_rows_after_a_turn(x: torch.Tensor) -> torch.Tensor:
    y = torch.rot90(x[0])
    y[torch.tensor([1])] = 2.0
    return y


def written_with_gaps(x: torch.Tensor) -> torch.Tensor:
    y = torch.slice_scatter(x[..., ::2], torch.zeros(3, 4, 2), 2, 0, 2)
    y.mul_(2)
    return y


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_gaps_keeps_them(backend: str) -> None:
    x = numbers(3, 4, 5)
    mine, theirs = fxjit.compile(written_with_gaps, backend=backend)(x), written_with_gaps(x)
    assert torch.equal(mine, theirs)
    assert mine.stride() == theirs.stride() == (20, 5, 2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [turned_and_written, written_where_it_is_turned, written_by_rows_after_a_turn])
def test_what_is_written_in_place_keeps_its_layout(fn: Callable[..., Any], backend: str, trained: bool, dynamic: bool) -> None:
    def outcome(run: Callable[..., Any]) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
        x = numbers(3, 4, 5).requires_grad_(trained)
        results = run(x)
        results = [*results] if isinstance(results, tuple) else [results]
        if trained:
            results += torch.autograd.grad([each.sum() for each in results], [x])
        return [(each, each.stride()) for each in results]

    for (mine, strides), (theirs, wanted) in zip(outcome(fxjit.compile(fn, backend=backend, dynamic=dynamic)), outcome(fn)):
        torch.testing.assert_close(mine, theirs)
        assert strides == wanted


def by_an_offset(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 2), (5, 1), 8) + 1


def by_an_offset_after_a_write(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    x.as_strided((2, 2), (5, 1), storage_offset=8).add_(1)
    return x + 1


def by_no_offset_after_a_write(x: torch.Tensor) -> torch.Tensor:
    x[:, :2] = 3
    return x.as_strided((2, 2), (5, 1)).add_(1) * 2


def of_a_part_that_was_made(x: torch.Tensor) -> torch.Tensor:
    y = torch.slice_scatter(x, torch.ones(5, 2), 1, 0, 2)
    return torch.as_strided_scatter(y, torch.ones(2, 2), (2, 2), (5, 1), 8)


def by_its_diagonal(x: torch.Tensor) -> torch.Tensor:
    x[..., :1] = x[..., 1:2]
    x.fill_diagonal_(7)
    return x + 1


def by_the_diagonal_of_its_own(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2)[1:]
    y.fill_diagonal_(7)
    return y


@pytest.mark.parametrize("first", [3, 0])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [by_an_offset, by_an_offset_after_a_write, by_no_offset_after_a_write, of_a_part_that_was_made,
                                by_its_diagonal, by_the_diagonal_of_its_own])  # fmt: skip
def test_places_counted_from_the_start_of_a_memory(fn: Callable[..., Any], backend: str, dynamic: bool, first: int) -> None:
    """The graph is called with parts that begin elsewhere."""
    compiled = fxjit.compile(fn, backend=backend, dynamic=dynamic)
    with fxjit.config.patch(small_graphs_as_captured=False):
        for start in (first, 8, 3 - first, first):
            mine, theirs = (numbers(40)[start : start + 25].view(5, 5) for _ in range(2))
            assert torch.equal(compiled(mine), fn(theirs))
            assert torch.equal(mine, theirs)


def counts_one_up(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p.add_(1)
    return q * 2


def writes_both(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p[1:].add_(1)
    q.mul_(2)
    return p + q


def copies_over(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p.copy_(q.flip(0) + 1)
    return p.cumsum(0)


WRITERS = (counts_one_up, writes_both, copies_over)
#: What two inputs may be of one memory of twenty numbers: apart, one behind the other, the same, one in the gaps of the other.
MEETINGS = {
    "apart": lambda x: (x[:5], x[10:15]), "three behind": lambda x: (x[:5], x[3:8]), "two behind": lambda x: (x[2:7], x[4:9]),
    "before": lambda x: (x[3:8], x[1:6]), "the same": lambda x: (x[2:7], x[2:7]),
    "in the gaps": lambda x: (x[:10:2], x[1:10:2]), "with its half": lambda x: (x[:10:2], x[4:9]),
}  # fmt: skip


#: Each first meeting with each backend, each of the functions with each of both; sizes vary in every other one.
FIRST_MEETINGS = [(fn, first, backend, (place + number) % 2 == 1) for place, first in enumerate(MEETINGS)
                  for number, backend in enumerate(BACKENDS) for fn in [WRITERS[(place + number) % len(WRITERS)]]]  # fmt: skip


@pytest.mark.parametrize(("fn", "first", "backend", "dynamic"), FIRST_MEETINGS)
def test_inputs_that_meet_otherwise_at_a_later_call(fn: Callable[..., Any], first: str, backend: str, dynamic: bool) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend, dynamic=dynamic)
    with fxjit.config.patch(small_graphs_as_captured=False):
        for name in (first, *MEETINGS, first):
            mine, theirs = numbers(20), numbers(20)
            assert torch.equal(compiled(*MEETINGS[name](mine)), fn(*MEETINGS[name](theirs))), name
            assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("name", ["apart", "three behind", "the same"])
def test_inputs_that_meet_as_before_are_no_reason_to_run_as_captured(name: str) -> None:
    fxjit.reset()
    compiled = fxjit.compile(writes_both, backend="aot_eager")
    for _ in range(3):
        compiled(*MEETINGS[name](numbers(20)))
    assert not counters["run_as_captured"]["input-aliasing"]
    compiled(*MEETINGS["two behind"](numbers(20)))
    assert counters["run_as_captured"]["input-aliasing"] == 1


def view_of_the_other(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p.add_(1)
    return q[1:3]


def view_of_the_written(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p.add_(q.flip(0))
    return p[1:3]


def rows_of_the_other(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p.mul_(2)
    return q.unsqueeze(1)[2]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [view_of_the_other, view_of_the_written, rows_of_the_other])
def test_views_of_inputs_that_meet_lie_where_eager_has_them(fn: Callable[..., Any], backend: str, dynamic: bool) -> None:
    for name in MEETINGS:
        fxjit.reset()
        compiled = fxjit.compile(fn, backend=backend, dynamic=dynamic)
        for _ in range(2):
            mine, theirs = numbers(20), numbers(20)
            result, expected = compiled(*MEETINGS[name](mine)), fn(*MEETINGS[name](theirs))
            assert torch.equal(result, expected), name
            assert (result.stride(), result.storage_offset()) == (expected.stride(), expected.storage_offset()), name
            result.fill_(7)
            expected.fill_(7)
            assert torch.equal(mine, theirs), name


BASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "of a flat view": lambda x: (x * 2).view(-1)._base.shape,
    "is the intermediate": lambda x: (lambda z: z.view(-1)._base is z)(x * 2),
    "of a view of a view": lambda x: x.clone().expand(2, *x.shape)[1]._base is None,
    "of no view": lambda x: (x * 2)._base is None,
    "is the input": lambda x: x.view(-1)._base is x,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BASES)
def test_the_base_of_a_view_that_the_program_reads(name: str, backend: str) -> None:
    program = BASES[name]
    for gradients, recording in ((False, True), (True, True), (True, False)):
        fxjit.reset()
        x = torch.ones(2, 3, requires_grad=gradients)
        with torch.set_grad_enabled(recording):
            assert fxjit.compile(program, backend=backend)(x) == program(x)
