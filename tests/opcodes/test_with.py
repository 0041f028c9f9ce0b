"""`with`: user managers, contextlib's, exceptions in the block, torch's managers around a break."""

from __future__ import annotations

import contextlib
import sys
import traceback
import types

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


class Manager:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind, value.args if value is not None else None))
        return self.swallow


def test_enter_and_exit():
    def program(x, log):
        with Manager(log) as first, Manager(log):
            x = x + len(first.log)
        return x

    assert_same_as_eager(program, torch.ones(3), [])


def test_an_exception_in_the_block():
    def program(x, log):
        with Manager(log, swallow=True):
            x = x + 1
            raise ValueError("in", 1)
        try:
            with Manager(log):
                raise KeyError("out")
        except KeyError:
            x = x * 2
        return x

    assert_same_as_eager(program, torch.ones(3), [])


def test_leaving_the_block_early():
    def program(x, log):
        for index in range(3):
            with Manager(log):
                if index == 0:
                    continue
                if index == 1:
                    break
        with Manager(log):
            return x + 1

    assert_same_as_eager(program, torch.ones(3), [])


def test_contextlib():
    @contextlib.contextmanager
    def scaled(log, n):
        log.append("in")
        try:
            yield n * 2
        except ValueError:
            log.append("caught")
        finally:
            log.append("out")

    def program(x, log):
        with scaled(log, 3) as n:
            x = x * n
        with scaled(log, 1):
            raise ValueError
        with contextlib.nullcontext(5) as m:
            x = x + m
        with contextlib.suppress(KeyError):
            raise KeyError("gone")
        return x

    assert_same_as_eager(program, torch.ones(3), [])


def test_an_exit_stack():
    def program(x, log):
        with contextlib.ExitStack() as stack:
            stack.enter_context(Manager(log))
            stack.callback(log.append, "callback")
            x = x + 1
        return x

    assert_same_as_eager(program, torch.ones(3), [])


def test_what_is_no_manager():
    def program(x):
        try:
            with 3:
                pass
        except TypeError as error:
            return x + 1, str(error)

    assert_same_as_eager(program, torch.ones(3))


def test_grad_mode():
    def program(x):
        with torch.no_grad():
            y = x * 2
            inside = torch.is_grad_enabled()
        z = x * 3
        return y, z.detach(), inside, torch.is_grad_enabled(), y.requires_grad, z.requires_grad

    assert_same_as_eager(program, torch.ones(3, requires_grad=True))


def test_an_exit_that_looks_at_the_traceback_gets_one():
    class Noting:
        def __init__(self, noted):
            self.noted = noted

        def __enter__(self):
            return self

        def __exit__(self, kind, error, where):
            self.noted.append((kind.__name__, where is not None, [frame.name for frame in traceback.extract_tb(where)]))
            return True

    def f(x):
        noted = []
        with Noting(noted):
            x = x + 1
            raise KeyError("a")
        return x * 2, noted

    assert_same_as_eager(f, torch.ones(3), fullgraph=False)


class Closing:
    """Looks whether there is a traceback, and hands it on."""

    def __init__(self, noted):
        self.noted = noted

    def __enter__(self):
        return self

    def __exit__(self, kind, error, where):
        self.noted.append((kind, where is None, bool(where), isinstance(where, types.TracebackType), type(where).__name__))
        return self.close(kind, error, where)

    def close(self, *how):
        return how != (None, None, None) and how[0] is not KeyError


@pytest.mark.parametrize("error", [ValueError, KeyError])
@pytest.mark.parametrize("nested", [False, True])
def test_a_traceback_that_nobody_looks_into_is_passed_on_in_the_graph(error, nested):
    def f(x):
        noted = []
        try:
            with contextlib.ExitStack() if nested else contextlib.nullcontext() as stack, Closing(noted):
                if nested:
                    stack.enter_context(Closing(noted))
                    stack.enter_context(torch.no_grad())
                x = x + 1
                raise error("a")
        except KeyError as caught:
            noted.append(caught.args)
        return x * 2, noted

    assert_same_as_eager(f, torch.ones(3))


def test_an_exit_stack_gives_the_traceback():
    class Noting(Closing):
        def close(self, kind, error, where):
            self.noted.append([frame.name for frame in traceback.extract_tb(where)][:1])
            return True

    def f(x):
        noted = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Noting(noted))
            raise KeyError("a")
        return x * 2, noted

    assert_same_as_eager(f, torch.ones(3), fullgraph=False)


def test_the_exception_that_is_handled_has_its_traceback():
    def f(x):
        noted = []
        try:
            raise KeyError("a")
        except KeyError as error:
            where = sys.exc_info()[2]
            noted += where is None, where is not None, error.__traceback__ is None
            error.__traceback__ = where
            noted.append(error.with_traceback(where) is error)
        return x * 2, noted

    def kept(x):
        try:
            raise KeyError("a")
        except KeyError:
            where = sys.exc_info()[2]
        return x * 2, where.tb_next is None, where.tb_frame.f_code.co_name

    def same(x):
        try:
            raise KeyError("a")
        except KeyError as error:
            return x * 2, error.__traceback__ is sys.exc_info()[2], error.__traceback__ == error.__traceback__

    assert_same_as_eager(f, torch.ones(3))
    for given_up in (kept, same):
        assert fxjit.compile(given_up, backend="eager")(torch.ones(3))[1:] == given_up(torch.ones(3))[1:]
