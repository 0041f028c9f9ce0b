"""`torch.autograd.Function` in traced code.

Where no gradient is required, a call is its `forward`, traced like any other function. Where one is, the call is one
node that runs the real `apply`, so that autograd finds the user's `backward`; what both of them read is guarded
because of a dry run: they are traced, and the operators discarded. Where that cannot be done, the call breaks the graph, and
`forward` and `backward` are frames of their own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.fx

from fxjit.applied import apply_function
from fxjit.errors import BreakGraph
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.classes import NEW
from fxjit.frontend.values.contexts import set_grad_mode
from fxjit.frontend.values.functions import FunctionValue
from fxjit.frontend.values.objects import UserObjectValue, new_instance
from fxjit.frontend.values.run_later import run_later
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.traced_functions import (
    FunctionContextValue,
    TracedFunction,
    apply_as_traced,
    error_when_repeated,
    graph_arguments,
)
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import ConstIs, TypeIs
from fxjit.guards.source import AttrSource, ItemSource, Source
from fxjit.schemas import runs_once

#: A class method of Python up to torch 2.13, then one of C, whose descriptor stands for it.
_APPLY: Final[Any] = getattr(torch.autograd.Function.apply, "__func__", torch.autograd.Function.__dict__["apply"])


#: What `forward` may set on a context that autograd made: only autograd looks at it, when `forward` is over.
_SETTINGS: Final = frozenset(("to_save", "saved_for_forward", "non_differentiable", "materialize_grads"))
_SAVED: Final = frozenset(("saved_tensors", "saved_variables", "_raw_saved_tensors"))


class RunningContextValue(UserObjectValue):
    """`ctx` of a `forward` or `backward` that autograd itself runs, behind a graph break."""

    def generic_getattr(self, t: Tracer, name: str, hook: bool = True) -> Value:
        if name == "saved_tensors" and self.source is not None and self._is_read_unseen(t, self.source):
            return t.wrap(getattr(self.obj, name), AttrSource(self.source, name))
        if name in _SAVED:
            t.break_("value-attribute", name=name, value=self.describe(), type=self.cls.__name__,
                     why="hooks on saved tensors and checkpoints count how often it is read")
        if name == "needs_input_grad" and self.source is not None:
            needed = getattr(self.obj, name)
            t.guard(ConstIs(AttrSource(self.source, name), needed))
            return t.make(needed)
        return super().generic_getattr(t, name, hook)

    def _is_read_unseen(self, t: Tracer, source: Source) -> bool:
        """Whether nobody sees how often guards and new code read what is saved: none of it has a hook."""
        try:
            hooks = [each.unpack_hook for each in getattr(self.obj, "_raw_saved_tensors")]  # noqa: B009 - of a context
            if any(hook is not None for hook in hooks):
                return False
            getattr(self.obj, "saved_tensors")  # noqa: B009 - raises where it was freed or written to
        except (AttributeError, RuntimeError):  # not every torch tells
            return False
        raw = AttrSource(source, "_raw_saved_tensors")
        for index in range(len(hooks)):
            t.guard(ConstIs(AttrSource(ItemSource(raw, index), "unpack_hook"), None))
        return True

    def generic_setattr(self, t: Tracer, name: str, value: Value | None) -> None:
        if name in _SETTINGS and value is not None:
            t.effects.call_later(setattr, (self, name, value))
        else:
            super().generic_setattr(t, name, value)


@wraps(torch._C._FunctionBase, subclasses=True)
def _wrap_context(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return RunningContextValue(type(obj), source, obj)


def _new_function(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`MyFunction()`: deprecated, and nothing but an object whose class has `apply`."""
    return new_instance(t, cls)


NEW.register(torch._C._FunctionBase, _new_function)


