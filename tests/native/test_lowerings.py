"""Operators whose lowering is more than a formula: places of extremes, dropout, pooling, stores at computed places."""

from __future__ import annotations

import re

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit.backends.native.decompositions import kept_whole, table
from fxjit.backends.native.lower import table as table_of_lowerings
from fxjit.schemas import views_first_argument

ALL_TYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
]  # fmt: skip


# The place of an extreme: NaN is the extreme, the first of equals counts.


def of_type(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    if dtype is torch.bool:
        return torch.randn(5, 6, 7) > 0
    x = (torch.randn(5, 6, 7) * 3).to(dtype)
    if dtype.is_floating_point:
        x[1, 2, 3] = x[1, 2, 5] = float("nan")
        x[0, 0, :2] = float("inf")
        x[2, :, 0] = -float("inf")
        x[3, 0] = torch.tensor([0.0, -0.0, 0.0, -0.0, -1.0, -1.0, -2.0]).to(dtype)
    return x


# Each type in one mode, a float and bools in both.
@pytest.mark.parametrize("dtype,mode", [*((dtype, ("fake", "symbolic")[k % 2]) for k, dtype in enumerate(ALL_TYPES)),
                                        (torch.float32, "symbolic"), (torch.bool, "fake")], ids=str)
def test_places_of_extremes(assert_kernels_same, dtype, mode):
    def function(x):
        out = []
        for dim in (0, 1, -1):
            out += [*x.max(dim), *x.min(dim, keepdim=True)]
            if dtype is not torch.bool:
                out += [x.argmax(dim), x.argmin(dim, keepdim=True)]
        if dtype is not torch.bool:
            out += [x.argmax(), x.argmin(), x.transpose(0, 2).argmax(), x[:, ::2].argmax(1)]
        if dtype.is_floating_point:
            out += [(x * 2).argmax(-1), (x.abs() + 1).max(0)[1], torch.softmax(x, -1).argmax(-1)]
        return out

    assert_kernels_same(function, of_type(dtype), mode=mode, decompositions=table())


# Random numbers


LAYOUTS = {
    "plain": lambda x: x, "transposed": lambda x: x.transpose(0, 1), "strided": lambda x: x[:, ::2], "empty": lambda x: x[:0],
    "channels": lambda x: x.reshape(4, 2, 3, 8).contiguous(memory_format=torch.channels_last),
}  # fmt: skip


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_eagers_numbers(layout, p):
    """In the order of the memory, whatever the layout; the derivative uses the same mask."""
    x = LAYOUTS[layout](torch.randn(12, 16)).detach()

    def function(x):
        return torch.nn.functional.dropout(x * 2, p).sin()

    results = []
    for each in (function, fxjit.compile(function)):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        torch.manual_seed(3)
        out = each(leaf)
        out.sum().backward()
        results.append((out.detach(), leaf.grad, torch.rand(3)))
    for a, e in zip(results[1], results[0]):
        torch.testing.assert_close(a, e)
        assert torch.equal(a == 0, e == 0)


def test_random_numbers_are_eagers():
    def function(x):
        return (
            torch.rand(4, 3) * x, torch.randn_like(x).exp(), torch.bernoulli(x.sigmoid()), torch.randint(0, 9, (5,)) + 1,
            torch.randperm(6), torch.empty_like(x).uniform_(-1, 1), torch.nn.functional.alpha_dropout(x, 0.4),
            torch.normal(x, 0.5),
            torch.multinomial(x.abs(), 2), torch.empty_like(x).exponential_() + 1, torch.nn.functional.rrelu(x, training=True),
        )  # fmt: skip

    x = torch.randn(4, 3)
    results = []
    for each in (function, fxjit.compile(function)):
        torch.manual_seed(5)
        results.append((*each(x), torch.rand(2)))
    for a, e in zip(*results):
        torch.testing.assert_close(a, e)


# Upsampling


UPSAMPLING = {
    "nearest": (torch.randn(2, 3, 4, 5), {"scale_factor": 2}), "nearest sizes": (torch.randn(2, 3, 4, 5), {"size": (7, 9)}),
    "exact": (torch.randn(2, 3, 4, 5), {"scale_factor": 1.5, "mode": "nearest-exact"}),
    "bilinear": (torch.randn(2, 3, 4, 5), {"scale_factor": 2, "mode": "bilinear"}),
    "corners": (torch.randn(2, 3, 4, 5), {"size": (9, 3), "mode": "bilinear", "align_corners": True}),
    "bicubic": (torch.randn(1, 2, 5, 5), {"scale_factor": 2, "mode": "bicubic"}),
    "linear": (torch.randn(2, 3, 6), {"scale_factor": 3, "mode": "linear"}),
    "trilinear": (torch.randn(1, 2, 3, 3, 3), {"scale_factor": 2, "mode": "trilinear"}),
}  # fmt: skip


# With sizes that vary by turns, bilinear with and without.
@pytest.mark.parametrize("name,dynamic", [*((name, (None, True)[k % 2]) for k, name in enumerate(UPSAMPLING)),
                                          ("bilinear", None), ("corners", True), ("nearest", True)])
def test_upsampling(name, dynamic):
    x, how = UPSAMPLING[name]

    def function(x):
        return torch.nn.functional.interpolate(x * 2, **how).relu()

    results = []
    for each in (function, fxjit.compile(function, dynamic=dynamic)):
        leaf = x.clone().requires_grad_()
        out = each(leaf)
        results.append((out.detach(), *torch.autograd.grad((out * 1.5).sum(), leaf)))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_upsampled_bytes_are_rounded_as_in_eager(mode, dynamic):
    def function(x):
        a = torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode)
        return a, torch.nn.functional.interpolate(x, size=(9, 4), mode=mode, align_corners=True)

    x = (torch.arange(126) * 37 % 256).reshape(1, 3, 6, 7).to(torch.uint8)
    for actual, expected in zip(fxjit.compile(function, dynamic=dynamic)(x), function(x)):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("how", [{"mode": "bilinear"}, {"mode": "bicubic"}, {"mode": "bilinear", "antialias": True}], ids=str)
