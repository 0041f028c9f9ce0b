"""Operators of a higher order: `torch.cond`, `switch`, `while_loop`, `scan`, `map`, flex attention.

Each function that such an operator is given is traced by itself, into a graph of its own that the main graph holds. What
it reads of the program around it is passed to it. What it does to objects it did not make, or to tensors, breaks the graph:
then the operator is called as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Raised, Value
from fxjit.frontend.values.calls import handles, handles_named
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor import TensorValue

map_impl: Any = torch_private.optional("torch._higher_order_ops.map.map_impl")
scan: Any = torch_private.optional("torch._higher_order_ops.scan.scan")
scan_op: Any = torch_private.optional("torch._higher_order_ops.scan.scan_op")
while_loop: Any = torch_private.optional("torch._higher_order_ops.while_loop.while_loop")
while_loop_op: Any = torch_private.optional("torch._higher_order_ops.while_loop.while_loop_op")
strict_mode: Any = torch_private.optional("torch._higher_order_ops.strict_mode.strict_mode")
strict_mode_op: Any = torch_private.optional("torch._higher_order_ops.strict_mode.strict_mode_op")
hints_wrapper: Any = torch_private.optional("torch._higher_order_ops.hints_wrap.hints_wrapper")
wrap: Any = torch_private.optional("torch._higher_order_ops.wrap.wrap")
invoke_quant: Any = torch_private.optional("torch._higher_order_ops._invoke_quant.invoke_quant")
invoke_quant_packed: Any = torch_private.optional("torch._higher_order_ops._invoke_quant.invoke_quant_packed")

_map: Final[Any] = torch._higher_order_ops.map


@dataclass(slots=True)
class Body:
    """The body of a function, captured as a subgraph by a call with stand-ins for its arguments."""

    #: Those that make the stand-ins come first, and are not in `work`.
    nodes: list[torch.fx.Node]
    work: list[torch.fx.Node]
    stand_ins: list[torch.fx.Node]
    leaves: list[Value]
    layout: Layout

    @property
    def results(self) -> list[torch.fx.Node]:
        return [leaf.node for leaf in self.leaves if leaf.node is not None]

    def reads(self) -> list[torch.fx.Node]:
        """The values of the outer graph that the body reads."""
        own = {*self.work, *self.stand_ins}
        used = dict.fromkeys(each for node in self.work for each in node.all_input_nodes) | dict.fromkeys(self.results)
        return [node for node in used if node not in own and node.op != "get_attr"]

    def graph(self, t: Tracer, lifted: Sequence[torch.fx.Node], alone: bool = False) -> torch.fx.Node:
        """Its graph, with `lifted` as arguments behind those that stand-ins stood for; `alone`: it gives one tensor, not a
        tuple."""
        return t.subgraph(self.work, [*self.stand_ins, *lifted], self.results[0] if alone else self.results)


@dataclass(frozen=True, slots=True)
class Layout:
    """How leaves are put together: lists and tuples by themselves, other containers as torch's pytree says."""

    kind: type | None = None
    items: tuple[Layout, ...] = ()
    spec: Value | None = None
    count: int = 1


def flatten(t: Tracer, tree: Value) -> tuple[list[Value], Layout]:
    """A container's leaves, and what puts them together again."""
    if isinstance(tree, TensorValue):
        tree.graph_arg(t)  # which may say no
        return [tree], Layout()
    kind = tree.pytype()
    if kind is list or kind is tuple:
        parts = [flatten(t, item) for item in protocol.unpack(t, tree)]
        leaves = [leaf for found, _ in parts for leaf in found]
        return leaves, Layout(kind, tuple(layout for _, layout in parts), count=len(leaves))
    found, spec = protocol.unpack(t, t.call(t.make(_pytree.tree_flatten), [tree], None))
    leaves = protocol.unpack(t, found)
    return leaves, Layout(spec=spec, count=len(leaves))


def unflatten(t: Tracer, leaves: Sequence[Value], layout: Layout) -> Value:
    if layout.kind is not None:
        items, start = [], 0
        for each in layout.items:
            items.append(unflatten(t, leaves[start: start + each.count], each))
            start += each.count
        return ListValue(items) if layout.kind is list else TupleValue(items)
    if layout.spec is None:
        return leaves[0]
    return t.call(t.make(_pytree.tree_unflatten), [ListValue(list(leaves)), layout.spec], None)


def alike(t: Tracer, first: Layout, second: Layout) -> bool:
    """Whether both put leaves together in the same way."""
    if first.spec is not None and second.spec is not None:
        return protocol.equal(t, first.spec, second.spec)
    if first.spec is not second.spec or first.kind is not second.kind or len(first.items) != len(second.items):
        return False
    return all(alike(t, one, other) for one, other in zip(first.items, second.items, strict=True))


