"""`with` blocks around a stop: entered for real around the one instruction that runs as it stands, left before the
continuation is called, and entered again there.

entry.py and function.py write code through it. Only managers that never swallow an exception come here
(frontend/interp/places.py sees to that)."""

from __future__ import annotations

from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.assemble import Guarding, Label
from fxjit.frontend.bytecode.instruction import Code, Handler


def enter(asm: Asm) -> None:
    """[manager] -> [its exit callable], entered."""
    asm.emit("BEFORE_WITH")
    asm.pop()


def leave(asm: Asm) -> None:
    """[exit callable] -> [], left without an exception."""
    temp = asm.fresh_local("exit")
    asm.store_local(temp)
    asm.null_before()
    asm.take_local(temp)
    asm.null_after()
    for _ in range(3):
        asm.load_const(None)
    asm.call(3)
    asm.pop()


class Exits:
    """The exception handlers of blocks that entry code enters: each calls its exit callable and goes on raising."""

    def __init__(self, asm: Asm) -> None:
        self._asm = asm
        self._open: list[tuple[Label, int, Guarding, Guarding | None]] = []

    def guard(self, exit_at: int) -> Guarding:
        """The handler for what runs inside a block whose exit callable is the stack's entry `exit_at`. Inner blocks come
        after outer ones."""
        label = self._asm.label()
        guarding = self._asm.guarding(label, push_lasti=True, depth=exit_at + 1)
        self._open.append((label, exit_at, guarding, self.innermost))
        return guarding

    @property
    def innermost(self) -> Guarding | None:
        return self._open[-1][2] if self._open else None

    def around(self, exit_at: int) -> Guarding | None:
        """The handler of the block around the one whose exit callable is entry `exit_at`."""
        return next((outer for _, at, _, outer in self._open if at == exit_at), None)

    def write(self) -> None:
        """Emit the handlers, behind the end of the code."""
        asm = self._asm
        for label, exit_at, _, outer in self._open:
            cleanup = asm.label()
            with asm.under(outer):
                asm.place(label)
                asm.emit("PUSH_EXC_INFO")
            with asm.under(asm.guarding(cleanup, push_lasti=True, depth=exit_at + 3)):
                asm.emit("WITH_EXCEPT_START")
                asm.pop()
                asm.emit("RERAISE", 2)
            with asm.under(outer):
                asm.place(cleanup)
                asm.copy(3)
                asm.emit("POP_EXCEPT")
                asm.emit("RERAISE", 1)


def original_exit_handlers(code: Code, index: int, exits: tuple[int, ...]) -> dict[int, Handler]:
    """For each exit callable on the stack (by its entry), the handler of `code` that calls it when an exception is raised at
    `index` inside its block."""
    found: dict[int, Handler] = {}
    handler = code.handler_at(index)
    seen = set()
    while handler is not None and handler not in seen:
        seen.add(handler)
        if handler.depth - 1 in exits:
            found.setdefault(handler.depth - 1, handler)
        handler = code.handler_at(handler.target)
    return found
