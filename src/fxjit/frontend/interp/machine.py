"""A symbolic frame: value stack, locals, cells, and the loop that runs instructions over them.

trace.py makes the root machine and runs it with `run_root`, which gives a `result.Return` or `result.Break`; inline.py
makes a machine for every user function that is called, generators.py resumes them. A graph break decides a
break point and restarts the trace (restart.py); where the frame cannot be resumed there, it is skipped instead.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import CellType, FunctionType
from typing import Any, NoReturn

from fxjit._C import safe_point
from fxjit.errors import BreakGraph, BreakReached, RestartTrace, SkipFrameSignal, leave_trace
from fxjit.frontend.bytecode.instruction import Code, Instruction
from fxjit.frontend.bytecode.normalize import JUMPS_IF, JUMPS_OR_POP
from fxjit.frontend.interp import lifetimes, resumability
from fxjit.frontend.interp.dispatch import HANDLERS
from fxjit.frontend.interp.nesting import forwarder_frame, frame_to_break_in
from fxjit.frontend.interp.restart import BreakPoint, BreakPoints
from fxjit.frontend.interp.stack_values import leave_history_inside
from fxjit.frontend.result import Break, FrameState, InnerFrame, Return
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import deferred_numbers
from fxjit.frontend.values.base import Lazy, NotConstant, Raised, Value
from fxjit.frontend.values.exceptions import ExceptionValue
from fxjit.frontend.values.namespaces import NamespaceValue, namespace_value
from fxjit.guards.source import ClosureCellSource
from fxjit.torch_private import MissingName

RETURNS = frozenset({"RETURN_VALUE", "RETURN_CONST"})
CONDITIONAL = JUMPS_IF | JUMPS_OR_POP
#: Backward jumps in one trace: a loop longer than this is left to CPython.
MAX_BACKWARD_JUMPS = 100_000
#: CPython's limit while tracing: an inlined call takes some twenty frames of the interpreter's own.
RECURSION_LIMIT = 12_000


class Machine:
    """One frame under way. `index` is the instruction being run, `pc` the next one."""

    __slots__ = (
        "_prefix",
        "_texts",
        "backward_jumps",
        "cells",
        "closure",
        "code",
        "constructor_result",
        "depth",
        "forwarders",
        "function",
        "generator",
        "globals",
        "grounds",
        "handled",
        "index",
        "instructions",
        "is_tail_call",
        "locals",
        "origins",
        "parent",
        "pc",
        "recursion_limit",
        "stack",
        "steps",
        "suspended",
        "t",
        "told_of_compiling",
    )  # fmt: skip

    def __init__(
        self,
        t: Tracer,
        code: Code,
        globals_: NamespaceValue,
        locals_: dict[str, Value],
        closure: Mapping[str, Value],
        parent: Machine | None,
        function: Value | None = None,
    ) -> None:
        self.t = t
        self.code = code
        t.catches = t.catches or bool(code.protected)
        self.instructions: list[Instruction] = code.instructions
        self.globals = globals_
        self.locals = locals_
        self.closure = closure
        self.cells: dict[str, Value] = {}
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.function = function
        self.stack: list[Value] = []
        self.pc = 0
        self.index = 0
        #: The trace's `steps` when the instruction at `index` began.
        self.steps = 0
        #: Whether the instruction of the caller that runs this frame does nothing but push what it returns.
        self.is_tail_call = False
        #: And the functions that eager code goes through on the way from there, which are not traced.
        self.forwarders: tuple[tuple[FunctionType, int], ...] = ()
        #: Of a constructor: the object that it is called for.
        self.constructor_result: Value | None = None
        self.backward_jumps = 0
        #: Of the root: whether the program asked if a compiler is at work, and was told so. Eager code hears otherwise.
        self.told_of_compiling = False
        self.recursion_limit = 0
        #: The exception that this frame's `except` blocks handle now.
        self.handled: Value | None = None
        #: Of the root: the step and the index of the instruction that raised each exception that a handler was given.
        self.origins: dict[Value, tuple[int, int]] = {}
        #: Of the root: the step at which each instruction was run that stands outside of loops and `try` blocks.
        self.grounds: dict[int, int] = {}
        #: The generator object whose body this frame is, and whether it has left at a yield.
        self.generator: Value | None = None
        self.suspended = False
        self._prefix: str | None = None
        self._texts: dict[int | None, str] = {}

    # -- running -------------------------------------------------------------------------------------------------

    def run(self) -> Value:
        """Run to the next return or yield; an exception of the user's program leaves as `Raised`."""
        t, instructions, handlers = self.t, self.instructions, HANDLERS
        previous, t.frame = t.frame, self
        self._prefix = None
        break_step, at_stake, watches_reads = t.break_step, t.ends.at_stake, t.effects.watches_reads
        try:
            while True:
                if t.steps == break_step:
                    leave_trace(BreakReached(self._break_at(t.break_points.at(t.steps, self.pc))))
                safe_point()
                self.steps = t.steps
                t.steps += 1
                index = self.pc
                self.index = index
                self.pc = index + 1
                instruction = instructions[index]
                try:
                    left = handlers[instruction.opname](self, instruction)
                except Raised as raised:
                    if not self.unwind(raised.value):
                        raise
                    left = None
                except NotConstant as unknown:
                    t.break_("value-unknown", value=unknown.args[0].describe())
                except MissingName as lacking:
                    t.break_("torch-lacks-name", name=lacking.row.name, feature=lacking.row.feature)
                if at_stake and left is None:
                    t.ends.check(self, instruction)
                if watches_reads and self.stack:
                    t.effects.note_read(self.stack[-1])
                if left is not None:
                    return left
        finally:
            t.frame = previous

    def run_root(self, break_points: BreakPoints) -> Return | Break:
        """Run the traced frame to its end, or to the break point decided for it."""
        t, instructions, handlers = self.t, self.instructions, HANDLERS
        t.frame = self
        open_ground, grounds = resumability.open_ground(self.code), self.grounds
        break_step, at_stake = break_points.first_step, t.ends.at_stake
        t.break_step = break_step
        limit = self.recursion_limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
        try:
            while True:
                if t.steps == break_step:
                    return self._ends_at(self._break_at(break_points.at(t.steps, self.pc)))
                safe_point()
                self.steps = t.steps
                t.steps += 1
                index = self.pc
                self.index = index
                self.pc = index + 1
                if index in open_ground and not resumability.is_handling(self):
                    grounds[index] = self.steps
                instruction = instructions[index]
                try:
                    left = handlers[instruction.opname](self, instruction)
                except Raised as raised:
                    exc = raised.value
                    if not self.unwind(exc):
                        self._uncaught(break_points, exc)
                    if instruction.opname != "RERAISE" or exc not in self.origins:
                        self.origins[exc] = (self.steps, index)
                    left = None
                except NotConstant as unknown:
                    t.break_("value-unknown", value=unknown.args[0].describe())
                except MissingName as lacking:
                    t.break_("torch-lacks-name", name=lacking.row.name, feature=lacking.row.feature)
                if at_stake and left is None:
                    t.ends.check(self, instruction)
                if left is not None:
                    resumability.check_generators(self, break_points, [left])
                    resumability.check_managers(self, break_points, [])
                    for check in t.effects.before_return:
                        check()
                    return Return(left, t.ends.order(self))
        except BreakReached as reached:
            return self._ends_at(reached.end)
        except BreakGraph as signal:
            if signal.reason == "operator-raised":
                self._hide_compiler(break_points)
            self.decide(break_points, signal)
        except RecursionError:  # the program calls itself without end, or nearly, through what is not inlined as a function
            context = {"function": self.code.code.co_qualname, "depth": RECURSION_LIMIT}
            self.decide(break_points, BreakGraph("call-recursion", context, user_stack(self)))
        finally:
            sys.setrecursionlimit(limit)
            t.frame = None
            t.effects.forget_readers()

    def _ends_at(self, end: Break) -> Break:
        self.t.break_step = None
        for check in self.t.effects.before_break:
            check()
        return end

    def unwind(self, exc: Value) -> bool:
        """Go to the handler of an exception that the current instruction raised; False if the frame has none."""
        handler = self.code.handler_at(self.index)
        if handler is None:
            return False
        if isinstance(exc, ExceptionValue):
            if exc.source is None:
                exc.caught_at = user_stack(self)
            elif not _adds_no_step(self.instructions[self.index]):  # it has one more step in its traceback from here on
                self.t.break_("exception-kept", error=exc.describe())
        stack = self.stack
        del stack[handler.depth :]
        if handler.push_lasti:
            stack.append(self.t.make(0))  # where it was raised: only debuggers ask, and resume functions have other numbers
        stack.append(exc)
        self.pc = handler.target
        return True

    def jump(self, target: int) -> None:
        """Go on at `target`."""
        if target <= self.index:
            root = self.t.root
            root.backward_jumps += 1
            if root.backward_jumps > MAX_BACKWARD_JUMPS:
                self.t.break_("trace-too-long", limit=MAX_BACKWARD_JUMPS)
        self.pc = target

    # -- breaking ------------------------------------------------------------------------------------------------

    def _uncaught(self, break_points: BreakPoints, exc: Value) -> NoReturn:
        """An exception leaves the root frame: CPython runs the instruction that raised it again and raises it for real. What
        lies between that and the end of a `with` only passes it on."""
        self._hide_compiler(break_points)
        if self.instructions[self.index].opname == "RERAISE" and exc in self.origins:
            step, self.index = self.origins[exc]
            signal = BreakGraph("opcode-uncaught", {"error": exc.describe()}, user_stack(self))
            self.decide(break_points, signal, step=step, index=self.index)
        self.decide(break_points, BreakGraph("opcode-uncaught", {"error": exc.describe()}, user_stack(self)))

    def _hide_compiler(self, break_points: BreakPoints) -> None:
        """A program that was told of the compiler may raise for that alone: it is traced once more, and hears what eager code
        hears."""
        if self.told_of_compiling:
            leave_trace(RestartTrace("what was told of the compiler raises", action=break_points.hide_compiler))

    def decide(self, break_points: BreakPoints, signal: BreakGraph, step: int | None = None,
               index: int | None = None) -> NoReturn:
        """Stop before the instruction that broke, and start again; or skip the frame where it cannot be resumed."""
        place = self if step is not None else frame_to_break_in(self, signal)
        for error in (signal, sys.exc_info()[1]):
            if isinstance(error, (BreakGraph, Raised, NotConstant)):  # a caller of the program may be handling one of its own
                error.__traceback__ = error.__context__ = None  # they hold the whole trace, and with it the user's objects
        signal = signal.but(frames=())
        step = place.steps if step is None else step
        index = place.index if index is None else index
        if not place.instructions[index].original:
            index, step = index - 1, step - 1
        skip = resumability.why_not_resumable(place, index)
        if skip is not None:
            if break_points.defers_numbers and deferred_numbers.are_made(self.t):
                leave_trace(RestartTrace("the frame may go on where a number out of a tensor was read",
                                         action=partial(setattr, break_points, "defers_numbers", False)))
            start = resumability.region_start(place, step, skip[0])
            if start is None:
                leave_trace(SkipFrameSignal(skip[0], skip[1], signal.user_stack), signal)
            break_points.decide(BreakPoint(*start, "region", signal, skip))
            leave_trace(RestartTrace(f"graph break in a region: {signal}"))
        opname = place.instructions[index].opname
        kind = "branch" if opname in CONDITIONAL else "instruction"
        if signal.reason == "object-let-go" and opname in RETURNS:
            kind = "resume"  # what is handed on there does not hold it
        break_points.decide(BreakPoint(step, index, kind, signal))
        leave_trace(RestartTrace(f"graph break: {signal}"))

    def _break_at(self, point: BreakPoint) -> Break:
        """The state at the break point, of this frame and of those that called it, checked for what cannot be
        carried over."""
        frames = running(self)
        if point.cause.reason == "data-item":
            leave_history_inside(self.t, self.stack)
        states = [frame._state(point.cause) for frame in frames]
        for nth, frame in enumerate(frames[1:]):
            if frame.constructor_result is not None:  # what the call that is under way will give lies ready
                states[nth] = replace(states[nth], stack=(*states[nth].stack, frame.constructor_result))
        if point.kind == "resume":  # it is about to return
            states[-1] = replace(states[-1], locals={}, kept=frozenset())
        left: list[Value] = []
        for state in states:
            left += [*state.stack, *state.locals.values(), *state.cells.values(), *state.handled.values()]
        root = frames[0]
        resumability.check_generators(root, self.t.break_points, left)
        resumability.check_managers(root, self.t.break_points, states, point.cause)
        if root is self:
            return Break(self.pc, point.kind, states[0], point.cause, keeps_blocks=point.cause.keeps_blocks,
                         skip=point.skip)
        order = self.t.ends.order(self) if point.kind == "resume" else ()
        inner = []
        for frame, state in zip(frames[1:], states[1:], strict=True):
            inner += [forwarder_frame(fn, call) for fn, call in frame.forwarders]
            index = self.pc if frame is self else frame.index
            inner.append(InnerFrame(frame.code, index, state, frame.globals.namespace, frame.first_slot,
                                    constructs=frame.constructor_result is not None))
        return Break(root.index, point.kind, states[0], point.cause, tuple(inner), lets_go=order)

    def _state(self, cause: BreakGraph | None) -> FrameState:
        live = resumability.live_locals(self.code, self.pc)
        kept = lifetimes.kept_alive(self, live, cause) | lifetimes.looked_at_afterwards(self, live, cause)
        return FrameState(
            stack=tuple(self.stack),
            locals={name: value for name, value in self.locals.items() if name in live or name in kept},
            kept=kept,
            cells=dict(self.cells),
            blocks=resumability.open_blocks(self, self.t.break_points, cause),
            handled=resumability.handled_exceptions(self, self.t.break_points, cause),
            loops=resumability.loops_gone_on_in(self),
        )

    @property
    def first_slot(self) -> Value | None:
        """The object that `super()` without arguments finds; None where the frame does not use it, or has lost it."""
        slots = self.code.argument_slots
        if "__class__" not in self.code.freevars or not slots:
            return None
        cell = self.cells.get(slots[0])
        if cell is None:
            return self.locals.get(slots[0])
        contents = getattr(cell.realize(), "contents", None)
        return contents if isinstance(contents, Value) else None

    # -- where in the source -------------------------------------------------------------------------------------

    @property
    def line(self) -> int | None:
        return self.instructions[self.index].line

    def summary(self) -> traceback.FrameSummary:
        """This frame's entry of a stack trace."""
        code, where = self.code.code, self.instructions[self.index].positions
        return traceback.FrameSummary(
            code.co_filename, where.line or code.co_firstlineno, code.co_name, lookup_line=False,
            end_lineno=where.end_line, colno=where.column, end_colno=where.end_column,
        )  # fmt: skip

    def text(self) -> str:
        """The stack trace down to the current line, as text; computed once a line."""
        line = self.line
        if self._prefix is None:
            self._prefix = self.parent.text() if self.parent is not None else ""
            self._texts.clear()
        found = self._texts.get(line)
        if found is None:
            code = self.code.code
            shown = linecache.getline(code.co_filename, line).strip() if line is not None else ""
            found = f'{self._prefix}  File "{code.co_filename}", line {line}, in {code.co_name}\n'
            if shown:
                found += f"    {shown}\n"
            self._texts[line] = found
        return found


