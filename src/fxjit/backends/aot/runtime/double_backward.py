"""Double backward: a backward graph cannot be differentiated, so under `create_graph=True` the captured graph runs once more,
operator by operator, and autograd derives that.

Tangents that are batches of them go through it, too. The autograd node keeps the graph's inputs for it, copies of those that
the graph reads and then writes to, the state of the random generator where it draws, and that of autocast: the second run is
the first one again. A graph of which a second derivative was wanted once runs as it was captured from then on: to run the
compiled one as well would cost more than eager does.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.fx

from fxjit import _C

from .call_plan import CallPlan, OutputKind

#: In bytes: of larger inputs that the graph reads and then writes to, no copies are kept.
_MOST_WRITTEN: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class State:
    """What the second run finds as the first one did."""

    #: Copies of the inputs that the graph reads and then writes to, by their index.
    written: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Of the CPU's random generator, where the graph draws from it.
    rng: torch.Tensor | None = None
    #: Where autocast was on: the device, and the type it converts to.
    autocast: tuple[tuple[str, torch.dtype], ...] = ()

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        before = None if self.rng is None else torch.get_rng_state()
        with contextlib.ExitStack() as stack:
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            try:
                if self.rng is not None:
                    torch.set_rng_state(self.rng)
                yield
            finally:
                if before is not None:
                    torch.set_rng_state(before)


class _AsItWas(torch.autograd.Function):
    """An input with other contents."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
        return contents.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


NO_SECOND_DERIVATIVE: Final = (
    "this compiled graph has no second derivative: fxjit has none of graphs that draw random numbers on a GPU, or write to "
    "what inputs share, to more than a megabyte or with a gradient of the write. Use backend='eager' for what is "
    "differentiated twice")
_AS_IT_IS: Final = State()
#: The inputs of one run, the version counters of those that are differentiated, and the state before the run.
Kept = tuple[tuple[Any, ...], list[int], State]


