"""The standard library inside compiled functions: compiled against eager."""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import heapq
import inspect
import logging
import math
import operator
import os
import pickle
import re
import sys
import typing
import warnings

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch.utils import _pytree as pytree

import fxjit

X = torch.arange(6.0).reshape(2, 3)


@dataclasses.dataclass
class Config:
    width: int
    depth: int = 2
    tags: list = dataclasses.field(default_factory=list)

    @property
    def area(self):
        return self.width * self.depth


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 1.5


def test_operator():
    def f(x):
        items = [1, 2]
        operator.setitem(items, 0, 5)
        return (
            operator.add(x, 1),
            operator.mul(2, 3),
            operator.getitem(items, 0),
            operator.itemgetter(1)(items),
            operator.itemgetter(0, 1)(items),
            operator.attrgetter("ndim")(x),
            operator.methodcaller("upper")("a"),
            operator.lt(1, 2),
            operator.not_(0),
            operator.truth([]),
            operator.contains(items, 2),
            operator.is_(x, x),
            operator.index(3),
            operator.iadd(items, [7]),
            operator.neg(x),
            operator.concat([1], [2]),
            operator.matmul(x, x.T),
            items,
        )

    assert_same_as_eager(f, X)


def test_math():
    def f(x, n):
        return (
            math.sqrt(16),
            math.pi,
            math.floor(2.5),
            math.ceil(2.1),
            math.log(8, 2),
            math.prod([1, 2, 3]),
            math.gcd(12, 18),
            math.isclose(1.0, 1.0),
            math.inf,
            math.isnan(math.nan),
            math.exp(0),
            math.factorial(n),
            math.comb(5, 2),
            math.sin(0.0),
            x * math.sqrt(n),
            math.fsum([0.1, 0.2]),
            math.hypot(3, 4),
        )

    assert_same_as_eager(f, X, 4)


def test_functools():
    def add(a, b, c=0):
        return a + b + c

    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs) * 2

        return wrapper

    @functools.lru_cache
    def cached(n):
        return n * 3

    def f(x):
        p = functools.partial(add, x, c=5)
        w = decorate(add)
        return (
            p(1),
            p(b=2),
            p.func is add,
            functools.reduce(lambda a, b: a * b, [1, 2, 3]),
            functools.reduce(operator.add, [x], x),
            w(1, 2),
            w.__name__,
            cached(2),
            functools.partial(p, 3)(),
            p.keywords,
        )

    assert_same_as_eager(f, X)


def test_dataclasses():
    def f(x, c):
        made = Config(3, tags=[x])
        c.width = 9
        other = dataclasses.replace(made, depth=7)
        return (
            made.area,
            made,
            other.depth,
            [field.name for field in dataclasses.fields(made)],
            dataclasses.is_dataclass(made),
            Frozen(1) == Frozen(1),
            hash(Frozen(1)) == hash(Frozen(1)),
            c.area,
            made == Config(3, tags=[x]),
            {Frozen(1): 2}[Frozen(1)],
            repr(Frozen(2)),
        )

    assert_same_as_eager(f, X, Config(1))


def test_dataclass_helpers():
    def f(x):
        return dataclasses.asdict(Config(3, tags=[1, {"a": 2}])), dataclasses.astuple(Frozen(1)), x

    assert_same_as_eager(f, X)


def test_frozen_dataclass_cannot_be_set():
    def f(x):
        try:
            Frozen(1).a = 2
        except dataclasses.FrozenInstanceError as error:
            return str(error), x

    assert_same_as_eager(f, X)


def test_copy():
    def f(x, tree):
        shallow = copy.copy(tree)
        deep = copy.deepcopy(tree)
        shallow["new"] = 1
        deep["a"].append(x)
        c = copy.copy(Config(1, tags=[2]))
        c.tags.append(3)
        return tree, shallow, deep, c, copy.copy([1, x]), copy.deepcopy((1, [2])), shallow["a"] is tree["a"]

    assert_same_as_eager(f, X, {"a": [1, 2], "b": {"c": 3}})


def test_heapq_and_bisect():
    def f(x):
        heap = [5, 3, 8, 1]
        heapq.heapify(heap)
        heapq.heappush(heap, 2)
        first = heapq.heappop(heap)
        items = [1, 3, 5]
        bisect.insort(items, 4)
        return (
            heap,
            first,
            items,
            bisect.bisect_left(items, 3),
            bisect.bisect(items, 3),
            heapq.nsmallest(2, heap),
            heapq.nlargest(1, heap),
            x,
        )

    assert_same_as_eager(f, X)


def test_collections():
    def f(x):
        chain = collections.ChainMap({"a": 1}, {"a": 2, "b": x})
        user = collections.UserDict(a=1)
        return chain["a"], chain["b"] + 1, len(chain), user["a"], collections.namedtuple("P", "x y")(1, x).y + 1

    assert_same_as_eager(f, X)


