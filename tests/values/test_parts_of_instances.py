"""Instances of classes derived from dict, list, set and deque: their methods in C, where the graph breaks inside of the call;
iterators and views that outlive a break; and the methods of the program's classes that those of C call."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque

import pytest
import torch

import fxjit

LOG = []


class Keys:
    """A mapping whose methods break the graph."""

    def __init__(self, x):
        self.x = x

    def keys(self):
        fxjit.graph_break()
        return ["a", "b"]

    def __getitem__(self, key):
        return self.x


class Hashed:
    def __hash__(self):
        fxjit.graph_break()
        return 5

    def __eq__(self, other):
        return self is other


class Dict(dict):
    pass


class Ordered(OrderedDict):
    pass


class List(list):
    pass


class Set(set):
    pass


class Deque(deque):
    pass


class Filled(dict):
    def __init__(self, given):
        super().__init__(given)
        self["own"] = 1


class FilledList(list):
    def __init__(self, given):
        super().__init__(given)
        self.append(1)


class Passing(list):
    def append(self, item):
        super().append(item)
        super().extend(numbers(item))


class OtherIterator(list):
    def __iter__(self):
        return iter([7, 8])


def numbers(x):
    for i in range(2):
        fxjit.graph_break()
        yield i


def entries(x):
    for i in range(2):
        fxjit.graph_break()
        yield i, x + i


def tried(fn, *args):
    try:
        return fn(*args)
    except RuntimeError as error:
        return str(error)


HASHED = Hashed()


def update(x):
    made = Dict()
    made.update(Keys(x))
    return made


def update_ordered(x):
    made = Ordered(z=1)
    made.update(Keys(x))
    return made


def update_from_generator(x):
    made = Dict()
    made.update(entries(x))
    return made


def setdefault(x):
    made = Dict()
    return made.setdefault(HASHED, 1), len(made), made.pop(HASHED), len(made)


def in_place(x):
    made = Dict(a=1)
    return made.__ior__(Keys(x)) is made, made


def bound(x):
    made = Dict()
    put = made.update
    put(Keys(x))
    return made, put.__self__ is made


def filled(x):
    return Filled(Keys(x)), FilledList(numbers(x))


def extend(x):
    made, queue = List(), Deque([5])
    made.extend(numbers(x))
    queue.extend(numbers(x))
    return made, queue


def passing(x):
    made = Passing()
    made.append(3)
    return made


def sort(x):
    made = List([1, 3, 2])
    made.sort(key=lambda each: (fxjit.graph_break(), -each)[1])
    return made


def of_set(x):
    made = Set()
    made.update(numbers(x))
    made.add(HASHED)
    return len(made), 1 in made


def list_iterator(x):
    made = List([1, 2])
    found = iter(made)
    next(found)
    fxjit.graph_break()
    made.append(5)
    return list(found), made


def list_iterator_past_the_class(x):
    made = OtherIterator([1, 2])
    found, other = list.__iter__(made), reversed(made)
    fxjit.graph_break()
    made.append(5)
    return list(found), list(made), list(other)


def backwards(x):
    made = List([1, 2])
    found = reversed(made)
    fxjit.graph_break()
    made[0] = 9
    return list(found)


def views(x):
    made, ordered = Dict(a=1), Ordered(a=1)
    found = made.keys(), made.values(), made.items(), ordered.keys(), ordered.items()
    fxjit.graph_break()
    made["b"] = x
    ordered["b"] = 2
    return [list(each) for each in found], found[0].mapping.get("a")


def others(x):
    made = List([1, 2])
    found = enumerate(made), zip(made, [3, 4, 5], strict=False)
    for each in found:
        next(each)
    fxjit.graph_break()
    made.append(5)
    return [list(each) for each in found]


def stale(x):
    made, queue = Set([1]), Deque([1, 2])
    found, other = iter(made), iter(queue)
    next(other)
    fxjit.graph_break()
    made.add(2)
    queue.append(3)
    return tried(list, found), tried(list, other)


PROGRAMS = [update, update_ordered, update_from_generator, setdefault, in_place, bound, filled, extend, passing, sort, of_set,
            list_iterator, list_iterator_past_the_class, backwards, views, others, stale]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_breaks_around_builtin_parts(program):
    def run(x):
        y = x + 1
        return program(x), y

    compiled = fxjit.compile(run, backend="eager")
    for _ in range(2):
        expected, found = run(torch.ones(2)), compiled(torch.ones(2))
        assert repr(expected) == repr(found)
        assert type(expected[0]) is type(found[0])


def test_what_leaves_the_frame_is_of_the_instance():
    def run(x):
        made, rows = Dict(a=1), List([1])
        return x + 1, made, made.keys(), made.update, rows, iter(rows), rows.append

    _, made, keys, put, rows, found, append = fxjit.compile(run, backend="eager", fullgraph=True)(torch.ones(2))
    put(b=2)
    append(3)
    assert list(keys) == ["a", "b"] and list(found) == rows == [1, 3] and made == {"a": 1, "b": 2}


# -- what C calls ---------------------------------------------------------------------------------------------------


def logging(base, *names):
    """A class derived from `base` whose methods of these names log their calls."""
    def method(name):
        def call(self, *args, **kwargs):
            LOG.append((name, args))
            return getattr(super(cls, self), name)(*args, **kwargs)
        return call

    cls = type("Logging", (base,), {name: method(name) for name in names})
    return cls


def in_place_or(made, other):
    made |= other
    return made


OPERATIONS = {
    "keywords": lambda cls: cls(a=1, b=2),
    "pairs": lambda cls: cls([("a", 1), ("b", 2)]),
    "mapping": lambda cls: cls({"a": 1}),
    "update": lambda cls: (made := cls(), made.update(a=1), made.update({"b": 1}, c=2), made)[-1],
    "setdefault": lambda cls: (made := cls(a=1), made.setdefault("a", 3), made.setdefault("q"), made)[-1],
    "pop": lambda cls: (made := cls(a=1, c=2), made.pop("a"), made.pop("zz", None), made)[-1],
    "popitem": lambda cls: (made := cls(a=1, c=2), made.popitem(), made)[-1],
    "get": lambda cls: (made := cls(a=1, c=2), made.get("a"), made["c"], made)[-1],
    "in place": lambda cls: in_place_or(cls(a=1), {"z": 2}),
    "or": lambda cls: cls(a=1) | {"b": 2},
    "or, reflected": lambda cls: {"b": 2} | cls(a=1),
    "fromkeys": lambda cls: cls.fromkeys("ab", 1),
    "clear": lambda cls: (made := cls(a=1), made.clear(), made)[-1],
    "equal": lambda cls: (cls(a=1) == cls(a=1), cls(a=1, b=2) == cls(b=2, a=1), cls(a=1) == {"a": 1}),
    "iterated": lambda cls: (list(cls(a=1)), list(cls(a=1).items()), "a" in cls(a=1)),
    "dict of": lambda cls: (dict(cls(a=1)), {**cls(a=1)}, dict(**cls(a=1))),
    "copy": lambda cls: cls(a=1).copy(),
    "backwards": lambda cls: list(reversed(cls(a=1, b=2))),
    "deleted": lambda cls: (made := cls(a=1, b=2), made.__delitem__("a"), made)[-1],
}
ALL = ("__setitem__", "__getitem__", "__delitem__", "__contains__", "keys", "items", "update", "setdefault", "pop", "clear",
       "get")
OVERRIDDEN = [*((name,) for name in (*ALL[:7], "__init__")), ALL]


@pytest.mark.parametrize("names", OVERRIDDEN, ids=lambda names: names[0] if len(names) == 1 else "all")
@pytest.mark.parametrize("base", [dict, OrderedDict], ids=lambda cls: cls.__name__)
def test_methods_in_c_call_the_methods_that_eagers_call(base, names):
    cls = logging(base, *names)
    for name, operation in OPERATIONS.items():
        def run(x):
            made = operation(cls)
            return x + 1, type(made).__name__, made

        logs = []
        for each in (run, fxjit.compile(run, backend="eager")):
            LOG.clear()
            result = each(torch.ones(2))[1:]
            logs.append((repr(result), list(LOG)))
        assert logs[0] == logs[1], name


class Output(OrderedDict):
    """Keys that are attributes, too (pythae's)."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_attributes_that_setitem_makes():
    def run(x):
        made = Output(loss=x * 2, z=x)
        made.update(kept=x - 1)
        return made.loss, made.kept, made

    loss, kept, made = fxjit.compile(run, backend="eager", fullgraph=True)(torch.ones(2))
    assert loss.tolist() == [2.0, 2.0] and kept is made["kept"] is made.kept and list(made) == ["loss", "z", "kept"]


class Counting(defaultdict):
    def __setitem__(self, key, value):
        LOG.append(key)
        super().__setitem__(key, value)


def test_a_missing_key_is_stored_by_the_class():
    def run(counts, x):
        counts["a"].append(1)
        return x + 1, len(counts)

    for each in (run, fxjit.compile(run, backend="eager")):
        LOG.clear()
        counts = Counting(list)
        assert each(counts, torch.ones(2))[1] == 1 and LOG == ["a"] and counts["a"] == [1]
