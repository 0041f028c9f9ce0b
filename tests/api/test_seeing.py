"""Counters, logs, explain and the profiler tell what happened, and why."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit import events, logs
from fxjit.backends.registry import lookup_backend
from fxjit.counters import Counters, timed


def scaled_by_sign(rates, weights):
    """A call that cannot be traced, and a branch on data: three graphs."""
    share = rates.tanh() * 2
    share = share.exp()
    print("shares")
    if weights.mean() > 4:
        weights = weights - 4
    return share * weights


def inputs():
    return torch.randn(10), torch.ones(10)


def test_explain_tells_graphs_breaks_and_reasons():
    found = fxjit.explain(scaled_by_sign)(*inputs())
    assert found.graph_count == 3 and found.graph_break_count == 2 and found.op_count == 6
    assert len(found.graphs) == 3 and [len(ops) for ops in found.ops_per_graph] == [3, 2, 1]
    first, second = found.break_reasons
    assert "print" in first.explanation and first.user_stack[-1].line == 'print("shares")'
    assert "branch" in second.reason.lower() and second.hints
    assert found.out_guards and found.compile_times
    text = str(found)
    assert text.startswith("fxjit produced 3 graphs, with 2 graph breaks and 6 ops")
    assert 'print("shares")' in text and "if weights.mean() > 4:" in text


def test_the_old_spelling_gives_four_things():
    explanation, out_guards, graphs, ops_per_graph = fxjit.explain(scaled_by_sign, *inputs())
    assert len(graphs) == 3 == len(ops_per_graph) and out_guards and "shares" in str(explanation)


def test_explain_does_not_touch_what_was_compiled():
    from fxjit.testing import CompileCounter

    counter = CompileCounter()
    compiled = fxjit.compile(scaled_by_sign, backend=counter)
    compiled(*inputs())
    before = counter.frame_count
    fxjit.explain(compiled)(*inputs())
    assert counter.frame_count == 2 * before, "its own graphs go through the backend, too"
    compiled(*inputs())
    assert counter.frame_count == 2 * before


def aot_eager_by_a_callable(gm, example_inputs):
    return lookup_backend("aot_eager")(gm, example_inputs)


@pytest.mark.parametrize("options", [{}, {"backend": "aot_eager"}, {"backend": "native"}, {"backend": aot_eager_by_a_callable}])
def test_explain_names_the_rule_by_which_a_graph_runs_as_captured(options):
    def f(x):
        y = x * 2
        fxjit.graph_break()
        return torch.as_strided(y, (2,), (1,), 1) * 2

    found = fxjit.explain(fxjit.compile(f, **options))(torch.rand(4))
    assert [(number, each.rule) for number, each in found.run_as_captured] == [(2, "storage-offset")]
    assert "Graph 2 runs as it was captured (storage-offset): " in str(found)
    assert not fxjit.explain(f)(torch.rand(4)).run_as_captured  # its graphs ran eagerly


def test_explain_names_skipped_frames():
    def f(x):
        for i in range(3):
            x = x + i
            fxjit.graph_break()
        return x

    found = fxjit.explain(f)(torch.ones(2))
    assert len(found.skips) == 1
    text = str(found.skips[0])
    assert "test_explain_names_skipped_frames.<locals>.f" in text and "loop" in text and "graph_break" in text


def in_a_loop(x):
    for _ in range(2):
        x = x * 2
        fxjit.graph_break("in the loop")
    return x


def calls_it(x):
    return in_a_loop(x.sin()).cos()


@pytest.mark.parametrize("given_up, broken", [(in_a_loop, 0), (calls_it, 1)], ids=["itself", "called"])
def test_a_break_is_counted_once(given_up, broken):
    """A function that is given up has no graph that broke: its break is the cause of the skip, and told with it. The graph of
    who calls the function did break."""
    fxjit.counters.clear()
    found = fxjit.explain(given_up)(torch.ones(2))
    assert found.graph_break_count == broken and found.graph_count == 2 * broken
    assert sum(fxjit.counters["graph_break"].values()) == broken
    assert fxjit.counters["skip"] == {"Graph break in a loop": 1}
    assert fxjit.counters["skip_cause"] == {"Call to `torch._dynamo.graph_break()`": 1}
    assert 'fxjit.graph_break("in the loop")' in str(found.skips[0])


def test_explain_draws_over_the_source(tmp_path):
    found = fxjit.explain(scaled_by_sign)(*inputs())
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "break:" in page and "rates.tanh()" in page and "graph 3" in page
    with pytest.raises(fxjit.errors.ConfigError, match="cannot be written"):
        found.to_html(tmp_path / "no" / "page.html")


def test_the_profiler_reports_breaks_recompiles_and_the_guard():
    with fxjit.CompileProfiler() as prof:
        f = fxjit.compile(lambda x: x * 2, backend=prof)
        f(torch.ones(2))
        f(torch.ones(2, dtype=torch.float64))
        fxjit.compile(scaled_by_sign, backend=prof)(*inputs())
    text = prof.report()
    assert "float64" in text and "Recompiles" in text and "Graph breaks" in text
    assert prof.frame_count == 5
    assert sum(prof.get_metrics()["recompiles"].values()) == 1 and len(prof.get_metrics()["graph_breaks"]) == 2
    with fxjit.CompileProfiler() as prof:
        fxjit.compile(lambda x: x * 3, backend=prof)(torch.ones(2))
    assert "No graph breaks detected" in prof.report() and "No recompiles detected" in prof.report()


@pytest.mark.compiles
def test_counters_after_a_compile():
    fxjit.compile(scaled_by_sign, backend="eager")(*inputs())
    counters = fxjit.counters
    assert counters["frames"]["total"] == 3 == counters["frames"]["ok"]
    assert counters["stats"] == {"unique_graphs": 3, "calls_captured": 6}
    assert sum(counters["graph_break"].values()) == 2
    assert all(isinstance(value, int) for group in counters.values() for value in group.values())


def test_counters_are_nested_counters():
    counters = Counters()
    counters["a"]["b"] += 2
    assert counters["a"].most_common(1) == [("b", 2)] and counters["never"]["seen"] == 0
    assert repr(counters) == "Counters({'a': {'b': 2}})"
    counters.clear()
    assert not counters


@pytest.mark.compiles
def test_compile_times_as_text_and_as_a_table():
    assert fxjit.compile_times() == "fxjit has compiled nothing yet."
    fxjit.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    with timed("phase", "function"):
        pass
    assert "phase function" in fxjit.compile_times() and "trace" in fxjit.compile_times()
    headers, values = fxjit.compile_times("csv")
    assert len(headers) == len(values) and "phase function" in headers and float(values[-1]) >= 0
    assert "phase" in fxjit.compile_times("csv", aggregate=True)[0]


def test_logs_are_off_until_asked_for(caplog):
    f = fxjit.compile(scaled_by_sign, backend="eager")
    f(*inputs())
    assert not [record for record in caplog.records if record.name.startswith("fxjit")]


def test_the_log_of_graph_breaks_reads_like_the_documentation(caplog):
    def f(x):
        fxjit.graph_break("because")
        return x + 1

    fxjit.set_logs(graph_breaks=True)
    fxjit.compile(f, backend="eager")(torch.ones(2))
    text = next(record.getMessage() for record in caplog.records if record.name == "fxjit.graph_breaks")
    lines = text.splitlines()
    assert lines[0].startswith("Graph break in user code at ") and lines[0].endswith(f":{f.__code__.co_firstlineno + 1}")
    assert lines[1] == "Graph Break Reason: Call to `torch._dynamo.graph_break()`"
    assert lines[2] == "  Explanation: User-inserted graph break. Message: because"
    assert lines[3] == "  Hint: Remove the `torch._dynamo.graph_break()` call."
    assert lines[5].startswith("  Developer debug context: ")
    last = [line.strip() for line in lines if not set(line.strip()) <= set("~^")][-1]  # CPython 3.13 marks the call below it
    assert lines[6] == "  Code: user-graph-break (docs/reasons.md#user-graph-break)"
    assert lines[8] == "User code traceback:" and last == 'fxjit.graph_break("because")'


def test_each_place_is_logged_once(caplog):
    def f(x):
        x = x + 1
        fxjit.graph_break()
        return x + 1

    fxjit.set_logs("graph_breaks")
    for dtype in (torch.float32, torch.float64):
        fxjit.compile(f, backend="eager")(torch.ones(2, dtype=dtype))
    assert sum(record.name == "fxjit.graph_breaks" for record in caplog.records) == 1
    assert sum(fxjit.counters["graph_break"].values()) == 2


def test_the_other_artifacts_say_something(caplog):
    def skipped(x):
        for _ in range(2):
            fxjit.graph_break()
            x = x + 1
        return x

    fxjit.set_logs("guards,graph_code,bytecode,recompiles,skips")
    f = fxjit.compile(lambda x: x + 1, backend="eager")
    f(torch.ones(2))
    f(torch.ones(2, dtype=torch.float64))
    fxjit.compile(skipped, backend="eager")(torch.ones(2))
    said = {record.name: record.getMessage() for record in caplog.records}
    assert {"fxjit.guards", "fxjit.graph_code", "fxjit.bytecode", "fxjit.recompiles", "fxjit.skips"} <= said.keys()
    assert "float64" in said["fxjit.recompiles"] and "Frame skipped" in said["fxjit.skips"]


def test_levels_and_names_of_logs():
    fxjit.set_logs("+guards,graph_breaks")
    assert logs.artifact("guards").isEnabledFor(logs.DEBUG)
    assert logs.enabled("graph_breaks") and not logs.artifact("graph_breaks").isEnabledFor(logs.DEBUG)
    fxjit.set_logs(all=True, skips=False)
    assert logs.enabled("guards") and not logs.enabled("skips")
    fxjit.set_logs()
    assert not any(logs.enabled(name) for name in logs.ARTIFACTS)
    with fxjit.config.patch(logs="cache"):
        assert logs.enabled("cache")


def test_listeners_hear_events_only_while_they_listen():
    heard = []
    with events.listen(heard.append):
        fxjit.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    fxjit.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
    assert [type(event).__name__ for event in heard] == ["FrameCompiled"]
    assert heard[0].op_count == 1 and heard[0].ops == ("add",)


def ranges_of(run):
    with torch.profiler.profile() as profile:
        run()
    return [event.key for event in profile.key_averages()]


def activations(x, weight):
    return torch.softmax(torch.relu(x @ weight) + 1, -1)


def test_torchs_profiler_shows_graphs_and_their_kernels():
    x, weight = torch.randn(32, 32), torch.randn(32, 32)
    compiled = fxjit.compile(activations)
    compiled(x, weight)
    shown = ranges_of(lambda: compiled(x, weight))
    assert "fxjit: activations" in shown and "fxjit::gemm" in shown
    assert any(name.startswith("fxjit::k") for name in shown)
    by_torch = fxjit.compile(activations, backend="eager")
    assert "fxjit: activations" in ranges_of(lambda: by_torch(x, weight))


def test_torchs_profiler_shows_a_backward():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
    compiled = fxjit.compile(model)
    x = torch.randn(8, 32)
    compiled(x).sum().backward()
    loss = compiled(x).sum()
    assert any(name.startswith("fxjit::k") for name in ranges_of(loss.backward))
    assert "fxjit: Sequential" in ranges_of(lambda: compiled(x))


def test_a_graph_that_raises_ends_its_range():
    compiled = fxjit.compile(activations, backend=lambda gm, inputs: lambda *args: 1 / 0)

    def run():
        with pytest.raises(ZeroDivisionError):
            compiled(torch.ones(2, 2), torch.ones(2, 2))
            torch.ones(1).sin()

    assert "fxjit: activations" in ranges_of(run)


def test_errors_of_the_programs_own_are_not_logged_twice(caplog):
    def multiply(x, y):
        try:
            return x @ y
        except RuntimeError as error:
            return str(error)

    x, y = torch.ones(2, 3), torch.ones(2, 3)
    assert fxjit.compile(multiply, backend="eager")(x, y) == multiply(x, y)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        fxjit.compile(lambda x, y: x @ y, backend="eager")(x, y)
    assert not [record for record in caplog.records if record.name == "torch._subclasses.fake_tensor"]
