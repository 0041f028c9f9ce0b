"""The releases of torch that fxjit was tried with, and what is said of others."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from fxjit import forks

if TYPE_CHECKING:
    import torch

#: What torch imports with the first shape environment, and with it torch._dynamo.
_SHAPES: Final = "torch.fx.experimental.validator"

#: The oldest and the newest release that the test suite was run on, in part or whole (noxfile.py runs all of it).
OLDEST, NEWEST = (2, 11), (2, 15)
#: The same for pip.
REQUIREMENT = f"torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"


def release(version: str) -> tuple[int, int]:
    """`(2, 15)` of `2.15.0+cu132` or `2.16.0a0+git1234`."""
    major, minor = version.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def untried(version: str) -> str | None:
    """The warning for a release that was not tried; None for one that was."""
    if OLDEST <= release(version) <= NEWEST:
        return None
    return f"{tried_with()}; torch {version} is another."


def tried_with() -> str:
    """How a sentence about another torch begins."""
    span = " to ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    return f"this fxjit was tried with torch {span}"


def warn_if_untried(version: str) -> None:
    """Called once, before the first compile."""
    if (said := untried(version)) is not None:
        warnings.warn(f"{said} What fxjit needs may have changed there: `python -m fxjit doctor` tries it out.",
                      RuntimeWarning, stacklevel=3)


def taken(cls: type, **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that a dataclass of this torch has fields for; older releases do what later ones do by default."""
    fields = {each.name for each in dataclasses.fields(cls)}
    return {name: value for name, value in arguments.items() if name in fields}


def gives_indices_the_dtype_of_values(version: str) -> bool:
    """Whether the fake kernels of `torch.unique` and its like give inverse and counts the dtype of the values. The operators
    give int64, and so do the fake kernels from torch 2.12 on."""
    return release(version) < (2, 12)


@functools.cache
def rounds_bound_of_softshrink(dtype: torch.dtype) -> bool:
    """Whether ATen's softshrink converts its bound to a half type before it subtracts it on a CPU (torch 2.15 does, 2.13 does
    not)."""
    import torch  # here, as `doctor` uses this module on machines that may have none

    if dtype not in (torch.float16, torch.bfloat16):
        return False
    with torch.inference_mode():
        x = torch.tensor(0.30078125, dtype=dtype)
        return bool(torch.nn.functional.softshrink(x, 0.3) == x - torch.tensor(0.3, dtype=dtype))


def import_of_shapes() -> None:
    """Imports what torch imports with the first shape environment, in a thread of its own: `torch.fx.wrap` leaves its frame in
    a cycle, and with it those of its callers, whose locals would live until the collector runs. Within an import of the
    program's it stays in its thread, as another one may have to wait for that module."""
    if _SHAPES in sys.modules:
        return
    if _is_importing():
        _import_shapes()
        return
    with ThreadPoolExecutor(1, "fxjit-import") as thread:
        try:
            imported = thread.submit(_import_shapes_awaited)
        except RuntimeError:  # the interpreter ends, and starts no thread
            _import_shapes()
            return
        imported.result()


def _import_shapes_awaited() -> None:
    """In a thread whose imports a fork waits for, as for those of threads that compile."""
    thread = threading.get_ident()
    forks.begin(thread)
    try:
        _import_shapes()
    finally:
        forks.end(thread)


def _is_importing() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _import_shapes() -> None:
    """Modules of it ask for the working directory: where that has been removed, which is an error in Python, they are told
    another, and their settings are made of that."""
    asked = os.getcwd
    try:
        asked()
    except OSError:
        folder = tempfile.gettempdir()  # which may ask for the working directory itself
        os.getcwd = lambda: folder
    try:
        importlib.import_module(_SHAPES)
    finally:
        os.getcwd = asked
