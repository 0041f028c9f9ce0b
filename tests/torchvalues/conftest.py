"""What torch code leaves behind compiled is what it leaves behind eagerly: results, mutation, aliasing, gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.differential import assert_same
from torch.utils._pytree import tree_flatten

import fxjit
from fxjit.testing import EagerAndRecordGraphs

#: Decompositions of aot_eager round in another order.
RTOL = 1.3e-6


def ambient():
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype())


def aliasing(results, inputs):
    """Which of the tensors share memory, as pairs of positions."""
    tensors = [leaf for leaf in tree_flatten((results, inputs))[0] if isinstance(leaf, torch.Tensor)]
    starts = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[i for i, other in enumerate(starts) if other == start] for start in starts]


def backward(result, inputs):
    """Sum up what can be differentiated, and the gradients of the inputs that are leaves."""
    outputs = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if outputs:
        sum(output.float().sum() for output in outputs).backward()
    leaves = [leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor) and leaf.is_leaf]
    return [leaf.grad for leaf in leaves if leaf.requires_grad]


def run(fn, args, seed):
    torch.manual_seed(seed)
    result = fn(*args)
    return result, aliasing(result, args), torch.rand(1), backward(result, args)


@pytest.fixture(name="assert_same_as_eager")
def assert_same_as_eager_fixture():
    return assert_same_as_eager


def assert_same_as_eager(fn, *args, backends=("eager", "aot_eager"), calls=2):
    for backend in backends:
        fxjit.reset()
        compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
        for call in range(calls):
            before = ambient()
            theirs_args, ours_args = copy.deepcopy(args), copy.deepcopy(args)
            theirs = run(fn, theirs_args, call)
            assert ambient() == before, "the test itself changes the ambient state"
            ours = run(compiled, ours_args, call)
            assert ambient() == before
            assert_same(ours[0], theirs[0], rtol=RTOL)
            assert ours[1] == theirs[1], "aliasing differs"
            torch.testing.assert_close(ours[2], theirs[2], msg="random numbers drawn differ")
            assert_same(ours[3], theirs[3], "gradients", RTOL)
            assert_same(ours_args, theirs_args, "arguments", RTOL)


@pytest.fixture
def graphs_of():
    """Run a function under fxjit with breaks allowed: its result, and the graphs captured."""
    def run_it(fn, *args, **kwargs):
        fxjit.reset()
        backend = EagerAndRecordGraphs()
        result = fxjit.compile(fn, backend=backend, **kwargs)(*args)
        return result, backend.graphs
    return run_it


@pytest.fixture
def breaks():
    """The reason id of the break that a function runs into."""
    def reason(fn, *args):
        fxjit.reset()
        with pytest.raises(fxjit.errors.Unsupported) as error:
            fxjit.compile(fn, backend="eager", fullgraph=True)(*args)
        return error.value.reason_id
    return reason
