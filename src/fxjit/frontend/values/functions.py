"""Python functions, found or made while tracing, and their bound methods.

Calling a function goes by `calls.resolve`; what no stage there claims is inlined, through `Tracer.inline`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fxjit import process_state
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import instance_dicts, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Callee, Lazy, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import Substitute, resolve
from fxjit.frontend.values.extension import ExtensionPoint
from fxjit.frontend.values.late_numbers import is_long_lived
from fxjit.frontend.values.namespaces import is_the_frames
from fxjit.frontend.values.wrap import creates, wraps
from fxjit.guards.homes import uses_globals
from fxjit.guards.kinds import CodeIs, ConstIs, HasAttr, IdIs, TypeIs
from fxjit.guards.source import AttrSource, ConstSource, ItemSource, Source

#: Attributes that a function made while tracing has from its code and its creation.
_FUNCTION_SLOTS: Final = frozenset({
    "__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__closure__", "__code__",
    "__annotations__", "__dict__", "__globals__", "__builtins__", "__type_params__",
})


class FunctionValue(Value):
    """A Python function that exists already. What it holds besides its code is read, and guarded, when it is needed."""

    cls = types.FunctionType
    fn: Any  # the function; None where it is made while tracing
    _namespace: Value | None = None

    def __init__(self, fn: types.FunctionType, source: Source | None = None) -> None:
        super().__init__(source)
        self.fn = fn
        self.code: types.CodeType = fn.__code__
        self._root: Source = source if source is not None else ConstSource(fn, fn.__qualname__)
        self._cells: list[Value] | None = None

    def pytype(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return f"function `{self.qualname}`"

    @property
    def name(self) -> str:
        return str(self.fn.__name__)

    @property
    def qualname(self) -> str:
        return str(self.fn.__qualname__)

    @property
    def globals(self) -> dict[str, Any]:
        found: dict[str, Any] = self.fn.__globals__
        return found

    # -- what inlining needs -------------------------------------------------------------------------------------

    def defaults(self, t: Tracer) -> Sequence[Value]:
        """The defaults of the last positional parameters."""
        changed = self._pending(t, "__defaults__")
        if changed is None:
            if self.fn.__defaults__ is None:
                return ()
            changed = t.wrap(self.fn.__defaults__, AttrSource(self._root, "__defaults__"))
        return items_of(t, changed)

    def kwdefaults(self, t: Tracer) -> Mapping[str, Value]:
        """The defaults of keyword-only parameters."""
        changed = self._pending(t, "__kwdefaults__")
        if changed is None:
            if self.fn.__kwdefaults__ is None:
                return {}
            changed = t.wrap(self.fn.__kwdefaults__, AttrSource(self._root, "__kwdefaults__"))
        return string_items(t, changed)

    def closure(self, t: Tracer) -> Sequence[Value]:
        """The cells of the free variables, Lazy or CellValue, in the order of `co_freevars`."""
        if self._cells is None:
            cells = self.fn.__closure__ or ()
            base = AttrSource(self._root, "__closure__")
            self._cells = [Lazy(t, cell, ItemSource(base, index)) for index, cell in enumerate(cells)]
        return self._cells

    def _pending(self, t: Tracer, name: str) -> Value | None:
        pending = t.effects.load_attr(self, name)
        if pending is NOT_IMPLEMENTED:
            return t.make(None)
        assert not isinstance(pending, _NotImplemented)
        return pending

    # -- slots ---------------------------------------------------------------------------------------------------

    @property
    def runs_its_code(self) -> bool:
        """Whether no stage of `calls.resolve` claims it: calling it is `Tracer.inline`."""
        return resolve(self.fn) is None

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        handler = resolve(self.fn)
        return Callee(t.make(handler.fn), args) if isinstance(handler, Substitute) else None

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = resolve(self.fn)
        if handler is not None:
            return handler(t, list(args), dict(kwargs))
        return t.inline(self, args, kwargs)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        pending = t.effects.load_attr(self, name)
        if pending is NOT_IMPLEMENTED:
            t.raise_(AttributeError, f"'function' object has no attribute '{name}'")
        if pending is not None:
            assert isinstance(pending, Value)
            return pending
        if name in ("__class__", "__call__", "__get__"):
            return protocol.generic_getattr(t, self, name)
        return self._unwritten_attr(t, name)

    def _unwritten_attr(self, t: Tracer, name: str) -> Value:
        """An attribute that the trace has not set."""
        if name == "__code__":
            return t.make(self.code)
        if name == "__dict__":
            self._meet_namespace(t)
            return self.instance_dict(t)
        if name not in _FUNCTION_SLOTS:
            self._meet_namespace(t)
            instance_dicts.look_at(t, self.fn.__dict__, name)
        try:
            found = getattr(self.fn, name)
        except AttributeError as error:
            t.guard(HasAttr(self._root, name, False))
            t.raise_(AttributeError, *error.args)
        if name not in _FUNCTION_SLOTS and name not in self.fn.__dict__ and callable(found):
            return protocol.generic_getattr(t, self, name)
        return t.wrap(found, AttrSource(self._root, name))

    def _meet_namespace(self, t: Tracer) -> None:
        if self.fn is not None:
            instance_dicts.meet(t, self, self.fn.__dict__, self._root)

    def namespace(self) -> dict[str, Any] | None:
        """The instance dict of the real function."""
        return None if self.fn is None else self.fn.__dict__

    def instance_dict(self, t: Tracer) -> Value:
        return self._own_namespace(t, None if self.fn is None else self._root)

    def _own_namespace(self, t: Tracer, root: Source | None) -> Value:
        if self._namespace is None:
            self._namespace = function_namespace(t, self, root)
        return self._namespace

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        _set_function_attr(t, self, name, value)

    def meth___call__(self, t: Tracer, *args: Value, **kwargs: Value) -> Value:
        return t.call(self, args, kwargs)

    def meth___get__(self, t: Tracer, instance: Value, owner: Value | None = None) -> Value:
        return self if _is_none(instance) else MethodValue(self, instance)

    def tp_repr(self, t: Tracer) -> Value:
        """Its name and its address: known of one that lives longer than a call, to which the entry is bound."""
        if self.fn is None or not is_long_lived(self._root):
            t.break_("value-slot", slot="repr", type="function")
        t.guard(IdIs(self._root, self.fn))
        t.guard(ConstIs(AttrSource(self._root, "__qualname__"), self.fn.__qualname__))
        process_state.bind("the identity of an object")
        return t.make(repr(self.fn))

    def tp_hash(self, t: Tracer) -> Value:
        return t.make(hash(self.fn))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


#: The value of a function's `__dict__`, by the function's source (objects.py).
function_namespace: Final[ExtensionPoint[[Tracer, Any, Source | None], Value]] = ExtensionPoint("function_namespace")


class MadeFunctionValue(FunctionValue):
    """A function that MAKE_FUNCTION made in a traced frame. Its globals are those of the frame that made it."""

    def __init__(self, code: types.CodeType, globals_: dict[str, Any], qualname: str | None = None) -> None:
        Value.__init__(self, None)
        self.fn = None
        self.code = code
        self._globals = globals_
        self._name = code.co_name
        self._qualname = qualname if qualname is not None else code.co_qualname
        self.default_values: Value | None = None
        self.kwdefault_values: Value | None = None
        self.annotations: Value | None = None
        self.closure_values: Value | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def qualname(self) -> str:
        return self._qualname

    @property
    def globals(self) -> dict[str, Any]:
        return self._globals

    def defaults(self, t: Tracer) -> Sequence[Value]:
        return items_of(t, self.default_values) if self.default_values is not None else ()

    def kwdefaults(self, t: Tracer) -> Mapping[str, Value]:
        return string_items(t, self.kwdefault_values) if self.kwdefault_values is not None else {}

    def closure(self, t: Tracer) -> Sequence[Value]:
        return items_of(t, self.closure_values) if self.closure_values is not None else ()

    @property
    def runs_its_code(self) -> bool:
        return True

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        return None

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.inline(self, args, kwargs)

    def _unwritten_attr(self, t: Tracer, name: str) -> Value:
        if name == "__dict__":
            return self._own_namespace(t, None)
        slot = self._slot(t, name)
        if slot is not None:
            return slot
        if hasattr(types.FunctionType, name):
            return protocol.generic_getattr(t, self, name)
        t.raise_(AttributeError, f"'function' object has no attribute '{name}'")

    def _slot(self, t: Tracer, name: str) -> Value | None:
        if name == "__name__":
            return t.make(self.name)
        if name == "__qualname__":
            return t.make(self.qualname)
        if name == "__module__":
            return t.make(self.globals.get("__name__"))
        if name == "__doc__":
            consts = self.code.co_consts
            return t.make(consts[0] if consts and isinstance(consts[0], str) else None)
        if name == "__code__":
            return t.make(self.code)
        if name == "__type_params__":
            return t.make(())
        if name == "__annotations__":
            if self.annotations is None:
                self.annotations = t.call(t.make(dict), [], None)
            elif issubclass(self.annotations.pytype(), tuple):
                pairs = items_of(t, self.annotations)
                made = t.call(t.make(dict), [], None)
                for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                    protocol.setitem(t, made, key, value)
                self.annotations = made
            return self.annotations
        held = {"__defaults__": self.default_values, "__kwdefaults__": self.kwdefault_values,
                "__closure__": self.closure_values}
        if name in held:
            found = held[name]
            return found if found is not None else t.make(None)
        return None

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        if name == "__code__" and self._is_renamed_by(value):
            self.code = value.as_constant()  # type: ignore[union-attr]  # a constant
            return
        _set_function_attr(t, self, name, value)
        if name == "__defaults__":
            self.default_values = value if value is None or not _is_none(value) else None
        elif name == "__kwdefaults__":
            self.kwdefault_values = value if value is None or not _is_none(value) else None

    def _is_renamed_by(self, code: Value | None) -> bool:
        """Whether it is this function's code under another name, by which tracebacks show it."""
        if code is None or not code.is_constant() or not isinstance(given := code.as_constant(), types.CodeType):
            return False
        return given.replace(co_name=self.code.co_name, co_qualname=self.code.co_qualname) == self.code

    def tp_repr(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="repr", type="function")

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type="function")

    def rebuild(self, cg: Rebuilder) -> None:
        parts: list[Value | object] = [self.code, self.globals, self.name]
        parts.append(self.default_values if self.default_values is not None else None)
        parts.append(self.closure_values if self.closure_values is not None else None)
        cg.call(make_function, self.qualname, self.kwdefault_values, self.annotations, *parts)
        for name, value in cg.effects.stored_attrs(self).items():  # type: ignore[attr-defined]  # Rebuilder knows the log from its writing side only
            if value is not None and name not in ("__defaults__", "__kwdefaults__"):
                cg.asm.dup()
                cg.push(value)
                cg.asm.swap(2)
                cg.asm.store_attr(name)


