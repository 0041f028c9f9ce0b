"""References to objects by name, for data that another process reads: `torch.nn.Linear.forward`, `builtins.print`.

An object has a reference if its name leads to it and nothing else decides what it is. Functions are referred to with a digest
of their code, defaults and closure, since a program may put one of its own under any name. Reading a reference imports nothing
of the program's: what the other process has not imported, the frame that is looked at cannot hold.

What no name leads to may be had by way of something that the frame has: its class, made inside a function, say. `leading` says
how, and `reached` has it in the other process. As with other classes, guards say what such a class has.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import importlib
import json
import logging
import marshal
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

import torch

from fxjit import process_state
from fxjit.backends.store.operators import TORCHS, Unknown, custom_name, custom_operator, operator_text
from fxjit.guards.constants import is_plain
from fxjit.guards.source import namespace_of
from fxjit.homes import module_of

#: Packages whose versions the key of every stored entry has (key.py).
PINNED: Final = frozenset({"torch", "numpy", "sympy", "typing_extensions", "fxjit", *sys.stdlib_module_names})
_WRAPPED: Final = (staticmethod, classmethod)
_DESCRIPTORS: Final = (types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType,
                       types.MemberDescriptorType, types.ClassMethodDescriptorType)
#: Methods in C of an object: `dict.__new__`, `vars(cls)["__doc__"].__get__`.
_BOUND_IN_C: Final = (types.MethodWrapperType, types.BuiltinMethodType)
#: How many decorators deep a function may be that was wrapped.
_WRAPPINGS: Final = 4
#: Packages of which modules are imported to read a reference.
_IMPORTED: Final = ("torch", "fxjit")
#: `typing.Union` and its like.
_SPECIAL_FORM: Final = type(typing.ClassVar)
_CACHED: Final = type(functools.lru_cache(len))
_MISSING: Final = object()

#: The way to an object from the frame of the entry that is written: how it is had of the value of a source, and its number.
leading: Final[ContextVar[Callable[[Any], tuple[str, int] | None]]] = ContextVar("leading")
#: What is there in the frame for which an entry is read.
reached: Final[ContextVar[Callable[[str, int], Any]]] = ContextVar("reached")


class NotStorable(Exception):
    """Data for another process cannot say what this is; the text does."""


class Changed(Exception):
    """What was stored does not fit this process; why."""


def is_pinned(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in PINNED


# -- writing -------------------------------------------------------------------------------------------------------


def refer(obj: Any) -> list[Any]:
    """The reference, as plain data. Raises NotStorable."""
    if isinstance(obj, types.ModuleType):
        name = getattr(obj, "__name__", None)
        if isinstance(name, str) and sys.modules.get(name) is obj:
            return ["module", name]
    elif obj is os.environ._data:  # type: ignore[attr-defined]  # not in the stubs
        return ["environment"]
    elif obj is sys.modules:
        return ["modules"]
    elif isinstance(obj, dict) and id(obj) in (tables := _tables()):
        return ["table", *tables[id(obj)]]
    elif type(obj) is dict:
        for name in (dict.get(obj, "__name__"), getattr(dict.get(obj, "__spec__"), "name", None)):
            if isinstance(name, str) and _namespace(name) is obj:
                return ["globals", name]
    elif isinstance(obj, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return ["operator", str(obj), _definition(obj)]
    elif (name := custom_name(obj)) is not None:
        return ["custom operator", name, _definition(obj._opoverload)]
    elif isinstance(obj, torch._ops.HigherOrderOperator):
        operator: Any = obj
        if is_pinned(module_of(type(obj))) and getattr(torch.ops.higher_order, operator.name(), None) is obj:
            return ["higher-order", module_of(type(obj)), operator.name()]
    elif isinstance(obj, type) and issubclass(obj, types.ModuleType) and (module := _module_of_type(obj)) is not None:
        return ["module type", module, _digest(obj, module)]
    elif isinstance(obj, logging.Logger) and logging.Logger.manager.loggerDict.get(obj.name) is obj:
        return ["logger", obj.name, refer(type(obj))]
    elif isinstance(obj, enum.Enum) and type(obj).__members__.get(obj.name) is obj:
        return ["member", refer(type(obj)), obj.name]
    else:
        for kind, module, name in _names(obj):
            if _at(module, name) is obj:
                return [kind, module, name, _digest(obj, module)]
        if (place := _place_of_instance(obj)) is not None:
            return ["instance", *place, refer(type(obj))]
        if isinstance(obj, _BOUND_IN_C) and not isinstance(obj.__self__, (types.ModuleType, types.NoneType)):
            if getattr(obj.__self__, obj.__name__, _MISSING) == obj:
                return ["bound", refer(obj.__self__), obj.__name__]
        if (lead := leading.get(None)) is not None and (way := lead(obj)) is not None:
            return ["of the frame", *way, _content(obj)]
        if isinstance(obj, type) and (forward := _forward_class(obj)) is not None:
            return ["backward class", refer(forward)]
    raise NotStorable(f"an object of type {type(obj).__name__} that no name leads to ({_label(obj)})")


def _forward_class(cls: type) -> Any:
    """The `autograd.Function` whose contexts are of this class, which autograd made for it; None of other classes."""
    forward = namespace_of(cls).get("_forward_cls") if issubclass(cls, torch._C._FunctionBase) else None
    return forward if isinstance(forward, type) and namespace_of(forward).get("_backward_cls") is cls else None


def _content(obj: Any) -> str | None:
    """A digest of a class that no name leads to; guards on what leads to another object say what it is."""
    return _digest(obj, module_of(obj)) if isinstance(obj, type) else None


def refer_to_function_of(code: types.CodeType) -> list[Any]:
    """A reference to the function that has this code, found by the file and the name that the code says. Raises NotStorable."""
    for name, module in [*sys.modules.items()]:
        if isinstance(module, types.ModuleType) and vars(module).get("__file__") == code.co_filename:
            for depth in range(_WRAPPINGS + 1):
                for way in ("", ".__func__"):
                    found = _at(name, code.co_qualname + way + ".__wrapped__" * depth)
                    if isinstance(found, types.FunctionType) and found.__code__ is code:
                        return refer(found)
    raise NotStorable(f"code of {code.co_qualname}, to which no name leads")


def _label(obj: Any) -> str:
    return str(getattr(obj, "__qualname__", "") or getattr(obj, "__name__", "") or "?")


def _names(obj: Any) -> Iterator[tuple[str, str, str]]:
    """Candidates for where it stands: a module, and names that lead on from there."""
    holder: Any = obj.fget if isinstance(obj, property) else obj.__func__ if isinstance(obj, _WRAPPED) else obj
    if isinstance(obj, _DESCRIPTORS):
        owner = obj.__objclass__
        yield "name", module_of(owner), f"{owner.__qualname__}.{obj.__name__}"
        return
    module, name = getattr(holder, "__module__", None), getattr(holder, "__qualname__", None)
    if isinstance(obj, types.BuiltinFunctionType) and isinstance(obj.__self__, types.ModuleType):
        module, name = obj.__self__.__name__, obj.__name__
    if isinstance(obj, types.FunctionType) and isinstance(name, str) and module not in sys.modules:
        for place, each in [*sys.modules.items()]:  # made by `exec` for a class of the program's: its `__module__` says nothing
            if isinstance(each, types.ModuleType) and name.partition(".")[0] in vars(each):
                yield from (("name", place, name + way) for way in ("", ".__func__"))
    if isinstance(module, str) and isinstance(name, str):
        yield "name", module, name
        yield "name", module, f"{name}.__func__"  # under a staticmethod or classmethod
        for depth in range(1, _WRAPPINGS + 1) if isinstance(obj, types.FunctionType) else ():
            yield "name", module, name + ".__wrapped__" * depth  # under decorators that say what they wrap
        yield from (("name", module, each) for each in _names_in_module(obj, module))
    if isinstance(obj, type) and module == "builtins":
        yield from (("name", "types", each) for each, value in vars(types).items() if value is obj)
    known = _of_torch().get(id(obj))
    if known is not None and known[0] is obj:
        yield "name", known[1], known[2]


def _names_in_module(obj: Any, module: str) -> Iterator[str]:
    """Names that its own module has for a function that bears none of them: it was made inside another, or is a lambda."""
    if isinstance(obj, types.FunctionType):
        yield from (name for name, value in dict.items(_namespace(module) or {}) if value is obj and isinstance(name, str))


def _place_of_instance(obj: Any) -> tuple[str, str] | None:
    """Where the module of its class, or a class that stands there, has an object of Python's or torch's: `os.environ`,
    `logging.Logger.manager`. What a trace reads of it is guarded; of values, which are hashed by what they hold, nothing is."""
    cls = type(obj)
    compare: Any = cls.__eq__
    is_value = callable(cls.__hash__) and compare is not object.__eq__
    if not is_pinned(module_of(cls)) or not cls.__flags__ & _HEAP_TYPE or isinstance(obj, type) or is_value:
        return None
    for name, value in dict.items(_namespace(module_of(cls)) or {}):
        if value is obj and isinstance(name, str):
            return module_of(cls), name
        if isinstance(value, type) and module_of(value) == module_of(cls):
            for inner, each in namespace_of(value).items():
                if each is obj:
                    return module_of(cls), f"{name}.{inner}"
    return None


def _module_of_type(cls: type) -> str | None:
    """The name of a module of a class of its own, which stands in the place of the module that defines the class."""
    module = sys.modules.get(module_of(cls))
    return module_of(cls) if type(module) is cls else None


@functools.cache
def _of_torch() -> dict[int, tuple[Any, str, str]]:
    """Functions of C by id: their own names do not lead to them."""
    spaces = (torch, torch.nn.functional, torch._C, torch._C._nn, torch.linalg, torch.fft, torch.special)
    found: dict[int, tuple[Any, str, str]] = {}
    for space in spaces:
        for name, value in vars(space).items():
            if isinstance(value, (types.BuiltinFunctionType, *_DESCRIPTORS)):
                found.setdefault(id(value), (value, space.__name__, name))
    for name, value in vars(torch._C._FunctionBase).items():
        found.setdefault(id(value), (value, "torch._C", f"_FunctionBase.{name}"))
    return found


#: Modules of torch's and Python's whose tables guards are about: what they hold is guarded, or read when it is wanted.
_WITH_TABLES: Final = ("torch.nn.modules.module", "copyreg")


def _tables() -> dict[int, tuple[str, str]]:
    """The dicts that stand in such a module, by id."""
    return {id(value): (module, name) for module in _WITH_TABLES for name, value in vars(sys.modules[module]).items()
            if isinstance(value, dict) and not name.startswith("__")}


def _namespace(module: str) -> Any:
    return vars(sys.modules[module]) if isinstance(sys.modules.get(module), types.ModuleType) else None


def _module(name: str) -> Any:
    """The module, which is imported if it is torch's or ours; _MISSING where there is none."""
    found: Any = sys.modules.get(name, _MISSING)
    if found is _MISSING and name.partition(".")[0] in _IMPORTED:
        found = importlib.import_module(name)
    return found


