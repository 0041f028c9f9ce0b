"""Modules that torch.fx and torch.export made of a program are captured like any other module."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit.testing import CompileCounter

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *, scale=1.0):
        self.calls.add_(1)
        return torch.relu(self.linear(x)) * scale + self.calls


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x * 2)


class OfTheProgram(torch.fx.GraphModule):
    def __call__(self, x):
        return super().__call__(x) + 1


def pickled(gm):
    return pickle.loads(pickle.dumps(gm))


def traced():
    return torch.fx.symbolic_trace(Model())


def quantized(convert=True):
    """What torchao's flow over exported programs (pt2e) makes, with observers or with integers."""
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    xnnpack = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer")
    exported = export(Model().eval(), (X,)).module()
    quantizer = xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config())
    prepared = pt2e.prepare_pt2e(exported, quantizer)
    prepared(X)
    return pt2e.convert_pt2e(prepared) if convert else prepared


MAKERS = {
    "symbolic_trace": traced,
    "copied": lambda: copy.deepcopy(traced()),
    "pickled": lambda: pickled(traced()),
    "with a call of its own": lambda: OfTheProgram(traced(), traced().graph),
    "make_fx": lambda: make_fx(lambda x: x.sin() + 1)(X),
    "exported": lambda: export(Model(), (X,)).module(),
    "exported for any size": lambda: export(Model(), (X,), dynamic_shapes={"x": {0: Dim.DYNAMIC}}).module(),
    "within a module": lambda: Around(traced()),
    "exported within a module": lambda: Around(export(Model(), (X,)).module()),
    "quantized": quantized,
    "quantized within a module": lambda: Around(quantized()),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_it_is_one_graph(make):
    fxjit.reset()
    torch.manual_seed(0)
    eager = make()
    called, compiled_in, counting = copy.deepcopy(eager), copy.deepcopy(eager), CompileCounter()
    compiled = fxjit.compile(called, fullgraph=True, backend=counting)
    for x in (X, X + 1):
        torch.testing.assert_close(compiled(x), eager(x), rtol=0, atol=0)
        torch.testing.assert_close(dict(called.named_buffers()), dict(eager.named_buffers()), rtol=0, atol=0)
    assert counting.frame_count == 1
    within = fxjit.compile(lambda x: compiled_in(x) * 2, fullgraph=True, backend="eager")
    torch.testing.assert_close(within(X), copy.deepcopy(make_same(make))(X) * 2, rtol=0, atol=0)


def make_same(make):
    torch.manual_seed(0)
    return make()


def test_observers_of_a_prepared_module_see_what_they_see_in_eager():
    fxjit.reset()
    eager = quantized(convert=False)
    called = copy.deepcopy(eager)
    compiled = fxjit.compile(called, backend="eager")
    for x in (X, X * 3):
        torch.testing.assert_close(compiled(x), eager(x), rtol=0, atol=0)
    torch.testing.assert_close(dict(called.named_buffers()), dict(eager.named_buffers()), rtol=0, atol=0)


def test_a_graph_that_is_edited_is_compiled_again():
    fxjit.reset()
    gm = torch.fx.symbolic_trace(lambda x: x.sin() + 1)
    compiled, within = fxjit.compile(gm, backend="eager"), fxjit.compile(lambda x: gm(x) * 2, backend="eager")
    for target in ("sin", "cos", "tan"):
        for node in gm.graph.find_nodes(op="call_method"):
            node.target = target
        gm.recompile()
        torch.testing.assert_close(compiled(X), getattr(X, target)() + 1)
        torch.testing.assert_close(within(X), (getattr(X, target)() + 1) * 2)


def test_a_size_that_was_not_exported_is_refused_as_in_eager():
    module = export(Model(), (X,)).module()
    compiled = fxjit.compile(module, backend="eager")
    compiled(X)
    with pytest.raises(AssertionError) as eager:
        module(torch.ones(2, 5))
    with pytest.raises(AssertionError) as ours:
        compiled(torch.ones(2, 5))
    assert str(ours.value) == str(eager.value)


def test_it_is_captured_where_the_program_around_it_is_not():
    fxjit.reset()
    gm, counting = torch.fx.symbolic_trace(lambda x: x.sin() + 1), CompileCounter()

    def program(x):
        for _ in range(2):
            fxjit.graph_break()
            x = gm(x)
        return x

    torch.testing.assert_close(fxjit.compile(program, backend=counting)(X), program(X))
    assert counting.frame_count == 1


def managers():
    import torch._dynamo

    decorators = torch._dynamo.decorators
    overriding = getattr(decorators, "override_cudagraphs", None)
    return {
        "dont_skip_tracing": decorators.dont_skip_tracing,
        "disable_nested_graph_breaks": getattr(decorators, "disable_nested_graph_breaks", None),
        "override_cudagraphs": overriding and overriding(fwd=False),
    }


@pytest.mark.parametrize("name", ["dont_skip_tracing", "disable_nested_graph_breaks", "override_cudagraphs"])
def test_managers_of_torchs_compiler_decorate_functions_that_are_captured(name):
    decorate = managers()[name]
    if decorate is None:
        pytest.skip("this torch does not have it")
    fxjit.reset()
    decorated = decorate(lambda x: x.sin() + 1)
    for program in (decorated, lambda x: decorated(x) * 2):
        torch.testing.assert_close(fxjit.compile(program, fullgraph=True, backend="eager")(X), program(X))


def test_managers_of_torchs_compiler_are_entered_in_captured_functions():
    import torch._dynamo

    def program(x):
        with torch._dynamo.decorators.override_cudagraphs(fwd=False), torch._dynamo.decorators.dont_skip_tracing():
            return x.sin() + 1

    if not hasattr(torch._dynamo.decorators, "override_cudagraphs"):
        pytest.skip("this torch does not have it")
    torch.testing.assert_close(fxjit.compile(program, fullgraph=True, backend="eager")(X), X.sin() + 1)


def test_modules_that_an_exported_program_is_taken_apart_into():
    """Its inputs are looked at eagerly, as torch says itself; its modules are captured."""
    parts = torch.export.unflatten(export(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), (X,)))
    counter = CompileCounter()
    torch.testing.assert_close(fxjit.compile(parts, backend=counter)(X), parts(X))
    assert counter.frame_count == 1 and counter.op_count == 2
