"""Deferred text and snapshots, for calls that run after the graph (`config.reorderable_functions`).

A snapshot is a value as it was at the call: a tensor that is written to later is kept as a copy, and so are lists, tuples,
dicts and sets. An object of another kind, whose text may change, has none. callables/deferred_calls.py defers calls; f-strings
and `str` come here through protocol.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, NoReturn

import torch

from fxjit import config
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.concrete import builtin_part
from fxjit.frontend.values.constant import ConstantValue, TextFromOutside
from fxjit.frontend.values.deferred_numbers import DeferredNumber
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.sets import SetValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.traits import LateText


def snapshot(t: Tracer, value: Value) -> Value | None:
    """A value that will be rebuilt as `value` is now, whatever is done to it later; None where that is not known."""
    value = value.realize()
    if value.is_constant() or isinstance(value, (SymValue, DeferredText, DeferredNumber)):
        return value
    if isinstance(value, TensorValue):
        return TensorSnapshot(t, value)
    kind = value.pytype()
    if isinstance(value, (ListValue, TupleValue)) and kind in (list, tuple, torch.Size):
        items = [snapshot(t, item) for item in protocol.unpack(t, value)]
        if any(item is None for item in items):
            return None
        known = [item for item in items if item is not None]
        return ListValue(known) if kind is list else TupleValue(known, cls=kind)
    if isinstance(value, DictValue) and kind is dict:
        pairs = []
        for key in protocol.unpack(t, value):
            item = snapshot(t, protocol.getitem(t, value, key))
            if item is None or not key.is_constant():
                return None
            pairs.append((key, item))
        return DictValue(t, pairs)
    if isinstance(value, SetValue) and kind in (set, frozenset):
        elements = protocol.unpack(t, value)
        return SetValue(t, elements, cls=kind) if all(each.is_constant() for each in elements) else None
    return None


class TensorSnapshot(Value):
    """A tensor as it is now: itself where nothing writes to it later, else a copy from the graph."""

    def __init__(self, t: Tracer, tensor: TensorValue) -> None:
        super().__init__(None)
        self.tensor = tensor
        self.copy = t.emit(torch.clone, [tensor])
        assert self.copy.node is not None, "a tensor of the graph"
        self.copy.node.meta["only_if_used"] = True
        self.version = tensor.write_count()

    def pytype(self) -> type:
        return self.tensor.pytype()

    def rebuild(self, cg: Rebuilder) -> None:
        unchanged = self.version is not None and self.version == self.tensor.write_count()
        cg.push(self.tensor if unchanged else self.copy)


# -- text ----------------------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """One value in a text: how it is shown, and the format that it is shown in; or how often a text stands there."""

    how: Literal["str", "repr", "format", "printf", "times"]
    spec: str
    value: Value


class DeferredText(Value):
    """A str of which the part of tensors, or of numbers out of them, is not known while tracing: literal texts and fields."""

    def __init__(self, t: Tracer, parts: tuple[str | Field, ...]) -> None:
        super().__init__(None)
        self.t = t
        self.parts = parts

    def as_constant(self) -> NoReturn:
        """Whoever takes a str to be known needs it now."""
        self.t.break_("value-slot", slot="text of a tensor", type="str")

    def pytype(self) -> type:
        return str

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if op == "*" and other.is_constant() and type(other.as_constant()) is int:
            return joined(t, [self] * other.as_constant())
        if op == "+" and other.pytype() is str:
            return joined(t, [other, self] if reflected else [self, other])
        if op in ("+", "*", "%"):
            self.as_constant()
        return NOT_IMPLEMENTED

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        return self.as_constant() if issubclass(other.pytype(), str) else NOT_IMPLEMENTED

    def rebuild(self, cg: Rebuilder) -> None:
        _push_text(cg, self.parts)


class JoinedText(ConstantValue, LateText):
    """A str that is put together of others from outside the frame and of numbers that vary, of which none is looked at
    before this is."""

    def __init__(self, t: Tracer, parts: tuple[str | Field, ...]) -> None:
        Value.__init__(self)
        self.t = t
        self.parts = parts

    @property
    def obj(self) -> object:  # type: ignore[override]  # reading it is what counts
        return "".join([part if isinstance(part, str) else self._looked_at(part) for part in self.parts])

    def has_numbers(self) -> bool:
        return any(isinstance(part, Field) and varies(part.value) for part in self.parts)

    def _looked_at(self, field: Field) -> str:
        if field.spec and isinstance(field.value, SymValue):
            return _SHOWN[field.how](field.value.specialize(self.t).as_constant(), field.spec)
        text = field.value.tp_repr(self.t) if field.how == "repr" else field.value.tp_str(self.t)
        return str(text.as_constant())

    def pytype(self) -> type:
        return str

    def rebuild(self, cg: Rebuilder) -> None:
        _push_text(cg, self.parts)


def _push_text(cg: Rebuilder, parts: tuple[str | Field, ...]) -> None:
    template = tuple(part if isinstance(part, str) else (part.how, part.spec) for part in parts)
    cg.call(written, template, *[part.value for part in parts if isinstance(part, Field)])


def written(template: tuple[str | tuple[str, str], ...], *values: object) -> str:
    """Run-time helper of new code: fills the template of a text."""
    given = iter(values)
    return "".join([part if isinstance(part, str) else _SHOWN[part[0]](next(given), part[1]) for part in template])


_SHOWN: Final[dict[str, Callable[[Any, str], str]]] = {
    "str": lambda value, spec: str(value), "repr": lambda value, spec: repr(value), "format": format,
    "printf": lambda value, spec: spec % (value,), "times": lambda value, spec: spec * value,
}


@protocol.joined_texts.provide
def joined(t: Tracer, parts: list[Value]) -> Value:
    """`"".join(parts)`; all are str."""
    pieces: list[str | Field] = []
    for part in parts:
        if isinstance(part, (DeferredText, JoinedText)):
            pieces += part.parts
        elif isinstance(part, TextFromOutside):
            pieces.append(Field("str", "", part))
        elif part.is_constant():
            pieces.append(part.as_constant())
        else:
            t.break_("value-slot", slot="f-string", type=part.pytype().__name__)
    fields = [piece for piece in pieces if isinstance(piece, Field)]
    if not fields:
        return t.make("".join([str(piece) for piece in pieces]))
    known = all(isinstance(field.value, TextFromOutside) or varies(field.value) for field in fields)
    return JoinedText(t, tuple(pieces)) if known else DeferredText(t, tuple(pieces))


def defers_texts() -> bool:
    """Whether there is a function whose calls are deferred, and with them the texts of tensors."""
    return bool(config.reorderable_functions)


@protocol.deferred_text.provide
def deferred_text(t: Tracer, how: Literal["str", "repr", "format", "times"], value: Value, spec: str) -> Value | None:
    """The text of a tensor, or of a container with one, where calls may be deferred; of a number that varies, which most
    texts of errors show and nobody reads; or a text that is its own. None where one is made now."""
    if how == "times":
        return JoinedText(t, (Field(how, spec, value),)) if varies(value) else None
    if value.pytype() is str and how != "repr" and not spec:
        return value
    has_text = not spec.endswith("c") and _may_have(value.realize(), spec)  # a number may be too large to be a character
    if varies(value) and (not spec or (isinstance(value.realize(), SymValue) and has_text)):
        return JoinedText(t, (Field(how, spec, value),))
    if is_of_deferred_numbers(value) and (not spec or has_text):
        return DeferredText(t, (Field(how, spec, snapshot(t, value) or value),))
    if not defers_texts() or not _is_known_later(value) or (spec and not _may_have(value, spec)):
        return None
    now = snapshot(t, value)
    return None if now is None else DeferredText(t, (Field(how, spec, now),))



class Marked:
    """For formatters of Python's own, which want a str: a mark in the place of each deferred text."""

    def __init__(self, t: Tracer) -> None:
        self._t = t
        self._marks: dict[str, Value] = {}

    def mark(self, text: Value, late: bool = False) -> str:
        """The str itself where it is known. `late`: or a mark, where nobody has looked at it yet."""
        if not isinstance(text, DeferredText) and not (late and isinstance(text, LateText)):
            return str(builtin_part(text).as_constant())
        mark = f"\0waiting {len(self._marks)}\0"
        self._marks[mark] = text
        return mark

    def text(self, formatted: str) -> Value:
        """`formatted` with the texts in their places."""
        if not self._marks:
            return self._t.make(formatted)
        pieces = re.split(f"({'|'.join(map(re.escape, self._marks))})", formatted)
        return joined(self._t, [self._marks.get(piece) or self._t.make(piece) for piece in pieces])


