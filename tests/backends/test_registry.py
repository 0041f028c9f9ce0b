"""Names and callables as backends: built in, registered, offered by installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch
import torch.fx

import fxjit
from fxjit.backends import registry
from fxjit.errors import InternalError, InvalidArgument, InvalidBackend


@pytest.fixture(autouse=True)
def forget():
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)
    registry._offered.cache_clear()


def graph_of(fn, *inputs):
    return torch.fx.symbolic_trace(fn), list(inputs)


def test_the_built_in_backends_are_there():
    assert {"native", "cudagraphs", "inductor"} <= set(fxjit.list_backends())
    every = fxjit.list_backends(exclude_tags=None)
    assert {"eager", "eager_noexcept", "pre_dispatch_eager", "aot_eager", "aot_eager_decomp_partition"} <= set(every)
    assert every == sorted(every)
    for name in every:
        assert callable(fxjit.lookup_backend(name)), name


def test_registering_a_function_under_its_name_or_another():
    @fxjit.register_backend
    def mine(gm, inputs):
        return gm.forward

    @fxjit.register_backend(name="other", tags=("debug",))
    def anything(gm, inputs):
        return gm.forward

    assert fxjit.lookup_backend("mine") is mine and fxjit.lookup_backend("other") is anything
    assert "mine" in fxjit.list_backends() and "other" not in fxjit.list_backends()
    assert torch.equal(fxjit.compile(lambda x: x + 1, backend="mine")(torch.ones(2)), torch.full((2,), 2.0))


def test_a_name_is_taken_once():
    fxjit.register_backend(lambda gm, inputs: gm, name="taken")
    with pytest.raises(InvalidBackend, match="exists already"):
        fxjit.register_backend(lambda gm, inputs: gm, name="taken")
    with pytest.raises(InvalidBackend, match="exists already"):
        fxjit.register_backend(lambda gm, inputs: gm, name="native")


def test_packages_offer_backends_as_entry_points(monkeypatch):
    points = {
        "fxjit_backends": [EntryPoint("theirs", "fxjit.backends.eager:eager", "fxjit_backends")],
        "torch_dynamo_backends": [EntryPoint("broken", "no_such_module:x", "torch_dynamo_backends")],
    }
    monkeypatch.setattr(registry, "entry_points", lambda group: points[group])
    registry._offered.cache_clear()
    from fxjit.backends.eager import eager

    assert fxjit.lookup_backend("theirs") is eager
    with pytest.raises(InvalidBackend, match="'broken' is installed but cannot be loaded"):
        fxjit.lookup_backend("broken")


def test_an_unknown_name_says_what_is_near():
    with pytest.raises(InvalidBackend, match="Did you mean 'inductor'"):
        fxjit.lookup_backend("inducter")


def test_a_callable_is_a_backend_already():
    assert fxjit.lookup_backend(graph_of) is graph_of


@pytest.mark.parametrize("name", ["eager", "eager_noexcept", "pre_dispatch_eager"])
def test_the_eager_backends_give_eagers_results(name):
    def f(x, y):
        return torch.relu(x @ y).sum(0), x + 1

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    gm, inputs = graph_of(f, x, y)
    for got, want in zip(fxjit.lookup_backend(name)(gm, inputs)(x, y), f(x, y)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("block", [
    torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.float16, enabled=False), lambda: torch.autocast("cpu"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["eager", "native"])
def test_a_graph_that_fails_inside_a_block_leaves_the_block(name, block):
    """Fake tensors do not see that the types differ."""
    def state():
        found = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
        depth = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
        return (*found, depth)

    def function(x, w):
        with block():
            x = x.to(torch.bfloat16) + 1
            with torch.autocast("cpu", enabled=False):
                return torch.mm(x, w)

    compiled, before = fxjit.compile(function, backend=name), state()
    for _ in range(2):
        for call in (function, compiled):
            with pytest.raises(RuntimeError, match="same dtype"):
                call(torch.randn(2, 4), torch.randn(4, 4))
            assert state() == before


def test_eager_noexcept_blames_itself():
    gm, inputs = graph_of(lambda x, y: x @ y, torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(InternalError, match="a captured graph raised RuntimeError"):
        fxjit.lookup_backend("eager_noexcept")(gm, inputs)(torch.ones(2, 3), torch.ones(2, 3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_cudagraphs_without_a_gpu_runs_eagerly_and_says_so():
    gm, inputs = graph_of(lambda x: x + 1, torch.ones(2))
    with pytest.warns(RuntimeWarning, match="runs this graph eagerly: there is no CUDA device"):
        compiled = fxjit.lookup_backend("cudagraphs")(gm, inputs)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cudagraphs_replays():
    x = torch.randn(8, device="cuda")
    gm, inputs = graph_of(lambda x: torch.relu(x) * 2, x)
    compiled = fxjit.lookup_backend("cudagraphs")(gm, inputs)
    first = compiled(x)
    for value in (x, x + 1, torch.randn(3, device="cuda")):
        torch.testing.assert_close(compiled(value), torch.relu(value) * 2)
    torch.testing.assert_close(first, torch.relu(x) * 2)


def test_inductor_is_torchs(monkeypatch):
    import torch._inductor.compile_fx as compile_fx

    seen = {}

    def fake(gm, inputs, config_patches=None):
        seen.update(patches=config_patches)
        return gm.forward

    monkeypatch.setattr(compile_fx, "compile_fx", fake)
    gm, inputs = graph_of(lambda x: x + 1, torch.ones(2))
    fxjit.lookup_backend("inductor")(gm, inputs, mode="max-autotune-no-cudagraphs", options={"epilogue_fusion": True})
    assert seen["patches"]["max_autotune"] is True and seen["patches"]["epilogue_fusion"] is True


@pytest.mark.parametrize("give, what", [
    (lambda results: results[0], "a Tensor"),
    (lambda results: None, "a NoneType"),
    (lambda results: {"y": results[0]}, "a dict"),
    (lambda results: [*results, 1], "a list of 2"),
    (lambda results: (), "a tuple of 0"),
])
def test_a_backend_whose_graphs_do_not_return_their_outputs_is_told(give, what):
    def backend(gm, inputs):
        return lambda *args: give(gm(*args))

    compiled = fxjit.compile(lambda x: x * 2, backend=backend)
    with pytest.raises(InvalidArgument, match=f"backend 'backend' made of a graph returned {what}, not a tuple or list"):
        compiled(torch.ones(1))


@pytest.mark.parametrize("give", [tuple, list, iter])
def test_a_backend_gives_its_results_in_a_tuple_a_list_or_one_by_one(give):
    compiled = fxjit.compile(lambda x: (x * 2, x + 1), backend=lambda gm, inputs: lambda *args: give(gm(*args)))
    double, more = compiled(torch.ones(2))
    assert double.tolist() == [2, 2] and more.tolist() == [2, 2]
