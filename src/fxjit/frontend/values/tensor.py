"""Tensors of the traced program: an FX node with its fake tensor.

wrap.py makes them of real tensors that the frame found (graph inputs), `Tracer.emit` of what operators return. Every
slot puts the operation in the graph; what needs the numbers themselves breaks it. Methods are in tensor_methods.py,
subscripts in tensor_index.py.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import (
    descriptors,
    given_numbers,
    instance_dicts,
    observed,
    overrides,
    protocol,
    tensor_index,
    tensor_methods,
    wrappers,
)
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Lazy, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.extension import ExtensionPoint
from fxjit.frontend.values.given_data import TAKEN_DATA, with_given_data
from fxjit.frontend.values.late_numbers import LateNumber, tensor_identity
from fxjit.frontend.values.tensor_leaves import SettableTensor
from fxjit.frontend.values.traits import ScalarOperand, SuperLookup
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import ConstIs, IdIs, InstanceHasAttr, TypeIs
from fxjit.guards.source import (
    ApplySource,
    AttrSource,
    ClassItemSource,
    InstanceDictSource,
    ItemSource,
    RandomSource,
    Source,
    class_source,
)
from fxjit.tensor_wrappers import (
    holds_mask,
    inner_tensors,
    is_opaque,
    is_part_of_nested,
    is_sparse,
    is_wrapper,
    is_wrapper_class,
    opaque_parts,
    storages,
)

if TYPE_CHECKING:
    import torch.fx


#: Attributes that follow from what the graph input's guard has checked, or from the operator that made the tensor.
FACTS: Final = frozenset((
    "dtype", "device", "layout", "ndim", "itemsize", "requires_grad", "is_cpu", "is_cuda", "is_ipu", "is_maia",
    "is_meta", "is_mkldnn", "is_mps", "is_mtia", "is_nested", "is_quantized", "is_sparse", "is_sparse_csr", "is_vulkan",
    "is_xla", "is_xpu", "is_hpu", "name", "volatile",
))
#: Facts that the guard of an input does not hold: read from outside, they are guarded by themselves.
UNGUARDED_FACTS: Final = frozenset(("is_leaf", "output_nr", "retains_grad", "grad_dtype"))
#: Attributes that are tensors: operators by another spelling.
TENSOR_ATTRIBUTES: Final = frozenset(("T", "H", "mT", "mH", "real", "imag", "data"))
_DATA: Final = torch._C.TensorBase.__dict__["data"]
_OF_THE_CLASS: Final = (staticmethod, classmethod, types.BuiltinFunctionType)
#: How a tensor sees its memory.
_SEEN_AS: Final[tuple[Callable[[torch.Tensor], object], ...]] = (
    lambda x: x.dtype, lambda x: x.shape, lambda x: x.stride(), lambda x: x.storage_offset(), lambda x: x.device,
    lambda x: x.is_conj(), lambda x: x.is_neg(),
)
#: What has no meaning while tracing.
UNREADABLE: Final = frozenset((
    "_version", "_base", "_backward_hooks", "_post_accumulate_grad_hooks", "__cuda_array_interface__",
    "__array_interface__", "_python_dispatch",
))


def _requires_grad(node: torch.fx.Node) -> bool:
    """Whether a result of the node does."""
    results = node.meta["example_value"]
    each = results if isinstance(results, (list, tuple)) else (results,)
    return any(isinstance(result, torch.Tensor) and result.requires_grad for result in each)


def _same_kind(was: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether a gradient of the new data may arrive at what the tensor was."""
    return was.shape == data.shape and was.dtype == data.dtype and was.layout == data.layout == torch.strided


def _inputs_behind(node: torch.fx.Node, memory: torch.Tensor) -> set[torch.fx.Node]:
    """The inputs that a node of the graph takes its memory from, as far as operators hand it on."""
    is_alias_of = torch_private.get("torch._C._is_alias_of")
    behind, pending, seen = set(), [node], {node}
    while pending:
        each = pending.pop()
        if each.op == "placeholder":
            behind.add(each)
        for other in each.all_input_nodes:
            made = other.meta["example_value"]
            if other not in seen and isinstance(made, torch.Tensor) and is_alias_of(made, memory):
                seen.add(other)
                pending.append(other)
    return behind


