"""Runs a captured graph as CUDA graphs: recorded once for each set of input shapes, then replayed.

Only graphs whose tensors all live on one GPU, that need no gradient and write to none of their inputs are recorded;
every other graph, and every graph on a machine without a GPU, runs eagerly, which is said once. What the recording
relied on is checked at each call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from fxjit.counters import counters

WARM_UP_RUNS = 2
MAX_RECORDINGS = 16
_IN_PLACE_OPERATORS = frozenset({"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"})


@dataclass(slots=True)
class _Recording:
    graph: Any
    inputs: list[torch.Tensor]
    outputs: list[Any]
    spec: Any


def cudagraphs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph as a callable that records and replays; falls back to eager by name where that is not possible."""
    why = _why_not(gm, example_inputs)
    if why is not None:
        counters["cudagraphs"]["eager: " + why] += 1
        warnings.warn(f"backend 'cudagraphs' runs this graph eagerly: {why}.", RuntimeWarning, stacklevel=2)
        return gm.forward
    return _Replayed(gm)


class _Replayed:
    """One captured graph and its recordings, by the inputs' shapes and numbers."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._gm = gm
        self._recordings: dict[tuple[Any, ...], _Recording] = {}

    def __call__(self, *args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in args):
            return self._gm.forward(*args)
        key = tuple(_input_key(each) for each in args)
        recording = self._recordings.get(key)
        if recording is None:
            if len(self._recordings) >= MAX_RECORDINGS:
                return self._gm.forward(*args)
            recording = self._recordings[key] = self._record(args)
        for place, given in zip(recording.inputs, _tensors(args), strict=True):
            place.copy_(given)
        recording.graph.replay()
        # The caller may keep what it gets, and the next replay writes to the same memory.
        outputs = [each.clone() if isinstance(each, torch.Tensor) else each for each in recording.outputs]
        return tree_unflatten(outputs, recording.spec)

    def _record(self, args: tuple[Any, ...]) -> _Recording:
        places = [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in args]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                self._gm.forward(*places)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs, spec = tree_flatten(self._gm.forward(*places))
        counters["cudagraphs"]["recorded"] += 1
        return _Recording(graph, _tensors(tuple(places)), outputs, spec)


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [each for each in args if isinstance(each, torch.Tensor)]


def _input_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device, tuple(value.shape), value.stride()
    return type(value), value


def _why_not(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    devices = {each.device for each in example_inputs if isinstance(each, torch.Tensor)}
    if not devices:
        return "it has no tensor inputs"
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        return f"its inputs are on {', '.join(sorted(map(str, devices)))}"
    for node in gm.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_function", "call_method") and _writes(name):
            return f"it calls {name}, which writes to a tensor"
    return None


def _writes(name: str) -> bool:
    if name == "setitem" or (name.endswith("_") and not name.endswith("__")):
        return True
    return name in _IN_PLACE_OPERATORS
