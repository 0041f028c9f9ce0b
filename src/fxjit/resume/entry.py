"""The new code of a traced frame: graph, effects, and then the return or the break epilogue.

pipeline.py calls `plan` before it finishes the graph and `assemble` after the backend compiled it. The code takes the frame's
argument slots as plain parameters and has the frame's free variables. In order: take hold of what weak references refer to;
run the steps of random generators; load the graph's inputs, call it; load what later writes may hide; replay effects; then
return the value, or put the stack and the locals in place, run the instruction at the break point as it stands, and return a
`_C.Continue` of the resume function and what is live, which _continue.c runs. What is needed no longer is unbound before that
instruction: the frame keeps nothing alive that the user's own would not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Literal

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.instruction import Code, Positions
from fxjit.frontend.held_locks import HoldingGraph
from fxjit.frontend.result import Break, Return, TraceResult
from fxjit.frontend.values.base import Value
from fxjit.guards.source import CallSource, ClosureCellSource, ConstSource, LocalSource, RandomSource, Source
from fxjit.resume.break_epilogue import BreakEpilogue
from fxjit.resume.deoptimization import Deoptimization, UndoableGraph
from fxjit.resume.nested import NestedBreakEpilogue, push_inner
from fxjit.resume.rebuild import Plan, Rebuilder
from fxjit.resume.replay import replay
from fxjit.resume.rescue import rescue
from fxjit.resume.rng import RngProgram

StartsOver = Literal["never", "if unwritten", "always"]
_KEEPS = (LocalSource, ConstSource, ClosureCellSource, RandomSource)
"""Sources that no effect can change: arguments stay where they are until everything is built."""


def plan(result: TraceResult) -> Plan:
    """Plans the new code: the values that the graph must output, the sources that are read, and what it holds."""
    scratch = Rebuilder(Asm(result.arg_names, result.code.freevars), result.effect_log)
    _push_all(scratch, result)
    scratch.plan.constants += scratch.asm.held()
    return scratch.plan


def _push_all(scratch: Rebuilder, result: TraceResult) -> None:
    """What the new code hands on."""
    replay(scratch, result.effects)
    end = result.end
    if isinstance(end, Return):
        scratch.push(end.value)
        return
    exits = {block.stack_index for block in end.state.blocks}
    for block in end.state.blocks:
        block.manager.push_manager(scratch)
    for at, value in enumerate(end.state.stack):
        if at not in exits:
            scratch.push(end.state.handled.get(at, value))
    for name, value in end.state.cells.items():
        if name not in result.code.freevars:
            scratch.push(value)
    for value in end.state.locals.values():
        scratch.push(value)
    for frame in end.inner:
        push_inner(scratch, frame)


def assemble(result: TraceResult, planned: Plan, compiled: Callable[..., Any] | None, *,
             starts_over: StartsOver = "never", undoing: UndoableGraph | None = None) -> CodeType:
    """The frame's new code; `compiled` is the graph's callable, None where there is no graph, and `undoing` what calls it, if
    anything. `starts_over`: whether the user's code runs from its beginning where the graph fails."""
    return _Entry(result, planned, compiled, starts_over, undoing).write()


