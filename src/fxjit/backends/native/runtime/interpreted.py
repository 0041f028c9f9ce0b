"""Triton kernels run by Triton's interpreter, on CPU tensors: what tests without a GPU compare with eager.

The interpreter knows the language but not libdevice, cuts where it should round to bfloat16, multiplies bfloat16 as the
integers it keeps them in, and reduces one element at a time with functions of ours; those four are put right here. Slow by
design: a program is some NumPy calls an operation. A GPU runs programs in any order, the interpreter one after the other: from
the last to the first here, so that one which reads what a later one writes is seen to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..codegen.triton import TritonKernel
from ..codegen.triton_prelude import HEAD
from ..ops import SCANS
from .launch_configuration import grid_of, is_wide

# Small blocks, so that tests on small tensors meet the edges of several programs.
BLOCKS = {"XB": 64, "YB": 16, "RB": 32, "KB": 16}
TILES = dict(BLOCKS, XB=16)
ROWS = 4
#: Whether the last program runs first.
BACKWARDS = True
#: Triton's interpreter is one for all threads.
_one_at_a_time = threading.Lock()


class InterpretedKernel:
    """Called as a compiled kernel is: with its tensors, then its integers."""

    def __init__(self, kernel: TritonKernel) -> None:
        from triton.runtime.interpreter import InterpretedFunction

        self.kernel = kernel
        scope: dict[str, Any] = {}
        import triton.language as tl

        scope.update(tl=tl, libdevice=Libdevice(), triton=types.SimpleNamespace(jit=lambda function: function))
        exec(compile(kernel.source.removeprefix(HEAD), "<fxjit kernel>", "exec"), scope)
        scope.update(row_functions(), range=lambda *bounds: range(*map(as_int, bounds)))
        self.function: Any = InterpretedFunction(scope[kernel.name])
        self.blocks = smallest_tiles(kernel)

    def __call__(self, *args: Any) -> None:
        from triton.runtime.interpreter import InterpreterError

        count = len(self.kernel.buffers)
        programs = grid_of(self.kernel, self.blocks, args[count:])
        if programs == 0:
            return
        wide = is_wide(self.kernel, args[count:])
        tensors = [arg.detach() for arg in args[:count]]
        with _one_at_a_time, np.errstate(all="ignore"), as_on_gpu():
            try:
                self.function[(programs,)](*tensors, *args[count : count + self.kernel.passed], **self.blocks, WIDE=wide)
            except InterpreterError as problem:
                if "index out of range" in str(problem):
                    raise IndexError("index out of range in self") from None
                raise


def smallest_tiles(kernel: TritonKernel) -> dict[str, int]:
    chosen = dict(kernel.configs[0].blocks)
    limits = dict(BLOCKS, XB=ROWS) if "RB" in chosen or "tl.reduce" in kernel.source else BLOCKS
    limits = TILES if "KB" in chosen else limits
    return {name: min(size, limits[name]) for name, size in chosen.items()}


class Libdevice:
    """libdevice's functions by torch's of the same meaning."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # torch's own fmod is inexact for large quotients.
        others: dict[str, Callable[..., torch.Tensor]] = {"nearbyint": torch.round, "fmod": fmod}
        function: Callable[..., torch.Tensor] = others.get(name) or getattr(torch, name)

        def call(*args: Any) -> Any:
            arrays = [torch.from_numpy(np.ascontiguousarray(arg.handle.data)) for arg in args]
            return as_block(function(*arrays).numpy(), args[0].dtype, any(arg.type.is_block() for arg in args))

        return call


def as_int(value: Any) -> int:
    """A scalar of the interpreter's, which is an array of one, as a number."""
    return value if isinstance(value, int) else int(value.handle.data.reshape(-1)[0])


def fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.fmod(a.numpy(), b.numpy()))


def as_block(data: Any, dtype: Any, block: bool) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(data, dtype.scalar), tl.block_type(dtype.scalar, list(data.shape)) if block else dtype)


def row_functions() -> dict[str, Callable[[Any], Any]]:
    """`fx_row_*` by NumPy, `fx_scan_*` by torch."""

    def reduces(function: Callable[..., Any]) -> Callable[[Any], Any]:
        def reduce(value: Any) -> Any:
            data = value.handle.data
            return as_block(function(data, 1, data.dtype), value.dtype, True)

        return reduce

    def scans(function: Callable[..., torch.Tensor]) -> Callable[[Any], Any]:
        def scan(value: Any) -> Any:
            data = torch.from_numpy(np.ascontiguousarray(value.handle.data))
            return as_block(function(data, 1).numpy(), value.dtype, True)

        return scan

    return {
        **{f"fx_scan_{name}": scans(row.torch) for name, row in SCANS.items()},
        "fx_row_logaddexp": reduces(lambda data, axis, kind: np.logaddexp.reduce(data, axis=axis, keepdims=True)),
        "fx_row_sum": reduces(lambda data, axis, kind: np.sum(data, axis=axis, keepdims=True, dtype=kind)),
        "fx_row_prod": reduces(lambda data, axis, kind: np.prod(data, axis=axis, keepdims=True, dtype=kind)),
        "fx_row_max": reduces(lambda data, axis, kind: np.max(data, axis=axis, keepdims=True)),
        "fx_row_min": reduces(lambda data, axis, kind: np.min(data, axis=axis, keepdims=True)),
        "fx_row_any": reduces(lambda data, axis, kind: np.any(data, axis=axis, keepdims=True)),
        "fx_row_all": reduces(lambda data, axis, kind: np.all(data, axis=axis, keepdims=True)),
    }


def widened(bits: Any) -> Any:
    """Numbers of bfloat16, given as integers, in float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@contextlib.contextmanager
def as_on_gpu() -> Iterator[None]:
    """Conversions to bfloat16 round to nearest, products of it are of its numbers, assertions hold or raise, and the last
    program runs first."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

    plain: Any = InterpreterBuilder.cast_impl

    def cast(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar == tl.bfloat16 and src.dtype.scalar == tl.float32:
            rounded = torch.from_numpy(np.ascontiguousarray(src.data)).to(torch.bfloat16)
            return TensorHandle(rounded.view(torch.uint16).numpy(), tl.bfloat16)
        return plain(self, src, dst_type)

    plain_dot: Any = InterpreterBuilder.create_dot

    def dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (TensorHandle(widened(each.data), tl.float32) for each in (a, b))
        elif a.dtype.scalar == tl.float16:
            # NumPy would add up in half precision.
            a, b = (TensorHandle(each.data.astype(np.float32), tl.float32) for each in (a, b))
        return plain_dot(self, a, b, d, *how)

    plain_place: Any = InterpreterBuilder.set_grid_idx

    def place(self: Any, x: int, y: int, z: int) -> None:
        plain_place(self, self.grid_dim[0] - 1 - x if BACKWARDS else x, y, z)

    options = interpreter_builder.options
    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot, InterpreterBuilder.set_grid_idx = cast, dot, place
    interpreter_builder.options = dataclasses.replace(options, debug=True, sanitize_overflow=False)
    try:
        yield
    finally:
        InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = plain, plain_dot
        InterpreterBuilder.set_grid_idx = plain_place
        interpreter_builder.options = options
