"""Metaclasses that answer what is read of their classes, and classes, metaclasses and descriptors that change what they are
between calls: compiled code gives what plain Python gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fxjit
from fxjit import config

X = torch.ones(2)


@pytest.fixture(autouse=True)
def every_frame() -> Iterator[None]:
    fxjit.reset()
    with config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
        yield


def outcome(fn: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    try:
        result = fn(*args)
    except Exception as error:
        return type(error).__name__, str(error)
    return type(result), str(result)


def _answers_others(cls: type, name: str) -> Any:
    return type.__getattribute__(cls, name) if name.startswith("__") else 7


def _hides_one(cls: type, name: str) -> Any:
    if name == "a":
        raise AttributeError("none")
    return type.__getattribute__(cls, name)


def _hides_all(cls: type, name: str) -> Any:
    raise AttributeError(name)


def _fails(cls: type, name: str) -> Any:
    raise ValueError(name)


def classes_that_answer(getattribute: Callable[[type, str], Any]) -> tuple[type, Any]:
    """A class whose metaclass has this `__getattribute__`, and an instance."""

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            return getattribute(cls, name)

    class Answers(metaclass=Meta):
        a = 1

        def m(self) -> int:
            return 2

        @classmethod
        def c(cls) -> int:
            return 3

    return Answers, Answers()


USES = (
    """
x + C.a;x + o.a;x + C().m();x + o.m();x + C.c();getattr(C, 'a', 9);hasattr(C, 'a');isinstance(o, C);C.__name__;C.__mro__[0] is C
hash(C) == hash(C);type(o) is C;C in {C: 1};bool(C);callable(C);C.__doc__;type.__getattribute__(C, 'a');x + C.missing
""".replace("\n", ";")
    .strip(";")
    .split(";")
)


def program(expression: str, **names: Any) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"__name__": "programs", **names}
    exec(f"def program(x, C, o):\n    return {expression}\n", namespace)
    return namespace["program"]


@pytest.mark.parametrize("getattribute", [type.__getattribute__, _answers_others, _hides_one, _hides_all, _fails],
                         ids=["own", "others", "one", "all", "fails"])  # fmt: skip
def test_a_metaclass_that_answers_what_is_read(getattribute: Callable[[type, str], Any]) -> None:
    for use in USES:
        cls, obj = classes_that_answer(getattribute)
        fn = program(use)
        compiled = fxjit.compile(fn, backend="eager")
        for _ in range(2):
            got, wanted = outcome(compiled, X, cls, obj), outcome(fn, X, cls, obj)
            assert got == wanted, (use, str(got))


CLASSES = """
class Meta(type):
    n = 1
    @property
    def p(cls): return 1

class Other(type):
    n = 2
    @property
    def p(cls): return 2
    def __call__(cls, *args): return 5
    def __getattr__(cls, name): return 77
    def __instancecheck__(cls, obj): return True
    def __contains__(cls, item): return True
    def __eq__(cls, other): return True
    def __hash__(cls): return 3
    def __bool__(cls): return False

class Gives:
    def __get__(self, obj, cls=None): return 3

class Takes:
    def __get__(self, obj, cls=None): return 4
    def __set__(self, obj, value): obj.__dict__["kept"] = value

class C(metaclass=Meta):
    a = 1
    d = Gives()
    @property
    def q(self): return 1
    def m(self): return 1
    def __init__(self): self.i = 1

