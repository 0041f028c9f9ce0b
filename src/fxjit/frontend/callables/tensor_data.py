"""Tensors made of Python data: `torch.tensor`, `as_tensor`, and the classes `torch.FloatTensor` and its like as constructors.

Data are numbers in nested lists and tuples, NumPy's arrays and numbers, and tensors. Numbers that vary from call to call
become operators of their own.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol, tensor_methods
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.contexts import default_device
from fxjit.frontend.values.deferred_numbers import DeferredNumber
from fxjit.frontend.values.numpy_numbers import ComputedNumber, with_known_scalars
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue, tensors_in
from fxjit.frontend.values.torchfn import Args, Kwargs, call_in_graph, first_argument, is_given
from fxjit.frontend.values.traits import LateIndex
from fxjit.homes import name_with_module


def _from_array(t: Tracer, data: Value, only_read: bool = False) -> Value:
    """An array of NumPy as the tensor over its memory, a deque as a list; anything else as it is."""
    if data.pytype() is deque:
        return ListValue(protocol.unpack(t, data))
    as_tensor: Callable[[Tracer, bool], Value] | None = getattr(data, "as_tensor", None)
    return data if as_tensor is None else as_tensor(t, only_read)


def _of_numbers(t: Tracer, data: Value, kwargs: Kwargs) -> tuple[Value, dict[str, Value]]:
    """The data as a graph takes them, and the keyword arguments: with the dtype that NumPy's numbers give a tensor of them."""
    rest = {name: value for name, value in kwargs.items() if name not in ("data", "obj")}
    try:
        known = concrete(data)
    except NotConcrete:
        return data, rest
    if not any(isinstance(number, np.generic) for number in _numbers(known)):
        return data, rest
    if not is_given(kwargs, "dtype"):
        try:
            rest["dtype"] = t.make(torch.tensor(known).dtype)
        except (TypeError, ValueError, RuntimeError):  # the program's error, which the call itself raises
            return data, rest
    return _python_numbers(t, known), rest


def _numbers(data: Any) -> Iterator[Any]:
    """The numbers in nested lists and tuples."""
    if isinstance(data, (list, tuple)):
        for part in data:
            yield from _numbers(part)
    else:
        yield data


def _python_numbers(t: Tracer, data: Any) -> Value:
    if isinstance(data, (list, tuple)):
        return ListValue([_python_numbers(t, part) for part in data])
    return t.make(data.item() if isinstance(data, np.generic) else data)


def _of_data(t: Tracer, fn: Callable[..., Any], data: Value, more: Args, kwargs: Kwargs) -> Value:
    """`fn(data, *more, **kwargs)` of numbers, alone or in nested lists: one node, or several where numbers vary."""
    data, kwargs = _of_numbers(t, with_known_scalars(t, data), kwargs)
    varying = None if more else _of_symbols(t, data, kwargs)
    return call_in_graph(t, fn, [data, *more], kwargs) if varying is None else varying


def _dtype_and_device(kwargs: Kwargs) -> dict[str, Value]:
    return {key: kwargs[key] for key in ("dtype", "device") if is_given(kwargs, key)}


