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
        interpreter = _Interpreter(gm)
        interpreter.writers, interpreter.seen = writers, []
        tell_unwritten(None, False)
        try:
            return interpreter.run_list(args)
        except Exception as error:
            tell_unwritten(error, not interpreter.seen)
            raise

    return run


class _Interpreter(torch.fx.Interpreter):
    """Notes the nodes that write to inputs as they run."""

    writers: frozenset[torch.fx.Node]
    seen: list[torch.fx.Node]

    def run_list(self, args: list[Any]) -> Any:
        """Without the progress bar of `run`, also where it is off: for that tqdm takes a lock that all forked processes share,
        and one that dies meanwhile leaves it taken for good."""
        self.env = dict(zip(self.graph.find_nodes(op="placeholder"), args, strict=True))
        args.clear()
        result: Any = None
        for node in self.graph.nodes:
            if node.op == "placeholder":
                continue
            result = self.run_node(node)
            if node.op != "output":
                self.env[node] = result
            for dead in self.user_to_last_uses.get(node, ()):
                del self.env[dead]
        return result

    def run_node(self, n: torch.fx.Node) -> Any:
        if n in self.writers:
            self.seen.append(n)
        return super().run_node(n)