class TensorValue(SettableTensor, SuperLookup):
    """A tensor with the slots of torch.Tensor."""

    #: What `tensor.data = ...` has given it: its node is this one's from then on, and autograd does not know of it.
    new_data: TensorValue | None = None
    #: The special method that the next slot does not look up on the class: torch's own was called by its name.
    own_left_out = ""

    def write_count(self) -> int | None:
        """Of writes to it and to aliases while tracing; None where they are not counted."""
        return None if self.fake.is_inference() else self.fake._version

    def graph_arg(self, t: Tracer) -> Any:
        if self.set_late is not None:
            self._refuse_requires_grad(t, "the graph has the tensor as it was, and an operator takes it afterwards")
        if self.new_data is not None and self.fake.requires_grad and torch.is_grad_enabled():
            return self._with_new_data(t)
        return self.node

    def _with_new_data(self, t: Tracer) -> Any:
        """The node that an operator takes whose gradient goes to the tensor."""
        self._refuse_write(t, "data", "a gradient of what is computed from it then would have to arrive at it")

    def rebuild(self, cg: Rebuilder) -> None:
        raise AssertionError("a tensor is a graph output or has a source")

    # -- attributes ----------------------------------------------------------------------------------------------

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        self._refuse_others(t, "__getattribute__")
        told = overrides.dispatch_attribute(t, self, name)
        if told is not None:
            return told
        if self.program_descriptor(t, name) is not None:
            return self._class_attribute(t, name)
        pending = self.written(t, name)
        if isinstance(pending, Value):
            return pending
        if not self._has_torchs(t, name):
            found = self._instance_attribute(t, name) if pending is None else None
            return found or self._class_attribute(t, name)
        return self._torchs_attribute(t, name, pending is None)

    def _torchs_attribute(self, t: Tracer, name: str, unwritten: bool = True) -> Value:
        if (told := self.of_a_late_leaf(t, name)) is not None:
            return told
        if name in FACTS:
            if not hasattr(self.fake, name):
                self._no_attribute(t, name)
            return t.make(getattr(self.fake, name))
        if name == "shape":
            return self.shape(t)
        if name in TENSOR_ATTRIBUTES:
            owner = self.new_data if self.new_data is not None and name == "data" else self
            return t.emit(getattr, [owner, t.make(name)])
        special = _ATTRIBUTES.get(name)
        if special is not None:
            return special(self, t)
        if name in UNGUARDED_FACTS:
            return self._read_unguarded(t, name)
        if name in UNREADABLE:
            t.break_("value-attribute", name=name, value=self.describe(), type=self.cls.__name__,
                     why="it is known only of a real tensor", **(observed.view(self) if name == "_base" else {}))
        found = self._instance_attribute(t, name) if unwritten else None
        if found is not None:
            return found
        return self._class_attribute(t, name)

    def _read_unguarded(self, t: Tracer, name: str) -> Value:
        check_history(t, self.fake)
        subject = self.real if self.real is not None else self.fake
        value = getattr(subject, name)
        if self.source is not None:
            t.guard(ConstIs(self.source_of(name), value))
        if name == "is_leaf" and value and self.fake.grad_fn is not None:
            value = False  # a write of this trace may have made it so
        return t.make(value)

    def source_of(self, name: str) -> Source:
        """Where an attribute of a tensor that existed before is found again, without a lookup on its class."""
        assert self.source is not None
        if not overrides.has_torch_function(self.cls):
            return AttrSource(self.source, name)
        return ApplySource(self.source, TorchsAttribute(name), f"Tensor.{name}")

    def _instance_attribute(self, t: Tracer, name: str) -> Value | None:
        """An attribute that user code has set on a tensor that existed before."""
        held = wrappers.attribute(t, self, name) if is_wrapper_class(self.cls) and not name.startswith("__") else None
        if held is not None:
            return held
        if self.source is None or self.real is None or name.startswith("__"):
            return None
        namespace = self.real.__dict__
        instance_dicts.meet(t, self, namespace, self.source)
        instance_dicts.look_at(t, namespace, name)
        if name not in namespace:
            if protocol.type_lookup(self.cls, name) is NOT_IMPLEMENTED:
                t.guard(InstanceHasAttr(self.source, name, False))
            return None
        return t.wrap(namespace[name], ItemSource(InstanceDictSource(self.source), name))

    def _has_torchs(self, t: Tracer, name: str) -> bool:
        """Whether what the class has under this name is torch's own, or nothing: programs put functions of their own there."""
        raw, owner = descriptors.look_up(t, self.cls, name)
        if owner is None or owner is torch._C.TensorBase:
            return True
        t.guard(IdIs(ClassItemSource(class_source(owner), name), raw))
        return tensor_methods.is_torchs(raw.fget if isinstance(raw, property) else raw)

    def _refuse_others(self, t: Tracer, name: str) -> None:
        """An operator is one of the graph where the special method is torch's own."""
        if not self._has_torchs(t, name):
            t.break_("value-slot", slot=name, type=self.cls.__name__)

    def _own(self, t: Tracer, name: str, *args: Value) -> Any:
        """The result of the program's own special method that the class has under this name; None where it has torch's."""
        left_out, self.own_left_out = self.own_left_out, ""
        if left_out == name or self._has_torchs(t, name):
            return None
        raw = protocol.type_lookup(self.cls, name)
        if not isinstance(raw, types.FunctionType):
            t.break_("value-slot", slot=name, type=self.cls.__name__)
        result = t.call(t.make(raw), [self, *args])
        return NOT_IMPLEMENTED if result.is_constant() and result.as_constant() is NotImplemented else result

    def _own_slot(self, t: Tracer, name: str, other: Value) -> Value | _NotImplemented | None:
        """The same of an operator with two operands, which may decline."""
        own: Value | _NotImplemented | None = self._own(t, name, other)
        return own

    def super_getattr(self, t: Tracer, name: str, raw: object) -> Value | None:
        if not tensor_methods.is_torchs(raw.fget if isinstance(raw, property) else raw) or isinstance(raw, _OF_THE_CLASS):
            return None
        if raw in (object.__setattr__, object.__delattr__):  # which no override is told of
            return None
        if isinstance(raw, (types.GetSetDescriptorType, property)):
            told = overrides.dispatch(t, raw.__get__, [self])
            return self._torchs_attribute(t, name) if told is None else told
        return tensor_methods.TensorMethodValue(self, name, raw)

    def _class_attribute(self, t: Tracer, name: str) -> Value:
        found = protocol.type_lookup(self.cls, name)
        if found is NOT_IMPLEMENTED:
            return self._no_attribute(t, name)
        return tensor_methods.bind(t, self, name, found)

    def _no_attribute(self, t: Tracer, name: str) -> Value:
        hook, owner = descriptors.look_up(t, self.cls, "__getattr__")
        if owner is not None:
            return t.call(descriptors.bind(t, hook, owner, "__getattr__", self, t.make(self.cls)), [t.make(name)], None)
        t.raise_(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        given = [t.make(name)] if value is None else [t.make(name), value]
        if self._own(t, "__setattr__" if value is not None else "__delattr__", *given) is None:
            self.generic_setattr(t, name, value)

    def generic_setattr(self, t: Tracer, name: str, value: Value | None) -> None:
        """The write (None: deletion) as torch's classes make it."""
        if overrides.intercepts_attribute(t, self, name):
            overrides.refuse(t, f"`{name}` of a tensor is written", [self])
        name = self.one_name(t, name)
        if name == "requires_grad" and value is not None and value.is_constant():
            if self.now_requires_grad() and not self._is_leaf(t):  # which is told so, also where nothing changes
                self._refuse_requires_grad(t, "it is no leaf of the autograd graph")
            self.set_requires_grad(t, value)
            return
        if is_wrapper_class(self.cls) and name != "grad":
            wrappers.refuse_write(t, self, name)
        raw = protocol.type_lookup(self.cls, name)
        if raw is _DATA and value is not None and self._takes_data(t, value.realize()):
            return
        described = self.program_descriptor(t, name)
        if described is not None and descriptors.assign(t, *described, name, self, value):
            return
        if name == "__dict__" and self.takes_dict(t, value):
            return
        if raw is not NOT_IMPLEMENTED and hasattr(raw, "__set__") and name != "grad":
            self._refuse_write(t, name, "it changes the tensor itself in a way that a graph cannot hold")
        if value is None and name != "grad":
            protocol.getattr_(t, self, name)  # AttributeError where there is none
        if name == "grad" and value is None:
            value = t.make(None)
        if raw is NOT_IMPLEMENTED and self.real is not None:
            instance_dicts.meet(t, self, self.real.__dict__, self.source)
        self.store_in_dict(t, name, value)
        if self.source is None and name == "grad":
            t.effects.call_later(setattr, (self, name, value))

    def _refuse_write(self, t: Tracer, name: str, why: str) -> NoReturn:
        t.break_("value-set-attribute", name=name, value=self.describe(), type=self.cls.__name__, why=why)

    def _takes_data(self, t: Tracer, value: Value) -> bool:
        """`self.data = value`, where a graph can hold that."""
        return isinstance(value, TensorValue) and self._is_own_data(value)

    def _is_own_data(self, value: TensorValue) -> bool:
        """Whether `self.data = value` changes nothing: the same memory, seen in the same way."""
        mine, given = self.fake, value.fake
        if not self._is_plain(value):
            return False
        aliases: bool = torch_private.get("torch._C._is_alias_of")(mine, given)
        if not aliases or any(fact(mine) != fact(given) for fact in _SEEN_AS):
            return False
        # Two inputs may share memory in this call, and not in the next.
        return _inputs_behind(self.node, mine) == _inputs_behind(value.node, mine)

    # -- numbers -------------------------------------------------------------------------------------------------

    def nb_bool(self, t: Tracer) -> Value:
        told = self._own(t, "__bool__") or overrides.dispatch(t, bool, [self])
        if told is not None:
            return t.make(protocol.truth(t, told))
        known = tensor_methods.known_item(self)
        if known is not None:
            return t.make(bool(known))
        numel = self.fake.numel()
        if isinstance(numel, int) and numel != 1:
            t.break_("tensor-operator", function="bool", error="the truth of several values is ambiguous")
        given = given_numbers.truth_in(t, self)
        if given is not None:
            return t.make(protocol.truth(t, given))
        t.break_("data-branch", value=self.describe())

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if reflected and other.pytype() is self.cls:
            return NOT_IMPLEMENTED  # CPython calls the method of a shared class once
        name = f"__{'r' if reflected else ''}{protocol.BINARY_METHODS[op]}__"
        own = self._own_slot(t, name, other)
        if own is not None:
            return own
        operand = self._operand(t, "" if reflected and op == "/" else op, other)
        if operand is None:
            return NOT_IMPLEMENTED
        told = overrides.dispatch(t, getattr(torch.Tensor, name, protocol.BINARY[op]), [self, operand])
        return t.emit(protocol.BINARY[op], [operand, self] if reflected else [self, operand]) if told is None else told

    def _operand(self, t: Tracer, op: str, other: Value) -> Value | None:
        operand = as_operand(t, other)
        return other.operand_for(t, self.fake, op) if operand is None and isinstance(other, ScalarOperand) else operand

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        own = self._own_slot(t, f"__i{protocol.BINARY_METHODS[op]}__", other)
        if own is not None:
            return own
        operand = self._operand(t, op, other)
        if operand is None or op == "@":
            return NOT_IMPLEMENTED
        return same_or(self, _operate(t, protocol.INPLACE[op], [self, operand]))

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        if op in ("neg", "pos", "invert", "abs"):
            return self._own(t, f"__{op}__") or _operate(t, _UNARY[op], [self])
        if op in ("int", "float", "complex", "index"):
            own: Value | _NotImplemented | None = self._own(t, f"__{op}__")
            if own is not None:
                return own
            if overrides.innermost(t) is not None or overrides.overriding_arguments(t, [self]):
                overrides.refuse(t, f"`{op}` of a tensor is asked for", [self])
            return tensor_methods.as_number(t, self, op, defers=True)
        return NOT_IMPLEMENTED

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        own = self._own_slot(t, protocol.COMPARE_METHODS[op], other)
        if own is not None:
            return own
        operand = as_operand(t, other)
        if operand is None:
            return NOT_IMPLEMENTED
        return _operate(t, protocol.COMPARE[op], [self, operand])

    # -- containers ----------------------------------------------------------------------------------------------

    def sq_length(self, t: Tracer) -> Value:
        own = self._own(t, "__len__")
        if own is not None:
            return protocol.checked_length(t, own)
        told = overrides.dispatch(t, len, [self])
        if told is not None:
            return told
        if self.fake.dim() == 0:
            t.raise_(TypeError, "len() of a 0-d tensor")
        return self.size(t, 0)

    def tp_iter(self, t: Tracer) -> Value:
        own = self._own(t, "__iter__")
        if own is not None:
            return cast(Value, own)
        # They are given what torch's Python calls.
        if overrides.innermost(t) is not None or overrides.overriding_arguments(t, [self]):
            if protocol.truth(t, protocol.compare(t, "==", protocol.call_method(t, self, "dim"), t.make(0))):
                t.raise_(TypeError, "iteration over a 0-d tensor")
            return protocol.iter_(t, protocol.call_method(t, self, "unbind", t.make(0)))
        if self.fake.dim() == 0:
            t.raise_(TypeError, "iteration over a 0-d tensor")
        return protocol.iter_(t, t.emit("unbind", [self, t.make(0)]))

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        own = self._own(t, "__contains__", item)
        if own is not None:
            return t.make(protocol.truth(t, own))
        operand = as_operand(t, item)
        if operand is None:
            t.raise_(RuntimeError, f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
                                   f"{item.pytype()}.")
        told = overrides.dispatch(t, operator.contains, [self, operand])
        return t.emit("any", [t.emit(operator.eq, [self, operand])]) if told is None else told

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        told = self._own(t, "__getitem__", key) or overrides.dispatch(t, operator.getitem, [self, key])
        return tensor_index.load(t, self, key) if told is None else told

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        if value is None:
            t.raise_(TypeError, "Tensor does not support deleting items")
        if self._own(t, "__setitem__", key, value) is not None:
            return
        if overrides.dispatch(t, operator.setitem, [self, key, value]) is None:
            tensor_index.store(t, self, key, value)

    # -- text ----------------------------------------------------------------------------------------------------

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type=self.cls.__name__)

    def tp_repr(self, t: Tracer) -> Value:
        t.break_("tensor-data", function="repr")

    def tp_str(self, t: Tracer) -> Value:
        t.break_("tensor-data", function="str")


