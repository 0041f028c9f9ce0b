"""Overlap in memory: whether two strided tensors have a byte in common, by their sizes, strides and offsets alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from fxjit.tensor_wrappers import has_storage

#: Cases that NumPy's solver looks at (`numpy.may_share_memory`) before it says that there may be one.
_MOST_WORK: Final = 10_000
#: Where the storage is taken to begin: an address of its own, never read.
_BASE: Final = 1 << 32


class _Place:
    """What NumPy needs to know of memory that it does not read."""

    def __init__(self, x: torch.Tensor, size: list[int], stride: list[int], offset: int) -> None:
        item = x.element_size()
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{item}", "data": (_BASE + offset * item, True),
            "shape": tuple(size), "strides": tuple(each * item for each in stride),
        }  # fmt: skip


def have_common_element(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether an element of one is an element of the other. Symbols are looked at with the sizes at hand, and nothing is asked
    of them; False where these are not known."""
    if not (has_storage(a) and has_storage(b)) or a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    places = [array_in_place_of(each) for each in (a, b)]
    may_share: Any = np.may_share_memory  # whose stub says that all work is -1 or 0
    return all(each is not None for each in places) and bool(may_share(*places, max_work=_MOST_WORK))


def array_in_place_of(x: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """An array that lies in its memory as the tensor does in its storage; nothing may be read of it. None where sizes are not
    known."""
    size, stride, offset = ([_number(each) for each in row] for row in (x.shape, x.stride(), [x.storage_offset()]))
    if None in (*size, *stride, *offset):
        return None
    known: Any = size, stride, offset[0]
    return np.asarray(_Place(x, *known))


def _number(each: int | torch.SymInt) -> int | None:
    return each.node.hint if isinstance(each, torch.SymInt) else each
