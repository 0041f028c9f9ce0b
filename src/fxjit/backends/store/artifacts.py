"""Compiled code on the disk, for this process and the next ones.

An entry is a file `<key><suffix>`. The key is a hash of everything that the content was made from (source, command, compiler,
processor), so an entry is never changed, only added or removed. The content is followed by a hash of itself and its own name:
what does not end so (a write cut short, a damaged disk, another entry under this name) counts as absent. Nothing is read from a
folder that another user could exchange or may write to (folder.py); SECURITY.md says what that is to prevent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fxjit import config, logs
from fxjit.counters import counters
from fxjit.errors import ConfigError

from .folder import SCRATCH, hold_own, sweep

log = logs.artifact("cache")
#: What entries are: libraries, kernels for a GPU, and what is known of graphs, block sizes and products.
LIBRARY, BINARY, FACTS = ".so", ".cubin", ".json"
#: Beside an entry, for people to read: the source of a library. It is all that a compile which failed leaves.
SOURCE = ".cpp"
#: Stood beside entries before they ended with their hash.
OLD_SEAL = ".sum"
_ENTRIES = (LIBRARY, BINARY, FACTS)
#: What fxjit writes to the folder: it removes nothing else.
_OURS = re.compile(r"(?P<key>[0-9a-f]{40})(?P<suffix>\.so|\.cubin|\.json|\.cpp|\.sum)")


#: Written when the folder was trimmed: to which size.
_TRIMMED = "trimmed"
#: Seconds after which a process that opens the folder trims it again.
TRIM_EVERY = 3600.0


class MemoryCache:
    """Entries of this process alone, where no folder can be used or none is wanted."""

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}

    def get(self, key: str, suffix: str) -> bytes | None:
        return self.known.get(key + suffix)

    def put(self, key: str, suffix: str, content: bytes) -> None:
        self.known[key + suffix] = content

    def put_source(self, key: str, source: str) -> Path | None:
        """Keeps the source of a library; where. The memory keeps none."""
        return None

    def remove(self, key: str) -> None:
        for suffix in _ENTRIES:
            self.known.pop(key + suffix, None)


class KernelCache:
    """Entries in a folder. Nothing raises because of the disk: a cache that cannot be used is only slower."""

    def __init__(self, path: Path, *, make: bool = True) -> None:
        self.folder = hold_own(path, make=make)
        #: What is used instead of it, once the disk took nothing more.
        self.instead: MemoryCache | None = None
        #: The entries that this process made or found.
        self.used: set[tuple[str, str]] = set()

    def get(self, key: str, suffix: str) -> bytes | None:
        """The content of this entry, if it is there whole."""
        name = key + suffix
        try:
            found = self.folder.read(name)
        except FileNotFoundError:
            return None if self.instead is None else self.instead.get(key, suffix)
        except OSError as problem:
            log.info("%s cannot be used and is made again: %s", name, problem)
            self.folder.remove(name)
            return None
        content = found[:-_SEAL_LENGTH]
        if found[-_SEAL_LENGTH:] != _seal(name, content):
            log.info("%s is damaged and is made again", self.folder.path / name)
            self.remove(key)
            return None
        self.folder.touch(name)  # the clock that `trim` goes by
        self.used.add((key, suffix))
        return content

    def put(self, key: str, suffix: str, content: bytes) -> None:
        """Keeps the content; where the disk does not, this process goes on without it."""
        name = key + suffix
        try:
            self.folder.write(name, content + _seal(name, content))
            self.used.add((key, suffix))
        except OSError as problem:
            if self.instead is None:
                self.instead = MemoryCache()
                _warn(str(self.folder.path), problem)
            self.instead.put(key, suffix, content)

    def put_source(self, key: str, source: str) -> Path | None:
        """Keeps the source of a library; where."""
        try:
            self.folder.write(key + SOURCE, source.encode())
        except OSError as problem:
            log.info("a source is not kept: %s", problem)
            return None
        return self.folder.path / (key + SOURCE)

    def remove(self, key: str) -> None:
        """Removes an entry with all that stands beside it."""
        for suffix in (*_ENTRIES, SOURCE, OLD_SEAL):
            self.folder.remove(key + suffix)

    def names(self) -> list[str]:
        """The entries."""
        return [found.group() for found in self._files() if found["suffix"] in _ENTRIES]

    def size(self) -> tuple[int, int]:
        """How many files there are of ours, and their bytes."""
        sizes = [size for size, _ in self._sizes(found.group() for found in self._files()).values()]
        return len(sizes), sum(sizes)

    def probe(self) -> None:
        """Raises OSError where nothing can be written."""
        name = f"{SCRATCH}probe"
        self.folder.write(name, b"")
        self.folder.remove(name)

    def clear(self) -> tuple[int, int]:
        """Removes what fxjit wrote, and nothing else: how many files, and their bytes."""
        sizes = [self.folder.remove(found.group()) for found in self._files()]
        sweep(self.folder)
        return len(sizes), sum(sizes)

    def trim(self, limit: int) -> None:
        """Brings what is kept below `limit` bytes: first what belongs to no entry goes, then the entries used longest ago."""
        with contextlib.suppress(OSError):
            sweep(self.folder)
            files = list(self._files())
            sizes = self._sizes(found.group() for found in files)
            keys = {found["key"] for found in files if found["suffix"] in _ENTRIES}
            excess = sum(size for size, _ in sizes.values()) - limit
            leading = [found for found in files if found["suffix"] in _ENTRIES or found["key"] not in keys]
            for found in sorted(leading, key=lambda each: (each["key"] in keys, sizes.get(each.group(), (0, 0.0))[1])):
                if excess <= 0:
                    return
                for name in (each.group() for each in files if each["key"] == found["key"]):
                    excess -= sizes.pop(name, (0, 0.0))[0]
                    self.folder.remove(name)

    def trim_in_turn(self, limit: int) -> None:
        """The same, unless a process did it in the last hour: looking at all files takes long where there are many."""
        with contextlib.suppress(OSError, ValueError):
            said = self.folder.read(_TRIMMED)
            if int(said) == limit and 0 <= time.time() - self.folder.stat(_TRIMMED).st_mtime < TRIM_EVERY:
                return
        self.trim(limit)
        with contextlib.suppress(OSError):
            self.folder.write(_TRIMMED, str(limit).encode())

    def _files(self) -> Iterator[re.Match[str]]:
        """All that fxjit wrote, but what is only being written."""
        return filter(None, map(_OURS.fullmatch, self.folder.names()))

    def _sizes(self, names: Iterator[str]) -> dict[str, tuple[int, float]]:
        """Bytes, and when it was last used, of each file that is still there."""
        found = {}
        for name in names:
            with contextlib.suppress(OSError):
                status = self.folder.stat(name)
                found[name] = status.st_size, status.st_mtime
        return found


Cache = KernelCache | MemoryCache
_SEAL_LENGTH = hashlib.sha256().digest_size * 2


def _seal(name: str, content: bytes) -> bytes:
    """The trailer of an entry: text, so that what is before it can be read, and that a loader of libraries passes over."""
    return hashlib.sha256(name.encode() + b"\0" + content).hexdigest().encode()


#: Entries of files that this process loaded (bundle.py), by name: found before those of a cache, which is then not even opened.
_shipped: dict[str, bytes] = {}


def ship(entries: Mapping[str, bytes]) -> None:
    """Makes the entries of a file known to this process."""
    _shipped.update(entries)


def lookup(key: str, suffix: str) -> bytes | None:
    """The content of this entry, from a file that was loaded or from the cache."""
    found = _shipped.get(key + suffix)
    return open_cache().get(key, suffix) if found is None else found


def forget(key: str) -> None:
    """Removes an entry that is not what it should be."""
    for suffix in _ENTRIES:
        _shipped.pop(key + suffix, None)
    open_cache().remove(key)


def get_facts(key: str) -> Any:
    """The facts that `put_facts` kept under this key; None where they are missing or damaged."""
    return shipped_facts(key) if key + FACTS in _shipped else cached_facts(key)


def shipped_facts(key: str) -> Any:
    """The same from the files that were loaded alone."""
    return _facts(key, _shipped.get(key + FACTS))


def cached_facts(key: str) -> Any:
    """The same from the cache alone."""
    return _facts(key, open_cache().get(key, FACTS))


def _facts(key: str, data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError) as problem:
        log.info("%s is not what was written: %s", key, problem)
        forget(key)
        return None


def unshared(keys: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Of these libraries, those that this process alone has, with their content."""
    cache = open_cache()
    alone = cache if isinstance(cache, MemoryCache) else cache.instead
    for key in keys:
        content = None if alone is None else alone.get(key, LIBRARY)
        if content is not None:
            yield key, content


