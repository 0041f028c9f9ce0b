"""The kernels of one graph: each group of the schedule as launches, with kernels that are equal but for sizes written once.

Kernels for the CPU become one C++ translation unit (`source`); those for a GPU are compiled one by one (runtime/gpu.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fxjit import budget, config
from fxjit.counters import counters

from ..hints import Hints
from ..ir import Extern
from ..lower.table import Lowering
from ..schedule.fuse import Group, Step, readers_of, writes_by_kernels
from ..schedule.gpu import kernel_schedules
from ..schedule.product_tiles import TiledProduct
from ..target import by_triton
from .kernel import Kernel
from .launch import Launch
from .product import SUPPORT, ProductRenderer
from .scatter import render
from .shared_sizes import share_sizes
from .triton import TritonKernel
from .triton_product import render as render_product


class GraphKernels:
    """Collects a graph's kernels while its steps are rendered."""

    def __init__(self) -> None:
        #: Entry by text, for C++; of a Triton kernel also what it is launched with belongs to the text.
        self.cpp: dict[str, str] = {}
        self.entries: dict[tuple[Any, ...], str] = {}
        self.triton: dict[str, TritonKernel] = {}

    def render(
        self, steps: Sequence[Step], low: Lowering, escaping: frozenset[str], hints: Hints
    ) -> list[Launch | Extern]:
        """Renders the kernels of the steps, in order."""
        readers, writers = readers_of(steps), writes_by_kernels(steps)
        planned: list[Launch | Extern] = []
        for position, step in enumerate(steps):
            budget.spend("code generation")
            if not isinstance(step, Group):
                planned.append(step)
                continue
            inputs = {member.compute.out.name for member in step.members if member.compute.out.kind == "input"}
            in_registers = frozenset(
                name for name in step.writes() - inputs - escaping
                if not readers.get(name, set()) - {position} and writers[name] == 1
            )  # fmt: skip
            if by_triton(step.device):
                planned += self.triton_launches(step, in_registers, hints)
                continue
            once = (name for name in step.writes() & escaping if writers[name] == 1)
            fresh = frozenset(name for name in once if low.buffers[name].kind == "temp")
            planned.append(self.cpp_launch(step, in_registers, hints, fresh))
        launches = [each for each in planned if isinstance(each, Launch) and isinstance(each.kernel, Kernel)]
        share_sizes([each for each in launches if not isinstance(each.group, TiledProduct)])
        for launch in launches:
            assert isinstance(launch.kernel, Kernel)
            launch.entry = self.cpp.setdefault(launch.kernel.body, f"k{len(self.cpp)}")
        return planned

    def cpp_launch(self, group: Group, in_registers: frozenset[str], hints: Hints, fresh: frozenset[str]) -> Launch:
        written = {member.compute.out.name: member.compute.out for member in group.members}
        if isinstance(group, TiledProduct):
            assert group.tile is not None
            kernel = ProductRenderer(group, in_registers, hints, config.num_threads).kernel()
            written[group.tile.name] = group.tile
            counters["native"]["products in kernels"] += 1
        else:
            kernel = render(group, in_registers, hints, config.num_threads, fresh)
        counters["native"]["kernels"] += 1
        return Launch(group, kernel, "", written)

    def triton_launches(self, group: Group, in_registers: frozenset[str], hints: Hints) -> list[Launch]:
        """The launches of the group. Kernels equal but for argument names are shared."""
        out = []
        for schedule in kernel_schedules(group, in_registers, hints):
            kernel = render_product(schedule, hints)
            same = (kernel.source, str(kernel.axes), str(kernel.rest), str(kernel.span), tuple(kernel.pointers), kernel.device)
            entry = self.entries.setdefault(same, f"g{len(self.entries)}")
            self.triton.setdefault(entry, kernel)
            out.append(Launch(group, kernel, entry, kernel.written))
            counters["native"]["kernels"] += 1
        return out

    @property
    def source(self) -> str:
        """The translation unit of the kernels in C++; empty where there are none."""
        support = SUPPORT if any("fx_product(" in body for body in self.cpp) else ""
        return support + "".join(
            f'extern "C" int {entry}(void *const *P, const int64_t *S) {{\n{body}\n}}\n' for body, entry in self.cpp.items()
        )

    @property
    def text(self) -> str:
        """All of them, for people."""
        triton = "".join(f"# {entry}: {kernel.configs[0]}\n{kernel.source}\n" for entry, kernel in self.triton.items())
        return self.source + triton
