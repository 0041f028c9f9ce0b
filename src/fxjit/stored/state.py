"""The state of the process at a compile, as the key of a stored entry has it: settings, what torch makes of the same graph
(grad mode, autocast, threads), the numbers of the machine that decisions are made by, marks of the program's on its functions,
devices, the DistributedDataParallel that it is in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from fxjit import config
from fxjit.backends.graph import buckets
from fxjit.backends.native.choose import probe
from fxjit.backends.store.fingerprints import NoText, process_text
from fxjit.skips import marks

from .objects import NotStorable, function_digest

#: Settings that change no entry: when it is compiled and how often, where and how much is kept, by which compiler (the entry
#: has that), what is checked and shown.
_APART: Final = frozenset({
    "suppress_errors", "verbose", "recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit",
    "error_on_recompile", "tiers", "background_budget", "concurrent_compile", "verify_guards", "verify_guard_fast_path",
    "progress", "report", "logs", "cache_dir", "cache_size_mb", "disk_cache", "cache_graphs", "store_entries", "cpp.compiler",
    "triton.compile_processes",
})  # fmt: skip


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
        substitutes = sorted(function_digest(traced) for _, traced in marks.substitutes())
    except (NoText, NotStorable) as why:
        return State("", str(why))
    devices = torch.cuda.is_available() and torch.cuda.device_count()
    return State(repr((settings, process, marks.described(), substitutes, devices, buckets.described(), probe.text())))


def _setting(name: str) -> Any:
    """The present value of a setting."""
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found
