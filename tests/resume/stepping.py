"""A whole function run through entry codes, one instruction each.

`State` is a frame's state with real objects. `step` writes the entry code that puts such a state in place, runs the one
instruction and hands what it would give the resume function to the test instead. `finish` runs the real resume function.
So every instruction of a function is once the one that a graph breaks at, with everything real but the trace."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType, CodeType
from typing import Any

from fxjit import _C
from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.instruction import Code
from fxjit.frontend.effects import Effects
from fxjit.frontend.result import Break, FrameState, TraceResult
from fxjit.frontend.rng_steps import RngSteps
from fxjit.frontend.values.base import NULL, Rebuilder, Value
from fxjit.resume import break_epilogue, cache, entry
from fxjit.resume.function import ResumeFunction, ResumePoint, own_cells


class Known(Value):
    """This very object."""

    def __init__(self, obj: Any) -> None:
        super().__init__(None)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.obj)


class NoGraph:
    """A trace that put nothing in its graph."""

    inputs = ()

    def finish(self, outputs: Any) -> None:
        return None


@dataclass
class State:
    """A frame before `code.instructions[index]`."""

    code: Code
    index: int
    stack: list[Any]
    locals: dict[str, Any]
    cells: dict[str, CellType]
    closure: tuple[CellType, ...] | None
    globals: dict[str, Any]
    first: Any = None
    seen: list[str] = field(default_factory=list)

    @property
    def opname(self) -> str:
        return self.code.instructions[self.index].opname


def start(fn: types.FunctionType, *args: Any) -> State:
    """The state behind RESUME. `args` fill the argument slots."""
    code = decode(fn.__code__)
    locals_ = dict(zip(code.argument_slots, args, strict=True))
    cells = {name: CellType(locals_.pop(name)) if name in locals_ else CellType() for name in own_cells(code)}
    index = next(i.index for i in code.instructions if i.native == "RESUME") + 1
    return State(code, index, [], locals_, cells, fn.__closure__, fn.__globals__, args[0] if args else None)


def trace_result(state: State, kind: str = "instruction", blocks: Any = (), effects: Any = None, graph: Any = None,
                 stack: Any = None) -> TraceResult:
    """What a trace that stopped in `state` would be."""
    values: dict[int, Value] = {}

    def value_of(obj: Any) -> Value:
        return NULL if obj is NULL else values.setdefault(id(obj), Known(obj))

    frame = FrameState(
        stack=tuple(value_of(obj) for obj in state.stack) if stack is None else stack,
        locals={name: value_of(obj) for name, obj in state.locals.items()},
        cells={name: value_of(cell) for name, cell in state.cells.items()},
        blocks=blocks,
    )
    log = effects or Effects()
    return TraceResult(
        code=state.code, arg_names=state.code.argument_slots, graph=graph or NoGraph(), guards=None,  # type: ignore[arg-type]
        effects=log.records(), effect_log=log, end=Break(state.index, kind, frame, None),  # type: ignore[arg-type]
        first_line=0, globals=state.globals, finish_trace=lambda: None, rng_steps=RngSteps(),
    )  # fmt: skip


def run(code: CodeType, state: State) -> Any:
    """Call entry code as the hook would: whatever the arguments were, the state does not come from them."""
    fn = types.FunctionType(code, state.globals, code.co_name, None, state.closure if code.co_freevars else None)
    args = [object() for _ in state.code.argument_slots]
    if args:
        args[0] = state.first
    return finished(fn(*args))


def finished(result: Any) -> Any:
    """What a frame came to in the end, where its code returned the rest of it: the hook does the same."""
    return result() if type(result) is _C.Continue else result


class Left(Exception):
    """The frame returned or raised in this step."""


def step(state: State, kind: str = "instruction") -> State:
    """The state after one instruction (after the conditional jump behind it, where there is one)."""
    asked: list[tuple[ResumePoint, ResumeFunction]] = []

    def capture(code: CodeType, entrance: ResumePoint) -> ResumeFunction:
        real = cache.resume_function_of(code, entrance)
        number = len(asked)
        asked.append((entrance, real))
        names = ", ".join(f"a{n}" for n in range(real.code.co_argcount))
        scope: dict[str, Any] = {}
        cells = ", ".join(real.freevars)
        body = f" def capture({names}):\n  lambda: ({cells})\n  return {number}, [{names}]"
        source = f"def make({cells}):\n{body}\n return capture"
        exec(source, scope)
        dummy = scope["make"](*[None] * len(real.freevars)).__code__
        return ResumeFunction(dummy, real.stack, real.locals, dummy.co_freevars, real.first, real.indices)

    result = trace_result(state, kind)
    before = break_epilogue.resume_function_of
    break_epilogue.resume_function_of = capture
    try:
        new = entry.assemble(result, entry.plan(result), None)
    finally:
        break_epilogue.resume_function_of = before
    if not asked:
        raise Left(run(new, state))
    number, args = run(new, state)
    entrance, real = asked[number]
    if real.first is not None:
        args.pop(0)
    stack: list[Any] = [NULL] * len(entrance.nulls)
    for at in real.stack:
        stack[at] = args.pop(0)
    locals_ = dict(zip(real.locals, args, strict=True))
    if real.first is not None and real.first in entrance.locals:
        locals_[real.first] = state.first
    return State(state.code, entrance.index, stack, locals_, state.cells, state.closure, state.globals, state.first)


def finish(state: State, kind: str = "resume") -> Any:
    """Run the rest: the entry code of a stop in `state` with its real resume function."""
    result = trace_result(state, kind)
    return run(entry.assemble(result, entry.plan(result), None), state)


def outcome(fn: Callable[[], Any]) -> Any:
    """What a call gives or raises, to be compared."""
    try:
        return ("returned", fn())
    except Left as left:
        return ("returned", left.args[0])
    except Exception as error:  # noqa: BLE001 - whatever eager raises
        return ("raised", type(error), str(error))
