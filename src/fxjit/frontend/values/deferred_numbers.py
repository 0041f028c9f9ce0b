"""Numbers out of tensors (`loss.item()`, `float(x)`) that the program passes on, sums up, or checks: they stay in the graph as
tensors, and new code makes Python's numbers of them when the graph has run.

What Python computes of such numbers (a running mean) it computes then, of the numbers themselves. A comparison is computed in
the graph as well, where it gives what Python's gives, so that a check (`assert loss.item() < 1e8`) needs no break, and a
decision breaks where it is made. What Python refuses of some numbers (a root, a quotient) is computed where the graph can check
that the number is none of those (`_holds`), and a tensor takes a number as an operand that is a tensor without dimensions.
Whoever needs the number while tracing has the trace begin anew and break where it was read, if a frame can be resumed there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import numpy as np
import torch

from fxjit.errors import RestartTrace, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import given_numbers, overrides, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.extension import ExtensionPoint
from fxjit.frontend.values.known_tensors import known_elements
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.traits import Indistinct, ScalarOperand
from fxjit.schemas import written_storages
from fxjit.tensor_wrappers import is_wrapper

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.values.tensor import TensorValue

_FAMILY: Final = "deferred numbers"
_INTEGERS: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NUMBERS: Final = (bool, int, float)
_WIDEST: Final[dict[type, torch.dtype]] = {bool: torch.bool, int: torch.int64, float: torch.float64}
#: Integers up to here are float64s, and float64s below half of it may have fractions.
_MANTISSA: Final = 53
_EXACT: Final = 1 << _MANTISSA
#: Integers of that many bits may have no place in int64.
_WORD: Final = 64
#: Integers of more bits are left alone: they may be too large for a float.
_MOST_BITS: Final = 900

#: Whether the graph can break at the instruction that is running, and no frame is given up for it (interp/nesting.py).
can_break_here: Final[ExtensionPoint[[Tracer], bool]] = ExtensionPoint("can_break_here")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a number was read: the step, in which frame, and whether the graph can break there."""

    step: int
    frame: Machine
    can_break: bool


def _unknown() -> None:
    """The number is not computed in the graph."""