class DoubleBackward:
    """The captured graph, run again for its derivative. `on_first` is called where a second derivative is wanted first."""

    def __init__(self, gm: Callable[..., Any], plan: CallPlan, on_first: Callable[[], None]) -> None:
        self._graph = _C.DisabledFunction(gm, opaque=True)
        self._differentiated = tuple(index for index, info in enumerate(plan.inputs) if info.requires_grad)
        #: For each intermediate that outputs are views of: one of them.
        view_of = {info.base_index: index for index, info in enumerate(plan.outputs)
                   if info.kind in (OutputKind.alias_of_intermediate, OutputKind.alias_of_intermediate_save_as_output)}
        self._views = tuple(view_of[base] for base in range(plan.num_intermediate_bases))
        self._written, self._read = plan.mutated_in_graph, plan.read_before_written
        self._counted = tuple(index for index in self._differentiated if index not in self._written)
        self._draws, self._casts = plan.uses_rng, plan.autocast
        self._on_first = on_first
        self.wanted = False

    def keep(self, inputs: tuple[Any, ...]) -> Kept | None:
        """Keeps the part of a run that `gradients` needs; None where that is too much, or random numbers of a GPU, which
        compiled graphs draw in an order of their own."""
        state = _AS_IT_IS
        if self._read or self._draws or self._casts:
            if sum(inputs[index].nbytes for index in self._read) > _MOST_WRITTEN:
                return None
            if self._draws and any(isinstance(each, torch.Tensor) and not each.is_cpu for each in inputs):
                return None
            state = State({index: inputs[index].clone() for index in self._read},
                          torch.get_rng_state() if self._draws else None, _autocast_now() if self._casts else ())
        return inputs, _C.tensor_versions(inputs, self._counted), state

    def run(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The graph's outputs, with what autograd recorded of each operator."""
        return tuple(self._graph(*inputs))

    def gradients(self, kept: Kept, tangents: Sequence[int], given: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of the inputs, which can be differentiated while gradients are recorded, from those of the outputs at
        `tangents`: the graph's, and after them the intermediates that some are views of."""
        if not self.wanted:
            self._on_first()
        self.wanted = True
        inputs, versions, state = kept
        if versions != _C.tensor_versions(inputs, self._counted):
            raise RuntimeError("an input of a compiled graph was written to in place between its forward and its second "
                               "derivative, which is computed from that input's old contents: give the graph a clone")
        records = torch.is_grad_enabled()
        with torch.enable_grad():
            given_to = list(inputs)
            for index in self._differentiated:  # one tensor may be several inputs
                given_to[index] = inputs[index].view_as(inputs[index])
            for index in self._written:  # without recording: it is what autograd knew before
                copy = state.written.get(index)
                contents = inputs[index].detach() if copy is None else copy
                differs = index in self._differentiated
                given_to[index] = _AsItWas.apply(inputs[index], contents) if differs else contents.clone()
            by = [given_to[index] for index in self._differentiated]
            with state.in_force():
                outputs = [*self.run(tuple(given_to))]
            outputs += [outputs[index]._base for index in self._views]
            pairs = [(outputs[index], given[index]) for index in tangents if given[index] is not None]
            found = torch.autograd.grad([output for output, _ in pairs], by, [grad for _, grad in pairs],
                                        create_graph=records, allow_unused=True)
        gradients: list[Any] = [None] * len(inputs)
        for index, gradient in zip(self._differentiated, found, strict=True):
            gradients[index] = gradient
        return tuple(gradients)


class _Inputs(torch.autograd.Function):
    """An empty tensor that depends on all that a graph was given, and holds none of it."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise RuntimeError(NO_SECOND_DERIVATIVE)


def standing_for(inputs: Sequence[Any]) -> torch.Tensor:
    """For a graph that has no second derivative: what its gradients are to depend on, so that whoever asks for their derivative
    by one of the inputs comes to the node that raises. By itself a gradient need not depend on anything that has one."""
    with torch.enable_grad():
        return _Inputs.apply(*[each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad])  # type: ignore[no-any-return]  # torch's, without types


class _Dependent(torch.autograd.Function):
    """A gradient, as one that depends on the graph's inputs."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise RuntimeError(NO_SECOND_DERIVATIVE)


def refusing_second_derivative(call: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """`call` with a training graph behind AOTAutograd's own wrappers, whose node raises where its gradients are differentiated
    by a way that leads to a tangent."""

    def run(*args: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(*args)
        inputs = standing_for(args)
        outputs = call(*args)
        for node in _compiled_nodes([*outputs, *(args[index] for index in written)]):
            node.register_hook(functools.partial(_dependent_gradients, inputs))
        return outputs

    _C.set_flags(run.__code__, _C.TRANSFORMED)  # the frame hook passes it by
    return run


#: How far above a result the node may be: below it are a view, and the write that AOTAutograd makes to an input or to its base.
_MOST_ABOVE: Final = 4


def _compiled_nodes(results: Sequence[Any]) -> set[Any]:
    nodes: set[Any] = {each.grad_fn for each in results if isinstance(each, torch.Tensor) and each.requires_grad} - {None}
    found: set[Any] = set()
    for _ in range(_MOST_ABOVE):
        found |= {each for each in nodes if each.name() == "CompiledFunctionBackward"}
        nodes = {following for each in nodes - found for following, _ in each.next_functions} - {None}
    return found


def _dependent_gradients(inputs: torch.Tensor, gradients: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(None if each is None else _Dependent.apply(inputs, each) for each in gradients)


def may_run_twice(plan: CallPlan, are_aliased: bool) -> bool:
    """Whether a captured training graph can be run again as it ran: what it writes to, no other input shares."""
    return plan.backward is not None and not (are_aliased and plan.mutated_in_graph)


def _autocast_now() -> tuple[tuple[str, torch.dtype], ...]:
    return tuple((device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device))


def graph_is_retained() -> bool:
    """Whether autograd may run this backward again, and request a second derivative then. Valid inside a backward only."""
    try:
        return bool(_C.state_now("keeps_graph"))
    except ValueError:  # torch does not export it: the inputs are let go, and with them that second derivative
        return False