def trace_body(t: Tracer, name: str, arguments: Callable[[], Sequence[Value]],
               call: Callable[[Sequence[Value]], Value]) -> Body:
    """Trace `call` of stand-ins, which `arguments` makes of operators of their own."""
    with t.capture_subgraph(name) as nodes:
        stand_ins = list(arguments())
        with t.capture_subgraph(name) as work, t.only_reading(name):
            try:
                leaves, layout = flatten(t, call(stand_ins))
            except Raised as raised:
                t.break_("call-higher-order", function=name, why=f"it raises {raised.value.describe()}")
        if not all(isinstance(leaf, TensorValue) for leaf in leaves):
            t.break_("call-higher-order", function=name, why="it gives something that is no tensor")
    return Body(nodes, work, [value.node for value in stand_ins if value.node is not None], leaves, layout)


def _like(t: Tracer, tensor: Value) -> Value:
    """A tensor of the same metadata with unknown elements."""
    return t.emit(torch.empty_like, [tensor])


def _row(t: Tracer, tensor: Value) -> Value:
    """A tensor of the kind of the tensor's rows."""
    return t.emit(torch.empty_like, [t.emit("select", [tensor, 0, 0])])


def _lifted(*bodies: Body) -> list[torch.fx.Node]:
    return list(dict.fromkeys(node for body in bodies for node in body.reads()))


def _graphs(t: Tracer, lifted: Sequence[torch.fx.Node], *bodies: Body, alone: Body | None = None
            ) -> list[torch.fx.Node]:
    """The graphs of all, whose operators leave the graph around them."""
    graphs = [body.graph(t, lifted, alone=body is alone) for body in bodies]
    for body in reversed(bodies):
        t.discard(body.nodes)
    return graphs


def _require_fresh(t: Tracer, name: str, body: Body) -> None:
    """Results that share memory with what the function read, or with each other: the operators have no aliases."""
    def storages(nodes: Iterable[torch.fx.Node]) -> Iterator[Any]:
        fakes = [node.meta["example_value"] for node in nodes]
        return (fake.untyped_storage()._cdata for fake in fakes if isinstance(fake, torch.Tensor))

    given, made = set(storages([*body.stand_ins, *body.reads()])), list(storages(body.results))
    if given & set(made) or len(set(made)) < len(made):
        t.break_("call-higher-order", function=name, why="a result shares memory with an argument or another result")


def _require_tensors(t: Tracer, name: str, values: Sequence[Value]) -> None:
    if not values or not all(isinstance(value, TensorValue) for value in values):
        t.break_("call-higher-order", function=name, why="an argument is no tensor")


def _named(t: Tracer, name: str, names: Sequence[str], args: Sequence[Value], kwargs: Mapping[str, Value],
           needed: int) -> dict[str, Value]:
    """The arguments by their names, of which the first `needed` must be there; torch says what is wrong with others."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(given) < len(args) + len(kwargs) or not given.keys() >= {*names[:needed]}:
        t.break_("call-higher-order", function=name, why="it is called with other arguments than it takes")
    return given


@handles(torch.ops.higher_order.cond)
def _cond_operator(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("pred", "true_fn", "false_fn", "operands")
    given = _named(t, "cond", names, args, kwargs, needed=4)
    if given.keys() != {*names} or not isinstance(given["pred"].realize(), TensorValue):
        t.break_("call-higher-order", function="cond", why="it is called with other arguments than it takes")
    return _cond(t, args, kwargs)


@handles(torch.cond)
def _cond(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _named(t, "torch.cond", ("pred", "true_fn", "false_fn", "operands"), args, kwargs, needed=3)
    predicate = given["pred"]
    operands = protocol.unpack(t, given["operands"]) if "operands" in given else []
    if not isinstance(predicate, TensorValue):
        branch = given["true_fn"] if protocol.truth(t, predicate) else given["false_fn"]
        return t.call(branch, operands, None)
    return _one_of(t, "torch.cond", [given["true_fn"], given["false_fn"]], operands, lambda graphs, lifted: t.emit(
        torch.ops.higher_order.cond, [predicate, *graphs, lifted]))


@handles_named("torch._higher_order_ops.switch", "switch")
def _switch(fn: Any, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of torch 2.14 and later. A number that is no tensor chooses the branch while tracing."""
    given = _named(t, "switch", ("index", "branches", "operands"), args, kwargs, needed=2)
    index, branches = given["index"].realize(), protocol.unpack(t, given["branches"])
    operands = protocol.unpack(t, given["operands"]) if "operands" in given else []
    last = len(branches) - 1
    if last < 0 or not (index.is_constant() or (isinstance(index, TensorValue) and index.fake.numel() == 1)):
        t.break_("call-higher-order", function="switch", why="its index is no number, or it has no branch")
    if index.is_constant() or not last:
        return t.call(branches[max(0, min(index.as_constant(), last)) if last else 0], operands, None)
    place = protocol.call_method(t, index, "clamp", t.make(0), t.make(last))
    return _one_of(t, "switch", branches, operands, lambda graphs, lifted: t.emit(
        torch.ops.higher_order.switch, [place, tuple(graphs), lifted]))


