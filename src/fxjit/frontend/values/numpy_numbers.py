"""NumPy's scalars that vary from call to call: symbols, as Python's numbers are.

numpy_.py makes one of a scalar that the frame found with another value than before. To operators of torch, to conversions, to
indices and comparisons it is the number; what needs NumPy's own arithmetic, with its types and its overflow, takes the value
of this call, but for the operations that are Python's on `int64` and `float64`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.deferred_numpy import of_deferred
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.symscalar import SymValue, is_number
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.traits import ScalarOperand, WrappedOutput
from fxjit.guards.source import Source

#: Operations with Python's result, and the same class for it: with these types of the other operand.
_EXACT: Final = frozenset({"+", "-", "*"})
#: And those that are Python's, with these results, where `_divides_alike`.
_DIVISIONS: Final = frozenset({"/", "//", "%"})
#: Integers that a float64 holds: NumPy divides them as such.
_LARGEST: Final = 2**53
_TAKES: Final[dict[type, tuple[type, ...]]] = {np.int64: (int, np.int64), np.float64: (int, float, np.int64, np.float64)}
#: Functions of two integers that are Python's, and all functions of numbers that vary.
_EXTREMES: Final[dict[Any, Any]] = {np.minimum: min, np.maximum: max}
_OF_NUMBERS: Final = frozenset({*_EXTREMES, np.prod, np.floor, np.ceil})


class NumPyNumberValue(SymValue, WrappedOutput):
    """A NumPy scalar of the class `cls`, whose number is a symbol."""

    def __init__(self, cls: type, number: SymValue, source: Source | None = None) -> None:
        super().__init__(number.node, number.sym, source)
        self.cls = cls
        self.number = number

    def pytype(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{self.cls.__name__} {self.sym}"

    def graph_arg(self, t: Tracer) -> Any:
        """A number to torch; to NumPy (numpy_calls.py) of its own type, which no symbol has."""
        in_numpy = t.new_source_state("numpy").get("arrays") is not None
        return self.specialize(t).as_constant() if in_numpy else self.node

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(self.cls, self.number)

    def specialize(self, t: Tracer) -> Value:
        return t.make(self.cls(self.number.specialize(t).as_constant()))

    def nb_bool(self, t: Tracer) -> Value:
        return self.number.nb_bool(t)

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if isinstance(other, TensorValue):
            return NOT_IMPLEMENTED
        if other.pytype() in _TAKES.get(self.cls, ()):
            mine, theirs = self.number, _number_of(t, other)
            first, second = (theirs, mine) if reflected else (mine, theirs)
            if op in _EXACT or (op in _DIVISIONS and _divides_alike(t, op, first, second)):
                return _of_class(t, np.float64 if op == "/" else self.cls, protocol.binary(t, op, first, second))
        fixed = self.specialize(t)
        return protocol.binary(t, op, other, fixed) if reflected else protocol.binary(t, op, fixed, other)

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        if op in ("int", "index", "float") and (op != "index" or issubclass(self.cls, np.integer)):
            return self.number.nb_unary(t, op)
        if op in ("neg", "pos") and self.cls in _TAKES:
            return _of_class(t, self.cls, protocol.unary(t, op, self.number))
        return protocol.unary(t, op, self.specialize(t))

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if isinstance(other, TensorValue):
            return NOT_IMPLEMENTED
        if is_number(other) or isinstance(other, NumPyNumberValue):
            decided = protocol.truth(t, protocol.compare(t, op, self.number, _number_of(t, other)))
            return t.make(np.bool_(decided))
        return protocol.compare(t, op, self.specialize(t), other)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "item":
            return _ItemMethodValue(self)
        if name == "__class__":
            return t.make(self.cls)
        return protocol.getattr_(t, self.specialize(t), name)


class _ItemMethodValue(Value):
    """`scalar.item`, a bound method."""

    def __init__(self, scalar: NumPyNumberValue) -> None:
        super().__init__(None)
        self.scalar = scalar

    def pytype(self) -> type:
        return type(np.float64(0).item)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if args or kwargs:
            return protocol.call_method(t, self.scalar.specialize(t), "item", *args)
        return self.scalar.number

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.scalar)
        cg.asm.load_attr("item")


class ComputedNumber(ScalarOperand):
    """A NumPy scalar that the graph computes, if it is `scalar`: to a tensor's operators a number whose type counts less than
    the tensor's, which a tensor without dimensions is too, beside one with some."""

    scalar: bool

    @property
    def tensor(self) -> TensorValue:
        """The tensor with its number."""
        raise AssertionError("a subclass says where it is")

    def operand_for(self, t: Tracer, tensor: torch.Tensor, op: str) -> Value | None:
        mine, floats = self.tensor.fake.dtype, (torch.float32, torch.float64)  # below these, operators round once with numbers
        whole = mine == torch.int64 and not tensor.is_floating_point() and tensor.dtype != torch.bool
        known = whole or (mine in (*floats, torch.int64) and tensor.dtype in floats)
        if not self.scalar or op not in _EXACT | {"/"} or not known or tensor.is_complex():
            return None
        if tensor.dim() or mine == tensor.dtype:
            return self.tensor
        return t.emit("to", [self.tensor, t.make(tensor.dtype)]) if tensor.dtype in floats else None

    def before_tensor(self, t: Tracer, tensor: TensorValue, op: str, reflected: bool) -> _NotImplemented:
        """Leaves `self op tensor` to the tensor, as NumPy does."""
        if not reflected and op != "/" and self.operand_for(t, tensor.fake, op) is not None:
            return NOT_IMPLEMENTED
        t.break_("numpy-function", function=f"{self.pytype().__name__}.{protocol.BINARY[op].__name__} of a tensor")


