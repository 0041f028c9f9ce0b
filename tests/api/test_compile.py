"""What `compile` hands out: for functions, methods, classes, modules; and what `run`, `disable` and stances do to it."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import math
import pickle

import pytest
import torch
from torch import nn

import fxjit
from fxjit.testing import CompileCounter, CompileCounterWithBackend, EagerAndRecordGraphs, same


def add_one(x, *, scale=1.0):
    """Adds one."""
    return x * scale + 1


def test_a_compiled_function_looks_like_the_function():
    compiled = fxjit.compile(add_one, backend="eager")
    assert compiled.__name__ == "add_one" and compiled.__doc__ == "Adds one." and compiled.__wrapped__ is add_one
    assert inspect.signature(compiled) == inspect.signature(add_one)
    x = torch.randn(3)
    assert torch.equal(compiled(x, scale=2.0), add_one(x, scale=2.0))


def test_as_a_decorator_with_and_without_arguments():
    counter = CompileCounter()

    @fxjit.compile(backend=counter, fullgraph=True)
    def f(x):
        return x.sin() + 1

    @fxjit.compile
    def g(x):
        return x.cos()

    x = torch.randn(3)
    assert torch.equal(f(x), x.sin() + 1) and torch.allclose(g(x), x.cos())
    assert (counter.frame_count, counter.op_count) == (1, 2)


def test_methods_lambdas_partials_and_callable_objects():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.by

        @fxjit.compile(backend="eager")
        def twice(self, x):
            return self(x) * 2

    x = torch.randn(3)
    counter = CompileCounter()
    assert torch.equal(Scale(3).twice(x), x * 6)
    assert torch.equal(fxjit.compile(Scale(3), backend=counter)(x), x * 3)
    assert torch.equal(fxjit.compile(Scale(4).__call__, backend=counter)(x), x * 4)
    assert torch.equal(fxjit.compile(lambda x: x + 2, backend=counter)(x), x + 2)
    assert torch.equal(fxjit.compile(functools.partial(add_one, scale=3.0), backend=counter)(x), x * 3 + 1)
    assert counter.frame_count >= 4


def test_functions_of_torch_itself():
    counter = CompileCounter()
    x = torch.randn(4)
    assert torch.equal(fxjit.compile(torch.sin, backend=counter)(x), x.sin())
    assert torch.equal(fxjit.compile(torch.nn.functional.softmax, backend=counter)(x, 0), x.softmax(0))
    assert counter.frame_count == 2


def test_compiling_twice_compiles_the_function_once():
    counter = CompileCounter()
    once = fxjit.compile(add_one, backend="eager")
    twice = fxjit.compile(once, backend=counter)
    x = torch.randn(3)
    assert torch.equal(twice(x), add_one(x)) and counter.frame_count == 1


def test_the_same_arguments_share_their_entries():
    counter = CompileCounter()
    x = torch.randn(3)
    for _ in range(3):
        fxjit.compile(add_one, backend=counter)(x)
    assert counter.frame_count == 1


def test_disable_true_gives_the_function_back():
    assert fxjit.compile(add_one, disable=True) is add_one


def test_nopython_is_fullgraph():
    def f(x):
        fxjit.graph_break()
        return x + 1

    with pytest.raises(fxjit.errors.Unsupported) as caught:
        fxjit.compile(f, nopython=True, backend="eager")(torch.ones(2))
    error = caught.value
    assert "graph_break" in error.reason and error.hints and error.explanation
    assert error.user_stack[-1].name == "f"
    assert "fxjit.graph_break()" in str(error)


def test_a_backend_gets_mode_and_options():
    seen = {}

    def backend(gm, inputs, *, mode=None, options=None):
        seen.update(mode=mode, options=options)
        return gm.forward

    fxjit.compile(lambda x: x + 1, backend=backend, mode="reduce-overhead")(torch.ones(2))
    assert seen == {"mode": "reduce-overhead", "options": None}
    fxjit.compile(lambda x: x + 1, backend=backend, options={"a": 1})(torch.ones(2))
    assert seen == {"mode": None, "options": {"a": 1}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.register_buffer("shift", torch.ones(4))
        self.calls = 0

    def forward(self, x):
        return torch.relu(self.lin(x)) + self.shift


def test_a_module_shares_everything_with_the_original():
    net = Net()
    counter = CompileCounter()
    compiled = fxjit.compile(net, backend=counter)
    x = torch.randn(2, 3)
    assert torch.equal(compiled(x), net(x)) and counter.frame_count == 1
    assert list(compiled.parameters()) == list(net.parameters())
    assert list(compiled.state_dict()) == ["_orig_mod." + name for name in net.state_dict()]
    compiled.eval()
    assert not net.training and not compiled.training and not net.lin.training
    compiled.calls = 5
    assert net.calls == 5 and compiled.lin is net.lin and "lin" in dir(compiled)
    del compiled.calls
    assert not hasattr(net, "calls")
    with torch.no_grad():
        net.lin.weight.zero_()
    assert torch.equal(compiled(x), net(x))


def test_gradients_reach_the_original():
    net = Net()
    fxjit.compile(net, backend="eager")(torch.randn(2, 3)).sum().backward()
    assert net.lin.weight.grad is not None


def test_hooks_of_the_module_and_of_the_original_run():
    log = []
    net = Net()
    net.register_forward_hook(lambda mod, args, out: log.append("inner"))
    compiled = fxjit.compile(net, backend="eager")
    compiled.register_forward_hook(lambda mod, args, out: log.append("outer"))
    compiled.register_forward_pre_hook(lambda mod, args: log.append("before"))
    compiled(torch.randn(2, 3))
    assert log == ["before", "inner", "outer"]


def test_containers_of_torch_compile_too():
    counter = CompileCounter()
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = fxjit.compile(net, backend=counter)
    x = torch.randn(5, 3)
    assert torch.equal(compiled(x), net(x))
    assert counter.frame_count == 1 and len(compiled) == 3 and compiled[1] is net[1] and net[0] in compiled


def test_a_module_is_copied_and_pickled():
    net = Net()
    compiled = fxjit.compile(net, backend="eager")
    x = torch.randn(2, 3)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert type(other) is type(compiled) and other._orig_mod is not net
        assert torch.equal(other(x), net(x))
    other = copy.copy(compiled)
    other.mark = 1
    assert other._orig_mod.mark == 1 and not hasattr(net, "mark") and next(other.parameters()) is next(net.parameters())
    kept = io.BytesIO()
    torch.save(compiled.state_dict(), kept)
    kept.seek(0)
    compiled.load_state_dict(torch.load(kept))


def twice(x):
    return x * 2


@fxjit.compile(backend="eager")
def thrice(x):
    return x * 3


@pytest.mark.parametrize("made", [
    lambda: fxjit.compile(twice, backend="aot_eager", dynamic=False, recompile_limit=3),
    lambda: fxjit.compile(functools.partial(twice), backend="eager"),
    lambda: fxjit.compile(fxjit.disable(twice), backend="eager"),
    lambda: fxjit.run(fxjit.compile(twice, backend="eager")),
])
def test_a_function_compiled_under_another_name_is_pickled_as_how_it_was_made(made):
    """`compiled = compile(f)` has the name of another; processes of a pool are given such functions."""
    function = made()
    again = pickle.loads(pickle.dumps(function))
    assert again is not function and again.region.key is function.region.key
    assert again.region.callback is function.region.callback
    x = torch.randn(2, 3)
    assert torch.equal(again(x), twice(x))


def test_a_compiled_method_is_pickled_with_its_object():
    net = Net()
    again = pickle.loads(pickle.dumps(fxjit.compile(net.forward, backend="eager")))
    x = torch.randn(2, 3)
    assert again.__wrapped__.__self__ is not net and torch.equal(again(x), net(x))


def test_what_was_disabled_for_a_reason_says_it_after_pickling():
    again = pickle.loads(pickle.dumps(fxjit.disable(twice, reason="as it is")))
    explanation = fxjit.explain(fxjit.compile(lambda x: again(x + 1), backend="eager"))(torch.ones(2))
    assert "as it is" in str(explanation)


def test_a_decorated_function_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(thrice)) is thrice


def test_a_lazy_module_is_filled_in_first():
    compiled = fxjit.compile(nn.LazyLinear(4), backend="eager")
    assert compiled(torch.randn(2, 3)).shape == (2, 4) and compiled.in_features == 3


def test_a_decorated_class_stays_the_class():
    @fxjit.compile(backend="eager")
    class Doubler:
        def __call__(self, x):
            return x * 2

    assert inspect.isclass(Doubler) and torch.equal(Doubler()(torch.ones(2)), torch.full((2,), 2.0))


def test_run_uses_what_is_there_and_compiles_nothing():
    counter = CompileCounter()

    def f(x):
        return x + 1

    compiled = fxjit.compile(f, backend=counter)
    compiled(torch.ones(2))
    for frozen in (fxjit.run(compiled), fxjit.run(f)):
        assert torch.equal(frozen(torch.ones(2)), torch.full((2,), 2.0))
        assert torch.equal(frozen(torch.ones(2, dtype=torch.float64)), torch.full((2,), 2.0, dtype=torch.float64))
    assert counter.frame_count == 1
    net = Net()
    compiled_net = fxjit.compile(net, backend=counter)
    compiled_net(torch.randn(2, 3))
    before = counter.frame_count
    fxjit.run(compiled_net)(torch.randn(7, 3).double().float())
    fxjit.run(net)(torch.randn(9, 3))
    assert counter.frame_count == before


def test_reset_drops_entries_and_counters():
    counter = CompileCounter()
    compiled = fxjit.compile(add_one, backend=counter)
    compiled(torch.ones(2))
    assert fxjit.counters["frames"]["ok"] == 1
    fxjit.reset()
    assert fxjit.counters["frames"]["ok"] == 0
    compiled(torch.ones(2))
    assert counter.frame_count == 2


def test_a_disabled_function_runs_eagerly_with_what_it_calls():
    counter = CompileCounter()

    def inner(x):
        return x + 1

    @fxjit.disable(reason="for the test")
    def outer(x):
        return inner(x) * 2

    def f(x):
        return outer(x.sin()).cos()

    x = torch.randn(3)
    graphs = EagerAndRecordGraphs()
    assert torch.equal(fxjit.compile(f, backend=graphs)(x), f(x))
    assert len(graphs.graphs) == 2
    assert torch.equal(fxjit.compile(lambda x: outer(x), backend=counter)(x), outer(x)) and counter.frame_count == 0
    assert torch.equal(fxjit.compile(outer, backend=counter)(x), outer(x)) and counter.frame_count == 1  # the last word counts
    assert any("for the test" in each for each in map(str, [fxjit.explain(f)(x).break_reasons[0].explanation]))


def test_disable_works_on_modules_classes_and_methods():
    net = fxjit.disable(Net())
    counter = CompileCounter()
    x = torch.randn(2, 3)
    assert fxjit.compile(lambda x: net(x), backend=counter)(x).shape == (2, 4) and counter.frame_count == 0

    @fxjit.disable
    class Plain:
        def __call__(self, x):
            return x + 1

    fxjit.compile(lambda x: Plain()(x), backend=counter)(x)
    assert counter.frame_count == 0


def test_is_compiling_is_true_in_traced_code_only():
    def f(x):
        return x + 1 if fxjit.is_compiling() and torch.compiler.is_compiling() else x - 1

    x = torch.zeros(2)
    assert not fxjit.is_compiling()
    assert torch.equal(f(x), x - 1) and torch.equal(fxjit.compile(f, backend="eager", fullgraph=True)(x), x + 1)


def test_allow_disallow_forbid_and_constant():
    def opaque(x):
        print("tracing would break here")
        return torch.relu(x)

    fxjit.allow_in_graph(opaque)
    graphs = EagerAndRecordGraphs()
    x = torch.ones(3)
    assert torch.equal(fxjit.compile(lambda x: opaque(x) + 1, backend=graphs, fullgraph=True)(x), x + 1)
    assert opaque in [node.target for node in graphs.graphs[0].graph.nodes]

    @fxjit.forbid_in_graph
    def never(x):
        return x

    with pytest.raises(fxjit.errors.Unsupported, match="forbid"):
        fxjit.compile(lambda x: never(x) + 1, backend="eager")(x)

    calls = []

    @fxjit.assume_constant_result
    def constant():
        calls.append(1)
        return 5

    f = fxjit.compile(lambda x: x + constant(), backend="eager", fullgraph=True)
    f(x)
    assert torch.equal(f(x), x + 5) and len(calls) == 1


def test_allow_in_graph_of_an_object_that_is_called():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x, y=None):
            if int(x.numel() > 2) and self.factor > 1:  # nothing of this is traced
                return (x * self.factor).clone()
            return x.add_(1)

    by_two, in_place = Scaled(2), Scaled(1)
    for each in (by_two, in_place):
        fxjit.allow_in_graph(each)
    counter = fxjit.testing.CompileCounter()

    def program(x, fn):
        return fn(x * 1) + 1

    compiled = fxjit.compile(program, backend=counter, fullgraph=True)
    for fn in (by_two, in_place, by_two):
        assert torch.equal(compiled(torch.ones(3), fn), program(torch.ones(3), fn))
    assert counter.frame_count == 2 and counter.op_count == 6
    by_two.factor = 5  # it is called when the graph runs
    assert torch.equal(compiled(torch.ones(3), by_two), torch.full((3,), 6.0))
    for backend in ("aot_eager", "native"):
        x = torch.ones(4, requires_grad=True)
        fxjit.compile(program, backend=backend, fullgraph=True)(x, by_two).sum().backward()
        assert torch.equal(x.grad, torch.full((4,), 5.0))


def test_disallow_in_graph_splits_the_graph():
    fxjit.disallow_in_graph(torch.sub)
    try:
        graphs = EagerAndRecordGraphs()

        def f(x):
            x = torch.add(x, 1)
            x = torch.sub(x, 1)
            return torch.add(x, 1)

        assert torch.equal(fxjit.compile(f, backend=graphs)(torch.ones(2)), torch.full((2,), 2.0))
        assert len(graphs.graphs) == 2
    finally:
        fxjit.skips.marks._marks.pop(torch.sub)


def test_substitute_in_graph():
    import bisect

    @fxjit.substitute_in_graph(bisect.bisect_left, skip_signature_check=True)
    def bisect_left(a, x):
        n = 0
        for each in a:
            if each < x:
                n += 1
        return n

    f = fxjit.compile(lambda x: x + bisect.bisect_left([1, 3, 5], 4), backend="eager", fullgraph=True)
    assert torch.equal(f(torch.zeros(2)), torch.full((2,), 2.0))


def test_error_on_graph_break():
    def f(x):
        x = x + 1
        fxjit.graph_break()
        return x + 1

    compiled = fxjit.compile(f, backend="eager")
    with fxjit.error_on_graph_break(True), pytest.raises(fxjit.errors.Unsupported):
        compiled(torch.ones(2))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize("ours", [True, False])
def test_error_on_graph_break_inside_the_compiled_function(ours):
    import torch._dynamo

    errors = fxjit.error_on_graph_break if ours else torch._dynamo.error_on_graph_break

    def inner(x):
        fxjit.graph_break()
        return x + 1

    def strict(x):
        with errors(True):
            return inner(x) * 2

    def lenient(x):
        with errors(True):
            x = x + 1
            with errors(False):
                x = inner(x)
        return inner(x)

    x = torch.ones(2)
    with pytest.raises(fxjit.errors.Unsupported):
        fxjit.compile(strict, backend="eager")(x)
    assert torch.equal(fxjit.compile(lenient, backend="eager")(x), x + 3)


def test_error_on_graph_break_as_a_decorator():
    @fxjit.error_on_graph_break(True)
    def inner(x):
        x = x + 1
        fxjit.graph_break()
        return x + 1

    with pytest.raises(fxjit.errors.Unsupported):
        fxjit.compile(lambda x: inner(x.sin()), backend="eager")(torch.ones(2))


def test_marks_on_tensors_are_torchs_attributes():
    t = torch.ones(2, 3, 4)
    fxjit.mark_dynamic(t, [0, -1])
    fxjit.maybe_mark_dynamic(t, 1)
    assert t._dynamo_dynamic_indices == {0, 2} and t._dynamo_weak_dynamic_indices == {1}
    fxjit.mark_static(t)
    assert t._dynamo_dynamic_indices == set() and t._dynamo_static_indices == {0, 1, 2}
    fxjit.mark_unbacked(t, 0)
    assert t._dynamo_unbacked_indices == {0}


def test_mark_dynamic_spares_a_recompile():
    counter = CompileCounter()
    compiled = fxjit.compile(lambda x: x * 2, backend=counter)
    first = torch.ones(3, 2)
    fxjit.mark_dynamic(first, 0)
    compiled(first)
    compiled(torch.ones(5, 2))
    assert counter.frame_count == 1


def test_wrap_numpy_outside_of_a_compile():
    import numpy as np

    @fxjit.wrap_numpy
    def f(x, y):
        return np.sum(x[:, None] * y, axis=-1)

    x, y = torch.randn(3), torch.randn(3)
    out = f(x, y)
    assert isinstance(out, torch.Tensor) and torch.allclose(out, (x[:, None] * y).sum(-1))


def test_compile_counter_with_backend_and_same():
    counter = CompileCounterWithBackend("eager")
    x = torch.randn(3)
    assert same(fxjit.compile(lambda x: {"a": [x + 1, 2]}, backend=counter)(x), {"a": [x + 1, 2]})
    assert counter.frame_count == 1 == len(counter.graphs)
    assert not same(x, x + 1) and not same(x, x.double()) and same(x, x.double(), exact_dtype=False)
    assert not same([1], (1, 2)) and same(torch.tensor(float("nan")), torch.tensor(float("nan")))


def test_a_module_of_torchscript_runs_as_it_is():
    x = torch.randn(2, 3)
    for module in (torch.jit.script(nn.Linear(3, 4)), torch.jit.trace(nn.Linear(3, 4), x)):
        compiled = fxjit.compile(module, backend="eager")
        torch.testing.assert_close(compiled(x), module(x))
        torch.testing.assert_close(fxjit.run(module)(x), module(x))
        assert list(compiled.state_dict().values())[0].data_ptr() == module.weight.data_ptr()


def test_run_finds_what_a_forward_of_the_instance_was_compiled_with():
    module = nn.Linear(3, 3)
    module.forward = lambda x: x * 2
    counter = CompileCounter()
    fxjit.compile(module, backend=counter)(torch.ones(3))
    assert fxjit.run(module)(torch.ones(3)).tolist() == [2, 2, 2] and counter.frame_count == 1
    assert fxjit.run(module).options.chosen_backend is counter


def test_what_holds_itself_can_be_compared():
    class Node:
        def __init__(self, number):
            self.me, self.number, self.module = self, number, math

    def ring(number):
        found = [number]
        found.append({"again": found})
        return found

    assert same(math, math)
    assert not same(math, torch)
    assert same(ring(1), ring(1))
    assert not same(ring(1), ring(2))
    assert same(Node(1), Node(1))
    assert not same(Node(1), Node(2))