@handles(_APPLY)
def _apply(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`MyFunction.apply(...)`: the class is the first argument."""
    owner, *given = args
    cls = owner.as_constant()
    name = f"{cls.__qualname__}.apply"
    if kwargs:
        t.break_("call-autograd-engine", function=name)
    if cls.setup_context is not torch.autograd.Function.setup_context:
        given += _defaults_behind(t, protocol.getattr_(t, owner, "forward"), len(given))
    tensors = [arg for arg in given if isinstance(arg, TensorValue)]
    if not torch.is_grad_enabled() or not any(tensor.fake.requires_grad for tensor in tensors):
        return _forward(t, owner, cls, given)[0]
    operands = graph_arguments(t, given)
    with t.effects.reporting_reads() as anything_was_read, t.capture_subgraph(name) as nodes:
        rehearsed = [_number_by_itself(t, arg) for arg in given]
        traced = _rehearse(t, owner, cls, rehearsed)
        changed = anything_was_read()
    repeat_error = error_when_repeated(t, name, traced)
    numbers = [arg.node for arg, before in zip(rehearsed, given, strict=True) if arg is not before]
    if operands is None or changed or _reads_the_program(nodes, operands, numbers):
        return apply_as_traced(t, name, traced, given, nodes, numbers, repeat_error)
    function = apply_function(cls)
    function.runs_once = any(runs_once(node.target) for node in nodes)  # type: ignore[attr-defined]  # (schemas.py)
    dirty = traced.ctx.dirty
    if any(isinstance(tensor, TensorValue) and (tensor.source is not None or tensor.fake._is_view()) for tensor in dirty):
        t.break_("call-autograd-engine", function="ctx.mark_dirty")
    try:
        result = t.emit(function, given)
    except BreakGraph as signal:
        if signal.reason != "operator-raised":
            raise
    else:
        t.discard(nodes)
        return result
    return apply_as_traced(t, name, traced, given, nodes, numbers, repeat_error)


def _defaults_behind(t: Tracer, forward: Value, given: int) -> list[Value]:
    """What `forward` has by default in the places behind those of the arguments given: `setup_context` is told of them too."""
    forward = forward.realize()
    if not isinstance(forward, FunctionValue):
        return []
    left_out = max(forward.fn.__code__.co_argcount - given, 0)
    defaults = protocol.getattr_(t, forward, "__defaults__").realize() if left_out else t.make(())
    known = protocol.unpack(t, defaults) if issubclass(defaults.pytype(), tuple) else []
    return known[-left_out:] if 0 < left_out <= len(known) else []


def _number_by_itself(t: Tracer, arg: Value) -> Value:
    """A number that varies, as an argument: apart from that number where `forward` or `backward` read it themselves."""
    return t.emit(operator.pos, [arg]) if isinstance(arg, SymValue) and arg.pytype() is not bool else arg


def _reads_the_program(nodes: Sequence[torch.fx.Node], operands: Sequence[Any], numbers: Sequence[Any]) -> bool:
    """Whether `forward` or `backward` read tensors that are no arguments, or numbers that vary: where they are compiled, these
    have to be inputs of the graph."""
    given = set[torch.fx.Node]()
    torch.fx.map_arg(list(operands), given.add)
    own = set(nodes)
    for node in dict.fromkeys(read for user in nodes if user not in numbers for read in user.all_input_nodes):
        value = node.meta.get("example_value")
        is_number = isinstance(value, torch.SymInt | torch.SymFloat) and (node.op == "placeholder" or node.target == "item")
        if node not in own and ((isinstance(value, torch.Tensor) and node not in given) or is_number):
            return True
    return False


def _forward(t: Tracer, owner: Value, cls: Any, given: list[Value]) -> tuple[Value, FunctionContextValue]:
    """`forward` as autograd calls it: without recording. What it gives back of its own arguments is a view of them."""
    needs = [t.make(isinstance(arg, TensorValue) and arg.fake.requires_grad) for arg in given]
    ctx = FunctionContextValue(cls._backward_cls, needs)
    forward = protocol.getattr_(t, owner, "forward")
    before = torch.is_grad_enabled()
    set_grad_mode(t, False)
    if cls.setup_context is torch.autograd.Function.setup_context:
        result = t.call(forward, [ctx, *given], None)
    else:
        result = t.call(forward, given, None)
        t.call(protocol.getattr_(t, owner, "setup_context"), [ctx, TupleValue(given), result], None)
    set_grad_mode(t, before)
    ctx.end_forward(t)
    passed_on = [arg for arg in given if isinstance(arg, TensorValue) and arg not in ctx.dirty]
    if result in passed_on:
        result = _view_of(t, result)
    elif issubclass(result.pytype(), tuple) and any(item in passed_on for item in protocol.unpack(t, result)):
        result = TupleValue([_view_of(t, item) if item in passed_on else item for item in protocol.unpack(t, result)])
    return result, ctx


def _view_of(t: Tracer, tensor: Value) -> Value:
    """All of the tensor, of what its class makes of that."""
    if tensor.pytype() is torch.Tensor:
        return t.emit("view_as", [tensor, tensor])
    return t.call(protocol.getattr_(t, tensor, "view_as"), [tensor], None)


def _rehearse(t: Tracer, owner: Value, cls: Any, given: list[Value]) -> TracedFunction:
    """Trace forward and backward once, for what they read and for whether they can be traced at all."""
    result, ctx = _forward(t, owner, cls, given)
    outputs = protocol.unpack(t, result) if issubclass(result.pytype(), tuple) else [result]
    gradients = [t.emit(torch.empty_like, [output]) if isinstance(output, TensorValue) else t.make(None)
                 for output in outputs]
    with run_later(t, f"{cls.__qualname__}.apply", private=ctx):
        backward = _backward(t, owner, ctx, gradients)
    repeat = functools.partial(_backward, t, owner, ctx, gradients) if ctx.is_found_otherwise(t) else None
    return TracedFunction(cls, ctx, result, outputs, gradients, backward, repeat)


def _backward(t: Tracer, owner: Value, ctx: FunctionContextValue, gradients: Sequence[Value]) -> Value:
    """`backward` as autograd calls it: without recording."""
    outer, t.in_backward = t.in_backward, True
    set_grad_mode(t, False)
    try:
        return t.call(protocol.getattr_(t, owner, "backward"), [ctx, *gradients], None)
    finally:
        t.in_backward = outer
        set_grad_mode(t, True)
