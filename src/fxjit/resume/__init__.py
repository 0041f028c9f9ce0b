"""New bytecode of a traced frame, and resume functions for the code after a graph break."""
