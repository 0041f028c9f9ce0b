"""Sources that settings name (`config.dynamic_sources` and its like): whether a size or an integer of an input varies because
the user wrote down where it is. A list has names, or regular expressions that match a name's beginning, between commas; `:N`
behind one is for dimension N alone. Names are torch's (`L['x']`, `G['model'].width`) or ours (`x`), which the log `dynamic`
has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fxjit import config
from fxjit.guards.source import (
    AttrSource,
    ClosureSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    Source,
)

_ROOTS: Final[Mapping[type[Source], str]] = {LocalSource: "L", ClosureSource: "L", GlobalSource: "G"}
_DIMENSION: Final = re.compile(r"(.+):(\d+)")


def torchs_name(source: Source) -> str:
    """The name that torch.compile's messages and settings have for a source."""
    base = source.base
    if base is None:
        root = _ROOTS.get(type(source))
        return source.name if root is None else f"{root}[{source.name!r}]"
    if isinstance(source, AttrSource):
        return f"{torchs_name(base)}.{source.attr}"
    if isinstance(source, ItemSource):
        if isinstance(base, InstanceDictSource) and isinstance(source.key, str) and base.base is not None:
            return f"{torchs_name(base.base)}.{source.key}"
        return f"{torchs_name(base)}[{source.key!r}]"
    return source.name


def listed(text: str, source: Source, dim: int | None = None) -> bool:
    """Whether a setting's list names the source, or its dimension `dim`."""
    if not text:
        return False
    names = (source.name, torchs_name(source))
    return any((dim is None or of is None or of == dim) and any(map(matches, names)) for matches, of in _entries(text))


@functools.lru_cache(maxsize=64)
def _entries(text: str) -> tuple[tuple[Callable[[str], bool], int | None], ...]:
    found: list[tuple[Callable[[str], bool], int | None]] = []
    for entry in filter(None, text.replace(" ", "").split(",")):
        dimension = _DIMENSION.fullmatch(entry)
        name, of = (entry, None) if dimension is None else (dimension[1], int(dimension[2]))
        found.append((functools.partial(_matches, name), of))
    return tuple(found)


def _matches(pattern: str, name: str) -> bool:
    if pattern == name:
        return True
    try:
        return re.match(pattern, name) is not None
    except re.error:  # a name with brackets that no expression has
        return False


def is_dynamic_value(number: int | float) -> bool:
    """Whether `config.dynamic_values` has this size or integer."""
    return bool(config.dynamic_values) and str(number) in config.dynamic_values.replace(" ", "").split(",")


def decided(source: Source, number: int | float, dim: int | None = None) -> str | None:
    """`static`, `dynamic` or `unbacked`, where a setting says so of a source's number, or of its size in dimension `dim`; None
    where none does."""
    if listed(config.static_sources, source, dim):
        return "static"
    if listed(config.dynamic_sources, source, dim):
        return "dynamic"
    if listed(config.unbacked_sources, source, dim):
        return "unbacked"
    return "dynamic" if is_dynamic_value(number) else None


def may_vary(source: Source, sizes: Iterable[int | None], is_parameter: bool) -> bool:
    """Whether a setting says so of a tensor whose sizes are constants otherwise: a parameter, or any with `dynamic=False`."""
    named = listed(config.dynamic_sources, source) or listed(config.unbacked_sources, source)
    return named or (not is_parameter and any(map(is_dynamic_value, filter(None, sizes))))
