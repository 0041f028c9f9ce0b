"""What `repr` says of dicts, ordered ones and those with a factory; and what is seen of a dict of the program's before it is
followed."""

from __future__ import annotations

import collections
from typing import Any, Final

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.keys import HashKey, is_repeatable
from fxjit.frontend.values.sequence import busy_reprs
from fxjit.guards.source import stored_keys, stored_length

_ORDERED_SHOWS_PAIRS: Final = "[" in repr(collections.OrderedDict(a=1))


def text_of_dict(t: Tracer, value: Any) -> str:
    """`value` is a DictValue."""
    busy = busy_reprs(t)
    pairs: list[tuple[Any, Any]] = []
    if id(value) in busy:
        text = "{...}"
    else:
        busy.add(id(value))
        try:
            pairs = [(protocol.repr_(t, key).as_constant(), protocol.repr_(t, item.realize()).as_constant())
                     for key, item in value.items.values()]
        finally:
            busy.discard(id(value))
        text = "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    if issubclass(value.cls, collections.defaultdict):
        factory = "None" if value.factory is None else protocol.repr_(t, value.factory).as_constant()
        return f"{value.cls.__name__}({factory}, {text})"
    if issubclass(value.cls, collections.OrderedDict):
        if text == "{...}":
            return "..."
        if not pairs:
            return f"{value.cls.__name__}()"
        if _ORDERED_SHOWS_PAIRS:
            text = "[" + ", ".join(f"({key}, {item})" for key, item in pairs) + "]"
        return f"{value.cls.__name__}({text})"
    return text


#: Of more, the guards on one place each would cost more than one on all keys.
_MOST_PLACES: Final = 16


def is_read_by_place(real: dict[Any, Any]) -> bool:
    """Whether a dict is followed without a look at its keys: a few numbers, or a few objects whose hash or equality may not be
    called at another time than the program does."""
    if stored_length(real) > _MOST_PLACES:
        return False
    kinds = set(map(type, stored_keys(real)))
    return kinds <= {int} or (not isinstance(real, collections.OrderedDict) and not all(map(_may_be_looked_up, kinds)))


def _may_be_looked_up(cls: type) -> bool:
    hasher: Any = cls.__hash__
    return hasher is object.__hash__ or issubclass(cls, torch.Tensor) or all(
        is_repeatable(cls, name) for name in ("__hash__", "__eq__"))


def place_of(key: object) -> HashKey:
    """A number, by which the entry may be looked up later, or what no other key is equal to."""
    return key if type(key) is int else object()


def has_one_order(obj: dict[Any, Any]) -> bool:
    """False: `dict.update` and the like, called by their names, put in entries that this OrderedDict's own order lacks."""
    listed = list(stored_keys(obj))
    return len(listed) == stored_length(obj) and all(dict.__contains__(obj, key) for key in listed)
