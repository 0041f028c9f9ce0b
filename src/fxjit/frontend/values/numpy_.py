"""NumPy in traced code: arrays over the graph's tensors, scalars and dtypes that are constants.

wrap.py makes arrays of what the frame found; every operation on one is a node (numpy_calls.py). An array that no tensor
can stand for (objects, foreign byte order, elements that are one in memory) is known by name only: it may be passed on,
stored and returned, and every use of it breaks.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import torch

from fxjit import config, schemas
from fxjit.applied import memory_for_array
from fxjit.errors import BreakGraph
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import numpy_agreement, numpy_calls, numpy_tensors, protocol, tensor_methods
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import exact, handles
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.constant import ConstantValue
from fxjit.frontend.values.numpy_numbers import ComputedNumber, NumPyNumberValue, of_numbers, with_known_scalars
from fxjit.frontend.values.numpy_tensors import as_arrays, as_tensors, converts_tensors, gives_tensors, holds_tensors
from fxjit.frontend.values.sequence import ListValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import GivenTensor, TensorValue
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps, wraps_if
from fxjit.guards.kinds import ConstIs, IdIs, TypeIs
from fxjit.guards.source import ApplySource, AttrSource, Source
from fxjit.skips import marks

# -- between arrays and tensors: what new bytecode calls -----------------------------------------------------------


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The tensor over an array's memory; for an array that no trace takes it raises, and a guard on the tensor fails."""
    if not array.flags.writeable:
        raise ValueError("a read-only array")
    return torch.from_numpy(array)


def read_only_tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The tensor over the memory of an array that refuses to be written to: a graph only reads it. torch would warn."""
    if array.flags.writeable:
        raise ValueError("an array that may be written to")
    return torch.from_numpy(np.asarray(_Memory(array)))


class _Memory:
    """The memory of an array, as if it might be written to."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        place, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (place, False)}


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The array over a tensor's memory."""
    return tensor.numpy(force=True)  # type: ignore[no-any-return]  # typed as Any


def scalar_of(tensor: torch.Tensor) -> np.generic:
    """The NumPy scalar that a 0-d result is in eager."""
    found: Any = tensor.numpy(force=True)
    return found[()]  # type: ignore[no-any-return]  # typed as Any


# -- arrays --------------------------------------------------------------------------------------------------------

_FACTS: Final = frozenset({"dtype", "ndim", "itemsize"})
_ARRAYS: Final = frozenset({"T", "real", "imag", "mT"})
_UNARY: Final = {"neg": operator.neg, "pos": operator.pos, "invert": operator.invert, "abs": operator.abs}


