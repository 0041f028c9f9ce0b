"""The new code of a traced frame: graph, effects, and then the return or the rest of the frame.

pipeline.py calls `plan` before it finishes the graph and `assemble` after the backend compiled it. The code takes the
frame's argument slots as plain parameters and has the frame's free variables. In order: load the graph's inputs, call
it; load what later writes may hide; replay effects; then return the value, or put the stack and the locals in place, run
the instruction that broke as it stands, and return a `_C.Continue` of the continuation and what is live, which _entries.c
runs. What is needed no longer is unbound before that instruction: the frame keeps nothing alive that the user's own
would not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CellType, CodeType
from typing import Any

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.flow import live_before
from fxjit.frontend.bytecode.instruction import Code, Instruction, Positions
from fxjit.frontend.result import Break, Return, TraceResult
from fxjit.frontend.values.base import NULL, Value
from fxjit.guards.source import ClosureCellSource, ConstSource, LocalSource, Source
from fxjit.resume.blocks import Exits, enter, leave
from fxjit.resume.cache import continuation_of, locate
from fxjit.resume.function import Continuation, Entrance, first_argument
from fxjit.resume.rebuild import Plan, Rebuilder
from fxjit.resume.replay import replay
from fxjit.resume.stop import Outcome, after, bound_after, run_instruction

_KEEPS = (LocalSource, ConstSource, ClosureCellSource)
"""Sources that no effect can change: arguments stay where they are until everything is built."""


def plan(result: TraceResult) -> Plan:
    """What the new code will need: the values that the graph must give out, and the sources that are read."""
    scratch = Rebuilder(Asm(result.arg_names, result.code.freevars), result.effect_log)
    replay(scratch, result.effects)
    stop = result.stop
    if isinstance(stop, Return):
        scratch.push(stop.value)
        return scratch.plan
    exits = {block.stack_index for block in stop.state.blocks}
    for block in stop.state.blocks:
        block.manager.push_manager(scratch)
    for at, value in enumerate(stop.state.stack):
        if at not in exits:
            scratch.push(value)
    for name, value in stop.state.cells.items():
        if name not in result.code.freevars:
            scratch.push(value)
    for value in stop.state.locals.values():
        scratch.push(value)
    return scratch.plan


def assemble(result: TraceResult, planned: Plan, compiled: Callable[..., Any] | None) -> CodeType:
    """The frame's new code; `compiled` is the graph's callable, None where there is no graph."""
    return _Entry(result, planned, compiled).write()


class _Entry:
    """The new code under construction."""

    def __init__(self, result: TraceResult, planned: Plan, compiled: Callable[..., Any] | None) -> None:
        self.result = result
        self.plan = planned
        self.compiled = compiled
        self.code = result.code
        self.asm = Asm(result.arg_names, result.code.freevars)
        #: Locals that hold what only this code needs.
        self.temps: list[str] = []

    def write(self) -> CodeType:
        asm, result = self.asm, self.result
        asm.at(_first_positions(self.code))
        asm.prologue()
        outputs = self._call_graph()
        sources = self._load_sources() if result.effects else {}
        self.cg = Rebuilder(asm, result.effect_log, outputs, sources)
        replay(self.cg, result.effects)
        if isinstance(result.stop, Return):
            self.cg.push(result.stop.value)
            asm.return_value()
        else:
            _Rest(self, result.stop).write()
        return asm.finish(self.code.code)

    def _temp(self, prefix: str) -> str:
        name = self.asm.fresh_local(prefix)
        self.temps.append(name)
        self.asm.store_local(name)
        return name

    def _call_graph(self) -> dict[Value, str]:
        """Call the graph; the locals that hold its outputs."""
        if self.compiled is None:
            return {}
        asm, inputs = self.asm, self.result.graph.inputs
        asm.begin_call(self.compiled)
        asm.share(_shared_bases([item.source for item in inputs]))
        for item in inputs:
            asm.load_source(item.source)
        self.temps += asm.shared_locals
        asm.share(())
        asm.call(len(inputs))
        outputs = self.plan.outputs
        if not outputs:
            asm.pop()
            return {}
        asm.unpack(len(outputs))
        return {value: self._temp("out") for value in outputs}

    def _load_sources(self) -> dict[Source, str]:
        """Load all that is read later and that an effect may overwrite."""
        held = {}
        for source in self.plan.sources:
            if not isinstance(source, _KEEPS):
                source.load(self.asm)
                held[source] = self._temp("was")
        return held

    def unbind_temps(self) -> None:
        for name in (*self.temps, *self.cg.temps):
            self.asm.delete_local(name)


def _shared_bases(sources: Sequence[Source]) -> list[Source]:
    """The sources that more than one of `sources` goes through: `model.layers[0].__dict__` of its two parameters."""
    users: dict[Source, set[Source]] = {}
    for source in sources:
        step, base = source, source.base
        while base is not None:
            known = users.setdefault(base, set())
            first = not known
            known.add(step)
            if not first:
                break
            step, base = base, base.base
    return [base for base, steps in users.items() if base.base is not None and len(steps) > 1]


class _Rest:
    """What follows when the frame stops before its end."""

    def __init__(self, entry: _Entry, stop: Break) -> None:
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
        for name in self.entry.result.arg_names:
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
            asm.load_local(self.entry.result.arg_names[0])
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


def _first_positions(code: Code) -> Positions:
    """What is current while the graph runs: the first line that was traced."""
    for instruction in code.instructions:
        if instruction.native not in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL") and instruction.line is not None:
            return Positions(instruction.line, instruction.line, None, None)
    return Positions(code.code.co_firstlineno, code.code.co_firstlineno, None, None)
