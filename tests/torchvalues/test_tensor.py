"""Tensors in traced code: operators, attributes, methods, subscripts, and what has to end the graph."""

from __future__ import annotations

import pytest
import torch

import fxjit


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


BINARY = {
    "add": lambda x, y: (x + y, x + 2, 2 + x, x + 1.5),
    "sub": lambda x, y: (x - y, x - 2, 2 - x),
    "mul": lambda x, y: (x * y, x * 2, 2.5 * x),
    "div": lambda x, y: (x / y, x / 2, 2 / x),
    "floordiv": lambda x, y: ((x // y).detach(), (x // 2).detach(), (2 // x).detach()),
    "mod": lambda x, y: (x % 3, x % y.detach(), 7 % x.detach()),
    "pow": lambda x, y: (x ** 2, 2 ** x, x.abs() ** y),
    "matmul": lambda x, y: x @ y.T,
    "compare": lambda x, y: (x < y, x <= 1, 0 > x, x == y, x != 0, x >= y),
    "unary": lambda x, y: (-x, +y, abs(x), ~(x > 0)),
    "none": lambda x, y: (x == None, x != None, x is None),  # noqa: E711
}


@pytest.mark.parametrize("name", BINARY)
def test_operators(assert_same_as_eager, name):
    assert_same_as_eager(BINARY[name], leaf(3, 4), leaf(3, 4))


def test_bitwise_operators(assert_same_as_eager):
    assert_same_as_eager(lambda x, y: (x & y, x | 1, 1 ^ x, x << 1, x >> 1, 3 & x), torch.arange(6), torch.arange(6, 12))


def test_in_place_operators_keep_the_object(assert_same_as_eager):
    def fn(x, y):
        before = x
        x += y
        x *= 2
        x -= 1
        x /= 3
        return x is before, y + x
    assert_same_as_eager(fn, torch.randn(3), torch.randn(3))


def test_in_place_methods_are_seen_by_the_caller(assert_same_as_eager):
    def fn(x, y):
        a = x.add_(y)
        x.mul_(2).clamp_(min=0)
        y.copy_(x)
        return a is x, a
    assert_same_as_eager(fn, torch.randn(3), torch.randn(3))


def test_data_written_back_after_it_changed_in_place(assert_same_as_eager):
    def fn(w, x):
        with torch.no_grad():
            step = (w * x).sum(0)
        w.data -= 0.5 * step
        w.data = w.data.clamp_(-1, 1)
        w.data = w.detach()
        return (w * x).sum()

    assert_same_as_eager(fn, leaf(3), torch.randn(2, 3))


@pytest.mark.parametrize("other", [lambda w: w.data.t(), lambda w: w.data.clone(), lambda w: w.data[:1],
                                   lambda w: w.data.double()])
def test_data_that_is_another_is_written_for_real(other):
    def fn(w, x):
        y = x * 2
        w.data = other(w)
        return w + 1, y

    w, v = torch.ones(2, 2), torch.ones(2, 2)
    expected, found = fn(w, torch.ones(2)), fxjit.compile(fn, backend="eager")(v, torch.ones(2))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(v, w)
    assert v.stride() == w.stride()


def clipped(ws, x):
    for w in ws:
        w.data = w.data - 0.1 * x
        w.data = w.data.clamp(-1, 1)


def averaged(ws, x):
    for w, other in zip(ws, ws[1:], strict=False):
        w.data = 0.9 * w.data + 0.1 * other.data
        other.data = x
        other.data.mul_(2)
    return ws[0].data.sum(), x * 2


def swapped(ws, x):
    kept = ws[0].data
    ws[0].data = ws[1].data
    ws[1].data = kept
    kept += x
    with torch.no_grad():
        given_back = ws[1].add_(1)
        return ws[0] * 2 + ws[1], given_back is ws[1], given_back


def of_another_shape(ws, x):
    ws[0].data = ws[0].data.t().double()
    ws[1].data = x.new_zeros(3, 5)
    w = ws[0]
    return w.shape, w.dtype, w.requires_grad, w.is_leaf, w.stride(), ws[1].numel(), w.detach() + 1


def of_parts(ws, x):
    for row, w in zip(x, ws, strict=False):
        w.data = row
    return x.sum()


@pytest.mark.parametrize("fn", [clipped, averaged, swapped, of_another_shape, of_parts])
def test_data_in_a_graph(assert_same_as_eager, fn):
    ws = [torch.nn.Parameter(torch.randn(2, 3), requires_grad=at < 2) for at in range(3)]
    assert_same_as_eager(fn, ws, torch.randn(2, 3), backend=("eager", "aot_eager", "native"))


def test_data_given_before_a_gradient_goes_there():
    def fn(w, x):
        w.data = w.data * 2
        return (w * x).sum()

    def used_before(w, x):
        y = (w * x).sum()
        w.data = w.data * 2
        return y

    for each in (fn, used_before):
        w, v = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        compiled = fxjit.compile(each, backend="eager")
        for _ in range(2):
            expected, found = each(w, torch.arange(3.0)), compiled(v, torch.arange(3.0))
            expected.backward()
            found.backward()
            torch.testing.assert_close((found, v, v.grad), (expected, w, w.grad))


def test_in_place_on_what_the_graph_made(assert_same_as_eager):
    def fn(x):
        y = torch.zeros_like(x)
        y.add_(x)
        y[0] = 5
        y[:, 1] += x[:, 1]
        y[y > 1] = 0
        return y
    assert_same_as_eager(fn, leaf(3, 4))


def test_subscripts(assert_same_as_eager):
    def fn(x, index, mask):
        return (x[0], x[-1], x[1:], x[:, ::2], x[..., 0], x[None], x[:, None, 1:3], x[index], x[:, index], x[[0, 2]],
                x[mask, :1].sum() if False else x[True], x[1, 2], x[0][1])
    assert_same_as_eager(fn, leaf(3, 4), torch.tensor([0, 2, 1]), torch.tensor([True, False, True]))


def test_index_assignment(assert_same_as_eager):
    def fn(x, y):
        x[0] = 1
        x[1:, 2] = y
        x[:, torch.tensor([0, 1])] = 7.0
        x[..., -1] += 2
        return x.sum()
    assert_same_as_eager(fn, torch.randn(3, 4), torch.randn(2))


def test_views_alias_their_base(assert_same_as_eager):
    def fn(x):
        v = x.view(-1)
        t = x.t()
        return v, t, x[1], x.unsqueeze(0), x.expand(2, 3, 4), x.detach()
    assert_same_as_eager(fn, torch.randn(3, 4))


def test_a_view_that_is_written_changes_its_base(assert_same_as_eager):
    def fn(x):
        x[1].mul_(2)
        x.view(-1)[0] = 9
        return x.sum()
    assert_same_as_eager(fn, torch.randn(3, 4))


def test_what_is_no_copy_is_the_same_object(assert_same_as_eager):
    def fn(x):
        return x.contiguous() is x, x.float() is x, x.to(torch.float32) is x, x.double() is x, x.clone() is x
    assert_same_as_eager(fn, torch.randn(3))


def test_attributes(assert_same_as_eager):
    def fn(x):
        return (x.dtype, x.device, x.ndim, x.requires_grad, x.is_leaf, x.layout, x.is_cuda, x.itemsize, x.nbytes, x.is_sparse,
                x.shape, x.size(), x.size(1), x.size(-1), x.stride(), x.stride(0), x.dim(), x.numel(), len(x),
                x.is_contiguous(), x.t().is_contiguous(), x.is_floating_point(), x.element_size(), x.type(), x.grad)
    assert_same_as_eager(lambda x: (*fn(x), x * 2), torch.randn(3, 4))


def test_attributes_that_are_tensors(assert_same_as_eager):
    assert_same_as_eager(lambda x: (x.T, x.mT, x.H, x.real, x.data), torch.randn(3, 4))
    assert_same_as_eager(lambda x: (x.real + 0, x.imag + 0), torch.randn(3, dtype=torch.complex64), backend="eager")


def test_shape_is_a_size(assert_same_as_eager):
    def fn(x):
        batch, *rest = x.shape
        return x.view(batch, -1), x.reshape(*rest, batch), x.shape[1:], torch.zeros(x.shape[:2]), x.shape + (1,)
    assert_same_as_eager(fn, torch.randn(2, 3, 4))


def test_iteration_and_unpacking(assert_same_as_eager):
    def fn(x):
        a, b = x
        return [row * 2 for row in x], a + b, sum(x), list(enumerate(x))[1][1], max(len(row) for row in x)
    assert_same_as_eager(fn, leaf(2, 3))


def test_methods_by_schema(assert_same_as_eager):
    def fn(x):
        values, indices = x.max(dim=1)
        result = x.sort(-1)
        return (values, indices, result.values, x.softmax(-1), x.sum((0, 1)), x.transpose(0, 1), x.permute(1, 0), x.chunk(2),
                x.split(1), x.split([1, 2]), x.std(dim=0, keepdim=True), x.to(torch.float64), x.new_zeros(2),
                x.new_ones((1, 2)),
                x.masked_fill(x > 0, 0.0), x.flatten(), x.unflatten(0, (1, 3)), x.norm(), x.new_tensor([1, 2]))
    assert_same_as_eager(fn, leaf(3, 4))


def test_returned_named_tuples_keep_their_type(assert_same_as_eager):
    assert_same_as_eager(lambda x: x.max(0), torch.randn(3, 4))
    assert_same_as_eager(lambda x: torch.topk(x, 2), torch.randn(3, 4))


def test_unbound_methods(assert_same_as_eager):
    assert_same_as_eager(
        lambda x: (torch.Tensor.add(x, 1), torch.Tensor.split(x, 1), torch.Tensor.__mul__(x, 2)), torch.randn(3)
    )


def test_bound_methods_are_objects(assert_same_as_eager):
    def fn(x):
        add = x.add
        return add(1), [f() for f in (x.sin, x.cos)], getattr(x, "exp")()
    assert_same_as_eager(fn, torch.randn(3))


def test_hasattr_and_unknown_attributes(assert_same_as_eager):
    def fn(x):
        try:
            x.no_such_attribute  # noqa: B018
        except AttributeError:
            x = x + 1
        return hasattr(x, "shape"), hasattr(x, "nothing"), getattr(x, "nothing", 3), x
    assert_same_as_eager(fn, torch.randn(3))


def test_isinstance_and_type(assert_same_as_eager):
    def fn(x, p):
        return (isinstance(x, torch.Tensor), isinstance(x, torch.nn.Parameter), isinstance(p, torch.nn.Parameter),
                type(x) is torch.Tensor, type(p + 1) is torch.Tensor, torch.is_tensor(x), torch.is_tensor(3), p * x)
    assert_same_as_eager(fn, torch.randn(3), torch.nn.Parameter(torch.randn(3)))


def test_two_names_of_one_tensor_are_one_object(graphs_of):
    def fn(x, y):
        return (x + 1 if x is y else x - 1), x is y
    x = torch.randn(3)
    (result, same), graphs = graphs_of(fn, x, x)
    assert same
    torch.testing.assert_close(result, x + 1)
    assert len([node for node in graphs[0].graph.nodes if node.op == "placeholder"]) == 1


def test_identity_is_guarded():
    import fxjit

    def fn(x, y):
        return x + 1 if x is y else x - 1
    compiled = fxjit.compile(fn, backend="eager")
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(compiled(x, x), x + 1)
    torch.testing.assert_close(compiled(x, y), x - 1)
    torch.testing.assert_close(compiled(y, y), y + 1)


def test_attributes_set_on_an_input_are_there_afterwards(graphs_of):
    def fn(x):
        x.mark = 3
        x.grad = None
        return x + x.mark
    x = torch.randn(3)
    result, _ = graphs_of(fn, x)
    assert x.mark == 3
    torch.testing.assert_close(result, x + 3)


def test_the_gradient_at_entry_can_be_read(graphs_of):
    def fn(x):
        return None if x.grad is None else x.grad * 2
    x = leaf(3)
    assert graphs_of(fn, x)[0] is None
    x.grad = torch.ones(3)
    torch.testing.assert_close(graphs_of(fn, x)[0], torch.full((3,), 2.0))


def test_user_attributes_of_tensors(assert_same_as_eager):
    def fn(x):
        return x * x.scale
    x = torch.randn(3)
    x.scale = 3
    import fxjit
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x * 3)
    x.scale = 4
    torch.testing.assert_close(compiled(x), x * 4)


def test_a_number_made_while_tracing_is_known(assert_same_as_eager):
    assert_same_as_eager(lambda x: x * torch.tensor(3).item(), torch.randn(3))


BREAKS = {
    "branch": (lambda x: x + 1 if x.sum() > 0 else x, "data-branch"),
    "numpy": (lambda x: (x + 1).numpy(), "tensor-data"),
    "dlpack": (lambda x: (x + 1).__dlpack__(), "tensor-data"),
    "backward": (lambda x: (x * 2).sum().backward(), "call-autograd-engine"),
    "hook": (lambda x: (x + 1).register_hook(print), "tensor-hook"),
    "requires_grad": (lambda x: (lambda y: (y, y * 2))((x + 1).detach().requires_grad_()), "value-set-attribute"),
    "seed": (lambda x: torch.seed(), "call-rng-state"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_ends_the_graph(breaks, name):
    fn, reason = BREAKS[name]
    assert breaks(fn, leaf(3)) == reason


@pytest.mark.parametrize("name", sorted(set(BREAKS) - {"dlpack", "seed", "hook"}))
def test_what_ends_the_graph_still_gives_eagers_result(name):
    import fxjit
    fn, _ = BREAKS[name]
    x = leaf(3)
    y = x.detach().clone().requires_grad_()
    if name == "numpy":
        x, y = x.detach(), y.detach()
    fxjit.reset()
    ours, theirs = fxjit.compile(fn, backend="eager")(y), fn(x)
    if theirs is not None:
        torch.testing.assert_close(ours, theirs)
    if x.grad is not None or y.grad is not None:
        torch.testing.assert_close(y.grad, x.grad)


def test_an_operators_error_is_eagers():
    import fxjit
    x, y = torch.randn(3), torch.randn(4)
    with pytest.raises(RuntimeError) as expected:
        x + y
    with pytest.raises(RuntimeError) as error:
        fxjit.compile(lambda x, y: x + y, backend="eager")(x, y)
    assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("make", [
    lambda x: x.new(x.shape).zero_(), lambda x: x.new(2, 3).zero_(), lambda x: x.new([2, 3]), lambda x: x.new((4,)),
    lambda x: x.new(), lambda x: x.new(x), lambda x: x.new(size=x.shape).zero_(),
], ids=["size", "numbers", "list", "tuple", "nothing", "tensor", "named size"])
def test_new_tells_a_size_from_numbers(assert_same_as_eager, make):
    assert_same_as_eager(make, torch.arange(3.0))


def _through_the_second_name(x):
    x._grad = torch.ones_like(x)
    first = x.grad * 2
    x.grad = first
    second = x._grad + 1
    x._grad = None
    return first, second, x.grad, x._grad


def _by_either(x):
    x.grad = torch.ones_like(x)
    return x._grad * 2, x._grad is x.grad


@pytest.mark.parametrize("fn", [_through_the_second_name, _by_either], ids=lambda fn: fn.__name__[1:])
def test_a_gradient_has_two_names(assert_same_as_eager, fn):
    assert_same_as_eager(fn, torch.randn(3, requires_grad=True))
