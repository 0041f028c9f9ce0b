"""More of the library: context variables that are set, cached functions and their counts, texts replaced by functions."""

from __future__ import annotations

import collections.abc
import contextlib
import contextvars
import copy
import functools
import inspect
import itertools
import re
import string
import types
from collections.abc import Iterator
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.ones(3)
LEVEL: contextvars.ContextVar[Any] = contextvars.ContextVar("level", default=0)
UNSET: contextvars.ContextVar[Any] = contextvars.ContextVar("unset")


# -- context variables ---------------------------------------------------------------------------------------------


def test_a_variable_is_set_and_reset() -> None:
    def run(x: torch.Tensor) -> Any:
        outer = LEVEL.set(2)
        inner = LEVEL.set(x + 1)
        y = LEVEL.get() * 2
        LEVEL.reset(inner)
        seen = LEVEL.get(), outer.var is LEVEL, outer.old_value is contextvars.Token.MISSING, inner.old_value
        LEVEL.reset(outer)
        return y, seen, LEVEL.get(), LEVEL.get(7), LEVEL.name

    assert_same_as_eager(run, X)


def test_a_variable_that_is_not_set() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            UNSET.get()
        except LookupError as error:
            return type(error), UNSET.get(5), x

    assert_same_as_eager(run, X)


def test_what_is_set_stays_set() -> None:
    def run(x: torch.Tensor) -> Any:
        LEVEL.set(LEVEL.get() + 1)
        return x * LEVEL.get()

    def three_times(fn: Any) -> list[torch.Tensor]:
        return [*[fn(X) for _ in range(3)], torch.tensor(LEVEL.get())]

    expected = contextvars.copy_context().run(three_times, run)
    got = contextvars.copy_context().run(three_times, fxjit.compile(run, backend="eager", fullgraph=True))
    assert [each.tolist() for each in got] == [each.tolist() for each in expected]


def test_tokens_over_a_break() -> None:
    def run(x: torch.Tensor) -> Any:
        first, second, other = LEVEL.set(1), LEVEL.set(2), UNSET.set(x)
        torch._dynamo.graph_break()
        y = UNSET.get() + LEVEL.get()
        UNSET.reset(other)
        LEVEL.reset(second)
        between = LEVEL.get()
        LEVEL.reset(first)
        return y, between, LEVEL.get(), UNSET.get(None), second.old_value

    assert_same_as_eager(run, X, fullgraph=False)
    assert LEVEL.get() == 0 and UNSET.get(None) is None


@contextlib.contextmanager
def at(level: int) -> Iterator[None]:
    token = LEVEL.set(level)
    try:
        yield
    finally:
        LEVEL.reset(token)


def test_a_variable_as_a_scope() -> None:
    def run(x: torch.Tensor) -> Any:
        with at(3):
            y = x * LEVEL.get()
            with at(4):
                y = y + LEVEL.get()
            with contextlib.suppress(ValueError), at(5):
                raise ValueError
            y = y - LEVEL.get()
        return y, LEVEL.get()

    assert_same_as_eager(run, X)


def refuses(token: Any) -> bool:
    try:
        LEVEL.reset(token)
    except (RuntimeError, ValueError):
        return True
    return False


def test_errors_of_tokens() -> None:
    def run(x: torch.Tensor) -> Any:
        token, other = LEVEL.set(1), UNSET.set(2)
        LEVEL.reset(token)
        y = x + 1
        return refuses(token), refuses(other), UNSET.reset(other), y

    assert_same_as_eager(run, X, fullgraph=False)


# -- cached functions ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def twice(n: Any) -> Any:
    return n * 2


def test_a_cache_made_inside_counts() -> None:
    def run(x: torch.Tensor) -> Any:
        @functools.lru_cache(maxsize=2)
        def scaled(a: float, k: float = 1) -> float:
            return a * k

        @functools.lru_cache(typed=True)
        def typed(a: object) -> object:
            return a

        seen = [scaled(1), scaled(2), scaled(1), scaled(3), scaled(2), scaled(1, k=2), scaled(1, 2), scaled(1.0, 2.0)]
        seen += [typed(1), typed(1.0), typed(True)]
        return seen, tuple(scaled.cache_info()), tuple(typed.cache_info()), scaled.cache_parameters(), x

    assert_same_as_eager(run, X)


