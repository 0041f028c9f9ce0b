"""A matrix product with the loops around it as one kernel, or as a call of ATen and separate kernels: measured.

That is done while the graph is compiled, on tensors of the sizes that were seen with numbers of their own, and the answer
is kept on the disk. Where there is no GPU to measure on, the kernel is taken: what is compiled for a machine that is not
here, or interpreted, is a test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import config, logs
from fxjit.backends.store.artifacts import get_facts, put_facts
from fxjit.counters import counters

from ..codegen.graph_kernels import GraphKernels
from ..codegen.launch import Launch
from ..hints import Hints
from ..index import Sizes, sizes_of
from ..ir import Buffer, Extern
from ..lower.blas import origin
from ..lower.table import Lowering, meta_of
from ..runtime.gpu import TritonLaunchers, gpu_name, is_here, measure
from ..runtime.triton_compile import triton_version
from ..schedule.fuse import Group, reads_of
from ..schedule.product_fusion import ProductGroup

log = logs.artifact("autotuning")


def is_faster_fused(group: ProductGroup, low: Lowering, hints: Hints) -> bool:
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
                fused, separate = trial.times()
        except torch.OutOfMemoryError:
            log.info("a product of %s is ATen's: there is no memory to measure it", group.outer)
            return False
        counters["native"]["products measured"] += 1
        log.info("a product of %s: %.4f ms as one kernel, %.4f ms with ATen's call", group.outer, fused, separate)
        known = fused < separate
        put_facts(key, {"one": known, "milliseconds": [fused, separate]})
    return known


def kept(key: str) -> bool | None:
    facts = get_facts(key)
    try:
        return None if facts is None else bool(facts["one"])
    except (KeyError, TypeError):
        return None


class Trial:
    """One product both ways, over tensors made for it."""

    def __init__(self, group: ProductGroup, low: Lowering, hints: Hints) -> None:
        self.group, self.low, self.hints = group, low, hints
        self.tensors: dict[str, torch.Tensor] = {}
        self.fused, self.separate = GraphKernels(), GraphKernels()
        self.one = self.fused.triton_launches(group, frozenset(group.writes() - group.wanted), hints)
        self.steps = [
            step if isinstance(step, Extern) else self.separate.triton_launches(step, self.in_registers(step), hints)
            for step in group.replaced
        ]

    def in_registers(self, part: Group) -> frozenset[str]:
        """The intermediate results that no step outside the part reads."""
        others = [reads_of(step) for step in self.group.replaced if step is not part]
        return frozenset(part.writes() - self.group.wanted - frozenset().union(*others))

    def key(self) -> str:
        kernels = [*self.fused.triton.values(), *self.separate.triton.values()]
        sizes = [list(map(self.hints, kernel.sizes)) for kernel in kernels]
        versions = torch.__version__, triton_version()
        facts = ("product", [kernel.source for kernel in kernels], sizes, gpu_name(self.group.device), versions)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:40]

    def times(self) -> tuple[float, float]:
        """Milliseconds of one kernel, and of ATen's call with the other kernels."""
        launchers = [TritonLaunchers(kernels.triton, self.hints) for kernels in (self.fused, self.separate)]
        for each in launchers:
            each.start()
        fused, separate = (each.cells() for each in launchers)

        def unfused() -> None:
            for step in self.steps:
                if isinstance(step, Extern):
                    self.call(step)
                else:
                    self.launch(step, separate)

        with torch.random.fork_rng(devices=[self.group.device]):
            unfused()  # what it makes is there from now on
            self.launch(self.one, fused)
            return measure(lambda: self.launch(self.one, fused), ()), measure(unfused, ())

    def launch(self, launches: list[Launch], cells: dict[str, list[Callable[..., Any]]]) -> None:
        for each in launches:
            tensors = [self.tensor(each.written.get(name) or self.low.buffers[name]) for name in each.kernel.buffers]
            cells[each.entry][0](*tensors, *map(self.hints, each.kernel.sizes))

    def call(self, step: Extern) -> None:
        node: Any = step.node
        made = node.target(*(self.argument(arg) for arg in node.args), **node.kwargs)
        self.tensors[self.low.storage[node]] = made

    def argument(self, arg: Any) -> Any:
        if not isinstance(arg, torch.fx.Node):
            return arg
        root = origin(arg)
        meta = meta_of(arg)
        size, stride = self.known(sizes_of(meta.shape)), self.known(sizes_of(meta.stride()))
        offset = self.hints(self.low.relative_offset(meta, meta_of(root)))
        return self.tensor(self.low.buffers[self.low.storage[root]]).as_strided(size, stride, offset)

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
