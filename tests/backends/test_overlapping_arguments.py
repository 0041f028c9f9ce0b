"""Calls that write to memory which another of their operands is in: what eager refuses is refused, and what it reads while it
writes is read so, by every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch._subclasses.fake_tensor import FakeTensorMode

from fxjit.overlap import have_common_element

ROWS = torch.tensor([2, 0, 1])
PLACES = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 0, 2]])
MASK = torch.tensor([True, False, True])


def set_by_index(x: torch.Tensor) -> torch.Tensor:
    x[ROWS] = x
    return x


def set_by_mask(x: torch.Tensor) -> torch.Tensor:
    x[MASK] = x[MASK]
    return x


def set_row(x: torch.Tensor) -> torch.Tensor:
    x[0] = x[1]
    x[:, 0] = x[:, 2]
    return x


def times_itself(x: torch.Tensor) -> torch.Tensor:
    x *= x
    x += x
    return x


def swapped_in_a_list(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([x[0], x[1]], [x[1], x[0]])
    return x


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "index_add_": lambda x: x.index_add_(0, ROWS, x),
    "index_copy_": lambda x: x.index_copy_(0, ROWS, x),
    "index_put_": lambda x: x.index_put_((ROWS,), x),
    "index_put_ accumulating": lambda x: x.index_put_((ROWS,), x, accumulate=True),
    "index_reduce_": lambda x: x.index_reduce_(0, ROWS, x, "prod"),
    "scatter_": lambda x: x.scatter_(0, PLACES, x),
    "scatter_add_": lambda x: x.scatter_add_(0, PLACES, x),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, PLACES, x, "amax"),
    "masked_scatter_": lambda x: x.masked_scatter_(MASK, x),
    "put_": lambda x: x.put_(PLACES, x),
    "set by index": set_by_index,
    "set by mask": set_by_mask,
    "set row": set_row,
    "times itself": times_itself,
    "addmm_": lambda x: x.addmm_(x, x),
    "addmm_ of a view": lambda x: x.addmm_(x.t(), torch.eye(3)),
    "baddbmm_": lambda x: x[None].baddbmm_(x[None], x[None]),
    "addr_": lambda x: x.addr_(x[0], x[1]),
    "mm out": lambda x: torch.mm(x, x, out=x),
    "matmul out": lambda x: torch.matmul(x, x, out=x),
    "mv out": lambda x: torch.mv(x, x[0], out=x[0]),
    "cat out": lambda x: torch.cat([x[:1], x[1:]], out=x),
    "stack out": lambda x: torch.stack([x[0], x[1], x[2]], out=x),
    "gather out": lambda x: torch.gather(x, 0, PLACES, out=x),
    "index_select out": lambda x: torch.index_select(x, 0, ROWS, out=x),
    "take out": lambda x: torch.take(x, PLACES, out=x),
    "sort out": lambda x: torch.sort(x, 0, out=(x, torch.empty(3, 3, dtype=torch.long))),
    "cumsum out": lambda x: torch.cumsum(x, 0, out=x),
    "softmax out": lambda x: torch.softmax(x, 0, out=x),
    "triu out": lambda x: torch.triu(x, out=x),
    "where out": lambda x: torch.where(x > 0.5, x, -x, out=x),
    "where out of a row": lambda x: torch.where(x > 0.5, x[0], x[1], out=x),
    "sum out": lambda x: torch.sum(x, 0, out=x[0]),
    "add out, turned": lambda x: torch.add(x.t(), x, out=x),
    "addcdiv out, turned": lambda x: torch.addcdiv(x.t(), x, x, out=x),
    "out beside what is read": lambda x: torch.add(x[0], 1, out=x[1]),
    "out between what is read": lambda x: torch.mul(x[:, 0], 2, out=x[:, 1]),
    "copy_ turned": lambda x: x.copy_(x.t()),
    "copy_ shifted": lambda x: x[1:].copy_(x[:-1]),
    "copy_ shifted along rows": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "copy_ of columns": lambda x: x[:, ::2].copy_(x[:, 1:2]),
    "sub_ first row": lambda x: x.sub_(x[0]),
    "div_ first column": lambda x: x.div_(x[:, :1]),
    "mul_ first element": lambda x: x.mul_(x[0, 0]),
    "clamp_ by a row": lambda x: x.clamp_(x[0]),
    "lerp_ to a row": lambda x: x.lerp_(x[0], 0.5),
    "masked_fill_ by an element": lambda x: x.masked_fill_(x > 0.5, x[0, 0]),
    "fill_ by an element": lambda x: x.fill_(x[0, 0]),
    "swapped in a list": swapped_in_a_list,
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_that_reads_what_it_writes_is_eagers(name: str, backend: str) -> None:
    torch.manual_seed(0)
    # A fake kernel refuses some by itself: then nothing can be captured.
    assert_same_as_eager(PROGRAMS[name], torch.rand(3, 3), backend=backend, fullgraph=False)


@pytest.mark.parametrize(
    "a, b, common",
    [
        (lambda x: x, lambda x: x.t(), True),
        (lambda x: x[1:], lambda x: x[:-1], True),
        (lambda x: x[:, 0], lambda x: x[:, 1], False),
        (lambda x: x[:, ::2], lambda x: x[:, 1::2], False),
        (lambda x: x[:, :3], lambda x: x[:, 2:], True),
        (lambda x: x.diagonal(), lambda x: x[0, 1:], False),
        (lambda x: x.diagonal(), lambda x: x[0], True),
        (lambda x: x[:0], lambda x: x, False),
        (lambda x: x.view(torch.int16)[:, :2], lambda x: x[:, 1:], False),
        (lambda x: x.view(torch.int16)[:, :3], lambda x: x[:, 1:], True),
        (lambda x: x, lambda x: x.clone(), False),
        (lambda x: x.to_sparse(), lambda x: x, False),
    ],
)
def test_elements_of_two_views_are_compared_by_their_places(
    a: Callable[[torch.Tensor], torch.Tensor], b: Callable[[torch.Tensor], torch.Tensor], common: bool
) -> None:
    x = torch.zeros(6, 6)
    assert have_common_element(a(x), b(x)) is common
    fake = FakeTensorMode().from_tensor(x)
    if not a(x).is_sparse:
        assert have_common_element(a(fake), b(fake)) is common
