"""The user's marks on functions: disable, allow_in_graph, disallow_in_graph, and their like.

`api.py` writes marks; `verdict.py`, `frames.py` and the front end read them. torch's own annotations are recognised
too: the attributes that `torch.compiler.disable` and others leave on a function, and torch._dynamo's tables, which are
looked at only if the program has imported that module by itself.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FunctionType, MethodType
from typing import Any

from fxjit.errors import InvalidArgument, displayed
from fxjit.homes import module_of


class Mark(Enum):
    ALLOW_IN_GRAPH = "allow_in_graph"
    DISALLOW_IN_GRAPH = "disallow_in_graph"
    FORBID_IN_GRAPH = "forbid_in_graph"
    ASSUME_CONSTANT = "assume_constant_result"


@dataclass(frozen=True, slots=True)
class Disabled:
    """`target` is the user's function; `recursive`: nor is what it calls traced."""

    target: Any
    recursive: bool
    reason: str | None


class _ByIdentity:
    """Object -> value, by identity: any callable can be a key, also one that cannot be hashed."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Any]] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        self._entries[id(key)] = (key, value)

    def get(self, key: Any) -> Any:
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None else None

    def pop(self, key: Any) -> None:
        self._entries.pop(id(key), None)


    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(tuple(self._entries.values()))


_marks = _ByIdentity()
_substitutes = _ByIdentity()
_codes: dict[int, tuple[weakref.ref[CodeType], Any]] = {}

_thread = threading.local()

# Attributes a wrapper carries. torch's spelling, so that each compiler sees what was said to the other.
_DISABLE, _DISABLE_RECURSIVE, _DISABLE_REASON = (
    "_torchdynamo_disable",
    "_torchdynamo_disable_recursive",
    "_torchdynamo_disable_msg",
)
_ORIGINAL = "_torchdynamo_orig_callable"
_WRAPPER_ID = "_torchdynamo_wrapper_id"
_CALLS_COPY = "_fxjit_calls_copy"
_INLINE = "_torchdynamo_inline"  # what torch's compiler traces in its place
#: Attributes of functions that mark them: torch's, and that of what `caller_of` makes, which is no mark of the user's.
_MARKING = {"_dynamo_forbidden": Mark.FORBID_IN_GRAPH, "_dynamo_marked_constant": Mark.ASSUME_CONSTANT,
            "_fxjit_calls_allowed": Mark.ALLOW_IN_GRAPH}


def set_mark(fn: Any, mark: Mark) -> None:
    _marks[_plain(fn)] = mark


def mark_of(fn: Any) -> Mark | None:
    """Ours, or torch's when the user annotated with torch's functions."""
    fn = _plain(fn)
    found: Mark | None = _marks.get(fn)
    if found is not None:
        return found
    attributes = _attributes(fn)
    for name, mark in _MARKING.items():
        if attributes.get(name):
            return mark
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        for table, mark in (
            ("_allowed_callable_ids", Mark.ALLOW_IN_GRAPH),
            ("_nonstrict_trace_callable_ids", Mark.ALLOW_IN_GRAPH),
            ("_disallowed_callable_ids", Mark.DISALLOW_IN_GRAPH),
        ):
            ids = getattr(rules, table, None)
            if ids is not None and id(fn) in ids:
                return mark
    return None


_callers = _ByIdentity()


def caller_of(obj: Any) -> Callable[..., Any] | None:
    """The function that calls an object with a `__call__` which the user allowed in the graph; None of any other object."""
    if isinstance(obj, FunctionType) or mark_of(obj) is not Mark.ALLOW_IN_GRAPH:
        return None
    known: Callable[..., Any] | None = _callers.get(obj)
    if known is None:
        def call(*args: Any, **kwargs: Any) -> Any:
            return obj(*args, **kwargs)

        name = getattr(obj, "__name__", None)
        call.__name__ = call.__qualname__ = name if isinstance(name, str) and name.isidentifier() else type(obj).__name__
        call.is_opaque = call._fxjit_calls_allowed = True  # type: ignore[attr-defined]  # schemas.py: what it does is the object's
        _callers[obj] = known = call
    return known


def described() -> tuple[str, ...]:
    """The marks on functions, as text: what a stored entry depends on beside code and guards. What functions do that are traced
    in the place of others (`substitutes`), it does not say."""
    marked = [(fn, mark.value) for fn, mark in _marks] + [(fn, "substitute") for fn, _ in _substitutes]
    named = [(module_of(fn), str(getattr(fn, "__qualname__", type(fn))), _first_line(fn), how)
             for fn, how in marked]
    codes = [(code.co_filename, code.co_qualname, code.co_firstlineno, "disabled") for ref, value in tuple(_codes.values())
             if isinstance(value, Disabled) and (code := ref()) is not None]
    return tuple(sorted(repr(each) for each in (*named, *codes)))


def _first_line(fn: Any) -> int:
    return fn.__code__.co_firstlineno if isinstance(fn, FunctionType) else 0


def substitutes() -> Iterator[tuple[Any, FunctionType]]:
    """The functions for which others are traced, each with that (`substitute_in_graph`)."""
    return iter(_substitutes)


def set_substitute(original: Any, traceable: Callable[..., Any]) -> None:
    _substitutes[original] = traceable


def substitute_for(fn: Any) -> Callable[..., Any] | None:
    """The Python function to trace instead of `fn` (`substitute_in_graph`), or None."""
    found: Callable[..., Any] | None = _substitutes.get(fn)
    return found if found is not None else _original_of_tagging(fn) or _original_of_optimizer(fn)


def _original_of_optimizer(fn: Any) -> Callable[..., Any] | None:
    """Once torch.compile ran, torch disables methods of its optimizers that its own compiler does not take; ours does."""
    attributes = _attributes(fn)
    if not str(attributes.get(_DISABLE_REASON) or "").startswith("optimizer "):
        return None
    target = attributes.get(_ORIGINAL)
    return target if module_of(target).startswith("torch.optim.") else None


def _original_of_tagging(fn: Any) -> Callable[..., Any] | None:
    """Once torch.compile ran, torch wraps `nn.Module.__init__` to number modules for itself; only the original counts."""
    if not isinstance(fn, FunctionType) or fn.__code__.co_name not in _TAGGING or not fn.__closure__:
        return None
    if not fn.__code__.co_filename.replace("\\", "/").endswith("/torch/_dynamo/mutation_guard.py"):
        return None
    original = fn.__closure__[fn.__code__.co_freevars.index(_TAGGING[fn.__code__.co_name])].cell_contents
    return original if isinstance(original, FunctionType) else None


_TAGGING = {"patched_init": "init", "patched_setstate": "setstate"}


def set_disabled(wrapper: Any, target: Any, recursive: bool, reason: str | None) -> None:
    """Writes on a wrapper that its target is not to be traced."""
    setattr(wrapper, _DISABLE, True)
    setattr(wrapper, _DISABLE_RECURSIVE, recursive)
    setattr(wrapper, _DISABLE_REASON, reason)
    setattr(wrapper, _ORIGINAL, target)
    setattr(wrapper, _WRAPPER_ID, id(wrapper))


def set_calls_copy(wrapper: Any) -> None:
    """What a disabled wrapper calls has its target's code as its own, and that is marked."""
    setattr(wrapper, _CALLS_COPY, True)


