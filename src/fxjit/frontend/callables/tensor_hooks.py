"""Hooks on tensors. On one that the graph makes, the hook is traced into a graph of its own, and a node registers that: so the
hook runs when autograd comes by, also where the backward is compiled: then it is traced into that. On a tensor that existed
before, the user's hook itself is registered when the graph ran, and its handle is filled then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from fxjit import torch_private
from fxjit.applied import layout_of_gradient, with_layout
from fxjit.errors import BreakGraph, leave_trace
from fxjit.frontend.callables.higher_order import trace_body
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles, pass_on
from fxjit.frontend.values.contexts import set_grad_mode
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.observed import HOOKED, is_made_by_write, observation
from fxjit.frontend.values.run_later import run_later
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.tensor_methods import method

_NAME = "Tensor.register_hook"


def register(tensor: torch.Tensor, hook: torch.fx.GraphModule, *read: Any) -> None:
    """The target of the node: `hook` takes the gradient and the values it `read` of the program around it."""
    strides = layout_of_gradient(tensor)

    def call(gradient: torch.Tensor) -> torch.Tensor | None:
        results = hook(with_layout(gradient, strides), *read)
        return results[0] if results else None

    if tensor.requires_grad:
        tensor.register_hook(call)  # type: ignore[no-untyped-call]  # untyped in torch


register.sees_gradients = True  # type: ignore[attr-defined]  # for backends (aot/rules.py)


class HandleValue(UserObjectValue):
    """The handle of a hook that is registered when the graph ran: what is in it is known then."""

    def generic_getattr(self, t: Tracer, name: str, hook: bool = True) -> Value:
        if descriptors.look_up(t, self.cls, name)[1] is None:
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        return super().generic_getattr(t, name, hook)

    def generic_setattr(self, t: Tracer, name: str, value: Value | None) -> None:
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def instance_dict(self, t: Tracer) -> Value:
        t.break_("attribute-unsupported", value=self.describe(), name="__dict__")


def _register_and_fill(call: Callable[[Any, Any], RemovableHandle], tensor: Any, hook: Any, handle: RemovableHandle) -> None:
    """What new code calls: `handle` becomes that of the hook."""
    vars(handle).update(vars(call(tensor, hook)))


@handles(RemovableHandle.remove)
def _remove(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or not isinstance(args[0].realize(), HandleValue):
        return pass_on(t, RemovableHandle.remove, args, kwargs)
    t.effects.call_later(RemovableHandle.remove, args)
    return t.make(None)


def _register_later(t: Tracer, tensor: TensorValue, args: Sequence[Value], call: Callable[..., Any], takes: bool) -> Value:
    """A hook on a tensor that existed before: registered after the graph ran, since no gradient flows earlier but by a pass in
    the graph, which asks (backward.py). `takes`: whether the tensor takes one. Where it is no leaf, a write changes which
    gradient the hook is for, also a later one (frontend/writes.py)."""
    name = f"Tensor.{call.__name__}"
    if len(args) != 1 or not takes:
        t.break_("tensor-hook", function=name, why="it belongs to the tensor itself")
    if is_made_by_write(tensor.node):
        t.break_("tensor-hook", function=name, why="the tensor is written to before it", **observation(tensor))
    t.new_source_state(HOOKED)[tensor.node.name] = tensor
    if t.discards_result():
        t.effects.call_later(call, [tensor, args[0]])
        return t.make(None)
    handle = HandleValue(RemovableHandle)
    t.effects.call_later(_register_and_fill, [call, tensor, args[0], handle])
    return handle


def _is_leaf(t: Tracer, tensor: TensorValue) -> bool:
    return tensor.fake.requires_grad and protocol.truth(t, protocol.getattr_(t, tensor, "is_leaf"))


@handles(torch_private.optional("torch.utils.hooks.BackwardHook._apply_on_tensors"))
def _mark_in_autograd(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Inserts the two autograd nodes through which a module's backward hooks get the gradients of its inputs and outputs."""
    _, _, tensors = args
    if torch.is_grad_enabled() and any(isinstance(each, TensorValue) and each.fake.requires_grad
                                       for each in protocol.unpack(t, tensors)):
        t.break_("tensor-hook", function="Module.register_full_backward_hook", why="autograd calls it, with the module itself")
    return pass_on(t, torch_private.get("torch.utils.hooks.BackwardHook._apply_on_tensors"), args, kwargs)


@method("register_post_accumulate_grad_hook")
def _register_post_hook(t: Tracer, tensor: TensorValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    takes = tensor.source is not None and _is_leaf(t, tensor)
    return _register_later(t, tensor, args, torch.Tensor.register_post_accumulate_grad_hook, takes)


@method("register_hook")
def _register_hook(t: Tracer, tensor: TensorValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    if tensor.source is not None:
        return _register_later(t, tensor, args, torch.Tensor.register_hook, tensor.fake.requires_grad)
    try:
        return _register_in_graph(t, tensor, args)
    except BreakGraph as signal:
        leave_trace(signal.but(context={**signal.context, **observation(tensor)}))


def _register_in_graph(t: Tracer, tensor: TensorValue, args: Sequence[Value]) -> Value:
    if len(args) != 1 or not tensor.fake.requires_grad:
        t.break_("tensor-hook", function=_NAME, why="the tensor takes none")
    if not t.discards_result():
        t.break_("tensor-hook", function=_NAME, why="its handle is kept, by which it can be taken away again")

    def call(stand_ins: Sequence[Value]) -> Value:
        result = t.call(args[0], stand_ins, None)
        return TupleValue([]) if result.is_constant() and result.as_constant() is None else result

    before = torch.is_grad_enabled()
    with run_later(t, _NAME), t.capture_subgraph(_NAME) as nodes:
        set_grad_mode(t, False)
        body = trace_body(t, _NAME, lambda: [t.emit(torch.empty_like, [tensor])], call)
        set_grad_mode(t, before)
    if len(body.leaves) > 1:
        t.break_("tensor-hook", function=_NAME, why="it gives several results")
    read = body.reads()
    graph = body.graph(t, read)
    t.discard(nodes)
    return t.emit(register, [tensor, graph, *read])
