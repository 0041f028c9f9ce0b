"""Resume functions: original code entered at a resume point, with the stack and the locals it would have there.

`write_resume_function` makes them for cache.py. Parameters are the entries of the stack, bottom first (NULLs left out, the
manager in the place of the exit of a `with` to enter again, the exception that is handled in the place of what
PUSH_EXC_INFO puts under it), then the bound locals; cells come as its closure. A prologue restores the stack
and jumps; what cannot be reached any more is left out, so that a loop or a `try` before the resume point no longer counts.
File, names, lines and positions stay the user's.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.assemble import Guarding, Label
from fxjit.frontend.bytecode.flow import LOOP_PARAMETER, first_argument, live_before, may_be_unbound, reachable
from fxjit.frontend.bytecode.instruction import Code, Handler, Instruction
from fxjit.resume.blocks import enter, handle, original_exit_handlers

CAPTURED_SELF = ".self"
_READS_CELL = frozenset({"LOAD_DEREF", "DELETE_DEREF"})


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where and how original code is entered."""

    index: int
    nulls: tuple[bool, ...]
    """One a stack entry, bottom first: whether it is NULL."""
    exits: tuple[int, ...]
    """The stack entries that are exit callables of blocks to enter again, outermost first."""
    locals: tuple[str, ...]
    """The locals that are bound and still wanted."""
    handled: tuple[int, ...] = ()
    """The stack entries under exceptions that are being handled: what PUSH_EXC_INFO puts there."""
    inner: ResumeFunction | None = None
    """The resume function of what the call before `index` runs: it runs first, and the last entry of the stack is what it
    returns."""
    constructs: bool = False
    """That function is an `__init__`: what it returns has to be None and goes, and the entry below is what the call gives."""
    doubtful: tuple[str, ...] = ()
    """Those of the locals that are unbound where `UNBOUND` comes for them."""
    leaves: tuple[HandOver, ...] | None = None
    """Of an interpreted region, which is not traced (region.py): where it hands over to other resume functions."""
    loops: tuple[int, ...] = ()
    """The stack entries that are iterators of loops which go on for real (values/iterators.py)."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The end of an interpreted region: at `index` of the original, with `nulls` on the stack, `to` goes on."""

    index: int
    nulls: tuple[bool, ...]
    to: ResumeFunction
    doubtful: tuple[str, ...]


#: What comes in the place of a local that is unbound: no program's variable holds it.
UNBOUND = _C.Continue


@dataclass(frozen=True, slots=True, eq=False)
class ResumeFunction:
    """`code` takes `stack` (indices of stack entries), then `locals`; its closure has a cell for each of `freevars`. Where it
    goes on behind a call that is under way, its resume function and the arguments for that come before."""

    code: CodeType
    stack: tuple[int, ...]
    locals: tuple[str, ...]
    freevars: tuple[str, ...]
    first: str | None
    """A parameter that stands before all others: the first argument, which `super()` looks for there."""
    indices: tuple[int | None, ...]
    """For each decoded instruction of `code`, the index of the original one that it copies."""


def own_cells(code: Code) -> tuple[str, ...]:
    """The cells that the frame makes as it starts. Others (of comprehensions that run inline) come and go."""
    made = set()
    for instruction in code.instructions:
        if instruction.native == "RESUME":
            break
        if instruction.opname == "MAKE_CELL":
            made.add(instruction.argval)
    return tuple(name for name in code.cellvars if name in made)


def write_resume_function(code: Code, point: ResumePoint) -> ResumeFunction:
    """The code object that goes on at `entrance` of `code`."""
    return _Writer(code, point).write()


