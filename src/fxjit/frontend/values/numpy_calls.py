"""One call of NumPy as one node of the graph, which runs its counterpart of torch._numpy on the arrays' tensors.

numpy_.py looks up every operation on arrays that it traces. Whether the counterpart may stand in for NumPy is seen, not
assumed: while tracing, both are called on stand-ins of the very shapes and types. They must agree in types, shapes,
numbers and in which results share memory with which arguments, or the graph breaks; and NumPy's own answer says what the
results are (an array, or a scalar such as `np.float32`, which torch._numpy does not have).
"""

from __future__ import annotations

import copy
import functools
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.fx

from fxjit import config, torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.concrete import concrete

tnp: Any = torch_private.optional("torch._numpy")
FUNCTION_TYPES: Final = (np.ufunc, type(np.prod))
#: Python's types that NumPy takes for types of its own.
_NUMBERS: Final = (bool, int, float, complex)
#: Functions whose results have no numbers to compare.
_UNINITIALISED: Final = frozenset({"empty", "empty_like", "ndarray"})
#: Functions whose results are Python objects that follow from shapes and types alone.
_OF_METADATA: Final = frozenset({"ndim", "shape", "size", "result_type", "can_cast", "isscalar", "iscomplexobj", "isrealobj",
                                 "min_scalar_type", "broadcast_shapes", "issubdtype"})


#: A result that NumPy copies where its counterpart gives a view.
COPY: Final = object()


class Traced(Protocol):
    """An array or scalar of numpy_.py."""

    tensor: Any

    def stand_in(self) -> Any:
        """Something like it, to try NumPy on."""


ResultOf = Callable[[Tracer, Value, Any], Value]


class Operation:
    """The called operation: NumPy's own callable, and its counterpart in the graph (None: there is none)."""

    def __init__(self, name: str, real: Callable[..., Any], counterpart: Callable[..., Any] | None) -> None:
        self.name = name
        self.real = real
        self.target = _node_target(name, counterpart) if counterpart is not None else None


