"""CompiledFunction and DisabledFunction: objects that behave as the function they wrap."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import weakref

import pytest

from fxjit import _C
from fxjit.frontend import entries, hook


class Key:
    pass


def watching():
    asked = []
    region = _C.Region(Key(), lambda region, func, code, *rest: asked.append(code.co_name))
    return region, asked


def documented(x: int, *, k: int = 2) -> int:
    """What it does."""
    return x + k


pickled = _C.CompiledFunction(documented, None)
pickled.__qualname__ = "pickled"


@pytest.mark.parametrize("wrap", [lambda fn: _C.CompiledFunction(fn, watching()[0]), _C.DisabledFunction])
def test_looks_like_the_function(wrap):
    wrapped = wrap(documented)
    assert wrapped(1, k=4) == 5
    assert wrapped.__wrapped__ is documented and wrapped.fn is documented
    assert wrapped.__name__ == "documented" and wrapped.__qualname__ == "documented"
    assert wrapped.__doc__ == "What it does." and wrapped.__module__ == __name__
    assert inspect.signature(wrapped) == inspect.signature(documented)
    assert "documented" in repr(wrapped)
    wrapped.note = 3
    assert wrapped.__dict__["note"] == 3
    assert weakref.ref(wrapped)() is wrapped
    assert copy.copy(wrapped) is wrapped and copy.deepcopy([wrapped])[0] is wrapped
    assert functools.wraps(wrapped)(lambda: 0).__name__ == "documented"


def test_pickles_by_reference_as_functions_do():
    assert pickle.loads(pickle.dumps(pickled)) is pickled


@pytest.mark.parametrize("wrap", [lambda fn: _C.CompiledFunction(fn, watching()[0]), _C.DisabledFunction])
def test_binds_as_a_method(wrap):
    class C:
        @wrap
        def m(self, x, *rest, k=0):
            return self, x, rest, k

        s = staticmethod(wrap(lambda x: x))
        c = classmethod(wrap(lambda cls, x: (cls, x)))

    c = C()
    assert c.m(1) == (c, 1, (), 0)
    assert c.m(1, 2, k=3) == (c, 1, (2,), 3)
    bound = c.m
    assert bound(x=4) == (c, 4, (), 0) and bound.__self__ is c
    assert C.m(c, 5) == (c, 5, (), 0)
    assert C.s(1) == 1 and c.s(2) == 2
    assert C.c(3) == (C, 3) and c.c(4) == (C, 4)


@pytest.mark.parametrize("wrap", [lambda fn: _C.CompiledFunction(fn, watching()[0]), _C.DisabledFunction])
def test_wraps_any_callable(wrap):
    class Adder:
        def __init__(self, n):
            self.n = n

        def __call__(self, x):
            return x + self.n

    adder = Adder(2)
    assert wrap(adder)(1) == 3
    assert wrap(functools.partial(documented, 1))(k=1) == 2
    assert wrap(len)([1, 2]) == 2
    assert wrap(Adder)(7).n == 7
    assert wrap([3, 1].index)(1) == 1
    with pytest.raises(TypeError, match="needs a callable, not int"):
        wrap(3)


def test_frames_under_callables_of_other_kinds_are_seen():
    class Adder:
        def __call__(self, x):
            return x

    region, asked = watching()
    _C.CompiledFunction(Adder(), region)(1)
    _C.CompiledFunction(functools.partial(documented, 1), region)()
    _C.CompiledFunction(sorted, region)([2, 1], key=lambda x: x)
    assert asked == ["__call__", "documented", "<lambda>", "<lambda>"]


def test_a_region_can_be_exchanged_and_taken_away():
    def f():
        return _C.current_region()

    one, two = watching()[0], watching()[0]
    compiled = _C.CompiledFunction(f, one)
    assert compiled() is one
    compiled.region = two
    assert compiled() is two and compiled.region is two
    compiled.region = None
    assert compiled() is None and compiled.region is None
    with pytest.raises(TypeError, match="region must be a Region or None"):
        compiled.region = 3
    with pytest.raises(AttributeError):
        del compiled.region


def test_the_prologue_runs_before_each_call_and_may_refuse_it():
    ran = []

    def refuse():
        raise RuntimeError("not now")

    compiled = _C.CompiledFunction(lambda x: x, watching()[0])
    assert compiled.prologue is None
    compiled.prologue = lambda: ran.append(_C.current_region())
    assert [compiled(1), compiled(2)] == [1, 2]
    assert ran == [None, None]
    compiled.prologue = refuse
    with pytest.raises(RuntimeError, match="not now"):
        compiled(1)
    compiled.prologue = None
    assert compiled(3) == 3
    with pytest.raises(TypeError, match="prologue must be callable"):
        compiled.prologue = 3


def test_regions_nest_and_come_back():
    seen = []

    def inner():
        seen.append(_C.current_region())

    def outer():
        seen.append(_C.current_region())
        compiled_inner()
        seen.append(_C.current_region())
        disabled_inner()
        _C.run_disabled(inner)
        seen.append(_C.current_region())

    one, two = watching()[0], watching()[0]
    compiled_inner, disabled_inner = _C.CompiledFunction(inner, two), _C.DisabledFunction(inner)
    _C.CompiledFunction(outer, one)()
    assert seen == [one, two, one, None, None, one]


def test_a_compiled_function_calls_itself():
    region, asked = watching()

    def f(n):
        return 1 if n == 0 else n * compiled(n - 1)

    compiled = _C.CompiledFunction(f, region)
    assert compiled(5) == 120 and asked == ["f"] * 6


def test_disabled_functions_are_not_seen_nor_what_they_call():
    def deep():
        return 1

    def inner():
        return deep()

    def f():
        return _C.run_disabled(inner) + disabled() + deep()

    disabled = _C.DisabledFunction(inner)
    region, asked = watching()
    assert _C.CompiledFunction(f, region)() == 3
    assert asked == ["f", "deep"]
    with pytest.raises(TypeError, match="needs a callable"):
        _C.run_disabled()
    assert _C.run_disabled(documented, 1, k=3) == 4


def test_a_compiled_function_inside_a_disabled_one_is_compiled():
    def inner():
        return 1

    region, asked = watching()
    compiled = _C.CompiledFunction(inner, region)
    assert _C.CompiledFunction(lambda: _C.run_disabled(lambda: compiled()), watching()[0])() == 1
    assert asked == ["inner"]


def test_the_stance_switches_all_compiled_functions_off():
    region, asked = watching()
    compiled = _C.CompiledFunction(lambda: _C.current_region(), region)
    assert _C.set_stance_eager(True) is False
    try:
        assert compiled() is None
        assert _C.CompiledFunction(lambda: compiled(), region)() is None
    finally:
        assert _C.set_stance_eager(False) is True
    assert compiled() is region and asked == ["<lambda>"]


def test_the_block_form_restores_also_on_errors():
    region, asked = watching()
    with pytest.raises(ZeroDivisionError), hook.in_region(region):
        assert _C.current_region() is region
        with hook.in_region(None):
            assert _C.current_region() is None
        1 / 0
    assert _C.current_region() is None
    with pytest.raises(TypeError, match="Region or None"):
        _C.set_region(3)
    assert hook.outside_regions(lambda: 1)() == 1
    assert hook.outside_regions(len, keep_others_out=True).opaque


def test_calls_with_all_arguments_by_position_take_the_short_way_to_the_same_result():
    """The entry is looked up before a frame is made where the arguments are the frame's slots; nothing may tell."""

    def f(x, y=2):
        return "old"

    region, asked = watching()
    entries.add(f.__code__, region.key, _C.Entry(lambda args, *rest: args[0] > 0, (lambda x, y: (x, y)).__code__))
    compiled = _C.CompiledFunction(f, region)
    assert compiled(1, 3) == compiled(1, y=3) == (1, 3)
    assert compiled(1) == compiled(x=1) == (1, 2)
    assert compiled(0, 3) == "old" and asked == ["f"]
    _C.set_flags(f.__code__, _C.SKIP)
    assert compiled(1, 3) == compiled(1) == "old"
    _C.set_flags(f.__code__, 0)
    f.__code__ = (lambda x, y=2: "other code").__code__
    assert compiled(1, 3) == "other code"


def test_the_evaluator_is_only_there_while_a_region_runs():
    states = []

    def look():
        states.append(_C.hook_info()["installed"])

    def f():
        look()
        _C.run_disabled(look)
        look()

    assert not _C.hook_info()["installed"]
    _C.CompiledFunction(f, watching()[0])()
    assert states == [True, False, True]
    assert not _C.hook_info()["installed"]
