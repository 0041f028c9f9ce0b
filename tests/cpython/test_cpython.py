"""A share of CPython's own tests, compiled and plain: `python -m benchmarks.cpython` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import cpython


@pytest.mark.parametrize("module", cpython.available(cpython.LISTED["fast"]))
def test_ends_the_same(module: str) -> None:
    row = cpython.compare(module)
    assert row.plain.tests, "the module has no tests"
    assert row.compiled.frames > 0, "nothing was compiled"
    assert not row.faults
    assert not [str(each) for each in row.differences if not each.reason]


def test_each_listed_difference_names_a_module_and_says_why() -> None:
    for each in cpython.LISTED["difference"]:
        assert set(each["modules"]) <= set(cpython.LISTED["modules"])
        assert each["tests"] and len(each["reason"]) > 20


WAYS = {"repeated": cpython.Options(repeat=2), "with unittest": cpython.Options(trace_unittest=True)}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_ends_the_same_in_other_ways_to_run_it(options: cpython.Options) -> None:
    row = cpython.compare("test_augassign", options)
    names = [name for name, _, _ in row.plain.tests]
    once = [name for name in names if "(run " not in name]
    assert [name for each in once for name in (each, *(f"{each} (run {n})" for n in range(2, options.repeat + 1)))] == names
    assert row.compiled.frames > 0, "nothing was compiled"
    assert not row.faults and not [str(each) for each in row.differences if not each.reason]


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    options = cpython.Options(repeat=2)
    whole = cpython.run("test_augassign", "plain", options, tmp_path)
    (kept,) = tmp_path.iterdir()
    lines = kept.read_text().splitlines(keepends=True)
    assert len(lines) == len(whole.tests) + 2
    assert cpython.run("test_augassign", "plain", options, tmp_path).tests == whole.tests
    assert kept.read_text() == "".join(lines)  # nothing was run
    # In the middle of a line, behind the first of a test's two times.
    kept.write_text("".join(lines[:4]) + lines[4][:9])
    assert cpython.run("test_augassign", "plain", options, tmp_path).tests == whole.tests
    assert kept.read_text().splitlines(keepends=True)[:3] == lines[:3]
    # With other options it begins anew.
    assert len(cpython.run("test_augassign", "plain", cpython.Options(), tmp_path).tests) == len(whole.tests) // 2
