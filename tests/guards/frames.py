"""Sample frames for the guard tests: a tree checked against plain Python objects, without the frame hook."""

from __future__ import annotations

import builtins
from types import CellType
from typing import Any

from fxjit.guards.kinds import Guard, GuardSet, PythonCheck
from fxjit.guards.source import LocalSource, Scope, Source
from fxjit.guards.tree import GuardTree, build_tree

X = LocalSource("x")
Y = LocalSource("y")
Z = LocalSource("z")


def guard_set(*guards: Guard) -> GuardSet:
    found = GuardSet()
    for guard in guards:
        found.add(guard)
    return found


class Frame:
    """A frame about to start, with arguments by name, closure variables and globals."""

    def __init__(
        self, globals: dict[str, Any] | None = None, closure: dict[str, Any] | None = None, **args: Any
    ) -> None:
        self.arg_names = tuple(args)
        self.args = tuple(args.values())
        self.freevars = tuple(closure or {})
        self.closure = tuple(CellType(value) for value in (closure or {}).values()) or None
        self.globals = globals if globals is not None else {}
        self.builtins = dict(vars(builtins))

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.args, self.closure, self.globals, self.builtins)

    @property
    def scope(self) -> Scope:
        return Scope.of(self.arg_names, self.freevars, *self.parts)

    def tree(self, *guards: Guard) -> GuardTree:
        return build_tree(guard_set(*guards), self.arg_names, self.freevars)

    def holds(self, *guards: Guard) -> bool:
        return self.tree(*guards).check(*self.parts)

    def in_c(self, source: Source) -> Any:
        """What the C tree finds at `source`."""
        seen: list[Any] = []

        def look(value: Any) -> bool:
            seen.append(value)
            return True

        return seen[0] if self.holds(PythonCheck((source,), look, "look")) else Missing


class Missing:
    """What `in_c` gives when the tree finds nothing."""


def holds(guard: Guard, **args: Any) -> bool:
    """Whether a guard about the arguments holds for them, in C; Python must say the same."""
    frame = Frame(**args)
    in_c = frame.holds(guard)
    assert in_c == means(guard, frame), f"{guard}: C says {in_c}"
    return in_c


def means(guard: Guard, frame: Frame) -> bool:
    """What the guard means in Python. An exception means that it does not hold."""
    try:
        return guard.holds(*(source.fetch(frame.scope) for source in guard.sources))
    except Exception:
        return False