def test_upsampling_beside_infinity_and_nan(how, layout, dtype):
    """Eager weighs the points, and an infinite one by zero is NaN; the differences of points are NaN elsewhere."""
    if how.get("antialias") and dtype is not torch.float32:
        pytest.skip("torch has no kernel")
    x = torch.randn(2, 3, 6, 5)
    x[0, 1, 2, 3], x[1, 0, 5, 4] = float("inf"), float("nan")
    x = x.to(dtype).contiguous(memory_format=layout)

    def function(x):
        grown = torch.nn.functional.interpolate(x.neg(), size=(x.shape[2] * 2, 7), **how)
        return grown, grown.relu()

    results = []
    for each in (function, fxjit.compile(function, dynamic=True)):
        leaf = x.clone().requires_grad_()
        outputs = each(leaf)
        given = torch.autograd.grad(outputs, leaf, [torch.ones_like(out) for out in outputs])
        results.append([*(out.detach() for out in outputs), *given])
    for actual, expected in zip(*reversed(results)):
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_upsampling_is_one_operator_while_a_graph_is_traced():
    def traced():
        gm = make_fx(torch.nn.Upsample(scale_factor=2, mode="bilinear"), tracing_mode="symbolic")(torch.randn(1, 1, 3, 3))
        return {str(node.target) for node in gm.graph.nodes}

    assert "aten._unsafe_index.Tensor" in traced()
    for symbols in (False, True):
        with kept_whole(symbols):
            assert "aten.upsample_bilinear2d.default" in traced()
    assert "aten._unsafe_index.Tensor" in traced()


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_derivatives_of_slices(assert_kernels_same, mode):
    """Zeros with the gradient in its place: steps, negative places, other layouts of the gradient."""

    def function(x, y):
        aten = torch.ops.aten
        return [
            aten.slice_backward(x, [5, 9, 7], 1, 2, 8, 1), aten.slice_backward(x, [5, 14, 7], -2, -12, 9223372036854775807, 2),
            aten.slice_backward(x.transpose(0, 2), [9, 6, 5], 0, 0, 7, 1) + 1,
            aten.select_backward(x, [4, 5, 6, 7], 0, -1), aten.select_backward(y, [5, 6, 3], 2, 1) * 2,
        ]  # fmt: skip

    assert_kernels_same(function, torch.randn(5, 6, 7), torch.randn(6, 5).t(), mode=mode, decompositions=table())