def test_the_same_object_comes_out_again() -> None:
    def run(x: torch.Tensor) -> Any:
        calls = []

        @functools.cache
        def doubled(t: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return t * 2

        return doubled(x) is doubled(x), len(calls), tuple(doubled.cache_info())

    assert_same_as_eager(run, X)


def test_a_cache_goes_on_after_a_break() -> None:
    def run(x: torch.Tensor) -> Any:
        calls = []

        @functools.cache
        def scaled(k: int) -> torch.Tensor:
            calls.append(k)
            return x * k

        first = scaled(1)
        scaled(2)
        scaled(2)
        torch._dynamo.graph_break()
        return scaled(1) is first, scaled(3), calls, tuple(scaled.cache_info()), scaled.__wrapped__.__name__

    assert_same_as_eager(run, X, fullgraph=False)


def test_a_cache_is_cleared() -> None:
    def run(x: torch.Tensor) -> Any:
        @functools.cache
        def same(a: int) -> int:
            return a

        same(1)
        same.cache_clear()
        return same(1), same(1), tuple(same.cache_info()), x

    assert_same_as_eager(run, X)


def test_a_recursion_through_its_cache() -> None:
    def run(x: torch.Tensor) -> Any:
        @functools.cache
        def fib(n: int) -> int:
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        return fib(60) * 1.0 * x, tuple(fib.cache_info())

    assert_same_as_eager(run, X)


def test_what_has_no_hash() -> None:
    def run(x: torch.Tensor) -> Any:
        seen = []
        for argument in ([1], ({},), 2):
            try:
                seen.append(twice(argument))
            except TypeError as error:
                seen.append(str(error))
        return seen, functools.lru_cache(maxsize=0)(len)([1, 2]), x

    assert_same_as_eager(run, X)


def test_a_cache_from_outside_that_is_asked() -> None:
    def run(x: torch.Tensor) -> Any:
        twice.cache_clear()
        seen = twice(1), twice(1), twice(2)
        return seen, tuple(twice.cache_info()), twice.cache_parameters(), x

    assert_same_as_eager(run, X, fullgraph=False)


# -- texts ---------------------------------------------------------------------------------------------------------

NUMBERS = re.compile(r"(?P<name>[a-z])(?P<number>\d+)")


def test_matches_one_by_one() -> None:
    def run(x: torch.Tensor) -> Any:
        found = {match["name"]: int(match["number"]) for match in re.finditer(NUMBERS, "a1 b22 c3")}
        rest = NUMBERS.finditer("a1 b2 c3")
        first = next(rest)
        return found, first.span(), [match.start() for match in rest], x * found["b"], type(rest).__name__

    assert_same_as_eager(run, X)


def test_matches_over_a_break() -> None:
    def run(x: torch.Tensor) -> Any:
        rest = NUMBERS.finditer("a1 b2 c3")
        next(rest)
        torch._dynamo.graph_break()
        return next(rest).group(), next(rest).group(), next(rest, None), x

    assert_same_as_eager(run, X, fullgraph=False)


@pytest.mark.parametrize(("pattern", "text"), [("x*", "abxd"), (r"\w", "a b c"), ("b", ""), ("q", "abc"), (b"a", b"banana")])
def test_replacing_by_a_function(pattern: Any, text: Any) -> None:
    def run(x: torch.Tensor) -> Any:
        seen: list[Any] = []

        def upper(match: re.Match[Any]) -> Any:
            seen.append((match.group(), x * match.start()))
            return match.group().upper() if len(seen) < 3 else None

        compiled = re.compile(pattern)
        return re.sub(pattern, upper, text), compiled.sub(upper, text, 1), compiled.subn(upper, text), seen

    assert_same_as_eager(run, X)


def test_a_replacement_that_is_no_text() -> None:
    def run(x: torch.Tensor) -> Any:
        try:
            re.sub("a", lambda match: 3, "banana")  # type: ignore[arg-type, return-value]
        except TypeError as error:
            return str(error), x

    assert_same_as_eager(run, X)


def test_templates() -> None:
    def run(x: torch.Tensor) -> Any:
        template = string.Template("$a is ${b}, $$5")
        seen = [template.substitute(a=1, b=tuple(x.shape)), template.safe_substitute({"a": 2}), string.capwords("ab cd")]
        for broken in (lambda: template.substitute(a=1), lambda: string.Template("$").substitute()):
            try:
                broken()
            except (KeyError, ValueError) as error:
                seen.append(repr(error))
        formatter = string.Formatter()
        return seen, formatter.format("{0} {k.real:>5} {1[0]!r}", 1, "a", k=2), list(formatter.parse("a{b!r:c}d")), x

    assert_same_as_eager(run, X)


# -- what is raised for wrong arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [
    "itertools.islice([1], -1)", "itertools.islice([1], 'a')", "itertools.islice([1], 1, -2)", "itertools.islice([1], 1, 2, 0)",
    "itertools.islice([1])", "itertools.repeat()", "itertools.count('a')", "itertools.product([1], repeat=-1)",
    "list(itertools.starmap(pow, [1]))", "itertools.starmap(pow, 3)", "itertools.pairwise(3)", "itertools.takewhile(len)",
    "itertools.takewhile(len, 3)", "itertools.dropwhile(len, 3)", "itertools.compress([1], 3)", "itertools.groupby()",
    "itertools.zip_longest([1], foo=2)", "functools.reduce()", "iter(3, 4)", "abs()", "callable()", "[].sort(1)", "{}.get()",
    "[].append()", "copy.copy()", "''.split(1, 2, 3)",
])
def test_the_words_of_errors(wrong: str) -> None:
    namespace: dict[str, Any] = {"itertools": itertools, "functools": functools, "copy": copy}
    exec(f"""
def run(x):
    y = x + 1
    try:
        {wrong}
    except Exception as error:
        return type(error), str(error), y
""", namespace)
    assert_same_as_eager(namespace["run"], X)


