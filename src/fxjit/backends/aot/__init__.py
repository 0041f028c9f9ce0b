"""Compilation through AOTAutograd: captured graphs become functional ATen graphs, one for inference or a forward and a backward
with what is saved between them, each handed to a compiler.

`driver.py` has the stages in their order, `rules.py` every reason to run a graph as it was captured. `aot_eager` is a backend
that runs the ATen graphs node by node; the native backend passes its own compiler to `compile_with_aot`.
"""

from .backend import BackendConfig
from .driver import compile_with_aot
from .node_by_node import aot_eager, run_nodes

__all__ = ["BackendConfig", "aot_eager", "compile_with_aot", "run_nodes"]
