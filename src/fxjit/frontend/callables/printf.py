"""`"%s %d" % args` of a text that is known, with arguments that may not be.

constant.py comes here through protocol.py. Constants are formatted by CPython. What is no constant shows the text that
tracing its `__str__` or `__repr__` gives; or, where functions wait for texts of tensors, a field of a text that waits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.deferred import (
    DeferredText,
    Field,
    Marked,
    defers_texts,
    example_of,
    is_from_data,
    is_of_deferred_numbers,
    snapshot,
    varies,
)

_CONVERSION: Final = re.compile(r"%(?P<key>\([^()%]*\))?(?P<form>[#0\- +]*\d*(?:\.\d*)?)[hlL]?(?P<kind>.)", re.DOTALL)
_OF_TEXT: Final = frozenset("sra")
_OF_REALS: Final = frozenset("eEfFgG")
_OF_INTEGERS: Final = frozenset("diu")


@protocol.printf.provide
def printf(t: Tracer, template: str, other: Value) -> Value:
    """`template % other`."""
    marked = Marked(t)
    given: dict[Any, Any] | tuple[Any, ...]
    cls = other.pytype()
    fields = list(_CONVERSION.finditer(template))
    is_mapping = hasattr(cls, "__getitem__") and not issubclass(cls, (tuple, str))
    names = [field["key"][1:-1] for field in fields if field["key"] is not None]
    if is_mapping and (names or all(field["kind"] == "%" for field in fields)):
        if len(set(names)) < len(names) and cls is not dict:  # which it is asked for each time
            t.break_("format-symbolic", value=other.describe())
        given = {name: _Shown.of(t, protocol.getitem(t, other, t.make(name)), marked) for name in names}
    else:
        items = protocol.unpack(t, other) if issubclass(cls, tuple) else [other]
        given = tuple(_Shown.of(t, item, marked) for item in items)
    if any(isinstance(each, _Shown) for each in _arguments(given)) and "*" not in template:
        template, given = _deferred_fields(t, template, given, marked)
    if isinstance(given, dict):
        given = {key: _fixed(t, each) if f"%({key})" in template else each for key, each in given.items()}
    else:
        given = tuple(_fixed(t, each) for each in given)
    try:
        return marked.text(template % given)
    except (TypeError, ValueError, KeyError) as error:
        unknown = [each for each in _arguments(given) if isinstance(each, _Shown)]
        if unknown:  # which CPython may make a number of
            t.break_("format-symbolic", value=unknown[0].value.describe())
        t.raise_(type(error), *error.args)


def _arguments(given: Any) -> Iterable[Any]:
    return given.values() if isinstance(given, dict) else given


def _fixed(t: Tracer, argument: Any) -> Any:
    """A number that varies, which no field shows as it is, as the constant that it is now."""
    specialize = getattr(argument.value, "specialize", None) if isinstance(argument, _Shown) else None
    return argument if specialize is None or not varies(argument.value) else specialize(t).as_constant()


class _Shown:
    """A traced object as an argument of `%`."""

    def __init__(self, t: Tracer, value: Value, marked: Marked) -> None:
        self._t = t
        self._marked = marked
        self.value = value

    @staticmethod
    def of(t: Tracer, value: Value, marked: Marked) -> Any:
        value = value.realize()
        specialize = getattr(value, "specialize", None)
        if specialize is not None and not varies(value) and not (defers_texts() and is_from_data(value)):
            value = specialize(t)
        return value.as_constant() if value.is_constant() else _Shown(t, value, marked)

    def __str__(self) -> str:
        return self._marked.mark(protocol.str_(self._t, self.value))

    def __repr__(self) -> str:
        return self._marked.mark(protocol.repr_(self._t, self.value))


def _deferred_fields(t: Tracer, template: str, given: Any, marked: Marked) -> tuple[str, Any]:
    """Template and arguments with the marks of texts in the place of fields like `%.3f` that show a tensor."""
    by_name = isinstance(given, dict)
    arguments: Any = given if by_name else dict(enumerate(given))
    shown = dict(arguments)
    place = 0

    def field(found: re.Match[str]) -> str:
        nonlocal place
        if found["kind"] == "%" or (found["key"] is not None) != by_name:
            return found[0]
        name: Any = found["key"][1:-1] if by_name else place
        place += 1
        argument = arguments.get(name)
        if not isinstance(argument, _Shown) or not _may_be_shown(argument.value, found["kind"]):
            return found[0]
        if not defers_texts() and not varies(argument.value) and not is_of_deferred_numbers(argument.value):
            return found[0]
        now = snapshot(t, argument.value)
        if now is None:
            return found[0]
        mark = marked.mark(DeferredText(t, (Field("printf", f"%{found['form']}{found['kind']}", now),)))
        if by_name:
            return mark
        shown[name] = mark
        return "%s"

    replaced = _CONVERSION.sub(field, template)
    return replaced, given if by_name else tuple(shown.values())


def _may_be_shown(value: Value, kind: str) -> bool:
    """Whether a field of this kind is sure to give a text."""
    if kind in _OF_TEXT:
        return True
    example = example_of(value)
    return (isinstance(example, (int, float)) and kind in _OF_REALS) or (isinstance(example, int) and kind in _OF_INTEGERS)
