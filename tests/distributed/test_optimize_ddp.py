"""`torch._dynamo.config.optimize_ddp` under the drop-in: each of its values is followed, or refused in a warning, and the
gradients are eager's with all of them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
from tests.distributed.test_ddp import ONE_LAYER, inputs_of_this_rank, layers, steps_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fxjit
from fxjit.testing import EagerAndRecordGraphs

#: What is set -> our setting's value after it, and the graphs of four layers with a bucket each.
FOLLOWED: dict[Any, tuple[bool, int]] = {
    True: (True, 4), "ddp_optimizer": (True, 4), False: (False, 1), "no_optimization": (False, 1),
}
#: Torch's compiled autograd does these, of which fxjit has none.
REFUSED = ("python_reducer", "python_reducer_without_compiled_forward")


def train_with(value: Any, before: bool) -> tuple[bool, int, list[str]]:
    """Our setting, the number of graphs and the warnings where torch's is `value`, set before the module is made or after."""
    import torch._dynamo

    expected_net: nn.Module = layers()
    net, recorder = copy.deepcopy(expected_net), EagerAndRecordGraphs()
    expected = DistributedDataParallel(expected_net, bucket_cap_mb=ONE_LAYER)
    fxjit.install()
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            made = None if before else DistributedDataParallel(net, bucket_cap_mb=ONE_LAYER)
            with torch._dynamo.config.patch(optimize_ddp=value):
                made = made or DistributedDataParallel(net, bucket_cap_mb=ONE_LAYER)
                found = steps_of(torch.compile(made, backend=recorder), net, inputs_of_this_rank)
                followed = fxjit.config.optimize_ddp
        assert fxjit.config.optimize_ddp is True, "it is put back"
    finally:
        fxjit.uninstall()
    torch.testing.assert_close(found, steps_of(expected, expected_net, inputs_of_this_rank))
    return followed, len(recorder.graphs), [str(each.message) for each in given if "optimize_ddp" in str(each.message)]


def train_with_each(values: tuple[Any, ...], before: bool) -> list[Any]:
    found = []
    for value in values:
        fxjit.reset()
        found.append(train_with(value, before))
    return found


@pytest.mark.parametrize("before", [True, False], ids=["before the module is made", "after"])
def test_values_that_fxjit_has_are_followed(ranks: Any, before: bool) -> None:
    expected = [(*each, []) for each in FOLLOWED.values()]
    assert ranks(train_with_each, tuple(FOLLOWED), before) == [expected] * 2


@pytest.mark.parametrize("before", [True, False], ids=["before the module is made", "after"])
def test_values_that_fxjit_does_not_have_are_refused_in_a_warning(ranks: Any, before: bool) -> None:
    for found in ranks(train_with_each, REFUSED, before):
        for value, (followed, _, said) in zip(REFUSED, found, strict=True):
            assert followed is True
            assert len(said) == 1
            assert f"torch._dynamo.config.optimize_ddp = '{value}' has no effect on fxjit" in said[0]


@pytest.mark.parametrize("value", ["ddp_optimizer", "python_reducer", 2])
def test_our_own_setting_is_a_switch(value: Any) -> None:
    with pytest.raises(fxjit.errors.ConfigError, match="optimize_ddp"):
        fxjit.config.optimize_ddp = value