def _at(module: str, name: str) -> Any:
    """What the names lead to, without a call of anybody's `__getattr__`; _MISSING where that is nothing."""
    place = _module(module)
    for part in name.split("."):
        if isinstance(place, type):
            place = namespace_of(place).get(part, _MISSING)
        elif isinstance(place, types.ModuleType):
            place = vars(place).get(part, _MISSING)
        elif isinstance(place, _WRAPPED) and part == "__func__":
            place = place.__func__
        elif isinstance(place, (types.FunctionType, _CACHED)) and part == "__wrapped__":
            place = vars(place).get(part, _MISSING)
        else:
            return _MISSING
    return place


# -- reading -------------------------------------------------------------------------------------------------------


def find(reference: list[Any]) -> Any:
    """The object of a reference. Raises Changed."""
    kind, *rest = reference
    found: Any
    if kind == "module":
        found = sys.modules.get(rest[0])
    elif kind == "module type":
        found = type(sys.modules.get(rest[0]))
        if not issubclass(found, types.ModuleType) or _digest(found, rest[0]) != rest[1]:
            raise Changed(f"{rest[0]} is another module")
    elif kind == "modules":
        found = sys.modules
    elif kind == "globals":
        _module(rest[0])  # one of polyfills that nobody needed yet
        found = _namespace(rest[0])
    elif kind == "globals of":
        found = find(rest[0]).__globals__
    elif kind == "environment":
        found = os.environ._data  # type: ignore[attr-defined]  # not in the stubs
    elif kind == "table":
        found = _at(*rest)
    elif kind == "operator":
        found = torch.ops
        for name in rest[0].split("."):
            found = getattr(found, name, None)
        if found is not None and (str(found) != rest[0] or _definition(found) != rest[1]):
            raise Changed(f"the operator {rest[0]} is another one")
    elif kind == "backward class":
        found = find(rest[0])._backward_cls
    elif kind == "custom operator":
        found = custom_operator(rest[0])
        if found is not None and _definition(found._opoverload) != rest[1]:
            raise Changed(f"the operator {rest[0]} is another one")
    elif kind == "higher-order":
        found = getattr(torch.ops.higher_order, rest[1], None) if _module(rest[0]) is not _MISSING else None
    elif kind == "logger":
        found = logging.Logger.manager.loggerDict.get(rest[0])
        if type(found) is not find(rest[1]):
            raise Changed(f"the logger {rest[0]} is another one")
    elif kind == "instance":
        found = _at(*rest[:2])
        if type(found) is not find(rest[2]):
            raise Changed(f"{rest[0]}.{rest[1]} is another one")
    elif kind == "bound":
        found = getattr(find(rest[0]), rest[1], None)
    elif kind == "member":
        found = find(rest[0]).__members__.get(rest[1])
    elif kind == "of the frame":
        found = reached.get()(*rest[:2])
        if _content(found) != rest[2]:
            raise Changed(f"{_label(found)} is another class")
    elif kind == "name":
        module, name, digest = rest
        found = _at(module, name)
        if found is _MISSING:
            raise Changed(f"{module} has no {name}")
        if _digest(found, module) != digest:
            raise Changed(f"{module}.{name} is another one")
    else:
        raise ValueError(f"{kind} is no kind of reference")
    if found is None:
        raise Changed(f"there is no {rest[-1]}")
    return found


