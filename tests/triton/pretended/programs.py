"""Programs on a pretended GPU (machine.py), each against eager: `python programs.py` prints a line of JSON for each.

They are about what is around kernels: memory, streams, devices, launches, recorded graphs.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import machine
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fxjit
from fxjit.counters import counters

PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[function.__name__] = function
    return function


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected)


def randn(*shape: int, device: str = "cuda", **options: Any) -> torch.Tensor:
    return torch.randn(*shape, device=device, **options)


def curve(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) * 2


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


# Kernels, memory and devices


@program
def kernels_on_two_devices() -> None:
    compiled = fxjit.compile(softmax)
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        x = randn(5, 70, device=device)
        out = compiled(x)
        assert out.device == x.device
        same(out, softmax(x))
    assert machine.launches


@program
def one_graph_over_two_devices_and_the_host() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return (x.exp() * 2).to("cuda:1") + y.tanh(), x.sin() + 1, z.cos() * 2 + 1, x * z[0, 0]

    given = randn(9, 9), randn(9, 9, device="cuda:1"), randn(9, 9, device="cpu")
    same(fxjit.compile(function)(*given), function(*given))


@program
def numbers_of_the_host_beside_tensors_of_the_gpu() -> None:
    def function(x: torch.Tensor, number: torch.Tensor, places: torch.Tensor) -> Any:
        return x * number + 1, torch.where(x > 0, number, x), x[places] * 2, x.index_put((places,), number)

    for number in (torch.tensor(2.5), torch.tensor(-1.0)):
        given = randn(6, 8), number, torch.tensor([1, 3])
        same(fxjit.compile(function)(*given), function(*given))


@program
def numbers_that_only_a_call_knows() -> None:
    """Kernels read them from their own device's memory, where no pointer to the processor's is of use."""
    def step(x: torch.Tensor, rate: float) -> torch.Tensor:
        return (x - x.exp() * rate).sum(0)

    def turn(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2 + float(x.sum())

    for mode in ("default", "reduce-overhead"):
        fxjit.reset()
        by_rate, by_sum = fxjit.compile(step, mode=mode), fxjit.compile(turn, mode=mode)
        for k in range(5):
            for device in ("cuda:0", "cuda:1"):
                x = randn(5, 7, device=device)
                same(by_rate(x, 0.1 * k), step(x, 0.1 * k))
                same(by_sum(x), turn(x))


@program
def the_current_device_is_part_of_what_was_compiled() -> None:
    def made() -> torch.Tensor:
        return torch.full((4,), 2.0, device="cuda") * 3

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.cuda() + 1

    def named(x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda:1") + torch.ones(3, device=torch.device("cuda", 1))

    x = torch.ones(3)
    ours = [fxjit.compile(each) for each in (made, moved, named)]
    for device in (0, 1, 0):
        with torch.cuda.device(device):
            for compiled, call, given in zip(ours, (made, moved, named), ((), (x,), (x,))):
                out, expected = compiled(*given), call(*given)
                assert out.device == expected.device, f"{call.__name__}: {out.device}, eager {expected.device}"
                same(out, expected)
    assert fxjit.explain(named)(x).graph_count == 1


@program
def training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)).cuda()
    compiled, x = fxjit.compile(model), randn(8, 16)
    for _ in range(2):
        assert_same_gradients(compiled, model, x)


def assert_same_gradients(compiled: Any, model: torch.nn.Module, x: torch.Tensor) -> None:
    found = []
    for each in (compiled, model):
        model.zero_grad()
        loss = each(x).square().mean()
        loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
    same(*found)


@program
def memory_off_its_boundary_and_sizes_that_vary() -> None:
    memory, compiled = randn(4200), fxjit.compile(softmax, dynamic=True)
    for start, rows, columns in ((0, 4, 16), (1, 4, 16), (3, 16, 17), (0, 64, 64), (0, 1, 7)):
        x = memory[start : start + rows * columns].view(rows, columns)
        same(compiled(x), softmax(x))


@program
def blocks_are_measured_at_the_first_call() -> None:
    with fxjit.config.patch(**{"triton.max_autotune": True}):
        compiled = fxjit.compile(lambda x: x.exp() * 2)
        x = randn(40, 100)
        for _ in range(3):
            same(compiled(x), x.exp() * 2)
    assert counters["native"]["kernels measured"] == 1, counters["native"]


@program
def several_threads() -> None:
    compiled, problems = fxjit.compile(softmax), []

    def work(device: int) -> None:
        try:
            for _ in range(3):
                x = randn(4, 30, device=f"cuda:{device}")
                same(compiled(x), softmax(x))
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(k % 2,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems


@program
def kernels_are_on_the_current_stream() -> None:
    compiled, stream, x = fxjit.compile(softmax), torch.cuda.Stream(), randn(4, 30)
    compiled(x)
    machine.launches.clear()
    with torch.cuda.stream(stream):
        same(compiled(x), softmax(x))
    assert [each for _, each in machine.launches] == [stream.cuda_stream]


@program
def streams_inside_the_program() -> None:
    stream = torch.cuda.Stream()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            z = softmax(y)
        torch.cuda.current_stream().wait_stream(stream)
        return z + y

    compiled, x = fxjit.compile(function), randn(4, 30)
    for _ in range(2):
        machine.launches.clear()
        same(compiled(x), function(x))
        assert stream.cuda_stream in [each for _, each in machine.launches]


@program
def devices_chosen_inside_the_program() -> None:
    def function(x: torch.Tensor) -> Any:
        with torch.cuda.device(1):
            y = torch.ones(3, device="cuda") * 2
        return y, x.cuda() + 1

    compiled, x = fxjit.compile(function), torch.ones(3)
    for device in (0, 1):
        with torch.cuda.device(device):
            for actual, expected in zip(compiled(x), function(x), strict=True):
                assert actual.device == expected.device
                same(actual, expected)
            assert torch.cuda.current_device() == device


@program
def default_devices() -> None:
    def function() -> torch.Tensor:
        return torch.ones(3) * 2 + torch.arange(3)

    compiled = fxjit.compile(function)
    for device in ("cuda", "cpu", "cuda:1"):
        with torch.device(device):
            assert compiled().device == function().device
            same(compiled(), function())
    with torch.device("cuda"), torch.cuda.device(1):
        assert compiled().device == function().device


@program
def autocast_is_of_one_kind_of_device() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = x @ x, y @ y
        with torch.autocast("cuda", dtype=torch.float16):
            return *first, x @ x, y @ y

    given = randn(8, 8), randn(8, 8, device="cpu")
    found, expected = fxjit.compile(function)(*given), function(*given)
    assert [each.dtype for each in found] == [torch.float32, torch.bfloat16, torch.float16, torch.float32]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@program
def transfers() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x.to("cuda", non_blocking=True) * 2
        z = y.cpu() + 1
        return y, z, z.cuda() + y, y.to(torch.float16), y.to("cpu", torch.float64)

    x = torch.randn(4, 5)
    same(fxjit.compile(function)(x), function(x))


@program
def what_tensors_and_torch_say_of_devices() -> None:
    def function(x: torch.Tensor) -> Any:
        return (x.device, x.is_cuda, x.get_device(), torch.cuda.is_available(), torch.cuda.device_count(), x.device.index,
                x.new_zeros(3).device, torch.zeros_like(x, device="cpu").device, str(x.device))  # fmt: skip

    compiled = fxjit.compile(function)
    for device in ("cuda:0", "cuda:1"):
        x = randn(3, device=device)
        assert compiled(x) == function(x)


@program
def a_module_that_moves() -> None:
    model = torch.nn.Linear(4, 4)
    compiled = fxjit.compile(model)
    for device in ("cpu", "cuda:0", "cuda:1", "cpu"):
        x = torch.randn(2, 4, device=device)
        model.to(device)
        same(compiled(x), model(x))


@program
def optimizers_step_over_all_parameters_at_once() -> None:
    for options in ({}, {"fused": True}, {"capturable": True}):
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda()
        other = copy.deepcopy(model)
        ours, eager = (torch.optim.AdamW(each.parameters(), 1e-2, **options) for each in (model, other))
        step = fxjit.compile(lambda ours=ours: ours.step())
        for _ in range(4):
            x = randn(8, 16)
            for each in (model, other):
                each.zero_grad()
                each(x).square().mean().backward()
            step()
            eager.step()
            same(list(model.parameters()), list(other.parameters()))


@program
def a_transformer_layer_in_training_and_after() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True).cuda()
    compiled = fxjit.compile(layer)
    for dtype in (torch.float32, torch.bfloat16):
        x = randn(2, 8, 16).to(dtype)
        layer.to(dtype)
        for training in (True, False):
            layer.train(training)
            with torch.set_grad_enabled(training):
                torch.testing.assert_close(compiled(x), layer(x), rtol=2e-2, atol=2e-2)


@program
def batch_norm_by_running_statistics_is_part_of_a_kernel() -> None:
    """Its statistics are results on a GPU, and empty on the processor."""
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.ReLU()).cuda()
    x = randn(4, 8, 5, 5)
    model(x)
    compiled = fxjit.compile(model.eval())
    with torch.no_grad():
        same(compiled(x), model(x))
    assert counters["native"]["kernels"] == len(machine.launches) == 1, counters["native"]
    given, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(given).square().sum().backward()
    model(other).square().sum().backward()
    same(given.grad, other.grad)


@program
def rms_norm_is_one_operator() -> None:
    """As it is on a GPU alone; where no epsilon is given, it is that of the type that is computed with."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        for options in ({}, {"eps": 1e-3}):
            compiled = fxjit.compile(lambda x, w, options=options: F.rms_norm(x * 0.01, (24,), w, **options) * 2)
            x, w = (randn(*shape).to(dtype).requires_grad_() for shape in ((3, 5, 24), (24,)))
            out = compiled(x, w)
            expected = F.rms_norm(x * 0.01, (24,), w, **options) * 2
            gradients = [torch.autograd.grad(each.float().square().sum(), (x, w)) for each in (out, expected)]
            for one, other in zip((out, *gradients[0]), (expected, *gradients[1]), strict=True):
                scale = other.abs().max().item()
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)
    assert counters["native"]["kernels"] >= 12, counters["native"]


