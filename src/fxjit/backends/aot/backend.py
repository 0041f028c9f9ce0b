"""The description of a backend whose graphs are compiled through AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch.fx

from .runtime.call_plan import CallPlan
from .runtime.version_counters import VersionCounterEffects

if TYPE_CHECKING:
    from .rules import IsUnprofitable

Boxed = Callable[[list[Any]], Any]


class GraphCompiler(Protocol):
    """Compiles one ATen graph; `name` is forward, backward or inference. The result takes a list and empties it."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> Boxed: ...


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The outcome for a captured graph: compiled graphs with a call plan; or AOTAutograd's callable over them; or the rule
    by which it runs as captured."""

    graphs: Mapping[str, Boxed] = field(default_factory=dict)
    plan: CallPlan | None = None
    #: AOTAutograd's, with its runtime wrappers, where they have work to do. Never stored.
    call: Callable[..., Any] | None = None
    versions: VersionCounterEffects = field(default_factory=VersionCounterEffects)
    #: The rule's id, and what else is known of why.
    rule: str | None = None
    because: str = ""


class StoreEntry(Protocol):
    """Where the compile result of one captured graph is kept from process to process."""

    key: str
    #: Whether it is there, as far as this process knows.
    is_kept: bool

    def find(self) -> CompileResult | None: ...

    def recording(self) -> AbstractContextManager[None]:
        """Around the compile of a graph that was not found."""

    def keep(self, result: CompileResult) -> None: ...

    def message(self, result: CompileResult) -> bytes:
        """The result for another process to `receive`."""

    def receive(self, message: bytes) -> CompileResult:
        """Raises tiers.Refused."""


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """How a backend has graphs compiled."""

    compiler: GraphCompiler
    #: The backend's name.
    name: str
    decompositions: Callable[[], dict[Any, Callable[..., Any]] | None] = lambda: None
    #: Passes over a joint graph, before it is cut into forward and backward.
    joint_passes: Callable[[torch.fx.GraphModule], None] = lambda joint: None
    #: Whether activations are recomputed where that saves memory traffic (a min-cut), or all saved.
    min_cut: bool = True
    #: The store's entry for a graph with such inputs, if it can have one.
    store_entry: Callable[[torch.fx.GraphModule, Sequence[Any]], StoreEntry | None] = lambda gm, inputs: None
    #: Stops what a compile started, in a process that has to end before it is over.
    abandon: Callable[[], object] = lambda: None
    #: The profitability heuristic.
    is_unprofitable: IsUnprofitable = lambda gm, plan, graphs: False
    #: Passes over a captured graph that AOTAutograd is to trace. Where it runs as it was captured, and for second derivatives,
    #: it is without them.
    captured_passes: Callable[[torch.fx.GraphModule], torch.fx.GraphModule] = lambda gm: gm
