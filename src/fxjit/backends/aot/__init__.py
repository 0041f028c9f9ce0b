"""Compilation through AOTAutograd: captured graphs become functional ATen graphs, each handed to a compiler.

`driver.py` has the stages in their order. `aot_eager` and `aot_eager_decomp_partition` are backends that run the ATen graphs
node by node; the native backend passes its own compiler to `compile_with_aot`.
"""

from .driver import Way, aot_eager, aot_eager_decomp_partition, compile_with_aot

__all__ = ["Way", "aot_eager", "aot_eager_decomp_partition", "compile_with_aot"]
