"""NumPy's random numbers: the functions of `numpy.random`, `RandomState` and `Generator`.

As with Python's own generators (rng.py), a random value is a step that new code takes before its graph runs: Python's numbers
as random numbers, arrays and NumPy's numbers as inputs of the graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from fxjit import config
from fxjit.frontend.rng_steps import StepResult
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles, resolve
from fxjit.frontend.values.natives import BuiltinValue
from fxjit.frontend.values.numpy_ import ArrayValue, tensor_of, writable_tensor
from fxjit.frontend.values.random_bounds import Bounds, of_method
from fxjit.frontend.values.random_values import RANDOM_TYPES, RandomValue, bounds_of, step
from fxjit.frontend.values.rng import (
    RngMethodValue,
    RngValue,
    generator_argument,
    known_arguments,
    known_state,
    refuse,
    seed_arguments,
    shuffle_list,
    state_value,
)
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.wrap import wraps, wraps_if
from fxjit.guards.kinds import IdIs, TypeIs
from fxjit.guards.source import ApplySource, RandomSource, Source
from fxjit.schemas import written_storages


class NumpyRngValue(RngValue):
    """A `numpy.random.RandomState` or `numpy.random.Generator`, found outside or made by a step."""

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        method = protocol.type_lookup(self.pytype(), name)
        if resolve(method) is None:
            return super().tp_getattro(t, name)
        return RngMethodValue(self, name)


@wraps(np.random.RandomState, np.random.Generator)
def _wrap_generator(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return NumpyRngValue(obj, source)


_CYTHON_FUNCTION: Final = type(np.random.RandomState.rand)


@wraps_if(lambda obj: type(obj) is _CYTHON_FUNCTION and resolve(obj) is not None, order=5)
def _wrap_method(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return BuiltinValue(obj, source)


#: What changes its argument or gives something else than numbers.
_NOT_NUMBERS: Final = frozenset({"shuffle", "permuted", "spawn", "bytes", "bit_generator"})


def scalar_tensor(number: np.generic) -> torch.Tensor:
    """The tensor that a graph takes for one of NumPy's numbers."""
    return torch.from_numpy(np.array(number))


#: Methods that give one item of an array, whatever its size is, where they are given nothing else.
_OF_ONE_ITEM: Final = frozenset({"numpy.random.choice"})
#: Methods that give one number like one of Python's generators, where no size is given.
_LIKE_PYTHONS: Final = {"randint": "randrange", "rand": "random", "random": "random", "random_sample": "random"}


def _bounds(name: str, args: list[Value], kwargs: dict[str, Value]) -> Bounds | None:
    like = _LIKE_PYTHONS.get(name)
    return of_method(like, list(map(bounds_of, args))) if like is not None and len(args) < 3 and not kwargs else None


