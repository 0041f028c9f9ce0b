"""Imports every file of handlers and every polyfill, so that they sign up in the table. trace.py imports this."""

from fxjit.frontend.callables import core, library, logging_, reorder, strings, symbolic_shapes, typecalls, warnings_
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

__all__ = ["builtins_", "collections_", "copy_", "core", "distributions_", "functools_", "groups_", "itertools_", "library",
           "logging_", "pytree", "re_", "reorder", "strings", "symbolic_shapes", "torch_", "typecalls", "warnings_"]
