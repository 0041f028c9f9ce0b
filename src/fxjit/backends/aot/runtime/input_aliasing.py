"""Input aliasing check: aliased inputs of which the graph mutates one.

AOTAutograd's graph holds for inputs that share memory as those did that it was made for: apart, or at a certain distance. No
guard asks that of each call. So a graph that mutates an input compares, and one whose inputs share memory otherwise runs as
captured. AOTAutograd goes by storages: inputs that share memory through two of them (an array's and a tensor's, two arrays',
two buffers' over one) are apart to it, and their graph always runs as captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from fxjit import _C, tensor_shim
from fxjit.tensor_wrappers import flattened, is_wrapper

from ...graph.facts import mutated_inputs
from ...graph.layout import byte_range

#: Two inputs whose memory meets: their indices, and how many elements the second begins behind the first.
Alias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class AliasedInputs:
    """How the inputs of a graph that mutates one share memory."""

    #: In bytes; negative for mutated inputs, zero for what has no memory of its own.
    itemsizes: tuple[int, ...]
    mutated: tuple[int, ...]
    aliases: frozenset[Alias]
    #: Some are wrapper subclasses: graphs over them are compiled only where nothing that is written is shared (aot/rules.py).
    has_wrappers: bool = False


def aliased_inputs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> AliasedInputs | None:
    """Of the inputs that a graph is compiled for; None where the graph mutates no input, or has no other tensor."""
    places = gm.graph.find_nodes(op="placeholder")
    mutated = mutated_inputs(gm)
    if mutated and any(map(is_wrapper, example_inputs)):
        return AliasedInputs((), mutated, frozenset(), has_wrappers=True)
    itemsizes = tuple(_itemsize(each) * (-1 if place in mutated else 1) for place, each in enumerate(example_inputs))
    if len(places) != len(example_inputs) or not mutated or sum(map(bool, itemsizes)) < 2 or not tensor_shim.ensure():
        return None
    return AliasedInputs(itemsizes, mutated, _aliases(example_inputs, mutated))


def checking_aliases(call: Callable[..., Any], expected: AliasedInputs, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, and `fallback` for inputs that share memory otherwise than was expected."""
    if expected.has_wrappers:
        return _checking_inner(call, frozenset(expected.mutated), fallback)
    itemsizes, mutated, aliases, may_alias = expected.itemsizes, expected.mutated, expected.aliases, _C.memory_meets

    def run(*args: Any) -> Any:
        if aliases or may_alias(args, itemsizes):
            if _aliases(args, mutated) != aliases or _alias_across_storages(args, mutated):
                return fallback(*args)
        return call(*args)

    return run


def _checking_inner(call: Callable[..., Any], mutated: frozenset[int], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """The same of what wrappers are made of."""
    def run(*args: Any) -> Any:
        pieces = [(place, each) for place, arg in enumerate(args) if isinstance(arg, torch.Tensor) for each in flattened(arg)]
        written = [index for index, (place, _) in enumerate(pieces) if place in mutated]
        return fallback(*args) if _aliases([each for _, each in pieces], written) else call(*args)

    return run


def _itemsize(value: Any) -> int:
    return value.element_size() if isinstance(value, torch.Tensor) and value.layout is torch.strided else 0


def _aliases(values: Sequence[Any], mutated: Sequence[int]) -> frozenset[Alias]:
    found = set()
    for place in mutated:
        for other, value in enumerate(values):
            if other != place and _itemsize(value) and (distance := _distance(values[place], value)) is not None:
                found.add((place, other, distance))
    return frozenset(found)


def _alias_across_storages(values: Sequence[Any], mutated: Sequence[int]) -> bool:
    return any(
        values[place].untyped_storage()._cdata != value.untyped_storage()._cdata and _meet(values[place], value)
        for place in mutated for other, value in enumerate(values) if other != place and _itemsize(value)
    )


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    (begin, end), (other, other_end) = _addresses(a), _addresses(b)
    return begin < other_end and other < end and a.device == b.device


def _addresses(x: torch.Tensor) -> tuple[int, int]:
    """The first byte in memory that is the tensor's, and the one behind the last."""
    begin, end = byte_range(x)
    return x.data_ptr(), x.data_ptr() + end - begin


def _distance(a: torch.Tensor, b: torch.Tensor) -> int | None:
    """How many elements of its own b begins behind a; None where the two share none."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return None
    (begin, end), (other, other_end) = byte_range(a), byte_range(b)
    return (other - begin) // b.element_size() if begin < other_end and other < end else None
