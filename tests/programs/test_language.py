"""Programs as users write them: classes, closures, generators, exceptions, with graph breaks in between."""

import collections
import math

import torch
from tests.differential import assert_same, assert_same_as_eager

import fxjit

X = torch.arange(6.0).reshape(2, 3)


def test_break_with_containers():
    def f(x, items, d):
        local = [x + 1, {"k": x}]
        alias = local
        s = {1, 2}
        it = iter([1, 2, 3])
        next(it)
        z = zip([1, 2, 3], [4, 5, 6])
        next(z)
        items.append(local)
        d["x"] = items
        q = collections.deque([1], maxlen=2)
        fxjit.graph_break()
        alias.append(3)
        q.append(x)
        return local, s, list(it), list(z), d["x"] is items, items[-1] is local, q, x * 2

    assert_same_as_eager(f, X, [1], {"a": 1}, fullgraph=False)


def test_break_in_callee():
    def g(x, acc):
        acc.append(x)
        fxjit.graph_break()
        acc.append(x + 1)
        return x * 2

    def f(x):
        acc = []
        y = g(x, acc)
        return acc, y + 1

    assert_same_as_eager(f, X, fullgraph=False)


def test_custom_container():
    class Bag:
        def __init__(self):
            self.d = {}

        def __setitem__(self, k, v):
            self.d[k] = v

        def __getitem__(self, k):
            return self.d[k]

        def __len__(self):
            return len(self.d)

        def __iter__(self):
            return iter(self.d)

        def __contains__(self, k):
            return k in self.d

        def __bool__(self):
            return len(self.d) > 1

        def __call__(self, x):
            return x + len(self)

    def f(x):
        b = Bag()
        b["a"] = x
        b["b"] = 2
        return [k for k in b], len(b), "a" in b, bool(b), b(x), b["a"], not b

    assert_same_as_eager(f, X)


def test_returned_user_object():
    class P:
        def __init__(self, x):
            self.x = x
            self.l = [x]

    def f(x):
        p = P(x)
        p.y = p.l
        return p

    assert_same_as_eager(f, X)


def test_mro_super_mixins():
    class A:
        def go(self, x):
            return x + 1

    class B(A):
        def go(self, x):
            return super().go(x) * 2

    class C(A):
        def go(self, x):
            return super().go(x) * 3

    class D(B, C):
        @classmethod
        def make(cls):
            return cls()

        @staticmethod
        def k():
            return 5

        @property
        def p(self):
            return self.k() + 1

    def f(x):
        d = D.make()
        return d.go(x), d.p, D.k(), [c.__name__ for c in D.__mro__]

    assert_same_as_eager(f, X)


def test_dunder_ops():
    class V:
        def __init__(self, t):
            self.t = t

        def __add__(self, o):
            return V(self.t + (o.t if isinstance(o, V) else o))

        __radd__ = __add__

        def __mul__(self, o):
            return V(self.t * o)

        def __neg__(self):
            return V(-self.t)

        def __eq__(self, o):
            return isinstance(o, V)

        def __hash__(self):
            return 1

        def __lt__(self, o):
            return False

        def __getattr__(self, n):
            if n.startswith("q"):
                return n
            raise AttributeError(n)

        def __repr__(self):
            return "V!"

        def __enter__(self):
            return self

        def __exit__(self, *a):
            return False

        def __matmul__(self, o):
            return "mm"

        def __iadd__(self, o):
            self.t = self.t + 1
            return self

        def __contains__(self, k):
            return k == 3

        def __getitem__(self, k):
            return k

        def __index__(self):
            return 2

    def f(x):
        a = V(x)
        b = a + 1
        c = 1 + a
        d = sum([V(x), V(x)], V(0))
        e = -a
        with a as w:
            pass
        a += 3
        return (
            b.t,
            c.t,
            d.t,
            e.t,
            a == b,
            a.q1,
            hasattr(a, "zz"),
            f"{a}",
            w is a,
            a @ 3,
            a.t,
            3 in a,
            a[1:2],
            [1, 2, 3][a],
            {a: 1}[b],
            a * 2 == 3,
        )

    assert_same_as_eager(f, X)


def test_closures():
    def f(x):
        n = 0
        fs = []

        def inc(by=1):
            nonlocal n
            n += by
            return n

        for i in range(3):
            fs.append(lambda v, i=i: v * i)
        inc()
        inc(by=4)
        return n, [g(x) for g in fs], (lambda *a, **k: (a, k))(1, 2, z=3)

    assert_same_as_eager(f, X)


def test_returned_closure():
    def f(x):
        y = x + 1

        def g(z):
            return y + z

        return g

    c = fxjit.compile(f, fullgraph=True, backend="eager")
    assert torch.equal(c(X)(1), X + 2)


def test_kwargs_star():
    def g(a, *args, b=2, **kw):
        return a, args, b, kw

    def f(x):
        d = {"b": 5, "c": x}
        return g(1, *[2, 3], **d), g(*(1,), **{}), g(x, b=3, **{"q": 1})

    assert_same_as_eager(f, X)


def test_match():
    def m(v):
        match v:
            case [a, b, *rest]:
                return ("seq", a, b, rest)
            case {"k": k, **rest}:
                return ("map", k, rest)
            case int() | float():
                return "num"
            case str(s) if len(s) > 1:
                return "str" + s
            case None:
                return "none"
            case _:
                return "other"

    def f(x):
        return m([1, x, 3]), m({"k": 1, "z": x}), m(3), m("ab"), m("a"), m(None), m(x)

    assert_same_as_eager(f, X)


