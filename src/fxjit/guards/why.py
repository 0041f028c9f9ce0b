"""The guard that failed, in one line: which source, what was expected, what was found, and what to do.

pipeline.py calls it when a compiled entry does not fit a frame and another is about to be made; the line goes to the log
`recompiles` and into the error when the limit is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType
from typing import Any

from fxjit.guards.kinds import Guard
from fxjit.guards.source import Scope, Source
from fxjit.guards.tree import GuardTree


def explain_failure(
    tree: GuardTree,
    arg_names: tuple[str, ...],
    freevars: tuple[str, ...],
    args: tuple[object, ...],
    closure: tuple[CellType, ...] | None,
    globals: dict[str, Any],
    builtins: dict[str, Any],
) -> str | None:
    """Why `tree` does not hold for this frame; None when it does."""
    failure = tree.first_failure(args, closure, globals, builtins)
    if failure is None:
        return None
    return explain_guard(failure[1], Scope.of(arg_names, freevars, args, closure, globals, builtins))


def count_failures(tree: GuardTree, scope: Scope) -> int:
    """How many guards of `tree` do not hold in `scope`: how far its entry is from fitting."""
    return sum(not holds_in(guard, scope) for guard in tree.guards)


def holds_in(guard: Guard, scope: Scope) -> bool:
    """Whether a guard holds for a frame that is about to start."""
    try:
        return guard.holds(*[source.fetch(scope) for source in guard.sources])
    except Exception:  # the user's own look-up, as below
        return False


def explain_guard(guard: Guard, scope: Scope) -> str:
    """Why `guard` does not hold in `scope`."""
    values = []
    for source in guard.sources:
        try:
            values.append(source.fetch(scope))
        except Exception as error:  # the user's own look-up: whatever it raises is the answer
            return _gone(source, error)
    subject = guard.subject
    reason = _in_words(lambda: guard.why(*values))
    hint = _in_words(lambda: guard.hint_for(*values))
    line = f"{subject}: {reason}" if subject else reason
    return f"{line} ({hint})" if hint else line


def _gone(source: Source, error: Exception) -> str:
    """The first thing on the way to `source` that is not there any more."""
    return f"{source.name}: it was there when the code was compiled; now it gives {type(error).__name__}: {error}"


def _in_words(say: Callable[[], str]) -> str:
    """A guard's own explanation, which reads the object; an object that raises is itself the reason."""
    try:
        return say()
    except Exception as error:  # see above
        return f"asking gave {type(error).__name__}: {error}"