class GivenTensor(TensorValue):
    """A tensor that existed before the frame. It is an input of the graph from the moment that the trace reads more of it than
    its type and which object it is: of one that is only passed on, nothing else is guarded."""

    may_be_set = True

    def __init__(self, t: Tracer, real: torch.Tensor, source: Source) -> None:
        Value.__init__(self, source)
        self.cls = type(real)
        self.real = real
        self._tracer = t
        self._input: tuple[torch.fx.Node, torch.Tensor] | None = None
        #: The input itself, once it was given other data of the same kind.
        self._leaf: torch.fx.Node | None = None
        #: The input itself, while operators take it without what it requires.
        self._requiring: tuple[torch.fx.Node, torch.Tensor] | None = None

    def _as_input(self) -> tuple[torch.fx.Node, torch.Tensor]:
        if self._input is None:
            assert self.real is not None and self.source is not None
            with _disable_current_modes():  # somebody may look at it who runs an operator on fakes
                self._input = self._tracer.graph_input(self.real, self.source)
            self._tracer.register_tensor(self)
        return self._input

    @property
    def node(self) -> torch.fx.Node:  # type: ignore[override]  # made when it is first read
        return self._as_input()[0]

    @property
    def fake(self) -> torch.Tensor:  # type: ignore[override]  # the same
        return self._as_input()[1]

    def graph_arg(self, t: Tracer) -> Any:
        if self.set_late is False and self._requiring is None:
            self._requiring, self.set_late = self._as_input(), None
            released = cast(TensorValue, t.emit("detach", [self]))
            self._input, self.set_late = (released.node, released.fake), False
            t.register_tensor(self)
        return self.node if self._requiring is not None else super().graph_arg(t)

    def make_leaf(self, t: Tracer, wanted: bool) -> None:
        super().make_leaf(t, wanted)
        itself = self._requiring or self._as_input()
        if self.set_late is itself[1].requires_grad:  # as at first
            self._input, self._requiring, self.set_late = itself, None, None

    def _takes_data(self, t: Tracer, value: Value) -> bool:
        """The tensor itself gets its new memory when the graph has run."""
        if super()._takes_data(t, value):
            return True
        if not isinstance(value, TensorValue) or not self._is_plain(value) or not self._can_be_given(value.fake):
            return False
        requires_grad = self.fake.requires_grad
        node, was = (self._leaf, self.fake) if self.new_data is not None else self._as_input()
        self.new_data = cast(TensorValue, protocol.getattr_(t, value, "data"))
        self._input = (self.new_data.node, self.new_data.fake)
        self._tracer.register_tensor(self)
        if requires_grad:
            self._input = (self.new_data.node, self.new_data.fake.detach().requires_grad_())
            self._leaf = node if _same_kind(was, self.new_data.fake) else None
        t.effects.call_later(setattr, (self, "data", value))
        return True

    def _with_new_data(self, t: Tracer) -> Any:
        if self._leaf is None or not t.break_points.takes_given_data or overrides.entered_transforms(t):
            super()._with_new_data(t)
        made = cast(TensorValue, t.emit(with_given_data, [self._leaf, self.new_data]))
        t.new_source_state(TAKEN_DATA).update(dict.fromkeys(map(str, storages(made.fake))))
        return made.node

    def _can_be_given(self, data: torch.Tensor) -> bool:
        """Whether nothing in the graph derives what this tensor was before, and torch makes no new kind of tensor of it."""
        if self.real is None or not self.real.is_leaf or self.real._is_view() or self.set_late is not None:
            return False
        if self.fake.device != data.device or not _C.writes_are_counted((self.real,), (0,)):
            return False
        if self.fake.requires_grad and not (data.is_floating_point() or data.is_complex()):
            return False
        return not any(map(_requires_grad, self.node.users))

    def goes_on_as(self, fake: torch.Tensor) -> None:
        """Another fake tensor stands for it from now on."""
        self._input = (self.node, fake)
        self._tracer.register_tensor(self)

    def describe(self) -> str:
        if self._input is not None or self.real is None or self.source is None:
            return super().describe()
        return f"{self.source.name}: {self.cls.__name__} {str(self.real.dtype).removeprefix('torch.')}{list(self.real.shape)}"


