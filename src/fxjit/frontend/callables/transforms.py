"""torch.func in traced code: `grad`, `grad_and_value`, `vmap`, `vjp`, `jvp` and `linearize`. What torch makes of these
(`jacrev`, `jacfwd`, `hessian`) is its own Python, traced.

The function that is transformed is traced by itself, into a graph of its own, and a node of the main graph transforms and
runs that. Where the function does more than compute, the graph breaks, and the transform runs as it stands.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
import torch.fx
from torch.utils import _pytree

from fxjit import config, torch_private
from fxjit.frontend.callables.higher_order import Body, Layout, alike, flatten, trace_body, unflatten
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.contexts import set_grad_mode
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue

is_wrapped: Any = torch_private.get("torch._C._functorch.is_functorch_wrapped_tensor")
active_fake_mode: Any = torch_private.optional("torch._guards.active_fake_mode")
vmap_impl: Any = torch_private.optional("torch._functorch.vmap.vmap_impl")
add_dimension: Any = torch_private.optional("torch._C._functorch._add_batch_dim")
remove_dimension: Any = torch_private.optional("torch._C._functorch._remove_batch_dim")
mapped_level: Any = torch_private.optional("torch._functorch.vmap.vmap_increment_nesting")

_REASON = "call-higher-order"


# -- what the nodes call: `graph` takes what a transform hands to the function, then what the function `read` around it ------


def gradients_and_value(graph: torch.fx.GraphModule, given: Sequence[torch.Tensor], read: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients of the first result, then all results."""
    def call(given: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        value, *rest = graph.forward(*given, *read)
        return value, tuple(rest)

    gradients, (value, rest) = torch.func.grad_and_value(call, has_aux=True)(tuple(given))
    return (*gradients, value, *rest)


def batched(graph: torch.fx.GraphModule, given: Sequence[torch.Tensor], read: Sequence[Any], in_dims: tuple[int, ...],
            out_dims: tuple[int | None, ...], randomness: str, chunk_size: int | None) -> tuple[Any, ...]:
    """The results for all rows of what is `given`."""
    def call(*rows: torch.Tensor) -> tuple[Any, ...]:
        results: tuple[Any, ...] = graph.forward(*rows, *read)
        return results

    if chunk_size is None and _replaced_helpers():  # those are for the program's containers, and may keep notes
        with mapped_level(given[0].shape[in_dims[0]], randomness) as level:
            rows = [add_dimension(each, dim, level) for each, dim in zip(given, in_dims, strict=True)]
            results = call(*rows)
            return tuple(remove_dimension(each, level, given[0].shape[in_dims[0]], dim) if dim is not None else each
                         for each, dim in zip(results, out_dims, strict=True))
    mapped = torch.vmap(call, tuple(in_dims), tuple(out_dims), randomness=randomness, chunk_size=chunk_size)  # type: ignore[arg-type]  # its stub takes no nested tuples
    made: tuple[Any, ...] = mapped(*given)
    return made


def _pulled(graph: torch.fx.GraphModule, given: Sequence[torch.Tensor], read: Sequence[Any], count: int) -> Any:
    """`torch.func.vjp`: the first `count` results, how gradients of theirs come back, the other results."""
    def call(*given: torch.Tensor) -> tuple[Any, Any]:
        results = graph.forward(*given, *read)
        return results[:count], results[count:]

    return torch.func.vjp(call, *given, has_aux=True)


def primal(graph: torch.fx.GraphModule, given: Sequence[torch.Tensor], read: Sequence[Any], count: int) -> tuple[Any, ...]:
    """The results alone, as `torch.func.vjp` gives them."""
    results, _, rest = _pulled(graph, given, read, count)
    return (*results, *rest)


def pull_back(graph: torch.fx.GraphModule, given: Sequence[torch.Tensor], read: Sequence[Any],
              cotangents: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Gradients with respect to `given` for `cotangents` of the first results; the function is run again for it."""
    results: tuple[Any, ...] = _pulled(graph, given, read, len(cotangents))[1](tuple(cotangents))
    return results


@contextlib.contextmanager
def _remembering_nothing() -> Iterator[None]:
    """Operators on fake tensors remember what they gave for which arguments, but not for which tangents of these."""
    mode: Any = active_fake_mode()
    if mode is None:
        yield
        return
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = before


def _in_memory_of_their_own(primal: torch.Tensor, tangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A dual's parts of symbolic sizes, without memory around them: torch lays a tangent out as its primal's memory is, and
    has no sizes for that which vary."""
    if is_wrapped(primal) or is_wrapped(tangent) or not any(isinstance(size, torch.SymInt) for size in primal.shape):
        return primal, tangent
    if _fills_its_memory(primal) and _fills_its_memory(tangent):
        return primal, tangent
    alone = primal if _fills_its_memory(primal) else primal.clone(), tangent.clone()
    return alone if alone[0].stride() == alone[1].stride() else (primal, tangent)


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    known: Any = torch_private.get("torch.fx.experimental.symbolic_shapes.statically_known_true")
    return bool(known(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()))


def push_forward(graph: torch.fx.GraphModule, given: Sequence[torch.Tensor], read: Sequence[Any],
                 tangents: Sequence[torch.Tensor], count: int, strict: bool) -> tuple[Any, ...]:
    """The first `count` results, their tangents, the other results."""
    def call(*given: torch.Tensor) -> tuple[Any, Any]:
        results = graph.forward(*given, *read)
        return results[:count], results[count:]

    with _remembering_nothing():
        duals = [_in_memory_of_their_own(*parts) for parts in zip(given, tangents, strict=True)]
        given, tangents = [primal for primal, _ in duals], [tangent for _, tangent in duals]
        results: Any = torch.func.jvp(call, tuple(given), tuple(tangents), strict=strict, has_aux=True)
    values, pushed, rest = results
    return (*values, *pushed, *rest)


# -- arguments and results -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Arguments:
    """The arguments of a function, of which a transform replaces some leaves."""

    values: list[Value]
    #: Positions of the arguments that are replaced whole.
    chosen: list[int]
    leaves: list[Value]
    layouts: list[Layout]

    def with_leaves(self, t: Tracer, leaves: Sequence[Value]) -> list[Value]:
        """The arguments with these in the place of their leaves."""
        values = list(self.values)
        for position, part in zip(self.chosen, self.parts(t, leaves), strict=True):
            values[position] = part
        return values

    def parts(self, t: Tracer, leaves: Sequence[Value]) -> list[Value]:
        """These leaves, in the structure of the chosen arguments."""
        parts, start = [], 0
        for layout in self.layouts:
            parts.append(unflatten(t, leaves[start: start + layout.count], layout))
            start += layout.count
        return parts


def _refuse(t: Tracer, name: str, why: str) -> NoReturn:
    t.break_(_REASON, function=name, why=why)


def _arguments(t: Tracer, name: str, args: Value, argnums: Value) -> tuple[Arguments, bool]:
    """The arguments that `argnums` (None: all) chooses, and whether it is one alone."""
    values = protocol.unpack(t, args)
    alone = argnums.pytype() is int
    if argnums.is_constant() and argnums.as_constant() is None:
        chosen = list(range(len(values)))
    else:
        numbers = [argnums] if alone else protocol.unpack(t, argnums)
        if not all(number.is_constant() and type(number.as_constant()) is int for number in numbers):
            _refuse(t, name, "`argnums` are no numbers")
        chosen = [number.as_constant() for number in numbers]
        if not chosen or not all(-len(values) <= number < len(values) for number in chosen):
            _refuse(t, name, "`argnums` do not fit the arguments")
        chosen = [number % len(values) for number in chosen]
    flat = [flatten(t, values[position]) for position in chosen]
    leaves = [leaf for found, _ in flat for leaf in found]
    if not leaves or len(set(chosen)) < len(chosen) or not all(isinstance(leaf, TensorValue) for leaf in leaves):
        _refuse(t, name, "it is taken for something that is no tensor")
    return Arguments(values, chosen, leaves, [layout for _, layout in flat]), alone


def _with_rest(t: Tracer, name: str, result: Value, has_aux: bool) -> tuple[Value, list[Value]]:
    """A function's result: the part that is transformed, and the auxiliary output."""
    if not has_aux:
        return result, []
    items = protocol.unpack(t, result) if result.pytype() is tuple else []
    if len(items) != 2:
        _refuse(t, name, "the function gives no pair")
    return items[0], items[1:]


def _detached(t: Tracer, leaf: Value, differentiated: bool = False) -> Value:
    """A stand-in for a tensor inside: of the same kind, without autograd history."""
    alone = t.emit("detach", [leaf])
    return t.emit("requires_grad_", [alone]) if differentiated else alone


def _traced(t: Tracer, name: str, stand_ins: Callable[[], Sequence[Value]], call: Callable[[Sequence[Value]], Value],
            grad_mode: bool = False) -> tuple[Body, torch.fx.Node, list[torch.fx.Node]]:
    """Captures the function with stand-ins: results, the node of its graph, and the values it read; `grad_mode`: autograd
    is on inside."""
    if not config.capture_func_transforms:
        _refuse(t, name, "`config.capture_func_transforms` is off")
    before = torch.is_grad_enabled()
    entered = overrides.entered_transforms(t)
    with t.capture_subgraph(name) as nodes:
        set_grad_mode(t, grad_mode or before)
        entered.append(name)
        body = trace_body(t, name, stand_ins, call)
        entered.pop()
        set_grad_mode(t, before)
    read = body.reads()
    graph = body.graph(t, read)
    t.discard(nodes)
    return body, graph, read


def _known(value: Value) -> bool:
    return bool(value.as_constant())


def _named(t: Tracer, mapping: Value) -> dict[str, Value]:
    return {key.as_constant(): protocol.getitem(t, mapping, key) for key in protocol.unpack(t, mapping)}


# -- grad ------------------------------------------------------------------------------------------------------------


def _grad_and_value(t: Tracer, name: str, args: list[Value]) -> tuple[Value, Value]:
    """The gradients, and the value or the pair of the value and the auxiliary output."""
    func, argnums, has_aux, positional, named = args
    given, alone = _arguments(t, name, positional, argnums)

    def call(stand_ins: Sequence[Value]) -> Value:
        result = t.call(func, given.with_leaves(t, stand_ins), _named(t, named))
        if not isinstance(_with_rest(t, name, result, _known(has_aux))[0], TensorValue):
            _refuse(t, name, "the function gives no tensor")
        return result

    body, graph, read = _traced(t, name, lambda: [_detached(t, leaf, differentiated=True) for leaf in given.leaves], call, True)
    items = protocol.unpack(t, t.emit(gradients_and_value, [graph, tuple(given.leaves), tuple(read)]))
    parts = given.parts(t, items[: len(given.leaves)])
    return parts[0] if alone else TupleValue(parts), unflatten(t, items[len(given.leaves):], body.layout)


@handles(torch_private.optional("torch._functorch.eager_transforms.grad_and_value_impl"))
def _grad_and_value_impl(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue(_grad_and_value(t, "torch.func.grad_and_value", args))


@handles(torch_private.optional("torch._functorch.eager_transforms.grad_impl"))
def _grad_impl(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    gradients, value = _grad_and_value(t, "torch.func.grad", args)
    return TupleValue([gradients, protocol.unpack(t, value)[1]]) if _known(args[2]) else gradients


# -- vmap ------------------------------------------------------------------------------------------------------------


def _spread(t: Tracer, dims: Value, tree: Value, count: int) -> list[int | None]:
    """The dimension of each of the `count` leaves of a tree, of `dims` that stand for parts of it."""
    if dims.is_constant() and (dims.as_constant() is None or type(dims.as_constant()) is int):
        return [dims.as_constant()] * count
    spec = protocol.unpack(t, t.call(t.make(_pytree.tree_flatten), [tree], None))[1]
    found = t.call(t.make(torch_private.get("torch.utils._pytree._broadcast_to_and_flatten")), [dims, spec], None)
    each = [] if found.is_constant() else protocol.unpack(t, found)
    if len(each) != count or not all(dim.is_constant() and type(dim.as_constant()) in (int, type(None)) for dim in each):
        _refuse(t, "torch.vmap", "the dimensions do not fit what they are of")
    return [dim.as_constant() for dim in each]


@handles(vmap_impl)
def _vmap_impl(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, in_dims, out_dims, randomness, chunk_size, *positional = args
    tree = TupleValue(positional)
    if _replaced_helpers():
        return _vmap_by_helpers(t, args, kwargs)
    leaves, layout = flatten(t, tree)
    dims = _spread(t, in_dims, tree, len(leaves))
    rows = [(place, dim) for place, dim in enumerate(dims) if dim is not None]
    if not rows or not all(isinstance(leaves[place], TensorValue) for place, _ in rows):
        _refuse(t, "torch.vmap", "it maps over something that is no tensor")
    dims_out: list[int | None] = []

    def call(stand_ins: Sequence[Value]) -> Value:
        inside = list(leaves)
        for (place, _), row in zip(rows, stand_ins, strict=True):
            inside[place] = row
        result = t.call(func, protocol.unpack(t, unflatten(t, inside, layout)), kwargs)
        dims_out.extend(_spread(t, out_dims, result, len(flatten(t, result)[0])))
        return result

    body, graph, read = _traced(
        t, "torch.vmap", lambda: [_row(t, leaves[place], dim) for place, dim in rows], call)
    given, in_rows = tuple(leaves[place] for place, _ in rows), tuple(dim for _, dim in rows)
    result = t.emit(batched, [graph, given, tuple(read), in_rows, tuple(dims_out), randomness, chunk_size])
    return unflatten(t, protocol.unpack(t, result), body.layout)


# What vmap's own helpers do to containers may be another package's (tensordict puts in functions that know the batch size of a
# TensorDict). Then these are traced, and what they call of torch's for one tensor makes the rows and the results.

_HELPERS: Final = ("_process_batched_inputs", "_create_batched_inputs", "_unwrap_batched")


def _current_helpers() -> list[Any]:
    return [vmap_impl.__globals__[name] for name in _HELPERS]


def _replaced_helpers() -> bool:
    """Whether any of torch's helpers is not its own any more."""
    return any(helper.__module__ != vmap_impl.__module__ for helper in _current_helpers())


@dataclass(slots=True)
class _Mapping:
    """What the helpers do while a vmap is traced: to a row of each tensor, or to each result."""

    add: Callable[[Value, int], Value] | None = None
    remove: Callable[[Value, int], Value] | None = None


def _mappings(t: Tracer) -> list[_Mapping]:
    found: list[_Mapping] = t.new_source_state("vmap").setdefault("entered", [])
    return found


def _of_one_tensor(t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value], dim: int) -> Value:
    """`_add_batch_dim` or `_remove_batch_dim`, called by a helper."""
    act = getattr(_mappings(t)[-1], name) if _mappings(t) else None
    if act is None or kwargs or len(args) <= dim or not args[dim].is_constant() or not isinstance(args[0], TensorValue):
        _refuse(t, "torch.vmap", "its helpers are called by themselves")
    result: Value = act(args[0], args[dim].as_constant())
    return result


@handles(add_dimension)
@handles(torch_private.optional("torch._functorch.predispatch._add_batch_dim"))
def _add_batch_dim(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _of_one_tensor(t, "add", args, kwargs, 1)


@handles(remove_dimension)
@handles(torch_private.optional("torch._functorch.predispatch._remove_batch_dim"))
def _remove_batch_dim(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _of_one_tensor(t, "remove", args, kwargs, 3)


@handles(torch_private.optional("torch._C._functorch.is_batchedtensor"))
def _is_batchedtensor(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Whether it is made of a row; tensors from outside are not, since nothing is traced under a transform that is at work."""
    if len(args) != 1 or kwargs or not isinstance(args[0], TensorValue):
        _refuse(t, "is_batchedtensor", "its argument is no plain tensor")
    node = args[0].node
    if node is None or not _rows(t):
        return t.make(False)
    rows, seen, pending = set(_rows(t)), {node}, [node]
    while pending and not rows & seen:
        found = {each for each in pending.pop().all_input_nodes if each not in seen}
        seen |= found
        pending += found
    return t.make(bool(rows & seen))


def _rows(t: Tracer) -> list[torch.fx.Node]:
    """The nodes that stand for rows, of each vmap that is traced or was."""
    found: list[torch.fx.Node] = t.new_source_state("vmap").setdefault("rows", [])
    return found


def _row(t: Tracer, tensor: Value, dim: int) -> Value:
    row = _detached(t, t.emit("select", [tensor, dim, 0]))
    _rows(t).extend([row.node] if row.node is not None else [])
    return row


def _vmap_by_helpers(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, in_dims, out_dims, randomness, chunk_size, *positional = args
    name, level = "torch.vmap", t.make(len(_mappings(t)) + 1)
    if not (chunk_size.is_constant() and chunk_size.as_constant() is None):
        _refuse(t, name, "it goes by chunks")
    process, create, unwrap = map(t.make, _current_helpers())
    size, dims, flat, spec = protocol.unpack(t, t.call(process, [in_dims, TupleValue(positional), func], None))
    given: list[tuple[Value, int]] = []
    results: list[tuple[Value, int]] = []
    outputs: list[Value] = []

    def through(helper: Value, values: list[Value], mapping: _Mapping) -> Value:
        _mappings(t).append(mapping)
        try:
            return t.call(helper, values, None)
        finally:
            _mappings(t).pop()

    def noted(tensor: Value, dim: int) -> Value:
        given.append((tensor, dim))
        return t.emit("select", [tensor, dim, 0])

    def stand_ins() -> list[Value]:
        with t.dry_run(name):
            through(create, [dims, flat, level, spec], _Mapping(add=noted))
        return [_row(t, tensor, dim) for tensor, dim in given]

    def collected(tensor: Value, dim: int) -> Value:
        results.append((tensor, dim))
        dimensions = tensor.fake.dim() + 1  # type: ignore[attr-defined]  # `_of_one_tensor` lets no others through
        sizes = [size if place == dim % dimensions else t.make(-1) for place in range(dimensions)]
        return t.emit("expand", [t.emit("unsqueeze", [tensor, dim]), TupleValue(sizes)])

    def call(rows: Sequence[Value]) -> Value:
        made = iter(rows)
        inputs = through(create, [dims, flat, level, spec], _Mapping(add=lambda tensor, dim: next(made)))
        outputs.append(t.call(func, protocol.unpack(t, inputs), kwargs))
        with t.dry_run(name):
            through(unwrap, [outputs[0], out_dims, level, size, func], _Mapping(remove=collected))
        return TupleValue([tensor for tensor, _ in results])

    body, graph, read = _traced(t, name, stand_ins, call)
    tensors, rows = tuple(tensor for tensor, _ in given), tuple(dim for _, dim in given)
    dims_out = tuple(dim for _, dim in results)
    made = iter(protocol.unpack(t, t.emit(batched, [graph, tensors, tuple(read), rows, dims_out, randomness, None])))
    found = through(unwrap, [outputs[0], out_dims, level, size, func], _Mapping(remove=lambda tensor, dim: next(made)))
    gone = {*body.nodes, *body.work}
    if any(leaf.node in gone for leaf in flatten(t, found)[0]):
        _refuse(t, name, "a result has no dimension that is mapped over")
    return found


# -- vjp and jvp -----------------------------------------------------------------------------------------------------


class PullbackValue(Value):
    """The function that `torch.func.vjp` returns. It is valid during the trace: no code can make it afterwards."""

    is_suspended = True
    name = "torch.func.vjp"
    #: Its `__name__`, which vmap asks for.
    python_name = "wrapper"

    def __init__(self, t: Tracer, graph: torch.fx.Node, given: Arguments, read: Sequence[torch.fx.Node], alone: bool,
                 layout: Layout) -> None:
        super().__init__(None)
        self.graph = graph
        self.given = given
        self.read = tuple(read)
        self.alone = alone
        self.layout = layout
        self.created_step, self.created_index, self.created_at = t.here()
        t.new_source_state("generators").setdefault("all", []).append(self)

    def has_cleanup(self) -> bool:
        """Never: its destruction is not observable."""
        return False

    def why_before(self) -> tuple[str, dict[str, object]]:
        """The reason for a stop before it is made."""
        return _REASON, {"function": self.name, "why": "what it gives back is needed where the graph has ended"}

    def pytype(self) -> type:
        return types.FunctionType

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        return t.make(self.python_name) if name == "__name__" else super().tp_getattro(t, name)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        name = self.name
        if len(args) != 1 or kwargs:
            _refuse(t, name, "what it gives back is called with options")
        leaves, layout = flatten(t, args[0])
        if not alike(t, layout, self.layout) or not all(isinstance(leaf, TensorValue) for leaf in leaves):
            _refuse(t, name, "what it gives back is called with something that is not laid out as the result is")
        graph = t.reuse_subgraph(self.graph)
        result = t.emit(pull_back, [graph, tuple(self.given.leaves), self.read, tuple(leaves)])
        parts = self.given.parts(t, protocol.unpack(t, result))
        return parts[0] if self.alone else TupleValue(parts)


@handles(torch_private.optional("torch._functorch.eager_transforms._vjp_with_argnums"))
def _vjp(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name, has_aux = "torch.func.vjp", "has_aux" in kwargs and _known(kwargs["has_aux"])
    func, *primals = args
    given, alone = _arguments(t, name, TupleValue(primals), kwargs.get("argnums", t.make(None)))
    used_rng = t.graph_uses_rng

    def call(stand_ins: Sequence[Value]) -> Value:
        result = t.call(func, given.with_leaves(t, stand_ins), None)
        if not used_rng and t.graph_uses_rng:
            _refuse(t, name, "the function draws random numbers")
        _with_rest(t, name, result, has_aux)
        return result

    body, graph, read = _traced(t, name, lambda: [_detached(t, leaf, differentiated=True) for leaf in given.leaves], call, True)
    if used_rng:
        _refuse(t, name, "random numbers were drawn before")
    layout = body.layout.items[0] if has_aux else body.layout
    result = t.emit(primal, [graph, tuple(given.leaves), tuple(read), layout.count])
    out = unflatten(t, protocol.unpack(t, result), body.layout)
    pullback = PullbackValue(t, graph, given, read, alone, layout)
    value, rest = _with_rest(t, name, out, has_aux)
    return TupleValue([value, pullback, *rest])


@handles(torch_private.optional("torch._functorch.eager_transforms._jvp_with_argnums"))
def _jvp(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = "torch.func.jvp"
    named = dict(zip(("func", "primals", "tangents", "argnums"), args, strict=False)) | kwargs
    has_aux, strict = _known(named["has_aux"]), "strict" in named and _known(named["strict"])
    if named["primals"].pytype() is not tuple or named["tangents"].pytype() is not tuple:
        _refuse(t, name, "primals or tangents are no tuple")
    given, _ = _arguments(t, name, named["primals"], named["argnums"])
    tangents = [flatten(t, part) for part in protocol.unpack(t, named["tangents"])]
    flat = [leaf for leaves, _ in tangents for leaf in leaves]
    fits = len(tangents) == len(given.layouts) and all(
        alike(t, one, other) for (_, one), other in zip(tangents, given.layouts, strict=True))
    if not fits or not all(isinstance(leaf, TensorValue) for leaf in flat):
        _refuse(t, name, "the tangents are not laid out as the primals are")

    def call(stand_ins: Sequence[Value]) -> Value:
        result = t.call(named["func"], given.with_leaves(t, stand_ins), None)
        _with_rest(t, name, result, has_aux)
        return result

    body, graph, read = _traced(t, name, lambda: [_detached(t, leaf) for leaf in given.leaves], call)
    layout = body.layout.items[0] if has_aux else body.layout
    count = layout.count
    items = protocol.unpack(t, t.emit(push_forward, [graph, tuple(given.leaves), tuple(read), tuple(flat), count, strict]))
    pushed = unflatten(t, items[count: 2 * count], layout)
    value, rest = _with_rest(t, name, unflatten(t, [*items[:count], *items[2 * count:]], body.layout), has_aux)
    return TupleValue([value, pushed, *rest])


class LinearMapValue(PullbackValue):
    """The second result of `torch.func.linearize`."""

    name = "torch.func.linearize"
    python_name = "jvp_fn"

    def __init__(self, t: Tracer, graph: torch.fx.Node, given: Arguments, read: Sequence[torch.fx.Node],
                 layout: Layout) -> None:
        super().__init__(t, graph, given, read, False, layout)
        self.versions = self.now()

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        tangents = [flatten(t, part) for part in args]
        leaves = [leaf for found, _ in tangents for leaf in found]
        fits = not kwargs and len(tangents) == len(self.given.layouts) and all(
            alike(t, one, other) for (_, one), other in zip(tangents, self.given.layouts, strict=True))
        if not fits or not all(map(_is_tangent, leaves, self.given.leaves)):
            _refuse(t, self.name, "the tangents are not laid out as the primals are")
        if self.versions != self.now():
            _refuse(t, self.name, "what it was made of was written to")
        graph, count = t.reuse_subgraph(self.graph), self.layout.count
        # Strict: what does not depend on the primals has no tangent here, and is a Parameter in eager code.
        result = t.emit(push_forward, [graph, tuple(self.given.leaves), self.read, tuple(leaves), count, True])
        return unflatten(t, protocol.unpack(t, result)[count: 2 * count], self.layout)

    def now(self) -> list[int]:
        """How often the tensors that it is made of have been written to."""
        return [each._version for each in self._tensors()]

    def _tensors(self) -> list[torch.Tensor]:
        found = [*(leaf.node for leaf in self.given.leaves if leaf.node is not None), *self.read]
        fakes = [node.meta.get("example_value") for node in found]
        return [fake for fake in fakes if isinstance(fake, torch.Tensor)]

    @property
    def is_differentiated(self) -> bool:
        """Whether autograd follows any of them."""
        return any(each.requires_grad for each in self._tensors())


def _is_tangent(tangent: Value, primal: Value) -> bool:
    if not isinstance(tangent, TensorValue) or not isinstance(primal, TensorValue):
        return False
    one, other = tangent.fake, primal.fake
    return one.shape == other.shape and one.dtype is other.dtype and one.device == other.device and not one.requires_grad


@handles(torch.func.linearize)
def _linearize(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = LinearMapValue.name
    if not args or kwargs:
        _refuse(t, name, "its arguments are others than a function and primals")
    func, *primals = args
    given, _ = _arguments(t, name, TupleValue(primals), t.make(None))
    used_rng = t.graph_uses_rng
    output = t.call(func, primals, None)
    body, graph, read = _traced(t, name, lambda: [_detached(t, leaf) for leaf in given.leaves],
                                lambda stand_ins: t.call(func, given.with_leaves(t, stand_ins), None))
    if used_rng or t.graph_uses_rng:
        _refuse(t, name, "random numbers are drawn")
    linear = LinearMapValue(t, graph, given, read, body.layout)
    if linear.is_differentiated:
        _refuse(t, name, "gradients of what it reads are asked for")
    return TupleValue([output, linear])
