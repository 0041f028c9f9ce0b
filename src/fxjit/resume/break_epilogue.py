"""The end of the new code of a frame that breaks: restores the user's stack and locals, runs the instruction at the break point
as it stands, and returns a `_C.Continue` of the resume function with what is live.

entry.py calls `BreakEpilogue.write` when the graph ran and the effects were replayed.
"""

from __future__ import annotations

from types import CellType
from typing import Protocol

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.flow import first_argument, live_before, rebound_from
from fxjit.frontend.bytecode.instruction import Code, Instruction
from fxjit.frontend.result import Break
from fxjit.frontend.values.base import NULL, Value
from fxjit.guards.source import LocalSource
from fxjit.resume.blocks import Exits, chain, enter, handle, leave, save_exit_state
from fxjit.resume.break_point import RUNS_NOTHING, Outcome, after, after_raising, bound_after, run_instruction
from fxjit.resume.cache import locate, region_function_of, resume_function_of
from fxjit.resume.function import CAPTURED_SELF, ResumeFunction, ResumePoint, own_cells
from fxjit.resume.rebuild import Rebuilder


class UnderConstruction(Protocol):
    """The new code, as far as its epilogue is concerned."""

    asm: Asm
    cg: Rebuilder
    code: Code
    arg_names: tuple[str, ...]

    def unbind_temps(self) -> None:
        """Delete the locals that only this code needed."""


