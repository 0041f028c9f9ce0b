"""Recipes: how the callable of a captured graph is made again without the graph's trace, as backends note them.

A callable has a recipe where it is one compiled graph that the store has, or one that runs as it was captured. Of every other
None is noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.fx

    from fxjit.backends.aot.decisions import Decision
    from fxjit.backends.aot.runtime.input_aliasing import AliasedInputs
    from fxjit.backends.aot.runtime.output_views import CreationRecord


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of a callable over the captured graph's inputs."""

    captured: torch.fx.GraphModule
    #: Of the store's entry; None for a graph that runs as captured.
    key: str | None = None
    #: The rule by which it does; None where the backend runs all graphs so.
    rule: Decision | None = None
    because: str = ""
    aliases: AliasedInputs | None = None
    creation: tuple[CreationRecord, ...] = ()


_noted: ContextVar[list[Recipe | None] | None] = ContextVar("noted", default=None)


def note(recipe: Recipe | None) -> None:
    """A callable was made; None: in a way that has no recipe."""
    notes = _noted.get()
    if notes is not None:
        notes.append(recipe)


@contextmanager
def noted() -> Iterator[list[Recipe | None]]:
    """Gives what is noted inside. A callable has a recipe if that is all that was noted."""
    notes: list[Recipe | None] = []
    token = _noted.set(notes)
    try:
        yield notes
    finally:
        _noted.reset(token)