def _sizes(name: str, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The sizes that a method is asked for, where its documentation has them: `normal(loc=0.0, scale=1.0, size=None)`."""
    if name == "permutation":
        return args[:1] if args and args[0].pytype() is int else []
    method = getattr(np.random.RandomState, name, None) or getattr(np.random.Generator, name)
    names = [each.partition("=")[0].strip() for each in method.__doc__.strip().partition("(")[2].partition(")")[0].split(",")]
    if names[0] == "d0":  # rand(d0, d1, ..., dn)
        return args
    at = names.index("size") if "size" in names else len(args)
    size = kwargs.get("size", args[at] if at < len(args) else None)
    size = None if size is None else size.realize()
    if isinstance(size, (TupleValue, ListValue)):
        return size.realized()
    return [] if size is None or size.pytype() is not int else [size]


def _result(t: Tracer, at: int, name: str, sizes: list[Value], bounds: Bounds | None) -> Value:
    example = t.rng_steps.example(at)
    if type(example) in RANDOM_TYPES:
        return RandomValue(at, example, bounds)
    source = RandomSource(at)
    if isinstance(example, np.generic) and example.dtype.kind in "bif":
        return ArrayValue(t.random_tensor(scalar_tensor(example), ApplySource(source, scalar_tensor)), True, source)
    tensor = writable_tensor(example) if isinstance(example, np.ndarray) else None
    if tensor is None or any(isinstance(size, RandomValue) for size in sizes):
        refuse(t, name)
    shape = [size.sym if isinstance(size, SymValue) else size.as_constant() for size in sizes]
    shape += tensor.shape[len(shape):]
    return ArrayValue(t.random_tensor(tensor, ApplySource(source, tensor_of), shape), False, source)


def _arguments(t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> tuple[list[object], dict[str, object]]:
    """The arguments of a step; an array that the frame found is one as long as nothing was written."""
    arrays: list[ArrayValue] = []

    def given(value: Value) -> object:
        value = value.realize()
        if not isinstance(value, ArrayValue) or value.found is None or value.source is None:
            ((known,), _) = known_arguments(t, name, [value], {})
            return known
        if "out" in kwargs or written_storages(value.tensor.node.graph):
            refuse(t, name)
        t.rng_steps.found(value.found, value.source, np.copy)
        arrays.append(value)
        return value.source

    made = [given(arg) for arg in args], {key: given(arg) for key, arg in kwargs.items()}
    for size in [size for array in arrays for size in array.tensor.fake.shape]:
        if name not in _OF_ONE_ITEM or len(args) + len(kwargs) > 1:
            int(size)  # what is drawn may have that size, which is then one of this call
    return made


def _method(cls: type, name: str) -> None:
    fn, label = getattr(cls, name), f"numpy.random.{name}"

    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        generator = args[0] if args else None
        if not isinstance(generator, NumpyRngValue) or not config.trace_numpy:
            refuse(t, label)
        mine = generator_argument(t, generator, copy.deepcopy)
        if name == "set_state":
            step(t, fn, [mine, known_state(t, label, args[1:])], {}, may_fail=False)
            return t.make(None)
        given, named = (seed_arguments if name == "seed" else _arguments)(t, label, args[1:], kwargs)
        may_fail = any(isinstance(arg, (StepResult, Source)) for arg in (*given, *named.values()))
        at = step(t, fn, [mine, *given], named, may_fail=may_fail)
        if name == "get_state":
            return state_value(t.rng_steps.example(at), at)
        if name == "seed":
            return t.make(None)
        return _result(t, at, label, _sizes(name, args[1:], kwargs), _bounds(name, args[1:], kwargs))


def order(shuffle: Callable[..., None], generator: Any, rows: int, ndim: int) -> np.ndarray[Any, Any]:
    """A step: the order that `shuffle` brings so many rows in; how it draws depends on whether they are numbers or arrays."""
    places = np.arange(rows).reshape(rows, *[1] * (ndim - 1))
    shuffle(generator, places)
    return places.reshape(-1)


def _shuffles(cls: type) -> None:
    """`shuffle`, which writes the rows of an array in another order, or the items of a list."""
    fn: Any = cls.shuffle  # type: ignore[attr-defined]  # both classes have it
    label = "numpy.random.shuffle"

    @handles(fn)
    def shuffle(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        generator, *given = args
        bound = dict(zip(("x", "axis"), given, strict=False)) | kwargs
        array, axis = bound["x"].realize() if "x" in bound else None, bound.get("axis")
        along: Any = 0 if axis is None else axis.as_constant() if axis.is_constant() else None
        known = len(bound) == len(given) + len(kwargs) and bound.keys() <= {"x", "axis"} and type(along) is int
        if not known or array is None or not isinstance(generator, NumpyRngValue) or not config.trace_numpy:
            refuse(t, label)
        mine = generator_argument(t, generator, copy.deepcopy)
        if not isinstance(array, ArrayValue) and axis is None:
            return shuffle_list(t, mine, "shuffle", array)
        if not isinstance(array, ArrayValue) or array.scalar:
            refuse(t, label)
        sizes = array.tensor.fake.shape
        if not 0 <= along < len(sizes) or (along and cls is np.random.RandomState):
            refuse(t, label)
        if any(not isinstance(size, torch.SymInt) and size == 0 for size in sizes):
            refuse(t, label)
        rows = protocol.getitem(t, protocol.getattr_(t, array, "shape"), t.make(along))
        (count,), _ = known_arguments(t, label, [rows], {})
        at = step(t, order, [fn, mine, count, len(sizes)], {}, may_fail=False)
        index = TupleValue([*[t.make(slice(None))] * along, _result(t, at, label, [rows], None)])
        protocol.setitem(t, array, t.make(...), protocol.getitem(t, array, index))
        return t.make(None)


def _of_module(fn: Any, method: Any) -> None:
    """`numpy.random.seed` and its like, which are no methods of the generator they use."""
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call(t.make(method.__func__), [t.make(method.__self__), *args], kwargs)


for _cls in (np.random.RandomState, np.random.Generator):
    for _name in dir(_cls):
        if not _name.startswith("_") and _name not in _NOT_NUMBERS and type(getattr(_cls, _name)) is _CYTHON_FUNCTION:
            _method(_cls, _name)
    _shuffles(_cls)
_of_module(np.random.seed, np.random.mtrand._rand.seed)  # type: ignore[attr-defined]  # where the module's functions are
_of_module(np.random.ranf, np.random.random_sample)
_of_module(np.random.sample, np.random.random_sample)


#: What numbers come from: a generator is made of a bit generator, and that of a sequence of seeds.
_BITS: Final = tuple(each for each in vars(np.random).values()
                     if isinstance(each, type) and np.random.BitGenerator in each.__bases__)


class SeedSequenceValue(RngValue):
    """A `numpy.random.SeedSequence` made by a step; `entropy` is what it was made of, if that is an integer."""

    def __init__(self, obj: object, source: Source, entropy: Value | None) -> None:
        super().__init__(obj, source)
        self.entropy = entropy

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "entropy" and self.entropy is not None:
            return self.entropy
        return super().tp_getattro(t, name)


def _made_of(t: Tracer, name: str, value: Value) -> object:
    """What a generator is made of, as the argument of a step: a seed, or what a step made."""
    value = value.realize()
    if isinstance(value, RngValue) and isinstance(value.source, RandomSource):
        return StepResult(value.source.at)
    (seed,), _ = seed_arguments(t, name, [value], {})
    return seed


def _creates_generator(make: Any) -> None:
    @handles(make)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        label = f"numpy.random.{make.__name__}"
        given = [_made_of(t, label, arg) for arg in args]
        named = {name: _made_of(t, label, arg) for name, arg in kwargs.items()}
        may_fail = any(isinstance(arg, Source) for arg in (*given, *named.values()))  # a negative one, say
        at = step(t, make, given, named, may_fail=may_fail)
        example, source = t.rng_steps.example(at), RandomSource(at)
        if isinstance(example, np.random.SeedSequence):
            return SeedSequenceValue(example, source, args[0] if len(args) == 1 and args[0].pytype() is int else None)
        return (RngValue if isinstance(example, np.random.BitGenerator) else NumpyRngValue)(example, source)


for _make in (np.random.RandomState, np.random.Generator, np.random.default_rng, np.random.SeedSequence, *_BITS):
    _creates_generator(_make)