class OpaqueValue(Value):
    """Something a node made that is neither tensor nor number (an autocast object, say): it can only be given to other
    nodes."""

    def __init__(self, node: torch.fx.Node, obj: object) -> None:
        super().__init__(None)
        self.node = node
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def graph_arg(self, t: Tracer) -> Any:
        return self.node

    def rebuild(self, cg: Rebuilder) -> None:
        raise AssertionError("an opaque value does not leave the graph")


def _operate(t: Tracer, target: Callable[..., Any], operands: list[Value]) -> Value:
    """An operator of Python's on tensors."""
    told = overrides.dispatch(t, target, operands)
    return t.emit(target, operands) if told is None else told


def same_or(value: TensorValue, result: Value) -> Value:
    """`value` itself where an in-place operator gave it back."""
    if isinstance(result, TensorValue) and result.fake is value.fake:
        return value
    return result


def as_operand(t: Tracer, other: Value) -> Value | None:
    """`other` as the operand of a tensor's operator; None where Tensor's own operators answer NotImplemented."""
    if overrides.has_torch_function(other.pytype()) and not overrides.disabled_by(t):
        return other  # who says what the operator gives
    if other.node is not None:
        return other if not isinstance(other, OpaqueValue) else None
    if isinstance(other.source, RandomSource) and other.pytype() in (bool, int, float):
        return other  # an input of the graph
    if not other.is_constant():
        return None
    constant = other.as_constant()
    if isinstance(constant, (bool, int, float, complex)):
        return other
    if isinstance(constant, np.generic):
        return t.make(constant.item())
    return None


_UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "neg": operator.neg, "pos": operator.pos, "invert": operator.invert, "abs": operator.abs,
}


# -- attributes with a rule of their own ---------------------------------------------------------------------------


def _class_of(value: TensorValue, t: Tracer) -> Value:
    return t.make(value.cls)


def _grad(value: TensorValue, t: Tracer) -> Value:
    """The gradient that a tensor from outside had at entry; nothing in a graph accumulates one."""
    if value.source is None or value.real is None:
        return t.make(None)
    return t.wrap(value.real.grad, value.source_of("grad"))


class AutogradNodeValue(UntraceableValue):
    """`tensor.grad_fn`, of which its presence and its class are known: it is made when the graph runs. The trace breaks before
    one that is used otherwise."""

    is_suspended = True

    def __init__(self, t: Tracer, tensor: TensorValue, node: Any) -> None:
        super().__init__(node, None, "value-attribute", name="grad_fn", value=tensor.describe(), type=tensor.cls.__name__,
                         why="the autograd graph is made when the compiled graph runs", **observed.observation(tensor))
        self.created_step, self.created_index, self.created_at = t.here()
        t.new_source_state("generators").setdefault("all", []).append(self)

    def has_cleanup(self) -> bool:
        """Never: its end is not observable."""
        return False

    def why_before(self) -> tuple[str, dict[str, object]]:
        """The reason for a stop before it is read."""
        return self.reason, self.context

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(True)


