"""Records of compiles: what an entry was made of, which the entry holds until it is written to the disk or to an artifact.

They are light, since every compile makes one: how an entry is said as data is in entries.py, which is imported when one is to
be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from fxjit.backends.graph.recipe import AnyRecipe
from fxjit.events import FrameSkipped, GraphBreak
from fxjit.guards.kinds import GuardSet
from fxjit.process_state import ResultOf

from .state import State

if TYPE_CHECKING:
    from fxjit.resume.deoptimization import SpeculativeGraph


@dataclass(frozen=True, slots=True)
class Compiled:
    """The parts of a compiled entry."""

    guards: GuardSet
    arg_names: tuple[str, ...]
    new_code: CodeType
    #: The callable of the graph in the new code, and what the driver noted of it.
    graph: Callable[..., Any] | None
    recipes: Sequence[AnyRecipe | None]
    #: Why it holds in this process alone, or has a form that data cannot say.
    bound: Collection[str | ResultOf]
    #: The names of the operators in its graph.
    ops: tuple[str, ...]
    #: The state of the process when it was compiled, and the module whose globals its frame had.
    state: State
    home: str
    #: What calls the graph of a branch that was speculated on.
    speculative: SpeculativeGraph | None = None
    #: The break that its graph ends at, and what it was found by: the guards say only what the entry itself relies on, which
    #: may hold where another program would not break.
    broke: GraphBreak | None = None
    found_by: GuardSet | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A frame that was given up: it runs as it stands, and the guards say what that was decided by."""

    guards: GuardSet
    arg_names: tuple[str, ...]
    event: FrameSkipped
    #: Why it holds in this process alone.
    bound: Collection[str | ResultOf]
    state: State
    home: str


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry, or a skip, that came from the disk or from an artifact: its key, and itself as data."""

    key: str
    packed: Any
