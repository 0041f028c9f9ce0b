"""Classes that a frame makes by `collections.namedtuple`: one while tracing, which nobody else sees, and a new one in each run
that hands it on."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Collection
from typing import Any


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


#: What is the same wherever it comes from, and has no attributes to write to.
_ATOMS = (str, int, float, tuple, type(None))
#: From `Optional[Pair]` by its attributes to the alias `Pair[int]` in it, and to the class.
_STEPS = 6
_LEAD_ANYWHERE = (types.ModuleType, types.FunctionType, type)
