"""The loop IR run slowly, with torch as the calculator: the definition that kernels are tested against.

`run(low, statements, inputs)` takes a lowered program without extern calls and returns its memory: a flat tensor for each
buffer, addressed by the affine indices and gathers of the IR.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from .index import Sizes
from .ir import Buffer, Compute, Const, Expr, Extern, Gather, Iota, Load, Op, compute_type, walk
from .lower.table import Lowering
from .ops import REDUCTIONS, SCALARS, SCANS


class NotInterpretable(Exception):
    """The program has an extern call, or sizes without a value."""


def run(low: Lowering, statements: Iterable[Compute | Extern], inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every buffer's memory after the statements; `inputs` gives the tensors of the input buffers."""
    memory: dict[str, torch.Tensor] = {}
    for name, buffer in low.buffers.items():
        if name in inputs:
            memory[name] = flat(inputs[name])
        else:
            memory[name] = torch.zeros(extent(buffer), dtype=buffer.dtype)
    for statement in statements:
        if isinstance(statement, Extern):
            raise NotInterpretable(str(statement.node.target))
        execute(statement, memory)
    return memory


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory a strided tensor looks at, from its first element on."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,))


def extent(buffer: Buffer) -> int:
    (count,) = ints((buffer.extent,))
    return count


def ints(sizes: Sizes) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in sizes):
        raise NotInterpretable(f"{sizes} has no value")
    return tuple(int(size) for size in sizes)


def places(sizes: Sizes, strides: Sizes, offset: object) -> torch.Tensor:
    """The affine index at every point of the loops."""
    shape = ints(sizes)
    total = torch.full(shape, int(offset), dtype=torch.int64)  # type: ignore[call-overload]  # its stub wants literal sizes
    for dim, (size, stride) in enumerate(zip(shape, ints(strides), strict=True)):
        along = [1] * len(shape)
        along[dim] = size
        total = total + (torch.arange(size) * stride).reshape(along)
    return total


def execute(compute: Compute, memory: dict[str, torch.Tensor]) -> None:
    domain = compute.domain
    value = evaluate(compute.expr, domain, memory).expand(ints(domain))
    if compute.reduction is not None and compute.rsize:
        dims = tuple(range(len(compute.size), len(domain)))
        value = REDUCTIONS[compute.reduction].torch(value, dims)
    if compute.scan is not None and compute.rsize:
        value = SCANS[compute.scan].torch(value.flatten(len(compute.size)), len(compute.size)).reshape(value.shape)
    where = places(value.shape, compute.stride, compute.offset)
    if compute.scatter is None:
        memory[compute.out.name][where.reshape(-1)] = value.to(compute.out.dtype).reshape(-1)
        return
    for gather in compute.scatter.gathers:
        index = evaluate(gather.index, domain, memory).expand(ints(domain))
        where = where + in_bounds(index, gather) * int(gather.stride)
    update(memory[compute.out.name], compute.scatter.mode, where.reshape(-1), value.reshape(-1))


def update(flat_memory: torch.Tensor, mode: str, where: torch.Tensor, value: torch.Tensor) -> None:
    """One element after the other."""
    for place, each in zip(where.tolist(), value, strict=True):
        there = flat_memory[place].to(each.dtype)
        flat_memory[place] = each if mode == "set" else SCALARS[mode].torch(there, each)


def in_bounds(index: torch.Tensor, gather: Gather) -> torch.Tensor:
    size = int(gather.size)
    if gather.wrap:
        index = torch.where(index < 0, index + size, index)
    if bool(((index < 0) | (index >= size)).any()):
        raise IndexError("index out of range in self")
    return index


def evaluate(expr: Expr, domain: Sizes, memory: Mapping[str, torch.Tensor]) -> torch.Tensor:
    values: dict[int, torch.Tensor] = {}
    for node in walk(expr):
        values[id(node)] = one(
            node, domain, memory, [values[id(arg)] for arg in (node.args if isinstance(node, Op) else ())], values
        )
    return values[id(expr)]


def one(
    node: Expr, domain: Sizes, memory: Mapping[str, torch.Tensor], args: list[torch.Tensor], values: Mapping[int, torch.Tensor]
) -> torch.Tensor:
    if isinstance(node, Const):
        return torch.tensor(node.value, dtype=torch.float64 if node.dtype.is_floating_point else node.dtype).to(node.dtype)
    if isinstance(node, Iota):
        return places(domain, node.strides, node.offset).to(node.dtype)
    if isinstance(node, Op):
        return args[0].to(node.dtype) if node.name == "cast" else SCALARS[node.name].torch(*args).to(node.dtype)
    assert isinstance(node, Load)
    place = places(domain, node.strides, node.offset)
    for gather in node.gathers:
        place = place + in_bounds(values[id(gather.index)], gather) * int(gather.stride)
    return memory[node.buffer][place.reshape(-1)].reshape(place.shape).to(compute_type(node.memory_dtype))
