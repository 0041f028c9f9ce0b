"""Interpreted regions: a loop, `try` or `with` block inside which a frame breaks and cannot be resumed.

What stands before it is compiled; CPython runs the region, in a resume function that enters it from the top and is not traced;
where control leaves the region for good, that function hands over to another one, which is. Here is where control leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

from fxjit.frontend.bytecode.flow import first_argument, in_loop, reachable
from fxjit.frontend.bytecode.instruction import Code
from fxjit.resume.break_point import after, after_raising
from fxjit.resume.function import own_cells

#: Instructions that may compute with tensors, and how many of them have to follow for the rest to be compiled: the call of a
#: graph costs as much as a few operators on small tensors.
_COMPUTES = frozenset({
    "CALL", "CALL_KW", "CALL_FUNCTION_EX", "BINARY_OP", "BINARY_SUBSCR", "BINARY_SLICE", "COMPARE_OP", "STORE_SUBSCR",
    "UNARY_NEGATIVE", "UNARY_INVERT", "GET_ITER",
})
FEW_OPERATORS = 3
#: Exits of one region that resume functions are written for.
_MAX_EXITS = 4


@dataclass(frozen=True, slots=True)
class RegionExit:
    """The frame is outside of the region from `index` on, with a stack of which `nulls` are NULL."""

    index: int
    nulls: tuple[bool, ...]
    locals: tuple[str, ...]
    """The locals that may be bound there: nobody knows which of them hold objects whose end can be seen."""
    doubtful: tuple[str, ...]
    """Those of them that may be unbound as well."""


@dataclass(slots=True)
class _State:
    """What is known before an instruction, over all ways that lead there."""

    nulls: tuple[bool | None, ...]
    """None: NULL or a value. A comprehension that runs inline keeps a local there that may be unbound."""
    bound: frozenset[str]
    maybe: frozenset[str]

    def widen(self, other: _State) -> bool:
        """Allow for what `other` says too; whether that is news."""
        nulls = tuple(own if own == its else None for own, its in zip(self.nulls, other.nulls, strict=True))
        bound, maybe = self.bound & other.bound, self.maybe | other.maybe
        if (nulls, bound, maybe) == (self.nulls, self.bound, self.maybe):
            return False
        self.nulls, self.bound, self.maybe = nulls, bound, maybe
        return True


def region_exits(code: Code, index: int, nulls: tuple[bool, ...], bound: frozenset[str]) -> tuple[RegionExit, ...]:
    """Where control leaves the region that begins at `index`, there with `nulls` on the stack and these locals bound.
    Where little is left to compute, the region goes on to the end."""
    if set(code.cellvars) - set(own_cells(code)):
        return ()  # cells that come and go while it runs
    handler = code.handler_at(index)
    depth = 0 if handler is None else handler.depth
    bound = bound.difference(code.cellvars, code.freevars)
    states = {index: _State(nulls, bound, bound)}
    pending = [index]
    while pending:
        at = pending.pop()
        state = states[at]
        if at != index and _is_outside(code, at, state, depth, handler):
            continue
        for target, following in _next(code, at, state):
            known = states.get(target)
            if known is None:
                states[target] = following
            elif not known.widen(following):
                continue
            pending.append(target)
    found = _exits(code, index, states, depth, handler)
    return found if len(found) <= _MAX_EXITS else ()


def _exits(code: Code, index: int, states: dict[int, _State], depth: int, handler: object) -> tuple[RegionExit, ...]:
    exits = []
    pending, seen = [index], set[int]()
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        state = states[at]
        if at != index and _is_outside(code, at, state, depth, handler):
            if not _computes_little(code, at):
                doubtful = tuple(sorted(state.maybe - state.bound))
                exits.append(RegionExit(at, tuple(map(bool, state.nulls)), tuple(state.maybe), doubtful))
            continue
        pending.extend(target for target, _ in _next(code, at, state))
    return tuple(sorted(exits, key=lambda each: each.index))


def _is_outside(code: Code, at: int, state: _State, depth: int, handler: object) -> bool:
    """Whether the frame can be resumed there, at the level that the region stands at."""
    if in_loop(code, at) or code.handler_at(at) != handler or len(state.nulls) != depth or not code.instructions[at].original:
        return False
    if None in state.nulls:
        return False
    first = first_argument(code)
    if first is not None and first not in state.bound and first not in own_cells(code):
        return False
    return code.instructions[at].opname != "JUMP"


def _computes_little(code: Code, at: int) -> bool:
    return sum(code.instructions[each].opname in _COMPUTES for each in reachable(code, [at])) < FEW_OPERATORS


def _next(code: Code, at: int, state: _State) -> list[tuple[int, _State]]:
    """Where control goes after the instruction, and what is known there."""
    instruction = code.instructions[at]
    name = str(instruction.argval)
    its = frozenset([name]).difference(code.cellvars, code.freevars)  # whose slots comprehensions use meanwhile
    bound, maybe = state.bound, state.maybe
    if instruction.opname == "STORE_FAST":  # of NULL: unbinds it
        bound = bound | its if state.nulls[-1] is False else bound - its
        maybe = maybe - its if state.nulls[-1] is True else maybe | its
    elif instruction.opname in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
        bound, maybe = bound - its, maybe - its
    found = []
    for outcome in after(code, at, "instruction", state.nulls, state.bound):  # type: ignore[arg-type]  # which only moves them
        nulls: tuple[bool | None, ...] = outcome.nulls
        if instruction.opname == "LOAD_FAST_AND_CLEAR" and name in state.maybe - state.bound:
            nulls = (*nulls[:-1], None)
        if not outcome.ends:
            found.append((outcome.index, _State(nulls, bound, maybe)))
    raised = after_raising(code.handler_at(at), state.nulls)  # type: ignore[arg-type]  # the same
    if raised is not None:
        found.append((raised.index, _State(raised.nulls, state.bound, state.maybe)))
    return found
