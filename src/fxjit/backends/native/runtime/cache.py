"""Compiled libraries on the disk, for this process and the next ones.

A library's name is a hash of everything it was made from (source, command, compiler, processor), so an entry is never
changed, only added or removed. Beside `<key>.so` stands `<key>.sum`, the hash of the library's bytes: an entry without a
matching one (a write cut short, someone else's file) counts as absent. Nothing is loaded from a folder that another
user owns or may write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
import warnings
from pathlib import Path

from fxjit import config, logs
from fxjit.counters import counters

log = logs.artifact("cache")
# What is kept beside libraries: kernels for a GPU, and which block sizes were fastest.
KEPT = (".cubin", ".json")
# After so many seconds nobody writes to a temporary file any more.
ABANDONED = 24 * 3600.0


class KernelCache:
    """A folder of libraries. `get` and `put` never raise because of the disk: a cache that cannot be used is only slower."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Path | None:
        """The library of this key, if it is there whole."""
        library, checksum = self.folder / f"{key}.so", self.folder / f"{key}.sum"
        try:
            data, expected = library.read_bytes(), checksum.read_text()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != expected or not owned(library):
            log.info("%s is damaged or not ours; it is made again", library)
            self.remove(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(library)  # the clock that `trim` goes by
        return library

    def put(self, key: str, built: Path, source: str) -> None:
        """Moves a library that was built in this folder (`scratch`) to its name."""
        library = self.folder / f"{key}.so"
        try:
            checksum = hashlib.sha256(built.read_bytes()).hexdigest()
            write_whole(self.folder / f"{key}.cpp", source)
            os.replace(built, library)
            write_whole(self.folder / f"{key}.sum", checksum)
        except OSError as error:
            log.warning("the compiled kernel could not be kept in %s: %s", self.folder, error)
            with contextlib.suppress(OSError):
                built.unlink(missing_ok=True)

    def get_data(self, key: str, suffix: str) -> bytes | None:
        """What `put_data` kept under this key, if it is there whole."""
        path = self.folder / f"{key}{suffix}"
        try:
            data, expected = path.read_bytes(), (self.folder / f"{key}.sum").read_text()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != expected or not owned(path):
            log.info("%s is damaged or not ours; it is made again", path)
            self.remove(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put_data(self, key: str, suffix: str, data: bytes) -> None:
        """Keeps the bytes; where the disk does not, they are made again another time."""
        try:
            write_whole(self.folder / f"{key}{suffix}", data)
            write_whole(self.folder / f"{key}.sum", hashlib.sha256(data).hexdigest())
        except OSError as error:
            log.warning("%s could not be kept in %s: %s", f"{key}{suffix}", self.folder, error)

    def remove(self, key: str) -> int:
        """Removes all files of an entry; how many bytes they had."""
        freed = 0
        for suffix in (".so", ".sum", ".cpp", *KEPT):
            path = self.folder / f"{key}{suffix}"
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                path.unlink()
                freed += size
        return freed

    def scratch(self, suffix: str) -> Path:
        """A new file in the folder, for a compiler to write to."""
        handle, name = tempfile.mkstemp(suffix=suffix, prefix="tmp-", dir=self.folder)
        os.close(handle)
        return Path(name)

    def size(self) -> int:
        """Bytes in use."""
        total = 0
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def entries(self) -> int:
        return len(self.kept())

    def kept(self) -> list[Path]:
        """The libraries and their like, without those that are being written."""
        return [path for path in self.folder.iterdir() if path.suffix in (".so", *KEPT) and not path.name.startswith("tmp-")]

    def clear(self) -> None:
        for path in list(self.folder.iterdir()):
            with contextlib.suppress(OSError):
                path.unlink()

    def trim(self, limit: int) -> None:
        """Removes the libraries used longest ago until the folder is below `limit` bytes, and what killed processes left."""
        for path in self.folder.glob("tmp-*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED:
                    path.unlink()
        try:
            libraries = sorted(self.kept(), key=lambda path: path.stat().st_mtime)
            excess = self.size() - limit
        except OSError:
            return
        for library in libraries:
            if excess <= 0:
                return
            excess -= self.remove(library.stem)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file that appears under its name only when it is complete."""
    handle, name = tempfile.mkstemp(prefix="tmp-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def owned(path: Path) -> bool:
    """Ours, and nobody else may write to it."""
    found = path.lstat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(found.st_mode)


def default_folder() -> Path:
    base = config.environment("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(config.cache_dir or os.path.join(base, "fxjit")) / "kernels"


_opened: dict[tuple[str, bool], KernelCache] = {}
_temporary: list[tempfile.TemporaryDirectory[str]] = []


def open_cache() -> KernelCache:
    """The folder of the settings; one for this process alone, with a warning once, where that cannot be used safely."""
    folder = default_folder()
    key = (str(folder), config.disk_cache)
    if key not in _opened:
        _opened[key] = KernelCache(usable(folder) if config.disk_cache else temporary())
        with contextlib.suppress(OSError):
            _opened[key].trim(config.cache_size_mb * 2**20)
    return _opened[key]


def usable(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"it belongs to user {folder.stat().st_uid}")
        if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            os.chmod(folder, 0o700)
        handle, name = tempfile.mkstemp(prefix="tmp-", dir=folder)
        os.close(handle)
        os.unlink(name)
        return folder
    except OSError as error:
        return instead_of(folder, error)


def instead_of(folder: Path, problem: object) -> Path:
    warnings.warn(
        f"fxjit cannot keep compiled kernels in {folder} ({problem}); they are compiled again in each process. "
        "Set fxjit.config.cache_dir or FXJIT_CACHE_DIR to a folder you can write to.",
        RuntimeWarning,
        stacklevel=3,
    )
    return temporary()


def refuge(cache: KernelCache, problem: object) -> KernelCache | None:
    """From now on the cache in the place of one whose disk takes nothing more; None for one in a temporary folder."""
    if any(str(cache.folder) == each.name for each in _temporary):
        return None
    found = KernelCache(instead_of(cache.folder, problem))
    for key, opened in _opened.items():
        if opened is cache:
            _opened[key] = found
    return found


def temporary() -> Path:
    made = tempfile.TemporaryDirectory(prefix="fxjit-")
    _temporary.append(made)
    return Path(made.name)


def count(hit: bool) -> None:
    counters["cache"]["hit" if hit else "miss"] += 1
