"""Functions and operators of the program's own in stored entries: kept where all that they are made of can be said."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.differential import assert_same
from tests.stored.gradients import OPERATOR

import fxjit
from fxjit.backends.store.operators import Unknown, function_text
from fxjit.counters import counters

NewProcess = Callable[[str], ModuleType]
HEAD = "import functools, torch, fxjit\n"
FUNCTION = """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return {gradient}
"""
CALL = "def fn(x):\n    return F.apply(x * 2).sum()\n"


def of(gradient: str, before: str = "") -> str:
    return HEAD + before + FUNCTION.format(gradient=gradient)


KEPT = {
    "operators": of("g * x.cos()"),
    "a global": of("g * x.cos() * K", "K = 3\n"),
    "a helper": of("helper(g, x)", "def helper(g, x, by=2):\n    return g * x.cos() * by\n"),
    "a helper with a closure": of("helper(g, x)", "def made(k):\n    return lambda g, x: g * x.cos() * k\nhelper = made(2)\n"),
    "functional": of("torch.nn.functional.gelu(g) * x.cos()"),
    "what a class has": of("g * x.cos() * F.k\n    k = 3"),
    "a class's function": of("Helper.times(g, x)",
                             "class Helper:\n    @staticmethod\n    def times(g, x):\n        return g * x.cos()\n"),
    "another Function": of("Inner.apply(g) * x.cos()", FUNCTION.format(gradient="g * x").replace("class F", "class Inner")),
    "two functions of one name": of("one(g) * two(g) * three(g) * x",
                                    "one = lambda g: g * 2\ntwo = lambda g: g * 3\nthree = one\n"),
    "once differentiable": of("g * x.cos()").replace("@staticmethod\n    def backward",
                                                     "@staticmethod\n    @torch.autograd.function.once_differentiable\n"
                                                     "    def backward"),
    "a tensor": of("g * x.cos() * K", "K = torch.ones(1)\n"),
    "its base": of("g * x.cos()").replace("class F", "class Base") + "class F(Base):\n    pass\n",
}
REFUSED = {
    "a list": of("g * x.cos() * K[0]", "K = [3]\n"),
    "an object": of("g * x.cos() * K.k", "class A:\n    k = 3\nK = A()\n"),
    "a metaclass": of("g * x.cos() * A.k", "class M(type):\n    pass\nclass A(metaclass=M):\n    k = 3\n"),
    "a descriptor": of("g * x.cos() * A.k",
                       "class D:\n    def __get__(self, o, t):\n        return 3\nclass A:\n    k = D()\n"),
    "the state of the process": of("g * x.cos().to(torch.get_default_dtype())"),
    "an attribute": of("g * x.cos() * helper.k[0]", "def helper():\n    pass\nhelper.k = [3]\n"),
    "an import": of("helper(g)", "def helper(g):\n    import math\n    return g * math.pi\n"),
    "a bound argument": of("helper(g)", "def two(k, g):\n    return g * k\nhelper = functools.partial(two, 2)\n"),
    "a property": of("g * x.cos()\n    @property\n    def p(self):\n        return 3"),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_frame_with_a_function_starts_compiled(new_process: NewProcess, traces: list[str], name: str, backend: str) -> None:
    for _ in range(2):
        traces.clear()
        fn = new_process(KEPT[name] + CALL).fn
        results = []
        for each in (fxjit.compile(fn, backend=backend), fn):
            x = torch.linspace(-1, 1, 6).requires_grad_()
            result = each(x)
            results.append([result.detach(), *torch.autograd.grad(result, x)])
        assert_same(*results, rtol=1e-5)
    assert not traces, "it was traced again"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_said_whole_is_traced_again(new_process: NewProcess, traces: list[str], name: str) -> None:
    with pytest.raises(Unknown):
        function_text(new_process(REFUSED[name]).F)
    for _ in range(2):
        traces.clear()
        fn = new_process(REFUSED[name] + CALL).fn
        results = [each(torch.ones(3, requires_grad=True)) for each in (fxjit.compile(fn, backend="native"), fn)]
        assert_same(*results, rtol=1e-5)
        assert "fn" in traces


def test_functions_of_one_name_are_told_apart(new_process: NewProcess) -> None:
    text = KEPT["two functions of one name"]
    told = {function_text(new_process(each).F) for each in (text, text.replace("three = one", "three = two"),
                                                            text.replace("one(g) * two(g)", "two(g) * one(g)"))}
    assert len(told) == 3


def test_a_class_that_is_another_when_the_entry_is_read(new_process: NewProcess, traces: list[str]) -> None:
    """Of the same name, reached by another name: guards are of the class that the frame has."""
    text = KEPT["operators"] + CALL
    x = torch.ones(3, requires_grad=True)
    fxjit.compile(new_process(text).fn)(x)
    module = new_process(text)
    module.F = type("F", (module.F,), {"forward": staticmethod(lambda ctx, x: x * 5), "__module__": module.__name__})
    traces.clear()
    assert_same(fxjit.compile(module.fn)(x), module.fn(x))
    assert traces


def test_an_operator_of_the_programs_own_starts_compiled(new_process: NewProcess, traces: list[str]) -> None:
    helper = "K = 3\ndef scale(g, by=2):\n    return g * by * K\n"
    operator = OPERATOR.replace("g * ctx.k", "scale(g) * ctx.k")
    text = f"{HEAD}{helper}{operator}def fn(x):\n    return op(x * 2, 3).sum()\n"
    for changed, traced in ((text, True), (text, False), (text.replace("K = 3", "K = 4"), True), (text, False)):
        counters.clear()
        traces.clear()
        fn = new_process(changed).fn
        results: list[Any] = []
        for each in (fxjit.compile(fn), fn):
            x = torch.linspace(-1, 1, 6).requires_grad_()
            results.append(torch.autograd.grad(each(x), x))
        assert_same(*results)
        assert bool(traces) == traced
        assert traced or counters["cache"]["graph hit"] == 1
