"""Operators and autograd Functions of packages and programs, as text for graphs on the disk: what AOTAutograd takes from them.

Of an operator that is its schema and the Python functions which say what its results look like and how it is derived; what it
does is looked up when it is called. Of an `autograd.Function` it is all that the class has. A function is what its code says,
with its defaults and closure, the functions it calls and the values of the globals it reads, as far as that is all: its code
may read attributes of tensors, of an autograd context, of classes and of plain values, and call functions that compute their
result from their arguments. Where something else decides what it does (the environment, a file, a list, an object, another
process), it may be another next time, and so may what other registrations do.
"""

from __future__ import annotations

import _operator
import builtins
import dis
import functools
import hashlib
import importlib.metadata
import marshal
import math
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch._library.custom_ops import OPDEFS
from torch._library.simple_registry import singleton

from fxjit import torch_private
from fxjit.homes import module_of, package_of

#: Namespaces of operators that torch's version says all about.
TORCHS = ("aten", "prims")
#: What `torch.library.custom_op` registers by itself, and the code of devices, which runs when the operator is called.
_USUAL = frozenset({"Autograd", "Meta", "CompositeExplicitAutograd", "ADInplaceOrView", "CPU", "CUDA"})
_Function: Final[Any] = torch.autograd.Function
_CustomOpDef: Final[Any] = torch_private.optional("torch._library.custom_ops.CustomOpDef")


class Unknown(Exception):
    """The operator or the function may be another one next time; why."""


def operator_text(operator: torch._ops.OpOverload) -> str:
    """All of an operator's definition that decides what a graph with it compiles to. Raises Unknown."""
    texts = Texts()
    _read_operator(operator, texts)
    return repr([*texts.values()])


def custom_name(obj: Any) -> str | None:
    """The name of an operator made by `torch.library.custom_op`; None of anything else."""
    name = getattr(obj, "_qualname", None) if isinstance(obj, _CustomOpDef) else None
    return name if name is not None and OPDEFS.get(name) is obj else None


def custom_operator(name: str) -> Any:
    """The operator of that name, or None."""
    return OPDEFS.get(name)


def function_text(cls: Any) -> str:
    """All of an `autograd.Function` that decides what a graph with it compiles to. Raises Unknown."""
    texts = Texts()
    _read_class(cls, texts)
    return repr([*texts.values()])


class Texts(dict[Any, str]):
    """What was read so far, by function, class and operator; empty while it is being read: some call each other."""

    def __init__(self) -> None:
        #: Attributes that this code sets, on the autograd context.
        self.set: set[str] = set()

    def place(self, each: Any) -> int:
        """Which of what was read this is: functions may share their names."""
        return [*self].index(each)


def _read_operator(operator: torch._ops.OpOverload, texts: Texts) -> None:
    """Adds the operator's definition to `texts`, with what that calls."""
    if operator in texts:
        return
    texts[operator] = ""
    name = operator._schema.name
    definition: Any = OPDEFS.get(name)
    prefix = name.replace("::", "/") + "/"
    registered = {each.removeprefix(prefix) for each in torch.library._impls if each.startswith(prefix)}
    entry: Any = singleton.find(name)
    if definition is None or not registered <= _USUAL:
        raise Unknown(f"the operator {operator}")
    if entry.torch_dispatch_rules._data or entry.effect.effect is not None:
        raise Unknown(f"the operator {operator}")
    functions = (definition._abstract_fn, definition._setup_context_fn, definition._backward_fn)
    autocast = sorted((field, str(value)) for field, value in vars(definition).items() if "autocast" in field)
    found = [None if each is None else _meaning(each, texts) for each in functions]
    texts[operator] = repr((str(operator._schema), operator.tags, sorted(registered), autocast, found))


#: Of an `autograd.Function`, in this order: a later one reads what an earlier one set on the context.
_IN_ORDER: Final = ("forward", "setup_context")


def _read_class(cls: Any, texts: Texts) -> None:
    """Adds the text of an `autograd.Function`, and those of what its functions call, to `texts`. Raises Unknown."""
    if cls in texts:
        return
    texts[cls] = ""
    if type(cls) is not type(_Function):
        raise Unknown(f"{cls.__qualname__}, of a metaclass of its own")
    told: list[Any] = [module_of(cls), cls.__qualname__]
    for base in cls.__mro__[:cls.__mro__.index(_Function)]:
        members = [(name, value) for name, value in vars(base).items() if not name.startswith("__") and name != "_backward_cls"]
        for name, value in sorted(members, key=lambda member: member[0] not in _IN_ORDER):
            function = value.__func__ if isinstance(value, staticmethod) else value
            told.append((name, type(value).__name__, _meaning(function, texts)))
    texts[cls] = repr(told)