def calls_copy(fn: Any) -> bool:
    return bool(_attributes(fn).get(_CALLS_COPY, False))


def disabled(fn: Any) -> Disabled | None:
    """The mark of `disable` on this callable, ours or torch's; None when it was not disabled."""
    fn = _plain(fn)
    attributes = _attributes(fn)
    if attributes.get(_DISABLE):
        # functools.wraps copies the attributes of a disabled function to wrappers that are not disabled.
        if attributes.get(_WRAPPER_ID, id(fn)) != id(fn):
            return None
        target = attributes.get(_ORIGINAL, fn)
        return Disabled(target, bool(attributes.get(_DISABLE_RECURSIVE, False)), attributes.get(_DISABLE_REASON))
    if isinstance(fn, FunctionType) and _is_lazy_torch_disable(fn.__code__):
        return Disabled(getattr(fn, "__wrapped__", fn), True, "torch disables this function of its own")
    return None


def disabled_module(module: Any) -> Disabled | None:
    """The mark of `torch.compiler.disable` on an `nn.Module` that it wrapped."""
    attributes = getattr(module, "__dict__", {})
    context = attributes.get("dynamo_ctx")
    if type(context).__name__ != "DisableContext":
        return None
    return Disabled(attributes.get("_modules", {}).get("_orig_mod", module), True, getattr(context, "msg", None))


def shown(target: Any) -> str:
    """How a message names what was disabled: modules by their class, since their text may be as long as a model."""
    owner = getattr(target, "__self__", target)
    if callable(getattr(owner, "named_parameters", None)):
        return f"module {type(owner).__qualname__}"
    return str(target)


def set_code_disabled(code: CodeType, reason: str | None) -> None:
    """Frames of this code run as they stand; what they call is still compiled (`disable(recursive=False)`)."""
    _remember(code, Disabled(None, False, reason))