@handles(torch.tensor)
def _tensor(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    data = _from_array(t, first_argument(t, torch.tensor, args, kwargs, "data"), only_read=True)
    if isinstance(data, TensorValue):
        copy = t.emit("clone", [t.emit("detach", [data])])
        wanted = _dtype_and_device(kwargs)
        return t.emit("to", [copy], wanted) if wanted else copy
    computed = _of_computed_numbers(t, data, args[1:], kwargs)
    if computed is None and tensors_in([data]):
        t.break_("data-item", function="torch.tensor")
    return _of_data(t, torch.tensor, data, args[1:], kwargs) if computed is None else computed


def _legacy_constructor(cls: Any, dtype: torch.dtype | None) -> None:
    """`torch.Tensor([1, 2])` makes a tensor of the numbers, as of an array; `torch.Tensor(2, 3)` an empty one of that size, and
    `torch.Tensor(x)` a view of all of a tensor."""
    @handles(cls)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) == 1 and not kwargs and isinstance(args[0], TensorValue) and _is_of(args[0], dtype):
            return t.emit(torch.ops.aten.alias.default, [args[0]])
        if len(args) == 1 and not kwargs and not isinstance(args[0], TensorValue):
            of = {"dtype": t.make(dtype if dtype is not None else torch.get_default_dtype())}
            if (computed := _of_computed_numbers(t, args[0], (), of)) is not None:
                return computed
        if kwargs or tensors_in(args):
            t.break_("tensor-argument", function=name_with_module(cls), value="a tensor", type="Tensor")
        wanted = {"dtype": t.make(dtype if dtype is not None else torch.get_default_dtype())}
        array = _from_array(t, args[0]) if len(args) == 1 and args[0].pytype() is np.ndarray else None
        if isinstance(array, TensorValue):  # over the array's memory, where that has the type already
            return t.emit("to", [array], wanted)
        if len(args) == 1 and args[0].pytype() in (range, deque):
            args = [ListValue(protocol.unpack(t, args[0]))]
        if len(args) == 1 and issubclass(args[0].pytype(), (list, tuple)) and args[0].pytype() is not torch.Size:
            return _of_data(t, torch.tensor, args[0], (), wanted)
        return call_in_graph(t, torch.empty, args if args else [t.make(0)], wanted)


def _is_of(tensor: TensorValue, dtype: torch.dtype | None) -> bool:
    """Whether a constructor for this type, or for any, gives another tensor over the memory of this one."""
    fake, plain = tensor.fake, tensor.cls in (torch.Tensor, torch.nn.Parameter)
    return plain and fake.device.type == "cpu" and fake.layout is torch.strided and dtype in (None, fake.dtype)


for _cls, _dtype in (
    (torch.Tensor, None), (torch.FloatTensor, torch.float32), (torch.DoubleTensor, torch.float64),
    (torch.HalfTensor, torch.float16), (torch.BFloat16Tensor, torch.bfloat16), (torch.LongTensor, torch.int64),
    (torch.IntTensor, torch.int32), (torch.ShortTensor, torch.int16), (torch.CharTensor, torch.int8),
    (torch.ByteTensor, torch.uint8), (torch.BoolTensor, torch.bool),
):
    _legacy_constructor(_cls, _dtype)


