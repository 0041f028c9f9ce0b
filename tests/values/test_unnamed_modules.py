"""Classes that do not say which module they are of, or say something that is no text, are used as other classes are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

#: What makes a class `C`, run where there is no `__name__`, and what a program does with it and with an instance `o` of it.
PROGRAMS = {
    "an instance's method": ("C = type('C', (), {'m': lambda self, x: x * self.v})\no = C()\no.v = 2", "o.m(x)"),
    "made in the program": ("C = type('C', (), {'__init__': lambda self, v: setattr(self, 'v', v)})", "x * C(3).v"),
    "written": ("C = type('C', (), {})\no = C()\no.n = 0", "(setattr(o, 'n', 3), x * o.n)[1]"),
    "called": ("C = type('C', (), {'__call__': lambda self, x: x * 2})\no = C()", "o(x)"),
    "operators": ("C = type('C', (), {'__add__': lambda self, x: x + 1, '__rmul__': lambda self, x: x * 3})\no = C()",
                  "(o + x) * o"),
    "tested": ("C = type('C', (), {})\no = C()", "x + isinstance(o, C) + issubclass(C, object) + (type(o) is C)"),
    "compared": ("C = type('C', (), {'__eq__': lambda self, other: True, '__hash__': None})\no = C()",
                 "x + (o == 3) + (o in [4])"),
    "a key": ("C = type('C', (), {})\no = C()", "x * {o: 3}[o] + len({o, C})"),
    "a generator of random numbers": ("import random\nC = type('C', (random.Random,), {'random': lambda self: 0.25})",
                                      "x * C(3).random()"),
    "an exception": ("C = type('C', (Exception,), {})\ndef caught(x):\n    try:\n        raise C(3)\n    except C as e:\n"
                     "        return x * e.args[0]", "caught(x)"),
    "a context manager": ("C = type('C', (), {'__enter__': lambda self: 2, '__exit__': lambda self, *a: None})\n"
                          "def within(x):\n    with C() as v:\n        return x * v", "within(x)"),
    "a module": ("import torch\nC = type('C', (torch.nn.Module,), {'forward': lambda self, x: x * 2})\no = C()", "o(x)"),
    "a tensor": ("import torch\nC = type('C', (torch.Tensor,), {})\no = torch.ones(3).as_subclass(C)",
                 "(x + o).as_subclass(torch.Tensor)"),
    "a number": ("C = type('C', (int,), {})\no = C(3)", "x * o + (o + 1)"),
    "a list": ("C = type('C', (list,), {})\no = C([1, 2])", "x * len(o) + o[1]"),
    "a dict": ("C = type('C', (dict,), {'__missing__': lambda self, key: 5})\no = C(a=2)", "x * o['a'] + o['b']"),
    "a tuple": ("C = type('C', (tuple,), {})\no = C((1, 2))", "x * len(o) + o[1]"),
    "an iterator": ("C = type('C', (), {'__iter__': lambda self: iter((1, 2)), '__len__': lambda self: 2})\no = C()",
                    "x * sum(o) + len(o)"),
    "properties": ("C = type('C', (), {'p': property(lambda self: 2), 's': staticmethod(lambda x: x + 1),\n"
                   "    'c': classmethod(lambda cls, x: x * 2)})\no = C()", "o.c(o.s(x)) * o.p"),
    "slots": ("C = type('C', (), {'__slots__': ('a',)})\no = C()\no.a = 4", "x * o.a"),
    "a metaclass": ("M = type('M', (type,), {'__len__': lambda cls: 3})\nC = M('C', (), {})", "x * len(C)"),
    "of an abstract class": ("import abc\nA = abc.ABCMeta('A', (), {})\nC = type('C', (), {})\nA.register(C)\no = C()",
                             "x + isinstance(o, A)"),
    "a derivative of the program's": ("import torch\nC = type('C', (torch.autograd.Function,), {\n"
                                      "    'forward': staticmethod(lambda ctx, x: x * 2),\n"
                                      "    'backward': staticmethod(lambda ctx, g: g * 5)})", "C.apply(x)"),
    "a data class": ("import dataclasses\nC = dataclasses.make_dataclass('C', ['a', 'b'])\n"
                     "C = type('C', (C,), {})\no = C(1, 2)", "x * dataclasses.replace(o, a=3).a + o.b"),
}


@pytest.mark.parametrize("said", ["", "C.__module__ = 5\n", "C.__module__ = None\n"], ids=["nothing", "a number", "None"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_classes_that_do_not_name_their_module(name: str, said: str) -> None:
    made, used = PROGRAMS[name]

    head, _, objects = made.partition("\no = ")
    lines = [head, said, f"o = {objects}" if objects else "", "def fn(x):", f"    return {used}"]
    names: dict[str, Any] = {}  # has no __name__
    exec("\n".join(lines), names)
    assert vars(names["C"]).get("__module__") in (None, 5)
    assert_same_as_eager(names["fn"], torch.linspace(-1, 1, 3, requires_grad=True), fullgraph=False)
