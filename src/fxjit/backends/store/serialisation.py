"""The values that a compiled graph is made of, as JSON and back: numbers, text, bytes, torch's names for types and layouts,
functions by name, small constant tensors, a few dataclasses of ours. Reading makes nothing else, whatever the text says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functionalization
from torch._C._functionalization import ViewMeta

from fxjit.backends.aot.runtime.call_plan import (
    BackwardRecord,
    CallPlan,
    InputRecord,
    OutputKind,
    OutputRecord,
    TangentLayout,
)

from .plain_values import Format

#: Bytes of a tensor that is written with the program that holds it.
LARGEST = 1 << 16
_InverseReturnMode: Any = _functionalization.InverseReturnMode  # type: ignore[attr-defined]  # not in the stubs


class NotSerialisable(Exception):
    """A value that cannot be kept; the text says what it is."""


def _write(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "tuple", *map(pack, value)]
    if type(value) is dict:
        return ["dict", *([pack(name), pack(each)] for name, each in value.items())]
    if type(value) is torch.Tensor:
        return ["tensor", *_numbers_of(value)]
    if type(value) is OutputKind:
        return ["output", value.name]
    if isinstance(value, ViewMeta):
        return ["view", type(value).__name__, *map(pack, value.as_tuple())]  # type: ignore[attr-defined]  # every view meta has it
    if type(value) is _InverseReturnMode:
        return ["inverse", value.name]
    if type(value).__name__ in _classes and dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.name not in _LEFT_OUT]
        return [type(value).__name__, {field.name: pack(getattr(value, field.name)) for field in fields}]
    raise NotSerialisable(f"a value of type {type(value).__name__}")


def _numbers_of(tensor: torch.Tensor) -> tuple[Any, Any, Any]:
    """Type, shape and bytes of a small constant: a graph makes it of numbers in its own text."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or tensor.numel() * tensor.element_size() > LARGEST or not tensor.is_contiguous() or tensor.is_quantized:
        raise NotSerialisable("a tensor")
    data = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return pack(tensor.dtype), pack(tuple(tensor.shape)), pack(data)


def _tensor(packed: list[Any]) -> torch.Tensor:
    dtype, shape, data = map(unpack, packed)
    with torch.inference_mode(False), torch.no_grad():
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).clone()


def _view(rest: list[Any]) -> ViewMeta:
    name, *values = rest
    kind = getattr(_functionalization, name)
    if not issubclass(kind, ViewMeta):
        raise ValueError(f"{name} is no view")
    return kind(tuple(map(unpack, values)))  # type: ignore[no-any-return]  # a class found by its name


#: A field of programs that only other kinds of kernels want: it has its default again.
_LEFT_OUT = ("others",)


def _reader_of(cls: type) -> Callable[[list[Any]], Any]:
    return lambda rest: cls(**{name: unpack(each) for name, each in rest[0].items()})


_classes: set[str] = set()
_format = Format(_write, {
    "list": lambda rest: [unpack(each) for each in rest],
    "dict": lambda rest: {unpack(name): unpack(each) for name, each in rest},
    "tensor": _tensor,
    "output": lambda rest: OutputKind[rest[0]],
    "view": _view,
    "inverse": lambda rest: _InverseReturnMode.__members__[rest[0]],
})  # fmt: skip


def register(*classes: type) -> None:
    """Dataclasses that programs are made of: this module's, and a backend's."""
    for cls in classes:
        _classes.add(cls.__name__)
        _format.readers[cls.__name__] = _reader_of(cls)


register(CallPlan, InputRecord, OutputRecord, BackwardRecord, TangentLayout)


def pack(value: Any) -> Any:
    """As `Format.pack`. Raises NotSerialisable."""
    return _format.pack(value)


def unpack(packed: Any) -> Any:
    """As `Format.unpack`."""
    return _format.unpack(packed)
