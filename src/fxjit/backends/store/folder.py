"""Directories held by their descriptor, which no other user can exchange.

`hold(path)` walks down from the root: each directory on the way, and each symbolic link, has to belong to this user or to root,
and nobody else may write to it (but with the sticky bit, as in /tmp, where what one user made another cannot rename). What is
missing is made for this user alone, whatever the umask is. From then on files are reached through the descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import secrets
import shutil
import stat
import threading
import time
from pathlib import Path

#: Links that one path may go through, as in the kernel.
MOST_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(PermissionError):
    """Another user could change what is found under a path."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPERM, why)

    def __str__(self) -> str:
        return str(self.strerror)


class Folder:
    """A directory, and the files in it by their names; no symbolic link among them is followed."""

    def __init__(self, path: Path, descriptor: int, *, made_again: bool) -> None:
        self.path = path
        #: Whether it is, where somebody removes it.
        self.made_again = made_again
        self._take(descriptor)

    def _take(self, descriptor: int) -> None:
        self._descriptor, found = descriptor, os.fstat(descriptor)
        self._identity = found.st_dev, found.st_ino

    @property
    def descriptor(self) -> int:
        """Of the directory. One that was removed, or whose descriptor the program closed, is held anew."""
        if self._is_held():
            with contextlib.suppress(OSError):
                if os.fstat(self._descriptor).st_nlink:
                    return self._descriptor
            os.close(self._descriptor)
        self._take(_descend(self.path, self.made_again))
        return self._descriptor

    def _is_held(self) -> bool:
        """Whether the descriptor still is the directory's: a daemon closes all it has, and the numbers are given out again."""
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        if self._is_held():
            os.close(self._descriptor)

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)

    def stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def read(self, name: str) -> bytes:
        """The file's content. Untrusted where another user owns it or may write to it."""
        # Without blocking, for what is no file but a pipe.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self.descriptor)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
                raise Untrusted(f"{self.path / name} is not a file that only this user may write to")
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Writes a file that appears under its name only when it is complete."""
        temporary = f"{SCRATCH}{secrets.token_hex(8)}"
        with _beginning:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)
            _unfinished[temporary] = self
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            self.remove(temporary)
            raise
        finally:
            _unfinished.pop(temporary, None)

    def touch(self, name: str) -> None:
        """Notes that the file was used now."""
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=self.descriptor, follow_symlinks=False)

    def remove(self, name: str) -> int:
        """Removes a file, where there is one; how many bytes it had."""
        with contextlib.suppress(OSError):
            size = self.stat(name).st_size
            os.unlink(name, dir_fd=self.descriptor)
            return size
        return 0

    def remove_tree(self, name: str) -> None:
        """Removes a directory with all that is in it, and what somebody puts there meanwhile, who fails once it is gone."""
        for _ in range(_REMOVALS):
            shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)
            if not os.access(name, os.F_OK, dir_fd=self.descriptor, follow_symlinks=False):
                return


#: How often the removal of a directory is begun anew that was not empty at its end.
_REMOVALS = 10
#: How the names of what is only being made begin.
SCRATCH = "fxjit-tmp-"


class Scratch(Folder):
    """A directory for one compile, in another. It is locked until this process ends: `sweep` removes those without a lock."""

    def __init__(self, parent: Folder) -> None:
        self.parent, self.name, self.pid = parent, f"{SCRATCH}{secrets.token_hex(8)}", os.getpid()
        with _beginning:
            os.mkdir(self.name, 0o700, dir_fd=parent.descriptor)
            _unfinished[self.name] = parent
        super().__init__(parent.path / self.name, _open(self.name, parent.descriptor, os.O_RDONLY), made_again=False)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def read(self, name: str) -> bytes:
        """The file's content, whatever mode a compiler gave it: nobody else comes here."""
        os.chmod(name, 0o600, dir_fd=self.descriptor)
        return super().read(name)

    def discard(self) -> None:
        """Removes it; a forked child has no say in it."""
        if self.pid == os.getpid():
            self.parent.remove_tree(self.name)
            _unfinished.pop(self.name, None)
        self.close()


#: What this process is making, by its name: the folder that it is in.
_unfinished: dict[str, Folder] = {}
#: Held where something is begun; a handler of a signal may compile meanwhile.
_beginning = threading.RLock()


def abandon() -> None:
    """Removes what this process, which ends at once, is making, whichever thread does; nothing more is begun."""
    _beginning.acquire()
    for name, folder in list(_unfinished.items()):
        with contextlib.suppress(OSError):
            folder.remove(name)
            folder.remove_tree(name)


def _after_fork() -> None:
    """What is being made is the parent's, and so may be the lock."""
    global _beginning
    _beginning = threading.RLock()
    _unfinished.clear()


os.register_at_fork(after_in_child=_after_fork)


