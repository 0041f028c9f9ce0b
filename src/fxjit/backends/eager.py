"""Backends that run the captured graph as it is: to try the front end alone, and to halve the search for a mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit.errors import InternalError


def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph, operator by operator, by torch itself."""
    return gm.forward


def eager_noexcept(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """As `eager`; an exception inside the graph is a mistake of ours, since the trace ran the same operators."""

    def run(*args: Any) -> Any:
        try:
            return gm.forward(*args)
        except Exception as error:
            raise InternalError(f"a captured graph raised {type(error).__name__}: {error}") from error

    return run


def pre_dispatch_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph taken through make_fx before dispatch (autograd and autocast are still in it), then run eagerly."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(*args: Any) -> Any:
        # Composite operators differ by what their inputs require, so they are taken apart anew for each call.
        return make_fx(gm, pre_dispatch=True)(*args)(*args)

    return run
