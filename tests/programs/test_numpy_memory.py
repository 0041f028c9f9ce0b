"""`np.shares_memory`, `np.may_share_memory` and `flags.writeable` in traced code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fxjit


def parts(a: Any, c: Any) -> Any:
    return (a * 2, np.shares_memory(a, a[1:]), np.shares_memory(a, a.copy()), np.may_share_memory(a, a.T),
            np.shares_memory(a[::2], a[1::2]), np.may_share_memory(a[::2], a[1::2]), np.shares_memory(a[:, :2], a[:, 2:]))


def made(a: Any, c: Any) -> Any:
    b = a + 1
    return (b, np.shares_memory(b, b.reshape(-1)), np.shares_memory(a, b), np.shares_memory(b[:0], b),
            np.may_share_memory(b[0], b[1:]), np.shares_memory(b, np.asarray(b)), np.shares_memory(b, b.astype(int)),
            np.shares_memory(b, b.ravel()), np.shares_memory(b.T, b.T.ravel()))


def writeable(a: Any, c: Any) -> Any:
    return a + 1, a.flags.writeable, a[1:].flags.writeable, a.T.flags["W"], a.copy().flags["WRITEABLE"], (a * 2).flags.writeable


def tensors(a: Any, c: Any) -> Any:
    x = torch.from_numpy(a)
    return np.shares_memory(x.numpy(), a), np.shares_memory((x + 1).numpy(), a), np.shares_memory(a.view(np.int64), a)


def two_given(a: Any, c: Any) -> Any:
    return a + 1, np.shares_memory(a, c), np.may_share_memory(a, c), np.shares_memory(a + 1, c)


def others(a: Any, c: Any) -> Any:
    b = a * 2
    return (np.broadcast_to(b[0], (2, 4)).flags.writeable, b.diagonal().flags.writeable, b[::-1].flags.writeable,
            b.sum().flags.writeable, np.shares_memory(b, b[::-1]), np.shares_memory(b, b.sum()), np.shares_memory(b, [1, 2]),
            np.shares_memory(b, b, max_work=1))


WITHOUT_BREAKS = {parts, made, writeable, tensors}


@pytest.mark.parametrize("program", [parts, made, writeable, tensors, two_given, others], ids=lambda fn: fn.__name__)
def test_it_is_numpys(program: Callable[..., Any]) -> None:
    memory = np.arange(24.0).reshape(6, 4)
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(program, backend="eager")
    for second in (memory[3:], memory[2:5], memory[:3], memory[:3].copy()):
        expected, actual = program(memory[:3], second), compiled(memory[:3], second)
        assert [type(each) for each in expected] == [type(each) for each in actual]
        assert all(np.array_equal(one, other) for one, other in zip(expected, actual, strict=True))
    assert program not in WITHOUT_BREAKS or not fxjit.counters["graph_break"]
