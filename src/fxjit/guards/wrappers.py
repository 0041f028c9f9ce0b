"""Guards on the metadata of traceable wrapper subclasses: the second result of `__tensor_flatten__`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from fxjit.guards.held import short
from fxjit.guards.kinds import Guard
from fxjit.guards.source import Source


class UnguardableMetadata(Exception):
    """The metadata cannot be compared with that of another call; why."""


class WrapperMetadataIs(Guard):
    """`__tensor_flatten__` names the same inner tensors and gives metadata that the class's `__metadata_guard__` accepts or,
    without one, that is equal (the protocol that torch documents for subclasses). What is a symbolic size or stride in the
    metadata of the `fake` tensor has to be that size or stride of the instance, as in a distributed tensor's.

    Raises UnguardableMetadata where the metadata is not equal to itself."""

    __slots__ = ("_attrs", "_metadata")
    hint = ("the metadata of `__tensor_flatten__` is part of the program; keep there what the class's operators decide on, or "
            "give the class a `__metadata_guard__`")

    def __init__(self, source: Source, wrapper: Any, fake: Any) -> None:
        attrs, metadata = wrapper.__tensor_flatten__()
        self._attrs = tuple(attrs)
        self._metadata = _copied(metadata)
        if not hasattr(type(wrapper), "__metadata_guard__"):
            self._metadata = _varying(self._metadata, fake.__tensor_flatten__()[1], wrapper, fake)
        super().__init__((source,), id(type(wrapper)), id(self._metadata))
        try:
            accepted = self.holds(wrapper)
        except Exception as error:
            raise UnguardableMetadata(f"comparing its metadata raises {type(error).__name__}: {error}") from error
        if not accepted:
            raise UnguardableMetadata("its metadata is not equal to itself")

    def holds(self, *values: Any) -> bool:
        value = values[0]
        attrs, metadata = value.__tensor_flatten__()
        if tuple(attrs) != self._attrs:
            return False
        accepts = getattr(type(value), "__metadata_guard__", None)
        return _agree(self._metadata, metadata, value) if accepts is None else bool(accepts(self._metadata, metadata))

    def expected(self) -> str:
        return f"the inner tensors {', '.join(self._attrs)} and the metadata {short(self._metadata)}"

    def found(self, *values: Any) -> str:
        attrs, metadata = values[0].__tensor_flatten__()
        return f"{', '.join(attrs)} and {short(metadata)}"


@dataclass(frozen=True)
class _OwnNumber:
    """A number of the metadata that is a size or a stride of the tensor."""

    name: str
    dim: int

    def of(self, tensor: torch.Tensor) -> int:
        return (tensor.size if self.name == "size" else tensor.stride)(self.dim)

    def __repr__(self) -> str:
        return f"{self.name}({self.dim})"


class _Items(tuple[Any, ...]):
    """A tuple with such a number in it."""


def _varying(metadata: Any, symbolic: Any, wrapper: torch.Tensor, fake: torch.Tensor) -> Any:
    """`metadata`, with the wrapper's own numbers where the fake tensor's (`symbolic`) has a symbolic one."""
    if isinstance(symbolic, torch.SymInt):
        for name, numbers in (("size", fake.shape), ("stride", fake.stride())):
            for dim, number in enumerate(numbers):
                own = _OwnNumber(name, dim)
                if isinstance(number, torch.SymInt) and number.node.expr == symbolic.node.expr and own.of(wrapper) == metadata:
                    return own
        return metadata
    if not isinstance(metadata, tuple) or not isinstance(symbolic, tuple) or len(symbolic) != len(metadata):
        return metadata
    items = _Items(_varying(one, other, wrapper, fake) for one, other in zip(metadata, symbolic, strict=True))
    same = all(one is other for one, other in zip(items, metadata, strict=True))
    return metadata if same else items


def _agree(kept: Any, metadata: Any, tensor: torch.Tensor) -> bool:
    if isinstance(kept, _OwnNumber):
        return type(metadata) is int and metadata == kept.of(tensor)
    if not isinstance(kept, _Items):
        return bool(metadata == kept)
    return isinstance(metadata, tuple) and len(metadata) == len(kept) and all(
        _agree(one, other, tensor) for one, other in zip(kept, metadata, strict=True))


def _copied(metadata: Any) -> Any:
    """A copy, which does not follow what the program does to the metadata; itself where a copy is another thing."""
    try:
        made = copy.deepcopy(metadata)
        return made if made == metadata else metadata
    except Exception:  # the program's own code: what it cannot copy or compare is kept
        return metadata
