"""Symbolic values, and the little that they may use of the machine that runs them.

Every file of `values/` subclasses `Value`; `protocol.py` calls the slots; `interp/` calls `protocol.py`.
Two protocols bound what a value sees: `Tracer` (the trace under way, frontend/tracer.py) and `Rebuilder` (bytecode that
makes the runtime object again). Nothing here imports the interpreter, the graph or a concrete value.

The rules that all values keep:
* One Python object has one `Value`: `Tracer.wrap` memoises by identity, so `is` is identity of values.
* State that can change (`items` of a list, contents of a cell, attributes) is kept on the value or in the effect
  log; whoever is about to change it calls `tracer.effects.mutate(value)` first.
* Slots return values; a slot that finds no implementation for the other operand returns `NOT_IMPLEMENTED`;
  `tp_iternext` returns None when exhausted. A Python exception of the user's program is `Raised`, thrown by
  `tracer.raise_`; what cannot be traced is `tracer.break_("reason-id", **context)`, never a Python error.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from fxjit.frontend.tracer import EffectLog, Tracer
from fxjit.frontend.values.extension import ExtensionPoint

if TYPE_CHECKING:
    import torch.fx

    from fxjit.frontend.bytecode.asm import Asm
    from fxjit.guards.source import Source


class _NotImplemented:
    """The symbolic counterpart of `NotImplemented`: this operand's slot does not support the other one."""

    def __repr__(self) -> str:
        return "NOT_IMPLEMENTED"


NOT_IMPLEMENTED: Final = _NotImplemented()


class Raised(Exception):
    """An exception of the *user's* program, under way through symbolic frames; `value` is the exception instance."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


class NotConstant(Exception):
    """`as_constant` was called on a value that is not known while tracing."""


class Rebuilder(Protocol):
    """Emits the bytecode that makes runtime objects of values (resume/rebuild.py implements it)."""

    @property
    def asm(self) -> Asm: ...

    def push(self, value: Value) -> None:
        """Leave the runtime object of `value` on the stack: from a local, its source, a graph output, or built anew."""

    def push_const(self, obj: object) -> None:
        """Pushes this object itself on the stack."""

    def call(self, fn: Callable[..., object], *args: Value | object) -> None:
        """Leave the result of `fn(*args)` on the stack; an argument that is no Value is pushed as a constant."""

    @property
    def effects(self) -> EffectLog:
        """The finished trace's effect log, for `fill` of new objects."""


class Callee(NamedTuple):
    """A call in the place of another, with the same keyword arguments."""

    fn: Value
    args: list[Value]
    #: Functions of Python that eager code goes through on the way, outermost first, each with which of its calls it is
    #: (an index into those that take `*args`).
    forwarders: tuple[tuple[types.FunctionType, int], ...] = ()
    #: Where `fn` is a constructor: what the call gives in the place of its result, which has to be None.
    constructor_result: Value | None = None


#: A time at which a value was made: later ones are greater.
next_creation_id: Final[Callable[[], int]] = itertools.count(1).__next__


