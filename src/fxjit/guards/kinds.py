"""The kinds of facts a trace relies on: `x` is a float32 CPU tensor of shape (2, 3), `self.training` is True...

The frontend adds `Guard`s to a `GuardSet`; tree.py makes them into a `GuardTree`; why.py puts the one that failed in
words. A guard says the same thing twice: `holds(*values)` is its meaning in Python, `ops` the checks (_checks.c) and
conditions (_conditions.c) it is made of. Guards keep what they compare with by weak reference where that is possible: a
guard must not keep a model alive.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from fxjit._C import instance_dict
from fxjit.guards import ambient
from fxjit.guards.constants import constant_key, is_plain, same_constant
from fxjit.guards.held import HeldKeys, WeakHeld, key_of_key, listed, short
from fxjit.guards.homes import home_of
from fxjit.guards.source import Source, namespace_of, stored_keys, stored_length, stores_key
from fxjit.guards.tensor_spec import TensorSpec

__all__ = [
    "AmbientIs", "BasesAre", "CodeIs", "ConstIs", "FoundIn", "Guard", "GuardSet", "HasAttr", "HasKey", "IdIs",
    "InstanceHasAttr", "KeysAre", "LengthIs", "NotSameObject", "Op", "PythonCheck", "SameObject", "SetIs", "ShapeExpr",
    "TensorIs", "TensorSpec", "TypeIs", "WeakHeld",
]

#: A check of _checks.c or condition of _conditions.c: its name, then what it compares with.
Op = tuple[Any, ...]


class Guard:
    """A fact about the objects of `sources`. Two guards are equal when they say the same."""

    __slots__ = ("_hash", "_key", "sources")

    #: What a user can do when this kind of guard fails again and again.
    hint = ""

    def __init__(self, sources: tuple[Source, ...], *key: Hashable) -> None:
        self.sources = sources
        self._key = key
        self._hash = hash((type(self), sources, key))

    @property
    def source(self) -> Source:
        """The source of a guard that has just one."""
        return self.sources[0]

    @property
    def ops(self) -> tuple[Op, ...]:
        """The checks of the C tree; they get the guard's values."""
        return (("python", self.holds),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        """The objects it compares with by identity: once one of them is gone it never holds again."""
        return ()

    def holds(self, *values: Any) -> bool:
        raise AssertionError(f"{type(self).__name__} has no meaning")

    def expected(self) -> str:
        raise AssertionError(f"{type(self).__name__} expects nothing")

    def found(self, *values: Any) -> str:
        return ", ".join(map(short, values))

    def why(self, *values: Any) -> str:
        """Why it does not hold for `values`."""
        return f"expected {self.expected()}, found {self.found(*values)}"

    def describe(self) -> str:
        return f"{self.subject}: {self.expected()}"

    def hint_for(self, *values: Any) -> str:
        """Advice for the user, if any."""
        return self.hint

    @property
    def subject(self) -> str:
        """The beginning of the message."""
        return ", ".join(source.name for source in self.sources)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self._hash != other._hash:  # type: ignore[attr-defined]  # same class
            return False
        return bool(self.sources == other.sources and self._key == other._key)  # type: ignore[attr-defined]  # same class

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"


# -- type and identity ---------------------------------------------------------------------------------------------


class TypeIs(Guard):
    """type(value) is type"""

    __slots__ = ("_held",)

    def __init__(self, source: Source, type: type) -> None:
        super().__init__((source,), id(type))
        self._held = WeakHeld(type)

    @property
    def type(self) -> Any:
        return self._held.obj

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("type", self._held.obj),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return self._held.objects

    def holds(self, *values: Any) -> bool:
        return self._held.is_(type(values[0]))

    def expected(self) -> str:
        return f"type {self._held}"

    def found(self, *values: Any) -> str:
        return f"type {type(values[0]).__name__}"


class IdIs(Guard):
    """value is obj. Once obj is gone the guard never holds again, whoever gets its address."""

    __slots__ = ("_held",)
    hint = "the compiled code is for one particular object; keep that object, or pass what it holds as an argument"

    def __init__(self, source: Source, obj: object) -> None:
        super().__init__((source,), id(obj))
        self._held = WeakHeld(obj)

    @property
    def obj(self) -> Any:
        return self._held.obj

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("is", self._held.obj) if self._held.alive else ("never",),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return self._held.objects

    def holds(self, *values: Any) -> bool:
        return self._held.is_(values[0])

    def expected(self) -> str:
        return f"the object {self._held}"


class CodeIs(Guard):
    """value is a Python function whose __code__ is this code object. `home` is the module whose globals it has (homes.py).
    `reads`: the code uses globals, and they are this namespace. `held`: the guard keeps it, so that no other one comes to be at
    its address."""

    __slots__ = ("_address", "_held", "_namespace", "home")
    hint = "a function made anew on each call keeps its code; one made by exec or a different function does not"

    def __init__(self, source: Source, code: types.CodeType, namespace: dict[str, Any], reads: bool = True,
                 held: bool = True) -> None:
        super().__init__((source,), id(code), id(namespace) if reads else 0)
        self._held = WeakHeld(code)
        self._address = id(namespace) if reads else None
        self._namespace = namespace if reads and held else None
        self.home = home_of(namespace)

    @property
    def code(self) -> Any:
        return self._held.obj

    @property
    def ops(self) -> tuple[Op, ...]:
        if not self._held.alive:
            return (("never",),)
        code = "code", self._held.obj
        return (code,) if self._address is None else (code, ("namespace", self._address))

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return self._held.objects

    def holds(self, *values: Any) -> bool:
        value = values[0]
        return (type(value) is types.FunctionType and self._held.is_(value.__code__)
                and self._address in (None, id(value.__globals__)))

    def expected(self) -> str:
        return f"a function with {self._held}" + (f" and the globals of {self.home}" if self._address else "")


class SameObject(Guard):
    """The two sources are one object."""

    __slots__ = ()
    hint = "the compiled code was made for arguments that share one object"

    def __init__(self, source: Source, other_source: Source) -> None:
        super().__init__((source, other_source))

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("same",),)

    def holds(self, *values: Any) -> bool:
        return values[0] is values[1]

    def expected(self) -> str:
        return "one object"