@program
def sizes_that_the_data_decides() -> None:
    def function(x: torch.Tensor) -> Any:
        return x[x > 0].exp(), (x * 2).nonzero(), torch.unique((x * 3).int())

    compiled = fxjit.compile(function)
    for _ in range(3):
        x = randn(7, 9)
        same(compiled(x), function(x))


@program
def convolutions_and_batch_norm_in_training() -> None:
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    model = torch.nn.Sequential(*layers).cuda()
    other = copy.deepcopy(model)
    compiled = fxjit.compile(model)
    for _ in range(2):
        x = randn(2, 3, 10, 10)
        ours, eager = compiled(x), other(x)
        same(ours, eager)
        for each in (ours, eager):
            each.sum().backward()
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-4)
    same(dict(model.named_buffers()), dict(other.named_buffers()))


class Residual(torch.nn.Module):
    """Blocks of convolutions and batch norm with what was before beside them, as a ResNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = self.conv(3, 16, 3, 2), torch.nn.MaxPool2d(3, 2, 1)
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleList((self.conv(16, 8, 1), self.conv(8, 8, 3), self.conv(8, 16, 1)))
                                          for _ in range(2))
        self.last = torch.nn.Linear(16, 5)

    def conv(self, channels: int, results: int, window: int, step: int = 1) -> torch.nn.Module:
        layer = torch.nn.Conv2d(channels, results, window, step, window // 2, bias=False)
        return torch.nn.Sequential(layer, torch.nn.BatchNorm2d(results))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x).relu())
        for first, second, third in self.blocks:
            x = (third(second(first(x).relu()).relu()) + x).relu()
        return self.last(x.mean((2, 3)))


class Levels(torch.nn.Module):
    """A small U-Net: group norm, pooling, enlarging, joining, biases, a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.top, self.low, self.out = self.pair(3, 8), self.pair(8, 16), self.pair(24, 8)
        self.back, self.last = torch.nn.ConvTranspose2d(16, 16, 2, 2), torch.nn.Conv2d(8, 2, 1)

    def pair(self, channels: int, results: int) -> torch.nn.Module:
        layers = [[torch.nn.Conv2d(given, results, 3, padding=1), torch.nn.GroupNorm(4, results), torch.nn.SiLU()]
                  for given in (channels, results)]
        return torch.nn.Sequential(*layers[0], *layers[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = self.top(x)
        low = self.low(F.max_pool2d(top, 2))
        both = F.interpolate(low, scale_factor=2) + self.back(low)
        return self.last(self.out(torch.cat([both, top], 1)))


def channels_last_in(make: Callable[[], torch.nn.Module], dtype: torch.dtype, size: int) -> None:
    """All convolutions get channels-last images; strides are eager's, and numbers about as near to those of float64."""
    torch.manual_seed(0)
    for training in (False, True):
        model = make().to(dtype).cuda().train(training)
        other, exact = copy.deepcopy(model), copy.deepcopy(model).double()
        compiled, x = fxjit.compile(model), randn(2, 3, size, size).to(dtype)
        found = []
        for call, parts in ((compiled, model), (other, other), (exact, exact)):
            machine.convolved.clear()
            with torch.set_grad_enabled(training):
                given = x.to(torch.float64 if parts is exact else dtype, copy=True).requires_grad_(training)
                out = call(given)
            if training:
                (out * torch.linspace(-1, 1, out.numel(), device="cuda", dtype=dtype).view(out.shape)).sum().backward()
            assert machine.convolved and all(last is (call is compiled) for last in machine.convolved), machine.convolved
            gradients = {"given": given.grad} | {name: one.grad for name, one in parts.named_parameters()} if training else {}
            found.append({"out": out.detach()} | gradients | dict(parts.named_buffers()))
        for name, ours in found[0].items():
            eager, right = found[1][name], found[2][name].double()
            assert ours.dtype is eager.dtype and ours.stride() == eager.stride(), f"{name}: {ours.stride()}, {eager.stride()}"
            differences = ours.double() - right, eager.double() - right, right
            off, eager_off, whole = (float(each.cpu().norm()) for each in differences)
            assert off <= 3 * eager_off + 1e-5 * (1 + whole), f"{name}: off by {off} of {whole}, eager by {eager_off}"


@program
def channels_last_in_a_residual_network() -> None:
    channels_last_in(Residual, torch.float32, 16)


@program
def channels_last_in_a_residual_network_of_halves() -> None:
    channels_last_in(Residual, torch.bfloat16, 16)


@program
def channels_last_in_a_u_net() -> None:
    channels_last_in(Levels, torch.float32, 8)


@program
def channels_last_in_a_u_net_of_halves() -> None:
    channels_last_in(Levels, torch.bfloat16, 8)


def attention_of(dtype: torch.dtype, kernel: str, **options: Any) -> None:
    """Forward and backward, as one kernel of torch's between ours, with operands as a model's projection gives them."""

    def function(qkv: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        query, key, value = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (qkv * 2).chunk(3, -1))
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(query, key, value, mask, **options)
        return out.transpose(1, 2).flatten(2).tanh()

    backend = getattr(SDPBackend, f"{kernel.upper()}_ATTENTION")
    machine.attentions.clear()
    for mode in ("default", "reduce-overhead"):
        compiled = fxjit.compile(function, mode=mode)
        for _ in range(5):
            given = randn(2, 12, 48).to(dtype).requires_grad_()
            mask = randn(12, 12).to(dtype) if not options else None
            found = []
            for each in (compiled, function):
                out = each(given, mask)
                found.append((out, *torch.autograd.grad(out.float().square().sum(), given)))
            same(*found)
    assert replays() >= 4, counters["cudagraphs"]
    assert set(machine.attentions) == {kernel}, machine.attentions


@program
def attention_in_half_precision() -> None:
    attention_of(torch.bfloat16, "flash", is_causal=True)
    attention_of(torch.float16, "flash", scale=0.3)
    attention_of(torch.bfloat16, "cudnn", is_causal=True)


@program
def attention_in_single_precision_or_with_a_mask() -> None:
    attention_of(torch.float32, "efficient", is_causal=True)
    attention_of(torch.float32, "efficient")


@program
def products_are_measured_both_ways() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.addmm(b, (x * 2).relu(), w))

    compiled, given = fxjit.compile(function, mode="max-autotune-no-cudagraphs"), (randn(40, 50), randn(50, 33), randn(33))
    for _ in range(2):
        same(compiled(*given), function(*given))
    assert counters["native"]["products measured"] == 1


# Recorded graphs


def replays() -> int:
    failed = [why for why in counters["cudagraphs"] if "cannot be recorded" in why]
    assert not failed, failed
    return counters["cudagraphs"]["replayed"]


@program
def a_graph_is_replayed() -> None:
    compiled = fxjit.compile(curve, mode="reduce-overhead")
    for _ in range(6):
        x = randn(64)
        same(compiled(x), curve(x))
    assert replays() == 4


@program
def results_that_are_kept() -> None:
    """Other recordings are made while what the first gave is alive."""
    compiled, kept = fxjit.compile(curve, mode="reduce-overhead"), []
    for _ in range(14):
        x = randn(64)
        kept.append((compiled(x), curve(x)))
    for pair in kept:
        same(*pair)
    assert replays() >= 6


@program
def recordings_after_all_were_dropped() -> None:
    kept = []
    for _ in range(3):
        fxjit.reset()
        gc.collect()
        compiled = fxjit.compile(curve, mode="reduce-overhead")
        for _ in range(5):
            x = randn(64)
            out = compiled(x)
            same(out, curve(x))
        kept.append((out, out.clone()))
        assert replays() >= 2
    for pair in kept:
        same(*pair)


@program
def training_is_replayed_forward_and_backward() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda()
    compiled, optimizer = fxjit.compile(model, mode="reduce-overhead"), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        assert_same_gradients(compiled, model, randn(8, 16))
        optimizer.step()
    # An input that happened to stay where it was is found to move.
    before = replays()
    assert_same_gradients(compiled, model, randn(8, 16))
    assert replays() == before + 2, counters["cudagraphs"]


@program
def an_input_that_is_written_to() -> None:
    def step(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2

    compiled, ours, eager = fxjit.compile(step, mode="reduce-overhead"), torch.zeros(64).cuda(), torch.zeros(64).cuda()
    for k in range(6):
        x = torch.full((64,), float(k)).cuda()
        same(compiled(ours, x), step(eager, x))
        same(ours, eager)
    assert replays() == 4


@program
def each_stream_and_device_has_its_recording() -> None:
    compiled, stream = fxjit.compile(curve, mode="reduce-overhead"), torch.cuda.Stream()
    for _ in range(5):
        for device in (0, 1):
            x = randn(64, device=f"cuda:{device}")
            same(compiled(x), curve(x))
        with torch.cuda.stream(stream):
            x = randn(64)
            same(compiled(x), curve(x))
    assert counters["cudagraphs"]["recorded"] >= 3 and replays() >= 7, counters["cudagraphs"]


@program
def drawn_numbers_follow_the_generator() -> None:
    compiled = fxjit.compile(lambda x: F.dropout(x * 2, 0.5, True), mode="reduce-overhead")
    seen = []
    for k in range(8):
        torch.manual_seed(k // 2)
        seen.append(compiled(torch.ones(400).cuda()).clone())
    for k in range(0, 8, 2):
        same(seen[k], seen[k + 1])
        assert not torch.equal(seen[k], seen[k - 1])
    assert replays() == 6


@program
def recordings_of_several_sizes() -> None:
    compiled = fxjit.compile(softmax, mode="reduce-overhead", dynamic=True)
    for _ in range(4):
        for rows in (4, 5):
            x = randn(rows, 30)
            same(compiled(x), softmax(x))
    assert replays() >= 2 and counters["cudagraphs"]["recorded"] >= 2


@program
def results_of_all_kinds() -> None:
    compiled = fxjit.compile(lambda x: (x * 2, None, 3, (x + 1).t(), x), mode="reduce-overhead")
    for _ in range(5):
        x = randn(4, 3)
        twice, nothing, three, turned, given = compiled(x)
        assert given is x and nothing is None and three == 3
        same((twice, turned), (x * 2, (x + 1).t()))
    assert replays() >= 1


@program
def a_graph_of_derivatives_that_is_kept() -> None:
    model = torch.nn.Linear(8, 8).cuda()
    compiled = fxjit.compile(lambda x: torch.tanh(model(x)), mode="reduce-overhead")
    for _ in range(6):
        x = randn(4, 8).requires_grad_()
        out, expected = compiled(x), torch.tanh(model(x))
        (first,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        (second,) = torch.autograd.grad(out.sum() * 2, x)
        (right,) = torch.autograd.grad(expected.sum(), x)
        same((out, first, second), (expected, right, 2 * right))
    assert replays() >= 2


@program
def a_recording_of_the_programs_own() -> None:
    compiled, x = fxjit.compile(softmax), randn(4, 30)
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(x)
    x.copy_(torch.randn(4, 30))
    graph.replay()
    same(out, softmax(x))


@program
def a_kernel_first_needed_while_a_graph_is_recorded() -> None:
    """Another binary of it, for memory off its boundary, is loaded then."""
    compiled, memory = fxjit.compile(softmax), randn(121)
    compiled(memory[:120].view(4, 30))
    graph, x = torch.cuda.CUDAGraph(), memory[1:].view(4, 30)
    machine.launches.clear()
    with torch.cuda.graph(graph):
        out = compiled(x)
    assert machine.launches
    memory.copy_(torch.randn(121))
    graph.replay()
    same(out, softmax(x))


def main() -> None:
    kept = machine.start()
    for name in sys.argv[1:] or PROGRAMS:
        fxjit.reset()
        machine.launches.clear()
        machine.failures.clear()
        for part in counters.values():
            part.clear()
        try:
            PROGRAMS[name]()
            problem = "\n".join(machine.failures)
        except Exception:
            problem = traceback.format_exc()
        print(json.dumps({"name": name, "problem": problem}), flush=True)
    del kept


if __name__ == "__main__":
    main()
