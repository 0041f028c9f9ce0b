"""One file with entries of the cache: all that a process compiled (`save_cache_artifacts`), or all that one compiled function
needs (`compiled.save`).

The first line names the format, the second is the digest of the rest, the third a manifest in JSON: what the file is good for
(torch, Python, fxjit, processor, device), the names and sizes of the cache's entries that follow, and for one function which it
is. Entries are found by keys that say all that they depend on, so that one that does not fit this process is never used; the
manifest tells people so in time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fxjit import logs
from fxjit.errors import ArtifactError

from .artifacts import is_entry, open_cache, ship, used_entries
from .graphs import own_code

__all__ = ["VERSIONS", "add_content", "add_to_cache", "bundled_cache", "is_bundle", "machine", "read_bundle", "ship",
           "write_bundle"]
log = logs.artifact("cache")
FORMAT = "fxjit artifacts "
MAGIC = f"{FORMAT}2\n".encode()


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of a file."""

    #: What it is good for, as `machine` says it.
    machine: dict[str, str]
    entries: dict[str, bytes]
    #: The function that it was saved of; None: of none alone.
    function: dict[str, Any] | None

    def differs(self) -> str | None:
        """What it was written with that this process has otherwise, for people; None where it is good here."""
        here = machine()
        named = [f"{name} {self.machine.get(name)} and not {value}" for name, value in here.items()
                 if self.machine.get(name) != value]
        return ", ".join(named) or None


def write_bundle(path: Path, entries: Iterable[tuple[str, bytes]] | None = None, function: dict[str, Any] | None = None) -> int:
    """Writes entries, by default all of the cache that this process made or used; how many. The file appears when it is whole.
    OSError where it cannot be written."""
    found = sorted(used_entries() if entries is None else entries)
    content = bundled(found, function)
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a device or a pipe, which stays what it is
    else:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    log.info("%d entries written to %s", len(found), path)
    return len(found)


def bundled(entries: list[tuple[str, bytes]], function: dict[str, Any] | None = None) -> bytes:
    """The content of a file with these entries."""
    manifest = {"for": machine(), "entries": [[name, len(content)] for name, content in entries], "function": function}
    return sealed(manifest, b"".join(content for _, content in entries))


def bundled_cache() -> tuple[bytes, list[str]]:
    """As a file has them: all entries of the cache that this process made or used, and their names."""
    found = sorted(used_entries())
    return bundled(found), [name for name, _ in found]


def is_bundle(content: bytes) -> bool:
    """Whether fxjit wrote it, in whatever version."""
    return content.startswith(FORMAT.encode())


def sealed(manifest: dict[str, Any], body: bytes) -> bytes:
    """The content of a file."""
    rest = json.dumps(manifest).encode() + b"\n" + body
    return MAGIC + _digest(rest).encode() + b"\n" + rest


def read_bundle(content: bytes, path: object) -> Bundle:
    """The content of the file `path`. ArtifactError for what is no such file, is damaged, or is of another version of the
    format."""
    if not content.startswith(MAGIC):
        if content.startswith(FORMAT.encode()):
            raise ArtifactError(f"{path} has the format of another version of fxjit. Write it again with this one.")
        raise ArtifactError(f"{path} is no file of artifacts that fxjit wrote (compiled.save, fxjit.save_cache_artifacts).")
    digest, _, rest = content.removeprefix(MAGIC).partition(b"\n")
    head, _, body = rest.partition(b"\n")
    found = _manifest(head) if digest == _digest(rest).encode() else None
    if found is None or sum(size for _, size in found["entries"]) != len(body):
        raise ArtifactError(f"{path} is damaged: its digest is not that of its content, of which nothing was used. Write the "
                            "artifacts or copy them again.")
    entries, at = {}, 0
    for name, size in found["entries"]:
        entries[name] = body[at:at + size]
        at += size
    return Bundle(found["for"], entries, found["function"])


def add_to_cache(path: Path) -> int:
    """Puts the entries of a file into the cache; how many. None of a file for another machine, with one line in the log.
    OSError, ArtifactError."""
    return len(add_content(path.read_bytes(), path))


def add_content(content: bytes, path: object) -> list[str]:
    """The same of the content of a file; their names. ArtifactError."""
    bundle = read_bundle(content, path)
    differs = bundle.differs()
    if differs is not None:
        log.warning("%s is not for this process, which compiles for itself: it was written with %s.", path, differs)
        return []
    cache = open_cache()
    for name, content in bundle.entries.items():
        key, dot, suffix = name.partition(".")
        cache.put(key, dot + suffix, content)
    log.info("%d entries read from %s", len(bundle.entries), path)
    return list(bundle.entries)


def _manifest(head: bytes) -> dict[str, Any] | None:
    """The manifest; None where that is none."""
    try:
        found = json.loads(head)
        names, sizes = zip(*found["entries"], strict=True) if found["entries"] else ((), ())
        fits = isinstance(found["for"], dict) and all(map(is_entry, names))
        fits = fits and (found["function"] is None or isinstance(found["function"], dict))
        return found if fits and all(type(size) is int and size >= 0 for size in sizes) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


#: What an artifact of one function has to be written with again. Of the rest (processor, device, threads) another one compiles.
VERSIONS = ("torch", "Python", "fxjit")


def machine() -> dict[str, str]:
    """What entries of this process are good for."""
    capability = torch.backends.cpu.get_cpu_capability()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.cuda.get_device_name(each) for each in range(count)]
    return {"torch": f"{torch.__version__} ({torch.version.git_version})", "Python": sys.version,
            "fxjit": own_code()[:16], "processor": f"{platform.machine()} with {capability}",
            "device": ", ".join(devices) or "cpu", "threads": str(torch.get_num_threads())}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