def check_history(t: Tracer, fake: torch.Tensor) -> None:
    """Breaks the graph where autograd refuses a view of what was written to since."""
    try:
        fake.is_leaf  # noqa: B018
    except RuntimeError as error:
        t.break_("operator-raised", operator="a view of what was written to",
                 error=f"RuntimeError: {str(error).splitlines()[0]}")


def _grad_fn(value: TensorValue, t: Tracer) -> Value:
    check_history(t, value.fake)
    node = (value.real if value.real is not None else value.fake).grad_fn
    if value.source is not None:
        source = value.source_of("grad_fn")
        t.guard(ConstIs(source, None) if node is None else TypeIs(source, type(node)))
    if node is None and value.fake.grad_fn is not None:
        node = value.fake.grad_fn  # a write of this trace has made it
    if node is None:
        return t.make(None)
    nodes: dict[Any, Any] = t.new_source_state("autograd nodes")
    if node not in nodes:
        nodes[node] = AutogradNodeValue(t, value, node)
    return cast(Value, nodes[node])


def _nbytes(value: TensorValue, t: Tracer) -> Value:
    numel = value.fake.numel()
    count = t.make(numel) if isinstance(numel, int) else t.emit("numel", [value])
    return protocol.binary(t, "*", count, t.make(value.fake.itemsize))


