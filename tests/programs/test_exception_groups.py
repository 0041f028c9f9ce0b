"""Exception groups and `except*`, captured whole and as eager has them."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.ones(3)


def told(exc: Any) -> Any:
    """All that is to be seen of an exception and of those in it."""
    if exc is None:
        return None
    parts = [told(part) for part in exc.exceptions] if isinstance(exc, BaseExceptionGroup) else None
    links = [told(exc.__cause__), told(exc.__context__), exc.__suppress_context__]
    return type(exc), str(exc), parts, links, getattr(exc, "__notes__", None)


def test_clauses_take_their_parts() -> None:
    def run(x: torch.Tensor) -> Any:
        seen: list[Any] = []
        try:
            raise ExceptionGroup("g", [ValueError(1), ExceptionGroup("in", [TypeError(2), ValueError(3)]), KeyError(4)])
        except* ValueError as e:
            seen.append(told(e))
        except* (TypeError, KeyError) as e:
            seen.append(told(e))
        else:
            seen.append("else")
        finally:
            seen.append("finally")
        return seen, x + len(seen)

    assert_same_as_eager(run, X)


def test_an_exception_that_is_no_group() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            raise ValueError(1)
        except* ValueError as e:
            seen = told(e), e.args[0]
        return seen, x

    assert_same_as_eager(run, X)


@pytest.mark.parametrize("clause", ["pass", "raise", "raise OSError('new')", "raise OSError('new') from e"])
def test_what_is_raised_at_the_end(clause: str) -> None:
    source = f"""
def run(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2), ExceptionGroup("in", [ValueError(3), TypeError(4)])])
        except* ValueError as e:
            {clause}
        except* TypeError as e:
            {clause}
    except BaseException as e:
        return told(e), x + 1
"""
    namespace: dict[str, Any] = {"told": told}
    exec(source, namespace)
    assert_same_as_eager(namespace["run"], X)


def test_a_group_leaves_the_function() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError:
            pass

    with pytest.raises(ExceptionGroup) as expected:
        run(X)
    with pytest.raises(ExceptionGroup) as got:
        fxjit.compile(run, backend="eager")(X)
    assert told(got.value) == told(expected.value)


class Kept(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> Kept:
        return Kept(self.message + "'", excs)


class Counted(ExceptionGroup[Exception]):
    def __init__(self, message: str, excs: Any) -> None:
        super().__init__(message, excs)
        self.count = len(excs)


def test_methods_of_groups() -> None:
    def run(x: torch.Tensor) -> Any:
        group = ExceptionGroup("m", [ValueError(1), ExceptionGroup("n", [TypeError(2), ValueError(5)])])
        group.add_note("noted")
        taken, left = group.split(ValueError)
        some = group.subgroup(lambda exc: isinstance(exc, TypeError))
        mine, rest = Kept("k", [KeyError(1), OSError("o")]).split((KeyError, IndexError))
        seen = [told(each) for each in (group, taken, left, some, mine, rest, group.subgroup(KeyError))]
        return seen, group.message, len(group.exceptions), str(group), repr(left), type(BaseExceptionGroup("b", [OSError()])), x

    assert_same_as_eager(run, X)


def test_a_group_that_is_returned() -> None:
    def run(x: torch.Tensor) -> Any:
        made = Counted("c", [ValueError(1), KeyError(2)])
        return made, made.split(KeyError)[1], x + made.count

    theirs, ours = run(X), fxjit.compile(run, backend="eager", fullgraph=True)(X)
    assert [told(each) for each in ours[:2]] == [told(each) for each in theirs[:2]]
    assert (ours[0].count, ours[0].args[0], type(ours[1])) == (theirs[0].count, theirs[0].args[0], type(theirs[1]))


def test_errors_of_groups() -> None:
    def run(x: torch.Tensor) -> Any:
        seen: list[str] = []
        for parts in ([], [1], [ValueError(1), KeyboardInterrupt()]):
            try:
                ExceptionGroup("m", parts)  # type: ignore[type-var, arg-type]
            except (TypeError, ValueError) as error:
                seen.append(str(error))
        try:
            try:
                raise ValueError(1)
            except* ExceptionGroup:  # type: ignore[misc]
                pass
        except TypeError as error:
            seen.append(str(error))
        return seen, x

    assert_same_as_eager(run, X)


def test_a_break_inside_a_clause() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError as e:
            torch._dynamo.graph_break()
            seen = told(e)
        except* KeyError:
            x = x + 1
        return seen, x

    assert_same_as_eager(run, X, fullgraph=False)


def test_a_group_from_outside() -> None:
    def run(x: torch.Tensor, group: Any) -> Any:
        taken, left = group.split(ValueError)
        return told(taken), told(left), taken.__traceback__ is group.__traceback__, x + 1

    given = ExceptionGroup("g", [ValueError(1), KeyError(2)])
    compiled = fxjit.compile(run, backend="eager")
    for turn in range(2):
        expected, got = run(X, given), compiled(X, given)
        assert got[:3] == expected[:3] and torch.equal(got[3], expected[3])
        if turn == 0:
            try:
                raise given
            except ExceptionGroup as raised:
                given = raised


def ways(exc: Any) -> Any:
    """What can be told of an exception's way, and of the parts of a group."""
    parts = [ways(part) for part in exc.exceptions] if isinstance(exc, BaseExceptionGroup) else None
    frames = [(frame.name, frame.lineno) for frame in traceback.extract_tb(exc.__traceback__)]
    return type(exc), frames, parts, type(exc.__context__), type(exc.__cause__)


@fxjit.disable
def raise_group() -> None:
    """A group whose parts were raised too, one of them a group."""
    parts: list[Exception] = []
    for error in (ValueError(1), KeyError(2), TypeError(3), ExceptionGroup("in", [ValueError(4)])):
        try:
            raise error
        except Exception as each:
            parts.append(each)
    raise ExceptionGroup("g", parts)


@pytest.mark.parametrize("clause", ["pass", "raise", "raise e", "raise OSError('new')", "raise OSError('new') from e",
                                    "fxjit.graph_break()", "if len(seen) > 1: raise"])
@pytest.mark.parametrize("where", ["raise_group()", "raise ExceptionGroup('g', [ValueError(1), KeyError(2), OSError(3)])"])
@pytest.mark.parametrize("nested", [False, True])
def test_tracebacks_of_what_clauses_take_and_leave(clause: str, where: str, nested: bool) -> None:
    source = f"""
def run(x, seen):
    try:
        try:
            x = x + 1
            {where}
        except* ValueError as e:
            seen.append(ways(e))
            {clause}
        except* KeyError as e:
            seen.append(ways(e))
            {clause}
    except BaseException as e:
        seen.append(ways(e))
    return x + 1
"""
    namespace: dict[str, Any] = {"ways": ways, "raise_group": raise_group, "fxjit": fxjit}
    exec(source, namespace)
    run = namespace["run"]
    expected: list[Any] = []
    result = run(X, expected)
    with fxjit.config.patch(resume_in_try=True, nested_graph_breaks=nested):
        compiled = fxjit.compile(run, backend="eager")
        for _ in range(2):
            seen: list[Any] = []
            assert torch.equal(compiled(X, seen), result)
            assert seen == expected
