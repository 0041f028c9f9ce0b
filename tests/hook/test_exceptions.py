"""Exceptions, recursion and interrupts: what passes through compiled frames looks as if they were the user's."""

from __future__ import annotations

import signal
import sys
import traceback

import pytest

from fxjit import _C
from fxjit.frontend import entries


class Key:
    pass


def region_with(**replacements):
    def callback(region, func, code, *rest):
        if code.co_name in replacements:
            entry = _C.Entry(None, replacements[code.co_name].__code__)
            entries.add(code, region.key, entry)
            return entry
        return None

    return _C.Region(Key(), callback)


def names_of(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def fail():
    raise ValueError("deep")


def test_the_traceback_has_the_generated_frame_once_with_the_user_s_name_and_line():
    def f(x):
        return fail()

    line = f.__code__.co_firstlineno + 1

    def generated(x):
        return fail()

    code = f.__code__.replace(co_consts=f.__code__.co_consts)
    assert code is not f.__code__

    def callback(region, func, asked, *rest):
        if asked is not f.__code__:
            return None
        entry = _C.Entry(None, code)
        entries.add(asked, region.key, entry)
        return entry

    compiled = _C.CompiledFunction(f, _C.Region(Key(), callback))
    for _ in range(3):
        with pytest.raises(ValueError) as caught:
            compiled(1)
        assert names_of(caught.value)[1:] == ["f", "fail"]
        frame = traceback.extract_tb(caught.value.__traceback__)[1]
        assert (frame.filename, frame.lineno) == (__file__, line)


def test_frames_that_are_not_compiled_have_their_usual_traceback():
    def middle():
        return fail()

    def f():
        return middle()

    with pytest.raises(ValueError) as caught:
        _C.CompiledFunction(f, region_with())()
    assert names_of(caught.value)[1:] == ["f", "middle", "fail"]


def test_exceptions_of_entries_are_caught_by_eager_callers_and_the_reverse():
    def boom():
        raise AssertionError("replaced")

    def catching():
        try:
            boom()
        except ValueError as error:
            return str(error)

    def generated():
        raise ValueError("from the entry")

    compiled = _C.CompiledFunction(catching, region_with(boom=generated))
    assert [compiled() for _ in range(50)] == ["from the entry"] * 50


def test_context_and_cause_of_exceptions_are_kept():
    def inner():
        pass

    def generated():
        raise KeyError("second")

    def f():
        try:
            raise ValueError("first")
        except ValueError:
            inner()

    with pytest.raises(KeyError) as caught:
        _C.CompiledFunction(f, region_with(inner=generated))()
    assert isinstance(caught.value.__context__, ValueError)


def test_the_callback_runs_while_an_exception_is_being_handled():
    def callback(region, func, code, *rest):
        handled.append(sys.exc_info()[0])
        try:
            raise KeyError
        except KeyError:
            pass

    def inner():
        return sys.exc_info()[0]

    def f():
        try:
            1 / 0
        except ZeroDivisionError:
            return inner()

    handled = []
    assert _C.CompiledFunction(f, _C.Region(Key(), callback))() is ZeroDivisionError
    assert handled == [None, ZeroDivisionError]


@pytest.mark.parametrize("with_entry", [False, True])
def test_endless_recursion_ends_in_a_recursion_error(with_entry):
    def f(n):
        return f(n + 1)

    def generated(n):
        return f(n + 1)

    region = region_with(f=generated) if with_entry else region_with()
    compiled = _C.CompiledFunction(f, region)
    for _ in range(3):
        with pytest.raises(RecursionError):
            compiled(0)
        assert _C.current_region() is None


@pytest.mark.parametrize("with_entry", [False, True])
def test_a_raised_recursion_limit_does_not_overrun_the_c_stack(with_entry):
    def f(n):
        return 0 if n == 0 else 1 + f(n - 1)

    def generated(n):
        return 0 if n == 0 else 1 + f(n - 1)

    compiled = _C.CompiledFunction(f, region_with(f=generated) if with_entry else region_with())
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(RecursionError):
            compiled(10**5)
        assert compiled(500) == 500
    finally:
        sys.setrecursionlimit(limit)


def test_deep_recursion_crosses_the_chunks_of_the_data_stack():
    """Frames of a thread lie in chunks of 16 kB or more; one that opens a chunk takes it along when it goes."""

    def old(n, a=1, b=2, c=3, d=4, e=5, f=6, g=7):
        return 1 + old(n - 1) if n else 0

    def generated(n, a, b, c, d, e, f, g):
        return 1 + old(n - 1) if n else 0

    compiled = _C.CompiledFunction(old, region_with(old=generated))
    for n in [*range(1, 300), *range(300, 100, -7)]:
        assert compiled(n) == n
    eager = _C.CompiledFunction(old, region_with())
    for n in range(1, 300, 11):
        assert eager(n) == n


def test_an_exception_crosses_the_chunks_of_the_data_stack():
    def callback(region, func, code, args, *rest):
        if code.co_name == "f" and args[0] == 0:
            raise LookupError("bottom")

    def f(n, a=1, b=2, c=3):
        return 1 + f(n - 1)

    compiled = _C.CompiledFunction(f, _C.Region(Key(), callback))
    for n in range(1, 400, 3):
        with pytest.raises(LookupError, match="bottom"):
            compiled(n)


@pytest.mark.parametrize("where", ["callback", "entry", "frame", "guard"])
def test_keyboard_interrupt_leaves_the_hook_in_order(where):
    def interrupt():
        signal.raise_signal(signal.SIGINT)
        for _ in range(1000):
            pass

    def tree(*args):
        interrupt()
        return True

    def callback(region, func, code, *rest):
        if code.co_name != "f":
            return None
        if where == "callback":
            interrupt()
        if where == "entry":
            return _C.Entry(None, generated.__code__)
        return None

    def generated():
        interrupt()

    def f():
        interrupt()

    region = _C.Region(Key(), callback)
    if where == "guard":
        entries.add(f.__code__, region.key, _C.Entry(tree, generated.__code__))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                _C.CompiledFunction(f, region)()
            assert _C.current_region() is None and not _C.hook_info()["installed"]
    finally:
        signal.signal(signal.SIGINT, previous)
