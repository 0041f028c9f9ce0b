"""What becomes of a call that the interpreter meets: TRACE, GRAPH, CONSTANT, CALL or SKIP, and the rule that said so.

What the user said comes first, then the rows for single functions, then the rules by kind and by module. The front end
asks after its own handlers for particular functions have been tried, so a rule here is what holds for everything else.
"""

from __future__ import annotations

from enum import Enum
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from . import marks
from .functions import rows, steering
from .marks import Mark
from .modules import FUNCTION_RULES, longest_prefix


class Verdict(Enum):
    """What to do with a call."""

    TRACE = "inline the Python function"
    GRAPH = "one call_function node, if every argument can stand in a graph"
    CONSTANT = "pure: call it now, if every argument is known"
    CALL = "the front end needs a rule of its own for it; without one, the graph breaks"
    SKIP = "the graph breaks; the reason is the second half of the answer"


_MARKS = {
    Mark.ALLOW_IN_GRAPH: (Verdict.GRAPH, "marked: allow_in_graph"),
    Mark.DISALLOW_IN_GRAPH: (Verdict.SKIP, "user-disallowed"),
    Mark.FORBID_IN_GRAPH: (Verdict.SKIP, "user-forbidden"),
    Mark.ASSUME_CONSTANT: (Verdict.CONSTANT, "marked: assume_constant_result"),
}
_BUILTIN_METHODS = (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType, GetSetDescriptorType)

# Modules of builtins that make tensors or work on them.
_TORCH_OPERATORS = (
    "torch._C._nn",
    "torch._C._fft",
    "torch._C._linalg",
    "torch._C._special",
    "torch._C._sparse",
    "torch._C._nested",
    "torch",
)
# Modules of builtins that are functions of their arguments and of nothing else.
_PURE = frozenset({"math", "cmath", "_operator", "operator", "_struct", "binascii", "unicodedata", "_bisect", "zlib"})


def function_verdict(fn: Any) -> tuple[Verdict, str]:
    """The verdict on a call of `fn`, with a reason id where it is SKIP and the name of the rule otherwise."""
    if isinstance(fn, MethodType):
        fn = fn.__func__
    if steering(fn) is not None:
        return Verdict.CALL, "steers the compiler"
    mark = marks.mark_of(fn)
    if mark is not None:
        return _MARKS[mark]
    if marks.substitute_for(fn) is not None:
        return Verdict.TRACE, "substitute_in_graph"
    row = rows.get(fn)
    if row is not None:
        return Verdict[row[0]], row[1] or "functions.py"
    said = marks.disabled(fn)
    if said is not None:
        return Verdict.SKIP, "user-disabled-call" if said.recursive else "user-disabled-inline"
    if marks.is_compiled(fn):
        return Verdict.TRACE, "compiled: its function is traced"
    if isinstance(fn, FunctionType):
        return _python_function(fn)
    if isinstance(fn, type):
        return Verdict.CALL, "a type"
    if isinstance(fn, BuiltinFunctionType):
        return _builtin(fn)
    if isinstance(fn, _BUILTIN_METHODS):
        return _method_of_builtin_type(fn)
    return _callable_object(fn)


def _python_function(fn: FunctionType) -> tuple[Verdict, str]:
    if marks.code_traced(fn.__code__):
        return Verdict.TRACE, "marked"
    # Not fn.__module__: functools.wraps gives a wrapper the module of what it wraps.
    module = str(fn.__globals__.get("__name__", ""))
    found = longest_prefix(module, FUNCTION_RULES)
    if found is None:
        return Verdict.TRACE, "user code"
    prefix, (verdict, reason) = found
    if module == "torch._jit_internal" and fn.__qualname__.startswith("boolean_dispatch"):
        return Verdict.GRAPH, "a function of torch.nn.functional with two forms"
    if fn.__code__.co_qualname.startswith("_script_if_tracing"):
        return Verdict.TRACE, "calls the user's function where nothing is scripted"
    if verdict == "GRAPH" and fn.__name__ == "__torch_function__":
        return Verdict.CALL, "the torch function protocol"
    if verdict == "CONSTANT" and prefix == "torch.backends" and not _only_reads(fn.__name__):
        return Verdict.SKIP, "value-global-state"
    return Verdict[verdict], reason or f"modules.py: {prefix}"


def _only_reads(name: str) -> bool:
    """Whether a function of torch.backends, by its name, looks at a switch of the process and sets none."""
    return name == "version" or name.startswith(("is_", "get_", "can_use_")) or name.endswith(("_enabled", "_allowed"))


def _builtin(fn: Any) -> tuple[Verdict, str]:
    """A function of a C extension, or a method bound to an object of C's."""
    module = fn.__module__ or ""
    owner = fn.__self__
    if isinstance(owner, type) and owner.__module__ == "torch._C" and owner.__name__ == "_VariableFunctionsClass":
        return Verdict.GRAPH, "an operator of torch"
    if module in _TORCH_OPERATORS or type(owner).__name__ == "_VariableFunctionsClass":
        return Verdict.GRAPH, "an operator of torch"
    if module == "torch._C" or module.startswith("torch._C."):
        return Verdict.CALL, "a function of torch's C part"
    if module in _PURE:
        return Verdict.CONSTANT, "pure"
    if module == "builtins" or (owner is not None and not _is_module(owner)):
        return Verdict.CALL, "a builtin of the language"
    found = longest_prefix(module, FUNCTION_RULES)
    if found is not None and found[1][0] != "TRACE":
        return Verdict[found[1][0]], found[1][1] or f"modules.py: {found[0]}"
    if module.lstrip("_") in _STDLIB_C:
        return Verdict.CALL, "a builtin of the standard library"
    return Verdict.SKIP, "call-c-extension"


_STDLIB_C = frozenset({"functools", "itertools", "collections", "abc", "weakref", "copy", "heapq", "random", "thread", "sre"})


def _method_of_builtin_type(fn: Any) -> tuple[Verdict, str]:
    owner = getattr(fn, "__objclass__", None)
    if (
        owner is not None
        and owner.__module__ in ("torch._C", "torch")
        and owner.__name__ in ("TensorBase", "_TensorBase", "Tensor")
    ):
        return Verdict.GRAPH, "a method of Tensor"
    return Verdict.CALL, "a method of a builtin type"


def _callable_object(fn: Any) -> tuple[Verdict, str]:
    """An instance with `__call__`: torch's operators, custom operators, and objects of the user's."""
    kind = type(fn)
    module = str(kind.__module__ or "")
    if module == "torch._ops":
        if kind.__name__ in ("OpOverload", "OpOverloadPacket", "TorchBindOpOverload"):
            return Verdict.GRAPH, "an operator of torch.ops"
        return Verdict.CALL, "a higher order operator"
    if module.startswith("torch._higher_order_ops"):
        return Verdict.CALL, "a higher order operator"
    if module == "torch._library.custom_ops" and kind.__name__ == "CustomOpDef":
        return Verdict.GRAPH, "a custom operator"
    if module == "torch.jit._script" or kind.__name__ == "ScriptFunction":
        return Verdict.GRAPH, "a scripted function"
    if module.partition(".")[0] == "numpy":
        return Verdict.SKIP, "numpy-function"
    if module.partition(".")[0] in ("numba", "cython_function_or_method") or kind.__name__ == "cython_function_or_method":
        return Verdict.SKIP, "call-c-extension"
    return Verdict.CALL, "an object with __call__"


def _is_module(owner: object) -> bool:
    return type(owner).__name__ == "module"