def _one_of(t: Tracer, name: str, branches: Sequence[Value], operands: Sequence[Value],
            emit: Callable[[list[torch.fx.Node], tuple[torch.fx.Node, ...]], Value]) -> Value:
    """What the operator gives that `emit` makes of the branches' graphs, of which one runs, and of what they read."""
    bodies = [trace_body(t, name, lambda: (), lambda _, fn=branch: t.call(fn, operands, None))  # type: ignore[misc]  # the default is no part of the type
              for branch in branches]
    for body in bodies:
        _require_fresh(t, name, body)
    if not all(alike(t, bodies[0].layout, body.layout) for body in bodies):
        t.break_("call-higher-order", function=name, why="results are put together in different ways")
    lifted = _lifted(*bodies)
    result = emit(_graphs(t, lifted, *bodies), tuple(lifted))
    return unflatten(t, protocol.unpack(t, result), bodies[0].layout)


@handles(while_loop)
def _while_loop(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _named(t, "while_loop", ("cond_fn", "body_fn", "carried_inputs"), args, kwargs, needed=3)
    leaves, layout = flatten(t, given["carried_inputs"])
    _require_tensors(t, "while_loop", leaves)

    def call(fn: Value) -> Callable[[Sequence[Value]], Value]:
        return lambda stand_ins: t.call(fn, protocol.unpack(t, unflatten(t, stand_ins, layout)), None)

    bodies = [trace_body(t, "while_loop", lambda: [_like(t, leaf) for leaf in leaves], call(given[name]))
              for name in ("cond_fn", "body_fn")]
    _require_fresh(t, "while_loop", bodies[1])
    if len(bodies[0].leaves) != 1 or len(bodies[1].leaves) != len(leaves):
        t.break_("call-higher-order", function="while_loop", why="a step gives other values than it takes")
    lifted = _lifted(*bodies)
    graphs = _graphs(t, lifted, *bodies, alone=bodies[0])
    result = t.emit(while_loop_op, [*graphs, tuple(leaf.node for leaf in leaves), tuple(lifted)])
    return unflatten(t, protocol.unpack(t, result), bodies[1].layout)


@handles(_map)
def _map_rows(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _named(t, "map", ("f", "xs"), args[:2], kwargs, needed=2)
    if len(given) > 2:
        t.break_("call-higher-order", function="map", why="it is called with other arguments than it takes")
    fn, xs, *rest = given["f"], given["xs"], *args[2:]
    leaves, layout = flatten(t, xs)
    _require_tensors(t, "map", leaves)
    body = trace_body(t, "map", lambda: [_row(t, leaf) for leaf in leaves],
                      lambda rows: t.call(fn, [unflatten(t, rows, layout), *rest], None))
    _require_fresh(t, "map", body)
    lifted = _lifted(body)
    result = t.emit(map_impl, [*_graphs(t, lifted, body), tuple(leaf.node for leaf in leaves), tuple(lifted)])
    return unflatten(t, protocol.unpack(t, result), body.layout)


@handles(scan)
def _scan(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = _named(t, "scan", ("combine_fn", "init", "xs"), args, kwargs, needed=3)
    init, init_layout = flatten(t, given["init"])
    rows, rows_layout = flatten(t, given["xs"])
    _require_tensors(t, "scan", init)
    _require_tensors(t, "scan", rows)
    if "dim" in given and protocol.truth(t, given["dim"]):
        t.break_("call-higher-order", function="scan", why="rows of another dimension end up in places that depend on torch")
    backwards = "reverse" in given and protocol.truth(t, given["reverse"])
    rows = [t.emit("flip", [row, [0]]) if backwards else row for row in rows]

    def step(stand_ins: Sequence[Value]) -> Value:
        carry, row = unflatten(t, stand_ins[: len(init)], init_layout), unflatten(t, stand_ins[len(init):], rows_layout)
        return t.call(given["combine_fn"], [carry, row], None)

    body = trace_body(t, "scan", lambda: [*(_like(t, each) for each in init), *(_row(t, row) for row in rows)], step)
    _require_fresh(t, "scan", body)
    lifted = _lifted(body)
    lists = [[each.node for each in values] for values in (init, rows)]
    results = protocol.unpack(t, t.emit(scan_op, [*_graphs(t, lifted, body), *lists, tuple(lifted)]))
    carried, made = results[: len(init)], results[len(init):]
    made = [t.emit("flip", [each, [0]]) if backwards else each for each in made]
    return unflatten(t, [*carried, *made], body.layout)


# -- flex attention ------------------------------------------------------------------------------------------------


class _ItemsByTensors(TorchFunctionMode):
    """`bias[head]` with tensors of one number reads an item: so the operator runs these functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            indices = args[1] if isinstance(args[1], (tuple, list)) else (args[1],)
            if indices and all(isinstance(index, torch.Tensor) for index in indices):
                return torch.ops.aten.index(args[0], list(indices))
        return func(*args, **(kwargs or {}))


@handles(torch.ops.higher_order.flex_attention)
def _flex_attention(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`flex_attention_hop(query, key, value, score_mod, block_mask, scale, kernel_options)`."""
    if len(args) != 7 or kwargs:
        t.break_("call-higher-order", function="flex_attention", why="it is called in a way of its own")
    query, key, value, score_mod, block_mask, *options = args
    *blocks, mask_mod = protocol.unpack(t, block_mask)

    def positions() -> list[Value]:
        return [t.emit("new_empty", [query, ()], {"dtype": torch.int32}) for _ in range(4)]

    with _ItemsByTensors():
        score = trace_body(t, "score_mod", lambda: [t.emit("new_empty", [query, ()]), *positions()],
                           lambda given: t.call(score_mod, given, None))
        mask = trace_body(t, "mask_mod", positions, lambda given: t.call(mask_mod, given, None))
    if len(score.leaves) != 1 or len(mask.leaves) != 1:
        t.break_("call-higher-order", function="flex_attention", why="a function gives several results")
    buffers = _lifted(score), _lifted(mask)
    score_graph = score.graph(t, buffers[0], alone=True)
    mask_graph = mask.graph(t, buffers[1], alone=True)
    t.discard(mask.nodes)
    t.discard(score.nodes)
    operands = [query, key, value, score_graph, (*blocks, mask_graph), *options, *map(tuple, buffers)]
    return t.emit(torch.ops.higher_order.flex_attention, operands)


def _call_inline(t: Tracer, name: str, fn: Value, operands: Value) -> Value:
    """`fn(*operands)`, which is all that the operator does; autograd has no rule for it, and that is for eager to say."""
    values = protocol.unpack(t, operands)
    leaves, _ = flatten(t, TupleValue(list(values)))
    if torch.is_grad_enabled() and any(isinstance(leaf, TensorValue) and leaf.fake.requires_grad for leaf in leaves):
        t.break_("call-higher-order", function=name, why="an argument requires grad, and the operator has no derivative")
    with t.only_reading(name):
        found = t.call(fn, values, None)
    leaves, _ = flatten(t, found)
    if torch.is_grad_enabled() and any(isinstance(leaf, TensorValue) and leaf.fake.requires_grad for leaf in leaves):
        t.break_("call-higher-order", function=name, why="a result requires grad, and the operator has no derivative")
    return found


def _strict_mode(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [*args, *(kwargs[key] for key in ("callable", "operands") if key in kwargs)]
    if len(given) != 2 or len(args) + len(kwargs) != 2:
        t.break_("call-higher-order", function="strict_mode", why="it is called in a way of its own")
    return _call_inline(t, "strict_mode", *given)


def _hints_wrapper(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The hints are for a compiler that knows them, which no backend of ours does."""
    given = [*args, *(kwargs[key] for key in ("body_fn", "args", "kwargs", "hints")[len(args):] if key in kwargs)]
    if len(given) != 4 or len(args) + len(kwargs) != 4 or protocol.truth(t, given[2]):
        t.break_("call-higher-order", function="hints_wrapper", why="it is called in a way of its own")
    return _call_inline(t, "hints_wrapper", given[0], given[1])


def _invoke_quant(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Its options are for a compiler that knows them. An `InvokeQuant` object gives itself as one, which calls the function in
    eager."""
    if not args or not kwargs.keys() <= {"scheme", "quant_options"}:
        t.break_("call-higher-order", function="invoke_quant", why="it is called in a way of its own")
    if "quant_options" in kwargs:
        return t.call(args[0], args[1:])
    return _call_inline(t, "invoke_quant", args[0], TupleValue(args[1:]))


def _wrap(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`wrap(fn, *args, **kwargs)`: the call of `fn`, which a compiler that knows it keeps as a graph of its own."""
    if not args:
        t.break_("call-higher-order", function="wrap", why="it is called with other arguments than it takes")
    return t.call(args[0], args[1:], kwargs)


handles(wrap)(_wrap)
for _operator, _handler in ((strict_mode, _strict_mode), (strict_mode_op, _strict_mode), (hints_wrapper, _hints_wrapper),
                            (invoke_quant, _invoke_quant), (invoke_quant_packed, _invoke_quant)):
    handles(_operator)(_handler)
