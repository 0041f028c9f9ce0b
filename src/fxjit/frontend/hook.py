"""The typed Python face of the frame hook (`_hook.c`).

The API makes a region for each compiled callable and enters it through `_C.CompiledFunction`; the few places that enter
or leave a region from Python do it here, so that every switch has its restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType
from typing import Any, ParamSpec, Protocol, TypeVar

from fxjit import _C

P = ParamSpec("P")
R = TypeVar("R")


class FrameCallback(Protocol):
    """Asked for a frame about to start that no entry fits.

    `args` are the frame's argument slots in order: positional, keyword-only, the *args tuple, the **kwargs dict. None
    lets the frame run as it is; what is raised comes out of the call. While it runs, the thread has no region, and its
    frames are kept from the evaluators of others.
    """

    def __call__(
        self,
        region: _C.Region,
        func: FunctionType,
        code: CodeType,
        args: tuple[object, ...],
        closure: tuple[CellType, ...] | None,
        globals_: dict[str, Any],
        builtins: dict[str, Any],
        /,
    ) -> _C.Entry | None: ...


def make_region(key: object, callback: FrameCallback) -> _C.Region:
    """Entries are filed on code objects under `key`, by identity; they go when the key or the code goes."""
    return _C.Region(key, callback)


def frozen_region(key: object) -> _C.Region:
    """Uses the entries of `key` and compiles nothing."""
    return _C.Region(key, None)


@contextmanager
def in_region(region: _C.Region | None) -> Iterator[None]:
    """The frames that start in the block belong to `region`, those of this thread only; None: to no region."""
    before = _C.set_region(region)
    try:
        yield
    finally:
        _C.set_region(before)


def outside_regions(fn: Callable[P, R], *, keep_others_out: bool = False) -> Callable[P, R]:
    """`fn` as a callable whose frames belong to no region; on request not to torch.compile or a debugger either."""
    disabled: Callable[P, R] = _C.DisabledFunction(fn, keep_others_out)
    return disabled
