"""DistributedDataParallel: graphs are cut at its buckets, gradients are eager's on every rank."""

from __future__ import annotations

import contextlib
import copy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import fxjit
from fxjit.testing import EagerAndRecordGraphs

#: Bytes of one Linear(32, 32) with its bias, as the megabytes that DistributedDataParallel is given.
ONE_LAYER = 4 * (32 * 32 + 32) / 2**20


def layers(count: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(count)))


def steps_of(model: nn.Module, net: nn.Module, make_input: Any, count: int = 3) -> list[Any]:
    """Losses, outputs, gradients and buffers of some steps of SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    seen: list[Any] = []
    for step in range(count):
        optimizer.zero_grad()
        output = model(make_input(step))
        loss = output.square().mean()
        loss.backward()
        seen.append((loss.detach(), output.detach(), [p.grad if p.grad is None else p.grad.clone() for p in net.parameters()],
                     [buffer.clone() for buffer in net.buffers()]))
        optimizer.step()
    return seen


def inputs_of_this_rank(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + distributed.get_rank())
    return torch.randn(6, 32, generator=generator)


def compare(net: nn.Module, backend: Any, inside: bool, hook: Any = None, **settings: Any) -> int:
    """Trains one copy eagerly and one compiled; gives the number of graphs that the backend was given."""
    expected_net, recorder = copy.deepcopy(net), EagerAndRecordGraphs()
    backend = recorder if backend == "record" else backend
    if inside:
        net_or_compiled: nn.Module = fxjit.compile(net, backend=backend)
        model = DistributedDataParallel(net_or_compiled, **settings)
    else:
        wrapped = DistributedDataParallel(net, **settings)
        model = fxjit.compile(wrapped, backend=backend)
    expected = DistributedDataParallel(expected_net, **settings)
    if hook is not None:
        hook(model if inside else wrapped)
        hook(expected)
    found = steps_of(model, net, inputs_of_this_rank)
    # A hook that compresses gradients rounds a difference in their last bit to one of half precision.
    tolerance = {} if hook is None else {"rtol": 2e-3, "atol": 1e-4}
    torch.testing.assert_close(found, steps_of(expected, expected_net, inputs_of_this_rank), **tolerance)
    return len(recorder.graphs)


class Branches(nn.Module):
    """Tied weights, a frozen layer, a layer that is used twice, batch norm's buffers, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.frozen, self.tied = (nn.Linear(32, 32) for _ in range(4))
        self.tied.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.norm, self.drop = nn.BatchNorm1d(32), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.twice(self.first(x).relu()))
        return self.tied(self.drop(self.frozen(x).tanh() + self.twice(x)))


class PartlyUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.last = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.used(x).relu())


SETTINGS: dict[str, dict[str, Any]] = {
    "a bucket a layer": {"bucket_cap_mb": ONE_LAYER},
    "a bucket of two layers": {"bucket_cap_mb": 2 * ONE_LAYER},
    "default": {},
    "views": {"bucket_cap_mb": ONE_LAYER, "gradient_as_bucket_view": True},
    "static graph": {"bucket_cap_mb": ONE_LAYER, "static_graph": True},
    "unused": {"bucket_cap_mb": ONE_LAYER, "find_unused_parameters": True},
    "no buffers": {"bucket_cap_mb": ONE_LAYER, "broadcast_buffers": False},
}


def train_with_each_setting(backend: str, inside: bool) -> dict[str, int]:
    graphs = {}
    for name, settings in SETTINGS.items():
        fxjit.reset()
        graphs[name] = compare(layers(), backend, inside, **settings)
    return graphs


@pytest.mark.sweep(2)
@pytest.mark.parametrize("inside", [False, True], ids=["compile(DDP(m))", "DDP(compile(m))"])
@pytest.mark.parametrize("backend", ["record", "aot_eager", "native"])
def test_steps_are_eagers_with_each_setting_and_graphs_are_cut_at_the_buckets(ranks, backend, inside):
    first, second = ranks(train_with_each_setting, backend, inside)
    assert first == second
    if backend == "record":
        assert first["a bucket a layer"] == 4
        assert first["a bucket of two layers"] == 2
        assert first["default"] == 1