class ArrayValue(ComputedNumber):
    """A numpy.ndarray, or (`scalar`) a NumPy scalar that the graph computes; `tensor` holds its numbers."""

    def __init__(self, tensor: TensorValue, scalar: bool = False, source: Source | None = None) -> None:
        super().__init__(source)
        self._tensor = tensor
        self.scalar = scalar
        #: What the frame found, if it is that; whether it owns its memory; else what it is a view of, and how NumPy makes it.
        self.found: np.ndarray[Any, Any] | None = None
        self.owns = False
        self.based_on: ArrayValue | None = None
        self.recipe: numpy_calls.ViewRecipe | None = None

    @property
    def tensor(self) -> TensorValue:
        return self._tensor

    def pytype(self) -> type:
        return numpy_agreement.numpy_dtype(self.tensor.fake.dtype).type if self.scalar else np.ndarray

    def describe(self) -> str:
        return f"{self.pytype().__name__} {self.tensor.describe()}"

    def stand_in(self) -> Any:
        """Something like it, for numpy_calls.py to try NumPy on."""
        return numpy_agreement.stand_in(self.tensor.fake, self.scalar)

    def facts(self) -> Any:
        """What decides on `stand_in`, and on what may be made of a view, for numpy_agreement.py."""
        fake = self.tensor.fake
        sizes, strides = numpy_agreement.hints(fake.shape), numpy_agreement.hints(fake.stride())
        return fake.dtype, sizes, strides, self.scalar, fake.requires_grad

    def graph_arg(self, t: Tracer) -> Any:
        arrays = t.new_source_state("numpy").get("arrays")
        if arrays is None:
            t.break_("numpy-function", function="ndarray as an argument of a torch function")
        arrays[self.tensor.node] = self
        return self.tensor.node

    def rebuild(self, cg: Rebuilder) -> None:
        if self.recipe is not None:
            self.recipe.rebuild(cg)
        else:
            cg.call(scalar_of if self.scalar else array_of, self.tensor)

    def as_tensor(self, t: Tracer, only_read: bool = False) -> Value:
        """`torch.as_tensor(array)`: a tensor over the array's memory; a scalar has none to share."""
        if self.scalar:
            return t.emit("clone", [self.tensor])
        if torch.is_inference_mode_enabled() is not self.tensor.fake.is_inference():  # which no alias of the tensor is
            t.break_("numpy-differs", function="torch.from_numpy", why="it makes a tensor of the mode that is on")
        return _alias(t, self.tensor)

    def _refuse(self, t: Tracer, what: str) -> NoReturn:
        t.break_("numpy-function", function=f"ndarray.{what}")

    # -- attributes and methods ----------------------------------------------------------------------------------

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.pytype())
        if name in _FACTS:
            like = np.empty((0,) * self.tensor.fake.dim(), numpy_agreement.numpy_dtype(self.tensor.fake.dtype))
            return t.make(getattr(like, name))
        if name == "shape":
            return t.call(t.make(tuple), [self.tensor.shape(t)], None)
        if name == "size":
            return protocol.call_method(t, self.tensor, "numel")
        if name == "nbytes":
            return protocol.getattr_(t, self.tensor, "nbytes")
        if name == "base":
            return self._base(t)
        if name == "flat" and not self.scalar:
            return ArrayFlatValue(self)
        if name == "flags":
            return ArrayFlagsValue(self)
        if name == "strides":
            list(map(int, (*self.tensor.fake.shape, *self.tensor.fake.stride())))  # those of this call
            return t.make(self.stand_in().strides)
        if name in _ARRAYS:
            return numpy_calls.call(t, numpy_calls.attribute(name), [self], {}, result_of)
        found = protocol.type_lookup(self.pytype(), name)
        if found is NOT_IMPLEMENTED:
            t.raise_(AttributeError, f"'{_type_name(self.pytype())}' object has no attribute '{name}'")
        if not callable(found):
            self._refuse(t, name)
        return ArrayMethodValue(self, name)

    def _base(self, t: Tracer) -> Value:
        """`array.base`: the array that it is a view of, or the one that this is a view of itself."""
        if self.found is not None and self.source is not None:
            return t.wrap(self.found.base, AttrSource(self.source, "base")).realize()
        if self.scalar or self.owns:
            return t.make(None)
        if self.based_on is None:
            self._refuse(t, "base")
        further = self.based_on._base(t)
        return further if further.pytype() is np.ndarray else self.based_on

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self._refuse(t, name)

    # -- numbers -------------------------------------------------------------------------------------------------

    def _call(self, t: Tracer, fn: Callable[..., Any], *args: Value) -> Value:
        return numpy_calls.call(t, numpy_calls.operation(fn), args, {}, result_of)

    def nb_bool(self, t: Tracer) -> Value:
        if (known := tensor_methods.known_item(self.tensor)) is not None:
            return t.make(bool(known))
        t.break_("data-branch", value=self.describe())

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if self.scalar and isinstance(other, TensorValue):
            return self.before_tensor(t, other, op, reflected)
        found = numpy_tensors.operated(t, op, self, other, reflected, call_function)
        return self._call(t, protocol.BINARY[op], *((other, self) if reflected else (self, other))) if found is None else found

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        return NOT_IMPLEMENTED if self.scalar else self._call(t, protocol.INPLACE[op], self, other)

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        fn: Any = _UNARY.get(op)
        if fn is not None:
            return self._call(t, fn, self)
        if op in ("int", "float", "complex", "index"):
            return tensor_methods.as_number(t, self.tensor, op)
        self._refuse(t, f"__{op}__")

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        made = None if self.scalar else numpy_tensors.compared(t, op, self.as_tensor, other)
        return self._call(t, protocol.COMPARE[op], self, other) if made is None else made

    # -- containers ----------------------------------------------------------------------------------------------

    def sq_length(self, t: Tracer) -> Value:
        if self.scalar:
            t.raise_(TypeError, f"object of type '{_type_name(self.pytype())}' has no len()")
        if self.tensor.fake.dim() == 0:
            t.raise_(TypeError, "len() of unsized object")
        return self.tensor.size(t, 0)

    def tp_iter(self, t: Tracer) -> Value:
        if self.scalar or self.tensor.fake.dim() == 0:
            t.raise_(TypeError, "iteration over a 0-d array" if not self.scalar else
                     f"'{_type_name(self.pytype())}' object is not iterable")
        length = tensor_methods.specialized(t, self.tensor.size(t, 0))
        return protocol.iter_(t, ListValue([self.mp_subscript(t, t.make(index)) for index in range(length)]))

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        self._refuse(t, "__contains__")

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        return self._call(t, operator.getitem, self, numpy_tensors.as_key(t, key))

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        if value is None:
            t.raise_(ValueError, "cannot delete array elements")
        if not _set_backwards(t, self, key, value.realize()):
            self._call(t, operator.setitem, self, numpy_tensors.as_key(t, key), numpy_tensors.as_items(t, self, value))

    # -- text ----------------------------------------------------------------------------------------------------

    def tp_repr(self, t: Tracer) -> Value:
        self._refuse(t, "__repr__")

    def tp_hash(self, t: Tracer) -> Value:
        if not self.scalar:
            t.raise_(TypeError, "unhashable type: 'numpy.ndarray'")
        self._refuse(t, "__hash__")


