"""Tensor parallel, alone and with FSDP2 on a mesh of two dimensions: losses are eager's, and checkpoints of
torch.distributed.checkpoint have the names and the values of the model that is not compiled, whichever was compiled when they
were saved or are loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.distributed.models import Net, carry_over, state_of
from torch import distributed, nn

import fxjit
from fxjit.testing import CompileCounterWithBackend

pytestmark = pytest.mark.filterwarnings("ignore")
Compile = Callable[[nn.Module], nn.Module]
#: How many parts of the data there are, how many parts of each layer; and whether FSDP2 shards along the former.
MESHES = {"tensor parallel": (1, 2, False), "FSDP2 over the data": (2, 1, True), "FSDP2 of divided layers": (1, 2, True)}


def parallel(shape: tuple[int, int, bool], compiles_blocks: Compile, compiles_whole: Compile) -> nn.Module:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = Net(layers=2)
    mesh = distributed.device_mesh.init_device_mesh("cpu", shape[:2], mesh_dim_names=("data", "layers"))
    of_data, of_layers = mesh["data"], mesh["layers"]
    for place, layer in enumerate(model.layers):
        parallelize_module(layer, of_layers, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if shape[2]:
            fully_shard(layer, mesh=of_data)
        model.layers[place] = compiles_blocks(layer)
    if shape[2]:
        fully_shard(model, mesh=of_data)
    return compiles_whole(model)


def as_it_is(model: nn.Module) -> nn.Module:
    return model


def losses(model: nn.Module, shape: tuple[int, int, bool], steps: int = 3) -> list[float]:
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False), []
    for step in range(steps):
        data = distributed.get_rank() // shape[1]
        index = torch.randint(0, 16, (2, 5), generator=torch.Generator().manual_seed(100 * step + data))
        loss = F.cross_entropy(model(index).flatten(0, 1), index.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def train_save_and_load(shape: tuple[int, int, bool], folder: str) -> tuple[list[str], list[int]]:
    """The names in the checkpoints, and the graphs of the compiled blocks and of the compiled model."""

    counters = [CompileCounterWithBackend("aot_eager") for _ in range(2)]
    blocks, whole = (lambda model, counter=counter: fxjit.compile(model, backend=counter) for counter in counters)
    ways = [(as_it_is, as_it_is), (blocks, as_it_is), (as_it_is, whole)]
    expected, names = losses(parallel(shape, *ways[0]), shape), []
    for number, way in enumerate(ways):
        trained, other = parallel(shape, *way), parallel(shape, *ways[number - 1])
        assert losses(trained, shape) == pytest.approx(expected, rel=1e-4), number
        names.append(carry_over(trained, other, f"{folder}/{number}"))
        torch.testing.assert_close(state_of(other), state_of(trained))
        assert losses(other, shape, 1) == pytest.approx(losses(trained, shape, 1), rel=1e-4), number
    assert all(each == names[0] for each in names)
    return names[0], [counter.frame_count for counter in counters]


@pytest.mark.parametrize("name", MESHES)
def test_training_and_checkpoints(ranks, tmp_path, name):
    for names, (of_blocks, of_whole) in ranks(train_save_and_load, MESHES[name], str(tmp_path), seconds=300):
        assert names == sorted(Net(layers=2).state_dict())
        assert of_blocks <= 4, "a graph for each block of the two models"
        if not MESHES[name][2]:  # the hooks of FSDP2 are between graphs
            assert of_whole == 2
