"""Functions of NumPy that call the program's functions, in plain Python over others of NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from fxjit.frontend.values.calls import polyfill


@polyfill(np.apply_along_axis)
def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    arr = np.asanyarray(arr)
    if not -arr.ndim <= axis < arr.ndim:
        raise np.exceptions.AxisError(axis, arr.ndim)
    axis %= arr.ndim
    moved = np.moveaxis(arr, axis, -1)
    around = moved.shape[:-1]
    if 0 in around:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    rows = [np.asanyarray(func1d(moved[index], *args, **kwargs)) for index in itertools.product(*map(range, around))]
    shape = rows[0].shape
    made = np.stack([row.astype(rows[0].dtype) for row in rows]).reshape(around + shape)
    here = tuple(range(len(around), made.ndim))
    return np.moveaxis(made, here, tuple(range(axis, axis + len(here))))