class _Entry:
    """The new code under construction."""

    def __init__(self, result: TraceResult, planned: Plan, compiled: Callable[..., Any] | None, starts_over: StartsOver,
                 undoing: UndoableGraph | None) -> None:
        self.result = result
        self.starts_over = starts_over != "never" and compiled is not None
        self.if_unwritten = starts_over == "if unwritten"
        self.undoing = undoing
        self.plan = planned
        self.compiled = compiled
        self.code = result.code
        self.arg_names = result.arg_names
        self.cg: Rebuilder
        self.asm = Asm(result.arg_names, result.code.freevars)
        #: Locals that hold what only this code needs.
        self.temps: list[str] = []
        self.deoptimization: Deoptimization | None = None

    def write(self) -> CodeType:
        asm, result = self.asm, self.result
        asm.at(_first_positions(self.code))
        under = rescue(asm, self.code) if self.compiled is not None else None
        guarding = None if under is None else under.guarding
        rng_program = RngProgram(result.rng_steps) if result.rng_steps else None
        if result.speculated is not None or self.starts_over or (rng_program is not None and rng_program.may_fail):
            self.deoptimization = Deoptimization(asm, self.code.code, self.arg_names)
            if self.starts_over:
                guarding = self.deoptimization.guarding(if_unwritten=self.if_unwritten)
        with asm.under(guarding):  # from the first instruction on, where handlers of signals may raise
            asm.prologue()
            referents = self._hold_referents()
            if rng_program is not None:
                rng_program.rewinds &= self.starts_over or result.speculated is not None
                self._run_rng_program(rng_program)
            outputs = self._call_graph()
        sources = self._load_sources(referents) if result.effects else {}
        self.cg = Rebuilder(asm, result.effect_log, outputs, referents | sources)
        replay(self.cg, result.effects)
        if isinstance(result.end, Return):
            self.cg.push(result.end.value)
            for name in result.end.lets_go:
                asm.delete_local(name)
            asm.return_value()
        else:
            self._epilogue(result.end).write()
        if self.deoptimization is not None:
            self.deoptimization.write(under.label if under is not None else None)
        if under is not None:
            under.write()
        return asm.finish(self.code.code)

    def _epilogue(self, end: Break) -> BreakEpilogue:
        return NestedBreakEpilogue(self, end, self.result.globals) if end.inner else BreakEpilogue(self, end)

    def _temp(self, prefix: str) -> str:
        name = self.asm.fresh_local(prefix)
        self.temps.append(name)
        self.asm.store_local(name)
        return name

    def _hold_referents(self) -> dict[Source, str]:
        """Take hold of what weak references refer to: it may end while the graph runs, where the user's code holds it."""
        read: list[Source] = [*self.plan.sources, *(item.source for item in self.result.graph.inputs)]
        referents = dict.fromkeys(step for source in read for step in _referents(source))
        if not referents:
            return {}
        if self.deoptimization is None:
            self.deoptimization = Deoptimization(self.asm, self.code.code, self.arg_names)
        held: dict[Source, str] = {}
        with self.asm.under(self.deoptimization.guarding_referents()):
            for step in referents:
                self.asm.load_source(step)
                self.deoptimization.test_referent()
                held[step] = self._temp("referent")
        return held

    def _run_rng_program(self, rng_program: RngProgram) -> None:
        """Run the steps; the locals of their results."""
        asm = self.asm
        if rng_program.rewinds:
            assert self.deoptimization is not None, "the frame starts over"
            asm.load_const(())
            self.deoptimization.before_steps = self._temp("before")
        asm.begin_call(_C.DisabledFunction(rng_program, opaque=True))  # the hook looks at none of what it calls
        for source in rng_program.sources:
            asm.load_source(source)
        if rng_program.recheck is not None:
            for name in self.arg_names:
                asm.load_local(name)
            asm.build_tuple(len(self.arg_names))
            asm.load_closure()
            asm.call_const(globals, 0)
        asm.call(len(rng_program.sources) + (3 if rng_program.recheck is not None else 0))
        if self.deoptimization is not None:
            self.deoptimization.test()
        read = {source for source in self.plan.sources if isinstance(source, RandomSource)}
        read |= {RandomSource(at) for at in self.result.rng_steps.locks}
        read |= {item.source.root for item in self.result.graph.inputs if isinstance(item.source.root, RandomSource)}
        wanted = rng_program.give(sorted(read, key=lambda source: source.at))
        if not wanted and not rng_program.rewinds:
            asm.pop()
            return
        asm.unpack(len(wanted) + rng_program.rewinds)
        if self.deoptimization is not None and self.deoptimization.before_steps is not None:
            asm.store_local(self.deoptimization.before_steps)
        for source in wanted:
            asm.store_local(source.local)
            self.temps.append(source.local)

    def _call_graph(self) -> dict[Value, str]:
        """Call the graph; the locals that hold its outputs."""
        if self.compiled is None:
            return {}
        asm, inputs, locks = self.asm, self.result.graph.inputs, self.result.rng_steps.locks
        calls: list[Callable[..., Any]] = [] if self.undoing is None else [self.undoing]
        calls.append(self.compiled)
        if locks:
            calls.insert(0, HoldingGraph(len(locks)))
        asm.begin_call(calls[0])
        for at in locks:
            asm.load_source(RandomSource(at))
        for each in calls[1:]:
            asm.load_const(each)
        asm.share(_shared_bases([item.source for item in inputs]))
        for item in inputs:
            asm.load_source(item.source)
        self.temps += asm.shared_locals
        asm.share(())
        asm.call(len(inputs) + len(locks) + len(calls) - 1)
        if self.deoptimization is not None and self.result.speculated is not None:
            self.deoptimization.test()
        outputs = self.plan.outputs
        if not outputs:
            asm.pop()
            return {}
        asm.unpack(len(outputs))
        return {value: self._temp("out") for value in outputs}

    def _load_sources(self, referents: Mapping[Source, str]) -> dict[Source, str]:
        """Load all that is read later and that an effect may overwrite."""
        held = {}
        for source in self.plan.sources:
            if not isinstance(source, _KEEPS) and source not in referents:
                source.load(self.asm)
                held[source] = self._temp("was")
        return held

    def unbind_temps(self) -> None:
        for name in (*self.temps, *self.cg.temps):
            self.asm.delete_local(name)


def _referents(source: Source) -> list[Source]:
    """What weak references on the way to `source` refer to, from the first on."""
    step: Source | None = source
    found: list[Source] = []
    while step is not None:
        if isinstance(step, CallSource):
            found.insert(0, step)
        step = step.base
    return found


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


def _first_positions(code: Code) -> Positions:
    """The position while the graph runs: the first line that was traced."""
    for instruction in code.instructions:
        if instruction.native not in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL") and instruction.line is not None:
            return Positions(instruction.line, instruction.line, None, None)
    return Positions(code.code.co_firstlineno, code.code.co_firstlineno, None, None)
