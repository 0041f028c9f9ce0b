"""Inputs that share memory through two storages: arrays, buffers and DLPack beside tensors, of which the graph writes to one.

AOTAutograd takes such inputs for apart. Each way to share memory is tried with each way to write and to read, compiled for
inputs that lie apart and then called with those that share, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fxjit


class Interface:
    """An object whose memory NumPy and torch reach by `__array_interface__`."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


def _tensor_and_array(shared: bool) -> tuple[Any, Any]:
    a = torch.arange(6.0)
    return a, a.numpy() if shared else a.numpy().copy()


def _tensor_and_part(shared: bool) -> tuple[Any, Any]:
    a = torch.arange(6.0)
    return a, a.numpy()[2:] if shared else a.numpy()[2:].copy()


def _arrays(shared: bool) -> tuple[Any, Any]:
    n = np.arange(6, dtype=np.float32)
    return n, n[:] if shared else n.copy()


def _overlapping_arrays(shared: bool) -> tuple[Any, Any]:
    n = np.arange(6, dtype=np.float32)
    return n[:4], n[2:] if shared else n[2:].copy()


def _steps_of_arrays(shared: bool) -> tuple[Any, Any]:
    n = np.arange(12, dtype=np.float32).reshape(3, 4)
    return n.T, n[1:, ::2] if shared else n[1:, ::2].copy()


def _array_and_buffer(shared: bool) -> tuple[Any, Any]:
    memory = bytearray(np.arange(6, dtype=np.float32).tobytes())
    return np.frombuffer(memory, np.float32), torch.frombuffer(memory if shared else bytearray(memory), dtype=torch.float32)


def _two_buffers(shared: bool) -> tuple[Any, Any]:
    memory = bytearray(np.arange(6, dtype=np.float32).tobytes())
    view = memoryview(memory)[8:] if shared else bytearray(memory[8:])
    return torch.frombuffer(memory, dtype=torch.float32), torch.frombuffer(view, dtype=torch.float32)


def _dlpack(shared: bool) -> tuple[Any, Any]:
    n = np.arange(6, dtype=np.float32)
    return torch.from_numpy(n), torch.from_dlpack(n if shared else n.copy())


def _interface(shared: bool) -> tuple[Any, Any]:
    n = np.arange(6, dtype=np.float32)
    return n, torch.from_numpy(np.asarray(Interface(n if shared else n.copy())))


def _another_dtype(shared: bool) -> tuple[Any, Any]:
    n = np.arange(6, dtype=np.float32)
    return torch.from_numpy(n), (n if shared else n.copy()).view(np.int32)


def _neighbours(shared: bool) -> tuple[Any, Any]:
    """In one memory either way, and sharing none of it."""
    n = np.arange(12, dtype=np.float32)
    return (n[:6], n[6:]) if shared else (n[6:], n[:6])


PAIRS = [_tensor_and_array, _tensor_and_part, _arrays, _overlapping_arrays, _steps_of_arrays, _array_and_buffer, _two_buffers,
         _dlpack, _interface, _another_dtype, _neighbours]


def as_tensor(value: Any) -> torch.Tensor:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def first_written(a, b):
    as_tensor(a).add_(1)
    return as_tensor(b) * 2


def both_written(a, b):
    as_tensor(a).add_(1)
    as_tensor(b).mul_(2)
    as_tensor(a)[0] = 7
    return as_tensor(a).sum() + as_tensor(b).sum()


def through_numpy(a, b):
    a += 1
    return as_tensor(b) * 2, np.asarray(b) + 1


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["shared first", "apart first"])
@pytest.mark.parametrize("program", [first_written, both_written, through_numpy], ids=lambda program: program.__name__)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__[1:])
def test_a_write_is_seen_through_other_memory(
        pair: Callable[[bool], Any], program: Callable[..., Any], order: tuple[bool, bool]):
    fxjit.reset()
    compiled = fxjit.compile(program, backend="aot_eager", dynamic=False)
    for shared in (*order, order[0]):
        mine, theirs = pair(shared), pair(shared)
        torch.testing.assert_close(compiled(*theirs), program(*mine))
        for a, b in zip(theirs, mine, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
def test_the_program_of_the_report(requires_grad: bool):
    def program(a, n, w):
        a.add_(1)
        return torch.from_numpy(n) * 2 + a * w

    compiled = fxjit.compile(program, backend="native")
    for shared in (True, False, True):
        results = []
        for function in (program, compiled):
            a, n = _tensor_and_array(shared)
            w = torch.full((6,), 2.0, requires_grad=requires_grad)
            result = function(a, n, w)
            if requires_grad:
                result.sum().backward()
            results.append((result.detach(), a, w.grad))
        torch.testing.assert_close(results[1], results[0])