def slices_from_behind(x, y):
    aten = torch.ops.aten
    changed, doubled = x * 1, x * 1
    changed[:, -10:] = y[:, -10:]
    doubled[:, -9::3] = y[:, -9::3]
    doubled[:, -8:-2] *= 2
    whole = [3, x.shape[1], 2]
    return [
        (x * 2)[:, -10:-2] + 1, (x * 2)[:, -9::2] + 1, changed, doubled,
        aten.slice_backward(x[:, -10:], whole, 1, -10, 9223372036854775807, 1),
        aten.slice_backward(x[:, -10:-1:2], whole, 1, -10, -1, 2),
    ]  # fmt: skip


def test_slices_that_begin_before_the_first_of_elements_whose_number_varies():
    """`-10` of seven elements is the first one: `changed` was written to before its memory."""
    compiled = fxjit.compile(slices_from_behind, dynamic=True)
    for length in (7, 12, 9, 10, 20, 3):
        y = torch.randn(3, length, 2)
        results = []
        for each in (slices_from_behind, compiled):
            x = torch.linspace(0, 1, 6 * length).view(3, length, 2).requires_grad_()
            outputs = each(x, y)
            results.append([*outputs, *torch.autograd.grad(outputs, x, [torch.ones_like(out) for out in outputs])])
        for actual, expected in zip(*results):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape,dims", [((4, 1), 1), ((1, 4), 0), ((4, 3), 1), ((), ()), ((1, 1), (0, 1))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_signs_of_sums_of_negative_zeros(kernels, shape, dims, dtype):
    """A sum begins at zero, also that of one number; the greatest and the least keep the sign."""

    def function(x):
        return x.sum(dims), x.mean(dims), x.mul(3).sum(dims, keepdim=True), x.amax(dims), x.amin(dims)

    x = torch.full(shape, -0.0, dtype=dtype)
    for actual, expected in zip(kernels(function, x)(x), function(x)):
        assert actual.shape == expected.shape and torch.equal(actual, expected)
        assert torch.equal(actual.signbit(), expected.signbit())


def test_operands_of_several_types_that_eager_refuses():
    def function(x, y):
        return torch.heaviside(x, y) + 1

    x, y = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.5])
    compiled = fxjit.compile(function)
    assert torch.equal(compiled(x, y), function(x, y))
    for each in (function, compiled):
        with pytest.raises(RuntimeError, match="different dtypes"):
            each(x, y.double())


# Constants


def of_constants(x):
    whole = x.long()
    return [
        x ** torch.tensor(2), x ** torch.tensor(3.0), x.pow(torch.tensor(0.5)), whole ** torch.tensor(2),
        x + torch.tensor(float("nan")),
        x * torch.tensor(2), whole * torch.tensor(2.5), x.half() + torch.tensor(3), x.double() * torch.tensor(0.1),
        (x > 0) * torch.tensor(True), torch.tensor(2) ** x, torch.tensor(7) // torch.tensor(2), torch.tensor(5),
        torch.tensor(2.0).add_(x.sum()), x ** torch.tensor([2.0]),
    ]  # fmt: skip


