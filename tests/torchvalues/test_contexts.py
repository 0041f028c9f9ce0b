"""Context managers of torch: the state inside, the state afterwards, and graphs that break in the middle."""

from __future__ import annotations

import contextlib

import pytest
import torch

import fxjit


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_no_grad_and_enable_grad(assert_same_as_eager):
    def fn(x):
        with torch.no_grad():
            a = x * 2
            with torch.enable_grad():
                b = x * 3
            inside = torch.is_grad_enabled()
        return a, b, x * 4, inside, torch.is_grad_enabled()
    assert_same_as_eager(fn, leaf(3))


def test_set_grad_enabled(assert_same_as_eager):
    def fn(x):
        with torch.set_grad_enabled(False):
            a = x * 2
        with torch.set_grad_enabled(True):
            b = x * 2
        return a, b
    assert_same_as_eager(fn, leaf(3))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_set_grad_enabled_as_a_function_stays(backend):
    def fn(x):
        torch.set_grad_enabled(False)
        return x * 2
    fxjit.reset()
    try:
        result = fxjit.compile(fn, backend=backend, fullgraph=True)(leaf(3))
        assert not torch.is_grad_enabled()
        assert not result.requires_grad
    finally:
        torch.set_grad_enabled(True)


@torch.no_grad()
def decorated(x):
    return x * 2


@torch.no_grad
def decorated_without_parentheses(x):
    return x * 3


@torch.inference_mode()
def inferred(x):
    return x + 1


@torch.set_grad_enabled(False)
def ungraded(x):
    return x * 5


def test_decorators(assert_same_as_eager):
    assert_same_as_eager(lambda x: (decorated(x), decorated_without_parentheses(x), x * 4), leaf(3))


@pytest.mark.parametrize("fn", [decorated, inferred, ungraded])
def test_compiling_a_decorated_function(assert_same_as_eager, fn):
    assert_same_as_eager(fn, leaf(3))
    assert_same_as_eager(lambda x: (fn(x), x * 4), leaf(3))


def test_inference_mode(graphs_of):
    def fn(x):
        with torch.inference_mode():
            y = x * 2
        return y
    result, graphs = graphs_of(fn, torch.randn(3))
    assert result.is_inference()
    assert len(graphs) == 1
    assert not torch.is_inference_mode_enabled()


def test_autocast(assert_same_as_eager):
    def fn(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ y
            with torch.autocast("cpu", enabled=False):
                b = x @ y
        return a, b, x @ y, torch.is_autocast_enabled("cpu")
    assert_same_as_eager(fn, torch.randn(3, 3), torch.randn(3, 3))


def test_nullcontext_and_record_function(assert_same_as_eager):
    def fn(x):
        with contextlib.nullcontext(3) as number, torch.profiler.record_function("here"):
            return x * number
    assert_same_as_eager(fn, torch.randn(3))


@pytest.mark.parametrize("profiled", [False, True])
def test_a_break_in_a_profilers_range(profiled):
    """A profiler sees the range around what ran as it stands; the manager is what the program made of it either way."""
    def fn(x):
        with torch.profiler.record_function("around the break") as entered:
            y = x * 2
            number = y.tolist()[0]
            z = y + number
        return z, type(entered) is torch.profiler.record_function, entered.name

    compiled = fxjit.compile(fn, backend="eager")
    x = torch.randn(3)
    with torch.autograd.profiler.profile() if profiled else contextlib.nullcontext() as seen:
        actual = compiled(x)
    expected = fn(x)
    assert torch.equal(actual[0], expected[0])
    assert actual[1:] == expected[1:] == (True, "around the break")
    if profiled:
        assert "around the break" in {event.name for event in seen.function_events}


def test_default_device(assert_same_as_eager):
    def fn(x):
        with torch.device("cpu"):
            return x + torch.ones(3)
    assert_same_as_eager(fn, torch.randn(3))


def test_attention_kernels(assert_same_as_eager):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def fn(q):
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert_same_as_eager(fn, torch.randn(1, 2, 4, 8))


@pytest.mark.parametrize("manager", [torch.no_grad, torch.enable_grad, contextlib.nullcontext,
                                     lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_a_break_inside_resumes_inside(graphs_of, manager):
    def fn(x):
        y = x @ x
        with manager():
            y = y @ x
            fxjit.graph_break()
            y = y @ x
        return y.float() @ x
    x = leaf(3, 3)
    expected = fn(x)
    result, graphs = graphs_of(fn, x)
    assert result.dtype == expected.dtype
    assert result.requires_grad == expected.requires_grad
    torch.testing.assert_close(result, expected)
    assert len(graphs) == 2
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_an_exception_leaves_the_block(assert_same_as_eager):
    def fn(x):
        try:
            with torch.no_grad():
                raise ValueError
        except ValueError:
            return x * 2, torch.is_grad_enabled()
    assert_same_as_eager(fn, leaf(3))


DECORATORS = {
    "no_grad": lambda: torch.no_grad(), "no_grad, bare": lambda: torch.no_grad, "enable_grad": lambda: torch.enable_grad(),
    "off": lambda: torch.set_grad_enabled(False), "on": lambda: torch.set_grad_enabled(mode=True),
    "inference": lambda: torch.inference_mode(), "no inference": lambda: torch.inference_mode(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16), "range": lambda: torch.profiler.record_function("a", "b"),
    "kernels": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("manager", DECORATORS)
def test_managers_as_decorators_in_traced_code(assert_same_as_eager, manager, before):
    make = DECORATORS[manager]

    def inner(x):
        return x @ x, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def called(x):
        function = make()(inner)
        return function(x), function(x * 2), torch.is_grad_enabled(), x * 3

    def decorated(x):
        @make()
        def function(y):
            return y * 3, torch.is_grad_enabled()

        return function(x), torch.is_grad_enabled()

    def kept(x):
        manager = make()
        function, between = manager(inner), torch.is_grad_enabled()
        with torch.no_grad():
            return function(x), between, torch.is_grad_enabled()

    for program in (called, decorated, kept):
        with torch.set_grad_enabled(before):
            assert_same_as_eager(program, torch.ones(2, 2, requires_grad=before))
            assert torch.is_grad_enabled() is before


@pytest.mark.parametrize("manager", DECORATORS)
def test_decorated_behind_a_break(manager):
    make = DECORATORS[manager]

    def program(x):
        manager = make()
        fxjit.graph_break()
        function = manager(lambda y: (y @ y, torch.is_grad_enabled()))
        fxjit.graph_break()
        return function(x), torch.is_grad_enabled()

    compiled = fxjit.compile(program, backend="eager")
    for function in (program, compiled):
        (y, inside), outside = function(torch.ones(2, 2, requires_grad=True))
        made = (y.detach(), y.requires_grad, y.dtype, inside, outside)
        torch._C._set_grad_enabled(True)
        if function is program:
            expected = made
    assert made[1:] == expected[1:] and torch.equal(made[0], expected[0])


def test_a_block_that_breaks_before_any_operator_has_no_graph():
    def program(loader):
        total = 0.0
        with torch.no_grad():
            for each in loader:
                total += (each * 2).sum().item()
        return total, torch.is_grad_enabled()

    graphs = []
    fxjit.reset()
    compiled = fxjit.compile(program, backend=lambda gm, examples: graphs.append(gm.code) or gm)
    loader = torch.utils.data.DataLoader([torch.ones(2), torch.zeros(2)])
    assert compiled(loader) == program(loader)
    assert all("sum" in code for code in graphs), graphs
