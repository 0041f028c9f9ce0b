"""Small collectives that do not need each other's results are one call (`config.bucket_collectives_mb`); values are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import distributed

import fxjit

#: Before torch 2.13 these have other names.
all_gather_single, reduce_scatter_single = (
    getattr(functional, name, None) or getattr(functional, name.replace("single", "tensor"))
    for name in ("all_gather_single", "reduce_scatter_single"))
KILOBYTE = 1 / 1024


def reduced(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", distributed.group.WORLD)


def averages(x: torch.Tensor) -> Any:
    """As a loop over gradients has it: each is used before the next one is sent."""
    return [reduced(part * 2) / 2 + number for number, part in enumerate(x)]


def of_several_kinds(x: torch.Tensor) -> Any:
    group = distributed.group.WORLD
    gathered = [all_gather_single(part.contiguous(), 0, group) for part in x.split(1, 1)]
    scattered = [reduce_scatter_single(part.exp().contiguous(), "sum", 0, group) for part in x.split(1, 1)]
    return [each.sin() for each in gathered], [each.cos() for each in scattered]


def of_several_types(x: torch.Tensor) -> Any:
    return [reduced(x.to(dtype)) for dtype in (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float32)]


def one_after_the_other(x: torch.Tensor) -> Any:
    """The second needs the first one's result, the third does not."""
    first = reduced(x)
    return reduced(first.relu()), reduced(x + 1), first


def with_random_numbers_between(x: torch.Tensor) -> Any:
    first = reduced(x)
    noise = torch.nn.functional.dropout(first, 0.5)
    return noise, reduced(x + 1), torch.rand_like(x)


def with_a_write_between(x: torch.Tensor) -> Any:
    y = x.clone()
    first = reduced(y)
    y.add_(first)
    return first, reduced(y), y


def with_other_collectives_between(x: torch.Tensor) -> Any:
    return reduced(x), functional.broadcast(x + 3, 1, distributed.group.WORLD), reduced(x + 1)


def in_place(x: torch.Tensor) -> Any:
    parts = [part.contiguous() for part in x.split(1, 1)]
    for part in parts:
        distributed.all_reduce(part)
    return [part * 3 for part in parts]


def too_large(x: torch.Tensor) -> Any:
    """Each is larger than a bucket may be, but for the last two."""
    large = x.expand(200, *x.shape).contiguous()
    return [reduced(large), reduced(large + 1), reduced(x), reduced(x + 1)]


#: Each program with the collectives that its graph has at the end.
PROGRAMS: dict[Callable[[torch.Tensor], Any], list[str]] = {
    averages: ["all_reduce_coalesced"],
    of_several_kinds: ["all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"],
    of_several_types: ["all_reduce_coalesced", "all_reduce", "all_reduce", "all_reduce"],
    one_after_the_other: ["all_reduce", "all_reduce_coalesced"],
    with_random_numbers_between: ["all_reduce", "all_reduce"],
    with_a_write_between: ["all_reduce", "all_reduce"],
    with_other_collectives_between: ["all_reduce", "broadcast", "all_reduce"],
    in_place: ["all_reduce_coalesced"],
    too_large: ["all_reduce", "all_reduce", "all_reduce_coalesced"],
}


def run(name: str) -> list[str]:
    """The collectives that a compiled program makes, whose results and gradients are eager's."""
    program = globals()[name]
    x = torch.linspace(-1, 1, 8).view(4, 2) + distributed.get_rank()

    torch.manual_seed(1)
    expected = program(x)
    with fxjit.config.patch(bucket_collectives_mb=2 * KILOBYTE):
        compiled = fxjit.compile(program, fullgraph=True)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(x), expected)
        torch.manual_seed(1)
        with torch.profiler.profile() as profile:
            torch.testing.assert_close(compiled(x), expected)
    events = sorted(profile.events(), key=lambda event: event.time_range.start)
    made = [event.name.split("::")[1] for event in events if event.name.startswith("_c10d_functional::")]
    return [each for each in made if each != "wait_tensor"]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_small_neighbours_are_one_call(ranks: Any, program: Callable[[torch.Tensor], Any]) -> None:
    assert ranks(run, program.__name__) == [PROGRAMS[program]] * 2
