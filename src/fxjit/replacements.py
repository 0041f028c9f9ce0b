"""Changes of torch's attributes and functions by the drop-in, and their undoing.

A function of torch is reached in three ways: by its name in torch, through a wrapper that a library put there (Lightning's
around `torch.compile`), and by a name that a program bound before. `Replacements.claim` takes all three over: the name
stands for ours, a wrapper stays where it is, and the function's own code is exchanged, so that whoever holds it calls ours.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from fxjit.homes import module_of

_NOT_THERE: Final = object()


#: How often what a name of torch stands for was changed: who keeps what names stand for looks again.
_changes = 0


def changes() -> int:
    return _changes


def _count() -> None:
    global _changes
    _changes += 1


class Replacements:
    """What stands for something of torch's, in the order it was put there; `undo()` puts the originals back."""

    def __init__(self) -> None:
        self._made: list[Callable[[], None]] = []
        self._claimed: dict[tuple[Any, str], FunctionType] = {}

    def __bool__(self) -> bool:
        return bool(self._made)

    def put(self, holder: Any, name: str, ours: Any, original: Any = _NOT_THERE) -> None:
        """`original`: what `undo` assigns, for what is not in the holder's own `__dict__`."""
        _count()
        before = vars(holder).get(name, original)
        self._made.append(lambda: _assign(holder, name, before))
        setattr(holder, name, ours)

    def claim(self, holder: Any, name: str, ours: Callable[..., Any], torch_too: bool = False) -> None:
        """`holder.name` is `ours`, and so is torch's function for those who bound it before; for code of torch itself only
        with `torch_too`. A wrapper that somebody put around either stays, now and at `undo`."""
        _count()
        there = getattr(holder, name)
        theirs = innermost(there)
        around_ours = _belongs_to("fxjit", theirs)  # a wrapper that was put there while the drop-in was installed before
        if around_ours:
            theirs = self._claimed.get((holder, name))
        elif not _belongs_to("torch", theirs):
            warnings.warn(f"{holder.__name__}.{name} was replaced by {there!r}, which does not say what it wraps: it is "
                          "replaced once more. Install fxjit first.", stacklevel=4)
        redirected = isinstance(theirs, FunctionType) and theirs.__closure__ is None
        if redirected:
            self._claimed[holder, name] = theirs
            self._redirect(theirs, ours, torch_too)
        if around_ours or (redirected and there is not theirs):
            return
        self._made.append(lambda: _assign(holder, name, there) if vars(holder).get(name) is ours else None)
        setattr(holder, name, ours)

    def _redirect(self, function: FunctionType, ours: Callable[..., Any], torch_too: bool) -> None:
        if function.__code__ is _FORWARDER:
            return  # one function under two names
        original = copy_of(function)
        signature = inspect.signature(function)

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return (original if not torch_too and is_torchs(callers_globals()) else ours)(*args, **kwargs)

        def restore() -> None:
            del function.__signature__  # type: ignore[attr-defined]  # set below
            function.__kwdefaults__ = original.__kwdefaults__
            function.__defaults__ = original.__defaults__
            function.__code__ = original.__code__

        function.__defaults__ = None
        function.__kwdefaults__ = {"_fxjit_call": call}
        function.__code__ = _FORWARDER
        function.__signature__ = signature  # type: ignore[attr-defined]  # what inspect looks for
        self._made.append(restore)

    def undo(self) -> None:
        _count()
        while self._made:
            self._made.pop()()


def _assign(holder: Any, name: str, value: Any) -> None:
    if value is _NOT_THERE:
        delattr(holder, name)
    else:
        setattr(holder, name, value)


def _forwarder(*args: Any, _fxjit_call: Callable[..., Any], **kwargs: Any) -> Any:
    """The code that functions of torch have meanwhile."""
    return _fxjit_call(args, kwargs)


_FORWARDER: Final = _forwarder.__code__


def copy_of(function: FunctionType) -> FunctionType:
    """A function of its own that does the same."""
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made


def _wrapped_by(function: Any) -> Iterator[Any]:
    """What a wrapper may call: its `__wrapped__`, or the functions in its closure."""
    if hasattr(function, "__wrapped__"):
        yield function.__wrapped__
    else:
        for cell in getattr(function, "__closure__", None) or ():
            if isinstance(cell.cell_contents, FunctionType):
                yield cell.cell_contents


def innermost(function: Any) -> Any:
    """The function of torch's or ours that a wrapper wraps, or the wrapper if none is found."""
    waiting, seen = [function], set[int]()
    while waiting:
        at = waiting.pop()
        if _belongs_to("torch", at) or _belongs_to("fxjit", at):
            return at
        if id(at) not in seen:
            seen.add(id(at))
            waiting += _wrapped_by(at)
    return function


def _belongs_to(package: str, function: Any) -> bool:
    found = getattr(function, "__globals__", {}).get("__name__") or module_of(function)
    return str(found).partition(".")[0] == package


def is_torchs(module_globals: Any) -> bool:
    """Whether a function with these globals is torch's. `torch.testing`, by which programs are tested, is the program's."""
    name = str(module_globals.get("__name__", ""))
    return name.partition(".")[0] == "torch" and not f"{name}.".startswith("torch.testing.")


def wrapper_codes(function: Any) -> set[CodeType]:
    """The code of every function that is around torch's or ours."""
    codes, waiting = set(), [function]
    while waiting:
        at = waiting.pop()
        code = getattr(at, "__code__", None)
        if code is not None and code not in codes and not _belongs_to("torch", at) and not _belongs_to("fxjit", at):
            codes.add(code)
            waiting += _wrapped_by(at)
    return codes


def callers_globals(passing: set[CodeType] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]  # only read
    """The globals of the nearest frame that is neither of fxjit's modules for the drop-in nor one of the codes `passing`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") in _OWN_MODULES or frame.f_code is _FORWARDER
                                        or frame.f_code in passing):
        frame = frame.f_back
    return frame.f_globals


_OWN_MODULES: Final = (__name__, "fxjit.install", "fxjit.dropin")
