"""New code of a frame that breaks inside functions it called: the instruction runs under frames of the same functions, and the
resume functions of all become one call, that of the outermost.

    new code of the frame  ->  a frame of each suspended caller  ->  a frame of the innermost: the instruction as it stands
    what is live there     <-                                    <-
    _C.Continue(resume function of the frame, that of the next function, ..., what is live in each)

So an exception of the instruction goes through the functions that eager's goes through, at their lines; and what follows
is traced into one graph, since the resume function of a suspended caller begins by calling that of its callee. The frames in
the middle hold nothing but the blocks that are entered around their call: all else of them stays with the frame's new
code meanwhile. entry.py calls `NestedBreakEpilogue.write` in the place of `BreakEpilogue.write`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.flow import first_argument, live_before
from fxjit.frontend.bytecode.instruction import Code
from fxjit.frontend.effects import Effects
from fxjit.frontend.result import Break, FrameState, InnerFrame, WithBlock
from fxjit.frontend.values.base import NULL, Value
from fxjit.guards.source import LocalSource
from fxjit.resume.blocks import Exits, enter, leave, save_exit_state
from fxjit.resume.break_epilogue import BreakEpilogue, UnderConstruction
from fxjit.resume.break_point import Outcome, after
from fxjit.resume.cache import locate, resume_function_of
from fxjit.resume.function import (
    CAPTURED_SELF,
    ResumeFunction,
    ResumePoint,
    begin_call_alone,
    call_alone,
    own_cells,
)
from fxjit.resume.rebuild import Rebuilder


def push_inner(cg: Rebuilder, frame: InnerFrame) -> None:
    """Push all that new code needs of an inner frame; for `entry.plan`."""
    exits = {block.stack_index for block in frame.state.blocks}
    for block in frame.state.blocks:
        block.manager.push_manager(cg)
    entries = [value for at, value in enumerate(frame.state.stack) if at not in exits]
    first = [] if frame.first is None else [frame.first]
    for value in (*first, *entries, *frame.state.cells.values(), *frame.state.locals.values()):
        cg.push(value)


class _Given(Value):
    """A value that a parameter brings."""

    grad_mode_inside = None

    def __init__(self, name: str, exit_state: Callable[[Any], Any] | None = None) -> None:
        super().__init__(LocalSource(name))
        self.name = name
        self.exit_state = exit_state

    def push_manager(self, cg: Any) -> None:
        cg.push(self)


class _Scene:
    """The code of the innermost frame, as `Rest` sees it."""

    def __init__(self, code: Code, parameters: list[str]) -> None:
        self.code = code
        self.arg_names = tuple(parameters)
        self.asm = Asm(parameters, code.freevars)
        self.cg = Rebuilder(self.asm, Effects(), {}, {})

    def unbind_temps(self) -> None:
        """Nothing was built: all came as it is."""


class _Innermost(BreakEpilogue):
    """A function that puts the innermost frame's state in place, runs the instruction and returns what is live then: a tuple,
    with the number of the outcome first where there are two."""

    def __init__(self, frame: InnerFrame, kind: str) -> None:
        code, state = frame.code, frame.state
        first = first_argument(code)
        own = own_cells(code)
        self.first = CAPTURED_SELF if first in own else first
        self.names = tuple(name for name in state.locals if name != self.first)
        self.own = tuple(name for name in state.cells if name not in code.freevars)
        stack = [at for at, value in enumerate(state.stack) if value is not NULL]
        parameters = [] if self.first is None else [self.first]
        parameters += [*(f".stack{at}" for at in stack), *self.names, *(f".cell_{name}" for name in self.own)]
        given = FrameState(
            stack=tuple(NULL if value is NULL else _Given(f".stack{at}") for at, value in enumerate(state.stack)),
            locals={name: _Given(name) for name in state.locals},
            kept=state.kept,
            cells={name: _Given(name if name in code.freevars else f".cell_{name}") for name in state.cells},
            blocks=tuple(WithBlock(block.stack_index, _Given(f".stack{block.stack_index}", block.manager.exit_state))
                         for block in state.blocks),
        )
        break_ = Break(frame.index, kind, given, None)  # type: ignore[arg-type]  # no reason: this one is not reported
        super().__init__(_Scene(code, parameters), break_)
        self.outcomes = [each for each in after(code, frame.index, kind, self.nulls, frozenset(state.locals)) if not each.ends]
        self.left: list[_Left] = []

    def made(self) -> CodeType:
        """The code; `left` says then what it returns."""
        self.asm.prologue()
        self.write()
        return _mark_transformed(self.asm.finish(self.code.code))

    def _hand_over(self, outcome: Outcome, exits: tuple[int, ...], slots: dict[int, str]) -> None:
        asm = self.asm
        live = live_before(self.code, outcome.index) | self.state.kept
        bound = tuple(name for name in self.bound if name in live)
        names = tuple(name for name in bound if name != self.first)
        noted = {block.stack_index for block in self.state.blocks if block.manager.exit_state is not None}
        slots.update({at: self.managers[at] for at in exits if at in noted})
        entries = tuple(at for at, is_null in enumerate(outcome.nulls) if not is_null and (at not in exits or at in noted))
        if len(self.outcomes) > 1:
            asm.load_const(len(self.left))
        for name in (*(slots[at] for at in entries), *names):
            asm.take_local(name)
        asm.build_tuple(len(entries) + len(names) + (len(self.outcomes) > 1))
        asm.return_value()
        origin = locate(self.code.code, outcome.index)
        made = resume_function_of(origin.code, ResumePoint(origin.index, outcome.nulls, exits, bound))
        self.left.append(_Left(made, entries, names))


@dataclass(slots=True)
class _Left:
    """The return value of the innermost frame's function when it ends in one outcome, for `resume_function`: entries of the
    stack (with managers whose state may have changed), then locals."""

    resume_function: ResumeFunction
    entries: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(slots=True)
class _Kept:
    """An inner frame's things, in locals of the new code. `stack` and `locals` of the innermost go to its function and come
    back; those of others stay."""

    frame: InnerFrame
    first: str | None = None
    stack: dict[int, str] = field(default_factory=dict)
    enter: dict[int, str] = field(default_factory=dict)
    again: dict[int, str] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def exits(self) -> tuple[int, ...]:
        return tuple(block.stack_index for block in self.frame.state.blocks)

    @property
    def with_exit_state(self) -> tuple[WithBlock, ...]:
        """The blocks whose state what runs inside them may change; the frame's function gives managers for it back."""
        return tuple(block for block in self.frame.state.blocks if block.manager.exit_state is not None)


