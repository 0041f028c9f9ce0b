"""A graph that fails while the frame is inside `try` or `with` blocks that were entered before it began.

entry.py puts the graph of a resume function under a handler: what the graph raises goes on at the handler of the user's that
stands around the place where the resume function begins, as if that instruction had raised it. So a manager that was
entered for real is left. What a handler of a signal raised while the resume function was compiled goes the same way."""

from __future__ import annotations

from types import CodeType

from fxjit import _C
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.assemble import Guarding
from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.flow import live_before
from fxjit.frontend.bytecode.instruction import Code, Handler, Positions
from fxjit.resume.blocks import chain, is_cleanup
from fxjit.resume.break_point import after_raising
from fxjit.resume.cache import resume_function_of, resume_point_of
from fxjit.resume.function import ResumePoint, local_parameter, parameter


class Rescue:
    """The handler around a resume function's graph."""

    def __init__(self, asm: Asm, original: Code, point: ResumePoint, handler: Handler, first: str | None) -> None:
        self.asm = asm
        self.original = original
        self.point = point
        self.handler = handler
        self.first = first
        #: [exception] ->
        self.label = asm.label()
        self.guarding: Guarding = asm.guarding(self.label, push_lasti=False, depth=0)

    def write(self) -> None:
        """Emit the handler, behind the end of the code. The arguments are where they were when the frame began."""
        asm, point = self.asm, self.point
        outcome = after_raising(self.handler, point.nulls)
        assert outcome is not None, "there is a handler"
        live = live_before(self.original, outcome.index)
        depth = self.handler.depth
        resume_function = resume_function_of(self.original.code, ResumePoint(
            outcome.index, outcome.nulls, tuple(at for at in point.exits if at < depth),
            tuple(name for name in point.locals if name in live), tuple(at for at in point.handled if at < depth),
            loops=tuple(at for at in point.loops if at < depth)))
        asm.place(self.label)
        error = asm.fresh_local("error")
        asm.store_local(error)
        asm.begin_call(_C.Continue)
        asm.make_function(resume_function.code, asm.load_closure if resume_function.freevars else None)
        if resume_function.first is not None and self.first is not None:
            asm.load_local(self.first)
        for at in resume_function.stack:
            if at == outcome.lasti_at:
                asm.load_const(0)
            elif at == len(outcome.nulls) - 1:
                asm.take_local(error)
            else:
                asm.take_local(parameter(self.original, at, point))
        for name in resume_function.locals:
            asm.take_local(local_parameter(self.original, name))
        asm.call(1 + (resume_function.first is not None) + len(resume_function.stack) + len(resume_function.locals))
        asm.return_value()


def rescue(asm: Asm, code: Code) -> Rescue | None:
    """The handler that a graph of this frame is put under; None outside all blocks."""
    found = resume_point_of(code.code)
    if found is None:
        return None
    original, point, first = found
    if point.inner is not None:
        return None
    decoded = decode(original)
    handlers = chain(decoded, point.index, point.exits)
    if not handlers or is_cleanup(decoded, handlers[-1]):
        return None
    return Rescue(asm, decoded, point, handlers[-1], first)


def raising_code(code: CodeType, arg_names: tuple[str, ...]) -> CodeType | None:
    """New code of a resume function that only raises what a handler of a signal raised while it was compiled
    (`_C.raise_deferred`), inside of the blocks that the frame is in; None where it is in none."""
    decoded = decode(code)
    asm = Asm(arg_names, decoded.freevars)
    under = rescue(asm, decoded)
    if under is None:
        return None
    asm.at(Positions(code.co_firstlineno, code.co_firstlineno, None, None))
    with asm.under(under.guarding):
        asm.prologue()
        asm.begin_call(_C.raise_deferred)
        asm.call(0)
        asm.return_value()
    under.write()
    return asm.finish(code)