def _set_backwards(t: Tracer, array: ArrayValue, key: Value, value: Value) -> bool:
    """`array[key] = value` where slices step backwards, which no view of torch's does: the same places in the other order.
    False where the key is no such, or NumPy has something to say about the shape."""
    given = key.as_constant() if key.is_constant() else None
    slices = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(each, slice) and _is_plain(each) for each in slices) or array.scalar:
        return False
    axes = [axis for axis, each in enumerate(slices) if each.step is not None and each.step < 0]
    sizes = list(array.tensor.fake.shape)
    if not axes or len(slices) > len(sizes) or not all(type(size) is int for size in sizes):
        return False
    forward = [slice(*_ascending(each, sizes[axis])) for axis, each in enumerate(slices)]
    part = protocol.getitem(t, array, t.make(tuple(forward)))
    assert isinstance(part, ArrayValue)
    if isinstance(value, ArrayValue) and value.tensor.fake.dim():
        wanted, found = tuple(part.tensor.fake.shape), tuple(value.tensor.fake.shape)
        if len(found) > len(wanted) or not all(
                type(its) is int and its in (1, size) for its, size in zip(found[::-1], wanted[::-1], strict=False)):
            return False
        spread = call_function(t, np.broadcast_to, [value, t.make(wanted)], {})
        value = call_function(t, np.flip, [spread, t.make(tuple(axes))], {})
    elif not (isinstance(value, ArrayValue) or value.is_constant() or isinstance(value, SymValue)):
        return False
    protocol.setitem(t, part, t.make(Ellipsis), value)
    return True


def _is_plain(given: slice) -> bool:
    return all(each is None or type(each) is int for each in (given.start, given.stop, given.step)) and given.step != 0


def _ascending(given: slice, size: int) -> tuple[int, int, int]:
    """Start, stop and step of a slice with the same places, in ascending order."""
    places = range(*given.indices(size))
    places = places if places.step > 0 else places[::-1]
    return (places.start, places.stop, places.step) if places else (0, 0, 1)