def test_a_tensor_of_one_number_made_while_tracing_is_a_number_of_the_kernels(assert_same, caplog):
    """A power with such an exponent is products; and what a program does to the results is not seen by the next call."""
    x = torch.rand(5) + 1
    compiled = fxjit.compile(of_constants, fullgraph=True)
    with caplog.at_level("DEBUG", logger="fxjit.output_code"):
        for _ in range(2):
            made = compiled(x)
            for k, (actual, expected) in enumerate(zip(made, of_constants(x), strict=True)):
                assert_same(actual, expected, str(k))
            made[-3].add_(5)
            made[-2].zero_()
    source = "\n".join(record.getMessage() for record in caplog.records)
    calls = re.sub(r"static FX \w+ fx_pow.*", "", source).count("fx_pow(")
    assert calls == 2  # of 2 and x, and of the constant that is no single number


# Tensors whose memory is the negative of what they are


def of_negatives(x):
    imaginary = torch.complex(x, x + 1).conj().imag
    return imaginary.abs(), imaginary[1:] + 1, torch.stack([imaginary, imaginary]).amax(0), imaginary.sum(), imaginary


@pytest.mark.parametrize("dynamic", [None, True])
def test_the_imaginary_part_of_a_conjugate_is_read_with_its_sign(assert_same, dynamic):
    x = torch.arange(5.0)
    for k, (actual, expected) in enumerate(zip(fxjit.compile(of_negatives, dynamic=dynamic)(x), of_negatives(x), strict=True)):
        assert actual.is_neg() == expected.is_neg()
        assert_same(actual, expected, str(k))


def test_an_input_whose_memory_is_its_negative(assert_same):
    def function(x):
        return x.abs() + x, x[1:].sum()

    compiled = fxjit.compile(function, fullgraph=True)
    for x in (torch.arange(5.0), torch._neg_view(torch.arange(5.0))):
        for actual, expected in zip(compiled(x), function(x), strict=True):
            assert_same(actual, expected, "")


def test_a_number_is_turned_over_and_stays_itself(assert_same):
    x = torch.tensor(2.0)
    assert_same(fxjit.compile(lambda x: x.sub(x.flip(0) * 3), fullgraph=True)(x), torch.tensor(-4.0), "")


VIEWS = {
    "view.default": ((3, 2),), "_unsafe_view.default": ((3, 2),), "permute.default": ((1, 0),), "t.default": (),
    "transpose.int": (0, 1), "expand.default": ((4, 2, 3),), "unsqueeze.default": (0,), "squeeze.default": (),
    "squeeze.dim": (0,), "squeeze.dims": ((0,),), "slice.Tensor": (1, 1, 3), "select.int": (0, 1), "alias.default": (),
    "detach.default": (), "as_strided.default": ((3,), (1,), 2), "diagonal.default": (), "unfold.default": (1, 2, 1),
}  # fmt: skip


def test_lowerings_that_are_views_give_eagers_memory():
    """The operators whose results have no memory of their own in a kernel are those that give none in eager."""
    found = {}
    for name in table_of_lowerings.LOWERINGS:
        packet, overload = name.split(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if isinstance(operator, torch._ops.OpOverload) and views_first_argument(operator):
            found[name] = operator
    assert found.keys() == VIEWS.keys()
    for name, operator in found.items():
        x = torch.rand(2, 3)
        assert operator(x, *VIEWS[name]).untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), name


@pytest.mark.parametrize("turned", [False, True])
def test_an_activation_before_a_layer_norm_in_backward_is_computed_once(turned, sources):
    """The norm's derivative reads it along rows, and along columns for its parameters."""
    norm, other = torch.nn.LayerNorm(24), torch.nn.LayerNorm(24)

    def program(norm, x):
        return torch.nn.functional.gelu(norm(x.mT).mT) if turned else torch.nn.functional.gelu(norm(x))

    compiled = fxjit.compile(program)
    x = torch.randn(3, 24, 40) if turned else torch.randn(3, 40, 24)
    found = []
    for function, each in (program, norm), (compiled, other):
        given = x.clone().requires_grad_()
        out = function(each, given)
        out.sin().sum().backward()
        found.append((out, given.grad, each.weight.grad, each.bias.grad))
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)
    assert sum(text.split('extern "C"', 1)[1].count("fx_gelu_slope(") for text in sources) == 1
