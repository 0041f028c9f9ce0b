"""Imports every file of handlers and every polyfill, so that they register in values/calls.py. trace.py imports this."""

from fxjit.frontend.callables import (
    core,
    deferred_calls,
    distributions,
    higher_order,
    library,
    logging_,
    printf,
    strings,
    tensor_data,
    tensor_hooks,
    torch_functions,
    transforms,
    typecalls,
    warnings_,
)
from fxjit.frontend.polyfills import (
    builtins_,
    collections_,
    copy_,
    distributions_,
    functools_,
    groups_,
    itertools_,
    pytree,
    re_,
    torch_,
)

__all__ = ["builtins_", "collections_", "copy_", "core", "deferred_calls", "distributions", "distributions_", "functools_",
           "groups_", "higher_order", "itertools_", "library", "logging_", "printf", "pytree", "re_", "strings", "tensor_data",
           "tensor_hooks", "torch_", "torch_functions", "transforms", "typecalls", "warnings_"]