def root_machine(
    t: Tracer,
    code: Code,
    args: Mapping[str, Value],
    closure: tuple[CellType, ...] | None,
    globals_: dict[str, Any],
    builtins: dict[str, Any],
) -> Machine:
    """The machine of the frame that is being compiled. `args` are the argument slots by name."""
    cells: dict[str, Value] = {
        name: Lazy(t, cell, ClosureCellSource(name)) for name, cell in zip(code.freevars, closure or (), strict=True)
    }
    machine = Machine(t, code, namespace_value(t, globals_, builtins, is_root=True), dict(args), cells, None)
    t.root = machine
    return machine


def running(machine: Machine | None) -> list[Machine]:
    """The frame and its suspended callers, outermost first."""
    frames: list[Machine] = []
    while machine is not None:
        frames.append(machine)
        machine = machine.parent
    frames.reverse()
    return frames


def user_stack(machine: Machine | None) -> list[traceback.FrameSummary]:
    """Where the user's program is, outermost frame first."""
    return [frame.summary() for frame in running(machine)]


def stack_text(machine: Machine | None) -> str:
    """`user_stack` as text, for the `stack_trace` of graph nodes."""
    return machine.text() if machine is not None else ""


def _adds_no_step(instruction: Instruction) -> bool:
    """Whether it adds no step to the traceback of what it raises."""
    return instruction.opname == "RERAISE" or (instruction.opname == "RAISE_VARARGS" and instruction.arg == 0)