class NotSameObject(Guard):
    """No two of the sources are one object."""

    __slots__ = ()
    hint = "the compiled code was made for arguments that are different objects"

    def __init__(self, sources: tuple[Source, ...]) -> None:
        super().__init__(sources)

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("distinct",),)

    def holds(self, *values: Any) -> bool:
        return len(set(map(id, values))) == len(values)

    def expected(self) -> str:
        return "different objects"

    def found(self, *values: Any) -> str:
        first: dict[int, int] = {}
        for index, value in enumerate(values):
            other = first.setdefault(id(value), index)
            if other != index:
                return f"{self.sources[other].name} is {self.sources[index].name}"
        return "different objects"


# -- values --------------------------------------------------------------------------------------------------------


class ConstIs(Guard):
    """The same constant: exact type and value (constants.same_constant)."""

    __slots__ = ("_held", "_value")

    def __init__(self, source: Source, value: object) -> None:
        super().__init__((source,), constant_key(value))
        self._held = None if is_plain(value) or isinstance(value, tuple | frozenset | slice) else WeakHeld(value)
        self._value = value if self._held is None else None

    @property
    def value(self) -> Any:
        return self._value if self._held is None else self._held.obj

    @property
    def ops(self) -> tuple[Op, ...]:
        if self._held is None:
            return (("const", self._value),)
        return (("is", self._held.obj) if self._held.alive else ("never",),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return () if self._held is None else self._held.objects

    def holds(self, *values: Any) -> bool:
        return same_constant(self._value, values[0]) if self._held is None else self._held.is_(values[0])

    def expected(self) -> str:
        return short(self._value) if self._held is None else str(self._held)

    def hint_for(self, *values: Any) -> str:
        if type(values[0]) in (int, float) and type(self.value) is type(values[0]):
            return "a number that varies is best passed as a tensor, or compiled with dynamic=True"
        return ""


class TensorIs(Guard):
    """A tensor that fits `spec`."""

    __slots__ = ("spec",)

    def __init__(self, source: Source, spec: TensorSpec) -> None:
        super().__init__((source,), spec)
        self.spec = spec

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("tensor", self.spec),)

    def holds(self, *values: Any) -> bool:
        return self.spec.fits(values[0])

    def expected(self) -> str:
        return str(self.spec)

    def why(self, *values: Any) -> str:
        difference = self.spec.difference(values[0])
        if difference is None:
            return "it holds"
        name, expected, found = difference
        return f"expected {name} {expected}, found {found}"

    def hint_for(self, *values: Any) -> str:
        difference = self.spec.difference(values[0])
        if difference is not None and difference[0].startswith("size("):
            dim = difference[0][len("size(") : -1]
            return (f"fxjit.maybe_mark_dynamic({self.source.name}, {dim}) or dynamic=True compiles it as a size that varies, "
                    "unless the program needs the number, as a loop over it does")
        if difference is not None and difference[0].startswith("stride("):
            return "call .contiguous() before, so that the memory layout stays the same"
        return ""


