"""Programs in several processes on one folder: nothing that was stored stands in for what a trace would see there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.stored.differences import GRADIENTS, MARKS, OBJECTS, PATCHES, STATES

from fxjit import config

#: What is not eager's whatever is stored: objects and helpers of Python's that a trace does not look at, promises that do not
#: hold, functions of torch's and Python's that the compiler itself calls.
NOT_EAGERS = ("a helper of copy", "dataclasses.replace", "builtins.len", "disallow_in_graph", "random")
#: What each process has another of.
OF_ITS_OWN = ("the number of the process", "an object's address")


@pytest.mark.sweep(3)
@pytest.mark.slow
@pytest.mark.parametrize("table", [PATCHES, OBJECTS, STATES, MARKS, GRADIENTS], ids=["patches", "objects", "states", "marks",
                                                                                  "gradients"])
def test_a_second_process_does_what_it_does_without_a_store(table: dict[str, object], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-m", "tests.stored.differences", str(tmp_path), *table],
                          env=config.child_environment(), capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert set(found) == set(table)
    wrong = {name: each for name, each in found.items() if name not in OF_ITS_OWN and "fresh" in each
             and each["second"]["results"] != each["fresh"]["results"]}
    assert not wrong, "a second process gives what one without a store does not"
    if table is not MARKS:  # which promise what is not so
        wrong = {name: each for name, each in found.items() for role in each.values()
                 if role["problem"] and not name.startswith(NOT_EAGERS)}
        assert not wrong, "results are not eager's"
    assert sum(each["first"]["hits"] > 0 for each in found.values()) > len(found) * 0.8
