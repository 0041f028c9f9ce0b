"""`aot_eager`: AOTAutograd's graphs, run node by node. It separates errors of the tracer from those of a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from fxjit.backends.door import needs
from fxjit.backends.graph.interpreter import boxed

from .backend import BackendConfig
from .driver import compile_with_aot


@needs("compiled graphs")
def aot_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """AOTAutograd's graphs, run node by node."""
    return compile_with_aot(gm, example_inputs, BackendConfig(run_nodes, "aot_eager", min_cut=False))


def run_nodes(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> Callable[[list[Any]], Any]:
    """The compiler that leaves an ATen graph as it is."""

    run = boxed(gm)
    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd looks for
    return run
