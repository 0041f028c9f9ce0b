"""Subclasses of builtin types, what their C methods and operators do, and classes that hide things."""

import array
import collections
import enum
import functools
import operator
import types

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.arange(6.0).reshape(2, 3)


def test_dicts_that_hold_themselves():
    def f(x):
        ordered = collections.OrderedDict(a=1)
        ordered["self"] = ordered
        counting = collections.defaultdict(int)
        counting["self"] = counting
        plain = {}
        plain["self"] = [plain]
        return repr(ordered), repr(counting), repr(plain), x + 1

    assert_same_as_eager(f, X)

    def with_numbers(x):
        outer = [x.sum().item()]
        outer.append({"self": outer})
        return f"{outer}", outer[0]

    assert_same_as_eager(with_numbers, X, fullgraph=False)
    with fxjit.config.patch(reorderable_functions=frozenset({print})):
        assert_same_as_eager(f, X)


class Newest(dict):
    """A dict that is iterated over from its end."""

    def __iter__(self):
        return iter(list(super().keys())[::-1])

    def __len__(self):
        return 7


def test_a_dict_that_iterates_its_own_way_behind_a_break():
    def f(x):
        newest = Newest(a=1, b=2)
        fxjit.graph_break()
        newest["c"] = x
        return list(newest), len(newest), list(newest.keys()), dict.__len__(newest), newest["c"] + 1

    assert_same_as_eager(f, X, fullgraph=False)


class Name(str):
    def __eq__(self, other):
        return super().__eq__(other)

    def __lt__(self, other):
        return super().__lt__(other)

    __hash__ = str.__hash__

    def __add__(self, other):
        return Name(super().__add__(other))


class Level(int):
    def __sub__(self, other):
        return Level(super().__sub__(other))

    def __rmul__(self, other):
        return super().__rmul__(other)

    def __ge__(self, other):
        return super().__ge__(other)


class Pair(tuple):
    def __eq__(self, other):
        return super().__eq__(other)

    __hash__ = tuple.__hash__


class Shifted(int):
    def __index__(self):
        return int(self) + 1


def test_a_number_is_not_asked_for_its_index():
    def f(x, number):
        return operator.index(number), number.__index__(), [10, 20, 30][number], x[number]

    assert_same_as_eager(f, X, Shifted(1))


def test_operators_of_the_base_class_with_another_instance():
    def f(x, one, two, low, high):
        return (
            one == two, one == Name("a"), one != two, one < two, one + two,
            low - high, high >= low, low >= high, 3 * low, super(Level, low).__eq__(high), super(Name, one).__eq__(5),
            Pair((1, 2)) == Pair((1, 2)), Pair((1, x.dim())) == (1, 3), x + low,
        )

    assert_same_as_eager(f, X, Name("a"), Name("b"), Level(1), Level(4))


class Odd(types.ModuleType):
    __dict__ = 8


def test_a_module_whose_namespace_is_none():
    def f(x, odd):
        try:
            dir(odd)
        except TypeError as error:
            return x + 1, str(error), odd.__name__

    compiled = fxjit.compile(f, backend="eager")
    assert compiled(X, Odd("odd"))[1:] == f(X, Odd("odd"))[1:]


class Settings(dict):
    """The idiom of a dict whose items are attributes, with the methods of dict under other names."""

    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__
    put = dict.__setitem__
    has = dict.__contains__


def test_native_methods_under_other_names():
    def f(x, settings):
        settings.scale = x.dim()
        settings.put("more", x + 1)
        del settings.width
        try:
            del settings.width
        except KeyError as error:
            missing = error.args
        return x * settings.scale, settings.more, settings.nothing, settings.has("width"), list(settings), missing

    assert_same_as_eager(f, X, Settings(width=2, depth=3))