class ShapeExpr(Guard):
    """A relation between whole numbers holds: `s0 <= 128`, `x.size(0) == 2*s0`. Made by shapes.py.

    `program` is for the stack machine of _shape_program.c (None: Python evaluates it), `evaluate` the meaning.
    """

    __slots__ = ("evaluate", "program", "text")
    hint = "the sizes left the range the compiled code was made for"

    def __init__(
        self,
        sources: tuple[Source, ...],
        text: str,
        evaluate: Callable[..., bool],
        program: tuple[int, ...] | None,
    ) -> None:
        super().__init__(sources, text)
        self.text = text
        self.evaluate = evaluate
        self.program = program

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("python", self.holds) if self.program is None else ("shape", self.program),)

    def holds(self, *values: Any) -> bool:
        # Sizes are 64-bit numbers to torch, and to the stack machine.
        exact = all(type(value) is int and -(2**63) <= value < 2**63 for value in values)
        return exact and bool(self.evaluate(*values))

    def expected(self) -> str:
        return self.text

    def hint_for(self, *values: Any) -> str:
        if self.text.rpartition(" == ")[2].isdigit():
            return "the program needs the number, as a loop over it does: pad the inputs to a few sizes"
        return self.hint

    def found(self, *values: Any) -> str:
        return ", ".join(f"{source.name} = {short(value)}" for source, value in zip(self.sources, values, strict=True))

    def describe(self) -> str:
        return self.text

    @property
    def subject(self) -> str:
        return ""  # the text names the sources


# -- containers and attributes -------------------------------------------------------------------------------------


class LengthIs(Guard):
    """len(value) == n"""

    __slots__ = ("n",)

    def __init__(self, source: Source, n: int) -> None:
        super().__init__((source,), n)
        self.n = n

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("length", self.n),)

    def holds(self, *values: Any) -> bool:
        return stored_length(values[0]) == self.n

    def expected(self) -> str:
        return f"length {self.n}"

    def found(self, *values: Any) -> str:
        return f"length {stored_length(values[0])}"


class KeysAre(Guard):
    """list(value) is these keys in this order: a dict's keys, a set's elements. Plain constants by value, others by
    identity."""

    __slots__ = ("_keys",)

    def __init__(self, source: Source, keys: tuple[object, ...]) -> None:
        super().__init__((source,), *map(key_of_key, keys))
        self._keys = HeldKeys(keys)

    @property
    def keys(self) -> tuple[Any, ...]:
        return tuple(key for key, _ in self._keys.pairs())

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("keys", self._keys.pairs()) if self._keys.alive else ("never",),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return self._keys.objects

    def holds(self, *values: Any) -> bool:
        found = list(stored_keys(values[0]))
        same_length = len(found) == stored_length(values[0]) == len(self._keys)
        return same_length and all(map(self._keys.is_at, range(len(found)), found))

    def expected(self) -> str:
        return f"the keys [{listed(self._keys.texts(), len(self._keys))}]"

    def found(self, *values: Any) -> str:
        return f"[{listed(map(short, stored_keys(values[0])), stored_length(values[0]))}]"


