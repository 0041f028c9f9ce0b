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
from fxjit.frontend.values.extension import ExtensionPoint

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
#: A result that is a view of an argument, or read-only, in NumPy only.
VIEW: Final = object()


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


#: The value of a view that the graph has as a copy (numpy_.py).
view_of: Final[ExtensionPoint[[Tracer, ViewRecipe, Value, Any], Value]] = ExtensionPoint("view_of")


def call(t: Tracer, what: Operation, args: Sequence[Value], kwargs: Mapping[str, Value], result_of: ResultOf) -> Value:
    """`what(*args, **kwargs)`; `result_of(t, tensor, example)` makes the value of each array or scalar in the result."""
    if what.target is None or not config.trace_numpy:
        t.break_("numpy-function", function=f"numpy.{what.name}")
    node_args, node_kwargs, arrays = _node_arguments(t, args, kwargs)
    example, relation = _agreed(t, what, node_args, node_kwargs, arrays)
    if what.name in _OF_METADATA:
        for size in [size for array in arrays.values() for size in array.tensor.fake.shape]:
            int(size)  # what varies and is a fact of the result is one of this call
        return t.make(example)
    emitted = t.emit(what.target, _in_graph(node_args), _in_graph(node_kwargs))

    def result(tensor: Value, part: Any) -> Value:
        related = relation.get(id(part))
        if related is VIEW:
            path = None if part is example else next(index for index, each in enumerate(example) if each is part)
            return view_of(t, ViewRecipe(what, args, kwargs, path), tensor, part)
        if related is not None and related is not COPY:
            return arrays[related]  # type: ignore[no-any-return]  # an in-place operation gives its array back
        if related is COPY:
            tensor = t.emit("clone", [tensor])
        elif any(array.tensor is tensor for array in arrays.values()):
            tensor = t.emit("detach", [tensor])
        if np.ndim(part) == 0 and tensor.fake.dim():  # type: ignore[attr-defined]  # a tensor's
            tensor = t.emit("reshape", [tensor, ()])
        return result_of(t, tensor, part)

    return _valued(t, what, emitted, example, result)


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

    def copied(self, t: Tracer) -> Value:
        """A tensor with the numbers that the view has now."""
        assert self.what.target is not None
        node_args, node_kwargs, _ = _node_arguments(t, self.args, self.kwargs)
        found = t.emit(self.what.target, _in_graph(node_args), _in_graph(node_kwargs))
        return found if self.path is None else found.items[self.path].realize()  # type: ignore[attr-defined]  # a tuple's

    def stand_in(self, t: Tracer) -> Any:
        """The view of the arguments' stand-ins, with its strides; it refuses to be written to."""
        node_args, node_kwargs, arrays = _node_arguments(t, self.args, self.kwargs)
        given = {node: array.stand_in() for node, array in arrays.items()}
        made = made_view(self.what.real, self.path, tuple(node_kwargs),
                         *_filled(node_args, given), *_filled(node_kwargs, given).values())
        made.flags.writeable = False
        return made


def made_view(real: Callable[..., Any], path: int | None, names: tuple[str, ...], *given: Any) -> Any:
    """NumPy's own view, when a compiled frame gives one out: the arguments by name are the last ones."""
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
    try:
        real, theirs, ours, tensors = _tried(what, args, kwargs, examples)
    except _NumPyRaises as error:  # of stand-ins: the real numbers may raise something else, or nothing
        t.break_("numpy-differs", function=what.name, why=f"NumPy raises {error}")
    except Exception as error:  # torch._numpy refuses in ways of its own
        t.break_("numpy-differs", function=what.name, why=f"it raises {type(error).__name__}: {error}")
    uninitialised = what.name in _UNINITIALISED
    why = _difference(real, theirs, uninitialised)
    for node, array in ours.items():
        why = why or _difference(array, tensors[node], False)
    why = why or _difference_below_zero(what, args, kwargs, examples)
    relation: dict[int, Any] = {}
    if why is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reading flags may warn
            relation = _relation(real, theirs, ours, tensors)
        if VIEW in relation.values() and any(array.tensor.fake.requires_grad for array in arrays.values()):
            why = "its result is a copy, and NumPy's is a view of an argument"
    if why is not None:
        t.break_("numpy-differs", function=what.name, why=why)
    return real, relation


