"""What turns a graph into a callable: the registry, and the backends themselves, one file each.

`api.py` looks names up here; nothing in this package knows the front end, so that each backend also runs under
torch.compile.
"""

from .registry import list_backends, lookup_backend, register_backend

__all__ = ["list_backends", "lookup_backend", "register_backend"]
