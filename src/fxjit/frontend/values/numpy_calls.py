"""One call of NumPy as one node of the graph, which runs its counterpart of torch._numpy on the arrays' tensors.

numpy_.py looks up every operation on arrays that it traces. Whether the counterpart may stand in for NumPy is seen, not
assumed: while tracing, both are called on stand-ins of the very shapes and types. They must agree in types, shapes,
numbers and in which results share memory with which arguments, or the graph breaks; and NumPy's own answer says what the
results are (an array, or a scalar such as `np.float32`, which torch._numpy does not have).
"""

from __future__ import annotations

import functools
import operator
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.fx

from fxjit import config
from fxjit.errors import BreakGraph
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.concrete import concrete
from fxjit.frontend.values.extension import ExtensionPoint
from fxjit.frontend.values.numpy_agreement import (
    COPY,
    NUMBERS,
    SHARED,
    VIEW,
    Agreement,
    Differs,
    Operation,
    agreed,
    filled,
    hints,
    in_graph,
    taken,
    tnp,
)
from fxjit.frontend.values.numpy_contexts import settings_now
from fxjit.frontend.values.numpy_operator import NumPyCall, Slot, node_target
from fxjit.frontend.values.numpy_recording import recorded
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor_methods import known_item
from fxjit.skips.modules import FUNCTION_RULES, longest_prefix

FUNCTION_TYPES: Final = (np.ufunc, type(np.prod))
#: Functions whose results are Python objects that follow from shapes and types alone.
_OF_METADATA: Final = frozenset({"ndim", "shape", "size", "result_type", "can_cast", "isscalar", "iscomplexobj", "isrealobj",
                                 "min_scalar_type", "broadcast_shapes", "issubdtype", "common_type"})
#: Functions, and methods of arrays, whose result's shape and type follow from shapes and types of the arrays: of C, and of
#: Python that looks at the data for something else.
_SIZED: Final = frozenset({
    "all", "amax", "amin", "any", "argmax", "argmin", "argpartition", "array", "asanyarray", "asarray", "asfortranarray",
    "block", "choose", "concatenate", "convolve", "copyto", "corrcoef", "correlate", "cov", "cumprod", "cumsum",
    "digitize", "dot", "ediff1d", "fill_diagonal", "full_like", "geomspace", "gradient", "histogram", "histogram2d",
    "histogramdd", "inner", "interp", "interp_complex", "lexsort", "linspace", "logspace", "matrix_rank", "max", "mean",
    "median", "min", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin",
    "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "packbits", "pad", "partition", "percentile",
    "place", "polyfit", "prod", "put", "put_along_axis", "putmask", "quantile", "ravel_multi_index", "roll", "std", "sum",
    "take_along_axis", "tensordot", "trapezoid", "unpackbits", "unravel_index", "unwrap", "var", "vdot",
    "ndarray.argpartition", "ndarray.argsort", "ndarray.astype", "ndarray.choose", "ndarray.clip", "ndarray.copy",
    "ndarray.cumprod", "ndarray.cumsum", "ndarray.dot", "ndarray.fill", "ndarray.flatten", "ndarray.max", "ndarray.mean",
    "ndarray.min", "ndarray.partition", "ndarray.prod", "ndarray.put", "ndarray.round", "ndarray.searchsorted",
    "ndarray.sort", "ndarray.std", "ndarray.sum", "ndarray.take", "ndarray.trace", "ndarray.var",
})  # fmt: skip
#: Those of which this is true if only the first argument is an array.
_SIZED_BY_NUMBERS: Final = frozenset({
    "delete", "insert", "ravel", "repeat", "reshape", "resize", "tile", "ndarray.ravel", "ndarray.repeat",
    "ndarray.reshape",
})  # fmt: skip
#: Functions of `linalg` and `fft` of which it is not true.
_NOT_SIZED: Final = frozenset({"linalg.lstsq"})
#: Functions that are free to choose the signs or the order of what they find, and torch chooses otherwise.
_FREE: Final = frozenset({"linalg.eig", "linalg.eigh", "linalg.eigvals", "linalg.svd"})


