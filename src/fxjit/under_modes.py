"""Frames that start under modes of `__torch_function__` which the program has entered outside.

A mode sees each function of torch that the frame calls. Such a frame is compiled as one that enters the modes itself: they are
taken off torch's stack, a function that enters them and makes the call is run in a region of its own, and they are put back.
What is not captured whole runs eagerly, under the modes, as it stands.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final

import torch
import torch.overrides
import torch.utils._device
from torch.overrides import TorchFunctionMode

from fxjit import _C, torch_private
from fxjit.errors import RecompileLimitExceeded, Unsupported
from fxjit.frontend.bytecode.asm import Asm
from fxjit.frontend.bytecode.instruction import Positions
from fxjit.frontend.polyfills.function_modes import called_inside
from fxjit.homes import module_of
from fxjit.options import RegionOptions
from fxjit.skips import marks

#: Makes a callable of a function in a region with these options (regions.py).
Compile = Callable[[RegionOptions, FunctionType], Callable[..., Any]]

_DeviceContext: Final = torch_private.optional("torch.utils._device.DeviceContext")
_Entries = weakref.WeakKeyDictionary[RegionOptions, _C.Entry | None]
#: The entries of functions, by the options of their regions; None: it runs as it stands.
_entries: Final[weakref.WeakKeyDictionary[FunctionType, _Entries]] = weakref.WeakKeyDictionary()
_active = threading.local()


def entry_of(options: RegionOptions, func: FunctionType, code: CodeType, make: Compile) -> _C.Entry | None:
    """The entry that runs a frame of `func` under the present modes; None where it runs as it stands."""
    if not torch_private.is_on("modes of __torch_function__ in compiled code"):
        return None
    if options.guard_filter is not None or marks.code_resumes(code) or func.__code__ is not code or not _programs_modes():
        return None
    if any(each is code for each in getattr(_active, "codes", ())):  # which its own entry has left to eager code
        return None
    known = _entries.setdefault(func, _Entries())
    if options not in known:
        known[options] = _entry(options, func, code, make)
    return known[options]


def reset() -> None:
    """`fxjit.reset()`."""
    _entries.clear()


def _programs_modes() -> list[TorchFunctionMode]:
    """The modes on torch's stack above the default devices, outermost first; none where others are among them."""
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()
    while modes and type(modes[0]) is _DeviceContext:
        del modes[0]
    of_torch = any(module_of(type(mode)).partition(".")[0] == "torch" for mode in modes)
    return [] if of_torch else modes


def _entry(options: RegionOptions, func: FunctionType, code: CodeType, make: Compile) -> _C.Entry | None:
    whole = options.with_fullgraph(True)
    own = called_inside.__code__.replace(co_name=code.co_name)  # whose entries, and their limit, are this function's alone
    marks.set_code_traced(own)
    compiled = make(whole, FunctionType(own, called_inside.__globals__, code.co_name))
    names = inspect.getargs(code)
    slots = [*names.args, *filter(None, (names.varargs, names.varkw))]
    asm = Asm(tuple(slots), code.co_freevars)
    asm.at(Positions(code.co_firstlineno, code.co_firstlineno, None, None))
    asm.prologue()
    asm.begin_call(_C.DisabledFunction(CallUnderModes(weakref.ref(func), weakref.ref(options), code, compiled), opaque=True))
    for name in slots:
        asm.load_local(name)
    asm.call(len(slots))
    asm.return_value()
    return _C.Entry(None, asm.finish(code))


class CallUnderModes:
    """Calls a function under the modes of its caller, with the values of its argument slots."""

    def __init__(self, func: weakref.ref[FunctionType], options: weakref.ref[RegionOptions], code: CodeType,
                 compiled: Callable[..., Any]) -> None:
        self._func, self._options, self._code, self._compiled = func, options, code, compiled

    def __call__(self, *slots: Any) -> Any:
        func, code, modes = self._func(), self._code, _programs_modes()
        assert func is not None, "its frame has started"
        args, kwargs = _call_of(code, slots)
        before = getattr(_active, "codes", ())
        _active.codes = (*before, code)
        try:
            return self._under(modes, func, args, kwargs)
        except (Unsupported, RecompileLimitExceeded):  # before any of it ran
            options = self._options()
            if options is not None:
                _entries[func][options] = None
            return func(*args, **kwargs)
        finally:
            _active.codes = before

    def _under(self, modes: list[TorchFunctionMode], func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pop = torch_private.get("torch._C._pop_torch_function_stack")
        push = torch_private.get("torch._C._push_on_torch_function_stack")
        for _ in modes:
            pop()
        try:
            return self._compiled(tuple(modes), func, args, kwargs)
        finally:
            for mode in modes:
                push(mode)


def _call_of(code: CodeType, slots: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call whose frame has these in its argument slots."""
    count, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    args, kwargs, rest = slots[:count], dict(zip(code.co_varnames[count:total], slots[count:total], strict=True)), slots[total:]
    if code.co_flags & inspect.CO_VARARGS:
        args, rest = (*args, *rest[0]), rest[1:]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs |= rest[0]
    return args, kwargs
