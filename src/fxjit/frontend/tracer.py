"""The interface of the trace under way to values, callables and the interpreter: the one protocol `Tracer`, by subjects.

frontend/trace.py implements it. Nothing here imports anything at run time, so that every layer of the front end can name it.
`tests/architecture/test_tracer.py` sees to it that each member is used and that there is no second protocol beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    import traceback
    from types import FunctionType

    import torch
    import torch.fx

    from fxjit.frontend.interp.ends import Ends
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.interp.restart import BreakPoints
    from fxjit.frontend.rng_steps import RngSteps
    from fxjit.frontend.values.base import Lazy, Value, _NotImplemented
    from fxjit.frontend.values.made_classes import MadeClasses
    from fxjit.frontend.values.symscalar import SymValue
    from fxjit.frontend.values.tensor import TensorValue
    from fxjit.frontend.values.tensor_base import GraphTensor
    from fxjit.guards.kinds import Guard
    from fxjit.guards.source import Source


class EffectLog(Protocol):
    """The effects of the trace on objects that the caller can see (frontend/effects.py)."""

    @property
    def made_classes(self) -> MadeClasses:
        """Classes that the trace made."""

    #: Called when the outermost frame is about to return, or to break.
    before_return: list[Callable[[], object]]
    before_break: list[Callable[[], object]]

    @property
    def watches_reads(self) -> bool:
        """Whether somebody wants to know what is read."""

    def is_mutated(self, value: Value) -> bool:
        """Whether `mutate` was called with the value."""

    def is_written(self, value: Value) -> bool:
        """Whether its state or one of its attributes is."""

    def mutate(self, value: Value, name: str | None = None) -> None:
        """`value` (a container, cell or iterator) is about to change its state; `name`: of that name, in a namespace."""

    def store_attr(self, obj: Value, name: str, value: Value | None) -> None:
        """`object.__setattr__(obj, name, value)`; None deletes."""

    def load_attr(self, obj: Value, name: str) -> Value | _NotImplemented | None:
        """The pending value of an attribute; None if it was never written, NOT_IMPLEMENTED if it was deleted."""

    def stored_attrs(self, obj: Value) -> Mapping[str, Value | None]:
        """All pending writes on `obj` (None: deleted), in the order of the first write."""

    def share_attrs(self, obj: Value, owner: Value) -> None:
        """Attributes of `obj` are those of `owner`."""

    def owner(self, obj: Value) -> Value:
        """The object that stands for all whose instance dict is that of `obj`."""

    def call_later(self, fn: Callable[..., object], args: Sequence[Value | object]) -> None:
        """Call `fn(*args)` after the graph ran, in order with the other effects (setting process state...)."""

    def reporting_reads(self) -> AbstractContextManager[Callable[[], bool]]:
        """A context that reports whether its block read anything that was changed before it."""

    def recording_reads(self, on_change: Callable[[], object], changes_too: bool = False,
                        private: Value | None = None) -> AbstractContextManager[None]:
        """A context that records what its block reads of what it did not make, but for attributes of `private`, which nobody
        else can reach; `on_change` is called before that changes, and with `changes_too` before the block changes any such."""

    def forget_readers(self) -> None:
        """Forget what such blocks read: they hold the trace."""

    def note_read(self, value: Value, name: str | None = None) -> None:
        """The contents of `value` may be looked at; `name`: that alone, in a namespace."""

    def reach_back(self) -> None:
        """Something that existed before is changed by the graph itself."""

    def puts_off_only(self, fn: Callable[..., object]) -> bool:
        """Whether no call is put off but those of `fn`."""

    def forget_call(self, fn: Callable[..., object], arg: Value) -> None:
        """Forget the call `fn(arg)` that was put off."""

    def length(self) -> int:
        """A place in the log, for `withdraw_calls`."""

    def withdraw_calls(self, start: int) -> bool:
        """Forget the deferred calls since `start`, if nothing else happened since; whether it could."""

    def confined(self) -> AbstractContextManager[Callable[[], bool]]:
        """A context that reports whether its block had no effects but on values made in it, or they were undone."""

    def records(self) -> Sequence[object]:
        """The effects that new code replays."""


class ObjectTracer(Protocol):
    """Objects of the program, their values and guards."""

    #: Every Lazy of this trace, which lets go of their objects as it ends.
    lazies: list[Lazy]

    @property
    def effects(self) -> EffectLog: ...

    def wrap(self, obj: object, source: Source) -> Value:
        """The value of an object that exists already; guards what wrapping looked at. Memoised by identity."""

    def known(self, obj: object) -> Value | None:
        """The value of an object that was looked at already."""

    def object_of(self, value: Value) -> object:
        """The object from before the trace that a value stands for; None of what the trace made."""

    def make(self, obj: object) -> Value:
        """The value of an object known while tracing and reached from nowhere (a constant, a torch function, a type)."""

    def literal(self, obj: Any) -> Value:
        """The value of a constant of a code object."""

    def guard(self, guard: Guard) -> None:
        """The trace relies on this fact about an object from outside."""

    def is_held(self, value: Value) -> bool:
        """Whether something that the program can still reach holds `value`: variables of frames, what was written."""

    def new_source_state(self, key: object) -> dict[str, Any]:
        """Per-trace scratch space of a value family (rng order, functorch levels...), keyed by the family."""


class GraphTracer(Protocol):
    """The FX graph: its nodes and its inputs."""

    def emit(self, target: Callable[..., object] | str, args: Sequence[Value | object],
             kwargs: Mapping[str, Value | object] | None = None) -> Value:
        """Add a node that calls `target` (a str: the method of the first argument) and wrap what its fake run gave."""

    def given_tensor(self, tensor: torch.Tensor, source: Source, owner: Source | None = None) -> None:
        """Guards the type of a tensor that existed before, and that it (or `owner`, where it is made anew each time) is none
        of the others."""

    def graph_input(self, tensor: torch.Tensor, source: Source) -> tuple[torch.fx.Node, torch.Tensor]:
        """A placeholder for a tensor that existed before, and its fake; guards what makes the tensor of its kind."""

    def register_tensor(self, value: TensorValue) -> None:
        """Operators that give `value`'s own fake tensor back give `value`."""

    def known_tensor(self, fake: torch.Tensor) -> TensorValue | None:
        """The value that a fake tensor stands for; None where the trace did not make it."""

    def takes_backward_passes(self, gradients_alone: bool = False) -> bool:
        """Whether a backward pass becomes part of the graph. At one that gives gradients, and leaves none anywhere, the trace
        begins anew where it was not made for that."""

    def make_leaf(self, value: GraphTensor, wanted: bool) -> bool:
        """Whether the graph is independent of what `value.requires_grad_(wanted)` changes, as far as is known at this
        point."""

    def requires_grad_inside(self, value: GraphTensor) -> bool:
        """Whether a tensor requires a gradient for the sake of leaves alone that the graph made."""

    @property
    def graph_is_empty(self) -> bool:
        """Whether there is no operator in the graph so far but on sizes."""

    @property
    def graph_acts_outside(self) -> bool:
        """Whether a node that is in the graph so far may do more than compute on tensors."""

    def fake_execution(self) -> AbstractContextManager[None]:
        """Operators called inside run on fake tensors, with shapes propagated symbolically."""

    def speculate(self, tensor: TensorValue, truth: bool) -> bool:
        """Speculates that `bool(tensor)` is `truth`, and adds the check to the graph's outputs. False: the branch cannot be
        speculated on."""


