"""What the region's callback is asked, and for which frames."""

from __future__ import annotations

import asyncio

import pytest

from fxjit import _C


class Key:
    pass


class Watch:
    """A callback that remembers what it was asked and lets every frame run."""

    def __init__(self):
        self.seen = []
        self.region = _C.Region(Key(), self)

    def __call__(self, region, func, code, args, closure, globals_, builtins):
        self.seen.append((region, func, code, args, closure, globals_, builtins))

    def run(self, fn, *args, **kwargs):
        return _C.CompiledFunction(fn, self.region)(*args, **kwargs)

    def names(self):
        return [code.co_name for _, _, code, *_ in self.seen]

    def args_of(self, name):
        return [args for _, _, code, args, *_ in self.seen if code.co_name == name]


def test_is_told_everything_about_the_frame():
    watch = Watch()

    def f(x):
        return x + 1

    assert watch.run(f, 41) == 42
    [(region, func, code, args, closure, globals_, builtins)] = watch.seen
    assert region is watch.region
    assert func is f and code is f.__code__
    assert args == (41,) and closure is None
    assert globals_ is globals()
    assert builtins["len"] is len


def positional(a, b=2, /, c=3):
    return a, b, c


def keywords(a, *, k, m=5):
    return a, k, m


def star(a, *rest):
    return a, rest


def double_star(a, **named):
    return a, named


def everything(a, /, b, *rest, k=1, **named):
    return a, b, rest, k, named


@pytest.mark.parametrize(
    "fn, args, kwargs, slots",
    [
        (positional, (1,), {}, (1, 2, 3)),
        (positional, (1, 9), {"c": 8}, (1, 9, 8)),
        (keywords, (1,), {"k": 2}, (1, 2, 5)),
        (star, (1, 2, 3), {}, (1, (2, 3))),
        (star, (1,), {}, (1, ())),
        (double_star, (1,), {"z": 3}, (1, {"z": 3})),
        (everything, (1, 2, 3), {"k": 4, "z": 5}, (1, 2, 4, (3,), {"z": 5})),
    ],
)
def test_arguments_are_the_slots_of_the_frame_in_order(fn, args, kwargs, slots):
    watch = Watch()
    assert watch.run(fn, *args, **kwargs) == fn(*args, **kwargs)
    assert watch.args_of(fn.__name__) == [slots]


def test_the_dictionary_of_keyword_arguments_is_the_frame_s_own():
    def f(**named):
        return named

    watch = Watch()
    result = watch.run(f, a=1)
    assert watch.args_of("f")[0][0] is result


def test_arguments_that_become_cells_are_given_as_values():
    def f(x):
        return (lambda: x)()

    watch = Watch()
    assert watch.run(f, 7) == 7
    assert watch.args_of("f") == [(7,)]


def test_closures_come_as_the_function_s_cells():
    outside = [1]

    def f():
        return outside

    watch = Watch()
    assert watch.run(f) is outside
    assert watch.seen[0][4] is f.__closure__
    assert watch.seen[0][4][0].cell_contents is outside


def test_methods_have_self_in_front():
    class C:
        def m(self, x):
            return self, x

        @classmethod
        def c(cls, x):
            return cls, x

        @staticmethod
        def s(x):
            return x

    watch, c = Watch(), C()
    assert watch.run(c.m, 1) == (c, 1)
    assert watch.run(c.c, 2) == (C, 2)
    assert watch.run(c.s, 3) == 3
    assert [args for _, _, _, args, *_ in watch.seen] == [(c, 1), (C, 2), (3,)]


def test_frames_called_from_the_frame_are_seen_too():
    def inner(x):
        return x * 2

    def outer(x):
        return inner(x) + inner(x)

    watch = Watch()
    assert watch.run(outer, 3) == 12
    assert watch.names() == ["outer", "inner", "inner"]


def test_frames_called_by_c_code_are_seen():
    def key(x):
        return -x

    def f(xs):
        return sorted(xs, key=key)

    watch = Watch()
    assert watch.run(f, [1, 2]) == [2, 1]
    assert watch.names() == ["f", "key", "key"]


def test_constructors_and_properties_are_seen():
    class C:
        def __init__(self, x):
            self.x = x

        @property
        def double(self):
            return 2 * self.x

    def f(x):
        return C(x).double

    watch = Watch()
    assert watch.run(f, 4) == 8
    assert watch.names() == ["f", "__init__", "double"]


def test_generators_coroutines_and_bodies_pass_by():
    def gen(n):
        yield from range(n)

    async def co():
        return 5

    async def agen():
        yield 6

    async def drain():
        return [x async for x in agen()]

    def f():
        class Body:
            x = 1

        exec("y = 2")
        return list(gen(3)), list(v for v in gen(2)), Body.x

    watch = Watch()
    assert watch.run(f) == ([0, 1, 2], [0, 1], 1)
    assert watch.names() == ["f"]
    assert list(watch.run(gen, 2)) == [0, 1]
    assert asyncio.run(watch.run(co)) == 5
    assert asyncio.run(watch.run(drain)) == [6]
    assert watch.names() == ["f"]


def test_what_a_generator_calls_is_seen():
    def inner(x):
        return x + 1

    def gen():
        yield inner(1)

    def f():
        return next(gen())

    watch = Watch()
    assert watch.run(f) == 2
    assert watch.names() == ["f", "inner"]


def test_during_the_callback_there_is_no_region():
    def helper():
        return 1

    seen = []

    def callback(region, func, code, *rest):
        assert _C.current_region() is None
        seen.append(code.co_name)
        helper()

    def f():
        return _C.current_region()

    region = _C.Region(Key(), callback)
    assert _C.CompiledFunction(f, region)() is region
    assert seen == ["f"]


def test_what_the_callback_raises_comes_out_of_the_call():
    def callback(*args):
        raise LookupError("no such backend")

    def f():
        raise AssertionError("must not run")

    compiled = _C.CompiledFunction(f, _C.Region(Key(), callback))
    for _ in range(3):
        with pytest.raises(LookupError, match="no such backend"):
            compiled()


def test_what_the_callback_raises_in_a_callee_can_be_caught_by_the_caller():
    def callback(region, func, code, *rest):
        if code is inner.__code__:
            raise LookupError

    def inner(x, y, *rest):
        return x

    def f():
        try:
            inner(1, [2], 3)
        except LookupError:
            return "caught"

    compiled = _C.CompiledFunction(f, _C.Region(Key(), callback))
    assert [compiled() for _ in range(100)] == ["caught"] * 100


def test_a_callback_must_return_an_entry_or_none():
    compiled = _C.CompiledFunction(lambda: 1, _C.Region(Key(), lambda *args: 42))
    with pytest.raises(TypeError, match="Entry or None, not int"):
        compiled()


def test_a_region_without_callback_is_frozen():
    assert "frozen" in repr(_C.Region(Key()))
    assert _C.CompiledFunction(lambda x: x, _C.Region(Key()))(3) == 3
    with pytest.raises(TypeError, match="callback must be callable"):
        _C.Region(Key(), 3)


def test_default_arguments_and_wrong_arguments_behave_as_ever():
    def f(x, y=[]):  # noqa: B006
        return x, y

    watch = Watch()
    assert watch.run(f, 1)[1] is f.__defaults__[0]
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        watch.run(f)
    with pytest.raises(TypeError, match=r"takes from 1 to 2 positional arguments but 3 were given"):
        watch.run(f, 1, 2, 3)
    assert watch.names() == ["f"]
