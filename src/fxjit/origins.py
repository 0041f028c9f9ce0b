"""Whose code a file has: torch's, fxjit's, the standard library's, an installed package's, or the program's.

Packages are found by the folders that Python's installers use (PEP 370, the `sysconfig` and `site` modules; Debian calls its
own `dist-packages`). In a virtual environment those of the Python it was made from count, too: they lie inside of the folder of
the standard library.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Whose(Enum):
    IMPORT_SYSTEM = "the import system"
    GENERATED = "code without a file"
    TORCH = "torch"
    FXJIT = "fxjit"
    PACKAGE = "an installed package"
    STANDARD_LIBRARY = "the standard library"
    PROGRAM = "the program"


@dataclass(frozen=True, slots=True)
class Origin:
    """`inner` is the file's path from the folder of torch, fxjit, the packages or the standard library, with `/`; else its name
    as given."""

    whose: Whose
    inner: str

    def package(self) -> str:
        """The first name of the path: of a package of modules, or of a module by itself."""
        return self.inner.partition("/")[0].removesuffix(".py")


def origin_of(filename: str) -> Origin:
    """By the name that a code object has for its file (`co_filename`)."""
    return _origin(filename, _torch_folder())


def is_library(filename: str) -> bool:
    """A file of torch, of fxjit or of the standard library."""
    return origin_of(filename).whose in (Whose.TORCH, Whose.FXJIT, Whose.STANDARD_LIBRARY)


def is_installed(filename: str) -> bool:
    """A file that is no part of the program: a library's, or a package's that is installed."""
    return origin_of(filename).whose not in (Whose.PROGRAM, Whose.GENERATED)


@functools.lru_cache(maxsize=4096)
def _origin(filename: str, torch_folder: str) -> Origin:
    if filename.startswith("<"):
        return Origin(Whose.IMPORT_SYSTEM if filename.startswith("<frozen ") else Whose.GENERATED, filename)
    path = _slashed(os.path.normpath(filename))
    if torch_folder and path.startswith(torch_folder):
        return Origin(Whose.TORCH, path.removeprefix(torch_folder))
    if path.startswith(_OWN_FOLDER):
        inner = path.removeprefix(_OWN_FOLDER)
        return Origin(Whose.PROGRAM if inner == _DEMO else Whose.FXJIT, inner)
    for folder in _PACKAGE_FOLDERS:
        if path.startswith(folder):
            return Origin(Whose.PACKAGE, path.removeprefix(folder))
    for name in _NAMES_OF_PACKAGE_FOLDERS:
        _, found, inner = path.rpartition(name)
        if found:
            return Origin(Whose.PACKAGE, inner)
    for folder in _STANDARD_FOLDERS:
        if path.startswith(folder):
            inner = path.removeprefix(folder)
            # CPython's own tests are programs, not a library of theirs.
            return Origin(Whose.PROGRAM if inner.startswith("test/") else Whose.STANDARD_LIBRARY, inner)
    return Origin(Whose.PROGRAM, filename)


def _slashed(path: str) -> str:
    return path.replace("\\", "/")


def _folder(path: str) -> str:
    return _slashed(path).rstrip("/") + "/"


def _torch_folder() -> str:
    """Empty before the program has imported torch."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return _folder_of(file) if file else ""


@functools.cache
def _folder_of(file: str) -> str:
    return _folder(os.path.dirname(os.path.normpath(file)))


_OWN_FOLDER: Final = _folder_of(os.path.abspath(__file__))
_DEMO: Final = "demo.py"  # its models stand for a user's
_PATHS: Final = sysconfig.get_paths()
_PACKAGE_FOLDERS: Final = tuple({_folder(_PATHS[name]) for name in ("purelib", "platlib")})
_NAMES_OF_PACKAGE_FOLDERS: Final = ("/site-packages/", "/dist-packages/")
# Inside a virtual environment the library is the base installation's, perhaps through a link.
_STANDARD_FOLDERS: Final = tuple(
    {_folder(path) for name in ("stdlib", "platstdlib") for path in (_PATHS[name], os.path.realpath(_PATHS[name]))}
    | {_folder_of(os.__file__), _folder_of(os.path.realpath(os.__file__))}
)
