"""Exception instances, made while tracing or found outside.

classes.py calls `instantiate` for a call of an exception class; interp/raising.py raises, chains and matches them.
User classes of exceptions run their Python `__init__`; attributes, properties and methods are those of any object.
Tracebacks do not exist while tracing: that of an exception which was caught can be passed on, and no more.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from fxjit.errors import BreakGraph, UserStack, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, instance_dicts, protocol
from fxjit.frontend.values.base import Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.objects import UserObjectValue, instance_namespace
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.traits import AttributeErrorValue, Indistinct
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import TypeIs
from fxjit.guards.source import AttrSource, Source, namespace_of

#: Attributes that native exceptions take from their arguments: (class, attribute) -> position.
_FROM_ARGS: Final[tuple[tuple[type, str, int], ...]] = (
    (StopIteration, "value", 0), (SystemExit, "code", 0), (StopAsyncIteration, "value", 0),
    (OSError, "errno", 0), (OSError, "strerror", 1), (OSError, "filename", 2), (ImportError, "msg", 0),
)
_KEYWORDS: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (ImportError, ("name", "path")), (AttributeError, ("name", "obj")), (NameError, ("name",)),
)
#: Classes whose `__str__` shows attributes, which can be written, and not the arguments.
_STR_OF_ATTRIBUTES: Final = (UnicodeEncodeError, UnicodeDecodeError, UnicodeTranslateError, SyntaxError)
#: What attributes of exceptions take; none of them can be deleted.
_TAKEN: Final[dict[str, tuple[type, ...]]] = {
    "__cause__": (BaseException, type(None)), "__context__": (BaseException, type(None)),
    "__traceback__": (types.TracebackType, type(None)), "__suppress_context__": (bool,), "args": (object,),
}


class ExceptionValue(UserObjectValue, AttributeErrorValue):
    """An exception. `cause`, `context` and `suppress` are what `raise` sets on one that was made while tracing; those of one
    from outside, and other attributes, are in the effect log."""

    def __init__(self, cls: type, args: Sequence[Value] = (), source: Source | None = None, obj: object | None = None) -> None:
        super().__init__(cls, source, obj)
        self.args: list[Value] = list(args)
        self.cause: Value | None = None
        self.context: Value | None = None
        self.suppress = False
        #: Where the program last caught it, as long as it would have the traceback of that.
        self.caught_at: UserStack | None = None
        #: Message and exceptions of a group that the trace made.
        self.group: tuple[Value, TupleValue] | None = None
        #: `name` and `obj` of an AttributeError that was made without them, once it has left a `getattr`.
        self.asked: dict[str, Value] = {}

    def describe(self) -> str:
        shown = ", ".join(arg.describe() for arg in self.args)
        return f"{self.cls.__name__}({shown})"

    # -- attributes ----------------------------------------------------------------------------------------------

    def generic_getattr(self, t: Tracer, name: str, hook: bool = True) -> Value:
        if name == "args":
            return self._args_tuple(t)
        if name in ("__cause__", "__context__", "__traceback__", "__suppress_context__"):
            return self._read_chain(t, name)
        if self.group is not None and name in ("message", "exceptions"):
            return self.group[name == "exceptions"]
        for cls, attr, position in _FROM_ARGS:
            if name == attr and issubclass(self.cls, cls) and self.source is None:
                pending = t.effects.load_attr(self, name)
                if isinstance(pending, Value):
                    return pending
                if cls is OSError and len(self.args) < 2:
                    return t.make(None)
                return self.args[position] if position < len(self.args) else t.make(None)
        for cls, names in _KEYWORDS:
            if name in names and issubclass(self.cls, cls) and self.source is None:
                pending = t.effects.load_attr(self, name)
                known = self.asked.get(name) if pending is None else pending
                return known if isinstance(known, Value) else t.make(None)
        return super().generic_getattr(t, name, hook)

    def set_lookup(self, t: Tracer, obj: Value, name: str) -> None:
        given = t.effects.stored_attrs(self).keys() & {"name", "obj"}
        if issubclass(self.cls, AttributeError) and self.source is None and not given and not self.asked:
            self.asked = {"name": t.make(name), "obj": obj}

    def set_args(self, t: Tracer, args: Sequence[Value]) -> None:
        """`BaseException.__init__` on this object."""
        self.args = list(args)
        if self.source is not None:
            t.effects.store_attr(self, "args", self._args_tuple(t))

    def _args_tuple(self, t: Tracer) -> Value:
        return TupleValue(self.args)

    def _read_chain(self, t: Tracer, name: str) -> Value:
        if name == "__traceback__" and self.source is None and self.caught_at is not None:
            return TracebackValue(self)
        written = t.effects.load_attr(self, name)
        if isinstance(written, Value):
            return written
        if self.source is not None:
            return t.wrap(getattr(self.obj, name), AttrSource(self.source, name)).realize()
        if name == "__suppress_context__":
            return t.make(self.suppress)
        found = {"__cause__": self.cause, "__context__": self.context}.get(name)
        return found if found is not None else t.make(None)

    def set_cause(self, t: Tracer, cause: Value | None) -> None:
        """As `raise ... from` and a write to `__cause__` do."""
        if self.source is None:
            self.cause, self.suppress = cause, True
            return
        t.effects.store_attr(self, "__cause__", t.make(None) if cause is None else cause)
        t.effects.store_attr(self, "__suppress_context__", t.make(True))

    def set_context(self, t: Tracer, context: Value | None) -> None:
        if self.source is None:
            self.context = context
        else:
            t.effects.store_attr(self, "__context__", t.make(None) if context is None else context)

    def set_traceback(self, t: Tracer, traceback: Value) -> None:
        if isinstance(traceback, TracebackValue):
            if traceback.exc is not self:
                traceback.refuse(t)
            return  # its own, or what that was some steps before: contextlib's managers take theirs away
        self.caught_at = None
        t.effects.store_attr(self, "__traceback__", traceback)

    def generic_setattr(self, t: Tracer, name: str, value: Value | None) -> None:
        kinds = _TAKEN.get(name)
        if kinds is not None and (value is None or not issubclass(value.pytype(), kinds)):
            attribute = (BaseException(), name)
            protocol.fold(t, *((delattr, *attribute) if value is None else (setattr, *attribute, object())))  # which raises
        if name == "args" and value is not None:
            self.args = protocol.unpack_hinted(t, value)
        elif name == "__cause__":
            self.set_cause(t, _or_none(value))
            return
        elif name == "__context__":
            self.set_context(t, _or_none(value))
            return
        elif name == "__suppress_context__" and value is not None:
            self.suppress = self.source is None and protocol.truth(t, value)
        elif name == "__traceback__" and value is not None:
            self.set_traceback(t, value)
            return
        else:
            if any(name in names and issubclass(self.cls, cls) for cls, names in _KEYWORDS):
                t.effects.store_attr(self, name, value)
            else:
                super().generic_setattr(t, name, value)
            return
        if self.source is not None and value is not None:
            t.effects.store_attr(self, name, value)

    def _has_dict(self) -> bool:
        return True

    # -- methods -------------------------------------------------------------------------------------------------

    def meth___init__(self, t: Tracer, *args: Value, **kwargs: Value) -> Value:
        """`BaseException.__init__`."""
        with_more = (*(row[0] for row in _FROM_ARGS), *(row[0] for row in _KEYWORDS))
        if self.source is not None and issubclass(self.cls, with_more):
            t.break_("attribute-unsupported", value=self.describe(), name="__init__")  # attributes change with the arguments
        if issubclass(self.cls, OSError):
            _class_of_os_error(t, self.cls, args)
        native_init(t, self, args, kwargs)
        return t.make(None)

    def meth_with_traceback(self, t: Tracer, traceback: Value, /) -> Value:
        if not issubclass(traceback.pytype(), (types.TracebackType, type(None))):
            t.raise_(TypeError, "__traceback__ must be a traceback or None")
        self.set_traceback(t, traceback)
        return self

    def meth_add_note(self, t: Tracer, note: Value) -> Value:
        notes = protocol.getattr_or_none(t, self, "__notes__")
        if notes is None:
            notes = ListValue([])
            t.effects.store_attr(self, "__notes__", notes)
        protocol.call_method(t, notes, "append", note)
        return t.make(None)

    def meth_split(self, t: Tracer, condition: Value, /) -> Value:
        return self._call_group(t, "split", condition)

    def meth_subgroup(self, t: Tracer, condition: Value, /) -> Value:
        return self._call_group(t, "subgroup", condition)

    def meth_derive(self, t: Tracer, parts: Value, /) -> Value:
        return self._call_group(t, "derive", parts)

    @property
    def has_traceback(self) -> bool:
        """Whether it was raised for real, before the frame began."""
        return isinstance(self.obj, BaseException) and self.obj.__traceback__ is not None

    def _call_group(self, t: Tracer, name: str, argument: Value) -> Value:
        if name != "derive" and (self.has_traceback or not _selects(t, argument)):  # parts have it too; or an error
            t.break_("call-builtin", function=f"BaseExceptionGroup.{name}", args=argument.describe())
        if name != "derive" and self.source is not None:
            t.guard(TypeIs(AttrSource(self.source, "__traceback__"), type(None)))
        return t.inline(t.make(GROUPS[name]), [self, argument], {})

    def tp_str(self, t: Tracer) -> Value:
        method = self._user_special(t, "__str__")
        if method is not None:
            return t.call(method, [], None)
        return self._native_str(t)

    def _native_str(self, t: Tracer) -> Value:
        if issubclass(self.cls, _STR_OF_ATTRIBUTES) and not (issubclass(self.cls, SyntaxError) and len(self.args) == 1):
            t.break_("repr-unsupported", value=self.describe())
        if issubclass(self.cls, BaseExceptionGroup):
            count = protocol.length(t, self.generic_getattr(t, "exceptions")).as_constant()
            text = self.generic_getattr(t, "message").as_constant()
            return t.make(f"{text} ({count} sub-exception{'s' if count != 1 else ''})")
        if issubclass(self.cls, OSError) and (text := self._text_of_os_error(t)) is not None:
            return t.make(text)
        if not self.args:
            return t.make("")
        if len(self.args) == 1:
            arg = self.args[0].realize()
            return protocol.repr_(t, arg) if issubclass(self.cls, KeyError) else protocol.str_(t, arg)
        return protocol.str_(t, self._args_tuple(t))

    def _text_of_os_error(self, t: Tracer) -> str | None:
        """OSError_str (Objects/exceptions.c), which goes by attributes: `args` has no file, and they can be written. None: it
        goes by the arguments."""
        names = ("errno", "strerror", "filename", "filename2") if self.source is not None else ("errno", "strerror")
        values = [self.generic_getattr(t, name).realize() for name in names]
        if any(name in t.effects.stored_attrs(self) for name in names) or not all(value.is_constant() for value in values):
            t.break_("repr-unsupported", value=self.describe())
        number, text, *files = (value.as_constant() for value in values)
        if number is text is None and not any(files) and len(self.args) < 2:
            return None
        if number is None or text is None:  # set to None, or not set: C distinguishes the two
            t.break_("repr-unsupported", value=self.describe())
        shown = " -> ".join(repr(file) for file in files if file is not None)
        return f"[Errno {number}] {text}" + (f": {shown}" if shown else "")

    def meth___str__(self, t: Tracer) -> Value:
        return self._native_str(t)

    def tp_repr(self, t: Tracer) -> Value:
        method = self._user_special(t, "__repr__")
        return t.call(method, [], None) if method is not None else self.meth___repr__(t)

    def meth___repr__(self, t: Tracer) -> Value:
        shown = ", ".join(protocol.repr_(t, arg).as_constant() for arg in self.args)
        return t.make(f"{self.cls.__name__}({shown})")

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type=self.cls.__name__)

    # -- building ------------------------------------------------------------------------------------------------

    def rebuild(self, cg: Rebuilder) -> None:
        if self.caught_at is not None:  # a new one would lack the traceback
            leave_trace(BreakGraph("exception-kept", {"error": self.describe()}, self.caught_at))
        if self.group is not None:
            cg.call(_make_group, self.cls, *self.group, *self.args)
        elif _initialised_late(self.cls):
            cg.call(os_error, self.cls, *self.args)
        elif has_python_init(self.cls):
            native = next(owner for owner in self.cls.__mro__
                          if isinstance(namespace_of(owner).get("__new__"), types.BuiltinFunctionType))
            cg.call(native.__new__, self.cls, *self.args)
        else:
            cg.call(self.cls, *self.args)

    def fill(self, cg: Rebuilder) -> None:
        chain = {"__cause__": self.cause, "__context__": self.context}
        for name, value in chain.items():
            if value is not None:
                cg.call(setattr, self, name, value)
                cg.asm.pop()
        if self.suppress and self.cause is None:
            cg.call(setattr, self, "__suppress_context__", True)
            cg.asm.pop()
        for name, value in {**self.asked, **cg.effects.stored_attrs(self)}.items():
            if value is not None:
                cg.call(setattr, self, name, value)
                cg.asm.pop()


class TracebackValue(Indistinct):
    """The traceback of an exception that was raised and caught while tracing. There is one, and what it is only the running
    program knows."""

    def __init__(self, exc: ExceptionValue) -> None:
        super().__init__(None)
        self.exc: Final = exc

    def pytype(self) -> type:
        return types.TracebackType

    def describe(self) -> str:
        return f"the traceback of {self.exc.describe()}"

    def refuse(self, t: Tracer) -> NoReturn:
        t.break_("attribute-unsupported", value=self.exc.describe(), name="__traceback__")

    def may_be(self, other: Value) -> bool:
        return other.pytype() is types.TracebackType

    def distinguish(self, t: Tracer) -> NoReturn:
        self.refuse(t)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        self.refuse(t)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self.refuse(t)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        self.refuse(t)

    def rebuild(self, cg: Rebuilder) -> None:
        assert self.exc.caught_at is not None, "it has one"
        leave_trace(BreakGraph("exception-kept", {"error": self.exc.describe()}, self.exc.caught_at))


#: What groups do, as Python that is traced: polyfills/groups_.py puts it here.
GROUPS: Final[dict[str, Callable[..., Any]]] = {}


def _selects(t: Tracer, condition: Value) -> bool:
    """Whether `split` takes this: classes of exceptions, or a function."""
    condition = condition.realize()
    if issubclass(condition.pytype(), tuple):
        return all(map(is_exception_class, protocol.unpack(t, condition)))
    return is_exception_class(condition) or condition.pytype() is types.FunctionType


def _make_group(cls: type[BaseExceptionGroup[Any]], message: str, parts: tuple[BaseException, ...], *args: Any) -> Any:
    """Run-time helper of new bytecode: makes a group whose Python `__init__` has run while tracing."""
    made: BaseExceptionGroup[Any] = BaseExceptionGroup.__new__(cls, message, parts)
    made.args = args
    return made


def _new_group(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> ExceptionValue:
    """`BaseExceptionGroup.__new__`, which looks at nothing but how many exceptions there are, and of which kind."""
    if kwargs or len(args) != 2 or not args[0].is_constant() or not issubclass(args[1].pytype(), (list, tuple)):
        t.break_("opcode-exception", value=cls.__name__, why="an exception group is made in an unusual way")
    parts = protocol.unpack(t, args[1])
    alike = [_stand_in(part.pytype()) for part in parts]
    try:
        made: type = type(BaseExceptionGroup.__new__(cls, args[0].as_constant(), alike))
    except (TypeError, ValueError) as error:
        t.raise_(type(error), *error.args)
    exc = ExceptionValue(made, args)
    exc.group = (args[0], TupleValue(parts))
    return exc


def _stand_in(cls: type) -> Any:
    if Exception in cls.__mro__:
        return Exception()
    return BaseException() if BaseException in cls.__mro__ else None


def _or_none(value: Value | None) -> Value | None:
    return None if value is None or value.is_constant() else value


def has_python_init(cls: type) -> bool:
    """Whether making an instance runs Python code."""
    found, _ = descriptors.find(cls, "__init__")
    return isinstance(found, types.FunctionType)


def _initialised_late(cls: type) -> bool:
    """Whether `OSError.__new__` leaves the arguments to `OSError.__init__`, which a class's own `__init__` may call or not."""
    return issubclass(cls, OSError) and has_python_init(cls)


