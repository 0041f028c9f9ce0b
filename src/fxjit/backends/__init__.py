"""Backends: callables that compile an FX graph. The registry, and one file for each backend.

`api.py` looks names up here; nothing in this package knows the front end, so that each backend also runs under
torch.compile.
"""

from .registry import list_backends, lookup_backend, register_backend

__all__ = ["list_backends", "lookup_backend", "register_backend"]