def _node_target(name: str, counterpart: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a graph calls; FX wants one with a name and a module."""
    def call(*args: Any, **kwargs: Any) -> Any:
        return _unwrapped(counterpart(*_wrapped(args), **_wrapped(kwargs)))

    call.is_opaque = True  # type: ignore[attr-defined]  # it may write to an array: seen when it runs (fxjit.schemas)
    call.__name__ = call.__qualname__ = "numpy_" + name.replace(".", "_")
    # What backends/store/fingerprints.py knows it by in another process.
    call.stands_for = f"{counterpart.__module__}.{counterpart.__qualname__} {name}, NumPy {np.__version__}"  # type: ignore[attr-defined]  # functions carry what they stand for
    return call


def _wrapped(value: Any) -> Any:
    """Tensors as torch._numpy's arrays, torch's types as its own."""
    if isinstance(value, torch.Tensor):
        return tnp.ndarray(value)
    if isinstance(value, torch.dtype):
        return tnp.dtype(numpy_dtype(value).name)
    return _mapped(_wrapped, value)


def _in_graph(value: Any) -> Any:
    """Types and numbers of NumPy as those that a graph can write down."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, (np.generic, *_NUMBERS))):
        return torch.from_numpy(np.empty(0, value)).dtype
    return _mapped(_in_graph, value)


def _mapped(fn: Callable[[Any], Any], value: Any) -> Any:
    """A container's items through `fn`; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(fn, value))
    if isinstance(value, dict):
        return {key: fn(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(fn(value.start), fn(value.stop), fn(value.step))
    return value


def _unwrapped(result: Any) -> Any:
    if isinstance(result, tnp.ndarray):
        return result.tensor
    if isinstance(result, (list, tuple)):
        return tuple(map(_unwrapped, result))
    return result


# -- which counterpart ---------------------------------------------------------------------------------------------


def plain_functions() -> Iterator[Any]:
    """NumPy's functions that are no objects of its own types: C builtins and Python functions with a counterpart."""
    for own, theirs in ((np, tnp), (np.linalg, tnp.linalg), (np.fft, tnp.fft)):
        for name in dir(theirs):
            fn = getattr(own, name, None)
            if isinstance(fn, (types.FunctionType, types.BuiltinFunctionType)) and callable(getattr(theirs, name)):
                yield fn


@functools.cache
def function(fn: Any) -> Operation:
    """The operation of a function of NumPy."""
    module = (getattr(fn, "__module__", None) or "numpy").removeprefix("numpy").strip(".")
    own, theirs = (getattr(np, module), getattr(tnp, module)) if module and hasattr(tnp, module) else (np, tnp)
    name = fn.__name__
    found = getattr(theirs, name, None) if getattr(own, name, None) is fn else None
    return Operation(f"{module}.{name}" if own is not np else name, fn, found if callable(found) else None)


@functools.cache
def method(name: str) -> Operation:
    """The operation of a method of arrays."""
    def call(array: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(array, name)(*args, **kwargs)

    return Operation(f"ndarray.{name}", call, call if callable(getattr(tnp.ndarray, name, None)) else None)


@functools.cache
def attribute(name: str) -> Operation:
    """The operation of reading an attribute that is an array."""
    def read(array: Any) -> Any:
        return getattr(array, name)

    return Operation(f"ndarray.{name}", read, read)


@functools.cache
def operation(fn: Callable[..., Any]) -> Operation:
    """The operation of one of Python's operators."""
    return Operation(fn.__name__, fn, fn)


# -- the call ------------------------------------------------------------------------------------------------------


def call(t: Tracer, what: Operation, args: Sequence[Value], kwargs: Mapping[str, Value], result_of: ResultOf) -> Value:
    """`what(*args, **kwargs)`; `result_of(t, tensor, example)` makes the value of each array or scalar in the result."""
    if what.target is None or not config.trace_numpy:
        t.break_("numpy-function", function=f"numpy.{what.name}")
    met = t.new_source_state("numpy")
    arrays: dict[Any, Any] = {}  # numpy_.py signs every array in that becomes an argument of the node
    met["arrays"] = arrays
    try:
        node_args = [_argument(t, arg.realize()) for arg in args]
        node_kwargs = {name: _argument(t, arg.realize()) for name, arg in kwargs.items()}
    finally:
        met.pop("arrays")
    example, relation = _agreed(t, what, node_args, node_kwargs, arrays)
    emitted = t.emit(what.target, _in_graph(node_args), _in_graph(node_kwargs))

    def result(tensor: Value, part: Any) -> Value:
        related = relation.get(id(part))
        if related is not None and related is not COPY:
            return arrays[related]  # type: ignore[no-any-return]  # an in-place operation gives its array back
        if related is COPY:
            tensor = t.emit("clone", [tensor])
        elif any(array.tensor is tensor for array in arrays.values()):
            tensor = t.emit("detach", [tensor])
        return result_of(t, tensor, part)

    return _valued(t, what, emitted, example, result)


def _argument(t: Tracer, value: Value) -> Any:
    """A node's argument; a NumPy number keeps its type, which decides the result's, and a class that stands for a type of
    numbers is NumPy's to read."""
    if value.is_constant() and isinstance(value.as_constant(), np.generic):
        return value.as_constant()
    if issubclass(value.pytype(), type):
        cls = concrete(value)
        if issubclass(cls, (np.generic, *_NUMBERS)):
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


# -- do they agree? ------------------------------------------------------------------------------------------------


def _agreed(t: Tracer, what: Operation, args: list[Any], kwargs: dict[str, Any],
            arrays: Mapping[Any, Traced]) -> tuple[Any, dict[int, Any]]:
    """NumPy's result for stand-ins of the arguments, where the counterpart gives the same (else a graph break); and by the
    ids of its parts: the argument that it is, or COPY where only the counterpart's is a view of an argument."""
    examples = {node: array.stand_in() for node, array in arrays.items()}
    assert what.target is not None
    with np.errstate(all="ignore"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        ours = {node: np.array(example) if isinstance(example, np.ndarray) else example for node, example in examples.items()}
        try:
            real = what.real(*_filled(args, ours), **_filled(kwargs, ours))
        except Exception as error:  # of stand-ins: the real numbers may raise something else, or nothing
            t.break_("numpy-differs", function=what.name, why=f"NumPy raises {type(error).__name__}: {error}")
        tensors = {node: torch.from_numpy(np.array(example)) for node, example in examples.items()}
        try:
            theirs = what.target(*_filled(_in_graph(args), tensors), **_filled(_in_graph(kwargs), tensors))
        except Exception as error:  # torch._numpy refuses in ways of its own
            t.break_("numpy-differs", function=what.name, why=f"it raises {type(error).__name__}: {error}")
        why = _difference(real, theirs, what.name in _UNINITIALISED)
        for node, array in ours.items():
            why = why or _difference(array, tensors[node], False)
        relation = _relation(real, theirs, ours, tensors) if why is None else None
        if why is None and relation is None:
            why = "its result is a copy, and NumPy's is a view of an argument"
    if why is not None or relation is None:
        t.break_("numpy-differs", function=what.name, why=why)
    return real, relation


def _filled(arguments: Any, by_node: Mapping[Any, Any]) -> Any:
    """Arguments of a node with stand-ins in the nodes' places."""
    def number_or_array(node: torch.fx.Node) -> Any:
        if node in by_node:
            return by_node[node]
        number = node.meta["example_value"]
        return number.node.hint if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) else copy.copy(number)

    return torch.fx.map_arg(arguments, number_or_array)


def _difference(real: Any, theirs: Any, uninitialised: bool) -> str | None:
    """How the counterpart's result differs from NumPy's; None where it does not."""
    if isinstance(real, (np.ndarray, np.generic)):
        if not isinstance(theirs, torch.Tensor):
            return f"it gives {type(theirs).__name__}, not {type(real).__name__}"
        found = theirs.detach().resolve_conj().resolve_neg().numpy()
        if found.dtype != real.dtype or found.shape != real.shape:
            return f"it gives {found.dtype}{list(found.shape)}, not {real.dtype}{list(real.shape)}"
        exact = real.dtype.kind in "iub"
        same = np.array_equal(found, real) if exact else np.allclose(found, real, rtol=1e-3, atol=1e-4, equal_nan=True)
        return None if uninitialised or same else "it gives other numbers"
    if isinstance(real, (list, tuple)):
        if not isinstance(theirs, (list, tuple)) or len(real) != len(theirs):
            return "it gives another structure"
        pairs = zip(real, theirs, strict=True)
        return next((why for one, other in pairs if (why := _difference(one, other, uninitialised))), None)
    return None


def _relation(real: Any, theirs: Any, arrays: Mapping[Any, Any], tensors: Mapping[Any, Any]) -> dict[int, Any] | None:
    """By the ids of results: the argument that it is, or COPY where it shares memory with one in the counterpart only; None
    where one does in NumPy only."""
    found: dict[int, Any] = {}
    for one, other in zip(_arrays_in(real), _arrays_in(theirs), strict=True):
        for node, array in arrays.items():
            shares = other.untyped_storage().data_ptr() == tensors[node].untyped_storage().data_ptr()
            if one is array and isinstance(one, np.ndarray):
                found[id(one)] = node
            elif other.numel() and shares and not np.may_share_memory(one, array):
                found[id(one)] = COPY
            elif other.numel() and not shares and np.may_share_memory(one, array):
                return None
    return found


def _arrays_in(result: Any) -> Iterator[Any]:
    if isinstance(result, (np.ndarray, np.generic, torch.Tensor)):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _arrays_in(item)


# -- stand-ins -----------------------------------------------------------------------------------------------------


def stand_in(fake: torch.Tensor, scalar: bool) -> Any:
    """An array like the one behind `fake`, whose numbers are of no special kind: positive, all different, no pattern."""
    dtype = numpy_dtype(fake.dtype)
    shape = _hints(fake.shape)
    fractions = (np.arange(1, int(np.prod(shape, dtype=np.int64)) + 1, dtype=np.float64) * 0.6180339887498949) % 1.0
    numbers = fractions > 0.5 if dtype.kind == "b" else fractions * 3 + 1 if dtype.kind in "iu" else fractions + 0.5
    made = numbers.reshape(shape).astype(dtype)
    if scalar:
        return made[()]
    strides = _hints(fake.stride())
    if made.size and all(stride > 0 or size == 1 for size, stride in zip(shape, strides, strict=True)):
        return torch.empty_strided(shape, strides, dtype=fake.dtype, device="cpu").copy_(torch.from_numpy(made)).numpy()
    return made


def _hints(numbers: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or strides in this call."""
    return tuple(number if isinstance(number, int) else int(number.node.hint) for number in numbers)


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's name of a type of numbers."""
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
