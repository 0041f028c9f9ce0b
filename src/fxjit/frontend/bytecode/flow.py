"""Control-flow analyses of a decoded code object: reachability, live locals, loops. `interp` queries them for break points,
`resume` for the live state.

Answers are remembered with the decoded code they are about."""

from __future__ import annotations

import dis
from collections.abc import Container, Iterable, Iterator
from types import CodeType
from typing import Final, NamedTuple

from .instruction import CallSpec, Code
from .normalize import LEAVES

#: 3.13 loads cells and plain locals by one instruction, and a comprehension that runs inline may use a slot for both.
_READS = frozenset({"LOAD_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE"})
_ENDS = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})
_READS_NAME = frozenset({"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"})
_GOES_ON = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE"})
SEES_ALL_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})


#: How the parameters of a resume function begin that bring the iterators of loops it goes on in (values/iterators.py).
LOOP_PARAMETER: Final = ".loop"


class Loop(NamedTuple):
    """Instructions head..last, where `last` jumps back to `head`."""

    head: int
    last: int


def successors(code: Code, index: int) -> Iterator[int]:
    """Where control goes after the instruction at `index`, exceptions left aside."""
    instruction = code.instructions[index]
    if instruction.target is not None:
        yield instruction.target
    if instruction.opname != "JUMP" and instruction.opname not in LEAVES:
        yield index + 1


def reachable(code: Code, starts: Iterable[int], ends: Container[int] = ()) -> set[int]:
    """The instructions that can run once control is at one of `starts`, handlers of exceptions included, and none behind
    `ends`; and those that CPython wants at a loop's end though an exhausted FOR_ITER jumps over them."""
    found: set[int] = set()
    pending = list(starts)
    while pending:
        index = pending.pop()
        if index in found:
            continue
        found.add(index)
        if index in ends:
            continue
        pending.extend(successors(code, index))
        handler = code.handler_at(index)
        if handler is not None:
            pending.append(handler.target)
    for index in list(found):
        instruction = code.instructions[index]
        if instruction.landing is not None and instruction.target is not None:
            found.update(range(instruction.landing, instruction.target))
    return found


def rebound_from(code: Code, index: int) -> set[str]:
    """The plain locals that may be bound to something else, or unbound, once control is at `index`."""
    instructions = [code.instructions[each] for each in reachable(code, [index])]
    return {str(each.argval) for each in instructions if each.opname in _ENDS}


def may_be_unbound(code: Code, name: str) -> bool:
    """Whether the variable of a closure that `code` makes may be read, or deleted, where it has no value: some way leads
    there past every assignment, or it is deleted somewhere."""
    doubts: dict[str, bool] = code.facts.setdefault("doubts", {})
    if name not in doubts:
        doubts[name] = _is_done(code.code, name, ("DELETE_DEREF",)) or (
            name not in code.argument_slots and _is_read_before_assignment(code, name))
    return doubts[name]


def _is_done(code: CodeType, name: str, opnames: tuple[str, ...]) -> bool:
    """Whether `code`, or a function in it, does one of these to the variable of a closure of this name."""
    if name not in (*code.co_cellvars, *code.co_freevars):
        return False
    own = any(each.opname in opnames and each.argval == name for each in dis.get_instructions(code))
    return own or any(_is_done(each, name, opnames) for each in code.co_consts if isinstance(each, CodeType))


def _is_read_before_assignment(code: Code, name: str) -> bool:
    pending, seen = [0], set()
    while pending:
        index = pending.pop()
        if index in seen or index >= len(code.instructions):
            continue
        seen.add(index)
        instruction = code.instructions[index]
        if instruction.argval == name and instruction.opname == "LOAD_DEREF":
            return True
        handler = code.handler_at(index)
        if handler is not None:
            pending.append(handler.target)
        if instruction.argval != name or instruction.opname != "STORE_DEREF":
            pending.extend(successors(code, index))
    return False


#: Names of functions that are called where something is wrong.
_EXCEPTIONAL = ("warn", "warning", "exit")


