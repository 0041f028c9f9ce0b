"""Mutation test of guards that came from the disk: for every kind of guard, all that guard trees are made of, and each state of
the process, a program that relies on it. One process compiles it; in the next a fact has changed before its first call, and the
stored entry must not be used: the result is eager's. With the facts as they were, and with another one that does not matter, it
is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.stored.mutations import programs

#: Processes one after the other on one folder; `changed` leaves entries of its own there.
ROLES = ("make", "same", "harmless", "changed", "changed", "same")
#: What is traced each time: the key of a dict that is known by its identity.
TRACED = {"tree get key"}
#: Facts that decide nothing about these programs' results.
WITHOUT_A_DIFFERENCE = {"kind TypeIs", "state autocast", "state deterministic", "state torch_function",
                        "state torch_function_modes", "state float32_precision"}
#: What is not kept once it has changed: globals that no name leads to. Under a builtin of the program's own, it runs
#: eagerly; so it does where no operator is left of it.
NOT_KEPT = {"tree namespace", "tree get builtins", "tree shape", "tree get tensor_size"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of each process, what became of each program."""
    folder, root = tmp_path_factory.mktemp("stored"), Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(
        [os.environ.get("PYTHONPATH", ""), str(root)])}
    found = []
    for role in ROLES:
        done = subprocess.run([sys.executable, "-m", "tests.stored.mutations", str(folder), role], cwd=root, env=environment,
                              capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


@pytest.mark.parametrize("name", programs())
def test_an_entry_from_the_disk_is_not_used_once_a_fact_changed(outcomes: list[dict[str, Any]], name: str) -> None:
    made, same, harmless, changed, again, back = (outcome[name] for outcome in outcomes)
    assert all(each["right"] for each in (made, same, harmless, changed, again, back))
    assert changed["as_before"] is (name in WITHOUT_A_DIFFERENCE)
    if name in TRACED:
        assert made["unkept"] > 0 and same["found"] == changed["found"] == 0
        return
    assert same["found"] == harmless["found"] == back["found"] > changed["found"]
    assert again["found"] == 0 if name in NOT_KEPT else again["found"] >= same["found"]
