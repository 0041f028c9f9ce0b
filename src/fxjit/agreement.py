"""Guard collectives (`config.guard_collectives`): ranks use a compiled entry together, or none of them does.

Where a code object has entries, the frame hook asks here at each look-up whether the entry that it found is used. All ranks of
the default process group exchange whether theirs fits, over a group of their own; where one has none that fits, all compile,
and the log `recompiles` names the ranks that needed it with the guard that failed there. So a rank never runs a graph whose
collectives wait for one that another rank is still compiling. A rank that has no entry at all of this code object, or that
does not call it, is waited for as in any other collective, no longer than the default group's time.
"""

from __future__ import annotations

import threading
from types import FunctionType
from typing import Any

import torch
import torch.distributed

from . import logs, torch_private
from .frontend import entries
from .guards.source import Scope
from .guards.why import count_failures, explain_failure

_log = logs.artifact("recompiles")
_told = threading.local()  # what the others said at this thread's last look-up, where they were not of one mind


class _Group:
    """The ranks' group for this, of the process group that is the default one now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_for: Any = None
        self._group: Any = None

    def get(self) -> Any:
        default = torch.distributed.group.WORLD
        with self._lock:
            if self._made_for is not default:
                self._group = torch.distributed.new_group(backend="gloo", timeout=_time_of(default))
                self._made_for = default
            return self._group


def _time_of(group: Any) -> Any:
    """How long the ranks of a group wait for each other; None: as long as torch's default says."""
    backend_of = torch_private.get_or("torch.distributed.ProcessGroup._get_backend", None)
    if backend_of is None:
        return None
    device = torch.distributed.get_backend_config(group).partition(":")[0]  # of "cpu:gloo,cuda:nccl"
    backend = backend_of(group, torch.device(device))
    return getattr(getattr(backend, "options", None), "_timeout", None)


_group = _Group()


def why_together() -> str | None:
    """Why this thread's last look-up gave no entry though one fits: what the other ranks said."""
    return getattr(_told, "why", None)


def agreed(key: object, func: FunctionType, args: tuple[object, ...], held: bool) -> bool:
    """Whether the entry that was found is used: whether every rank has found one."""
    _told.why = None
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return held
    group = _group.get()
    count = torch.tensor([int(held)])
    torch.distributed.all_reduce(count, group=group)
    size, holding = torch.distributed.get_world_size(group), int(count)
    if holding in (0, size):
        return held
    reasons: list[str | None] = [None] * size
    torch.distributed.all_gather_object(reasons, None if held else _nearest(key, func, args), group=group)
    _told.why = "; ".join(f"rank {rank} compiles it again: {reason}" for rank, reason in enumerate(reasons) if reason)
    _log.info("%s: an entry fits on %d of %d ranks\n    - %s", func.__qualname__, holding, size, _told.why)
    return False


def _nearest(key: object, func: FunctionType, args: tuple[object, ...]) -> str:
    """The guard that failed, of the entry that has the fewest of those."""
    code = func.__code__
    names = code.co_varnames[: len(args)]
    frame = (names, code.co_freevars, args, func.__closure__, func.__globals__, func.__builtins__)  # type: ignore[attr-defined]
    scope = Scope.of(*frame)
    nearest = min(entries.of(code, key), key=lambda entry: count_failures(entry.tree, scope), default=None)
    return (nearest and explain_failure(nearest.tree, *frame)) or "its entries are gone"
