"""What the `copy` methods of containers of C do for an instance of a class that derives from one, in Python that is traced:
the copy is of that class, and made by calling it. (Copies of sets are plain ones.)"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Final


def _deque(self: Any) -> Any:
    return type(self)(self) if self.maxlen is None else type(self)(self, self.maxlen)


def _defaultdict(self: Any) -> Any:
    return type(self)(self.default_factory, self)


def _ordered_dict(self: Any) -> Any:
    made = type(self)()
    for key in collections.OrderedDict.__iter__(self):
        made[key] = self[key]
    return made


_COPIERS: Final[dict[Any, Callable[[Any], Any]]] = {
    collections.deque.copy: _deque, collections.OrderedDict.copy: _ordered_dict,
    vars(collections.deque)["__copy__"]: _deque, collections.defaultdict.copy: _defaultdict,
    vars(collections.defaultdict)["__copy__"]: _defaultdict,
}


def copier_of(method: Any) -> Callable[[Any], Any] | None:
    """What stands for this method of C; None where it is no such method."""
    return _COPIERS.get(method)
