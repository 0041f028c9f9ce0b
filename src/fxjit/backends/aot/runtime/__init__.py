"""The runtime of a compiled graph: its autograd node, and the wrappers around it."""
