"""Calling AOTAutograd's compiled graphs without its runtime wrappers, where those would have nothing to do.

`aot/driver.py` notes what AOTAutograd compiled (`Parts`) and asks `describe` for a plan (plan.py), and `direct_call` for a
callable by that plan over its inputs: one function for an inference graph, one autograd node for a training graph. What a
graph writes to its inputs by itself only has to be counted, or to be kept from that, as batch norm's. Results of a training
graph that share memory with each other or with an input are made again as views of what the node returns or of the input; an
inference graph gives such views itself. Under autocast, whose conversions are in the graphs, it is off while they run. There
is no plan where a wrapper has work: a write that autograd follows or that changes a shape, subclasses, effects, functional
random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.fx
from torch._functorch._aot_autograd.functional_utils import gen_alias_from_base
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta, TensorAlias, ViewAndMutationMeta

from fxjit import _C
from fxjit.schemas import view_base

from .again import SecondRun, draws_numbers, graph_is_retained, second_run
from .hidden import keep_versions
from .plan import InputFacts, Layout, OutputFacts, Plan
from .unused import Flag, flag_tensors

Boxed = Callable[[list[Any]], Any]


@dataclass(slots=True)
class Parts:
    """What AOTAutograd gave to the compilers: by `forward`, `backward` or `inference`."""

    graphs: dict[str, Boxed] = field(default_factory=dict)
    num_inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    meta: ViewAndMutationMeta | None = None
    #: For each gradient that the backward graph gives: which of the results' gradients it depends on, as bits.
    reach: tuple[int, ...] = ()
    #: What the backward graph is given after all others (unused.py).
    flags: tuple[Flag, ...] = ()
    #: For each result of the forward graph: which of its inputs it depends on, as bits.
    read: tuple[int, ...] = ()
    draws: bool = False

    def note_meta(self) -> ViewAndMutationMeta | None:
        """What AOTAutograd found out of the graph that it is compiling."""
        self.meta = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
        return self.meta

    def note(self, name: str, graph: torch.fx.GraphModule) -> None:
        """Before a graph is compiled, which may rewrite it."""
        if name != "backward":
            self.draws = draws_numbers(graph)
        self.num_inputs[name] = sum(node.op == "placeholder" for node in graph.graph.nodes)
        (values,) = next(iter(graph.graph.find_nodes(op="output"))).args
        self.outputs[name] = tuple(values) if isinstance(values, (list, tuple)) else (values,)
        if name == "forward":
            self.read = _reached(graph, graph.graph.find_nodes(op="placeholder"), self.outputs[name])
        if name == "backward":
            tangents = [node for node in graph.graph.find_nodes(op="placeholder") if "tangents" in node.name]
            self.reach = _reached(graph, tangents, self.outputs[name])


def _reached(graph: torch.fx.GraphModule, sources: Sequence[torch.fx.Node], values: tuple[Any, ...]) -> tuple[int, ...]:
    """For each of the values: which of the sources it depends on, as bits."""
    bits = {node: 1 << place for place, node in enumerate(sources)}
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output"):
            bits[node] = 0
            for used in node.all_input_nodes:
                bits[node] |= bits.get(used, 0)
    return tuple(bits.get(value, 0) if isinstance(value, torch.fx.Node) else 0 for value in values)


def _gradients_of(parts: Parts, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """For each gradient, which of the results' it is made of. One that is made of none is constantly zero, as that of `round`:
    eager gives it for each of the results that the input is in."""
    grads = parts.outputs.get("backward", ())
    read_by = [sum(1 << place for place, result in enumerate(wanted) if parts.read[result] >> index & 1)
               for index in range(len(grads))]
    return tuple(0 if grad is None else bits or readers
                 for grad, bits, readers in zip(grads, parts.reach, read_by, strict=True))


def _without_grad(graph: Boxed, args: tuple[Any, ...]) -> Any:
    """An inference graph whose inputs require grad, but whose results do not: the program ran it under `no_grad`."""
    with torch.no_grad():
        return graph(list(args))


def describe(parts: Parts, gm: torch.fx.GraphModule, num_inputs: int, autocast: bool,
             uncounted: tuple[int, ...] = ()) -> Plan | None:
    """The plan for a graph of `num_inputs` inputs, of which some keep their version when the graph writes to them (hidden.py);
    None where AOTAutograd's wrappers have work to do."""
    meta = parts.meta
    if meta is None or not _is_plain(meta, gm):
        return None
    if set(parts.graphs) == {"inference"} and parts.num_inputs["inference"] == num_inputs:
        plain = len(parts.outputs["inference"]) == meta.num_outputs and _gives_views_itself(parts.outputs["inference"], meta)
        return _plan(parts, meta, num_inputs, autocast, uncounted) if plain else None
    if set(parts.graphs) == {"forward", "backward"} and parts.num_inputs["forward"] == num_inputs:
        grads = parts.outputs["backward"]
        if len(grads) != num_inputs or any(
            grad is None and info.requires_grad for grad, info in zip(grads, meta.input_info, strict=True)
        ):
            return None  # such inputs must be cut from the autograd graph, which the wrapper does
        return _plan(parts, meta, num_inputs, autocast, uncounted)
    return None