def os_error(cls: type[OSError], *args: Any) -> OSError:
    """Run-time helper of new bytecode: makes an OSError whose Python `__init__` has run while tracing."""
    made: OSError = OSError.__new__(cls)
    OSError.__init__(made, *args)
    return made


def _class_of_os_error(t: Tracer, cls: type[OSError], args: Sequence[Value]) -> type[OSError]:
    """The class of `cls(*args)`: `OSError` with a number gives the class for that number (PEP 3151)."""
    if len(args) > 2:
        t.break_("opcode-exception", value=cls.__name__, why="its arguments name files")  # and are not its `args`
    if cls is not OSError or len(args) < 2:
        return cls
    if not args[0].is_constant():
        t.break_("opcode-exception", value=cls.__name__, why="its class depends on a number")
    return type(OSError(args[0].as_constant(), ""))


def native_init(t: Tracer, exc: ExceptionValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """The `__init__` that CPython's own exception classes have."""
    exc.set_args(t, args)
    allowed = next((names for cls, names in _KEYWORDS if issubclass(exc.cls, cls)), ())
    written = t.effects.stored_attrs(exc)
    for name in [name for name in allowed if name in written]:
        t.effects.store_attr(exc, name, t.make(None))  # initialised before
    for name, value in kwargs.items():
        if name not in allowed:
            t.raise_(TypeError, f"{exc.cls.__name__}() takes no keyword arguments")
        t.effects.store_attr(exc, name, value)


def instantiate(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value] | None = None) -> Value:
    """`cls(*args, **kwargs)` for an exception class."""
    maker, _ = descriptors.look_up(t, cls, "__new__")
    if isinstance(maker, (types.FunctionType, staticmethod)):
        t.break_("opcode-exception", value=cls.__name__, why="its class has a `__new__` of its own")
    if issubclass(cls, OSError) and not has_python_init(cls):
        cls = _class_of_os_error(t, cls, args)
    if issubclass(cls, BaseExceptionGroup):
        exc = _new_group(t, cls, args, kwargs or {})
        cls = exc.cls
    else:
        exc = ExceptionValue(cls, () if _initialised_late(cls) else args)
    found, owner = descriptors.look_up(t, cls, "__init__")
    if isinstance(found, types.FunctionType) and owner is not None:
        init = descriptors.bind(t, found, owner, "__init__", exc, t.make(cls))
        result = t.call(init, args, kwargs)
        if not (result.is_constant() and result.as_constant() is None):
            t.raise_(TypeError, f"__init__() should return None, not '{result.pytype().__name__}'")
        return exc
    native_init(t, exc, args, kwargs or {})
    return exc


