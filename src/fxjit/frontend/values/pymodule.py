"""Python modules: guarded by identity; functions and classes of trusted packages are too, and what those hold is not."""

from __future__ import annotations

import builtins
import types
import warnings

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import backend_flags, descriptors, instance_dicts
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.contexts import entered_for_real
from fxjit.frontend.values.namespaces import NamespaceValue, known_namespace, namespace_value
from fxjit.frontend.values.untraceable import StandInValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import HasAttr, IdIs
from fxjit.guards.source import AttrSource, ConstSource, InstanceDictSource, Source


class PyModuleValue(Value):
    """A Python module."""

    def __init__(self, module: types.ModuleType, source: Source | None = None) -> None:
        super().__init__(source)
        self.module = module

    def pytype(self) -> type:
        return type(self.module)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> types.ModuleType:
        return self.module

    def describe(self) -> str:
        return f"module {self.module.__name__}"

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.module)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        written = backend_flags.load(t, self.module, name) or self._written(t, name)
        if isinstance(written, Value):
            return written
        if name == "__dict__" and type(self.module) is types.ModuleType:
            self._refuse_set(t, name)
            return namespace_value(t, vars(self.module), vars(builtins))
        self._look_at(t, name)
        try:
            found = getattr(self.module, name)
            if not isinstance(found, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)):
                self._refuse_set(t, name)
        except AttributeError as error:
            if not descriptors.is_trusted(self.module.__name__):
                t.guard(HasAttr(self.source or ConstSource(self.module, self.module.__name__), name, False))
            t.raise_(AttributeError, *error.args)
        if written is NOT_IMPLEMENTED:
            t.raise_(AttributeError, f"module '{self.module.__name__}' has no attribute '{name}'")
        stable = descriptors.is_trusted(self.module.__name__) and isinstance(
            found, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType))
        source = self.source or ConstSource(self.module, self.module.__name__)
        if stable:
            if not isinstance(found, types.ModuleType):  # programs put functions of their own there
                t.guard(IdIs(AttrSource(source, name), found))
            return t.make(found)
        return t.wrap(found, AttrSource(source, name)).realize()

    def _look_at(self, t: Tracer, name: str) -> None:
        namespace = namespace_value(t, vars(self.module), vars(builtins))
        t.effects.note_read(namespace, name)
        if type(self.module) is types.ModuleType:
            namespace.look_at(t, name)
        else:
            self._meet(t, namespace)
            instance_dicts.look_at(t, namespace.namespace, name)

    def _meet(self, t: Tracer, namespace: NamespaceValue, stores: bool = False) -> None:
        source = InstanceDictSource(self.source or ConstSource(self.module, self.module.__name__))
        instance_dicts.meet_globals(t, self, namespace.namespace, source, namespace.written, stores)

    def _written(self, t: Tracer, name: str) -> Value | _NotImplemented | None:
        """As effects.load_attr; what functions of the module wrote to its globals counts."""
        namespace = known_namespace(t, vars(self.module))
        if namespace is not None and name in namespace.written:
            t.effects.note_read(namespace, name)
            value = namespace.written[name]
            return NOT_IMPLEMENTED if value is None else value.realize()
        return t.effects.load_attr(self, name)

    def _refuse_set(self, t: Tracer, name: str) -> None:
        """Refuses what a block has set while tracing, which the program has not set when the graph begins."""
        if self.module is warnings and entered_for_real(t):
            t.break_("attribute-unsupported", value=self.describe(), name=name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self._refuse_set(t, name)
        if backend_flags.store(t, self.module, name, value):
            return
        of_class = descriptors.look_up(t, type(self.module), name)[0]
        if descriptors.is_data_descriptor(t, of_class) or (type(self.module) is not types.ModuleType and name.startswith("__")):
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        if type(self.module) is not types.ModuleType:
            namespace = namespace_value(t, vars(self.module), vars(builtins))
            if namespace.was_met:
                t.break_("attribute-unsupported", value=self.describe(), name=name)
            self._meet(t, namespace, stores=True)
            namespace.hides_writes = True
            t.effects.store_attr(self, name, value)  # its class may have a say: torch.backends.cudnn and its like
        elif not namespace_value(t, vars(self.module), vars(builtins)).store(t, name, value):
            t.raise_(AttributeError, f"module '{self.module.__name__}' has no attribute '{name}'")


@wraps(types.ModuleType, subclasses=True)
def _wrap_module(t: Tracer, obj: types.ModuleType, source: Source) -> Value:
    own = any(descriptors.look_up(t, type(obj), name)[1] is not types.ModuleType for name in ("__getattribute__", "__dict__"))
    if own or "__name__" not in (obj.__dict__ or ()):  # one made by `__new__` alone has not even a namespace
        return StandInValue(obj, source, "attribute-unsupported", value="module", name="__getattribute__")
    t.guard(IdIs(source, obj))
    return PyModuleValue(obj, source)