class SubgraphTracer(Protocol):
    """Operators that become a graph of their own, or nothing."""

    def capture_subgraph(self, function: str) -> AbstractContextManager[list[torch.fx.Node]]:
        """Operators emitted inside are no part of the graph: the list has them afterwards, for a graph of their own or for
        nothing. An effect on what existed before breaks the graph."""

    @property
    def captures_subgraph(self) -> bool:
        """Whether operators are emitted that are no part of the graph."""

    def only_reading(self, function: str) -> AbstractContextManager[None]:
        """A write to a tensor that existed before breaks the graph."""

    def subgraph(self, nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node],
                 outputs: torch.fx.Node | Sequence[torch.fx.Node]) -> torch.fx.Node:
        """The operators emitted in `capture_subgraph`, as a graph of its own; the node that stands for it."""

    def reuse_subgraph(self, graph: torch.fx.Node) -> torch.fx.Node:
        """Another node that stands for a graph which `subgraph` made."""

    def discard(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Removes the operators emitted in `capture_subgraph` from the graph."""

    def dry_run(self, function: str) -> AbstractContextManager[None]:
        """Operators emitted inside are discarded afterwards; an effect on what existed before breaks the graph."""


class NumberTracer(Protocol):
    """Numbers that the guards compute of what existed before the frame."""

    def given_tensor_of(self, node: torch.fx.Node) -> tuple[torch.Tensor, Source] | None:
        """The tensor that existed before the frame and that this node of the graph stands for; None where it is no input, and
        where what the graph does so far may have written to it."""

    def varying_number(self, number: int | float, source: Source) -> SymValue | None:
        """A number that is taken to vary from call to call, and found at `source`; None where numbers that vary are compiled
        one by one."""

    def kept_flag(self, flag: bool | int | float, source: Source) -> Value | None:
        """A number that is taken to stay, and found at `source`; None where it is neither 0 nor 1, or has changed twice."""

    def computed_number(self, fn: Callable[..., Any], args: Sequence[Value]) -> Value | None:
        """What Python makes of constants and numbers that vary, as guards find it again (computed_numbers.py)."""


class RngTracer(Protocol):
    """Random generators: of torch in the graph, of Python and NumPy before it."""

    @property
    def rng_steps(self) -> RngSteps: ...

    @property
    def graph_uses_rng(self) -> bool:
        """Whether a node that is in the graph so far may need a random generator."""

    def random_input(self, number: int | float, source: Source, bounds: tuple[Any, Any] | None = None) -> SymValue:
        """An input of the graph for a random number computed before it runs; `number` is an example, and `bounds` are the least
        and the greatest that it may be. Nothing guards it: it is not there yet when guards are checked."""

    def random_tensor(self, tensor: torch.Tensor, source: Source, shape: Sequence[Any] = ()) -> TensorValue:
        """An input of the graph for a random array that is computed before it runs; `tensor` is an example. Its shape and dtype
        follow from what the generator was given: `shape` has those of its sizes that vary as symbols."""


class CallTracer(Protocol):
    """Calls, and the two ways in which an instruction does not end as usual."""

    def call(self, fn: Value, args: Sequence[Value], kwargs: Mapping[str, Value] | None = None) -> Value:
        """`fn(*args, **kwargs)`."""

    def inline(self, code_fn: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Run a user function's bytecode symbolically in a child frame (`code_fn` is a FunctionValue)."""

    def raise_(self, exc_type: type[BaseException], *args: object) -> NoReturn:
        """Raise in the user's program."""

    def break_(self, reason: str, **context: object) -> NoReturn:
        """The graph ends here: `reason` is an id of fxjit.reasons, `context` fills its explanation."""


class FrameTracer(Protocol):
    """The frames under way, as the interpreter keeps them."""

    #: The objects whose end somebody may see.
    ends: Ends
    #: The innermost running frame, and the outermost.
    frame: Machine | None
    root: Machine
    #: Whether a frame so far has a handler for exceptions.
    catches: bool
    #: Whether the `backward` of an `autograd.Function` is being traced: the backward passes that it runs are its own.
    in_backward: bool
    break_points: BreakPoints
    #: Instructions begun so far, in all frames; and the count before which this trace is to break.
    steps: int
    break_step: int | None
    #: The frame that is about to make a tail call.
    caller: Machine | None
    #: The functions between, as `Callee.forwarders` says.
    forwarders: tuple[tuple[FunctionType, int], ...]
    #: What the call gives in the place of what that returns, as `Callee.constructor_result` says.
    constructor_result: Value | None

    @property
    def running_frame(self) -> Machine:
        """The innermost running frame, where there is one: while a call is handled."""

    def here(self) -> tuple[int, int, list[traceback.FrameSummary]]:
        """The outermost frame's step and index, and where in the user's program that is."""

    def discards_result(self) -> bool:
        """Whether the program throws away what the call under way gives."""


class Tracer(ObjectTracer, GraphTracer, SubgraphTracer, NumberTracer, RngTracer, CallTracer, FrameTracer, Protocol):
    """The trace under way."""
