"""Input aliasing check: aliased inputs of which the graph mutates one.

AOTAutograd's graph holds for inputs that share memory as those did that it was made for: apart, or at a certain distance. No
guard asks that of each call. So a graph that mutates an input compares, and one whose inputs share memory otherwise runs as
captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import _C, tensor_shim
from fxjit.tensor_wrappers import flattened, is_wrapper

from ...graph.facts import mutated_inputs
from ...graph.layout import byte_range

#: Two inputs whose memory meets: their indices, and how many elements the second begins behind the first.
Alias = tuple[int, int, int]


def checking_aliases(call: Callable[..., Any], gm: torch.fx.GraphModule, example_inputs: Sequence[Any],
                     fallback: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, and `fallback` for inputs that share memory otherwise than the example inputs. Only `call` where the graph
    mutates no input, or has no other tensor."""
    places = gm.graph.find_nodes(op="placeholder")
    mutated = mutated_inputs(gm)
    if mutated and any(map(is_wrapper, example_inputs)):
        return _checking_wrappers(call, frozenset(mutated), fallback)
    # In bytes; negative for mutated inputs, zero for what has no memory of its own.
    itemsizes = tuple(_itemsize(each) * (-1 if place in mutated else 1) for place, each in enumerate(example_inputs))
    if len(places) != len(example_inputs) or not mutated or sum(map(bool, itemsizes)) < 2 or not tensor_shim.ensure():
        return call
    expected, may_alias = _aliases(example_inputs, mutated), _C.memory_meets

    def run(*args: Any) -> Any:
        if (expected or may_alias(args, itemsizes)) and _aliases(args, mutated) != expected:
            return fallback(*args)
        return call(*args)

    return run


def _checking_wrappers(call: Callable[..., Any], mutated: frozenset[int], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """The same where inputs are wrappers, for which graphs are compiled only where nothing that is written is shared."""
    def run(*args: Any) -> Any:
        pieces = [(place, each) for place, arg in enumerate(args) if isinstance(arg, torch.Tensor) for each in flattened(arg)]
        inner = [each for _, each in pieces]
        written = [index for index, (place, _) in enumerate(pieces) if place in mutated]
        return fallback(*args) if _aliases(inner, written) else call(*args)

    return run


def _itemsize(value: Any) -> int:
    return value.element_size() if isinstance(value, torch.Tensor) and value.layout is torch.strided else 0


def _aliases(values: Sequence[Any], mutated: Sequence[int]) -> set[Alias]:
    found = set()
    for place in mutated:
        for other, value in enumerate(values):
            if other != place and _itemsize(value) and (distance := _distance(values[place], value)) is not None:
                found.add((place, other, distance))
    return found


def _distance(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """How many elements of its own b begins behind a; None where the two share none."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return None
    (begin, end), (other, other_end) = byte_range(a), byte_range(b)
    return (other - begin) // b.element_size() if begin < other_end and other < end else None
