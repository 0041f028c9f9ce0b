"""Strides of results that torch's fake kernels tell wrongly, and what eager refuses: as in eager, in any layout."""

from __future__ import annotations

import functools
import itertools
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

import fxjit
import fxjit.fake_execution  # fake tensors of the process have ATen's strides


def layouts(shape, dtype=torch.float32):
    """Tensors of this shape: contiguous, transposed, permuted, expanded, sliced, channels-last."""
    made = [torch.randn(shape).to(dtype)]
    if len(shape) > 1:
        made += [torch.randn(*shape[:-2], shape[-1], shape[-2]).mT, torch.randn(*shape[1:], shape[0]).movedim(-1, 0),
                 torch.randn(*shape[:-1], 1).expand(shape), torch.randn(*shape[:-1], shape[-1] * 2)[..., ::2]]
    if len(shape) == 4:
        made.append(torch.randn(shape).contiguous(memory_format=torch.channels_last))
    return [each.to(dtype) for each in made]


class Near:
    """Numbers that are equal to others which are near. Rounded ones would not do: where one lies between two of three decimals,
    another that differs in its last bit is rounded the other way."""

    def __init__(self, result):
        self.numbers = result.float().nan_to_num()

    def __eq__(self, other):
        return torch.allclose(self.numbers, other.numbers, rtol=1e-4, atol=1e-4)

    def __repr__(self):
        return repr(self.numbers)


def facts(fn, *args):
    """Sizes, strides, types and values of what a call gives, or what it raises. Strides of single elements say nothing."""
    try:
        results = pytree.tree_leaves(fn(*args))
    except Exception as error:
        return type(error), str(error)
    return [(each.shape, [stride for size, stride in zip(each.shape, each.stride(), strict=True) if size != 1], each.dtype,
             Near(each)) for each in results]


OPERATORS = {
    "copysign": (lambda x: (x.copysign(torch.tensor(-1.0)), x.copysign(x[..., :1]), x.copysign(-2.0)),
                 [(3, 4), (2, 3, 4, 4), (1, 3)]),
    "floor_divide": (lambda x: (x // torch.tensor(2.0), x // 2, torch.floor_divide(x, x[..., :1])), [(3, 4), (2, 3, 4)]),
    "max_pool1d": (lambda x: (F.max_pool1d(x, 2), torch.max_pool1d(x, 3, 1, 1)), [(3, 4), (2, 3, 4)]),
    "max_pool1d with indices": (lambda x: F.max_pool1d(x, 2, return_indices=True), [(2, 3, 4)]),
    "reflection": (lambda x: F.pad(x, (1,) * 6, mode="reflect"), [(2, 3, 4, 4), (2, 2, 3, 4, 4)]),
    "replication": (lambda x: F.pad(x, (1,) * 6, mode="replicate"), [(2, 3, 4, 4), (2, 2, 3, 4, 4)]),
    "cross entropy": (lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones(x.shape), reduction="none"),
                      [(3, 4), (2, 3, 4)]),
    "mean cross entropy": (lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones(x.shape)), [(3, 4)]),
    "unpooling": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), [(2, 3, 4, 4), (1, 3, 4, 4)]),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), [(3, 4), (2, 3, 4)]),
    "group norm": (lambda x: F.group_norm(x, 1), [(2, 3, 4, 4)]),
    "isin": (lambda x: torch.isin(x, torch.tensor([1.0])), [(3, 4)]),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", OPERATORS)
def test_strides_are_eagers(name, backend):
    fn, shapes = OPERATORS[name]
    for shape in shapes:
        for x in layouts(shape):
            fxjit.reset()
            assert facts(fxjit.compile(fn, backend=backend, dynamic=False), x) == facts(fn, x), (shape, x.stride())


@pytest.mark.parametrize("name", ["copysign", "floor_divide", "layer norm", "cross entropy"])
def test_sizes_may_vary(name):
    fn, _ = OPERATORS[name]
    compiled = fxjit.compile(fn, dynamic=True)
    for shape in ((3, 4), (5, 6)):
        expected, actual = facts(fn, torch.ones(shape)), facts(compiled, torch.ones(shape))
        assert actual == expected