# -- what an object is, beside its name ----------------------------------------------------------------------------


def function_digest(function: types.FunctionType) -> str:
    """A digest of all that decides what a function does that no name leads to. Raises NotStorable."""
    return _digest(function, module_of(function))


def _definition(operator: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> str:
    """A digest of what an operator of another package does; torch's version says it of torch's own. Raises NotStorable."""
    overloads: list[Any] = [operator]
    if isinstance(operator, torch._ops.OpOverloadPacket):
        overloads = [getattr(operator, name) for name in operator.overloads()]
    if all(each.namespace in TORCHS for each in overloads):
        return ""
    try:
        texts = [*map(operator_text, overloads)]
    except Unknown as why:
        raise NotStorable(str(why)) from None
    return text_digest(repr(texts))


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _digest(obj: Any, module: str) -> str:
    """A digest of all that decides what a named object does. Raises NotStorable where that cannot be said."""
    try:
        text = json.dumps(_meaning(obj, is_pinned(module), ()))
    except (ValueError, RecursionError) as error:
        raise NotStorable(f"{_label(obj)}, whose constants have no plain text ({error})") from None
    return text_digest(text)


def _meaning(obj: Any, pinned: bool, inside: tuple[Any, ...]) -> Any:
    if isinstance(obj, property):
        return ["property", *(_meaning(each, pinned, inside) for each in (obj.fget, obj.fset, obj.fdel))]
    if isinstance(obj, _WRAPPED):
        return [type(obj).__name__, _meaning(obj.__func__, pinned, inside)]
    if isinstance(obj, types.FunctionType):
        return _function(obj, inside)
    if type(obj) is _CACHED:
        inner = _meaning(obj.__wrapped__, is_pinned(module_of(obj)), inside)
        return ["cached", *obj.cache_parameters().values(), inner, obj in process_state.counted]
    if isinstance(obj, type):
        return ["class", [f"{module_of(base)}.{base.__qualname__}" for base in obj.__mro__ or ()], obj.__flags__ & _LASTING]
    if is_plain(obj):
        return ["constant", type(obj).__name__, repr(obj)]
    if pinned and (isinstance(obj, (types.BuiltinFunctionType, *_DESCRIPTORS)) or _is_callable_of_c(obj)):
        return ["C", type(obj).__name__, _label(obj)]
    if isinstance(obj, types.ModuleType):
        return ["module", obj.__name__]
    if pinned and type(obj) is _SPECIAL_FORM:
        return ["special form", repr(obj)]
    if isinstance(obj, (list, tuple)):
        return [type(obj).__name__, *(_meaning(each, pinned, inside) for each in obj)]
    if type(obj) is dict:
        return ["dict", *([_meaning(name, pinned, inside), _meaning(each, pinned, inside)] for name, each in obj.items())]
    if isinstance(obj, (torch.dtype, torch.layout, torch.memory_format)):
        return ["torch", repr(obj)]
    if not inside:
        raise NotStorable(f"{_label(obj)}, of which nothing says what it does")
    return ["reference", refer(obj)]


_HEAP_TYPE: Final = 1 << 9


def _is_callable_of_c(obj: Any) -> bool:
    """Whether it is called by code in C of a pinned package: `np.add`, `np.argmin`."""
    return callable(obj) and is_pinned(module_of(type(obj))) and not type(obj).__flags__ & _HEAP_TYPE


#: Flags of classes that stay: the others tell what CPython remembers of it.
_LASTING: Final = 1 << 8 | 1 << 9 | 1 << 10 | 1 << 14 | 1 << 20


def _function(function: types.FunctionType, inside: tuple[Any, ...]) -> Any:
    """Of a Python function. One that is reached through itself is told once."""
    if function in inside:
        return ["again", inside.index(function)]
    inside = (*inside, function)
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_meaning(cell.cell_contents, is_pinned(module_of(function)), inside))
        except ValueError:
            cells.append(["empty"])
    pinned = is_pinned(module_of(function))
    given = [_meaning(each, pinned, inside) for each in (function.__defaults__, function.__kwdefaults__)]
    return ["function", code_digest(function.__code__), given, cells]


