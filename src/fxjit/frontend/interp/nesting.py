"""The frame in which a trace breaks: of a break inside inlined calls the innermost that can be resumed together with all its
suspended callers, or the outermost where `config.nested_graph_breaks` is off.

machine.py asks when a break was found. A suspended caller is resumed behind its call: so that may do nothing with the result
but push it (`Machine.is_tail_call`).
"""

from __future__ import annotations

from collections import Counter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from fxjit import config
from fxjit.errors import BreakGraph
from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.interp import resumability
from fxjit.frontend.interp.stack_values import WithExitValue
from fxjit.frontend.result import FrameState, InnerFrame
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import deferred_numbers
from fxjit.frontend.values.fxjit_callables import breaks_are_errors
from fxjit.frontend.values.weakrefs import referred_before
from fxjit.origins import Whose, origin_of
from fxjit.skips import marks

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine

#: What these speak of is a frame of its own, not the place inside of it.
_ABOUT_THE_FRAME: Final = frozenset({"user-skip-frame", "user-debugger", "call-own-frame"})
_LOADS: Final = frozenset({
    "NOP", "COPY_FREE_VARS", "MAKE_CELL", "PUSH_NULL", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD",
    "LOAD_FAST",
})
#: Frames in one break, and frames of one function among them: a recursion is compiled once, not once a level.
_MAX_FRAMES: Final = 32
_MAX_OF_ONE_FUNCTION: Final = 3


def frame_to_break_in(root: Machine, signal: BreakGraph) -> Machine:
    """The frame to break in: `root`, or one that was called from there."""
    frames: list[Machine] = list(signal.frames)
    if frames and (signal.reason in _ABOUT_THE_FRAME or _is_kept_out_of_line(frames[-1], signal)):
        frames.pop()
    maker = _maker_of_torch_modules(frames)
    made_before = None if maker is None else frames[maker - 1].steps  # what it makes itself, the call makes again
    frames = _without_library_steps(frames[:maker])
    if not config.nested_graph_breaks or not frames or frames[0] is not root or not _can_be_suspended(root):
        return root
    if signal.reason == "value-weak-reference" or referred_before(root.t, made_before):
        return root  # which keeps what they refer to
    known = Counter([_function(root)])
    found = root
    for frame in frames[1:_MAX_FRAMES]:
        known[_function(frame)] += 1
        if not frame.is_tail_call or not _can_be_suspended(frame) or known[_function(frame)] > _MAX_OF_ONE_FUNCTION:
            break
        found = frame
    forwarders = frames[: frames.index(found) + 1]
    if resumability.keeps_blocks(found, found.index, signal) and resumability.has_blocks(forwarders):
        return root  # the callers' blocks are left and entered again around their calls
    drives = any(frame.generator is not None for frame in frames[len(forwarders):])
    if drives and resumability.has_blocks(forwarders[1:]):
        return root  # a generator may be closed as soon as it has given its item, inside the block that would be left by then
    return found


@deferred_numbers.can_break_here.provide
def can_break_at_call(t: Tracer) -> bool:
    """Whether the graph can break at the call that the innermost frame is at, and there alone: no frame is given up for it."""
    if t.break_points.whole or breaks_are_errors(t):
        return False
    frame: Machine | None = t.frame
    if frame is not None and frame is not t.root and _is_librarys(frame):
        return False
    while frame is not None and frame is not t.root:
        if not (config.nested_graph_breaks and frame.is_tail_call and _can_be_suspended(frame)):
            return False
        frame = frame.parent
    return frame is not None and _can_be_suspended(frame)


def _without_library_steps(frames: list[Machine]) -> list[Machine]:
    """Without the innermost ones as far as they are of a library whose own frames pass by: a function of it that breaks at a
    step of its own (`dataclasses.make_dataclass`, at each part of a class) runs as it is, in one break."""
    last = len(frames)
    while last > 1 and _is_librarys(frames[last - 1]):
        last -= 1
    return frames[:last]