def make_function(qualname: str, kwdefaults: dict[str, Any] | None, annotations: Any, code: types.CodeType,
                  globals_: dict[str, Any], name: str, defaults: tuple[Any, ...] | None,
                  closure: tuple[types.CellType, ...] | None) -> types.FunctionType:
    """Run-time helper of new bytecode: makes a function that was made while tracing."""
    fn = types.FunctionType(code, globals_, name, defaults, closure)
    fn.__qualname__ = qualname
    fn.__kwdefaults__ = kwdefaults
    if isinstance(annotations, tuple):
        annotations = dict(zip(annotations[::2], annotations[1::2], strict=True))
    if annotations is not None:
        fn.__annotations__ = annotations
    return fn


#: What can be written to attributes of a function; anything else is refused or means something of its own (`del`).
_WRITTEN_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "__name__": (str,), "__qualname__": (str,), "__defaults__": (tuple, types.NoneType),
    "__kwdefaults__": (dict, types.NoneType), "__annotations__": (dict, types.NoneType),
}


def _set_function_attr(t: Tracer, fn: Value, name: str, value: Value | None) -> None:
    if name in ("__code__", "__closure__", "__globals__", "__builtins__"):
        t.break_("value-set-attribute", value=fn.describe(), name=name, type="function",
                 why="it changes what the function does")
    if name == "__dict__":
        t.break_("value-set-attribute", value=fn.describe(), name=name, type="function",
                 why="the whole namespace is replaced")
    if isinstance(fn, FunctionValue) and name not in _FUNCTION_SLOTS:
        fn._meet_namespace(t)
    wanted = _WRITTEN_TYPES.get(name)
    if wanted is not None and (value is None or not issubclass(value.pytype(), wanted)):
        t.break_("value-set-attribute", value=fn.describe(), name=name, type="function", why="CPython takes no such value")
    if value is None and t.effects.load_attr(fn, name) is None and protocol.getattr_or_none(t, fn, name) is None:
        t.raise_(AttributeError, f"'function' object has no attribute '{name}'")
    t.effects.store_attr(fn, name, value)


