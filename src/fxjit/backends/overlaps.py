"""Inputs that lie in one memory, of which a graph writes to one.

What AOTAutograd makes of a graph holds for inputs that meet as those did that it was made for: apart, or on each other at a
certain distance. No guard asks that of each call. So a graph that writes to an input looks, and where its inputs meet otherwise
it runs as it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import _C, tensor_shim
from fxjit.counters import counters

from .eager import eager
from .graph.facts import storages_of, written_storages
from .sizes import hints

#: Of two inputs that meet: their places, and how many elements the second begins behind the first.
Meeting = tuple[int, int, int]


def as_they_meet(compiled: Callable[..., Any], gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """`compiled`, and the captured graph for inputs that meet otherwise than the example inputs."""
    places = gm.graph.find_nodes(op="placeholder")
    memory = written_storages(gm)
    written = [place for place, node in enumerate(places) if not storages_of([node]).isdisjoint(memory)]
    itemsizes = tuple(_itemsize(each) * (-1 if place in written else 1) for place, each in enumerate(example_inputs))
    if len(places) != len(example_inputs) or not written or sum(map(bool, itemsizes)) < 2 or not tensor_shim.ensure():
        return compiled
    expected, meets = _meetings(example_inputs, written), _C.memory_meets

    def run(*args: Any) -> Any:
        if (expected or meets(args, itemsizes)) and _meetings(args, written) != expected:
            counters["aot"]["calls whose inputs meet otherwise"] += 1
            return eager(gm, example_inputs)(*args)
        return compiled(*args)

    _C.set_flags(run.__code__, _C.TRANSFORMED)
    return run


def _itemsize(value: Any) -> int:
    return value.element_size() if isinstance(value, torch.Tensor) and value.layout is torch.strided else 0


def _meetings(values: Sequence[Any], written: Sequence[int]) -> set[Meeting]:
    found = set()
    for place in written:
        for other, value in enumerate(values):
            if other != place and _itemsize(value) and (distance := _distance(values[place], value)) is not None:
                found.add((place, other, distance))
    return found


def _distance(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """How many elements of its own b begins behind a; None where the two do not meet."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return None
    (begin, end), (other, other_end) = _extent(a), _extent(b)
    return (other - begin) // b.element_size() if begin < other_end and other < end else None


def _extent(x: torch.Tensor) -> tuple[int, int]:
    """The first byte of its storage that is the tensor's, and the one behind the last; of what varies, as it is here."""
    rows: list[Any] = [hints(x.shape), hints(x.stride()), hints([x.storage_offset()])]
    sizes, strides, (offset,) = rows
    if any(None in row for row in rows) or 0 in sizes:
        return 0, 0
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return offset * x.element_size(), (last + 1) * x.element_size()
