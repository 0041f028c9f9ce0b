"""oneDNN's LSTM layer in a compiled forward.

Its kernel gives the workspace that its backward needs only where grad mode is on, and a compiled forward runs with grad
mode off, inside an autograd node of its own. `keep_workspace` puts an operator in its place that turns grad mode on for
the kernel, below autograd, which records nothing there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxjit import process_state

_ORIGINAL = torch.ops.aten.mkldnn_rnn_layer.default
_library = torch.library.Library("fxjit", "FRAGMENT")
_library.define("mkldnn_rnn_layer" + str(_ORIGINAL._schema).removeprefix("aten::mkldnn_rnn_layer"))


def _run(*args: Any) -> Any:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return _ORIGINAL(*args)


_library.impl("mkldnn_rnn_layer", _run, "CPU")
_library.impl("mkldnn_rnn_layer", _ORIGINAL, "Meta")


def keep_workspace(graph: torch.fx.GraphModule, training: bool) -> None:
    """Changes the forward graph of a training pair in place. That there is such a layer at all depends on oneDNN being on."""
    for node in graph.graph.find_nodes(op="call_function", target=_ORIGINAL):
        process_state.ask("mkldnn")
        if training:
            node.target = torch.ops.fxjit.mkldnn_rnn_layer.default
