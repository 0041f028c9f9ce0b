"""Small programs as people write them: many instructions at work together."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing

import torch
from tests.differential import assert_same_as_eager


class Mode(enum.Enum):
    FAST = 1
    SLOW = "slow"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Config:
    width: int = 3
    mode: Mode = Mode.FAST
    names: list[str] = dataclasses.field(default_factory=list)

    @property
    def double(self):
        return self.width * 2

    @classmethod
    def wide(cls):
        return cls(width=10)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 2.0


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: int = 4

    def total(self):
        return self.left + self.right


Triple = collections.namedtuple("Triple", "a b c", defaults=[7])
CONFIG = Config(width=5, names=["n"])
OPERATIONS = {"add": operator.add, "mul": lambda a, b: a * b}


class Base(abc.ABC):
    registry: typing.ClassVar[dict] = {}
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    @abc.abstractmethod
    def apply(self, x): ...

    def __call__(self, x):
        return self.apply(x)


class Doubler(Base):
    def apply(self, x):
        return x * 2 * self.scale


class Mixin:
    def apply(self, x):
        return super().apply(x) + 1


class Both(Mixin, Doubler):
    pass


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        if value < 0:
            raise ValueError("negative")
        setattr(obj, self.name, value)


class Described:
    size = Positive()

    def __init__(self, size):
        self.size = size

    @functools.cached_property
    def area(self):
        return self.size * self.size


class Dynamic:
    def __init__(self):
        self.known = {"a": 1}

    def __getattr__(self, name):
        if name in self.known:
            return self.known[name]
        raise AttributeError(name)


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Bag:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __contains__(self, item):
        return item in self.items

    def __iter__(self):
        return iter(self.items)


def tree_map(fn, tree):
    if isinstance(tree, dict):
        return {key: tree_map(fn, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(fn, value) for value in tree)
    return fn(tree)


def test_dataclasses():
    def program(x, config):
        local = Config(names=["a"])
        local.width += 1
        other = dataclasses.replace(local, width=8)
        frozen = Frozen(1)
        try:
            frozen.a = 2
        except dataclasses.FrozenInstanceError:
            x = x + 1
        return (
            x * config.width + config.double, local, other.width, Config.wide().width, frozen == Frozen(1, 2.0),
            frozen.b, local.mode is Mode.FAST,
        )  # fmt: skip

    assert_same_as_eager(program, torch.ones(3), Config())


def test_named_tuples():
    def program(x):
        pair = Pair(x)
        left, right = pair
        triple = Triple(1, b=x)
        return pair, pair.total(), pair._replace(right=1), left + right, triple.c, triple[1], triple._asdict()["a"]

    assert_same_as_eager(program, torch.ones(3))


def test_enums():
    def program(x, mode):
        if mode is Mode.FAST:
            x = x + 1
        elif mode == Mode.SLOW:
            x = x + 2
        return x * Level.HIGH, Mode("slow"), Mode["FAST"], mode.name, mode.value, Level.LOW < Level.HIGH, [m.name for m in Mode]

    assert_same_as_eager(program, torch.ones(3), Mode.FAST)
    assert_same_as_eager(program, torch.ones(3), Mode.SLOW)


def test_class_hierarchies():
    def program(x):
        both = Both(3)
        return both(x), isinstance(both, Base), issubclass(Both, Mixin), type(both).__name__, Both.__mro__[1] is Mixin

    assert_same_as_eager(program, torch.ones(3))


def test_descriptors_and_dynamic_attributes():
    def program(x):
        thing = Described(3)
        thing.size = 4
        try:
            thing.size = -1
        except ValueError as error:
            message = str(error)
        dynamic = Dynamic()
        return x * thing.area + thing.area, message, dynamic.a, getattr(dynamic, "b", "none"), hasattr(dynamic, "c")

    assert_same_as_eager(program, torch.ones(3))


def test_user_iterators_and_containers():
    def program(x):
        bag = Bag(1, 2, 3)
        bag[0] = 5
        total = sum(bag)
        for item in Countdown(3):
            x = x + item
        first, *rest = bag
        return x, total, len(bag), 5 in bag, bag[-1], first, rest, list(Countdown(2)), list(reversed([1, 2])), sorted(bag)

    assert_same_as_eager(program, torch.ones(3))


def test_tables_of_functions():
    def program(x, name):
        out = OPERATIONS[name](x, 3)
        for key in sorted(OPERATIONS):
            out = OPERATIONS[key](out, 2)
        return functools.reduce(operator.mul, [out, out, 2])

    assert_same_as_eager(program, torch.ones(3), "add")
    assert_same_as_eager(program, torch.ones(3), "mul")


def test_itertools():
    def program(x):
        pairs = list(itertools.product([1, 2], "ab"))
        chained = [y * 2 for y in itertools.chain([x], (x + 1,))]
        grouped = [list(g) for _, g in itertools.groupby([1, 1, 2])]
        return (
            pairs, chained, grouped, list(itertools.accumulate([1, 2, 3])), list(itertools.islice(itertools.count(3), 2)),
            list(itertools.zip_longest([1], [2, 3], fillvalue=0)), list(itertools.combinations(range(3), 2)),
            list(itertools.starmap(operator.add, [(1, 2)])), list(itertools.takewhile(lambda v: v < 2, [1, 2, 1])),
        )  # fmt: skip

    assert_same_as_eager(program, torch.ones(3))


def test_collections():
    def program(x):
        counts = collections.defaultdict(int)
        for char in "hello":
            counts[char] += 1
        ordered = collections.OrderedDict([("b", 1), ("a", x)])
        ordered.move_to_end("b")
        queue = collections.deque([1, 2], maxlen=2)
        queue.append(3)
        counter = collections.Counter("aab")
        return x + counts["l"], list(ordered), queue, counter["a"], counter.most_common(1), dict(counts)

    assert_same_as_eager(program, torch.ones(3))


def test_trees():
    def program(x, tree):
        return tree_map(lambda leaf: leaf * 2 if isinstance(leaf, torch.Tensor) else leaf, tree), x + 1

    assert_same_as_eager(program, torch.ones(3), {"a": [torch.ones(2), 3], "b": (torch.zeros(1), {"c": 1})})


def test_strings_and_numbers():
    def program(x, text):
        words = text.strip().split(" ")
        joined = "-".join(word.capitalize() for word in words if word)
        number = int("12") + float("1.5") + round(2.567, 1) + abs(-3) + max(1, 5, 3) + min([4, 2]) + divmod(7, 2)[1]
        return (
            x * math.sqrt(16) + math.pi, joined, number, text.find("b"), text.replace("a", "z"), "abc"[::-1],
            isinstance(number, float), f"{number:>8.2f}", "x".isdigit(), ord("a"), chr(98), hex(255), text * 2,
            text.startswith(("a", "q")), "a" in text, str(1) + repr("q"), bool(""), 7 // 2, -7 % 3, 2**10, 1e3,
        )  # fmt: skip

    assert_same_as_eager(program, torch.ones(3), "ab cd ")


def test_walrus_and_chains():
    def program(x, items):
        total = 0
        while (n := len(items)) > 1:
            total += items.pop() * n
        if (first := items[0]) and 0 < first <= 10 != total:
            x = x + first
        return x, total, [y := 1, y + 1], any(z > 2 for z in (1, 3)), all([])

    assert_same_as_eager(program, torch.ones(3), [1, 2, 3])


def test_state_machines():
    def program(x, commands):
        handlers, log = {}, []

        def on(name):
            def register(fn):
                handlers[name] = fn
                return fn

            return register

        @on("scale")
        def scale(value, by=2):
            log.append("scale")
            return value * by

        @on("shift")
        def shift(value, by=1):
            log.append("shift")
            return value + by

        for command, *args in commands:
            x = handlers[command](x, *args)
        return x, log

    assert_same_as_eager(program, torch.ones(3), [("scale",), ("shift", 5), ("scale", 3)])


def test_nested_control_flow():
    def program(x, rows):
        out = []
        for i, row in enumerate(rows):
            try:
                for j, cell in enumerate(row):
                    if cell is None:
                        continue
                    if cell < 0:
                        raise ValueError(i, j)
                    if cell > 9:
                        break
                    x = x + cell
                else:
                    out.append("whole")
            except ValueError as error:
                out.append(error.args)
            finally:
                out.append(i)
        return x, out

    assert_same_as_eager(program, torch.ones(3), [[1, None, 2], [3, -1], [10, 11], []])


def test_configuration_from_outside():
    def program(x):
        if CONFIG.mode is Mode.FAST and "n" in CONFIG.names:
            return x * CONFIG.width + CONFIG.double
        return x

    assert_same_as_eager(program, torch.ones(3))


def test_methods_as_values():
    def program(x, items):
        push, size = items.append, items.__len__
        push(x)
        upper = str.upper
        keyed = max([(1, "b"), (2, "a")], key=operator.itemgetter(1))
        names = list(map(upper, ["a", "b"]))
        kept = list(filter(None, [0, 1, 2]))
        return size(), names, kept, keyed, sorted(["bb", "a"], key=len), "".join(sorted("cab", reverse=True))

    assert_same_as_eager(program, torch.ones(3), [])


def test_context_and_generators_together():
    @contextlib.contextmanager
    def collecting(log):
        log.append("begin")
        try:
            yield log.append
        finally:
            log.append("end")

    def chunks(x, n):
        for index in range(0, x.shape[0], n):
            yield index, x[index : index + n]

    def program(x, log):
        with collecting(log) as push:
            for index, chunk in chunks(x, 2):
                push(index)
                x = x + chunk.sum()
        return x

    assert_same_as_eager(program, torch.arange(4.0), [])


def test_classes_with_tensors_as_state():
    class Accumulator:
        def __init__(self, start):
            self.total, self.steps = start, 0

        def __iadd__(self, other):
            self.total = self.total + other
            self.steps += 1
            return self

        @property
        def mean(self):
            return self.total / max(self.steps, 1)

    def program(x, outside):
        inside = Accumulator(torch.zeros(3))
        for step in range(3):
            inside += x * step
            outside += step
        return inside, inside.mean, outside.mean

    assert_same_as_eager(program, torch.ones(3), Accumulator(torch.ones(3)))


def test_type_tests_and_attribute_tests():
    def program(x, things):
        kinds = []
        for thing in things:
            if isinstance(thing, (int, float)) and not isinstance(thing, bool):
                kinds.append("number")
            elif isinstance(thing, str) or thing is None:
                kinds.append(type(thing).__name__)
            elif callable(thing):
                kinds.append("callable")
            elif hasattr(thing, "shape"):
                kinds.append(tuple(thing.shape))
            else:
                kinds.append(type(thing) is dict)
        return x + len(kinds), kinds

    assert_same_as_eager(program, torch.ones(3), [1, True, "s", None, torch.ones(2), {}, 2.5])
