"""`if <data>: raise` stays in the graph: the other side is taken, and where the data says otherwise the call runs eagerly.

PYTEST_DONT_REWRITE: the programs here have asserts of their own."""

from __future__ import annotations

import logging
import warnings
from warnings import warn

import pytest
import torch
from tests.differential import assert_same_call
from torch import nn

import fxjit
from fxjit.testing import CompileCounter


class Meter:
    def __init__(self):
        self.calls = 0
        self.passed = 0


def guarded(x, meter):
    meter.calls += 1
    y = x * 2
    if (y < 0).any():
        raise ValueError(f"negative: {y.tolist()}")
    meter.passed += 1
    return y.sqrt()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_check_is_no_break_and_raises_what_eager_raises(backend):
    fxjit.reset()
    compiled = fxjit.compile(guarded, backend=backend, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert_same_call(guarded, compiled, x, Meter(), rtol=1.3e-6)


def test_asserts_nested_calls_and_closures():
    limit = 3.0

    def inner(x):
        assert (x < limit).all(), f"{limit} or more"
        return x + 1

    def outer(x):
        return inner(x) * 2

    fxjit.reset()
    compiled = fxjit.compile(outer, backend="eager", fullgraph=True)
    for x in (torch.zeros(2), torch.full((2,), 9.0)):
        assert_same_call(outer, compiled, x, rtol=1.3e-6)


def test_what_the_check_protects_may_fail_in_the_graph():
    def look_up(table, at):
        if (at >= len(table)).any():
            raise KeyError("no such row")
        return table[at]

    fxjit.reset()
    compiled = fxjit.compile(look_up, backend="eager", fullgraph=True)
    assert_same_call(look_up, compiled, torch.randn(4), torch.tensor([1, 3]), rtol=1.3e-6)
    assert_same_call(look_up, compiled, torch.randn(4), torch.tensor([1, 9]), rtol=1.3e-6)


def test_random_numbers_and_written_inputs_are_as_before():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x):
            y = nn.functional.dropout(self.norm(x))
            if not torch.isfinite(x).all():
                raise FloatingPointError("not finite")
            return y

    def call(module, x):
        return module(x)

    fxjit.reset()
    compiled = fxjit.compile(call, backend="eager", fullgraph=True)
    assert_same_call(call, compiled, Noisy(), torch.randn(3, 2), rtol=1.3e-6)
    assert_same_call(call, compiled, Noisy(), torch.full((3, 2), torch.inf), rtol=1.3e-6)


def test_what_cannot_be_undone_breaks_the_graph(breaks):
    def write(big):
        big.mul_(2)
        if (big > 9).any():
            raise ValueError("too big")
        return big + 1

    assert breaks(write, torch.zeros(1000, 1000)) == "data-branch"
    fxjit.reset()
    assert_same_call(write, fxjit.compile(write, backend="eager"), torch.full((1000, 1000), 8.0))


def test_what_is_written_through_data_is_as_before():
    def write_behind_its_back(x):
        x.data.mul_(2)
        if (x > 9).any():
            raise ValueError("too big")
        return x + 1

    fxjit.reset()
    compiled = fxjit.compile(write_behind_its_back, backend="eager", fullgraph=True)
    for requires_grad in (False, True):
        for value in (3.0, 8.0):
            assert_same_call(write_behind_its_back, compiled, torch.full((3,), value, requires_grad=requires_grad))


