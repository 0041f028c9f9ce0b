"""`config.resume_in_try`: a graph break inside `try`, `except`, `else` and `finally` is resumed there. What is raised, by the
instruction that breaks or anywhere else, reaches the same handlers with the same context, traceback and `sys.exc_info()`."""

from __future__ import annotations

import sys
import traceback

import pytest
import torch
from tests.differential import outcome_with_tracebacks

import fxjit
from fxjit.testing import CompileCounter

log: list[object] = []


@fxjit.disable
def may_raise(kind=None, text="from outside"):
    log.append(("may raise", kind))
    if kind is not None:
        raise kind(text)


def every_clause(x, kind):
    try:
        x = x + 1
        may_raise(kind)
        x = x * 2
    except ValueError as error:
        log.append(("handled", error.args, type(sys.exc_info()[1])))
        x = x - 5
        fxjit.graph_break()
        log.append(("still handled", type(sys.exc_info()[1])))
        x = x * 3
    else:
        fxjit.graph_break()
        x = x + 100
    finally:
        log.append("finally")
        fxjit.graph_break()
        x = x + 1000
    log.append(sys.exc_info())
    return x


def another_exception_from_a_handler(x, kind):
    y = x + 1
    try:
        try:
            may_raise(kind)
        except ValueError as error:
            x = x * 2
            raise KeyError("another") from error
        except TypeError:
            x = x * 3
            may_raise()
            raise
    finally:
        log.append("finally")
        may_raise()
    return x + y


def one_raised_by_the_traced_code(x, kind):
    try:
        y = x + 1
        raise ValueError("traced")
    except ValueError as error:
        y = y * 2
        may_raise()
        log.append((error.args, [frame.lineno for frame in traceback.extract_tb(error.__traceback__)], error.__context__))
        try:
            may_raise(kind)
        except TypeError as inner:
            log.append((type(inner.__context__), inner.__context__ is error))
            return y * 3
    return y


def raised_in_a_finally(x, kind):
    try:
        try:
            may_raise(ValueError, "first")
        finally:
            x = x + 1
            may_raise(kind, "second")
    except Exception as error:
        log.append((repr(error), repr(error.__context__)))
        x = x * 2
        fxjit.graph_break()
        return x * 7
    return x


def a_return_through_a_finally(x, kind):
    try:
        may_raise(kind)
        return x + 1
    except ValueError:
        return x + 2
    finally:
        x = x * 3
        fxjit.graph_break()
        log.append(x.clone())


def under_managers(x, kind):
    with torch.no_grad():
        try:
            x = x * 2
            with torch.enable_grad():
                may_raise(kind)
                x = x * 3
        except ValueError:
            log.append(torch.is_grad_enabled())
            fxjit.graph_break()
            x = x * 5
    return x, torch.is_grad_enabled()


def a_bare_raise_and_a_deleted_name(x, kind):
    error = "kept"
    try:
        try:
            may_raise(kind)
            error = "new"
        except (ValueError, TypeError) as error:
            fxjit.graph_break()
            x = x + 1
            if isinstance(error, TypeError):
                raise
    except TypeError:
        x = x * 2
    fxjit.graph_break()
    log.append(error)  # unbound after a handler
    return x


def handlers_that_match_in_turn(x, kind):
    for wanted in ():
        x = x + 1
    try:
        may_raise(kind)
    except LookupError:
        x = x * 2
        fxjit.graph_break()
    except (TypeError, ValueError) as error:
        x = x * 3
        fxjit.graph_break()
        log.append(str(error))
    else:
        x = x * 7
    return x + 1


PROGRAMS = [
    every_clause, another_exception_from_a_handler, one_raised_by_the_traced_code, raised_in_a_finally,
    a_return_through_a_finally, under_managers, a_bare_raise_and_a_deleted_name, handlers_that_match_in_turn,
]  # fmt: skip


