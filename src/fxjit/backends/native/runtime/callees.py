"""What compiled graphs call besides kernels, each in the fastest way there is, and how a program on the disk names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fxjit.counters import counters


def promised(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype,
             odd: list[str]) -> torch.Tensor:
    """The tensor, with the strides and the type that kernels were compiled for: what a fake tensor says is not always so
    (batch norm's running numbers in half precision are not the float32 it promises)."""
    if 0 in size:
        # A tensor that was promised to be empty is read by no kernel of ours; oneDNN's LSTM says so of its workspace.
        return tensor
    if tensor.shape != size:
        raise RuntimeError(f"an operator gave a result of shape {tuple(tensor.shape)} that torch says is {size}")
    if tensor.dtype is dtype and all(n <= 1 or a == b for n, a, b in zip(size, tensor.stride(), stride, strict=True)):
        return tensor
    odd.append(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} for {dtype} {size} {stride}")
    fresh = torch.empty_strided(size, stride, dtype=dtype, device=tensor.device)
    return fresh.copy_(tensor)


def promised_layout(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype,
                    odd: list[str]) -> torch.Tensor:
    """The same for what only operators and the caller read: of another shape, it goes to them as it is (an embedding bag of
    halves leaves out what its derivative does not need)."""
    return promised(tensor, size, stride, dtype, odd) if tensor.shape == size else tensor


def put_right(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The result of an operator that did not keep its promise, with the strides and type that kernels were compiled for."""
    odd: list[str] = []
    tensor = promised(tensor, size, stride, dtype, odd)
    counters["native"]["unexpected strides"] += len(odd)
    return tensor


def put_layout_right(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """The same for a result that nothing reads by its shape."""
    return put_right(tensor, size, stride, dtype) if tensor.shape == size else tensor


# Views as tensor methods, and operators as torch's own C functions: both parse arguments faster than an overload does.
METHODS: dict[str, str] = {
    "view.default": "view", "_unsafe_view.default": "view", "reshape.default": "reshape", "permute.default": "permute",
    "t.default": "t",
    "transpose.int": "transpose", "expand.default": "expand", "unsqueeze.default": "unsqueeze", "select.int": "select",
    "detach.default": "detach",
}  # fmt: skip
_functions: Any = torch._C._VariableFunctions
#: Operators whose overload named here is what torch's function of the same name calls with the same positional tensors.
_SAME_NAME = (
    "mm.default", "bmm.default", "addmm.default", "convolution.default", "add.Tensor", "sub.Tensor", "mul.Tensor",
    "div.Tensor",
    "relu.default", "tanh.default", "sigmoid.default", "exp.default", "log.default", "sqrt.default", "rsqrt.default",
    "neg.default",
    "abs.default", "sin.default", "cos.default", "erf.default", "maximum.default", "minimum.default", "where.self",
    "sum.default", "mean.default", "clone.default", "embedding.default",
)  # fmt: skip
DIRECT: dict[str, Callable[..., Any]] = {
    **{name: getattr(_functions, name.partition(".")[0]) for name in _SAME_NAME},
    "linear.default": torch._C._nn.linear,
}


@dataclass(frozen=True, slots=True)
class Callee:
    """A function that a program calls, by a name that means the same in another process."""

    kind: str
    name: str

    def find(self) -> Any:
        """The function; AttributeError where torch has none of this name."""
        if self.kind == "direct":
            return DIRECT[self.name]
        if self.kind == "method":
            return getattr(torch.Tensor, METHODS[self.name])
        if self.kind == "helper":
            return _HELPERS[self.name]
        namespace, packet, overload = self.name.split(".")
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        return found._op if namespace == "aten" else found


_HELPERS: dict[str, Callable[..., Any]] = {"put_right": put_right, "put_layout_right": put_layout_right}


def callee_of(target: torch._ops.OpOverload, name: str, with_keywords: bool) -> Callee:
    """How an operator is called; `name` is what METHODS and DIRECT would call it by."""
    if not with_keywords and name in DIRECT:
        return Callee("direct", name)
    if not with_keywords and name in METHODS:
        return Callee("method", name)
    return Callee("operator", f"{target.namespace}.{target._opname}.{target._overloadname}")