class ReadOnlyArrayValue(ArrayValue):
    """An array from outside that refuses to be written to. So do its stand-ins: what would write to it breaks the graph."""

    def stand_in(self) -> Any:
        made = super().stand_in()
        made.flags.writeable = False
        return made

    def facts(self) -> Any:
        return (*super().facts(), "read-only")

    def as_tensor(self, t: Tracer, only_read: bool = False) -> Value:
        if only_read:
            return super().as_tensor(t)
        t.break_("numpy-differs", function="torch.from_numpy", why="torch warns of an array that refuses to be written to")


class ArrayViewValue(ArrayValue):
    """An array that is a view in NumPy and no view in torch (`a[::-1]`, `np.broadcast_to`): the graph computes with a copy,
    made again once something was written since. What leaves the trace is NumPy's own view of the array. What is written to one
    is written to the places that it has in the array, where NumPy lets it be written to and these are known; else it breaks."""

    def __init__(self, t: Tracer, recipe: numpy_calls.ViewRecipe, tensor: TensorValue) -> None:
        super().__init__(tensor)
        self._t = t
        self._recipe = recipe

    @property
    def tensor(self) -> TensorValue:
        following = self._tensor.node.next
        while following.op != "root":
            if schemas.writes(following):
                self._tensor = _apart(self._t, self._recipe.copied(self._t))
                break
            following = following.next
        return self._tensor

    def stand_in(self) -> Any:
        return self._recipe.stand_in(self._t)

    def facts(self) -> Any:
        return None

    def written(self, t: Tracer) -> tuple[ArrayValue, Callable[[], None]] | None:
        """An array like it, to be written to, and what then writes all of that to the array behind."""
        root, numbers = self._numbered(t)
        if root is None or not numbers.flags.writeable or np.unique(numbers).size != numbers.size:
            return None
        fresh = ArrayValue(_apart(t, self.tensor))
        turned = self._recipe.what.real is operator.getitem and self._recipe.args[0].realize() is root

        def write() -> None:
            if turned and _set_backwards(t, root, self._recipe.args[1].realize(), fresh):
                return
            t.emit("put_", [root.tensor, self._places(t), fresh.tensor])
        return fresh, write

    def _numbered(self, t: Tracer) -> tuple[ArrayValue | None, Any]:
        """The array behind all views, and NumPy's view of its places; None where that is not known."""
        behind = self._recipe.args[0].realize() if self._recipe.args else None
        root: ArrayValue | None
        if isinstance(behind, ArrayViewValue):
            root, numbers = behind._numbered(t)
        else:
            root = behind if type(behind) is ArrayValue and not behind.scalar else None
            sizes = () if root is None else tuple(root.tensor.fake.shape)
            if not all(type(size) is int for size in sizes):
                return None, None
            numbers = np.arange(math.prod(sizes)).reshape(sizes)
        if root is None or self._recipe.of(root) is None:
            return None, None
        return root, self._recipe.made_of(t, lambda array: numbers)

    def _places(self, t: Tracer) -> Value:
        """The places in the array behind all views, computed in the graph."""
        behind = self._recipe.args[0].realize()
        if isinstance(behind, ArrayViewValue):
            places = behind._places(t)
        else:
            sizes = tuple(behind.tensor.fake.shape)  # type: ignore[attr-defined]  # _numbered has looked: an ArrayValue
            places = t.emit("reshape", [t.emit(torch.arange, [math.prod(sizes)]), sizes])
        assert isinstance(places, TensorValue)
        recipe = self._recipe.of(ArrayValue(places))
        assert recipe is not None, "_numbered has looked"
        return recipe.copied(t)

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        written = self.written(t)
        if written is None:
            return super().nb_inplace(t, op, other)
        fresh, write = written
        fresh.nb_inplace(t, op, other)
        write()
        return self

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        written = self.written(t) if value is not None else None
        if written is None:
            super().mp_ass_subscript(t, key, value)
            return
        fresh, write = written
        fresh.mp_ass_subscript(t, key, value)
        write()

    def rebuild(self, cg: Rebuilder) -> None:
        self._recipe.rebuild(cg)

    def as_tensor(self, t: Tracer, only_read: bool = False) -> Value:
        t.break_("numpy-differs", function="torch.from_numpy", why="the array is a view that no tensor can be")


