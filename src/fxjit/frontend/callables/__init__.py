"""Handlers: what is done for calls of builtins, of the standard library and of torch. `values/calls.py` finds them;
`families.py` imports every file."""
