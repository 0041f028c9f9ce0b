"""Graph breaks in blocks of CUDA's managers, on a machine that plays two devices: which device and which streams are current
inside and after, also when an exception passes, and every switch between them, are eager's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter


@dataclass(frozen=True)
class Stream:
    name: str
    device_index: int

    @property
    def device(self):
        return torch.device("cuda", self.device_index)


class Machine:
    """What torch.cuda asks of the driver."""

    def __init__(self):
        self.device = 0
        self.streams = [Stream("default", 0), Stream("default", 1)]
        self.seen = []

    def exchange_device(self, index):
        self.seen.append(("device", index))
        before = self.device
        self.device = index if index >= 0 else before
        return before

    def current_stream(self, device=None):
        return self.streams[self.device if device is None else torch.device(device).index]

    def set_stream(self, stream):
        self.seen.append(stream)
        self.device = stream.device_index
        self.streams[stream.device_index] = stream

    def device_index(self, device, optional=False, allow_cpu=False):
        return self.device if device is None else device if isinstance(device, int) else torch.device(device).index


@pytest.fixture
def machine(monkeypatch):
    played = Machine()
    monkeypatch.setattr(torch.cuda, "_exchange_device", played.exchange_device)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", played.exchange_device)
    monkeypatch.setattr(torch.cuda, "current_stream", played.current_stream)
    monkeypatch.setattr(torch.cuda, "set_stream", played.set_stream)
    monkeypatch.setattr(torch.cuda, "_get_device_index", played.device_index)
    return played


MANAGERS = {
    "a device": lambda: torch.cuda.device(1),
    "a device by name": lambda: torch.cuda.device("cuda:1"),
    "a stream": lambda: torch.cuda.stream(Stream("side", 0)),
    "a stream of another device": lambda: torch.cuda.stream(Stream("side", 1)),
    "a stream context": lambda: torch.cuda.StreamContext(Stream("side", 1)),
}


def program(machine, manager):
    @fxjit.disable
    def look(fails=False):
        machine.seen.append((machine.device, list(machine.streams)))
        if fails:
            raise ValueError("untraced")

    def fn(x, way):
        x = x + 1
        look()
        with manager():
            x = x * 2
            fxjit.graph_break()
            x = x * 3
            look(way == "untraced raises")
            if way == "traced raises":
                raise ValueError("traced")
            x = x - 1
        look()
        return x * 5

    return fn


def outcome(machine, fn, *args):
    Machine.__init__(machine)
    try:
        result = fn(*args).tolist()
    except ValueError as error:
        result = error.args
    return result, machine.seen, machine.device, machine.streams


@pytest.mark.parametrize("options", [{}, {"resume_in_try": True}, {"nested_graph_breaks": False}])
@pytest.mark.parametrize("way", ["nothing raises", "traced raises", "untraced raises"])
@pytest.mark.parametrize("name", MANAGERS)
def test_devices_and_streams_are_eagers(machine, name, way, options):
    fn = program(machine, MANAGERS[name])
    expected = outcome(machine, fn, torch.ones(2), way)
    fxjit.reset()
    fxjit.counters.clear()
    counter = CompileCounter()
    with fxjit.config.patch(options):
        compiled = fxjit.compile(fn, backend=counter)
        for _ in range(2):
            assert outcome(machine, compiled, torch.ones(2), way) == expected
    if way == "nothing raises":
        assert counter.frame_count == 5, "before and after the block, and three inside"
        assert not fxjit.counters["skip"]