def is_exceptional(code: Code, index: int | None) -> bool:
    """Whether all ways from the instruction at `index` lead to a `raise` whose exception is not handled here, to a warning, or
    to the end of the process. Programs are seldom there: what is decided by it costs time where it is wrong, nothing else."""
    assert index is not None, "a jump has a target"
    known: dict[int, bool] = code.facts.setdefault("exceptional", {})
    if index not in known:
        warnings = _warnings(code)
        found = reachable(code, [index], warnings)
        names = {code.instructions[at].opname for at in found}
        known[index] = not (warnings.isdisjoint(found) and "RAISE_VARARGS" not in names) and names.isdisjoint(_GOES_ON)
    return known[index]


def _warnings(code: Code) -> frozenset[int]:
    """The instructions that read `warnings.warn`, a logger's `warning`, `sys.exit`, or what else has such a name."""
    found: frozenset[int] | None = code.facts.get("warnings")
    if found is None:
        found = code.facts["warnings"] = frozenset(
            each.index for each in code.instructions if each.opname in _READS_NAME and each.argval in _EXCEPTIONAL)
    return found


def live_before(code: Code, index: int) -> frozenset[str]:
    """The plain locals that the frame may still read, test or delete from the instruction at `index` on. All of them where
    the code may look at its locals by name."""
    if not SEES_ALL_LOCALS.isdisjoint(code.code.co_names):
        return frozenset(code.varnames)
    live: list[int] | None = code.facts.get("live")
    if live is None:
        live = code.facts["live"] = _liveness(code)
    first = first_argument(code)
    return frozenset(name for nth, name in enumerate(_slots(code)) if live[index] >> nth & 1 or name == first)


def first_argument(code: Code) -> str | None:
    """The argument that `super()` without arguments reads from the frame; None where nothing reads it."""
    if "__class__" not in code.freevars or not code.argument_slots:
        return None
    return code.argument_slots[0]


def loses_super(code: Code) -> bool:
    """Whether a `super()` without arguments, which reads its object from the frame, would find another in new code, whose
    parameters are all plain ones: where there is no first argument but the tuple of all or one by keyword alone, and where
    that is a cell whose contents change."""
    known: bool | None = code.facts.get("loses_super")
    if known is None:
        first = code.argument_slots[0] if code.argument_slots else None
        is_cell = first in code.cellvars and _is_done(code.code, first, ("STORE_DEREF", "DELETE_DEREF"))
        known = code.facts["loses_super"] = first is not None and (is_cell or not code.code.co_argcount) and any(
            _is_bare_super(code, at) for at in range(len(code.instructions)))
    return known


def _is_bare_super(code: Code, index: int) -> bool:
    called = code.instructions[index]
    while index > 0 and code.instructions[index - 1].opname == "NOP":
        index -= 1
    loaded = code.instructions[index - 1] if index else called
    is_bare = isinstance(called.argval, CallSpec) and not called.argval.nargs
    return called.opname == "CALL" and is_bare and loaded.opname == "LOAD_GLOBAL" and loaded.argval == "super"


def _slots(code: Code) -> tuple[str, ...]:
    """The names that may be plain locals: a comprehension that runs inline uses the slot of a cell as one."""
    return tuple(dict.fromkeys((*code.varnames, *code.cellvars, *code.freevars)))


def _liveness(code: Code) -> list[int]:
    """Bit sets of live locals before each instruction, by iteration from the end to a fixed point."""
    bit = {name: 1 << nth for nth, name in enumerate(_slots(code))}
    count = len(code.instructions)
    gen, keep, after = [0] * count, [-1] * count, []
    for instruction in code.instructions:
        at = instruction.index
        mask = bit.get(str(instruction.argval), 0)
        if instruction.opname in _READS:
            gen[at] = mask
        if instruction.opname in _ENDS:
            keep[at] = ~mask
        after.append([target for target in successors(code, at) if target < count])
    handlers = [code.handler_at(at) for at in range(count)]
    live = [0] * count
    changed = True
    while changed:
        changed = False
        for at in range(count - 1, -1, -1):
            out = 0
            for target in after[at]:
                out |= live[target]
            here = out & keep[at] | gen[at]
            handler = handlers[at]
            if handler is not None:
                here |= live[handler.target]
            if here != live[at]:
                live[at] = here
                changed = True
    return live


