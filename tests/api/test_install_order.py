"""The order of imports does not matter to the drop-in: names bound before it, and libraries' wrappers, end in fxjit."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
import torch._dynamo
from torch import compile as compile_bound_before
from torch._dynamo import OptimizedModule, mark_dynamic
from torch._dynamo import disable as disable_bound_before
from torch._dynamo.utils import compile_times as compile_times_bound_before
from torch._dynamo.utils import counters as counters_bound_before

import fxjit
from fxjit import _C
from fxjit.testing import CompileCounter

X = torch.arange(6.0).reshape(2, 3)
module_compile_bound_before = torch.nn.Module.compile


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).relu()

    def training_step(self, x):
        return self(x).sum()


@pytest.fixture
def keeping_arguments():
    """Wraps torch.compile as Lightning does when it is imported; gives the function that wraps, and cleans up."""
    theirs = torch.compile

    def wrap():
        inner = torch.compile

        @functools.wraps(inner)
        def wrapper(*args, **kwargs):
            compiled = inner(*args, **kwargs)
            if args and isinstance(args[0], torch.nn.Module):
                compiled._compile_kwargs = dict(kwargs)
            return compiled

        torch.compile = wrapper
        return wrapper

    yield wrap
    fxjit.uninstall()
    torch.compile = theirs


def test_functions_that_were_bound_before_are_ours():
    signature = inspect.signature(compile_bound_before)
    fxjit.install()
    counter = CompileCounter()
    assert torch.equal(compile_bound_before(lambda x: x + 1, backend=counter, fullgraph=True)(X), X + 1)
    assert counter.frame_count == 1 and inspect.signature(compile_bound_before) == signature
    assert isinstance(compile_bound_before(backend=counter)(lambda x: x), _C.CompiledFunction)
    assert isinstance(disable_bound_before(lambda x: x), _C.DisabledFunction)
    net = Net()
    module_compile_bound_before(net, backend=counter)
    assert torch.equal(net(X), net.layer(X).relu()) and counter.frame_count == 2
    x = X.clone()
    mark_dynamic(x, 0)
    f = torch.compile(lambda x: x * 2, backend=counter)
    f(x), f(torch.ones(7, 3))
    assert counter.frame_count == 3 and "fxjit" not in compile_times_bound_before.__globals__["__name__"]
    assert compile_times_bound_before() == fxjit.compile_times()


def test_torch_gets_its_functions_back_whoever_holds_them():
    def parts():
        functions = (compile_bound_before, disable_bound_before)
        return [(f.__code__, f.__defaults__, f.__kwdefaults__, dict(f.__dict__)) for f in functions]

    before = parts()
    fxjit.install()
    assert parts() != before
    fxjit.uninstall()
    assert parts() == before
    assert not isinstance(compile_bound_before(lambda x: x, backend="eager"), _C.CompiledFunction)


def test_counters_that_were_bound_before_count_ours():
    torch._dynamo.reset()  # which forgets the `cond` below, that another test may have compiled
    counters_bound_before.clear()
    fxjit.install()
    torch.compile(lambda x: x + 1, backend="eager")(X)
    assert counters_bound_before["stats"]["unique_graphs"] == 1 == fxjit.counters["stats"]["unique_graphs"]
    counters_bound_before.clear()
    torch.compile(lambda x: x + 2, backend="eager")(X)
    assert counters_bound_before["stats"]["unique_graphs"] == 1
    # What torch compiles for itself is counted where torch counts.
    before = counters_bound_before["stats"]["unique_graphs"], fxjit.counters["stats"]["unique_graphs"]
    torch.cond(X.sum() > 3, torch.sin, torch.cos, (X,))
    assert (counters_bound_before["stats"]["unique_graphs"], fxjit.counters["stats"]["unique_graphs"]) == (2, before[1])
    fxjit.uninstall()
    fxjit.compile(lambda x: x + 3, backend="eager")(X)
    assert counters_bound_before["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_a_librarys_wrapper_of_torch_compile_stays(keeping_arguments, wrapped_first):
    if wrapped_first:
        wrapper = keeping_arguments()
        fxjit.install()
    else:
        fxjit.install()
        wrapper = keeping_arguments()
    assert torch.compile is wrapper
    net = Net()
    compiled = torch.compile(net, backend="eager")
    assert type(compiled) is fxjit.module.OptimizedModule and compiled._compile_kwargs == {"backend": "eager"}
    assert torch.equal(compiled(X), net(X))
    # What torch compiles for itself is still torch's, through the wrapper.
    assert torch.equal(torch.cond(X.sum() > 3, torch.sin, torch.cos, (X,)), X.sin())
    fxjit.uninstall()
    assert torch.compile is wrapper
    assert type(torch.compile(net, backend="eager")) is OptimizedModule
    fxjit.install()
    assert type(torch.compile(net, backend="eager")) is fxjit.module.OptimizedModule
    assert isinstance(compile_bound_before(net.forward, backend="eager"), _C.CompiledFunction)


def test_a_compiled_module_unwraps_as_lightning_does_it():
    """`from_compiled`: without the drop-in too, each step of the original is compiled alike, and the original is given on."""
    net, counter = Net(), CompileCounter()
    compiled = fxjit.compile(net, backend=counter, fullgraph=True)
    assert isinstance(compiled, OptimizedModule)
    original = compiled._orig_mod
    steps = {"forward": original.forward, "training_step": original.training_step}
    want = original.training_step(X)
    for name, step in steps.items():
        setattr(original, name, compiled.dynamo_ctx(step))
    assert isinstance(original.forward, _C.CompiledFunction) and original.forward.region.key.fullgraph
    assert torch.equal(original.training_step(X), want) and counter.frame_count == 1
    for name, step in steps.items():  # to_uncompiled
        setattr(original, name, step)
    assert torch.equal(original.training_step(X), want) and counter.frame_count == 1


def test_what_a_module_was_compiled_with_holds_for_its_methods():
    net, counter = Net(), CompileCounter()
    frozen = fxjit.run(fxjit.compile(net, backend=counter)).dynamo_ctx(net.training_step)
    assert torch.equal(frozen(X), net.training_step(X)) and counter.frame_count == 0
    disabled = fxjit.disable(net).dynamo_ctx(net.training_step)
    assert isinstance(disabled, _C.DisabledFunction) and torch.equal(disabled(X), net.training_step(X))
    child = fxjit.compile(net, backend=counter).dynamo_ctx(net.layer)
    assert type(child) is fxjit.module.OptimizedModule and torch.equal(child(X), net.layer(X)) and counter.frame_count == 1
