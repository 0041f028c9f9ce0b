"""`compile(...)` called in compiled code: what it gives is inlined where it is called, and compiled where it is kept."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import fxjit
from fxjit import _C
from fxjit.module import OptimizedModule


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


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.inner = nn.Linear(3, 3)
        self.scale = 3.0

    def forward(self, x, times=1):
        return self.inner(x) * self.weight * times


def programs_of_modules(compiler):
    outer = Scale()

    def called(x):
        return compiler(outer)(x) + 1

    def called_with_keywords(x):
        return compiler(outer, fullgraph=True)(x, times=2) + outer.scale

    def called_twice(x):
        compiled = compiler(outer, dynamic=False)
        return compiled(compiled(x))

    def of_a_child(x):
        return compiler(model=outer.inner)(x)

    def attributes(x):
        compiled = compiler(outer)
        kinds = isinstance(compiled, nn.Module), compiled._orig_mod is outer
        return compiled(x) * compiled.scale + compiled.weight + compiled.inner(x), compiled.training, kinds, callable(compiled)

    def missing(x):
        return x + getattr(compiler(outer), "absent", 5)

    def disabled(x):
        return compiler(outer, disable=True)(x)

    def of_a_sequence(x):
        for module in [compiler(each) for each in (outer.inner, outer)]:
            x = module(x).relu()
        return x

    return outer, [called, called_with_keywords, called_twice, of_a_child, attributes, missing, disabled, of_a_sequence]


def gradients_of(fn, module, x):
    x = x.clone().requires_grad_()
    module.zero_grad()
    result = fn(x)
    first = result[0] if type(result) is tuple else result
    first.square().sum().backward()
    return result, x.grad, [None if each.grad is None else each.grad.clone() for each in module.parameters()]


@pytest.mark.parametrize("place", range(8))
def test_modules_in_one_graph(compiler, place):
    """Called outside, what the program compiles is native's, which adds up otherwise."""
    torch.manual_seed(place)
    outer, fns = programs_of_modules(compiler)
    assert_close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    counter = fxjit.testing.CompileCounter()
    compiled = compiler(fns[place], fullgraph=True, backend=counter)
    for x in (torch.randn(2, 3), torch.randn(2, 3)):
        assert_close(gradients_of(compiled, outer, x), gradients_of(fns[place], outer, x))
    assert counter.frame_count == 1
    outer.eval()
    x = torch.randn(2, 3)
    assert_close(gradients_of(compiled, outer, x), gradients_of(fns[place], outer, x))


def test_hooks_of_a_module(compiler):
    linear = nn.Linear(3, 3)
    linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    linear.register_forward_hook(lambda module, args, result: result * 2)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiler(lambda x: compiler(linear)(x), fullgraph=True, backend="eager")(x), linear(x))


def test_a_module_kept_by_the_program(compiler):
    class Lazily(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.compiled = None

        def forward(self, x):
            if self.compiled is None:
                self.compiled = compiler(self.inner, dynamic=True)
            return self.compiled(x)

    module = Lazily()
    compiled = compiler(module, fullgraph=True, backend="eager")
    x = torch.randn(2, 3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), module.inner(x))
    assert type(module.compiled) is OptimizedModule
    assert module.compiled._orig_mod is module.inner
    assert list(module.state_dict()) == ["inner.weight", "inner.bias", "compiled._orig_mod.weight", "compiled._orig_mod.bias"]


def test_a_module_returned(compiler):
    linear = nn.Linear(3, 3)
    made, _ = compiler(lambda x: (compiler(linear), x + 1), fullgraph=True, backend="eager")(torch.ones(2))
    assert type(made) is OptimizedModule and made._orig_mod is linear
    torch.testing.assert_close(made(torch.ones(2, 3)), linear(torch.ones(2, 3)))


def of_state(made):
    return str(list(made.state_dict())) == str(['_orig_mod.0.weight', '_orig_mod.0.bias'])


def of_hooks(made):
    made.register_forward_hook(lambda module, args, result: result * 2)
    return made(torch.ones(3))


def of_a_write(made):
    made.extra = 4
    return made.extra, made._orig_mod.extra


def of_its_length(made):
    return len(made), bool(made), type(made) is OptimizedModule, isinstance(made, nn.Sequential), len(list(made))


def of_itself_compiled_again(made):
    return fxjit.compile(made)(torch.ones(3))


@pytest.mark.parametrize("of", [of_state, of_hooks, of_a_write, of_its_length, of_itself_compiled_again])
def test_what_is_left_to_the_module_itself(of):
    def eager(module):
        return of(fxjit.compile(module, backend="eager"))

    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    torch.testing.assert_close(fxjit.compile(eager, backend="eager")(modules[0]), eager(modules[1]))
