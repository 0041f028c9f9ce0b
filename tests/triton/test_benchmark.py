"""`python -m benchmarks.gpu` without a GPU: it says so, its works run on the processor, and its tables are written."""

from __future__ import annotations

import functools
import json
import threading
import time

import pytest
import torch
from benchmarks import gpu, gpu_calls, gpu_models, real_models
from benchmarks.gpu_difference import difference

from fxjit import config


@pytest.fixture(autouse=True)
def settings_stay():
    """A work sets what it needs, in a process of its own."""
    with config.patch(fallback_random=config.fallback_random):
        yield


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so_and_fails(capsys):
    assert gpu.main([]) == gpu.NO_GPU != 0
    assert "no CUDA device was found; nothing was measured" in capsys.readouterr().err


def test_operators_are_compared():
    rows = list(gpu.work_operators("cpu", ["indexing"], ("float32", "bfloat16")))
    assert len(rows) == 2 and [row for row in rows if row["problem"]] == []


def test_a_difference_is_told():
    x = torch.ones(3, requires_grad=True)
    assert difference(lambda x: x * 2, lambda x: x * 2, [x], "float32") == ""
    assert difference(lambda x: x * 3, lambda x: x * 2, [x], "float32").startswith("result 0: ")
    assert difference(lambda x: x.detach() * 2 + x * 0, lambda x: x * 2, [x], "float32").startswith("gradient 0: ")


def test_what_is_nearer_to_the_exact_numbers_is_right():
    x = torch.full((2000, 2), 0.3, dtype=torch.bfloat16, requires_grad=True)

    def one_by_one(x):
        return functools.reduce(torch.add, x)

    assert difference(lambda x: x.sum(0), one_by_one, [x], "bfloat16") == ""
    assert difference(one_by_one, lambda x: x.sum(0), [x], "bfloat16").startswith("result 0: ")


def test_an_item_in_a_process_of_its_own(tmp_path):
    found = gpu.in_process("operators", {"device": "cpu", "only": ["nothing"]}, 120, str(tmp_path))
    assert found == {"result": []}
    assert "KeyError: 'unknown'" in gpu.in_process("unknown", {}, 120, str(tmp_path))["error"]


def test_what_an_item_said_before_its_time_was_up_is_kept(tmp_path, monkeypatch):
    """Rows come one by one, and the processes an item started end with it."""
    monkeypatch.setattr(gpu.sys, "executable", "/bin/sh")
    program = tmp_path / "program"
    program.write_text("echo 'ROW {\"name\": 1}'; echo 'ROW {\"name\": 2}'; sleep 100 & wait")
    plain = gpu.subprocess.Popen
    monkeypatch.setattr(gpu.subprocess, "Popen", lambda command, **options: plain(["/bin/sh", str(program)], **options))
    found = gpu.in_process("bandwidth", {}, 1, str(tmp_path))
    assert found == {"result": [{"name": 1}, {"name": 2}], "error": "it took more than 1 s"}


def test_a_way_that_fails_costs_only_its_own_numbers():
    def broken():
        raise ValueError("no such kernel")

    calls = {"eager": lambda: None, "fxjit": broken, "torch.compile": lambda: None}
    row = gpu_calls.measured({"mode": "default"}, calls, "cpu", 1, lambda calls: {"microseconds": dict.fromkeys(calls, 1.0)})
    assert row["fxjit fails"].startswith("ValueError: no such kernel\n") and "in broken" in row["fxjit fails"]
    assert set(row["microseconds"]) == {"eager", "torch.compile"}
    text = gpu.tables([{"work": "calls", "result": [row]}])
    assert "| default | 1.0 | - | 1.0 | - |" in text and "default, fxjit fails: ValueError: no such kernel" in text


def test_each_stage_has_its_share_of_the_time_that_is_left(tmp_path):
    bench = gpu.Bench(1000, "cpu", str(tmp_path))
    total = sum(gpu.STAGES.values())
    bench.stage("operators")
    assert bench.left() == pytest.approx(1000 * gpu.STAGES["operators"] / total, abs=1)
    for name in list(bench.stages)[:-1]:
        bench.stage(name)
    # What the others did not take is the last one's.
    bench.stage("first")
    assert bench.left() == pytest.approx(1000, abs=1)


def test_what_there_is_so_far_is_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "in_process", lambda *args: {"result": []})
    bench = gpu.Bench(1000, "cpu", str(tmp_path), str(tmp_path / "out.json"))
    for count in (1, 2):
        bench.run("calls", 60)
        assert len(json.loads((tmp_path / "out.json").read_text())["results"]) == count


MODES = ["sizes that vary", "memory off its boundary", "CUDA graphs, mutation", "dropout", "other streams"]


@pytest.mark.parametrize("name", MODES)
def test_modes_are_compared(name):
    (row,) = gpu.work_modes("cpu", [name])
    assert row["problem"] == "" and set(row["counters"]) == {"cudagraphs", "native"}


