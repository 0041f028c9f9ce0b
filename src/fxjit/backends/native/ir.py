"""The loop IR: what an ATen graph is lowered to before loops are fused and printed.

An `Expr` is the value of one element as a function of the loop variables of the statement it stands in; memory is
read at an affine index (one stride a loop variable, and an offset), plus `Gather`s whose index is itself computed.
A statement is a `Compute` (a loop nest that writes one buffer: pointwise, reducing, scanning or scattering) or an `Extern`
(an ATen call).
Everything is frozen; sizes are ints or sympy expressions (index.py). Half-precision values are computed in float32:
`Load.dtype` is the type computed with, `Load.memory_dtype` the type in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
import torch.fx

from .index import Size, Sizes, add, equal, mul, prod, segments, sub

CPU = torch.device("cpu")
COMPUTE_TYPE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
SUPPORTED = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)


def compute_type(dtype: torch.dtype) -> torch.dtype:
    return COMPUTE_TYPE.get(dtype, dtype)


@dataclass(frozen=True, eq=False, slots=True)
class Gather:
    """A computed part of an address: stride * index, with 0 <= index < size checked (negative ones wrap if `wrap`)."""

    index: Expr
    stride: Size
    size: Size
    wrap: bool


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    buffer: str
    dtype: torch.dtype
    memory_dtype: torch.dtype
    strides: Sizes
    offset: Size
    gathers: tuple[Gather, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Const:
    value: bool | int | float
    dtype: torch.dtype


@dataclass(frozen=True, eq=False, slots=True)
class Iota:
    """An integer that is affine in the loop variables; with all strides 0, a size as a value."""

    strides: Sizes
    offset: Size
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """A scalar operation of ops.py. `dtype` is the result's; a conversion is the op "cast"."""

    name: str
    args: tuple[Expr, ...]
    dtype: torch.dtype


Expr: TypeAlias = "Load | Const | Iota | Op"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory. `kind`: input (given), temp (written by a kernel), extern (made by ATen), scratch (inside one kernel)."""

    name: str
    dtype: torch.dtype
    size: Sizes
    stride: Sizes
    kind: str
    device: torch.device = CPU

    @property
    def numel(self) -> Size:
        return prod(self.size)

    @property
    def extent(self) -> Size:
        """The elements of memory from the first to the last: more than there are values where strides leave gaps."""
        if any(size == 0 for size in self.size):
            return 0
        steps = (mul(sub(size, 1), stride) for size, stride in zip(self.size, self.stride, strict=True))
        total: Size = 1
        for step in steps:
            total = add(total, step)
        return total

    def as_kind(self, kind: str) -> Buffer:
        return replace(self, kind=kind)


@dataclass(frozen=True, eq=False, slots=True)
class Scatter:
    """Stores at computed places: `mode` is "set" or the scalar operation that combines what is there with the value.

    Loops along which the store has a stride write places of their own; those without one may meet the same place again,
    and run in order.
    """

    gathers: tuple[Gather, ...]
    mode: str


@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """for i in size: out[stride·i] = expr(i), or out[stride·i] = reduce over j in rsize of expr(i, j).

    With `scan`, out[stride·(i, j)] = expr(i, 0) combined with all up to expr(i, j). With `scatter`, out[stride·i + computed]
    is combined with expr(i); what the buffer held before is made by statements before.
    """

    out: Buffer
    size: Sizes
    rsize: Sizes
    expr: Expr
    stride: Sizes
    offset: Size = 0
    reduction: str | None = None
    origins: frozenset[torch.fx.Node] = frozenset()
    scan: str | None = None
    scatter: Scatter | None = None
    #: A total in float64 of which results hold less.
    narrowed: bool = False
    #: What `loads` found: fusion needs it again for every statement that might join.
    _loads: tuple[Load, ...] | None = field(default=None, init=False, repr=False)

    @property
    def domain(self) -> Sizes:
        return self.size + self.rsize

    @property
    def has_order(self) -> bool:
        """The loops of `rsize` run inside the others, in order or combined."""
        return self.reduction is not None or self.scan is not None

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """The value, and after it the computed parts of where it is stored."""
        return (self.expr, *(gather.index for gather in self.scatter.gathers)) if self.scatter else (self.expr,)

    def loads(self) -> tuple[Load, ...]:
        if self._loads is None:
            object.__setattr__(self, "_loads", tuple(load for expr in self.exprs for load in loads(expr)))
        assert self._loads is not None
        return self._loads

    @property
    def reads(self) -> set[str]:
        """The buffers that the statement reads: one that it stores in at computed places is among them."""
        found = {load.buffer for load in self.loads()}
        return found | {self.out.name} if self.scatter is not None else found

    def gathers(self) -> list[Gather]:
        """Every computed part of an address, of what is read and of what is written."""
        found = [gather for load in self.loads() for gather in load.gathers]
        return found + list(self.scatter.gathers) if self.scatter else found

    def over(self, size: Sizes, rsize: Sizes, stride: Sizes, change: Callable[[Expr], Expr]) -> Compute:
        """The statement over other loops, with its expressions changed accordingly."""
        scatter = self.scatter
        if scatter is not None:
            gathers = tuple(replace(gather, index=change(gather.index)) for gather in scatter.gathers)
            scatter = replace(scatter, gathers=gathers)
        return replace(self, size=size, rsize=rsize, stride=stride, expr=change(self.expr), scatter=scatter)


@dataclass(frozen=True, eq=False, slots=True)
class Extern:
    """An ATen call (or any other call of the graph) run by the executor; reads and writes are buffers' names."""

    node: torch.fx.Node
    reads: frozenset[str]
    mutates: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    #: Whether no lookup that stands behind it is made before it.
    ordered: bool = False