def test_a_sample_drawn_through_data_is_scored_in_one_graph():
    class Sampled(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.noise = nn.Parameter(torch.zeros(3)), nn.Buffer(torch.zeros(3))
            self.prior = torch.distributions.Normal(0, 0.1)

        def forward(self, scale):
            self.noise.data.normal_()
            return self.prior.log_prob(self.mean + scale * self.noise)

    def call(module, scale):
        return module(scale)

    fxjit.reset()
    compiled = fxjit.compile(call, backend="eager", fullgraph=True)
    assert_same_call(call, compiled, Sampled(), torch.ones(()))
    assert_same_call(call, compiled, Sampled(), torch.full((), torch.nan))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_check_of_what_is_read_without_its_gradient_is_no_break(backend):
    """As the ranges of transformers' I-BERT."""
    def ranged(x, low):
        least = x.data.min()
        assert least.isnan().sum() == 0 and low.data.isnan().sum() == 0, "no range"
        return torch.minimum(low, least) + x

    fxjit.reset()
    compiled = fxjit.compile(ranged, backend=backend, fullgraph=True)
    for x in (torch.ones(3, requires_grad=True), torch.full((3,), torch.nan), torch.zeros(3, requires_grad=True)):
        assert_same_call(ranged, compiled, x, torch.ones(1), rtol=1.3e-6)


def test_a_check_that_often_fails_becomes_a_break():
    counter = CompileCounter()
    fxjit.reset()
    compiled = fxjit.compile(guarded, backend=counter)
    for _ in range(5):
        assert_same_call(guarded, compiled, -torch.ones(2), Meter(), rtol=1.3e-6)
    assert counter.frame_count == 2, "one graph up to the check once it is a break, and none behind it"


def test_branches_that_go_on_still_break(breaks):
    def handled(x):
        try:
            if x.sum() > 0:
                raise ValueError
        except ValueError:
            return x
        return x * 2

    assert breaks(handled, torch.ones(3)) == "data-branch"
    with fxjit.config.patch(capture_checks=False):
        assert breaks(guarded, torch.ones(3), Meter()) == "data-branch"


def test_gradients_go_through(assert_same_as_eager):
    def loss(x):
        y = x.exp()
        if torch.isnan(y).any():
            raise ValueError("nan")
        return y.sum()

    assert_same_as_eager(loss, torch.randn(3, requires_grad=True))


def warned_of(x):
    y = x * 2
    if (y < 0).any() or (y > 9).any():
        warnings.warn("out of range", stacklevel=2)
        y = y.clamp(0, 9)
    return y.sqrt()


def warned_of_by_name(x):
    if not torch.isfinite(x).all():
        warn("not finite", RuntimeWarning, stacklevel=1)
        return x.nan_to_num()
    return x + 1


def logged(x):
    if x.sum() < 0:
        logging.getLogger("fxjit.tests").warning("%.1f is negative", x.sum())
        x = -x
    elif x.sum() > 20:
        raise ValueError("too large")
    return x * 3


def warned_of_in_a_loop(x):
    for row in x:
        while (row > 5).any():
            warnings.warn("halved", stacklevel=1)
            row = row / 2
        x = x + row
    return x


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [warned_of, warned_of_by_name, logged, warned_of_in_a_loop])
def test_a_branch_that_warns_is_a_check_too(program, backend, caplog):
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    usual, unusual = torch.ones(2, 2), torch.tensor([[-1.0, 7.0], [torch.inf if program is warned_of_by_name else 3.0, -20.0]])
    for x in (usual, unusual, usual):
        told = []
        for function in (program, compiled):
            caplog.clear()
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                result = function(x.clone())
            told.append((result, [(each.category, str(each.message), each.lineno) for each in seen],
                         [each.getMessage() for each in caplog.records]))
        torch.testing.assert_close(told[0][0], told[1][0], equal_nan=True)
        assert told[0][1:] == told[1][1:]
        assert bool(told[0][1] or told[0][2]) == (x is unusual)


def test_where_both_sides_warn_or_the_warning_is_handled_the_graph_breaks(breaks):
    def either(x):
        if x.sum() > 0:
            warnings.warn("positive", stacklevel=1)
        else:
            warnings.warn("negative", stacklevel=1)
        return x * 2

    def afterwards(x):
        y = x * 2 if x.sum() > 0 else x * 3
        warnings.warn("done", stacklevel=1)
        return y

    def handled(x):
        if x.sum() < 0:
            try:
                warnings.warn("negative", stacklevel=1)
            except UserWarning:
                return x
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for program in (either, afterwards, handled):
            assert breaks(program, torch.ones(3)) == "data-branch"
