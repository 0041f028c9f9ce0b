"""Arrays that refuse to be written to: read in the graph; what would write to one breaks it, and raises as in eager."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import fxjit


def _kept() -> Any:
    made = np.arange(12.0).reshape(3, 4) - 5
    made.flags.writeable = False
    return made


ARRAYS = {
    "kept": _kept, "spread": lambda: np.broadcast_to(np.arange(4.0), (3, 4)),
    "of bytes": lambda: np.frombuffer(bytes(range(12)), dtype=np.uint8).reshape(3, 4),
    "a part": lambda: _kept()[1:, ::2], "turned": lambda: _kept().T,
}
READS = ["a * 2 + 1", "a.sum()", "np.sin(a)", "a > 0", "a[1:]", "a.T", "a.reshape(-1)", "a[::-1]", "a.ravel()",
         "a.flags.writeable", "a[1:].flags.writeable", "(a + 1).flags.writeable", "a.base is None", "a",
         "torch.tensor(a) * 2", "a.copy()",
         "a.copy().flags.writeable", "np.asarray(a) is a", "np.array(a).flags.writeable", "np.where(a > 0, a, 0)", "a @ a.T",
         "np.concatenate([a, a])", "np.stack([a, a])", "np.linalg.norm(a)", "[row.sum() for row in a]", "a.flags.c_contiguous",
         "np.squeeze(a).flags.writeable", "a.astype(np.int64) + 1", "np.arange(9)[np.abs(a[:, 0]).astype(np.int64) % 3]"]
WRITES = ["a[0] = 3", "a += 1", "b = a[1:]; b[0] = 5", "b = a.T; b *= 2", "np.add(a, 1, out=a)", "a.sort()", "a.fill(0)",
          "np.copyto(a, 0)", "np.put(a, [0], 1)", "a.flat[0] = 3", "np.add.at(a, 0, 1)", "np.fill_diagonal(a, 0)",
          "a.flags.writeable = True; a[0] = 7", "a.setflags(write=True)", "for row in a: row += 1", "np.random.shuffle(a)"]


def shown(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [shown(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.strides, value.flags.writeable, value.tolist()
    return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else (type(value), value)


def outcome(fn: Any, array: Any) -> Any:
    try:
        return shown(fn(array))
    except Exception as error:
        return type(error), str(error)


def check(body: str, kind: str, backend: str = "eager") -> None:
    namespace: dict[str, Any] = {"np": np, "torch": torch}
    exec(f"def fn(a):\n    {body}\n", namespace)
    fn = namespace["fn"]
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(2):
        first, second = ARRAYS[kind](), ARRAYS[kind]()
        assert outcome(fn, first) == outcome(compiled, second)
        assert shown(first) == shown(second)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("read", READS)
def test_it_is_read_in_the_graph(read: str, kind: str) -> None:
    check(f"return {read}", kind)
    # From Python 3.12 on a comprehension is under a handler of its frame.
    if kind in ("kept", "of bytes") and ".flags" not in read and ".base" not in read and " for " not in read:
        assert not fxjit.counters["graph_break"]


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_raises_as_in_eager(write: str, kind: str) -> None:
    check(f"{write}\n    return a", kind)
    check(f"b = a * 2\n    try:\n        {write}\n    except ValueError as error: return str(error), b\n    return b", kind)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_with_backends(backend: str) -> None:
    check("return a * 2 + 1, a[1:], torch.tensor(a).relu()", "kept", backend)


def test_torch_warns_of_it_as_in_eager() -> None:
    compiled = fxjit.compile(lambda array: torch.from_numpy(array) * 2, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(_kept()), torch.from_numpy(_kept()) * 2)


def test_one_that_may_be_written_to_is_another_entry() -> None:
    compiled = fxjit.compile(lambda array: array.flags.writeable + array.sum(), backend="eager")
    for array in (_kept(), np.array(_kept()), _kept(), np.array(_kept())):
        assert compiled(array) == array.flags.writeable + array.sum()


@pytest.mark.parametrize("write", ["y.flags.writeable = False", "y.setflags(write=False)"])
def test_one_break_where_a_new_array_is_made_read_only(write: str) -> None:
    check(f"y = a + 1\n    {write}\n    return y * 2, y.flags.writeable, y", "kept")
    assert sum(fxjit.counters["graph_break"].values()) == 1