Statement: TypeAlias = "Compute | Extern"


@dataclass(frozen=True, eq=False, slots=True)
class TensorExpr:
    """A tensor while lowering: an element expression over its own dimensions, not in memory unless `expr` just loads."""

    size: Sizes
    dtype: torch.dtype
    expr: Expr

    @property
    def ndim(self) -> int:
        return len(self.size)


def children(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Op):
        return expr.args
    if isinstance(expr, Load):
        return tuple(gather.index for gather in expr.gathers)
    return ()


def walk(expr: Expr) -> Sequence[Expr]:
    """Every distinct node of the expression, operands first."""
    if not children(expr):
        return (expr,)
    found: list[Expr] = []
    seen: set[int] = set()
    stack: list[Expr | None] = [expr]
    while stack:
        node = stack.pop()
        if node is None:  # what stands below it is done
            found.append(stack.pop())  # type: ignore[arg-type]  # a marker stands on its node
        elif id(node) not in seen:
            seen.add(id(node))
            below = children(node)
            if below:
                stack += (node, None)
                stack += below[::-1]
            else:
                found.append(node)
    return found


def loads(expr: Expr) -> Iterator[Load]:
    return (node for node in walk(expr) if isinstance(node, Load))


def raises(expr: Expr) -> bool:
    """Whether computing it looks something up at a computed place, which may be out of bounds."""
    return any(load.gathers for load in loads(expr))


