"""A code object taken apart and put together again: what the round-trip tests and their worker processes share."""

from __future__ import annotations

from types import CodeType

from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.instruction import Handler


def round_trip(code: CodeType) -> CodeType:
    """`code`, decoded and assembled again; superinstructions come back as their halves."""
    decoded = decode(code)
    asm = Asm(decoded.varnames, decoded.freevars, decoded.cellvars)
    labels = {at: asm.label() for i in decoded.instructions if i.landing is not None for at in [i.landing]}
    labels.update({region.handler.target: asm.label() for region in decoded.protected})
    guardings = {
        region.handler: asm.guarding(labels[region.handler.target], region.handler.push_lasti, region.handler.depth)
        for region in decoded.protected
    }
    for instruction in decoded.instructions:
        if instruction.index in labels:
            asm.place(labels[instruction.index])
        handler: Handler | None = decoded.handler_at(instruction.index)
        with asm.under(guardings[handler] if handler is not None else None):
            asm.raw(instruction, None if instruction.landing is None else labels[instruction.landing])
    made = asm.finish(code)
    return made.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_flags=code.co_flags,
    )


def round_trip_all(code: CodeType) -> CodeType:
    """The same for `code` and every code object among its constants."""
    constants = tuple(round_trip_all(item) if isinstance(item, CodeType) else item for item in code.co_consts)
    return round_trip(code.replace(co_consts=constants))


def listing(code: CodeType) -> list[tuple[object, ...]]:
    """What the instructions of `code` say, free of how they are encoded: superinstructions as halves, jumps as counts
    of instructions."""
    decoded = decode(code)
    return [
        (i.opname, None if i.target is not None else _shown(i.argval), i.flag, i.target, tuple(i.positions),
         decoded.handler_at(i.index))
        for i in decoded.instructions
        if i.native not in ("KW_NAMES", "PRECALL")
    ]  # fmt: skip


def _shown(argval: object) -> object:
    """Constants by type and text: 1, 1.0 and True are different, and so are 0.0 and -0.0."""
    return (type(argval), repr(argval))