def test_re_and_os():
    def f(x):
        found = re.match(r"(\w+)-(\d+)", "layer-12")
        return (
            re.sub("a", "b", "banana"),
            os.path.join("a", "b"),
            found is not None,
            found.group(1),
            int(found.group(2)),
            x,
        )

    assert_same_as_eager(f, X)


def test_environment(monkeypatch):
    monkeypatch.setenv("VALUE_FOR_TESTS", "5")

    def f(x):
        return (
            x * int(os.environ["VALUE_FOR_TESTS"]),
            os.environ.get("NO_VALUE_FOR_TESTS", "d"),
            os.getenv("NO_VALUE_FOR_TESTS") is None,
        )

    assert_same_as_eager(f, X)


def test_inspect_and_typing():
    def g(a, b=2, *args, c, **kwargs):
        return a

    def f(x):
        sig = inspect.signature(g)
        return (
            list(sig.parameters),
            "c" in sig.parameters,
            sig.parameters["b"].default,
            typing.cast(int, x) is x,
            inspect.isfunction(g),
            typing.get_origin(list[int]) is list,
            inspect.isclass(int), inspect.isclass(g),
            callable(g),
            g.__name__,
            g.__code__.co_argcount,
        )

    assert_same_as_eager(f, X)


def test_warnings_that_are_ignored():
    def f(x):
        warnings.warn("quiet", DeprecationWarning)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same_as_eager(f, X)


def test_warnings_are_given_where_they_stand():
    def f(x):
        warnings.warn("loud")
        warnings.warn("twice", RuntimeWarning, stacklevel=1)
        return x + 1

    def seen(fn):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fn(X)
        return [(str(w.message), w.category, w.filename, w.lineno) for w in caught]

    assert seen(fxjit.compile(f, backend="eager", fullgraph=True)) == seen(f)


def test_warnings_of_a_namespace_that_no_import_made():
    namespace = {"warnings": warnings, "__name__": "made", "__spec__": None, "__loader__": None}
    exec("def f(x):\n    warnings.warn('loud')\n    return x + 1", namespace)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for fn in (namespace["f"], fxjit.compile(namespace["f"], backend="eager", fullgraph=True)):
            assert torch.equal(fn(X), X + 1)
    assert [(str(each.message), each.filename, each.lineno) for each in caught] == [("loud", "<string>", 2)] * 2


def test_a_warning_that_is_an_error_is_raised():
    def f(x):
        y = x + 1
        warnings.warn("loud")
        return y

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            fxjit.compile(f, backend="eager")(X)


def test_logging_that_says_nothing():
    log = logging.getLogger("tests.quiet")
    log.setLevel(logging.ERROR)

    def f(x):
        log.debug("shape %s", x.shape)
        log.info("more")
        if log.isEnabledFor(logging.DEBUG):
            x = x + 100
        return x + 1

    assert_same_as_eager(f, X)


def test_contextlib():
    @contextlib.contextmanager
    def doubled(log):
        log.append("in")
        try:
            yield 2
        finally:
            log.append("out")

    def f(x):
        log = []
        with doubled(log) as two:
            y = x * two
        with contextlib.suppress(KeyError):
            {}["nope"]
        with contextlib.nullcontext(3) as three:
            y = y + three
        return y, log

    assert_same_as_eager(f, X)


def test_pytree():
    def f(tree):
        doubled = pytree.tree_map(lambda v: v * 2, tree)
        leaves = pytree.tree_leaves(tree)
        flat, spec = pytree.tree_flatten(tree)
        return (
            doubled,
            leaves,
            pytree.tree_unflatten(flat, spec),
            len(flat),
            pytree.tree_map_only(torch.Tensor, lambda v: v + 1, tree),
        )

    assert_same_as_eager(f, {"a": [X, 1], "b": (2, {"c": X})})


@pytest.mark.parametrize("name", ["time.time", "os.urandom"])
def test_the_outside_world_breaks_the_graph(name):
    import time

    fn = {"time.time": time.time, "os.urandom": lambda: os.urandom(8)}[name]

    def f(x):
        return x + 1, fn()

    with pytest.raises(fxjit.errors.Unsupported):
        fxjit.compile(f, backend="eager", fullgraph=True)(X)
    assert torch.equal(fxjit.compile(f, backend="eager")(X)[0], X + 1)


def test_signatures_of_methods_and_of_functions_with_one_code():
    class Of:
        def plain(self, a, b=1):
            pass

        def all(*args):
            pass

        def none():
            pass

    def wrap(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs)

        return wrapper

    def f(x, fn):
        try:
            return x + 1, str(inspect.signature(fn))
        except ValueError as error:
            return x + 1, str(error)

    compiled = fxjit.compile(f, backend="eager")
    for fn in (wrap(lambda a: a), wrap(lambda b: b), Of().plain, Of().all, Of().none, lambda c=1: c, lambda c=2: c):
        assert compiled(X, fn)[1] == f(X, fn)[1]


class Labelled:
    def __init__(self, label):
        self.label = label