#: Seconds after which nobody makes or writes what is not locked, and what cannot be.
ABANDONED, ABANDONED_WITHOUT_LOCKS = 60.0, 24 * 3600.0


def sweep(folder: Folder) -> None:
    """Removes what processes left in it that were killed."""
    for name in folder.names():
        if name.startswith(SCRATCH):
            with contextlib.suppress(OSError):
                found = folder.stat(name)
                age = time.time() - found.st_mtime
                if found.st_uid != os.geteuid() or age < ABANDONED:
                    continue
                if stat.S_ISDIR(found.st_mode) and _is_unlocked(folder, name, age):
                    folder.remove_tree(name)
                elif stat.S_ISREG(found.st_mode):
                    folder.remove(name)


def _is_unlocked(folder: Folder, name: str, age: float) -> bool:
    descriptor = _open(name, folder.descriptor, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age > ABANDONED_WITHOUT_LOCKS
    finally:
        os.close(descriptor)
    return True


# Finding a way down that can be trusted


def hold(path: Path, *, make: bool = True) -> Folder:
    """The directory of this path. Untrusted where another user could put another in its place; OSError where there is none, or
    none can be made."""
    return Folder(path, _descend(path, make), made_again=make)


def hold_own(path: Path, *, make: bool = True) -> Folder:
    """The same for a directory that only this user is to write to, and that belongs to no other: what others may do there is
    taken from them."""
    folder = Folder(path, _descend(path, make, own=True), made_again=make)
    found = os.fstat(folder.descriptor)
    try:
        if found.st_uid != os.geteuid():
            raise Untrusted(f"it belongs to user {_user(found.st_uid)}")
        if found.st_mode & _OTHERS_WRITE:
            os.fchmod(folder.descriptor, 0o700)
    except BaseException:
        folder.close()
        raise
    return folder


def _descend(path: Path, make: bool, own: bool = False) -> int:
    """An open descriptor of the directory, by a way that was checked; the directory itself is, too, but if it is `own`."""
    way = [*reversed((path if path.is_absolute() else Path(os.getcwd(), path)).parts[1:])]
    current, where, links = _root(), "/", 0
    try:
        _check(current, where)
        while way:
            name = way.pop()
            where = os.path.join(where, name)
            if make:
                _make(name, current)
            target = _link(name, current, where)
            if target is None:
                current = _exchanged(current, _open(name, current))
                if way or not own:
                    _check(current, where)
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            way += reversed([part for part in target.split("/") if part not in ("", ".")])
            where = "/" if target.startswith("/") else os.path.dirname(where)
            if target.startswith("/"):
                current = _exchanged(current, _root())
        return _open(".", current, os.O_RDONLY)
    except OSError as error:
        error.filename = where
        raise
    finally:
        os.close(current)


def _root() -> int:
    return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _exchanged(before: int, after: int) -> int:
    os.close(before)
    return after


def _make(name: str, parent: int) -> None:
    """Makes a directory that is missing; its mode is not left to the umask, which may let everybody write."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another process was faster: it is checked like any other
            os.mkdir(name, 0o700, dir_fd=parent)


def _open(name: str, parent: int, access: int | None = None) -> int:
    how = os.O_PATH if access is None else access
    return os.open(name, how | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _link(name: str, parent: int, where: str) -> str | None:
    """Where a symbolic link leads; None for what is none."""
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        return None
    if found.st_uid not in _trusted():
        raise Untrusted(f"the link {where} belongs to user {_user(found.st_uid)}")
    return os.readlink(name, dir_fd=parent)


def _check(descriptor: int, where: str) -> None:
    found = os.fstat(descriptor)
    if found.st_uid not in _trusted():
        raise Untrusted(f"{where} belongs to user {_user(found.st_uid)}")
    if found.st_mode & stat.S_ISVTX:
        return  # others may add to it, and change nothing that is there
    if found.st_mode & stat.S_IWOTH:
        raise Untrusted(f"every user may write to {where} (chmod o-w would change that)")
    if found.st_mode & stat.S_IWGRP and not (_is_private(found.st_gid) and not _has_list(descriptor)):
        raise Untrusted(f"other users may write to {where} (chmod g-w would change that)")


def _trusted() -> tuple[int, ...]:
    return 0, os.geteuid()


def _is_private(group: int) -> bool:
    """Root's group, or the one that many systems make for each user alone, under the user's name."""
    if group == 0:
        return True
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return (found.gr_name, found.gr_gid) == (user.pw_name, user.pw_gid) and set(found.gr_mem) <= {user.pw_name}


def _has_list(descriptor: int) -> bool:
    """Whether an access control list says who may write; the bits of the group then mean all who are on it."""
    with contextlib.suppress(OSError):
        return "system.posix_acl_access" in os.listxattr(f"/proc/self/fd/{descriptor}")
    return False


def _user(number: int) -> str:
    try:
        return f"{number} ({pwd.getpwuid(number).pw_name})"
    except KeyError:
        return str(number)
