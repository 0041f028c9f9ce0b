"""One trace of one frame: implements `Tracer`, runs the machine over the frame's code, and freezes what came out.

attempts.py begins it, again and again while break points are found; what comes out of the last is a `TraceResult`.
"""

from __future__ import annotations

import collections
import contextlib
import keyword
import operator
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeGuard

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from fxjit import process_state, torch_private
from fxjit.collectives import NotFunctional, made_functional
from fxjit.composites import taking_composites_apart
from fxjit.errors import BreakGraph, RestartTrace, leave_trace
from fxjit.fake_execution import DATA_DEPENDENT, SYMBOL_NOT_FOUND, UNSUPPORTED, python_dispatcher
from fxjit.frontend import kept_apart, writes
from fxjit.frontend.bytecode.instruction import Code
from fxjit.frontend.callables import families as _families  # noqa: F401 - builtins sign up at import
from fxjit.frontend.dynamic import FrameHistory, ShapePolicy, SymbolicFloat, float_tensor
from fxjit.frontend.effects import Effects
from fxjit.frontend.fakes import fake_of, faked, on_current_gpu, on_usable_device, unguarded_convolutions
from fxjit.frontend.graph import GraphBuilder
from fxjit.frontend.interp.ends import Ends
from fxjit.frontend.interp.inline import inline
from fxjit.frontend.interp.machine import Machine, root_machine, running, stack_text, user_stack
from fxjit.frontend.interp.raising import raise_exception
from fxjit.frontend.interp.restart import BreakPoints
from fxjit.frontend.interp.resumability import is_held, live_locals
from fxjit.frontend.layouts import check_layout, sparse_input
from fxjit.frontend.leaves import Leaves
from fxjit.frontend.operands import checking_operands, thawed
from fxjit.frontend.operators_once import OperatorsOnce
from fxjit.frontend.replaced_operators import original, torchs_own
from fxjit.frontend.result import Break, Return, TraceResult
from fxjit.frontend.rng_steps import RngSteps
from fxjit.frontend.speculation import Speculation, version
from fxjit.frontend.updated_numbers import foresee_updated_numbers
from fxjit.frontend.values import contexts, given_numbers, overrides, set_history, storages
from fxjit.frontend.values import families as _values  # noqa: F401 - every value signs up at import
from fxjit.frontend.values.base import Lazy, Value
from fxjit.frontend.values.bound_arguments import bound_call, holds_bound
from fxjit.frontend.values.classes import constructed
from fxjit.frontend.values.computed_numbers import computed
from fxjit.frontend.values.constant import ConstantValue, is_plain_constant
from fxjit.frontend.values.forward_levels import Level
from fxjit.frontend.values.functions import FunctionValue
from fxjit.frontend.values.fxjit_callables import breaks_are_errors
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.sets import SetValue
from fxjit.frontend.values.sparse import SparseValue
from fxjit.frontend.values.subclasses import graph_alias
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import OpaqueValue, TensorValue
from fxjit.frontend.values.wrap import factory_of, wrap_object
from fxjit.frontend.values.wrappers import NO_WRAPPER
from fxjit.frontend.wrapper_inputs import fake_wrapper, guard_wrapper, takes_wrapper, wrapper_chooses_operators
from fxjit.guards.ambient import AmbientState
from fxjit.guards.kinds import AmbientIs, ConstIs, Guard, GuardSet, IdIs, NotSameObject, SameObject, TensorIs, TypeIs
from fxjit.guards.shapes import Numbers, shape_guards
from fxjit.guards.source import ApplySource, CallSource, ClassItemSource, ConstSource, LocalSource, Source, qualname_of
from fxjit.guards.tensor_spec import TensorSpec
from fxjit.homes import target_name
from fxjit.schemas import OBSERVED, Observer, acts_outside, by_place, is_known, uses_rng
from fxjit.tensor_wrappers import forget_fake_masks, is_sparse, is_wrapper