class DeferredNumber(Indistinct, ScalarOperand):
    """`fn(*args)`, a number of the type `kind`, or what NumPy makes of some (deferred_numpy.py). `in_graph` computes it in the
    graph, exactly, or gives None; `bits`: the most that it may have, of an integer."""

    def __init__(self, t: Tracer, kind: type, fn: Callable[..., Any], args: Sequence[Value], origins: frozenset[Origin],
                 in_graph: Callable[[], Value | None] = _unknown, bits: int = 0) -> None:
        super().__init__(None)
        self.kind, self.fn, self.args, self.origins, self.bits = kind, fn, tuple(args), origins, bits
        self.in_graph = in_graph
        self._t, self._operand = t, cast("GraphTensor | None", None)
        t.new_source_state(_FAMILY)["made"] = True

    def pytype(self) -> type:
        return self.kind

    def describe(self) -> str:
        return f"{self.kind.__name__} out of a tensor"

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(self.fn, *self.args)

    # -- who needs it now ----------------------------------------------------------------------------------------

    def refuse(self) -> NoReturn:
        """The number has to be known while tracing."""
        t = self._t
        if all(origin.can_break for origin in self.origins):
            needed = partial(t.break_points.needed_numbers.update, [origin.step for origin in self.origins])
            leave_trace(RestartTrace("a number out of a tensor is needed", action=needed))
        t.break_("data-item", function="Tensor.item")

    def decide(self) -> NoReturn:
        """The jump that is running goes by the truth of it: the graph breaks there, in the frame that read the number."""
        t = self._t
        if any(origin.frame is not t.running_frame for origin in self.origins):
            self.refuse()
        t.break_("data-branch", value=self.describe())

    def as_constant(self) -> NoReturn:
        self.refuse()

    def graph_arg(self, t: Tracer) -> NoReturn:
        self.refuse()

    def may_be(self, other: Value) -> bool:
        if other.is_constant():
            return type(other.as_constant()) is self.kind
        return isinstance(other, DeferredNumber) or other.node is not None

    def distinguish(self, t: Tracer) -> NoReturn:
        self.refuse()

    def nb_bool(self, t: Tracer) -> NoReturn:
        self.refuse()

    def tp_hash(self, t: Tracer) -> NoReturn:
        self.refuse()

    def tp_repr(self, t: Tracer) -> NoReturn:
        self.refuse()

    def tp_str(self, t: Tracer) -> NoReturn:
        self.refuse()

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.kind)
        if not hasattr(self.kind, name):
            return super().tp_getattro(t, name)
        self.refuse()

    # -- what Python computes of it ------------------------------------------------------------------------------

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if isinstance(other, GraphTensor) and not reflected and op != "/" and self._operand_for(t, other.fake, op) is not None:
            return NOT_IMPLEMENTED  # the tensor's own operator takes it
        if op == "/" and isinstance(other, GraphTensor) and not reflected:  # as Tensor.__rtruediv__ has it
            inverse = cast("TensorValue", t.emit("reciprocal", [other]))
            return t.emit(operator.mul, [inverse, self.operand_for(t, inverse.fake, "*")])
        if not self._is_operand(other):
            return NOT_IMPLEMENTED
        left, right = (other, self) if reflected else (self, other)
        kinds = {left.pytype(), right.pytype()}
        if op not in (*_BITS_OF, "/", "**") or bool in kinds:
            self.refuse()
        if op in ("/", "//", "%") and not _is_other_than_zero(t, right):
            self.refuse()
        if op == "**":
            return _power(t, left, right) or self.refuse()
        widest = [_bits(each) for each in (left, right)]
        bits = 0 if op == "/" or float in kinds else _BITS_OF[op](*widest)
        if max(*widest, bits) > _MOST_BITS:
            self.refuse()
        kind = float if op == "/" or float in kinds else int
        return _made(t, kind, protocol.BINARY[op], [left, right], partial(_arithmetic, t, op, kind, left, right), bits)

    def operand_for(self, t: Tracer, tensor: torch.Tensor, op: str) -> Value | None:
        return self._operand_for(t, tensor, op) or self.refuse()

    def _operand_for(self, t: Tracer, tensor: torch.Tensor, op: str) -> Value | None:
        """As `operand_for`; below float32, operators round once with numbers, and what an integer has no place for raises."""
        floats = tensor.dtype in (torch.float32, torch.float64) and self.kind in (int, float)
        if op not in ("+", "-", "*", "/") or not (floats or (tensor.dtype is torch.int64 and self.kind is int)):
            return None
        if _is_under_others(t) or is_wrapper(tensor) or tensor.layout is not torch.strided:
            return None
        number = self._operand if self._operand is not None and not t.captures_subgraph else self.in_graph()
        if not isinstance(number, GraphTensor) or number.fake.device != tensor.device:
            return None
        if not t.captures_subgraph:  # whose nodes are its own
            self._operand = number
        return number if tensor.dim() else t.emit("to", [number, t.make(tensor.dtype)])

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        if op in ("neg", "pos", "abs") and self.kind is not bool:
            of_tensor = partial(_of_tensor, t, protocol.UNARY[op], self) if self.kind is float else _unknown
            return _made(t, self.kind, protocol.UNARY[op], [self], of_tensor, self.bits)
        if op == "float":
            return self if self.kind is float else _made(t, float, float, [self])
        if op == "int" and self.kind is not float:
            return self if self.kind is int else _made(t, int, int, [self], bits=1)
        if op in ("index", "invert") and self.kind is float:
            return NOT_IMPLEMENTED
        if op in _WHOLE and self.kind is int:
            return self
        return (_whole(t, op, self) if op in _WHOLE else None) or self.refuse()

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if not self._is_operand(other):
            return NOT_IMPLEMENTED
        return _made(t, bool, protocol.COMPARE[op], [self, other], partial(_compared, t, op, self, other))

    def _is_operand(self, other: Value) -> bool:
        """Whether it is a number of Python's. Whatever else takes a number, or looks into it (a tensor, a text), has to know
        it; None takes none."""
        if other.is_constant():
            if other.as_constant() is None:
                return False
            if not _is_known(other):
                self.refuse()
        elif not isinstance(other, DeferredNumber) and not _is_symbol(other):
            self.refuse()
        if not {self.kind, other.pytype()} <= set(_NUMBERS):
            self.refuse()
        return True