def test_try_finally():
    def g(log, n):
        try:
            log.append("a")
            if n == 1:
                raise ValueError("bad")
            if n == 2:
                return "ret"
        except ValueError as e:
            log.append(str(e))
            return "exc"
        else:
            log.append("else")
        finally:
            log.append("fin")
        return "end"

    def f(x):
        log = []
        return [g(log, i) for i in range(3)], log, x + 1

    assert_same_as_eager(f, X)


def test_exception_chaining():
    class MyErr(Exception):
        def __init__(self, code):
            super().__init__("code", code)
            self.code = code

    def f(x):
        try:
            try:
                {}["a"]
            except KeyError as e:
                raise MyErr(3) from e
        except MyErr as err:
            return err.code, err.args, isinstance(err.__cause__, KeyError), type(err).__name__, x + 1

    assert_same_as_eager(f, X)


def test_generators_deep():
    def tree(n):
        if n:
            yield from tree(n - 1)
            got = yield n
            if got:
                yield got * 10

    def f(x):
        g = tree(3)
        out = [next(g), g.send(7), list(g)]

        def h():
            try:
                yield 1
            finally:
                out.append("closed")

        k = h()
        next(k)
        k.close()
        return out, x

    assert_same_as_eager(f, X)


def test_string_building():
    def f(x):
        s = ""
        for i, n in enumerate(x.shape):
            s += f"{i}={n};"
        return (
            s,
            f"{x.dtype}",
            "{:>10}|{:<5}|{:^7}".format("a", 1, 2.5),
            "%05.2f|%r|%s" % (3.14159, "q", [1, 2]),
            s.split(";"),
            "".join(reversed("abc")),
            x.device.type,
        )

    assert_same_as_eager(f, X)


def test_walrus_while():
    def f(x):
        vals = [1, 2, 3, 0, 5]
        i = 0
        total = x
        while v := vals[i]:
            total = total + v
            i += 1
            if i > 10:
                break
        else:
            total = total * 2
        return total, i

    assert_same_as_eager(f, X)


def test_dict_of_lists_grouping():
    def f(x):
        groups = collections.defaultdict(list)
        for i, n in enumerate(["a", "b", "a"]):
            groups[n].append(x[0, i])
        return {k: torch.stack(v) for k, v in groups.items()}, dict(groups).keys()

    c = fxjit.compile(f, fullgraph=True, backend="eager")
    o, k = c(X)
    e, ek = f(X)
    assert list(o) == list(e) and all(torch.equal(o[i], e[i]) for i in o) and list(k) == list(ek)


def test_nested_fn_defaults_mutable():
    def g(v, acc=[]):
        acc.append(v)
        return len(acc)

    def f(x):
        return g(1), g(2), x + 1

    c = fxjit.compile(f, fullgraph=True, backend="eager")
    assert c(X)[:2] == (1, 2)
    assert c(X)[:2] == (3, 4)


def test_class_attr_state():
    class K:
        count = 0
        items = []

    def f(x):
        K.count += 1
        K.items.append(K.count)
        return x + K.count

    c = fxjit.compile(f, fullgraph=True, backend="eager")
    c(X)
    c(X)
    assert K.count == 2 and K.items == [1, 2]


def test_object_args_mutation():
    class S:
        def __init__(self):
            self.n = 0
            self.hist = []
            self.d = {}

    def f(s, x):
        s.n += 1
        s.hist.append(x * s.n)
        s.d["last"] = s.hist[-1]
        s.new = s.d
        return s.hist[-1]

    assert_same_as_eager(f, S(), X)


def test_sorted_tensors_by_item_key():
    def f(x):
        ts = [torch.ones(3), torch.ones(1), torch.ones(2)]
        ts.sort(key=lambda t: t.shape[0], reverse=True)
        return [t.shape for t in ts], max(ts, key=len), min(ts, key=lambda t: t.numel()), x

    assert_same_as_eager(f, X)


def test_zip_dict_star():
    def f(x):
        pairs = [(1, "a"), (2, "b")]
        n, s = zip(*pairs)
        return n, s, dict(pairs), {v: k for k, v in pairs}, list(map(list, zip(*[[1, 2], [3, 4]]))), x

    assert_same_as_eager(f, X)


def test_star_index():
    def f(x):
        idx = (slice(None), 0)
        return x[idx], x[..., 1:], x[None], x[:, [0, 2]]

    assert_same_as_eager(f, X)


def test_bytes_complex_etc():
    def f(x):
        return (
            b"abc"[1],
            b"abc"[1:],
            (1 + 2j) * 2,
            (1 + 2j).imag,
            0x1F,
            1_000,
            True + True,
            None is None,
            ... is Ellipsis,
            NotImplemented,
            x,
        )

    assert_same_as_eager(f, X)


def test_infinite_complex_numbers():
    def f(x):
        return x * complex(0, math.inf), x + complex(1, -math.inf), torch.full((3,), complex(0, math.nan)) * x[1]

    for backend in ("eager", "aot_eager", "native"):
        assert_same(fxjit.compile(f, backend=backend)(X), f(X))


def test_inplace_on_shared_list_of_tensors():
    def f(ts):
        for t in ts:
            t.add_(1)
        ts[0] = ts[0] * 2
        return ts

    assert_same_as_eager(f, [X, X + 1])
