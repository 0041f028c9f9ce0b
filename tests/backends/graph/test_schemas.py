"""Effects of calls, held against every schema of ATen, every in-place operator of Python, and what torch's functions do."""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import init

from fxjit import schemas

aten = torch.ops.aten


def aten_overloads() -> list[OpOverload]:
    """All that the dispatcher has a kernel for."""
    names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    found = (getattr(aten, name.removeprefix("aten::"), None) for name in sorted(names))
    packets = [each for each in found if isinstance(each, OpOverloadPacket)]
    return [each for packet in packets for each in schemas.overloads_of(packet)]


def call_of(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A node that makes the call; each `torch.Tensor` among the arguments stands for a placeholder of its own."""
    graph = torch.fx.Graph()

    def node(value: Any) -> Any:
        if value is torch.Tensor:
            return graph.placeholder("x")
        return [node(each) for each in value] if isinstance(value, list) else value

    args, kwargs = tuple(map(node, args)), {name: node(value) for name, value in kwargs.items()}
    return graph.call_method(target, args, kwargs) if isinstance(target, str) else graph.call_function(target, args, kwargs)


def call_by_schema(overload: OpOverload) -> tuple[torch.fx.Node, dict[str, Any]]:
    """A call that gives a placeholder for each tensor, and two for each list of tensors."""
    graph = torch.fx.Graph()
    given: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        text = str(argument.type)
        if "Tensor" in text:
            many = "List" in text
            given[argument.name] = [graph.placeholder("x"), graph.placeholder("y")] if many else graph.placeholder("x")
        elif not argument.has_default_value():
            given[argument.name] = None
    args = [given.pop(each.name, each.default_value) for each in overload._schema.arguments if not each.kwarg_only]
    return graph.call_function(overload, tuple(args), given), {
        **{each.name: value for each, value in zip(overload._schema.arguments, args, strict=False)}, **given}


def leaves(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_an_operator_writes_to_what_its_schema_says():
    overloads = aten_overloads()
    assert len(overloads) > 2500
    for overload in overloads:
        node, given = call_by_schema(overload)
        declared = [leaf for each in overload._schema.arguments if each.alias_info is not None and each.alias_info.is_write
                    for leaf in leaves(given[each.name]) if isinstance(leaf, torch.fx.Node)]
        undeclared = schemas.updated_statistics(node)
        assert set(schemas.written(node)) == {*declared, *undeclared}, overload
        assert schemas.writes(node) == bool(declared or undeclared), overload


#: Autograd takes their result for new, and so they declare none; its memory is their argument's all the same.
UNDECLARED_VIEWS = {aten._unsafe_view.default: ((6,),)}


@pytest.mark.parametrize("overload", UNDECLARED_VIEWS, ids=str)
def test_a_view_that_its_schema_does_not_declare(overload):
    x = torch.rand(2, 3)
    assert overload(x, *UNDECLARED_VIEWS[overload]).data_ptr() == x.data_ptr()
    assert all(each.alias_info is None for each in overload._schema.returns)
    node, given = call_by_schema(overload)
    assert schemas.returns_alias(overload)
    assert schemas.view_base(node) is given["self"]


def test_a_view_is_what_its_schema_says():
    for overload in set(aten_overloads()) - UNDECLARED_VIEWS.keys():
        node, given = call_by_schema(overload)
        aliased = [each.alias_info is not None for each in overload._schema.returns]
        assert schemas.returns_alias(overload) == any(aliased), overload
        shared = [each.name for each in overload._schema.arguments if each.alias_info is not None]
        is_view = aliased == [True] and any(isinstance(given[name], torch.fx.Node) for name in shared)
        assert (schemas.view_base(node) is not None) == is_view, overload


def test_an_operator_uses_random_numbers_as_its_tag_says():
    for overload in aten_overloads():
        assert schemas.target_uses_rng(overload) == (torch.Tag.nondeterministic_seeded in overload.tags), overload


def test_methods_and_functions_of_torch_are_the_operators_of_their_names():
    for name in dir(torch.Tensor):
        packet = getattr(aten, schemas.first_name(name), None) if not name.startswith("__") else None
        if isinstance(packet, OpOverloadPacket) and isinstance(getattr(torch.Tensor, name), types.MethodDescriptorType):
            overloads = schemas.overloads_of(packet)
            assert schemas.overloads_of(name) == schemas.overloads_of(getattr(torch.Tensor, name)) == overloads
    for name in dir(torch):
        function, packet = getattr(torch, name), getattr(aten, schemas.first_name(name), None)
        if isinstance(packet, OpOverloadPacket) and isinstance(function, types.BuiltinFunctionType):
            assert schemas.overloads_of(function) == schemas.overloads_of(packet), name


def test_pointwise_operators_that_torch_documents_as_second_names_are_known_by_the_first():
    seen = set()
    for name, function in vars(torch).items():
        said = re.search(r"Alias for :func:`torch\.(\w+)`", str(getattr(function, "__doc__", "")))
        if said is None or not isinstance(getattr(aten, name, None), OpOverloadPacket):
            continue
        first, second = (schemas.overloads_of(getattr(aten, each)) for each in (said[1], name))
        tagged = [any(torch.Tag.pointwise in each.tags for each in overloads) for overloads in (first, second)]
        if tagged == [True, False]:
            assert schemas.first_name(name) == said[1]
            assert schemas.overloads_of(function) == first, name
            seen.add(name)
    assert {"greater", "absolute", "arccos"} <= seen


@pytest.mark.parametrize("name", [name for name in dir(torch.Tensor) if name.endswith("_") and not name.endswith("__")])
def test_a_method_with_an_underscore_writes_to_its_tensor(name):
    node = call_of(name, torch.Tensor, 1, 2)
    assert schemas.written(node) == [node.args[0]]


IN_PLACE = sorted({name.strip("_") for name in dir(operator) if name.startswith("__i") and hasattr(operator, f"__{name[3:]}")})


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_in_place_operator_writes_where_eager_does(name):
    bitwise = name in ("iand", "ior", "ixor", "ilshift", "irshift")
    x = torch.tensor([[5, 3], [2, 9]], dtype=torch.int64 if bitwise else torch.float32)
    function, before, version = getattr(operator, name), x, x._version
    try:
        after = function(x, x.clone() if name == "imatmul" else 2)
    except TypeError:
        after = None  # `iconcat`
    wrote = after is before and x._version != version
    node = call_of(function, torch.Tensor, 2)
    assert schemas.written(node) == ([node.args[0]] if wrote else [])
    method = call_of(f"__{name}__", torch.Tensor, 2)
    assert schemas.writes(method) == wrote


def test_assignments_write():
    node = call_of(operator.setitem, torch.Tensor, 0, torch.Tensor)
    assert schemas.written(node) == [node.args[0]]
    method = call_of("__setitem__", torch.Tensor, 0, torch.Tensor)
    assert schemas.written(method) == [method.args[0]]


@pytest.mark.parametrize("args, kwargs", [((True,), {}), ((), {"inplace": True})], ids=["positional", "by name"])
@pytest.mark.parametrize("name", ["relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid"])
def test_functions_with_a_flag_write_where_it_is_set(name, args, kwargs):
    node = call_of(getattr(F, name), torch.Tensor, *args, **kwargs)
    assert schemas.written(node) == [node.args[0]]
    assert not schemas.writes(call_of(getattr(F, name), torch.Tensor))
    assert not schemas.writes(call_of(getattr(F, name), torch.Tensor, inplace=False))


@pytest.mark.parametrize("function", [torch.add, torch.max, torch.linalg.inv, torch.norm, F.normalize, aten.add, aten.add.out])
def test_functions_write_to_what_is_given_as_out(function):
    node = call_of(function, torch.Tensor, torch.Tensor, out=torch.Tensor)
    assert schemas.written(node) == [node.kwargs["out"]]


def test_several_results_are_written_to():
    node = call_of(torch.max, torch.Tensor, 0, out=[torch.Tensor, torch.Tensor])
    assert schemas.written(node) == node.kwargs["out"]


def test_lists_of_tensors_are_written_to():
    node = call_of(torch._foreach_add_, [torch.Tensor, torch.Tensor], [torch.Tensor, torch.Tensor])
    assert schemas.written(node) == list(node.args[0])
    assert not schemas.writes(call_of(torch._foreach_add, [torch.Tensor, torch.Tensor], 1.0))


def test_running_statistics_are_written_to_in_training_alone():
    for function in (F.batch_norm, torch.batch_norm):
        flags: tuple[Any, ...] = (None, None, True) if function is F.batch_norm else ()
        args = (torch.Tensor, torch.Tensor, torch.Tensor, *flags) if flags else (
            torch.Tensor, None, None, torch.Tensor, torch.Tensor, True, 0.1, 1e-5, False)
        node = call_of(function, *args)
        place = 1 if flags else 3
        assert schemas.written(node) == schemas.updated_statistics(node) == list(node.args[place : place + 2])
        evaluating = call_of(function, *(False if each is True else each for each in args))
        assert not schemas.writes(evaluating)


def statistics_after(overload: OpOverload, training: bool) -> bool:
    """Whether a run of the operator on the CPU changes the running statistics."""
    mean, var = torch.zeros(3), torch.ones(3)
    values = {"input": torch.randn(4, 3, 5), "running_mean": mean, "running_var": var, "training": training,
              "use_input_stats": training, "momentum": 0.5, "eps": 1e-5, "cudnn_enabled": False, "weight": torch.ones(3),
              "bias": torch.zeros(3)}  # fmt: skip
    overload(*[values[each.name] for each in overload._schema.arguments if not each.kwarg_only])
    return bool((mean != 0).any())


@pytest.mark.parametrize("name", ["batch_norm", "native_batch_norm", "_batch_norm_impl_index", "instance_norm",
                                  "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
                                  "_native_batch_norm_legit_no_training", "_batch_norm_no_update"])
def test_normalisations_update_what_they_update_in_eager(name):
    overload = getattr(aten, name).default
    for training in (True, False):
        graph = torch.fx.Graph()
        given = [graph.placeholder(each.name) if "Tensor" in str(each.type) else training
                 for each in overload._schema.arguments if not each.kwarg_only]
        node = graph.call_function(overload, tuple(given))
        updated = {each.target for each in schemas.written(node)} if training else {
            each.target for each in schemas.updated_statistics(node)}
        expected = {"running_mean", "running_var"} if statistics_after(overload, training) else set()
        assert updated == expected, (overload, training)


def test_an_embedding_with_a_largest_norm_writes_to_its_weight():
    node = call_of(F.embedding, torch.Tensor, torch.Tensor, max_norm=1.0)
    assert schemas.written(node) == [node.args[1]]
    assert not schemas.writes(call_of(F.embedding, torch.Tensor, torch.Tensor))


# Random numbers


x, image = torch.rand(4, 4), torch.rand(1, 2, 8, 8)
ROW = torch.rand(2, 3)
RUN: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (F.dropout, (x,), {}), (F.dropout, (x, 0.0), {}), (F.dropout, (x, 0.5, False), {}), (F.alpha_dropout, (x, 0.5, True), {}),
    (F.alpha_dropout, (x,), {}), (F.feature_alpha_dropout, (image, 0.5, True), {}), (F.dropout2d, (image,), {}),
    (F.dropout2d, (image,), {"p": 0}), (torch.dropout, (x, 0.5, True), {}), (torch.dropout, (x, 0.5, False), {}),
    (torch.dropout_, (x.clone(), 0.5, True), {}), (F.rrelu, (-x,), {}), (F.rrelu, (-x,), {"training": True}),
    (F.gumbel_softmax, (x,), {}), (F.fractional_max_pool2d, (image, 2), {"output_size": 3}), (F.normalize, (x,), {}),
    (torch.lgamma, (x,), {}), (torch.digamma, (x,), {}), (torch.special.gammaln, (x,), {}), (torch.polygamma, (1, x), {}),
    (torch.special.gammainc, (x, x), {}), (torch.normal, (x, x), {}), (torch.bernoulli, (x,), {}), (torch.rand_like, (x,), {}),
    (torch.poisson, (x,), {}), (torch.randperm, (4,), {}), (torch.multinomial, (x, 1), {}), (torch.svd_lowrank, (x, 2), {}),
    (init.zeros_, (x.clone(),), {}), (init.kaiming_uniform_, (x.clone(),), {}), (init.normal_, (x.clone(),), {}),
    (torch.lstm_cell, (ROW, [torch.zeros(2, 3)] * 2, torch.rand(12, 3), torch.rand(12, 3)), {}), (F.layer_norm, (x, (4,)), {}),
    (F.scaled_dot_product_attention, (image, image, image), {}), (F.cross_entropy, (x, x), {}), (F.linear, (x, x), {}),
    (torch.gru, (torch.rand(5, 2, 3), torch.zeros(1, 2, 3), [torch.rand(9, 3)] * 2, False, 1, 0.0, True, False, False), {}),
]  # fmt: skip


@pytest.mark.parametrize("function, args, kwargs", RUN, ids=lambda each: getattr(each, "__name__", ""))
def test_functions_use_random_numbers_where_eager_does(function, args, kwargs):
    before = torch.get_rng_state()
    function(*args, **kwargs)
    drawn = not torch.equal(before, torch.get_rng_state())

    def given(value: Any) -> Any:
        return [given(each) for each in value] if isinstance(value, list) else (
            torch.Tensor if isinstance(value, torch.Tensor) else value)

    node = call_of(function, *map(given, args), **{name: given(each) for name, each in kwargs.items()})
    assert schemas.uses_rng(node) == drawn


@pytest.mark.parametrize("name", ["lgamma", "digamma", "mvlgamma", "igamma", "lgamma_", "log_softmax", "expand"])
def test_methods_with_such_names_use_no_random_numbers(name):
    assert not schemas.uses_rng(call_of(name, torch.Tensor))


@pytest.mark.parametrize("name", ["normal_", "uniform_", "bernoulli", "exponential_", "geometric_", "cauchy_", "random_"])
def test_methods_that_use_random_numbers(name):
    assert schemas.uses_rng(call_of(name, torch.Tensor))


def test_a_recurrent_layer_drops_between_its_layers_alone():
    weights = [torch.Tensor] * 4
    states = [torch.Tensor, torch.Tensor]
    assert schemas.uses_rng(call_of(torch.lstm, torch.Tensor, states, weights, True, 2, 0.5, True, False, False))
    assert not schemas.uses_rng(call_of(torch.lstm, torch.Tensor, states, weights, True, 2, 0.5, False, False, False))
    assert not schemas.uses_rng(call_of(torch.lstm, torch.Tensor, states, weights, True, 2, 0.0, True, True, False))
    packed = call_of(torch.lstm, torch.Tensor, torch.Tensor, states, weights, True, 2, 0.5, True, False)
    assert schemas.uses_rng(packed)


def test_a_dropout_that_drops_nothing_gives_its_input():
    assert schemas.drops_nothing(call_of(F.dropout, torch.Tensor, 0.5, False))
    assert schemas.drops_nothing(call_of(torch.dropout, torch.Tensor, 0.0, True))
    assert not schemas.drops_nothing(call_of(F.dropout, torch.Tensor))
    assert not schemas.drops_nothing(call_of(F.relu, torch.Tensor))


# The program's own functions


def double(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.mul_(2) + torch.rand_like(y)


def test_of_an_unknown_function_everything_is_assumed():
    node = call_of(double, torch.Tensor, torch.Tensor)
    assert schemas.written(node) == list(node.args)
    assert schemas.uses_rng(node)


def test_what_was_observed_counts():
    node = call_of(double, torch.Tensor, torch.Tensor)
    for each, value in zip(node.args, (torch.ones(2), torch.ones(2)), strict=True):
        each.meta["example_value"] = value
    with schemas.Observer() as observer:
        double(*(each.meta["example_value"] for each in node.args))
    node.meta[schemas.OBSERVED] = observer.effects_on(node)
    assert schemas.written(node) == [node.args[0]]
    assert schemas.uses_rng(node)
    with schemas.Observer() as observer:
        torch.ones(2) + 1
    node.meta[schemas.OBSERVED] = observer.effects_on(node)
    assert not schemas.writes(node)
    assert not schemas.uses_rng(node)
