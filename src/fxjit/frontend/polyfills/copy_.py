"""copy.copy and copy.deepcopy, as the class says by Python's protocol: a new instance with the same attributes, slots and
items, or what its `__reduce__` names, if that is written in Python. Of classes that say it in C, those of `_REDUCED` are known;
the others, and a memo of the caller's own, end the graph."""

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


def _way_of_copying(cls: Any) -> Any:
    """How instances of the class are copied: "plain" (object's way, through attributes and items), "parts" (object's way, with
    slots or arguments of `__new__`), "reduce" and "reduce_ex" (the class's own method, in Python), "listed" (_REDUCED), ""."""
    raise AssertionError(cls)


@handles(_way_of_copying)
def _way_of_copying_class(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_constant()
    for name in _COPIED_BY:
        look_up(t, cls, name)
    t.guard(HasKey(ConstSource(copyreg.dispatch_table, "copyreg.dispatch_table"), cls, cls in copyreg.dispatch_table))
    return t.make("" if cls in copyreg.dispatch_table else _way(cls))


def _way(cls: Any) -> str:
    if _reduced_by(cls) is not None:
        return "listed"
    for name in ("__reduce_ex__", "__reduce__"):  # the former asks for the latter
        own = getattr(cls, name, None)
        if own is not getattr(object, name):
            return name.strip("_") if isinstance(own, types.FunctionType) else ""
    if hasattr(cls, "__getnewargs_ex__"):
        return ""
    if isinstance(getattr(cls, "__getnewargs__", None), types.FunctionType) or copyreg._slotnames(cls):  # type: ignore[attr-defined]  # not in the stubs
        return "parts"
    return "" if hasattr(cls, "__getnewargs__") else "plain"


def _slots_of(cls: Any) -> Any:
    """The names of the slots that object's way of copying copies, as a tuple."""
    raise AssertionError(cls)


@handles(_slots_of)
def _slots_of_class(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.make(tuple(copyreg._slotnames(args[0].as_constant())))  # type: ignore[attr-defined]  # not in the stubs


def _state_of(x: Any) -> Any:
    cls: Any = type(x)
    if cls.__getstate__ is not object.__getstate__:
        return x.__getstate__()
    attributes = x.__dict__ or None if hasattr(x, "__dict__") else None
    slots = {name: getattr(x, name) for name in _slots_of(cls) if hasattr(x, name)}
    return (attributes, slots) if slots else attributes


def _fill(made: Any, state: Any) -> None:
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    slots = None
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    if isinstance(state, dict):
        made.__dict__.update(state)
    elif state is not None:
        _needs_eager(made)
    if slots is not None:
        for name, value in slots.items():
            setattr(made, name, value)


def _deque(x: Any) -> Any:
    return type(x), () if x.maxlen is None else ((), x.maxlen), _state_of(x), x, None


def _defaultdict(x: Any) -> Any:
    return type(x), () if x.default_factory is None else (x.default_factory,), None, None, x.items()


def _ordered_dict(x: Any) -> Any:
    return type(x), (), _state_of(x), None, x.items()


def _set(x: Any) -> Any:
    return type(x), ([*x],), _state_of(x), None, None


def _namespace(x: Any) -> Any:
    return type(x), (), vars(x), None, None


def _slice(x: Any) -> Any:
    return slice, (x.start, x.stop, x.step), None, None, None


#: Classes whose `__reduce__` is written in C, and what it says.
_REDUCED: dict[type, Any] = {collections.deque: _deque, collections.defaultdict: _defaultdict,
                             collections.OrderedDict: _ordered_dict, set: _set, frozenset: _set,
                             types.SimpleNamespace: _namespace, slice: _slice}


def _reduced_by(cls: type) -> Any:
    """What stands for the `__reduce__` of a class whose own it is, or that of a class it derives from."""
    own: Any = cls
    if own.__reduce_ex__ is not object.__reduce_ex__:
        return None
    owner: Any = next(base for base in cls.__mro__ if "__reduce__" in base.__dict__)
    return _REDUCED.get(owner)


def _reduced_listed(x: Any) -> Any:
    """What `_REDUCED` says of x, of a class that is in it."""
    raise AssertionError(x)


@handles(_reduced_listed)
def _reduced_listed_call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.inline(t.make(_reduced_by(args[0].pytype())), args, {})


def _parts_of(x: Any, way: str) -> Any:
    """`x.__reduce_ex__(4)` in five parts, or None if it names x itself by a text."""
    cls: Any = type(x)
    if way == "listed":
        return _reduced_listed(x)
    if way == "parts":
        args = x.__getnewargs__() if hasattr(cls, "__getnewargs__") else ()
        return (cls.__new__, (cls, *args), _state_of(x), x if isinstance(x, list) else None,
                x.items() if isinstance(x, dict) else None)
    said = x.__reduce_ex__(4) if way == "reduce_ex" else x.__reduce__()
    return None if isinstance(said, str) else (*said, None, None, None)[:5]


def copy_object(obj: Any) -> Any:
    if isinstance(obj, torch.Tensor):  # another tensor of the same memory, that counts its writes for itself
        if type(obj) is not torch.Tensor or obj.requires_grad or _has_attributes(obj):
            return _needs_eager(obj)
        return obj.data
    cls: Any = type(obj)
    way = _way_of_copying(cls)
    if way == "":
        return _needs_eager(obj)
    if way != "plain":
        parts = _parts_of(obj, way)
        return obj if parts is None else _shallow(parts)
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


def _shallow(parts: Any) -> Any:
    maker, args, state, items, pairs = parts
    made = maker(*args)
    if state is not None:
        _fill(made, state)
    if items is not None:
        for item in items:
            made.append(item)
    if pairs is not None:
        for key, value in pairs:
            made[key] = value
    return made


@function(copy.copy)
def copy_(t: Tracer, obj: Value, /) -> Value:
    if obj.is_constant() and not isinstance(obj, TupleValue):
        return obj
    pytype = obj.pytype()
    named = isinstance(getattr(pytype, "__getnewargs__", None), types.FunctionType)  # a named tuple, which is made anew
    if pytype in (tuple, frozenset, range) or (isinstance(obj, TupleValue) and not named):
        return obj
    if pytype in (list, set, collections.deque) or (isinstance(obj, DictValue) and pytype is not collections.OrderedDict):
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


def _has_attributes(x: Any) -> Any:
    return len(x.__dict__) > 0


def _deep_tensor(x: Any) -> Any:
    if type(x) is not torch.Tensor or x.requires_grad or x._is_view() or _has_attributes(x) or x.grad is not None:
        return _needs_eager(x)  # of views, all memory is copied
    return x.clone().detach()


def _deep_container(x: Any, memo: Any, alive: list[Any]) -> Any:
    """A deep copy of a container that can contain itself: filled after its copy is known."""
    if type(x) is list:
        made: Any = []
        alive.append((x, made))
        for item in x:
            made.append(_deep(item, memo, alive))
        return made
    if type(x) is dict:
        made = {}
        alive.append((x, made))
        for key, value in x.items():
            made[_deep(key, memo, alive)] = _deep(value, memo, alive)
        return made
    return _deep_object(x, memo, alive)


def _deep_object(x: Any, memo: Any, alive: list[Any]) -> Any:
    cls: Any = type(x)
    way = _way_of_copying(cls)
    if way == "":
        return _needs_eager(x)
    if way != "plain":
        parts = _parts_of(x, way)
        return x if parts is None else _deep_of_parts(x, parts, memo, alive)
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


def _deep_of_parts(x: Any, parts: Any, memo: Any, alive: list[Any]) -> Any:
    maker, args, state, items, pairs = parts
    made = maker(*[_deep(arg, memo, alive) for arg in args])
    alive.append((x, made))
    if state is not None:
        _fill(made, _deep(dict(state) if type(state) is dict else state, memo, alive))
    if items is not None:
        for item in items:
            made.append(_deep(item, memo, alive))
    if pairs is not None:
        for key, value in pairs:
            made[_deep(key, memo, alive)] = _deep(value, memo, alive)
    return made
