"""What a failing kernel repeats: the operators that it stands for, called on what it read, which raise what eager's do.

Where the program can start over, it raises that itself (resume/deoptimization.py). It cannot where its graph has an operator
that runs once a call, such as one of the program's own; there a kernel that may look up out of range has such calls behind it.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.fx
from torch._ops import OpOverload

from fxjit.backends.graph.facts import may_raise
from fxjit.schemas import runs_once, uses_rng, writes

from ..codegen.launch import Launch
from ..lower.table import Lowering, meta_of, root_of

#: What kernels raise, and a program where no operator that was repeated raised.
OUT_OF_RANGE = "index out of range in self"
#: Operators that one kernel repeats, at most.
_MOST = 64


def repeated(launch: Launch, low: Lowering, inputs: Collection[str], defined: Collection[str]) -> list[torch.fx.Node]:
    """The operators in a kernel that may raise on their numbers, in order, behind what they are calculated of: of what the
    kernel reads, else of anything that was `defined` before. `inputs` are the graph's: kernels check, then write to it."""
    before = {name for name in defined if name in inputs or name not in launch.written}
    read = before.intersection(launch.kernel.buffers)
    origins = {node for member in launch.group.members for node in member.compute.origins}
    calls: set[torch.fx.Node] = set()
    for node in origins:
        if may_raise(node):
            calls |= _calculation(node, low, read) or _calculation(node, low, before) or set()
    return sorted(calls)


def _calculation(node: torch.fx.Node, low: Lowering, known: Collection[str]) -> set[torch.fx.Node] | None:
    """The node and all that has to be called before it; None where something cannot be."""
    calls: set[torch.fx.Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each in calls:
            continue
        if not isinstance(each.target, OpOverload) or runs_once(each.target) or uses_rng(each) or writes(each):
            return None
        if len(calls) == _MOST:
            return None
        calls.add(each)
        for given in each.all_input_nodes:
            meta = meta_of(given)
            if isinstance(meta, torch.Tensor):
                root = root_of(given)
                if root.op != "get_attr" and low.storage.get(root) not in known:
                    waiting.append(given)
            elif not isinstance(meta, (torch.SymInt, int, float, bool)):
                return None
    return calls
