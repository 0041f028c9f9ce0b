"""The compiler that AOTAutograd calls for each graph: the native pipeline, with the fallback for a missing C++ compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit import config, torch_private
from fxjit.backends.cudagraphs import recorded
from fxjit.counters import counters
from fxjit.errors import CppCompileError

from .compiled import unfused
from .lower.table import meta_of
from .pipeline import compile_graph
from .replay.record import write_record
from .runtime import cc
from .target import by_triton, gpu_problem


def compile_aten(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> Callable[[list[Any]], Any]:
    """Compiles a graph of ATen operators; `name` says forward, backward or inference."""
    if torch_private.is_on("replay of graphs"):
        write_record(gm, name)
    devices = devices_of(gm)
    warn_without_triton(devices)
    try:
        if not all(map(by_triton, devices)):
            cc.require_compiler()
        compiled = compile_graph(gm, example_inputs, name)
    except CppCompileError as error:
        return unfused(gm, name, error)
    return recorded(compiled, gm, name) if config.triton.cudagraphs and torch_private.is_on("CUDA graphs") else compiled


def devices_of(gm: torch.fx.GraphModule) -> set[torch.device]:
    """The devices that the graph's tensors are on."""
    leaves = (leaf for node in gm.graph.nodes for leaf in pytree.tree_leaves(meta_of(node)))
    return {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}


_warned: set[str] = set()


def warn_without_triton(devices: Iterable[torch.device]) -> None:
    """The named fallback for a GPU that there are no kernels for: ATen for every operator, with a warning once."""
    for device in devices:
        problem = gpu_problem(device.index or 0) if device.type == "cuda" else None
        if problem is not None:
            counters["native"]["without Triton"] += 1
            if problem not in _warned:
                _warned.add(problem)
                warnings.warn(f"fxjit calls ATen for every operator on {device}: {problem}.", RuntimeWarning, stacklevel=2)