def _gives_views_itself(values: tuple[Any, ...], meta: ViewAndMutationMeta) -> bool:
    """Whether what an inference graph returns is what its caller is to get: no result has a gradient, and one that shares
    memory with an input is the input, or made of it by views alone. Inputs among the results are put there by the caller."""
    placeholders: dict[Any, int] = {}
    for value, info in zip(values, meta.output_info, strict=True):
        if info.output_type is OutputType.is_input:
            continue
        if info.requires_grad or info.output_type not in (*_UNALIASED, OutputType.alias_of_input):
            return False
        if info.output_type is OutputType.alias_of_input:
            root = _viewed(value)
            if not placeholders and root is not None:
                placeholders = {node: index for index, node in enumerate(root.graph.find_nodes(op="placeholder"))}
            place = placeholders.get(root)
            if place is None or place != info.base_idx or meta.input_info[place].mutates_data:
                return False
    return True


def _viewed(value: Any) -> torch.fx.Node | None:
    """The input that a node is a view of, by operators that are nothing but views; None for other nodes."""
    while isinstance(value, torch.fx.Node) and value.op != "placeholder":
        value = view_base(value)
    return value if isinstance(value, torch.fx.Node) else None


def _plan(parts: Parts, meta: ViewAndMutationMeta, num_inputs: int, autocast: bool, uncounted: tuple[int, ...]) -> Plan:
    """Of a graph known to be plain."""
    training = "backward" in parts.graphs
    bases = range(meta.num_outputs, meta.num_outputs + meta.num_intermediate_bases)
    own = [(index, info) for index, info in enumerate(meta.output_info)
           if info.output_type in _UNALIASED and issubclass(info.raw_type, torch.Tensor)]
    wanted = (*(index for index, info in own if getattr(info, "requires_grad_for_backward", info.requires_grad)), *bases)
    return Plan(
        training=training,
        num_inputs=num_inputs,
        input_info=tuple(InputFacts(info.requires_grad, info.mutates_data) for info in meta.input_info),
        output_info=tuple(OutputFacts(info.output_type, info.base_idx, info.requires_grad, _steps(info))
                          for info in meta.output_info),
        num_intermediate_bases=meta.num_intermediate_bases,
        mutated_graph_handled_indices=tuple(meta.mutated_graph_handled_indices),
        counted=tuple(index for index in meta.mutated_graph_handled_indices_seen_by_autograd if index not in uncounted),
        uncounted=uncounted,
        draws=parts.draws,
        autocast=autocast,
        given_back=() if training else tuple(
            (index, info.base_idx) for index, info in enumerate(meta.output_info)
            if info.output_type is OutputType.is_input and info.base_idx is not None),
        switches_off=not training and torch.is_grad_enabled() and any(info.requires_grad for info in meta.input_info),
        returned=meta.num_forward_returns,
        symbols=meta.num_symints_saved_for_bw or 0,
        unchecked=getattr(meta, "num_tensors_saved_with_no_vc_check", 0) or 0,
        aliased=tuple(index for index, info in enumerate(meta.output_info) if info.output_type in _ALIASES),
        without_grad=tuple(index for index, info in own if not info.requires_grad),
        tensors=(*(index for index, _ in own), *bases),
        wanted=wanted,
        layouts=_layouts(meta, len(wanted)) if training else (),
        undetermined=meta.deterministic is False,
        flags=parts.flags,
        reach=_gradients_of(parts, wanted),
        remade=training and bool(meta.num_outputs_aliased),
    )


def _steps(info: Any) -> tuple[Any, ...] | None:
    """How functionalization came from the base to a result that is a view of it; with sizes that vary it does not tell."""
    steps = () if info.view_meta_sequence is None else tuple(info.view_meta_sequence.sequence)
    return None if info.view_meta_sequence is None or any(step.has_symbolic_inputs for step in steps) else steps