class BreakEpilogue:
    """The code after the graph in a frame that breaks."""

    def __init__(self, entry: UnderConstruction, break_: Break) -> None:
        self.entry = entry
        self.asm = entry.asm
        self.cg = entry.cg
        self.code: Code = entry.code
        self.break_ = break_
        self.state = break_.state
        self.exits = tuple(block.stack_index for block in break_.state.blocks)
        self.nulls = tuple(value is NULL for value in break_.state.stack)
        handlers = [] if break_.kind in RUNS_NOTHING else chain(self.code, break_.index, self.exits)
        self.handlers = Exits(self.asm, self.code, self.exits, handlers)
        #: The managers that the resume function enters again, and the exceptions that it handles, by stack entry.
        self.managers: dict[int, str] = {}
        self.handled: dict[int, str] = {}
        #: The cells that the frame made, by name.
        self.cells: dict[str, str] = {}
        self.bound: tuple[str, ...] = ()

    def write(self) -> None:
        asm, break_ = self.asm, self.break_
        instruction = self.code.instructions[break_.index]
        asm.at(instruction.positions)
        outcomes = after(self.code, break_.index, break_.kind, self.nulls, frozenset(self.state.locals))
        raised = after_raising(self.handlers.catching, self.nulls)
        self._restore_frame(instruction, outcomes if raised is None else [*outcomes, raised])
        bound_before = self.bound
        if break_.kind not in RUNS_NOTHING:
            self.bound = bound_after(instruction, self.bound, self.nulls)
        with asm.under(self.handlers.innermost):
            labels = run_instruction(asm, self.code, break_.index, break_.kind, self.cells)
            if instruction.opname == "CHECK_EG_MATCH" and break_.kind not in RUNS_NOTHING:
                self._note_handled()
        for outcome in outcomes:
            with asm.under(self.handlers.below(len(outcome.nulls))):
                if outcome.label is not None:
                    asm.place(labels[outcome.label])
                    for ending in outcome.loop_end:
                        asm.raw(ending)
            # A manager that was entered for real holds the state that the blocks around it made: these stay entered too.
            self._continue(outcome, () if self._keeps_blocks else self.exits)
        if raised is not None:
            assert self.handlers.caught is not None, "it has a handler"
            self.bound = bound_before
            with asm.under(self.handlers.below(len(raised.nulls))):
                asm.place(self.handlers.caught)
            self._continue(raised, tuple(at for at in self.exits if at < raised.own))
        self.handlers.write()

    @property
    def _keeps_blocks(self) -> bool:
        """Whether the blocks around the instruction hold less than the whole state once it ran."""
        if self.break_.kind == "region":
            return False
        return self.break_.keeps_blocks or self.code.instructions[self.break_.index].opname == "BEFORE_WITH"

    def _note_handled(self) -> None:
        """[..., left, taken]: what an `except*` clause takes, if anything, is what is being handled from here on."""
        asm = self.asm
        takes_none = asm.label()
        asm.dup()
        asm.jump_if("NONE", takes_none)
        asm.dup()
        asm.store_local(self.handled[max(self.handled)])
        asm.place(takes_none)

    # -- before the instruction ------------------------------------------------------------------------------------

    def _restore_frame(self, instruction: Instruction, outcomes: list[Outcome]) -> None:
        """Stack and locals as the user's frame has them, everything else unbound. All is built before any local is
        overwritten and before any block is entered."""
        blocks, handled = self.state.blocks, self.state.handled
        entered = []
        for block in blocks:
            block.manager.push_manager(self.cg)
            entered.append(self._keep("enter"))
            block.manager.push_manager(self.cg)
            self.managers[block.stack_index] = self._keep("again")
        for name, value in self.state.cells.items():
            if name not in self.code.freevars:
                self.cg.push(value)
                self.cells[name] = self._keep("cell")
        slots = []
        for at, value in enumerate(self.state.stack):
            if at in handled:
                self.cg.push(handled[at])
                self.handled[at] = self._keep("handled")
                self.cg.push(handled[at])
            elif at not in self.exits:
                self.cg.push(value)
            if blocks or handled:
                slots.append(None if at in self.exits else self._keep("slot"))
        self._bind_locals(instruction, outcomes)
        self.entry.unbind_temps()
        self._bind_cells()
        if blocks or handled:
            self._enter_blocks(entered, slots)

    def _keep(self, prefix: str) -> str:
        name = self.asm.fresh_local(prefix)
        self.asm.store_local(name)
        return name

    def _bind_locals(self, instruction: Instruction, outcomes: list[Outcome]) -> None:
        asm, locals_ = self.asm, self.state.locals
        wanted = set(locals_) & {str(instruction.argval)}
        for outcome in outcomes:
            wanted |= live_before(self.code, outcome.index) | self.state.kept
        self.bound = tuple(name for name in locals_ if name in wanted)
        unchanged = {name for name in self.bound if self._is_argument(name, locals_[name])}
        changed = [name for name in self.bound if name not in unchanged]
        for name in changed:
            self.cg.push(locals_[name])
        for name in reversed(changed):
            asm.store_local(name)
        kept = {*self.bound, *({first_argument(self.code)} & set(own_cells(self.code)))}
        for name in dict.fromkeys((*self.break_.lets_go, *self.entry.arg_names)):
            if name not in kept:
                asm.delete_local(name)

    def _bind_cells(self) -> None:
        """The frame's own cells come under their names, where who looks at the frame finds them."""
        for name, kept in self.cells.items():
            if name not in self.state.locals and name not in self.bound and name != first_argument(self.code):
                self.asm.move_to_cell(kept, name)
                self.cells[name] = name

    def _is_argument(self, name: str, value: Value) -> bool:
        """Whether local `name` still is the argument of that name."""
        source = value.source
        return isinstance(source, LocalSource) and source == LocalSource(name)

    def _enter_blocks(self, entered: list[str], slots: list[str | None]) -> None:
        asm = self.asm
        for at, slot in enumerate(slots):
            with asm.under(self.handlers.below(at)):
                if self.nulls[at]:
                    asm.push_null()
                elif slot is None:
                    asm.take_local(entered[self.exits.index(at)])
                    enter(asm)
                else:
                    asm.take_local(slot)
                    if at in self.handled:
                        handle(asm)

    # -- after it --------------------------------------------------------------------------------------------------

    def _continue(self, outcome: Outcome, exits: tuple[int, ...]) -> None:
        """Take the stack down, leaving the blocks of `exits`, and return the resume function, for whoever runs this code to
        call: so nothing of this frame is alive meanwhile, and it is in no traceback."""
        asm = self.asm
        if outcome.ends:
            return
        slots: dict[int, str] = {}
        for at in range(len(outcome.nulls) - 1, -1, -1):
            with asm.under(self.handlers.below(at)):
                if at in exits:
                    self._save_exit_state(at)
                    leave(asm)
                elif at in self.handled and at < outcome.own:
                    asm.emit("POP_EXCEPT")
                elif at != outcome.lasti_at:
                    slots[at] = self._keep("slot")
        self._hand_over(outcome, exits, slots)

    def _save_exit_state(self, at: int) -> None:
        """The block at stack entry `at` is about to be left: what is entered again brings about what it is left with."""
        exit_state = next(block.manager.exit_state for block in self.state.blocks if block.stack_index == at)
        if exit_state is not None and self.break_.kind not in RUNS_NOTHING:
            save_exit_state(self.asm, exit_state, self.managers[at])

    def _hand_over(self, outcome: Outcome, exits: tuple[int, ...], slots: dict[int, str]) -> None:
        """The stack is empty, `slots` has its entries: return the resume function."""
        asm = self.asm
        resume_function = self._resume_function(outcome, exits)
        rebound = rebound_from(self.code, outcome.index) if outcome.raised else set()
        asm.begin_call(_C.Continue)
        asm.make_function(resume_function.code, (lambda: self._closure(resume_function)) if resume_function.freevars else None)
        count = 1 + len(resume_function.stack) + len(resume_function.locals)
        if resume_function.first is not None:
            if resume_function.first == CAPTURED_SELF or resume_function.first in self.bound:
                asm.load_local(self.entry.arg_names[0])
            else:
                asm.load_const(None)
            count += 1
        for at in resume_function.stack:
            if at == outcome.lasti_at:
                asm.load_const(0)
            else:
                again = self.managers if at in exits else self.handled if at < outcome.own else slots
                asm.take_local(again.get(at) or slots[at])
        for name in resume_function.locals:
            if outcome.raised and name not in rebound:
                asm.load_local(name)  # this frame is in the exception's traceback, which holds what eager's would
            else:
                asm.take_local(name)
        asm.call(count)
        asm.return_value()

    def _resume_function(self, outcome: Outcome, exits: tuple[int, ...]) -> ResumeFunction:
        origin = locate(self.code.code, outcome.index)
        live = live_before(self.code, outcome.index) | self.state.kept
        bound = tuple(name for name in self.code.varnames if name in self.bound and name in live)
        bound += tuple(name for name in self.bound if name in live and name not in bound)
        handled = tuple(at for at in self.handled if at < outcome.own)
        loops = tuple(at for at in self.state.loops if at < outcome.own)
        point = ResumePoint(origin.index, outcome.nulls, exits, bound, handled, loops=loops)
        if self.break_.kind == "region":
            return region_function_of(origin.code, point)
        return resume_function_of(origin.code, point)

    def _closure(self, resume_function: ResumeFunction) -> None:
        asm = self.asm
        for name in resume_function.freevars:
            if name in self.code.freevars and name not in self.bound:  # a local may have its slot meanwhile
                asm.load_cell(name)
            elif name in self.cells:
                asm.load_local(self.cells[name])
            else:
                asm.begin_call(CellType)
                asm.call(0)
        asm.build_tuple(len(resume_function.freevars))