#: State managers that a node makes for a later node to close.
_MAX_CALLEES: Final = 50
_OPAQUE: Final = (torch.autocast, torch._C._InferenceMode, Level)
#: What `make` gives a new value each time: contents count, not identity.
_FRESH: Final = frozenset({dict, collections.OrderedDict, list, tuple, torch.Size, set, frozenset, range, slice})


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame about to start, as the hook hands it over."""

    func: types.FunctionType
    code: types.CodeType
    args: tuple[object, ...]
    closure: tuple[types.CellType, ...] | None
    globals: dict[str, Any]
    builtins: dict[str, Any]

    @property
    def arg_names(self) -> tuple[str, ...]:
        """The argument slots, in the order of `args`."""
        code = self.code
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        return code.co_varnames[:count]


def _may_vary(obj: object, source: Source) -> TypeGuard[int | float]:
    """Numbers of arguments, closures and globals, where schedulers live, and counters of classes. Those of modules stay."""
    return type(obj) in (int, float) and (not isinstance(source.root, ConstSource) or isinstance(source, ClassItemSource))


class Trace:
    """The trace under way. Implements `Tracer`, where its methods are described."""

    def __init__(self, frame: Frame, break_points: BreakPoints, history: FrameHistory, dynamic: bool | None) -> None:
        self.origin = frame
        self.break_points = break_points
        #: The innermost and the outermost running machine; interp/ keeps both.
        self.frame: Machine | None = None
        self.root: Machine
        self.catches = self.in_backward = False
        self.steps = 0
        self.break_step: int | None = None
        self.caller: Machine | None = None
        self.forwarders: tuple[tuple[types.FunctionType, int], ...] = ()
        self.constructor_result: Value | None = None
        self.effects = Effects()
        self.ends = Ends(self, self.effects)
        self.builder = GraphBuilder()
        self.guards = GuardSet()
        #: What the attempts relied on that found the break which this one ends at: what it does not come to is guarded there.
        self.found_by: list[GuardSet] = []
        break_points.blocks_with_scalars = 0  # the attempt before may have ended inside one
        self.policy = ShapePolicy(history, dynamic, break_points)
        self.lazies: list[Lazy] = []
        self._by_id: dict[int, tuple[Value, object]] = {}
        self._by_source: dict[Source, Value] = {}
        self._by_fake: dict[int, TensorValue] = {}
        self._input_tensors: list[Source] = []
        self._tensor_objects: dict[int, Source] = {}
        self._has_wrappers = False
        self._inputs: list[tuple[Source, Any]] = []
        self._scratch: dict[object, dict[str, Any]] = {}
        self.has_symbols = False
        self._grad_mode_before = torch.is_grad_enabled()
        self.speculation = Speculation()
        self.operators_once = OperatorsOnce()
        self.rng_steps = RngSteps(self.break_points.holds_locks)
        self.leaves = Leaves()

    # -- values --------------------------------------------------------------------------------------------------

    def wrap(self, obj: object, source: Source) -> Value:
        if is_plain_constant(obj) and type(obj) not in (tuple, frozenset):
            return self._wrap_constant(obj, source)
        known = self._by_id.get(id(obj))
        if known is not None:
            value = known[0]
            if value.source is not None and value.source != source and not isinstance(source, ConstSource):
                self.guard(SameObject(value.source, source))
            elif value.source is None and not isinstance(source, ConstSource):
                self.guard(IdIs(source, obj))
            return value
        value = wrap_object(self, obj, source)
        self._by_id[id(obj)] = (value, obj)
        return value

    def _wrap_constant(self, obj: object, source: Source) -> Value:
        value = self._by_source.get(source)
        if value is not None:
            return value
        if _may_vary(obj, source) and self.policy.number_is_symbolic(obj, source):
            value = self._symbolic_input(obj, source)
        else:
            value = wrap_object(self, obj, source)
        self._by_source[source] = value
        return value

    def _symbolic_input(self, number: int | float, source: Source) -> Value:
        self.guard(TypeIs(source, type(number)))  # a trace may rely on nothing else about the number
        self.has_symbols = True
        if isinstance(number, float):
            return self._symbolic_float(number, source)
        symbol = self.policy.symbolic_int(number, source)
        self._inputs.append((source, symbol))
        node = self.builder.placeholder(source, number, symbol)
        return SymValue(node, symbol, source)

    def _symbolic_float(self, number: float, source: Source) -> Value:
        symbolic = self.policy.symbolic_float(number, source)
        self._inputs.append((source, symbolic.value))
        return SymValue(self._float_node(symbolic, source), symbolic.value, source)

    def _float_node(self, symbolic: SymbolicFloat, source: Source) -> torch.fx.Node:
        tensor_source = ApplySource(source, float_tensor)
        placeholder = self.builder.placeholder(tensor_source, symbolic.tensor, symbolic.fake(self.policy.fake_mode))
        return self.builder.number_in(placeholder, symbolic.value)

    def varying_number(self, number: int | float, source: Source) -> SymValue | None:
        self.policy.history.varying_numbers.add(source.name)
        found = self._wrap_constant(number, source) if self.policy.number_is_symbolic(number, source) else None
        return found if isinstance(found, SymValue) else None

    def computed_number(self, fn: Callable[..., Any], args: Sequence[Value]) -> Value | None:
        return computed(self, fn, args)

    def given_tensor_of(self, node: torch.fx.Node) -> tuple[torch.Tensor, Source] | None:
        found = self.builder.input_of(node)
        if found is None or self.graph_acts_outside or not isinstance(found.example, torch.Tensor):
            return None
        written = [self.builder.input_of(each) for each in self.speculation.written_inputs(self.builder.graph)]
        if written and not kept_apart.guard_apart(self, found, written):
            return None
        return found.example, found.source

    def kept_flag(self, flag: bool | int | float, source: Source) -> Value | None:
        if flag not in (0, 1) or not self.policy.history.stays(source.name, flag):
            return None
        self.guard(ConstIs(source, flag))
        return self.make(flag)

    def random_input(self, number: int | float, source: Source, bounds: tuple[Any, Any] | None = None) -> SymValue:
        if not self.policy.history.random_inputs:
            self.break_("data-random", value="a random number")
        self.has_symbols = True
        made = self.policy.random_number(number, source, bounds)
        self.new_source_state("random symbols")["all"] = self.policy.random_symbols
        if isinstance(made, SymbolicFloat):
            return SymValue(self._float_node(made, source), made.value)
        return SymValue(self.builder.placeholder(source, number, made), made)

    def make(self, obj: object) -> Value:
        kind = type(obj)
        if issubclass(kind, Value):  # not isinstance, which asks an object for its class
            return obj  # type: ignore[return-value]
        maker = factory_of(kind)
        if maker is not None:
            if kind in _FRESH:
                return maker(self, obj)  # type: ignore[no-any-return]  # makers sign up untyped
            entry = self._by_id.get(id(obj))
            if entry is None:
                entry = self._by_id[id(obj)] = (maker(self, obj), obj)
            return entry[0]
        if is_plain_constant(obj):
            return ConstantValue(obj)
        known = self._by_id.get(id(obj))
        if known is not None:
            return known[0]
        return self.wrap(obj, ConstSource(obj, _label(obj)))

    def literal(self, obj: Any) -> Value:
        """A constant of a code object: a tuple or frozenset of them is one object each time it is loaded."""
        if type(obj) not in (tuple, frozenset):
            return self.make(obj)
        entry = self._by_id.get(id(obj))
        if entry is None:
            items = [self.literal(item) for item in obj]
            kind = type(obj)
            value: TupleValue | SetValue = TupleValue(items) if kind is tuple else SetValue(self, items, kind, order=obj)
            if isinstance(value, SetValue):
                value.history = set_history.of_constant(obj)
            value.interned = obj
            entry = self._by_id[id(obj)] = (value, obj)
        return entry[0]

    def known(self, obj: object) -> Value | None:
        """The value of an object that was looked at already."""
        entry = self._by_id.get(id(obj))
        return None if entry is None else entry[0]

    def object_of(self, value: Value) -> object:
        return next((obj for known, obj in self._by_id.values() if known is value), None)

    def given_tensor(self, tensor: torch.Tensor, source: Source, owner: Source | None = None) -> None:
        self.guard(TypeIs(source, type(tensor)))
        if owner is None:
            self._note_object(tensor, source)
        else:
            self._input_tensors.append(owner)

    def graph_input(self, tensor: torch.Tensor, source: Source) -> tuple[torch.fx.Node, torch.Tensor]:
        if is_sparse(tensor):
            return sparse_input(self, tensor, source)
        given, given_source, wrapper = tensor, source, is_wrapper(tensor)
        self._has_wrappers |= wrapper
        if not wrapper:
            given, given_source = graph_alias(tensor, source)
        try:
            fake, symbolic = fake_wrapper(self, self.policy, tensor, source) if wrapper else writes.as_at_the_start(
                self, given, lambda: self.policy.fake(given, source))
        except UNSUPPORTED:
            self.break_("tensor-layout", type=type(tensor).__name__, layout=str(tensor.layout),
                        why=f"torch has no fake tensors for it, on {tensor.device}")
        open_strides = fake.layout is torch.strided and any(isinstance(stride, torch.SymInt) for stride in fake.stride())
        self.has_symbols |= bool(symbolic) or open_strides
        spec = TensorSpec.of(tensor, dynamic_dims=symbolic, fake=fake if open_strides else None)
        self.guards.replace(TypeIs(source, type(tensor)), TensorIs(source, spec))
        self._inputs.append((source, Numbers.of(fake)))
        node = self.builder.placeholder(given_source, given, fake)
        self.new_source_state(storages.INPUTS)[node.name] = fake, source, tensor
        writes.note_input(self, tensor, fake, given is not tensor)
        self.speculation.met(node, fake)
        if wrapper:
            self.has_symbols |= guard_wrapper(self, tensor, fake, source, self._note_object)
        return node, fake

    def _note_object(self, tensor: torch.Tensor, source: Source) -> None:
        """Another tensor that existed before: the same object as one that is known, or none of them."""
        known = self._tensor_objects.setdefault(id(tensor), source)
        if known is source:
            self._input_tensors.append(source)
        elif known != source:
            self.guard(SameObject(known, source))

    def random_tensor(self, tensor: torch.Tensor, source: Source, shape: Sequence[Any] = ()) -> TensorValue:
        if not self.policy.history.random_inputs:
            self.break_("data-random", value="a random array")
        fake: Any = self.policy.fake_of_shape(tensor, source, shape)
        fake.item_memo = None
        node = self.builder.placeholder(source, tensor, fake)
        self.speculation.met(node, fake)
        value = TensorValue(node, fake, torch.Tensor, source, tensor)
        self.register_tensor(value)
        return value

    def speculate(self, tensor: TensorValue, truth: bool) -> bool:
        return self.break_points.speculates and not self.rng_steps.locks and self.speculation.add(self, tensor, truth)

    def register_tensor(self, value: TensorValue) -> None:
        """`value` is what fake results that are its own fake tensor stand for."""
        self._by_fake[id(value.fake)] = value

    def make_leaf(self, value: Any, wanted: bool) -> bool:
        return self.leaves.set(self, value, wanted)

    def requires_grad_inside(self, value: Any) -> bool:
        return not self.leaves.stay_inside([value.fake])

    def known_tensor(self, fake: torch.Tensor) -> TensorValue | None:
        return self._by_fake.get(id(fake))

    def takes_backward_passes(self, gradients_alone: bool = False) -> bool:
        return self.in_backward or self.leaves.take_passes(self, gradients_alone)

    def _symbolic_result(self, value: Any, node: torch.fx.Node) -> Value:
        """The value of a torch.SymInt/SymFloat/SymBool that `node` computes: a constant if it is statically known."""
        known = value.node.maybe_as_bool() if isinstance(value, torch.SymBool) else (
            value.node.maybe_as_int() if isinstance(value, torch.SymInt) else value.node.maybe_as_float())
        if known is not None:
            return self.make(known)
        return SymValue(node, value)

    def new_source_state(self, key: object) -> dict[str, Any]:
        return self._scratch.setdefault(key, {})

    # -- the graph -----------------------------------------------------------------------------------------------

    def emit(self, target: Callable[..., object] | str, args: Sequence[Value | object],
             kwargs: Mapping[str, Value | object] | None = None) -> Value:
        target, nobody_dispatches = original(target) if self.policy.replaced else target, overrides.FAMILY not in self._scratch
        node_args = tuple(self._graph_arg(arg) for arg in args)
        node_kwargs = {name: self._graph_arg(arg) for name, arg in (kwargs or {}).items()}
        if nobody_dispatches and overrides.FAMILY in self._scratch:
            self.break_points.dispatches = True
            leave_trace(RestartTrace("a container holds an argument whose `__torch_function__` is given calls"))
        named = any(map(keyword.iskeyword, node_kwargs))
        if named and (placed := by_place(target, node_args, node_kwargs)) is not None:
            (node_args, node_kwargs), named = placed, False
        if named or holds_bound(node_args) or holds_bound(node_kwargs):
            target, node_args, node_kwargs = *bound_call(target, node_args, node_kwargs), {}
        self._check_random()
        dispatches = self._has_wrappers and takes_wrapper(node_args, node_kwargs)
        watcher = self.operators_once.before(self, target)
        refusals = () if is_known(target) else DATA_DEPENDENT + UNSUPPORTED
        observer = Observer(refusals) if dispatches or refusals else None
        try:
            result = self._run_fake(target, node_args, node_kwargs, observer or watcher)
        except BreakGraph as signal:
            if signal.reason != "data-dependent-operator":
                raise
            return given_numbers.emit_with_numbers(self, signal, target, args, kwargs or {})
        if watcher is not None:
            self.operators_once.behind(self, target, observer or watcher)
        if observer is not None and observer.collective:
            why = f"it communicates by `c10d.{observer.collective}`"
            self.break_("call-collective", function=target_name(target), why=why)
        if self.policy.decided_on_random():
            self.break_("data-random", value=f"what {target_name(target)} is given")
        if on_current_gpu(result, (node_args, node_kwargs)):
            queried = CallSource(ConstSource(torch.cuda.current_device, "current_device"))
            self.guard(ConstIs(queried, result.device.index))
        if observer is not None and observer.asked and not self.break_points.captures_scalars:
            # A function of the program's that went on without, and would do so whenever it is given fake tensors.
            self.break_("data-dependent-operator", operator=target_name(target), error="it asks a tensor for its numbers")
        if observer is not None and observer.refused:
            # It caught what fake tensors refuse, and came to something else than with real ones.
            self.break_("data-dependent-operator", operator=target_name(target), error=observer.refused.split("\n")[0])
        for_self = self._same_tensor(result, args)
        node = self.builder.call(target, node_args, node_kwargs, result, stack_text(self.frame))
        if observer is not None:
            node.meta[OBSERVED] = observer.effects_on(node)
        writes.check_written(self, node)
        self._bind_unbacked(node, result)
        return for_self if for_self is not None else self._wrap_result(node, result)

    def _bind_unbacked(self, node: torch.fx.Node, result: object) -> None:
        """Symbols without a value that the operator made: its node says where in its result they are."""
        env = self.policy.shape_env
        if env is None or not env.pending_fresh_unbacked_symbols:
            return
        try:
            bindings = torch_private.get("torch.fx.experimental.symbolic_shapes.compute_unbacked_bindings")(env, result)
        except SYMBOL_NOT_FOUND:
            bindings = None  # made on the way to a result that has none
        env.pending_fresh_unbacked_symbols.clear()
        if bindings:
            node.meta["unbacked_bindings"] = bindings

    def _graph_arg(self, arg: object) -> Any:
        if isinstance(arg, Value):
            return arg.realize().graph_arg(self)
        if isinstance(arg, (list, tuple)):
            return type(arg)(self._graph_arg(item) for item in arg)
        return arg

    def _run_fake(self, target: Callable[..., object] | str, args: tuple[Any, ...], kwargs: dict[str, Any],
                  observer: Observer | None = None) -> Any:
        fake_args, fake_kwargs = thawed(torch.fx.map_arg((args, kwargs), fake_of))
        chosen = self._has_wrappers and wrapper_chooses_operators((fake_args, fake_kwargs))
        dispatching = torch._C._EnableTorchFunction() if chosen else contextlib.nullcontext()

        def run() -> Any:
            if observer is not None:
                observer.refused = ""
            if isinstance(target, str):
                return on_usable_device(getattr(fake_args[0], target)(*fake_args[1:], **fake_kwargs))
            return on_usable_device(faked(target)(*fake_args, **fake_kwargs))

        captures = self.break_points.captures_scalars or self.break_points.captures_shapes
        rewriting = contextlib.nullcontext() if is_known(target) else made_functional()
        try:
            with (self.fake_execution(), dispatching, checking_operands(target, fake_args, fake_kwargs),
                  observer or contextlib.nullcontext(), rewriting, taking_composites_apart(fake_args)):
                return self.policy.run(run, captures)
        except NotFunctional as error:
            self.break_("call-collective", function=target_name(target), why=str(error))
        except DATA_DEPENDENT as error:
            _let_go_of_frames(error)
            self.break_("data-dependent-operator", operator=target_name(target), error=str(error).split("\n")[0])
        except UNSUPPORTED as error:
            _let_go_of_frames(error)
            self.break_("operator-without-fake-kernel", operator=target_name(target), error=str(error).split("\n")[0])
        except Exception as error:  # eager raises it for the real arguments, or something else
            _let_go_of_frames(error)
            self.break_("operator-raised", operator=target_name(target),
                        error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

    @contextlib.contextmanager
    def capture_subgraph(self, function: str) -> Iterator[list[torch.fx.Node]]:
        """Operators emitted inside are no part of the graph: the list has them afterwards, for a graph of their own or for
        nothing. An effect on what existed before breaks the graph."""
        nodes: list[torch.fx.Node] = []
        mark, rng_steps = self.builder.mark(), len(self.rng_steps.steps)
        before, self.speculation.allowed = self.speculation.allowed, False
        with self.effects.confined() as nothing_happened:
            yield nodes
            if not nothing_happened() or len(self.rng_steps.steps) != rng_steps:
                self.break_("call-with-effects", function=function, why="it changes what it did not make")
        self.speculation.allowed = before
        nodes += self.builder.since(mark)

    @property
    def captures_subgraph(self) -> bool:
        return not self.speculation.allowed

    @contextlib.contextmanager
    def only_reading(self, function: str) -> Iterator[None]:
        """A write to a tensor that existed before breaks the graph."""
        fakes = [node.meta.get("example_value") for node in self.builder.graph.nodes]
        versions = [(fake, version(fake)) for fake in fakes if isinstance(fake, torch.Tensor)]
        inputs = self.speculation.input_count
        yield
        versions += self.speculation.inputs_since(inputs)
        if any(version(fake) != before for fake, before in versions):
            self.break_("call-with-effects", function=function, why="it writes to a tensor that it did not make")

    @contextlib.contextmanager
    def dry_run(self, function: str) -> Iterator[None]:
        """Operators emitted inside are taken back afterwards; an effect on what existed before breaks the graph."""
        with self.capture_subgraph(function) as nodes:
            yield
        self.builder.discard(nodes)

    def subgraph(self, nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node],
                 outputs: torch.fx.Node | Sequence[torch.fx.Node]) -> torch.fx.Node:
        """The operators emitted in `capture_subgraph`, as a graph of its own; see GraphBuilder."""
        return self.builder.subgraph(nodes, inputs, outputs)

    def reuse_subgraph(self, graph: torch.fx.Node) -> torch.fx.Node:
        return self.builder.reuse_subgraph(graph)

    def here(self) -> tuple[int, int, list[traceback.FrameSummary]]:
        """The outermost frame's step and index, and where in the user's program that is."""
        return self.root.steps, self.root.index, user_stack(self.frame)

    def is_held(self, value: Value) -> bool:
        """Whether something that the program can still reach holds `value`: variables of frames, what was written."""
        return is_held(value, running(self.frame), self.effects, self._by_id.values(), self._scratch)

    @property
    def running_frame(self) -> Machine:
        assert self.frame is not None, "a call is made by a frame"
        return self.frame

    def discards_result(self) -> bool:
        frame = self.running_frame
        then = frame.instructions[frame.pc]
        return then.opname == "POP_TOP" or (
            then.opname == "STORE_FAST" and then.argval not in live_locals(frame.code, frame.pc + 1))

    @property
    def graph_is_empty(self) -> bool:
        return all(isinstance(at.meta.get("example_value"), (torch.SymInt, torch.SymBool)) for at in self.builder.since(None))

    @property
    def graph_uses_rng(self) -> bool:
        return any(map(uses_rng, self.builder.since(None)))

    @property
    def graph_acts_outside(self) -> bool:
        return any(map(acts_outside, self.builder.since(None)))

    def discard(self, nodes: Sequence[torch.fx.Node]) -> None:
        self.builder.discard(nodes)

    @contextlib.contextmanager
    def fake_execution(self) -> Iterator[None]:
        """Operators called inside run on fake tensors, with shapes propagated symbolically."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.policy.fake_mode)
            stack.enter_context(self.policy.reading_data(False))
            stack.enter_context(torchs_own(self.policy.replaced))
            if self.has_symbols:
                stack.enter_context(python_dispatcher())
                stack.enter_context(unguarded_convolutions())
            yield

    def _same_tensor(self, result: object, args: Sequence[Value | object]) -> Value | None:
        """The value whose own tensor the operator returned (in-place operators, `x.contiguous()` on contiguous x)."""
        if not isinstance(result, torch.Tensor):
            return None
        for arg in args:
            if isinstance(arg, Lazy):
                arg = arg.realize()
            if isinstance(arg, (TensorValue, SparseValue)) and arg.fake is result:
                return arg
        return self._by_fake.get(id(result))

    def _wrap_result(self, node: torch.fx.Node, result: Any) -> Value:
        if isinstance(result, torch.Tensor):
            known = self._by_fake.get(id(result))
            if known is not None:
                return known
            check_layout(self, node, result)
            if is_sparse(result):
                return SparseValue(node, result, self._class_of(node, result))
            value = TensorValue(node, result, self._class_of(node, result))
            self._by_fake[id(result)] = value
            return value
        if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._symbolic_result(result, node)
        if isinstance(result, (list, tuple)) and not isinstance(result, torch.Size):
            items = [self._wrap_item(node, index, item) for index, item in enumerate(result)]
            return ListValue(items) if isinstance(result, list) else TupleValue(items, cls=type(result))
        if isinstance(result, torch.Size):
            return TupleValue([self._wrap_item(node, index, item) for index, item in enumerate(result)], cls=torch.Size)
        if is_plain_constant(result):
            return self.make(result)
        if isinstance(result, _OPAQUE):
            return OpaqueValue(node, result)
        self.break_("operator-result-unsupported", operator=str(node.target), type=type(result).__name__)

    def _class_of(self, node: torch.fx.Node, result: torch.Tensor) -> type:
        """The Python type of the tensor that `result` stands for."""
        if is_wrapper(result):
            self._has_wrappers = True
            overrides.note_class(self, type(result))
            return type(result)
        if not isinstance(result, (FakeTensor, torch.nn.Parameter)):
            name = target_name(node.target)  # type: ignore[arg-type]  # a call's target
            self.break_("tensor-subclass", type=type(result).__qualname__, why=f"{name} gives it, and {NO_WRAPPER}")
        return torch.nn.Parameter if isinstance(result, torch.nn.Parameter) else torch.Tensor

    def _wrap_item(self, node: torch.fx.Node, index: int, item: Any) -> Value:
        if is_plain_constant(item):
            return self.make(item)
        getter = self.builder.call(operator.getitem, (node, index), {}, item, None)
        return self._wrap_result(getter, item)

    # -- facts, calls, failures ----------------------------------------------------------------------------------

    def guard(self, guard: Guard) -> None:
        source = guard.source
        if isinstance(source, ConstSource) and not isinstance(guard, (SameObject, NotSameObject)):
            if type(guard).__name__ in ("TypeIs", "IdIs", "ConstIs", "CodeIs"):
                return
        if type(guard) is ConstIs:
            self.guards.replace(TypeIs(guard.source, type(guard.value)), guard)
        else:
            self.guards.add(guard)

    def call(self, fn: Value, args: Sequence[Value], kwargs: Mapping[str, Value] | None = None) -> Value:
        realized = [arg.realize() if isinstance(arg, Lazy) else arg for arg in args]
        named = {} if not kwargs else {name: arg.realize() for name, arg in kwargs.items()}
        if overrides.FAMILY in self._scratch:
            overridden = overrides.dispatch_call(self, fn.realize(), realized, named)
            if overridden is not None:
                return overridden
        caller, self.caller = self.caller, None
        if caller is not None:
            return self._call_from(caller, fn.realize(), realized, named).realize()
        return fn.realize().tp_call(self, realized, named).realize()

    def _call_from(self, caller: Machine, fn: Value, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        """A call whose result `caller` takes unchanged; a function's own code then sees that."""
        forwarders: list[tuple[types.FunctionType, int]] = []
        instance: Value | None = None
        for _ in range(_MAX_CALLEES):  # an object may be the `__call__` of its own class
            target = fn.callee(self, args)
            if target is None:
                break
            instance = instance or target.constructor_result
            fn, args = target.fn.realize(), target.args
            forwarders += target.forwarders
        if isinstance(fn, FunctionValue) and fn.runs_its_code:
            self.caller, self.forwarders, self.constructor_result = caller, tuple(forwarders), instance
        try:
            result = fn.tp_call(self, args, kwargs)
        finally:
            self.caller = None
        return result if instance is None else constructed(self, instance, result)

    def inline(self, code_fn: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return inline(self, code_fn, args, kwargs)

    def raise_(self, exc_type: type[BaseException], *args: object) -> NoReturn:
        raise_exception(self, exc_type, *args)

    def break_(self, reason: str, **context: object) -> NoReturn:
        is_error = reason == "user-forbidden" or breaks_are_errors(self)
        leave_trace(BreakGraph(reason, context, user_stack(self.frame), is_error=is_error, frames=running(self.frame)))

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self, code: Code) -> TraceResult:
        """Interpret the frame to its end or to the first break point."""
        frame = self.origin
        for name, state in AmbientState.capture().items():
            self.guards.add(AmbientIs(name, state))
        if self.break_points.dispatches or not torch._C._is_torch_function_enabled():
            overrides.begin(self)
        args = {name: Lazy(self, obj, LocalSource(name)) for name, obj in zip(frame.arg_names, frame.args, strict=True)}
        machine = root_machine(self, code, args, frame.closure, frame.globals, frame.builtins)
        self.ends.given(args.values())
        with torch._C.DisableTorchFunctionSubclass():  # the trace's own queries of tensors are none of the program's calls
            end = machine.run_root(self.break_points)
        return self._freeze(code, end)

    def _check_random(self) -> None:
        """Between operators nothing has been decided on a random number; where it was, the trace starts again
        without such numbers in the graph."""
        if self.policy.decided_on_random():
            self.policy.history.random_inputs = False
            leave_trace(RestartTrace("a decision was made on a random number computed before the graph runs"))

    def _freeze(self, code: Code, end: Return | Break) -> TraceResult:
        self._check_random()
        foresee_updated_numbers(self.policy, self.break_points, self.effects.records(), self._by_source, end)
        can_stay, speculated = self.speculation.finish(self.builder.graph)
        if not can_stay or (speculated is not None and self.rng_steps.locks):
            self.break_points.speculates = False
            leave_trace(RestartTrace("what the graph does cannot be undone"))
        if self.rng_steps.locks and not self.speculation.is_torchs_own(self.builder.graph):
            self.break_points.holds_locks = False
            leave_trace(RestartTrace("an operator of the program's may take the lock that is held while the graph runs"))
        if isinstance(end, Break):
            states = [end.state, *(frame.state for frame in end.inner)]
            for block in [block for state in states for block in state.blocks][::-1]:
                block.manager.leave(self)  # type: ignore[attr-defined]  # contexts.py's managers, see ManagerValue
            self.builder.mark_observed(end.reason.context.get("observed", ()))
        contexts.leave_state(self, self._grad_mode_before)
        kept_apart.guard(self.guards, self.effects, self._by_id.values(), self._input_tensors, self._scratch)
        if self._has_wrappers and (dispatch := process_state.distributed_dispatch()) is not None:
            self.guards.add(AmbientIs("distributed_dispatch", dispatch))
        self._forget_masks()
        writes.guard_written_inputs(self, self.builder.graph, self._by_fake.values())
        writes.guard_unrecorded_views(self, self.builder.graph, self._by_fake.values())
        self.effects.made_classes.settle(self.guards)
        effects = self.effects.records()
        if self.rng_steps and not self.rng_steps.locks:
            self.rng_steps.rewinds = speculated is not None or self.speculation.may_raise(self.builder.graph)
        stays = bool(self.rng_steps) and not self.rng_steps.rewinds
        repeatable = not stays and self.speculation.is_repeatable(self.builder.graph)
        fixed = repeatable or stays
        changes = bool(effects or self.catches or self.rng_steps)
        return TraceResult(
            code=code,
            arg_names=self.origin.arg_names,
            graph=self.builder,
            guards=self.guards,
            effects=effects,
            effect_log=self.effects,
            end=end,
            first_line=self.origin.code.co_firstlineno,
            globals=self.origin.globals,
            finish_trace=self._add_shape_guards,
            speculated=speculated,
            repeatable=repeatable,
            undoable=None if fixed or not changes else self.speculation.undoable(self.builder.graph),
            restart=None if fixed else self.speculation.restart(self.builder.graph),
            rng_steps=self.rng_steps,
        )

    def _forget_masks(self) -> None:
        if self._has_wrappers:
            forget_fake_masks(value.fake for value in self._by_fake.values())

    def release(self) -> None:
        """Let go of the frame's objects at once: what the trace looked at must not outlive the call by it."""
        self._forget_masks()
        self.frame = None
        self.ends.release()
        del self.root, self.origin, self.effects  # values may hold the trace: not these too, in a cycle
        for lazy in self.lazies:  # and each other: a generator its frame, and that the frames that called it
            lazy.let_go()
        for value, _ in self._by_id.values():
            if value.source is not None:
                vars(value).clear()
        for table in (self.lazies, self._by_id, self._by_source, self._by_fake, self._scratch):
            table.clear()  # type: ignore[attr-defined]  # all are dicts, or a list
        self.policy.release()
        self.builder.release()

    def _add_shape_guards(self) -> None:
        """Called once the backend has seen the graph: it may have specialised symbols too."""
        self.policy.check_marks()
        if self.has_symbols:
            for guard in shape_guards(self.policy.shape_env, self._inputs):
                self.guards.add(guard)


def _let_go_of_frames(error: BaseException | None) -> None:
    """Frees the objects in the frames of a failed operator now: among them are guards of torch.func that restore this
    thread's dispatch keys when they go, which must not be seen by later code."""
    with torch._C._PreserveDispatchKeyGuard():  # type: ignore[attr-defined]  # not in the stubs
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__


def _label(obj: object) -> str:
    try:
        name = qualname_of(obj) if isinstance(obj, type) else getattr(obj, "__qualname__", getattr(obj, "__name__", None))
    except Exception:  # the program's own, of what a module says of itself
        name = None
    return name if isinstance(name, str) else f"<{type(obj).__name__}>"