def is_function(value: Value) -> bool:
    """Whether `value` is a Python function, found or made."""
    return isinstance(value, FunctionValue)


def _is_none(value: Value) -> bool:
    return value.is_constant() and value.as_constant() is None


def items_of(t: Tracer, value: Value) -> list[Value]:
    """The items of a tuple value, as they lie (Lazy ones unrealized)."""
    if _is_none(value):
        return []
    items = getattr(value, "items", None)
    return list(items) if isinstance(items, (list, tuple)) else protocol.unpack(t, value)


def string_items(t: Tracer, value: Value) -> dict[str, Value]:
    """The entries of a dict value whose keys are strings."""
    if _is_none(value):
        return {}
    keys = [key.as_constant() for key in protocol.unpack(t, value)]
    return {key: protocol.getitem(t, value, t.make(key)) for key in keys}


class MethodValue(Value):
    """`types.MethodType(func, self)`: a bound method of a Python function, or of any other callable."""

    def __init__(self, func: Value, self_value: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.func = func
        self.self_value = self_value

    def pytype(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"bound method of {self.func.describe()}"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.call(self.func, [self.self_value, *args], kwargs)

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        return Callee(self.func, [self.self_value, *args])

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__func__":
            return self.func
        if name == "__self__":
            return self.self_value
        if name == "__class__":
            return t.make(types.MethodType)
        if name == "__get__" and name in vars(types.MethodType):  # from 3.13 on; before, it is the function's
            return protocol.generic_getattr(t, self, name)
        return protocol.getattr_(t, self.func, name)

    def meth___get__(self, t: Tracer, instance: Value, owner: Value | None = None) -> Value:
        return self  # what is bound stays bound

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op not in ("==", "!=") or not isinstance(other, MethodValue):
            return NOT_IMPLEMENTED
        same = protocol.is_(t, self.self_value, other.self_value) and protocol.equal(t, self.func, other.func)
        return t.make(same if op == "==" else not same)

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type="method")

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(types.MethodType, self.func, self.self_value)


# -- wrapping ------------------------------------------------------------------------------------------------------


@wraps(types.FunctionType)
def wrap_function(t: Tracer, fn: types.FunctionType, source: Source) -> Value:
    # The frame's own globals hold its code, and that its entries: a guard that held them would never let them go.
    held = not is_the_frames(t, fn.__globals__)
    t.guard(CodeIs(source, fn.__code__, fn.__globals__, uses_globals(fn.__code__), held))
    return FunctionValue(fn, source)


@creates(types.FunctionType)
def make_function_value(t: Tracer, fn: types.FunctionType) -> Value:
    return FunctionValue(fn)


@wraps(types.MethodType)
def wrap_method(t: Tracer, method: types.MethodType, source: Source) -> Value:
    t.guard(TypeIs(source, types.MethodType))
    func = t.wrap(method.__func__, AttrSource(source, "__func__"))
    return MethodValue(func, t.wrap(method.__self__, AttrSource(source, "__self__")), source)


@creates(types.MethodType)
def make_method(t: Tracer, method: types.MethodType) -> Value:
    return wrap_method(t, method, ConstSource(method, method.__qualname__))
