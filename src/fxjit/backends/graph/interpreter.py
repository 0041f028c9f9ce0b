"""A graph run node by node, by torch's interpreter: what an operator raises is what the program raises, word for word, and says
whether inputs were written to before (_C.left_unwritten)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from fxjit._C import tell_unwritten
from fxjit.schemas import written

from .facts import view_root

Boxed = Callable[[list[Any]], Any]


def boxed(gm: torch.fx.GraphModule) -> Boxed:
    """The graph over the list of its inputs, which is emptied."""
    inputs = set(gm.graph.find_nodes(op="placeholder"))
    calls = (node for node in gm.graph.nodes if node.op.startswith("call"))
    writers = frozenset(node for node in calls if not inputs.isdisjoint(map(view_root, written(node))))

    def run(args: list[Any]) -> Any:
        # One a call: it keeps the values of the run it is in, and threads run beside each other.
        interpreter = _Interpreter(gm) if writers else torch.fx.Interpreter(gm)
        interpreter.extra_traceback = False
        seen: list[torch.fx.Node] = []
        tell_unwritten(None, False)
        if isinstance(interpreter, _Interpreter):
            interpreter.writers, interpreter.seen = writers, seen
        try:
            return interpreter.boxed_run(args)
        except Exception as error:
            tell_unwritten(error, not seen)
            raise

    return run


class _Interpreter(torch.fx.Interpreter):
    """Notes the nodes that write to inputs as they run."""

    writers: frozenset[torch.fx.Node]
    seen: list[torch.fx.Node]

    def run_node(self, n: torch.fx.Node) -> Any:
        if n in self.writers:
            self.seen.append(n)
        return super().run_node(n)