def varies(value: Value) -> bool:
    """A number that varies and is known when the frame starts, or a tuple of numbers of which some do."""
    value = value.realize()
    if isinstance(value, SymValue):
        return bool(value.sym.node.has_hint())  # a number from data may have to break the graph, which is done at once
    if not isinstance(value, TupleValue) or value.pytype() not in (tuple, torch.Size) or value.is_constant():
        return False
    return all(item.is_constant() or (isinstance(item, SymValue) and varies(item)) for item in value.realized())


def _is_known_later(value: Value, outer: tuple[Value, ...] = ()) -> bool:
    """A tensor, a number or text made of one, or a container of them; `outer`: the containers that it is in."""
    value = value.realize()
    if any(value is each for each in outer):
        return False
    if isinstance(value, (ListValue, TupleValue)) and value.pytype() in (list, tuple):
        return any(_is_known_later(item, (*outer, value)) for item in value.items)
    if isinstance(value, DictValue) and value.pytype() is dict:
        return any(_is_known_later(item, (*outer, value)) for _, item in value.items.values())
    return isinstance(value, (TensorValue, DeferredText)) or is_from_data(value)


def is_of_deferred_numbers(value: Value, outer: tuple[Value, ...] = ()) -> bool:
    """Whether it is a number that is made when the graph has run, a text of one, or a list, tuple or dict of them and of what
    is known. `outer`: the containers that it is in, which it may be one of."""
    value, items = value.realize(), []
    if any(value is each for each in outer):
        return False
    if isinstance(value, (ListValue, TupleValue)) and value.pytype() in (list, tuple):
        items = value.realized()
    elif isinstance(value, DictValue) and value.pytype() is dict:
        items = [item.realize() for _, item in value.items.values()]
    else:
        return isinstance(value, (DeferredNumber, DeferredText))
    late = [is_of_deferred_numbers(item, (*outer, value)) for item in items]
    return any(late) and all(each or item.is_constant() for each, item in zip(late, items, strict=True))


def is_from_data(value: Value) -> bool:
    """Whether it is a data-dependent number."""
    return isinstance(value, SymValue) and not value.sym.node.has_hint()


def example_of(value: Value) -> object | None:
    """Something that is formatted as `value` will be (a tensor of one number is shown as that number is); None: not known."""
    if isinstance(value, DeferredText):
        return ""
    if isinstance(value, (SymValue, DeferredNumber)):
        return value.pytype()(0)  # type: ignore[no-any-return]  # int, float or bool
    if not isinstance(value, TensorValue) or value.fake.dim() != 0:
        return None
    dtype = value.fake.dtype
    return 0.0 if dtype.is_floating_point else 0j if dtype.is_complex else False if dtype == torch.bool else 0


def _may_have(value: Value, spec: str) -> bool:
    """Whether `format(value, spec)` is sure to give a text."""
    example = example_of(value)
    try:
        return example is not None and format(example, spec) is not None
    except (ValueError, TypeError):
        return False
