"""Data descriptors that keep their values in the instance's dict under their own name, which only that dict shows."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

x = torch.ones(2)


class Positive:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, cls):
        return self if obj is None else obj.__dict__[self.name]

    def __set__(self, obj, value):
        if isinstance(value, int) and value < 0:
            raise ValueError("negative")
        obj.__dict__[self.name] = value

    def __delete__(self, obj):
        del obj.__dict__[self.name]


class Summed:
    """Reads nothing: the instance's dict is read."""

    def __set__(self, obj, value):
        obj.__dict__["total"] = obj.__dict__.get("total", 0) + value


class Account:
    count, total = Positive(), Summed()

    def __init__(self, count):
        self.count, self.total = count, 1

    @property
    def read_only(self):
        return self.__dict__["read_only"]


class Steps(torch.nn.Module):
    count = Positive()

    def __init__(self):
        super().__init__()
        self.count = 3

    def forward(self, y):
        self.count = self.count + 1
        return y * self.count


def written(y, account):
    account.count, account.total = account.count + 4, 5
    account.__dict__["read_only"] = y * 2
    return account.count, account.total, account.read_only + y, sorted(account.__dict__)


def deleted(y, account):
    del account.count
    return y + 1, "count" in account.__dict__


def refused(y, account):
    try:
        account.count = -1
    except ValueError as error:
        return y + 1, str(error), account.count


def updated(y, account):
    account.__dict__.update(count=y, read_only=2)
    return account.count, account.read_only


def copied(y, account):
    other = copy.copy(account)
    other.count = y + 1
    return other, account.count


@pytest.mark.parametrize("fn", [written, deleted, refused, updated, copied])
def test_of_an_object_that_is_given(fn):
    assert_same_as_eager(fn, x, Account(1), fullgraph=True, breaks=0)
    mine, eager = Account(1), Account(1)
    fxjit.compile(fn, backend="eager", fullgraph=True)(x, mine)
    fn(x, eager)
    assert str(vars(mine)) == str(vars(eager))


def test_of_an_object_that_is_made():
    def made(y):
        account = Account(2)
        account.__dict__["read_only"] = y + 1
        return account, account.count + y

    account = fxjit.compile(made, backend="eager", fullgraph=True)(x)[0]
    assert vars(account).keys() == {"count", "total", "read_only"} and account.count == 2
    assert torch.equal(account.read_only, x + 1)


def test_of_a_module():
    compiled = fxjit.compile(steps := Steps(), backend="eager", fullgraph=True)
    results = [compiled(x) for _ in range(3)]
    assert steps.count == vars(steps)["count"] == 6 and torch.equal(results[-1], x * 6)


def test_a_break_behind_the_write():
    def breaks(y, account):
        account.count = y + 1
        print(end="")
        return account.count * 2

    assert_same_as_eager(breaks, x, Account(1), fullgraph=False, breaks=1)


class Bound:
    """A descriptor that says what it was read through."""

    def __get__(self, obj, cls):
        return obj, cls


class Named:
    size = 3
    of_class = classmethod(property(lambda cls: slice(0, cls.size)))
    chained = classmethod(Bound())
    shout = str.upper
    push = list.append


class Derived(Named):
    size = 4


def raised(read):
    try:
        return read()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("read", [
    lambda obj: obj.of_class, lambda obj: obj.chained, lambda obj: type(obj).of_class, lambda obj: type(obj).chained,
    lambda obj: raised(lambda: obj.shout), lambda obj: raised(lambda: obj.push(1)),
])
def test_of_c_and_behind_classmethod(read):
    """Whether a classmethod reads the descriptor inside is up to the Python; methods of C refuse instances of other classes."""
    assert_same_as_eager(lambda y, obj: (y + 1, read(obj) is not None, str(read(obj)) if type(read(obj)) is slice else 0,
                                         read(obj)[1] if type(read(obj)) is tuple else 0),
                         x, Derived(), fullgraph=True, breaks=0)
