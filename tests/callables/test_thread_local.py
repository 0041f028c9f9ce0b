"""Objects whose class looks their attributes up in C: `threading.local` has another dict in each thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import fxjit


class Settings(threading.local):
    factor = 7

    def __init__(self):
        self.own = 1.5


plain, settings = threading.local(), Settings()


def read(x):
    return x * getattr(plain, "value", 3.0), hasattr(plain, "value"), plain.__dict__.get("value")


def read_of_class(x):
    return x * settings.own * settings.factor, settings.__dict__


def write(x):
    plain.value = 5.0
    return x * plain.value


def check(fn, compiled):
    assert repr(compiled(torch.ones(2))) == repr(fn(torch.ones(2)))


def test_attributes_of_a_thread():
    for fn in (read, read_of_class):
        compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
        for value in (None, 2.0, 4.0, None):
            plain.__dict__.clear()
            if value is not None:
                plain.value = settings.own = value
            check(fn, compiled)
        plain.value = 6.0
        thread = threading.Thread(target=check, args=(fn, compiled))
        thread.start()
        thread.join()
        check(fn, compiled)


def test_a_write_is_made():
    plain.__dict__.clear()
    assert torch.equal(fxjit.compile(write, backend="eager")(torch.ones(2)), torch.full((2,), 5.0))
    assert plain.value == 5.0


class Counted(threading.local):
    limit = 3

    def __init__(self):
        self.count = 0

    def __setattr__(self, name, value):
        super().__setattr__(name, value * 2 if name == "doubled" else value)


counted = Counted()


def write_of_class(x):
    counted.count += 1
    counted.doubled = 4
    counted.limit = 5
    return x * counted.count * counted.doubled * counted.limit


def delete(x):
    plain.a, plain.b = 1, 2
    del plain.a
    del counted.count
    messages = []
    for owner, name in ((plain, "a"), (plain, "nothing"), (counted, "count"), (counted, "nothing")):
        try:
            delattr(owner, name)
        except AttributeError as error:
            messages.append(str(error))
    return x + plain.b, messages, hasattr(plain, "a"), hasattr(counted, "count")


def both_ways(fn, x):
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        left = []
        for run in (fn, compiled):
            for each in (plain, counted):
                each.__dict__.clear()
            counted.count = 2
            left.append((repr(run(x)), dict(plain.__dict__), dict(counted.__dict__)))
        assert left[0] == left[1]


def test_writes_are_those_of_the_running_thread():
    for fn in (write_of_class, delete):
        both_ways(fn, torch.ones(2))
        with ThreadPoolExecutor(1) as threads:  # whose result raises what failed there
            threads.submit(both_ways, fn, torch.ones(2)).result()


def test_an_attribute_of_the_class_is_none_of_the_threads():
    def fn(x):
        try:
            del settings.factor
        except AttributeError:
            return x + 1
        return x + 2

    assert torch.equal(fxjit.compile(fn, backend="eager")(torch.ones(2)), fn(torch.ones(2)))


def test_one_made_where_it_is_first_needed():
    class Owner:
        def state(self):
            if not hasattr(self, "local"):
                self.local = threading.local()
            if not hasattr(self.local, "count"):
                self.local.count, self.local.gone = 1, 2
                del self.local.gone
            self.local.count += 1
            return self.local

    def program(x, owner):
        local = owner.state()
        return x * local.count, hasattr(local, "gone"), type(local).__name__

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    theirs, mine = Owner(), Owner()
    for _ in range(3):
        assert str(compiled(torch.ones(2), mine)) == str(program(torch.ones(2), theirs))
    assert vars(mine.local) == vars(theirs.local) == {"count": 4}
    others = []
    thread = threading.Thread(target=lambda: others.append(vars(mine.local)))
    thread.start()
    thread.join()
    assert others == [{}]
