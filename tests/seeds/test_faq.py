"""What the FAQ promises of explain, the profiler, frozen running and nopython."""

from __future__ import annotations

import pytest
import torch

import fxjit


def toy_example(a, b):
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_explain_finds_three_graphs_two_breaks_and_six_operators(capsys):
    fxjit.reset()
    explanation = fxjit.explain(toy_example)(torch.randn(10), -torch.ones(10))
    assert capsys.readouterr().out == "woo\n"
    assert (explanation.graph_count, explanation.graph_break_count) == (3, 2)
    assert explanation.op_count == 3 + 2 + 2
    functions = {reason.user_stack[-1].name for reason in explanation.break_reasons}
    assert functions == {"toy_example"}
    text = str(explanation)
    assert "toy_example" in text and "print" in text


def test_the_branch_not_taken_is_compiled_when_it_is_taken():
    fxjit.reset()
    compiled = fxjit.compile(toy_example, backend="eager")
    a = torch.randn(10)
    for b in (torch.ones(10), -torch.ones(10), torch.ones(10)):
        torch.testing.assert_close(compiled(a, b), toy_example(a, b))


def test_nopython_raises_on_the_first_break():
    fxjit.reset()
    with pytest.raises(fxjit.errors.Unsupported) as caught:
        fxjit.compile(toy_example, nopython=True, backend="eager")(torch.randn(10), torch.randn(10))
    error = caught.value
    assert "print" in str(error)
    assert error.hints and error.explanation
    assert error.user_stack[-1].name == "toy_example"


def test_run_uses_what_was_compiled_and_compiles_nothing_new():
    def fn(x):
        return x * 2 + 1

    fxjit.reset()
    counter = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(fn, backend=counter, dynamic=False)
    compiled(torch.ones(3))
    frozen = fxjit.run(compiled)
    torch.testing.assert_close(frozen(torch.ones(3)), torch.full((3,), 3.0))
    torch.testing.assert_close(frozen(torch.ones(5)), torch.full((5,), 3.0))
    assert counter.frame_count == 1


def test_the_profiler_tells_of_recompiles_and_the_guard_that_failed():
    def fn(x, flag):
        return x + 1 if flag else x - 1

    fxjit.reset()
    with fxjit.CompileProfiler() as profiler:
        compiled = fxjit.compile(fn, backend=profiler)
        compiled(torch.ones(3), True)
        compiled(torch.ones(3), False)
        report = profiler.report()
    assert "fn" in report and "flag" in report
