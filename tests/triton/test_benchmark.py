"""`python -m benchmarks.gpu` without a GPU: it says so, its works run on the processor, and its tables are written."""

from __future__ import annotations

import pytest
import torch
from benchmarks import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so_and_fails(capsys):
    assert gpu.main([]) == gpu.NO_GPU != 0
    assert "no CUDA device was found; nothing was measured" in capsys.readouterr().err


def test_operators_are_compared():
    rows = gpu.work_operators("cpu", ["indexing"], ("float32", "bfloat16"))
    assert len(rows) == 2 and [row for row in rows if row["problem"]] == []


def test_a_difference_is_told():
    x = torch.ones(3, requires_grad=True)
    assert gpu.difference(lambda x: x * 2, lambda x: x * 2, [x], "float32") == ""
    assert gpu.difference(lambda x: x * 3, lambda x: x * 2, [x], "float32").startswith("result 0: ")
    assert gpu.difference(lambda x: x.detach() * 2 + x * 0, lambda x: x * 2, [x], "float32").startswith("gradient 0: ")


def test_an_item_in_a_process_of_its_own(tmp_path):
    found = gpu.in_process("operators", {"device": "cpu", "only": ["nothing"]}, 120, str(tmp_path))
    assert found == {"result": []}
    assert "KeyError: 'unknown'" in gpu.in_process("unknown", {}, 120, str(tmp_path))["error"]


def test_failures_and_time_running_out_are_listed(tmp_path, monkeypatch):
    bench = gpu.Bench(0, "cpu", str(tmp_path))
    bench.run("calls", 60)
    monkeypatch.setattr(gpu, "in_process", lambda *args: {"error": "it took more than 5 s"})
    bench.deadline += 100
    bench.run("steady", 60, name="hf_bert", dtype="float32")
    text = gpu.tables(bench.results)
    assert "calls: left out: no time was left" in text and "steady hf_bert float32: it took more than 5 s" in text


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
            "steady": {"inference": times, "training": times},
            "bandwidth": [{"name": "copy", "dtype": "float32", "bytes_per_second": {**times, "device copy": 4.0}}],
            "calls": [{"mode": "default", "microseconds": times}],
        }[work]}  # fmt: skip

    monkeypatch.setattr(gpu, "in_process", fake)
    bench = gpu.Bench(100, "cpu", str(tmp_path))
    gpu.run_all(bench, ("hf_bert", "hf_gpt2"), 2)
    assert list(dict.fromkeys(asked)) == ["operators", "model", "first", "bandwidth", "calls", "steady"]
    text = gpu.tables(bench.results)
    assert "9 operators and models were compared with eager, 1 differ." in text
    assert "| geometric mean |  |  |  | 2.00 |" in text and "| hf_bert, training | 2.0 | 8.0 | 0.25 |" in text


def test_models_are_called_in_every_way():
    pytest.importorskip("transformers")
    assert gpu.work_model("prog_trivial_add", "inference", "float32", "cpu")["problem"] == ""
