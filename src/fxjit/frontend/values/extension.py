"""Extension points: functions and classes of a higher module that a lower one uses without importing it.

The lower module declares the point with its signature, the higher one provides it once, as it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ExtensionPoint(Generic[P, R]):
    """A function that one higher module provides."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._function: Callable[P, R] | None = None

    def provide(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorator of the function behind the point."""
        assert self._function is None, f"two modules provide {self.name}"
        self._function = function
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        assert self._function is not None, f"no module provides {self.name}"
        return self._function(*args, **kwargs)


class ClassRegistry(Generic[T]):
    """Extension points that higher modules fill for classes and their subclasses."""

    def __init__(self) -> None:
        self._rows: dict[type, T] = {}

    def register(self, root: type, provided: T) -> None:
        assert root not in self._rows, f"two modules register {root.__name__}"
        self._rows[root] = provided

    def find(self, cls: type) -> T | None:
        """The registration of the class, or of the first registered one that it derives from. Metaclasses are not asked."""
        return next((provided for root, provided in self._rows.items() if type.__subclasscheck__(root, cls)), None)