class Shown:
    v = 3

    def __format__(self, spec: str) -> str:
        return "shown" + spec

    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize("template", [
    "{}{0}", "{0}{}", "{0.v}{}", "{}{0.v}", "{}{a}{}", "{a}{0}{}", "{:{}}{}", "{", "}", "{0", "{!q}", "{0!}", "{}{}{}{}",
    "{zz}", "{0[}", "{0:{1}}|{a:>7}", "{{}}{0}",
])
def test_templates_that_are_wrong(template: str) -> None:
    def run(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            return template.format(Shown(), 3, 4, a=Shown()), y
        except (ValueError, IndexError, KeyError) as error:
            return type(error), str(error), y

    run.__code__ = run.__code__.replace()  # entries are kept by code
    assert_same_as_eager(run, X)


def test_repeating_by_name() -> None:
    def run(x: torch.Tensor) -> Any:
        two = Shown()
        return "ab".__mul__(two), "ab".__rmul__(two), [x].__mul__(two), (1,).__rmul__(two), b"a".__rmul__(two), "a" * two

    assert_same_as_eager(run, X)


class Answers(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return instance == 3

    def __getattr__(cls, name: str) -> str:
        return name


class Three(metaclass=Answers):
    pass


def test_a_class_that_has_every_attribute() -> None:
    def run(x: torch.Tensor) -> Any:
        return isinstance(3, Three), isinstance(4, Three), Three.anything, x + 1

    assert_same_as_eager(run, X)


def test_frames_are_the_programs_own() -> None:
    def run(x: torch.Tensor) -> Any:
        def inner() -> Any:
            frame = inspect.currentframe()
            return frame.f_back.f_code.co_name if frame is not None and frame.f_back is not None else ""

        return inner(), inspect.stack()[0].function, x + 1

    assert_same_as_eager(run, X, fullgraph=False)


def test_the_frame_that_asks_for_itself_has_all_of_its_locals() -> None:
    def named(x: torch.Tensor) -> Any:
        unused = x * 2  # noqa: F841  # the frame shows it
        return sorted(inspect.currentframe().f_locals), x + 1  # type: ignore[union-attr]

    def outer(x: torch.Tensor) -> Any:
        names, y = named(x * 3)
        return names, y * 2

    assert_same_as_eager(outer, X, fullgraph=False)


class _GivesWhatItGets(type):
    @classmethod
    def __call__(cls, given: Any) -> Any:
        return given


class _GivesTwice(type):
    @staticmethod
    def __call__(given: Any) -> Any:
        return given, given


class _Givers:
    def give(self, given: Any) -> Any:
        return [given]


class _GivesByMethod(type):
    __call__ = _Givers().give


def test_metaclasses_whose_call_is_no_plain_function() -> None:
    class Once(metaclass=_GivesWhatItGets):
        pass

    class Twice(metaclass=_GivesTwice):
        pass

    class Listed(metaclass=_GivesByMethod):
        pass

    def run(x: torch.Tensor) -> Any:
        return Once(x + 1), Twice(3), Listed(4)

    assert_same_as_eager(run, X)


def test_a_proxy_is_an_instance_of_the_abstract_classes_of_what_it_stands_for() -> None:
    class Steps:
        def send(self) -> None: ...
        def throw(self) -> None: ...
        def close(self) -> None: ...
        def __iter__(self) -> None: ...
        def __next__(self) -> None: ...

    class Proxy:
        @property  # type: ignore[misc]  # as mocks do
        def __class__(self) -> type:
            return Steps

    proxy = Proxy()

    def run(x: torch.Tensor) -> Any:
        return isinstance(proxy, collections.abc.Generator), isinstance(proxy, collections.abc.Coroutine), x + 1

    assert_same_as_eager(run, X)


def test_a_simple_namespace_of_a_mapping() -> None:
    def run(x: torch.Tensor) -> Any:
        y = x + 1
        made = types.SimpleNamespace({"x": 1, "y": 2}, x=4)  # a TypeError before 3.13
        return vars(made), y

    assert_same_as_eager(run, X, fullgraph=False)


def test_type_parameters_belong_to_the_module_that_makes_them() -> None:
    def run(x: torch.Tensor) -> Any:
        made = ParamSpec("made"), TypeVar("made"), TypeVarTuple("made")
        return [each.__module__ for each in made], x + 1

    assert_same_as_eager(run, X, fullgraph=False)


class _HidesItsNamespace(type):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # what a program may do
        return None


def test_a_class_whose_namespace_its_metaclass_hides() -> None:
    class Hidden(metaclass=_HidesItsNamespace):
        def __init__(self) -> None:
            self.factor = 42

    def run(x: torch.Tensor) -> Any:
        made = Hidden()
        fxjit.graph_break()
        return x * made.factor

    assert_same_as_eager(run, X, fullgraph=False)
