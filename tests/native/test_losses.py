"""A classifier's loss: what it looks up among a softmax's logarithms is computed where it is, and they are not kept."""

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.testing import CompileCounterWithBackend

SHAPES = [(64, 100), (7, 33), (2, 5, 4, 6), (3, 5, 2)]


@pytest.fixture(autouse=True)
def compiled_however_small():
    with config.patch(small_graphs_as_captured=False):
        yield


def targets(shape):
    return torch.randint(0, shape[1], (shape[0], *shape[2:]))


def both(loss, x, *rest):
    """The loss and the derivative by x of a weighted sum of it, in eager and compiled."""
    results = []
    for function in (loss, fxjit.compile(loss)):
        leaf = x.clone().requires_grad_()
        value = function(leaf, *rest)
        weights = torch.arange(1, value.numel() + 1, dtype=value.dtype).reshape(value.shape)
        results.append((value.detach(), *torch.autograd.grad((value * weights).sum(), leaf)))
    return results


@pytest.mark.sweep(2)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(shape, reduction, weighted):
    x, target = torch.randn(shape), targets(shape)
    weight = torch.rand(shape[1]) if weighted else None
    eager, compiled = both(lambda x, t: F.cross_entropy(x, t, weight, reduction=reduction), x, target)
    torch.testing.assert_close(compiled, eager)
    with torch.no_grad():
        loss = fxjit.compile(lambda x, t: F.cross_entropy(x, t, weight, reduction=reduction))(x, target)
    torch.testing.assert_close(loss, eager[0])


@pytest.mark.parametrize("dtype,slack", [(torch.float64, 1e-12), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_of_other_types(dtype, slack):
    x, target = torch.randn(16, 50, dtype=dtype), targets((16, 50))
    eager, compiled = both(F.cross_entropy, x, target)
    torch.testing.assert_close(compiled, eager, rtol=slack, atol=slack)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_targets_that_do_not_count(reduction):
    x, target = torch.randn(12, 9), targets((12, 9))
    target[::3] = -100
    target[1] = 4
    for ignored in (-100, 4):
        of_this = target.clamp(min=0) if ignored == 4 else target
        eager, compiled = both(lambda x, t: F.cross_entropy(x, t, reduction=reduction, ignore_index=ignored), x, of_this)
        torch.testing.assert_close(compiled, eager)


def test_where_no_target_counts():
    """The mean of nothing is NaN, its derivative zero."""
    eager, compiled = both(F.cross_entropy, torch.randn(4, 9), torch.full((4,), -100))
    assert eager[0].isnan()
    torch.testing.assert_close(compiled, eager, equal_nan=True)


def test_numbers_far_from_zero_lose_no_digits():
    """The largest is taken off before the sum's logarithm, which alone would be lost in it."""
    x = torch.randn(8, 20) + torch.tensor([[1e6], [-1e6], [3e7], [0.0]]).repeat(2, 1)
    eager, compiled = both(F.cross_entropy, x, targets((8, 20)))
    torch.testing.assert_close(compiled, eager)


def test_infinities():
    x = torch.randn(6, 5)
    x[0, 2], x[1, 3], x[2], x[3, 0] = float("-inf"), float("inf"), float("-inf"), float("nan")
    eager, compiled = both(lambda x, t: F.cross_entropy(x, t, reduction="none"), x, torch.tensor([2, 1, 0, 1, 2, 3]))
    torch.testing.assert_close(compiled, eager, equal_nan=True)


def test_a_target_out_of_bounds_raises_as_in_eager():
    compiled = fxjit.compile(F.cross_entropy)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        compiled(torch.randn(3, 5), torch.tensor([0, 9, 1]))


def test_the_logarithms_themselves_are_what_they_were():
    """Here somebody else reads them, too."""
    def loss(x, t):
        logarithms = F.log_softmax(x, 1)
        return F.nll_loss(logarithms, t) + logarithms.exp().pow(2).mean()

    eager, compiled = both(loss, torch.randn(10, 7), targets((10, 7)))
    torch.testing.assert_close(compiled, eager)


def test_sizes_that_vary():
    counter = CompileCounterWithBackend("native")
    loss = fxjit.compile(lambda x, t: F.cross_entropy(x * 2, t, label_smoothing=0.1), backend=counter, dynamic=True)
    for rows in (4, 6, 9):
        x, target = torch.randn(rows, 11, requires_grad=True), targets((rows, 11))
        expected = F.cross_entropy(x * 2, target, label_smoothing=0.1)
        torch.testing.assert_close(loss(x, target), expected)
        given = torch.autograd.grad(loss(x, target), x), torch.autograd.grad(expected, x)
        torch.testing.assert_close(*given)
    assert counter.frame_count == 1


def kept_for_derivative(loss, *args):
    """The elements of what autograd keeps of a call."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        loss(*args)
    return sum(each.numel() for each in kept.values() if each.is_floating_point())


def test_only_rows_are_kept_beside_the_input():
    x, target = torch.randn(40, 300, requires_grad=True), targets((40, 300))
    assert kept_for_derivative(F.cross_entropy, x, target) >= 300 * 40
    loss = fxjit.compile(F.cross_entropy)
    loss(x, target)
    beside = kept_for_derivative(loss, x, target) - x.numel()
    assert beside <= 3 * 40


def test_probabilities_of_chosen_actions():
    """What is gathered from something computed is computed for the chosen alone."""
    x, actions = torch.randn(6, 5), torch.randint(0, 5, (6, 1))
    eager, compiled = both(lambda x, a: F.log_softmax(x * 2, -1).gather(-1, a), x, actions)
    torch.testing.assert_close(compiled, eager)
    of_rows = fxjit.compile(lambda x, a: (x + 1).gather(0, a[:2]))(x, actions)
    torch.testing.assert_close(of_rows, (x + 1).gather(0, actions[:2]))
    every = torch.randint(0, 5, (6, 30))
    torch.testing.assert_close(fxjit.compile(lambda x, a: (x + 1).gather(1, a))(x, every), (x + 1).gather(1, every))
    with pytest.raises(RuntimeError, match="index 7 is out of bounds"):
        fxjit.compile(lambda x, a: (x + 1).gather(1, a))(x, actions.fill_(7))
