"""Guards on the metadata of traceable wrapper subclasses: the second result of `__tensor_flatten__`."""

from __future__ import annotations

import copy
from typing import Any

from fxjit.guards.kinds import Guard, short
from fxjit.guards.source import Source


class UnguardableMetadata(Exception):
    """The metadata cannot be compared with that of another call; why."""


class WrapperMetadataIs(Guard):
    """`__tensor_flatten__` names the same inner tensors and gives metadata that the class's `__metadata_guard__` accepts or,
    without one, that is equal (the protocol that torch documents for subclasses).

    Raises UnguardableMetadata where the metadata is not equal to itself."""

    __slots__ = ("_attrs", "_metadata")
    hint = ("the metadata of `__tensor_flatten__` is part of the program; keep there what the class's operators decide on, or "
            "give the class a `__metadata_guard__`")

    def __init__(self, source: Source, wrapper: Any) -> None:
        attrs, metadata = wrapper.__tensor_flatten__()
        self._attrs = tuple(attrs)
        self._metadata = _copied(metadata)
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
        return bool(metadata == self._metadata if accepts is None else accepts(self._metadata, metadata))

    def expected(self) -> str:
        return f"the inner tensors {', '.join(self._attrs)} and the metadata {short(self._metadata)}"

    def found(self, *values: Any) -> str:
        attrs, metadata = values[0].__tensor_flatten__()
        return f"{', '.join(attrs)} and {short(metadata)}"


def _copied(metadata: Any) -> Any:
    """A copy, which does not follow what the program does to the metadata; itself where a copy is another thing."""
    try:
        made = copy.deepcopy(metadata)
        return made if made == metadata else metadata
    except Exception:  # the program's own code: what it cannot copy or compare is kept
        return metadata