class _Writer:
    def __init__(self, code: Code, point: ResumePoint) -> None:
        self.code = code
        self.point = point
        cells = own_cells(code)
        self.freevars = (*code.freevars, *cells)
        known = point.nulls if point.inner is None else point.nulls[:-1]
        self.stack = tuple(at for at, is_null in enumerate(known) if not is_null)
        self.inner = tuple(_free_name(code, name) for name in _inner_parameters(point))
        first = first_argument(code)
        self.first = CAPTURED_SELF if first in cells else first
        self.locals = tuple(name for name in point.locals if name != self.first)
        parameters = [*self.inner, *(parameter(self.code, at, point) for at in self.stack)]
        parameters += [local_parameter(self.code, name) for name in self.locals]
        if self.first is not None:
            parameters.insert(0, self.first)
        hidden = tuple(name for name in code.cellvars if name not in cells)
        self.asm = Asm(parameters, self.freevars, hidden)
        stands_at = point.index if point.inner is None else point.index - 1
        self.exit_handlers = original_exit_handlers(code, stands_at, point.exits)
        self.indices: list[int | None] = []
        self.targets = jump_targets(code)
        self.labels: dict[int, Label] = {}
        self.guardings: dict[Handler, Guarding] = {}
        self.leaves = {each.index: each for each in point.leaves or ()}
        #: The frame's own cells that may be read while they are empty.
        self.doubtful = frozenset(name for name in cells if may_be_unbound(code, name))

    def write(self) -> ResumeFunction:
        code, point, asm = self.code, self.point, self.asm
        entered = [point.index, *(handler.target for handler in self.exit_handlers.values())]
        kept = sorted(reachable(code, entered, self.leaves))
        asm.at(code.instructions[point.index].positions)
        asm.prologue()
        if self.first is not None and self.first != CAPTURED_SELF and self.first not in point.locals:
            asm.delete_local(self.first)  # as the program has
        self._restore_stack()
        self.indices = [None] * asm.count
        if kept[0] != point.index:
            asm.jump(self._label(point.index))
            self.indices.append(point.index)  # the stack is restored, and where the code goes on is all the same
        for index in kept:
            self._copy(index)
        made = asm.finish(code.code)
        return ResumeFunction(made, self.stack, self.locals, self.freevars, self.first, tuple(self.indices))

    def _restore_stack(self) -> None:
        """Push what the parameters bring; a block entered here is guarded by the original's own handler from then on."""
        asm, point = self.asm, self.point
        for name in self.locals:
            given = local_parameter(self.code, name)
            if given != name:
                asm.take_local(given)
                asm.store_local(name)
        for name in point.doubtful:
            self._unbind(name)
        handlers = self.exit_handlers
        guarding: Guarding | None = None
        for at, is_null in enumerate(point.nulls):
            if point.inner is not None and at == len(point.nulls) - 1:
                self._call_inner(guarding)
                break
            with asm.under(guarding):
                if is_null:
                    asm.push_null()
                    continue
                asm.take_local(parameter(self.code, at, point))
                if at in point.exits:
                    enter(asm)
                elif at in point.handled:
                    handle(asm)
            if at in point.exits and at in handlers:
                guarding = self._guarding(handlers[at])

    def _unbind(self, name: str) -> None:
        """Unbind the local if UNBOUND came for it; one that nothing reads may hold that."""
        asm, is_bound = self.asm, self.asm.label()
        if name not in live_before(self.code, self.point.index):
            return
        asm.load_local(name)
        asm.load_const(UNBOUND)
        asm.emit("IS_OP", 0)
        asm.jump_if_false(is_bound)
        asm.delete_local(name)
        asm.place(is_bound)

    def _call_inner(self, guarding: Guarding | None) -> None:
        """Run the resume function of the callee, from where that was called."""
        asm = self.asm
        asm.at(self.code.instructions[self.point.index - 1].positions)
        with asm.under(guarding):
            begin_call_alone(asm)
            for name in self.inner:
                asm.take_local(name)
            call_alone(asm, len(self.inner) - 1)
            if self.point.constructs:
                self._drop_none()

    def _drop_none(self) -> None:
        asm = self.asm
        is_none = asm.label()
        asm.dup()
        asm.jump_if("NONE", is_none)
        asm.call_const(wrong_result_of_init, 1)
        asm.raise_()
        asm.place(is_none)
        asm.pop()

    def _copy(self, index: int) -> None:
        instruction = self.code.instructions[index]
        asm = self.asm
        if index in self.labels or index in self.targets:
            asm.place(self._label(index))
        if index in self.leaves:
            self._hand_over(self.leaves[index])
            self.indices += [None] * (asm.count - len(self.indices))
            return
        if instruction.native == "RESUME":
            return
        handler = self.code.handler_at(index)
        if instruction.opname in _READS_CELL and instruction.argval in self.doubtful:
            with asm.under(None if handler is None else self._guarding(handler)):
                self._read_doubtful_cell(instruction)
            self.indices += [index, *[None] * (asm.count - len(self.indices) - 1)]
            return
        with asm.under(None if handler is None else self._guarding(handler)):
            asm.raw(instruction, None if instruction.landing is None else self._label(instruction.landing))
        emitted = asm.count - len(self.indices)
        if emitted:
            self.indices.extend([None] * (emitted - 1))
            self.indices.append(index)

    def _hand_over(self, leaving: HandOver) -> None:
        """Return the resume function behind the region, with what is bound and live."""
        asm, to = self.asm, leaving.to
        asm.at(self.code.instructions[leaving.index].positions)
        slots = [asm.fresh_local("slot") for _ in leaving.nulls]
        for name in reversed(slots):
            asm.store_local(name)
        known = {name: self._value_or_unbound(name) for name in leaving.doubtful}
        asm.begin_call(_C.Continue)
        asm.make_function(to.code, (lambda: self._closure(to)) if to.freevars else None)
        if to.first is not None:
            asm.load_local(to.first)
        for at in to.stack:
            asm.take_local(slots[at])
        for name in to.locals:
            asm.take_local(known.get(name, name))
        asm.call(1 + (to.first is not None) + len(to.stack) + len(to.locals))
        asm.return_value()

    def _value_or_unbound(self, name: str) -> str:
        """The fresh local that holds the value of a local, or UNBOUND; the stack is empty."""
        asm, is_unbound, is_known = self.asm, self.asm.label(), self.asm.label()
        known = asm.fresh_local("known")
        with asm.under(asm.guarding(is_unbound, push_lasti=False, depth=0)):
            asm.load_local_checked(name)
        asm.store_local(known)
        asm.delete_local(name)
        asm.jump(is_known)
        asm.place(is_unbound)
        asm.pop()
        asm.load_const(UNBOUND)
        asm.store_local(known)
        asm.place(is_known)
        return known

    def _closure(self, to: ResumeFunction) -> None:
        for name in to.freevars:
            self.asm.load_cell(name)
        self.asm.build_tuple(len(to.freevars))

    def _read_doubtful_cell(self, instruction: Instruction) -> None:
        """The frame's own cells are free variables here, of which CPython would speak in other words where they are unbound."""
        asm, name = self.asm, str(instruction.argval)
        asm.at(instruction.positions)
        asm.begin_call(_C.read_cell)
        asm.load_cell(name)
        asm.load_const(name)
        asm.call(2)
        if instruction.opname == "DELETE_DEREF":
            asm.pop()
            asm.raw(instruction)

    def _label(self, index: int) -> Label:
        return self.labels.setdefault(index, self.asm.label())

    def _guarding(self, handler: Handler) -> Guarding:
        known = self.guardings.get(handler)
        if known is None:
            label = self._label(handler.target)
            known = self.guardings[handler] = self.asm.guarding(label, handler.push_lasti, handler.depth)
        return known


