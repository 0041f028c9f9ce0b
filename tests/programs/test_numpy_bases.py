"""What an array is a view of: `ndarray.base`, in the graph and of the arrays that leave it."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fxjit

WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "slice": lambda a: a[1:], "slice of a slice": lambda a: a[1:][1:], "row": lambda a: a[1], "transpose": lambda a: a.T,
    "reshape": lambda a: a.reshape(-1), "ravel of a slice": lambda a: a[1:].ravel(), "backwards": lambda a: a[::-1],
    "rows of backwards": lambda a: a[::-1][1:], "flip": lambda a: np.flip(a), "new axis": lambda a: a[None],
    "copy": lambda a: a.copy(), "sum": lambda a: a + 1, "view of a sum": lambda a: (a + 1)[1:],
    "view": lambda a: a.view(), "split": lambda a: np.split(a, 2)[1],
    "mask": lambda a: np.where(a > 1, a, 0), "swapaxes": lambda a: np.swapaxes(a, 0, 1), "squeeze": lambda a: a[None].squeeze(),
    "diagonal": lambda a: a.diagonal(), "itself": lambda a: np.asarray(a), "in place": lambda a: a.__iadd__(1),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fxjit.reset()


def made() -> np.ndarray:
    return np.arange(1.0, 17.0).reshape(4, 4).copy()


@pytest.mark.parametrize("name", WAYS)
def test_in_the_graph(name: str) -> None:
    def program(a: np.ndarray) -> Any:
        b = WAYS[name](a)
        return b.base is a, b.base is None, b.base is b, b * 2

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    copies = name in ("reshape", "ravel of a slice")  # of what is not contiguous: its base is an array that nobody else sees
    for given in (made, made, *([] if copies else [lambda: made().T, lambda: made()[:, :2].T])):
        expected, actual = program(given()), compiled(given())
        assert actual[:3] == expected[:3]
        np.testing.assert_array_equal(actual[3], expected[3])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", WAYS)
def test_of_what_leaves(name: str, backend: str) -> None:
    def program(a: np.ndarray) -> Any:
        b = WAYS[name](a)
        a[0] += 1
        return b

    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for given in (made, made, lambda: made().T, lambda: made()[:, :2].T):
        mine, theirs = given(), given()
        expected, actual = program(theirs), compiled(mine)
        np.testing.assert_array_equal(actual, expected)
        assert (actual.base is mine) == (expected.base is theirs)
        assert actual.strides == expected.strides or not expected.size
        mine[1] = theirs[1] = 100
        np.testing.assert_array_equal(actual, expected)


def test_of_views_and_of_what_is_computed() -> None:
    def program(a: np.ndarray, b: np.ndarray) -> Any:
        c = a + 1
        d = c[1:]
        return a.base is b, a[1:].base is b, a[1:].base is a, d.base is c, d[1:].base is c, d, c, np.max(a).base

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    whole = made()
    for given in ((whole[1:], whole), (made(), whole), (whole, whole)):
        expected, actual = program(*given), compiled(*given)
        assert actual[:5] == expected[:5]
        assert actual[5].base is actual[6]
        assert actual[7] is None


def test_a_list_that_changes_says_nothing_of_the_view() -> None:
    def program(a: np.ndarray) -> Any:
        shape = [2, 8]
        b = a.reshape(shape)
        shape[0] = 3
        return b

    np.testing.assert_array_equal(fxjit.compile(program, backend="eager", fullgraph=True)(made()), program(made()))


def test_across_a_break() -> None:
    def program(a: np.ndarray) -> Any:
        b = a[1:]
        fxjit.graph_break()
        return b.base is a, b + 1

    expected, actual = program(made()), fxjit.compile(program, backend="eager")(made())
    assert actual[0] is expected[0]
    np.testing.assert_array_equal(actual[1], expected[1])


def test_its_entry_is_kept_for_the_next_process(tmp_path: Path) -> None:
    """A method of an array is one of no name that another process would find."""
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, fxjit\n"
        "def f(a): return a.reshape(-1), a.T, a[1:]\n"
        "a = np.arange(16.).reshape(4, 4).copy()\n"
        "r = fxjit.compile(f, backend='native')(a)\n"
        "print([each.base is a for each in r], fxjit.counters['cache']['entry hit'])\n"
    )
    environment = {**os.environ, "FXJIT_CACHE_DIR": str(tmp_path / "cache"), "FXJIT_STORE_ENTRIES": "1"}
    runs = [
        subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    printed = [each.stdout.split("]") for each in runs]
    assert [each[0] for each in printed] == ["[True, True, True"] * 2
    assert [int(each[1]) for each in printed] == [0, 1]


FLAGS: dict[str, Callable[[np.ndarray], Any]] = {
    "c": lambda a: (a.flags["C_CONTIGUOUS"], a.T.flags.c_contiguous, a[::-1].flags.c_contiguous, a[:, 1:3].flags.contiguous),
    "f": lambda a: (a.T.flags.f_contiguous, a.T.copy().flags["F"], (a.T + 1).flags.f_contiguous,
                   np.asfortranarray(a).flags.fnc),
    "spread": lambda a: (np.broadcast_to(a[0], (2, a.shape[1])).flags.c_contiguous, a[:1].flags.forc, a[:0].flags.f_contiguous),
    "owns": lambda a: (a.flags.owndata, a[1:].flags["OWNDATA"], a.copy().flags.owndata, a.T.ravel().flags.owndata,
                       a.ravel().flags.owndata, a.sum(0).flags.owndata, a.max().flags.owndata),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str) -> None:
    def program(a: np.ndarray) -> Any:
        return a * 2, FLAGS[name](a)

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for given in (made(), made().T, made()[:, 1:].copy(), made()):
        expected, actual = program(given)[1], compiled(given)[1]
        assert actual == expected and [type(each) for each in actual] == [type(each) for each in expected]


BACKWARDS: dict[str, Callable[[np.ndarray], Any]] = {
    "item": lambda a: operator.setitem(a, slice(None, None, -1), a[::-1] + 1),
    "in place": lambda a: operator.iadd(a[::-1], 1),
    "by itself": lambda a: operator.imul(a[::-1], a),
    "a part": lambda a: operator.iadd(a[::-2, 1:], np.arange(3.0)),
    "whole": lambda a: operator.setitem(a[:, ::-1], slice(None), 7),
    "a row": lambda a: operator.setitem(a[:, ::-1], 0, np.arange(4.0)),
    "a mask": lambda a: operator.setitem(a[3:0:-1], a[3:0:-1] > 9, 0),
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", BACKWARDS)
def test_writes_to_what_goes_backwards(name: str, backend: str) -> None:
    def program(a: np.ndarray) -> Any:
        view = a[::-1]
        before = view * 2
        result = BACKWARDS[name](a)
        return before, result, view + 1, a[0] * 2, view

    expected, actual = made(), made()
    for one, other in zip(program(expected), fxjit.compile(program, backend=backend, fullgraph=True)(actual), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one is None or one.strides == other.strides
    np.testing.assert_array_equal(expected, actual)


def test_a_write_that_numpy_refuses_is_refused() -> None:
    def program(a: np.ndarray) -> Any:
        try:
            a[::-1] += 1.5
        except TypeError as error:
            return type(error).__name__, a + 1
        return "none", a + 1

    for given in (np.arange(4), np.arange(4.0)):
        expected, actual = program(given.copy()), fxjit.compile(program, backend="eager")(given.copy())
        assert expected[0] == actual[0]
        np.testing.assert_array_equal(expected[1], actual[1])
