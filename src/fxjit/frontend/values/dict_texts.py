"""What `repr` says of dicts, ordered ones and those with a factory."""

from __future__ import annotations

import collections
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.sequence import busy_reprs

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
