"""Calls of `torch.fx.GraphModule`: its class gets a `__call__` of its own with each graph, around the inherited one."""

from __future__ import annotations

import types
from typing import Any, Final

import torch.fx

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import Handler, handles_code

_CALL: Final = next(
    code for code in torch.fx.GraphModule.recompile.__code__.co_consts
    if isinstance(code, types.CodeType) and code.co_name == "call_wrapped")


def call_graph_module(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """torch's call of a graph module, without the line of the graph that it prints on an error."""
    wrapped = self._wrapped_call
    if wrapped.cls_call is not None:
        return wrapped.cls_call(self, *args, **kwargs)
    return super(wrapped.cls, self).__call__(*args, **kwargs)


@handles_code(_CALL)
def _graph_module_call(fn: Any) -> Handler:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.inline(t.make(call_graph_module), args, kwargs)
    return call
