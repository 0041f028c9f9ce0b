"""Objects whose class looks their attributes up in C: `threading.local` has another dict in each thread."""

from __future__ import annotations

import threading

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