def loops(code: Code) -> list[Loop]:
    """One a back edge, in the order of their ends."""
    return [
        Loop(instruction.target, instruction.index)
        for instruction in code.instructions
        if instruction.target is not None and instruction.target <= instruction.index
    ]


def in_loop(code: Code, index: int) -> bool:
    """Whether the instruction at `index` can run more than once in one call, by jumps or by handlers."""
    return index in _cycles(code)


def in_while_loop(code: Code, index: int) -> bool:
    """Whether the instruction at `index` is in a `while` loop that is in no `for` loop, and has none in it."""
    cycles = _cycles(code)
    cycle = cycles.get(index)
    return cycle is not None and all(code.instructions[at].opname != "FOR_ITER" for at, each in cycles.items() if each == cycle)


def may_leave_for_loop(code: Code, index: int) -> bool:
    """Whether the jump at `index` is in a `for` loop with no loop around it or in it, and one of its two ways never comes back
    to that: it decides whether there is another iteration."""
    cycles = _cycles(code)
    return index in _lone_for_loops(code) and any(cycles.get(target) != cycles[index] for target in successors(code, index))


def for_loops_around(code: Code, index: int) -> int:
    """How many `for` loops the instruction at `index` is in: the iterator of each is on the stack."""
    ends: dict[int, int] = {}
    for loop in loops(code):
        ends[loop.head] = max(loop.last, ends.get(loop.head, 0))
    return sum(head <= index <= end and code.instructions[head].opname == "FOR_ITER" for head, end in ends.items())


def _lone_for_loops(code: Code) -> dict[int, int]:
    """The instructions of `for` loops that have no loop around them or in them, each with the number of its cycle."""
    known: dict[int, int] | None = code.facts.get("lone for loops")
    if known is None:
        heads: dict[int, set[int]] = {}
        cycles = _cycles(code)
        for loop in loops(code):
            heads.setdefault(cycles.get(loop.head, -1), set()).add(loop.head)
        lone = {cycle for cycle, each in heads.items() if len(each) == 1 and code.instructions[min(each)].opname == "FOR_ITER"}
        known = code.facts["lone for loops"] = {at: cycle for at, cycle in cycles.items() if cycle in lone}
    return known


def _cycles(code: Code) -> dict[int, int]:
    """The instructions on cycles, each with the number of its cycle."""
    cycles: dict[int, int] | None = code.facts.get("cycles")
    if cycles is None:
        cycles = code.facts["cycles"] = _find_cycles(code)
    return cycles


def _find_cycles(code: Code) -> dict[int, int]:
    """Tarjan's components of more than one member, and self-loops."""
    if not loops(code):
        return {}
    count = len(code.instructions)
    edges: list[list[int]] = []
    for at in range(count):
        targets = [target for target in successors(code, at) if target < count]
        handler = code.handler_at(at)
        edges.append(targets if handler is None else [*targets, handler.target])
    order: dict[int, int] = {}
    low = [0] * count
    on_path: set[int] = set()
    path: list[int] = []
    cycles: dict[int, int] = {}
    for root in range(count):
        if root in order:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        path.append(root)
        on_path.add(root)
        while work:
            node, remaining = work[-1]
            for target in remaining:
                if target not in order:
                    order[target] = low[target] = len(order)
                    path.append(target)
                    on_path.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_path:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = _pop_component(path, on_path, node)
                    if len(component) > 1 or node in edges[node]:
                        cycles.update(dict.fromkeys(component, node))
    return cycles


def _pop_component(path: list[int], on_path: set[int], root: int) -> list[int]:
    component = []
    while True:
        node = path.pop()
        on_path.discard(node)
        component.append(node)
        if node == root:
            return component
