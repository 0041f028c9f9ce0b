"""Calls of methods of tensors: `METHODS` has the handlers of those that are not one node (callables/tensor_methods.py); all
others go in the graph by their name.

tensor.py hands out `TensorMethodValue`s; callables/torch_functions.py calls `call_method` for unbound ones
(`torch.Tensor.add(x, y)`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import deferred_numbers, given_numbers, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.descriptors import BUILTIN_CALLABLES
from fxjit.frontend.values.known_tensors import known_elements
from fxjit.frontend.values.natives import bind_method
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.traits import Alternatives
from fxjit.homes import module_of
from fxjit.tensor_wrappers import is_wrapper_class

Args = Sequence[Value]
Kwargs = Mapping[str, Value]
#: `handler(tracer, tensor, args, kwargs)`.
Method = Callable[[Any, Any, Args, Kwargs], Value]

METHODS: Final[dict[str, Method]] = {}


class TensorMethodValue(Value):
    """`tensor.name`, a bound method of torch's; `raw`, where the class has another under that name (`super()`)."""

    def __init__(self, tensor: GraphTensor, name: str, raw: Any = None) -> None:
        super().__init__(None)
        self.tensor = tensor
        self.name = name
        self.raw = raw

    def pytype(self) -> type:
        return type(getattr(self.tensor.fake, self.name))

    def describe(self) -> str:
        return f"Tensor.{self.name}"

    def rebuild(self, cg: Rebuilder) -> None:
        if self.raw is not None:
            cg.call(bind_method, self.raw, self.tensor)
            return
        cg.push(self.tensor)
        cg.asm.load_attr(self.name)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.tensor
        if name in ("__name__", "__qualname__", "__doc__"):
            return t.make(getattr(getattr(self.tensor.fake, self.name), name))
        return super().tp_getattro(t, name)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op not in ("==", "!=") or not isinstance(other, TensorMethodValue):
            return NOT_IMPLEMENTED
        same = (self.name, self.raw) == (other.name, other.raw) and protocol.is_(t, self.tensor, other.tensor)
        return t.make(same is (op == "=="))

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type=self.pytype().__name__)

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return call_method(t, self.tensor, self.name, args, kwargs)


def bind(t: Tracer, tensor: GraphTensor, name: str, found: Any) -> Value:
    """`tensor.name`, where `found` is what the class has under that name."""
    if isinstance(found, (staticmethod, classmethod)):
        return t.make(getattr(tensor.cls, name))
    if not callable(found):
        inherited = found is protocol.type_lookup(torch.Tensor, name)
        if isinstance(found, property) and not (is_torchs(found.fget) and (inherited or not is_wrapper_class(tensor.cls))):
            return t.call(t.make(found.fget), [tensor], None)
        if not hasattr(found, "__get__"):
            return t.make(found)
        t.break_("value-attribute", name=name, value=tensor.describe(), type=tensor.cls.__name__,
                 why="fxjit has no rule for it")
    if found in (object.__setattr__, object.__delattr__):  # which no override is told of
        return protocol.make_builtin_method(t, tensor, name)
    if isinstance(found, types.FunctionType) and not is_torchs(found):
        return t.call(t.make(types.MethodType), [t.make(found), tensor], None)
    return TensorMethodValue(tensor, name)


_OF_C: Final = (*BUILTIN_CALLABLES, types.GetSetDescriptorType, types.MemberDescriptorType)


def is_torchs(fn: Any) -> bool:
    """A function that is not, but says so (`functools.wraps`), is known by its globals."""
    if isinstance(fn, types.FunctionType):
        module = str(fn.__globals__.get("__name__"))
    elif isinstance(fn, _OF_C):
        return True
    else:
        module = module_of(fn)
    return module == "torch" or module.startswith("torch.")


def call_method(t: Tracer, tensor: GraphTensor, name: str, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.name(*args, **kwargs)`."""
    several = [each for each in args if isinstance(each, Alternatives)]
    if several and not kwargs:
        return several[0].given_to(t, tensor, name, args)
    special = METHODS.get(name)
    if special is not None:
        return special(t, tensor, args, kwargs)
    generator = kwargs.get("generator")
    if generator is not None and not (generator.is_constant() and generator.as_constant() is None):
        t.break_("call-rng-state", function=f"Tensor.{name}")
    result = t.emit(name, [tensor, *args], kwargs)
    return tensor if getattr(result, "fake", None) is tensor.fake else result


def method(*names: str) -> Callable[[Method], Method]:
    """Register the rule for the methods of these names."""
    def register(fn: Method) -> Method:
        for name in names:
            assert name not in METHODS, f"two rules for Tensor.{name}"
            METHODS[name] = fn
        return fn
    return register


# -- numbers out of tensors ----------------------------------------------------------------------------------------


def known_item(tensor: GraphTensor) -> Any:
    """The number of a one-element tensor that the trace made of numbers and that was not written to; else None."""
    numel = tensor.fake.numel()
    constant = known_elements(tensor) if isinstance(numel, int) and numel == 1 else None
    return constant.item() if constant is not None else None


def as_number(t: Tracer, tensor: GraphTensor, op: str, defers: bool = False) -> Value:
    """`int(x)`, `float(x)`, `complex(x)`, `operator.index(x)`, and with op "item" the plain number; one that is known when the
    graph has run, if that is enough and `defers`."""
    known = known_item(tensor)
    if known is not None:
        return t.make(known) if op == "item" else protocol.unary(t, op, t.make(known))
    numel = tensor.fake.numel()
    if isinstance(numel, int) and numel != 1:
        t.break_("tensor-operator", function=op, error=f"a Tensor with {numel} elements cannot be converted to Scalar")
    kept = given_numbers.kept_number_in(t, tensor) if op != "index" or not tensor.fake.is_floating_point() else None
    if kept is not None:
        return kept if op == "item" else protocol.unary(t, op, kept)
    if not t.break_points.captures_scalars or tensor.fake.dtype.is_complex:
        later = deferred_numbers.deferred(t, tensor, op) if defers else None
        if later is not None:
            return later
        t.break_("data-item", function="Tensor.item" if op == "item" else op)
    number = t.emit("item", [tensor])
    return number if op == "item" else protocol.unary(t, op, number)


def specialized(t: Tracer, value: Value) -> Any:
    """The number behind a constant or a symbol; the trace then holds for this number alone."""
    if value.is_constant():
        return value.as_constant()
    fix = getattr(value, "specialize", None)
    if fix is None:
        t.break_("tensor-argument", function="a size", value=value.describe(), type=value.pytype().__name__)
    return fix(t).as_constant()
