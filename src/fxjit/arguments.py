"""Checks of arguments that public functions share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from .errors import InvalidArgument, displayed


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_nn_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def described(value: Any) -> str:
    """A value in an error about an argument."""
    text = displayed(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


#: Bytes, on Linux.
_LONGEST_PATH = 4095


def file_of(function: str, path: Any) -> Path:
    """The path that a public function was given."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(named := os.fspath(path), bytes):
        raise InvalidArgument(f"{function}: path is the name of a file, not {displayed(path)}.")
    try:
        if "\0" not in named and 0 < len(os.fsencode(named)) <= _LONGEST_PATH:
            return Path(named)
    except UnicodeEncodeError:
        pass
    raise InvalidArgument(f"{function}: no file can have the name {displayed(named)}.")
