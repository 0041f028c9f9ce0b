"""Deoptimisation: the frame starts over in the user's own code, because its graph was of no use to this call.

Two graphs come to that: one whose last output says that a speculation failed (frontend/speculation.py), and one that raises
and has changed nothing, by its nature or as it says itself (_C.left_unwritten), or nothing that copies do not undo. So does a
frame that what a weak reference referred to when its guards were checked has ended for.
Everything is as it was before the graph ran, and the user's code raises what it raises, from its own line, behind what it
does before, and catches what it catches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType
from typing import Any, Final

import torch

from fxjit import _C, logs, torch_private
from fxjit._C import left_unwritten
from fxjit.counters import counters
from fxjit.errors import FxjitError, is_foreign
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.assemble import Guarding, Label
from fxjit.resume.rng import rewind
from fxjit.tensor_wrappers import has_storage

_log = logs.artifact("recompiles")
#: After so many calls that were not as expected the frame is compiled again, with the branch as a break.
_MAX_FAILURES = 3


_saved_tensors_hooks: Final = torch_private.get_or(
    "torch._C._autograd._top_saved_tensors_default_hooks", lambda ignore_disabled: True)
#: Ends with these tensors' version counters as they are now.
_counters_of: Final = torch_private.get_or(
    "torch.autograd.grad_mode._unsafe_preserve_version_counter", lambda tensors: nullcontext())


def _copy_each(into: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    for copy, tensor in zip(into, tensors, strict=True):
        copy.copy_(tensor)


_copy_all: Final = torch_private.get_or("torch._foreach_copy_", _copy_each)


def may_start_over(error: BaseException) -> bool:
    """Whether what a graph raised is an error of the graph's own, which the user's code raises again where it belongs. Hooks
    for saved tensors have seen part of the graph, count what they see, and may end it by an exception of theirs, as
    checkpointing does: the program does not run a second time under them."""
    return not is_foreign(error) and not isinstance(error, FxjitError) and _saved_tensors_hooks(True) is None


class _Saved:
    """What a graph may change: the random generators, and the inputs that it writes to. `whole`: all of their storages, and how
    the inputs lie in them."""

    def __init__(self, inputs: Sequence[Any], written: Sequence[int], generators: Sequence[torch.Generator],
                 spare: list[list[torch.Tensor]], whole: bool) -> None:
        self._states = [(each, each.get_state()) for each in generators]
        given = [inputs[at] for at in written]
        self._counters = _counters_of(tuple([each for each in given if not each.is_inference()]))
        tensors = [each.detach() if each.requires_grad else each for each in given]
        self._layouts: list[tuple[torch.Tensor, Any]] = []
        if whole:
            self._layouts = [(each, _layout(each)) for each in given if has_storage(each)]
            tensors = [_storage_of(each) if has_storage(each) else each for each in tensors]
        #: Buffers of earlier calls are used again, where sizes are as they were: one call of torch fills them all.
        try:
            found = spare.pop()
        except IndexError:  # none, or another thread has it
            found = None  # and made behind this block: what a signal raises meanwhile has no context
        if found is None or any(copy.shape != each.shape for copy, each in zip(found, tensors, strict=True)):
            found = _buffers_for(tensors)
        self.copies = found
        if tensors:
            _copy_all(self.copies, tensors)
        self._tensors = tensors

    def restore(self) -> None:
        for generator, state in self._states:
            generator.set_state(state)
        with self._counters:
            for tensor, layout in self._layouts:
                if _layout(tensor) != layout:
                    with _allowing_writes(tensor):
                        tensor.as_strided_(*layout)
            for tensor, saved in zip(self._tensors, self.copies, strict=True):
                with _allowing_writes(tensor):
                    tensor.copy_(saved)


def _allowing_writes(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    return torch.inference_mode() if tensor.is_inference() else torch.no_grad()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _storage_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the tensor's storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _buffers_for(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with torch.inference_mode(False):
        return [torch.empty_like(each, requires_grad=False) for each in tensors]


def _generators(devices: Iterable[torch.device]) -> list[torch.Generator]:
    """The default generators of the CPU and of these devices."""
    return [torch.default_generator,
            *(torch.cuda.default_generators[each.index or 0] for each in devices if each.type == "cuda")]


class UndoableGraph:
    """Run-time helper of new code, called with its graph and the inputs: where the graph fails by an error of its own, what it
    wrote and drew is undone before the exception goes on. `if_unwritten`: only where the graph says that it wrote nothing."""

    def __init__(self, written: Sequence[int], draws: bool, if_unwritten: bool = False, whole: bool = False) -> None:
        #: The inputs that the graph writes to, whether it draws random numbers on the CPU, and whether storages are saved.
        self.written, self.draws, self.if_unwritten, self.whole = tuple(written), draws, if_unwritten, whole
        self._generators = _generators(()) if draws else []
        self._spare: list[list[torch.Tensor]] = []

    def __call__(self, graph: Callable[..., Any], *inputs: Any) -> Any:
        before = _Saved(inputs, self.written, self._generators, self._spare, self.whole)
        try:
            return graph(*inputs)
        except Exception as error:
            if may_start_over(error) and (not self.if_unwritten or left_unwritten(error)):
                before.restore()
            raise
        finally:
            self._spare.append(before.copies)


class SpeculativeGraph:
    """`graph` for new code: its outputs but the last, or None where that says no."""

    def __init__(self, graph: Callable[..., Any], written: tuple[int, ...], devices: frozenset[torch.device] | None, name: str,
                 give_up: Callable[[], None], whole: bool,
                 settings: Sequence[Callable[[], Callable[[], object]]] = ()) -> None:
        self._graph = graph
        #: Each gives what sets a setting back that the graph sets.
        self._settings = settings
        #: The inputs that the graph writes to, whether their storages are saved whole, and the devices on which it may draw
        #: random numbers besides the CPU; None where it draws none.
        self.written, self.whole, self.devices = written, whole, devices
        self._generators = [] if devices is None else _generators(devices)
        self._spare: list[list[torch.Tensor]] = []
        #: Whether anything has to be undone where the check fails.
        self._saves = bool(written or self._generators)
        self._name = name
        self._give_up = give_up
        self._failures = 0

    def __call__(self, *inputs: Any) -> tuple[Any, ...] | None:
        before = _Saved(inputs, self.written, self._generators, self._spare, self.whole) if self._saves else None
        set_back = [saved() for saved in self._settings]
        error: Exception | None = None
        try:
            *outputs, check_held = self._graph(*inputs)
            if check_held:
                if before is not None:
                    self._spare.append(before.copies)
                return tuple(outputs)
        except Exception as failed:
            # What the graph computes behind the check may fail on data that does not pass it.
            if not may_start_over(failed):
                raise
            error = failed
        for each in set_back:
            each()
        if before is not None:
            before.restore()
        self._report(error)
        return None

    def _report(self, error: Exception | None) -> None:
        counters["deoptimizations"][self._name] += 1
        if logs.enabled("recompiles"):
            _log.info("%s runs eagerly this time: %s", self._name, error or "a check of its data failed")
        self._failures += 1
        if self._failures == _MAX_FAILURES:
            self._give_up()


class FailedGraph:
    """Run-time helper of new code, called with the exception of its graph: whether the user's code is to run instead.
    `if_unwritten`: only where the graph says that it left its inputs as they were."""

    def __init__(self, name: str, if_unwritten: bool = False) -> None:
        self.name, self.if_unwritten = name, if_unwritten
        self._warned = False

    def __call__(self, error: BaseException) -> bool:
        if not may_start_over(error) or (self.if_unwritten and not left_unwritten(error)):
            return False
        counters["failed_graphs"][self.name] += 1
        if not self._warned:
            self._warned = True
            _log.warning("The graph of %s failed (%s: %s); the call runs eagerly, and raises what the program raises.",
                         self.name, type(error).__name__, str(error).partition("\n")[0])
        return True


def _has_ended(error: BaseException) -> bool:
    """Whether an object on the way to what a weak reference refers to was not there."""
    return isinstance(error, (LookupError, AttributeError, TypeError)) and not is_foreign(error)


class Deoptimization:
    """The part of a frame's new code that goes on with the user's."""

    def __init__(self, asm: Asm, code: CodeType, arg_names: tuple[str, ...]) -> None:
        self.asm = asm
        self.code = as_it_stands(code, len(arg_names))
        self.name = code.co_qualname
        self.arg_names = arg_names
        self._label: Label = asm.label()
        self._failed: Label | None = None
        self._ended: Label | None = None
        self._at_once: Label = asm.label()
        self._if_unwritten = False
        #: The local with what `rewind` takes where the graph or its check failed, if the frame ran steps of random generators
        #: before; where a step failed, they are as they were already, and it is empty.
        self.before_steps: str | None = None

    def guarding(self, *, if_unwritten: bool) -> Guarding:
        """A handler for the graph, for one that may fail and be forgotten."""
        self._if_unwritten = if_unwritten
        self._failed = self.asm.label()
        return self.asm.guarding(self._failed, push_lasti=False, depth=0)

    def guarding_referents(self) -> Guarding:
        """A handler for the reading of what weak references refer to, before anything else is done: it may have ended since the
        guards were checked."""
        self._ended = self.asm.label()
        return self.asm.guarding(self._ended, push_lasti=False, depth=0)

    def test_referent(self) -> None:
        """[referent or None] -> [referent]"""
        self.asm.dup()
        self.asm.jump_if("NONE", self._at_once)

    def test(self) -> None:
        """[outputs or None] -> [outputs]"""
        self.asm.dup()
        self.asm.jump_if("NONE", self._label)

    def write(self, rescued: Label | None) -> None:
        """Emit it, behind the end of the code. The arguments are where they were when the frame began. `rescued` is where an
        exception goes that is not the graph's own, None: out of the frame."""
        asm = self.asm
        raising = asm.label()
        if self._ended is not None:
            asm.place(self._ended)
            asm.dup()
            asm.call_const(_has_ended, 1)
            asm.jump_if_false(raising)
            asm.jump(self._at_once)
        if self._failed is not None:
            asm.place(self._failed)
            asm.dup()
            asm.call_const(FailedGraph(self.name, self._if_unwritten), 1)
            asm.jump_if_false(raising)
            asm.jump(self._label)
        asm.place(self._label)
        if self.before_steps is not None:
            asm.load_local(self.before_steps)
            asm.call_const(rewind, 1)
            asm.pop()
        asm.place(self._at_once)
        asm.pop()
        asm.begin_call(_C.Continue)
        asm.make_function(self.code, asm.load_closure if asm.freevars else None)
        for name in self.arg_names:
            asm.take_local(name)
        asm.call(1 + len(self.arg_names))
        asm.return_value()
        if self._failed is not None or self._ended is not None:
            asm.place(raising)
            if rescued is None:
                asm.raise_()
            else:
                asm.jump(rescued)


def as_it_stands(code: CodeType, slots: int) -> CodeType:
    """The user's code, uncompiled, with its argument slots as plain parameters."""
    plain = code.replace(co_argcount=slots, co_posonlyargcount=0, co_kwonlyargcount=0,
                         co_flags=code.co_flags & ~(CO_VARARGS | CO_VARKEYWORDS))
    _C.set_flags(plain, _C.SKIP)
    return plain
