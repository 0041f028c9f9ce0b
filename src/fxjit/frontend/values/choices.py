"""What Python's `min` and `max` give of tensors with one element, and of one and a number: one of several objects, and the
graph says which.

The graph computes with the number of the one that was found. The program gets the very object: new code picks it when the graph
has run. What tells an object from another one of the same number (`is`, a write to it, a view of it) breaks the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from fxjit import schemas
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol, tensor_methods
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.traits import Alternatives, Indistinct, WrappedOutput

if TYPE_CHECKING:
    import torch.fx

_FAMILY: Final = "choices"


class ChosenTensor(TensorValue, WrappedOutput, Indistinct):
    """`chosen` where `condition` holds, else `other`."""

    def __init__(self, t: Tracer, condition: TensorValue, chosen: TensorValue, other: TensorValue) -> None:
        Value.__init__(self, None)
        self.cls = torch.Tensor
        self.condition, self.chosen, self.other = condition, chosen, other
        self._tracer = t
        self._compute()

    def _compute(self) -> None:
        self._seen = self._versions()
        made = self._tracer.emit(torch.where, [self.condition, self.chosen, self.other])
        assert isinstance(made, TensorValue)
        self._node, self._fake = made.node, made.fake
        self._own_version = self._fake._version

    def _versions(self) -> tuple[int, ...]:
        return tuple(version for each in (self.chosen, self.other)
                     for version in (each._versions() if isinstance(each, ChosenTensor) else (each.fake._version,)))

    @property
    def node(self) -> torch.fx.Node:  # type: ignore[override]  # computed anew once what it was chosen from was written to
        if self._seen != self._versions():
            self._compute()
        return self._node

    @property
    def fake(self) -> torch.Tensor:  # type: ignore[override]  # of the same form each time
        return self._fake

    def may_be(self, other: Value) -> bool:
        return isinstance(other, TensorValue)

    def distinguish(self, t: Tracer) -> NoReturn:
        t.break_("data-branch", value=self.describe())

    def instance_dict(self, t: Tracer) -> Value:
        self.distinguish(t)

    def store_in_dict(self, t: Tracer, name: str, value: Value | None) -> None:
        self.distinguish(t)

    def is_distinguished_by(self, result: object) -> bool:
        """Whether an operator that gave this has written to the tensor, or looks at its memory."""
        if self._fake._version != self._own_version:
            return True
        results = result if isinstance(result, (list, tuple)) else (result,)
        mine = self._fake.untyped_storage()._cdata
        return any(isinstance(each, torch.Tensor) and each is not self._fake and each.untyped_storage()._cdata == mine
                   for each in results)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self.distinguish(t)

    def set_requires_grad(self, t: Tracer, value: Value) -> None:
        self.distinguish(t)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(pick, self.condition, self.chosen, self.other)


class NumberOrTensor(Alternatives):
    """`chosen` where `condition` holds, else `other`: a number of Python's and a tensor. What follows from it is computed of
    both, as eager would, and the graph takes one; whatever asks which type it has, breaks."""

    def __init__(self, t: Tracer, condition: TensorValue, chosen: Value, other: Value) -> None:
        super().__init__(None)
        self.condition, self.chosen, self.other = condition, chosen, other
        self._tracer = t

    def pytype(self) -> type:
        self.distinguish(self._tracer)

    def describe(self) -> str:
        return f"{self.chosen.describe()} or {self.other.describe()}"

    def may_be(self, other: Value) -> bool:
        return isinstance(other, (TensorValue, NumberOrTensor)) or _is_number(other)

    def distinguish(self, t: Tracer) -> NoReturn:
        t.break_("data-branch", value=self.describe())

    def graph_arg(self, t: Tracer) -> NoReturn:
        self.distinguish(t)

    def applied(
        self, t: Tracer, fn: Callable[..., Any] | str, before: tuple[Value, ...], after: tuple[Value, ...]
    ) -> Value:
        first, second = (self._result(t, fn, [*before, each, *after]) for each in (self.chosen, self.other))
        tensors = [each for each in (first, second) if not _is_number(each)]
        if not may_choose(t, tensors, of_any_size=True):
            self.distinguish(t)
        if len(tensors) == 2:
            return t.emit(torch.where, [self.condition, first, second])
        return NumberOrTensor(t, self.condition, first, second)

    def _result(self, t: Tracer, fn: Callable[..., Any] | str, operands: list[Value]) -> Value:
        if not all(each.is_constant() for each in operands):
            if not all(isinstance(each, TensorValue) or _is_number(each) for each in operands):
                self.distinguish(t)
            if not any(isinstance(each, TensorValue) for each in operands):
                return self._number(t, fn, operands)
            return t.emit(fn, operands)
        try:
            assert callable(fn)  # a method has a tensor, which is no constant
            made = fn(*[each.as_constant() for each in operands])
        except Exception:  # raised by the program only if it comes to that
            self.distinguish(t)
        if type(made) not in _NUMBERS:
            self.distinguish(t)
        return t.make(made)

    def _number(self, t: Tracer, fn: Callable[..., Any] | str, operands: list[Value]) -> Value:
        """Of numbers, some of which vary. A quotient could raise, which eager does only if it comes to that."""
        op = _UNRAISING.get(fn)
        if op is None:
            self.distinguish(t)
        made = protocol.unary(t, op, *operands) if len(operands) == 1 else protocol.binary(t, op, *operands)
        if not _is_number(made):
            self.distinguish(t)
        return made

    def given_to(self, t: Tracer, tensor: Value, name: str, args: Sequence[Value]) -> Value:
        """Of methods that go by element: one that writes is that of the plain one's result, written back."""
        plain = name.removesuffix("_")
        if not (isinstance(tensor, TensorValue) and schemas.is_pure_by_element(plain)) or args.count(self) != 1:
            self.distinguish(t)
        at = args.index(self)
        made = self.applied(t, plain, (tensor, *args[:at]), tuple(args[at + 1 :]))
        if name == plain:
            return made
        if not isinstance(made, TensorValue) or _kind(made) != _kind(tensor):  # which could not be written back
            self.distinguish(t)
        t.emit("copy_", [tensor, made])
        return tensor

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> NoReturn:
        self.distinguish(t)  # the tensor would be written to

    def nb_unary(self, t: Tracer, op: str) -> Value:
        if op not in ("neg", "abs"):
            self.distinguish(t)
        return self.applied(t, operator.neg if op == "neg" else abs, (), ())

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(pick, self.condition, self.chosen, self.other)


