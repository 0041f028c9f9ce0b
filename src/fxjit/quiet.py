"""Calls of ATen whose warnings are none of the program's: stand-ins for the program's tensors are what they warn of.

Within a call of torch from Python, ATen's warnings are kept until the outermost such call ends, where no filter of the call
inside holds any more. A call of an autograd function keeps and gives its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def quietly(call: Callable[[], T]) -> T:
    """What `call`, which records no gradients, gives or raises, without its warnings."""
    found: list[T] = []
    with warnings.catch_warnings(action="ignore"):
        super(torch.autograd.Function, _Kept).apply(lambda: found.append(call()))  # type: ignore[misc]  # past functorch's
    return found[0]


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[[], object]) -> None:
        run()