def test_a_range_longer_than_a_machine_word():
    def f(x):
        numbers = range(10**20)
        try:
            len(numbers)
        except OverflowError as error:
            text = str(error)
        return (x + 1, text, numbers.index(10**19), numbers.count(5), numbers[-1], 10**18 in numbers, bool(numbers),
                range(5).index(True), range(3).count(1.0))

    assert_same_as_eager(f, X)


def test_one_slice_stays_one():
    def f(x):
        part = slice(1, 2)
        return x[part], part, [part, (part,)]

    compiled = fxjit.compile(f, backend="eager", fullgraph=True)
    _, part, (again, (inside,)) = compiled(X)
    assert part == slice(1, 2) and part is again and part is inside


class Shown(set):
    def __repr__(self):
        return "the " + set.__repr__(self)


class Triple(tuple):
    def __repr__(self):
        return "the " + tuple.__repr__(self)


def test_what_a_base_class_shows():
    def f(x, shown, triple):
        total = x.sum()
        return repr(shown), str(triple), f"{triple}", repr(Triple((1, total))), x + 1

    assert_same_as_eager(f, X, Shown([1]), Triple((1, 2, 3)), fullgraph=False)


class Hidden(type):
    @property
    def __dict__(cls):
        return None


class Unseen(metaclass=Hidden):
    value = 3


def test_truth_of_an_array_and_a_class_that_hides_its_namespace():
    def f(x, empty, full):
        return bool(empty), "full" if full else "empty", not array.array("i"), x + Unseen().value

    assert_same_as_eager(f, X, array.array("i"), array.array("i", [1]), fullgraph=False)


def test_a_named_tuple_with_a_dict_of_its_own():
    class Batch(collections.namedtuple("Fields", "x y")):
        def total(self):
            return self.x.sum() + self.y

        def halved(self):
            return self._replace(x=self.x / 2)

    def f(given, x):
        made = Batch(x * 2, y=3)
        made.note = given.note + 1
        return made.total(), given.halved().x, made.note, given.y, made[0], [v for v in given], made._asdict()

    given = Batch(X, 5)
    given.note = 7
    expected, found = f(given, X), fxjit.compile(f, backend="eager", fullgraph=True)(given, X)
    assert repr(found) == repr(expected)


def test_enum_members_that_are_called():
    class Activation(enum.Enum):
        RELU = "relu"
        TANH = "tanh"

        def __call__(self, x, scale=1.0):
            return getattr(torch, self.value)(x) * scale

    def f(x, chosen):
        return chosen(x), Activation("tanh")(x, scale=2.0), [each(x) for each in Activation]

    assert_same_as_eager(f, X, Activation.RELU)


class DecliningInt(int):
    def __truediv__(self, other):
        return NotImplemented

    __rtruediv__ = __lt__ = __gt__ = __iadd__ = __truediv__


class DecliningList(list):
    def __add__(self, other):
        return NotImplemented

    __iadd__ = __mul__ = __add__


def added_in_place(a, b):
    a += b
    return a


@pytest.mark.parametrize(
    "operate",
    [lambda a, b: a / b, lambda a, b: a / 2, lambda a, b: 2 / a, lambda a, b: a < b, lambda a, b: a < 3, lambda a, b: 3 > a,
     lambda a, b: added_in_place(a, 1)],
)  # fmt: skip
def test_an_operator_that_a_class_declines_is_not_its_builtin_parts(operate):
    def program(x, a, b):
        try:
            return x + 1, operate(a, b)
        except TypeError as error:
            return x - 1, str(error)

    assert_same_as_eager(program, torch.ones(2), DecliningInt(1), DecliningInt(2), fullgraph=False)


@pytest.mark.parametrize("operate", [lambda a: a + [1], lambda a: [1] + a, lambda a: a * 2, lambda a: added_in_place(a, [1])])
def test_a_list_that_declines_to_be_added(operate):
    def program(x, a):
        try:
            return x + 1, operate(a)
        except TypeError as error:
            return x - 1, str(error)

    assert_same_as_eager(program, torch.ones(2), DecliningList([2]), fullgraph=False)