def outcome(fn, *args):
    """Result, or the chain of exceptions with their tracebacks; and all that was seen on the way."""
    log.clear()
    return repr(outcome_with_tracebacks(fn, *args)), repr(log), sys.exc_info()


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_way_through_is_eagers(program):
    x = torch.ones(2, requires_grad=True)
    fxjit.reset()
    fxjit.counters.clear()
    with fxjit.config.patch(resume_in_try=True):
        compiled = fxjit.compile(program, backend="eager")
        for kind in (None, ValueError, TypeError, KeyError, ValueError, None):
            assert outcome(compiled, x, kind) == outcome(program, x, kind), kind
    # Calls that end with an exception before any operator are left to eager, not the frame.
    assert {*fxjit.counters["skip"]} <= {"Exception that leaves a function before any operator"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_the_setting_the_frame_is_skipped(program):
    x = torch.ones(2, requires_grad=True)
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(program, backend="eager")
    for kind in (None, ValueError):
        assert outcome(compiled, x, kind) == outcome(program, x, kind), kind
    assert "Graph break in a try block" in fxjit.counters["skip"]


def test_code_before_in_and_after_the_block_is_compiled():
    def fn(x):
        x = x + 1
        try:
            x = x + 2
            fxjit.graph_break()
            x = x + 3
        except ValueError:
            x = x + 4
        return x + 5

    counter = CompileCounter()
    fxjit.reset()
    with fxjit.config.patch(resume_in_try=True):
        compiled = fxjit.compile(fn, backend=counter)
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(2)), fn(torch.ones(2)))
    assert (counter.frame_count, counter.op_count) == (2, 4)


def test_a_graph_that_fails_in_a_try_block_reaches_the_handler():
    def fn(x, at):
        try:
            x = x * 2
            fxjit.graph_break()
            return x[at] + 1
        except IndexError:
            return x - 1

    fxjit.reset()
    x = torch.ones(2)
    with fxjit.config.patch(resume_in_try=True):
        compiled = fxjit.compile(fn, backend="eager")
        for at in (1, 7, 0):
            torch.testing.assert_close(compiled(x, torch.tensor([at])), fn(x, torch.tensor([at])))


def test_fullgraph_names_the_break_and_not_the_block_around_it():
    def fn(x):
        try:
            x = x + 1
            fxjit.graph_break("here")
        except ValueError:
            pass
        return x

    fxjit.reset()
    with fxjit.config.patch(resume_in_try=True), pytest.raises(fxjit.errors.Unsupported, match="Message: here"):
        fxjit.compile(fn, fullgraph=True, backend="eager")(torch.ones(2))


def test_a_function_called_from_a_handler_sees_what_its_caller_handles():
    @fxjit.compile(backend="eager")
    def inner(x):
        log.append(type(sys.exc_info()[1]))
        return x + 1

    log.clear()
    fxjit.reset()
    x = torch.ones(1)
    for kind in (None, ValueError, KeyError, None):
        try:
            may_raise(kind)
        except Exception:
            inner(x)
        else:
            inner(x)
    assert [each for each in log if isinstance(each, type)] == [type(None), ValueError, KeyError, type(None)]


def test_an_unbound_variable_of_a_closure_raises_without_a_context():
    def fn(x, bind):
        if bind:
            y = x + 1

        def read():
            return y  # noqa: F821 - it may be bound

        del y
        return read()

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    with pytest.raises(UnboundLocalError) as caught:
        compiled(torch.ones(1), False)
    assert caught.value.__context__ is None


def test_a_manager_that_stays_entered_in_a_function_that_was_called_under_no_grad():
    class Notes:
        def __enter__(self):
            log.append("in")

        def __exit__(self, *error):
            log.append(("out", error[0], torch.is_grad_enabled()))

    def inner(x, kind):
        with torch.enable_grad(), Notes():
            x = x * 2
            may_raise(kind)
            x = x * 3
        return x

    def fn(x, kind):
        with torch.no_grad():
            x = inner(x + 1, kind) + inner(x, None)
            log.append(torch.is_grad_enabled())
        return x * 5

    x = torch.ones(2, requires_grad=True)
    for options in ({}, {"resume_in_try": True}, {"resume_in_try": True, "nested_graph_breaks": False}):
        fxjit.reset()
        with fxjit.config.patch(options):
            compiled = fxjit.compile(fn, backend="eager")
            for kind in (None, ValueError, None):
                assert outcome(compiled, x, kind) == outcome(fn, x, kind), (options, kind)
