"""The benchmark's own programs: captured in at most as many graphs as torch.compile needs, with eager's results."""

from __future__ import annotations

import pytest
from benchmarks.models import Fxjit, differences, measure

#: name -> graphs of the first call, and graphs compiled by a second, identical call; torch.compile makes as many of the last
PROGRAMS = {
    "prog_trivial_add": (1, 0),
    "prog_char_lstm": (1, 0),
    "prog_numpy_kmeans": (1, 0),
    "prog_rl_rollout": (5, 0),
    "prog_train_step_adamw": (4, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_eagers(name):
    row = measure(name, Fxjit("eager"))
    assert not row.error
    assert row.outputs == "as eager's"
    assert row.gradients in ("as eager's", "-")
    graphs, again = PROGRAMS[name]
    assert row.graphs <= graphs
    assert row.again[0] <= again


def test_a_missing_package_is_told(monkeypatch):
    from benchmarks import programs

    def builder():
        raise ImportError("No module named 'imaginary'")

    monkeypatch.setitem(programs.PROGRAMS, "prog_missing", builder)
    assert "imaginary" in measure("prog_missing", Fxjit("eager")).error


def test_differences_are_told():
    assert list(differences([1.0, {"a": 2}], [1.0, {"a": 2}], "x")) == []
    assert list(differences([1.0], [2.0], "x")) == ["x[0]: 2.0, not 1.0"]
    assert list(differences((1,), [1], "x")) == ["x: list, not tuple"]
