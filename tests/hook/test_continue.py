"""`Continue`: generated code returns the rest of its frame, and whoever ran the code runs it when its frame is gone."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref

import pytest

from fxjit import _C
from fxjit.frontend import entries


class Key:
    pass


class Thing:
    pass


def region_where(compile_to):
    """A region whose callback compiles a function by its name to the code of the one given."""

    def callback(region, func, code, args, *rest):
        made = compile_to.get(code.co_name)
        if made is None:
            return None
        entry = _C.Entry(None, made.__code__)
        entries.add(code, region.key, entry)
        return entry

    return _C.Region(Key(), callback)


def run(fn, *args, **compile_to):
    return _C.CompiledFunction(fn, region_where(compile_to))(*args)


def test_the_rest_runs_and_its_result_is_the_frames():
    def user(x):
        raise AssertionError("compiled code runs in its place")

    def rest(x, y):
        return ("rest", x, y)

    def generated(x):
        return _C.Continue(rest_function, x, 2)

    global rest_function
    rest_function = rest
    for _ in range(3):
        assert run(user, 1, user=generated) == ("rest", 1, 2)


def depth():
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def test_chains_do_not_nest():
    def user(n):
        return depth()

    def countdown(n):
        raise AssertionError("compiled code runs in its place")

    def generated(n):
        if n == 0:
            return _C.Continue(user_function, n)
        return _C.Continue(countdown_function, n - 1)

    global user_function, countdown_function
    user_function, countdown_function = user, countdown
    region = region_where({"countdown": generated})
    call = _C.CompiledFunction(countdown, region)
    shallow = call(1)
    assert call(20_000) == shallow, "neither Python frames nor the C stack grow"


references = []


def test_nothing_of_the_frames_before_is_alive():
    def user(x):
        raise AssertionError("compiled code runs in its place")

    def generated(x):
        made = Thing()
        references.append(weakref.ref(made))
        return _C.Continue(rest_function, made)

    def rest(made):
        made = None
        gc.collect()
        return references[-1]() is None

    def rest_compiled(made):
        made = None
        gc.collect()
        return references[-1]() is None

    global rest_function
    rest_function = rest
    assert run(user, 1, user=generated), "where the rest runs as it stands"
    rest_function = rest
    assert run(user, 1, user=generated, rest=rest_compiled), "where it runs compiled"


def test_a_frame_gives_its_arguments_to_the_code_that_stands_in_for_it():
    def caller():
        return user_function(Thing())

    def user(x):
        raise AssertionError("compiled code runs in its place")

    def generated(x):
        reference = weakref.ref(x)
        before = sys.getrefcount(x)
        del x
        return before, reference

    global user_function
    user_function = user
    before, reference = run(caller, user=generated)
    assert before <= 3, "the local, getrefcount's argument, and the calling frame's stack"
    assert reference() is None


def test_exceptions_of_the_rest_do_not_show_the_code_before():
    def user(x):
        raise AssertionError("compiled code runs in its place")

    def rest(x):
        raise KeyError(x)

    def generated(x):
        return _C.Continue(rest_function, x)

    global rest_function
    rest_function = rest
    with pytest.raises(KeyError) as caught:
        run(user, "k", user=generated)
    assert "generated" not in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_it_runs_once_and_takes_no_arguments():
    rest = _C.Continue(lambda x: [x], 5)
    with pytest.raises(TypeError):
        rest(1)
    assert rest() == [5]
    for wrong in ((), (len, 1)):
        with pytest.raises(TypeError):
            _C.Continue(*wrong)
    with pytest.raises(TypeError):
        _C.Continue(lambda: None, x=1)


def test_references_are_exact():
    def user(x):
        raise AssertionError("compiled code runs in its place")

    def generated(x):
        return _C.Continue(rest_function, x, x)

    def rest(x, y):
        return x

    global rest_function
    rest_function = rest
    call = _C.CompiledFunction(user, region_where({"user": generated}))
    thing = Thing()
    call(thing)
    before = sys.getrefcount(thing)
    for _ in range(1000):
        assert call(thing) is thing
    assert sys.getrefcount(thing) == before
    cycle = _C.Continue(lambda box: None, [])
    reference = weakref.ref(thing)
    holder = [_C.Continue(lambda box: None, thing)]
    holder.append(_C.Continue(lambda box: None, holder))
    del holder, thing, cycle
    gc.collect()
    assert reference() is None
