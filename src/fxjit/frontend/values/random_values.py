"""Random values: numbers and texts from Python's generators, and what follows from them, known only when the program runs.

rng.py makes them; frontend/rng_steps.py has the steps that compute them before the graph. Arithmetic on them and on constants
is a step more, done by Python itself; in an operation with a tensor they are inputs of the graph. A decision on one breaks the
graph, unless it is the same for all numbers that may be drawn (random_bounds.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit.frontend.rng_steps import RngSteps, StepResult
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.random_bounds import Bounds, between, comparison, of_extreme, of_function, of_operator
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.traits import Indistinct, LateIndex
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.guards.source import RandomSource

#: What a trace may know of a random value by its type alone.
RANDOM_TYPES: Final = (bool, int, float, str)
_NUMBERS: Final = (bool, int, float)
_NEVER_FAIL: Final = frozenset({"+", "-", "*"})
#: Numbers of a graph are machine words and finite.
_MOST: Final = 1 << 62


class RandomValue(LateIndex):
    """The result of the step at `at`: a number or a text. `made`: the operator and its operands, where it is one on integers
    that graphs have, too: a slice from `k` to `k + 3` has three rows."""

    def __init__(self, at: int, example: object, bounds: Bounds | None = None,
                 made: tuple[str, Value, Value] | None = None) -> None:
        super().__init__(RandomSource(at))
        self.at = at
        self.example: Any = example
        self.bounds = bounds
        self.made = made

    def pytype(self) -> type:
        return type(self.example)

    def describe(self) -> str:
        return f"{self.pytype().__name__} drawn at random"

    def refuse(self, t: Tracer) -> NoReturn:
        t.break_("data-random", value=self.describe())

    def specialize(self, t: Tracer) -> Value:
        """A constant, for those who need one: there is none."""
        self.refuse(t)

    def in_graph(self, t: Tracer) -> SymValue:
        """The number as an input of the graph."""
        inputs = t.new_source_state("random inputs")
        name = str(self.at)
        if name not in inputs:
            if type(self.example) not in (int, float) or not abs(self.example) < _MOST:
                self.refuse(t)
            assert self.source is not None
            inputs[name] = self._calculated(t) or t.random_input(self.example, self.source, self.bounds)
        found: SymValue = inputs[name]
        return found

    def _calculated(self, t: Tracer) -> SymValue | None:
        """The number as what the graph makes of others."""
        if self.made is None:
            return None
        op, *operands = self.made
        left, right = (each.in_graph(t) if isinstance(each, RandomValue) else each for each in operands)
        found = protocol.binary(t, op, left, right)
        return found if isinstance(found, SymValue) else None

    def graph_arg(self, t: Tracer) -> Any:
        return self.in_graph(t).node

    def in_tensor(self, t: Tracer, numbers: Sequence[Value], shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        at = step(t, tensor_of, [shape, dtype, *numbers], {}, may_fail=True)  # integers that no tensor holds
        return t.random_tensor(t.rng_steps.example(at), RandomSource(at))

    # -- decisions -----------------------------------------------------------------------------------------------

    def nb_bool(self, t: Tracer) -> Value:
        if self.bounds is not None and not self.bounds[0] <= 0 <= self.bounds[1]:
            return t.make(True)
        self.refuse(t)

    def tp_hash(self, t: Tracer) -> Value:
        self.refuse(t)

    def tp_repr(self, t: Tracer) -> Value:
        self.refuse(t)

    def tp_str(self, t: Tracer) -> Value:
        return self if self.pytype() is str else self.tp_repr(t)

    def tp_iter(self, t: Tracer) -> Value:
        if self.pytype() is str:
            self.refuse(t)
        return super().tp_iter(t)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.pytype())
        if name == "real" and self.pytype() in (int, float):
            return self
        if not hasattr(self.pytype(), name):
            return super().tp_getattro(t, name)
        self.refuse(t)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        if self.pytype() is str:
            self.refuse(t)
        return super().sq_contains(t, item)

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        if self.pytype() is str:
            self.refuse(t)
        return super().mp_subscript(t, key)

    def sq_length(self, t: Tracer) -> Value:
        if self.pytype() is not str:
            return super().sq_length(t)
        return compute(t, len, [self], may_fail=False)

    def item_of(self, t: Tracer, items: Sequence[Value]) -> Value:
        """An item drawn at random: a random value where the items are numbers or texts of one type."""
        kinds = {item.pytype() for item in items}
        if self.pytype() not in (int, bool) or len(kinds) != 1:  # which type it has, is one more decision
            self.refuse(t)
        if kinds <= set(RANDOM_TYPES):
            if not all(item.is_constant() for item in items):
                self.refuse(t)
            known = tuple(item.as_constant() for item in items)
            return compute(t, operator.getitem, [known, self], may_fail=True, bounds=between(known))
        if any(item.is_constant() for item in items):
            self.refuse(t)
        # The step raises where the program does: the frame then starts over.
        return RandomItem(compute(t, operator.getitem, [range(len(items)), self], may_fail=True), items)

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if isinstance(other, SymValue):
            mine = self.in_graph(t)
            return protocol.binary(t, op, other, mine) if reflected else protocol.binary(t, op, mine, other)
        if not _is_number(self) or not _is_number(other):
            return self._beside(t, other)
        left, right = (other, self) if reflected else (self, other)
        if op == "**" and not _is_small_power(right):
            self.refuse(t)  # a negative exponent makes floats of ints, a fraction complex numbers of floats
        by_constant = op in ("/", "//", "%") and right.is_constant() and right.as_constant() != 0
        fn = protocol.BINARY[op]
        bounds = of_operator(op, fn, bounds_of(left), bounds_of(right))
        found = compute(t, fn, [left, right], may_fail=op not in _NEVER_FAIL and not by_constant, bounds=bounds)
        if op in _NEVER_FAIL and bounds is not None and _fits_a_graph(bounds, bounds_of(left), bounds_of(right)):
            found.made = op, left, right
        return found

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        kind = self.pytype()
        if kind is bool and op == "bool":
            return self
        if kind not in _NUMBERS or (op in ("index", "invert") and kind is float):
            return NOT_IMPLEMENTED
        fn = _UNARY.get(op)
        if fn is None:
            self.refuse(t)
        may_fail = kind is float and op not in ("neg", "pos", "abs", "float")
        return compute(t, fn, [self], may_fail=may_fail, bounds=of_function(op, fn, self.bounds))

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if isinstance(other, SymValue):
            return protocol.compare(t, op, self.in_graph(t), other)
        same_kind = self.pytype() is str and other.pytype() is str
        if not (_is_number(self) and _is_number(other)) and not (same_kind and _is_known(other)):
            unlike = other.pytype() in (type(None), *RANDOM_TYPES) and op in ("==", "!=")
            return NOT_IMPLEMENTED if unlike else self._beside(t, other)
        known = None if same_kind else comparison(op, bounds_of(self), bounds_of(other))
        return compute(t, protocol.COMPARE[op], [self, other], may_fail=False) if known is None else t.make(known)

    def _beside(self, t: Tracer, other: Value) -> _NotImplemented:
        """The other operand is no number of Python's. Tensors and objects of the user's take random numbers as they take any;
        what looks into the number (a list that is repeated so many times, a text that is formatted) has to know it."""
        if other.is_constant() or other.pytype() in (list, tuple, str, bytes):
            self.refuse(t)
        return NOT_IMPLEMENTED


def _is_number(value: Value) -> bool:
    return value.pytype() in _NUMBERS and _is_known(value)


def _is_known(value: Value) -> bool:
    """Whether a step takes it as an argument."""
    return isinstance(value, RandomValue) or value.is_constant()


def tensor_of(shape: tuple[int, ...], dtype: torch.dtype, *numbers: Any) -> torch.Tensor:
    """A step: a tensor of these numbers."""
    with _disable_current_modes():
        return torch.tensor(numbers, dtype=dtype, device="cpu").reshape(shape)


def bounds_of(value: Value) -> Bounds | None:
    """Between which two a number lies; None where that is not known."""
    return value.bounds if isinstance(value, RandomValue) else between([value.as_constant()]) if value.is_constant() else None


def _fits_a_graph(*found: Bounds | None) -> bool:
    """Integers that a machine word holds."""
    return all(each is not None and type(each[0]) is int and each[0] > -_MOST and each[1] < _MOST for each in found)


def extreme(t: Tracer, fn: Callable[..., Any], numbers: Sequence[Value]) -> Value:
    """The least or the greatest of numbers that `are_random`."""
    return compute(t, fn, numbers, may_fail=False, bounds=of_extreme(fn, list(map(bounds_of, numbers))))


def are_random(numbers: Sequence[Value]) -> bool:
    """Numbers of one type, some of them random: which of them is the largest, say, is one more of these."""
    return (any(isinstance(number, RandomValue) for number in numbers) and all(map(_is_number, numbers))
            and len({number.pytype() for number in numbers}) == 1)


def _is_small_power(exponent: Value) -> bool:
    return exponent.is_constant() and type(exponent.as_constant()) is int and 0 <= exponent.as_constant() <= 4


_UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "neg": lambda x: -x, "pos": lambda x: +x, "abs": abs, "invert": lambda x: ~x, "int": int, "float": float, "index": int,
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil, "round": round,
}
#: Functions of a number that give a float, whatever the number.
_TO_FLOAT: Final = frozenset({
    "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "pow", "fabs", "fmod", "hypot", "degrees", "radians", "copysign", "cbrt",
    "erf", "erfc",
})


#: Attributes of tensors that are known without their elements: those in which all items agree are known.
_OF_TENSORS: Final = frozenset({"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse"})


class RandomItem(UntraceableValue, Indistinct):
    """One of several objects of one type: known by that, and can be passed on."""

    def __init__(self, at: Value, items: Sequence[Value]) -> None:
        super().__init__(None, None, "data-random", value=f"{items[0].pytype().__name__} drawn at random")
        self.at, self.items = at, list(items)

    def pytype(self) -> type:
        return self.items[0].pytype()

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.pytype())
        tensors = [item for item in self.items if isinstance(item, TensorValue) and item.cls is torch.Tensor]
        if name not in _OF_TENSORS or len(tensors) < len(self.items):
            self.refuse(t)
        if len({_fact(getattr(tensor.fake, name)) for tensor in tensors}) > 1:
            self.refuse(t)
        return protocol.getattr_(t, tensors[0], name)

    def may_be(self, other: Value) -> bool:
        return other.pytype() is self.pytype()

    def distinguish(self, t: Tracer) -> NoReturn:
        self.refuse(t)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(pick, self.at, *self.items)


def _fact(found: Any) -> Any:
    """A fact about a fake tensor, by which two can be compared without guards: sizes that vary by their expressions."""
    if isinstance(found, tuple):
        return tuple(map(_fact, found))
    return found.node.expr if isinstance(found, torch.SymInt) else found


def pick(at: int, *items: Any) -> Any:
    """Run-time helper of new code."""
    return items[at]


def of_math(t: Tracer, fn: Callable[..., Any], args: Sequence[Value]) -> Value | None:
    """`fn(*args)`, a function of math with a random number among its arguments; None where there is none."""
    random = next((arg for arg in args if isinstance(arg, RandomValue)), None)
    if random is None:
        return None
    if fn.__name__ not in _TO_FLOAT or not all(map(_is_number, args)):
        random.refuse(t)
    return compute(t, fn, args, may_fail=True, bounds=of_function(fn.__name__, fn, random.bounds))


def compute(t: Tracer, fn: Callable[..., Any], args: Sequence[Value | object], *, may_fail: bool,
            bounds: Bounds | None = None) -> RandomValue:
    """`fn(*args)` as a step; the type of what it gives must be that of its example, whatever comes."""
    return random_value(t, step(t, fn, args, {}, may_fail=may_fail), bounds)


def step(t: Tracer, fn: Callable[..., Any], args: Sequence[Value | object], kwargs: Mapping[str, object], *,
         may_fail: bool) -> int:
    """Note a step. What raises already on the examples is left to the running program."""
    rng_steps: RngSteps = t.rng_steps
    try:
        return rng_steps.add(fn, [_argument(arg) for arg in args], kwargs, may_fail=may_fail)
    except Exception as error:  # a function of the user's, or one that refuses what it is given
        name = getattr(fn, "__qualname__", repr(fn))
        t.break_("call-builtin", function=name, args=f"which raised {type(error).__name__}: {error}")


def _argument(arg: Value | object) -> object:
    if isinstance(arg, RandomValue):
        return StepResult(arg.at)
    return arg.as_constant() if isinstance(arg, Value) else arg


def random_value(t: Tracer, at: int, bounds: Bounds | None = None) -> RandomValue:
    """The value of what the step at `at` gives; `bounds`: between which two it lies."""
    rng_steps: RngSteps = t.rng_steps
    example = rng_steps.example(at)
    assert type(example) in RANDOM_TYPES, f"{example!r} is no random value"
    return RandomValue(at, example, bounds)
