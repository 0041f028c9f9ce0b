"""nn.Module: attributes in the order of its `__getattr__`, calls with or without hooks, attribute writes.

A module that existed before the frame is guarded piece by piece: its type, and whatever the trace looked at in its
`__dict__` and in its dicts of parameters, buffers and submodules. Everything that is not on the way of each forward
pass is traced from nn.Module's own Python code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.modules.module as torch_module
from torch.nn.modules.lazy import LazyModuleMixin

from fxjit import torch_private
from fxjit.errors import RestartTrace, SkipFrameSignal, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, instance_dicts, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Callee, Value
from fxjit.frontend.values.functions import MethodValue
from fxjit.frontend.values.objects import INSTANCES, UserObjectValue, instance_namespace
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import LengthIs, TypeIs
from fxjit.guards.source import ConstSource, InstanceDictSource, ItemSource, Source
from fxjit.homes import module_of

Module = torch.nn.Module

#: Classes that tensors belong to by a mark on the instance.
MARKS: Final[Mapping[type, str]] = {torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"}
#: The dicts that nn.Module.__getattr__ looks in, in its order.
STORES: Final = ("_parameters", "_buffers", "_modules")
#: A call with all of these empty is `forward` and nothing else.
HOOKS: Final = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS: Final = ("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
                       "_global_forward_pre_hooks")
_REGISTRATION_HOOKS: Final = ("_global_parameter_registration_hooks", "_global_buffer_registration_hooks",
                              "_global_module_registration_hooks")


class ModuleValue(UserObjectValue):
    """An instance of a subclass of nn.Module."""

    # -- attributes ----------------------------------------------------------------------------------------------

    def generic_getattr(self, t: Tracer, name: str, hook: bool = True) -> Value:
        """As UserObjectValue, with nn.Module's stores read directly for what only they can have."""
        store = self._store_with(t, name)
        if store is not None and descriptors.look_up(t, self.cls, name)[0] is NOT_IMPLEMENTED:
            return self._stored(t, store, name)
        return super().generic_getattr(t, name, hook)

    def _real_dict(self) -> dict[str, Any]:
        found = instance_namespace(self.obj) if self.obj is not None else None
        return found if found is not None else {}

    def _is_untouched(self, t: Tracer, store: str) -> bool:
        """Whether the store is as it was before the frame."""
        if self.obj is None or store in t.effects.stored_attrs(self):
            return False
        return not _changed(t, self._real_dict()[store])

    def _store_with(self, t: Tracer, name: str) -> str | None:
        """The store that holds `name`, if nn.Module's own lookup is in force and nothing stands before it."""
        if name in STORES or name.startswith("__") or not self._has_torchs(t, "__getattr__"):
            return None
        namespace = self._real_dict()
        written = t.effects.stored_attrs(self)
        if name in written or (name in namespace and self.source is not None):
            return None
        for store in STORES:
            if store in written or store not in namespace:
                items = self.instance_attr(t, store)
                if items is not None and protocol.contains(t, items, t.make(name)):
                    return store
            elif _changed(t, namespace[store]):
                if protocol.contains(t, self._store_value(t, store), t.make(name)):
                    return store
            elif name in namespace[store]:
                return store
        return None

    def _store_value(self, t: Tracer, store: str) -> Value:
        found = self.instance_attr(t, store)
        assert found is not None, f"{self.cls.__name__} has no {store}"
        return found

    def _stored(self, t: Tracer, store: str, name: str) -> Value:
        if self._is_untouched(t, store) and self.source is not None:
            source = ItemSource(ItemSource(InstanceDictSource(self.source), store), name)
            return t.wrap(self._real_dict()[store][name], source).realize()
        return protocol.getitem(t, self._store_value(t, store), t.make(name))

    def _has_torchs(self, t: Tracer, method: str) -> bool:
        """Whether it is nn.Module's own; a program may have put another there."""
        raw, owner = descriptors.look_up(t, self.cls, method)
        return owner is Module and raw.__globals__ is vars(torch_module)

    # -- writes --------------------------------------------------------------------------------------------------

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        """nn.Module.__setattr__ where the name is, and stays, in one place; its own code is traced for all other cases."""
        if value is not None and self._has_torchs(t, "__setattr__") and not any(map(_global_hooks, _REGISTRATION_HOOKS)):
            value = value.realize()
            kind = value.pytype()
            store = self._store_with(t, name)
            is_marked = issubclass(kind, torch.Tensor) and not issubclass(kind, torch.nn.Parameter) and any(
                protocol.hasattr_(t, value, mark) for mark in MARKS.values())
            if store is None and not is_marked and not issubclass(kind, (torch.nn.Parameter, Module)):
                self.generic_setattr(t, name, value)
                return
            none = value.is_constant() and value.as_constant() is None
            if store is not None and not is_marked and self._fits(store, kind, none):
                protocol.setitem(t, self._store_value(t, store), t.make(name), value)
                return
        super().tp_setattro(t, name, value)

    @staticmethod
    def _fits(store: str, kind: type, none: bool) -> bool:
        if none:
            return True
        if store == "_parameters":
            return issubclass(kind, torch.nn.Parameter)
        if store == "_buffers":
            return issubclass(kind, torch.Tensor) and not issubclass(kind, torch.nn.Parameter)
        return issubclass(kind, Module)

    # -- calls ---------------------------------------------------------------------------------------------------

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        target = self.callee(t, list(args))
        return super().tp_call(t, args, kwargs) if target is None else t.call(target.fn, target.args, kwargs)

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        if not (self._has_torchs(t, "__call__") and self._has_torchs(t, "_call_impl")):
            return super().callee(t, args)
        initialize_lazy_module(t, self.obj, args)
        outer: Any = (Module.__call__, -1)  # the last of its calls is that of `_call_impl`
        if self._no_hooks(t):
            inner: Any = (Module._call_impl, 0)  # and the first of that one's is that of `forward`, where there are no hooks
            return Callee(protocol.getattr_(t, self, "forward"), args, (outer, inner))
        return Callee(MethodValue(t.make(Module._call_impl), self), args, (outer,))

    def _no_hooks(self, t: Tracer) -> bool:
        """Whether a call runs `forward` alone; guarded."""
        for name in GLOBAL_HOOKS:
            hooks = _global_hooks(name)
            known = _written(t, hooks)
            if known is None:
                t.guard(LengthIs(ConstSource(hooks, name), len(hooks)))
            if hooks if known is None else protocol.truth(t, known):
                return False
        namespace = self._real_dict()
        written = t.effects.stored_attrs(self)
        for name in HOOKS:
            if name in written or name not in namespace or _changed(t, namespace[name]):
                found = self.instance_attr(t, name)
                if found is not None and protocol.truth(t, found):
                    return False
            elif namespace[name]:
                return False
            elif self.source is not None:
                t.guard(LengthIs(ItemSource(InstanceDictSource(self.source), name), 0))
        return True


