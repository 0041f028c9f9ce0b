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


#: Functions that mask by the places of elements, and what gives the places.
_BY_PLACE = {np.triu: np.triu_indices, np.tril: np.tril_indices}


@polyfill(np.mask_indices)
def mask_indices(n: int, mask_func: Callable[..., Any], k: Any = 0) -> Any:
    if mask_func in _BY_PLACE:  # how many there are follows from the numbers
        places = np.stack(_BY_PLACE[mask_func](n, k), axis=1)
        return places[:, 0], places[:, 1]
    return np.nonzero(mask_func(np.ones((n, n), int), k) != 0)
