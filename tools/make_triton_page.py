"""Writes the blocks of docs/triton.md that show one kernel's way from an FX graph to PTX. `--check` only compares.

The PTX is that of the installed Triton: a page made with another version keeps its own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit.backends.native import pipeline
from fxjit.backends.native.codegen import graph_kernels
from fxjit.backends.native.codegen.triton import TritonKernel
from fxjit.backends.native.codegen.triton_prelude import HEAD
from fxjit.backends.native.printer import schedule_text
from fxjit.backends.native.runtime import gpu
from fxjit.backends.native.runtime.triton_compile import compiler, triton_version

PAGE = Path(__file__).parents[1] / "docs/triton.md"
SHAPE = (4096, 1000)


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.125, -1)


class Shown:
    """What each stage made of the function."""

    def __init__(self) -> None:
        self.schedule = ""
        self.kernels: list[TritonKernel] = []
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs = [torch.empty(SHAPE, device="cuda", dtype=torch.bfloat16)]
            gm = make_fx(function)(*inputs)
        self.graph = str(gm.code).strip()
        plain_render, plain_fuse = graph_kernels.render_product, pipeline.fuse
        plain_lower: Callable[..., Any] = pipeline.lower_graph
        lowered: list[Any] = []

        def lower_graph(*args: Any, **kwargs: Any) -> Any:
            lowered.append(plain_lower(*args, **kwargs))
            return lowered[-1]

        def fuse(*args: Any) -> Any:
            steps = plain_fuse(*args)
            self.schedule = schedule_text(steps, lowered[-1]).strip()
            return steps

        def render(*args: Any) -> TritonKernel:
            self.kernels.append(plain_render(*args))
            return self.kernels[-1]

        pipeline.lower_graph, pipeline.fuse, graph_kernels.render_product = lower_graph, fuse, render  # type: ignore[assignment]  # watched while the page is made
        try:
            pipeline.compile_graph(gm, inputs, "page")
        finally:
            pipeline.lower_graph, pipeline.fuse, graph_kernels.render_product = plain_lower, plain_fuse, plain_render  # type: ignore[assignment]  # watched while the page is made

    def blocks(self) -> dict[str, str]:
        (kernel,) = self.kernels
        return {
            "graph": fenced("python", self.graph),
            "schedule": fenced("", self.schedule),
            "triton": fenced("python", kernel.source.removeprefix(HEAD).strip()),
            "ptx": f"Triton {triton_version()}:\n\n" + fenced("", self.ptx(kernel)),
        }

    @staticmethod
    def ptx(kernel: TritonKernel) -> str:
        """The kernel's head and what touches memory."""
        job = gpu.job_of(kernel, gpu.Variant(True, 0, False), kernel.configs[0], 90)
        lines = compiler.answer({**job, "wanted": ["ptx"]})["ptx"].split("\n")
        start = next(k for k, line in enumerate(lines) if ".visible .entry" in line)
        head = lines[start : next(k for k, line in enumerate(lines) if k > start and line.startswith("{"))]
        touching = [line.strip() for line in lines if re.search(r"\b(ld|st)\.global", line)]
        return "\n".join([*head, "...", *touching, "..."])


def fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def made(page: str, blocks: dict[str, str]) -> str:
    """The page with its blocks as they are now."""
    for name, text in blocks.items():
        pattern = rf"(<!-- made: {name} -->\n).*?(<!-- end -->)"
        kept = re.search(pattern, page, re.S)
        assert kept is not None, f"the page has no place for {name}"
        version = re.search(r"Triton (\S+):", kept[0])
        if name == "ptx" and "--check" in sys.argv and version is not None and version[1] != triton_version():
            continue
        page = page[: kept.start()] + f"<!-- made: {name} -->\n{text}\n<!-- end -->" + page[kept.end() :]
    return page


def main() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    page = PAGE.read_text()
    fresh = made(page, Shown().blocks())
    if "--check" in sys.argv:
        if fresh != page:
            print("docs/triton.md is not what the code makes; run python tools/make_triton_page.py")
        return int(fresh != page)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
