"""An `autograd.Function` whose `forward` and `backward` a graph holds as they were traced, in the place of the program's own:
they read tensors of the program's or numbers that vary, which have to be inputs of the graph, or what the program changed
before, or `apply` was given objects that no graph takes.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.fx

from fxjit.applied import Plan, apply_traced
from fxjit.errors import BreakGraph
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Raised, Value
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.schemas import runs_once


class FunctionContextValue(UserObjectValue):
    """`ctx`: what `forward` leaves for `backward`."""

    def __init__(self, cls: type, needs_grad: Sequence[Value]) -> None:
        super().__init__(cls)
        self.needs_grad = needs_grad
        self.saved: list[Value] = []
        #: What `forward` has written to: given back, it is itself and not a view of itself.
        self.dirty: list[Value] = []
        #: What has no gradient, and whether gradients that are missing are zeros.
        self.fixed: list[Value] = []
        self.materializes = True
        #: The attributes as `forward` left them, and which of those `backward` looked at before it changed them.
        self.left: Mapping[str, Value | None] | None = None
        self.read: set[str] = set()

    def end_forward(self, t: Tracer) -> None:
        """From here on autograd takes no notice of what is saved and marked."""
        self.left = dict(t.effects.stored_attrs(self))

    def is_found_otherwise(self, t: Tracer) -> bool:
        """Whether `backward` has changed what it looks at, so that another one would find it otherwise."""
        now, left = t.effects.stored_attrs(self), self.left or {}
        changed = {name for name in {*now, *left} if now.get(name) is not left.get(name) or (name in now) != (name in left)}
        return bool(changed & self.read) or (bool(changed) and "__dict__" in self.read)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if self.left is not None and t.effects.stored_attrs(self).get(name) is self.left.get(name):
            self.read.add(name)
        if name == "needs_input_grad":
            return TupleValue(self.needs_grad)
        if name in ("saved_tensors", "saved_variables"):
            return TupleValue(self.saved)
        if hasattr(self, "meth_" + name):
            return protocol.make_builtin_method(t, self, name)
        return super().tp_getattro(t, name)

    def meth_save_for_backward(self, t: Tracer, *tensors: Value) -> Value:
        if self.left is None:
            self.saved = list(tensors)
        return t.make(None)

    def meth_save_for_forward(self, t: Tracer, *tensors: Value) -> Value:
        return t.make(None)

    def meth_mark_non_differentiable(self, t: Tracer, *tensors: Value) -> Value:
        if self.left is None:
            self.fixed = list(tensors)
        return t.make(None)

    def meth_set_materialize_grads(self, t: Tracer, value: Value) -> Value:
        self.materializes = protocol.truth(t, value)
        return t.make(None)

    def meth_mark_dirty(self, t: Tracer, *tensors: Value) -> Value:
        if self.left is None:
            self.dirty = list(tensors)
        return t.make(None)


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """What `forward` and `backward` came to when they were traced; the operators stand in one list, in this order."""

    cls: Any
    ctx: FunctionContextValue
    result: Value
    outputs: Sequence[Value]
    #: Stand-ins for the gradients of the outputs.
    gradients: Sequence[Value]
    backward: Value
    #: Traces `backward` once more, if that may find its context otherwise.
    repeat: Callable[[], Value] | None


def graph_arguments(t: Tracer, given: Sequence[Value]) -> list[Any] | None:
    """The arguments of a node that calls `apply` itself; None where no graph takes one of them."""
    try:
        return [arg.graph_arg(t) for arg in given]
    except BreakGraph:
        return None


def error_when_repeated(t: Tracer, name: str, traced: TracedFunction) -> tuple[str, str] | None:
    """The class and message of what `backward` raises where it runs once more (`retain_graph=True`) on a context from which it
    has deleted what it needs; None where it finds its context as before. A break where it would come to anything else."""
    if traced.repeat is None:
        return None
    error: Value | None = None
    with t.capture_subgraph(name) as nodes:
        try:
            traced.repeat()
        except Raised as raised:
            error = raised.value
    t.discard(nodes)
    cls = object if error is None else error.pytype()
    message = None if error is None else protocol.str_(t, error)
    if message is None or not message.is_constant() or getattr(builtins, cls.__name__, None) is not cls:
        t.break_("call-with-effects", function=name, why="it changes its context, and finds another one when it runs again")
    return cls.__name__, message.as_constant()


def apply_as_traced(t: Tracer, name: str, traced: TracedFunction, given: Sequence[Value], nodes: Sequence[torch.fx.Node],
                    numbers: Sequence[torch.fx.Node | None], repeat_error: tuple[str, str] | None) -> Value:
    """`apply` of what was traced as `nodes`. `numbers`: those among them that stand for arguments. `repeat_error`: what
    `backward` raises the second time."""
    def refuse(why: str) -> NoReturn:
        t.break_("call-autograd-engine", function=name, why=why)

    ctx, outputs = traced.ctx, traced.outputs
    results = [output for output in outputs if isinstance(output, TensorValue)]
    if not results or overrides.entered_transforms(t) or ctx.dirty or (not ctx.materializes and len(results) > 1):
        refuse("it writes to arguments, leaves gradients out, or runs under a transform")
    if any(runs_once(node.target) for node in nodes) or not all(
            isinstance(output, TensorValue) or output.is_constant() for output in outputs):
        refuse("it calls what may not run twice, or gives what is neither a tensor nor a constant")
    for number in numbers:
        assert number is not None, "a number is computed in the graph"
        number.replace_all_uses_with(number.all_input_nodes[0])
    forward, backward = _parts(traced, [node for node in nodes if node not in numbers])
    tensors = [arg for arg in given if isinstance(arg, TensorValue)]
    operands, made, taken = ([*map(_node, values)] for values in (tensors, results, ctx.saved))
    stand_ins = [_node(each) for each in traced.gradients if isinstance(each, TensorValue)]
    found = _gradients(t, traced.backward, given)
    if found is None or len(set(made)) < len(made) or not set(made) <= set(forward) or not set(ctx.fixed) <= set(results):
        refuse("its results are arguments, or its gradients are not those of its arguments")
    gradients = [found[place] for place, arg in enumerate(given) if isinstance(arg, TensorValue)]
    computed = list(dict.fromkeys(_node(each) for each in gradients if isinstance(each, TensorValue)))

    needs = _reads(backward, computed, stand_ins)
    own, saved = set(forward), [node for node in taken if node is not None]
    read = [node for node in dict.fromkeys([*_reads(forward, made, ()), *needs, *saved]) if node not in {*operands, *own}]
    inner = [node for node in dict.fromkeys([*needs, *saved]) if node in own and node not in made]
    places = {node: place for place, node in enumerate([*operands, *read, *made, *inner])}
    kept = [node for node in needs if node not in saved]
    plan = Plan(
        results=len(made), fixed=tuple(made.index(_node(each)) for each in ctx.fixed),
        saved=tuple(-1 if node is None else places[node] for node in taken), kept=tuple(places[node] for node in kept),
        takes=tuple(taken.index(node) if node in saved else ~kept.index(node) for node in needs),
        gradients=tuple(computed.index(_node(each)) if isinstance(each, TensorValue) else -1 for each in gradients),
        once=_is_once(traced.cls) or any(map(_sets_grad_mode, backward)), name=traced.cls.__name__,
        repeat_error=repeat_error)
    graphs = [t.subgraph(forward, [*operands, *read], [*made, *inner]), t.subgraph(backward, [*needs, *stand_ins], computed)]
    t.discard(nodes)
    found_values = iter(protocol.unpack(t, t.emit(apply_traced, [*graphs, tuple(plan), tuple(read), *operands])))
    found_results = [next(found_values) if isinstance(output, TensorValue) else output for output in outputs]
    return TupleValue(found_results) if issubclass(traced.result.pytype(), tuple) else found_results[0]


def _node(value: Value) -> Any:
    return value.node


def _parts(traced: TracedFunction, nodes: Sequence[torch.fx.Node]) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """The operators of `forward` and of `backward`, without the settings of the grad mode around each: autograd sets it."""
    stand_ins = {_node(each) for each in traced.gradients if isinstance(each, TensorValue)}
    first = next(place for place, node in enumerate(nodes) if node in stand_ins)
    parts = list(nodes[:first]), [node for node in nodes[first:] if node not in stand_ins]
    for part in parts:
        settings = [*filter(_sets_grad_mode, part)]
        for node in (settings[0], settings[-1]):
            part.remove(node)
    return parts


def _sets_grad_mode(node: torch.fx.Node) -> bool:
    """Modes were traced where `backward` is not recorded: behind a block they are what they were before it then."""
    return node.target is torch._C._set_grad_enabled


def _reads(nodes: Sequence[torch.fx.Node], results: Sequence[torch.fx.Node], known: Sequence[Any]) -> list[torch.fx.Node]:
    """What a part takes of what is outside of it."""
    used = dict.fromkeys([*(read for node in nodes for read in node.all_input_nodes), *results])
    own = {*nodes, *known}
    return [node for node in used if node not in own and node.op != "get_attr"]


def _gradients(t: Tracer, backward: Value, given: Sequence[Value]) -> list[Value] | None:
    """One for each argument, tensors or None; None where eager would complain."""
    found = protocol.unpack(t, backward) if issubclass(backward.pytype(), tuple) else [backward]
    if len(found) < len(given) or not all(isinstance(each, TensorValue) or _is_none(each) for each in found):
        return None
    fitting = all(isinstance(arg, TensorValue) or _is_none(each) for arg, each in zip(given, found, strict=False))
    return found[: len(given)] if fitting and all(map(_is_none, found[len(given):])) else None


def _is_none(value: Value) -> bool:
    return value.is_constant() and value.as_constant() is None


def _is_once(cls: Any) -> bool:
    """Whether `once_differentiable` wraps its backward."""
    step = cls.backward
    while step is not None and getattr(step, "__globals__", None) is not vars(torch.autograd.function):
        step = getattr(step, "__wrapped__", None)
    return step is not None
