"""The standard library, descriptors, metaclasses and containers of users, inside compiled functions."""

import array
import collections
import contextlib
import contextvars
import functools
import json
import string
import textwrap
import types
import weakref

import torch
import torch.nn as nn
from tests.differential import assert_same_as_eager

import fxjit

X = torch.arange(6.0).reshape(2, 3)


def test_percent():
    def f(x):
        return "%s %r %d" % ([1, 2], "a", 3), "%(a)s-%(b)d" % {"a": 1, "b": 2}, "%s" % (x.shape,), "%5.1f%%" % 2.25

    assert_same_as_eager(f, X)


def test_chainmap_userdict_userlist():
    def f(x):
        u = collections.UserList([1, 2])
        u.append(3)
        c = collections.ChainMap({"a": 1}, {"b": 2})
        c["z"] = x
        return list(u), len(u), dict(c), u[0], c["b"]

    assert_same_as_eager(f, X)


def test_counter_ops():
    def f(x):
        a = collections.Counter("aab")
        b = collections.Counter(a=1, c=2)
        return dict(a + b), dict(a - b), a & b, a | b, list(a.elements()), a.total(), a == b, x

    assert_same_as_eager(f, X)


def test_singledispatch():
    @functools.singledispatch
    def g(v):
        return "default"

    @g.register
    def _(v: int):
        return "int"

    @g.register(list)
    def _(v):
        return "list"

    def f(x):
        return g(1), g([1]), g("a"), g(x)

    assert_same_as_eager(f, X)


def test_cached_property_and_lru():
    class A:
        def __init__(self):
            self.n = 0

        @functools.cached_property
        def v(self):
            self.n += 1
            return 5

    @functools.lru_cache(maxsize=4)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    @functools.total_ordering
    class Ordered:
        def __init__(self, k):
            self.k = k

        def __eq__(self, o):
            return self.k == o.k

        def __lt__(self, o):
            return self.k < o.k

    def f(x):
        a = A()
        return a.v, a.v, a.n, fib(10), Ordered(1) >= Ordered(0), Ordered(1) <= Ordered(0), max(Ordered(1), Ordered(3)).k, x

    assert_same_as_eager(f, X)


def test_descriptors():
    class D:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, owner=None):
            if obj is None:
                return self
            return getattr(obj, self.name, 0)

        def __set__(self, obj, v):
            setattr(obj, self.name, v * 2)

    class A:
        d = D()
        __slots__ = ("_d", "z")

    def f(x):
        a = A()
        a.d = 4
        a.z = x
        try:
            a.nope = 1
        except AttributeError as e:
            msg = str(e)
        return a.d, a.z, hasattr(a, "nope"), msg, isinstance(A.d, D)

    assert_same_as_eager(f, X)


def test_getattribute_setattr_delattr():
    class A:
        def __init__(self):
            object.__setattr__(self, "log", [])

        def __setattr__(self, k, v):
            self.log.append(("set", k))
            super().__setattr__(k, v)

        def __delattr__(self, k):
            self.log.append(("del", k))
            super().__delattr__(k)

        def __getattribute__(self, k):
            if k == "magic":
                return 42
            return super().__getattribute__(k)

    def f(x):
        a = A()
        a.b = x
        del a.b
        return a.log, a.magic, hasattr(a, "b"), x

    assert_same_as_eager(f, X)


def test_metaclass():
    class M(type):
        def __call__(cls, *a):
            o = super().__call__(*a)
            o.tag = "m"
            return o

        def __iter__(cls):
            return iter([1, 2])

        def __len__(cls):
            return 7

        def __contains__(cls, k):
            return k == 1

        @property
        def nm(cls):
            return cls.__name__

    class A(metaclass=M):
        def __init__(self, v):
            self.v = v

    def f(x):
        a = A(x)
        return a.tag, a.v, list(A), len(A), 1 in A, A.nm

    assert_same_as_eager(f, X)


def test_new_singleton():
    class S:
        _inst = None

        def __new__(cls, *a):
            o = super().__new__(cls)
            o.made = True
            return o

        def __init__(self, v):
            self.v = v

    class T(tuple):
        def __new__(cls, a, b):
            return super().__new__(cls, (a, b))

        @property
        def first(self):
            return self[0]

    def f(x):
        s = S(x)
        t = T(x, 2)
        return s.made, s.v, t.first, t[1], len(t), isinstance(t, tuple), list(t)

    assert_same_as_eager(f, X)