class Value:
    """One object of the user's program, as far as it is known while tracing.

    A subclass sets `source` when the object existed before the frame, `node` when it is computed in the graph (tensors,
    symbolic numbers), and overrides CPython's slots. Methods of builtin types are Python methods named
    `meth_<name>(self, tracer, *args, **kwargs)`: `x.append(y)` on a list value calls `meth_append`.
    """

    source: Source | None = None
    node: torch.fx.Node | None = None
    #: Two-phase building: `rebuild` makes an empty shell, `fill` completes the shell on top of the stack. For
    #: everything that can (indirectly) contain itself.
    shell: ClassVar[bool] = False
    #: The instance whose builtin part it is (the dict in an instance of a class derived from dict): where the running program
    #: gets it, as what an iterator or a view is of, that is the instance.
    part_of: Value | None = None
    #: When it was made, as `next_creation_id` counts.
    creation_id: int = 0

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.creation_id = next_creation_id()

    # -- what is known -------------------------------------------------------------------------------------------

    def pytype(self) -> type:
        """`type(obj)`, exactly."""
        raise AssertionError(f"{type(self).__name__} does not say its type")

    def is_constant(self) -> bool:
        """Known entirely while tracing, and immutable."""
        return False

    def as_constant(self) -> Any:
        raise NotConstant(self)

    def realize(self) -> Value:
        """The value itself; a Lazy gives what it stands for."""
        return self

    def graph_arg(self, t: Tracer) -> Any:
        """The value as an argument of an FX node: an fx.Node, a constant, or lists/tuples/dicts/slices of these."""
        if self.node is not None:
            return self.node
        if self.is_constant():
            return self.as_constant()
        t.break_("not-a-graph-argument", value=self.describe())

    def describe(self) -> str:
        """For messages: what a user would recognise."""
        where = f" `{self.source.name}`" if self.source is not None else ""
        return f"{self.pytype().__name__}{where}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    # -- building it again ---------------------------------------------------------------------------------------

    def rebuild(self, cg: Rebuilder) -> None:
        """Emit code that leaves a new object (or shell) on the stack. Never called for what has a source or node."""
        raise AssertionError(f"{type(self).__name__} cannot be rebuilt")

    def fill(self, cg: Rebuilder) -> None:
        """Complete the shell on top of the stack, leaving it there (only if `shell`)."""

    def write_back(self, cg: Rebuilder) -> None:
        """The object existed before and changed: with it on top of the stack, emit code that gives it its final state and
        consumes it (effects.Restore). Every value that calls `effects.mutate(self)` has this."""
        raise AssertionError(f"{type(self).__name__} cannot be written back")

    def unread(self) -> object | None:
        """The object from before the trace, of a container whose contents are still all there and not looked at."""
        return None

    # -- attribute access ----------------------------------------------------------------------------------------

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        """Default: a method or class attribute of the exact Python type (see protocol.generic_getattr)."""
        return attribute_of_type(t, self, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        kind = self.pytype()
        descriptor = next((vars(cls)[name] for cls in kind.__mro__ if name in vars(cls)), None)
        if kind.__dictoffset__ or hasattr(type(descriptor), "__set__"):
            t.break_("value-set-attribute", name=name, value=self.describe(), type=kind.__name__,
                     why="what that does is up to its class, and not modelled")
        t.raise_(AttributeError, f"'{self.pytype().__name__}' object has no attribute '{name}'")

    # -- calls, iteration, text ----------------------------------------------------------------------------------

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if not callable_type(self.pytype()):
            t.raise_(TypeError, f"'{self.pytype().__name__}' object is not callable")
        t.break_("call-unsupported", callable=self.describe())

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        """The call that calling this with `args` comes to: nothing is done before or after it, or to its result. None where
        there is no such call."""
        return None

    def tp_iter(self, t: Tracer) -> Value:
        if not hasattr(self.pytype(), "__iter__") and not hasattr(self.pytype(), "__getitem__"):
            t.raise_(TypeError, f"'{self.pytype().__name__}' object is not iterable")
        t.break_("iter-unsupported", value=self.describe())

    def tp_iternext(self, t: Tracer) -> Value | None:
        if not hasattr(self.pytype(), "__next__"):
            t.raise_(TypeError, f"'{self.pytype().__name__}' object is not an iterator")
        t.break_("next-unsupported", value=self.describe())

    def query_length_hint(self, t: Tracer) -> None:
        """`PyObject_LengthHint`, which lists and tuples are filled behind: for what code of the program's does in it."""

    def tp_repr(self, t: Tracer) -> Value:
        if self.is_constant():
            return t.make(repr(self.as_constant()))
        t.break_("repr-unsupported", value=self.describe())

    def tp_str(self, t: Tracer) -> Value:
        if self.is_constant():
            return t.make(str(self.as_constant()))
        return self.tp_repr(t)

    def tp_hash(self, t: Tracer) -> Value:
        if self.is_constant():
            guard_nan_identity(t, self)
            try:
                return t.make(hash(self.as_constant()))
            except TypeError as error:
                t.raise_(TypeError, *error.args)
        if self.pytype().__hash__ is None:
            t.raise_(TypeError, f"unhashable type: '{self.pytype().__name__}'")
        t.break_("hash-unsupported", value=self.describe())

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        """`op` is one of < <= == != > >=."""
        return NOT_IMPLEMENTED

    # -- numbers -------------------------------------------------------------------------------------------------

    def nb_bool(self, t: Tracer) -> Value:
        if self.is_constant():
            if self.as_constant() is NotImplemented:  # it warns each time, or raises
                t.break_("data-branch", value=self.describe())
            return t.make(bool(self.as_constant()))
        pytype = self.pytype()
        if hasattr(pytype, "__len__"):
            length = self.sq_length(t)
            return t.make(length.as_constant() != 0) if length.is_constant() else length.nb_bool(t)
        if not hasattr(pytype, "__bool__"):
            return t.make(True)
        t.break_("bool-unsupported", value=self.describe())

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        """`self op other`, or `other op self` when reflected. `op` is Python's spelling: + - * @ / // % ** << >> & | ^."""
        return NOT_IMPLEMENTED

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        """`self op= other` (`op` without the =); NOT_IMPLEMENTED falls back to nb_binary."""
        return NOT_IMPLEMENTED

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        """`op` is one of neg pos invert abs int float index complex round trunc floor ceil."""
        return NOT_IMPLEMENTED

    # -- containers ----------------------------------------------------------------------------------------------

    def sq_length(self, t: Tracer) -> Value:
        if self.is_constant() and hasattr(self.as_constant(), "__len__"):
            try:
                return t.make(len(self.as_constant()))
            except OverflowError as error:  # a range longer than any list
                t.raise_(OverflowError, *error.args)
        if not hasattr(self.pytype(), "__len__"):
            t.raise_(TypeError, f"object of type '{self.pytype().__name__}' has no len()")
        t.break_("len-unsupported", value=self.describe())

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        """NOT_IMPLEMENTED falls back to iteration."""
        return NOT_IMPLEMENTED

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        if not hasattr(self.pytype(), "__getitem__"):
            t.raise_(TypeError, f"'{self.pytype().__name__}' object is not subscriptable")
        t.break_("subscript-unsupported", value=self.describe())

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        """`self[key] = value`; None deletes."""
        what = "item assignment" if value is not None else "item deletion"
        if not hasattr(self.pytype(), "__setitem__" if value is not None else "__delitem__"):
            t.raise_(TypeError, f"'{self.pytype().__name__}' object does not support {what}")
        t.break_("subscript-unsupported", value=self.describe())


def callable_type(cls: type) -> bool:
    """Whether instances of `cls` can be called."""
    return any("__call__" in vars(base) for base in cls.__mro__)


#: Guards which objects the NaNs in a constant are (keys.py).
guard_nan_identity: Final[ExtensionPoint[[Tracer, Value], None]] = ExtensionPoint("guard_nan_identity")
#: The generic attribute lookup (protocol.py).
attribute_of_type: Final[ExtensionPoint[[Tracer, Value, str], Value]] = ExtensionPoint("attribute_of_type")


class Lazy(Value):
    """An object not looked at yet: no guard, no wrapping until `realize`. It occurs only inside storage (locals, cells,
    containers, attributes), whose readers call `realize()`."""

    __slots__ = ("_obj", "_tracer", "_value")

    def __init__(self, tracer: Tracer, obj: object, source: Source) -> None:
        super().__init__(source)
        self._tracer = tracer
        self._obj = obj
        self._value: Value | None = None
        tracer.lazies.append(self)

    def realize(self) -> Value:
        if self._value is None:
            assert self.source is not None
            self._value = self._tracer.wrap(self._obj, self.source)
        return self._value

    @property
    def realized(self) -> Value | None:
        """The realized value, if there is one already."""
        return self._value

    def peek(self) -> object:
        """The object itself, for a decision that the caller guards by other means."""
        return self._obj

    def let_go(self) -> None:
        """The trace is over: the object must not outlive it by this, which may be part of a cycle."""
        self._obj = self._value = None

    def pytype(self) -> type:
        return self.realize().pytype()


class Null(Value):
    """CPython's NULL on the value stack (not an object)."""

    def pytype(self) -> type:
        raise AssertionError("NULL has no type")

    def describe(self) -> str:
        return "NULL"


NULL: Final = Null()
