"""`np.shares_memory` and `np.may_share_memory`: NumPy is asked about arrays of the same places in a memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.numpy_ import ArrayValue, call_function
from fxjit.overlap import array_in_place_of


def _memory_of(value: Value) -> torch.Tensor | None:
    """A tensor that lies where the array does; None: there is none, or it has no elements of which that could be said."""
    value = value.realize()
    if type(value) is not ArrayValue or value.scalar:  # others are views that no tensor is
        return None
    fake: torch.Tensor = value.tensor.fake
    return fake if all(type(each) is int for each in (*fake.shape, *fake.stride(), fake.storage_offset())) else None


def _was_given(value: Value, fake: torch.Tensor) -> bool:
    """Whether it lies in memory that the frame found: two such may be parts of one."""
    node: Any = value.realize().tensor.node  # type: ignore[attr-defined]  # an ArrayValue
    given = [each.meta.get("example_value") for each in node.graph.find_nodes(op="placeholder")]
    return any(isinstance(each, torch.Tensor) and _memory(each) == _memory(fake) for each in given)


def _memory(fake: torch.Tensor) -> int:
    address: int = fake.untyped_storage()._cdata
    return address


def _shares(fn: Callable[..., bool]) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = [_memory_of(arg) for arg in args] if len(args) == 2 and not kwargs else [None]
        known = [fake for fake in found if fake is not None]
        if len(known) < 2:
            return call_function(t, fn, args, kwargs)
        one, other = known
        if _memory(one) == _memory(other):
            return t.make(fn(array_in_place_of(one), array_in_place_of(other)))
        if all(map(_was_given, args, known)):
            return call_function(t, fn, args, kwargs)
        return t.make(False)


_shares(np.shares_memory)
_shares(np.may_share_memory)