def direct_call(plan: Plan, graphs: Mapping[str, Boxed], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """The callable over the inputs of the captured graph `gm`, from its compiled parts."""
    call = _training(graphs["forward"], graphs["backward"], plan, gm) if plan.training else _inference(
        graphs["inference"], plan)
    if plan.uncounted:
        call = _unseen(keep_versions(call, plan.uncounted))
    if not plan.counted:
        return call
    by_kernels = hasattr(graphs["forward" if plan.training else "inference"], "unboxed")
    return _counted(call, plan.counted) if by_kernels else _counted_where_it_was_not(call, plan.counted)


def _counted(call: Callable[..., Any], written: tuple[int, ...]) -> Callable[..., Any]:
    """`call`, before which the inputs that its graph writes to count one write more: kernels do not count theirs."""
    count = torch.autograd.graph.increment_version

    def run(*args: Any) -> Any:
        count([args[index] for index in written])
        return call(*args)

    return _unseen(run)


def _counted_where_it_was_not(call: Callable[..., Any], written: tuple[int, ...]) -> Callable[..., Any]:
    """`call`, after which each of these inputs has counted one write, by ATen's own count or by this."""
    count = torch.autograd.graph.increment_version

    def run(*args: Any) -> Any:
        inputs = [args[index] for index in written if not args[index].is_inference()]
        before = [each._version for each in inputs]
        results = call(*args)
        count([each for each, version in zip(inputs, before, strict=True) if each._version == version])
        return results

    return _unseen(run)


def _inference(graph: Boxed, plan: Plan) -> Callable[..., Any]:
    if plan.given_back or plan.autocast:
        return _unseen(_around(graph, plan))
    if plan.switches_off:
        return _unseen(lambda *args: _without_grad(graph, args))
    unboxed = getattr(graph, "unboxed", None)
    if unboxed is not None:
        return unboxed()  # type: ignore[no-any-return]  # C code, untyped
    return _unseen(lambda *args: graph(list(args)))


def _around(graph: Boxed, plan: Plan) -> Callable[..., Any]:
    """An inference graph that runs under autocast, or of whose results some are inputs."""
    plain, given_back = _inference(graph, replace(plan, autocast=False, given_back=())), plan.given_back
    call = _without_autocast(plain) if plan.autocast else plain

    def run(*args: Any) -> Any:
        results = list(call(*args))
        for index, place in given_back:
            results[index] = args[place]
        return tuple(results)

    return run if given_back else call


def _without_autocast(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with autocast off: its conversions were traced, and ATen is not to convert what a graph calls it with."""
    switched_off = torch._C._DisableAutocast  # type: ignore[attr-defined]  # not in the stubs

    def run(*args: Any) -> Any:
        with switched_off():
            return call(*args)

    return _unseen(run)


def _with_views(call: Callable[..., Any], results: tuple[OutputFacts, ...]) -> Callable[..., Any]:
    """`call`, whose results that alias an intermediate or an input are made again as views of it, so that autograd knows them
    as such."""
    makers = [None if info.output_type in _UNALIASED else _maker(info, len(results)) for info in results]

    def run(*args: Any) -> Any:
        outs = call(*args)  # the results, then the intermediates
        return tuple(out if maker is None else maker(args, outs, out) for maker, out in zip(makers, outs, strict=False))

    return _unseen(run)


def _maker(info: OutputFacts, num_results: int) -> Callable[[Sequence[Any], Sequence[Any], Any], Any]:
    """Makes one result, which is an input or a view, from the inputs, what the autograd node gave, and what it gave for it."""
    from torch._functorch import config as functorch_config

    assert info.base_idx is not None, "a view of something"
    kind, base, replays = info.output_type, info.base_idx, functorch_config.view_replay_for_aliased_outputs
    sequence: Any = None if info.view is None else SimpleNamespace(sequence=info.view)
    if kind in (OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output):
        base += num_results
    if kind is OutputType.is_input:
        return _unseen(lambda inputs, outs, out: inputs[base])

    def make(inputs: Sequence[Any], outs: Sequence[Any], out: Any) -> Any:
        viewed = inputs[base] if kind is OutputType.alias_of_input else outs[base]
        if type(viewed) is TensorAlias:
            viewed = viewed.alias
        return gen_alias_from_base(viewed, out.alias, info.requires_grad, sequence, replay_views=replays)

    return _unseen(make)


_UNALIASED = (OutputType.non_alias, OutputType.unsafe_view_alias)
_OF_INTERMEDIATE = (OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output,
                    OutputType.alias_of_intermediate_base_is_user_output)
_ALIASES = (*_OF_INTERMEDIATE, OutputType.alias_of_input, OutputType.is_input)


def _is_plain(meta: ViewAndMutationMeta, gm: torch.fx.GraphModule) -> bool:
    """No writes but those in the graph, no subclass, no effect, no functional random numbers; nothing held by the module."""
    written = {index for index, info in enumerate(meta.input_info) if info.mutates_data}
    if written - set(meta.mutated_graph_handled_indices) or any(info.mutates_metadata for info in meta.input_info):
        return False
    if any(info.output_type not in (*_UNALIASED, *_ALIASES) for info in meta.output_info):
        return False
    plain = (*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta, *meta.subclass_tangent_meta)
    if not all(isinstance(each, PlainTensorMeta) for each in plain if each is not None):
        return False
    odd = (
        meta.num_mutated_inp_runtime_indices, len(meta.tokens), meta.num_backward_tokens, meta.num_outputs_rng_offset,
        getattr(meta, "num_graphsafe_rng_states", 0),
        getattr(meta, "num_opaque_objects_saved_for_bw", 0) or 0, int(meta.is_rng_op_functionalized),
        len(getattr(meta, "act_input_indices", ())), int(meta.grad_enabled_mutation is not None),
        len(meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw),
    )  # fmt: skip
    return not any(odd) and next(gm.parameters(), None) is None and next(gm.buffers(), None) is None


def _unseen(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Code of ours that the frame hook passes by."""
    _C.set_flags(fn.__code__, _C.TRANSFORMED)
    return fn


def _training(forward_graph: Boxed, backward_graph: Boxed, plan: Plan, gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """One autograd node: forward keeps what the backward graph wants, backward gives it the gradients."""
    again = None if plan.autocast else second_run(gm, cast(Any, plan), plan.draws)
    if plan.autocast:
        forward_graph, backward_graph = _without_autocast(forward_graph), _without_autocast(backward_graph)
    call = _node(forward_graph, backward_graph, plan, again)
    if plan.remade:
        call = _with_views(call, plan.output_info)
    return call if again is None else _as_captured_once_derived_twice(call, again)


def _as_captured_once_derived_twice(call: Callable[..., Any], again: SecondRun) -> Callable[..., Any]:
    """`call` until somebody derived a gradient; a graph that is to run operator by operator for that does so at once then."""
    def run(*args: Any) -> Any:
        return again.run(args) if again.wanted else call(*args)

    return _unseen(run)


def _node(forward_graph: Boxed, backward_graph: Boxed, plan: Plan, again: SecondRun | None) -> Callable[..., Any]:
    returned, num_symbols, unchecked, aliased = plan.returned, plan.symbols, plan.unchecked, plan.aliased
    tensors, without_grad, wanted, reach = plan.tensors, plan.without_grad, plan.wanted, plan.reach
    layouts = tuple((index, *how) for index, how in zip(wanted, plan.layouts, strict=True))
    undetermined, flags = plan.undetermined, plan.flags
    # Eager gives no gradient (None, not zeros) to what only results that nobody used depend on.
    everything, several = (1 << len(wanted)) - 1, len(wanted) > 1

    def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
        if again is not None:
            ctx.kept = again.keep(args)
        outs = forward_graph(list(args))
        if type(outs) is not list:
            outs = list(outs)
        saved = outs[returned:]
        if num_symbols:
            ctx.symbols = saved[-num_symbols:]
            del saved[-num_symbols:]
        for index, tensor in enumerate(saved):
            if tensor is not None and tensor._is_view():  # None: an operator left it undefined
                saved[index] = tensor.detach()
        if unchecked:
            ctx.unchecked = saved[-unchecked:]
            del saved[-unchecked:]
        ctx.save_for_backward(*saved)
        _set_apart(outs, tensors)
        for index in aliased:
            outs[index] = TensorAlias(outs[index])  # autograd passes it by
        if without_grad:
            ctx.mark_non_differentiable(*[outs[index] for index in without_grad])
            ctx._materialize_non_diff_grads = False
        ctx.set_materialize_grads(False)
        if several:
            ctx.like = [(outs[index].shape, outs[index].dtype, outs[index].device) for index in wanted]
        return tuple(outs[:returned])

    def backward(ctx: Any, *grads: Any) -> Any:
        given = grads[0] if len(grads) == 1 and type(grads[0]) is list else list(grads)
        del grads
        if not any(given[index] is not None for index in wanted):
            return (None,) * len(reach)  # the walk came here through another compiled graph, by a result that nobody used
        if again is not None and torch.is_grad_enabled() and ctx.kept is not None:
            _may_run(undetermined)
            return again.gradients(ctx.kept, wanted, given)
        if again is not None and not graph_is_retained():
            ctx.kept = None
        args = [*ctx.symbols, *ctx.saved_tensors] if num_symbols else [*ctx.saved_tensors]
        if unchecked:
            args += ctx.unchecked
        used = _materialized(ctx, given, wanted) if several else everything
        for index, plain, layout in layouts:
            grad = given[index]
            if type(grad) is not torch.Tensor:
                raise RuntimeError(f"the gradient of output {index} of a compiled graph is a {type(grad).__name__}; "
                                   "compiled backward graphs take plain tensors")
            if not (plain and grad.is_contiguous()) and layout is not None:
                grad = _laid_out(grad, layout)
            args.append(grad)
        given.clear()
        if flags:
            args += flag_tensors(flags, used)
        _may_run(undetermined)
        if torch.is_grad_enabled():
            return _Once.apply(torch.empty(0, requires_grad=True), ctx, backward_graph, args)
        _drop_saved(ctx)
        if used == everything:
            return tuple(backward_graph(args))
        return tuple(grad if bits & used else None for grad, bits in zip(backward_graph(args), reach, strict=True))

    node = type("CompiledGraph", (torch.autograd.Function,), {
        "forward": staticmethod(_unseen(forward)), "backward": staticmethod(_unseen(backward)), "boxed_grads_call": True,
    })  # fmt: skip
    # Function.apply looks for functorch and for default arguments; guards and graphs have seen to both.
    return torch._C._FunctionBase.__dict__["apply"].__get__(None, node)  # type: ignore[no-any-return]  # a descriptor of C


def _set_apart(outs: list[Any], tensors: tuple[int, ...]) -> None:
    """No output aliases anything the caller has (`_is_plain`): to autograd each is a tensor of its own, although the graph may
    have made it as a view of a buffer. Otherwise writing to it in place would be refused."""
    for index in tensors:
        if outs[index]._is_view():
            outs[index] = torch.ops.aten._unsafe_view(outs[index], outs[index].shape)


def _layouts(meta: ViewAndMutationMeta, count: int) -> tuple[tuple[bool, Layout | None], ...]:
    """For each of the gradients that are taken: whether it is to be contiguous, and its layout."""
    formats = [tangent.memory_format for tangent in meta.subclass_tangent_meta]  # type: ignore[union-attr]  # plain tensors only: checked before
    assert len(formats) == count, "AOTAutograd knows of other gradients"
    return tuple((False, None) if each is None else (each.memory_format is torch.contiguous_format, Layout(
        each.memory_format, _numbers(each.size), _numbers(each.stride))) for each in formats)


def _numbers(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if sizes is None else tuple(sizes)


def _laid_out(grad: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The gradient as the backward graph was compiled for it."""
    if layout.memory_format is not None:
        return grad.contiguous(memory_format=layout.memory_format)
    assert layout.size is not None and layout.stride is not None
    if grad.shape == layout.size and grad.stride() == layout.stride:
        return grad
    return torch.empty_strided(layout.size, layout.stride, dtype=grad.dtype, device=grad.device).copy_(grad)


def _materialized(ctx: Any, given: list[Any], wanted: tuple[int, ...]) -> int:
    """Puts zeros in the place of gradients that nobody gave; which were given, as bits."""
    used = 0
    for place, (index, (shape, dtype, device)) in enumerate(zip(wanted, ctx.like, strict=True)):
        if given[index] is None:
            given[index] = torch.zeros(shape, dtype=dtype, device=device)
        else:
            used |= 1 << place
    return used


def _may_run(undetermined: bool) -> None:
    """Raises where a backward graph does not mean what autograd asks for."""
    if undetermined and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError("torch.use_deterministic_algorithms(True) was set between a compiled graph's forward, "
                           "which was compiled without it, and its backward")
    if torch._C._functorch.peek_interpreter_stack() is not None:  # type: ignore[attr-defined]  # not in the stubs
        raise RuntimeError("a compiled graph's backward was called inside vmap, grad or vjp; compile the whole of it")


def _drop_saved(ctx: Any) -> None:
    """Saved tensors live in the list now, so that each can die with its last use."""
    drop = getattr(ctx, "maybe_clear_saved_tensors", None)
    if drop is not None:
        drop()


class _Once(torch.autograd.Function):
    """Keeps the graph connected under create_graph=True, and says so when the second derivative is asked for."""

    @staticmethod
    def forward(ctx: Any, connected: torch.Tensor, node: Any, graph: Boxed, args: list[Any]) -> Any:
        _drop_saved(node)
        return tuple(graph(args))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("this compiled graph has no second derivative: fxjit has one only of graphs that draw no random "
                           "numbers and write to no input. Use backend='eager' for what is differentiated twice")

