"""Updated numbers: those that a frame reads from where it writes another one to, as a counter is. The next call finds what this
one leaves there, so they are symbols in the frame's first compile already, and not once a guard on their value has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fxjit.errors import RestartTrace, leave_trace
from fxjit.frontend.effects import Effect, Restore, StoreAttr
from fxjit.frontend.result import Break, Return
from fxjit.frontend.values.base import Lazy
from fxjit.frontend.values.classes import ClassValue
from fxjit.frontend.values.constant import ConstantFromOutside
from fxjit.frontend.values.descriptors import class_attribute_source
from fxjit.frontend.values.numpy_ import number_of
from fxjit.frontend.values.traits import Alternatives, Places
from fxjit.guards.source import (
    ApplySource,
    AttrSource,
    ClassItemSource,
    ConstSource,
    InstanceDictSource,
    ItemSource,
    namespace_of,
)

if TYPE_CHECKING:
    from fxjit.frontend.dynamic import ShapePolicy
    from fxjit.frontend.interp.restart import BreakPoints
    from fxjit.frontend.values.base import Value
    from fxjit.guards.source import Source


def foresee_updated_numbers(policy: ShapePolicy, points: BreakPoints, effects: Iterable[Effect],
                            read: Mapping[Source, Value], end: Return | Break) -> None:
    """Restarts a complete trace whose updated numbers were constants; and, as it was, one that then breaks elsewhere for it."""
    place = end.index if isinstance(end, Break) else None
    if points.foreseen is None:
        names = frozenset(source.name for source, number in updated_numbers(effects, read) if policy.foresee(number, source))
        points.foreseen = names, place
    elif points.foreseen[0] and place not in (None, points.foreseen[1]):
        names, points.foreseen = points.foreseen[0], (frozenset(), None)
        policy.history.varying_numbers -= names
    else:
        return
    if names:
        points.start_over()
        leave_trace(RestartTrace("a number that the frame reads and updates is a symbol, or for a break is none"))


def updated_numbers(effects: Iterable[Effect], read: Mapping[Source, Value]) -> Iterator[tuple[Source, int | float]]:
    """The places of constant numbers in `read`, Python's or NumPy's, that end up with another number of the same type, each
    with what was read."""
    for source, value in _written(effects):
        for place in (source, ApplySource(source, number_of)):
            before = read.get(place)
            if not isinstance(before, ConstantFromOutside) or not before.was_read:
                continue
            if isinstance(source.root, ConstSource) and not isinstance(source, ClassItemSource):
                continue
            number, now = before.peek(), value.realized if isinstance(value, Lazy) else value
            of_numpy = place is not source
            if now is None or now is before or isinstance(now, Alternatives) or type(number) not in (int, float):
                continue
            if now.pytype() is not type(number) and not (of_numpy and issubclass(now.pytype(), np.generic)):
                continue
            assert isinstance(number, (int, float))
            left = now.peek() if isinstance(now, ConstantFromOutside) else now.as_constant() if now.is_constant() else None
            if (left.item() if isinstance(left, np.generic) else left) != number:
                yield place, number


def _written(effects: Iterable[Effect]) -> Iterator[tuple[Source, Value]]:
    for effect in effects:
        if isinstance(effect, StoreAttr) and effect.value is not None and effect.obj.source is not None:
            yield ItemSource(InstanceDictSource(effect.obj.source), effect.name), effect.value
            yield AttrSource(effect.obj.source, effect.name), effect.value
            place = _place_in_class(effect.obj, effect.name)
            if place is not None:
                yield place, effect.value
        elif isinstance(effect, Restore) and isinstance(effect.value, Places):
            yield from effect.value.places()


def _place_in_class(owner: Value, name: str) -> Source | None:
    """Where a trace reads a number of a class, which `owner` may be."""
    if not isinstance(owner, ClassValue) or name not in namespace_of(owner.cls):
        return None
    return class_attribute_source(owner.cls, name)