def _read(function: types.FunctionType, texts: Texts) -> None:
    """Adds the function's text, and those of what it calls, to `texts`. Raises Unknown where that is not all."""
    if function in texts:
        return
    code = hashlib.sha256(marshal.dumps(function.__code__, 2)).hexdigest()  # 2: of equal code the same bytes
    texts[function] = ""
    values = [_value(each) for each in (function.__defaults__, function.__kwdefaults__)]
    values += [f"{name} {_meaning(value, texts)}" for name, value in vars(function).items()]
    values += [f"{name} {_meaning(value, texts)}" for name, value in _cells(function)]
    read = () if _is_decorators(function) else _globals_of(function, function.__code__, texts.set)
    globals_ = [f"{name} {_meaning(value, texts)}" for name, value in read]
    texts[function] = repr((module_of(function), function.__qualname__, _version(package_of(function)), code, values,
                            sorted(set(globals_))))


def _cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The closure. Raises Unknown."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            raise Unknown(f"{function.__qualname__}, whose {name} has no value") from None


def _is_decorators(function: types.FunctionType) -> bool:
    """Whether the code is that of a decorator of torch's around a function (`once_differentiable`, `custom_fwd`): the version
    of torch says what its globals are."""
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    file = getattr(module, "__file__", None)
    torchs = module is not None and vars(module) is function.__globals__ and module.__name__.partition(".")[0] == "torch"
    return torchs and file is not None and function.__code__.co_filename == file


