"""Storages of tensors: their size and device, and where their memory begins.

The size of an input's storage, and where the input lies in it, are no facts of its fake tensor: guards look at the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.late_numbers import LateNumber
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.tensor_methods import Args, Kwargs, Method, method
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import ApplySource, Source, TensorOffsetSource
from fxjit.tensor_wrappers import has_storage, is_wrapper

#: Inputs of the graph so far, by the names of their nodes: the fake, the source, the tensor.
INPUTS: Final = "inputs of the graph"


def storage_size(tensor: torch.Tensor) -> int:
    """How many bytes the storage of a tensor has."""
    return tensor.untyped_storage().nbytes()


def storage_address(tensor: torch.Tensor) -> int:
    """Where the storage of a tensor begins."""
    return tensor.untyped_storage().data_ptr()


def tensor_address(tensor: torch.Tensor) -> int:
    """Where the first element of a tensor lies."""
    return tensor.data_ptr()


def resize_storage(out: torch.Tensor, size: int) -> None:
    """Called by a node of the graph: gives the storage of a tensor so many bytes. `out`: it writes to it (schemas.py)."""
    out.untyped_storage().resize_(size)


resize_storage.resizes_storage = True  # type: ignore[attr-defined]  # for the backends


def _memory(tensor: TensorValue) -> int | None:
    fake = tensor.fake
    return int(fake.untyped_storage()._cdata) if has_storage(fake) and not is_wrapper(fake) else None


def _refuse(t: Tracer, function: str) -> NoReturn:
    t.break_("tensor-data", function=function)


def _check_plain(t: Tracer, tensor: TensorValue, function: str) -> int:
    """The fake storage of a tensor that has one, and that was given no other."""
    memory = _memory(tensor)
    if memory is None or tensor.new_data is not None:
        _refuse(t, function)
    return memory


def _owner(t: Tracer, memory: int) -> tuple[torch.Tensor, Source, torch.Tensor] | None:
    """An input of the graph in this memory: its fake, its source, and the tensor itself. None of memory that the graph makes,
    about which its fakes are right."""
    for fake, source, real in t.new_source_state(INPUTS).values():
        if not is_wrapper(fake) and has_storage(fake) and fake.untyped_storage()._cdata == memory:
            return fake, source, real
    return None


def _size(t: Tracer, tensor: TensorValue) -> int:
    memory = _check_plain(t, tensor, "the size of a storage")
    owner = _owner(t, memory)
    if owner is not None and memory not in _resized(t):
        size = storage_size(owner[2])
        t.guard(ConstIs(ApplySource(owner[1], storage_size), size))
        return size
    fake_size: Any = tensor.fake.untyped_storage().nbytes()
    if type(fake_size) is not int:
        _refuse(t, "the size of a storage")
    return fake_size


def _resized(t: Tracer) -> dict[Any, Any]:
    """The storages that the trace gave another size, which their fakes have since."""
    resized: dict[Any, Any] = t.new_source_state("resized storages")
    return resized


def _addresses(t: Tracer) -> dict[Any, Any]:
    """The storages of which the program has an address, which is looked up when the graph has run."""
    known: dict[Any, Any] = t.new_source_state("addresses of storages")
    return known


class Address(LateNumber):
    """`tensor.data_ptr()`: where memory begins, known when the program runs."""

    def __init__(self, t: Tracer, fn: Callable[..., int], tensor: TensorValue, place: object) -> None:
        super().__init__(fn, tensor)
        memory = _memory(tensor)
        if memory in _resized(t):
            t.break_("tensor-data", function="the address of a storage that was given another size")
        _addresses(t)[memory] = self
        #: Equal where two addresses are.
        self.place = place

    def settle(self, t: Tracer) -> Value | None:
        return None

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if isinstance(other, Address) and op in ("==", "!=") and self.place is not None and self.place == other.place:
            return t.make(op == "==")
        if isinstance(other, Address) or other.pytype() is int:
            self._refuse(t)
        return NOT_IMPLEMENTED

    def nb_bool(self, t: Tracer) -> Value:
        self._refuse(t)  # that of an empty tensor is 0

    def _refuse(self, t: Tracer) -> NoReturn:
        _refuse(t, "data_ptr() where it is compared or computed with")


class StorageValue(Value):
    """`tensor.untyped_storage()`, or `tensor.storage()`."""

    def __init__(self, tensor: TensorValue, cls: type, name: str) -> None:
        super().__init__(None)
        self.tensor, self.cls, self.name = tensor, cls, name

    def pytype(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{self.tensor.describe()}.{self.name}()"

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(getattr(torch.Tensor, self.name), self.tensor)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.cls)
        if name == "device":
            return t.make(self.tensor.fake.device)
        if name == "is_cuda" and self.cls is torch.UntypedStorage:
            return t.make(self.tensor.fake.is_cuda)
        if name == "dtype" and self.cls is not torch.UntypedStorage:
            return t.make(self.tensor.fake.dtype)
        if (name in _METHODS and hasattr(self.cls, name)) or (name == "resize_" and self.cls is torch.UntypedStorage):
            return StorageMethod(self, name)
        _refuse(t, f"{self.cls.__name__}.{name}")

    def sq_length(self, t: Tracer) -> Value:
        """Bytes, of a typed storage elements."""
        size = _size(t, self.tensor)
        return t.make(size if self.cls is torch.UntypedStorage else size // self.tensor.fake.itemsize)


class StorageMethod(Value):
    """A bound method of a storage."""

    def __init__(self, storage: StorageValue, name: str) -> None:
        super().__init__(None)
        self.storage, self.name = storage, name

    def pytype(self) -> type:
        return type(torch.empty(0).untyped_storage().nbytes)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(getattr, self.storage, self.name)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if self.name == "resize_":
            return _resize(t, self.storage, args, kwargs)
        if args or kwargs:
            _refuse(t, f"{self.storage.cls.__name__}.{self.name}")
        return _METHODS[self.name](t, self.storage)


def _resize(t: Tracer, storage: StorageValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`storage.resize_(size)`, an operator of the graph as it was captured (backends/aot/rules.py)."""
    size = args[0].as_constant() if len(args) == 1 and args[0].is_constant() and not kwargs else None
    memory = _check_plain(t, storage.tensor, "UntypedStorage.resize_")
    has_address = memory in _addresses(t)
    if type(size) is not int or size < 0 or has_address or storage.tensor.fake.device.type == "meta":
        _refuse(t, "UntypedStorage.resize_")
    t.emit(resize_storage, [storage.tensor, t.make(size)])
    _resized(t)[memory] = size
    return storage


