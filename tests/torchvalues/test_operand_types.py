"""Types of operands that eager refuses are refused by compiled code, and no others: fake tensors are laxer than kernels are."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import fxjit
from fxjit.frontend import operands as operands_module
from fxjit.frontend.operands import OperandCheck, _accepted

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
T, aten = torch.Tensor, torch.ops.aten


def ones(*sizes: int) -> Callable[[], T]:
    return lambda: torch.ones(sizes)


def indices(*sizes: int) -> Callable[[], T]:
    return lambda: torch.zeros(sizes, dtype=torch.int64)


# A function, and what makes its operands.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Callable[[], T], ...]]] = {
    # products
    "linear": (F.linear, (ones(3, 4), ones(5, 4), ones(5))),
    "linear without bias": (F.linear, (ones(2, 3, 4), ones(5, 4))),
    "matmul": (torch.matmul, (ones(3, 4), ones(4, 5))),
    "matmul of vectors": (torch.matmul, (ones(4), ones(4))),
    "bmm": (torch.bmm, (ones(2, 3, 4), ones(2, 4, 5))),
    "addmm": (torch.addmm, (ones(5), ones(3, 4), ones(4, 5))),
    "baddbmm": (torch.baddbmm, (ones(2, 3, 5), ones(2, 3, 4), ones(2, 4, 5))),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (ones(3, 4), ones(4, 5))),
    "conv2d": (F.conv2d, (ones(1, 2, 5, 5), ones(3, 2, 3, 3), ones(3))),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, groups=4), (ones(1, 4, 5, 5), ones(4, 1, 3, 3))),
    "attention": (F.scaled_dot_product_attention, (ones(1, 2, 3, 4), ones(1, 2, 3, 4), ones(1, 2, 3, 4))),
    # reads and writes at computed places
    "index_select": (lambda x, i: x.index_select(0, i), (ones(3, 4), indices(2))),
    "gather": (lambda x, i: x.gather(0, i), (ones(3, 4), indices(2, 4))),
    "embedding": (lambda i, w: F.embedding(i, w), (indices(2, 3), ones(4, 5))),
    "index": (lambda x, i: x[i], (ones(3, 4), indices(2))),
    "scatter": (lambda x, i, s: x.scatter(0, i, s), (ones(3, 4), indices(2, 4), ones(2, 4))),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (ones(3, 4), indices(2, 4), ones(2, 4))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (ones(3, 4), indices(2), ones(2, 4))),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), (ones(3, 4), indices(2), ones(2, 4))),
    "index_put": (lambda x, i, s: x.index_put((i,), s), (ones(3, 4), indices(2), ones(2, 4))),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 0), (ones(3, 4), indices(2, 4))),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), (ones(3, 4), ones(3, 4))),
    "where": (torch.where, (ones(3, 4), ones(3, 4), ones(3, 4))),
    # losses and normalisations
    "cross_entropy": (F.cross_entropy, (ones(3, 4), indices(3), ones(4))),
    "nll_loss of each": (lambda x, t, w: F.nll_loss(x, t, w, reduction="none"), (ones(3, 4), indices(3), ones(4))),
    "mse_loss": (F.mse_loss, (ones(3, 4), ones(3, 4))),
    "huber_loss": (F.huber_loss, (ones(3, 4), ones(3, 4))),
    "binary_cross_entropy": (F.binary_cross_entropy, (ones(3, 4), ones(3, 4))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (ones(3, 4), ones(4), ones(4))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (ones(2, 8, 3), ones(8), ones(8))),
    "batch_norm": (lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True), (ones(2, 3, 4), *[ones(3)] * 4)),
    "softmax": (lambda x: x.softmax(-1), (ones(3, 4),)),
    # one number from many, and one from each
    "mean": (lambda x: x.mean(-1), (ones(3, 4),)),
    "var": (lambda x: x.var(-1), (ones(3, 4),)),
    "amax": (lambda x: x.amax(-1), (ones(3, 4),)),
    "cumsum": (lambda x: x.cumsum(0), (ones(3, 4),)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (ones(1, 2, 4, 4),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (ones(1, 2, 4, 4),)),
    "bitwise_not": (torch.bitwise_not, (ones(3),)),
    "bitwise_and": (torch.bitwise_and, (ones(3), ones(3))),
    "shift": (torch.bitwise_left_shift, (ones(3), ones(3))),
    "lcm": (torch.lcm, (ones(3), ones(3))),
    "add": (torch.add, (ones(3), ones(3))),
    "add_": (lambda x, y: x.clone().add_(y), (ones(3), ones(3))),
    "div_": (lambda x, y: x.clone().div_(y), (ones(3), ones(3))),
    "remainder": (torch.remainder, (ones(3), ones(3))),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.5), (ones(3), ones(3))),
    "addcmul": (torch.addcmul, (ones(3), ones(3), ones(3))),
    "clamp": (lambda x, y: torch.clamp(x, y), (ones(3), ones(3))),
    "negative": (lambda x: -x, (ones(3),)),
    "subtract": (lambda x, y: x - y, (ones(3), ones(3))),
    "gelu": (F.gelu, (ones(3),)),
    "glu": (F.glu, (ones(4),)),
    "hardswish": (F.hardswish, (ones(4),)),
    "sigmoid": (torch.sigmoid, (ones(4),)),
    "heaviside": (torch.heaviside, (ones(3), ones(3))),
    "xlogy": (torch.xlogy, (ones(3), ones(3))),
    "cat": (lambda x, y: torch.cat([x, y]), (ones(3), ones(3))),
    "isin": (torch.isin, (ones(3), ones(3))),
}


def outcome(function: Callable[..., Any], tensors: list[T]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*tensors)
        except Exception as error:
            return error
    return None


def outcome_of_fakes(function: Callable[..., Any], tensors: list[T], check: bool) -> Exception | None:
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(each) for each in tensors]
    with mode, OperandCheck() if check else contextlib.nullcontext():
        return outcome(function, fakes)


def variants(makers: tuple[Callable[[], T], ...]) -> list[list[torch.dtype]]:
    """The types of the operands, with another for each of them, and for all floats."""
    usual = [make().dtype for make in makers]
    found = [usual[:k] + [dtype] + usual[k + 1 :] for k, dtype in itertools.product(range(len(usual)), TYPES)]
    found += [[dtype if each is torch.float32 else each for each in usual] for dtype in TYPES]
    return [list(each) for each in dict.fromkeys(map(tuple, found))]


def operands(makers: tuple[Callable[[], T], ...], dtypes: list[torch.dtype]) -> list[T]:
    return [make().to(dtype) for make, dtype in zip(makers, dtypes, strict=True)]


@pytest.mark.parametrize("name", CALLS)
def test_the_check_says_what_eager_says(name):
    function, makers = CALLS[name]
    wrong = []
    for dtypes in variants(makers):
        eager = outcome(function, operands(makers, dtypes))
        if isinstance(eager, IndexError) or outcome_of_fakes(function, operands(makers, dtypes), check=False):
            continue  # the size of a mask; what fake tensors refuse by themselves, runs as it stands
        checked = outcome_of_fakes(function, operands(makers, dtypes), check=True)
        if (eager is None) is not (checked is None):
            wrong.append(f"{dtypes}: eager {eager!r}, checked {checked!r}")
    assert not wrong, "\n".join(wrong)


REFUSED = {
    "linear": [torch.float64, torch.float32, torch.float32],
    "linear without bias": [torch.float64, torch.float32],
    "index_select": [torch.float32, torch.uint8],
    "bitwise_not": [torch.float32],
    "lcm": [torch.float32, torch.float32],
    "cross_entropy": [torch.float32, torch.int32, torch.float32],
    "nll_loss of each": [torch.float32, torch.int64, torch.float64],
    "group_norm": [torch.float32, torch.float64, torch.float32],
    "batch_norm": [torch.float32, *[torch.float32] * 3, torch.float64],
    "gather": [torch.float32, torch.uint8],
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", REFUSED)
def test_compiled_code_raises_what_eager_raises(name, backend, dynamic, mode):
    """Where no gradients are recorded, `linear` and the like are one operator."""
    function, makers = CALLS[name]
    with mode():
        assert_refused_as_in_eager(function, operands(makers, REFUSED[name]), backend, dynamic)


def assert_refused_as_in_eager(function, tensors, backend, dynamic):
    eager = outcome(function, tensors)
    assert eager is not None

    def twice(*given: T) -> Any:
        result = function(*given)
        return result * 2, result + 1

    fxjit.reset()
    compiled = fxjit.compile(twice, backend=backend, dynamic=dynamic)
    for _ in range(2):
        error = outcome(compiled, tensors)
        assert type(error) is type(eager) and str(error) == str(eager)


def test_a_refused_operator_of_which_the_result_is_not_used_raises_where_it_stands():
    def f(x: T, done: list[str]) -> T:
        done.append("before")
        torch.bitwise_not(x)
        done.append("after")
        return x + 1

    fxjit.reset()
    done: list[str] = []
    with pytest.raises(NotImplementedError, match="bitwise_not"):
        fxjit.compile(f)(torch.ones(3), done)
    assert done == ["before"]


def test_a_program_catches_it():
    def f(x: T) -> T:
        try:
            return torch.lcm(x, x)
        except NotImplementedError:
            return x * 3

    fxjit.reset()
    assert torch.equal(fxjit.compile(f)(torch.ones(3)), torch.full((3,), 3.0))


def test_autocast_brings_operands_together_before_they_are_looked_at():
    def f(x: T, w: T) -> T:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w) + 1

    fxjit.reset()
    x, w = torch.ones(3, 4), torch.ones(5, 4, dtype=torch.bfloat16)
    assert torch.equal(fxjit.compile(f, fullgraph=True)(x, w), f(x, w))


def test_numbers_of_the_program_are_no_types():
    """An integer division by what one query has for zero, an index that is none of one element, a number of channels."""

    def f(x: T, i: T) -> T:
        y = x // (x + 1)
        return F.group_norm(y.index_select(1, i).float(), 2)

    fxjit.reset()
    x, i = torch.arange(16).reshape(2, 4, 2), torch.tensor([3, 2, 1, 0])
    assert torch.equal(fxjit.compile(f, fullgraph=True)(x, i), f(x, i))


def test_the_random_generators_do_not_move():
    def f(x: T) -> T:
        return torch.bernoulli(x) + F.dropout(x, 0.5)

    fxjit.reset()
    torch.manual_seed(7)
    expected = f(torch.full((64,), 0.5))
    torch.manual_seed(7)
    assert torch.equal(fxjit.compile(f, backend="eager")(torch.full((64,), 0.5)), expected)


def test_a_call_that_passed_keeps_none_of_the_programs_objects() -> None:
    """Calls that were accepted are remembered by types, ranks and plain constants, and only those of torch's own functions."""
    before = set(_accepted)
    fxjit.compile(lambda x: torch.nn.functional.softmax(x, -1).sum(-1, keepdim=True), backend="eager")(torch.ones(2, 3))
    fxjit.compile(fxjit.allow_in_graph(lambda x: x * 2), backend="eager")(torch.ones(2, 3))
    for target, _, kinds in _accepted - before:
        assert isinstance(target, str) or target.__module__ is None or target.__module__.startswith(("torch", "_operator"))
        assert "FakeTensor" not in repr(kinds)
    assert _accepted


@pytest.mark.parametrize("program", [
    lambda x: x.std(1), lambda x: x.var(1, keepdim=True), lambda x: torch.std_mean(x, 0), lambda x: x.t().std(0),
    lambda x: x.std(),
], ids=["std", "var", "std_mean", "of another order", "of all"])
def test_what_is_asked_with_stand_ins_warns_of_nothing(program: Callable[[T], Any]):
    """A stand-in has one element, whose deviation ATen warns of, also where the program has many; torch keeps warnings until
    the call from Python ends that the question was asked in."""
    _accepted.clear()
    operands_module._refusal.cache_clear()
    fxjit.reset()
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x = torch.randn(4, 6)[:, :5]
            torch.testing.assert_close(fxjit.compile(program, backend="eager", fullgraph=True)(x), program(x))
    finally:
        torch.set_warn_always(before)


def test_a_warning_of_the_programs_own_call_is_given():
    fxjit.reset()
    with pytest.warns(UserWarning, match="degrees of freedom"):
        fxjit.compile(lambda x: x.std(0), backend="eager", fullgraph=True)(torch.randn(1, 6))
