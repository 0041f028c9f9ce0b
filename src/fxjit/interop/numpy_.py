"""NumPy code between tensors: `wrap_numpy`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_map_only

from fxjit.errors import InvalidArgument, displayed
from fxjit.skips import marks


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which works on arrays, as a function that takes and gives tensors; arrays share the tensors' memory. Compiled in
    one graph it can be differentiated."""
    if not callable(fn):
        raise InvalidArgument(f"wrap_numpy: expected something callable, not {displayed(fn)}.")

    def with_tensors(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, _to_array, (args, kwargs))
        return tree_map_only((numpy.ndarray, numpy.generic), torch.as_tensor, fn(*args, **kwargs))

    marks.set_code_traced(with_tensors.__code__)
    return functools.wraps(fn)(with_tensors)


def _to_array(tensor: torch.Tensor) -> Any:
    return tensor.numpy(force=tensor.requires_grad or tensor.device.type != "cpu")


marks.set_code_makes_arrays(_to_array.__code__)