@numpy_calls.view_of.provide
def _array_view(t: Tracer, recipe: numpy_calls.ViewRecipe, tensor: Value, example: Any) -> Value:
    return ArrayViewValue(t, recipe, _apart(t, tensor))


def _apart(t: Tracer, tensor: Value) -> TensorValue:
    """A tensor of its own memory, in which no two elements are one."""
    made = t.emit("clone", [tensor])
    assert isinstance(made, TensorValue)
    return made


class ArrayFlatValue(Value):
    """`array.flat`: its elements in the order of rows."""

    def __init__(self, array: ArrayValue) -> None:
        super().__init__(None)
        self.array = array

    def pytype(self) -> type:
        return np.flatiter

    def sq_length(self, t: Tracer) -> Value:
        return protocol.getattr_(t, self.array, "size")

    def tp_iter(self, t: Tracer) -> Value:
        count = tensor_methods.specialized(t, self.sq_length(t))
        return protocol.iter_(t, ListValue([self.mp_subscript(t, t.make(index)) for index in range(count)]))

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        return numpy_calls.call(t, numpy_calls.FLAT_ITEM, [self.array, key], {}, result_of)

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        if value is None:
            t.raise_(TypeError, "cannot delete iterator elements")
        numpy_calls.call(t, numpy_calls.SET_FLAT_ITEM, [self.array, key, value], {}, result_of)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.array)
        cg.asm.load_attr("flat")


_OF_LAYOUT: Final = frozenset({"c_contiguous", "f_contiguous", "contiguous", "fortran", "fnc", "forc"})
_FLAG_KEYS: Final = {"C": "c_contiguous", "F": "f_contiguous", "W": "writeable"} | {
    name.upper(): name for name in _OF_LAYOUT | {"owndata", "writeable"}}


class ArrayFlagsValue(Value):
    """`array.flags`: what its strides, and its base, say."""

    def __init__(self, array: ArrayValue) -> None:
        super().__init__(None)
        self.array = array

    def pytype(self) -> type:
        return type(np.empty(0).flags)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.pytype())
        if name == "owndata":
            base = self.array._base(t)
            return t.make(base.is_constant() and base.as_constant() is None)
        if name == "writeable" and not isinstance(self.array, ArrayViewValue) and not self.array.scalar:
            return t.make(type(self.array) is ArrayValue)  # views that refuse writes are no tensors
        fake = self.array.tensor.fake
        numbers = [*map(int, fake.shape)], [*map(int, fake.stride())]  # those of this call
        spread = any(stride == 0 and size > 1 for size, stride in zip(*numbers, strict=True))
        if name not in _OF_LAYOUT or (spread and not isinstance(self.array, ArrayViewValue)):
            self.array._refuse(t, f"flags.{name}")
        return t.make(getattr(self.array.stand_in().flags, name))

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        known = key.as_constant() if key.is_constant() else None
        if known not in _FLAG_KEYS:
            self.array._refuse(t, f"flags[{key.describe()}]")
        return self.tp_getattro(t, _FLAG_KEYS[known])

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.array)
        cg.asm.load_attr("flags")


class ArrayMethodValue(Value):
    """`array.name`, a bound method."""

    def __init__(self, array: ArrayValue, name: str) -> None:
        super().__init__(None)
        self.array = array
        self.name = name

    def pytype(self) -> type:
        return type(np.empty(0).sum)

    def describe(self) -> str:
        return f"ndarray.{self.name}"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if self.name == "item" and not args and not kwargs:
            return tensor_methods.as_number(t, self.array.tensor, "item")
        if self.name == "tolist" and not args and not kwargs:
            return protocol.call_method(t, self.array.tensor, "tolist")
        slot = _SLOTS.get(self.name)
        if slot is not None:
            return slot(t, self.array, *args)
        what = numpy_calls.method(self.name)
        args, kwargs = numpy_tensors.method_arguments(t, self.name, args, kwargs)
        if self.name == "resize":  # only of an array that owns its memory
            return numpy_calls.call(t, what, [self.array, *args], kwargs, result_of)
        return _through_views(
            t, [self.array, *args], kwargs, lambda args, kwargs: numpy_calls.call(t, what, args, kwargs, result_of))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.array)
        cg.asm.load_attr(self.name)


