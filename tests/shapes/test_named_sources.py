"""Inputs that settings name as varying or constant, under fxjit's names and torch's, and limits of one callable's own."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.frontend.named_sources import listed, torchs_name
from fxjit.guards.source import AttrSource, GlobalSource, InstanceDictSource, ItemSource, LocalSource


def doubled(x):
    return x * 2 + x.shape[0]


def scaled(x, n):
    return x * n + n


ROWS = [(torch.arange(n * 3.0).reshape(n, 3),) for n in (4, 5, 6, 7)]
COUNTS = [(torch.arange(3.0), n) for n in (4, 5, 6)]


def graphs(fn, calls, **arguments):
    fxjit.reset()
    counter = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(fn, backend=counter, **arguments)
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=0)
    return counter.frame_count


@pytest.mark.parametrize(("settings", "automatic", "never"), [
    ({}, 2, 4), ({"dynamic_sources": "L['x']"}, 1, 1), ({"dynamic_sources": "x"}, 1, 1),
    ({"dynamic_sources": "L['x']:0"}, 1, 1), ({"dynamic_sources": "L['x']:1"}, 2, 4),
    ({"dynamic_sources": "L['y'], .*:0"}, 1, 1), ({"dynamic_sources": "["}, 2, 4),
    ({"static_sources": "L['x']"}, 4, 4), ({"static_sources": "x:0", "dynamic_sources": "x"}, 4, 4),
    ({"unbacked_sources": "L['x']:0"}, 1, 1), ({"dynamic_values": "4"}, 1, 1), ({"dynamic_values": "9"}, 2, 4),
], ids=str)
def test_sizes(settings, automatic, never):
    with config.patch(**settings):
        assert graphs(doubled, ROWS) == automatic
        assert graphs(doubled, ROWS, dynamic=False) == never


@pytest.mark.parametrize(("settings", "automatic", "never"), [
    ({}, 2, 3), ({"dynamic_sources": "L['n']"}, 1, 1), ({"static_sources": "n"}, 3, 3), ({"dynamic_values": "4"}, 1, 1),
], ids=str)
def test_integers(settings, automatic, never):
    with config.patch(**settings):
        assert graphs(scaled, COUNTS) == automatic
        assert graphs(scaled, COUNTS, dynamic=False) == never


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_parameter_that_is_named_varies(backend):
    def product(x, weight):
        return x @ weight.t()

    x, seen = torch.arange(6.0).reshape(2, 3), []
    weights = [torch.nn.Parameter(torch.ones(rows, 3)) for rows in (4, 5, 6)]
    with config.patch(dynamic_sources="L['weight']:0"):
        compiled = fxjit.compile(product, backend=backend)
        for weight in weights:
            torch.testing.assert_close(compiled(x, weight), product(x, weight))
            compiled(x, weight).sum().backward()
            seen.append(fxjit.counters["stats"]["unique_graphs"])
            torch.testing.assert_close(weight.grad, x.sum(0).expand(len(weight), 3))
    assert seen[0] == seen[-1]


def test_a_mark_on_a_tensor_wins_over_a_list_of_constants():
    def marked(rows):
        x = torch.ones(rows, 3)
        fxjit.mark_dynamic(x, 0)
        return (x,)

    with config.patch(static_sources="x"):
        assert graphs(doubled, [marked(4), marked(5), marked(6)]) == 1


def test_names_are_torchs_too():
    module = InstanceDictSource(LocalSource("self"))
    weight = ItemSource(ItemSource(module, "_parameters"), "weight")
    assert torchs_name(weight) == "L['self']._parameters['weight']"
    assert torchs_name(AttrSource(GlobalSource("model"), "width")) == "G['model'].width"
    assert torchs_name(ItemSource(LocalSource("xs"), 1)) == "L['xs'][1]"
    assert listed(r"L\['self'\]\._param.*", weight) and listed("self.weight", weight) and not listed("L['self'].weight", weight)


# -- limits of one callable --------------------------------------------------------------------------------------------


def test_a_limit_of_its_own():
    assert graphs(doubled, ROWS, dynamic=False, recompile_limit=2) == 2
    assert graphs(doubled, ROWS, dynamic=False, recompile_limit=0) == 0
    with config.patch(recompile_limit=1):
        assert graphs(doubled, ROWS, dynamic=False, recompile_limit=3) == 3
        assert graphs(doubled, ROWS, dynamic=False) == 1
    with pytest.raises(fxjit.errors.RecompileLimitExceeded, match=r"2 times \(compile\(recompile_limit=\)\)"):
        graphs(doubled, ROWS, dynamic=False, recompile_limit=2, fullgraph=True)
    for wrong in (-1, True, "2"):
        with pytest.raises(fxjit.errors.InvalidArgument, match="recompile_limit"):
            fxjit.compile(doubled, recompile_limit=wrong)
    with pytest.raises(fxjit.errors.InvalidArgument, match="isolate_recompiles"):
        fxjit.compile(doubled, isolate_recompiles=1)


def test_entries_that_are_counted_by_themselves():
    counter = fxjit.testing.CompileCounter()
    shared = [fxjit.compile(doubled, backend=counter, dynamic=False, recompile_limit=2) for _ in range(2)]
    alone = [fxjit.compile(doubled, backend=counter, dynamic=False, recompile_limit=2, isolate_recompiles=True)
             for _ in range(2)]
    counts = []
    for compiled in (*shared, *alone):
        for (x,) in ROWS:
            assert torch.equal(compiled(x), doubled(x))
        counts.append(counter.frame_count)
    assert counts == [2, 2, 4, 6]


def test_the_drop_in_hands_both_on():
    fxjit.install()
    try:
        counter = fxjit.testing.CompileCounter()
        compiled = torch.compile(doubled, backend=counter, dynamic=False, recompile_limit=2, isolate_recompiles=True)
        for (x,) in ROWS:
            assert torch.equal(compiled(x), doubled(x))
        assert counter.frame_count == 2
        linear = torch.nn.Linear(3, 3)
        linear.compile(backend=counter, dynamic=False, recompile_limit=1)
        for (x,) in ROWS:
            linear(x)
        assert counter.frame_count == 3
        with torch.compiler.config.patch(dynamic_sources="L['x']"):
            assert config.dynamic_sources == "L['x']"
        assert config.dynamic_sources == ""
    finally:
        fxjit.uninstall()
