"""What AOTAutograd calls for each graph it makes: the native pipeline, with the fallback for a missing compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from fxjit import config
from fxjit.errors import CppCompileError

from .pipeline import CompiledGraph, compile_graph, without_compiler
from .runtime import cc


def compile_aten(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], name: str) -> CompiledGraph:
    """Compiles a graph of ATen operators; `name` says forward, backward or inference."""
    if cc.compiler() is None:
        try:
            cc.require_compiler()
        except CppCompileError as error:
            if config.cpp.require:
                raise
            return without_compiler(gm, name, error)
    return compile_graph(gm, example_inputs, name)