def _global_hooks(name: str) -> dict[int, Any]:
    hooks: dict[int, Any] = getattr(torch_module, name)
    return hooks


def _written(t: Tracer, obj: object) -> Value | None:
    """The value of the container `obj`, which existed before, if the trace has changed it."""
    value: Value | None = t.known(obj)
    if value is None or not t.effects.is_mutated(value):
        return None
    return value


def _changed(t: Tracer, obj: object) -> bool:
    return _written(t, obj) is not None


INSTANCES.register(Module, ModuleValue)


@wraps(Module, subclasses=True)
def wrap_module(t: Tracer, obj: torch.nn.Module, source: Source) -> Value:
    if isinstance(obj, torch.jit.ScriptModule):
        t.guard(TypeIs(source, type(obj)))
        return UntraceableValue(obj, source, "value-unknown-type", value=source.name, type=type(obj).__name__)
    t.guard(TypeIs(source, type(obj)))
    return instance_dicts.met_object(t, ModuleValue(type(obj), source, obj), obj, instance_namespace(obj))


# -- lazy modules -------------------------------------------------------------------------------------------------

infer_parameters: Final[Any] = torch_private.optional("torch.nn.modules.lazy.LazyModuleMixin._infer_parameters")


def initialize_lazy_module(t: Tracer, module: Any, args: Sequence[Value]) -> None:
    """Called where `module` is about to be called: starts the trace again with its parameters made, if they are not.

    Making them uses random numbers, which must not come before others that the frame uses first: there this call of the
    frame runs as it stands, and the next one is traced. So it does where the program's own code makes them."""
    if not isinstance(module, LazyModuleMixin):
        return
    torchs = module_of(type(module).initialize_parameters).startswith("torch.nn.modules.")
    is_made = not module.has_uninitialized_params()  # type: ignore[misc]  # typed for modules that are both
    if is_made and (torchs or "_initialize_hook" not in vars(module)):
        return
    fake = args[0].fake if len(args) == 1 and isinstance(args[0], TensorValue) else None
    if not torchs or t.graph_uses_rng or fake is None or not all(isinstance(size, int) for size in fake.shape):
        leave_trace(_not_now(module))
    given = torch.empty(fake.shape, dtype=fake.dtype, device="meta")

    def make_parameters() -> None:
        try:
            infer_parameters(module, module, (given,))
        except Exception as error:  # an input that does not fit, say: the program will see
            leave_trace(_not_now(module), error)

    leave_trace(RestartTrace("a lazy module got its parameters", make_parameters))


def _not_now(module: Any) -> SkipFrameSignal:
    return SkipFrameSignal("skip-lazy-module", {"module": type(module).__name__})
