"""functools in plain Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from fxjit.frontend.values.calls import polyfill

_missing: Any = functools.singledispatch  # an object that nobody passes as an initial value


@polyfill(functools.reduce)
def reduce(function: Callable[[Any, Any], Any], iterable: Iterable[Any], initial: Any = _missing, /) -> Any:
    items = iter(iterable)
    value = next(items, _missing) if initial is _missing else initial
    if value is _missing:
        raise TypeError("reduce() of empty iterable with no initial value")
    while (item := next(items, _missing)) is not _missing:  # a loop over it would call an `__iter__` of the program's again
        value = function(value, item)
    return value


class Compared:
    """Key objects of functools.cmp_to_key."""

    __slots__ = ("mycmp", "obj")
    __hash__ = None  # type: ignore[assignment]  # as the original

    def __init__(self, mycmp: Callable[[Any, Any], Any], obj: Any) -> None:
        self.mycmp = mycmp
        self.obj = obj

    def __lt__(self, other: Compared) -> bool:
        return self.mycmp(self.obj, other.obj) < 0  # type: ignore[no-any-return]  # whatever the comparison gives

    def __gt__(self, other: Compared) -> bool:
        return self.mycmp(self.obj, other.obj) > 0  # type: ignore[no-any-return]  # whatever the comparison gives

    def __eq__(self, other: object) -> bool:
        return self.mycmp(self.obj, other.obj) == 0  # type: ignore[attr-defined, no-any-return]  # an object in the stubs; whatever the comparison gives

    def __le__(self, other: Compared) -> bool:
        return self.mycmp(self.obj, other.obj) <= 0  # type: ignore[no-any-return]  # whatever the comparison gives

    def __ge__(self, other: Compared) -> bool:
        return self.mycmp(self.obj, other.obj) >= 0  # type: ignore[no-any-return]  # whatever the comparison gives


@polyfill(functools.cmp_to_key)
def cmp_to_key(mycmp: Callable[[Any, Any], Any]) -> Callable[[Any], Compared]:
    def key(obj: Any) -> Compared:
        return Compared(mycmp, obj)

    return key
