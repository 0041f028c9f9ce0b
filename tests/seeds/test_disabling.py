"""Every example of "Disabling and Suppressing Errors"."""

from __future__ import annotations

import re

import pytest
import torch

import fxjit
from fxjit.testing import EagerAndRecordGraphs


@pytest.fixture(params=["fxjit", "torch"])
def names(request):
    """disable and graph_break, under our names and under torch's."""
    if request.param == "fxjit":
        return fxjit.disable, fxjit.graph_break
    import torch._dynamo

    return torch.compiler.disable, torch._dynamo.graph_break


def code_of(graphs) -> list[list[str]]:
    """The names of the nodes that call something, graph by graph."""
    return [[node.name for node in graph.graph.nodes if node.op.startswith("call_")] for graph in graphs]


def test_a_disabled_function_and_what_it_calls_are_not_traced(names):
    disable, graph_break = names

    def inner1(x):
        graph_break()
        return x + 1

    @disable
    def outer1(x):
        x = x + 2
        graph_break()
        return inner1(x)

    def f(x):
        x = outer1(x)
        return x + 4

    fxjit.reset()
    backend = EagerAndRecordGraphs()
    result = fxjit.compile(f, backend=backend)(torch.ones(3))
    torch.testing.assert_close(result, torch.full((3,), 8.0))
    assert code_of(backend.graphs) == [["add"]], "only `x + 4`"


def second_example(disable, graph_break):
    """The page's second program."""

    def inner2(x):
        graph_break()
        return x + 1

    @disable(recursive=False)
    def outer2(x):
        x = x + 2
        graph_break()
        return inner2(x)

    def g(x):
        x = outer2(x)
        return x + 4

    return g


def test_with_recursive_false_what_it_calls_is_traced(names):
    g = second_example(*names)
    fxjit.reset()
    backend = EagerAndRecordGraphs()
    result = fxjit.compile(g, backend=backend)(torch.ones(3))
    torch.testing.assert_close(result, torch.full((3,), 8.0))
    assert code_of(backend.graphs) == [["add"], ["add"]], "`x + 1` of inner2 and `x + 4` of g"


def test_the_break_is_reported_with_reason_hint_and_the_users_frames(names, caplog):
    disable, _ = names

    @disable
    def outer(x):
        return x + 2

    def f(x):
        x = outer(x)
        return x + 4

    fxjit.reset()
    fxjit.set_logs(graph_breaks=True)
    try:
        fxjit.compile(f, backend="eager")(torch.ones(3))
    finally:
        fxjit.set_logs()
    (text,) = [record.getMessage() for record in caplog.records if record.name == "fxjit.graph_breaks"]
    function = f"<function {outer.__qualname__} at 0x"
    assert text.startswith(f"Graph break in user code at {__file__}:{f.__code__.co_firstlineno + 1}\n")
    for line in ("Graph Break Reason: Skip calling `torch.compiler.disable()`d function",
                 f"  Explanation: Skip calling function `{function}",
                 "since it was wrapped with `torch.compiler.disable` (reason: None)",
                 "  Hint: Remove the `torch.compiler.disable` call", f"  Developer debug context: {function}"):
        assert line in text
    here = "test_the_break_is_reported_with_reason_hint_and_the_users_frames"
    assert frames(text) == [(here, 'fxjit.compile(f, backend="eager")(torch.ones(3))'), ("f", "x = outer(x)")]