def train_modules_of_all_kinds(backend: str) -> None:
    compare(Branches(), backend, False, bucket_cap_mb=ONE_LAYER)
    fxjit.reset()
    compare(PartlyUsed(), backend, False, bucket_cap_mb=ONE_LAYER, find_unused_parameters=True)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_tied_frozen_and_unused_parameters_and_buffers(ranks, backend):
    ranks(train_modules_of_all_kinds, backend)


def fp16(model: Any) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def halved(model: Any) -> None:
    model.register_comm_hook(None, lambda state, bucket: default_hooks.allreduce_hook(None, bucket).then(half))


def half(reduced: Any) -> torch.Tensor:
    return reduced.value() / 2


def train_with_hooks() -> None:
    for hook in (fp16, halved):
        fxjit.reset()
        compare(layers(), "native", False, hook, bucket_cap_mb=ONE_LAYER)


def test_communication_hooks_see_the_gradients_of_their_bucket(ranks):
    ranks(train_with_hooks)


def accumulate(compiled: bool) -> list[Any]:
    """Two steps without reduction, then one with; and one under `join`, of which rank 1 takes one more."""
    torch.manual_seed(1)
    net = layers()
    model: Any = DistributedDataParallel(net, bucket_cap_mb=ONE_LAYER)
    run = fxjit.compile(model, backend="native") if compiled else model
    for step in range(3):
        with contextlib.nullcontext() if step == 2 else model.no_sync():
            run(inputs_of_this_rank(step)).sum().backward()
    found = [p.grad.clone() for p in net.parameters()]
    with model.join():
        for step in range(1 + distributed.get_rank()):
            net.zero_grad()
            run(inputs_of_this_rank(step)).sum().backward()
    return [*found, *(p.grad.clone() for p in net.parameters())]


def accumulate_both() -> None:
    torch.testing.assert_close(accumulate(True), accumulate(False))


def test_no_sync_and_uneven_inputs(ranks):
    ranks(accumulate_both)


def delay_the_reduction() -> int:
    """Gradients of two layers are reduced when that of the first layer's weight is there, the last in eager's backward."""
    net = layers()
    expected_net = copy.deepcopy(net)

    def wrapped(net: nn.Module) -> DistributedDataParallel:
        named = dict(net.named_parameters())
        delayed = [(name, parameter) for name, parameter in named.items() if name.startswith(("1.", "2."))]
        return DistributedDataParallel(net, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=named["0.0.weight"])

    def waited_for(*args: Any, async_op: bool = False, **kwargs: Any) -> None:
        reduce(*args, **kwargs)  # torch never waits for it, so that over gloo it may end after the gradients were read

    found, expected, reduce = wrapped(net), wrapped(expected_net), distributed.all_reduce
    with mock.patch.object(distributed, "all_reduce", waited_for):
        torch.testing.assert_close(steps_of(fxjit.compile(found, backend="aot_eager"), net, inputs_of_this_rank),
                                   steps_of(expected, expected_net, inputs_of_this_rank))
    return fxjit.counters["run_as_captured"]["delayed-reduction"]


def test_delayed_reductions_find_the_gradients_that_they_reduce(ranks):
    assert all(count > 0 for count in ranks(delay_the_reduction))


def order_of_reductions(backend: str, optimize: bool) -> list[str]:
    """What runs after what in one backward: nodes of the graph, and reductions of buckets."""
    model: Any = DistributedDataParallel(layers(), bucket_cap_mb=ONE_LAYER)
    events: list[str] = []

    model.register_comm_hook(None, lambda state, bucket: events.append("reduce") or default_hooks.allreduce_hook(None, bucket))
    with fxjit.config.patch(optimize_ddp=optimize):
        run = fxjit.compile(model, backend=backend)
        for _ in range(2):  # the buckets are as they will be after the first step
            loss = run(inputs_of_this_rank(0)).sum()
            del events[:]
            watch_backward(loss.grad_fn.next_functions[0][0], events)
            loss.backward()
    return events


def watch_backward(node: Any, events: list[str]) -> None:
    while node is not None and "AccumulateGrad" not in node.name():
        node.register_prehook(lambda grads: events.append("compute"))
        node = next((each for each, _ in node.next_functions if each is not None and "Accumulate" not in each.name()), None)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_bucket_is_reduced_before_the_next_part_computes(ranks, backend):
    for events in ranks(order_of_reductions, backend, True):
        assert events == ["compute", "reduce"] * 4
    for events in ranks(order_of_reductions, backend, False):
        assert events == ["compute", *["reduce"] * 4]
