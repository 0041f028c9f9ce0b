"""What a loop over columns computes of a column alone is computed once a column, before the loop over its numbers.

In a group that reduces over columns the loop over neighbouring columns is the innermost, so that nothing of a column's own is
outside of it: the logarithm of a softmax's sum would be taken, and a norm's root, for each number. Such a part of an expression
becomes a member of the group that runs once an outer index, between the loops that make what it needs and those that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from ..index import contiguous_strides
from ..ir import Buffer, Compute, Const, Expr, Iota, Load, Op, children, drop_dims, walk
from ..ops import work
from .fuse import Group, Member

#: The work (`ops.work`) from which a part is taken out: dividing what is at hand. What is cheaper takes as long as reading an
#: array does.
LEAST_WORK = 5

Key: TypeAlias = "tuple[object, ...]"


def per_column(group: Group) -> tuple[Group, frozenset[str]]:
    """The group with such parts as members, and the names of the buffers that those make, which nothing else reads."""
    if not group.column_reduction or group.scatters:
        return group, frozenset()
    made: dict[Key, Member] = {}
    members: list[Member] = []
    first = 1 + max(int(name[1:]) for name in group.reads() | group.writes())
    for member in group.members:
        found = parts_of(member.compute.expr, group, members) if member.inner else []
        for part in found:
            key = key_of(part)
            if key not in made:
                made[key] = row_of(part, group, members, f"b{first + len(made)}")
                members.append(made[key])
        members.append(reading(member, {id(part): made[key_of(part)] for part in found}) if found else member)
    new = Group(group.outer, members, group.column_reduction, group.split, group.reducing, group.name)
    return new, frozenset(member.compute.out.name for member in made.values())


def parts_of(expr: Expr, group: Group, before: list[Member]) -> list[Op]:
    """The largest parts of the expression that a column alone decides, and that take long enough."""
    outer, writes = len(group.outer), group.writes()
    rows = {member.compute.out.name for member in before if member.gives_row}
    alone: dict[int, bool] = {}
    parts: dict[int, Op] = {}
    for node in walk(expr):
        if isinstance(node, Op):
            alone[id(node)] = all(alone[id(arg)] for arg in node.args)
            if alone[id(node)] and node.dtype.is_floating_point and varies(node, outer) and work(node) >= LEAST_WORK:
                parts[id(node)] = node
        elif isinstance(node, Const):
            alone[id(node)] = True
        else:
            at_hand = isinstance(node, Iota) or (not node.gathers and (node.buffer in rows or node.buffer not in writes))
            alone[id(node)] = at_hand and all(stride == 0 for stride in node.strides[outer:])
    # Of a part within a part nothing is needed, unless what is no part reads it, too.
    wanted = {id(arg) for node in walk(expr) if id(node) not in parts for arg in children(node)} | {id(expr)}
    return [node for node in parts.values() if id(node) in wanted]


def varies(expr: Expr, outer: int) -> bool:
    """Whether it is another number in each column: what is not stands outside of the loop as it is."""
    return any(isinstance(node, (Load, Iota)) and node.strides[outer - 1] != 0 for node in walk(expr))


def key_of(expr: Expr) -> Key:
    """Equal for equal expressions."""
    keys: dict[int, int] = {}
    rows: dict[Key, int] = {}
    for node in walk(expr):
        row: Key
        if isinstance(node, Op):
            row = (node.name, node.dtype, *(keys[id(arg)] for arg in node.args))
        elif isinstance(node, Const):
            row = ("", node.dtype, repr(node.value))
        else:
            # Behind the outer loops there are zeros, more or less of them.
            steps = tuple((k, stride) for k, stride in enumerate(node.strides) if stride != 0)
            row = (node.buffer if isinstance(node, Load) else None, node.dtype, steps, node.offset)
        keys[id(node)] = rows.setdefault(row, len(rows))
    return tuple(rows)


def row_of(part: Op, group: Group, before: list[Member], name: str) -> Member:
    """The part as a member that runs once an outer index, behind the loops that make what it reads."""
    outer = len(group.outer)
    stride = contiguous_strides(group.outer)
    inner = frozenset(range(outer, max(len(node.strides) for node in walk(part) if isinstance(node, (Load, Iota)))))
    buffer = Buffer(name, part.dtype, group.outer, stride, "temp", group.device)
    nests = {member.compute.out.name: member.loop_nest for member in before}
    nest = max((nests.get(node.buffer, -1) for node in walk(part) if isinstance(node, Load)), default=-1)
    return Member(Compute(buffer, group.outer, (), drop_dims(part, inner), stride), (), nest)


def reading(member: Member, parts: Mapping[int, Member]) -> Member:
    """The member with those parts of its expression read instead."""
    done: dict[int, Expr] = {}
    for node in walk(member.compute.expr):
        if id(node) in parts:
            out = parts[id(node)].compute.out
            done[id(node)] = Load(out.name, out.dtype, out.dtype, out.stride + (0,) * len(member.inner), 0)
        elif isinstance(node, Op):
            done[id(node)] = Op(node.name, tuple(done[id(arg)] for arg in node.args), node.dtype)
        else:
            done[id(node)] = node
    return Member(replace(member.compute, expr=done[id(member.compute.expr)]), member.inner, member.loop_nest)