class NestedBreakEpilogue(BreakEpilogue):
    """The code after the graph where the frame breaks inside functions that it called."""

    def __init__(self, entry: UnderConstruction, break_: Break, namespace: dict[str, Any]) -> None:
        super().__init__(entry, break_)
        self.namespace = namespace
        self.inner = [_Kept(frame) for frame in break_.inner]
        self.innermost = _Innermost(break_.inner[-1], break_.kind)

    def write(self) -> None:
        asm, index = self.asm, self.break_.index
        call = self.code.instructions[index]
        asm.at(call.positions)
        for kept in self.inner:
            self._build(kept)
        behind = Outcome(index + 1, (*self.nulls, False))
        self._restore_frame(call, [behind])
        with asm.under(self.handlers.innermost):
            self._run_inner()
        self._continue(behind, self.exits)
        self.handlers.write()

    # -- before the instruction ------------------------------------------------------------------------------------

    def _build(self, kept: _Kept) -> None:
        """Make what an inner frame has."""
        frame, state, cg = kept.frame, kept.frame.state, self.cg
        last = kept is self.inner[-1]
        if frame.first is not None:
            cg.push(frame.first)
            kept.first = self._keep("first")
        for block in state.blocks:
            for place in (kept.enter, kept.again):
                block.manager.push_manager(cg)
                place[block.stack_index] = self._keep("manager")
        for at, value in enumerate(state.stack):
            if value is not NULL and at not in kept.exits:
                cg.push(value)
                kept.stack[at] = self._keep("entry")
        for name, value in state.cells.items():
            cg.push(value)
            kept.cells[name] = self._keep("cell")
        wanted = self.innermost.names if last else sorted(state.locals)
        for name in wanted:
            cg.push(state.locals[name])
            kept.locals[name] = self._keep("local")

    def _run_inner(self) -> None:
        """[] -> [what the innermost frame's function returned]: call the first function with all that it and the next ones
        need."""
        asm = self.asm
        codes = [self.innermost.made()]
        for kept in self.inner[-2::-1]:
            codes.insert(0, _write_suspended_caller(kept, codes[0].co_argcount))
        begin_call_alone(asm)
        self._push_function(codes[0], 0)
        for depth, kept in enumerate(self.inner[:-1]):
            for at in kept.exits:
                asm.take_local(kept.enter[at])
            for block in kept.with_exit_state:
                asm.take_local(kept.again[block.stack_index])
            self._push_function(codes[depth + 1], depth + 1)
        last = self.inner[-1]
        if last.first is not None and self.innermost.first is not None:
            asm.load_local(last.first)
        for at, value in enumerate(last.frame.state.stack):
            if value is not NULL:
                asm.take_local(last.enter[at] if at in last.exits else last.stack[at])
        for name in self.innermost.names:
            asm.take_local(last.locals[name])
        for name in self.innermost.own:
            asm.load_local(last.cells[name])
        call_alone(asm, codes[0].co_argcount)

    def _push_function(self, code: CodeType, depth: int) -> None:
        """Push a function of inner frame `depth`: `code` with the frame's globals and its cells, as far as it has any."""
        asm, kept = self.asm, self.inner[depth]
        namespace = kept.frame.globals

        def closure() -> None:
            for name in code.co_freevars:
                if name in kept.cells:
                    asm.load_local(kept.cells[name])
                else:
                    asm.begin_call(CellType)
                    asm.call(0)
            asm.build_tuple(len(code.co_freevars))

        if namespace is self.namespace:
            asm.make_function(code, closure if code.co_freevars else None)
        elif code.co_freevars:
            asm.begin_call(FunctionType)
            for part in (code, namespace, code.co_name, None):
                asm.load_const(part)
            closure()
            asm.call(5)
        else:
            asm.load_const(FunctionType(code, namespace))

    # -- after it --------------------------------------------------------------------------------------------------

    def _hand_over(self, outcome: Outcome, exits: tuple[int, ...], slots: dict[int, str]) -> None:
        asm, left = self.asm, self.innermost.left
        returned = slots.pop(len(outcome.nulls) - 1)
        for kept in self.inner[:-1]:
            if kept.with_exit_state:
                asm.take_local(returned)
                asm.unpack(1 + len(kept.with_exit_state))
                returned = self._keep("returned")
                kept.again |= {block.stack_index: self._keep("manager") for block in kept.with_exit_state}
        if not left:
            asm.load_local(returned)  # never: the instruction raises
            asm.return_value()
        for number, each in enumerate(left):
            other = asm.label() if number + 1 < len(left) else None
            if other is not None:
                asm.load_local(returned)
                asm.load_item(0)
                asm.jump_if_true(other)
            self._return_resume_function(outcome, exits, slots, returned, each, numbered=len(left) > 1)
            if other is not None:
                asm.place(other)

    def _return_resume_function(self, outcome: Outcome, exits: tuple[int, ...], slots: dict[int, str], returned: str,
                                left: _Left, numbered: bool) -> None:
        """Return the frame's resume function for one outcome of the innermost."""
        asm, last = self.asm, self.inner[-1]
        asm.take_local(returned)
        asm.unpack(len(left.entries) + len(left.names) + numbered)
        if numbered:
            asm.pop()
        last.stack = {at: self._keep("entry") for at in left.entries}
        last.locals = {name: self._keep("local") for name in left.names}
        resume_functions, called = [left.resume_function], last
        for kept in self.inner[-2::-1]:
            resume_functions.insert(0, _behind_call(kept, resume_functions[0], constructs=called.frame.constructs))
            called = kept
        bound = tuple(name for name in self.bound if name in live_before(self.code, outcome.index) | self.state.kept)
        origin = locate(self.code.code, outcome.index)
        whole = resume_function_of(origin.code, ResumePoint(origin.index, outcome.nulls, exits, bound,
                                                      inner=resume_functions[0], constructs=self.inner[0].frame.constructs))
        asm.begin_call(_C.Continue)
        asm.make_function(whole.code, (lambda: self._closure(whole)) if whole.freevars else None)
        if whole.first is not None:
            asm.load_local(self.entry.arg_names[0])
        self._push_resume_function(resume_functions, 0)
        for at in whole.stack:
            asm.take_local(self.managers[at] if at in exits else slots[at])
        for name in whole.locals:
            asm.take_local(name)
        asm.call(1 + whole.code.co_argcount)
        asm.return_value()

    def _push_resume_function(self, resume_functions: list[ResumeFunction], depth: int) -> None:
        """Push the resume function of inner frame `depth` and its arguments."""
        asm, kept, made = self.asm, self.inner[depth], resume_functions[depth]
        self._push_function(made.code, depth)
        if made.first is not None:
            assert kept.first is not None, "no trace breaks in a frame that has lost it"
            asm.load_local(kept.first)
        if depth + 1 < len(resume_functions):
            self._push_resume_function(resume_functions, depth + 1)
        for at in made.stack:
            asm.take_local(kept.stack.get(at) or kept.again[at])
        for name in made.locals:
            asm.take_local(kept.locals[name])


