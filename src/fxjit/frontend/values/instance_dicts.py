"""Instance dicts that several objects share (`self.__dict__ = cls._state`), or that the program has as a dict besides: one
place, whichever way it is reached. An attribute that the trace writes is one of all objects that share the dict.

Objects are met where they are wrapped. Those whose dicts are different stay so by a guard, where the trace wrote to an
attribute of one and looked at it in another.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.guards.kinds import SameObject
from fxjit.guards.source import InstanceDictSource, Source, mro_of

#: Tables of the trace: the owners of instance dicts by these, the dicts that were met as such, and who was asked for a name.
OWNERS: Final = "owners of instance dicts"
DICTS: Final = "dicts"
LOOKED_AT: Final = "attributes looked at"


def meet(t: Tracer, value: Value, namespace: dict[str, Any] | None) -> None:
    """An object from outside and its instance dict."""
    if namespace is None or value.source is None:
        return
    owners: dict[Any, tuple[Value, object]] = t.new_source_state(OWNERS)
    owner = owners.setdefault(id(namespace), (value, namespace))[0]
    dicts: dict[Any, Any] = t.new_source_state(DICTS)
    if id(namespace) in dicts or (owner is not value and any(map(_has_slots, (value, owner)))):
        t.break_("attribute-unsupported", value=value.describe(), name="__dict__")
    if owner is not value:
        assert owner.source is not None
        t.guard(SameObject(InstanceDictSource(owner.source), InstanceDictSource(value.source)))
        t.effects.share_attrs(value, owner)


def meet_dict(t: Tracer, real: object, source: Source) -> Value | None:
    """A dict from outside, found as such: the value of the instance's dict that it is, or None."""
    owners: dict[Any, tuple[Value, object]] = t.new_source_state(OWNERS)
    if id(real) not in owners:
        dicts: dict[Any, Any] = t.new_source_state(DICTS)
        dicts[id(real)] = real
        return None
    owner: Any = owners[id(real)][0]
    t.guard(SameObject(InstanceDictSource(owner.source), source))
    found = owner.instance_dict(t)
    assert isinstance(found, Value)
    return found


def look_at(t: Tracer, value: Value, name: str | None) -> None:
    """An attribute of the instance is about to be read, or found missing; None: its dict as a whole."""
    table: dict[Any, Any] = t.new_source_state(LOOKED_AT)
    table.setdefault(name, {})[value] = None


def kept_apart(effects: Any, found: Collection[tuple[Value, object]], scratch: Mapping[object, dict[str, Any]]) -> list[Source]:
    """The dicts of which no two may be one: those with a name that the trace wrote in one and looked at in another."""
    owners: dict[Any, tuple[Any, object]] = scratch.get(OWNERS, {})  # type: ignore[assignment]  # as above
    looked_at: dict[Any, dict[Any, None]] = scratch.get(LOOKED_AT, {})  # type: ignore[assignment]  # as above
    dicts: list[tuple[Any, Any]] = [(value, obj) for value, obj in found if type(obj) is dict and value.source is not None]
    written = [(value, obj) for value, obj in dicts if effects.is_written(value)]
    names = {name for owner, _ in owners.values() for name in effects.stored_attrs(owner)}
    together: dict[int, Any] = {}
    for owner, namespace in owners.values():
        if effects.stored_attrs(owner):
            together[id(namespace)] = InstanceDictSource(owner.source)
    keys = (key for value, obj in written for key in (*value.met_keys(), *obj) if type(key) is str)
    for name in {*names, *keys, None} if names or written else ():
        for value in looked_at.get(name, ()):
            namespace = value.namespace()
            if id(namespace) in owners:
                together.setdefault(id(namespace), InstanceDictSource(value.source))
    if together:
        together |= {id(obj): value.source for value, obj in (dicts if names else written)}
    return list(together.values())


def _has_slots(value: Value) -> bool:
    return any(isinstance(each, types.MemberDescriptorType) for cls in mro_of(value.pytype()) for each in vars(cls).values())
