"""`threading.local` objects: made and written to as any object, but the running thread keeps the attributes. objects.py reads
them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.classes import NEW
from fxjit.frontend.values.objects import UserObjectValue

_SET: Final = threading.local.__setattr__
_DELETE: Final = threading.local.__delattr__


@handles(_SET, _DELETE)
def _write(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`threading.local.__setattr__(obj, name, value)`, or `__delattr__(obj, name)`."""
    given = [arg.realize() for arg in args]
    obj = given[0] if given else None
    known = len(given) in (2, 3) and not kwargs and given[1].is_constant() and type(given[1].as_constant()) is str
    if not isinstance(obj, UserObjectValue) or not issubclass(obj.pytype(), threading.local) or not known:
        t.break_("call-builtin", function="_local.__setattr__", args=", ".join(arg.describe() for arg in given))
    name = given[1].as_constant()
    written = t.effects.load_attr(obj, name)
    if len(given) == 2 and not isinstance(written, Value):
        # Reading goes on to the class where the thread has none of its own.
        if written is None and descriptors.look_up(t, obj.pytype(), name)[0] is not NOT_IMPLEMENTED:
            t.break_("attribute-unsupported", value=obj.describe(), name=name)
        if obj.pytype() is threading.local and obj.instance_attr(t, name) is None:
            return protocol.fold(t, delattr, threading.local(), name)  # which raises
    obj.generic_setattr(t, name, given[2] if len(given) == 3 else None)
    return t.make(None)


class ThreadLocalValue(UserObjectValue):
    """One that was made while tracing: of a derived class, `__init__` would run once more in each thread that asks it."""

    def fill(self, cg: Rebuilder) -> None:
        for name, attribute in cg.effects.stored_attrs(self).items():
            if attribute is not None:
                cg.call(_SET, self, name, attribute)
                cg.asm.pop()


def _new(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    if cls is not threading.local:
        t.break_("class-instantiation-unsupported", cls=cls.__qualname__)
    if args or kwargs:
        t.raise_(TypeError, "Initialization arguments are not supported")
    return ThreadLocalValue(cls)


NEW.register(threading.local, _new)
