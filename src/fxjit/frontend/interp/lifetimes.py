"""When objects of the program end, where that can be observed: they have a finalizer, or weak references.

What a trace made ends with the trace, unseen. What was handed to it ends where the last variable lets go of it: there the
trace breaks, and the running program lets go. machine.py asks at a break point which variables are handed on although nobody
reads them any more, and the instructions that let go ask whether that is an end.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch.utils.weak import WeakIdRef

from fxjit import _C
from fxjit.errors import BreakGraph
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Lazy, Value
from fxjit.frontend.values.closures import CellValue
from fxjit.frontend.values.constant import ConstantValue
from fxjit.frontend.values.functions import MadeFunctionValue
from fxjit.frontend.values.protocol import type_lookup
from fxjit.frontend.values.sequence import ListValue, SequenceValue, TupleValue
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.traits import Alternatives
from fxjit.guards.source import CallSource, CellContentsSource, ClosureSource, LocalSource
from fxjit.homes import module_of

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.tracer import Tracer

#: Where a variable of a frame is, its own or one of a closure.
_VARIABLES = (LocalSource, ClosureSource, CellContentsSource)
#: The same, or what a weak reference gave: it may be what variables hold.
_LET_GO_OF = (*_VARIABLES, CallSource)
#: What has no weak references or finalizers.
_UNSEEN = frozenset({int, float, complex, str, bytes, type(None), range, slice, bool})
_PLAIN_CONTAINERS = (ListValue, TupleValue)
#: Reasons to break because the instruction raises.
_RAISES = ("opcode-uncaught", "operator-raised")


def kept_alive(machine: Machine, live: frozenset[str] | set[str], cause: BreakGraph | None) -> frozenset[str]:
    """The locals that are read no more but may hold the last reference to an object whose end somebody can see: what earlier
    parts of the frame handed over, what the instruction is about to get, or what holds an object of which the trace has made a
    weak reference. Tensors go when they are no longer needed, but for those that weak references are to."""
    unread = [name for name in machine.locals if name not in live]
    own = [*ending(machine, unread, stack_holds=False), *machine.t.ends.holders(machine, unread)]
    given = {id(value.realize()) for value in machine.stack if not isinstance(value, Lazy)}
    referred = referred_to_by_trace(machine.t)
    if machine.parent is None and cause is not None and cause.reason == "value-weak-reference":
        referred |= given
    own += machine.t.ends.holders_of(machine, unread, referred)
    if machine.parent is not None:  # others hold most of what it has
        return frozenset([*own, *(name for name in unread if _gets_an_end(machine.locals[name], given))])
    return frozenset([*own, *(name for name in unread if _end_is_seen(machine.locals[name], given, modules=True))])


def looked_at_afterwards(machine: Machine, live: frozenset[str] | set[str], cause: BreakGraph | None) -> frozenset[str]:
    """The locals that are read no more where the frame raises: its traceback has them, for debuggers and the program. Of new
    objects those that are easily handed on."""
    if cause is None or cause.reason not in _RAISES:
        return frozenset()
    return frozenset(name for name, value in machine.locals.items()
                     if name not in live and not name.startswith(".") and _is_handed_on_easily(value, 5))


def _is_handed_on_easily(value: Value, depth: int) -> bool:
    if isinstance(value, (GraphTensor, ConstantValue)):
        return True
    if value.source is not None:
        return not isinstance(value, Alternatives)
    if isinstance(value, MadeFunctionValue):
        parts = (value.default_values, value.kwdefault_values, value.annotations, value.closure_values)
        return all(each is None or _is_handed_on_easily(each, depth) for each in parts)
    if isinstance(value, CellValue):
        return depth > 0 and value.contents is not None and _is_handed_on_easily(value.contents, depth - 1)
    if not isinstance(value, SequenceValue) or type(value) not in _PLAIN_CONTAINERS or not depth:
        return False
    return all(_is_handed_on_easily(item, depth - 1) for item in value.items)


def _gets_an_end(value: Value, given: set[int]) -> bool:
    """Whether it is a new object with a finalizer, or a generator that has not started: the instruction gets it for real."""
    if value.source is not None or id(value) not in given or isinstance(value, Alternatives):
        return False
    return _is_finalized(value.pytype())


def _end_is_seen(value: Value, given: set[int], modules: bool = False) -> bool:
    """`modules`: whether those count. Hooks of gradients that a call of one sets have weak references to it."""
    if (not isinstance(value.source, LocalSource) and id(value) not in given) or isinstance(value, Alternatives):
        return False
    kind = type(value.peek()) if isinstance(value, Lazy) and value.realized is None else value.realize().pytype()
    if kind is type or issubclass(kind, type):
        return True
    if issubclass(kind, torch.Tensor):
        # A trace that has used it has made references of torch's own, for its fake tensor.
        is_used = not isinstance(value, Lazy) or value.realized is not None
        return is_referred_to(_object(value), _is_made_for_traces if is_used else _has_fxjit_callback)
    if issubclass(kind, torch.nn.Module):
        return modules
    return kind not in _UNSEEN and not issubclass(kind, ModuleType) and not is_of_torch(kind)


def is_of_torch(kind: type) -> bool:
    return module_of(kind).startswith("torch")


def end_is_awaited(machine: Machine, name: str, value: Value) -> bool:
    """Whether an object may end here and now, when a variable lets go of it or of a sequence that holds it."""
    if not _may_end(machine, value) or not _is_last(value, _held(machine, (name,), stack_holds=True)):
        return False
    # What a weak reference gave is held by something besides, unless the trace was given that, or changed it (ends.py).
    return not isinstance(value.source, CallSource) or id(_object(value)) in machine.t.ends.at_stake


def ending(machine: Machine, names: Collection[str], *, stack_holds: bool = True) -> list[str]:
    """Those of the frame's locals whose objects may end when it lets go of all of them. `stack_holds`: what lies on its stack
    is not about to be taken off."""
    suspects = [name for name in names
                if _may_end(machine, machine.locals[name]) and not _is_of_a_closure(machine.locals[name])]
    if not suspects:
        return []
    held = _held(machine, names, stack_holds=stack_holds)
    return [name for name in suspects if _is_last(machine.locals[name], held)]


def referred_to_by_trace(t: Tracer) -> set[int]:
    """The values, by identity, of which the trace has made weak references."""
    made = t.new_source_state("weak references")
    return {id(value) for table in made.values() for value in table} if made else set()


def _may_end(machine: Machine, value: Value) -> bool:
    """Whether the end of a variable's object is observable; quick, since most are tensors that the trace made."""
    source = value.source
    if isinstance(value, ConstantValue) or not (source is None or isinstance(source, _LET_GO_OF)):
        return False
    if isinstance(value, SequenceValue):
        return _holds_finalized(value, set())
    if source is None:
        return False
    obj = _object(value)
    if _is_plain_sequence(obj):
        return _has_finalizer(obj, within=2)
    if is_running_thread(obj):
        return False
    itself = value.realized if isinstance(value, Lazy) else value
    observed = _has_finalizer(obj) or is_referred_to(obj) or id(itself) in referred_to_by_trace(machine.t)
    return observed and _end_is_seen(value, {id(value)})


