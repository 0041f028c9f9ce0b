"""May the hook touch this frame: the rules over whole frames.

The pipeline asks once a code object; the answer "no" becomes a flag that the hook reads in C from then on. Frames of
torch, of fxjit, of the standard library and of a few packages pass by (but for a few of torch's: `TORCH_ENTERED`), and what
they call is still looked at; a frame inside another compiler (torch._dynamo, AOTAutograd's wrappers) passes by with
everything under it.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from fxjit import config
from fxjit.errors import is_signalled
from fxjit.homes import module_of, package_of
from fxjit.origins import Whose, origin_of

from . import marks
from .modules import PASSED_BY, TORCH_ENTERED, TORCH_OF_PROGRAMS, TORCH_RECURSIVE

MAX_CODE_BYTES = 400_000


@dataclass(frozen=True, slots=True)
class FrameVerdict:
    """The verdict on a frame. `skip`: run it eagerly; `recursive`: and its callees; `reason` is an id, `rule` the rule's.
    `shared`: the code is a library's, compiled for its next caller, and a failure is no error of this one."""

    skip: bool
    recursive: bool = False
    reason: str = ""
    rule: str = ""
    shared: bool = False


TOUCH = FrameVerdict(skip=False)
TOUCH_SHARED = FrameVerdict(skip=False, rule="torch, where it runs many operators", shared=True)


def frame_verdict(code: CodeType, globals: Mapping[str, Any], func: Any = None) -> FrameVerdict:
    """The rule for frames of `code`. `func` is the function object, where the caller has it."""
    if func is not None:
        said = marks.disabled(func)
        if said is not None:
            target_code = getattr(said.target, "__code__", None)
            if not said.recursive and isinstance(target_code, CodeType) and not marks.calls_copy(func):
                marks.set_code_disabled(target_code, said.reason)
            return FrameVerdict(True, said.recursive, "skip-disabled", said.reason or "disable")
    if marks.code_traced(code):
        return TOUCH
    said = marks.code_disabled(code)
    if said is not None:
        return FrameVerdict(True, False, "skip-disabled", said.reason or "disable(recursive=False)")
    if marks.code_interpreted(code):
        return FrameVerdict(True, False, "skip-internal", "a loop, `try` or `with` block that the graph breaks in")
    if code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR):
        return FrameVerdict(True, False, "skip-code-kind", "a generator or coroutine")
    if len(code.co_code) > MAX_CODE_BYTES:
        return FrameVerdict(True, False, "skip-too-big", f"{len(code.co_code)} bytes of bytecode")
    verdict = _file_verdict(code.co_filename)
    module = globals.get("__file__")
    if code.co_filename == "<string>" and type(module) is str:  # `__init__` of a dataclass: generated for the module
        verdict = _file_verdict(module)
    if verdict.rule == "the standard library: unittest" and config.trace_unittest:
        return TOUCH
    return TOUCH_SHARED if _is_entered(code) else verdict


def is_handler_call(args: Iterable[object]) -> bool:
    """Whether CPython calls a signal's handler: with the signal's number and the frame that it interrupts, which may be one
    that runs compiled code. Nothing of it belongs to that code."""
    return is_signalled(itertools.chain.from_iterable(each if type(each) is tuple else (each,) for each in args))


def is_librarys(code: CodeType, globals: Mapping[str, Any]) -> bool:
    """Whether the code is one that many programs share: its frames pass by, or are compiled for whoever calls it next."""
    verdict = frame_verdict(code, globals)
    return verdict.shared or verdict.reason == "skip-internal"


def _is_entered(code: CodeType) -> bool:
    if code.co_qualname not in TORCH_ENTERED:
        return False
    origin = origin_of(code.co_filename)
    return origin.whose is Whose.TORCH and origin.inner.startswith(("nn/", "optim/"))


def _file_verdict(filename: str) -> FrameVerdict:
    origin = origin_of(filename)
    match origin.whose:
        case Whose.TORCH:
            if origin.inner.startswith(TORCH_OF_PROGRAMS):
                return TOUCH
            return _passed("torch", recursive=origin.inner.startswith(TORCH_RECURSIVE))
        case Whose.PACKAGE:
            return _passed(f"the package {origin.package()}") if origin.package() in PASSED_BY else TOUCH
        case Whose.STANDARD_LIBRARY:
            return _passed(f"the standard library: {origin.package()}")
        case Whose.IMPORT_SYSTEM | Whose.FXJIT:
            return _passed(origin.whose.value)
    return TOUCH


def mentions_tensors(
    code: CodeType, args: tuple[object, ...], closure: tuple[CellType, ...] | None, globals: Mapping[str, Any]
) -> bool:
    """Whether a frame about to start has to do with tensors: in its arguments, its free variables, or the globals its
    code names (a tensor, a module of tensors, `torch` itself)."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if any(_holds_tensor(torch, each, 4) for each in args):
        return True
    for cell in closure or ():
        try:
            if _holds_tensor(torch, cell.cell_contents, 2) or _is_tensor_library(cell.cell_contents):
                return True
        except ValueError:  # an empty cell
            continue
    named = (globals[name] for name in code.co_names if name in globals)
    return any(_is_tensor_library(each) or _holds_tensor(torch, each, 1) for each in named)


def is_given_tensors(args: tuple[object, ...]) -> bool:
    """Whether a frame's arguments themselves are tensors, modules, optimizers or arrays: what can be told at each call."""
    torch = sys.modules.get("torch")
    return torch is not None and any(_holds_tensor(torch, each, 1) for each in args)


def _holds_tensor(torch: Any, value: object, depth: int) -> bool:
    """Looks into containers and plain objects, a few levels deep and never running code of the user's."""
    kind = type(value)
    if kind in _PLAIN or depth == 0:
        return False
    if issubclass(kind, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
        return True
    if module_of(kind) == "numpy":
        return config.trace_numpy
    inside: Iterable[object] = ()
    for container in (list, tuple, set, frozenset, deque):
        if issubclass(kind, container):
            inside = container.__iter__(value)  # type: ignore[attr-defined,arg-type]  # of a container type
    if issubclass(kind, dict):
        inside = dict.values(value)  # type: ignore[arg-type]  # a dict or a class derived from it
    if any(_holds_tensor(torch, each, depth - 1) for each in itertools.islice(inside, 64)):
        return True
    if issubclass(kind, MethodType):
        return _holds_tensor(torch, value.__self__, depth)  # type: ignore[attr-defined]  # a bound method
    if issubclass(kind, (type, ModuleType, FunctionType)):
        return False
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    return any(_holds_tensor(torch, each, depth - 1) for each in itertools.islice(attributes.values(), 64))


_PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None), range, slice})


def _is_tensor_library(value: object) -> bool:
    if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
        return package_of(value) == "torch"
    if not isinstance(value, ModuleType):
        return False
    name = value.__name__
    return name == "torch" or name.startswith("torch.") or (config.trace_numpy and name.partition(".")[0] == "numpy")


def _passed(rule: str, recursive: bool = False) -> FrameVerdict:
    return FrameVerdict(True, recursive, "skip-internal", rule)
