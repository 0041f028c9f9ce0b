"""Python modules: guarded by identity; attributes of trusted packages are taken as they are."""

from __future__ import annotations

import types

from fxjit.frontend.values import descriptors
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Tracer, Value
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import AttrSource, Source


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
        written = t.effects.load_attr(self, name)
        if isinstance(written, Value):
            return written
        try:
            found = getattr(self.module, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        if written is NOT_IMPLEMENTED:
            t.raise_(AttributeError, f"module '{self.module.__name__}' has no attribute '{name}'")
        stable = descriptors.is_trusted(self.module.__name__) and isinstance(
            found, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType))
        if stable or self.source is None:
            return t.make(found)
        return t.wrap(found, AttrSource(self.source, name)).realize()

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        t.effects.store_attr(self, name, value)


@wraps(types.ModuleType, subclasses=True)
def _wrap_module(t: Tracer, obj: types.ModuleType, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return PyModuleValue(obj, source)
