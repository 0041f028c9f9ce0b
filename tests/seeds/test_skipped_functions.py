"""Every example of "Skipped Functions": which frames are compiled, which run as they stand, and what comes out."""

from __future__ import annotations

import contextlib

import pytest
import torch

import fxjit
from fxjit.testing import EagerAndRecordGraphs


@pytest.fixture(params=["fxjit", "torch"])
def spelling(request):
    """The annotations mean the same under our names and under torch's."""
    if request.param == "fxjit":
        return fxjit.graph_break, fxjit.skip_frame
    import torch._dynamo

    return torch._dynamo.graph_break, torch._dynamo.skip_frame


def operators(graphs) -> list[int]:
    """Operators of each captured graph."""
    return [sum(node.op.startswith("call_") for node in graph.graph.nodes) for graph in graphs]


def run(fn, *args):
    """The result under fxjit, the operators of each graph, and how often frames were skipped."""
    fxjit.reset()
    fxjit.counters.clear()
    backend = EagerAndRecordGraphs()
    result = fxjit.compile(fn, backend=backend)(*args)
    return result, operators(backend.graphs), sum(fxjit.counters["skip"].values())


def test_skip_frame_runs_the_function_eagerly_and_compiles_what_it_calls(spelling):
    _, skip_frame = spelling

    def inner1(x):
        return x + 1

    def inner2(x):
        return x + 2

    def fn(x):
        x = inner1(x)
        skip_frame()
        x = inner2(x)

    result, graphs, skips = run(fn, torch.randn(3))
    assert result is None
    assert graphs == [1, 1], "inner1 and inner2 are compiled when they are called"
    assert skips == 1


def test_what_runs_as_it_stands_is_the_frame_and_not_what_it_calls(spelling):
    """The functions it calls are compiled, the function itself runs as it stands: at every call, and said once."""
    _, skip_frame = spelling
    compiling = []

    def inner1(x):
        compiling.append(torch.compiler.is_compiling())
        return x + 1

    def fn(x):
        x = inner1(x)
        compiling.append(torch.compiler.is_compiling())
        skip_frame()
        return x * 2

    fxjit.reset()
    fxjit.counters.clear()
    backend = EagerAndRecordGraphs()
    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(3):
        compiling.clear()
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 4.0))
        assert compiling == [True, False]
    assert operators(backend.graphs) == [1]
    assert sum(fxjit.counters["skip"].values()) == 1


def test_a_break_in_a_loop_skips_the_frame(spelling):
    graph_break, _ = spelling

    def fn(x):
        for i in range(5):
            x = x + 1
            if i == 3:
                graph_break()
        return x

    x = torch.randn(3)
    result, graphs, skips = run(fn, x)
    torch.testing.assert_close(result, x + 5)
    assert (graphs, skips) == ([], 1)


def test_the_unrolled_loop_is_not_skipped(spelling):
    graph_break, _ = spelling

    def fn(x):
        def inner(i):
            nonlocal x
            x = x + 1
            if i == 3:
                graph_break()
        inner(0)
        inner(1)
        inner(2)
        inner(3)
        inner(4)
        return x

    x = torch.randn(3)
    result, graphs, skips = run(fn, x)
    torch.testing.assert_close(result, x + 5)
    assert (graphs, skips) == ([4, 1], 0), "up to the break in inner(3), and behind it"
    with fxjit.config.patch(nested_graph_breaks=False):
        result, graphs, skips = run(fn, x)
    torch.testing.assert_close(result, x + 5)
    assert (graphs, skips) == ([3, 1, 1], 0), "before inner(3), inner(3) itself, after it"


class CustomCtxManager:
    def __enter__(self):
        pass

    def __exit__(self, exc_type, exc_value, traceback):
        pass


def test_a_break_in_a_context_manager_skips_the_frame(spelling):
    graph_break, _ = spelling

    def fn(x):
        with CustomCtxManager():
            x = x + 1
            graph_break()
            return x + 1

    x = torch.randn(3)
    result, graphs, skips = run(fn, x)
    torch.testing.assert_close(result, x + 2)
    assert (graphs, skips) == ([], 1)


def test_the_break_moved_out_of_the_context_manager_does_not(spelling):
    graph_break, _ = spelling

    def fn(x):
        with CustomCtxManager():
            x = x + 1
        graph_break()
        with CustomCtxManager():
            return x + 1

    x = torch.randn(3)
    result, graphs, skips = run(fn, x)
    torch.testing.assert_close(result, x + 2)
    assert (graphs, skips) == ([1, 1], 0)


def test_known_context_managers_are_resumed(spelling):
    graph_break, _ = spelling

    def fn(x):
        with contextlib.nullcontext():
            with torch.no_grad():
                x = x + 1
                graph_break()
                return x + 1, torch.is_grad_enabled()

    x = torch.randn(3, requires_grad=True)
    (result, grad_mode), graphs, skips = run(fn, x)
    torch.testing.assert_close(result, (x + 2).detach())
    assert not result.requires_grad and not grad_mode, "no_grad holds in the frame's rest"
    assert torch.is_grad_enabled(), "and is left at its end"
    adds = [count for count in graphs if count]
    assert len(adds) == 2 and skips == 0


def test_a_break_in_a_try_block_skips_the_frame(spelling):
    graph_break, _ = spelling

    def fn(x):
        try:
            x = x + 1
            graph_break()
            return x + 1
        except Exception:
            pass

    x = torch.randn(3)
    result, graphs, skips = run(fn, x)
    torch.testing.assert_close(result, x + 2)
    assert (graphs, skips) == ([], 1)


def test_the_break_moved_out_of_the_try_block_does_not(spelling):
    graph_break, _ = spelling

    def fn(x):
        try:
            x = x + 1
        except Exception:
            pass
        graph_break()
        try:
            return x + 1
        except Exception:
            pass

    x = torch.randn(3)
    result, graphs, skips = run(fn, x)
    torch.testing.assert_close(result, x + 2)
    assert (graphs, skips) == ([1, 1], 0)


def test_the_recompile_limit_skips_the_frame_but_not_what_it_calls():
    def inner(x):
        return x + 1

    def fn(x, n):
        return inner(x) * len(n)

    fxjit.reset()
    backend = EagerAndRecordGraphs()
    compiled = fxjit.compile(fn, backend=backend)
    with fxjit.config.patch(recompile_limit=2):
        for length in range(1, 6):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x, "a" * length), (x + 1) * length)
    assert [count for count in operators(backend.graphs)] == [2, 2, 1], "two entries of fn, then inner by itself"


def test_the_problem_isolated_in_a_function_skips_only_that(spelling):
    _, skip_frame = spelling

    def inner1(x):
        return x + 1

    def inner2(x):
        return x + 2

    def fn(x):
        x = inner1(x)

        def problematic_code():
            skip_frame()
        problematic_code()
        x = inner2(x)
        return x

    x = torch.randn(3)
    result, graphs, _ = run(fn, x)
    torch.testing.assert_close(result, x + 3)
    assert graphs == [1, 1]
