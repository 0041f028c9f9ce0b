"""Fusion of matrix products with adjacent loops on a GPU: a generated kernel multiplies, instead of a call of ATen.

What makes an operand element by element is computed where the operand is read (its prologue), and the group that reads the
product is computed from the sums while a program still holds them (its epilogue). Whether that is faster than ATen's call
with separate kernels is for `keep` to say, which measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from fxjit import process_state

from ..index import Size, Sizes, contiguous_strides, equal, prod, same_sizes, segments, sizes_of
from ..ir import (
    Compute,
    Expr,
    Extern,
    Load,
    NotAffine,
    loads,
    permute,
    reshape,
    reshape_strides,
    substitute,
)
from ..lower.blas import Operand, matrix, origin, rows_of, turned
from ..lower.table import Lowering, meta_of, op_name
from ..ops import op, work
from ..target import by_triton
from .fuse import Group, Member, Step, reads_of, reads_same_place, writes_of

PRODUCTS = ("mm.default", "addmm.default", "bmm.default", "baddbmm.default", "linear.default")
MULTIPLIED = (torch.float32, torch.float16, torch.bfloat16)
#: Below this, a side of the result is narrower than the smallest block of a tensor core.
NARROWEST = 8
#: Work an element, and places it reads, that may be done again for every block of the other operand.
PROLOGUE_WORK, PROLOGUE_READS = 64, 3


@dataclass(frozen=True, slots=True)
class Dot:
    """sums[.., y, x] = sum over k of a[.., y, k] * b[.., k, x]; a group's members read them as the buffer `sums`."""

    sums: str
    k: Size
    a: Expr
    b: Expr
    memory_dtype: torch.dtype
    tf32: bool

    def loads(self) -> list[Load]:
        return [*loads(self.a), *loads(self.b)]


@dataclass(eq=False, slots=True)
class ProductGroup(Group):
    """A group over a product's result, with the product. `replaced` are the steps it stands for, in their order, and `wanted`
    what others read of all that these make."""

    dot: Dot | None = None
    replaced: tuple[Step, ...] = ()
    wanted: frozenset[str] = frozenset()

    def reads(self) -> set[str]:
        assert self.dot is not None
        inside = {load.buffer for member in self.members for load in loads(member.compute.expr)}
        return (inside | {load.buffer for load in self.dot.loads()}) - {self.dot.sums}


def with_products(
    steps: list[Step], low: Lowering, outside: frozenset[str], keep: Callable[[ProductGroup], bool]
) -> list[Step]:
    """The steps, with a `ProductGroup` for each product that `keep` prefers as one."""
    for step in list(steps):
        if not isinstance(step, Extern) or step not in steps:
            continue
        made = ProductFusion(steps, low, outside, step).group()
        if made is not None and keep(made):
            steps = [made if each is made.replaced[-1] else each for each in steps if each not in made.replaced[:-1]]
            own = made.members[0].compute.out
            low.buffers[own.name] = own
    return steps


def multiplies_in_tf32() -> bool:
    """Whether cuBLAS may round float32 operands to TF32 now."""
    return "cuda.matmul=tf32" in process_state.query("float32_precision")