_ATTRIBUTES: Final[dict[str, Callable[[TensorValue, Tracer], Value]]] = {
    "__class__": _class_of, "grad": _grad, "_grad": _grad, "grad_fn": _grad_fn, "_grad_fn": _grad_fn, "nbytes": _nbytes,
    "__dict__": lambda value, t: value.instance_dict(t), "_cdata": lambda value, t: LateNumber(tensor_identity, value),
}


# -- tensors from outside ------------------------------------------------------------------------------------------


def _has_fitting_gradient(tensor: torch.Tensor) -> bool:
    """Autograd puts one of any kind there, and a tensor may get another shape later; torch lets nobody else put such a one
    there, fake tensors among them."""
    gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None  # others warn
    if gradient is None:
        return True
    return (gradient.dtype, gradient.device, gradient.shape) == (tensor.dtype, tensor.device, tensor.shape)


def why_untraceable(tensor: torch.Tensor) -> tuple[str, str] | None:
    """The reason id and the words for a tensor that cannot be a graph input; None where it can."""
    cls = type(tensor)
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "tensor-subclass", "a functorch wrapper"
    if torch.nn.parameter.is_lazy(tensor):
        return "tensor-subclass", "an uninitialized parameter"
    if is_wrapper(tensor):
        other = next((type(part).__name__ for _, part in opaque_parts(tensor) if not is_opaque(part)), None)
        if other is not None:
            return "tensor-subclass", f"it is made of more than tensors, of a `{other}`, for which guards have no rule"
        if holds_mask(tensor):
            return "tensor-subclass", "it waits to be reduced with a mask that an embedding has left in its placement"
        if not isinstance(protocol.type_lookup(cls, "__torch_function__"), (classmethod, types.BuiltinFunctionType)):
            return "tensor-subclass", "its `__torch_function__` is no class method"
        base = tensor._base if tensor._is_view() else None
        if base is not None and not is_wrapper(base) and not is_part_of_nested(tensor) and why_untraceable(base) is not None:
            return "tensor-layout", "a view of a tensor that is not traced"
        return next(filter(None, (why_untraceable(inner) for _, inner in inner_tensors(tensor))), None)
    if not can_be_traced(cls):
        return "tensor-subclass", wrappers.NO_WRAPPER
    if tensor.is_nested:
        return "tensor-layout", "a nested tensor"
    if tensor.layout is not torch.strided:
        return "tensor-layout", f"layout {tensor.layout}"
    if tensor.is_quantized:
        return "tensor-layout", "a quantized tensor"
    base = tensor._base if tensor._is_view() and not views_sparse(tensor) else None
    if base is not None and not is_part_of_nested(tensor) and why_untraceable(base) is not None:
        return "tensor-layout", "a view of a tensor that is not traced"
    if base is not None and (tensor.is_inference() != base.is_inference() or _memory(tensor) != _memory(base)):
        return "tensor-layout", "a view in other memory than its base, of which one was given other `data`"
    if base is not None and not _has_known_history(tensor):
        return "tensor-layout", "a view made under no_grad of what was written to since, which has no autograd history"
    if not _has_fitting_gradient(tensor):  # asked last: some of those views may not be asked for it
        return "tensor-layout", "its `grad` is of another type, size or device, as where it was cast after the forward pass"
    return None


