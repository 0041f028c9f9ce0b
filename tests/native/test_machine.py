"""The machine's numbers, what is predicted from them, and the probe that measures them."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.choose import fusion, model, probe, profitability
from fxjit.backends.native.choose.machine import REFERENCE, Machine, from_facts, graded, used
from fxjit.backends.store import artifacts
from fxjit.backends.store.artifacts import FACTS, open_cache, put_facts
from fxjit.counters import counters
from fxjit.doctor import examine
from fxjit.stored.state import present as state

#: A small board whose interpreter is slow beside its vectors, and a workstation with large caches and slow threads.
BOARD = dataclasses.replace(REFERENCE, call=12.8, second_bytes=256 << 10, far=2.4, shared=1.28)
STATION = dataclasses.replace(REFERENCE, call=0.4, team=4.4, addition=0.0049, second_bytes=8 << 20)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path) -> Iterator[None]:
    """A cache of its own, where nothing was measured."""
    probe._at_start.cache_clear()
    with config.patch(measure_machine=True, cache_dir=str(tmp_path / "cache"), disk_cache=True):
        yield
    probe._at_start.cache_clear()


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TURNS", 1)


# Predictions


def test_the_reference_decides_as_was_measured_on_it():
    assert (model.small_work("exp2.default"), model.small_elements(), model.grain()) == (32768, 8192, 120_000)
    assert model.tile_bytes() == 1 << 20
    assert model.channels_last_work() == pytest.approx(10e6, rel=0.01)
    assert model.work_of_copy() == pytest.approx(200, rel=0.01)


def test_two_machines_decide_otherwise():
    with used(BOARD):
        board = model.small_work("exp2.default"), model.small_elements(), model.grain(), model.tile_bytes()
    with used(STATION):
        station = model.small_work("exp2.default"), model.small_elements(), model.grain(), model.tile_bytes()
    assert board == (262144, 65536, 120_000, 1 << 20)  # calls and launches cost as much as more work
    assert station == (16384, 4096, 1_920_000, 4 << 20)  # teams cost as much as more work
    assert model.small_work("exp2.default") == 32768  # outside it is the reference again


def test_passes_take_longer_the_further_their_numbers_are():
    assert model.pass_over(1000) == pytest.approx(0.024)
    assert model.pass_over(100_000) == pytest.approx(10)
    assert model.pass_over(1_000_000) == pytest.approx(300)
    with used(BOARD):  # it has a smaller second cache
        assert model.pass_over(100_000) == pytest.approx(240)


def test_an_operator_whose_call_costs_more_is_a_kernel_for_longer():
    assert model.small_work("gelu.default") > 8 * model.small_work("exp.default")


def left_to_aten(machine: Machine, monkeypatch: pytest.MonkeyPatch, elements: int) -> bool:
    monkeypatch.setattr(pipeline, "present", lambda: machine)
    x, before = torch.rand(elements), counters["native"]["left to ATen"]
    compiled = pipeline.compile_graph(make_fx(torch.exp2)(x), [x], "inference")
    compiled([x])
    return counters["native"]["left to ATen"] > before


def test_a_lone_operator_is_a_kernel_where_calls_are_dear(monkeypatch):
    assert left_to_aten(REFERENCE, monkeypatch, 8192)
    assert not left_to_aten(BOARD, monkeypatch, 8192)


def test_threads_share_a_loop_where_teams_are_cheap(texts, monkeypatch):
    sources = []
    start = pipeline.cc.start
    monkeypatch.setattr(pipeline.cc, "start", lambda source, prelude: sources.append(source) or start(source, prelude))
    x = torch.rand(100_000)
    for machine in (REFERENCE, STATION):
        monkeypatch.setattr(pipeline, "present", lambda machine=machine: machine)
        pipeline.compile_graph(make_fx(lambda x: x * 2 + 1)(x), [x], "inference")([x])
    shared, alone = sources
    assert "omp parallel" in shared and "omp parallel" not in alone


def test_a_small_training_graph_is_as_captured_by_the_machine(monkeypatch):
    def run(x):
        return torch.sigmoid(x * 2)

    def left(machine: Machine) -> bool:
        fxjit.reset()
        monkeypatch.setattr(profitability, "present", lambda: machine)
        monkeypatch.setattr(pipeline, "present", lambda: machine)
        before = counters["run_as_captured"]["unprofitable"]
        with config.patch(small_graphs_as_captured=True):
            fxjit.compile(run, fullgraph=True)(torch.ones(20_000, requires_grad=True)).sum().backward()
        return counters["run_as_captured"]["unprofitable"] > before

    cheap_memory = dataclasses.replace(REFERENCE, call=3.2, first=0.003, second=0.003, far=0.003)
    assert not left(dataclasses.replace(REFERENCE, second=0.8))
    assert left(cheap_memory)


def test_the_order_of_sums_does_not_depend_on_the_machine():
    def sums(machine: Machine) -> torch.Tensor:
        with used(machine):
            return pipeline.through_stages(graph, "inference", True)([x])[0]

    x = torch.rand(3, 9000) - 0.5
    graph = make_fx(lambda x: [x.sum(1)])(x)
    expected = sums(REFERENCE)
    for machine in (BOARD, STATION):
        graph = make_fx(lambda x: [x.sum(1)])(x)
        assert torch.equal(sums(machine), expected)
    assert fusion.SHARED == 8192


# The numbers


def test_numbers_are_used_in_steps_of_two():
    for factor in (0.75, 1.0, 1.35):
        noisy = dataclasses.replace(REFERENCE, **{name: number * factor for name, number in times().items()})
        assert graded(noisy) == REFERENCE
    slow = dataclasses.replace(REFERENCE, call=3.0, second_bytes=1 << 20)
    assert graded(slow) == dataclasses.replace(REFERENCE, call=3.2, second_bytes=1 << 20)


def times() -> dict[str, float]:
    return {name: number for name, number in dataclasses.asdict(REFERENCE).items() if isinstance(number, float)}


GOOD = dataclasses.asdict(REFERENCE)
DAMAGED = [None, 3, [], {}, {"call": 1.0}, {**GOOD, "more": 1.0}, *({**GOOD, "call": bad} for bad in (
    0.0, -1.0, math.nan, math.inf, 1e300, "1", None, True, 2)), {**GOOD, "first_bytes": 0}, {**GOOD, "first_bytes": 1.5}]


@pytest.mark.parametrize("facts", DAMAGED, ids=repr)
def test_damaged_facts_are_none(facts):
    assert from_facts(facts) is None
    assert from_facts(GOOD) == REFERENCE


# The probe


def test_it_is_measured_once_and_kept(briefly):
    before = counters["native"]["machines measured"]
    assert probe.known() is None and probe.present() == REFERENCE
    found = probe.measure()
    assert found is not None and probe.known() == found
    assert counters["native"]["machines measured"] == before + 1
    assert probe.present() == REFERENCE  # this process goes on as it began
    probe._at_start.cache_clear()  # the next one
    assert probe.present() == graded(found)
    assert 0.1 < found.call < 1000 and found.first < 10 and found.product < 100


@pytest.mark.parametrize("facts", [None, {"call": "fast"}, {**GOOD, "far": -1.0}], ids=repr)
def test_damaged_facts_are_measured_again(facts, briefly):
    put_facts(probe._key(), facts)
    assert probe.known() is None and probe.present() == REFERENCE
    assert probe.measure() == probe.known() is not None
    open_cache().put(probe._key(), FACTS, b"{")
    assert probe.known() is None


def kept(machine: Machine) -> None:
    put_facts(probe._key(), dataclasses.asdict(machine))
    probe._at_start.cache_clear()


def test_decisions_are_the_references_where_they_must_not_differ(monkeypatch):
    kept(BOARD)
    assert probe.present() == graded(BOARD) == BOARD
    with config.patch(measure_machine=False):
        assert probe.present() == REFERENCE
    torch.use_deterministic_algorithms(True)
    try:
        assert probe.present() == REFERENCE
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert probe.present() == REFERENCE


def test_keys_have_the_numbers():
    texts = set()
    for machine in (REFERENCE, BOARD, STATION):
        kept(machine)
        texts.add((state().text, probe.text()))
    assert len({text for text, _ in texts}) == len({text for _, text in texts}) == 3


def test_a_pause_ends_it(briefly):
    assert probe.measure(lambda: True) is None and probe.known() is None


def test_without_a_compiler_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(probe.cc, "compiler", lambda: None)
    monkeypatch.setattr(probe.cc, "find_compiler", lambda *_: None)
    assert probe.measure() is None


@pytest.mark.parametrize("files", [{}, {"level": "2", "type": "Unified", "size": "x"},
                                   {"level": "3", "type": "Unified", "size": "9M"}], ids=repr)
def test_caches_that_the_system_does_not_tell_are_the_references(files, tmp_path, monkeypatch):
    folder = tmp_path / "index0"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(probe, "Path", lambda _: tmp_path)
    probe._caches.cache_clear()
    try:
        assert probe._caches() == (REFERENCE.first_bytes, REFERENCE.second_bytes)
        (folder / "level").write_text("2")
        (folder / "type").write_text("Unified")
        (folder / "size").write_text("512K\n")
        probe._caches.cache_clear()
        assert probe._caches() == (REFERENCE.first_bytes, 512 << 10)
    finally:
        probe._caches.cache_clear()


_PROGRAM = """
import sys, time, torch, fxjit
from fxjit.backends.native.choose import probe
probe.DELAY, probe.PAUSE, probe.TURNS = float(sys.argv[1]), 0.0, 1
x = torch.ones(64)
assert torch.equal(fxjit.compile(lambda x: x * 2 + 1)(x), x * 3)
for _ in range(200 if float(sys.argv[1]) == 0 else 0):
    if probe.known() is not None:
        break
    time.sleep(0.05)
start = time.perf_counter()
import atexit
atexit.register(lambda: print("known" if probe.known() else "unknown", time.perf_counter() - start))
"""


@pytest.mark.parametrize(("delay", "setting", "expected"),
                         [("0", "1", "known"), ("60", "1", "unknown"), ("60", "0", "unknown")])
def test_a_program_is_not_held_up_by_it(delay, setting, expected, tmp_path):
    environment = {**os.environ, "FXJIT_MEASURE_MACHINE": setting, "FXJIT_CACHE_DIR": str(tmp_path / "other")}
    done = subprocess.run([sys.executable, "-c", _PROGRAM, delay], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    said, seconds = done.stdout.split()
    assert said == expected and float(seconds) < 3


def test_the_doctor_says_what_was_measured(briefly):
    def said() -> str:
        return next(each.text for each in examine() if each.what == "machine")

    assert "a call of ATen" in said() and probe.known() is not None
    with config.patch(measure_machine=False):
        assert "is not measured" in said()
    assert artifacts.get_facts(probe._key()) is not None
