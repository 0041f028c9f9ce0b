"""What the user asked to compile is traced whatever its arguments are, and so is what follows a break in it. Where nothing
could be captured, the counters, the log and `explain` say why."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter


@pytest.fixture(autouse=True)
def fresh():
    fxjit.reset()


@fxjit.disable
def load(rows):
    return torch.arange(rows * 2.0).reshape(rows, 2)


@fxjit.disable
def rows_of(name):
    return len(name)


def first_step_is_disabled(rows):
    x = load(rows)
    return (x * 2 + 1).sum()


def two_steps_without_tensors(name):
    rows = rows_of(name)
    x = load(rows)
    return (x * 2 + 1).sum()


class Program:
    rows = 3

    def run(self):
        return load(self.rows).sin().cos()

    def __call__(self, rows):
        return load(rows).exp()


class WithoutParameters(torch.nn.Module):
    def forward(self, rows):
        return load(rows).cos() + 1


@pytest.mark.parametrize(
    ("fn", "args", "breaks"),
    [
        (first_step_is_disabled, (3,), 1),
        (two_steps_without_tensors, ("abc",), 2),
        (Program().run, (), 1),
        (Program(), (3,), 1),
        (lambda rows: load(rows).tan().sum(), (4,), 1),
        (WithoutParameters(), (3,), 1),
    ],
)
def test_a_program_that_makes_its_tensors_in_a_disabled_call_is_captured(fn, args, breaks):
    counting = CompileCounter()
    compiled = fxjit.compile(fn, backend=counting)
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=0)
    assert counting.frame_count == 1
    assert sum(fxjit.counters["graph_break"].values()) == breaks


def test_it_breaks_where_that_is_forbidden():
    with pytest.raises(fxjit.errors.Unsupported, match="disable"):
        fxjit.compile(first_step_is_disabled, fullgraph=True, backend="eager")(3)


def sometimes_computes(x):
    return None if x is None else x.sin() + 1


def test_a_call_with_nothing_to_capture_does_not_keep_the_next_from_being_captured():
    counting = CompileCounter()
    compiled = fxjit.compile(sometimes_computes, backend=counting)
    assert compiled(None) is None
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    assert counting.frame_count == 1


def nothing(a):
    return a + 1


def numbers(n):
    yield from range(n)


def test_counters_and_explain_say_that_there_was_nothing_to_capture():
    compiled = fxjit.compile(nothing, backend="eager")
    for a in (1, "x", None, 2.0, (1,), [1], {}, 1j, b"", True, range(3), ...):
        try:
            assert compiled(a) == nothing(a)
        except TypeError:
            continue
    assert fxjit.counters["skip"]["Frame without a tensor operation"] <= fxjit.config.recompile_limit
    assert [skip.reason_id for skip in fxjit.explain(nothing)(3).skips] == ["skip-nothing-captured"]


def test_the_log_says_that_there_was_nothing_to_capture(caplog):
    fxjit.set_logs(skips=True)
    try:
        assert fxjit.compile(nothing, backend="eager")(3) == 4
    finally:
        fxjit.set_logs()
    (said,) = [record.getMessage() for record in caplog.records if record.name == "fxjit.skips"]
    assert "Frame without a tensor operation" in said and f"nothing {__file__}" in said.replace("(", "")


def test_explain_names_the_rule_that_kept_a_function_from_being_traced():
    assert [skip.reason_id for skip in fxjit.explain(numbers)(3).skips] == ["skip-code-kind"]
    explained = torch.vmap(lambda x: x + len(fxjit.explain(first_step_is_disabled)(3).skips))(torch.zeros(1))
    assert explained.item() == 1


def test_what_a_transform_outside_keeps_eager_is_reported_once():
    compiled = fxjit.compile(lambda x: x.sin() + 1, backend="eager")
    for _ in range(3):
        torch.vmap(compiled)(torch.ones(2, 3))
    assert sum(fxjit.counters["skip"].values()) == 1
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    assert fxjit.counters["stats"]["unique_graphs"] == 1
