"""Recipes: how the callable of a captured graph is made again without the graph's trace, as backends note them.

A callable has a recipe where it is one compiled graph that the store has, one that runs as it was captured, or parts of a
graph that have recipes. Of every other None is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

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


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a graph that runs by itself: the nodes whose values it takes and gives."""

    recipe: AnyRecipe
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]
    inference: bool


@dataclass(frozen=True, slots=True)
class PartsRecipe:
    """A graph whose parts run one after the other (split.py)."""

    captured: torch.fx.GraphModule
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class RecordedRecipe:
    """A graph that runs with autograd's recording on, wherever it is called."""

    recipe: AnyRecipe

    @property
    def captured(self) -> torch.fx.GraphModule:
        return self.recipe.captured


@dataclass(frozen=True, slots=True)
class SizedRecipe:
    """A graph that is given sizes of its inputs, too: each the position of an input, and a dimension."""

    recipe: AnyRecipe
    captured: torch.fx.GraphModule
    sizes: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class PendingRecipe:
    """A graph that runs as it was captured until a helper process has compiled it (tiers/): its recipe once that is known."""

    captured: torch.fx.GraphModule
    made: Recipe | None = None


AnyRecipe: TypeAlias = Recipe | PartsRecipe | RecordedRecipe | SizedRecipe | PendingRecipe

_noted: ContextVar[list[AnyRecipe | None] | None] = ContextVar("noted", default=None)


def note(recipe: AnyRecipe | None) -> None:
    """A callable was made; None: in a way that has no recipe."""
    notes = _noted.get()
    if notes is not None:
        notes.append(recipe)


@contextmanager
def noted() -> Iterator[list[AnyRecipe | None]]:
    """Gives what is noted inside. A callable has a recipe if that is all that was noted."""
    notes: list[AnyRecipe | None] = []
    token = _noted.set(notes)
    try:
        yield notes
    finally:
        _noted.reset(token)


def only(notes: Sequence[AnyRecipe | None]) -> AnyRecipe | None:
    """The recipe of what was made while `notes` were taken."""
    return notes[0] if len(notes) == 1 else None


def with_sizes(call: Callable[..., Any], sizes: Sequence[tuple[int, int]]) -> Callable[..., Any]:
    """`call`, given sizes of its inputs, too."""
    return lambda *args: call(*args, *(args[position].shape[dim] for position, dim in sizes))