class ProductFusion:
    """One product, with what of the steps around it a kernel of its own would do."""

    def __init__(self, steps: list[Step], low: Lowering, outside: frozenset[str], step: Extern) -> None:
        self.steps, self.low, self.outside, self.step = steps, low, outside, step
        self.at = steps.index(step)
        self.node = step.node

    def group(self) -> ProductGroup | None:
        """The group, if the call is a product that takes anything of its surroundings in."""
        operands = self.operands()
        if operands is None:
            return None
        (a, b), size, k, bias = operands
        left, right = (*size[:-1], k), (*size[:-2], k, size[-1])
        before: list[Step] = []
        a_expr, b_expr = self.operand(a, left, before), self.operand(b, right, before)
        dtype = meta_of(self.node).dtype
        out = self.low.buffers[self.low.storage[self.node]].as_kind("temp")
        sums = f"{out.name}_sums"
        value: Expr = Load(sums, torch.float32, torch.float32, contiguous_strides(size), 0)
        if bias is not None:
            value = op("add", value, bias)
        own = Member(Compute(out, size, (), value, contiguous_strides(size), origins=frozenset({self.node})), ())
        after = self.epilogue(own, size, before)
        if after is None and not before:
            return None
        members = [own, *(after[1] if after is not None else ())]
        replaced = (*before, self.step, *((after[0],) if after is not None else ()))
        dot = Dot(sums, k, a_expr, b_expr, dtype, multiplies_in_tf32())
        replaced = tuple(sorted(replaced, key=self.steps.index))
        return ProductGroup(size, members, dot=dot, replaced=replaced, wanted=self.wanted(replaced))

    # What is multiplied

    def operands(self) -> tuple[tuple[Operand | Batched, ...], Sizes, Size, Expr | None] | None:
        """(the operands, the result's sizes, what is summed over, the bias as an expression over the result)."""
        node, meta = self.node, meta_of(self.node)
        if op_name(node) not in PRODUCTS or any(value != 1 for value in node.kwargs.values()):
            return None
        tensors = [arg for arg in node.args if isinstance(arg, torch.fx.Node)]
        if not all(suits(meta_of(each), meta) for each in (node, *tensors)) or not by_triton(meta.device):
            return None
        size = sizes_of(meta.shape)
        if not same_sizes(sizes_of(meta.stride()), contiguous_strides(size)):
            return None
        name = op_name(node)
        a: Operand | Batched | None
        b: Operand | Batched | None
        bias = tensors[0] if name in ("addmm.default", "baddbmm.default") else None
        if name == "linear.default":
            bias = tensors[2] if len(tensors) > 2 else None
            x, weight = tensors[:2]
            if meta_of(weight).dim() != 2 or meta_of(x).dim() < 2:
                return None
            size = (prod(size[:-1]), size[-1])
            a, b, k = rows_of(x, self.low), turned(matrix(weight, self.low)), sizes_of(meta_of(x).shape)[-1]
        else:
            x, y = tensors[-2:]
            a, b = (batched(each, self.low) if len(size) == 3 else matrix(each, self.low) for each in (x, y))
            k = sizes_of(meta_of(x).shape)[-1]
        if any(isinstance(each, int) and each < NARROWEST for each in (*size[-2:], k)) or a is None or b is None:
            return None
        added = None if bias is None else self.bias(bias, size)
        return None if bias is not None and added is None else ((a, b), size, k, added)

    def bias(self, node: torch.fx.Node, size: Sizes) -> Expr | None:
        root = origin(node)
        meta, base = meta_of(node), meta_of(root)
        lead = len(size) - meta.dim()
        if root not in self.low.storage or base.dtype is not meta.dtype or lead < 0:
            return None
        sizes = sizes_of(meta.shape)
        if not all(each == 1 or equal(each, full) for each, full in zip(sizes, size[lead:], strict=True)):
            return None
        strides = (0,) * lead + tuple(0 if n == 1 else s for n, s in zip(sizes, sizes_of(meta.stride()), strict=True))
        return Load(self.low.storage[root], torch.float32, meta.dtype, strides, self.low.relative_offset(meta, base))

    def operand(self, given: Any, sizes: Sizes, before: list[Step]) -> Expr:
        """An operand over its own loops: what is computed there, or what is read."""
        strides = (*([given.batch] if len(sizes) == 3 else []), given.row, given.column)
        name, dtype = self.low.storage[origin(given.node)], meta_of(given.node).dtype
        step, expr = self.prologue(name, sizes, strides, given.offset)
        if expr is None:
            return Load(name, dtype, dtype, strides, given.offset)
        assert step is not None
        if step not in before:
            before.append(step)
        return expr

    # What comes before

    def prologue(self, name: str, sizes: Sizes, strides: Sizes, offset: Size) -> tuple[Step | None, Expr | None]:
        """The group that makes the operand and nothing else, and the operand computed over these loops."""
        writers = [step for step in self.steps if name in writes_of(step)]
        if len(writers) != 1 or name in self.outside or self.readers(name) != [self.step]:
            return None, None
        (group,) = writers
        if not isinstance(group, Group) or isinstance(group, ProductGroup) or group.reducing or group.scatters:
            return None, None
        others = group.writes() - {name}
        if any(each in self.outside or self.readers(each) != [group] for each in others) or not self.settled(group, self.step):
            return None, None
        member = next(each for each in group.members if each.compute.out.name == name)
        expr = inlined(member, group)
        reads = sum(1 for _ in loads(expr))
        if offset != 0 or work(expr) > PROLOGUE_WORK or reads > PROLOGUE_READS or writes_inputs(group):
            return None, None
        try:
            return group, over_operand(expr, member.compute, sizes, strides)
        except NotAffine:
            return None, None

    # What comes after

    def epilogue(self, own: Member, size: Sizes, before: list[Step]) -> tuple[Step, list[Member]] | None:
        """The first group that reads the product, over the product's loops."""
        name = own.compute.out.name
        readers = self.readers(name)
        group = readers[0] if readers else None
        if not isinstance(group, Group) or isinstance(group, ProductGroup) or group.reducing or group.scatters:
            return None
        if group.device != own.compute.out.device or not all(self.settled(each, group) for each in (*before, self.step)):
            return None
        members = []
        for member in group.members:
            made = over_result(member, group.outer, size)
            if made is None:
                return None
            same = (reads_same_place(load, own, made, size) for load in loads(made.compute.expr) if load.buffer == name)
            if not all(same):
                return None
            members.append(made)
        return group, members

    # Order

    def wanted(self, steps: tuple[Step, ...]) -> frozenset[str]:
        """The results of these steps that other steps read."""
        others = [reads_of(step) for step in self.steps if step not in steps]
        inputs = {name for step in steps for name in writes_of(step) if self.low.buffers[name].kind == "input"}
        made = {name for step in steps for name in writes_of(step)}
        return frozenset(made & (self.outside | inputs | set().union(*others)))

    def readers(self, name: str) -> list[Step]:
        return [step for step in self.steps if name in reads_of(step)]

    def settled(self, early: Step, late: Step) -> bool:
        """Whether the early step may be done where the late one is: what it reads is not written to in between."""
        between = self.steps[self.steps.index(early) + 1 : self.steps.index(late) + 1]
        return not any(writes_of(step) & reads_of(early) for step in between if step is not self.step)


