"""Results of the frontend: one frozen `TraceResult` a traced frame.

trace.py makes it; pipeline.py hands its parts to the backend, to resume/ and to guards/. Values in it are
symbolic: resume/rebuild.py turns them into bytecode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fxjit.frontend.values.base import Value

if TYPE_CHECKING:

    import torch.fx

    from fxjit.errors import BreakGraph
    from fxjit.frontend.bytecode.instruction import Code
    from fxjit.frontend.effects import Effect, Effects
    from fxjit.frontend.rng_steps import RngSteps
    from fxjit.guards.kinds import GuardSet
    from fxjit.guards.source import Source


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One placeholder: where the frame finds the object, and the real object it had while tracing."""

    source: Source
    example: Any


class FinishedGraph(Protocol):
    """The graph of a trace, still open for its outputs."""

    inputs: Sequence[GraphInput]

    def finish(self, outputs: Sequence[Value]) -> torch.fx.GraphModule | None:
        """Make `outputs` (values with a node) the graph's output tuple, drop what nothing needs, and give the module;
        None when no operation is left. After it, `inputs` holds just the inputs still used, in placeholder order."""


class ManagerValue(Protocol):
    """A context manager that is entered at a break point and can be left and re-entered there."""

    @property
    def grad_mode_inside(self) -> bool | None:
        """The grad mode that entering it sets; None where it sets none."""

    @property
    def exit_state(self) -> Callable[[Any], Any] | None:
        """Given the manager to enter again, while the block is still open: one that brings about the state as it is now, if
        what ran in the block changed it. None where nothing can."""

    def push_manager(self, cg: Any) -> None:
        """Push a context manager object whose `__enter__` brings about the state inside the block, and whose `__exit__`
        restores the state outside it."""


@dataclass(frozen=True, slots=True)
class WithBlock:
    """A `with` that is open at the break point: `stack_index` is where its exit callable lies on the stack."""

    stack_index: int
    manager: ManagerValue


@dataclass(frozen=True, slots=True)
class FrameState:
    """The symbolic frame at the break point."""

    stack: tuple[Value, ...]            # bottom to top; base.NULL for NULL
    locals: Mapping[str, Value]         # bound plain locals that are live afterwards; Lazy where never looked at
    cells: Mapping[str, Value]          # cellvars and freevars by name: values whose runtime object is the cell itself
    blocks: tuple[WithBlock, ...] = ()  # to be left and entered again, outermost first
    #: Locals that nothing reads any more, but whose objects live as long as the frame does.
    kept: frozenset[str] = frozenset()
    #: Where an exception is being handled: the stack index of what PUSH_EXC_INFO put below it, and the exception.
    handled: Mapping[int, Value] = field(default_factory=dict)
    #: The stack indices of the iterators of loops that are resumed: they move on for real from here on.
    loops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """The frame ran to its end."""

    value: Value
    lets_go: tuple[str, ...] = ()
    """The arguments to unbind first, in this order: what they hold may end there."""


@dataclass(frozen=True, slots=True)
class InnerFrame:
    """A function that the traced frame, or an inner frame around it, was running when it broke: `state` is before
    `code.instructions[index]` in the innermost, and behind the CALL there, without its result, in the others."""

    code: Code
    index: int
    state: FrameState
    globals: dict[str, Any]
    first: Value | None
    """What its first argument slot holds, where `super()` will look for it."""
    constructs: bool = False
    """It is an `__init__` that returns None, and the call gives what lies on top of the caller's stack."""


@dataclass(frozen=True, slots=True)
class Break:
    """The frame breaks before `code.instructions[index]`. kind 'instruction': run it as it stands and go on behind it;
    'branch': it is a conditional jump on a value known only at run time (two resume functions); 'resume': the
    instruction itself can be traced by the resume function, go on *at* it; 'region': a loop, `try` or `with` that breaks begins
    there, which CPython runs.

    With `inner`, outermost first, all that is about the last of them, and the frame itself is at a call as they are."""

    index: int
    kind: str
    state: FrameState
    reason: BreakGraph
    inner: tuple[InnerFrame, ...] = ()
    keeps_blocks: bool = False
    """The instruction changes state that the blocks around it hold: they stay entered from there on."""
    skip: tuple[str, dict[str, Any]] | None = None
    """Of a region: the reason to skip the frame, where the graph comes to little, and its context."""
    lets_go: tuple[str, ...] = ()
    """Of an inner frame that returns: the arguments to unbind first, in this order."""


@dataclass(frozen=True, slots=True)
class SpeculationCheck:
    """The trace took ways that only the data can confirm."""

    #: What the graph gives out behind all else: a boolean tensor, whether the data takes the same ways.
    flag: Value
    #: What undoes what the graph did.
    undo: UndoPlan


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """What to save before a graph runs, to undo what it did where it fails."""

    #: The inputs that it writes to.
    written: tuple[torch.fx.Node, ...]
    #: Whether it draws from the default generators.
    draws: bool
    #: Whether these inputs are more than is copied for each run.
    large: bool
    #: Whether it may write to other memory of their storages than their own, or change their shapes.
    whole: bool


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What the user's code needs to run from its beginning where the graph failed before it wrote to its inputs."""

    #: Whether the graph draws from the default generators, and whether it looks anything up by integers, so that it may fail.
    draws: bool
    looks_up: bool


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Everything that was learned from one frame."""

    code: Code                      # of the traced code object (a resume function's own code included)
    arg_names: tuple[str, ...]      # the frame's argument slots, in order
    graph: FinishedGraph
    guards: GuardSet
    effects: tuple[Effect, ...]
    effect_log: Effects
    end: Return | Break
    first_line: int
    globals: dict[str, Any]
    finish_trace: Callable[[], None]
    rng_steps: RngSteps                    # what new code computes before the graph runs
    speculated: SpeculationCheck | None = None
    #: Whether the user's code may run from its beginning where the graph failed.
    repeatable: bool = False
    #: What makes it so for a graph that is not repeatable, behind effects that would be lost, or in a block that may catch.
    undoable: UndoPlan | None = None
    #: And where the graph says that there is nothing to undo; None where it might not know.
    restart: RestartPlan | None = None