def _kind(tensor: TensorValue) -> tuple[object, ...]:
    shape = tuple(size if isinstance(size, int) else size.node.expr for size in tensor.fake.shape)  # a symbol has no hash
    return shape, tensor.fake.dtype, tensor.fake.device


_NUMBERS: Final = (bool, int, float)
#: Python's operators that give a number of any two, by what `protocol` calls them.
_UNRAISING: Final[dict[object, str]] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.neg: "neg", abs: "abs",
}


def _is_number(value: Value) -> bool:
    """A number of Python's: a constant, or one that varies."""
    if type(value) is SymValue:
        return value.pytype() in (int, float)
    return value.is_constant() and type(value.as_constant()) in _NUMBERS


def pick(condition: torch.Tensor, chosen: Any, other: Any) -> Any:
    """Run-time helper of new code."""
    return chosen if condition else other


def stays_in_graph(t: Tracer, items: list[Value]) -> bool:
    """Whether `min` and `max` of these do."""
    tensors = [item for item in items if not _is_number(item)]
    return (len(tensors) == len(items) or (len(tensors), len(items)) == (1, 2)) and may_choose(t, tensors)


def may_choose(t: Tracer, items: list[Value], of_any_size: bool = False) -> bool:
    """Whether the graph may choose one of these: tensors of one kind, with one element each, of which autograd knows nothing.
    The one that is not found has no part in eager's gradient, and a gradient of zeros in the graph's, which only a program
    without breaks is given."""
    if overrides.entered_transforms(t) or overrides.innermost(t) is not None:
        return False
    kinds, single = set(), True
    for item in items:
        if not isinstance(item, TensorValue) or item.cls is not torch.Tensor or item.new_data is not None:
            return False
        fake = item.fake
        if fake.requires_grad and not t.break_points.whole:
            return False
        if fake.is_inference() or fake.layout is not torch.strided or fake.is_complex():
            return False
        kinds.add(_kind(item))
        single = single and all(size == 1 for size in fake.shape)
    return len(kinds) == 1 and (of_any_size or single)


def choose(t: Tracer, condition: Value, chosen: Value, other: Value) -> Value:
    """The first where the condition holds, else the second."""
    assert isinstance(condition, TensorValue)
    known = tensor_methods.known_item(condition)
    if known is not None:
        return chosen if known else other
    if not isinstance(chosen, TensorValue) or not isinstance(other, TensorValue):
        return NumberOrTensor(t, condition, chosen, other)
    made = ChosenTensor(t, condition, chosen, other)
    t.new_source_state(_FAMILY).setdefault("all", []).append(made)
    return made


def choices(t: Tracer) -> Iterator[ChosenTensor]:
    """Those of this trace."""
    yield from t.new_source_state(_FAMILY).get("all", ())
