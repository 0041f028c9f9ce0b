"""What runs when a compiled graph is called: its autograd node, and the wrappers around it."""
