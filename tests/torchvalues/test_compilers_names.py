"""Functions of torch that speak to compilers, or of which only the compiled form does something, are captured in one graph."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from tests.differential import assert_same_as_eager
from torch._dynamo.comptime import comptime
from torch._higher_order_ops import foreach_map
from torch.fx._symbolic_trace import is_fx_tracing

import fxjit

X = torch.linspace(-1, 1, 12).reshape(3, 4)
LINEAR = torch.nn.Linear(4, 4)


@torch.compiler.assume_constant_result
def rows_of(x):
    return x.shape[0] * int(x.sum() < 100)


@torch.compiler.assume_constant_result
def width_of(module, factor=1):
    return module.in_features * factor


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() + 1


@torch.compiler.nested_compile_region()
def region_with_settings(x, by=2):
    return x * by


@torch._dynamo.patch_dynamo_config(allow_unspec_int_on_nn_module=True)
def decorated(x):
    return x.cos()


def patched(x):
    with torch._dynamo.patch_dynamo_config(allow_unspec_int_on_nn_module=True):
        return decorated(x) + 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def made_function(x):
    function = Doubled()
    return function.apply(x) + Doubled().apply(x + 1)


def with_comptime(x):
    y = x + 1

    @comptime
    def _(context):
        context.print(context.get_local("y"))

    comptime.print_graph()
    comptime.assert_static(x.shape[0])
    comptime.print_bt()
    return y * 2


def comptimes_fallback(x):
    seen = []
    comptime(lambda context: None, fallback_fn=lambda: seen.append(1))
    return x + len(seen)


#: From torch 2.12 on.
OVERRIDE_CUDAGRAPHS = getattr(torch._dynamo, "override_cudagraphs", lambda fwd: torch.no_grad())


def under_managers(x):
    with torch._dynamo.disable_nested_graph_breaks():
        x = x + 1
    with OVERRIDE_CUDAGRAPHS(fwd=False):
        return x * 2


@torch._dynamo.dont_skip_tracing
def traced_by_name(x):
    return x - 1


@torch._dynamo.disable_nested_graph_breaks
def by_decorator(x):
    return traced_by_name(x).sin()


PROGRAMS = {
    "an autograd.Function that is instantiated": made_function,
    "comptime": with_comptime,
    "comptime's fallback": comptimes_fallback,
    "managers of torch's compiler": under_managers,
    "decorators of torch's compiler": by_decorator,
    "patch_dynamo_config": lambda x: patched(x),
    "id of a module": lambda x: LINEAR(x) * {id(LINEAR): 3}[id(LINEAR)],
    "assume_constant_result of a tensor": lambda x: x * rows_of(x),
    "assume_constant_result of a module": lambda x: x * width_of(LINEAR, factor=3),
    "nested_compile_region": lambda x: region(x) + region_with_settings(x, by=3),
    "nested_compile_region, made here": lambda x: torch.compiler.nested_compile_region(lambda y: y.cos())(x),
    "torch.jit.annotate": lambda x: torch.jit.annotate(torch.Tensor, x) + 1,
    "is_fx_tracing": lambda x: x if is_fx_tracing() else x + 1,
    "_shape_as_tensor": lambda x: torch._shape_as_tensor(x) * 2,
    "_shape_as_tensor of a number": lambda x: torch._shape_as_tensor(x.sum()),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_it_is_one_graph(program):
    assert_same_as_eager(program, X)


def test_shapes_as_tensors_follow_sizes_that_vary():
    compiled = fxjit.compile(torch._shape_as_tensor, backend="eager", fullgraph=True)
    for rows in (3, 4, 5, 6):
        assert compiled(torch.ones(rows, 2)).tolist() == [rows, 2]


MAPPED = [
    (lambda xs, ys: foreach_map(torch.add, xs, ys), lambda xs, ys: [x + y for x, y in zip(xs, ys, strict=True)]),
    (lambda xs, ys: foreach_map(torch.mul, xs, 2), lambda xs, ys: [x * 2 for x in xs]),
    (lambda xs, ys: foreach_map(lambda x, y: (x * y).sin() + 1, xs, ys),
     lambda xs, ys: [(x * y).sin() + 1 for x, y in zip(xs, ys, strict=True)]),
    (lambda xs, ys: foreach_map(torch.sin, xs[0]), lambda xs, ys: xs[0].sin()),
]


@pytest.mark.parametrize(("mapped", "eager"), MAPPED)
def test_foreach_map_is_one_graph(mapped, eager):
    """Eagerly torch refuses it; compiled it is what a loop over the lists is."""
    xs, ys = [X, X + 1], [X * 2, X - 1]
    compiled = fxjit.compile(mapped, backend="eager", fullgraph=True)(xs, ys)
    torch.testing.assert_close(compiled, eager(xs, ys), rtol=0, atol=0)


@torch.compiler.assume_constant_result
def facts_of(x):
    return x.shape[0] + x.dim()


def test_assumed_constants_of_tensors_that_the_frame_makes():
    def of_an_operator(x):
        y = x * 2
        return y * facts_of(y)

    def of_a_new_one(x):
        return x * facts_of(torch.ones(3))

    for program in (of_an_operator, of_a_new_one):
        assert_same_as_eager(program, X)
    for depends_on_data in (lambda x: x * rows_of(x + 1), lambda x: torch.compiler.assume_constant_result(torch.clone)(x + 1)):
        assert_same_as_eager(depends_on_data, X, fullgraph=False)


def test_settings_that_are_in_force():
    def program(x):
        with torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True):
            return x * 2

    assert_same_as_eager(program, X)


def scaled_by_its_sum(x):
    return x * (x.sum().item() + 1)


scaled_with_scalars = torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True)(scaled_by_its_sum)


def test_numbers_out_of_tensors_are_symbols_where_a_block_says_so():
    """There alone: in front of the block and behind it they break the graph as before."""
    def in_a_block(x):
        with torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True):
            y = scaled_by_its_sum(x)
        return y + 1

    def as_decorator(x):
        return scaled_with_scalars(x + 1) * 2

    def decorated_inside(x):
        return torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True)(scaled_by_its_sum)(x + 1)

    def verified(x):
        with torch._dynamo.patch_dynamo_config(verify_correctness=True):
            return x * 2

    def behind_it(x):
        with torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True):
            y = scaled_by_its_sum(x)
        return y.new_ones(int(y.abs().sum().item()) + 1).sum() * y

    def broken_inside(x):
        with torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True):
            y = scaled_by_its_sum(x)
            torch._dynamo.graph_break()
            return y + 1

    for program, breaks in [(in_a_block, 0), (as_decorator, 0), (decorated_inside, 0), (verified, 0), (behind_it, 1),
                            (broken_inside, 1)]:
        assert_same_as_eager(program, X, fullgraph=False, graphs=breaks + 1, breaks=breaks, skips=False)


def test_how_much_errors_say_breaks_no_graph():
    def program(x):
        with torch._dynamo.patch_dynamo_config(verbose=True):
            return x * 2

    assert_same_as_eager(program, X)


def test_prints_for_who_compiles(capsys):
    """Once, while compiling: the program's own calls print nothing."""
    def program(x):
        y = x + 1
        comptime.print(y)
        return y * 2

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), (X + 1) * 2)
    assert "Tensor" in capsys.readouterr().out
    compiled(X)
    assert not capsys.readouterr().out
