"""What programs use of the language's library: contexts, coroutines, dispatch, caches, containers, random numbers, texts."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import inspect
import operator
import random
import string
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.ones(3)
LEVEL: contextvars.ContextVar[int] = contextvars.ContextVar("level", default=1)


def test_context_variables() -> None:
    def run(x: torch.Tensor) -> Any:
        token = LEVEL.set(5)
        inside = LEVEL.get()
        LEVEL.reset(token)
        context = contextvars.copy_context()

        def change() -> int:
            LEVEL.set(9)
            return LEVEL.get()

        return x + inside, LEVEL.get(), context.run(change), LEVEL.get(), context[LEVEL], LEVEL in context

    assert_same_as_eager(run, X, fullgraph=False)


class Connection:
    def __init__(self) -> None:
        self.log: list[str] = []

    async def __aenter__(self) -> int:
        self.log.append("in")
        return 3

    async def __aexit__(self, *exc: object) -> bool:
        self.log.append("out")
        return False


def finish(coroutine: Any) -> Any:
    """What a coroutine that waits for nothing returns."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


def test_coroutines_and_async_generators() -> None:
    def run(x: torch.Tensor) -> Any:
        async def more(y: torch.Tensor) -> torch.Tensor:
            return y + 1

        async def numbers() -> AsyncIterator[torch.Tensor]:
            for i in range(3):
                yield await more(x) + i

        async def main() -> Any:
            connection = Connection()
            async with connection as three:
                found = [each async for each in numbers()]
            return found, three, connection.log

        return finish(main())

    assert_same_as_eager(run, X, fullgraph=False)


def configured(a: int, b: int = 2, /, *rest: int, c: int = 3, **options: int) -> int:
    return a


def test_signatures() -> None:
    def run(x: torch.Tensor) -> Any:
        signature = inspect.signature(configured)
        bound = signature.bind(1, c=4, z=5)
        bound.apply_defaults()
        kinds = [parameter.kind.name for parameter in signature.parameters.values()]
        return x + len(kinds), kinds, list(bound.arguments.items()), signature.parameters["b"].default

    assert_same_as_eager(run, X, fullgraph=False)


@functools.singledispatch
def described(value: Any) -> str:
    return "object"


@described.register
def _(value: int) -> str:
    return "int"


@described.register
def _(value: list) -> str:  # type: ignore[type-arg]
    return "list"


class Describer:
    @functools.singledispatchmethod
    def describe(self, value: Any) -> str:
        return "object"

    @describe.register
    def _(self, value: int) -> str:
        return "int"


def test_single_dispatch() -> None:
    def run(x: torch.Tensor) -> Any:
        method = Describer().describe
        return x + 1, described(1), described(True), described([x]), described(x), method(2), method("2")

    assert_same_as_eager(run, X, fullgraph=False)  # since 3.13 a method that dispatches keeps its objects weakly, which breaks


class Cached:
    def __init__(self) -> None:
        self.calls = 0

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def scaled(self, by: int) -> int:
        self.calls += 1
        return by * 10 + self.calls

    @functools.cached_property
    def once(self) -> int:
        self.calls += 1
        return self.calls


def test_a_cached_method_runs_once() -> None:
    def run(x: torch.Tensor) -> Any:
        obj = Cached()
        found = [obj.scaled(1), obj.scaled(1), obj.scaled(2), obj.calls, obj.once, obj.once]
        del obj.once
        return x + 1, [*found, obj.once]

    assert_same_as_eager(run, X, fullgraph=False)


SEEN: list[int] = []


@functools.cache
def noted(value: int) -> int:
    SEEN.append(value)
    return len(SEEN)


def test_a_cached_function_writes_once_to_what_existed_before() -> None:
    def run(x: torch.Tensor) -> Any:
        return x + noted(7), noted(7), list(SEEN)

    assert_same_as_eager(run, X, fullgraph=False)
    assert SEEN == [7]


