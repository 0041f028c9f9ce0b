"""What programs ask of the library about themselves: errors of wrong calls, frames, metaclasses, proxies, type parameters."""

from __future__ import annotations

import collections.abc
import copy
import functools
import inspect
import itertools
import sys
import types
import typing
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager

import fxjit

X = torch.ones(3)


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


def dispatched(x: Any, y: int = 2, *, z: int = 3) -> Any:
    """Called by what its signature says."""
    return x * y + z


SIGNATURE = inspect.signature(dispatched)


class Annotated(torch.nn.Module):
    scale: int = 3

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        return x * scale


ANNOTATED = Annotated()


def _bound(x: torch.Tensor) -> torch.Tensor:
    bound = inspect.signature(dispatched).bind(x, z=4)
    bound.apply_defaults()
    bound.arguments["y"] = 5
    return dispatched(*bound.args, **bound.kwargs)


def _refused(x: torch.Tensor) -> tuple[str, torch.Tensor]:
    try:
        SIGNATURE.bind(x, q=1)
    except TypeError as error:
        return str(error), x + 1
    return "", x


@pytest.mark.parametrize("run", [
    _bound, _refused,
    lambda x: dispatched(*SIGNATURE.bind(x, z=4).args, z=1),
    lambda x: (list(SIGNATURE.bind_partial(y=x).arguments), x + 1),
    lambda x: x + len(inspect.getcallargs(dispatched, x)),
    lambda x: inspect.unwrap(functools.wraps(dispatched)(lambda *args: args[0]))(x),
    lambda x: x + len(inspect.get_annotations(Annotated.forward)) + len(inspect.getdoc(dispatched) or ""),
    lambda x: x + inspect.isgeneratorfunction(dispatched) + inspect.iscoroutinefunction(dispatched),
    lambda x: x + len([name for name, _ in inspect.getmembers(Annotated, inspect.isfunction) if name == "forward"]),
    lambda x: x * len(typing.get_type_hints(Annotated.forward)) + (typing.get_type_hints(ANNOTATED.forward)["scale"] is float),
    lambda x: ANNOTATED(x, **{name: 2.0 for name in inspect.signature(ANNOTATED.forward).parameters if name == "scale"}),
])
def test_dispatch_by_what_inspect_says(run: Any) -> None:
    assert_same_as_eager(run, X)


def test_annotations_that_a_class_gets_by_being_read() -> None:
    def run(x: torch.Tensor, cls: type) -> tuple[torch.Tensor, list[bool]]:
        said = ["__annotations__" in cls.__dict__]
        return x + len(cls.__annotations__), [*said, "__annotations__" in cls.__dict__]

    compiled = fxjit.compile(run, backend="eager")
    first, second = type("First", (), {}), type("Second", (), {})
    for _ in range(2):
        assert compiled(X, first)[1] == run(X, second)[1]


# Code that runs among the frame's own variables


def sets_and_looks(x):
    count = 1
    exec("other = count + 1")
    return x + count, locals().get("other")


def looks_before_and_after(x):
    count, before = 1, locals()
    exec("count = 2; other = 3")
    after = locals()
    return x + count, sorted(name for name in after if name != "x"), after is before, before.get("other")


def sets_in_a_loop(x):
    for step in range(3):
        exec(f"value_{step} = step")
    return x + 1, sorted(name for name in locals() if name.startswith("value"))


def sets_for_itself(x):
    exec("first = 2")
    exec("result.append(first)", {"result": (found := [])}, locals())
    return x * 2, found


def in_a_namespace(x):
    space = {"y": 3}
    exec("z = y + 1", space)
    return x + space["z"]


def in_what_it_calls(x):
    return sets_and_looks(x + 1)[0] * 2, sets_and_looks(x)[1]


@pytest.mark.parametrize("program", [sets_and_looks, looks_before_and_after, sets_in_a_loop, sets_for_itself, in_a_namespace,
                                     in_what_it_calls], ids=lambda fn: fn.__name__)
def test_what_exec_sets_is_where_python_puts_it(program):
    def outcome(fn):
        try:
            return fn(torch.ones(3))
        except NameError as error:  # Python 3.13: what `exec` sets is nowhere
            return str(error)

    compiled = fxjit.compile(program, backend="eager")
    for _ in range(2):
        assert_same(outcome(compiled), outcome(program))


