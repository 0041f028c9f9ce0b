"""The values that a compiled graph is made of, as JSON and back: numbers, text, bytes, torch's names for types and layouts,
functions by name, small constant tensors, a few dataclasses of ours. Reading makes nothing else, whatever the text says."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import torch
from torch._C import _functionalization
from torch._C._functionalization import ViewMeta
from torch._functorch._aot_autograd.schemas import OutputType

from fxjit.backends.aot.runtime.call_plan import BackwardRecord, CallPlan, InputRecord, OutputRecord, TangentLayout

_CLASSES: dict[str, Any] = {cls.__name__: cls for cls in (CallPlan, InputRecord, OutputRecord, BackwardRecord, TangentLayout)}
#: Bytes of a tensor that is written with the program that holds it.
LARGEST = 1 << 16
_InverseReturnMode: Any = _functionalization.InverseReturnMode  # type: ignore[attr-defined]  # not in the stubs
_TORCH = {"dtype": torch.dtype, "layout": torch.layout, "format": torch.memory_format}


class NotSerialisable(Exception):
    """A value that cannot be kept; the text says what it is."""


def register(*classes: type) -> None:
    """Dataclasses of a backend that its programs are made of."""
    _CLASSES.update({cls.__name__: cls for cls in classes})


def pack(value: Any) -> Any:
    """The value for `json.dumps`: null, bools, ints and text as they are, all else as a list that begins with its kind."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return ["float", value.hex()]
    if type(value) is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if type(value) is bytes:
        return ["bytes", base64.b85encode(value).decode()]
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "size" if type(value) is torch.Size else "tuple"
        return [kind, *map(pack, value)]
    if type(value) is slice:
        return ["slice", pack(value.start), pack(value.stop), pack(value.step)]
    if type(value) is dict:
        return ["dict", *([pack(name), pack(each)] for name, each in value.items())]
    for kind, cls in _TORCH.items():
        if isinstance(value, cls):
            return [kind, str(value).removeprefix("torch.")]
    if type(value) is torch.device:
        return ["device", str(value)]
    if type(value) is torch.Tensor:
        return ["tensor", *_numbers_of(value)]
    if type(value) is OutputType:
        return ["output", value.name]
    if isinstance(value, ViewMeta):
        return ["view", type(value).__name__, *map(pack, value.as_tuple())]  # type: ignore[attr-defined]  # every view meta has it
    if type(value) is _InverseReturnMode:
        return ["inverse", value.name]
    if type(value).__name__ in _CLASSES and dataclasses.is_dataclass(value):
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


def unpack(packed: Any) -> Any:
    """The inverse of `pack`; ValueError, KeyError, TypeError or AttributeError for bytes that `pack` did not make."""
    if not isinstance(packed, list):
        return packed
    kind, *rest = packed
    if kind in _CLASSES:
        return _CLASSES[kind](**{name: unpack(each) for name, each in rest[0].items()})
    if kind in _TORCH:
        found = getattr(torch, rest[0])
        if not isinstance(found, _TORCH[kind]):
            raise ValueError(f"torch.{rest[0]} is no {kind}")
        return found
    return _READERS[kind](rest)


_READERS: dict[str, Any] = {
    "float": lambda rest: float.fromhex(rest[0]),
    "complex": lambda rest: complex(float.fromhex(rest[0]), float.fromhex(rest[1])),
    "bytes": lambda rest: base64.b85decode(rest[0]),
    "list": lambda rest: [unpack(each) for each in rest],
    "tuple": lambda rest: tuple(unpack(each) for each in rest),
    "size": lambda rest: torch.Size([unpack(each) for each in rest]),
    "slice": lambda rest: slice(*(unpack(each) for each in rest)),
    "dict": lambda rest: {unpack(name): unpack(each) for name, each in rest},
    "device": lambda rest: torch.device(rest[0]),
    "tensor": _tensor,
    "output": lambda rest: OutputType[rest[0]],
    "view": _view,
    "inverse": lambda rest: _InverseReturnMode.__members__[rest[0]],
}
