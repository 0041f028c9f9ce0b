"""Methods of str that take containers, and `str.format`; every other method of a text that is known folds by itself."""

from __future__ import annotations

import string
from typing import Any

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import fold_call, function, handles
from fxjit.frontend.values.deferred import DeferredText, Marked, joined
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.traits import LateText


@function(str.join)
def join(t: Tracer, separator: Value, parts: Value, /) -> Value:
    items = protocol.unpack_fast(t, parts)
    for index, item in enumerate(items):
        if not issubclass(item.pytype(), str):
            t.raise_(TypeError, f"sequence item {index}: expected str instance, {item.pytype().__name__} found")
    texts = [separator, *items]
    late = any(isinstance(text, LateText) for text in texts) and all(text.pytype() is str for text in texts)
    if not late and not any(isinstance(item, DeferredText) for item in items):
        return fold_call(t, str.join, [separator, TupleValue(items)])
    return joined(t, [part for item in items for part in (separator, item)][1:])


@function(bytes.join)
def join_bytes(t: Tracer, separator: Value, parts: Value, /) -> Value:
    return fold_call(t, bytes.join, [separator, TupleValue(protocol.unpack_fast(t, parts))])


@handles(str.format)
def format_text(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`template.format(...)`: constants at once, other arguments by their traced `__format__` and `__str__`."""
    template, *values = args
    if all(value.is_constant() for value in (*args, *kwargs.values())):
        return fold_call(t, str.format, args, kwargs)
    return _Formatter(t).text(template.as_constant(), values, kwargs)


@function(str.format_map)
def format_map(t: Tracer, template: Value, mapping: Value, /) -> Value:
    names: Any = _Names(t, mapping)
    return _Formatter(t).text(template.as_constant(), (), names)


#: What `string.Formatter` is made of, in C; typeshed does not know it.
_string: Any = string._string  # type: ignore[attr-defined]  # not in the stubs


@function(_string.formatter_parser)
def formatter_parser(t: Tracer, template: Value, /) -> Value:
    """An iterator over (text, field, format, conversion)."""
    parsed = fold_call(t, lambda text: tuple(_string.formatter_parser(text)), [template])
    return protocol.iter_(t, parsed)


@function(_string.formatter_field_name_split)
def formatter_field_name_split(t: Tracer, name: Value, /) -> Value:
    def split(text: str) -> Any:
        first, rest = _string.formatter_field_name_split(text)
        return first, tuple(rest)

    first, rest = protocol.unpack(t, fold_call(t, split, [name]))
    return TupleValue([first, protocol.iter_(t, rest)])


class _Names:
    """A traced mapping, as the formatter reads names."""

    def __init__(self, t: Tracer, mapping: Value) -> None:
        self.t = t
        self.mapping = mapping

    def __getitem__(self, name: str) -> Value:
        return protocol.getitem(self.t, self.mapping, self.t.make(name))


class _Anything:
    """Stands for any argument: has all attributes and items, and is shown as nothing."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: object) -> _Anything:
        return self

    def __format__(self, spec: str) -> str:
        return ""

    def __repr__(self) -> str:
        return ""


def _refused(template: str, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """The error of `str.format` for a malformed template, independent of its arguments."""
    anything = _Anything()
    try:
        if isinstance(kwargs, _Names):
            template.format_map(anything)
        else:
            template.format(*[anything] * len(args), **dict.fromkeys(kwargs, anything))
    except ValueError as error:
        return error.args
    except (IndexError, KeyError):  # raised where the argument is fetched
        pass
    return None


class _Formatter(string.Formatter):
    """string.Formatter whose fields are values."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.marked = Marked(t)

    def text(self, template: str, args: Any, kwargs: Any) -> Value:
        """The template filled in."""
        try:
            formatted = self.vformat(template, args, kwargs)
        except ValueError as error:  # of the template itself
            self.t.raise_(ValueError, *(_refused(template, args, kwargs) or error.args))
        refused = _refused(template, args, kwargs)  # where C is stricter than Python's formatter
        if refused is not None:
            self.t.raise_(ValueError, *refused)
        return self.marked.text(formatted)

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        if isinstance(key, int):
            if key >= len(args):
                self.t.raise_(IndexError, f"Replacement index {key} out of range for positional args tuple")
            return args[key]
        if not isinstance(kwargs, _Names) and key not in kwargs:
            self.t.raise_(KeyError, key)
        return kwargs[key]

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        first, rest = string._string.formatter_field_name_split(field_name)  # type: ignore[attr-defined]  # not in the stubs
        value = self.get_value(first, args, kwargs)
        for is_attr, name in rest:
            value = protocol.getattr_(self.t, value, name) if is_attr else (
                protocol.getitem(self.t, value, self.t.make(name)))
        return value, first

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "r":
            return protocol.repr_(self.t, value)
        if conversion == "a":
            return protocol.ascii_(self.t, value)
        if conversion not in (None, "s"):
            self.t.raise_(ValueError, f"Unknown conversion specifier {conversion}")
        return protocol.str_(self.t, value) if conversion == "s" else value

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, str):
            return format(value, format_spec)
        spec = self.marked.text(format_spec).as_constant()  # which may be made of fields itself
        return self.marked.mark(protocol.format_(self.t, value, spec), late=True)

    def check_unused_args(self, used_args: Any, args: Any, kwargs: Any) -> None:
        pass
