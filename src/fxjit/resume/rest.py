"""What follows in new code where the frame stops before its end: the user's stack and locals, the instruction that broke
as it stands, and a `_C.Continue` of the continuation with what is live.

entry.py calls `Rest.write` when the graph ran and the effects were replayed."""

from __future__ import annotations

from types import CellType
from typing import Protocol

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.flow import live_before
from fxjit.frontend.bytecode.instruction import Code, Instruction
from fxjit.frontend.result import Break
from fxjit.frontend.values.base import NULL, Value
from fxjit.guards.source import LocalSource
from fxjit.resume.blocks import Exits, enter, leave
from fxjit.resume.cache import continuation_of, locate
from fxjit.resume.function import Continuation, Entrance, first_argument
from fxjit.resume.rebuild import Rebuilder
from fxjit.resume.stop import Outcome, after, bound_after, run_instruction


class UnderConstruction(Protocol):
    """The new code, as far as its rest is concerned."""

    asm: Asm
    cg: Rebuilder
    code: Code
    arg_names: tuple[str, ...]

    def unbind_temps(self) -> None:
        """Delete the locals that only this code needed."""


class Rest:
    """What follows when the frame stops before its end."""

    def __init__(self, entry: UnderConstruction, stop: Break) -> None:
        self.entry = entry
        self.asm = entry.asm
        self.cg = entry.cg
        self.code: Code = entry.code
        self.stop = stop
        self.state = stop.state
        self.exits = tuple(block.stack_index for block in stop.state.blocks)
        self.nulls = tuple(value is NULL for value in stop.state.stack)
        self.handlers = Exits(self.asm)
        #: The managers that the continuation enters again, by stack entry; the cells that the frame made, by name.
        self.managers: dict[int, str] = {}
        self.cells: dict[str, str] = {}
        self.bound: tuple[str, ...] = ()

    def write(self) -> None:
        asm, stop = self.asm, self.stop
        instruction = self.code.instructions[stop.index]
        asm.at(instruction.positions)
        outcomes = after(self.code, stop.index, stop.kind, self.nulls, frozenset(self.state.locals))
        self._put_in_place(instruction, outcomes)
        if stop.kind != "resume":
            self.bound = bound_after(instruction, self.bound, self.nulls)
        with asm.under(self.handlers.innermost):
            labels = run_instruction(asm, self.code, stop.index, stop.kind, self.cells)
        for outcome in outcomes:
            with asm.under(self.handlers.innermost):
                if outcome.label is not None:
                    asm.place(labels[outcome.label])
                    for ending in outcome.loop_end:
                        asm.raw(ending)
            self._continue(outcome)
        self.handlers.write()

    # -- before the instruction ------------------------------------------------------------------------------------

    def _put_in_place(self, instruction: Instruction, outcomes: list[Outcome]) -> None:
        """Stack and locals as the user's frame has them, everything else unbound. All is built before any local is
        overwritten and before any block is entered."""
        blocks = self.state.blocks
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
            if at not in self.exits:
                self.cg.push(value)
            if blocks:
                slots.append(None if at in self.exits else self._keep("slot"))
        self._bind_locals(instruction, outcomes)
        self.entry.unbind_temps()
        if blocks:
            self._enter_blocks(entered, slots)

    def _keep(self, prefix: str) -> str:
        name = self.asm.fresh_local(prefix)
        self.asm.store_local(name)
        return name

    def _bind_locals(self, instruction: Instruction, outcomes: list[Outcome]) -> None:
        asm, locals_ = self.asm, self.state.locals
        wanted = set(locals_) & {str(instruction.argval)}
        for outcome in outcomes:
            wanted |= live_before(self.code, outcome.index)
        self.bound = tuple(name for name in locals_ if name in wanted)
        unchanged = {name for name in self.bound if self._is_argument(name, locals_[name])}
        changed = [name for name in self.bound if name not in unchanged]
        for name in changed:
            self.cg.push(locals_[name])
        for name in reversed(changed):
            asm.store_local(name)
        kept = {*self.bound, first_argument(self.code)}
        for name in self.entry.arg_names:
            if name not in kept:
                asm.delete_local(name)

    def _is_argument(self, name: str, value: Value) -> bool:
        """Whether local `name` still is the argument of that name."""
        source = value.source
        return isinstance(source, LocalSource) and source == LocalSource(name)

    def _enter_blocks(self, entered: list[str], slots: list[str | None]) -> None:
        asm = self.asm
        for at, slot in enumerate(slots):
            with asm.under(self.handlers.innermost):
                if self.nulls[at]:
                    asm.push_null()
                    continue
                if slot is not None:
                    asm.take_local(slot)
                    continue
                asm.take_local(entered[self.exits.index(at)])
                enter(asm)
            self.handlers.guard(at)

    # -- after it --------------------------------------------------------------------------------------------------

    def _continue(self, outcome: Outcome) -> None:
        """Take the stack down, leaving the blocks, and return the rest of the frame, for whoever runs this code to call: so
        nothing of this frame is alive meanwhile, and it is in no traceback."""
        asm = self.asm
        if outcome.ends:
            return
        slots: dict[int, str] = {}
        guarding = self.handlers.innermost
        for at in range(len(outcome.nulls) - 1, -1, -1):
            if at in self.exits:
                guarding = self.handlers.around(at)
                with asm.under(guarding):
                    leave(asm)
                continue
            with asm.under(guarding):
                slots[at] = self._keep("slot")
        continuation = self._continuation(outcome)
        asm.begin_call(_C.Continue)
        asm.make_function(continuation.code, (lambda: self._closure(continuation)) if continuation.freevars else None)
        count = 1 + len(continuation.stack) + len(continuation.locals)
        if continuation.first is not None:
            asm.load_local(self.entry.arg_names[0])
            count += 1
        for at in continuation.stack:
            asm.take_local(self.managers[at] if at in self.exits else slots[at])
        for name in continuation.locals:
            asm.take_local(name)
        asm.call(count)
        asm.return_value()

    def _continuation(self, outcome: Outcome) -> Continuation:
        origin = locate(self.code.code, outcome.index)
        live = live_before(self.code, outcome.index)
        bound = tuple(sorted(name for name in self.bound if name in live))
        return continuation_of(origin.code, Entrance(origin.index, outcome.nulls, self.exits, bound))

    def _closure(self, continuation: Continuation) -> None:
        asm = self.asm
        for name in continuation.freevars:
            if name in self.code.freevars:
                asm.load_cell(name)
            elif name in self.cells:
                asm.load_local(self.cells[name])
            else:
                asm.begin_call(CellType)
                asm.call(0)
        asm.build_tuple(len(continuation.freevars))
