"""The symbolic interpreter. Importing it signs up every handler of every opcode."""

from fxjit.frontend.interp import (
    dispatch,
    given_generators,
    ops_build,
    ops_calls,
    ops_exceptions,
    ops_functions,
    ops_generators,
    ops_imports,
    ops_jumps,
    ops_match,
    ops_names,
    ops_operators,
    ops_stack,
    ops_with,
)

dispatch.finish_registration()

__all__ = [
    "given_generators",
    "ops_build",
    "ops_calls",
    "ops_exceptions",
    "ops_functions",
    "ops_generators",
    "ops_imports",
    "ops_jumps",
    "ops_match",
    "ops_names",
    "ops_operators",
    "ops_stack",
    "ops_with",
]
