"""What made a set's table: the calls of CPython that the program made, to be made again by the new bytecode.

The order of a set's elements follows from the whole table: its room, and the places that elements have left. A history is a
tuple: how the set began and with which keys, one by one, as a dict or as a dict's keys; then the calls in order, each a tuple
of the method and its arguments, which are histories or keys. Only constants are kept: of other objects the hash is not known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from fxjit.frontend.values.constant import is_plain_constant

History = tuple[Any, ...]
#: A set that the new bytecode finds.
GIVEN: Final[History] = ("given", ())
#: As an argument: what is called on.
ITSELF: Final[History] = ("itself", ())
_KINDS: Final[dict[str, Callable[[Sequence[Hashable]], Any]]] = {
    "one by one, list": list,
    "one by one, set": set,
    "one by one, frozenset": frozenset,
    "constant": lambda keys: keys,
    "dict": dict.fromkeys,
    "dict, set": lambda keys: set(dict.fromkeys(keys)),
    "dict, frozenset": lambda keys: frozenset(dict.fromkeys(keys)),
    "keys": lambda keys: dict.fromkeys(keys).keys(),
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "set": set, "frozenset": frozenset,
    "&": operator.and_, "|": operator.or_, "-": operator.sub, "^": operator.xor,
}
#: Calls that change what they are called on.
_IN_PLACE: Final = frozenset({
    "add", "discard", "pop", "clear", "update", "intersection_update", "difference_update", "symmetric_difference_update",
    "__init__", "__iand__", "__ior__", "__isub__", "__ixor__",
})
_OF_KEYS: Final = ("add", "discard")
#: Longer and deeper ones cost more than they are worth; the set is then built of its elements.
_MOST: Final = 2000
_DEEPEST: Final = 20


def _of(kind: str, keys: Sequence[Hashable]) -> History | None:
    return (kind, tuple(keys)) if len(keys) <= _MOST and all(map(is_plain_constant, keys)) else None


def of_elements(kind: type, keys: Sequence[Hashable]) -> History | None:
    return _of(f"one by one, {kind.__name__}", keys)


def of_dict(kind: type, keys: Sequence[Hashable]) -> History | None:
    return _of("dict" if kind is dict else f"dict, {kind.__name__}", keys)


def of_constant(keys: frozenset[Hashable]) -> History | None:
    """A frozenset that is a constant of the program's code."""
    return ("constant", keys) if all(map(is_plain_constant, keys)) else None


def of_keys(keys: Sequence[Hashable]) -> History | None:
    return _of("keys", keys)


def added(history: History | None, key: Hashable) -> History | None:
    if history is not None and history[0] == "one by one, set" and len(history) == 2 and is_plain_constant(key):
        return _of(history[0], (*history[1], key))
    return done(history, "add", key)


def done(history: History | None, method: str, *args: Any) -> History | None:
    """The history after a call with those arguments: histories, or of `add` and `discard` a key."""
    if history is None or any(arg is None for arg in args):
        return None
    if method in _OF_KEYS:
        return (*history, (method, *args)) if len(history) < _MOST and is_plain_constant(args[0]) else None
    if max((_depth(arg) for arg in args), default=0) >= _DEEPEST or _size(history) + sum(map(_size, args)) > _MOST:
        return None
    return (*history, (method, *args))


def _operands(history: History) -> list[History]:
    return [arg for method, *args in history[2:] if method not in _OF_KEYS for arg in args]


def _size(history: History) -> int:
    return len(history) + len(history[1]) + sum(map(_size, _operands(history)))


def _depth(history: History) -> int:
    return 1 + max(map(_depth, _operands(history)), default=0)


def is_needed(history: History | None) -> bool:
    """Whether building the set of its elements, one by one, may give another table."""
    return history is not None and (len(history) > 2 or not history[0].startswith("one by one"))


def is_of_given(history: History | None) -> bool:
    """Whether the table is one that was given, changed since, or is not known."""
    history = since_cleared(history)
    return history is None or history[0] == GIVEN[0]


def since_cleared(history: History | None) -> History | None:
    """The history without what was before a `clear`, which leaves the table of a new set."""
    clears = [] if history is None else [place for place, step in enumerate(history) if place > 1 and step[0] == "clear"]
    return history if history is None or not clears else ("one by one, set", (), *history[clears[-1] + 1:])


# -- what the new bytecode calls --------------------------------------------------------------------------------


def replay(history: History) -> Any:
    return replay_on(None, history)


def replay_on(given: Any, history: History) -> Any:
    """The set with this history; `given` is the one at its beginning."""
    kind, keys, *steps = history
    made = given if kind == GIVEN[0] else _KINDS[kind](keys)
    for method, *args in steps:
        operands = args if method in _OF_KEYS else [made if arg == ITSELF else replay(arg) for arg in args]
        if method in _FUNCTIONS:
            made = _FUNCTIONS[method](made, *operands)
        elif method in _IN_PLACE:
            getattr(set, method)(made, *operands)
        else:
            made = getattr(type(made), method)(made, *operands)
    return made
