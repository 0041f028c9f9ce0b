"""Compilation through AOTAutograd: captured graphs become functional ATen graphs, one for inference or a forward and a backward
with what is saved between them, each handed to a compiler.

`driver.py` has the stages in their order, `rules.py` every reason to run a graph as it was captured. `aot_eager`
(node_by_node.py) is a backend that runs the ATen graphs node by node; the native backend passes its own compiler to
`compile_with_aot`. Nothing is imported here: graphs from the store want the runtime alone.
"""