class SetIs(Guard):
    """A set of just these elements, in any order."""

    __slots__ = ("_elements",)

    def __init__(self, source: Source, elements: frozenset[Any]) -> None:
        super().__init__((source,), frozenset(map(key_of_key, elements)))
        self._elements = HeldKeys(elements)

    @property
    def elements(self) -> tuple[Any, ...]:
        return tuple(element for element, _ in self._elements.pairs())

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("set", self._elements.pairs()) if self._elements.alive else ("never",),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return self._elements.objects

    def holds(self, *values: Any) -> bool:
        value = values[0]
        if not isinstance(value, set | frozenset) or stored_length(value) != len(self._elements):
            return False
        # Alive, an object has its address alone; two NaNs are two elements.
        return self._elements.alive and self._key == (frozenset(map(key_of_key, stored_keys(value))),)

    def expected(self) -> str:
        return f"the set {{{listed(sorted(self._elements.texts()), len(self._elements))}}}"

    def found(self, *values: Any) -> str:
        if not isinstance(values[0], set | frozenset):
            return short(values[0])
        return f"{{{listed(sorted(map(short, stored_keys(values[0]))), stored_length(values[0]))}}}"


class HasKey(Guard):
    """(key in value) is present"""

    __slots__ = ("_held", "present")

    def __init__(self, source: Source, key: object, present: bool) -> None:
        super().__init__((source,), key_of_key(key), present)
        self._held = HeldKeys((key,))
        self.present = present

    @property
    def key(self) -> Any:
        return self._held.pairs()[0][0]

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("has_key", *self._held.pairs(), self.present) if self._held.alive else ("never",),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return self._held.objects

    def holds(self, *values: Any) -> bool:
        return self._held.alive and stores_key(values[0], self.key) is self.present

    def expected(self) -> str:
        return f"{'the' if self.present else 'no'} key {listed(self._held.texts(), 1)}"

    def found(self, *values: Any) -> str:
        return "none" if self.present else "one"


class HasAttr(Guard):
    """hasattr(value, name) is present"""

    __slots__ = ("attr", "present")

    def __init__(self, source: Source, name: str, present: bool) -> None:
        super().__init__((source,), name, present)
        self.attr = name
        self.present = present

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("has_attr", self.attr, self.present),)

    def holds(self, *values: Any) -> bool:
        return hasattr(values[0], self.attr) is self.present

    def expected(self) -> str:
        return f"an attribute {self.attr}" if self.present else f"no attribute {self.attr}"

    def found(self, *values: Any) -> str:
        return "none" if self.present else "one"


class InstanceHasAttr(HasAttr):
    """(name in the value's own __dict__) is present; an object without one has nothing in it"""

    __slots__ = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("instance_has_attr", self.attr, self.present),)

    def holds(self, *values: Any) -> bool:
        try:
            own: Mapping[str, object] = instance_dict(values[0])
        except AttributeError:
            own = {}
        return (self.attr in own) is self.present

    def expected(self) -> str:
        return f"{super().expected()} of its own"