def _is_librarys(frame: Machine) -> bool:
    return origin_of(frame.code.code.co_filename).whose is Whose.STANDARD_LIBRARY


def _is_kept_out_of_line(frame: Machine, signal: BreakGraph) -> bool:
    """`graph_break()` at the beginning of a function keeps it out of the graphs of its callers."""
    before = frame.instructions[: frame.index]
    return signal.reason == "user-graph-break" and all(each.opname in _LOADS for each in before)


def _maker_of_torch_modules(frames: list[Machine]) -> int | None:
    """Where among `frames` the first is that is about to make one of torch's modules, or one of torch's tools that make another
    of a module (parametrisations, norms of weights): what breaks there, its parameters first, breaks for each of them; the
    call that makes the module runs as it is."""
    for at, frame in enumerate(frames):
        module, code = str(frame.globals.namespace.get("__name__", "")), frame.code.code
        makes = code.co_name == "__init__" and module.startswith("torch.nn.modules.")
        if at and (makes or (module.startswith("torch.nn.utils.") and _changes_module(frame, frames[at + 1:]))):
            return at
    return None


def _changes_module(frame: Machine, called: list[Machine]) -> bool:
    """Whether a function is about a module, and has not come to run it."""
    if frame.code.code.co_varnames[:1] != ("module",) or "module" not in frame.locals:
        return False
    module = frame.locals["module"].realize()
    return not any(each.locals["self"].realize() is module for each in called if "self" in each.locals)


def _function(frame: Machine) -> tuple[object, ...]:
    """The function that a frame and its resume function share."""
    code = frame.code.code
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _can_be_suspended(frame: Machine) -> bool:
    """Whether the frame can be resumed where it is, by what its state alone says."""
    if frame.generator is not None or _runs_whole(frame.globals.namespace) or resumability.is_in_try(frame.code, frame.index):
        return False
    if resumability.why_not_resumable(frame, frame.index) is not None:
        return False
    if "__class__" in frame.code.freevars and frame.code.argument_slots and frame.first_slot is None:
        return False
    if not set(frame.locals).isdisjoint((*frame.code.cellvars, *frame.code.freevars)):
        return False  # a comprehension that runs inline has the slot of a cell
    return all(value.resumable for value in frame.stack if isinstance(value, WithExitValue)) and _only_blocks_are_open(frame)


def _only_blocks_are_open(frame: Machine) -> bool:
    """Whether an exception raised here runs nothing but exits of blocks that this trace entered."""
    code = frame.code
    handler = code.handler_at(frame.index)
    while handler is not None:
        at, handler = handler.depth - 1, code.handler_at(handler.target)  # the cleanup of the exit
        if at >= len(frame.stack) or not isinstance(frame.stack[at], WithExitValue):
            return False
        if handler is not None:
            handler = code.handler_at(handler.target)
    return True


def forwarder_frame(fn: FunctionType, call: int) -> InnerFrame:
    """The frame of a function that is not traced because all it does is the `call`th of its calls that take `*args`, and
    return what that gives."""
    code = decode(fn.__code__)
    index = [each.index for each in code.instructions if each.opname == "CALL_FUNCTION_EX"][call]
    return InnerFrame(code, index, FrameState((), {}, {}), fn.__globals__, None)


def is_resume_function(code: CodeType) -> bool:
    """A resume function: its function was traced up to there, and is not judged again."""
    return marks.code_resumes(code) or marks.code_interpreted(code)


def _runs_whole(namespace: dict[str, Any]) -> bool:
    """The globals of functions that no resume function is made of: where one breaks, its call runs as it is. Polyfills, and
    NumPy's own, whose steps are no concern of who calls one."""
    return is_own(namespace) or str(namespace.get("__name__", "")).partition(".")[0] == "numpy"


def is_own(namespace: dict[str, Any]) -> bool:
    """The globals of the front end's own Python code that stands for a builtin: polyfills and their like."""
    return str(namespace.get("__name__", "")).startswith("fxjit.frontend.")
