"""What libraries do with torch.compile beyond a call: filters of guards, `disable=True`, exceptions of torch that they catch,
exports through compiled callables, and `inspect`."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Model(torch.nn.Module):
    scale = 2.0

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.bias = 1.0

    def forward(self, x):
        return self.linear(x).relu() * self.scale + self.bias


class Around(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.fn = fxjit.compile(lambda x: x.sin() + 1, backend="eager")

    def forward(self, x):
        return self.model(self.fn(x))


# -- guard_filter_fn -----------------------------------------------------------------------------------------------

OFFSET = 1.0


def uses_a_global(x, k=1):
    return x * k + OFFSET


@pytest.mark.parametrize("backend", ["eager", CompileCounter()])
def test_dropped_guards_are_not_checked(backend):
    global OFFSET
    fxjit.reset()
    keep = getattr(torch.compiler, "skip_guard_on_globals_unsafe", lambda entries: [not each.is_global for each in entries])
    compiled = fxjit.compile(uses_a_global, backend=backend, options={"guard_filter_fn": keep})
    before = compiled(X)
    OFFSET = 2.0
    try:
        torch.testing.assert_close(compiled(X), before, rtol=0, atol=0)  # the promise was not kept, and nobody looks
        torch.testing.assert_close(compiled(X, 3), X * 3 + OFFSET)  # what is guarded still is
    finally:
        OFFSET = 1.0


def test_a_filter_sees_each_guard_and_says_which_stays():
    seen = []

    def keep(entries):
        seen.extend(entries)
        return [each.guard_type == "TENSOR_MATCH" for each in entries]

    model, counting = Model(), CompileCounter()
    compiled = fxjit.compile(model, backend=counting, options={"guard_filter_fn": keep})
    compiled(X)
    model.bias = 3.0
    compiled(X)
    assert counting.frame_count == 1
    compiled(X.double().to(torch.float32)[:2])
    assert counting.frame_count == 2
    by_type = {each.guard_type: each for each in seen}
    assert by_type["TENSOR_MATCH"].has_value and isinstance(by_type["TENSOR_MATCH"].value, torch.Tensor)
    assert any(each.orig_guard.source.is_unspecialized_nn_module() for each in seen)
    assert {"TYPE_MATCH", "GLOBAL_STATE"} <= by_type.keys()


@pytest.mark.parametrize("name", [
    "skip_guard_on_globals_unsafe", "skip_all_guards_unsafe", "keep_tensor_guards_unsafe", "keep_portable_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_inbuilt_nn_modules_unsafe"])
def test_torchs_filters_work_with_every_backend(name):
    keep = getattr(torch.compiler, name, None)
    if keep is None:
        pytest.skip("this torch does not have it")
    fxjit.install()
    model = Model()
    for backend in ("eager", "inductor", lambda gm, inputs: gm.forward):
        compiled = torch.compile(model, backend=backend, options={"guard_filter_fn": keep})
        torch.testing.assert_close(compiled(X), model(X))


def test_kernels_never_get_tensors_that_they_were_not_made_for():
    compiled = fxjit.compile(lambda x: x.sin() + 1, dynamic=False, options={"guard_filter_fn": lambda e: [False] * len(e)})
    for x in (torch.ones(4), torch.ones(2), torch.ones(3, dtype=torch.float64)):
        torch.testing.assert_close(compiled(x), x.sin() + 1)


def test_mistakes_in_filters_are_told():
    with pytest.raises(fxjit.errors.InvalidArgument, match="guard_filter_fn"):
        fxjit.compile(uses_a_global, options={"guard_filter_fn": True})
    with pytest.raises(fxjit.errors.ConfigError, match="guard_filter_fn gave 0 values"):
        fxjit.compile(uses_a_global, backend="eager", options={"guard_filter_fn": lambda entries: []})(X)


# -- nn.Module.compile ---------------------------------------------------------------------------------------------


def test_a_module_compiled_with_disable_runs_eagerly():
    fxjit.install()
    model, counting = Model(), CompileCounter()
    model.compile(backend=counting, disable=True)
    torch.testing.assert_close(model(X), model.forward(X))
    assert counting.frame_count == 0
    model.compile(backend=counting)
    model(X)
    assert counting.frame_count == 1
    model.compile(backend=counting, disable=True)
    model(X + 1)
    assert counting.frame_count == 1


# -- exceptions ----------------------------------------------------------------------------------------------------


def test_torchs_handlers_catch_a_broken_promise_about_a_size():
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    fxjit.install()
    x = torch.ones(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolationError):
        torch.compile(lambda x: x + 1 if x.shape[0] == 3 else x, backend="eager")(x)
    fxjit.uninstall()
    assert not issubclass(fxjit.errors.ConstraintViolationError, ConstraintViolationError)


# -- export --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_exports_go_through_compiled_callables(strict):
    model = fxjit.compile(Model(), backend="eager")
    for program in (model, Around(model)):
        exported = torch.export.export(program, (X,), strict=strict)
        torch.testing.assert_close(exported.module()(X), program(X))


def test_arguments_that_torch_never_had_are_errors():
    fxjit.install()
    try:
        with pytest.raises(TypeError, match=r"compile\(\) got an unexpected keyword argument 'fullgraf'"):
            torch.compile(lambda x: x, fullgraf=True)
        with pytest.raises(TypeError, match="'fullgraf'"):
            Model().compile(fullgraf=True)
        with pytest.warns(UserWarning, match="ignores these arguments of torch.compile: name"):
            torch.compile(lambda x: x, name="a label")
    finally:
        fxjit.uninstall()


def scaled_sines(x, weight):
    return (x * 2).sin() @ weight + 1


@pytest.mark.parametrize("arguments", [
    {"backend": "eager_debug"}, {"backend": "aot_eager_default_partitioner"},
    {"backend": "aot_eager_decomp_partition_crossref"}, {"backend": "ts"}, {"mode": "lite"},
    {"mode": "lite", "backend": "inductor"}, {"backend": "invoke_subgraph"},
], ids=str)
def test_backends_of_torchs_own_are_given_our_graphs(arguments):
    fxjit.install()
    torch._dynamo.reset()
    fxjit.counters.clear()
    compiled = torch.compile(scaled_sines, fullgraph=True, **arguments)
    weight = torch.randn(4, 3, requires_grad=True)
    compiled(X, weight).sum().backward()
    gradient, weight.grad = weight.grad, None
    scaled_sines(X, weight).sum().backward()
    torch.testing.assert_close(compiled(X, weight), scaled_sines(X, weight))
    torch.testing.assert_close(gradient, weight.grad)
    assert fxjit.counters["stats"]["unique_graphs"] == 1


def test_a_model_compiled_in_place_by_torchs_names():
    fxjit.install()
    for arguments in ({"mode": "lite"}, {"backend": "eager_debug"}):
        model = torch.nn.Linear(4, 2)
        expected = model(X)
        model.compile(**arguments)
        torch.testing.assert_close(model(X), expected)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_change_nothing_on_a_processor(mode):
    """As docs/moving_over.md says: the same kernels, and no CUDA graph."""
    kernels = []
    for arguments in ({}, {"mode": mode}):
        fxjit.reset()
        fxjit.counters.clear()
        compiled = fxjit.compile(scaled_sines, **arguments)
        for _ in range(4):
            torch.testing.assert_close(compiled(X, X.T), scaled_sines(X, X.T))
        assert fxjit.counters["cudagraphs"].keys() <= {"not recorded: its tensors are on cpu"}
        kernels.append(fxjit.counters["native"]["kernels"])
    assert kernels[0] == kernels[1] > 0


def test_an_unknown_backend_is_an_error():
    fxjit.install()
    with pytest.raises(torch._dynamo.exc.InvalidBackend, match="No backend is called 'nobodys'"):
        torch.compile(scaled_sines, backend="nobodys")


def test_the_stance_that_compiles_at_the_second_call_has_two_names():
    fxjit.install()
    for name in ("eager_then_compile", "aot_eager_then_compile"):
        fxjit.reset()
        fxjit.counters.clear()
        compiled = torch.compile(scaled_sines, backend="eager")
        with torch.compiler.set_stance(name):
            for graphs in (0, 1, 1):
                torch.testing.assert_close(compiled(X, X.T), scaled_sines(X, X.T))
                assert fxjit.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("name", ["mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"])
def test_marks_of_dimensions_that_are_not_there(name):
    """As in torch they have no effect, those beside them do; fxjit's own functions raise."""
    if name == "mark_unbacked":
        from torch._dynamo.decorators import mark_unbacked as mark
    else:
        mark = getattr(torch._dynamo, name)
    fxjit.install()
    with pytest.warns(UserWarning, match="the tensor has 0 dimensions"):
        mark(torch.tensor(1.0), 0)
    x = torch.ones(4, 2)
    with pytest.warns(UserWarning, match="the tensor has 2 dimensions"):
        mark(x, [0, 3])
    compiled = torch.compile(lambda x: x * 2, backend="eager")
    for rows in (4, 5, 6):
        given = x if rows == 4 else torch.ones(rows, 2)
        torch.testing.assert_close(compiled(given), given * 2)
    assert fxjit.counters["stats"]["unique_graphs"] == 1
