"""The backward pass in a graph: `torch.autograd.grad`, and, with `config.trace_autograd_ops` or in the `backward` of an
`autograd.Function`, `backward()`, which is that with respect to the leaves that it reaches, accumulated in their `.grad` as
autograd's `AccumulateGrad` does it.

A backward pass frees what the forward pass saved. What the program gets of the tensors behind it has an autograd graph that is
used up, as in eager: see frontend/values/used_up.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import torch
import torch.fx

from fxjit import config
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol, storages, used_up
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.contexts import saved_tensors_hooks_are_active, set_grad_mode
from fxjit.frontend.values.observed import HOOKED, observation
from fxjit.frontend.values.sequence import SequenceValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.tensor_methods import method
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import AttrSource, CallSource, ConstSource

_GRAD: Final = inspect.signature(torch.autograd.grad)
_BACKWARD: Final = inspect.signature(torch.autograd.backward)
_METHOD: Final = inspect.signature(torch.Tensor.backward)
#: Hooks that autograd calls with the gradient of a leaf.
_HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
_LEAVES_ITS_MARK: Final = "an input that the graph writes to would be left with an autograd graph that is used up"
_FLOWS_ON: Final = "gradients flow on to what was computed before the graph"
_STAYS_OUT: Final = "fxjit.config.trace_autograd_ops, by which it becomes part of the graph, is off"

Args = Sequence[Value]
Kwargs = Mapping[str, Value]


class _Pass:
    """One backward pass that the program asks for."""

    def __init__(self, t: Tracer, name: str, signature: inspect.Signature, args: Args, kwargs: Kwargs) -> None:
        self.t, self.name = t, name
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:  # which the call itself raises
            self.inputs = None
            self.refuse("its arguments do not fit")
        self.inputs = given.arguments.get("inputs")
        given.apply_defaults()
        self.given = given.arguments

    def refuse(self, why: str) -> NoReturn:
        self.t.break_("call-autograd-engine", function=self.name, why=why, **observation(self.inputs))

    def constant(self, name: str) -> Any:
        value = self.given[name]
        if not isinstance(value, Value):
            return value
        if not value.is_constant():
            self.refuse(f"`{name}` is no constant")
        return value.as_constant()

    def tensors(self, name: str) -> list[TensorValue | None]:
        """Those of an argument, one or several, of which each may be None."""
        value = self.given[name]
        if value is None:
            return []
        value = value.realize() if isinstance(value, Value) else self.t.make(value)
        items = [each.realize() for each in value.items] if isinstance(value, SequenceValue) else [value]
        found: list[TensorValue | None] = []
        for each in items:
            if isinstance(each, TensorValue) and not self._is_foreign(each):
                found.append(each)
            elif each.is_constant() and each.as_constant() is None:
                found.append(None)
            else:
                self.refuse(f"`{name}` has other things than plain tensors")
        return found

    def _is_foreign(self, tensor: TensorValue) -> bool:
        return tensor.cls not in (torch.Tensor, torch.nn.Parameter) or tensor.new_data is not None

    def check_surroundings(self) -> None:
        """Refuses a pass that others take part in, or look at."""
        t = self.t
        if overrides.entered_transforms(t) or overrides.innermost(t) is not None:
            self.refuse("a transform or a mode looks on")
        if who := who_takes_part():
            self.refuse(who)
        t.guard(ConstIs(CallSource(ConstSource(who_takes_part, "who_takes_part")), ""))

    def require_taken(self, gradients_alone: bool) -> None:
        """Refuses a pass that stays outside of the graph. One that gives gradients, and leaves none anywhere, is in it whatever
        the settings say: else the graph would end there, and what autograd looks at would be run as captured."""
        if not (gradients_alone or config.trace_autograd_ops or self.t.in_backward):
            self.refuse(_STAYS_OUT)
        if not self.t.takes_backward_passes(gradients_alone):
            self.refuse(_LEAVES_ITS_MARK)

    def check_history(self, outputs: Sequence[TensorValue | None], inputs: Sequence[TensorValue | None]) -> None:
        """Refuses a pass that goes on to what was computed before the graph, by which it may come to the inputs once more."""
        ends = {each.fake.grad_fn for each in inputs if each is not None}
        leaves = leaves_behind([each.fake for each in outputs if each is not None], ends)
        if any(self.t.known_tensor(leaf) is None for leaf in leaves):
            self.refuse(_FLOWS_ON)
        self.check_sources(outputs, inputs)

    def check_sources(self, outputs: Sequence[TensorValue | None], inputs: Sequence[TensorValue | None]) -> None:
        """Refuses gradients of one input of the graph by way of another that has a history: it may lead to the first, by
        operators that are not in the graph. Autograd goes on behind tensors whose gradients are asked for, too."""
        sources = [fake for fake, _, _ in self.t.new_source_state(storages.INPUTS).values() if fake.requires_grad]
        asked = {id(each.fake) for each in inputs if each is not None} & set(map(id, sources))
        fakes = [each.fake for each in outputs if each is not None]
        met = set(autograd_nodes(fakes))
        if any(asked - {id(fake)} for fake in sources if fake.grad_fn in met):
            self.refuse(_FLOWS_ON)
        for leaf in leaves_behind(fakes):  # for which no guard says so
            value = self.t.known_tensor(leaf) if asked - {id(leaf)} else None
            if value is not None and value.source is not None and value.cls is not torch.nn.Parameter:
                protocol.getattr_(self.t, value, "is_leaf")

    def check_hooks(self, tensors: Sequence[TensorValue]) -> None:
        """Autograd calls them while it runs."""
        for each in tensors:
            if each.node.name in self.t.new_source_state(HOOKED):
                self.refuse("a tensor has hooks")
            if each.real is None:
                continue
            assert each.source is not None
            for name in _HOOKS:
                if getattr(each.real, name) is not None:
                    self.refuse("a tensor has hooks")
                self.t.guard(ConstIs(AttrSource(each.source, name), None))

    def gradients(self, outputs: Sequence[TensorValue | None], inputs: Sequence[TensorValue | None], given: object,
                  *options: object) -> Value:
        if not self.t.in_backward:  # whose autograd graphs stay inside
            used_up.note_pass(self.t)
        return self.t.emit(torch.autograd.grad, [list(outputs), list(inputs), given, *options])


def who_takes_part() -> str:
    """Who else does something while autograd runs, in words; empty where nobody does."""
    if saved_tensors_hooks_are_active():
        return "hooks for saved tensors are active"
    if torch.is_anomaly_enabled():
        return "autograd looks for anomalies"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "in a process group, gradients may be reduced by hooks that only autograd knows"
    return ""


def leaves_behind(outputs: Sequence[torch.Tensor], ends: Collection[object] = ()) -> list[torch.Tensor]:
    """The leaves that gradients of these arrive at, each once; not those that they come to by way of `ends` alone."""
    found = {id(each): each for each in outputs if each.requires_grad and each.grad_fn is None}
    for node in autograd_nodes(outputs, ends):
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.setdefault(id(leaf), leaf)
    return list(found.values())


def autograd_nodes(outputs: Sequence[torch.Tensor], ends: Collection[object] = ()) -> list[Any]:
    """The nodes of autograd's graph that gradients of these come through, without `ends` and what is behind them alone."""
    waiting: list[Any] = [each.grad_fn for each in outputs if each.grad_fn is not None and each.grad_fn not in ends]
    known, found = {*waiting, *ends}, []
    while waiting:
        found.append(waiting.pop())
        for following, _ in found[-1].next_functions:
            if following is not None and following not in known:
                known.add(following)
                waiting.append(following)
    return found


