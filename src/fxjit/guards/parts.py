"""What is computed of several objects: its source, and guards about it, as checks of these, each of which has one way from the
frame."""

from __future__ import annotations

from typing import Any

from fxjit.guards.kinds import Guard
from fxjit.guards.source import ApplySource, Loader, Scope, Source


def together(*objects: Any) -> tuple[Any, ...]:
    return objects


class TogetherSource(Source):
    """The tuple of what several sources lead to, for what is computed of all of them. No node of a guard tree has several
    parents: a guard about what follows from one is about the parts (tree.py)."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Source, ...]) -> None:
        self.parts = parts
        self._hash = hash((TogetherSource, parts))

    @property
    def name(self) -> str:
        return ", ".join(part.name for part in self.parts)

    def fetch(self, scope: Scope) -> Any:
        return tuple(part.fetch(scope) for part in self.parts)

    def load(self, loader: Loader) -> None:
        loader.begin_call(together)
        for part in self.parts:
            loader.load_source(part)
        loader.call(len(self.parts))

    def _same(self, other: Any) -> bool:
        return bool(self.parts == other.parts)


class OfParts:
    """`guard.holds`, as a function of what `parts` lead to: its sources, or the objects that these start from together."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.parts: tuple[Source, ...] = tuple(dict.fromkeys(part for source in guard.sources for part in _parts(source)))

    def __call__(self, *values: Any) -> bool:
        known = dict(zip(self.parts, values, strict=True))
        try:
            found = [_value(source, known) for source in self._guard.sources]
        except Exception:  # as of any look-up: the program meets it where it calls the function
            return False
        return self._guard.holds(*found)


def _parts(source: Source) -> list[Source]:
    root = source.root
    return [each for part in root.parts for each in _parts(part)] if isinstance(root, TogetherSource) else [source]


def _value(source: Source, known: dict[Source, Any]) -> Any:
    if source in known:
        return known[source]
    if isinstance(source, TogetherSource):
        return tuple(_value(part, known) for part in source.parts)
    assert isinstance(source, ApplySource), f"{source.name} is no function of several objects"
    return source.fn(_value(source.base, known))