ResultOf = Callable[[Tracer, Value, Any], Value]
#: The arguments of a node, and by their nodes the arrays among them.
_Node = tuple[list[Any], dict[str, Any], dict[Any, Any]]


# -- which counterpart ---------------------------------------------------------------------------------------------


def plain_functions() -> Iterator[Any]:
    """NumPy's functions that are no objects of its own types: C builtins and Python functions with a counterpart, and what
    NumPy's Python functions call."""
    yield from (np.asanyarray, np.asfortranarray)
    if hasattr(np.lib, "array_utils"):  # from NumPy 2 on
        yield np.lib.array_utils.normalize_axis_index
    for own, theirs in ((np, tnp), (np.linalg, tnp.linalg), (np.fft, tnp.fft)):
        for name in dir(theirs):
            fn = getattr(own, name, None)
            if isinstance(fn, (types.FunctionType, types.BuiltinFunctionType)) and callable(getattr(theirs, name)):
                yield fn


@functools.cache
def function(fn: Any) -> Operation:
    """The operation of a function of NumPy, or of a method of a ufunc."""
    module = (getattr(fn, "__module__", None) or "numpy").removeprefix("numpy").strip(".")
    if isinstance(getattr(fn, "__self__", None), np.ufunc):
        return Operation(f"{fn.__self__.__name__}.{fn.__name__}", fn, _of_ufunc(fn.__self__, fn.__name__), sized=True)
    own, theirs = (getattr(np, module), getattr(tnp, module)) if module and hasattr(tnp, module) else (np, tnp)
    name = fn.__name__
    found = getattr(theirs, name, None) if getattr(own, name, None) is fn else None
    full = f"{module}.{name}" if own is not np else name
    sized = isinstance(fn, np.ufunc) or full in _SIZED or (own is not np and full not in _NOT_SIZED)
    return Operation(full, fn, found if callable(found) else _OTHER_NAMES.get(name), sized)


#: Functions that are others of torch._numpy, for arrays.
_OTHER_NAMES: Final[dict[str, Callable[..., Any]]] = {
    "asanyarray": tnp.asarray, "max": tnp.amax, "min": tnp.amin,
    "common_type": lambda *arrays: np.common_type(*[np.empty(0, each.dtype.name) for each in arrays]),
}
#: Methods of ufuncs that are functions.
_REDUCTIONS: Final = {"add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin", "logical_and": "all",
                      "logical_or": "any"}
_ACCUMULATIONS: Final = {"add": "cumsum", "multiply": "cumprod"}


