"""Traceable wrapper subclasses of Tensor: classes with a `__torch_dispatch__` that say by `__tensor_flatten__` which tensors
an instance is made of, and by `__tensor_unflatten__` how it is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, is_traceable_wrapper_subclass_type


def has_own_dispatch(cls: type) -> bool:
    """Whether operators on tensors of the class are calls of a `__torch_dispatch__` that is not torch's own."""
    raw: Any = next((vars(each)["__torch_dispatch__"] for each in cls.__mro__ if "__torch_dispatch__" in vars(each)), None)
    return raw is not vars(torch.Tensor).get("__torch_dispatch__")


def is_wrapper(value: object) -> bool:
    """Whether it is a tensor of a traceable wrapper subclass."""
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)


def is_wrapper_class(cls: type) -> bool:
    """Whether tensors of the class are."""
    return issubclass(cls, torch.Tensor) and cls is not torch.Tensor and is_traceable_wrapper_subclass_type(cls)


def inner_tensors(wrapper: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The tensors that an instance is made of, by the names of its attributes."""
    return [(name, part) for name, part in parts(wrapper) if isinstance(part, torch.Tensor)]


def parts(wrapper: torch.Tensor) -> list[tuple[str, Any]]:
    """All that `__tensor_flatten__` names: tensors, and objects that are opaque to torch, as the mesh of a DTensor."""
    names: list[str] = wrapper.__tensor_flatten__()[0]  # type: ignore[attr-defined]  # what a wrapper is known by
    return [(name, getattr(wrapper, name)) for name in names]


def storages(tensor: torch.Tensor) -> set[int]:
    """The memories that a tensor is made of; sparse tensors have none."""
    return {each.untyped_storage()._cdata for each in flattened(tensor) if torch._C._has_storage(each)}


def flattened(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor is made of: of a wrapper its inner ones, all the way down; else itself."""
    if not is_wrapper(tensor):
        yield tensor
        return
    for _, inner in inner_tensors(tensor):
        yield from flattened(inner)
