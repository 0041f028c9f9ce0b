"""Guards that objects which the trace took for different ones are different in the calls to come: tensors, what containers
compared by identity, and what was written to, since a write to one object was not seen in another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from fxjit.frontend.effects import Effects
from fxjit.frontend.values import instance_dicts
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.keys import IDENTITY_KEYS
from fxjit.guards.kinds import GuardSet, NotSameObject
from fxjit.guards.source import Source, mro_of


def guard(guards: GuardSet, effects: Effects, found: Collection[tuple[Value, object]], input_tensors: Iterable[Source],
          scratch: Mapping[object, dict[str, Any]]) -> None:
    """`found`: the values of objects from outside, with these; `scratch`: the tables of the trace."""
    tensors = dict.fromkeys(input_tensors)
    keys: dict[Any, Any] = scratch.get(IDENTITY_KEYS, {})
    for sources in (tensors, [source for source in keys if source not in tensors], *_written(effects, found),
                    instance_dicts.kept_apart(effects, found, scratch)):
        if len(sources) > 1:
            guards.add(NotSameObject(tuple(sources)))


def _written(effects: Effects, found: Collection[tuple[Value, object]]) -> Iterable[Collection[Source]]:
    """Objects that were written to, with others of their type, however they are reached."""
    by_type: dict[type, list[Source]] = {}
    written: dict[type, None] = {}
    for value, obj in found:
        if value.source is None or torch.Tensor in mro_of(type(obj)):
            continue
        by_type.setdefault(type(obj), []).append(value.source)
        if effects.is_written(value):
            written[type(obj)] = None
    return [by_type[cls] for cls in written]
