"""Whether a matrix product with the loops around it is faster as one kernel than as a call of ATen beside kernels: measured.

That is done while the graph is compiled, on tensors of the sizes that were seen with numbers of their own, and the answer
is kept on the disk. Where there is no GPU to measure on, the kernel is taken: what is compiled for a machine that is not
here, or interpreted, is a test.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import config, logs
from fxjit.counters import counters

from ..codegen.launch import Launch
from ..codegen.products import origin
from ..index import Sizes, sizes_of
from ..ir import Buffer, Extern
from ..lower.table import Lowering, meta_of
from ..schedule.fuse import Group, Hints
from ..schedule.products import ProductGroup
from .cache import open_cache
from .gpu import GraphKernels, gpu_name, is_here, measure
from .triton_compile import triton_version

log = logs.artifact("autotuning")


def worth_it(group: ProductGroup, low: Lowering, hints: Hints) -> bool:
    if config.triton.interpret or not is_here():
        return True
    if torch.cuda.is_current_stream_capturing():
        return False  # nothing can be measured while a program of its own records a CUDA graph
    trial = Trial(group, low, hints)
    key = trial.key()
    known = kept(key)
    if known is None:
        try:
            with _disable_current_modes(), torch.no_grad(), torch.cuda.device(group.device):
                ours, atens = trial.times()
        except torch.OutOfMemoryError:
            log.info("a product of %s is ATen's: there is no memory to measure it", group.outer)
            return False
        counters["native"]["products measured"] += 1
        log.info("a product of %s: %.4f ms as one kernel, %.4f ms beside ATen's", group.outer, ours, atens)
        known = ours < atens
        open_cache().put_data(key, ".json", json.dumps({"one": known, "milliseconds": [ours, atens]}).encode())
    return known


def kept(key: str) -> bool | None:
    data = open_cache().get_data(key, ".json")
    try:
        return None if data is None else bool(json.loads(data)["one"])
    except (ValueError, KeyError, TypeError):
        return None


class Trial:
    """One product both ways, over tensors made for it."""

    def __init__(self, group: ProductGroup, low: Lowering, hints: Hints) -> None:
        self.group, self.low, self.hints = group, low, hints
        self.tensors: dict[str, torch.Tensor] = {}
        self.ours, self.beside = GraphKernels(), GraphKernels()
        self.one = self.ours.launches(group, frozenset(group.writes() - group.wanted), hints)
        self.parts = [
            step if isinstance(step, Extern) else self.beside.launches(step, self.hidden(step), hints)
            for step in group.replaced
        ]

    def hidden(self, part: Group) -> frozenset[str]:
        """What only the part itself reads of what it makes."""
        others = [step.reads() if isinstance(step, Group) else step.reads for step in self.group.replaced if step is not part]
        return frozenset(part.writes() - self.group.wanted - frozenset().union(*others))

    def key(self) -> str:
        kernels = [*self.ours.kernels.values(), *self.beside.kernels.values()]
        sizes = [list(map(self.hints, kernel.symbols)) for kernel in kernels]
        versions = torch.__version__, triton_version()
        facts = ("product", [kernel.source for kernel in kernels], sizes, gpu_name(self.group.device), versions)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:40]

    def times(self) -> tuple[float, float]:
        """Milliseconds of one kernel, and of ATen's call with the kernels beside it."""
        for kernels in (self.ours, self.beside):
            kernels.start()
        ours, beside = self.ours.cells(), self.beside.cells()

        def atens() -> None:
            for part in self.parts:
                if isinstance(part, Extern):
                    self.call(part)
                else:
                    self.launch(part, beside)

        with torch.random.fork_rng(devices=[self.group.device]):
            atens()  # what it makes is there from now on
            self.launch(self.one, ours)
            return measure(lambda: self.launch(self.one, ours), ()), measure(atens, ())

    def launch(self, launches: list[Launch], cells: dict[str, list[Callable[..., Any]]]) -> None:
        for each in launches:
            tensors = [self.tensor(each.written.get(name) or self.low.buffers[name]) for name in each.kernel.buffers]
            cells[each.entry][0](*tensors, *map(self.hints, each.kernel.symbols))

    def call(self, step: Extern) -> None:
        node: Any = step.node
        made = node.target(*(self.argument(arg) for arg in node.args), **node.kwargs)
        self.tensors[self.low.home[node]] = made

    def argument(self, arg: Any) -> Any:
        if not isinstance(arg, torch.fx.Node):
            return arg
        root = origin(arg)
        meta = meta_of(arg)
        size, stride = self.known(sizes_of(meta.shape)), self.known(sizes_of(meta.stride()))
        offset = self.hints(self.low.relative_offset(meta, meta_of(root)))
        return self.tensor(self.low.buffers[self.low.home[root]]).as_strided(size, stride, offset)

    def known(self, sizes: Sizes) -> list[int]:
        return list(map(self.hints, sizes))

    def tensor(self, buffer: Buffer) -> torch.Tensor:
        """The buffer's tensor: of random numbers, or of zeros where it may be indices."""
        found = self.tensors.get(buffer.name)
        if found is None:
            options: Any = {"dtype": buffer.dtype, "device": buffer.device}
            found = torch.empty_strided(self.known(buffer.size), self.known(buffer.stride), **options)
            found = found.normal_() if buffer.dtype.is_floating_point else found.zero_()
            self.tensors[buffer.name] = found
        return found