def is_entry(name: object) -> bool:
    """Whether an entry may have this name."""
    found = _OURS.fullmatch(name) if isinstance(name, str) else None
    return found is not None and found["suffix"] in _ENTRIES


def used_entries() -> Iterator[tuple[str, bytes]]:
    """The names and contents of all entries that this process made, found or loaded, as far as they are still there."""
    yield from {**_shipped, **dict(_used_in(open_cache()))}.items()


def _used_in(cache: Cache) -> Iterator[tuple[str, bytes]]:
    alone = cache if isinstance(cache, MemoryCache) else cache.instead
    yield from () if alone is None else alone.known.items()
    if isinstance(cache, KernelCache):
        for key, suffix in sorted(cache.used):
            content = cache.get(key, suffix)
            if content is not None:
                yield key + suffix, content


def put_facts(key: str, facts: Any) -> None:
    open_cache().put(key, FACTS, json.dumps(facts).encode())


def kernels_folder() -> Path:
    """Where entries are; ConfigError where there is no such place."""
    return config.cache_folder() / "kernels"


_opened: dict[tuple[str, bool], Cache] = {}


def open_cache() -> Cache:
    """The folder of the settings; the memory, with a warning once, where that cannot be used safely."""
    try:
        folder = str(kernels_folder())
    except (ConfigError, OSError) as problem:  # OSError: it is relative, and the folder that the program is in is gone
        folder = str(problem)
    key = (folder, config.disk_cache)
    if key not in _opened:
        _opened[key] = _open() if config.disk_cache else MemoryCache()
    return _opened[key]


def _open() -> Cache:
    try:
        cache = KernelCache(kernels_folder())
    except (OSError, ConfigError, ValueError) as problem:  # ValueError: no folder can have such a name
        _warn(str(config.cache_dir) or "the user's cache folder", problem)
        return MemoryCache()
    cache.trim_in_turn(config.cache_size_mb * 2**20)
    return cache


def _warn(folder: str, problem: object) -> None:
    warnings.warn(
        f"fxjit cannot keep compiled kernels in {folder} ({problem}); they are compiled again in each process. "
        "Set fxjit.config.cache_dir or FXJIT_CACHE_DIR to a folder that only you can write to.",
        RuntimeWarning,
        stacklevel=3,
    )


def count(hit: bool) -> None:
    counters["cache"]["hit" if hit else "miss"] += 1