def test_exception_groups() -> None:
    def run(x: torch.Tensor) -> Any:
        caught: list[Any] = []
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError("t"), ExceptionGroup("n", [KeyError(3), ValueError(4)])])
        except* ValueError as group:
            caught.append(("v", [type(each).__name__ for each in group.exceptions], str(group)))
        except* (TypeError, KeyError) as group:
            caught.append(("t", len(group.exceptions)))
        return x + 1, caught

    assert fxjit.compile(run, backend="eager")(X)[1] == run(X)[1]


def test_exception_groups_are_split() -> None:
    def run(x: torch.Tensor) -> Any:
        group = ExceptionGroup("m", [ValueError(1), TypeError(2)])
        matched, rest = group.split(ValueError)
        return x + 1, str(matched), str(rest), [type(each).__name__ for each in group.exceptions]

    assert_same_as_eager(run, X, fullgraph=False)


class Registry(type):
    made: ClassVar[list[str]] = []

    def __call__(cls, *args: Any) -> Any:
        obj = super().__call__(*args)
        obj.tag = "made"
        return obj

    def __getitem__(cls, key: int) -> int:
        return key * 2

    def __len__(cls) -> int:
        return 7

    def __iter__(cls) -> Iterator[int]:
        return iter((1, 2))

    @property
    def shown(cls) -> str:
        return cls.__name__.lower()


class Registered(metaclass=Registry):
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: int) -> None:
        self.a = a


def test_metaclasses_and_slots() -> None:
    def run(x: torch.Tensor) -> Any:
        obj: Any = Registered(x + 1)
        slotted: Any = Slotted(3)
        errors = []
        for name in ("b", "c"):
            try:
                getattr(slotted, name)
            except AttributeError as error:
                errors.append(type(error).__name__)
        slotted.b = slotted.a * 2
        del slotted.a
        try:
            del slotted.a
        except AttributeError as error:
            errors.append(str(error))
        return obj.value, obj.tag, Registered[3], len(Registered), list(Registered), Registered.shown, errors, \
            slotted.b, hasattr(slotted, "a")

    assert_same_as_eager(run, X)


def test_classes_made_in_the_function() -> None:
    def run(x: torch.Tensor) -> Any:
        @dataclasses.dataclass
        class Point:
            a: int
            b: Any = None

            def total(self) -> Any:
                return self.a + self.b

        class Moved(Point):
            def total(self) -> Any:
                return super().total() * 2

        pair = collections.namedtuple("pair", "left right")
        made = Moved(1, x)
        return made.total(), dataclasses.replace(made, a=3).total(), pair(x, 2)._replace(right=5)[1], Moved.__mro__[1] is Point

    assert_same_as_eager(run, X, fullgraph=False)


class Color(enum.Enum):
    RED = 1
    GREEN = 2


@dataclasses.dataclass
class Place:
    x: int
    y: Any


def told(value: Any) -> Any:
    match value:
        case 1 | 2:
            return "small"
        case str() as text:
            return text
        case [0, b, *more]:
            return ("zero", b, more)
        case [a, [b, c]] if a > 0:
            return (a, b, c)
        case {"k": k, **rest}:
            return (k, rest)
        case Place(0, y) | Place(y, 0):
            return ("axis", y)
        case Place(x=x, y=y):
            return (x, y)
        case Color.RED:
            return "red"
        case None | True:
            return "single"
        case float(number):
            return number
        case [*_]:
            return "sequence"
        case _:
            return "other"


def test_match() -> None:
    def run(x: torch.Tensor) -> Any:
        values = (1, 2, "q", [0, 1, 2], (9, [8, 7]), (-9, [8, 7]), {"k": 1, "z": 2}, Place(0, 1), Place(3, 0), Place(4, 5),
                  Color.RED, Color.GREEN, None, True, False, 3.5, [1], {3})
        return x + 1, [told(value) for value in values]

    assert_same_as_eager(run, X)


def test_copies() -> None:
    def run(x: torch.Tensor) -> Any:
        inner = [1, x]
        data: dict[str, Any] = {"a": inner, "b": inner, "c": (1, 2)}
        deep, flat = copy.deepcopy(data), copy.copy(data)
        place = Place(1, inner)
        return (deep["a"][1] + 1, deep["a"] is deep["b"], deep["a"] is inner, flat["a"] is inner, deep["c"] is data["c"],
                copy.deepcopy(place).y is inner, copy.copy(place).y is inner)

    assert_same_as_eager(run, X)