def test_both_breaks_of_the_second_example_are_reported_as_on_the_page(names, caplog):
    g = second_example(*names)
    fxjit.reset()
    fxjit.set_logs(graph_breaks=True)
    try:
        compiled = fxjit.compile(g, backend="eager")
        for _ in range(2):
            compiled(torch.ones(3))
    finally:
        fxjit.set_logs()
    skipping, breaking = [record.getMessage() for record in caplog.records if record.name == "fxjit.graph_breaks"]
    function = f"<function {second_example.__qualname__}.<locals>.outer2 at 0x"
    for line in ("Graph Break Reason: Skip inlining `torch.compiler.disable()`d function",
                 f"  Explanation: Skip inlining function {function}",
                 "since it was wrapped with `torch.compiler.disable` (reason: None)",
                 "  Hint: Remove the `torch.compiler.disable` call", f"  Developer debug context: {function}"):
        assert line in skipping
    for line in ("Graph Break Reason: Call to `torch._dynamo.graph_break()`",
                 "  Explanation: User-inserted graph break. Message: None",
                 "  Hint: Remove the `torch._dynamo.graph_break()` call.",
                 "  Developer debug context: Called `torch._dynamo.graph_break()` with args `[]`, kwargs `{}`"):
        assert line in breaking
    here = "test_both_breaks_of_the_second_example_are_reported_as_on_the_page"
    assert frames(skipping) == [(here, "compiled(torch.ones(3))"), ("g", "x = outer2(x)")]
    assert frames(breaking) == [*frames(skipping), ("outer2", "return inner2(x)"), ("inner2", "graph_break()")]


def test_the_graph_is_shown_with_the_users_lines_as_on_the_page(names, caplog):
    """"TRACED GRAPH": the lines are the user's, and so is the function's name, where the page has a resume function's."""
    g = second_example(*names)
    fxjit.reset()
    fxjit.set_logs(graph_code=True)
    try:
        fxjit.compile(g, backend="eager")(torch.ones(3))
    finally:
        fxjit.set_logs()
    inner, outer = [record.getMessage() for record in caplog.records if record.name == "fxjit.graph_code"]
    for text, function, line in ((inner, "inner2", "return x + 1"), (outer, "g", "return x + 4")):
        assert re.search(rf'# File: {re.escape(__file__)}:\d+ in {function}, code: {re.escape(line)}\n', text)
        assert re.search(r'add: "f32\[3\](\[1\]cpu)?" = \w+ \+ [14];', text) and "return (add,)" in text
        assert "resume" not in text


def frames(report: str) -> list[tuple[str, str]]:
    """The functions and lines of a report's traceback, from the test on: its runner's frames may be there or not."""
    lines = [line for line in report.partition("User code traceback:\n")[2].splitlines() if set(line.strip()) - set("^~")]
    lines = lines[next(at for at, line in enumerate(lines) if f'"{__file__}"' in line):]
    return [(place.rpartition(", in ")[2], line.strip()) for place, line in zip(lines[::2], lines[1::2], strict=True)]


def test_suppressed_compiler_crash_runs_eagerly_and_is_tried_again():
    crashes = []

    def crashing_backend(gm, inputs):
        crashes.append(1)
        if len(crashes) == 1:
            raise ValueError("the compiler crashed")
        return gm.forward

    def f(x):
        return x.sin() + 1

    x = torch.randn(3)
    fxjit.reset()
    compiled = fxjit.compile(f, backend=crashing_backend)
    with fxjit.config.patch(suppress_errors=True):
        for _ in range(40):
            torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert len(crashes) == 2, "the crash, and one later attempt that worked"


def test_without_suppression_the_crash_is_an_error():
    def crashing_backend(gm, inputs):
        raise ValueError("the compiler crashed")

    fxjit.reset()
    with pytest.raises(fxjit.errors.BackendCompilerFailed, match="the compiler crashed"):
        fxjit.compile(lambda x: x + 1, backend=crashing_backend)(torch.ones(2))


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("disable", [fxjit.disable, torch.compiler.disable])
def test_the_last_word_counts(disable, recursive):
    """What is disabled and then compiled is compiled, as by torch.compile; and the function itself is none that is disabled."""
    def add(x):
        return x + (1 if torch.compiler.is_compiling() or fxjit.is_compiling() else 2)

    def outer(fn, x):
        return fn(x * 2)

    x = torch.ones(3)
    disabled = disable(add, recursive=recursive)
    backend = EagerAndRecordGraphs()
    assert torch.equal(fxjit.compile(disabled, backend=backend)(x), x + 1)
    assert code_of(backend.graphs) == [["add"]]
    compiled = fxjit.compile(outer, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(disabled, x), x * 2 + 2) and torch.equal(compiled(add, x), x * 2 + 1)