_SLOTS: Final[dict[str, Callable[..., Value]]] = {
    "__len__": protocol.length, "__iter__": protocol.iter_, "__getitem__": protocol.getitem,
    "__bool__": lambda t, x: t.make(protocol.truth(t, x)), "__hash__": protocol.hash_, "__repr__": protocol.repr_,
    "__str__": protocol.str_,
}


def _type_name(cls: type) -> str:
    return f"numpy.{cls.__name__}"


def result_of(t: Tracer, tensor: Value, example: Any) -> Value:
    """The value of an array, or of a scalar, that a node gave."""
    assert isinstance(tensor, TensorValue)
    return ArrayValue(tensor, not isinstance(example, np.ndarray))


# -- functions -----------------------------------------------------------------------------------------------------

_UFUNC_METHODS: Final = frozenset({"reduce", "accumulate", "reduceat", "outer", "at"})


class ArrayFunctionValue(Value):
    """A function of NumPy: run at once on plain Python values and NumPy scalars, a node of the graph on arrays."""

    def __init__(self, fn: Any, source: Source | None) -> None:
        super().__init__(source)
        self.fn = fn

    def pytype(self) -> type:
        return type(self.fn)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> object:
        return self.fn

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if isinstance(self.fn, np.ufunc) and name in _UFUNC_METHODS:
            return ArrayFunctionValue(getattr(self.fn, name), None)
        return super().tp_getattro(t, name)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = exact(self.fn)
        return handler(t, list(args), dict(kwargs)) if handler is not None else call_function(t, self.fn, args, kwargs)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


#: The default of arguments whose absence means something of its own.
_NOT_GIVEN: Final = np._NoValue  # type: ignore[attr-defined]  # private


