"""Views and proxies of dicts that exist: the values of the dicts behind them, whichever the program has."""

from __future__ import annotations

import collections
import gc
import types
from typing import Any

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.mapping import DICT_TYPES, DictValue, DictViewValue, MappingProxyValue
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import TypeIs
from fxjit.guards.source import ApplySource, Source


def mapping_behind(view: Any) -> Any:
    """The mapping that a view or a proxy shows, which it does not give away itself."""
    (behind,) = gc.get_referents(view)
    return behind


def _mapping_behind(t: Tracer, view: Any, source: Source) -> DictValue | None:
    """The same while tracing: one value, whether the program has the dict or what shows it. None: a mapping of the user's."""
    if len(gc.get_referents(view)) != 1 or not isinstance(mapping_behind(view), dict):
        return None
    behind = t.wrap(mapping_behind(view), ApplySource(source, mapping_behind)).realize()
    found = getattr(behind, "base", None) or behind
    return found if isinstance(found, DictValue) else None


@wraps(types.MappingProxyType)
def wrap_mappingproxy(t: Tracer, obj: types.MappingProxyType[Any, Any], source: Source) -> Value:
    t.guard(TypeIs(source, types.MappingProxyType))
    compared_in_c = all(type(behind) in (dict, collections.OrderedDict) for behind in gc.get_referents(obj))
    mapping = _mapping_behind(t, obj, source) if compared_in_c else None
    if mapping is None:
        return UntraceableValue(obj, source, "attribute-unsupported", value="mappingproxy", name="the mapping behind it")
    return MappingProxyValue(mapping, source)


def _wraps_view(kind: str) -> None:
    @wraps(*(DICT_TYPES[cls, kind][0] for cls in (dict, collections.OrderedDict)))
    def wrap_view(t: Tracer, obj: Any, source: Source) -> Value:
        t.guard(TypeIs(source, type(obj)))
        mapping = _mapping_behind(t, obj, source)
        if mapping is None:
            return UntraceableValue(obj, source, "attribute-unsupported", value=type(obj).__name__, name="mapping")
        return DictViewValue(mapping, kind, source)


for _kind in ("keys", "values", "items"):
    _wraps_view(_kind)
