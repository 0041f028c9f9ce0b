"""Global namespaces: the globals dict of the traced frame, those of functions inlined into it, and `sys.modules`.

The interpreter's *_GLOBAL instructions read and write them by name. One dict has one value, so that a write in one
inlined function is seen by all that share the module; the final state is written back when the frame ends.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import instance_dicts
from fxjit.frontend.values.base import Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.traits import Places
from fxjit.guards.kinds import HasKey, IdIs
from fxjit.guards.source import BuiltinSource, ConstSource, GlobalSource, GlobalsSource, ItemSource, Source

_KNOWN_BUILTINS: Final = (type, types.BuiltinFunctionType)


class NamespaceValue(Places):
    """The globals dict `namespace`, with the builtins behind it. `written` holds what the trace stored (None: deleted)."""

    def __init__(self, namespace: dict[str, Any], builtins: dict[str, Any], source: Source) -> None:
        super().__init__(source)
        self.namespace = namespace
        self.builtins = builtins
        self.written: dict[str, Value | None] = {}
        self._loaded: dict[str, Value] = {}
        #: Whether the trace met a global, and whether it wrote attributes to its module in a way that is not seen here.
        self.was_met = self.hides_writes = False

    def pytype(self) -> type:
        return dict

    def met_keys(self) -> set[str]:
        """The names that the trace looked for or wrote."""
        return {*self._loaded, *self.written}

    def load(self, t: Tracer, name: str) -> Value | None:
        """The value of a global or builtin name; None where there is none."""
        self.meet(t)
        t.effects.note_read(self, name)
        found: Value | None = self._loaded.get(name)
        if found is not None:
            return found
        found = self.own(t, name)
        if found is None:
            found = self._load_builtin(t, name)
        if found is not None and name not in self.written:
            self._loaded[name] = found
        return found

    def meet(self, t: Tracer, stores: bool = False) -> None:
        """A global is about to be read, or written."""
        assert self.source is not None
        if self.hides_writes:
            t.break_("call-unsupported", callable="a function whose module has got attributes through its class")
        self.was_met = True
        instance_dicts.meet_globals(t, self, self.namespace, self.source, self.written, stores)

    def own(self, t: Tracer, name: str) -> Value | None:
        """The value of a name that the namespace itself has."""
        self.look_at(t, name)
        t.effects.note_read(self, name)
        if name in self.written:
            value = self.written[name]
            return value.realize() if value is not None else None
        if name in self.namespace:
            return t.wrap(self.namespace[name], self.item_source(name)).realize()
        assert self.source is not None
        t.guard(HasKey(self.source, name, False))
        return None

    def look_at(self, t: Tracer, name: str) -> None:
        self.meet(t)
        instance_dicts.look_at(t, self.namespace, name)

    def item_source(self, name: str) -> Source:
        """Where the global `name` is found again."""
        if isinstance(self.source, GlobalsSource):
            return GlobalSource(name)
        assert self.source is not None
        return ItemSource(self.source, name)

    def _load_builtin(self, t: Tracer, name: str) -> Value | None:
        behind = namespace_value(t, self.builtins, {})
        if name in behind.written:
            return behind.own(t, name)
        behind.look_at(t, name)
        if name not in self.builtins:
            return None
        obj = self.builtins[name]
        is_root = isinstance(self.source, GlobalsSource)
        source = BuiltinSource(name) if is_root else ItemSource(ConstSource(self.builtins, "builtins"), name)
        if isinstance(obj, _KNOWN_BUILTINS):
            t.guard(IdIs(source, obj))
            return t.make(obj)
        return t.wrap(obj, source).realize()

    def store(self, t: Tracer, name: str, value: Value | None) -> bool:
        """Bind `name` (None: delete it); False if there is nothing to delete."""
        if value is None and self.own(t, name) is None:
            return False
        self.meet(t, stores=True)
        t.effects.mutate(self, name)
        self.written[name] = value
        self._loaded.pop(name, None)
        for each in t.new_source_state("namespaces").values():
            if each.builtins is self.namespace:
                each._loaded.pop(name, None)
        return True

    def places(self) -> Iterator[tuple[Source, Value]]:
        return ((self.item_source(name), value) for name, value in self.written.items() if value is not None)

    def write_back(self, cg: Rebuilder) -> None:
        cg.asm.pop()
        for name, value in self.written.items():
            if value is None:
                cg.call(_discard, self, name)
            else:
                cg.call(operator.setitem, self, name, value)
            cg.asm.pop()

    # -- as a dict (`globals()`) ---------------------------------------------------------------------------------

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        found = self.own(t, self._name(t, key))
        if found is None:
            t.raise_(KeyError, key)
        return found

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        if not self.store(t, self._name(t, key), value):
            t.raise_(KeyError, key)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        name = self._name(t, item)
        return t.make(self.own(t, name) is not None)

    def meth_get(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        answer = self.sq_contains(t, key)
        if isinstance(answer, Value) and answer.as_constant():
            return self.mp_subscript(t, key)
        return default if default is not None else t.make(None)

    def _name(self, t: Tracer, key: Value) -> str:
        if not key.is_constant() or not isinstance(key.as_constant(), str):
            t.break_("value-slot", slot="__getitem__", type="globals()")
        return str(key.as_constant())


def _discard(namespace: dict[str, Any], name: str) -> None:
    namespace.pop(name, None)


def known_namespace(t: Tracer, namespace: dict[str, Any]) -> NamespaceValue | None:
    """The value of a globals dict that the trace has looked at."""
    known: dict[Any, Any] = t.new_source_state("namespaces")
    found = known.get(id(namespace))
    return found if isinstance(found, NamespaceValue) else None


def is_the_frames(t: Tracer, namespace: dict[str, Any]) -> bool:
    """Whether these are the globals of the frame that is traced."""
    found = known_namespace(t, namespace)
    return found is not None and isinstance(found.source, GlobalsSource)


def namespace_value(t: Tracer, namespace: dict[str, Any], builtins: dict[str, Any], is_root: bool = False,
                    function: types.FunctionType | None = None) -> NamespaceValue:
    """The one value of a globals dict in this trace; `function` is one that has it."""
    known: dict[Any, Any] = t.new_source_state("namespaces")
    found = known.get(id(namespace))
    if found is None:
        is_modules = namespace is sys.modules
        label = "sys.modules" if is_modules else f"sys.modules[{namespace.get('__name__')!r}].__dict__"
        source: Source = GlobalsSource() if is_root else ConstSource(namespace, label, function)
        found = known[id(namespace)] = NamespaceValue(namespace, builtins, source)
    assert isinstance(found, NamespaceValue)
    return found
