"""Instance dicts that several objects share (`self.__dict__ = cls._state`), that are the globals of a module, or that the
program has as a dict besides: one place, whichever way it is reached. An attribute that the trace writes is one of all
objects that share the dict; what reaches it in a way that cannot see such writes breaks the graph.

Objects are met where they are wrapped, functions and namespaces where somebody asks for what they hold. Those whose dicts are
different stay so by a guard, where the trace wrote to an attribute of one and looked at it in another.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fxjit._C import instance_dict
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Value
from fxjit.frontend.values.untraceable import StandInValue, UntraceableValue
from fxjit.guards.kinds import InstanceHasAttr, SameObject
from fxjit.guards.source import InstanceDictSource, ItemSource, Source, mro_of

#: Tables of the trace: the owners of dicts by these, the dicts that were met as such, and in which dicts a name was looked for.
OWNERS: Final = "owners of instance dicts"
DICTS: Final = "dicts"
LOOKED_AT: Final = "attributes looked at"


@dataclass(frozen=True, slots=True)
class Owner:
    """What has `real` for its attributes or globals. `written`: pending writes of globals; others are in the effect log."""

    value: Any
    real: dict[str, Any]
    source: Source
    written: Mapping[str, Any] | None = None


def meet(t: Tracer, value: Value, namespace: dict[str, Any] | None, source: Source | None) -> None:
    """An object that `source` finds is about to be asked for what its instance dict has, or to get an attribute."""
    if not met(t, value, namespace, source):
        t.break_("attribute-unsupported", value=value.describe(), name="__dict__")


def met_object(t: Tracer, value: Value, obj: object, namespace: dict[str, Any] | None) -> Value:
    """`value` for an object with this dict that is being wrapped; or what no trace takes apart, since loading an object must
    not break the graph: a resume function loads its stack first."""
    assert value.source is not None
    if met(t, value, namespace, value.source):
        return value
    cls = value.pytype()
    says_its_class = (protocol.type_lookup(cls, "__getattribute__") is object.__getattribute__
                      and protocol.type_lookup(cls, "__class__") is object.__dict__["__class__"])
    made = UntraceableValue if says_its_class else StandInValue
    return made(obj, value.source, "attribute-unsupported", value=value.describe(), name="__dict__")


def met(t: Tracer, value: Value, namespace: dict[str, Any] | None, source: Source | None) -> bool:
    """Notes an object and its instance dict; whether the trace sees all that is written there."""
    if namespace is None or source is None:
        return True
    owners: dict[Any, Owner] = t.new_source_state(OWNERS)
    owner = owners.setdefault(id(namespace), Owner(value, namespace, InstanceDictSource(source)))
    dicts: dict[Any, Any] = t.new_source_state(DICTS)
    if id(namespace) in dicts or (owner.value is not value and not (_can_share(value) and _can_share(owner.value))):
        return False
    if owner.value is not value:
        t.guard(SameObject(owner.source, InstanceDictSource(source)))
        t.effects.share_attrs(value, owner.value)
    return True


def meet_globals(t: Tracer, value: Value, namespace: dict[str, Any], source: Source, written: Mapping[str, Any],
                 stores: bool = False) -> None:
    """A global of this namespace is about to be read, or written (`stores`). A dict that was looked at as such, such as what
    `exec` filled, is another value: neither sees what the other writes."""
    owners: dict[Any, Owner] = t.new_source_state(OWNERS)
    owner = owners.get(id(namespace))
    if owner is None:
        owner = owners[id(namespace)] = Owner(value, namespace, source, written)
    same = t.known(namespace)
    apart = same is not None and same is not value and (stores or t.effects.is_mutated(same))
    if apart or owner.written is not written:
        name = str(namespace.get("__name__"))
        t.break_("call-unsupported", callable=f"a function whose globals ({name}) are also written as a dict")


def meet_dict(t: Tracer, real: object, source: Source) -> Value | None:
    """A dict from outside, found as such: the value of the instance's dict that it is, or None."""
    owners: dict[Any, Owner] = t.new_source_state(OWNERS)
    owner = owners.get(id(real))
    if owner is None or (owner.written is not None and not t.effects.stored_attrs(owner.value)):
        dicts: dict[Any, Any] = t.new_source_state(DICTS)
        dicts[id(real)] = real
        return None
    t.guard(SameObject(owner.source, source))
    if not hasattr(owner.value, "instance_dict"):
        return UntraceableValue(real, source, "attribute-unsupported", value=owner.value.describe(), name="__dict__")
    found = owner.value.instance_dict(t)
    assert isinstance(found, Value)
    return found