@handles(torch.autograd.grad)
def _grad(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    asked = _Pass(t, "torch.autograd.grad", _GRAD, args, kwargs)
    asked.check_surroundings()
    if asked.constant("is_grads_batched"):
        asked.refuse("its gradients are batched")
    outputs, inputs, given = (asked.tensors(name) for name in ("outputs", "inputs", "grad_outputs"))
    asked.check_hooks([each for each in inputs if each is not None])
    asked.require_taken(gradients_alone=True)
    asked.check_history(outputs, inputs)
    retain, create, unused, zeros = map(asked.constant, ("retain_graph", "create_graph", "allow_unused",
                                                         "materialize_grads"))
    return asked.gradients(outputs, inputs, given or None, retain, create, True, unused, False, zeros)


@handles(torch.autograd.backward)
def _backward(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _run(_Pass(t, "torch.autograd.backward", _BACKWARD, args, kwargs), "tensors", "grad_tensors")


@method("backward")
def _tensor_backward(t: Tracer, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    return _run(_Pass(t, "Tensor.backward", _METHOD, [tensor, *args], kwargs), "self", "gradient")


def _run(asked: _Pass, of: str, given: str) -> Value:
    t = asked.t
    asked.require_taken(gradients_alone=False)
    asked.check_surroundings()
    if asked.constant("create_graph"):
        asked.refuse("gradients of leaves would be part of autograd's graph")
    if asked.given.get("grad_variables") is not None:
        asked.refuse("`grad_variables` is an old name")
    outputs = [each for each in asked.tensors(of) if each is not None]
    if not outputs or not all(each.fake.requires_grad for each in outputs):
        asked.refuse("it has nothing to differentiate")
    leaves = _leaves_of(asked, outputs)
    asked.check_hooks(leaves)
    found = asked.gradients(outputs, leaves, asked.tensors(given) or None, asked.constant("retain_graph"), False, True, True)
    gradients = protocol.unpack(t, found)
    taken = _memories(outputs[0].node.graph, except_of=gradients)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        if isinstance(gradient, TensorValue):
            _accumulate(t, leaf, gradient, taken)
    return t.make(None)


def _leaves_of(asked: _Pass, outputs: Sequence[TensorValue]) -> list[TensorValue]:
    """Those whose `.grad` changes."""
    chosen = [each for each in asked.tensors("inputs") if each is not None]
    if asked.given["inputs"] is not None:
        if not chosen or not all(_is_leaf(asked.t, each) for each in chosen):
            asked.refuse("`inputs` are no leaves")
        asked.check_sources(outputs, chosen)
        return chosen
    leaves = [asked.t.known_tensor(leaf) for leaf in leaves_behind([each.fake for each in outputs])]
    known = [leaf for leaf in leaves if leaf is not None and leaf.set_late is None]
    if len(known) != len(leaves) or not all(_is_leaf(asked.t, leaf) for leaf in known):
        asked.refuse(_FLOWS_ON)
    asked.check_sources(outputs, known)
    return known


def _is_leaf(t: Tracer, tensor: TensorValue) -> bool:
    return tensor.fake.requires_grad and protocol.truth(t, protocol.getattr_(t, tensor, "is_leaf"))


# -- accumulating --------------------------------------------------------------------------------------------------


def _accumulate(t: Tracer, leaf: TensorValue, gradient: TensorValue, taken: set[int]) -> None:
    """As torch/csrc/autograd/functions/accumulate_grad.h documents it: in place where there is a gradient already; else the
    gradient is kept as it is if it has its memory for itself and the layout of the leaf, or copied."""
    before = protocol.getattr_(t, leaf, "grad")
    if isinstance(before, TensorValue):
        mode = torch.is_grad_enabled()
        set_grad_mode(t, False)
        t.emit("add_", [before, gradient])
        set_grad_mode(t, mode)
        return
    memory = _memory(gradient.fake)
    if memory in taken or not _has_layout_of(gradient.fake, leaf.fake):
        gradient = _copied(t, leaf, gradient)
    taken.add(memory)
    if leaf.source is None:  # a leaf that the trace made, which nobody sees outside of the graph (leaves.py)
        t.effects.store_attr(leaf, "grad", gradient)
    else:
        leaf.tp_setattro(t, "grad", gradient)


def _copied(t: Tracer, leaf: TensorValue, gradient: TensorValue) -> TensorValue:
    mode = torch.is_grad_enabled()
    set_grad_mode(t, False)
    like = {"memory_format": torch.preserve_format if _is_dense(leaf.fake) else torch.contiguous_format}
    copy = t.emit(torch.empty_like, [leaf], {**like, "dtype": gradient.fake.dtype})
    copy = t.emit("copy_", [copy, gradient])
    set_grad_mode(t, mode)
    assert isinstance(copy, TensorValue)
    return copy


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _has_layout_of(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    if not _is_dense(leaf):
        return gradient.is_contiguous()
    return all(size == 1 or mine == its for size, mine, its in zip(leaf.shape, gradient.stride(), leaf.stride(), strict=True))


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _memories(graph: torch.fx.Graph, except_of: Sequence[Value]) -> set[int]:
    """The memory of all that the graph has but these results."""
    results = {value.node for value in except_of if isinstance(value, TensorValue)}
    return {_memory(each) for node in graph.nodes if node not in results for each in _tensors_of(node, results)}


def _tensors_of(node: torch.fx.Node, results: set[torch.fx.Node]) -> Iterator[torch.Tensor]:
    if any(user in results for user in node.users):  # the tuple that they are taken from
        return
    value = node.meta.get("example_value")
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(each, torch.Tensor):
            yield each
