"""Special methods that are functions of neither Python nor CPython, as Cython's are: the class has what binds itself."""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same

import fxjit


class Native:
    """As a function of Cython's."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else functools.partial(self.fn, obj)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class Plain:
    pass


BASES = (Plain, dict, OrderedDict, UserDict, list, deque, set, tuple, int, str, Exception, torch.nn.Module)


def doubles(self: Any, name: str, value: Any) -> None:
    object.__setattr__(self, name, value * 2 if type(value) is int else value)


def leaves_minus_one(self: Any, name: str) -> None:
    object.__setattr__(self, name, -1)


def found(self: Any, name: str) -> Any:
    return 7 if name == "near" else object.__getattribute__(self, name)


def enters(o: Any, x: Any) -> Any:
    with o as number:
        return x * number


METHODS: dict[str, tuple[dict[str, Any], Callable[[Any, Any], Any]]] = {
    "setattr": ({"setattr": doubles}, lambda o, x: (setattr(o, "near", 3), x * o.near)[1]),
    "delattr": ({"delattr": leaves_minus_one}, lambda o, x: (setattr(o, "near", 3), delattr(o, "near"), x * o.near)[2]),
    "getattribute": ({"getattribute": found}, lambda o, x: (setattr(o, "near", 1), x * o.near)[1]),
    "getattribute of nothing": ({"getattribute": found}, lambda o, x: x * o.near),
    "getattr": ({"getattr": lambda self, name: 5}, lambda o, x: x * o.near),
    "len": ({"len": lambda self: 9}, lambda o, x: x * len(o)),
    "bool": ({"bool": lambda self: False}, lambda o, x: x * 2 if o else x * 3),
    "eq": ({"eq": lambda self, other: True, "hash": lambda self: 1}, lambda o, x: x * 2 if o == 3 else x * 3),
    "hash": ({"hash": lambda self: 42}, lambda o, x: x * hash(o)),
    "iter": ({"iter": lambda self: iter([1, 2, 5])}, lambda o, x: x * sum(o)),
    "contains": ({"contains": lambda self, key: key == "a"}, lambda o, x: x * 2 if "a" in o else x * 3),
    "getitem": ({"getitem": lambda self, key: key + 10}, lambda o, x: x * o[2]),
    "setitem": ({"setitem": lambda self, key, value: object.__setattr__(self, "near", key + value)},
                lambda o, x: (operator.setitem(o, 1, 2), x * o.near)[1]),
    "delitem": ({"delitem": lambda self, key: object.__setattr__(self, "near", key)},
                lambda o, x: (operator.delitem(o, 6), x * o.near)[1]),
    "call": ({"call": lambda self, number: number + 10}, lambda o, x: x * o(2)),
    "add": ({"add": lambda self, number: number + 10}, lambda o, x: x * (o + 2)),
    "radd": ({"radd": lambda self, number: number + 10}, lambda o, x: x * (2 + o)),
    "iadd": ({"iadd": lambda self, number: number + 10}, lambda o, x: x * operator.iadd(o, 2)),
    "int": ({"int": lambda self: 3}, lambda o, x: x * int(o)),
    "index": ({"index": lambda self: 3}, lambda o, x: x * [1, 2, 3, 4][o]),
    "float": ({"float": lambda self: 3.5}, lambda o, x: x * float(o)),
    "with": ({"enter": lambda self: 3, "exit": lambda self, *error: None}, enters),
    "str": ({"str": lambda self: "abc"}, lambda o, x: x * len(str(o))),
    "repr": ({"repr": lambda self: "abcd"}, lambda o, x: x * len(repr(o))),
    "format": ({"format": lambda self, spec: "abcde"}, lambda o, x: x * len(f"{o}")),
    "neg": ({"neg": lambda self: 8}, lambda o, x: x * -o),
    "lt": ({"lt": lambda self, other: True}, lambda o, x: x * 2 if o < 3 else x),
    "init": ({"init": lambda self: object.__setattr__(self, "near", 4)}, lambda o, x: x * type(o)().near),
    "missing": ({"missing": lambda self, key: 4}, lambda o, x: x * o["u"]),
    "next": ({"next": lambda self: 4}, lambda o, x: x * next(o)),
    "dir": ({"dir": lambda self: ["a", "b"]}, lambda o, x: x * len(dir(o))),
}


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:  # compared with eager's
        return type(error), str(error)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", BASES)
def test_they_are_called_as_in_eager(base: type, method: str) -> None:
    special, use = METHODS[method]
    cls: Any = type("Own", (base,), {f"__{name}__": Native(fn) for name, fn in special.items()})

    def given(x: torch.Tensor, obj: Any) -> Any:
        return use(obj, x)

    def made(x: torch.Tensor) -> Any:
        return use(cls(), x)

    x = torch.ones(2)
    for fn, args in ((given, lambda: (x, cls())), (made, lambda: (x,))):
        try:
            args()
        except Exception:  # a class that cannot be made so
            continue
        fxjit.reset()
        compiled = fxjit.compile(fn, backend="eager")
        for _ in range(2):
            assert_same(outcome(compiled, *args()), outcome(fn, *args()))


@pytest.mark.parametrize("name", ["__getattribute__", "__getattr__", "__setattr__", "__call__", "__len__", "__contains__"])
def test_of_metaclasses(name: str) -> None:
    answers: dict[str, Callable[..., Any]] = {
        "__getattribute__": lambda cls, name: 7 if name == "near" else type.__getattribute__(cls, name),
        "__getattr__": lambda cls, name: 5,
        "__setattr__": lambda cls, name, value: type.__setattr__(cls, name, value * 2),
        "__call__": lambda cls: 4,
        "__len__": lambda cls: 6,
        "__contains__": lambda cls, key: key == 1,
    }
    meta = type("Meta", (type,), {name: Native(answers[name])})
    uses: dict[str, Callable[[Any], Any]] = {
        "__getattribute__": lambda cls: cls.near, "__getattr__": lambda cls: cls.far,
        "__setattr__": lambda cls: (setattr(cls, "near", 3), cls.near)[1], "__call__": lambda cls: cls(),
        "__len__": len, "__contains__": lambda cls: 1 in cls,
    }

    def fn(x: torch.Tensor, cls: Any) -> Any:
        return x * uses[name](cls)

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        cls, same = (meta("Own", (), {"near": 1}) for _ in range(2))
        assert_same(outcome(compiled, torch.ones(2), cls), outcome(fn, torch.ones(2), same))
