"""Methods of tensors that tracing itself asks, and torch's fake tensors with it: while a program has functions of its own in
their place, nothing can be traced."""

from __future__ import annotations

from typing import Final

import torch

_ASKED: Final = ("size", "stride", "dim", "shape", "is_contiguous", "storage_offset", "__setattr__", "__getattribute__",
                 "__getattr__")


def _found(name: str) -> object:
    return next((vars(cls)[name] for cls in torch.Tensor.__mro__ if name in vars(cls)), None)


_TORCHS: Final = {name: _found(name) for name in _ASKED}


def replaced_method() -> str | None:
    """One of them that is not torch's own now."""
    return next((name for name, torchs in _TORCHS.items() if _found(name) is not torchs), None)
