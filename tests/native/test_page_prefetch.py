"""Memory asked for ahead of the loops that write large results (codegen/page_prefetch.py): the results stay what they are."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.codegen import page_prefetch


@pytest.fixture(autouse=True)
def large_from_a_megabyte(monkeypatch):
    monkeypatch.setattr(page_prefetch, "LARGE", 1 << 20)


FUNCTIONS = {
    "one loop": (lambda x, y: ((x * 2 + y).relu(),), 1),
    "one loop in stages": (lambda x, y: (torch.tanh(torch.exp(torch.tanh(torch.sin(torch.tanh(x) * y)) + 1)) * x.cos(),), 1),
    "two results of two types": (lambda x, y: ((x + y), (x > y)), 2),
    "rows": (lambda x, y: (torch.softmax(x * y, -1),), 1),
    "rows and what belongs to each": (lambda x, y: (torch.softmax(x * y, -1), (x * y).amax(-1)), 1),
    "nested loops": (lambda x, y: (x[:, ::2] + y[:, 1::2] * 2, x[:, :499] * 3), 2),
    "parts that two kernels write": (lambda x, y: (torch.cat([x * 2, y + 1], -1),), 0),
    "a transposed operand": (lambda x, y: (x * 2 + y.flatten().view(1000, -1).t(),), 1),
}


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results(name, mode, sources, assert_same):
    function, asked = FUNCTIONS[name]
    inputs = torch.randn(1100, 1000), torch.randn(1100, 1000)
    gm = make_fx(function, tracing_mode=mode)(*inputs)
    graph = pipeline.compile_graph(gm, inputs, lone_kernels=True).finish()
    for mine, theirs in zip(graph([*inputs]), function(*inputs), strict=True):
        assert_same(mine, theirs)
    assert sum(source.count("fx_ahead(p") for source in sources) == asked


def test_threads_ask_for_their_own_parts(sources, assert_same):
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with config.patch(num_threads=3):
            x = torch.randn(2000, 1000)
            gm = make_fx(lambda x: ((x + 1).relu(), torch.softmax(x * 2, -1)))(x)
            one, two = pipeline.compile_graph(gm, [x]).finish()([x])
    finally:
        torch.set_num_threads(threads)
    assert "fx_ahead(p" in sources[0] and "parallel for" in sources[0]
    assert_same(one, (x + 1).relu())
    assert_same(two, torch.softmax(x * 2, -1))


def test_nothing_is_asked_for_where_memory_was_written_before(sources):
    """An input's memory, memory that later kernels share, and results that are not large."""
    x = torch.randn(1100, 1000)

    def function(x, small):
        x.mul_(2).add_(1)
        return ((x @ (x.relu() + 1)[:1000]).sin() + 1)[:10].clone(), small * 2 + 1

    gm = make_fx(function)(x.clone(), x[:100])
    pipeline.compile_graph(gm, [x, x[:100]]).finish()([x, x[:100]])
    assert not any("fx_ahead(p" in source for source in sources)
