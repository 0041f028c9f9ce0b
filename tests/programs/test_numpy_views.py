"""Writes through views of NumPy's that no tensor can be a view of: they reach the array behind, and break no graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fxjit

VIEWS = ["np.flip(a)", "np.flip(a, 1)", "np.rot90(a)", "a[::-1].T", "a[::-1][:, 1:]", "a[:, ::-2]", "a[::-1, 0]",
         "a[2::-1, 1:][::-1]", "np.fliplr(a)[None]", "a[::-1].swapaxes(0, 1)", "np.moveaxis(a[::-1], 0, 1)", "a[::-1][0]",
         "np.split(a[::-1], 3)[1]", "a.reshape(-1)[::-1]"]
WRITES = ["b += 1", "b[0] = 7", "b[...] = b * 2", "b[b > 4] = 0", "b.fill(3)", "b.sort(axis=-1)", "np.add(b, 1, out=b)",
          "np.copyto(b, 5)", "np.put(b, [0], [9])", "b.clip(2, 5, out=b)", "b[0] += 2; b *= 2", "c = b[0:1]; c += 1",
          "a += 1; b -= 2; a[0] = 3", "np.multiply(a, 2, out=a); b[-1] = 4", "b[:] = a.sum()", "np.negative(b, b)",
          "x = b.copy(); x[0] = 1; b[-1] = x.sum()"]
READ_ONLY = ["np.broadcast_to(a, (2, 3, 4))", "np.diagonal(a[::-1])"]


def program(view: str, write: str) -> Any:
    source = f"def fn(a):\n    try:\n        b = {view}\n        {write}\n        return a.copy(), b\n"
    source += "    except ValueError as error: return a - 1, str(error)\n"
    namespace: dict[str, Any] = {"np": np}
    exec(source, namespace)
    return namespace["fn"]


def check(fn: Any, backend: str) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend=backend)
    for base in (np.arange(12.0).reshape(3, 4), np.asfortranarray(np.arange(12).reshape(3, 4))):
        first, second = base.copy(order="K"), base.copy(order="K")
        expected, actual = fn(first), compiled(second)
        assert np.array_equal(first, second) and np.array_equal(expected[0], actual[0])
        assert type(expected[1]) is type(actual[1])
        if isinstance(expected[1], str):
            assert expected[1] == actual[1]
            continue
        assert expected[1].strides == actual[1].strides and np.array_equal(expected[1], actual[1])
        assert np.shares_memory(expected[1], first) == np.shares_memory(actual[1], second)


@pytest.mark.parametrize(("view", "write"), [
    (view, write) for one, view in enumerate(VIEWS) for other, write in enumerate(WRITES) if (one + other) % 3 == 0])
def test_a_write_reaches_the_array(view: str, write: str) -> None:
    check(program(view, write), "eager")
    assert not fxjit.counters["graph_break"] or write == "c = b[0:1]; c += 1"


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("write", ["b += 1", "b.sort(axis=-1)", "a += 1; b -= 2; a[0] = 3"])
def test_with_backends(write: str, backend: str) -> None:
    check(program("np.rot90(a)", write), backend)
    assert not fxjit.counters["graph_break"]


@pytest.mark.parametrize("write", ["b += 1", "b[0] = 7", "b.fill(3)", "np.add(b, 1, out=b)"])
@pytest.mark.parametrize("view", READ_ONLY)
def test_what_refuses_writes_does(view: str, write: str) -> None:
    check(program(view, write), "eager")