def _behind_call(kept: _Kept, inner: ResumeFunction, constructs: bool) -> ResumeFunction:
    """The resume function of a suspended caller, whose callee has `inner`."""
    frame = kept.frame
    live = live_before(frame.code, frame.index + 1) | frame.state.kept
    bound = tuple(name for name in frame.state.locals if name in live)
    nulls = (*(value is NULL for value in frame.state.stack), False)
    origin = locate(frame.code.code, frame.index + 1)
    point = ResumePoint(origin.index, nulls, kept.exits, bound, inner=inner, constructs=constructs)
    return resume_function_of(origin.code, point)


def _write_suspended_caller(kept: _Kept, arguments: int) -> CodeType:
    """The function of a suspended caller, inside its call as the frame would be: it takes the managers of the frame's
    blocks, those to enter again as they are left, the next function, and that one's arguments. It returns what that
    returns, in a tuple with the managers to enter again where there are any."""
    frame, with_exit_state = kept.frame, {block.stack_index: f".again{block.stack_index}" for block in kept.with_exit_state}
    managers = [f".manager{nth}" for nth in range(len(frame.state.blocks))]
    passed = [f".argument{nth}" for nth in range(arguments)]
    asm = Asm([*managers, *with_exit_state.values(), ".function", *passed])
    asm.at(frame.code.instructions[frame.index].positions)
    asm.prologue()
    exits = Exits(asm, frame.code, tuple(range(len(managers))), [])
    for nth, manager in enumerate(managers):
        with asm.under(exits.below(nth)):
            asm.take_local(manager)
            enter(asm)
    with asm.under(exits.innermost):
        begin_call_alone(asm)
        asm.take_local(".function")
        for name in passed:
            asm.take_local(name)
        call_alone(asm, arguments)
        returned = asm.fresh_local("returned")
        asm.store_local(returned)
    for nth, block in reversed(list(enumerate(frame.state.blocks))):
        with asm.under(exits.below(nth)):
            if block.manager.exit_state is not None:
                save_exit_state(asm, block.manager.exit_state, with_exit_state[block.stack_index])
            leave(asm)
    for name in (returned, *with_exit_state.values()):
        asm.take_local(name)
    if with_exit_state:
        asm.build_tuple(1 + len(with_exit_state))
    asm.return_value()
    exits.write()
    return _mark_transformed(asm.finish(frame.code.code))


def _mark_transformed(code: CodeType) -> CodeType:
    """Code that runs as it is, whoever looks at frames."""
    _C.set_flags(code, _C.TRANSFORMED)
    return code
