"""The IR and the schedule as stable text: for the `fusion` log, golden files and bug reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .index import Sizes
from .ir import Compute, Const, Expr, Extern, Gather, Iota, Load, Op, Statement, walk
from .lower.table import Lowering
from .schedule.fuse import Group, Step


def shape(sizes: Sizes) -> str:
    return "[" + ", ".join(map(str, sizes)) + "]"


def expr_text(expr: Expr) -> str:
    """One line, operands written out; a shared operand is written each time."""
    text: dict[int, str] = {}
    for node in walk(expr):
        text[id(node)] = node_text(node, text)
    return text[id(expr)]


def node_text(node: Expr, text: dict[int, str]) -> str:
    if isinstance(node, Const):
        return repr(node.value)
    if isinstance(node, Iota):
        return f"index({shape(node.strides)} + {node.offset})"
    if isinstance(node, Op):
        kind = f":{str(node.dtype).removeprefix('torch.')}" if node.name == "cast" else ""
        return f"{node.name}{kind}({', '.join(text[id(arg)] for arg in node.args)})"
    assert isinstance(node, Load)
    gathers = gathers_text(node.gathers, lambda index: text[id(index)])
    offset = f" + {node.offset}" if node.offset != 0 else ""
    return f"{node.buffer}@{shape(node.strides)}{offset}{gathers}"


def statement_text(statement: Statement) -> str:
    if isinstance(statement, Extern):
        return f"call {statement.node.target}({', '.join(sorted(statement.reads))}) -> {', '.join(sorted(statement.results))}"
    return compute_text(statement)


def compute_text(compute: Compute) -> str:
    value = expr_text(compute.expr)
    if compute.reduction:
        value = f"{compute.reduction} over {shape(compute.rsize)} of {value}"
    if compute.scan:
        value = f"{compute.scan} so far over {shape(compute.rsize)} of {value}"
    offset = f" + {compute.offset}" if compute.offset != 0 else ""
    how = "="
    if compute.scatter:
        offset += gathers_text(compute.scatter.gathers, expr_text)
        how = {"set": "="}.get(compute.scatter.mode, f"= {compute.scatter.mode} with")
    return f"{compute.out.name}@{shape(compute.stride)}{offset} for {shape(compute.size)} {how} {value}"


def gathers_text(gathers: Iterable[Gather], text: Callable[[Expr], str]) -> str:
    return "".join(f" + {g.stride}*<{text(g.index)}>" for g in gathers)


def program_text(statements: Iterable[Statement]) -> str:
    return "\n".join(map(statement_text, statements))


def schedule_text(steps: Iterable[Step], low: Lowering) -> str:
    """Each kernel with its members, each extern call with the reason it is one, where a lowering gave one."""
    lines: list[str] = []
    for step in steps:
        if isinstance(step, Group):
            how = " ".join(name for name in ("reducing", "column_reduction", "split") if getattr(step, name))
            origins = sorted({node.name for member in step.members for node in member.compute.origins})
            lines.append(f"kernel over {shape(step.outer)} {how} from {', '.join(origins)}")
            lines += [f"    nest {member.loop_nest}: {compute_text(member.compute)}" for member in step.members]
        else:
            reason = low.reasons.get(step.node)
            lines.append(statement_text(step) + (f"   ({reason})" if reason else ""))
    return "\n".join(lines)
