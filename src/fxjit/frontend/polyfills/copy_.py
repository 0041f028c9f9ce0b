"""copy.copy and copy.deepcopy of objects that are copied in the plain way: a new instance with the same attributes and
items. Classes that say otherwise (`__reduce__`, `__getnewargs__`, slots...) and a memo of the caller's own end the graph."""

from __future__ import annotations

import collections
import copy
import copyreg
import types
from typing import Any

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import function, handles, polyfill, unknown_call
from fxjit.frontend.values.descriptors import look_up
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.sequence import TupleValue
from fxjit.guards.kinds import HasKey
from fxjit.guards.source import ConstSource

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type, range, types.FunctionType, property,
                    types.BuiltinFunctionType, type(Ellipsis), type(NotImplemented), types.CodeType, torch.dtype,
                    torch.device, torch.Size})
#: The memo's key for (original, copy) pairs: what eager finds by id, which objects made while tracing do not have.
_PAIRS = "fxjit: copies made so far"


def _needs_eager(x: Any) -> Any:
    """Ends the graph at the call of copy or deepcopy (see the handler)."""
    raise AssertionError(x)


@handles(_needs_eager)
def _needs_eager_call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    result: Value = unknown_call(t, copy.deepcopy, args)
    return result


_COPIED_BY = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")


def _is_plain(cls: Any) -> Any:
    """Whether `object.__reduce_ex__` copies instances of the class, and does it through its attributes and items."""
    raise AssertionError(cls)


@handles(_is_plain)
def _is_plain_class(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_constant()
    for name in _COPIED_BY:
        look_up(t, cls, name)
    t.guard(HasKey(ConstSource(copyreg.dispatch_table, "copyreg.dispatch_table"), cls, cls in copyreg.dispatch_table))
    own = [name for name in ("__reduce__", "__reduce_ex__") if getattr(cls, name, None) is not getattr(object, name)]
    others = [name for name in ("__getnewargs__", "__getnewargs_ex__") if hasattr(cls, name)]
    return t.make(not own and not others and cls not in copyreg.dispatch_table and not copyreg._slotnames(cls))  # type: ignore[attr-defined]  # not in the stubs


def _state_of(x: Any) -> Any:
    cls: Any = type(x)
    if cls.__getstate__ is not object.__getstate__:
        return x.__getstate__()
    return x.__dict__ or None if hasattr(x, "__dict__") else None


def _fill(made: Any, state: Any) -> None:
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    elif isinstance(state, dict):
        made.__dict__.update(state)
    else:
        _needs_eager(made)


def copy_object(obj: Any) -> Any:
    cls: Any = type(obj)
    if not _is_plain(cls):
        return _needs_eager(obj)
    made = cls.__new__(cls)
    state = _state_of(obj)
    if state is not None:
        _fill(made, state)
    if isinstance(obj, list):
        for item in obj:
            made.append(item)
    elif isinstance(obj, dict):
        for key, value in obj.items():
            made[key] = value
    return made


@function(copy.copy)
def copy_(t: Tracer, obj: Value, /) -> Value:
    if obj.is_constant() and not isinstance(obj, TupleValue):
        return obj
    pytype = obj.pytype()
    if pytype in (tuple, frozenset, range) or isinstance(obj, TupleValue):
        return obj
    if pytype in (list, set, collections.deque) or isinstance(obj, DictValue):
        return protocol.call_method(t, obj, "copy")
    own = protocol.lookup_special(t, obj, "__copy__") if hasattr(obj, "bind_special") else None
    if own is not None:
        return t.call(own, [])
    return t.call(t.make(copy_object), [obj])


@polyfill(copy.deepcopy)
def deepcopy(x: Any, memo: Any = None, _nil: Any = None) -> Any:
    if memo is None:
        memo = {_PAIRS: []}
    elif _PAIRS not in memo:
        return _needs_eager(x)
    return _deep(x, memo, memo[_PAIRS])


def _deep(x: Any, memo: Any, alive: list[Any]) -> Any:
    if type(x) in _ATOMS or isinstance(x, type):
        return x
    for old, new in alive:
        if old is x:
            return new
    if type(x) is tuple:
        made = _deep_tuple(x, memo, alive)
    elif isinstance(x, torch.Tensor):
        if any([isinstance(old, torch.Tensor) for old, _ in alive]):
            return _needs_eager(x)  # copies of tensors that share their memory do so too
        made = _deep_tensor(x)
    elif hasattr(type(x), "__deepcopy__"):
        made = x.__deepcopy__(memo)
    elif type(x) is types.MethodType:
        made = types.MethodType(x.__func__, _deep(x.__self__, memo, alive))
    elif type(x) is set:
        made = {_deep(item, memo, alive) for item in x}
    elif type(x) is frozenset:
        made = frozenset([_deep(item, memo, alive) for item in x])
    else:
        return _deep_container(x, memo, alive)
    if made is not x:
        alive.append((x, made))
    return made


def _deep_tuple(x: Any, memo: Any, alive: list[Any]) -> Any:
    items = [_deep(item, memo, alive) for item in x]
    for old, new in alive:
        if old is x:  # it was met again inside itself
            return new
    if all([new is old for new, old in zip(items, x)]):
        return x
    return tuple(items)


def _deep_tensor(x: Any) -> Any:
    if type(x) is not torch.Tensor or x.requires_grad or x._is_view():  # of which the whole memory is copied
        return _needs_eager(x)
    return x.clone().detach()


def _deep_container(x: Any, memo: Any, alive: list[Any]) -> Any:
    """A deep copy of a container that can contain itself: filled after its copy is known."""
    if type(x) is list:
        made: Any = []
        alive.append((x, made))
        for item in x:
            made.append(_deep(item, memo, alive))
        return made
    if type(x) is dict or type(x) is collections.OrderedDict:
        made = type(x)()
        alive.append((x, made))
        for key, value in x.items():
            made[_deep(key, memo, alive)] = _deep(value, memo, alive)
        return made
    return _deep_object(x, memo, alive)


def _deep_object(x: Any, memo: Any, alive: list[Any]) -> Any:
    cls: Any = type(x)
    if not _is_plain(cls):
        return _needs_eager(x)
    made = cls.__new__(cls)
    alive.append((x, made))
    state = _state_of(x)
    if state is not None:
        _fill(made, _deep(dict(state) if type(state) is dict else state, memo, alive))
    if isinstance(x, list):
        for item in x:
            made.append(_deep(item, memo, alive))
    elif isinstance(x, dict):
        for key, value in x.items():
            made[_deep(key, memo, alive)] = _deep(value, memo, alive)
    return made
