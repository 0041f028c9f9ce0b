"""The state of the process at a compile, as the key of a stored entry has it: settings, what torch makes of the same graph (grad
mode, autocast, threads), marks of the program's on its functions, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from fxjit import config
from fxjit.backends.store.fingerprints import NoText, process_text
from fxjit.skips import marks

#: Settings that say where and how much is kept, and what is shown.
_APART: Final = frozenset({"cache_dir", "cache_size_mb", "verbose", "store_entries"})


@dataclass(frozen=True, slots=True)
class State:
    """A state; `problem` is why it has no text, where it has none."""

    text: str
    problem: str | None = None


def present() -> State:
    """The present state of this thread and process."""
    settings = [(name, repr(_setting(name))) for name in config.SETTINGS if name not in _APART]
    try:
        process = process_text()
    except NoText as why:
        return State("", str(why))
    return State(repr((settings, process, marks.described(), torch.cuda.is_available() and torch.cuda.device_count())))


def _setting(name: str) -> Any:
    """The present value of a setting."""
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found