def test_str_int_subclass():
    class Name(str):
        def shout(self):
            return self.upper() + "!"

    class N(int):
        def dbl(self):
            return self * 2

    def f(x):
        n = Name("ab")
        k = N(4)
        return n.shout(), n + "c", len(n), k.dbl(), k + 1, x * k, n == "ab", {n: 1}["ab"]

    assert_same_as_eager(f, X)


def test_weakref():
    class A:
        pass

    a = A()
    a.v = 3
    r = weakref.ref(a)

    def f(x):
        return x * r().v, r() is a

    assert_same_as_eager(f, X)


def test_contextvar():
    v = contextvars.ContextVar("v", default=3)

    def f(x):
        return x * v.get()

    assert_same_as_eager(f, X)


def test_string_module():
    def f(x):
        return (
            string.ascii_lowercase[:3],
            textwrap.dedent("  a\n  b"),
            "a.b.c".rpartition("."),
            "ab".center(6, "*"),
            "AbC".swapcase(),
            "x1".isalnum(),
            "a b".title(),
            "%".join(["a"]),
            "tEst".casefold(),
            "a\nb".splitlines(),
            str.maketrans("a", "b"),
            "cab".translate(str.maketrans("a", "b")),
            "abc".find("c"),
            "k=v".partition("="),
            x,
        )

    assert_same_as_eager(f, X)


def test_json():
    def f(x):
        return json.loads(json.dumps({"a": [1, 2], "b": None})), x

    assert_same_as_eager(f, X)


def test_type3():
    def f(x):
        T = type("T", (), {"a": 1})
        return T().a, T.__name__, x

    assert_same_as_eager(f, X, fullgraph=False)


def test_class_in_function():
    def f(x):
        class Local:
            k = 3

            def go(self, y):
                return y * self.k

        return Local().go(x)

    assert_same_as_eager(f, X, fullgraph=False)


def test_simplenamespace_namedtuple_in_state():
    P = collections.namedtuple("P", "a b")

    def f(x, ns):
        ns.z = x
        n = types.SimpleNamespace(a=1, b=x)
        n.c = P(1, n.b)
        return n.c, n.a, ns.k, vars(n)["a"], n

    assert_same_as_eager(f, X, types.SimpleNamespace(k=4))


def test_partialmethod_wraps():
    class A:
        def go(self, a, b):
            return a - b

        ten = functools.partialmethod(go, 10)

    def f(x):
        return A().ten(3), x

    assert_same_as_eager(f, X)


def test_exceptions_groups_and_custom():
    class E(ValueError):
        def __str__(self):
            return "E!" + str(self.args)

    def f(x):
        out = []
        try:
            raise E(1, 2)
        except (KeyError, ValueError) as e:
            out.append(str(e))
            out.append(e.args)
        try:
            raise RuntimeError("a")
        except RuntimeError as e:
            out.append(repr(e))
        try:
            assert 1 == 2, "msg"
        except AssertionError as e:
            out.append(str(e))
        try:
            try:
                1 / 0
            finally:
                out.append("f")
        except ZeroDivisionError as e:
            out.append(type(e).__name__)

        def g():
            for i in range(3):
                try:
                    if i == 1:
                        continue
                    if i == 2:
                        break
                    out.append(i)
                finally:
                    out.append("x")

        g()
        return out, x

    assert_same_as_eager(f, X)


def test_contextlib_more():
    class CM:
        def __init__(self, log):
            self.log = log

        def __enter__(self):
            self.log.append("e")
            return self

        def __exit__(self, t, v, tb):
            self.log.append(t.__name__ if t else None)
            return True

    def f(x):
        log = []
        with CM(log) as c, CM(log):
            raise ValueError("a")
        with contextlib.ExitStack() as st:
            st.enter_context(CM(log))
            st.callback(log.append, "cb")

        @contextlib.contextmanager
        def cm():
            log.append(1)
            yield
            log.append(2)

        with cm():
            log.append("b")
        return log, x + 1

    assert_same_as_eager(f, X)


