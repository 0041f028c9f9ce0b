"""Facts about whole graphs: memory that is shared and written to, state of the process, absolute offsets, version counters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import schemas
from fxjit.backends.aot.joint_passes import copy_activations_before_mutation
from fxjit.backends.graph import edit, facts, layout

aten = torch.ops.aten


def captured(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph that a backend is given."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    fxjit.reset()
    fxjit.compile(function, backend=keep)(*inputs)
    (graph,) = graphs
    return graph


def written_inputs(function: Callable[..., Any], *inputs: torch.Tensor) -> list[bool]:
    """Of each input, whether the captured graph writes to its storage."""
    graph = captured(function, *inputs)
    storages = schemas.written_storages(graph.graph)
    return [not schemas.storages_of([node]).isdisjoint(storages) for node in graph.graph.find_nodes(op="placeholder")]


def floor(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x //= 2
    return x + y


def through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:].t().zero_()
    return x + y


def by_position(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.relu(y, True) + x


def of_a_copy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z *= y
    return z


def in_a_branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x, y: x.clone().mul_(2) + y, lambda x, y: x + y, (x, y))


@pytest.mark.parametrize("function, expected", [
    (floor, [True, False]), (through_a_view, [True, False]), (by_position, [True, False]), (of_a_copy, [False, False]),
    (in_a_branch, [False, False]),
])  # fmt: skip
def test_storages_that_a_captured_graph_writes_to(function, expected):
    assert written_inputs(function, torch.ones(3, 3), torch.ones(3, 3)) == expected


def test_a_function_of_the_program_in_the_graph_writes_to_what_it_was_seen_to_write_to():
    @fxjit.allow_in_graph
    def fills(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.fill_(2) + x

    assert written_inputs(lambda x, y: fills(x, y) + 1, torch.ones(3), torch.ones(3)) == [False, True]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_write_by_a_function_of_the_program_reaches_what_shares_memory(backend):
    @fxjit.allow_in_graph
    def fills(x: torch.Tensor) -> torch.Tensor:
        return x.fill_(2)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = y * 3
        fills(x)
        return z + y

    fxjit.reset()
    compiled = fxjit.compile(function, backend=backend)
    compiled(torch.ones(4), torch.ones(4))
    mine, theirs = torch.ones(4), torch.ones(4)
    assert torch.equal(compiled(mine, mine), function(theirs, theirs))


def aten_graph(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function)(*inputs)


def test_the_root_of_views_also_through_a_split():
    graph = aten_graph(lambda x: x.t().split(2)[1].mul(2), torch.ones(3, 4)).graph
    (x,) = graph.find_nodes(op="placeholder")
    assert all(facts.view_root(part) is x for part in graph.find_nodes(op="call_function", target=operator.getitem))
    (product,) = graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert facts.view_root(product) is product


def test_inputs_that_an_aten_graph_writes_to():
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        x.split(1)[0].add_(y[:1])
        z.clone().mul_(2)
        return torch.sum(y, 0, out=z[0])

    assert facts.placeholders_written(aten_graph(function, *(torch.ones(2, 2) for _ in range(3)))) == {0, 2}


def under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x + 1


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


def under_a_kernel(x: torch.Tensor) -> torch.Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(x, x, x)


def under_nothing(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x.sin().clamp(0) @ x, (3,)) * x.size(0)


@pytest.mark.parametrize("function, expected", [
    (under_no_grad, 2), (under_autocast, 2), (under_a_kernel, 2), (under_nothing, 0),
])  # fmt: skip
def test_calls_that_change_the_state_of_the_process(function, expected):
    graph = captured(function, torch.ones(3, 3, requires_grad=True))
    assert sum(map(facts.changes_state, graph.graph.nodes)) == expected


def test_levels_of_functorch_are_state():
    graph = torch.fx.Graph()
    for name in ("_vmap_increment_nesting", "_vmap_decrement_nesting"):
        node = graph.call_function(getattr(torch._C._functorch, name), (3,))
        node.meta["example_value"] = 1
        assert facts.changes_state(node)


@pytest.mark.parametrize("function, expected", [
    (lambda x: x.as_strided((2,), (1,), 1), True), (lambda x: (x * 2).as_strided((2,), (1,), 1), False),
    (lambda x: (x * 2)[1:].as_strided((2,), (1,), 1), True), (lambda x: x.clone().fill_diagonal_(2), False),
    (lambda x: x.fill_diagonal_(2), True), (lambda x: x.as_strided((2,), (1,)), False),
])  # fmt: skip
def test_absolute_storage_offsets(function, expected):
    assert facts.uses_storage_offsets(captured(function, torch.ones(3, 3))) == expected


def through_data(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    mean.data.add_(1)
    return x + var.add_(1).sum()


@pytest.mark.parametrize("function", [
    lambda x, mean, var: F.batch_norm(x, mean, var, training=True), lambda x, mean, var: F.instance_norm(x, mean, var),
    lambda x, mean, var: F.batch_norm(x, mean, var, training=True) + mean.add_(1).sum(), through_data,
])  # fmt: skip
def test_writes_that_no_version_counts(function):
    def make() -> list[torch.Tensor]:
        return [torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)]

    graph, inputs = captured(function, *make()), make()
    before = [each.clone() for each in inputs]
    function(*inputs)
    versions = [each._version for each in inputs]
    names = [node.target for node in graph.graph.find_nodes(op="placeholder")]
    places = [next(place for place, name in enumerate(("l_x_", "l_mean_", "l_var_")) if name == target) for target in names]
    mutated = [index for index, place in enumerate(places) if not torch.equal(inputs[place], before[place])]
    expected = tuple(index for index in mutated if versions[places[index]] == 0)
    assert facts.mutated_without_version(graph, [make()[place] for place in places], mutated) == expected


# Layouts


@pytest.mark.parametrize("x, order, gaps", [
    (torch.empty(2, 3), (0, 1), False), (torch.empty(2, 3).t(), (1, 0), False), (torch.empty(2, 1, 3), (0, 2), False),
    (torch.empty(2, 6)[:, ::2], None, True), (torch.empty(3).expand(2, 3), None, False), (torch.empty(0, 2), None, False),
    (torch.empty(6).unfold(0, 3, 1), None, False),
    (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), (0, 2, 3, 1), False),
])  # fmt: skip
def test_the_order_of_dimensions_and_gaps(x, order, gaps):
    assert layout.dimension_order(x) == order
    assert layout.has_gaps(x) == gaps


def test_elements_that_lie_on_each_other():
    assert layout.overlaps_itself((4, 3), (1, 1))
    assert layout.overlaps_itself((2, 3), (0, 1))
    assert not layout.overlaps_itself((2, 3), (3, 1))
    assert not layout.overlaps_itself((1, 3), (0, 2))


def test_the_range_of_bytes():
    x = torch.empty(4, 6)
    assert layout.byte_range(x) == (0, 96)
    assert layout.byte_range(x[1:3, ::2]) == (24, 68)
    assert layout.byte_range(x[:0]) == (0, 0)


# Edits


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2]])
def test_a_copy_keeps_its_strides(change):
    fake = torch._subclasses.FakeTensorMode()
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    x = change(torch.arange(12.0).view(3, 4))
    node.meta["val"] = fake.from_tensor(x)
    copied = edit.copy_in_layout(graph, node)
    graph.output((copied,))
    (result,) = torch.fx.GraphModule({}, graph)(x)
    assert torch.equal(result, x) and result.stride() == x.stride() and result.data_ptr() != x.data_ptr()


def test_outputs_are_replaced_in_their_container():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output([x, x])
    edit.set_outputs(graph, (x,))
    assert edit.outputs_of(graph) == [x] and isinstance(graph.output_node().args[0], list)


@pytest.mark.parametrize("part", [lambda x: x.split(2)[1], lambda x: x[2:], lambda x: x.view(2, 2).t()])
def test_a_saved_activation_is_copied_before_its_input_is_mutated(part):
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        saved = part(x)
        y = saved * 2
        x.copy_(x + 1)
        return y, saved

    graph = make_fx(forward, tracing_mode="fake")(torch.arange(4.0))
    copy_activations_before_mutation(graph, 1, mutated=(), read=())
    _, saved = graph(torch.arange(4.0))
    assert torch.equal(saved, part(torch.arange(4.0))) and saved.stride() == part(torch.arange(4.0)).stride()