def deferred(t: Tracer, tensor: GraphTensor, op: str) -> Value | None:
    """What `op` ("item", "int", "float", "bool") gives of a tensor with one element; None where the graph has to break."""
    points, kind = t.break_points, _kind(tensor.fake)
    if not (points.defers_numbers and points.reads_data) or t.captures_subgraph or t.steps in points.needed_numbers:
        return None
    if kind is None or op not in ("item", "int", "float", "bool"):
        return None
    if tensor.pytype() not in (torch.Tensor, torch.nn.Parameter) or _is_under_others(t):
        return None
    if getattr(tensor, "new_data", None) is not None or getattr(tensor, "set_late", None) is not None:
        return None  # the graph has the tensor as it was
    origin = Origin(t.steps, t.running_frame, can_break_here(t))
    if op == "int" and kind is float:
        return _whole(t, "int", _Read(t, tensor, "float", kind, origin))
    return _Read(t, tensor, op, kind, origin)


def _kind(fake: torch.Tensor) -> type | None:
    """The type of the number in such a tensor; None where it has not one element of a type that Python has."""
    if not isinstance(fake.numel(), int) or fake.layout is not torch.strided or fake.device.type == "meta":
        return None
    return bool if fake.dtype is torch.bool else int if fake.dtype in _INTEGERS else float if fake.dtype in _FLOATS else None


def _is_under_others(t: Tracer) -> bool:
    """Whether a transform or a mode of the program's sees what is done with tensors."""
    return bool(overrides.entered_transforms(t) or overrides.entered_modes(t)) or overrides.innermost(t) is not None


class _Read(DeferredNumber):
    """The number in a tensor, as the tensor was when it was read."""

    def __init__(self, t: Tracer, tensor: GraphTensor, op: str, kind: type, origin: Origin) -> None:
        convert: type | None = {"int": int, "float": float, "bool": bool}.get(op)
        kind = convert or kind
        self._is_inside = t.requires_grad_inside(tensor)  # and leaves the graph without that
        super().__init__(t, kind, convert or number_in, (), frozenset([origin]), self._computed, bits=64 if kind is int else 1)
        self._tensor = tensor
        # Torch warns where a tensor that requires grad is converted by `float` or `int`.
        self._warns = self._is_inside and op in ("int", "float")
        detaches = tensor.fake.requires_grad and (self._is_inside or op in ("item", "bool"))
        self._copy = t.emit("clone", [t.emit("detach", [tensor]) if detaches else tensor])
        assert self._copy.node is not None, "a tensor of the graph"
        self._copy.node.meta["only_if_used"] = True

    def _computed(self) -> Value:
        t, number, fake = self._t, self._copy, self._tensor.fake
        if fake.requires_grad:
            number = t.emit("detach", [number])
        if fake.dim():
            number = t.emit("reshape", [number, t.make(())])
        return t.emit("to", [number, t.make(_WIDEST[self.kind])])

    def rebuild(self, cg: Rebuilder) -> None:
        node = self._copy.node
        assert node is not None
        changes = bool(written_storages(node.graph)) or (self._tensor.source is not None and bool(cg.effects.records()))
        copy = TensorRequiringGrad(self._copy) if self._warns else self._copy
        cg.call(self.fn, copy if changes or self._is_inside else self._tensor)


class TensorRequiringGrad(Value):
    """A tensor of new code that requires a gradient."""

    def __init__(self, tensor: Value) -> None:
        super().__init__(None)
        self.tensor = tensor

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(requiring_grad, self.tensor)


def requiring_grad(tensor: torch.Tensor) -> torch.Tensor:
    """Run-time helper of new code."""
    return tensor.requires_grad_()


def number_in(tensor: torch.Tensor) -> Any:
    """Run-time helper of new code."""
    return tensor.item()


