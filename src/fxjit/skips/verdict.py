"""The verdict on a call of a Python function that no handler claims: TRACE, GRAPH, CONSTANT, CALL or SKIP, and its rule.

What the user said comes first, then the rows for single functions, then the rules by module.
"""

from __future__ import annotations

from enum import Enum
from types import FunctionType
from typing import Final

from fxjit import config

from . import marks
from .functions import rows
from .marks import Mark
from .modules import FUNCTION_RULES, longest_prefix


class Verdict(Enum):
    """The treatment of a call."""

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


def function_verdict(fn: FunctionType) -> tuple[Verdict, str]:
    """The verdict on a call of `fn`, with a reason id where it is SKIP and the name of the rule otherwise."""
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
    return _by_module(fn)


def _by_module(fn: FunctionType) -> tuple[Verdict, str]:
    if marks.code_traced(fn.__code__):
        return Verdict.TRACE, "marked"
    # Not fn.__module__: functools.wraps gives a wrapper the module of what it wraps.
    module = str(fn.__globals__.get("__name__", ""))
    found = longest_prefix(module, FUNCTION_RULES)
    if found is None:
        return Verdict.TRACE, "user code"
    prefix, (verdict, reason) = found
    if prefix == "unittest" and config.trace_unittest:
        return Verdict.TRACE, "config.trace_unittest"
    if reason == "call-skipped-module" and _only_looks_at_types(fn):
        return Verdict.TRACE, "looks at types only"
    if reason == "call-skipped-module" and _is_of_container(fn):
        return Verdict.TRACE, "a method of a container"
    if module == "torch._jit_internal" and fn.__qualname__.startswith("boolean_dispatch"):
        return Verdict.GRAPH, "a function of torch.nn.functional with two forms"
    if fn.__code__.co_qualname.startswith("_script_if_tracing"):
        return Verdict.TRACE, "calls the user's function where nothing is scripted"
    if verdict == "GRAPH" and fn.__name__ == "__torch_function__":
        return Verdict.CALL, "the torch function protocol"
    if verdict == "CONSTANT" and prefix == "torch.backends" and not _only_reads(fn.__name__):
        return Verdict.TRACE, "sets what a function of C sets"
    return Verdict[verdict], reason or f"modules.py: {prefix}"


#: Builtins that look at the type of what they are given.
_TYPE_TESTS: Final = frozenset({"isinstance", "issubclass", "type", "callable"})


def _only_looks_at_types(fn: FunctionType) -> bool:
    """Whether a function names nothing but classes and builtins that look at types: `scipy.sparse.issparse` and its like, of
    packages whose functions run as they stand. Names of attributes and of what is imported are among a code's names."""
    code, known = fn.__code__, fn.__globals__
    if code.co_freevars or not code.co_names:
        return False
    return all(_is_classes(known[name]) if name in known else name in _TYPE_TESTS for name in code.co_names)


def _is_of_container(fn: FunctionType) -> bool:
    """Whether a function is a method of a class of its module that is derived from a container of Python's: results with
    names (`scipy.optimize.OptimizeResult`) and their like."""
    owner = fn.__globals__.get(fn.__qualname__.partition(".")[0])
    return isinstance(owner, type) and issubclass(owner, (dict, list, tuple)) and "." in fn.__qualname__


def _is_classes(obj: object) -> bool:
    return isinstance(obj, type) or (isinstance(obj, tuple) and all(isinstance(each, type) for each in obj))


def _only_reads(name: str) -> bool:
    """Whether a function of torch.backends, by its name, looks at a switch of the process and sets none."""
    return name == "version" or name.startswith(("is_", "get_", "can_use_")) or name.endswith(("_enabled", "_allowed"))
