"""Special methods of C, bound by `__get__` before the compiled function: `object.__setattr__.__get__` as attrs keeps it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

SET, DELETE, HASH = object.__setattr__.__get__, object.__delattr__.__get__, object.__hash__.__get__
ADD, SHAPE, PLUS, ON_GPU = torch.Tensor.add.__get__, torch.Tensor.shape.__get__, torch.Tensor.__add__.__get__, (
    torch.Tensor.is_cuda.__get__)


class Frozen:
    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("frozen")

    def __delattr__(self, name: str) -> None:
        raise RuntimeError("frozen")


class FrozenSlots(Frozen):
    __slots__ = ("y",)


class OwnShape(torch.Tensor):
    def add(self, other: Any) -> Any:
        return 5

    @property
    def shape(self) -> Any:
        return 3


def sets(x: torch.Tensor) -> Any:
    found = []
    for obj in (Frozen(), FrozenSlots()):
        setter = SET(obj)
        setter("y", x)
        found.append(obj.y + 1)  # type: ignore[attr-defined]  # set past the class
    return found


def deletes(x: torch.Tensor) -> Any:
    obj = Frozen()
    SET(obj)("y", x)
    DELETE(obj)("y")
    return x + 1, hasattr(obj, "y")


def of_tensors(x: torch.Tensor) -> Any:
    return ADD(x)(x), tuple(SHAPE(x)), PLUS(x)(x), ON_GPU(x)


@pytest.mark.parametrize("fn", [sets, deletes, of_tensors])
def test_a_bound_special_method(fn: Any) -> None:
    assert_same_as_eager(fn, torch.ones(2))


def of_a_subclass(x: torch.Tensor) -> Any:
    part = x.as_subclass(OwnShape)
    return ADD(part)(x).as_subclass(torch.Tensor), tuple(SHAPE(part))


def test_what_a_subclass_has_is_not_asked() -> None:
    assert_same_as_eager(of_a_subclass, torch.ones(2), fullgraph=False)



def of_quantized(x: torch.Tensor) -> Any:
    return x.t().dequantize() * 2


def test_a_method_of_an_untraced_tensor_is_one_break() -> None:
    given = torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8)
    assert_same_as_eager(of_quantized, given, fullgraph=False, breaks=2)