def test_sets_of_tuples_and_dict_order():
    def f(x):
        d = {}
        for k in ["b", "a", "c"]:
            d[k] = len(d)
        del d["b"]
        d["b"] = 9
        s = {(1, "a"), (2, "b")}
        return list(d.items()), (1, "a") in s, sorted(s), dict(sorted(d.items())), max(d, key=d.get), x

    assert_same_as_eager(f, X)


def test_args_dict_many_mutations():
    def f(d, x):
        d["a"]["n"] = d["a"]["n"] + 1
        d.setdefault("l", []).extend([1, x])
        v = d.pop("p")
        d["p"] = v
        d.update(q=1)
        for k in list(d):
            if k.startswith("t"):
                del d[k]
        return list(d)

    assert_same_as_eager(f, {"a": {"n": 1}, "p": 2, "t1": 3, "t2": 4}, X)


def test_moduledict_like():
    m = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
    l = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
    pl = nn.ParameterList([nn.Parameter(torch.ones(3))])

    def f(x):
        for k, v in m.items():
            x = v(x)
        for i, k in enumerate(l):
            x = k(x)
        return x + pl[0], len(m), list(m), len(l), "a" in m

    with torch.no_grad():
        e = f(X)
        o = fxjit.compile(f, fullgraph=True, backend="eager")(X)
    assert torch.allclose(e[0], o[0]) and e[1:] == o[1:]


def test_abc_collections():
    class L(collections.abc.Sequence):
        def __init__(self, *a):
            self.a = a

        def __getitem__(self, i):
            return self.a[i]

        def __len__(self):
            return len(self.a)

    class M(collections.abc.MutableMapping):
        def __init__(self):
            self.d = {}

        def __getitem__(self, k):
            return self.d[k]

        def __setitem__(self, k, v):
            self.d[k] = v

        def __delitem__(self, k):
            del self.d[k]

        def __iter__(self):
            return iter(self.d)

        def __len__(self):
            return len(self.d)

    def f(x):
        l = L(1, 2, x)
        m = M()
        m["a"] = 1
        m.update(b=2)
        return (
            list(l),
            2 in l,
            l.index(2),
            list(reversed(L(1, 2))),
            dict(m),
            m.get("z"),
            m.pop("a"),
            list(m.items()),
            m.setdefault("q", 3),
            len(m),
        )

    assert_same_as_eager(f, X)


def test_a_class_whose_module_is_no_text():
    """`namedtuple(module=...)` takes anything, and a class body can write anything to `__module__`."""
    pair = collections.namedtuple("pair", "a b", module=collections)

    class Scale:
        __module__ = collections

        def __enter__(self):
            return 2

        def __exit__(self, *exception):
            return False

        def __call__(self, x):
            return x * 3

    def f(x, scale):
        with scale as twice:
            made = pair(x * twice, scale(x))
        return made.a + made.b, isinstance(made, pair), type(made).__module__ is collections, getattr(scale, "a", None)

    assert_same_as_eager(f, X, Scale())


def test_views_know_their_base_and_temporaries_end_in_order():
    ended = []

    class Temporary:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            ended.append(self.name)

    def views(x):
        y = x + 1
        return y.view(-1)._base is y, x.view(-1)._base is x, y[:1].view(-1)._base is y, y

    def temporaries(x):
        Temporary("first")
        y = x + 1
        kept = Temporary("second")
        ended.append("middle")
        kept = Temporary("third")  # noqa: F841
        ended.append("end")
        return y

    x = torch.ones(2)
    assert fxjit.compile(views, backend="eager")(x)[:3] == views(x)[:3] == (True, True, True)
    for fn in (temporaries, fxjit.compile(temporaries, backend="eager")):
        ended.clear()
        fn(x)
        assert ended == ["first", "middle", "second", "end", "third"]


def test_the_length_of_an_object_of_a_c_extension_is_read_and_guarded() -> None:
    def fn(x: torch.Tensor, obj: object) -> object:
        return x * len(obj) + (1 if obj else 2)

    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for obj in (array.array("i", [1, 2, 3]), array.array("i"), array.array("i", [1] * 5), array.array("d", [1, 2]),
                memoryview(b"abc")):
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2), obj), fn(torch.ones(2), obj))
