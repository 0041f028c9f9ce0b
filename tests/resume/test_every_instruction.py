"""Every instruction of these functions is once the one that breaks the graph; what the rest of the frame gives is what eager
gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import stepping


def arithmetic(a: int, b: int) -> Any:
    c = a + b * 2
    c -= a
    return (c, -a, not b, a < b <= c, a is b, a in [b, c])


def nested_calls(a: int, b: int) -> Any:
    def f(*args: Any, **kwargs: Any) -> Any:
        return args, sorted(kwargs.items())

    text = "x-y"
    return f(a, f(b, text.upper().split("-")), k=f(c=max(a, b)), *[a, b], **{"z": f(a)})


def keywords_and_methods(a: int, b: int) -> Any:
    d = dict(x=a, y=b)
    d.update(z=d.get("x", default_of(b)) if False else sum([a, b], start=b))
    return sorted(d.items(), key=lambda item: item[1], reverse=True)


def default_of(x: int) -> int:
    return x


def loop(a: int, b: int) -> Any:
    total = 0
    for i in range(a):
        if i == 1:
            continue
        for j in [1, 2]:
            total += i * j
            if total > 50:
                break
        else:
            total += b
    while total > 10:
        total -= 7
    return total


def branches(a: int, b: int) -> Any:
    x = a and b or a
    y = None if a else 5
    if y is None and x:
        y = "none" if b > 100 else "some"
    elif y is not None:
        y = y + 1
    return x, y, a if b else y


def closures(a: int, b: int) -> Any:
    count = 0
    inner_only = a

    def bump(n: int) -> int:
        nonlocal count
        count += n + inner_only
        return count

    bump(b)
    a = 7
    bump(a)
    later = [lambda: a + count for _ in range(2)]
    a += 1
    return count, [f() for f in later], bump(1)


def tries(a: int, b: int) -> Any:
    out = []
    try:
        out.append(a // b)
        out.append({}["missing"])
    except ZeroDivisionError as error:
        out.append(str(error))
    except KeyError as error:
        out.append(repr(error))
        try:
            raise ValueError("inner") from error
        except ValueError as inner:
            out.append(type(inner.__cause__).__name__)
    else:
        out.append("else")
    finally:
        out.append("finally")
    return out


def raises(a: int, b: int) -> Any:
    if a > 0:
        raise ValueError(f"{a!r:>4} and {b}")
    return b


def asserts(a: int, b: int) -> Any:
    assert a > 1000, ("too small", a)
    return a


def unbound(a: int, b: int) -> Any:
    if a > 1000:
        c = 1
    b = b + 1
    return c + b


def deletes(a: int, b: int) -> Any:
    c = [a, b]
    del a
    c.append(b)
    del c[0]
    a = 3
    d = c[:]
    d[0:1] = [9, 8]
    return a, c, d, locals().keys() >= {"a", "b", "c", "d"}


def builds(a: int, b: int) -> Any:
    t = (a, *[b, 1], a)
    s = {a, b, *t}
    d = {"a": a, **{"b": b}, "c": {k: v for k, v in zip("xy", t)}}
    first, *middle, last = t
    x, y = b, a
    text = f"{a}{b!r}{a:03d}" + "%s" % b
    return t, sorted(s), d, first, middle, last, x, y, text, [i * a for i in t if i], t[1:], t[-1:0:-1]


def matches(a: int, b: int) -> Any:
    out = []
    for subject in ([a, b, 1], {"k": a, "z": b}, (a,), 5, "text", complex(1, 2)):
        match subject:
            case [x, y, *rest]:
                out.append((x, y, rest))
            case {"k": k, **others}:
                out.append((k, others))
            case (x,):
                out.append(x)
            case int() | str() as s:
                out.append(s)
            case complex(real=r):
                out.append(r)
    return out


def with_blocks(a: int, b: int) -> Any:
    log: list[Any] = []

    @contextlib.contextmanager
    def block(name: str) -> Any:
        log.append(f"enter {name}")
        try:
            yield name.upper()
        except ValueError as error:
            log.append(f"swallow {error}")
        finally:
            log.append(f"exit {name}")

    with block("one") as one, block("two"):
        log.append(one)
        if a:
            int("nonsense")
    with block("three"):
        log.append(b)
        return log
    return "swallowed", log


def comprehensions(a: int, b: int) -> Any:
    x = a
    squares = [x * b for x in range(3)]
    keyed = {k: [k + x for k in range(2)] for k in (a, b)}
    unique = sorted({x % 2 for x in squares})
    return x, squares, keyed, unique, sum(x for x in squares)


def arguments(a: int, b: int, *rest: Any, flag: int = 3, **named: Any) -> Any:
    return (a, b, rest, flag, sorted(named.items()), max(*rest, flag))


def imports(a: int, b: int) -> Any:
    import math as m
    from os.path import join as j

    return m.floor(a + 0.5), j("x", "y")


class Base:
    def method(self, a: int) -> Any:
        return ("base", a)


class Derived(Base):
    def method(self, a: int) -> Any:
        x = super().method(a + 1)
        y = super().method
        return x, y(a), __class__.__name__  # type: ignore[name-defined]

    def capturing(self, a: int) -> Any:
        def later() -> Any:
            return self.method(a)

        x = super().method(a)
        return x, later(), super().method(len(x))


def global_writes(a: int, b: int) -> Any:
    global _written
    _written = a
    _written += b
    result = _written
    del _written
    return result


SMALL = [arithmetic, keywords_and_methods, branches, raises, asserts, unbound, deletes, tries, imports, global_writes]
LARGE = [nested_calls, loop, closures, builds, matches, with_blocks, comprehensions]


def check_every_stop(fn: Any, *args: Any, stride: int = 1, eager: Callable[[], Any] | None = None) -> int:
    """Step `k` instructions into `fn`, for each k, then break at the next one; returns how many stops there were."""
    expected = stepping.outcome(eager or (lambda: fn(*args)))
    stops = 0
    while True:
        state = stepping.start(fn, *args)

        def run_to(stop: int = stops) -> Any:
            nonlocal state
            for _ in range(stop):
                state = stepping.step(state)
            # Under a handler the instruction itself stays in the resume function: frames are not stopped there.
            in_entry = stop % 2 == 0 and state.code.handler_at(state.index) is None
            return stepping.finish(state, "instruction" if in_entry else "resume")

        before = state
        assert stepping.outcome(run_to) == expected, f"stopped after {stops} steps, before {state.opname} at {state.index}"
        assert state is before or state.code is before.code
        stops += stride
        last = _last_step(fn, args, stops)
        if last is not None:
            assert last == expected, f"within {stops} steps"
            return stops


def _last_step(fn: Any, args: Any, steps: int) -> Any:
    """What the function gives or raises within `steps` steps; None if it goes on. An exception that the function itself
    handles ends the stepping, and is no outcome."""
    state = stepping.start(fn, *args)
    for _ in range(steps):
        try:
            state = stepping.step(state)
        except Exception as error:  # noqa: BLE001 - Left, or what the function raises
            if state.code.handler_at(state.index) is not None:
                return stepping.outcome(lambda: fn(*args))

            def again(error: Exception = error) -> Any:
                raise error

            return stepping.outcome(again)
    return None


@pytest.mark.parametrize("fn", SMALL, ids=lambda fn: fn.__name__)
def test_every_instruction_of_a_small_function(fn: Any) -> None:
    assert check_every_stop(fn, 1, 2) > 3


@pytest.mark.parametrize("args", [(0, 5), (3, 0)])
@pytest.mark.parametrize("fn", [branches, raises, unbound, tries], ids=lambda fn: fn.__name__)
def test_the_other_ways_through(fn: Any, args: Any) -> None:
    assert check_every_stop(fn, *args, stride=3) > 3


@pytest.mark.parametrize("fn", LARGE, ids=lambda fn: fn.__name__)
def test_every_instruction_of_a_large_function(fn: Any) -> None:
    assert check_every_stop(fn, 3, 2, stride=7) > 10


def test_with_blocks_that_swallow_nothing() -> None:
    assert check_every_stop(with_blocks, 0, 2, stride=5) > 10


def test_argument_slots_of_every_kind() -> None:
    args = (1, 2, (3, 4), {"x": 5})
    slots = (1, 2, 9, (3, 4), {"x": 5})
    assert check_every_stop(arguments, *slots, eager=lambda: arguments(*args[:2], *args[2], flag=9, **args[3])) > 3


@pytest.mark.parametrize("name", ["method", "capturing"])
def test_bare_super_finds_its_class_and_its_first_argument(name: str) -> None:
    self = Derived()
    assert check_every_stop(getattr(Derived, name), self, 4, eager=lambda: getattr(self, name)(4)) > 3