def truth(t: Tracer, value: Value, negated: bool = False) -> Value | None:
    """`bool(value)`, or `not value`, of a tensor or a deferred number; None where that is known while tracing, or the graph has
    to break."""
    later: Value | None = None
    if isinstance(value, GraphTensor):
        later = deferred(t, value, "bool") if _is_unknown_truth(t, value) else None
    elif isinstance(value, DeferredNumber) and value.kind is bool:
        later = value
    elif isinstance(value, DeferredNumber) and issubclass(value.kind, (*_NUMBERS, np.generic)):
        in_graph = partial(_compared, t, "!=", value, t.make(0)) if value.kind in _NUMBERS else value.in_graph
        later = _made(t, bool, bool, [value], in_graph)
    if later is None or not negated:
        return later
    return _made(t, bool, operator.not_, [later], partial(_of_tensor, t, torch.logical_not, later))


def _is_unknown_truth(t: Tracer, tensor: GraphTensor) -> bool:
    """Whether only the graph knows the truth of a tensor, and nobody overrides how it is asked for."""
    if tensor.pytype() is not torch.Tensor or t.break_points.captures_scalars or known_elements(tensor) is not None:
        return False
    return isinstance(tensor.fake.numel(), int) and tensor.fake.numel() == 1 and given_numbers.truth_in(t, tensor) is None


def are_made(t: Tracer) -> bool:
    """Whether this trace has such numbers."""
    return bool(t.new_source_state(_FAMILY))


def is_deferred(value: Value) -> bool:
    """Whether a number is known only when the graph has run."""
    return isinstance(value, DeferredNumber)


def of_function(t: Tracer, fn: Callable[..., Any], args: Sequence[Value]) -> Value | None:
    """`fn(*args)`, a function of Python's with a deferred number among its arguments; None where there is none, or where what
    it gives is another kind of number for other arguments, or nothing at all."""
    if fn in _CLASSES_OF_NUMBERS and len(args) == 1 and isinstance(args[0], GraphTensor):
        args = [protocol.unary(t, "float", args[0])]
    if not any(map(is_deferred, args)) or not all(is_deferred(each) or _is_known(each) or _is_symbol(each) for each in args):
        return None
    kinds = {each.pytype() for each in args}
    if not kinds <= set(_NUMBERS):
        return None
    if fn in (min, max):
        if len(kinds) > 1:
            return None
        return _made(t, kinds.pop(), fn, args, partial(_extreme, t, fn, args), bits=max(map(_bits, args)))
    if fn is round:
        digits = args[1].as_constant() if len(args) == 2 and args[1].is_constant() else None
        return _made(t, float, fn, args) if args[0].pytype() is float and type(digits) is int and digits >= 0 else None
    if len(args) != 1:
        return None
    if fn in _CLASSES_OF_NUMBERS:
        return _made(t, bool, fn, args, in_class(t, fn, args[0])) if kinds == {float} else None
    bounds = DOMAINS.get(fn)
    if bounds is None or not kinds <= {int, float} or not are_within(t, bounds, args[0]):
        return None
    return _made(t, float, fn, args)


_CLASSES_OF_NUMBERS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    math.isnan: torch.isnan, math.isinf: torch.isinf, math.isfinite: torch.isfinite,
}


def in_class(t: Tracer, fn: Callable[..., Any], number: Value) -> Callable[[], Value | None]:
    """What computes `fn(number)`, a class of floats, in the graph."""
    return partial(_of_tensor, t, _CLASSES_OF_NUMBERS[fn], number)


#: Functions of one number that give a float, and bounds within which they raise of none.
DOMAINS: Final[dict[Callable[..., Any], tuple[tuple[str, float], ...]]] = {
    math.exp: (("<", 700.0),), math.expm1: (("<", 700.0),), math.sqrt: ((">=", 0.0),), math.log1p: ((">", -1.0),),
    **dict.fromkeys((math.log, math.log2, math.log10), ((">", 0.0),)),
    **dict.fromkeys((math.sin, math.cos, math.tan), ((">", -1e300), ("<", 1e300))),
    **dict.fromkeys((math.sinh, math.cosh), ((">", -700.0), ("<", 700.0))),
    **dict.fromkeys((math.tanh, math.atan, math.asinh, math.fabs, math.erf, math.erfc, math.radians), ()),
}