def test_what_inspect_finds_in_an_object_that_changes():
    def f(x, thing):
        return x + 1, inspect.getattr_static(thing, "label"), inspect.getmro(type(thing))

    compiled, thing = fxjit.compile(f, backend="eager"), Labelled("one")
    assert compiled(X, thing)[1:] == f(X, thing)[1:]
    thing.label = "two"
    assert compiled(X, thing)[1:] == f(X, thing)[1:]


def test_methods_of_generic_aliases_are_those_of_the_class():
    def f(x):
        alias = list[int]
        made = alias()
        alias.append(made, 1)
        return x, made, alias.__name__, dict[str, int].fromkeys("ab", 0)

    assert_same_as_eager(f, X)


def test_the_full_argument_specification():
    class Owner:
        def method(self, u, v=1):
            pass

    def g(a: int, b=2, *c, d=3, **e) -> str:
        pass

    def f(x):
        spec = inspect.getfullargspec(g)
        spec.args.append("more")
        return x * len(spec.args), spec, inspect.getfullargspec(g).args, inspect.getfullargspec(Owner().method)

    assert_same_as_eager(f, X)

    def no_callable(x):
        return x, inspect.getfullargspec(3)

    assert_same_as_eager(no_callable, X, fullgraph=False)


def test_a_signature_that_is_made_when_it_is_asked_for():
    class Configured:
        @property
        def __signature__(self):
            return inspect.Signature([inspect.Parameter("given", inspect.Parameter.KEYWORD_ONLY)])

        def __call__(self, a, b):
            return a

    def f(configured, x):
        return str(inspect.signature(configured)), str(inspect.signature(enum.Enum)), x + 1

    assert_same_as_eager(f, Configured(), X, fullgraph=False)


def test_signatures_of_partial_methods_are_kept_apart():
    """The functions that two of them make have one code; what they are made of lies in an attribute."""

    class Methods:
        def test(self, a, b, *, c):
            return a

        first = functools.partialmethod(test, 1)
        second = functools.partialmethod(test, c=2)

    compiled = fxjit.compile(lambda fn, x: (str(inspect.signature(fn)), x + 1), backend="eager")
    for method in (Methods.first, Methods.second):
        assert compiled(method, X)[0] == str(inspect.signature(method))


def test_new_types_are_of_the_module_that_makes_them():
    def f(x):
        return typing.NewType("Meters", int).__module__, x + 1

    assert_same_as_eager(f, X, fullgraph=False)


def test_the_plain_format_takes_no_specification():
    class Named:
        def __str__(self):
            return "named"

        def __format__(self, spec):
            return "own" if spec == "own" else object.__format__(self, spec)

    def f(x):
        try:
            refused = "{0:>5}".format(Named())
        except TypeError as error:
            refused = str(error)
        return refused, f"{Named()} {Named():own}", x + 1

    assert_same_as_eager(f, X)


class Real:
    def __float__(self):
        return 2.5


class Whole:
    def __index__(self):
        return 5


class Number(float):
    pass


def test_math_asks_its_arguments_for_numbers():
    def program(x):
        found = []
        for function, argument in ((math.sqrt, [1]), (math.sqrt, "a"), (math.factorial, 2.5), (math.floor, [1])):
            try:
                found.append(function(argument))
            except TypeError as error:
                found.append(str(error))
        found += [math.sqrt(Real()), math.floor(Real()), math.factorial(Whole()), math.atan2(Real(), Whole()),
                  math.floor(Number(2.5)), math.prod([1, 2, x.shape[0]]), math.dist((1, 2), (3, x.shape[0])),
                  math.isqrt(x.shape[0])]
        return found, x + 1

    assert_same_as_eager(program, torch.ones(4))


@pytest.mark.parametrize("function", [math.sqrt, math.floor, math.isfinite, math.log1p, lambda x: math.pow(x, 0.5),
                                      lambda x: math.hypot(x, 3.0), lambda x: math.atan2(1.0, x)])
def test_math_takes_the_number_of_a_tensor(function):
    """It is data: the graph breaks, and no TypeError is raised that eager does not raise."""
    def program(x):
        try:
            return function(x.sum()), x + 1
        except TypeError:
            return "refused", x

    x = torch.ones(4)
    assert repr(fxjit.compile(program, backend="eager")(x)) == repr(program(x))


def test_pickled_constants():
    def program(x, options):
        same = "ab" * x.shape[0]
        return pickle.dumps({}), pickle.dumps((1, "a", {"b": 2.5})), pickle.dumps(options), pickle.dumps([same, same]), x + 1

    compiled = fxjit.compile(program, backend="eager")
    for options in ({}, {"a": 1}, {"a": [1, None]}):
        assert repr(compiled(torch.ones(2), options)) == repr(program(torch.ones(2), options))


def test_what_a_debugger_has_set():
    def fn(x):
        return x + (sys.gettrace() is not None) + 2 * (sys.getprofile() is not None)

    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    before = sys.getprofile()
    try:
        for profile in (before, lambda *event: None, before):
            sys.setprofile(profile)
            found, expected = compiled(torch.ones(2)), fn(torch.ones(2))
            assert torch.equal(found, expected)
    finally:
        sys.setprofile(before)