def set_code_traced(code: CodeType) -> None:
    """Frames of this code are user code, although the file they stand in is not."""
    _remember(code, True)


def set_code_resumes(code: CodeType) -> None:
    """The code of a resume function: the frame that it goes on with was worth tracing, and so is the rest."""
    _remember(code, "resumes")


def code_resumes(code: CodeType) -> bool:
    return bool(_recalled(code) == "resumes")


def set_code_interpreted(code: CodeType) -> None:
    """The code of a region that a frame breaks in: CPython runs it."""
    _remember(code, "interpreted")


def code_interpreted(code: CodeType) -> bool:
    return bool(_recalled(code) == "interpreted")


def set_code_makes_arrays(code: CodeType) -> None:
    """`tensor.numpy()` in frames of this code is how `wrap_numpy` begins: gradients go through it when it is traced."""
    _remember(code, "makes arrays")


def code_makes_arrays(code: CodeType) -> bool:
    return bool(_recalled(code) == "makes arrays")


def code_disabled(code: CodeType) -> Disabled | None:
    found = _recalled(code)
    return found if isinstance(found, Disabled) else None


def code_traced(code: CodeType) -> bool:
    return _recalled(code) is True


class error_on_graph_break:
    """Context manager and decorator: whether a graph break in this part of the program is an error.

    It holds for what is compiled while it is in force, on this thread; `fullgraph=True` is stronger.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        if not isinstance(error_on_graph_break, bool):
            raise InvalidArgument(f"error_on_graph_break: expected True or False, not {displayed(error_on_graph_break)}.")
        self.error = error_on_graph_break
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(breaks_are_errors())
        _thread.breaks_are_errors = self.error

    def __exit__(self, *exc_info: object) -> None:
        _thread.breaks_are_errors = self._before.pop()

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        error = self.error

        def with_errors(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(error):
                return fn(*args, **kwargs)

        set_code_traced(with_errors.__code__)
        return functools.wraps(fn)(with_errors)


def breaks_are_errors() -> bool:
    """The innermost `error_on_graph_break` around the calls that this thread is in."""
    return bool(getattr(_thread, "breaks_are_errors", False))


def unwrapped(fn: Any) -> Any:
    """The user's function inside what `compile` or `disable` (ours or torch's) made of it, or `fn` itself.

    A compiled function that is called by traced code is traced as the function it was made from.
    """
    seen = 0
    while seen < 20:
        attributes = _attributes(fn)
        inner = attributes.get(_ORIGINAL) if attributes.get(_WRAPPER_ID, id(fn)) == id(fn) else None
        if inner is None:
            return fn
        fn, seen = inner, seen + 1
    return fn


def is_compiled(fn: Any) -> bool:
    """Made by `fxjit.compile` or by torch.compile: calling it while tracing traces `unwrapped(fn)`."""
    attributes = _attributes(fn)
    return _ORIGINAL in attributes and not attributes.get(_DISABLE) and attributes.get(_WRAPPER_ID, id(fn)) == id(fn)


def set_compiled(wrapper: Any, target: Any) -> None:
    setattr(wrapper, _ORIGINAL, target)
    setattr(wrapper, _INLINE, target)
    setattr(wrapper, _WRAPPER_ID, id(wrapper))


def _plain(fn: Any) -> Any:
    return fn.__func__ if isinstance(fn, MethodType) else fn


def _attributes(fn: Any) -> dict[str, Any]:
    """The object's own dictionary, without running a `__getattr__` of the user's."""
    if isinstance(fn, type):
        return {}
    try:
        found = object.__getattribute__(fn, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_lazy_torch_disable(code: CodeType) -> bool:
    """The wrapper of torch/_compile.py, which becomes torch._dynamo.disable at its first call."""
    return code.co_name == "inner" and code.co_filename.replace("\\", "/").endswith("/torch/_compile.py")


def disabled_by_torch(fn: FunctionType) -> Any:
    """The function inside the wrapper that torch puts around some of its own, as late as torch._dynamo is imported; or None."""
    return getattr(fn, "__wrapped__", None) if _is_lazy_torch_disable(fn.__code__) else None


def _remember(code: CodeType, value: Any) -> None:
    key = id(code)

    def forget(_: weakref.ref[CodeType]) -> None:
        _codes.pop(key, None)

    _codes[key] = (weakref.ref(code, forget), value)


def _recalled(code: CodeType) -> Any:
    entry = _codes.get(id(code))
    return entry[1] if entry is not None and entry[0]() is code else None
