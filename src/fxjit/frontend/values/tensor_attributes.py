"""Attributes of tensors that are the program's: writes, properties and other descriptors of subclasses, and `tensor.__dict__`.

Attributes of a tensor that existed before are written when the graph has run. One that was made while tracing gets its own
where it leaves the trace: of one that nobody keeps nothing is written, and the graph does not give it out. Its `__dict__` may
be another dict (`result.__dict__ = {...}`), which has its attributes from then on.
"""

from __future__ import annotations

import types
from typing import Any, Final

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, instance_dicts, protocol, tensor_methods
from fxjit.frontend.values.base import Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.functions import function_namespace
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.tensor_base import GraphTensor

_OF_C: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)


class AttributedTensor(GraphTensor):
    """A tensor with the attributes that programs give it."""

    #: The `__dict__` of one that was made while tracing, once somebody has asked for it or given it one.
    own_dict: DictValue | None = None
    _namespace: Value | None = None

    def namespace(self) -> dict[str, Any] | None:
        """The instance dict of the real tensor."""
        return None if self.real is None else self.real.__dict__

    def instance_dict(self, t: Tracer) -> Value:
        """`self.__dict__`. That of one made while tracing is a dict like any other, which has its attributes from then on."""
        if self.source is None:
            if self.own_dict is None:
                written = t.effects.stored_attrs(self).items()
                self.own_dict = DictValue(t, [(t.make(name), value) for name, value in written if value and name != "grad"])
            return self.own_dict
        if self._namespace is None:
            instance_dicts.meet(t, self, self.namespace(), self.source)
            self._namespace = function_namespace(t, self, self.source)
        return self._namespace

    def written(self, t: Tracer, name: str) -> Value | _NotImplemented | None:
        """The attribute as the trace has written it; None where it has not."""
        name = self.one_name(t, name)
        if self.own_dict is None or name == "grad":
            found: Value | _NotImplemented | None = t.effects.load_attr(self, name)
            return found
        if hasattr(type(protocol.type_lookup(self.cls, name)), "__set__"):
            return None
        entry = self.own_dict.find(t, t.make(name))
        return None if entry is None else entry[1].realize()

    def one_name(self, t: Tracer, name: str) -> str:
        """The name under which an attribute is written: a tensor's gradient has two in torch's classes."""
        return "grad" if name == "_grad" and self.program_descriptor(t, "grad") is None else name

    def program_descriptor(self, t: Tracer, name: str) -> tuple[Any, type] | None:
        """The data descriptor of this name that a subclass has: its property, or an object with a `__set__` of its own."""
        raw, owner = descriptors.look_up(t, self.cls, name)
        if owner is None or owner in torch.Tensor.__mro__ or isinstance(raw, _OF_C):
            return None
        if not descriptors.is_data_descriptor(t, raw):
            return None
        return (raw, owner) if not tensor_methods.is_torchs(getattr(raw, "fget", raw)) else None

    def store_in_dict(self, t: Tracer, name: str, value: Value | None) -> None:
        """Write an attribute of the instance itself, or delete it (None)."""
        if self.own_dict is None or name == "grad":
            t.effects.store_attr(self, name, value)
        elif value is None:
            self.own_dict.remove(t, t.make(name))
        else:
            self.own_dict.store(t, t.make(name), value)

    def takes_dict(self, t: Tracer, value: Value | None) -> bool:
        """`self.__dict__ = value` of a tensor made while tracing. The dict, which may be another's `__dict__`, is no copy:
        who has it sees the attributes."""
        value = None if value is None else value.realize()
        if not isinstance(value, DictValue) or value.cls is not dict or self.source is not None:
            return False
        t.effects.mutate(self)
        self.own_dict = value
        return True

    def fill(self, cg: Rebuilder) -> None:
        """The attributes of one that was made while tracing, where it leaves the trace."""
        if self.own_dict is not None:
            cg.call(object.__setattr__, self, "__dict__", self.own_dict)
            cg.asm.pop()
            return
        for name, value in cg.effects.stored_attrs(self).items():
            if value is not None and name != "grad":
                cg.call(object.__setattr__, self, name, value)
                cg.asm.pop()