# A frame's own variables by name: before Python 3.13 one dict for all who look


def looks_twice(x):
    before = locals()
    count = 2
    after = locals()
    return x + count, before is after, sorted(set(before) - {"x"}), sorted(set(after) - {"x"})


def looks_in_a_loop(x):
    seen = []
    for step in range(3):
        seen.append(locals())
    return x + step, [sorted(each) for each in seen], len({id(each) for each in seen})


def looks_by_another_name(x):
    before = vars()
    count = 3
    names = dir()
    return x + count, "names" in names, sorted(before)


def looks_around_a_break(x):
    before = locals()
    fxjit.graph_break()
    count = 4
    return x + count, sorted(before), "count" in locals(), sorted(set(before) - {"x"})


def looks_once(x):
    space = types.SimpleNamespace(width=2)
    scale = vars(space)["width"]
    return x + scale, f"{locals()['scale']}", "width" in dir(space)


def lists_what_is_bound_late(x):
    if x is None:
        late = 0
    early = 1
    late = 2
    return x + late, list(locals()), early


def lists_what_is_shared(x):
    shared = own = 1

    def inner():
        return shared

    del own
    own = 2
    return x + inner(), list(locals()), own


def looks_in_a_class(x):
    class Inner:
        first = 1
        before = locals()
        second = 2
        same = before is locals()

    return x + Inner.second, Inner.same, Inner.before["second"]


def changes_what_it_saw(x):
    seen = locals()
    seen["other"] = 5
    seen.pop("x")
    return x + 1, sorted(locals()), sorted(seen)


def writes_by_name_in_what_it_calls(x):
    return looks_twice(x)[1:], looks_in_a_loop(x)[1:], x * 2


@pytest.mark.parametrize("program", [
    looks_twice, looks_in_a_loop, looks_by_another_name, looks_around_a_break, looks_once, lists_what_is_bound_late,
    lists_what_is_shared, looks_in_a_class, changes_what_it_saw, writes_by_name_in_what_it_calls,
], ids=lambda fn: fn.__name__)
def test_who_looks_at_all_variables_sees_what_python_shows(program):
    compiled = fxjit.compile(program, backend="eager")
    for _ in range(2):
        assert_same(compiled(torch.ones(3)), program(torch.ones(3)))


def test_one_look_breaks_nothing():
    assert_same(fxjit.compile(looks_once, backend="eager", fullgraph=True)(torch.ones(3)), looks_once(torch.ones(3)))


def locals_of_its_frame(x):
    y = x + 1
    print("", end="")
    return y.sum(), sorted(sys._getframe().f_locals)


def test_a_frame_that_reads_its_own_locals_behind_a_break_has_all_of_them():
    assert_same_as_eager(locals_of_its_frame, torch.ones(2), fullgraph=False)


def test_the_signature_of_a_function_that_counts_its_calls():
    """An attribute that says nothing of how to call it may have been written before."""
    def counted(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            wrapper.calls += 1
            return fn(*args, **kwargs)

        wrapper.calls = 0
        return wrapper

    @counted
    def scaled(x, *, by=2.0):
        return x * by

    def run(x):
        return scaled(x, by=3.0), str(inspect.signature(scaled)), scaled.calls > 0

    assert_same_as_eager(run, torch.ones(3), breaks=0)


def test_the_signature_of_a_function_whose_defaults_changed_before():
    def scaled(x, by=2.0):
        return x * by

    def run(x):
        scaled.__defaults__ = (3.0,)
        return scaled(x), str(inspect.signature(scaled))

    assert_same_as_eager(run, torch.ones(3), fullgraph=False)


def test_types_of_callables_and_the_module_of_a_device():
    def run(x):
        made = (typing.Callable[[int], str], typing.Callable[..., int], typing.Tuple[int, ...], typing.Literal["a", 3])  # noqa: UP006
        return x + 1, str(made), torch.get_device_module("cpu") is torch.cpu

    assert_same_as_eager(run, torch.ones(3), fullgraph=True, breaks=0)