@dataclass(frozen=True, slots=True)
class Batched:
    """As `Operand`, with the stride from one matrix to the next."""

    node: torch.fx.Node
    batch: Size
    row: Size
    column: Size
    offset: Size


def batched(node: torch.fx.Node, low: Lowering) -> Batched | None:
    root = origin(node)
    meta, base = meta_of(node), meta_of(root)
    if base.dtype is not meta.dtype or root not in low.storage:
        return None
    batch, row, column = sizes_of(meta.stride())
    return Batched(node, batch, row, column, low.relative_offset(meta, base))


def suits(meta: Any, result: Any) -> bool:
    return (isinstance(meta, torch.Tensor) and meta.dtype is result.dtype and meta.dtype in MULTIPLIED
            and meta.layout is torch.strided and meta.device == result.device and not meta.is_neg())


def writes_inputs(group: Group) -> bool:
    return any(member.compute.out.kind == "input" for member in group.members)


def inlined(member: Member, group: Group) -> Expr:
    """The computation of a member of a group without reductions, from the group's inputs."""
    made: dict[str, Expr] = {}
    for each in group.members:
        made[each.compute.out.name] = substitute(each.compute.expr, lambda load: made.get(load.buffer, load))
    return made[member.compute.out.name]


def over_operand(expr: Expr, compute: Compute, sizes: Sizes, strides: Sizes) -> Expr:
    """An expression over the loops of the statement that stores it, over the loops of who reads that memory by `strides`."""
    straight = tuple(range(len(sizes)))
    for order in (straight, (*straight[:-2], straight[-1], straight[-2])):
        stored = tuple(sizes[dim] for dim in order)
        if same_sizes(tuple(strides[dim] for dim in order), contiguous_strides(stored)):
            break
    else:
        raise NotAffine("an operand that is not all of its memory, in order")
    whole = compute.offset == 0 and equal(prod(stored), prod(compute.size))
    if not whole or not same_sizes(compute.stride, contiguous_strides(compute.size)):
        raise NotAffine("an operand that is a part of its memory")
    # A swap is its own inverse.
    return permute(reshape(expr, compute.size, stored), order)


def over_result(member: Member, outer: Sizes, size: Sizes) -> Member | None:
    """A member without reductions over other loops of as many iterations in the same order."""
    compute = member.compute
    runs = segments(outer, size)
    if member.inner or runs is None or not same_sizes(compute.size, outer):
        return None
    try:
        expr = reshape(compute.expr, outer, size)
        stride = reshape_strides(outer, compute.stride, size, runs)
    except NotAffine:
        return None
    return Member(replace(compute, size=size, expr=expr, stride=stride), ())

