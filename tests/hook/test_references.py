"""Reference counts over many calls: nothing is kept and nothing is given up twice."""

from __future__ import annotations

import gc
import sys

import pytest

from fxjit import _C
from fxjit.frontend import entries

CALLS = 100_000


class Key:
    pass


class Thing:
    pass


def old(x, y, *rest, k=None, **named):
    return x


def generated(x, y, k, rest, named):
    return x


def failing(x, y, k, rest, named):
    raise ValueError(x)


def total_references():
    """The sum of all reference counts, where this Python is a debug build."""
    return getattr(sys, "gettotalrefcount", lambda: 0)()


def measure(call, args, counted):
    """Blocks and reference counts gained by CALLS calls, after a start that fills the free lists."""

    def many(n):
        for _ in range(n):
            call(*args, k=args[0])

    many(200)
    gc.collect()
    before = [sys.getrefcount(thing) for thing in counted], sys.getallocatedblocks(), total_references()
    many(CALLS)
    gc.collect()
    after = [sys.getrefcount(thing) for thing in counted], sys.getallocatedblocks(), total_references()
    assert after[0] == before[0]
    assert after[2] - before[2] < CALLS / 100
    return after[1] - before[1]


def quiet(call):
    def swallow(*args, **kwargs):
        try:
            call(*args, **kwargs)
        except ValueError:
            pass

    return swallow


@pytest.mark.parametrize("what", ["eager", "entry", "entry raises", "skipped", "skipped recursively", "callback raises"])
def test_calls_leak_nothing(what):
    def callback(region, func, code, *rest):
        if what == "callback raises":
            raise ValueError
        if what.startswith("entry"):
            return _C.Entry(None, (failing if "raises" in what else generated).__code__)
        return None

    region = _C.Region(Key(), callback)
    if what.startswith("entry"):
        code = (failing if "raises" in what else generated).__code__
        entries.add(old.__code__, region.key, _C.Entry(None, code))
    if what.startswith("skipped"):
        entries.mark_skipped(old.__code__, region.key, "test", recursive="recursively" in what)
    compiled = _C.CompiledFunction(old, region)
    call = quiet(compiled) if "raises" in what else compiled
    thing = Thing()
    counted = [thing, region, region.key, old, old.__code__, generated, generated.__code__, failing.__code__]
    assert measure(call, (thing, 1, 2, 3), counted) < CALLS / 100
    _C.clear(old.__code__)


def test_the_short_way_leaks_nothing():
    def f(x):
        return x

    region = _C.Region(Key())
    entries.add(f.__code__, region.key, _C.Entry(lambda *args: True, (lambda x: x).__code__))
    compiled = _C.CompiledFunction(f, region)
    thing = Thing()
    before = sys.getrefcount(thing)
    for _ in range(CALLS):
        compiled(thing)
    assert sys.getrefcount(thing) == before


def test_closures_and_their_cells_are_released():
    cell_value = Thing()

    def f():
        return cell_value

    def new():
        return cell_value

    region = _C.Region(Key())
    entries.add(f.__code__, region.key, _C.Entry(None, new.__code__))
    compiled = _C.CompiledFunction(f, region)
    cell = f.__closure__[0]
    before = sys.getrefcount(cell_value), sys.getrefcount(cell), sys.getrefcount(f.__closure__)
    for _ in range(CALLS):
        compiled()
    assert (sys.getrefcount(cell_value), sys.getrefcount(cell), sys.getrefcount(f.__closure__)) == before


def test_compiling_again_and_again_leaks_nothing():
    """10^5 compiles of one function, each under a key of its own, and of functions that are thrown away."""

    def f(x):
        return x

    def callback(region, func, code, *rest):
        if code.co_name not in "fg":  # the garbage collector may run finalizers in the region
            return None
        entry = _C.Entry(None, (lambda x: x).__code__, Thing())
        entries.add(code, region.key, entry)
        return entry

    def once():
        assert _C.CompiledFunction(f, _C.Region(Key(), callback))(1) == 1

    def thrown_away():
        namespace = {}
        exec("def g(x): return x", namespace)
        assert _C.CompiledFunction(namespace["g"], _C.Region(Key(), callback))(1) == 1

    for work, times in ((once, CALLS), (thrown_away, 5000)):
        for _ in range(100):
            work()
        gc.collect()
        before = sys.getallocatedblocks(), total_references()
        for _ in range(times):
            work()
        gc.collect()
        assert sys.getallocatedblocks() - before[0] < times / 10
        assert total_references() - before[1] < times / 10
    assert not [o for o in gc.get_objects() if type(o) is Thing]


def test_arguments_are_not_held_after_the_call():
    class Watched:
        alive = 0

        def __init__(self):
            Watched.alive += 1

        def __del__(self):
            Watched.alive -= 1

    for region in (_C.Region(Key()), _C.Region(Key(), lambda *a: _C.Entry(None, generated.__code__))):
        compiled = _C.CompiledFunction(old, region)
        compiled(Watched(), Watched(), Watched(), k=Watched(), z=Watched())
        assert Watched.alive == 0
