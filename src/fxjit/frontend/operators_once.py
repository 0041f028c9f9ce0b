"""Operators that run once a call: the program's own, whose code may do anything, so that a frame whose graph fails in one, or
behind one, cannot start over in the program's code (speculation.py).

What such a graph raises would pass by the handlers of the frame, and the effects that stand before it would be lost. There the
graph breaks instead: before an operator of the program's, and behind one before any that may raise on its data. Operators of
installed packages follow effects in every layer of some models, and are taken to raise on no data where no handler expects it.
Those that a package declares to do nothing but compute may run again, so that frames with them can start over.
Where a break is an error, or the frame could not go on behind it, all of them are in the graph.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._ops import OpOverload

from fxjit import torch_private
from fxjit.frontend.interp.machine import running
from fxjit.frontend.interp.resumability import is_in_try, why_not_resumable
from fxjit.frontend.interp.stack_values import WithExitValue
from fxjit.frontend.values.fxjit_callables import breaks_are_errors
from fxjit.homes import package_of, target_name
from fxjit.origins import is_installed
from fxjit.schemas import Observer, only_computes, overloads_of, runs_once, updated_statistics

if TYPE_CHECKING:
    from fxjit.frontend.trace import Trace

Target = Callable[..., object] | str


class OperatorsOnce:
    """Those of one trace."""

    def __init__(self) -> None:
        self._any = False

    def before(self, t: Trace, target: Target) -> Observer | None:
        """A call is to be put in the graph: breaks where it would raise unseen. Gives what watches it run on fake tensors, for
        `behind`."""
        if not runs_once(target) or only_computes(target):
            return Observer() if self._any and _may_break(t) and ((t.effects and _goes_on(t)) or _is_under_handler(t)) else None
        if _may_break(t):
            if _is_under_handler(t):
                t.break_("call-operator-in-try", function=target_name(target))
            if is_programs(target) and (t.effects or _has_written(t)) and _goes_on(t):
                t.break_("call-operator-behind-effects", function=target_name(target))
        self._any = True
        return None

    def behind(self, t: Trace, target: Target, observer: Observer) -> None:
        if observer.may_raise:
            t.break_("operator-may-raise", operator=target_name(target))


def _may_break(t: Trace) -> bool:
    return not t.break_points.whole and not breaks_are_errors(t)


def _goes_on(t: Trace) -> bool:
    """Whether the frame can be resumed here. In a loop it would run as it stands, all of it, for the sake of what raises."""
    root = running(t.frame)[0]
    return why_not_resumable(root, root.index) is None


def _has_written(t: Trace) -> bool:
    """Whether the graph so far writes to its inputs, which compiled graphs do at their end. What operators that run once write,
    and what layers count in training, is not looked at: norms' statistics, and their count of batches, a buffer that
    the layer's own Python code writes to and that only its name tells."""
    written = t.speculation.inputs_written(
        t.builder.graph, by=lambda node: not runs_once(node.target) and not updated_statistics(node))
    sources = [found.source.name for node in written if (found := t.builder.input_of(node)) is not None]
    return any("num_batches_tracked" not in name for name in sources)


def _is_under_handler(t: Trace) -> bool:
    """Whether an exception that is raised now reaches an `except`, a `finally` or a manager of a frame that is traced."""
    for frame in running(t.frame):
        if is_in_try(frame.code, frame.index):
            return True
        if any(isinstance(value, WithExitValue) and not value.resumable for value in frame.stack):
            return True
    return False


def is_programs(target: Any) -> bool:
    """Whether its code is the program's: Python that no installed package has."""
    overloads = overloads_of(target)
    if not overloads:
        module = sys.modules.get(package_of(target))
        return not is_installed(getattr(module, "__file__", None) or "")
    return any(map(_is_programs, overloads))


_definitions: Final[Any] = torch_private.get_or("torch._library.custom_ops.OPDEFS", {})
_registrations: Final[Any] = torch_private.get_or("torch._C._dispatch_dump", lambda name: "")
#: Kernels that compute, each with the file in which it was registered.
_KERNEL: Final = re.compile(r"^(?!Meta|Auto|ADInplaceOrView|debug)\w+(?:\[alias\])?: registered at (.*\.py):\d+", re.MULTILINE)


def _is_programs(overload: OpOverload) -> bool:
    definition = _definitions.get(overload._schema.name)
    if definition is not None:
        return not is_installed(definition._init_fn.__code__.co_filename)
    files = set(_KERNEL.findall(_registrations(overload.name())))
    return any(each == torch.library.__file__ or not is_installed(each) for each in files)