def is_running_thread(obj: object) -> bool:
    """Whether it is the `threading.Thread` of this very thread, which Python holds."""
    return issubclass(type(obj), threading.Thread) and obj is threading.current_thread()


def _is_of_a_closure(value: Value) -> bool:
    """Whether a cell that existed before the trace holds it too."""
    return value.source is not None and not isinstance(value.source, LocalSource)


def _is_last(value: Value, held: set[int]) -> bool:
    return id(value) not in held and (not isinstance(value, SequenceValue) or _holds_finalized(value, held))


def _held(machine: Machine, but: Collection[str], *, stack_holds: bool) -> set[int]:
    """Objects held by the frame, without the variables `but`, and by its suspended callers."""
    found: set[int] = set()
    emptied = [machine.cells[name] for name in but if name in machine.cells]
    frame: Machine | None = machine
    while frame is not None:
        if stack_holds or frame is not machine:
            found |= {id(value) for value in frame.stack}
        # A resume function's parameters that are no names of the user's are read once, at its beginning.
        found |= {id(value) for name, value in frame.locals.items()
                  if not name.startswith(".") and not (frame is machine and name in but)}
        found |= {id(getattr(cell, "contents", None)) for cell in frame.cells.values() if cell not in emptied}
        frame = frame.parent
    return found


def _object(value: Value) -> object:
    """The object from before the trace; None for anything else."""
    if isinstance(value, Lazy):
        return value.peek()
    return value.real if isinstance(value, GraphTensor) else getattr(value, "obj", None)


def _holds_finalized(value: Value, held: set[int]) -> bool:
    """Whether it is a sequence of objects that have finalizers: of locals', where it is a new one."""
    if not isinstance(value, SequenceValue) or id(value) in held:
        return False
    held.add(id(value))  # looked at once, also where it holds itself
    return any(_holds_finalized(item, held) if isinstance(item, SequenceValue) else
               (value.source is not None or isinstance(item.source, LocalSource))
               and id(item) not in held and _has_finalizer(_object(item))
               for item in value.items)


def _is_plain_sequence(obj: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """Whether its exact type is a plain sequence: `isinstance` reads an object's `__class__`, which runs code of the
    program's."""
    return issubclass(type(obj), (list, tuple))


def _has_finalizer(obj: object, within: int = 0) -> bool:
    """Whether it, or what lists and tuples hold so many levels below it, has a `__del__`."""
    if _is_finalized(type(obj)):
        return True
    if not within or not _is_plain_sequence(obj):
        return False
    items: Callable[[], Iterator[object]] = partial(_own_iter(obj), obj)  # not one of the program's
    kinds = {id(kind): kind for kind in map(type, items())}.values()  # few, where it is long
    if any(map(_is_finalized, kinds)):
        return True
    if within == 1 or not any(issubclass(kind, (list, tuple)) for kind in kinds):
        return False
    return any(_has_finalizer(item, within - 1) for item in items() if _is_plain_sequence(item))


def _own_iter(obj: list[object] | tuple[object, ...]) -> Callable[..., Iterator[object]]:
    return list.__iter__ if issubclass(type(obj), list) else tuple.__iter__


def _is_made_for_traces(ref: object) -> bool:
    return issubclass(type(ref), WeakIdRef) or _has_fxjit_callback(ref)


def _has_fxjit_callback(ref: object) -> bool:
    if type(ref) is not weakref.ref:  # a proxy, or of a class of the program's
        return False
    callback: object = ref.__callback__
    while isinstance(callback, partial):
        callback = callback.func
    if callback is _C.guards_let_go:
        return True
    return type(callback) is FunctionType and str(callback.__globals__.get("__name__")).startswith("fxjit.")


def is_referred_to(obj: object, is_ours: Callable[[object], bool] = _has_fxjit_callback) -> bool:
    """Whether the program has a weak reference to it. Ours have a callback: guards, entries, marks."""
    return weakref.getweakrefcount(obj) > 0 and not all(map(is_ours, weakref.getweakrefs(obj)))


def _is_finalized(cls: type) -> bool:
    return type_lookup(cls, "__del__") is not NOT_IMPLEMENTED
