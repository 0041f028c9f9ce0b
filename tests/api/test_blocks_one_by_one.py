"""Blocks that are compiled one by one: equal ones share graphs, whichever library their class is from."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import fxjit
from fxjit.module import compile_in_place
from fxjit.options import region_options
from fxjit.testing import CompileCounter


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    torch.manual_seed(0)
    yield
    fxjit.reset()


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x).relu()


def doubled(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    return output * 2


def hooked() -> nn.Module:
    block = Block()
    block.register_forward_hook(doubled)
    return block


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "of a class of the program": Block,
    "of torch's": lambda: nn.Linear(4, 4),
    "of several of torch's": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "with a hook": hooked,
    "under checkpoint_wrapper": lambda: checkpoint_wrapper(Block()),
}


def in_place(blocks: nn.ModuleList, counter: CompileCounter) -> list[nn.Module]:
    for block in blocks:
        compile_in_place(block, region_options(backend=counter))
    return list(blocks)


def wrapped(blocks: nn.ModuleList, counter: CompileCounter) -> list[nn.Module]:
    return [fxjit.compile(block, backend=counter) for block in blocks]


def run(blocks: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x)
    return x


@pytest.mark.parametrize("how", [wrapped, in_place])
@pytest.mark.parametrize("kind", BLOCKS)
def test_equal_blocks_share_a_graph(kind: str, how: Callable[[nn.ModuleList, CompileCounter], list[nn.Module]]) -> None:
    blocks = nn.ModuleList(BLOCKS[kind]() for _ in range(12))
    x = torch.randn(3, 4, requires_grad=True)
    expected = run(list(blocks), x)
    expected.sum().backward()
    gradients = [parameter.grad for parameter in blocks.parameters()]
    blocks.zero_grad()
    counter = CompileCounter()

    compiled = how(blocks, counter)
    result = run(compiled, x)
    result.sum().backward()

    torch.testing.assert_close(result, expected)
    for parameter, gradient in zip(blocks.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert counter.frame_count == 1


def test_blocks_of_many_sizes_do_not_use_up_one_limit() -> None:
    layers = [nn.Linear(width, width) for width in range(2, 16)]
    counter = CompileCounter()

    for layer in layers:
        x = torch.randn(3, layer.in_features)
        torch.testing.assert_close(fxjit.compile(layer, backend=counter)(x), layer(x))

    assert counter.frame_count == len(layers)


def test_one_block_that_changes_leaves_the_others_right() -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval() for _ in range(3)]
    counter = CompileCounter()
    compiled = [fxjit.compile(block, backend=counter) for block in blocks]
    x = torch.ones(2, 4)
    for block in compiled:
        block(x)

    blocks[1].train()
    blocks[2][0] = nn.Identity()
    for block, plain in zip(compiled, blocks, strict=True):
        torch.manual_seed(1)
        expected = plain(x)
        torch.manual_seed(1)
        assert torch.equal(block(x), expected)


def test_blocks_go_when_the_program_drops_them() -> None:
    alive, gone = nn.Linear(4, 4), nn.Linear(4, 4)
    first, second = fxjit.compile(alive, backend="eager"), fxjit.compile(gone, backend="eager")
    x = torch.ones(2, 4)
    first(x), second(x)
    note = weakref.ref(gone)

    del gone, second
    gc.collect()

    assert note() is None
    assert torch.equal(first(x), alive(x))
