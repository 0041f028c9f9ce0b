"""The kernels of one graph that are written in Triton: rendered, compiled together, and called by the executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxjit import config
from fxjit.counters import counters

from ..codegen.triton import TritonKernel, render
from ..codegen.wrapper import Launch
from ..schedule.fuse import Group, Hints
from ..schedule.gpu import nests


class GraphKernels:
    """Collects a graph's kernels while it is generated, and gives their callables when its executor is made."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Any, ...], str] = {}
        self.kernels: dict[str, TritonKernel] = {}

    def launches(self, group: Group, hidden: frozenset[str], hints: Hints) -> list[Launch]:
        """What runs the group. Kernels equal but for the names of what they are called with are one."""
        out = []
        for nest in nests(group, hidden, hints):
            kernel = render(nest, hints)
            same = (kernel.source, str(kernel.axes), str(kernel.rest), str(kernel.span), tuple(kernel.pointers), kernel.device)
            entry = self.entries.setdefault(same, f"g{len(self.entries)}")
            self.kernels.setdefault(entry, kernel)
            out.append(Launch(group, kernel, entry, kernel.written))
            counters["native"]["kernels"] += 1
        return out

    def text(self) -> str:
        return "".join(f"# {entry}: {kernel.configs[0]}\n{kernel.source}\n" for entry, kernel in self.kernels.items())

    def start(self) -> None:
        """Begins to compile."""

    def callables(self) -> dict[str, Callable[..., Any]]:
        """What the executor calls; waits for the compiler."""
        if config.triton.interpret:
            from .interpreted import InterpretedKernel

            return {entry: InterpretedKernel(kernel) for entry, kernel in self.kernels.items()}
        raise NotImplementedError
