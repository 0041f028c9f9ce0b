"""Programs that put something else in the place of a builtin, in their own globals or for the whole process: what they put
there is called, raises or fails as it does in eager, whether it came before or after the compile, and what was compiled is used
again when Python's is back. Tracing relies on most builtins itself, and never fails for that."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch

import fxjit
from fxjit.counters import counters

X: Final = torch.linspace(-1, 1, 12).reshape(3, 4)

#: A number in which each builtin has a part.
NUMBERS: Final = {
    "next": "next(iter([2, 3]))", "tuple": "len(tuple([1, 2]))", "dict": "len(dict(a=1, b=2))", "set": "len(set((1, 2)))",
    "type": "2 if type(x) is not None else 3", "str": "len(str(12))", "bool": "2 + bool(3)", "callable": "2 + callable(len)",
    "list": "len(list((1, 2)))", "len": "len((1, 2))", "int": "int(2.5)", "float": "float(2)",
    "frozenset": "len(frozenset('ab'))",
    "isinstance": "2 if isinstance(x, torch.Tensor) else 3", "issubclass": "2 if issubclass(bool, int) else 3",
    "getattr": "getattr(x, 'ndim')", "hasattr": "hasattr(x, 'unheard_of') + 1", "setattr": "setattr(NAMES, 'q', 3) or NAMES.q",
    "range": "sum(range(4))", "enumerate": "sum(i * j for i, j in enumerate([1, 2, 3]))", "vars": "len(vars(NAMES))",
    "zip": "sum(i * j for i, j in zip([1, 2], [3, 4]))", "map": "sum(map(abs, [-1, 2]))", "filter": "sum(filter(None, [0, 2]))",
    "min": "min(2, 3)", "max": "max(1, 2)", "abs": "abs(-2)", "round": "round(2.6)", "divmod": "divmod(7, 2)[0]",
    "pow": "pow(2, 3)", "sorted": "sorted([2, 1])[0]", "reversed": "list(reversed([2, 1]))[0]", "any": "any([0, 1]) + 1",
    "all": "all([0, 1]) + 2", "id": "2 + (id(x) == id(x))", "hash": "hash(2)", "repr": "len(repr(12))", "chr": "len(chr(97))",
    "ord": "ord('a')", "object": "2 if object() else 3", "slice": "[1, 2, 3][slice(1, 2)][0]", "complex": "complex(2).real",
    "bytes": "len(bytes(2))", "bytearray": "len(bytearray(2))", "format": "len(format(5, '03d'))", "eval": "eval('2')",
    "globals": "len(globals()['__name__'])", "super": "Derived().two()", "ValueError": "caught(ValueError)",
    "StopIteration": "caught(StopIteration)", "Exception": "caught(Exception)", "TypeError": "caught(TypeError)",
    "__build_class__": "a_class()", "NotImplemented": "2", "property": "2", "exec": "2", "compile": "2", "print": "2",
}
PROGRAM: Final = """
import types
import torch
NAMES = types.SimpleNamespace(a=1)
class Base:
    def two(self):
        return 2
class Derived(Base):
    def two(self):
        return super().two()
def caught(kind):
    try:
        raise kind("text")
    except Exception:
        return 2
def a_class():
    class Made:
        two = 2
    return Made.two
def program(x):
    return x * (NUMBER)
"""
def something_else(*args: Any, **kwargs: Any) -> int:
    return 7


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


def outcome(fn: Callable[..., Any], namespace: dict[str, Any], name: str, by: Any) -> Any:
    """What `fn` gives or raises while `name` is `by` in a namespace; nothing here asks for a builtin meanwhile."""
    was_there, before = name in namespace, namespace.get(name)
    namespace[name] = by
    try:
        return fn(X)
    except BaseException as raised:
        error = raised
    finally:
        if was_there:
            namespace[name] = before
        else:
            del namespace[name]
    return f"{type(error).__name__}: {error}"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("first", ["Python's in builtins", "Python's in globals", "the program's in builtins"])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_program_puts_in_the_place_of_a_builtin(name: str, first: str) -> None:
    own = getattr(builtins, name)
    world: dict[str, Any] = {"__name__": "made"}
    exec(PROGRAM.replace("NUMBER", NUMBERS[name]), world)
    program = world["program"]
    compiled = fxjit.compile(program, backend="eager", dynamic=False)
    namespace = world if "globals" in first else vars(builtins)
    for by in (own, something_else, None, own) if "Python's" in first else (something_else, own, None):
        eager, ours = (outcome(fn, namespace, name, by) for fn in (program, compiled))
        both_tensors = isinstance(eager, torch.Tensor) and isinstance(ours, torch.Tensor)
        assert torch.equal(eager, ours) if both_tensors else eager == ours, (by, eager, ours)
    assert counters["frames"]["ok"]
