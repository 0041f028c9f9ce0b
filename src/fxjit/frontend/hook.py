"""The typed Python face of the frame hook (`_hook.c`).

The API makes a region for each compiled callable and enters it through `_C.CompiledFunction`; the few places that enter
or leave a region from Python do it here, so that every switch has its restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from fxjit import _C

P = ParamSpec("P")
R = TypeVar("R")


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
