"""Late waits: a graph waits for a collective just before it needs the result, so that what stands between runs meanwhile."""

from __future__ import annotations

import torch
import torch.fx

from fxjit.schemas import communicates, name_of, returns_alias, writes

#: Collectives that copy what they are given before they return; the others read it until they are waited for.
_COPYING = ("all_reduce", "broadcast")


def delay_wait_tensor(graph: torch.fx.Graph) -> None:
    """Moves each wait down to the first call that uses its result, that writes to memory, or that may be given memory which the
    collective still reads. Collectives keep their order, which must be that of the other ranks."""
    for wait in [node for node in graph.nodes if is_wait(node)]:
        held = {_memory(node) for node in read_until(wait)}
        behind = wait.next
        while not (behind.op == "output" or wait in behind.all_input_nodes or writes(behind)
                   or held.intersection(map(_memory, behind.all_input_nodes))):  # fmt: skip
            behind = behind.next
        behind.prepend(wait)


def is_wait(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and communicates(node.target) and name_of(node.target) == "wait_tensor"


def read_until(wait: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that the collective reads until this wait has returned."""
    started = _memory(wait.all_input_nodes[0])
    if not communicates(started.target) or name_of(started.target).startswith(_COPYING):
        return []
    return [node for node in started.all_input_nodes if isinstance(node.meta.get("val"), torch.Tensor)]


def _memory(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one's result is in, or is a part of."""
    while node.op == "call_function" and node.all_input_nodes and not communicates(node.target) and returns_alias(node.target):
        node = node.all_input_nodes[0]
    return node