o = C()
"""
READS = [
    "x + C.n", "x + C.p", "x + C.a", "getattr(C, 'zz', 1)", "x + o.d", "x + C.d", "x + o.q", "x + o.m()", "isinstance(3, C)",
    "isinstance(C, Meta)", "bool(C)", "C == 1", "x + o.i", "x + type(C).n", "type(C).__name__", "setattr(o, 'd', 5), o.d",
]  # fmt: skip
CHANGES = [
    "C.__class__ = Other", "Meta.n = 9", "Meta.p = property(lambda cls: 8)", "Meta.__getattr__ = lambda cls, name: 5",
    "Meta.__instancecheck__ = lambda cls, obj: True", "Meta.__bool__ = lambda cls: False", "C.__dict__['d'].__class__ = Takes",
    "Gives.__get__ = lambda self, obj, cls=None: 8", "del Gives.__get__", "C.d = Takes()", "C.q = 3", "o.__dict__['d'] = 11",
    "Meta.__getattribute__ = lambda cls, name: 42 if name in ('a', 'n', 'd') else type.__getattribute__(cls, name)",
    "Gives.__set__ = lambda self, obj, value: obj.__dict__.__setitem__('kept', value)",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_class_or_descriptor_is_changes_between_calls(change: str) -> None:
    for read in READS:
        seen = []
        for compiled in (False, True):
            names: dict[str, Any] = {"__name__": "programs"}
            exec(CLASSES, names)
            fn = program(read, Meta=names["Meta"])
            called = fxjit.compile(fn, backend="eager") if compiled else fn
            outcomes = [outcome(called, X, names["C"], names["o"]) for _ in range(2)]
            exec(change, names)
            seen.append(outcomes + [outcome(called, X, names["C"], names["o"]) for _ in range(2)])
        assert seen[0] == seen[1], read


class Base:
    v = 1

    def m(self) -> int:
        return 2


class Derived(Base):
    v = 2

    def m(self) -> int:
        return 3

    def loses_itself(self, x: torch.Tensor) -> Any:
        del self
        return x + super().m()

    def reads_what_it_lost(self, x: torch.Tensor) -> Any:
        del self
        return x + 1, super(Derived, self)  # noqa: F821, UP008  # the name is gone

    def is_another(self, x: torch.Tensor) -> Any:
        self = 3  # type: ignore[assignment]
        return x + super().m()

    def is_another_one(self, x: torch.Tensor) -> Any:
        self = Derived()
        fxjit.graph_break()
        self.v = 5
        return x + super().m()

    def asks_too_much(self, x: torch.Tensor) -> Any:
        return x + super(Derived, self, 3).m()  # type: ignore[call-arg]

    def passes_it_on(self, x: torch.Tensor) -> Any:
        found = super()
        fxjit.graph_break()
        return x + found.m() + found.v

    def binds_it_late(self, x: torch.Tensor) -> Any:
        return x + super(Derived).__get__(self).m()  # type: ignore[attr-defined]

    def loses_itself_behind_a_break(self, x: torch.Tensor) -> Any:
        fxjit.graph_break()
        x = x + super().m()
        del self
        fxjit.graph_break()
        return x + super().m()


@pytest.mark.parametrize("name", [name for name in vars(Derived) if name not in ("v", "m") and not name.startswith("__")])
def test_super_in_a_method_that_changed_its_first_argument(name: str) -> None:
    def fn(obj: Derived, x: torch.Tensor) -> Any:
        return getattr(obj, name)(x)

    for called in (fn, getattr(Derived, name)):
        compiled = fxjit.compile(called, backend="eager")
        for _ in range(2):
            assert outcome(compiled, Derived(), X) == outcome(called, Derived(), X)


@pytest.mark.parametrize(
    "obj", [Derived(), Derived, 3, "s", None, [1], X], ids=["object", "class", "int", "str", "None", "list", "tensor"]
)
def test_a_method_of_c_bound_to_an_object_of_another_class(obj: Any) -> None:
    for descriptor, owner in itertools.product([list.append, int.__add__, str.upper, object.__repr__], [(), (type(obj),)]):

        def fn(x: torch.Tensor, obj: Any) -> Any:
            return x + 1, type(descriptor.__get__(obj, *owner)).__name__  # noqa: B023  # called at once

        assert outcome(fxjit.compile(fn, backend="eager"), X, obj) == outcome(fn, X, obj)


class Fallback:
    def __getattr__(self, name: str) -> str:
        return "fallback"


def test_objects_own_methods_on_other_things() -> None:
    def fallback_is_not_asked(x: torch.Tensor, obj: Any) -> Any:
        return x, object.__getattribute__(obj, "a")

    def a_class_is_not_written_to(x: torch.Tensor, obj: Any) -> Any:
        object.__setattr__(type(obj), "a", 4)
        return x

    for fn in (fallback_is_not_asked, a_class_is_not_written_to):
        assert outcome(fxjit.compile(fn, backend="eager"), X, Fallback()) == outcome(fn, X, Fallback())