def are_within(t: Tracer, bounds: Sequence[tuple[str, float]], number: Value) -> bool:
    """Whether the graph checks that a deferred number is within these bounds."""
    return isinstance(number, DeferredNumber) and all(_holds(t, op, number, limit) for op, limit in bounds)


def _holds(t: Tracer, op: str, number: DeferredNumber, limit: float) -> bool:
    """Whether the graph checks that `number op limit`: where it is not, eager's code runs, and raises what it raises."""
    check = _compared(t, op, number, t.make(limit))
    return check is not None and t.speculate(cast("TensorValue", check), True)


#: How many bits a result has, at the most, of operands that are integers of so many.
_BITS_OF: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: max(left, right) + 1, "-": lambda left, right: max(left, right) + 1,
    "*": lambda left, right: left + right, "//": lambda left, right: left + 1, "%": lambda left, right: right,
}
#: Roundings to integers, and torch's.
_WHOLE: Final[dict[str, Callable[..., Any]]] = {
    "int": torch.trunc, "trunc": torch.trunc, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
}
_MOST_WHOLE: Final = 2.0**62
_MOST_EXPONENT: Final = 64


def _whole(t: Tracer, op: str, number: DeferredNumber) -> Value | None:
    """A float as an integer; None where it may be too large, or none at all."""
    if number.kind is not float or not are_within(t, ((">", -_MOST_WHOLE), ("<", _MOST_WHOLE)), number):
        return None

    def in_graph() -> Value | None:
        found = _of_tensor(t, _WHOLE[op], number)
        return None if found is None else t.emit("to", [found, t.make(torch.int64)])

    return _made(t, int, protocol.UNARY[op], [number], in_graph, bits=63)


def _power(t: Tracer, base: Value, exponent: Value) -> Value | None:
    """`base ** exponent` with one of them known; None where Python may refuse it, or give a complex number."""
    args, other = [base, exponent], exponent if isinstance(base, DeferredNumber) else base
    if not other.is_constant():
        return None
    known: Any = other.as_constant()
    if isinstance(base, DeferredNumber):
        if not 0 < known <= _MOST_EXPONENT:
            return None
        if base.kind is int and type(known) is int:
            bits = base.bits * known
            return _made(t, int, operator.pow, args, bits=bits) if bits <= _MOST_BITS else None
        limit = min(float(10 ** int(300 / max(known, 1))), _MOST_WHOLE if base.kind is int else math.inf)
        least = (">", -limit) if type(known) is int else (">=", 0.0)
        return _made(t, float, operator.pow, args) if are_within(t, (least, ("<", limit)), base) else None
    if isinstance(exponent, DeferredNumber) and type(known) is float and 0 < known <= 1:
        return _made(t, float, operator.pow, args) if are_within(t, ((">=", 0.0),), exponent) else None
    return None


def _made(t: Tracer, kind: type, fn: Callable[..., Any], args: Sequence[Value],
          in_graph: Callable[[], Value | None] = _unknown, bits: int = 0) -> DeferredNumber:
    return made(t, kind, fn, args, args, in_graph, bits)


def made(t: Tracer, kind: type, fn: Callable[..., Any], args: Sequence[Value], numbers: Sequence[Value],
         in_graph: Callable[[], Value | None] = _unknown, bits: int = 0) -> DeferredNumber:
    """`fn(*args)` of these numbers, some of them deferred, which the arguments are or hold."""
    origins = frozenset[Origin]().union(*[each.origins for each in numbers if isinstance(each, DeferredNumber)])
    return DeferredNumber(t, kind, fn, args, origins, in_graph, bits)


def _is_known(value: Value) -> bool:
    return value.is_constant() and type(value.as_constant()) in _NUMBERS


def _is_symbol(value: Value) -> bool:
    return value.node is not None and value.pytype() in (int, float)


def _is_other_than_zero(t: Tracer, divisor: Value) -> bool:
    """Whether one can divide by it: of a number that varies that is a guard, of one that the graph computes a check."""
    if divisor.is_constant():
        return bool(divisor.as_constant() != 0)
    if isinstance(divisor, DeferredNumber):
        return _holds(t, "!=", divisor, 0)
    return _is_symbol(divisor) and protocol.truth(t, protocol.compare(t, "!=", divisor, t.make(0)))