def views_sparse(tensor: torch.Tensor) -> bool:
    """Whether it is what a sparse tensor is made of, and no gradient is to arrive there."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor._is_view() and not tensor.requires_grad and not tensor.is_inference() and is_sparse(tensor._base)


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return int(tensor.untyped_storage()._cdata)


def _has_known_history(view: torch.Tensor) -> bool:
    """Whether autograd can tell how a view came about: it raises where it was written to in another grad mode."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return view.is_leaf is not None
        except RuntimeError:
            return False


def can_be_traced(cls: type) -> bool:
    """Whether tensors of this class are plain ones but for its name, its methods, and what its `__torch_function__` says."""
    raw = protocol.type_lookup(cls, "__torch_function__")
    asked = isinstance(raw, classmethod) or raw is torch._C._disabled_torch_function_impl
    return asked and protocol.type_lookup(cls, "__torch_dispatch__") is protocol.type_lookup(torch.Tensor, "__torch_dispatch__")


@dataclass(frozen=True)
class TorchsAttribute:
    """Reads an attribute of a tensor as torch has it, whatever the `__torch_function__` of its class says."""

    name: str

    def __call__(self, tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return getattr(tensor, self.name)


#: The value of a sparse tensor; None of another (sparse.py).
sparse_of: Final[ExtensionPoint[[Tracer, torch.Tensor, Source], Value | None]] = ExtensionPoint("sparse_of")


@wraps(torch.Tensor, torch.nn.Parameter, subclasses=True)
def wrap_tensor(t: Tracer, obj: torch.Tensor, source: Source) -> Value:
    reason = why_untraceable(obj)
    if reason is not None:
        t.guard(TypeIs(source, type(obj)))
        layout = "strided"
        if reason[0] == "tensor-layout":  # of a subclass, reading an attribute may be a call of the user's code
            t.guard(ConstIs(AttrSource(source, "layout"), obj.layout))
            layout = str(obj.layout)
            if (sparse := sparse_of(t, obj, source)) is not None:
                return sparse
        return UntraceableValue(obj, source, reason[0], type=type(obj).__name__, layout=layout, why=reason[1])
    overrides.note_class(t, type(obj))
    t.given_tensor(obj, source)
    return GivenTensor(t, obj, source)


def tensors_in(values: Sequence[Value]) -> list[TensorValue]:
    """The tensors among arguments, containers looked into."""
    found: list[TensorValue] = []
    for value in values:
        value = value.realized if isinstance(value, Lazy) and value.realized is not None else value
        if isinstance(value, TensorValue):
            found.append(value)
        else:
            items = getattr(value, "items", None)
            if isinstance(items, list):
                found += tensors_in(items)
    return found