_UNREADABLE = ("STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_BUILD_CLASS", "LOAD_SUPER_ATTR", "MATCH_CLASS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
#: What is only looked through for what is in it.
_PLACES = (types.ModuleType, torch._ops.OpOverloadPacket)  # `torch.ops` and its namespaces are modules


def _globals_of(function: types.FunctionType, code: types.CodeType, attributes: set[str]) -> Iterator[tuple[str, Any]]:
    """The global names that the code reads, each with the attributes read of it in one expression; adds the attributes that it
    sets to those it may read. Raises Unknown for what it reads elsewhere."""
    steps = [each for each in dis.get_instructions(code) if each.opname not in ("PUSH_NULL", "EXTENDED_ARG")]
    attributes.update(str(each.argval) for each in steps if each.opname == "STORE_ATTR")
    led_through: set[int] = set()
    for at, step in enumerate(steps):
        if step.opname.startswith("IMPORT_") or step.opname in _UNREADABLE:
            raise Unknown(f"{function.__qualname__}, which does {step.opname}")
        if step.opname in _ATTRIBUTES and at not in led_through and not _is_plain(str(step.argval), attributes):
            raise Unknown(f"{function.__qualname__}, which reads the attribute {step.argval}")
        if step.opname == "LOAD_GLOBAL":
            name = str(step.argval)
            space = function.__globals__ if name in function.__globals__ else vars(builtins)
            if name not in space:
                raise Unknown(f"{function.__qualname__}, which reads {name}")
            value = space[name]
            for behind, after in enumerate(steps[at + 1:], at + 1):
                found = _member(value, str(after.argval)) if after.opname in _ATTRIBUTES else _MISSING
                if found is _MISSING:
                    break
                led_through.add(behind)
                name, value = f"{name}.{after.argval}", found
            yield name, value
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _globals_of(function, each, attributes)


_MISSING: Final = object()


def _member(place: Any, name: str) -> Any:
    """What such a place has under a name, or a class of the program's for itself: a metaclass of its own may do anything."""
    if isinstance(place, _PLACES):
        return getattr(place, name, _MISSING)
    if type(place) not in (type, type(_Function)) or package_of(place) in _PACKAGES or _is_fixed(place):
        return _MISSING
    found = next((vars(base)[name] for base in place.__mro__ if name in vars(base)), _MISSING)
    if found is vars(_Function)["apply"]:
        return found.__get__(None, place)
    return found.__func__ if isinstance(found, staticmethod) else found


#: What derivatives and shape functions handle: none of their attributes but the special ones leads to anything else.
_PLAIN_CLASSES = (torch.Tensor, torch.autograd.function.FunctionCtx, torch._C._FunctionBase, torch.Size, torch.dtype,
                  torch.device, torch.SymInt, list, tuple, dict, slice, range, int, float, complex, bool)


_OF_C = (types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.BuiltinFunctionType)


def _is_plain(name: str, attributes: set[str]) -> bool:
    """Whether the attribute is one that Python and torch give such values, and that nobody else put there, or one of these."""
    if name.startswith("__"):
        return False
    found = [value for cls in _PLAIN_CLASSES if (value := getattr(cls, name, None)) is not None]
    return all(_is_torchs_own(value) for value in found) and (bool(found) or name in attributes)


def _is_torchs_own(value: Any) -> bool:
    return isinstance(value, _OF_C) or (isinstance(value, types.FunctionType) and is_torchs(value))


def is_torchs(function: types.FunctionType) -> bool:
    """Whether the code is torch's or ours: a program may put a function of its own in the place of torch's, and call it so."""
    homes = (module_of(function), function.__globals__.get("__name__", ""))
    return all(home.partition(".")[0] in _PACKAGES for home in homes)


_PACKAGES = ("torch", "fxjit")


def _meaning(value: Any, texts: Texts) -> str:
    """The meaning of a global, as text. Raises Unknown for a value that may differ in the next process."""
    if isinstance(value, torch._ops.OpOverloadPacket):
        return repr([_meaning(getattr(value, each), texts) for each in value.overloads()])
    if isinstance(value, torch._ops.OpOverload):
        if value.namespace not in TORCHS:
            _read_operator(value, texts)
        return str(value)
    if isinstance(value, types.FunctionType) and not is_torchs(value):
        _read(value, texts)
        return f"{value.__qualname__} {texts.place(value)}"
    if (cls := _applied(value)) is not None:
        _read_class(cls, texts)
        return f"{cls.__qualname__}.apply {texts.place(cls)}"
    if isinstance(value, (type, types.BuiltinFunctionType, types.FunctionType)) and _is_fixed(value):
        return f"{module_of(value)} {value.__qualname__}"
    return _value(value)


def _applied(value: Any) -> Any:
    """The class of an `autograd.Function` whose `apply` this is; None of anything else."""
    cls = getattr(value, "__self__", None)
    is_function = isinstance(cls, type) and issubclass(cls, _Function) and getattr(value, "__name__", "") == "apply"
    return cls if is_function and value == vars(_Function)["apply"].__get__(None, cls) else None


def _is_fixed(value: type | types.BuiltinFunctionType | types.FunctionType) -> bool:
    """Whether it is a class or function of Python's or torch's whose results its arguments decide, and the state of the process
    that every graph's text has."""
    if isinstance(value, type):
        return value in _CLASSES or value in _MODES or (module_of(value) == "builtins" and issubclass(value, BaseException))
    if isinstance(value, types.FunctionType):  # torch's
        space, name = value.__globals__.get("__name__"), value.__name__
        return space in _OF_TENSORS or (space == "torch" and name.startswith(_OF_SIZES))
    home: Any = value.__self__
    if home is builtins:
        return value.__name__ in _BUILTINS
    if home in _CALCULATIONS:
        return True
    of_torch = home is None or isinstance(home, (type, types.ModuleType))
    return of_torch and package_of(value) == "torch" and hasattr(torch.ops.aten, value.__name__)


_BUILTINS = frozenset({"abs", "all", "any", "divmod", "isinstance", "issubclass", "len", "max", "min", "pow", "round", "sorted",
                       "sum"})
_CALCULATIONS = (math, _operator)
_OF_TENSORS = ("torch.functional", "torch.nn.functional")
#: Numbers that may be symbols, and assertions about them: `torch.sym_max`, `torch._check`.
_OF_SIZES = ("sym_", "_check")
_CLASSES = frozenset({bool, int, float, complex, str, list, tuple, dict, slice, range, enumerate, zip, map, filter, reversed,
                      torch.Tensor, torch.Size, torch.device, torch.finfo, torch.iinfo, torch.SymInt, torch.SymFloat,
                      torch.SymBool})
_MODES = frozenset({torch.no_grad, torch.enable_grad, torch.set_grad_enabled})


def _value(value: Any) -> str:
    if isinstance(value, (tuple, dict)) and type(value) in (tuple, dict):
        return repr([_value(each) for each in (value.items() if isinstance(value, dict) else value)])
    if value is None or type(value) in (bool, int, float, complex, str, bytes) or type(value) in _TORCHS_CONSTANTS:
        return repr(value)
    raise Unknown(f"a value of type {type(value).__name__}")


_TORCHS_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, torch.device)


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package) if package else None
    except importlib.metadata.PackageNotFoundError:
        return None