def begin_call_alone(asm: Asm) -> None:
    """A function, its arguments and `call_alone` follow."""
    asm.null_before()
    asm.begin_call(_C.Continue)


def call_alone(asm: Asm, arguments: int) -> None:
    """Call the function so that its frame alone holds the arguments: what it lets go ends there and then."""
    asm.call(1 + arguments)
    asm.null_after()
    asm.call(0)


def wrong_result_of_init(result: object) -> TypeError:
    """Raises the TypeError of `type.__call__` for an `__init__` that returned something; called by resume functions."""
    return TypeError(f"__init__() should return None, not '{type(result).__name__}'")


def _inner_parameters(point: ResumePoint) -> tuple[str, ...]:
    """The parameters for the function to run first, and for its arguments."""
    if point.inner is None:
        return ()
    return (".resume", *(f".resume{nth}" for nth in range(point.inner.code.co_argcount)))


def parameter(code: Code, at: int, point: ResumePoint) -> str:
    """The parameter that brings a stack entry to a resume function of `code`; which may be one itself, with such parameters of
    its own among its locals."""
    return _free_name(code, f"{LOOP_PARAMETER if at in point.loops else '.stack'}{at}")


def local_parameter(code: Code, name: str) -> str:
    """The parameter that brings local `name`. One that shares its slot with a cell (of a comprehension that runs inline) has
    another name: the cell is a free variable of the resume function."""
    return _free_name(code, f".{name}") if name in own_cells(code) else name


def _free_name(code: Code, name: str) -> str:
    while name in code.varnames:
        name = f".{name}"
    return name


def jump_targets(code: Code) -> frozenset[int]:
    """Where jumps and handlers of `code` go."""
    targets = {instruction.landing for instruction in code.instructions if instruction.landing is not None}
    targets.update(region.handler.target for region in code.protected)
    return frozenset(targets)
