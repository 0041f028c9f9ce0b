"""Calls of functions that the user marked for the graph (`allow_in_graph`, `nonstrict_trace`), with arguments that a graph does
not hold: instances of classes that are registered with torch.utils._pytree, and frozen dataclasses. The graph is given their
parts, and they are made again where it calls the function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from fxjit import torch_private
from fxjit.errors import BreakGraph
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.torchfn import call_in_graph

_REGISTRY: Final[Any] = torch_private.optional("torch.utils._pytree.SUPPORTED_NODES") or {}
#: Makes an object again of the parts that the graph is given, in their order.
_Recipe = Callable[[Iterator[Any]], Any]


def call_marked(t: Tracer, fn: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`fn(*args, **kwargs)` as one node."""
    if all(_stands_in_graph(t, value) for value in (*args, *kwargs.values())):
        return call_in_graph(t, fn, args, kwargs)
    parts: list[Value] = []
    recipes = [_taken_apart(t, value, parts) for value in args]
    named = {name: _taken_apart(t, value, parts) for name, value in kwargs.items()}

    def call(*given: Any) -> Any:
        left = iter(given)
        positional = [recipe(left) for recipe in recipes]
        return fn(*positional, **{name: recipe(left) for name, recipe in named.items()})

    call.__name__ = call.__qualname__ = getattr(fn, "__name__", "call")
    call.is_opaque = True  # type: ignore[attr-defined]  # its effects are those of what it calls (schemas.py)
    return t.emit(call, parts)


def _stands_in_graph(t: Tracer, value: Value) -> bool:
    try:
        value.realize().graph_arg(t)
    except BreakGraph as signal:
        if signal.reason != "not-a-graph-argument":
            raise
        return False
    return True


def _taken_apart(t: Tracer, value: Value, parts: list[Value]) -> _Recipe:
    """What makes the object of `value` again; the parts of it that the graph is given are added to `parts`."""
    value = value.realize()
    if _stands_in_graph(t, value):
        parts.append(value)
        return next
    kind: Any = value.pytype()
    if isinstance(value, (ListValue, TupleValue)) and kind in (list, tuple):
        recipes = [_taken_apart(t, item, parts) for item in value.realized()]
        return lambda left: kind([recipe(left) for recipe in recipes])
    if isinstance(value, DictValue) and kind is dict and all(key.is_constant() for key, _ in value.items.values()):
        named = {key.as_constant(): _taken_apart(t, item, parts) for key, item in value.items.values()}
        return lambda left: {key: recipe(left) for key, recipe in named.items()}
    if kind in _REGISTRY:
        return _of_registered(t, value, parts)
    parameters = getattr(kind, "__dataclass_params__", None)
    fields = dataclasses.fields(kind) if parameters is not None and parameters.frozen else ()
    if fields and all(each.init for each in fields):
        given = {each.name: _taken_apart(t, protocol.getattr_(t, value, each.name), parts) for each in fields}
        return lambda left: kind(**{name: recipe(left) for name, recipe in given.items()})
    t.break_("not-a-graph-argument", value=value.describe())


def _of_registered(t: Tracer, value: Value, parts: list[Value]) -> _Recipe:
    node = _REGISTRY[value.pytype()]
    items, context = protocol.unpack(t, t.call(t.make(node.flatten_fn), [value], None))
    recipes = [_taken_apart(t, item, parts) for item in protocol.unpack(t, items)]
    try:
        known = concrete(context)
    except NotConcrete:
        t.break_("not-a-graph-argument", value=value.describe())
    return lambda left: node.unflatten_fn([recipe(left) for recipe in recipes], known)