def test_binding_a_method_that_is_bound():
    """It stays bound from Python 3.13 on; before, its function is bound to the other object."""

    class First:
        def method(self):
            return self

    class Second:
        pass

    def f(x):
        first, second = First(), Second()
        second.method = first.method.__get__(second, Second)
        return second.method() is first, second.method() is second, x + 1

    assert_same_as_eager(f, X)


class ShownSet(set):
    pass


class ShownFrozenset(frozenset):
    pass


class ShownDeque(collections.deque):
    pass


class ShownOrder(collections.OrderedDict):
    pass


class ShownDefault(collections.defaultdict):
    pass


@pytest.mark.parametrize("make", [
    lambda: ShownSet([1]), lambda: ShownSet(), lambda: ShownFrozenset([1]), lambda: ShownFrozenset(),
    lambda: ShownDeque([1], 3), lambda: ShownOrder(a=1), lambda: ShownOrder(), lambda: ShownDefault(None, {1: 2}),
    lambda: [ShownSet([1]), ShownDeque()],
])
def test_containers_are_shown_under_the_name_of_their_class(make):
    assert_same_as_eager(lambda x: (x + 1, repr(make()), str(make()), f"{make()}"), torch.ones(2), breaks=0)


@pytest.mark.parametrize("make", [
    list, dict, set, collections.deque, collections.OrderedDict, lambda: functools.partial(abs, 1),
])
def test_texts_and_none_of_a_builtin_class_are_read(make):
    def fn(x):
        made = make()
        return x + 1, hasattr(made, "__hash__"), made.__hash__ is None, getattr(made, "__module__", "none"), made.__doc__

    assert_same_as_eager(fn, torch.ones(2), breaks=0)


class Counts(collections.defaultdict):
    pass


class Lists(collections.defaultdict):
    def __init__(self, *given):
        super().__init__(list, *given)
        self.depth = 3


class Doubled(collections.defaultdict):
    def __missing__(self, key):
        self[key] = 2 * key
        return self[key]


def a_factory_of_numbers(x):
    counts = Counts(int)
    counts["a"] += 1
    return x + 1, counts, counts["b"], counts.default_factory


def no_factory(x):
    counts = Counts(None, {1: 2}, b=3)
    return x + 1, counts, repr(counts)


def a_factory_given_by_init(x):
    lists = Lists([(1, [2])])
    lists["a"].append(x * 2)
    return x + 1, lists, lists.depth


def a_method_in_place_of_a_factory(x):
    doubled = Doubled(None)
    return x + 1, doubled[2], doubled


def a_factory_that_cannot_be_called(x):
    try:
        return x, Counts(3)
    except TypeError as error:
        return x + 1, str(error)


def initialised_once_more(x):
    counts = collections.defaultdict(int, {1: 2})
    counts.__init__()
    return x + 1, counts, counts.default_factory, counts.get(5)


def a_factory_that_is_asked_for(x):
    return x + 1, hasattr(Counts(int), "default_factory"), getattr(Counts(int), "default_factory", None)


def a_bound_that_is_asked_for(x):
    queue = ShownDeque([1, 2, 3, 4], 3)
    return x + 1, queue.maxlen, hasattr(queue, "maxlen"), list(queue)


@pytest.mark.parametrize("fn", [
    a_factory_of_numbers, no_factory, a_factory_given_by_init, a_method_in_place_of_a_factory, a_factory_that_cannot_be_called,
    initialised_once_more, a_factory_that_is_asked_for, a_bound_that_is_asked_for,
])
def test_subclasses_have_what_their_builtin_class_keeps_beside_the_items(fn):
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for result, expected in zip(compiled(torch.ones(2)), fn(torch.ones(2)), strict=True):
        assert type(result) is type(expected)
        assert str(result) == str(expected)
        if isinstance(expected, collections.defaultdict):
            assert result.default_factory == expected.default_factory
            assert vars(result) == vars(expected) if hasattr(expected, "__dict__") else not hasattr(result, "__dict__")