class _NumPyRaises(Exception):
    """NumPy's own error for stand-ins."""


def _tried(what: Operation, args: list[Any], kwargs: dict[str, Any],
           examples: Mapping[Any, Any]) -> tuple[Any, Any, dict[Any, Any], dict[Any, Any]]:
    """Results of NumPy and of the counterpart for copies of `examples`, and the copies that each was given. A stand-in that
    refuses to be written to (ViewRecipe) is no copy: it has the strides of a view."""
    assert what.target is not None
    with np.errstate(all="ignore"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        ours = {node: np.array(example) if isinstance(example, np.ndarray) and example.flags.writeable else example
                for node, example in examples.items()}
        try:
            real = what.real(*_filled(args, ours), **_filled(kwargs, ours))
        except Exception as error:  # whatever the function raises for these
            raise _NumPyRaises(f"{type(error).__name__}: {error}") from None
        tensors = {node: torch.from_numpy(np.array(example)) for node, example in examples.items()}
        theirs = what.target(*_filled(_in_graph(args), tensors), **_filled(_in_graph(kwargs), tensors))
    return real, theirs, ours, tensors


def _difference_below_zero(what: Operation, args: list[Any], kwargs: dict[str, Any], examples: Mapping[Any, Any]) -> str | None:
    """How the counterpart differs for numbers of which every other one is negative; None where NumPy has no answer."""
    signed = {node: _alternating(example) for node, example in examples.items()}
    if what.name in _UNINITIALISED or not any(signed[node] is not example for node, example in examples.items()):
        return None
    try:
        real, theirs, ours, tensors = _tried(what, args, kwargs, signed)
    except _NumPyRaises:
        return None
    except Exception as error:  # torch._numpy refuses in ways of its own
        return f"it raises {type(error).__name__}: {error}"
    written = (_difference(array, tensors[node], False) for node, array in ours.items())
    return _difference(real, theirs, False) or next((why for why in written if why), None)


def _alternating(example: Any) -> Any:
    if example.dtype.kind not in "fc" or not example.size:
        return example
    if np.ndim(example) == 0:
        return -example
    made = np.array(example)
    made.reshape(-1)[::2] *= -1  # np.array gives memory without gaps
    if not example.flags.writeable:
        made.flags.writeable = False
    return made


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
        if real.shape == () and found.size == 1:
            found = found.reshape(())  # one number is one number
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


def _relation(real: Any, theirs: Any, arrays: Mapping[Any, Any], tensors: Mapping[Any, Any]) -> dict[int, Any]:
    """By the ids of results: the argument that it is, COPY where it shares memory with one in the counterpart only, and VIEW
    where it does in NumPy only, or is read-only: a view that the graph has as a copy, or one of such a view."""
    found: dict[int, Any] = {}
    for one, other in zip(_arrays_in(real), _arrays_in(theirs), strict=True):
        for node, array in arrays.items():
            shares = other.untyped_storage().data_ptr() == tensors[node].untyped_storage().data_ptr()
            if one is array and isinstance(one, np.ndarray):
                found[id(one)] = node
            elif other.numel() and shares and not np.may_share_memory(one, array):
                found[id(one)] = COPY
            elif other.numel() and np.may_share_memory(one, array) and (not shares or _is_no_tensor(one)):
                found[id(one)] = VIEW
    return found


def _is_no_tensor(array: Any) -> bool:
    """Whether it is read-only, or has elements that are one in memory."""
    repeats = any(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True))
    return not array.flags.writeable or repeats


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
