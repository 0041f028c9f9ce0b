"""Blocks that are open around a break point.

`with` blocks whose manager can be left and entered again: entered for real around the one instruction that runs as it
stands, left before the resume function is called, and entered again there. Only managers that never swallow an exception
come here (frontend/interp/resumability.py sees to that). Any other block was entered for real before: its exit callable is an
entry of the stack like others.

Handlers of the user's (of `try`, and of such blocks): an exception that the instruction raises is caught here, and goes
on in a resume function at the user's handler (`chain`).

break_epilogue.py and function.py write code through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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


def save_exit_state(asm: Asm, exit_state: Callable[[Any], Any], manager: str) -> None:
    """Put the manager that brings about the state as it is now in the place of the one in the local `manager`."""
    asm.begin_call(exit_state)
    asm.load_local(manager)
    asm.call(1)
    asm.store_local(manager)


def handle(asm: Asm) -> None:
    """[exception] -> [what was handled before it]; it is being handled from here on."""
    asm.emit("PUSH_EXC_INFO")
    asm.pop()


def chain(code: Code, index: int, exits: tuple[int, ...]) -> list[Handler]:
    """The handlers of the user's that an exception raised at `index` comes to, innermost first, but for those of the blocks
    whose exit callables are the stack entries `exits`. It ends with the first that does more than undo an `except`."""
    found: list[Handler] = []
    handler = code.handler_at(index)
    while handler is not None:
        if is_cleanup(code, handler):
            found.append(handler)
            handler = code.handler_at(handler.target + 2)  # where RERAISE stands
        elif handler.depth - 1 in exits and code.instructions[handler.target + 1].opname == "WITH_EXCEPT_START":
            cleanup = code.handler_at(handler.target)
            assert cleanup is not None and is_cleanup(code, cleanup), "the handler of a `with` ends by a cleanup"
            handler = code.handler_at(cleanup.target + 2)
        else:
            found.append(handler)
            break
    return found


def is_cleanup(code: Code, handler: Handler) -> bool:
    """Whether it only ends the handling of an exception, and raises the newer one on."""
    following = code.instructions[handler.target : handler.target + 3]
    return [each.opname for each in following] == ["COPY", "POP_EXCEPT", "RERAISE"]


@dataclass(frozen=True, slots=True)
class _Open:
    """A block (its exit callable is the stack's entry `exit_at`) or a handler of the user's (None) around the instruction."""

    exit_at: int | None
    label: Label
    guarding: Guarding
    outer: Guarding | None


class Exits:
    """The exception handlers of new code, around the instruction that runs as it stands. A block's calls its exit callable
    and goes on raising. One of the user's catches for the resume function there, at the label `caught`; or is a cleanup,
    which runs here."""

    def __init__(self, asm: Asm, code: Code, exits: tuple[int, ...], handlers: Sequence[Handler]) -> None:
        self._asm = asm
        self._open: list[_Open] = []
        self.catching: Handler | None = None
        self.caught: Label | None = None
        for depth, handler in sorted([*((at + 1, None) for at in exits), *((each.depth, each) for each in handlers[::-1])],
                                     key=lambda item: (item[0], item[1] is not None)):
            label = asm.label()
            if handler is None or is_cleanup(code, handler):
                guarding = asm.guarding(label, push_lasti=True, depth=depth)
            else:
                guarding = asm.guarding(label, push_lasti=False, depth=depth)
                self.catching, self.caught = handler, label
            self._open.append(_Open(depth - 1 if handler is None else None, label, guarding, self.innermost))

    @property
    def innermost(self) -> Guarding | None:
        """The innermost block that guards the instruction."""
        return self._open[-1].guarding if self._open else None

    def below(self, depth: int) -> Guarding | None:
        """The guards of our code while the stack has `depth` entries: the innermost block that is entered then."""
        return next((each.guarding for each in reversed(self._open) if each.exit_at is not None and each.exit_at < depth),
                    None)

    def write(self) -> None:
        """Emit the handlers, behind the end of the code."""
        asm = self._asm
        for each in self._open:
            if each.label is self.caught:
                continue
            cleanup = each.label
            if each.exit_at is not None:
                cleanup = asm.label()
                with asm.under(each.outer):
                    asm.place(each.label)
                    asm.emit("PUSH_EXC_INFO")
                with asm.under(asm.guarding(cleanup, push_lasti=True, depth=each.exit_at + 3)):
                    asm.emit("WITH_EXCEPT_START")
                    asm.pop()
                    asm.emit("RERAISE", 2)
            with asm.under(each.outer):
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