def rebuild(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """The expression with `leaf` applied to each Load, Iota and Const, after their own children."""
    done: dict[int, Expr] = {}
    for node in walk(expr):
        new: Expr
        if isinstance(node, Op):
            args = tuple(done[id(arg)] for arg in node.args)
            new = node if all(a is b for a, b in zip(args, node.args, strict=True)) else Op(node.name, args, node.dtype)
        elif isinstance(node, Load) and node.gathers:
            gathers = tuple(Gather(done[id(g.index)], g.stride, g.size, g.wrap) for g in node.gathers)
            new = leaf(Load(node.buffer, node.dtype, node.memory_dtype, node.strides, node.offset, gathers))
        else:
            new = leaf(node)
        done[id(node)] = new
    return done[id(expr)]


def substitute(expr: Expr, replace: Callable[[Load], Expr]) -> Expr:
    return rebuild(expr, lambda node: replace(node) if isinstance(node, Load) else node)


Affine: TypeAlias = "tuple[Sizes, Size]"


class NotAffine(Exception):
    """A view that some load of an expression cannot follow by strides alone."""


def reindex(expr: Expr, change: Callable[[Sizes, Size], Affine]) -> Expr:
    """The expression over other loop variables: `change` maps (strides, offset) of each affine index."""

    def leaf(node: Expr) -> Expr:
        if isinstance(node, Load):
            strides, offset = change(node.strides, node.offset)
            return Load(node.buffer, node.dtype, node.memory_dtype, strides, offset, node.gathers)
        if isinstance(node, Iota):
            strides, offset = change(node.strides, node.offset)
            return Iota(strides, offset, node.dtype)
        return node

    return rebuild(expr, leaf)


def permute(expr: Expr, dims: tuple[int, ...]) -> Expr:
    return reindex(expr, lambda strides, offset: (tuple(strides[dim] for dim in dims), offset))


def expand(expr: Expr, old: Sizes, new: Sizes) -> Expr:
    """Broadcasting: `old` aligned to the right of `new`."""
    if len(old) == len(new) and all(a == b for a, b in zip(old, new, strict=True)):
        return expr
    lead = len(new) - len(old)
    kept = tuple(not (a == 1 and b != 1) for a, b in zip(old, new[lead:], strict=True))
    zeros: Sizes = (0,) * lead
    return reindex(
        expr, lambda strides, offset: (zeros + tuple(s if k else 0 for s, k in zip(strides, kept, strict=True)), offset)
    )


def insert_dim(expr: Expr, dim: int) -> Expr:
    return reindex(expr, lambda strides, offset: (strides[:dim] + (0,) + strides[dim:], offset))


def drop_dims(expr: Expr, dims: frozenset[int]) -> Expr:
    return reindex(expr, lambda strides, offset: (tuple(s for i, s in enumerate(strides) if i not in dims), offset))


def narrow(expr: Expr, dim: int, start: Size, step: Size = 1) -> Expr:
    def change(strides: Sizes, offset: Size) -> Affine:
        new = mul(strides[dim], step)
        return strides[:dim] + (new,) + strides[dim + 1 :], add(offset, mul(strides[dim], start))

    return reindex(expr, change)


def select(expr: Expr, dim: int, index: Size) -> Expr:
    return reindex(expr, lambda strides, offset: (strides[:dim] + strides[dim + 1 :], add(offset, mul(strides[dim], index))))


def flip(expr: Expr, dim: int, size: Size) -> Expr:
    return narrow(expr, dim, sub(size, 1), -1)


def reshape(expr: Expr, old: Sizes, new: Sizes) -> Expr:
    """Raises NotAffine where some index does not follow."""
    if len(old) == len(new) and all(equal(a, b) for a, b in zip(old, new, strict=True)):
        return expr
    # The empty shape has no index that could be read.
    if any(size == 0 for size in new):
        return reindex(expr, lambda strides, offset: ((0,) * len(new), offset))
    runs = segments(old, new)
    if runs is None:
        raise NotAffine(f"{old} as {new}")
    memo: dict[Sizes, Sizes] = {}

    def change(strides: Sizes, offset: Size) -> Affine:
        if strides not in memo:
            memo[strides] = reshape_strides(old, strides, new, runs)
        return memo[strides], offset

    return reindex(expr, change)


def reshape_strides(old: Sizes, strides: Sizes, new: Sizes, runs: list[tuple[list[int], list[int]]]) -> Sizes:
    out: list[Size] = [0] * len(new)
    for left, right in runs:
        inner = merged_stride([old[i] for i in left], [strides[i] for i in left])
        if inner is None:
            raise NotAffine(f"{old} as {new}")
        for j in reversed(right):
            out[j] = inner if new[j] != 1 else 0
            inner = mul(inner, new[j])
    return tuple(out)


def merged_stride(sizes: list[Size], strides: list[Size]) -> Size | None:
    """The stride of the one dimension that these make, or None if they make none."""
    inner: Size | None = None
    reach: Size = 0
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if inner is None:
            inner = stride
        elif not equal(stride, reach):
            return None
        reach = mul(stride, size)
    return 0 if inner is None else inner


def is_plain_load(expr: Expr) -> bool:
    return isinstance(expr, Load) and not expr.gathers


def unit_free(sizes: Sizes, strides: Sizes) -> Sizes:
    """Strides with 0 where the size is 1 and the stride means nothing."""
    return tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))


def load_all(buffer: Buffer) -> TensorExpr:
    strides = unit_free(buffer.size, buffer.stride)
    return TensorExpr(buffer.size, buffer.dtype, Load(buffer.name, compute_type(buffer.dtype), buffer.dtype, strides, 0))
