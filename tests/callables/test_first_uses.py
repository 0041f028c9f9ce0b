"""Tables that a package fills at its first call: filled before the trace, so that the first entry holds for the second call."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch import Tensor, nn

import fxjit
from fxjit.testing import CompileCounter

#: How einops finds the backend of a tensor, by the same names.
SOURCE = """
_loaded_backends = {}
_type2backend = {}


def get_backend(tensor):
    kind = type(tensor)
    found = _type2backend.get(kind, None)
    if found is not None:
        return found
    for backend in list(_loaded_backends.values()):
        if backend.is_appropriate_type(tensor):
            _type2backend[kind] = backend
            return backend
    backend = Backend()
    _loaded_backends["torch"] = backend
    if backend.is_appropriate_type(tensor):
        _type2backend[kind] = backend
        return backend
    raise RuntimeError(f"Tensor type unknown to einops {kind}")


class Backend:
    def is_appropriate_type(self, tensor):
        return isinstance(tensor, torch.Tensor)

    def reshape(self, x, shape):
        return x.reshape(shape)


def flattened(x):
    return get_backend(x).reshape(x, -1)
"""
WEIGHT = nn.Parameter(torch.randn(2, 3))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("einops._backends")
    module.__dict__["torch"] = torch
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "einops._backends", module)
    return module


@pytest.mark.parametrize("weight", [torch.randn(2, 3), WEIGHT], ids=["tensors", "tensors_and_parameters"])
def test_second_call_finds_an_entry(package: types.ModuleType, weight: Tensor) -> None:
    counter = CompileCounter()

    @fxjit.compile(backend=counter, fullgraph=True)
    def f(x: Tensor) -> Tensor:
        return package.flattened(x) * package.flattened(weight)

    x = torch.randn(2, 3)
    for _ in range(3):
        torch.testing.assert_close(f(x), (x * weight).reshape(-1))
    assert counter.frame_count == 1


def test_table_is_as_eager_has_it(package: types.ModuleType) -> None:
    def f(x: Tensor) -> tuple[Tensor, bool]:
        return package.flattened(x) + 1, Tensor in package._type2backend

    assert_same_as_eager(f, torch.randn(2, 3))
    assert set(package._type2backend) >= {Tensor}


def test_search_that_raises(package: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the search raises for a tensor, it raises where the program comes to it."""
    def refuses(self: object, tensor: Tensor) -> bool:
        raise LookupError("no backend")

    monkeypatch.setattr(package.Backend, "is_appropriate_type", refuses)

    def f(x: Tensor) -> Tensor | str:
        y = x + 1
        try:
            return package.flattened(y)
        except LookupError as error:
            return f"{error}"

    assert_same_as_eager(f, torch.randn(2, 3), fullgraph=False)