def _address_of_storage(t: Tracer, storage: StorageValue) -> Value:
    return Address(t, storage_address, storage.tensor, (None, _memory(storage.tensor)))


_METHODS: Final[dict[str, Callable[[Tracer, StorageValue], Value]]] = {
    "size": lambda t, storage: storage.sq_length(t),
    "nbytes": lambda t, storage: t.make(_size(t, storage.tensor)),
    "element_size": lambda t, storage: t.make(1 if storage.cls is torch.UntypedStorage else storage.tensor.fake.itemsize),
    "data_ptr": _address_of_storage,
}


def _made(cls: type) -> Callable[[str], Method]:
    def rule(name: str) -> Method:
        def storage(t: Tracer, tensor: GraphTensor, args: Args, kwargs: Kwargs) -> Value:
            if args or kwargs or not isinstance(tensor, TensorValue):
                _refuse(t, f"Tensor.{name}")
            _check_plain(t, tensor, f"Tensor.{name}")
            return StorageValue(tensor, cls, name)
        return storage
    return rule


for _name, _cls in (("untyped_storage", torch.UntypedStorage), ("storage", torch.TypedStorage),
                    ("_typed_storage", torch.TypedStorage)):
    method(_name)(_made(_cls)(_name))


@method("data_ptr")
def _data_ptr(t: Tracer, tensor: GraphTensor, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs or not isinstance(tensor, TensorValue):
        _refuse(t, "Tensor.data_ptr")
    memory = _check_plain(t, tensor, "Tensor.data_ptr")
    offset: Any = tensor.fake.storage_offset()
    return Address(t, tensor_address, tensor, (tensor.fake.dtype.itemsize * offset, memory) if type(offset) is int else None)


@method("storage_offset")
def _storage_offset(t: Tracer, tensor: GraphTensor, args: Args, kwargs: Kwargs) -> Value:
    offset: Any = tensor.fake.storage_offset()
    if not isinstance(tensor, TensorValue) or type(offset) is not int:
        _refuse(t, "Tensor.storage_offset")
    owner = _owner(t, _check_plain(t, tensor, "Tensor.storage_offset"))
    if owner is not None:
        fake, source, real = owner
        t.guard(ConstIs(TensorOffsetSource(source), real.storage_offset()))
        offset += real.storage_offset() - fake.storage_offset()
    return t.make(offset)