class FoundIn(Guard):
    """Looking a name up in the class value finds what this class's own namespace has; None: it is found nowhere."""

    __slots__ = ("_held", "attr")

    def __init__(self, source: Source, name: str, owner: type | None) -> None:
        super().__init__((source,), name, id(owner))
        self.attr = name
        self._held = WeakHeld(owner)

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("found_in", self.attr, self._held.obj) if self._held.alive else ("never",),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return self._held.objects

    def holds(self, *values: Any) -> bool:
        return isinstance(values[0], type) and self._held.is_(self._first_with(values[0]))

    def _first_with(self, cls: type) -> type | None:
        return next((owner for owner in cls.__mro__ or () if self.attr in namespace_of(owner)), None)

    def expected(self) -> str:
        return f"{self.attr} of {self._held}" if self._held.obj is not None else f"no {self.attr}"

    def found(self, *values: Any) -> str:
        owner = self._first_with(values[0])
        return "none" if owner is None else f"that of {short(owner)}"


class BasesAre(Guard):
    """The class value looks names up in these classes, in this order: `value.__mro__`."""

    __slots__ = ("_held",)

    def __init__(self, source: Source, order: tuple[type, ...]) -> None:
        super().__init__((source,), tuple(map(id, order)))
        self._held = tuple(map(WeakHeld, order))

    @property
    def ops(self) -> tuple[Op, ...]:
        return (("bases", tuple(held.obj for held in self._held)) if all(held.alive for held in self._held) else ("never",),)

    @property
    def weakly_held(self) -> tuple[object, ...]:
        return tuple(obj for held in self._held for obj in held.objects)

    def holds(self, *values: Any) -> bool:
        order = values[0].__mro__ if isinstance(values[0], type) else ()
        return len(order) == len(self._held) and all(held.is_(base) for held, base in zip(self._held, order, strict=True))

    def expected(self) -> str:
        return "the bases " + ", ".join(map(str, self._held))

    def found(self, *values: Any) -> str:
        return ", ".join(map(short, values[0].__mro__))


# -- the process, and whatever else --------------------------------------------------------------------------------


class AmbientIs(Guard):
    """State of the process (ambient.py) is as it was when the trace began: grad mode, autocast..."""

    __slots__ = ("name", "value")
    hint = "the compiled code is for another mode of torch than the one now in force"

    def __init__(self, name: str, value: Hashable) -> None:
        super().__init__((), name, value)
        self.name = name
        self.value = value

    @property
    def ops(self) -> tuple[Op, ...]:
        return ambient.ops(self.name, self.value)

    def holds(self, *values: Any) -> bool:
        return ambient.read(self.name) == self.value

    def expected(self) -> str:
        return f"{self.name} {self.value}"

    def found(self, *values: Any) -> str:
        return str(ambient.read(self.name))

    def describe(self) -> str:
        return f"{self.name} is {self.value}"


class PythonCheck(Guard):
    """Anything else: `check(*values)`, run in Python on each call. Slow, and counted."""

    __slots__ = ("check", "text")

    def __init__(self, sources: tuple[Source, ...], check: Callable[..., bool], text: str) -> None:
        super().__init__(sources, check, text)
        self.check = check
        self.text = text

    def holds(self, *values: Any) -> bool:
        return bool(self.check(*values))

    def expected(self) -> str:
        return self.text


# -- many ----------------------------------------------------------------------------------------------------------


class GuardSet:
    """The guards of a trace, in the order in which they were first added; the second of two equal ones is dropped."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[Guard, str | None] = {}

    def add(self, guard: Guard, user_stack: str | None = None) -> None:
        self._guards.setdefault(guard, user_stack)

    def replace(self, guard: Guard, by: Guard) -> None:
        """`by` says all that `guard` says, and more."""
        self._guards.pop(guard, None)
        self.add(by)

    def discard(self, guard: Guard) -> None:
        self._guards.pop(guard, None)

    def weakly_held(self) -> list[object]:
        """The objects without which they never hold again, each once."""
        return list({id(obj): obj for guard in self._guards for obj in guard.weakly_held}.values())

    def user_stack(self, guard: Guard) -> str | None:
        """Where in the user's program the trace came to rely on it."""
        return self._guards.get(guard)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards)

    def __len__(self) -> int:
        return len(self._guards)

    def __contains__(self, guard: object) -> bool:
        return guard in self._guards
