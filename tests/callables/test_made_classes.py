"""Classes made in the frame by `collections.namedtuple` and its like: each call has its own, and what it wrote to it."""

import collections
import dataclasses
import enum
import gc
import types
import typing

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter

HELD = {}
TEXTS = {"name": "Made", "count": 2}


class Base:
    factor = 2

    def times(self, x):
        return x * self.factor

    def __repr__(self):
        return f"{type(self).__name__} {vars(self)}"


class Told:
    def __init_subclass__(cls):
        cls.mark = HELD.setdefault("told", 3)


class Meta(type):
    """Has no part in how a class is made."""

    def __len__(cls):
        return 4


class ByMeta(metaclass=Meta):
    pass


class Making(type):
    def __new__(mcs, name, bases, names):
        return super().__new__(mcs, name, bases, {**names, "mark": 6})


class ByMaking(metaclass=Making):
    pass


class Named:
    def __set_name__(self, owner, name):
        owner.mark = name


NAMED = Named()


class Functions:
    def doubled(self, x):
        return x * 2


doubled = Functions.doubled


def is_only_used(x):
    Pair = collections.namedtuple("Pair", "a b")
    return Pair(x, 1).a + Pair(2, 3).b, None


def is_returned(x):
    Pair = collections.namedtuple("Pair", "a b", defaults=[3])
    return x + Pair(1).b, Pair


def an_instance_is_returned(x):
    Pair = collections.namedtuple("Pair", "a b")
    return x + 1, Pair(1, Pair(2, 3))


def a_tensor_in_it_is_returned(x):
    Pair = collections.namedtuple("Pair", "a b")
    pair = Pair(x + 1, 2)
    return pair.a, pair


def is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    before = getattr(Pair, "mark", 0)
    Pair.mark = before + 1
    return x + before, Pair


def a_field_is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    length = len(Pair.a.__doc__)
    Pair.a.__doc__ = "changed"
    return x + length, Pair


def a_table_is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    before = Pair._field_defaults.get("a", 0)
    Pair._field_defaults["a"] = before + 1
    return x + before, Pair


def defaults_are_written_to(x):
    Pair = collections.namedtuple("Pair", "a", defaults=([1],))
    Pair().a.append(2)
    return x + len(Pair().a), Pair


def a_function_is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    Pair.__new__.__defaults__ = (getattr(Pair, "mark", 1), 6)
    Pair.mark = 7
    return x + Pair().a, Pair


def two_are_compared(x):
    Pair = collections.namedtuple("Pair", "a b")
    Other = collections.namedtuple("Pair", "a b")
    return x + (Pair is Other) + (Pair == Other), (Pair, Other, Other(1, 2))


def is_held_over_calls(x):
    Pair = collections.namedtuple("Pair", "a b")
    before = isinstance(HELD.get("pair"), Pair)
    HELD["pair"] = Pair(1, 2)
    return x + before, Pair


def crosses_a_break(x):
    Pair = collections.namedtuple("Pair", "a b")
    fxjit.graph_break()
    before = getattr(Pair, "mark", 0)
    Pair.mark = before + 1
    return Pair(x, 1).a + before, Pair


def in_a_closure_across_a_break(x):
    Pair = collections.namedtuple("Pair", "a b")
    fxjit.graph_break()
    return (lambda: Pair(x, 1).a + 1)(), Pair


def of_typing(x):
    Pair = typing.NamedTuple("Pair", [("a", int)])
    before = getattr(Pair, "mark", 0)
    Pair.mark = before + 1
    return x + before, Pair


def is_subclassed(x):
    class Pair(collections.namedtuple("Pair", "a b")):
        def total(self):
            return self.a + self.b
    return Pair(x, 1).total(), Pair


def by_type(x):
    Made = type("Made", (), {"count": 1})
    Made.count += 1
    return x + Made.count, Made


def by_type_of_what_is_given(x):
    Made = type(TEXTS["name"], (), TEXTS)
    return x + Made.count, Made


def by_type_an_instance(x):
    Made = type("Made", (Base,), {"factor": 5, "doubled": doubled})
    made = Made()
    made.held = made.doubled(x)
    return made.times(made.held), made


def by_type_with_slots(x):
    Made = type("Made", (), {"__slots__": ("held",), "__doc__": "text", "__qualname__": "Outer.Made"})
    made = Made()
    made.held = x + len(Made.__doc__)
    return made.held, Made


def by_type_of_an_error(x):
    Made = type("Made", (ValueError,), {})
    try:
        raise Made("four")
    except ValueError as error:
        return x + len(error.args[0]), Made


def by_type_of_a_dict(x):
    Made = type("Made", (dict,), {"__module__": "elsewhere", "mark": 1})
    return Made(a=x)["a"] + Made.mark, Made


def by_type_with_a_metaclass(x):
    Made = type("Made", (ByMeta,), {})
    return x + len(Made), Made


def by_type_with_one_that_makes(x):
    Made = type("Made", (ByMaking,), {})
    return x + Made.mark, Made


def by_type_of_a_class_that_is_told(x):
    Made = type("Made", (Told,), {})
    return x + Made.mark, Made


def by_type_of_what_is_told(x):
    Made = type("Made", (), {"named": NAMED})
    return x + len(Made.mark), Made


def by_type_of_what_is_written_to(x):
    doubled.mark = 3
    Made = type("Made", (), {"of": doubled})
    Made.of.mark += 1
    return x + doubled.mark, Made


def by_type_of_a_list(x):
    Made = type("Made", (), {"items": [1]})
    Made.items.append(2)
    return x + len(Made.items), Made


