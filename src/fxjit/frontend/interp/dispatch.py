"""Which function runs which instruction: handlers sign up here under canonical opcode names.

A name outside the canonical vocabulary, or one taken twice, is refused at import. What is deliberately not traced is
listed in `UNSUPPORTED` with the reason's words; the machine breaks there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fxjit.frontend.bytecode.normalize import CANONICAL

if TYPE_CHECKING:
    from fxjit.frontend.bytecode.instruction import Instruction
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.values.base import Value

#: A handler works on the machine's stack; what it returns (if anything) leaves the frame: a return or a yield.
Handler = Callable[["Machine", "Instruction"], "Value | None"]

HANDLERS: Final[dict[str, Handler]] = {}

_ASYNC = "asynchronous code is not traced"
#: Canonical opcodes that end in a graph break: name -> why.
UNSUPPORTED: Final[dict[str, str]] = {
    "GET_AWAITABLE": _ASYNC,
    "GET_AITER": _ASYNC,
    "GET_ANEXT": _ASYNC,
    "END_ASYNC_FOR": _ASYNC,
    "BEFORE_ASYNC_WITH": _ASYNC,
    "ASYNC_GEN_WRAP": _ASYNC,
    "IMPORT_STAR": "it belongs to module bodies, which are not traced",
    "PRINT_EXPR": "it belongs to interactive input, which is not traced",
    "SETUP_ANNOTATIONS": "it belongs to module and class bodies, which are not traced",
    "LOAD_LOCALS": "it belongs to class bodies, which are not traced",
    "LOAD_FROM_DICT_OR_GLOBALS": "it belongs to class bodies, which are not traced",
    "LOAD_FROM_DICT_OR_DEREF": "it belongs to class bodies, which are not traced",
    "LOAD_CLASSDEREF": "it belongs to class bodies, which are not traced",
    "LOAD_NAME": "it belongs to module and class bodies, which are not traced",
    "STORE_NAME": "it belongs to module and class bodies, which are not traced",
    "DELETE_NAME": "it belongs to module and class bodies, which are not traced",
    "INTERPRETER_EXIT": "it never stands in a frame that can be traced",
}


def op(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for these canonical opcodes."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name in CANONICAL, f"{name} is not a canonical opcode"
            assert name not in HANDLERS, f"{name} has two handlers"
            assert name not in UNSUPPORTED, f"{name} has a handler but is listed as unsupported"
            HANDLERS[name] = handler
        return handler

    return register


def unsupported(machine: Machine, instruction: Instruction) -> Value | None:
    """Break, naming the instruction."""
    name = instruction.opname
    machine.t.break_("opcode-unsupported", opname=name, why=UNSUPPORTED.get(name, "fxjit has no rule for it"))


def finish_registration() -> None:
    """Give every unsupported opcode the handler that breaks, once all handlers have signed up."""
    for name in UNSUPPORTED:
        HANDLERS.setdefault(name, unsupported)
