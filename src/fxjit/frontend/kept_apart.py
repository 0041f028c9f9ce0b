"""Guards that objects which the trace took for different ones are different in the calls to come: tensors, what containers
compared by identity, and what was written to, since a write to one object was not seen in another. And that tensors whose
numbers were read before the frame lie apart from what its graph had written to by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from fxjit.frontend.effects import Effects
from fxjit.frontend.result import GraphInput
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import instance_dicts
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.keys import IDENTITY_KEYS
from fxjit.guards.kinds import ConstIs, GuardSet, NotSameObject
from fxjit.guards.parts import TogetherSource
from fxjit.guards.source import ApplySource, Source, mro_of
from fxjit.tensor_wrappers import has_storage, is_wrapper

#: Tensors that each call looks at, at some two microseconds for each.
_MOST_WRITTEN: Final = 64


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


def guard_apart(t: Tracer, read: GraphInput, written: Sequence[GraphInput | None]) -> bool:
    """Whether a tensor with one element lies in the storage of no input that was written to; then that is a guard."""
    inputs = [read, *(each for each in written if each is not None)]
    if len(inputs) <= len(written) or len(inputs) > _MOST_WRITTEN or not lies_apart(tuple(each.example for each in inputs)):
        return False
    t.guard(ConstIs(ApplySource(TogetherSource(tuple(each.source for each in inputs)), lies_apart), True))
    return True


def lies_apart(tensors: tuple[Any, ...]) -> bool:
    """Whether the first tensor's first element lies in the storage of none of the others. Run-time helper of guards."""
    place = tensors[0].data_ptr()
    for each in tensors[1:]:
        if not isinstance(each, torch.Tensor) or is_wrapper(each) or not has_storage(each):
            return False
        storage = each.untyped_storage()
        if 0 <= place - storage.data_ptr() < storage.nbytes():
            return False
    return True
