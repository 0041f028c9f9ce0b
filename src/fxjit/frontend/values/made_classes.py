"""Classes that a frame makes by `collections.namedtuple` or `type`: one while tracing, which nobody else sees, and a new one in
each run that hands it on."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Collection
from typing import Any

from fxjit.guards.kinds import BasesAre, FoundIn, Guard, GuardSet, NotSameObject
from fxjit.guards.source import ConstSource, Source, class_source, mro_of, namespace_of


class MadeClasses:
    """Those of one trace, and how each is made again."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[type, Callable[[], type]]] = {}

    def make(self, maker: Callable[..., type], *args: Any, **kwargs: Any) -> type:
        renew = functools.partial(maker, *args, **kwargs)
        cls = renew()
        self._made[id(cls)] = cls, renew
        return cls

    def maker_of(self, obj: object) -> Callable[[], type] | None:
        """What makes such a class anew; None where `obj` is none of them."""
        known = self._made.get(id(obj))
        return None if known is None else known[1]

    def settle(self, guards: GuardSet) -> None:
        """Takes out of `guards` what is said of these classes, which go with the trace. It always holds, but for what they
        inherit, of which their bases are guarded."""
        said = [guard for guard in guards if any(map(self._is_of_one, guard.sources))] if self._made else []
        while said:
            guard = said.pop()
            for other in self._about_others(guard):
                if any(map(self._is_of_one, other.sources)):
                    said.append(other)
                else:
                    guards.add(other, guards.user_stack(guard))
            guards.discard(guard)

    def _is_of_one(self, source: Source) -> bool:
        root = source.root
        return isinstance(root, ConstSource) and id(root.obj) in self._made

    def _about_others(self, guard: Guard) -> list[Guard]:
        """What of a guard on such a class is not about that class alone."""
        if isinstance(guard, NotSameObject):
            rest = tuple(source for source in guard.sources if not self._is_of_one(source))
            return [NotSameObject(rest)] if len(rest) > 1 else []
        root = guard.source
        if not isinstance(root, ConstSource) or not isinstance(root.obj, type):
            return []
        bases = root.obj.__bases__
        if isinstance(guard, FoundIn):
            return [FoundIn(class_source(base), guard.attr, _holder(base, guard.attr)) for base in bases]
        return [BasesAre(class_source(base), mro_of(base) or ()) for base in bases] if isinstance(guard, BasesAre) else []

    def are_hidden(self, held: Collection[object]) -> bool:
        """Whether none of these is such a class or what one has in its namespace, or leads to one."""
        if not self._made:
            return True
        parts = set(self._made)
        parts |= {id(part) for cls, _ in self._made.values() for part in vars(cls).values() if not isinstance(part, _ATOMS)}
        reached = list(held)
        for _ in range(_STEPS):
            if any(id(obj) in parts for obj in reached):
                return False
            reached = gc.get_referents(*(obj for obj in reached if not isinstance(obj, _LEAD_ANYWHERE)))
        return True


def _holder(cls: type, name: str) -> type | None:
    return next((owner for owner in mro_of(cls) or () if name in namespace_of(owner)), None)


#: What is the same wherever it comes from, and has no attributes to write to.
_ATOMS = (str, int, float, tuple, type(None))
#: From `Optional[Pair]` by its attributes to the alias `Pair[int]` in it, and to the class.
_STEPS = 6
_LEAD_ANYWHERE = (types.ModuleType, types.FunctionType, type)