def test_gradients_pass_through_pooling_of_its_own_layout():
    def step(x):
        return F.max_pool1d(x, 2).sum(), F.max_pool1d(x.detach(), 2)

    x = torch.randn(2, 4, 3).mT
    grads = []
    for run in (step, fxjit.compile(step)):
        given = x.detach().requires_grad_()
        loss, pooled = run(given)
        loss.backward()
        grads.append((given.grad, pooled.stride()))
    assert torch.equal(grads[0][0], grads[1][0]) and grads[0][1] == grads[1][1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_pooling_of_integers_is_refused(dtype):
    for fn in (lambda x: F.max_pool1d(x, 2), lambda x: F.max_pool2d(x.unsqueeze(0), (1, 2))):
        x = torch.ones(2, 4).to(dtype)
        fxjit.reset()
        assert facts(fxjit.compile(fn), x) == facts(fn, x)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("sizes", [((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (3, 4)), ((3, 4), (3, 4))])
def test_a_loss_that_does_not_fit_its_target_is_refused(sizes, reduction):
    def loss(x, y):
        return F.soft_margin_loss(x, y, reduction=reduction)

    fxjit.reset()
    x, y = (torch.randn(size) for size in sizes)
    assert facts(fxjit.compile(loss), x, y) == facts(loss, x, y)


ANEW = {
    "nan_to_num": torch.nan_to_num, "logsigmoid": F.logsigmoid, "selu": F.selu,
    "huber_loss": lambda x: F.huber_loss(x, x * 2, reduction="none"),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2, reduction="none"),
    "BCE with logits": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none"),
    "their mean": lambda x: F.huber_loss(x, x * 2) + F.mse_loss(x, x * 2),
}


@pytest.mark.parametrize("name", ANEW)
def test_strides_where_a_size_is_1(name):
    """Those of such a dimension, too, are eager's, whatever the operator is made of."""
    fn = ANEW[name]
    for shape, strides in (((1, 4), (7, 1)), ((4, 1), (1, 4)), ((3, 1, 2), (1, 3, 3)), ((2, 1, 3), (3, 1, 1))):
        x = torch.randn(64).as_strided(shape, strides)
        fxjit.reset()
        actual, expected = fxjit.compile(fn, fullgraph=True)(x), fn(x)
        assert actual.stride() == expected.stride(), (shape, strides)
        torch.testing.assert_close(actual, expected)


def laid_out(random, shape, make):
    """A tensor whose dimensions lie in memory in some order."""
    order = random.sample(range(len(shape)), len(shape))
    return make([shape[at] for at in order]).permute([order.index(at) for at in range(len(shape))])


def taken_out(random):
    """A tensor, and positions in some of its dimensions, which are broadcast."""
    sizes, ndim = [random.choice([1, 2, 3, 5]) for _ in range(4)], random.randint(1, 4)
    x = laid_out(random, sizes[:ndim], torch.rand)
    shape = [random.choice([1, 2, 3]) for _ in range(random.randint(0, 3))]
    zeros = functools.partial(torch.zeros, dtype=torch.int64)
    key = [random.choice([None, laid_out(random, [random.choice([1, size]) for size in shape], zeros)]) for _ in sizes[:ndim]]
    return x, [*key[:-1], laid_out(random, shape, zeros)]


def test_what_positions_take_out_lies_as_they_do():
    random = Random(0)
    for _ in range(600):
        x, key = taken_out(random)
        with FakeTensorMode() as mode:
            fakes = [None if each is None else mode.from_tensor(each) for each in key]
            found = torch.ops.aten.index(mode.from_tensor(x), fakes)
        assert found.stride() == torch.ops.aten.index(x, key).stride(), (x.stride(), key)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_strides_of_positions_are_read_by_the_program(backend, dynamic):
    def fn(x, at):
        taken = x[at.T], x[:, at.T] * 2, x[at.T, at.T]
        return *taken, *[torch.tensor(each.stride()) for each in taken]

    compiled = fxjit.compile(fn, backend=backend, dynamic=dynamic)
    for size in (4, 5):
        args = torch.rand(size, 6, 7), torch.randint(size, (3, size))
        assert facts(compiled, *args) == facts(fn, *args)


#: Operators whose fake kernels tell other strides than ATen where dimensions lie in another order.
REORDERED = {
    "batch norm": lambda x, w: F.batch_norm(x, w.clone(), w.clone(), w, w, training=True),
    "its evaluation": lambda x, w: F.batch_norm(x, w, w, w, w),
    "grid sample": lambda x, w: F.grid_sample(x.unflatten(2, (2, -1)), x.new_zeros(len(x), 5, 4, 2), align_corners=False),
    "normal": lambda x, w: torch.normal(x, x.abs()),
    "dropout's gradient": lambda x, w: torch.ops.aten.native_dropout_backward(x, x.transpose(1, 2).contiguous().mT > 0, 2.0),
    "floor division": lambda x, w: torch.div(x, torch.tensor(2.0), rounding_mode="floor"),
    "logaddexp": lambda x, w: torch.logaddexp(x[:, :1], x[0]),
    "xlogy": lambda x, w: torch.xlogy(x, x[0].abs()),
    "softmax": lambda x, w: x.softmax(1),
    "product": lambda x, w: x.mT @ x,
    "layer norm": lambda x, w: F.layer_norm(x, x.shape[1:]),
    "running maxima": lambda x, w: x.cummax(2),
}


@pytest.mark.parametrize("sizes", [(2, 5, 4), (7, 40, 80)])
@pytest.mark.parametrize("name", REORDERED)
def test_strides_of_fake_results_where_operands_lie_in_another_order(name, sizes):
    fn = REORDERED[name]
    for order in itertools.permutations(range(3)):
        x = torch.randn([sizes[at] for at in order]).permute([order.index(at) for at in range(3)])
        w = torch.rand(sizes[1])
        with FakeTensorMode() as mode:
            found = pytree.tree_leaves(fn(mode.from_tensor(x), mode.from_tensor(w)))
        expected = pytree.tree_leaves(fn(x, w))
        assert [each.stride() for each in found] == [each.stride() for each in expected], order


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", ["batch norm", "its evaluation", "logaddexp", "xlogy", "floor division"])
def test_strides_of_results_where_operands_lie_in_another_order(name, backend):
    fn, x = REORDERED[name], torch.randn(7, 80, 40).mT
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    actual, expected = compiled(x, torch.ones(40)), fn(x, torch.ones(40))
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("sizes", [((2, 8, 13, 17), (2, 6, 7, 2)), ((3, 4, 9, 5), (3, 8, 4, 2))], ids=["large", "small"])
@pytest.mark.parametrize("turned", [(0, 3, 1, 2), (0, 2, 3, 1), (3, 2, 1, 0)])
def test_strides_of_results_in_sizes_that_vary(turned, sizes):
    """torch's fake kernels for symbolic sizes are others than those for numbers: a sampled image is said to lie as the
    grid does."""
    def fn(x, grid):
        sampled = F.grid_sample(x * 2, grid.tanh(), align_corners=False)
        return sampled, sampled + 1, x.softmax(1), F.interpolate(x, scale_factor=2)

    images = [torch.randn([shape[at] for at in turned]).permute([turned.index(at) for at in range(4)]) for shape in sizes]
    compiled = fxjit.compile(fn, backend="native", dynamic=True)
    for longer in (0, 1):
        given = images[0], F.pad(images[1], (0, 0, 0, longer)) if longer else images[1]
        for actual, expected in zip(compiled(*given), fn(*given), strict=True):
            torch.testing.assert_close(actual, expected, check_stride=True)


@pytest.mark.parametrize("positions", [torch.tensor([1, 0]), torch.tensor([[1, 0, 2], [0, 1, 1]]),
                                       torch.tensor([[1, 0, 2], [0, 1, 1]]).t()], ids=["one", "two", "turned"])
@pytest.mark.parametrize("order", [(0, 2, 1), (1, 2, 0), (2, 1, 0)])
def test_positions_beside_new_dimensions_in_sizes_that_vary(order, positions):
    def program(x, at):
        found = x[at, None, at], x[:, None, at], x[..., None, at, :], x[None, :, at]
        return [each.stride() for each in found]

    x = torch.randn(3, 4, 5).permute(order)
    assert fxjit.compile(program, backend="eager", dynamic=True)(x, positions) == program(x, positions)