def test_bandwidth_and_calls_are_measured(monkeypatch):
    """On the processor, of little memory, and without torch.compile, which takes long."""
    monkeypatch.setattr(gpu, "WAYS", ("fxjit",))
    kernels = gpu.bandwidth_kernels()
    monkeypatch.setattr(gpu, "bandwidth_kernels", lambda: {"softmax": kernels["softmax"]})
    monkeypatch.setattr(gpu, "take_turns", lambda calls, *_, **__: {way: call() is None or 1.0 for way, call in calls.items()})
    (row,) = gpu.work_bandwidth("float32", "cpu", size=1 << 16)
    assert row["bytes_per_second"] == dict.fromkeys(("device copy", "eager", "fxjit"), 2e3 * (1 << 16))
    rows = list(gpu.work_calls("cpu", seconds=0.01))
    assert [row["mode"] for row in rows] == ["default", "reduce-overhead"]
    assert all(row["microseconds"]["fxjit"] > 0 for row in rows)


def test_kernels_in_a_row_are_timed_together(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            self.at = None

        def record(self):
            self.at = len(called)

        def elapsed_time(self, end):
            return 0.5 * (end.at - self.at)

    called = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert gpu_calls.once(lambda: called.append(1), "cuda", 8) == 0.5 and len(called) == 8


def test_models_of_packages_that_are_not_there_are_left_out(monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name == "transformers" else object())
    assert gpu.there(("hf_bert", "plain_gpt", "timm_x")) == ("plain_gpt", "timm_x")


def test_failures_and_time_running_out_are_listed(tmp_path, monkeypatch):
    bench = gpu.Bench(0, "cpu", str(tmp_path))
    bench.run("calls", 60)
    monkeypatch.setattr(gpu, "in_process", lambda *args: {"error": "it took more than 5 s"})
    bench.until += 100
    bench.run("real", 60, name="gpt2", mode="training", batch=8)
    text = gpu.tables(bench.results)
    assert "calls: left out: no time was left" in text and "real gpt2 training 8: it took more than 5 s" in text


def test_everything_runs_in_order_and_fits(monkeypatch, tmp_path):
    """The whole command with works that give made-up numbers."""
    asked = []

    def fake(work, arguments, limit, caches):
        asked.append(work)
        times = {"eager": 3.0, "fxjit": 1.0, "torch.compile": 2.0}
        return {"result": {
            "operators": [{"name": "sums", "dtype": "float32", "problem": "result 0: off"}],
            "model": {"first": 1.0, "problem": ""},
            "first": {"first": {"fxjit": 2.0, "torch.compile": 8.0}.get(arguments.get("way"), 0)},
            "modes": [{"name": "dropout", "dtype": "", "problem": "", "counters": {}}],
            "real": [{"first": times}, {
                "milliseconds": times, "first": times, "peak": {"fxjit": 10, "torch.compile": 20},
                "gpu": {way: {"total": each * 100} for way, each in times.items()},
            }],
            "bandwidth": [{"name": "copy", "dtype": "float32", "bytes_per_second": {**times, "device copy": 4.0}}],
            "calls": [{"mode": "default", "microseconds": times}],
        }[work]}  # fmt: skip

    monkeypatch.setattr(gpu, "in_process", fake)
    bench = gpu.Bench(100, "cpu", str(tmp_path))
    gpu.run_all(bench, ("hf_bert", "hf_gpt2"), 2)
    assert list(dict.fromkeys(asked)) == ["operators", "modes", "model", "real", "bandwidth", "calls", "first"]
    text = gpu.tables(bench.results)
    assert "20 operators and models were compared with eager, 9 differ." in text
    assert "| unet, training, 1 | 3.00 | 1.50 | 3.00 | 1.50 | 3.00 | 0.50 | 0.50 |" in text
    assert "geometric mean |  |  | 2.00 |" in text and "| hf_bert, training | 2.0 | 8.0 | 0.25 |" in text


@pytest.mark.parametrize("mode", ["inference", "training", "decoding"])
def test_models_of_real_sizes_are_run_in_every_way(monkeypatch, mode):
    """Small ones here: what matters is that each way's results are beside eager's."""
    monkeypatch.setitem(gpu_models.MODELS, "unet", lambda batch: (real_models.UNet(8), (torch.randn(batch, 3, 16, 16),)))
    if mode == "decoding":
        pytest.importorskip("transformers")
        small = gpu_models.llama_config
        monkeypatch.setattr(gpu_models, "llama_config", lambda: little(small()))
    *_, row = gpu.work_real("unet", mode, 1, "cpu", ["eager", "fxjit"])
    assert {*row["milliseconds"]} == {*row["first"]} == {"eager", "fxjit"} and not any("fails" in key for key in row)
    assert row["from eager"]["fxjit"] < 0.05


def little(config):
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 64, 64, 1
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 16
    return config


def test_nobody_compiles_while_one_measures(tmp_path, monkeypatch):
    monkeypatch.setenv(gpu.TURN, str(tmp_path / "turn"))
    compiling, measuring, most = [], [], []

    def model():
        with gpu.beside_others() as others_wait:
            compiling.append(1)
            others_wait()
            measuring.append(1)
            most.append(len(measuring))
            time.sleep(0.01)
            measuring.pop()

    threads = [threading.Thread(target=model) for _ in range(3)]
    with gpu.beside_others():
        for thread in threads:
            thread.start()
        while len(compiling) < 3:
            time.sleep(0.01)
        assert not most
    for thread in threads:
        thread.join(20)
    assert most == [1, 1, 1]


def test_models_are_called_in_every_way():
    with config.patch(fallback_random=False):
        assert gpu.work_model("plain_gpt", "training", "float32", "cpu")["problem"] == ""
    pytest.importorskip("transformers")
    assert gpu.work_model("prog_trivial_add", "inference", "float32", "cpu")["problem"] == ""
