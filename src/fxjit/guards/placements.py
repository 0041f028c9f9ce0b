"""Guards on the placements of distributed tensors (Shard, Replicate, Partial): values, compared by `==`."""

from __future__ import annotations

from typing import Any

from fxjit.guards.held import short
from fxjit.guards.kinds import Guard
from fxjit.guards.source import Source


class PlacementIs(Guard):
    """An equal placement of the same class."""

    __slots__ = ("_placement",)
    hint = "where a tensor's parts lie is a part of the program: another placement is another program"

    def __init__(self, source: Source, placement: Any) -> None:
        self._placement = placement
        super().__init__((source,), type(placement).__name__, placement)

    def holds(self, *values: Any) -> bool:
        return type(values[0]) is type(self._placement) and bool(values[0] == self._placement)

    def expected(self) -> str:
        return short(self._placement)
