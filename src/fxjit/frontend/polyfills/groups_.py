"""Exception groups in plain Python (Objects/exceptions.c): splitting, and what `except*` does with a group's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxjit.frontend.values.exceptions import GROUPS

Group = BaseExceptionGroup[Any]
Parts = tuple[BaseException | None, BaseException | None]


def _condition(group: Group, condition: Any) -> Callable[[BaseException], bool]:
    if isinstance(condition, (type, tuple)):
        return lambda exc: isinstance(exc, condition)
    return condition  # type: ignore[no-any-return]  # a function


def _subset(group: Group, parts: list[Any]) -> Any:
    """A group like `group` of fewer exceptions; None of none."""
    if not parts:
        return None
    made = group.derive(parts)
    if not isinstance(made, BaseExceptionGroup):
        raise TypeError("derive must return an instance of BaseExceptionGroup")
    made.__context__ = group.__context__
    made.__cause__ = group.__cause__
    if hasattr(group, "__notes__"):
        made.__notes__ = list(group.__notes__)
    return made


def _split(exc: Any, matches: Callable[[BaseException], bool], with_rest: bool) -> Parts:
    if matches(exc):
        return exc, None
    if not isinstance(exc, BaseExceptionGroup):
        return None, exc if with_rest else None
    matched, left = [], []
    for part in exc.exceptions:
        inside, outside = _split(part, matches, with_rest)
        if inside is not None:
            matched.append(inside)
        if outside is not None:
            left.append(outside)
    return _subset(exc, matched), _subset(exc, left)


def split(group: Group, condition: Any) -> Parts:
    return _split(group, _condition(group, condition), True)


def subgroup(group: Group, condition: Any) -> Any:
    return _split(group, _condition(group, condition), False)[0]


def derive(group: Group, parts: Any) -> Group:
    return BaseExceptionGroup(group.message, parts)


def match(exc: Any, caught: Any) -> Parts:
    """CHECK_EG_MATCH: what `except* caught` leaves of `exc`, and what it takes."""
    if exc is None:
        return None, None
    if isinstance(exc, caught):
        return None, exc if isinstance(exc, BaseExceptionGroup) else BaseExceptionGroup("", (exc,))
    if not isinstance(exc, BaseExceptionGroup):
        return exc, None
    taken, left = exc.split(caught)
    return left, taken


def _is_part_of(exc: Any, original: Group) -> bool:
    """Whether `exc` was raised again, not anew."""
    return (isinstance(exc, BaseExceptionGroup) and getattr(exc, "__notes__", None) is getattr(original, "__notes__", None)
            and exc.__cause__ is original.__cause__ and exc.__context__ is original.__context__)


def _leaves(exc: Any) -> list[Any]:
    if not isinstance(exc, BaseExceptionGroup):
        return [exc]
    return [leaf for part in exc.exceptions for leaf in _leaves(part)]


def raised_again(original: Any, excs: list[Any]) -> Any:
    """PREP_RERAISE_STAR: what is raised at the end, given what the clauses raised and what none of them took."""
    if not excs:
        return None
    if not isinstance(original, BaseExceptionGroup):
        return excs[0]
    raised: list[Any] = []
    again: list[Any] = []
    for exc in excs:
        if exc is not None:
            (again if _is_part_of(exc, original) else raised).append(exc)
    if again:
        leaves = [leaf for exc in again for leaf in _leaves(exc)]
        left = _split(original, lambda exc: any([leaf is exc for leaf in leaves]), False)[0]
        if not raised:
            return left
        raised.append(left)
    if not raised:
        return None
    return raised[0] if len(raised) == 1 else BaseExceptionGroup("", raised)


for _fn in (split, subgroup, derive, match, raised_again):
    GROUPS[_fn.__name__] = _fn
