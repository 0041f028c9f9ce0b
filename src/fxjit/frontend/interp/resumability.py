"""Whether a frame can break and be resumed at an instruction: the one place that says no, with the reason.

machine.py calls it before it decides a break point, and when it is at one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import CO_GENERATOR
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fxjit import config
from fxjit.errors import BreakGraph, SkipFrameSignal, leave_trace
from fxjit.frontend.bytecode.flow import (
    for_loops_around,
    in_loop,
    in_while_loop,
    live_before,
    loses_super,
    may_leave_for_loop,
)
from fxjit.frontend.interp.stack_values import PreviousExceptionValue, WithExitValue
from fxjit.frontend.result import FrameState, WithBlock
from fxjit.frontend.tracer import EffectLog
from fxjit.frontend.values import instance_dicts
from fxjit.frontend.values.base import NULL, Lazy, Value
from fxjit.frontend.values.contexts import grad_mode_set_at, left_open
from fxjit.frontend.values.descriptors import find
from fxjit.frontend.values.iteration import IteratorValue
from fxjit.frontend.values.iterators import ResumedIteratorValue, gives_like_items
from fxjit.frontend.values.sequence import ListValue
from fxjit.guards.source import GlobalSource, LocalSource, Source
from fxjit.homes import module_of

if TYPE_CHECKING:
    from fxjit.frontend.bytecode.instruction import Code
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.interp.restart import BreakPoints

_Skip = tuple[str, dict[str, Any]]


def why_not_resumable(machine: Machine, index: int) -> _Skip | None:
    """Why the root frame cannot go on after stopping before `index`: a skip reason and its context; None if it can."""
    code = machine.code
    instruction = code.instructions[index]
    if not (config.resume_in_loops or _decides_on_iteration(machine, index)) and (
            instruction.opname == "FOR_ITER" or in_loop(code, index)):
        return "skip-loop", {"why": f"line {instruction.line} runs more than once"}
    if not config.resume_in_loops and instruction.opname == "GET_ITER" and _loops_over_real_iterator(machine, index):
        return "skip-loop", {"why": f"line {instruction.line} is a loop over an iterator that is made for real"}
    if not config.resume_in_try and is_in_try(code, index):
        return "skip-try", {"why": f"line {instruction.line} stands under an exception handler"}
    if instruction.opname == "LOAD_FAST" and str(instruction.argval).startswith("."):
        # A resume function takes what it is given: another one would be given the same, and so on.
        rule = "one that goes on with a value which cannot be looked at while tracing"
        return "skip-code-kind", {"function": code.code.co_qualname, "rule": rule}
    if loses_super(code):
        rule = "one whose `super()` has no object in a plain variable of the frame"
        return "skip-code-kind", {"function": code.code.co_qualname, "rule": rule}
    for value in machine.stack:
        if isinstance(value, WithExitValue) and not value.resumable and not value.can_be_kept:
            return _not_kept(value)
    return None


def _decides_on_iteration(machine: Machine, index: int) -> bool:
    """Whether a loop is at a decision on data, as those that go on until something converges: between two of these an iteration
    is one graph, whatever their number. A `while` loop is at any decision; a `for` loop where that may leave it, or where it
    and the loops around it give items that one program takes; and where it goes on behind it, with an iterator that moves on
    for real (values/iterators.py)."""
    code, opname = machine.code, machine.code.instructions[index].opname
    if opname.startswith("POP_JUMP") and in_while_loop(code, index):
        return True
    if machine.parent is not None or not opname.startswith(_DECISIONS):
        return False
    if opname == "FOR_ITER":
        return isinstance(machine.stack[-1].realize(), ResumedIteratorValue)
    found = [machine.stack[at].realize() for at in _iterators(machine)]
    return may_leave_for_loop(code, index) or (
        len(found) == for_loops_around(code, index) and all(map(gives_like_items, found)))


_DECISIONS = ("POP_JUMP", "FOR_ITER")


def _iterators(machine: Machine) -> list[int]:
    """Where on the stack iterators lie."""
    return [at for at, value in enumerate(machine.stack) if value is not NULL and isinstance(value.realize(), IteratorValue)]


def loops_gone_on_in(machine: Machine) -> tuple[int, ...]:
    """The stack indices of the iterators of loops that the root frame goes on in behind a decision, where it breaks now."""
    at_decision = machine.instructions[machine.pc].opname.startswith(_DECISIONS)
    if machine.parent is not None or not at_decision or not in_loop(machine.code, machine.pc):
        return ()
    return tuple(_iterators(machine))


def _loops_over_real_iterator(machine: Machine, index: int) -> bool:
    """Whether the break before `index` would be for a loop alone that cannot be followed behind it, one over a progress bar or
    a data loader: nothing was computed since the frame, or the resume function, began."""
    value = machine.stack[-1] if machine.stack else None
    if machine.code.instructions[index + 1].opname != "FOR_ITER" or value is None:
        return False
    resumed = isinstance(value.source, LocalSource) and value.source.name.startswith(".stack")
    if not resumed and not machine.t.graph_is_empty:
        return False
    iterates = find(value.pytype(), "__iter__")[0]
    if not isinstance(iterates, FunctionType):
        return False
    return bool(iterates.__code__.co_flags & CO_GENERATOR) or module_of(iterates).startswith("torch.utils.data.")


#: The reasons of `why_not_resumable` that are about a block in the frame: what stands before it can be compiled.
_REGIONS = frozenset({"skip-loop", "skip-try", "skip-with"})


def open_ground(code: Code) -> frozenset[int]:
    """The instructions outside of loops and `try` blocks; none where nobody asks for them."""
    if not config.compile_around_blocks:
        return frozenset()
    known: frozenset[int] | None = code.facts.get("open ground")
    if known is None:
        known = code.facts["open ground"] = frozenset(
            at for at, each in enumerate(code.instructions)
            if each.original and each.opname != "FOR_ITER" and not in_loop(code, at) and not is_in_try(code, at))
    return known


def is_handling(machine: Machine) -> bool:
    """Whether an exception lies on the stack, which could not be raised again with its traceback: also behind the exit of a
    `with` that does not suppress it."""
    return any(isinstance(value, PreviousExceptionValue) for value in machine.stack)


def region_start(machine: Machine, step: int, reason: str) -> tuple[int, int] | None:
    """The last instruction that the root frame ran before the block in which it cannot be resumed at `step`, with its own step:
    CPython runs the frame from there. None where the frame is skipped, for `reason`."""
    if not config.compile_around_blocks or reason not in _REGIONS:
        return None
    if machine.parent is not None or loses_super(machine.code):
        return None
    for value in machine.stack:
        if isinstance(value, WithExitValue) and not value.resumable and not value.can_be_kept:
            step = min(step, value.step + 1)
    before = [(at, index) for index, at in machine.grounds.items() if at < step]
    return max(before, default=None)


def _not_kept(block: WithExitValue) -> _Skip:
    return "skip-with", {"value": block.manager.describe(), "why": "it is not known to be free of other effects"}


def is_in_try(code: Code, index: int) -> bool:
    """Whether an exception raised at `index` reaches a handler other than the exit of a `with`."""
    handler = code.handler_at(index)
    seen = set()
    expects_cleanup = False
    while handler is not None and handler.target not in seen:
        seen.add(handler.target)
        target = code.instructions[handler.target]
        if target.opname == "PUSH_EXC_INFO":
            if code.instructions[handler.target + 1].opname != "WITH_EXCEPT_START":
                return True
            expects_cleanup = True
        elif expects_cleanup:
            expects_cleanup = False  # what guards the with's own handler
        else:
            return True  # inside the body of a handler
        handler = code.handler_at(handler.target)
    return False


def live_locals(code: Code, index: int) -> frozenset[str] | set[str]:
    """The plain locals that the frame may still read from `index` on."""
    return live_before(code, index)


def open_blocks(machine: Machine, break_points: BreakPoints, cause: BreakGraph | None) -> tuple[WithBlock, ...]:
    """The `with` blocks to be left and entered again, outermost first. One for which that will not do has to be entered for
    real: the trace breaks before it, or the frame is skipped."""
    blocks = []
    for position, value in enumerate(machine.stack):
        if not isinstance(value, WithExitValue):
            continue
        if value.resumable:
            blocks.append(WithBlock(position, value.manager))  # type: ignore[arg-type]  # managers that are resumable are context values
        elif value.can_be_kept:
            _break_earlier(machine, break_points, cause, value.step, value.index, BreakGraph(
                "with-entered", {"value": value.manager.describe()}))
        else:
            leave_trace(SkipFrameSignal(*_not_kept(value)), cause)
    return tuple(blocks)


def handled_exceptions(machine: Machine, break_points: BreakPoints, cause: BreakGraph | None) -> dict[int, Value]:
    """The exceptions that are being handled, by where they lie on the stack. One that was raised while tracing was never
    real: the trace breaks before what raised it. So it is with what the clauses of an `except*` raised, which lies there in
    a list."""
    found: dict[int, Value] = {}
    for position, value in enumerate(machine.stack):
        if isinstance(value, PreviousExceptionValue) and value.in_force:
            exc = value.handling.realize()
            if not _is_real(machine, exc):
                if exc not in machine.origins:
                    leave_trace(SkipFrameSignal("skip-try", {"why": f"{exc.describe()} is being handled"}), cause)
                _break_before_raise(machine, break_points, cause, exc)
            found[position] = exc
        elif isinstance(value, ListValue):
            for item in value.items:
                if item in machine.origins and not _is_real(machine, item):
                    _break_before_raise(machine, break_points, cause, item)
    return found


def _is_real(machine: Machine, exc: Value) -> bool:
    """Whether the exception existed before the trace, and nothing of the trace raised it again."""
    origin = machine.origins.get(exc)
    return exc.source is not None and (origin is None or machine.instructions[origin[1]].opname == "RERAISE")


def _break_before_raise(machine: Machine, break_points: BreakPoints, cause: BreakGraph | None, exc: Value) -> NoReturn:
    signal = BreakGraph("exception-handled", {"error": exc.describe()})
    _break_earlier(machine, break_points, cause, *machine.origins[exc], signal)


def _break_earlier(machine: Machine, break_points: BreakPoints, cause: BreakGraph | None, step: int, index: int,
                  signal: BreakGraph) -> NoReturn:
    """Break at an earlier instruction than the one that broke. A frame that was called breaks with its callers, whose blocks
    are left and entered again around their calls: where blocks have to stay entered, the outermost call is run as it is."""
    frames = _frames(machine)
    if len(frames) > 1 and keeps_blocks(machine, index, signal) and has_blocks(frames):
        machine = frames[0]
        step, index = machine.steps, machine.index
    machine.index = index
    signal = signal.but(user_stack=[frame.summary() for frame in _frames(machine)])
    if cause is not None:
        signal = signal.but(is_error=cause.is_error, because=cause.because or cause)
    machine.decide(break_points, signal, step=step, index=index)


def keeps_blocks(machine: Machine, index: int, signal: BreakGraph) -> bool:
    """Whether the blocks around the instruction stay entered once it ran: what it does lasts as long as they do."""
    return signal.keeps_blocks or machine.instructions[index].opname == "BEFORE_WITH"


def has_blocks(frames: list[Machine]) -> bool:
    """Whether one of these frames is inside a block that this trace entered."""
    return any(isinstance(value, WithExitValue) and value.resumable for frame in frames for value in frame.stack)


def _frames(machine: Machine | None) -> list[Machine]:
    """Outermost first."""
    return [] if machine is None else [*_frames(machine.parent), machine]


def check_generators(machine: Machine, break_points: BreakPoints, left: list[Value]) -> None:
    """Generators that are suspended when the trace ends cannot be made again in the middle of their bodies. Where one can
    still be reached, or would run a `finally` when it goes, the trace breaks before it is created. So it is for what else
    has signed up with them (transforms.py)."""
    known: list[Any] = machine.t.new_source_state("generators").get("all", [])
    open_ones = [generator for generator in known if generator.is_suspended]
    if not open_ones:
        return
    reachable = reach([*left, list(machine.t.effects.records())], machine.t.effects)
    for generator in open_ones:
        if generator in reachable or generator.has_cleanup():
            _break_at_creation(machine, break_points, generator)


def check_managers(machine: Machine, break_points: BreakPoints, states: list[FrameState],
                   cause: BreakGraph | None = None) -> None:
    """A manager that was entered by a call and is open when the trace ends cannot be made as it then is: the trace breaks
    before that call."""
    in_blocks = [block.manager for state in states for block in state.blocks]
    for manager in left_open(machine.t):
        if manager in in_blocks:
            in_blocks.remove(manager)
            continue
        step, index = manager.entered[-1]
        _break_earlier(machine, break_points, cause, step, index, BreakGraph("context-unsupported", {
            "value": manager.describe(), "type": manager.pytype().__name__, "why": "it is open when the graph ends"}))
    _check_grad_mode(machine, break_points, states, cause)


def _check_grad_mode(machine: Machine, break_points: BreakPoints, states: list[FrameState], cause: BreakGraph | None) -> None:
    """A grad mode that was set inside a block is lost where that is left and entered again: such a block stays entered."""
    inside: bool | None = None
    for state in states:
        for block in state.blocks:
            inside = inside if block.manager.grad_mode_inside is None else block.manager.grad_mode_inside
    if inside is None or inside == torch.is_grad_enabled():
        return
    step, index = grad_mode_set_at(machine.t)
    signal = BreakGraph("value-global-state", {"function": "torch.set_grad_enabled"}, keeps_blocks=True)
    _break_earlier(machine, break_points, cause, step, index, signal)


def _break_at_creation(machine: Machine, break_points: BreakPoints, made: Any) -> NoReturn:
    reason, context = made.why_before()
    signal = BreakGraph(reason, context, made.created_at)
    machine.decide(break_points, signal, step=made.created_step, index=made.created_index)


def is_held(value: Value, running: list[Any], effects: EffectLog, given: Iterable[tuple[Value, object]],
            scratch: Mapping[Any, Mapping[Any, Any]]) -> bool:
    """Whether something that the program can still reach holds `value`: variables of frames, what was written, or that in which
    it was found, as long as the trace wrote to nothing on the way to it."""
    held = reach([*running, list(effects.records())], effects)
    if value in held or value.source is None:
        return value in held
    way: set[Source] = set()
    step = value.source.base
    while step is not None:
        way.add(step)
        step = step.base
    holders = [each for each, _ in given if each.source in way]
    if any(map(effects.is_written, holders)):
        return False
    root = value.source.root
    if isinstance(root, GlobalSource):
        return not any(root.name in (owner.written or ()) for owner in scratch.get(instance_dicts.OWNERS, {}).values())
    return any(each in held for each in holders)


def reach(roots: list[Any], effects: EffectLog) -> set[Any]:
    """All values that can be reached from `roots` through the state of values and the attributes written to them."""
    found: set[Any] = set()
    pending = list(roots)
    seen: set[int] = set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Lazy):
            if item.realized is not None:
                pending.append(item.realized)
        elif isinstance(item, Value):
            found.add(item)
            pending.extend(vars(item).values())
            pending.extend(effects.stored_attrs(item).values())
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            pending.extend(item)
        elif type(item).__name__ in _RECORDS:
            pending.extend(getattr(item, name) for name in item.__slots__ if hasattr(item, name))
    return found


#: Records whose fields may hold values.
_RECORDS = frozenset({"StoreAttr", "Restore", "CallLater", "Machine"})
