"""`os.environ` in traced code: a variable that is read is a constant, guarded; writing one ends the graph.

wrap.py makes the value. What is guarded is the entry of the dict behind `os.environ`, whose keys and values are bytes.
"""

from __future__ import annotations

import os
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value, _NotImplemented
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import ConstIs, HasKey, IdIs
from fxjit.guards.source import ConstSource, ItemSource, Source

_Environ: Final[Any] = type(os.environ)


class EnvironValue(Value):
    """`os.environ`, or a mapping like it."""

    def __init__(self, obj: Any, source: Source) -> None:
        super().__init__(source)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def _read(self, t: Tracer, key: Value) -> Value | None:
        if not key.is_constant() or not isinstance(key.as_constant(), str):
            t.break_("call-subprocess", function="os.environ")
        name = key.as_constant()
        raw, data = self.obj.encodekey(name), ConstSource(self.obj._data, "os.environ")
        if raw not in self.obj._data:
            t.guard(HasKey(data, raw, False))
            return None
        t.guard(ConstIs(ItemSource(data, raw), self.obj._data[raw]))
        return t.make(self.obj[name])

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        found = self._read(t, key)
        if found is None:
            t.raise_(KeyError, key.as_constant())
        return found

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        return t.make(self._read(t, item) is not None)

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        t.break_("call-subprocess", function="os.environ.__setitem__")

    def meth_get(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        found = self._read(t, key)
        if found is not None:
            return found
        return default if default is not None else t.make(None)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if hasattr(self, "meth_" + name) or name in ("__class__", "__getitem__", "__contains__"):
            return super().tp_getattro(t, name)
        t.break_("call-subprocess", function=f"os.environ.{name}")


@wraps(_Environ)
def _wrap_environ(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return EnvironValue(obj, source)
