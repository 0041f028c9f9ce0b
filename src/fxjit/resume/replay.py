"""The effect log as bytecode: what the traced frame did to objects that the caller can see, done again in order.

entry.py calls `replay` after the graph ran and after every source that is still needed was loaded.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any

from fxjit.frontend.effects import CallLater, Effect, Restore, StoreAttr
from fxjit.frontend.values import instance_dicts
from fxjit.frontend.values.base import Value
from fxjit.resume.rebuild import Rebuilder


def replay(cg: Rebuilder, effects: Sequence[Effect]) -> None:
    """Emit `effects`; the stack is as before afterwards."""
    for effect in effects:
        if isinstance(effect, StoreAttr):
            _store_attr(cg, effect)
        elif isinstance(effect, Restore):
            cg.push(effect.value)
            effect.value.write_back(cg)
        elif isinstance(effect, CallLater):
            cg.call(effect.fn, *effect.args)
            cg.asm.pop()


def _store_attr(cg: Rebuilder, effect: StoreAttr) -> None:
    store, delete = _accessors(effect.obj, effect.name)
    if effect.value is None:
        cg.call(_discard, delete, effect.obj, effect.name)
    else:
        cg.call(store, effect.obj, effect.name, effect.value)
    cg.asm.pop()


def _discard(delete: Callable[[object, str], object], obj: object, name: str) -> None:
    """Delete an attribute; one that was made and deleted while tracing never came to be."""
    with contextlib.suppress(AttributeError):
        delete(obj, name)


def _accessors(obj: Value, name: str) -> tuple[Callable[..., object], Callable[..., object]]:
    """How an attribute reaches the object itself, without the user's `__setattr__` and descriptors, which were traced already:
    by that of the nearest class of C (tensors, functions, threading.local), which `object.__setattr__` would not be let past,
    or in the instance's dict, where the class has a descriptor in front of it."""
    kind = obj.pytype()
    if issubclass(kind, type):
        return type.__setattr__, type.__delattr__
    if issubclass(kind, types.ModuleType):
        return setattr, delattr
    if instance_dicts.hides_entry(kind, name):
        return instance_dicts.put_entry, instance_dicts.take_entry
    nearest = _nearest_of_c(kind)
    native: Any = nearest
    own: Any = kind
    if own.__setattr__ is native.__setattr__ and own.__delattr__ is native.__delattr__ and nearest is not object:
        return setattr, delattr
    return native.__setattr__, native.__delattr__


def _nearest_of_c(kind: type) -> type:
    """The class of C whose attribute writes those of the class's Python code end in."""
    return next(base for base in kind.__mro__ if isinstance(base.__dict__.get("__setattr__"), types.WrapperDescriptorType))
