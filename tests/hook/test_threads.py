"""Threads: a region belongs to the thread that entered it, and one thread compiles while others run eagerly."""

from __future__ import annotations

import os
import threading
import time

import pytest

from fxjit import _C
from fxjit.frontend import entries


class Key:
    pass


def run_in_threads(work, count):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_a_region_is_seen_by_its_thread_only():
    asked = []
    region = _C.Region(Key(), lambda region, func, code, *rest: asked.append((threading.get_ident(), code.co_name)))

    def elsewhere():
        assert _C.current_region() is None
        assert _C.hook_info()["installed"]
        return helper()

    def helper():
        return 1

    def f():
        thread.start()
        thread.join()
        return helper()

    def elsewhere_checked():
        try:
            results.append(elsewhere())
        except BaseException as error:
            results.append(error)

    results = []
    thread = threading.Thread(target=elsewhere_checked)
    assert _C.CompiledFunction(f, region)() == 1
    assert results == [1]
    assert {ident for ident, _ in asked} == {threading.get_ident()}
    assert "elsewhere" not in {name for _, name in asked}


def test_threads_enter_and_leave_regions_at_random():
    regions = [_C.Region(Key(), lambda *args: None) for _ in range(4)]

    def work(i):
        def f(n):
            assert _C.current_region() is regions[i]
            if n % 7 == 0:
                time.sleep(0)
            return n if n == 0 else f(n - 1)

        compiled = _C.CompiledFunction(f, regions[i])
        for n in range(300):
            assert compiled(n % 30) == 0
            assert _C.current_region() is None

    run_in_threads(work, 4)


def test_entries_of_one_code_object_are_used_added_and_dropped_by_many_threads():
    def f(x):
        return "eager", x

    key = Key()

    def callback(region, func, code, args, *rest):
        if code is not f.__code__:
            return None
        n = args[0]
        entry = _C.Entry(lambda args, *rest: args[0] == n, (lambda x: ("new", x)).__code__)
        if len(_C.entries(code, key)) < 5:
            _C.add_entry(code, key, entry)
        return entry

    compiled = _C.CompiledFunction(f, _C.Region(key, callback))

    def work(i):
        for n in range(2000):
            assert compiled(n % 8) == ("new", n % 8)
            if n % 97 == 0:
                _C.clear(f.__code__)

    run_in_threads(work, 4)


def test_one_thread_compiles_and_the_others_run_the_frame_eagerly():
    started, finish = threading.Event(), threading.Event()
    compiles = []

    def f():
        return "eager"

    def callback(region, func, code, *rest):
        if code is not f.__code__:
            return None
        with entries.compiling(code, region.key) as mine:
            if not mine:
                return None
            compiles.append(threading.get_ident())
            started.set()
            assert finish.wait(30)
            entry = _C.Entry(None, (lambda: "compiled").__code__)
            entries.add(code, region.key, entry)
            return entry

    compiled = _C.CompiledFunction(f, _C.Region(Key(), callback))
    results = []
    thread = threading.Thread(target=lambda: results.append(compiled()))
    thread.start()
    assert started.wait(30)
    assert compiled() == "eager"
    finish.set()
    thread.join(30)
    assert results == ["compiled"] and compiled() == "compiled" and len(compiles) == 1


def test_a_second_compile_waits_for_the_first_and_gives_up_after_a_while(monkeypatch):
    def f():
        pass

    def g():
        pass

    key, seen = Key(), []

    def other():
        with entries.compiling(g.__code__, key) as mine:
            seen.append(mine)

    with entries.compiling(f.__code__, key) as mine:
        assert mine
        with entries.compiling(f.__code__, key) as again, entries.compiling(g.__code__, key) as nested:
            assert not again and nested
        monkeypatch.setattr(entries, "WAIT_SECONDS", 0.05)
        run_in_threads(lambda i: other(), 1)
        assert seen == [False]
        monkeypatch.setattr(entries, "WAIT_SECONDS", 30.0)
        waiting = threading.Thread(target=other)
        waiting.start()
        time.sleep(0.05)
        assert seen == [False]
    waiting.join(30)
    assert seen == [False, True]
    with entries.compiling(f.__code__, key) as mine:
        assert mine


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_can_compile_and_has_no_evaluator_of_threads_it_lacks():
    def f():
        pass

    def hold():
        with entries.compiling(f.__code__, key):
            held.set()
            release.wait(30)

    key, held, release = Key(), threading.Event(), threading.Event()
    thread = threading.Thread(target=_C.CompiledFunction(hold, _C.Region(key)))
    thread.start()
    assert held.wait(30)
    assert _C.hook_info()["installed"]
    child = os.fork()
    if child == 0:
        with entries.compiling(f.__code__, key) as mine:
            os._exit(0 if mine and not _C.hook_info()["installed"] else 1)
    release.set()
    thread.join(30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
