"""Traceable wrapper subclasses of Tensor: classes with a `__torch_dispatch__` that say by `__tensor_flatten__` which tensors
an instance is made of, and by `__tensor_unflatten__` how it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from fxjit import torch_private
from fxjit.homes import package_of


def _says_its_parts(cls: type) -> bool:
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def _finds_storage(tensor: torch.Tensor) -> bool:
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


_is_traceable: Final[Callable[[torch.Tensor], bool]] = torch_private.get_or(
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass", lambda tensor: is_wrapper_class(type(tensor)))
_is_traceable_class: Final[Callable[[type], bool]] = torch_private.get_or(
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass_type", _says_its_parts)
#: Whether a tensor has a memory: sparse tensors have none.
has_storage: Final[Callable[[torch.Tensor], bool]] = torch_private.get_or("torch._C._has_storage", _finds_storage)


def has_own_dispatch(cls: type) -> bool:
    """Whether operators on tensors of the class are calls of a `__torch_dispatch__` that is not torch's own."""
    raw: Any = next((vars(each)["__torch_dispatch__"] for each in cls.__mro__ if "__torch_dispatch__" in vars(each)), None)
    return raw is not vars(torch.Tensor).get("__torch_dispatch__")


def is_wrapper(value: object) -> bool:
    """Whether it is a tensor of a traceable wrapper subclass."""
    return isinstance(value, torch.Tensor) and _is_traceable(value)


def is_wrapper_class(cls: type) -> bool:
    """Whether tensors of the class are."""
    return issubclass(cls, torch.Tensor) and cls is not torch.Tensor and _is_traceable_class(cls)


def is_ragged(size: object) -> bool:
    """Whether a size or stride of a jagged tensor is no number: it stands for as many sizes as there are sequences, and equals
    only that of another tensor with the same offsets."""
    return isinstance(size, torch.SymInt) and bool(size.node.is_nested_int())


def is_part_of_nested(tensor: torch.Tensor) -> bool:
    """Whether it is a view of a nested tensor of the strided layout, of which there are no fake ones."""
    with torch._C.DisableTorchFunctionSubclass():
        base = tensor._base if tensor._is_view() else None
        return base is not None and base.is_nested and base.layout is torch.strided


def dispatches_to_operators(cls: type) -> bool:
    """Whether the `__torch_function__` of a class is torch's own and chooses the operators that a call becomes, as the one of
    jagged tensors does. It is then a part of them as a `__torch_dispatch__` is: nothing of it is traced."""
    return package_of(cls) == "torch" and is_wrapper_class(cls) and has_own_dispatch(cls)


def inner_tensors(wrapper: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The tensors that an instance is made of, by the names of its attributes."""
    return [(name, part) for name, part in parts(wrapper) if isinstance(part, torch.Tensor)]


def opaque_parts(wrapper: torch.Tensor) -> list[tuple[str, Any]]:
    """The other parts, by the names of their attributes."""
    return [(name, part) for name, part in parts(wrapper) if not isinstance(part, torch.Tensor)]


def parts(wrapper: torch.Tensor) -> list[tuple[str, Any]]:
    """All that `__tensor_flatten__` names: tensors, and objects that are opaque to torch, as the mesh of a DTensor."""
    names: list[str] = wrapper.__tensor_flatten__()[0]  # type: ignore[attr-defined]  # what a wrapper is known by
    return [(name, getattr(wrapper, name)) for name in names]


_SPARSE: Final = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def is_sparse(value: object) -> bool:
    """Whether it is a tensor of a sparse layout."""
    return isinstance(value, torch.Tensor) and value.layout in _SPARSE


def storages(tensor: torch.Tensor) -> set[int]:
    """The memories that a tensor is made of; sparse tensors have none."""
    return {each.untyped_storage()._cdata for each in flattened(tensor) if has_storage(each)}


def flattened(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor is made of: of a wrapper its inner ones, all the way down; else itself."""
    if not is_wrapper(tensor):
        yield tensor
        return
    for _, inner in inner_tensors(tensor):
        yield from flattened(inner)


def is_opaque(part: object) -> bool:
    """Whether torch knows the class of an object as one of opaque references: AOTAutograd's graphs then pass the object
    through, and it is the same one in each call (guarded by identity)."""
    knows = torch_private.optional("torch._library.opaque_object.is_opaque_symbolic_type")
    if isinstance(knows, torch_private.Absent):  # before 2.14; later ones log a warning each time they are asked by this name
        knows = torch_private.optional("torch._library.opaque_object.is_opaque_reference_type")
    return not isinstance(knows, torch_private.Absent) and bool(knows(type(part)))


def held_masks(tensor: torch.Tensor) -> list[Any]:
    """The buffers of masks in a distributed tensor's placements: an embedding that is sharded by its rows leaves one there
    until the result is reduced."""
    placements = getattr(tensor, "placements", ()) if is_wrapper(tensor) else ()
    return [each.mask_buffer for each in placements if getattr(each, "mask_buffer", None) is not None]


def holds_mask(tensor: torch.Tensor) -> bool:
    """Whether it waits to be reduced with a mask."""
    return any(buffer.data is not None for buffer in held_masks(tensor))


def forget_fake_masks(tensors: Iterable[Any]) -> None:
    """Empties buffers that a run on fake tensors filled: placements are kept by torch and used for other tensors."""
    for tensor in tensors:
        for buffer in held_masks(tensor) if isinstance(tensor, torch.Tensor) else ():
            if isinstance(buffer.data, FakeTensor):
                buffer.data, buffer.refcount = None, 0