def look_at(t: Tracer, namespace: dict[str, Any] | None, name: str | None) -> None:
    """A name is about to be read there, or found missing; None: the dict as a whole."""
    table: dict[Any, Any] = t.new_source_state(LOOKED_AT)
    table.setdefault(name, {})[id(namespace)] = None


def attribute(t: Tracer, value: Value, real: Any, source: Source, name: str) -> Value | None:
    """What `real`, an object from outside without a lookup of its own, has in its instance dict; None where that is nothing,
    which is guarded."""
    meet(t, value, real.__dict__, source)
    look_at(t, real.__dict__, name)
    if name in real.__dict__:
        return t.wrap(real.__dict__[name], ItemSource(InstanceDictSource(source), name)).realize()
    t.guard(InstanceHasAttr(source, name, False))
    return None


#: Data descriptors in front of memory of their own: what is written under their name is no entry of the instance's dict.
SLOTS: Final = (types.MemberDescriptorType, types.GetSetDescriptorType)


def hides_entry(cls: type, name: str) -> bool:
    """Whether an attribute of this name that was written is an entry of the instance's dict behind a data descriptor of the
    class (a property that caches there), which `object.__setattr__` would go to."""
    raw = protocol.type_lookup(cls, name)
    kind = type(raw)
    return not isinstance(raw, SLOTS) and any(protocol.type_lookup(kind, method) is not NOT_IMPLEMENTED
                                              for method in ("__set__", "__delete__"))


def put_entry(obj: object, name: str, value: object) -> None:
    """Run-time helper of new bytecode: an entry of the instance's dict, past the class's descriptor."""
    instance_dict(obj)[name] = value


def take_entry(obj: object, name: str) -> None:
    """Run-time helper of new bytecode: such an entry removed, if it is there."""
    instance_dict(obj).pop(name, None)


def kept_apart(effects: Any, found: Collection[tuple[Value, object]], scratch: Mapping[object, dict[str, Any]]) -> list[Source]:
    """The dicts of which no two may be one: those with a name that the trace wrote in one and looked at in another."""
    owners: dict[Any, Owner] = scratch.get(OWNERS, {})  # type: ignore[assignment]  # tables of a trace have no types
    dicts: list[tuple[Any, Any]] = [(value, obj) for value, obj in found if type(obj) is dict and value.source is not None]
    written_dicts = [(value, obj) for value, obj in dicts if effects.is_written(value)]
    writers: dict[int, Iterable[str]] = {}
    for place, owner in owners.items():
        if names := {*effects.stored_attrs(owner.value), *(owner.written or ())}:
            writers[place] = names
    sources = {place: owner.source for place, owner in owners.items()}
    together: dict[int, Source] = {}
    if writers:
        together = {place: sources[place] for place in writers} if dicts else {}
        together |= _in_conflict(writers, sources, scratch.get(LOOKED_AT, {}))
    keys = {key for value, obj in written_dicts for key in (*value.met_keys(), *obj) if type(key) is str}
    if written_dicts:
        together |= _in_conflict({0: keys}, sources, scratch.get(LOOKED_AT, {}))
    if together:
        together |= {id(obj): value.source for value, obj in (dicts if writers else written_dicts)}
    return list(together.values())


def _in_conflict(writers: Mapping[int, Iterable[str]], sources: Mapping[int, Source],
                 looked_at: Mapping[Any, Mapping[Any, None]]) -> dict[int, Source]:
    """Who wrote a name, and who wrote it too or looked at it."""
    by_name: dict[str | None, dict[int, None]] = {None: {}}
    for place, names in writers.items():
        for name in names:
            by_name.setdefault(name, {})[place] = None
        by_name[None][place] = None
    together: dict[int, None] = {}
    for key, places in by_name.items():
        concerned = ({} if key is None else places) | {place: None for place in looked_at.get(key, ()) if place in sources}
        if len(places | concerned) > 1 and concerned:
            together |= places | concerned
    return {place: sources[place] for place in together if place in sources}


def _can_share(value: Value) -> bool:
    """Whether all its attributes that the trace may write are in its dict, where another object may find them."""
    return hasattr(value, "instance_dict") and not any(
        isinstance(each, SLOTS) and name not in ("__dict__", "__weakref__", "__class__")
        for cls in mro_of(value.pytype()) for name, each in vars(cls).items())