def _of_ufunc(fn: np.ufunc, method: str) -> Callable[..., Any] | None:
    """The counterpart of a method of a ufunc."""
    name = str(fn.__name__)
    if method == "outer" and hasattr(tnp, name):
        def outer(a: Any, b: Any) -> Any:
            a, b = tnp.asarray(a), tnp.asarray(b)
            return getattr(tnp, name)(a.reshape(a.shape + (1,) * b.ndim), b)

        return outer
    function_name = {"reduce": _REDUCTIONS, "accumulate": _ACCUMULATIONS}.get(method, {}).get(name)
    if function_name is None:
        return None

    def along_axis(array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        if method == "accumulate":
            return getattr(tnp, function_name)(array, axis, dtype, out)
        named = {"keepdims": keepdims} if name not in ("add", "multiply") else {"keepdims": keepdims, "dtype": dtype}
        return getattr(tnp, function_name)(array, axis=axis, out=out, **named)

    return along_axis


@functools.cache
def method(name: str) -> Operation:
    """The operation of a method of arrays."""
    def call(array: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(array, name)(*args, **kwargs)

    full = f"ndarray.{name}"
    return Operation(full, call, call if callable(getattr(tnp.ndarray, name, None)) else None, full in _SIZED)


def _flat_item(array: Any, key: Any) -> Any:
    return array.flat[key] if isinstance(array, (np.ndarray, np.generic)) else array.ravel()[key].copy()


def _set_flat_item(array: Any, key: Any, value: Any) -> None:
    array.flat[key] = value


#: `array.flat[key]`, and `array.flat[key] = value`.
FLAT_ITEM: Final = Operation("ndarray.flat", _flat_item, _flat_item)
SET_FLAT_ITEM: Final = Operation("ndarray.flat", _set_flat_item, None, sized=True)


@functools.cache
def attribute(name: str) -> Operation:
    """The operation of reading an attribute that is an array."""
    def read(array: Any) -> Any:
        return getattr(array, name)

    return Operation(f"ndarray.{name}", read, read)


@functools.cache
def operation(fn: Callable[..., Any]) -> Operation:
    """The operation of one of Python's operators."""
    counterpart = _COUNTERPARTS.get(fn, fn)
    return Operation(fn.__name__, fn, counterpart, fn is not operator.getitem)


def _item(array: Any, key: Any) -> Any:
    """`array[key]`: a slice that steps backwards is one that steps forward of the dimension turned round."""
    parts = key if isinstance(key, tuple) else (key,)
    kinds = {type(part) for part in parts}
    if torch.SymInt in kinds and kinds <= {int, slice, torch.SymInt}:
        array, parts = _selected(array, parts)
        if not (key := parts):
            return array
    backwards = [isinstance(part, slice) and part.step is not None and part.step < 0 for part in parts]
    if not any(backwards):
        return array[key]
    taken_by = [0 if part is None else np.ndim(part) if _is_mask(part) else 1 for part in parts]
    rest = array.ndim - sum(count for count, part in zip(taken_by, parts, strict=True) if part is not Ellipsis)
    found, turned, axis = [], [], 0
    for part, count, turn in zip(parts, taken_by, backwards, strict=True):
        if turn:
            turned.append(axis)
            part = _turned(part, array.shape[axis])
        found.append(part)
        axis += rest if part is Ellipsis else count
    return tnp.flip(array, tuple(turned))[tuple(found)]


def _power(base: Any, exponent: Any) -> Any:
    """`base ** exponent`: complex numbers are multiplied for a whole exponent, as NumPy does; torch takes
    the way by logarithms for a tensor as the exponent, which is a hundred times as slow."""
    if isinstance(exponent, int) and not isinstance(exponent, bool) and isinstance(base, tnp.ndarray):
        if base.tensor.is_complex():
            return tnp.ndarray(torch.pow(base.tensor, exponent))
    return operator.pow(base, exponent)


def _ordered(fn: Callable[..., Any], strictly: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison that orders: complex numbers go by their real parts and, where these are equal, by their imaginary ones.
    torch does not order them. Of NaN as an imaginary part nothing is greater or less."""
    def compare(a: Any, b: Any) -> Any:
        given = [each.tensor if isinstance(each, tnp.ndarray) else each for each in (a, b)]
        if not any(isinstance(each, torch.Tensor) and each.is_complex() for each in given) or not all(map(_has_parts, given)):
            return fn(a, b)
        (re, im), (other_re, other_im) = map(_parts, given)
        decided = strictly(re, other_re)
        for part in (im, other_im):
            if isinstance(part, torch.Tensor):
                decided = decided & ~torch.isnan(part)
        return tnp.ndarray(decided | ((re == other_re) & fn(im, other_im)))

    return compare


def _has_parts(value: Any) -> bool:
    """Whether comparing its parts comes to what comparing complex numbers does: not so for whole numbers in arrays, which torch
    would round to the type of a part."""
    if isinstance(value, torch.Tensor):
        return value.is_complex() or value.is_floating_point()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parts(value: Any) -> tuple[Any, Any]:
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.real, value.imag
    return value, 0


#: What is called in the place of one of Python's operators.
_COUNTERPARTS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    operator.getitem: _item, operator.pow: _power,
    operator.lt: _ordered(operator.lt, operator.lt), operator.le: _ordered(operator.le, operator.lt),
    operator.gt: _ordered(operator.gt, operator.gt), operator.ge: _ordered(operator.ge, operator.gt),
}  # fmt: skip


def _selected(array: Any, parts: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The array at the numbers among the parts of a key, and the other parts: an index of torch would fix a symbol."""
    tensor, rest = array.tensor, []
    for part in parts:
        if isinstance(part, slice):
            rest.append(part)
        else:
            tensor = tensor.select(len(rest), part)
    return tnp.ndarray(tensor), tuple(rest)


def _is_mask(part: Any) -> bool:
    return isinstance(part, bool) or getattr(part, "dtype", None) in (np.dtype(bool), torch.bool, tnp.dtype("bool"))


def _turned(part: slice, size: Any) -> slice:
    """What a slice that steps backwards takes of a dimension, of the dimension turned round."""
    if part.start is None and part.stop is None:
        return slice(None, None, -part.step)
    start, stop, step = part.indices(size)
    return slice(size - 1 - start, size - 1 - stop, -step)


# -- the call ------------------------------------------------------------------------------------------------------


#: The value of a view that the graph has as a copy (numpy_.py).
view_of: Final[ExtensionPoint[[Tracer, ViewRecipe, Value, Any], Value]] = ExtensionPoint("view_of")


def call(t: Tracer, what: Operation, args: Sequence[Value], kwargs: Mapping[str, Value], result_of: ResultOf) -> Value:
    """`what(*args, **kwargs)`; `result_of(t, tensor, example)` makes the value of each array or scalar in the result.

    A node of the counterpart in torch._numpy, where it does what NumPy does; else NumPy's own Python function is traced;
    else NumPy itself is the node (numpy_operator.py)."""
    if not config.trace_numpy:
        t.break_("numpy-function", function=f"numpy.{what.name}")
    node = node_args, node_kwargs, arrays = _node_arguments(t, args, kwargs)
    for array in arrays.values():
        _refuse_sizes_of_data(t, what.name, array.tensor)
    refused = agreement = None
    if what.target is not None:
        try:
            agreement = agreed(what, node_args, node_kwargs, arrays)
        except Differs as why:
            refused = why
    if agreement is not None and what.name not in _FREE:
        try:
            with t.break_points.without_data():
                return _counterpart(t, what, args, kwargs, node, agreement, result_of)
        except BreakGraph as signal:  # torch._numpy looks at the data: perhaps NumPy need not
            reads_data = signal.reason in ("data-dependent-operator", "data-item")
            if not reads_data or (isinstance(what.real, NumPyCall) and not t.break_points.captures_scalars):
                raise
    own = _own_call(t, what, node, len(args)) if refused is None or not refused.final else None
    if own is not None:
        return call(t, own, list(arrays.values()), {}, result_of)
    if agreement is None and python_function(what.real) is not None and (refused is None or not refused.final):
        return t.inline(t.make(python_function(what.real)), args, kwargs)
    if agreement is not None:
        return _counterpart(t, what, args, kwargs, node, agreement, result_of)
    if refused is None:
        t.break_("numpy-function", function=f"numpy.{what.name}")
    t.break_("numpy-differs", function=what.name, why=str(refused))


def _counterpart(t: Tracer, what: Operation, args: Sequence[Value], kwargs: Mapping[str, Value],
                 node: _Node, agreement: Agreement, result_of: ResultOf) -> Value:
    """A node that calls the counterpart."""
    node_args, node_kwargs, arrays = node
    example, relation = agreement.example, agreement.relation
    if what.name in _OF_METADATA:
        for size in [size for array in arrays.values() for size in array.tensor.fake.shape]:
            int(size)  # what varies and is a fact of the result is one of this call
        return t.make(example)
    assert what.target is not None
    node_args, node_kwargs = in_graph(node_args), in_graph(node_kwargs)
    emitted = recorded(t, what.target, node_args, node_kwargs, {each: array.tensor for each, array in arrays.items()})
    if emitted is None:
        emitted = t.emit(what.target, node_args, node_kwargs)

    def result(tensor: Value, part: Any) -> Any:
        related = relation.get(id(part))
        if related in (VIEW, SHARED):
            path = None if part is example else next((index for index, each in enumerate(example) if each is part), -1)
            recipe = ViewRecipe(what, args, kwargs, path)
        if related is VIEW:
            return based(view_of(t, recipe, tensor, part), part)
        if related not in (None, COPY, SHARED):
            return arrays[related]  # an in-place operation gives its array back
        if related is COPY:
            tensor = t.emit("clone", [tensor])
        elif any(array.tensor is tensor for array in arrays.values()):
            tensor = t.emit("detach", [tensor])
        if np.ndim(part) == 0 and tensor.fake.dim():  # type: ignore[attr-defined]  # a tensor's
            tensor = t.emit("reshape", [tensor, ()])
        if related is not SHARED and np.ndim(part) > 1:
            _refuse_sizes_of_data(t, what.name, tensor)
        known = known_item(tensor) if isinstance(part, np.integer) else None  # type: ignore[arg-type]  # a tensor's
        if known is not None:  # an index or a size, wanted as a number in many places; NumPy and torch agree on all of these
            return t.make(type(part)(known))
        made = based(result_of(t, tensor if related is SHARED else _laid_out(t, tensor, part), part), part)
        if related is SHARED and path != -1 and made.based_on is not None and recipe.is_fixed():
            made.recipe = recipe
        return made

    def based(made: Any, part: Any) -> Any:
        """With its base. A stand-in has no gaps in memory, so that what is a copy of the array may be a view of it."""
        base, shares = agreement.bases.get(id(part), ()), [array for array in arrays.values() if _is_one_memory(made, array)]
        made.owns = base is None and not shares
        made.based_on = arrays[base] if base in arrays and (relation.get(id(part)) is VIEW or arrays[base] in shares) else None
        return made

    met: dict[int, Value] = {}

    def once(tensor: Value, part: Any) -> Value:
        """What NumPy gives twice is one object."""
        if id(part) not in met:
            met[id(part)] = result(tensor, part)
        return met[id(part)]

    return _valued(t, what, emitted, example, once)


def _is_one_memory(one: Any, other: Any) -> bool:
    memory, its = (each.tensor.fake.untyped_storage()._cdata for each in (one, other))
    return bool(memory == its)


def _refuse_sizes_of_data(t: Tracer, name: str, tensor: Any) -> None:
    """An array whose size data decides has no stand-in that NumPy could be tried on."""
    if any(not isinstance(size, int) and size.node.hint is None for size in tensor.fake.shape):
        why = "a size of an array is known only when the graph runs"
        t.break_("data-dependent-operator", operator=f"numpy.{name}", error=why)


def _laid_out(t: Tracer, tensor: Any, part: Any) -> Value:
    """The tensor with its dimensions in the order in which NumPy's result has them in memory."""
    if np.ndim(part) < 2:
        return tensor  # type: ignore[no-any-return]  # a Value
    sizes = part.shape
    wanted, found = ([index for index in sorted(range(len(sizes)), key=lambda at: -strides[at]) if sizes[index] > 1]
                     for strides in (part.strides, hints(tensor.fake.stride())))
    if wanted == found or 0 in sizes:
        return tensor  # type: ignore[no-any-return]  # a Value
    order = wanted + [index for index in range(len(sizes)) if sizes[index] <= 1]
    packed = t.emit("contiguous", [t.emit("permute", [tensor, tuple(order)])])
    return t.emit("permute", [packed, tuple(int(index) for index in np.argsort(order))])


# -- NumPy's own functions -----------------------------------------------------------------------------------------


def python_function(fn: Any) -> types.FunctionType | None:
    """The Python function that NumPy runs for one of its functions, if it is one that calls others of NumPy's."""
    found = getattr(fn, "_implementation", fn)
    return found if isinstance(found, types.FunctionType) and is_made_of_others(found) else None


def is_made_of_others(fn: types.FunctionType) -> bool:
    """Whether a Python function is NumPy's, and made of calls of other functions of NumPy's: it is of no module of files, texts
    or settings."""
    module = str(fn.__globals__.get("__name__"))
    rule = longest_prefix(module, FUNCTION_RULES)
    return module.partition(".")[0] == "numpy" and rule is not None and rule[1][0] == "TRACE"


def _own_call(t: Tracer, what: Operation, node: _Node, count: int) -> Operation | None:
    """The call as an operator that runs NumPy; None where data may decide on the shape of the result, or somebody may want a
    gradient of it. `count` is the number of arguments by position."""
    args, kwargs, arrays = node
    by_numbers = what.name in _SIZED_BY_NUMBERS and len(arrays) == 1 and count and args[0] in arrays
    if isinstance(what.real, NumPyCall) or not (what.sized or by_numbers or not arrays):
        return None
    fakes = [array.tensor.fake for array in arrays.values()]
    places = {each: Slot(index) for index, each in enumerate(arrays)}
    if what.name.startswith("histogram") and any(isinstance(each, str) for each in (*args, *kwargs.values())):
        return None  # the data says how many bins
    if any(fake.requires_grad for fake in fakes) or not _specialised(args, kwargs, arrays):
        return None
    for fake in fakes:
        list(map(int, fake.shape))  # NumPy is asked about this call's sizes
    examples = [array.stand_in() for array in arrays.values()]
    bound = NumPyCall(what.name, what.real, tuple(filled(args, places)), dict(filled(kwargs, places)),
                      tuple(isinstance(example, np.generic) for example in examples), settings_now(t))
    examples = [*taken(dict(enumerate(examples)), lambda given: bound(*given.values())).values()]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Operation(what.name, bound, None, target=node_target(bound, examples))
        except Exception:  # NumPy refuses these stand-ins: the real numbers may raise something else, or nothing
            return None


def _specialised(args: list[Any], kwargs: dict[str, Any], arrays: Mapping[Any, Any]) -> bool:
    """Fixes the numbers among the arguments that vary, which NumPy takes as they are. False: one is no number."""
    given: list[torch.fx.Node] = []
    torch.fx.map_arg((args, kwargs), given.append)
    for each in given:
        number = each.meta["example_value"]
        if each not in arrays and not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return False
        if each not in arrays:
            (int if isinstance(number, torch.SymInt) else float if isinstance(number, torch.SymFloat) else bool)(number)
    return True


def _node_arguments(t: Tracer, args: Sequence[Value],
                    kwargs: Mapping[str, Value]) -> tuple[list[Any], dict[str, Any], dict[Any, Any]]:
    """The arguments of a node, and by their nodes the arrays among them."""
    met = t.new_source_state("numpy")
    outer = met.get("arrays")
    arrays: dict[Any, Any] = {}  # numpy_.py signs every array in that becomes an argument of the node
    met["arrays"] = arrays
    try:
        node_args = [_argument(t, arg.realize()) for arg in args]
        node_kwargs = {name: _argument(t, arg.realize()) for name, arg in kwargs.items()}
    finally:
        met["arrays"] = outer
    return node_args, node_kwargs, arrays


class ViewRecipe:
    """How NumPy makes an array that is a view of another: its operation on its arguments, and which part of the result."""

    def __init__(self, what: Operation, args: Sequence[Value], kwargs: Mapping[str, Value], path: int | None) -> None:
        self.what = what
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.path = path

    def is_fixed(self) -> bool:
        """Whether nothing can change its arguments but writes to the arrays among them."""
        return all(map(_is_fixed, (*self.args, *self.kwargs.values())))

    def copied(self, t: Tracer) -> Value:
        """A tensor with the numbers that the view has now."""
        assert self.what.target is not None
        node_args, node_kwargs, _ = _node_arguments(t, self.args, self.kwargs)
        found = t.emit(self.what.target, in_graph(node_args), in_graph(node_kwargs))
        return found if self.path is None else found.items[self.path].realize()  # type: ignore[attr-defined]  # a tuple's

    def rebuild(self, cg: Rebuilder) -> None:
        """Pushes NumPy's view."""
        of_array = self.what.name.removeprefix("ndarray.")
        real = self.what.real if of_array == self.what.name else of_array  # a name leads to it in another process
        cg.call(made_view, real, self.path, tuple(self.kwargs), *self.args, *self.kwargs.values())

    def stand_in(self, t: Tracer) -> Any:
        """The view of the arguments' stand-ins, with its strides; it refuses to be written to."""
        made = self.made_of(t, lambda array: array.stand_in())
        made.flags.writeable = False
        return made

    def made_of(self, t: Tracer, given: Callable[[Any], Any]) -> Any:
        """NumPy's view of other arrays, `given` for those among the arguments."""
        node_args, node_kwargs, arrays = _node_arguments(t, self.args, self.kwargs)
        others = {node: given(array) for node, array in arrays.items()}
        return made_view(self.what.real, self.path, tuple(node_kwargs),
                         *filled(node_args, others), *filled(node_kwargs, others).values())

    def of(self, array: Value) -> ViewRecipe | None:
        """The recipe for a view of `array` in the place of the only array among the arguments, which is the first one."""
        first, *rest = self.args
        if not hasattr(first.realize(), "based_on") or not all(map(_holds_no_array, (*rest, *self.kwargs.values()))):
            return None
        return ViewRecipe(self.what, (array, *rest), self.kwargs, self.path)


def _holds_no_array(value: Value) -> bool:
    return _is_fixed(value) and not hasattr(value.realize(), "based_on")


def _is_fixed(value: Value) -> bool:
    value = value.realize()
    if isinstance(value, TupleValue):
        return all(map(_is_fixed, value.realized()))
    return value.is_constant() or isinstance(value, SymValue) or hasattr(value, "based_on")


def made_view(real: Any, path: int | None, names: tuple[str, ...], *given: Any) -> Any:
    """NumPy's own view, when a compiled frame gives one out: the arguments by name are the last ones. `real`: a function, or
    the name of a method or attribute of arrays."""
    if isinstance(real, str):
        found, given = getattr(given[0], real), given[1:]
        if not callable(found):
            return found
        real = found
    count = len(given) - len(names)
    made = real(*given[:count], **dict(zip(names, given[count:], strict=True)))
    return made if path is None else made[path]


def _argument(t: Tracer, value: Value) -> Any:
    """A node's argument; a NumPy number keeps its type, which decides the result's, and a class that stands for a type of
    numbers is NumPy's to read."""
    if value.is_constant() and isinstance(value.as_constant(), np.generic):
        return value.as_constant()
    if issubclass(value.pytype(), type):
        cls = concrete(value)
        if issubclass(cls, (np.generic, *NUMBERS)):
            return cls
    return value.graph_arg(t)


def _valued(t: Tracer, what: Operation, emitted: Value, example: Any, result: Callable[[Value, Any], Value]) -> Value:
    """The value of a result: the structure that NumPy gave, the graph's tensors in it."""
    if isinstance(example, (np.ndarray, np.generic)):
        return result(emitted, example)
    if isinstance(example, (list, tuple)) and any(isinstance(part, (np.ndarray, np.generic)) for part in example):
        parts = emitted.items  # type: ignore[attr-defined]  # a tuple's
        items = [_valued(t, what, item.realize(), part, result) for item, part in zip(parts, example, strict=True)]
        if isinstance(example, tuple) and hasattr(type(example), "_fields"):
            return t.call(t.make(type(example)), items, None)
        return t.call(t.make(type(example)), [t.call(t.make(_packed), items, None)], None)
    if example is None or what.name in _OF_METADATA:
        return t.make(example)
    t.break_("numpy-function", function=f"numpy.{what.name}")


def _packed(*items: Any) -> tuple[Any, ...]:
    return items