@wraps(type(_NOT_GIVEN))
def _wrap_not_given(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ConstantValue(obj, source)


def call_function(t: Tracer, fn: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`fn(*args, **kwargs)`, a function of NumPy or one of its scalar types."""
    implementation = getattr(fn, "_implementation", None)
    if isinstance(implementation, types.FunctionType) and not numpy_calls.is_made_of_others(implementation):
        t.break_("numpy-function", function=f"numpy.{fn.__name__}")  # files, texts
    if (number := of_numbers(t, fn, args, kwargs)) is not None:
        return number
    args = [with_known_scalars(t, arg) for arg in args]
    kwargs = {key: with_known_scalars(t, arg) for key, arg in kwargs.items()
              if not (arg.is_constant() and (key == "subok" or arg.as_constant() is _NOT_GIVEN))}  # there are no subclasses
    try:
        known, named = [concrete(arg) for arg in args], {key: concrete(arg) for key, arg in kwargs.items()}
    except NotConcrete:
        return _call_on_arrays(t, fn, args, kwargs)
    try:
        result = fn(*known, **named)
    except Exception as error:  # all arguments are known: the program raises the same
        t.raise_(type(error), *error.args)
    return _call_on_arrays(t, fn, args, kwargs) if isinstance(result, (np.ndarray, tuple, list)) else t.make(result)


def _call_on_arrays(t: Tracer, fn: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    if isinstance(fn, type):
        return _converted(t, fn, args, kwargs)
    given = [arg.realize() for arg in args]
    of_tensors = holds_tensors(given)
    if of_tensors and converts_tensors(fn, given, kwargs):
        given = [as_arrays(each, lambda tensor: _array_of_tensor(t, tensor, [], {})) for each in given]
    elif of_tensors and (python := numpy_calls.python_function(fn)) is not None:
        return t.inline(t.make(python), given, kwargs)
    what = numpy_calls.function(fn)
    result = _through_views(t, given, kwargs, lambda args, kwargs: numpy_calls.call(t, what, args, kwargs, result_of))
    return as_tensors(t, result) if gives_tensors(fn, args) else result


def _through_views(t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value],
                   call: Callable[[Sequence[Value], Mapping[str, Value]], Value]) -> Value:
    """The call; where it writes to arrays that no tensors can be views of, it is given copies, which are written back."""
    try:
        return call(args, kwargs)
    except BreakGraph as signal:
        views = [each for each in map(Value.realize, (*args, *kwargs.values())) if isinstance(each, ArrayViewValue)]
        if signal.reason not in ("numpy-function", "numpy-differs") or not views:
            raise
        copies = {view: view.written(t) for view in views}
        if any(copy is None for copy in copies.values()):
            raise
        fresh = {view: copy for view, copy in copies.items() if copy is not None}
        before = {view: copy.tensor.fake._version for view, (copy, _) in fresh.items()}

        def given(value: Value) -> Value:
            value = value.realize()
            return fresh[value][0] if isinstance(value, ArrayViewValue) else value

        try:
            result = call([given(arg) for arg in args], {name: given(arg) for name, arg in kwargs.items()}).realize()
        except BreakGraph:
            raise signal from None
        made = next((view for view, (copy, _) in fresh.items() if result is copy), None)
        changed = [view for view, (copy, _) in fresh.items() if copy.tensor.fake._version != before[view]]
        if not changed or (made is None and not (result.is_constant() and result.as_constant() is None)):
            raise  # what it gives may share memory with the views
        for view in changed:
            fresh[view][1]()
        return result if made is None else made


def _converted(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`cls(array)`, a scalar type: the numbers cast, where NumPy casts them as `astype` does, whatever they are; of one number
    a scalar."""
    array = args[0].realize() if len(args) == 1 and not kwargs else None
    if not isinstance(array, ArrayValue) or not _casts_all(array.tensor.fake.dtype, cls):
        t.break_("numpy-function", function=f"numpy.{cls.__name__}")
    result = protocol.call_method(t, array, "astype", t.make(cls))
    return result if array.tensor.fake.dim() or array.scalar else protocol.getitem(t, result, t.make(()))


def _casts_all(dtype: torch.dtype, cls: type) -> bool:
    if dtype.is_complex:
        return issubclass(cls, np.complexfloating)
    return issubclass(cls, (np.inexact, np.bool_)) or np.can_cast(numpy_agreement.numpy_dtype(dtype), cls, "safe")


def _is_function(obj: object) -> bool:
    return issubclass(type(obj), numpy_calls.FUNCTION_TYPES) or (
        type(obj) is types.BuiltinFunctionType and issubclass(type(obj.__self__), np.ufunc))


@wraps_if(_is_function, order=5)
def _wrap_function(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ArrayFunctionValue(obj, source)


def _plain_function(fn: Any) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return call_function(t, fn, args, kwargs)


for _fn in dict.fromkeys(numpy_calls.plain_functions()):
    _plain_function(_fn)
for _fn in (np.dtype, np.finfo, np.iinfo, np.promote_types):  # of types, and pure; torch._numpy has types of its own
    _plain_function(_fn)
for _cls in dict.fromkeys(np.sctypeDict.values()):
    if issubclass(_cls, (np.number, np.bool_)):
        _plain_function(_cls)


# -- from tensors to arrays and back -------------------------------------------------------------------------------


@tensor_methods.method("numpy")
def _array_of_tensor(t: Tracer, tensor: TensorValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`tensor.numpy()`: an array over the same memory, where the tensor has what an array can have."""
    fake = tensor.fake
    caller = t.frame
    differentiable = fake.requires_grad and caller is not None and marks.code_makes_arrays(caller.code.code)
    refused = fake.requires_grad and torch.is_grad_enabled() and not differentiable
    readable = fake.device.type == "cpu" and not fake.is_conj() and not fake.is_neg() and not refused
    if args or not readable or not config.trace_numpy or fake.dtype not in _DTYPES or tensor.cls is not torch.Tensor:
        t.break_("tensor-data", function="Tensor.numpy")
    if not differentiable and any(not value.is_constant() or value.as_constant() for value in kwargs.values()):
        t.break_("tensor-data", function="Tensor.numpy")
    alias = _alias(t, tensor) if differentiable else t.emit(memory_for_array if t.in_backward else "detach", [tensor])
    assert isinstance(alias, TensorValue)
    return ArrayValue(alias)


_DTYPES: Final = frozenset({
    torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.complex64, torch.complex128,
})


def _alias(t: Tracer, tensor: TensorValue) -> TensorValue:
    """Another tensor over the same memory; one with a history is of an array that `wrap_numpy` made, and keeps it."""
    found = t.emit("view_as", [tensor, tensor]) if tensor.fake.requires_grad else t.emit("detach", [tensor])
    assert isinstance(found, TensorValue)
    return found


@handles(torch.from_numpy)
def _from_numpy(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(array, ArrayValue):
        t.break_("tensor-data", function="torch.from_numpy")
    if array.scalar:
        t.raise_(TypeError, f"expected np.ndarray (got {array.pytype().__name__})")
    return array.as_tensor(t)


# -- what existed before the frame ---------------------------------------------------------------------------------


def writable_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """The tensor over the memory of an array that may be written to; None where there can be none."""
    return _tensor_over(array, tensor_of) if array.flags.writeable else None


def _tensor_over(array: np.ndarray[Any, Any], make: Callable[[np.ndarray[Any, Any]], torch.Tensor]) -> torch.Tensor | None:
    spread = any(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True))
    if type(array) is not np.ndarray or array.dtype.kind not in "bifuc" or spread:  # NumPy lays out results by such strides
        return None
    try:
        tensor = make(array)
    except (TypeError, ValueError):
        return None
    return tensor if tensor.dtype in _DTYPES else None


@wraps(np.ndarray, subclasses=True)
def _wrap_array(t: Tracer, obj: np.ndarray[Any, Any], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    # Guards and the graph get the tensor that is made when the frame begins, in the mode that is on then.
    with torch.inference_mode(t.new_source_state("inference mode").get("at the start", torch.is_inference_mode_enabled())):
        writable = obj.flags.writeable
        over = tensor_of if writable else read_only_tensor_of
        tensor = _tensor_over(obj, over) if config.trace_numpy else None
    if tensor is None:
        return UntraceableValue(obj, source, "numpy-function", function="ndarray (of a kind that no tensor can stand for)")
    t.guard(ConstIs(AttrSource(AttrSource(source, "flags"), "writeable"), writable))
    inner = ApplySource(source, over)
    t.given_tensor(tensor, inner, owner=source)
    made = (ArrayValue if writable else ReadOnlyArrayValue)(GivenTensor(t, tensor, inner), False, source)
    made.found = obj
    return made


@wraps(np.generic, subclasses=True)
def _wrap_scalar(t: Tracer, obj: np.generic, source: Source) -> Value:
    number = obj.item()
    if type(number) in (bool, int, float, complex):
        t.guard(TypeIs(source, type(obj)))
        found = t.wrap(number, ApplySource(source, number_of))
        if isinstance(found, SymValue):
            return NumPyNumberValue(type(obj), found, source)
        found.as_constant()  # read, it is guarded
    else:
        t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)


def number_of(scalar: np.generic) -> Any:
    """The Python number that a NumPy scalar is."""
    return scalar.item()


@wraps(np.finfo, np.iinfo)
def _wrap_limits(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ConstantValue(obj, source)


@wraps(np.dtype, subclasses=True)
def _wrap_dtype(t: Tracer, obj: np.dtype[Any], source: Source) -> Value:
    t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)
