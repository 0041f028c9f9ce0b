"""A trace is given up in one way: a signal of fxjit.errors, raised by `leave_trace`, which nobody changes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from fxjit import errors
from fxjit.errors import BreakGraph, RestartTrace, TraceSignal, leave_trace

SOURCE = Path(__file__).resolve().parents[2] / "src" / "fxjit"


def signals(cls: type[TraceSignal] = TraceSignal) -> Iterator[type[TraceSignal]]:
    yield cls
    for each in cls.__subclasses__():
        yield from signals(each)


NAMES = {cls.__name__ for cls in signals()}


FILES = sorted(SOURCE.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def raised(tree: ast.Module) -> Iterator[str]:
    """The names of what `raise X(...)` and `raise X` raise."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            yield raised.attr if isinstance(raised, ast.Attribute) else getattr(raised, "id", "")


def test_all_signals_are_in_one_module():
    assert {cls.__module__ for cls in signals()} == {errors.__name__}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_signals_are_raised_by_one_function(path: Path):
    assert NAMES.isdisjoint(raised(tree_of(path)))


def test_a_signal_does_not_change():
    signal = BreakGraph("user-graph-break", {"message": "why"})
    with pytest.raises(AttributeError):
        signal.because = signal  # type: ignore[misc]
    with pytest.raises(TypeError):
        signal.context["message"] = "other"  # type: ignore[index]
    other = signal.but(is_error=True, context={**signal.context, "args": ()})
    assert (signal.is_error, dict(signal.context)) == (False, {"message": "why"})
    assert (other.reason, other.is_error, dict(other.context)) == ("user-graph-break", True, {"message": "why", "args": ()})


def test_a_signal_is_raised_with_its_cause():
    cause = ValueError()
    with pytest.raises(RestartTrace, match="why") as caught:
        leave_trace(RestartTrace("why"), cause)
    assert caught.value.__cause__ is cause and caught.value.action is None


#: Code that runs when compiled code does. While a frame is compiled, exceptions of signal handlers wait (`_C.defer_signals`).
AT_RUN_TIME = ("resume", "backends/eager.py", "backends/aot/runtime", "regions.py")


def ends_the_process(function: ast.AST) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "_exit" for node in ast.walk(function))


def broad_handlers(tree: ast.Module) -> Iterator[ast.ExceptHandler]:
    """Those that catch every exception, but for functions after which there is no process that it could arrive in."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and ends_the_process(node)]
    final = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and id(node) not in final:
            caught = {each.id for each in ast.walk(node.type or ast.Name("BaseException")) if isinstance(each, ast.Name)}
            if caught & {"Exception", "BaseException", "_AnyError"}:
                yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_foreign_exceptions_pass_through(path: Path):
    """Who catches every exception asks `is_foreign` of it, or raises it again."""
    at_run_time = path.relative_to(SOURCE).as_posix().startswith(AT_RUN_TIME)
    for handler in broad_handlers(tree_of(path)):
        names = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(handler)}
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        if at_run_time:
            assert names & {"is_foreign", "may_start_over"} or isinstance(handler.body[-1], ast.Raise), (path, handler.lineno)
        elif "BaseException" in names:
            assert raises, f"{path}:{handler.lineno}"
