"""Questions about sizes that vary get the answer for sizes in general, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fxjit.backends.native.generic_sizes import NoGeneralAnswer, in_general

DYNAMIC = StatelessSymbolicContext([DimDynamic.STATIC, DimDynamic.STATIC, DimDynamic.DYNAMIC, DimDynamic.DYNAMIC])


@pytest.fixture
def images():
    """The one value of a graph: images of 2 x 8 channels, whose height and width vary."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    images = mode.from_tensor(torch.empty(2, 8, 12, 20), symbolic_context=DYNAMIC)
    graph = torch.fx.Graph()
    graph.placeholder("x").meta["val"] = images
    with in_general(graph) as answered:
        assert answered
        yield images


def normalized(images):
    with torch.no_grad(), images.fake_mode:
        return F.batch_norm(images, torch.zeros(8), torch.ones(8))


def test_there_are_no_guards_from_answers(images):
    height, width = images.shape[2:]
    assert height * width > 1000 and bool(height != width)
    assert not images.fake_mode.shape_env.guards
    with pytest.raises(NoGeneralAnswer, match="differs from size to size"):
        bool(height % 5 == 2)


def test_what_is_alike_is_calculated_once(images):
    """In the cache of fakes: torch takes a batch norm of sizes that vary apart each time."""
    one = normalized(images)
    before = FakeTensorMode.cache_info()
    other = normalized(images)
    after = FakeTensorMode.cache_info()
    assert after.misses == before.misses and after.hits > before.hits
    assert (one.shape, one.stride()) == (other.shape, other.stride()) == (images.shape, images.stride())


def test_what_was_calculated_here_is_for_nobody_else():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    images = mode.from_tensor(torch.empty(2, 8, 12, 20), symbolic_context=DYNAMIC)
    graph = torch.fx.Graph()
    graph.placeholder("x").meta["val"] = images
    before = normalized(images)
    known = dict(mode.shape_env.fake_tensor_cache)
    with in_general(graph):
        F.max_pool2d(normalized(images), 2)
    assert mode.shape_env.fake_tensor_cache == known
    assert normalized(images).stride() == before.stride()
