"""Views of wrapper subclasses as inputs whose sizes vary: which part of their base they are is a number of torch's own."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import fxjit

VIEWS = {
    "narrow": lambda t: t.narrow(-1, 3, 8), "split": lambda t: t.split(5, -1)[2], "last": lambda t: t[:, -3:],
    "chunk": lambda t: t.chunk(2, -1)[1], "expand": lambda t: t.unsqueeze(-1).expand(-1, -1, 10),
    "select": lambda t: t.select(-1, 6), "slice": lambda t: t[2:3, 5:9], "rest": lambda t: t[1:, 2:],
    "view": lambda t: t.view(-1), "transposed": lambda t: t.t(),
}


@pytest.mark.parametrize("dynamic", [True, None, False])
@pytest.mark.parametrize("view", VIEWS)
def test_views_of_other_sizes(view, dynamic):
    def program(x):
        return x * 2 + x.shape[0]

    fxjit.reset()  # a limit of recompiles counts what the code was compiled for before
    compiled = fxjit.compile(program, backend="eager", fullgraph=True, dynamic=dynamic)
    for more in range(3):
        given = VIEWS[view](TwoTensor(torch.randn(6 + more, 15 + more), torch.randn(6 + more, 15 + more)))
        expected, found = program(given), compiled(given)
        assert type(found) is TwoTensor
        torch.testing.assert_close((found.a, found.b), (expected.a, expected.b))


@pytest.mark.parametrize(("mark", "graphs"), [(fxjit.mark_dynamic, 1), (fxjit.maybe_mark_dynamic, 1), (fxjit.mark_static, 3),
                                              (None, 3)])
def test_marks_are_for_what_is_inside_too(mark, graphs):
    fxjit.reset()
    fxjit.counters.clear()
    dynamic = False if mark in (None, fxjit.mark_dynamic) else None
    compiled = fxjit.compile(torch.sin, backend="eager", fullgraph=True, dynamic=dynamic)
    for more in range(3):
        given = TwoTensor(torch.randn(4 + more, 5 + more), torch.randn(4 + more, 5 + more))
        if mark is not None:
            mark(given, [0, 1])
        found = compiled(given)
        torch.testing.assert_close((found.a, found.b), (given.a.sin(), given.b.sin()))
    assert fxjit.counters["frames"]["ok"] == graphs
