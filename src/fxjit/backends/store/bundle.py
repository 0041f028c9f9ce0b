"""One file with what a process compiled: `save_cache_artifacts` writes it, `load_cache_artifacts` puts it in another cache.

The first line names the format, the second is a manifest in JSON: what the file is good for (torch, Python, fxjit, processor),
the names and sizes of the cache's entries that follow, and the digest of their bytes. Entries are found by keys that say all
that they depend on, so that one that does not fit this process is never used; the manifest tells people so in time.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from fxjit import logs
from fxjit.errors import InvalidArgument

from .artifacts import is_entry, open_cache, used_entries
from .graphs import own_code

log = logs.artifact("cache")
MAGIC = b"fxjit artifacts 1\n"


def write_bundle(path: Path) -> int:
    """Writes all entries of the cache that this process made or used; how many. OSError where the file cannot be written."""
    found = sorted(used_entries())
    body = b"".join(content for _, content in found)
    manifest = {"for": _machine(), "entries": [[name, len(content)] for name, content in found], "digest": _digest(body)}
    path.write_bytes(MAGIC + json.dumps(manifest).encode() + b"\n" + body)
    log.info("%d entries written to %s", len(found), path)
    return len(found)


def read_bundle(path: Path) -> int:
    """Puts the entries of a file into the cache; how many. None of a file for another machine, with one line in the log.
    InvalidArgument for what is no such file, or a damaged one."""
    content = path.read_bytes()
    head, _, body = content.removeprefix(MAGIC).partition(b"\n")
    if not content.startswith(MAGIC):
        raise InvalidArgument(f"{path} is no file that fxjit.save_cache_artifacts wrote, or another version's.")
    manifest = _manifest(head)
    if manifest is None or _digest(body) != manifest["digest"]:
        raise InvalidArgument(f"{path} is damaged: its digest is not that of its content. Write or copy it again.")
    here = _machine()
    if manifest["for"] != here:
        differs = ", ".join(f"{name} {manifest['for'].get(name)} and not {value}" for name, value in here.items()
                            if manifest["for"].get(name) != value)
        log.warning("%s is not for this process, which compiles for itself: it was written with %s.", path, differs)
        return 0
    at, cache = 0, open_cache()
    for name, size in manifest["entries"]:
        key, dot, suffix = name.partition(".")
        cache.put(key, dot + suffix, body[at:at + size])
        at += size
    log.info("%d entries read from %s", len(manifest["entries"]), path)
    return len(manifest["entries"])


def _manifest(head: bytes) -> dict[str, Any] | None:
    """The manifest; None where that is none."""
    try:
        found = json.loads(head)
        names, sizes = zip(*found["entries"], strict=True) if found["entries"] else ((), ())
        fits = isinstance(found["for"], dict) and isinstance(found["digest"], str) and all(map(is_entry, names))
        return found if fits and all(type(size) is int and size >= 0 for size in sizes) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _machine() -> dict[str, str]:
    """What entries of this process are good for."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": f"{torch.__version__} ({torch.version.git_version})", "Python": sys.version,
            "fxjit": own_code()[:16], "processor": f"{platform.machine()} with {capability}"}


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