def with_known_scalars(t: Tracer, data: Value) -> Value:
    """`data`, a number or lists and tuples of them, with the values of this call for NumPy's scalars that vary: where their
    types matter."""
    data = data.realize()
    if isinstance(data, NumPyNumberValue):
        return data.specialize(t)
    if isinstance(data, (ListValue, TupleValue)) and any(isinstance(item, NumPyNumberValue) for item in data.realized()):
        made = ListValue if isinstance(data, ListValue) else TupleValue
        return made([with_known_scalars(t, item) for item in data.realized()])
    return data


def of_numbers(t: Tracer, fn: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """The NumPy scalar that a function makes of Python's numbers, one of which varies, as sizes do: the lesser or the greater
    of two integers, the product of several, and a positive number rounded down or up; or what it makes of numbers out of
    tensors. None for all else."""
    if (later := of_deferred(t, fn, args, kwargs)) is not None:
        return later
    if fn not in _OF_NUMBERS or kwargs or len(args) != (2 if fn in _EXTREMES else 1):
        return None
    given = [arg.realize() for arg in args]
    if fn is np.prod:
        given = [each.realize() for each in given[0].realized()] if isinstance(given[0], (ListValue, TupleValue)) else []
    given = [_number_of(t, each) if each.pytype() is np.int64 else each for each in given]
    integers = all(_is_of_64_bits(each) for each in given)
    if not any(isinstance(each, SymValue) for each in given):
        return None
    if fn in _EXTREMES:
        return _of_class(t, np.int64, protocol.call(t, t.make(_EXTREMES[fn]), given)) if integers else None
    if fn is np.prod:
        return _product(t, given) if integers else None
    (number,) = given
    if number.pytype() is not float or not _is_between(t, number, 0.0, 2.0**52):
        return None
    return _of_class(t, np.float64, protocol.unary(t, "float", protocol.unary(t, fn.__name__, number)))


def _of_class(t: Tracer, cls: type, number: Value) -> Value:
    return NumPyNumberValue(cls, number) if isinstance(number, SymValue) else t.make(cls(number.as_constant()))


def _product(t: Tracer, numbers: Sequence[Value]) -> Value | None:
    """None where NumPy's product might not be Python's."""
    product = numbers[0]
    for number in numbers[1:]:
        product = protocol.binary(t, "*", product, number)
        if not _is_between(t, product, -(2**62), 2**62):
            return None
    return _of_class(t, np.int64, product)


def _is_of_64_bits(value: Value) -> bool:
    if value.pytype() is not int:
        return False
    return isinstance(value, SymValue) or (value.is_constant() and -(2**63) <= value.as_constant() < 2**63)


def _is_between(t: Tracer, number: Value, least: float, greatest: float) -> bool:
    """Whether it is more than the one and less than the other, which is guarded."""
    return all(protocol.truth(t, protocol.compare(t, sign, number, t.make(limit)))
               for sign, limit in ((">", least), ("<", greatest)))


def _divides_alike(t: Tracer, op: str, first: Value, second: Value) -> bool:
    """Whether Python divides these as NumPy does, which is guarded: not by zero, integers by integers with a remainder, and to
    a fraction such as a float64 holds."""
    if op != "/" and not all(each.pytype() is int for each in (first, second)):
        return False
    if not protocol.truth(t, protocol.compare(t, "!=", second, t.make(0))):
        return False
    whole = [each for each in (first, second) if each.pytype() is int]
    return op != "/" or all(_is_between(t, each, -_LARGEST, _LARGEST) for each in whole)


def _number_of(t: Tracer, value: Value) -> Value:
    """The Python number of a number of Python's or NumPy's."""
    if isinstance(value, NumPyNumberValue):
        return value.number
    known = value.as_constant() if value.is_constant() else None
    return t.make(known.item()) if isinstance(known, np.generic) else value