def by_type_with_a_function_made_here(x):
    Made = type("Made", (), {"scaled": lambda self: x * 2})
    return Made().scaled(), Made


def by_type_of_no_common_layout(x):
    try:
        return x, type("Made", (int, str), {})
    except TypeError as error:
        return x + len(str(error)), type("Other", (), {"mark": str(error)})


def by_type_over_a_break(x):
    Made = type("Made", (Base,), {"factor": 7})
    fxjit.graph_break()
    return Made().times(x), Made


def by_a_statement(x):
    class Made:
        count = 1
    Made.count += 1
    return x + Made.count, Made


def by_make_dataclass(x):
    Made = dataclasses.make_dataclass("Made", ["a"])
    before = getattr(Made, "mark", 0)
    Made.mark = before + 1
    return x + before + Made(3).a, Made


def by_enum(x):
    Made = enum.Enum("Made", "A B")
    before = getattr(Made.A, "mark", 0)
    Made.A.mark = before + 1
    return x + before + Made.B.value, Made


def by_new_type(x):
    Made = typing.NewType("Made", int)
    before = getattr(Made, "mark", 0)
    Made.mark = before + 1
    return x + before, Made


def by_new_class(x):
    Made = types.new_class("Made", (), {}, lambda names: names.update(count=1))
    Made.count += 1
    return x + Made.count, Made


PROGRAMS = [each for each in list(globals().values()) if isinstance(each, types.FunctionType) and each.__module__ == __name__
            and each is not doubled]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_call_has_its_own(program):
    ends = []
    for call in (program, fxjit.compile(program, backend="eager")):
        HELD.clear()
        made = [call(torch.ones(2)) for _ in range(3)]
        classes = [each if isinstance(each, type) else type(each) for _, each in made]
        ends.append((
            [result.tolist() for result, _ in made], [str(each) for _, each in made], len(set(classes)),
            [getattr(cls, "mark", None) for cls in classes], len({id(each) for _, each in made}),
        ))
    assert ends[0] == ends[1]


@pytest.mark.compiles
@pytest.mark.parametrize("program", [
    is_only_used, is_returned, an_instance_is_returned, is_written_to, two_are_compared, by_type, by_type_of_what_is_given,
    by_type_an_instance, by_type_with_slots, by_type_of_an_error, by_type_of_a_dict, by_type_with_a_metaclass,
    by_type_of_no_common_layout,
])
def test_without_a_break(program):
    result, _ = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert result.tolist() == program(torch.ones(2))[0].tolist()


def facts(cls):
    names = {name: value for name, value in vars(cls).items() if not isinstance(value, types.GetSetDescriptorType)}
    return cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__, cls.__bases__, type(cls), list(names)


@pytest.mark.parametrize("program", [
    by_type, by_type_of_what_is_given, by_type_of_a_dict, by_type_with_a_metaclass, by_type_of_an_error, by_type_over_a_break,
])
def test_what_type_makes_is_as_in_eager(program):
    made = fxjit.compile(program, backend="eager")(torch.ones(2))[1]
    assert facts(made) == facts(program(torch.ones(2))[1])
    assert made.__bases__[0] in (object, dict, ValueError) or made in made.__bases__[0].__subclasses__()


def test_a_class_of_the_trace_does_not_stay_among_those_derived():
    class Parent:
        factor = 3

    def program(x):
        return x * type("Made", (Parent,), {"factor": 4}).factor

    compiled = fxjit.compile(program, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    gc.collect()
    assert Parent.__subclasses__() == []


def test_what_is_in_a_namespace_is_guarded():
    def program(x, name, count, base):
        made = type(name, (base,), {"count": count})
        return x * made.count + len(made.__name__) + made.factor

    class Other:
        factor = 9

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for args in (("One", 2, Base), ("Other", 2, Base), ("One", 3, Base), ("One", 2, Other), ("One", 4.5, Other)):
        assert torch.equal(compiled(torch.ones(2), *args), program(torch.ones(2), *args))


@pytest.mark.compiles
@pytest.mark.parametrize("program", [is_only_used, is_returned, by_type, by_type_an_instance, by_type_with_a_metaclass])
def test_what_was_compiled_holds_when_the_class_of_its_trace_is_gone(program):
    counting = CompileCounter()
    compiled = fxjit.compile(program, backend=counting, fullgraph=True)
    for _ in range(3):
        assert compiled(torch.ones(2))[0].tolist() == program(torch.ones(2))[0].tolist()
        gc.collect()
    assert counting.frame_count == 1


def test_what_made_classes_inherit_is_guarded():
    class Root:
        factor = 2

        def times(self, x):
            return x * self.factor

    class Left(Root):
        pass

    class Right(Root):
        factor = 3

    class Other:
        factor = 11

        def times(self, x):
            return x - self.factor

    def used(self, x):
        return x + self.factor

    def program(x):
        outer = type("Outer", (type("Inner", (Left,), {"used": used}), Right), {})
        made = outer()
        return made.used(x) + made.times(x) + len(outer.__mro__)

    compiled, x = fxjit.compile(program, backend="eager"), torch.ones(2)

    def check():
        gc.collect()
        assert torch.equal(compiled(x), program(x))

    check()
    Left.factor = 5
    check()
    del Left.factor, Right.factor
    check()
    Root.times = lambda self, x: x * 7
    check()
    used.__code__ = (lambda self, x: x - self.factor).__code__
    check()
    Right.__bases__ = (Other,)
    check()
    Left.__bases__ = (Other,)
    check()