def code_digest(code: types.CodeType) -> str:
    """A digest of a code object as Python's compiler made it: instructions, constants, names, file and lines."""
    return hashlib.sha256(repr(_code(code)).encode()).hexdigest()[:32]


#: Digests by id of the code, with the code weakly: the same code is asked about by many entries.
_digests: Final[dict[int, tuple[weakref.ref[types.CodeType], str]]] = {}


def digest_of(code: types.CodeType) -> str:
    """As `code_digest`, which it remembers while the code lives. Raises NotStorable."""
    key = id(code)
    known = _digests.get(key)
    if known is None or known[0]() is not code:
        known = _digests[key] = (weakref.ref(code, functools.partial(_forget, key)), code_digest(code))
    return known[1]


def _forget(key: int, dead: weakref.ref[types.CodeType]) -> None:
    known = _digests.get(key)
    if known is not None and known[0] is dead:
        del _digests[key]


def _code(code: types.CodeType) -> tuple[Any, ...]:
    return (code.co_filename, code.co_firstlineno, code.co_qualname, code.co_code, code.co_flags, code.co_argcount,
            code.co_posonlyargcount, code.co_kwonlyargcount, code.co_names, code.co_varnames, code.co_freevars,
            code.co_cellvars, code.co_linetable, code.co_exceptiontable, tuple(map(_constant, code.co_consts)))


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value)
    if type(value) is frozenset:
        return ("frozenset", sorted(map(repr, map(_constant, value))))
    if type(value) is tuple:
        return ("tuple", *map(_constant, value))
    if value is None or type(value) in (bool, int, float, complex, str, bytes, types.EllipsisType):
        return (type(value).__name__, marshal.dumps(value, 2) if type(value) in (float, complex) else value)
    return ("object", *refer(value))