def test_containers() -> None:
    def run(x: torch.Tensor) -> Any:
        chain = collections.ChainMap({"a": 1}, {"b": 2, "a": 0})
        chain["c"] = 3
        child = chain.new_child({"z": 9})
        counter = collections.Counter("abracadabra")
        counter.update("aa")
        counter.subtract("b")
        queue = collections.deque([1, 2, 3], maxlen=4)
        queue.extend((4, 5))
        queue.rotate(1)
        queue.extendleft([7])
        ordered = collections.OrderedDict(a=1, b=2)
        ordered.move_to_end("a")
        return (x + 1, sorted(chain.items()), child["b"], child.parents["a"], counter.most_common(2), counter["none"],
                counter.total(), (counter - collections.Counter("aaaa"))["a"], list(queue), queue.maxlen, list(ordered.items()))

    assert_same_as_eager(run, X)


def backwards(a: int, b: int) -> int:
    return b - a


def test_sorting() -> None:
    def run(x: torch.Tensor) -> Any:
        pairs, asked = [("b", 2), ("a", 3), ("c", 1)], []

        def key(pair: tuple[str, int]) -> int:
            asked.append(pair[0])
            return -pair[1]

        by_key = sorted(pairs, key=key)
        pairs.sort(key=operator.itemgetter(0), reverse=True)
        compared = sorted([3, 1, 2], key=functools.cmp_to_key(backwards))
        return x + 1, by_key, asked, pairs, compared, max(pairs, key=lambda pair: pair[1]), sorted("bAc", key=str.lower)

    assert_same_as_eager(run, X)


def test_random_numbers_in_their_order() -> None:
    def run(x: torch.Tensor) -> Any:
        random.seed(3)
        items = [1, 2, 3, 4]
        random.shuffle(items)
        own = random.Random(4)
        torch.manual_seed(5)
        noise = torch.rand(3)
        return (x * random.random() + noise, random.randint(1, 10), items, random.choice("abc"), random.sample(range(10), 3),
                random.uniform(1, 2), own.random(), own.choice([1, 2, 3]), random.gauss(0, 1))

    assert_same_as_eager(run, X, fullgraph=False)


def test_texts() -> None:
    def run(x: torch.Tensor) -> Any:
        text, value, width = "Hello, World", 3.14159, 10
        return (x + 1, text.partition(","), text.translate(str.maketrans("lo", "01")), text.expandtabs(),
                "a\nb".splitlines(True), text.removeprefix("He"), "%s %05.2f %x %r" % ("a", value, 255, [1]),
                f"{text:>15}|{value:{width}.2f}|{width:#x}",
                "{:^5}|{!r}|{a[0]}|{b.real}".format(1, "q", a=[5], b=2), string.Template("$a b").substitute(a=1),
                f"{12345678:,}|{0.5:%}|{value=:.1f}|{width=}|{[1, 2]!s:>8}|{'é'!a}", "{0:{1}}".format(3, 5), "%(k)s" % {"k": 2})

    assert_same_as_eager(run, X, fullgraph=False)


def test_managers_of_contextlib() -> None:
    def run(x: torch.Tensor) -> Any:
        log = []

        @contextlib.contextmanager
        def entered(name: str, swallow: bool = False) -> Iterator[str]:
            log.append("in " + name)
            try:
                yield name
            except ValueError:
                if not swallow:
                    raise
            finally:
                log.append("out " + name)

        with contextlib.suppress(KeyError):
            dict[str, int]()["a"]
        with entered("a", True):
            raise ValueError
        try:
            with entered("b"), entered("c"):
                raise ValueError("z")
        except ValueError as error:
            log.append(str(error))
        with contextlib.ExitStack() as stack:
            stack.enter_context(entered("d"))
            stack.callback(log.append, "called")
        return x + 1, log

    assert_same_as_eager(run, X)
