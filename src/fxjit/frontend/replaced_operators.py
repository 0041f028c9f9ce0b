"""Functions and methods of torch in whose place a program has put its own, which calls them (counters of operations, casts).

A graph has methods by name, and the text of a GraphModule has functions by name, too: both would find the program's. What is
traced of it has the original in it, as an object.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

_MODULES: Final = (torch, torch.nn.functional, torch.linalg, torch.special, torch.fft, torch.functional)


def _is_torchs(fn: object) -> bool:
    if isinstance(fn, types.FunctionType):  # whatever it says of itself: a wrapper has the names of what it wraps
        return str(fn.__globals__.get("__name__")).partition(".")[0] in ("torch", "fxjit")
    return type(fn) in _OF_C


_OF_C: Final = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
#: The methods that torch.Tensor has besides those of its base.
_METHODS: Final = {name: fn for name, fn in vars(torch.Tensor).items() if _is_torchs(fn)}
#: The functions that programs may replace, by the module that has them.
_FUNCTIONS: Final = {
    module: {name: fn for name, fn in vars(module).items()
             if isinstance(fn, (types.FunctionType, types.BuiltinFunctionType)) and _is_torchs(fn)}
    for module in _MODULES
}
#: Where the text of a graph finds a function: a namespace, and the name in it.
_PLACES: Final[Mapping[Any, tuple[Mapping[str, Any], str]]] = {
    **{fn: (vars(torch.Tensor), name) for name, fn in _METHODS.items()},
    **{fn: (vars(module), name) for module in reversed(_MODULES) for name, fn in reversed(_FUNCTIONS[module].items())},
}
_OPERATORS: Final = {fn: f"__{name.strip('_')}__" for name, fn in vars(operator).items()
                     if isinstance(fn, types.BuiltinFunctionType) and not name.startswith("__")}


def original(target: Callable[..., object] | str) -> Callable[..., object] | str:
    """What a node that is to call torch's own `target` has as its target."""
    if isinstance(target, str):
        return _method(target) or target
    if isinstance(target, types.BuiltinFunctionType) and target in _OPERATORS:
        name = _OPERATORS[target]
        own, reflected = _method(name), _method(f"__r{name[2:]}")
        return target if own is None and reflected is None else _operator(target, own or name, reflected or f"__r{name[2:]}")
    if isinstance(target, (types.FunctionType, types.BuiltinFunctionType)):
        namespace, name = _PLACES.get(target, ({}, ""))
        if name and not _is_torchs(namespace.get(name)):
            return _by_identity(target)
    return target


def _method(name: str) -> Callable[..., object] | None:
    """torch's own method of tensors, where the program has put another in its place; else None."""
    if _is_torchs(torch.Tensor.__dict__.get(name, torch.relu)):
        return None
    found = _METHODS.get(name) or torch._C.TensorBase.__dict__.get(name)
    return _by_identity(found) if callable(found) else None


def replaced() -> tuple[tuple[Any, str, object], ...]:
    """The places where the program has put something of its own: an owner, a name, and what is torch's (None: what the
    base of the owner has)."""
    base = vars(torch._C.TensorBase)
    methods = [(torch.Tensor, name, _METHODS.get(name)) for name, fn in vars(torch.Tensor).items()
               if callable(fn) and not _is_torchs(fn) and (name in _METHODS or callable(base.get(name)))]
    functions = [(module, name, there[name]) for module, there in _FUNCTIONS.items() for name in _changed(vars(module), there)
                 if not _is_torchs(vars(module).get(name))]
    return (*methods, *functions)


def _changed(namespace: Mapping[str, Any], functions: dict[str, Any]) -> Iterator[str]:
    """Names that have another object now. Each compile asks for some 1,500, and nearly none has: in C."""
    return itertools.compress(functions, map(operator.is_not, map(namespace.get, functions), functions.values()))


@contextlib.contextmanager
def torchs_own(places: tuple[tuple[Any, str, object], ...]) -> Iterator[None]:
    """torch's own is there inside: what runs while compiling, and modes that find a function by its name, must not run the
    program's, whose effects are those of its calls."""
    programs = [vars(owner).get(name) for owner, name, _ in places]
    try:
        for owner, name, own in places:
            _put(owner, name, own)
        yield
    finally:
        for (owner, name, _), fn in zip(places, programs, strict=True):
            _put(owner, name, fn)


def _put(owner: Any, name: str, fn: object) -> None:
    if fn is not None:
        setattr(owner, name, fn)
    elif name in vars(owner):
        delattr(owner, name)


@functools.cache
def _operator(fn: Callable[..., object], own: Any, reflected: Any) -> Callable[..., object]:
    """An operator of Python's that calls these methods of its operands, or what has these names."""
    def call(*args: Any) -> object:
        at = next((nth for nth, arg in enumerate(args) if isinstance(arg, torch.Tensor)), 0)
        method, rest = (own, args[1:]) if at == 0 else (reflected, args[:1])
        if isinstance(method, str):
            return getattr(args[at], method)(*rest)
        return method(args[at], *rest)

    return _named(call, fn)


@functools.cache
def _by_identity(fn: Callable[..., object]) -> Callable[..., object]:
    def call(*args: Any, **kwargs: Any) -> object:
        return fn(*args, **kwargs)

    return _named(call, fn)


def _named(call: Any, fn: Callable[..., object]) -> Callable[..., object]:
    call.__name__ = call.__qualname__ = fn.__name__
    call.is_opaque = True  # for schemas.py: it has no declaration
    return call  # type: ignore[no-any-return]  # a function
