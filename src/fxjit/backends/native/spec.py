"""The well-formedness rules of a program; checked after each stage in tests (`pipeline.verifier = spec.check`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .index import prod, same_sizes
from .ir import Buffer, Compute, Const, Expr, Extern, Iota, Load, Op, compute_type, walk
from .lower.table import Lowering
from .ops import REDUCTIONS, SCALARS, SCANS, UPDATES
from .schedule.fuse import Group, Member, Step, assign_loop_nests, reads_same_place

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "logical_not"})


class IllegalProgram(AssertionError):
    """A stage produced something the next one may not rely on."""


def check(stage: str, low: Lowering, what: Iterable[Any]) -> None:
    """Checks statements after lowering, steps after scheduling."""
    try:
        if stage == "lower":
            check_statements(low, what)
        else:
            check_steps(low, what)
    except IllegalProgram as problem:
        raise IllegalProgram(f"after {stage}: {problem}") from None


def require(condition: bool, message: str) -> None:
    if not condition:
        raise IllegalProgram(message)


def check_statements(low: Lowering, statements: Iterable[Compute | Extern]) -> None:
    made = {name for name, buffer in low.buffers.items() if buffer.kind == "input"}
    for statement in statements:
        if isinstance(statement, Extern):
            require(statement.reads <= made, f"{statement.node} reads {statement.reads - made} before it is made")
            made |= statement.results
            continue
        check_compute(statement, low.buffers)
        for name in statement.reads:
            require(name in made, f"{statement.out.name} reads {name} before it is made")
        made.add(statement.out.name)


def check_compute(compute: Compute, buffers: dict[str, Buffer]) -> None:
    name = compute.out.name
    written = compute.domain if compute.scan is not None else compute.size
    require(len(compute.stride) == len(written), f"{name}: a stride for each dimension")
    require(bool(compute.rsize) <= compute.has_order, f"{name}: loops to reduce over, but no reduction")
    require(compute.scan is None or compute.scan in SCANS, f"{name}: unknown scan {compute.scan}")
    require(not (compute.reduction and compute.scan), f"{name}: a reduction that is a scan")
    require(compute.scatter is None or not compute.has_order, f"{name}: a reduction at computed places")
    require(compute.scatter is None or compute.scatter.mode in UPDATES, f"{name}: an unknown way to store")
    require(compute.reduction is None or compute.reduction in REDUCTIONS, f"{name}: unknown reduction {compute.reduction}")
    expected = compute_type(compute.out.dtype)
    require(compute.expr.dtype is expected, f"{name}: a value of type {compute.expr.dtype} for a buffer computed in {expected}")
    require(not reads_what_it_overwrites(compute), f"{name}: an element needs others of the memory it is written to")
    ndim = len(compute.domain)
    for gather in compute.gathers():
        require(gather.index.dtype is torch.int64, f"{name}: an index of type {gather.index.dtype}")
    for node in (node for expr in compute.exprs for node in walk(expr)):
        check_expr(node, ndim, name)
        if isinstance(node, Load):
            require(node.buffer in buffers, f"{name} reads {node.buffer}, which does not exist")
            require(buffers[node.buffer].dtype is node.memory_dtype, f"{name} reads {node.buffer} as {node.memory_dtype}")


def reads_what_it_overwrites(compute: Compute) -> bool:
    """Loops run in any order: what one iteration reads of the buffer that all write is what it writes itself."""
    member = Member(compute, compute.rsize)
    loads = [load for load in compute.loads() if load.buffer == compute.out.name]
    return compute.scatter is None and not all(reads_same_place(load, member, member, compute.size) for load in loads)


def check_expr(node: Expr, ndim: int, where: str) -> None:
    require(node.dtype is compute_type(node.dtype), f"{where}: {type(node).__name__} of type {node.dtype} is not computed with")
    if isinstance(node, (Load, Iota)):
        require(len(node.strides) == ndim, f"{where}: {len(node.strides)} strides over {ndim} loops")
    if isinstance(node, Load):
        require(node.dtype is compute_type(node.memory_dtype), f"{where}: a load of {node.memory_dtype} as {node.dtype}")
    if isinstance(node, Const):
        require(not (node.dtype is torch.bool and not isinstance(node.value, bool)), f"{where}: the bool {node.value!r}")
    if isinstance(node, Op):
        check_op(node, where)


def check_op(node: Op, where: str) -> None:
    require(node.name in SCALARS, f"{where}: unknown operation {node.name}")
    row = SCALARS[node.name]
    require(len(node.args) == row.arity, f"{where}: {node.name} takes {row.arity} operands")
    types = [arg.dtype for arg in node.args]
    if node.name == "where":
        require(types == [torch.bool, node.dtype, node.dtype], f"{where}: where of {types} as {node.dtype}")
    elif node.name == "cast":
        require(types != [node.dtype], f"{where}: a cast to the same type")
    elif node.name in COMPARISONS:
        require(len(set(types)) == 1 and node.dtype is torch.bool, f"{where}: {node.name} of {types} as {node.dtype}")
    else:
        require(set(types) == {node.dtype}, f"{where}: {node.name} of {types} as {node.dtype}")
    if not row.integers and node.name not in COMPARISONS:
        require(node.dtype.is_floating_point, f"{where}: {node.name} of {node.dtype}")


def check_steps(low: Lowering, steps: Iterable[Step]) -> None:
    made = {name for name, buffer in low.buffers.items() if buffer.kind == "input"}
    for step in steps:
        if isinstance(step, Extern):
            require(step.reads <= made, f"{step.node} reads {step.reads - made} before it is made")
            made |= step.results
            continue
        check_group(step, made, low.buffers)
        made |= step.writes()


def check_group(group: Group, made: set[str], buffers: dict[str, Buffer]) -> None:
    inside: dict[str, Any] = {}
    loop_nests = [member.loop_nest for member in group.members]
    assign_loop_nests(group)
    require(loop_nests == [member.loop_nest for member in group.members], "loop nests that are not those of the members' needs")
    for member in group.members:
        compute = member.compute
        check_compute(compute, buffers)
        domain = group.outer + member.inner
        require(
            same_sizes(compute.domain, domain) or prod(domain) == 0,
            f"{compute.out.name}: over {compute.domain}, its group has {domain}",
        )
        for load in compute.loads():
            maker = inside.get(load.buffer)
            if maker is None:
                require(load.buffer in made, f"{compute.out.name} reads {load.buffer} before it is made")
                continue
            require(
                reads_same_place(load, maker, member, group.outer),
                f"{compute.out.name} reads {load.buffer} elsewhere than it was made",
            )
            late = maker.gives_row and not member.is_row and maker.loop_nest >= member.loop_nest
            require(not late or not group.reducing, f"{compute.out.name} reads {load.buffer} in the loop that makes it")
        inside[compute.out.name] = member
