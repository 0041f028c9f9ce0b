"""`torch.set_default_device` in compiled code is a step of its graph; `with torch.device(...)` is none."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


@pytest.fixture(autouse=True)
def _no_default_device():
    yield
    torch.set_default_device(None)


def described(made):
    return [(each.device, each.shape, None if each.is_meta else each.tolist()) if isinstance(each, torch.Tensor) else each
            for each in made]


def assert_same(fn, backend, graphs, breaks, outside=None):
    """Two calls, beginning under a default device, come to the same, devices included, and leave the same device."""
    def called(fn):
        found = []
        torch.set_default_device(outside)
        for _ in range(2):
            found.append((described(fn(torch.arange(3.0, device="cpu"))), torch.get_default_device()))
        torch.set_default_device(None)
        return found

    want = called(fn)
    fxjit.reset()
    assert called(fxjit.compile(fn, backend=backend)) == want
    assert (fxjit.counters["stats"]["unique_graphs"], sum(fxjit.counters["graph_break"].values())) == (graphs, breaks)


def set_and_unset(x):
    before = torch.ones(2)
    torch.set_default_device("meta")
    y = torch.ones(2) + torch.arange(2)
    torch.set_default_device(None)
    return x + 1, before, y, torch.zeros(2)


def set_and_read(x):
    before = torch.get_default_device()
    torch.set_default_device(torch.device("meta"))
    y, inside = torch.zeros(2), torch.get_default_device()
    torch.set_default_device(before)
    return x * 2, y, inside, torch.get_default_device()


def set_twice(x):
    torch.set_default_device("cpu")
    y = torch.ones(2)
    torch.set_default_device("meta")
    z = torch.ones(2)
    torch.set_default_device("cpu")
    return x - 1, y, z, torch.eye(2)


def block_inside(x):
    torch.set_default_device("meta")
    with torch.device("cpu"):
        y = torch.ones(2)
    z = torch.ones(2)
    torch.set_default_device("cpu")
    return x + 1, y, z


def set_and_decided(x):
    torch.set_default_device("meta")
    x = x + 1 if torch.get_default_device().type == "meta" else x - 1
    torch.set_default_device("cpu")
    return x, torch.rand(2).device


@pytest.mark.parametrize("outside", [None, "cpu"])
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [set_and_unset, set_and_read, set_twice, block_inside, set_and_decided])
def test_setting_it_is_in_the_graph(fn, backend, outside):
    # What the first call leaves set is another state for the second, as guards see it.
    graphs = 2 if outside is None and fn in (set_and_read, set_twice, block_inside, set_and_decided) else 1
    graphs = 2 if outside == "cpu" and fn is set_and_unset else graphs
    assert_same(fn, backend, graphs, 0, outside)


def test_it_stays_set():
    def leaves_it(x):
        torch.set_default_device("meta")
        return x + 1, torch.ones(1)

    assert_same(leaves_it, "eager", 2, 0)


def test_a_graph_that_raises_sets_it_back():
    def raises(x, i):
        torch.set_default_device("meta")
        y = x[i] + 1
        torch.set_default_device("cpu")
        return y

    x = torch.arange(3.0)
    for fn in (raises, fxjit.compile(raises, backend="native")):
        torch.set_default_device("cpu")
        fn(x, torch.tensor([1]))
        with pytest.raises((IndexError, RuntimeError)):
            fn(x, torch.tensor([7]))
        assert torch.get_default_device() == torch.device("meta")
        torch.set_default_device(None)


@pytest.mark.skipif(not hasattr(torch, "_GLOBAL_DEVICE_CONTEXT"), reason="this torch keeps the default device elsewhere")
def test_set_within_a_block_of_another_device():
    """torch keeps one device for both, so that what is set takes the block's place: such a block stays entered."""
    def inside(x):
        with torch.device("meta"):
            torch.set_default_device("cpu")
            y = torch.zeros(2)
        return torch.zeros(1), y, x + 1

    def called(fn):
        made = described(fn(torch.arange(3.0)))
        device = torch.get_default_device()
        torch.utils._device.CURRENT_DEVICE = None  # what torch's own bookkeeping is left with
        while torch._C._len_torch_function_stack():
            torch.overrides._pop_mode()
        torch._GLOBAL_DEVICE_CONTEXT.device_context = None
        return made, device

    assert called(fxjit.compile(inside, backend="eager")) == called(inside)


def test_a_device_that_torch_does_not_know_raises_as_in_eager():
    def unknown(x):
        torch.set_default_device("nosuch")
        return x + 1

    assert_same_as_eager(unknown, torch.ones(2), fullgraph=False)