def _bits(value: Value) -> int:
    if isinstance(value, DeferredNumber):
        return value.bits
    known = value.as_constant() if value.is_constant() else 0
    return int(known).bit_length() if type(known) in (bool, int) and known else 64 if value.pytype() is int else 0


def _of_tensor(t: Tracer, fn: Callable[..., Any], number: Value) -> Value | None:
    tensor = number.in_graph() if isinstance(number, DeferredNumber) else None
    return None if tensor is None else t.emit(fn, [tensor])


def _compared(t: Tracer, op: str, left: DeferredNumber, right: Value) -> Value | None:
    """The comparison of the graph, where it is exact."""
    tensor = _operand(t, left)
    if tensor is None:
        return None
    if isinstance(right, DeferredNumber):
        other = _operand(t, right) if (right.kind is float) is (left.kind is float) else None
        return None if other is None else t.emit(protocol.COMPARE[op], [tensor, other])
    if not right.is_constant():
        return None
    known = right.as_constant()
    if left.kind is not float and isinstance(known, float):
        if math.isfinite(known) and known == int(known):
            known = int(known)
        elif math.isfinite(known) and abs(known) > _EXACT >> 1:
            return None
        else:
            tensor = t.emit("to", [tensor, t.make(torch.float64)])
    if isinstance(known, int) and abs(known) > (_EXACT if left.kind is float else (1 << 63) - 1):
        return None
    return t.emit(protocol.COMPARE[op], [tensor, t.make(float(known) if left.kind is float else known)])


def _arithmetic(t: Tracer, op: str, kind: type, left: Value, right: Value) -> Value | None:
    """`left op right` of the graph, where it is exact: in float64, or in int64, if the graph checks that the integers are small
    enough for that."""
    if op not in ("+", "-", "*", "/"):
        return None
    both, kinds = (left, right), {left.pytype(), right.pytype()}
    if kind is int or op == "/":  # of two integers Python rounds the quotient alone
        most = [_MANTISSA if isinstance(each, DeferredNumber) and each.kind is int else _bits(each) for each in both]
        if float not in kinds and (max(most) if op == "/" else _BITS_OF[op](*most)) >= _WORD:
            return None
    tensors = [_exact_operand(t, each, kind, small=float not in kinds) for each in both]
    if any(each is None for each in tensors):
        return None
    operands = [each for each in tensors if each is not None]
    if op == "/" and any(isinstance(each, GraphTensor) and each.fake.device.type != "cpu" for each in operands):
        return None  # a GPU multiplies by the inverse of a number
    return t.emit(protocol.BINARY[op], operands)


def _exact_operand(t: Tracer, number: Value, kind: type, small: bool) -> Value | None:
    """A number, as one of this type, for an operator of the graph; an integer is checked where it has to be small."""
    if number.is_constant():
        return t.make(kind(number.as_constant()))
    if not isinstance(number, DeferredNumber):
        return None
    if small and number.kind is int and number.bits > _MANTISSA and not are_within(t, ((">", -_EXACT), ("<", _EXACT)), number):
        return None
    tensor = number.in_graph()
    return None if tensor is None else t.emit("to", [tensor, t.make(_WIDEST[kind])])


def _extreme(t: Tracer, fn: Callable[..., Any], numbers: Sequence[Value]) -> Value | None:
    """`min` or `max` of the graph: Python's keeps the first of those that are equal, or no numbers."""
    kind = numbers[0].pytype()
    tensors = [_exact_operand(t, each, kind, small=False) for each in numbers]
    known = next((each for each in tensors if isinstance(each, GraphTensor)), None)
    if known is None or any(each is None for each in tensors):
        return None
    found, *others = [t.emit("new_full", [known, t.make(()), each]) if each.is_constant() else each for each in tensors if each]
    for each in others:
        found = t.emit(torch.where, [t.emit(torch.gt if fn is max else torch.lt, [each, found]), each, found])
    return found


def _operand(t: Tracer, number: DeferredNumber) -> Value | None:
    tensor = number.in_graph()
    return t.emit("to", [tensor, t.make(torch.int64)]) if tensor is not None and number.kind is bool else tensor