def make_exception(t: Tracer, cls: type[BaseException], args: Sequence[Any]) -> Value:
    """An instance for an exception that the tracer itself raises: its arguments are values or constants."""
    known = [arg if isinstance(arg, Value) else t.make(arg) for arg in args]
    if has_python_init(cls):
        return instantiate(t, cls, known)
    return ExceptionValue(cls, known)


@wraps(BaseException, subclasses=True)
def wrap_exception(t: Tracer, exc: BaseException, source: Source) -> Value:
    t.guard(TypeIs(source, type(exc)))
    args = t.wrap(exc.args, AttrSource(source, "args"))
    value = ExceptionValue(type(exc), (), source, exc)
    value.args = list(getattr(args, "items", ())) or protocol.unpack(t, args)
    return instance_dicts.met_object(t, value, exc, instance_namespace(exc))


def is_exception_class(value: Value) -> bool:
    """Whether `value` is a class whose instances can be raised."""
    cls = class_of(value)
    return cls is not None and issubclass(cls, BaseException)


def class_of(value: Value) -> type | None:
    """The class that `value` is; None where it is none (or one made while tracing)."""
    if not issubclass(value.pytype(), type):
        return None
    cls = getattr(value, "cls", None)
    if isinstance(cls, type):
        return cls
    return value.as_constant() if value.is_constant() else None