@handles(torch.autograd.Variable)
def _variable(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`Variable(x)`, of programs that are older than torch 0.4: another tensor over the same memory, a leaf."""
    known = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data, needs = known.pop("data", None), known.pop("requires_grad", t.make(False))
    plain = isinstance(data, TensorValue) and data.cls is torch.Tensor and needs.is_constant()
    if not isinstance(data, TensorValue) or not plain or known or len(args) > 2:
        t.break_("class-instantiation-unsupported", cls="torch.autograd.Variable")
    alias = tensor_methods.call_method(t, data, "detach", (), {})
    if not needs.as_constant():
        return alias
    assert isinstance(alias, TensorValue)
    return tensor_methods.call_method(t, alias, "requires_grad_", (), {})


@handles(torch.as_tensor, torch.asarray)
def _as_tensor(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    data = _from_array(t, data) if data is not None else None
    if data is not None and not isinstance(data, TensorValue):
        if (computed := _of_computed_numbers(t, data, args[1:], kwargs)) is not None:
            return computed
        if tensors_in([data]):
            t.break_("data-item", function="torch.as_tensor")
    if isinstance(data, TensorValue):
        wanted = _dtype_and_device(kwargs)
        return t.emit("to", [data], wanted) if wanted else data
    if data is None:
        return call_in_graph(t, torch.as_tensor, args, kwargs)
    return _of_data(t, torch.as_tensor, data, args[1:], kwargs)


# -- numbers that vary ---------------------------------------------------------------------------------------------
#
# A list is read number by number when a tensor is made of it, which would fix each of them in the graph: an agent's position
# or a counter would be compiled anew for each of its values.

#: A longer list would be a graph of its own; its numbers are fixed.
_MOST_SYMBOLS: Final = 64


def _of_symbols(t: Tracer, data: Value, kwargs: Mapping[str, Value]) -> Value | None:
    """`torch.tensor(data, dtype=, device=)` of numbers that vary, as scalars and stacks of them. None where no number varies,
    or where not all of this is known to be what `torch.tensor` does with them."""
    if not all(value.is_constant() for value in kwargs.values()):
        return None
    given = {name: value.graph_arg(t) for name, value in kwargs.items() if value.as_constant() not in (None, False)}
    if not given.keys() <= {"dtype", "device"}:
        return None
    numbers, shape = list(_values_in(data)), _shape(data)
    kinds = {number.pytype() for number in numbers}
    if shape is None or not (kinds <= {int, float} or kinds == {bool}):
        return None
    late = next((number for number in numbers if isinstance(number, LateIndex)), None)
    if late is not None:
        return _of_random_numbers(t, late, numbers, shape, given)
    if not any(isinstance(number, SymValue) for number in numbers) or len(numbers) > _MOST_SYMBOLS:
        return None
    dtype = given.get("dtype", torch.get_default_dtype() if float in kinds else torch.bool if bool in kinds else torch.int64)
    if not (dtype.is_floating_point or (dtype is torch.int64 and kinds == {int}) or kinds == {bool}):
        return None  # what does not fit raises, by its value
    device = given.get("device", default_device(t))
    how = {"dtype": t.make(dtype), **({} if device is None else {"device": t.make(device)})}
    return _stacked(t, data.realize(), dtype, how)


def _of_random_numbers(t: Tracer, late: LateIndex, numbers: list[Value], shape: tuple[int, ...],
                       given: Mapping[str, Any]) -> Value | None:
    """The same where some are drawn at random: a tensor that is made before the graph runs."""
    if not all(isinstance(number, LateIndex) or number.is_constant() for number in numbers):
        return None
    floats = any(number.pytype() is float for number in numbers)
    made = late.in_tensor(t, numbers, shape, given.get("dtype", torch.get_default_dtype() if floats else torch.int64))
    device = given.get("device", default_device(t))
    # Eager makes a new one, which the program may write to.
    return t.emit("clone", [made]) if device is None else t.emit("to", [made], {"device": t.make(device), "copy": t.make(True)})


def _values_in(data: Value) -> Iterator[Value]:
    data = data.realize()
    if isinstance(data, (ListValue, TupleValue)):
        for item in data.realized():
            yield from _values_in(item)
    else:
        yield data


def _shape(data: Value) -> tuple[int, ...] | None:
    """The sizes of lists and tuples as an array; None where they are not one, or have nothing in them."""
    data = data.realize()
    if _is_array(data):
        sizes: tuple[Any, ...] = tuple(data.tensor.fake.shape)  # type: ignore[attr-defined]  # asked above
        return sizes if all(isinstance(size, int) for size in sizes) else None
    if not isinstance(data, (ListValue, TupleValue)):
        return ()
    shapes = {_shape(item) for item in data.realized()}
    if data.pytype() not in (list, tuple) or len(shapes) != 1 or None in shapes:
        return None
    return (len(data.realized()), *(shapes.pop() or ()))


def _stacked(t: Tracer, data: Value, dtype: torch.dtype, how: dict[str, Value]) -> Value:
    if not any(isinstance(number, SymValue) or _computed(number) is not None for number in _values_in(data)):
        return t.emit(torch.tensor, [data], how)
    if isinstance(data, (ListValue, TupleValue)):
        return t.emit(torch.stack, [ListValue([_stacked(t, item.realize(), dtype, how) for item in data.realized()])])
    if (computed := _computed(data)) is not None:
        number = t.emit("reshape", [computed, t.make(())]) if computed.fake.dim() and not _is_array(data) else computed
        return t.emit("to", [number], {"device": t.make("cpu")} | how)
    if dtype.is_floating_point and data.pytype() is int:
        data = t.emit(torch.sym_float, [data])  # as `torch.tensor` reads it
    if data.pytype() is bool:
        return t.emit(torch.full, [t.make(()), data], how)
    return t.emit(torch.scalar_tensor, [data], how)


# -- numbers that the graph computes -----------------------------------------------------------------------------------
#
# Eager asks tensors of one number, and NumPy's scalars and arrays, for it, which the graph has only when it runs: there
# these are cast as elements, and stacked.

#: A longer list would be a graph of its own.
_MOST_COMPUTED: Final = 1024
_TYPES: Final[Mapping[type, torch.dtype]] = {bool: torch.bool, int: torch.int64}
#: Python's numbers that tensors of these types hold as they are.
_KEPT_BY: Final[Mapping[torch.dtype, set[type]]] = {torch.int64: {int, bool}, torch.bool: {bool}}


def _of_computed_numbers(t: Tracer, data: Value, more: Args, kwargs: Kwargs) -> Value | None:
    """`torch.tensor(data, dtype=, device=)` of nested lists with such numbers in them. None where there are none, or where not
    all of it is known to be cast as eager casts it."""
    named = {name: value for name, value in kwargs.items() if name not in ("data", "obj")}
    if more or not all(value.is_constant() for value in named.values()):
        return None
    given = {name: value.graph_arg(t) for name, value in named.items() if value.as_constant() not in (None, False)}
    numbers = list(_values_in(data))
    if any(isinstance(number, DeferredNumber) for number in numbers):
        return _of_deferred_numbers(t, data.realize(), numbers, given)
    if not isinstance(data.realize(), (ListValue, TupleValue)):
        return None
    computed = [number for number in map(_computed, numbers) if number is not None]
    if not computed or not given.keys() <= {"dtype", "device"} or _shape(data) is None or len(numbers) > _MOST_COMPUTED:
        return None
    others = [number for number in numbers if _computed(number) is None]
    dtype = _type_of_all([number.fake for number in computed], others, given.get("dtype"))
    read = [found for number in numbers if not _is_array(number) and (found := _computed(number)) is not None]
    if dtype is None or not all(_may_be_read(number.fake) for number in read):
        return None
    device = given.get("device", default_device(t))
    how = {"dtype": t.make(dtype), **({} if device is None else {"device": t.make(device)})}
    return _stacked(t, data.realize(), dtype, how)


def _of_deferred_numbers(t: Tracer, data: Value, numbers: list[Value], given: Mapping[str, Any]) -> Value | None:
    """The same of Python's numbers out of tensors, which the graph has as tensors of the widest types."""
    late = [number for number in numbers if isinstance(number, DeferredNumber)]
    if not given.keys() <= {"dtype", "device"} or _shape(data) is None or len(numbers) > _MOST_SYMBOLS:
        return None
    kinds, others = {number.kind for number in late}, [number for number in numbers if not isinstance(number, DeferredNumber)]
    if len(kinds) != 1 or not all(number.is_constant() and number.pytype() in kinds for number in others):
        return None
    (kind,) = kinds
    types = {float: (torch.float32, torch.float64), int: (torch.int64,), bool: (torch.bool,)}.get(kind, ())
    dtype = given.get("dtype", _TYPES.get(kind, torch.get_default_dtype()))
    if dtype not in types or any(_computed(number) is None for number in late):
        return None
    device = given.get("device", default_device(t))
    made = _stacked(t, data, dtype, {"dtype": t.make(dtype), **({} if device is None else {"device": t.make(device)})})
    return made if isinstance(data, (ListValue, TupleValue)) else t.emit("clone", [made])


def _type_of_all(tensors: list[torch.Tensor], others: list[Value], wanted: torch.dtype | None) -> torch.dtype | None:
    """The type of a tensor of the numbers in these tensors and of other numbers; None where it may not be known how these are
    cast to it."""
    kinds = {number.pytype() for number in others}
    if not kinds <= {bool, int, float} or any(isinstance(number, LateIndex) for number in others):
        return None
    types = [*(tensor.dtype for tensor in tensors), *(_TYPES.get(kind, torch.get_default_dtype()) for kind in kinds)]
    dtype = functools.reduce(torch.promote_types, types) if wanted is None else wanted
    fits = dtype.is_floating_point or kinds <= _KEPT_BY.get(dtype, set())
    return dtype if fits and all(_casts(tensor.dtype, dtype) for tensor in tensors) else None


def _is_array(data: Value) -> bool:
    """Whether these are numbers in an array of NumPy, which eager reads as a list of them."""
    return isinstance(data, ComputedNumber) and not data.scalar and not data.tensor.fake.requires_grad


def _computed(number: Value) -> TensorValue | None:
    """The tensor that has a number which the graph computes, or an array of them; None for another number."""
    if isinstance(number, ComputedNumber):
        return number.tensor if number.scalar or _is_array(number) else None
    if isinstance(number, DeferredNumber):
        found = number.in_graph()
        return found if isinstance(found, TensorValue) else None
    return number if isinstance(number, TensorValue) and number.cls is torch.Tensor else None


def _may_be_read(tensor: torch.Tensor) -> bool:
    """Whether eager takes the number of a tensor, the only one in it, without a word."""
    one = all(isinstance(size, int) and size == 1 for size in tensor.shape)
    return one and tensor.layout is torch.strided and not tensor.requires_grad


# -- tensors full of what a tensor holds ------------------------------------------------------------------------------

#: The dtype of `torch.full`, where none is given: that of a tensor of Python's number.
_OF_NUMBER: Final[Mapping[torch.dtype, torch.dtype]] = {torch.bool: torch.bool} | dict.fromkeys(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.int64)


def _filled(t: Tracer, args: Args, kwargs: Kwargs, first: int, dtype: torch.dtype | None,
            empty: Callable[[Args, Kwargs], Value]) -> Value | None:
    """The result where the value to fill with is a tensor, which eager asks for its number; None where it is none, or where the
    number cannot be cast as elements are. `first`: its place among the arguments."""
    named = {name: value for name, value in kwargs.items() if name != "fill_value"}
    value = args[first] if len(args) > first else kwargs.get("fill_value")
    if isinstance(value, ComputedNumber) and value.scalar:
        value = value.tensor
    if not isinstance(value, TensorValue) or value.fake.dim() or value.fake.requires_grad:
        return None  # eager refuses other tensors
    if tensor_methods.known_item(value) is not None:
        return None
    if len(args) > first + 1 or not set(named) <= {"size", "dtype", "device", "input"}:
        return None
    if dtype is None:
        dtype = _OF_NUMBER.get(value.fake.dtype, torch.get_default_dtype())
    given = named["dtype"] if is_given(named, "dtype") else t.make(dtype)
    wanted = given.as_constant() if given.is_constant() else None
    if not isinstance(wanted, torch.dtype) or not _casts(value.fake.dtype, wanted):
        return None
    result = empty(args[:first], named | {"dtype": given})
    return t.emit("fill_", [result, value])


def _casts(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether a number of the one dtype is cast to the other as elements are, and never out of range."""
    if wanted.is_floating_point:
        return not dtype.is_complex
    return dtype is wanted or (dtype is torch.bool and not wanted.is_complex) or (wanted is torch.int64 and dtype in _OF_NUMBER)


@handles(torch.full)
def _full(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = _filled(t, args, kwargs, 1, None, lambda given, named: call_in_graph(t, torch.empty, given, named))
    return call_in_graph(t, torch.full, args, kwargs) if made is None else made


@handles(torch.full_like)
def _full_like(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    like = args[0] if args else kwargs.get("input")
    dtype = like.fake.dtype if isinstance(like, TensorValue) and like.cls is torch.Tensor else None
    made = None if dtype is None else _filled(
        t, args, kwargs, 1, dtype, lambda given, named: call_in_graph(t, torch.empty_like, given, named))
    return call_in_graph(t, torch.full_like, args, kwargs) if made is None else made


@tensor_methods.method("new_full")
def _new_full(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    made = None if tensor.cls is not torch.Tensor else _filled(
        t, args, kwargs, 1, tensor.fake.dtype, lambda given, named: t.emit("new_empty", [tensor, *given], named))
    return t.emit("new_full", [tensor, *args], kwargs) if made is None else made
