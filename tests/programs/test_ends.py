"""Each object ends where it ends in eager code, between the same of the frame's other deeds: temporaries, what leaves
containers and attributes, what a variable or a function that returns lets go. With `__del__`, with callbacks of weak
references, with finalizers, and as weak references see it."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fxjit

LOG: list[Any] = []
REFS: list[weakref.ref[Any]] = []


class Ends:
    def __init__(self, n):
        self.n = n

    def __del__(self):
        LOG.append(self.n)


class Plain:
    def __init__(self, n):
        self.n = n


class World:
    """What the programs take from."""

    def __init__(self, make):
        self.l = [make("l0"), make("l1"), make("l2")]
        self.d = {at: make(f"d{at}") for at in range(3)}
        self.a, self.b = make("a"), make("b")
        self.q = deque([make("q0"), make("q1")])
        self.s = {make("s0")}
        self.h = SimpleNamespace(c=make("c"))
        self.t = (make("t0"), make("t1"))
        self.n = [[make("n0")], {1: make("n1")}]


def with_callback(n):
    made = Plain(n)
    REFS.append(weakref.ref(made, lambda _: LOG.append(n)))
    return made


def with_finalizer(n):
    made = Plain(n)
    weakref.finalize(made, LOG.append, n)
    return made


def with_reference(n):
    made = Plain(n)
    REFS.append(weakref.ref(made))
    return made


def alive():
    return sum([ref() is not None for ref in REFS])


# -- objects of the frame's own ------------------------------------------------------------------------------------


def temp_arg(x):
    LOG.append(id(Ends("a")) and "c")
    LOG.append("b")
    return x * 2


def lst_pop(x):
    l = [Ends("a"), Ends("b"), Ends("c")]
    l.pop(0)
    LOG.append(0)
    l.pop()
    LOG.append(1)
    l.clear()
    LOG.append(2)
    return x + 1


def lst_set(x):
    l = [Ends("a"), Ends("b")]
    l[0] = None
    LOG.append(0)
    l[:] = []
    LOG.append(1)
    return x + 1


def lst_del(x):
    l = [Ends("a"), Ends("b"), Ends("c")]
    del l[1]
    LOG.append(0)
    l.remove(l[0])
    LOG.append(1)
    return x + 1


def dct_del(x):
    d = {"p": Ends("a"), "q": Ends("b")}
    del d["p"]
    LOG.append(0)
    d.popitem()
    LOG.append(1)
    d.update(p=Ends("z"))
    d.update(p=1)
    LOG.append(2)
    return x + 1


def attr(x):
    o = Ends("o")
    o.c = Ends("c")
    o.c = Ends("e")
    LOG.append(0)
    del o.c
    LOG.append(1)
    o = None
    LOG.append(2)
    return x + 1


def inner(d):
    LOG.append("in")
    return 3


def inner2():
    a = Ends("a")
    b = Ends("b")
    LOG.append("in")
    return 3


def callee_locals(x):
    n = inner2()
    LOG.append("out")
    return x + n


def default(x):
    f = lambda d=Ends("a"): 1
    f()
    del f
    LOG.append(1)
    return x + 1


def ret_order(x):
    b = Ends("b")
    a = Ends("a")
    c = [Ends("c")]
    return x + len(c)


def fstr(x):
    LOG.append(f"{Ends('a').n}{Ends('b').n}")
    LOG.append(1)
    return x + 1


def deq(x):
    q = deque(maxlen=2)
    q.append(Ends("a"))
    q.append(Ends("b"))
    q.append(Ends("c"))
    LOG.append(0)
    q.popleft()
    LOG.append(1)
    q.clear()
    LOG.append(2)
    return x + 1


def expr_stmt_list(x):
    [Ends("a"), Ends("b")]
    LOG.append(0)
    return x + 1


def argkw(x):

    def f(*a, **k):
        LOG.append(len(a) + len(k))
    f(Ends("a"), Ends("b"), k=Ends("c"))
    LOG.append(0)
    return x + 1


def global_hold(x):
    global G
    G = Ends("g1")
    LOG.append(0)
    G = Ends("g2")
    LOG.append(1)
    G = None
    LOG.append(2)
    return x + 1


def setdef(x):
    d = {}
    d.setdefault(1, Ends("a"))
    d.setdefault(1, Ends("b"))
    LOG.append(0)
    d = None
    LOG.append(1)
    return x + 1


def partial(x):
    p = functools.partial(inner, Ends("a"))
    p()
    LOG.append(0)
    del p
    LOG.append(1)
    return x + 1


# -- what it is given ----------------------------------------------------------------------------------------------


def takes_from_pop(w, x):
    w.l.pop()
    LOG.append(0)
    w.l.pop(0)
    LOG.append(1)
    return x + 1


def takes_from_clear(w, x):
    w.l.clear()
    LOG.append(0)
    w.d.clear()
    LOG.append(1)
    w.s.clear()
    LOG.append(2)
    w.q.clear()
    LOG.append(3)
    return x + 1


def takes_from_assign(w, x):
    w.l[0] = None
    LOG.append(0)
    w.d[1] = 5
    LOG.append(1)
    w.a = 3
    LOG.append(2)
    w.h.c = None
    LOG.append(3)
    return x * 2


def takes_from_delete(w, x):
    del w.l[1]
    LOG.append(0)
    del w.d[2]
    LOG.append(1)
    del w.a
    LOG.append(2)
    del w.h.c
    LOG.append(3)
    del w.h
    LOG.append(4)
    return x * 2


def takes_from_moved(w, x):
    w.a = w.l.pop()
    LOG.append(0)
    w.d[0] = w.b
    LOG.append(1)
    w.b = None
    LOG.append(2)
    w.d.pop(0)
    LOG.append(3)
    return x + 1


def takes_from_held(w, x):
    v = w.l.pop()
    LOG.append(v.n)
    x = x + 1
    v = None
    LOG.append(0)
    return x


def takes_from_local(w, x):
    l = w.l
    w.l = None
    LOG.append(0)
    l = None
    LOG.append(1)
    return x + 1


def takes_from_update(w, x):
    w.d.update({0: 1})
    LOG.append(0)
    w.d |= {1: 1}
    LOG.append(1)
    w.__dict__.update(a=1)
    LOG.append(2)
    return x


def takes_from_fn(w, x):

    def drop(l):
        l.pop()
        LOG.append("in")
    drop(w.l)
    LOG.append(0)
    drop(w.l)
    LOG.append(1)
    return x


def takes_from_twice(w, x):
    w.l.append(w.l[0])
    w.l.pop(0)
    LOG.append(0)
    w.l.pop()
    LOG.append(1)
    return x


def takes_from_cells(w, x):
    v = w.l.pop()

    def f():
        return v.n
    LOG.append(f())
    v = None
    LOG.append(0)
    return x


def counts_references(w, x):
    w.l.pop()
    LOG.append(alive())
    w.d.clear()
    LOG.append(alive())
    return x + 1


def refers_to_what_it_takes(w, x):
    ref = weakref.ref(w.l[-1])
    LOG.append(ref() is None)
    w.l.pop()
    LOG.append(ref() is None)
    return x + 1


def adds_only(w, x):
    w.l.append(w.a)
    w.a = w.b
    w.d[5] = w.t[0]
    return x + len(w.l)


OWN = [
    temp_arg, lst_pop, lst_set, lst_del, dct_del, attr, callee_locals, default, ret_order, fstr, deq, expr_stmt_list, argkw,
    global_hold, setdef, partial,
]
OTHER = [
    takes_from_pop, takes_from_clear, takes_from_assign, takes_from_delete, takes_from_moved, takes_from_held,
    takes_from_local, takes_from_update, takes_from_fn, takes_from_twice, takes_from_cells,
    counts_references, refers_to_what_it_takes,
    adds_only,
]


def ran(fn: Any, *given: Any) -> tuple[Any, ...]:
    REFS.clear()
    LOG.clear()
    given = tuple(World(each) if callable(each) else each for each in given)
    result = fn(*given, torch.ones(2))
    given = ()
    LOG.append("end")
    log = list(LOG)
    gc.collect()
    return log, str(result[0] if isinstance(result, tuple) else result)


@pytest.mark.parametrize("fn", OWN, ids=lambda fn: fn.__name__)
def test_its_own(fn: Any) -> None:
    expected = ran(fn)
    compiled = fxjit.compile(fn, backend="eager")
    assert [ran(compiled), ran(compiled)] == [expected, expected]


@pytest.mark.parametrize("fn", OTHER, ids=lambda fn: fn.__name__)
def test_what_it_takes(fn: Any) -> None:
    compiled = fxjit.compile(fn, backend="eager")
    make = (Ends, with_callback, with_finalizer, with_reference)[OTHER.index(fn) % 4 if fn is not counts_references else 3]
    expected = ran(fn, make)
    assert [ran(compiled, make), ran(compiled, make)] == [expected, expected], make


def test_an_object_that_stays_breaks_nothing() -> None:
    """Also where the frame has one that it does not let go of, the frame is one graph."""
    def run(w: Any, x: torch.Tensor) -> torch.Tensor:
        for held in w.l:
            x = x + len(held.n)
        w.a.n = "other"
        w.l.append(w.a)
        return x

    w = World(Ends)
    assert fxjit.compile(run, backend="eager", fullgraph=True)(w, torch.ones(2)).tolist() == [7.0, 7.0]
    assert w.a.n == "other" and len(w.l) == 4


def test_what_the_compiler_keeps() -> None:
    """The trace that breaks there lets go of the objects too."""
    made = Ends("kept")
    before = sys.getrefcount(made)
    w = World(Ends)
    w.l = [made]
    fxjit.compile(_pops, backend="eager")(w, torch.ones(2))
    assert sys.getrefcount(made) == before


def _pops(w: Any, x: torch.Tensor) -> torch.Tensor:
    w.l.pop()
    LOG.append("popped")
    return x + 1


CHOSEN = Plain("chosen")
CHOSEN.__dict__.update(dict.fromkeys("abcde", 1))


def _guarded(x: torch.Tensor) -> torch.Tensor:
    return x * len(CHOSEN.n) + CHOSEN.a + CHOSEN.b + CHOSEN.c + CHOSEN.d + CHOSEN.e


def test_what_guards_hold_weakly_is_no_reference_of_the_program() -> None:
    """Objects that earlier compiles compare with, or note facts of, end unseen; those of the program's references do not."""
    compiled = fxjit.compile(_guarded, backend="eager")
    x = torch.ones(2)
    for _ in range(9):  # a later call notes what it found
        assert compiled(x).tolist() == _guarded(x).tolist()
    assert weakref.getweakrefcount(CHOSEN)
    for refer, breaks in ((id, 0), (weakref.ref, 1)):
        pops = type(_pops)(_pops.__code__.replace(co_name=refer.__name__), globals())  # which no earlier compile is of
        w = World(Plain)
        w.l.append(CHOSEN)
        kept = refer(CHOSEN)
        fxjit.counters.clear()
        assert fxjit.compile(pops, backend="eager")(w, x).tolist() == [2.0, 2.0]
        assert sum(fxjit.counters["graph_break"].values()) == breaks and kept is not None
