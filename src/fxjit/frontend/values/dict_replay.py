"""What new bytecode calls for dicts: entries stored and taken out past what a subclass overrides, and iterators made again."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Sequence
from typing import Any


def _native(target: dict[Any, Any]) -> Any:
    return collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict


def put_items(target: dict[Any, Any], flat: Sequence[Any]) -> None:
    """Keys and values in turn, stored past what a subclass overrides."""
    store = _native(target).__setitem__
    for i in range(0, len(flat), 2):
        store(target, flat[i], flat[i + 1])


def change_items(target: dict[Any, Any], removed: Sequence[Any], flat: Sequence[Any]) -> None:
    """`removed`: keys to take out first, where they are in it."""
    take_out = _native(target).__delitem__
    for key in removed:
        with contextlib.suppress(KeyError):  # put in and taken out again by the trace alone
            take_out(target, key)
    put_items(target, flat)


def set_items(target: dict[Any, Any], flat: Sequence[Any]) -> None:
    """These entries and no others, in this order."""
    if _native(target) is dict:
        # In two steps of C: it may be what every line of Python needs, the builtins' or a module's dict.
        entries, clear, update = dict(zip(flat[::2], flat[1::2], strict=True)), dict.clear, dict.update
        clear(target)
        update(target, entries)
    else:
        collections.OrderedDict.clear(target)
        put_items(target, flat)


def view_of(mapping: dict[Any, Any], kind: str) -> Any:
    return getattr(_native(mapping), kind)(mapping)


def stale_iterator(mapping: Any, kind: str, backwards: bool, taken: int) -> Any:
    """An iterator over a dict that changed its size meanwhile: its next item is an error."""
    marker = object()
    _native(mapping).__setitem__(mapping, marker, None)
    iterator = iterator_behind(mapping, kind, backwards, 0)
    _native(mapping).__delitem__(mapping, marker)
    return iterator


def iterator_behind(mapping: dict[Any, Any], kind: str, backwards: bool, taken: int) -> Any:
    """An iterator over a dict that has given `taken` items already."""
    view = view_of(mapping, kind)
    iterator = reversed(view) if backwards else iter(view)
    for _ in range(taken):
        next(iterator, None)
    return iterator
