"""`compile(...)` called in compiled code: what it gives is inlined where it is called, and compiled where it is kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxjit
from fxjit import _C


@pytest.fixture(params=["fxjit.compile", "torch.compile"])
def compiler(request):
    if request.param == "fxjit.compile":
        yield fxjit.compile
        return
    fxjit.install()
    try:
        yield torch.compile
    finally:
        fxjit.uninstall()


def sine(x):
    return x.sin()


def programs(compiler):
    def of_a_closure(x):
        @compiler
        def scaled(y):
            return y * x
        return scaled(x) + scaled(x + 1)

    def with_arguments(x):
        return compiler(sine, fullgraph=True, dynamic=False)(x)

    def as_a_decorator(x):
        @compiler(dynamic=True)
        def scaled(y):
            return y * 2
        return scaled(x)

    def disabled(x):
        return x + 1 if compiler(sine, disable=True) is sine else None

    def named(x):
        fn = compiler(sine)
        return fn(x) if (fn.__name__, fn.__wrapped__) == ("sine", sine) else None

    return [of_a_closure, with_arguments, as_a_decorator, disabled, named]


@pytest.mark.parametrize("place", range(5))
def test_one_graph(compiler, place):
    fn = programs(compiler)[place]
    counter = fxjit.testing.CompileCounter()
    compiled = compiler(fn, fullgraph=True, backend=counter)
    for x in (torch.randn(3), torch.randn(3)):
        torch.testing.assert_close(compiled(x), fn(x))
    assert counter.frame_count == 1


def test_kept_by_the_program(compiler):
    class Lazily(nn.Module):
        def __init__(self):
            super().__init__()
            self.compiled = None

        def forward(self, x):
            if self.compiled is None:
                self.compiled = compiler(self.inner, dynamic=True)
            return self.compiled(x)

        def inner(self, x):
            return x * 2

    module = Lazily()
    compiled = compiler(module, fullgraph=True, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert type(module.compiled) is _C.CompiledFunction
    torch.testing.assert_close(module.compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_returned(compiler):
    def several(x):
        return [compiler(lambda y, by=by: y * by) for by in range(2)], x + 1

    made, _ = compiler(several, fullgraph=True, backend="eager")(torch.ones(2))
    assert [type(each) for each in made] == [_C.CompiledFunction] * 2
    assert [each(torch.ones(1)).item() for each in made] == [0, 1]


@pytest.mark.parametrize("arguments", [{"mode": "unknown"}, {"backend": "unknown"}, {"fullgraph": 1}], ids=str)
def test_wrong_arguments_raise(compiler, arguments):
    def wrong(x):
        try:
            compiler(sine, **arguments)
        except Exception as error:
            return type(error).__name__, x + 1
        return None

    assert compiler(wrong, backend="eager")(torch.ones(2))[0] == wrong(torch.ones(2))[0]


def test_a_module_is_compiled_as_it_stands(compiler):
    linear = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiler(lambda x: compiler(linear)(x) + 1, backend="eager")(x), linear(x) + 1)
