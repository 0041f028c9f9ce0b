"""Log messages with a known text are written after the graph ran, with the place they come from."""

from __future__ import annotations

import functools
import logging

import torch

import fxjit
from fxjit.testing import CompileCounter

log = logging.getLogger("tests.callables.logging")


class Keep(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.levelname, record.getMessage(), record.funcName, record.lineno, record.filename))


def messages(fn, *args, calls=2):
    handler = Keep()
    log.addHandler(handler)
    try:
        results = [fn(*args) for _ in range(calls)]
    finally:
        log.removeHandler(handler)
    return results, handler.seen


def assert_same_messages(fn, *args, graphs=1):
    expected = messages(fn, *args)
    with CompileCounter() as counter:
        actual = messages(fxjit.compile(fn, backend=counter), *args)
    torch.testing.assert_close(actual[0], expected[0])
    assert actual[1] == expected[1]
    assert counter.frame_count == graphs


def test_a_warning_does_not_split_the_graph():
    def fn(x):
        y = x + 1
        log.warning("seen %s of %d", "one", x.shape[0])
        return y * 2

    assert_same_messages(fn, torch.ones(3))


def test_messages_of_inlined_functions_name_them():
    def inner(x):
        log.error("inside")
        return x.sin()

    def fn(x):
        log.warning("before")
        return inner(x) + 1

    assert_same_messages(fn, torch.ones(3))


def test_a_message_about_a_tensor_is_written_where_it_stands():
    def fn(x):
        y = x + 1
        log.warning("sum %s", y.sum())
        return y * 2

    assert_same_messages(fn, torch.ones(3), graphs=2)


def test_once_stays_once():
    @functools.lru_cache(None)
    def once(logger, message):
        logger.warning(message)

    def fn(x):
        once(log, "only the first time")
        return x * 2

    expected = messages(fn, torch.ones(3))[1]
    once.cache_clear()
    with CompileCounter() as counter:
        actual = messages(fxjit.compile(fn, backend=counter), torch.ones(3))[1]
    assert actual == expected and len(actual) == 1
    assert counter.frame_count == 1


def test_messages_stand_before_the_exception_that_follows():
    def fn(x):
        y = x + 1
        log.warning("about to fail")
        if x.shape[0] == 3:
            raise ValueError(y.shape[0])
        return y

    compiled = fxjit.compile(fn, backend="eager")
    handler = Keep()
    log.addHandler(handler)
    try:
        for call in (fn, compiled):
            try:
                call(torch.ones(3))
            except ValueError as error:
                assert error.args == (3,)
    finally:
        log.removeHandler(handler)
    assert handler.seen[0] == handler.seen[1]
