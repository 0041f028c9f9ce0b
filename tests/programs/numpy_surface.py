"""Every public function of NumPy, method of arrays and method of ufuncs, with simple arguments: what there is to capture.

`cases()` finds the arguments mechanically: the first ones of CANDIDATES that NumPy itself takes without an error."""

from __future__ import annotations

import copy
import itertools
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

#: No functions of arrays: files, text, types, the state of the process, how arrays are printed, foreign memory.
NOT_OF_ARRAYS = frozenset("""
    add_docstring add_newdoc apply_over_axes array2string array_repr array_str asarray_chkfinite asmatrix base_repr
    binary_repr bmat broadcast busday_count busday_offset busdaycalendar byte_bounds can_cast cast chararray common_type
    datetime_as_string datetime_data deprecate disp dtype einsum_path errstate finfo flatiter format_float_positional
    format_float_scientific format_parser from_dlpack frombuffer fromfile fromfunction fromiter frompyfunc fromregex
    fromstring genfromtxt get_array_wrap get_include get_printoptions getbufsize geterr geterrcall iinfo
    include_in_names info is_busday isdtype isfortran issctype issubclass_ issubdtype iterable load loadtxt lookfor mat
    matrix maximum_sctype may_share_memory memmap min_scalar_type mintypecode ndarray ndenumerate ndindex nditer
    nested_iters obj2sctype piecewise poly1d printoptions promote_types putmask rec recarray recfromcsv recfromtxt
    record require result_type safe_eval save savetxt savez savez_compressed sctype2char set_printoptions setbufsize
    seterr seterrcall shares_memory show_config show_runtime source test typename vectorize who
""".split())  # fmt: skip
NOT_METHODS = frozenset("""
    dump dumps tofile tobytes tostring view byteswap newbyteorder setflags getfield setfield item itemset tolist resize
    to_device
""".split())  # fmt: skip


def matrix() -> np.ndarray:
    return (np.random.default_rng(0).random((3, 3)) + 0.5).astype(np.float32)


def vector() -> np.ndarray:
    return np.array([0.5, -1.5, 2.25, 0.75, -0.25])


def rising() -> np.ndarray:
    return np.array([0.5, 1.5, 2.25, 3.75, 4.5])


def whole() -> np.ndarray:
    return np.array([3, 1, 2, 0, 1])


def masks() -> np.ndarray:
    return np.array([True, False, True, True, False])


def fraction() -> np.ndarray:
    return np.array([0.5, 0.25, 0.75])


def times_identity(row: np.ndarray) -> np.ndarray:
    return row * 2


CANDIDATES: dict[str, tuple[Any, ...]] = {
    "matrix": (matrix,), "vector": (vector,), "whole": (whole,), "fraction": (fraction,), "masks": (masks,),
    "matrix, 1": (matrix, 1), "vector, 2": (vector, 2), "vector, 30": (vector, 30), "matrix, 0, 1": (matrix, 0, 1),
    "5": (5,), "3, 3": (3, 3), "(2, 3)": ((2, 3),), "(2, 3), 2.0": ((2, 3), 2.0), "0.0, 1.0": (0.0, 1.0),
    "matrix, (9,)": (matrix, (9,)), "whole, (2, 2)": (whole, (2, 2)), "vector, (1, 1)": (vector, (1, 1)),
    "(matrix, matrix)": ((matrix, matrix),), "matrix, matrix": (matrix, matrix), "vector, vector": (vector, vector),
    "whole, whole": (whole, whole), "vector, rising, vector": (vector, rising, vector), "vector, rising": (vector, rising),
    "masks, masks": (masks, masks), "matrix, int32": (matrix, np.int32), "vector, whole": (vector, whole),
    "masks, vector": (masks, vector), "vector, masks": (vector, masks), "vector, masks, 0.0": (vector, masks, 0.0),
    "matrix, 1, 2": (matrix, 1, 2), "[masks], [vector]": ([masks], [vector]), "bytes": (lambda: np.array([3, 1], np.uint8),),
    "times_identity, 0, matrix": (times_identity, 0, matrix), "indices, (6, 6)": ((whole, whole), (6, 6)),
    "chosen, [vector, vector]": (lambda: whole() % 2, [vector, vector]), "'ij,jk', matrix, matrix": ("ij,jk", matrix, matrix),
    "matrix, [0], [1]": (matrix, [0], [1]), "vector, 1, 2.0": (vector, 1, 2.0), "3, 1": (3, 1),
    "cube": (lambda: np.arange(16.0).reshape(2, 2, 2, 2),), "cube, 2": (lambda: np.arange(16.0).reshape(2, 2, 2, 2), 2),
    "matrix, columns, matrix, 1": (matrix, lambda: np.array([[0], [2], [1]]), lambda: matrix()[:, :1], 1),
    "matrix, columns, 1": (matrix, lambda: np.array([[0], [2], [1]]), 1), "symmetric": (lambda: matrix() @ matrix().T,),
    "whole, whole, whole": (whole, whole, whole), "3, triu": (3, np.triu), "3, tril, 1": (3, np.tril, 1),
    "dates": (lambda: np.array(["2020-01-01"], "datetime64[D]"),),
}  # fmt: skip
#: Of these one more way to call than the mechanical one.
MORE: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    name: [((matrix,), {"axis": 0}), ((matrix,), {"axis": 1, "keepdims": True})]
    for name in """sum prod mean std var max min amax amin any all nansum nanprod nanmean nanstd nanvar nanmax nanmin median
                   argmax argmin nanargmax nanargmin nanmedian ptp count_nonzero average quantile percentile""".split()
}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft)):
        for name in sorted(dir(module)):
            fn = getattr(module, name, None)
            if name.startswith("_") or name in NOT_OF_ARRAYS or isinstance(fn, (type, types.ModuleType)) or not callable(fn):
                continue
            yield prefix + name, fn
    for name in ("add", "multiply", "maximum", "logical_and", "bitwise_or", "subtract", "hypot"):
        fn = getattr(np, name)
        for method in ("reduce", "accumulate", "outer", "at", "reduceat"):
            yield f"{name}.{method}", ufunc_method(name, method)
    for name in sorted(dir(np.ndarray)):
        if callable(getattr(np.ndarray, name)) and not name.startswith("_") and name not in NOT_METHODS:
            yield f"ndarray.{name}", array_method(name)


def ufunc_method(name: str, method: str) -> Callable[..., Any]:
    fn = getattr(np, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(fn, method)(*args, **kwargs)

    return call


def array_method(name: str) -> Callable[..., Any]:
    def call(array: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(array, name)(*args, **kwargs)

    return call


def made(value: Any) -> Any:
    """The arguments of one call, made anew."""
    if value is times_identity or getattr(value, "__module__", None) == "numpy":
        return value
    if callable(value):
        return value()
    if isinstance(value, (list, tuple)):
        return type(value)(map(made, value))
    return copy.copy(value)


def accepts(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            fn(*made(args), **kwargs)
        except Exception:
            return False
    return True


def cases(only: Callable[[str], bool] = bool) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Name, function, makers of arguments, named arguments."""
    for name, fn in functions():
        if not only(name):
            continue
        fits = ((args, {}) for args in CANDIDATES.values() if accepts(fn, args, {}))
        more = (each for each in MORE.get(name, ()) if accepts(fn, *each))
        for args, kwargs in itertools.chain(itertools.islice(fits, 1), more):
            yield name, fn, args, kwargs
