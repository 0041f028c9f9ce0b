"""The benchmarks' commands run to their end, on little and for a moment: what they print is not looked at but for its form.

`benchmarks.gpu` has tests of its own (tests/triton/test_benchmark.py), and so have the works behind `benchmarks.cpython` and
`benchmarks.models` (tests/cpython, tests/models); the networks of `digits` are the demo's (tests/test_readme.py)."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import (
    attention,
    breaks,
    call_cost,
    capture,
    cpu,
    cpython,
    distributed,
    distributed_steps,
    first,
    first_call,
    generate,
    model_of_cost,
    models,
    patterns,
    quantised,
    real,
    research,
    roofline,
    scripts,
    step_model,
    timing,
    workers,
)

import fxjit

BRIEFLY = ["--seconds", "0.001"]


@pytest.fixture(autouse=True)
def threads_stay():
    """Some measure with one thread, in a process that is theirs."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


COMMANDS = sorted(path for path in (Path(__file__).parents[1] / "benchmarks").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("path", [path for path in COMMANDS if "torch.compile over" in path.read_text()
                                  or "torch.compile, " in path.read_text()], ids=lambda path: path.stem)
def test_a_table_beside_torch_compile_says_which_release_it_beats(path):
    assert "measured_beside()" in path.read_text() or path.stem == "gpu"  # its facts have more rows
    assert f"torch {torch.__version__} (eager and torch.compile)" in timing.measured_beside()


def rows_of(printed: str) -> list[list[str]]:
    """The rows of the Markdown tables in it."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines if not line.startswith("| ---")]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", [case for case in breaks.CASES if "1,000" not in case.name], ids=lambda case: case.name)
def test_breaks(case, capsys):
    breaks.main([*BRIEFLY, "--without-torch-compile", "--only", case.name])
    header, row, *_ = rows_of(capsys.readouterr().out)
    assert row[0] == case.name and header[2] == "graphs off -> on"
    _, on = map(int, row[2].split(" -> "))
    assert on > 0


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", call_cost.CASES, ids=lambda case: case.name)
def test_call_cost(case, capsys):
    call_cost.main([*BRIEFLY, "--without-torch-compile", "--only", case.name])
    printed = capsys.readouterr().out
    _, row, *_ = rows_of(printed)
    assert row[0] == case.name and float(row[3]) > 0
    assert f"Beside torch {torch.__version__}" in printed


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", [name for name in first.cases() if not name.startswith("digits")])
def test_first(name, capsys):
    first.main([*BRIEFLY, "--without-torch-compile", "--only", name])
    _, row = rows_of(capsys.readouterr().out)
    assert row[0] == name and row[2].endswith("x") and float(row[5]) > 0


@pytest.mark.parametrize("name", ["remainder, 32 channels, float32", "group norm, SiLU, last, 32 channels, bfloat16"])
def test_patterns(name, capsys):
    patterns.main([*BRIEFLY, "--without-torch-compile", "--only", name])
    _, row = rows_of(capsys.readouterr().out)
    assert row[0] == name and row[2].endswith("x") and float(row[5]) > 0


@pytest.mark.parametrize("name", ["few places, bfloat16, inference", "few places by hand, bfloat16, training"])
def test_attention(name, capsys):
    attention.main([*BRIEFLY, "--without-torch-compile", "--only", name])
    _, row = rows_of(capsys.readouterr().out)
    assert row[0] == name and row[2].endswith("x") and float(row[5]) > 0


def test_research(capsys):
    research.main([*BRIEFLY, "--without-torch-compile", "--only", "8 floats"])
    _, row = rows_of(capsys.readouterr().out)
    assert row[0] == "x + y, 8 floats, a module" and row[2].endswith("x") and float(row[5]) > 0


def test_quantised(capsys):
    """With torchao, or a message that it is needed."""
    try:
        quantised.main([*BRIEFLY, "--without-torch-compile", "--only", "weights, float32, 1 row"])
    except SystemExit as stopped:
        assert "pip install torchao" in str(stopped)
    else:
        _, row = rows_of(capsys.readouterr().out)
        assert row[0] == "weights, float32, 1 row" and row[2].endswith("x") and float(row[5]) > 0


def test_generate(monkeypatch, capsys):
    """With transformers, or a message that it is needed."""
    def small():
        import transformers

        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2))

    monkeypatch.setattr(generate, "MODELS", {"a small one": small})
    try:
        generate.main(["--without-torch-compile", "--tokens", "3", "--turns", "1"])
    except SystemExit as stopped:
        assert "pip install transformers" in str(stopped)
    else:
        _, grows, static = rows_of(capsys.readouterr().out)
        assert [grows[:2], static[:2]] == [["a small one", "as it is"], ["a small one", "static"]]
        assert grows[4].endswith("x") and static[4].endswith("x")


def test_steps_of_research_give_eagers_results():
    """On fewer columns, and of a smaller network."""
    system = [torch.rand(3, 2, 5, dtype=torch.float64) for _ in range(4)]
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 10))
    given = {research.mixed: system, research.similarity: [torch.rand(2, 3, 16, 16) for _ in range(2)],
             research.ClippedGradients(network): [torch.rand(4, 3, 4, 4), torch.tensor([1, 3, 9, 0])]}
    for step, args in given.items():
        torch.testing.assert_close(fxjit.compile(step)(*args), step(*args), rtol=1e-4, atol=1e-5)


def test_every_pattern_gives_eagers_results():
    for name, (module, args, _) in patterns.cases().items():
        if "32 channels, float32" in name:
            fxjit.reset()  # they share a module's code
            torch.testing.assert_close(fxjit.compile(module)(*args), module(*args), rtol=1e-4, atol=1e-4)


def test_capture(capsys, monkeypatch):
    """fxjit's processes; torch.compile's numbers are made up."""
    in_process = capture.in_process

    def ours(name, way, count=False):
        return in_process(name, way, count) if way == "fxjit" else {"seconds": 1.0}

    monkeypatch.setattr(capture, "in_process", ours)
    capture.main(["--only", "prog_trivial_add"])
    _, row = rows_of(capsys.readouterr().out)
    assert row[0] == "prog_trivial_add" and row[4].isdigit() and row[5].startswith("1 / "), row


def test_cpu(capsys, tmp_path):
    results = tmp_path / "results.json"
    what = ["--models", "prog_trivial_add:inference", "--sizes", "1000", "--json", str(results)]
    cpu.main([*BRIEFLY, "--without-torch-compile", *what])
    names = [row[0] for row in rows_of(capsys.readouterr().out)]
    assert "prog_trivial_add" in names and "gelu-like" in names and results.stat().st_size > 100


def test_real(capsys, tmp_path):
    """A process measures a row, which is kept, and the table has it and the means."""
    results = tmp_path / "results.json"
    what = ["--only", "DLRM", "--modes", "inference", "--threads", "1", "--ways", "eager,fxjit", "--turns", "2"]
    real.main([*what, "--json", str(results)])
    _, row, means = rows_of(capsys.readouterr().out)
    assert row[:3] == ["DLRM, 26 tables, 512", "inference", "1"] and means[0] == "geometric mean"
    assert row[5] == means[5] and row[5].endswith("x") and float(row[9]) >= 0.0
    (kept,) = json.loads(results.read_text()).values()
    assert set(kept["cpu"]) == set(kept["first"]) == {"eager", "fxjit"} and min(kept["cpu"].values()) > 0.0


def test_cpython(capsys):
    assert cpython.main(["test_bool", "--only", "*.test_bool*"]) == 0
    assert "(100.00%)" in capsys.readouterr().out


def test_models(capsys, monkeypatch):
    models.main(["--names"])
    assert capsys.readouterr().out.split() == list(models.PROGRAMS)
    monkeypatch.setattr(models, "PROGRAMS", {"prog_trivial_add": models.PROGRAMS["prog_trivial_add"]})
    models.main(["--list"])
    _, row = rows_of(capsys.readouterr().out)
    assert row[:2] == ["prog_trivial_add", "1 / 0 / 1"]


def test_further_programs_have_their_rows(capsys):
    """No list has a program of another's name, and the page of sweeps has what came of each."""
    models.main(["--names", "--further"])
    names = capsys.readouterr().out.split()
    others = models.PROGRAMS | models.MORE | models.LIBRARIES | models.KNOWN | models.PACKAGES
    assert names and not others.keys() & set(names)
    page = (Path(__file__).parent.parent / "docs" / "models_sweeps.md").read_text()
    assert not [name for name in names if f"| {name} | " not in page]


def test_a_model_may_draw_its_weights_from_any_stream(monkeypatch):
    """Both of its copies, eager's and the compiled one, have the same."""
    def build():
        model = torch.nn.Linear(3, 2)
        model.bias.data = torch.tensor([random.random(), np.random.random()], dtype=torch.float32)
        return models.Program(model, lambda batch: {"input": torch.randn(batch, 3)}, (2, 3, 4), model)

    monkeypatch.setitem(models.MORE, "drawn", build)
    row = models.measure("drawn", models.Fxjit("eager"))
    assert (row.error, row.outputs, row.gradients) == ("", "as eager's", "as eager's"), row


def test_first_calls(capsys, monkeypatch):
    monkeypatch.setattr(first_call, "EAGER", 0.01)

    def printed_by(folder, arguments):  # in this process
        given = dict(zip(arguments[::2], arguments[1::2], strict=False))
        return first_call.measure(given["--here"], given["--way"], "--training" in arguments)

    monkeypatch.setattr(first_call, "_printed_by", printed_by)
    first_call.main(["--only", "prog_trivial_add", "--rounds", "1"])
    _, row = rows_of(capsys.readouterr().out)
    assert row[0] == "prog_trivial_add" and row[1] == row[3] and row[-1] == "-", row
    first_call.main(["--only", "prog_trivial_add", "--rounds", "1", "--training"])
    assert "prog_trivial_add has nothing to train" in capsys.readouterr().err
    fxjit.reset()


def test_what_a_second_process_finds(tmp_path):
    """A reset stands for the end of a process: what is measured in each is measured here in turn."""
    with fxjit.config.patch(cache_dir=str(tmp_path), cache_graphs=True):
        found = []
        for _ in range(2):
            found.append(first_call.measure_second("prog_trivial_add", True, False, time.process_time))
            fxjit.reset()
    assert [each["wrong"] for each in found] == ["", ""]
    assert found[0]["traced"] >= 1 and found[1]["traced"] == 0 and found[1]["first"] > 0


def test_scripts(capsys, tmp_path):
    scripts.main(["--without-torch-compile", "--only", "tiny", "--only", "nanoGPT train.py", "--sources", str(tmp_path)])
    header, tiny, missing = rows_of(capsys.readouterr().out)
    assert header[-1] == "fxjit: off by" and float(tiny[-1]) < 1e-5
    assert all(cell.endswith(" ms") for cell in tiny[1:3]), tiny
    assert missing[1] == f"its repository is not in {tmp_path}"


def test_a_script_that_fails_or_prints_other_numbers(tmp_path, monkeypatch):
    failing = tmp_path / "failing.py"
    failing.write_text("print('step 0 loss 1.0')\nraise SystemExit('no such thing')")
    monkeypatch.setattr(scripts, "FILES", tmp_path)
    found = scripts.run(scripts.Script("failing.py"), "torch.compile", tmp_path, tmp_path)
    assert found.numbers == [1.0] and found.error == "exit status 1: no such thing"
    eager, more, other = (scripts.Run([1, 2, 3], numbers) for numbers in ([1.0, 4.0], [1.0, 4.0, 4.0], [1.0, 4.5]))
    assert more.off(eager) == "3 steps, not 2" and other.off(eager) == "1.2e-01"


def test_models_that_are_not_chosen(capsys):
    with pytest.raises(SystemExit):
        models.main([])
    assert "say --list, --more, --libraries" in capsys.readouterr().err


def test_distributed(capsys):
    distributed.main(["--only", "2 blocks", "--networks", "2", "--steps", "1", "--without-torch-compile"])
    _, *rows = rows_of(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [["2 blocks of 32", each.name] for each in distributed.NETWORKS[:2]]
    assert all(row[4].endswith("x") for row in rows)


def test_distributed_strategies_and_overlap(capsys):
    distributed.main(["--strategies", "--only", "ResNet", "--networks", "2", "--steps", "1", "--without-torch-compile"])
    _, *rows = rows_of(capsys.readouterr().out)
    assert [row[1:4] for row in rows] == [
        ["ResNet", "DDP", "none"], ["ResNet", "DDP", "1 ms, 200 MB/s"], ["ResNet", "FSDP2", "none"],
        ["ResNet", "tensor parallel", "none"]]
    assert all(float(row[8]) < 1e-2 for row in rows)  # losses
    distributed.main(["--overlap", "--only", "ResNet", "--networks", "2"])
    _, *rows = rows_of(capsys.readouterr().out)
    assert [row[2] for row in rows] == ["eager", "fxjit, optimize_ddp=False", "fxjit, optimize_ddp=True"]


def test_overlap_of_intervals():
    busy, computed = [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)], [(2.5, 5.5), (5.25, 8.0)]
    assert distributed_steps.union(busy) == [(0.0, 3.0), (5.0, 6.0)]
    assert distributed_steps.common(busy, computed) == 1.5
    assert distributed_steps.common(busy, []) == 0


def test_a_step_on_many_ranks_waits_for_what_the_network_cannot_send_beside_backward():
    link = step_model.Link("", latency=0.5, bandwidth=8.0)
    assert (link.all_reduce(8, 2), link.all_reduce(8, 4)) == (2.0, 3.5)
    step = step_model.Step(((1.0, 8), (2.0, 8), (10.0, 8)), 12.0)
    on_two = step_model.predicted(step, link, 2)  # busy from 1 to 5 and, after backward, from 10 to 12
    assert (on_two.seconds, on_two.beside_backward) == (14.0, 4 / 6)
    assert step_model.predicted(step, step_model.Link("", 0.0, 1e9), 1024).seconds == pytest.approx(12)


def test_step_model(capsys, tmp_path):
    picture = tmp_path / "steps.png"
    step_model.main(["--check", "2", "--steps", "1", "--only", "ResNet", "--without-torch-compile", "--picture", str(picture)])
    _, *rows = rows_of(capsys.readouterr().out)
    ways = [*step_model.ways(False)]
    assert [row[2] for row in rows[:3]] == ways and [row[0] for row in rows[3:]] == ["model", *["ResNet"] * 6]
    assert picture.stat().st_size > 0


def test_a_roofline_counts_what_kernels_do_and_move():
    x, y = torch.randn(64, 256), torch.randn(64, 256)
    kernels = roofline.Kernels()
    with kernels.noted(), fxjit.config.patch(cache_graphs=False):
        fxjit.compile(lambda x, y: x * y + x.sum(1, keepdim=True))(x, y)
    ((done, moved),) = kernels.by_name().values()
    assert done == 3 * x.numel()  # a product and two sums of each
    assert 3 * x.nbytes <= moved <= 3 * x.nbytes + 64 * 4  # the rows' sums, where they are memory


def test_a_roofline_of_what_was_measured(tmp_path):
    seconds = {"product": 0.01, "copy": 0.01, "eager": 0.03, "fxjit": 0.02}
    point = {"operations": 1e6, "bytes": 1e6, "seconds": 0.005}
    results = {"one | inference": {"medians": seconds, "mean": 0.02, "operations": roofline.SQUARE**3 * 3.0, "bytes": 1e6,
                                   "gemm": 0.012, "kernels": [point]}, "two | training": {"problem": "out of memory"}}
    assert roofline.least_seconds(results["one | inference"]) == pytest.approx(0.015)
    rows = rows_of(roofline.table(results))
    assert rows[1] == ["one", "inference", "3.2", "15.0", "30.0", "20.0", "2.00x", "1.50x", "60%", "25%", "15%"]
    assert rows[2][:3] == ["two", "training", "out of memory"]
    pytest.importorskip("matplotlib")
    roofline.draw(results, tmp_path / "roof.png")
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")


def test_rows_are_kept_and_not_measured_again(tmp_path):
    path = str(tmp_path / "rows.json")
    workers.KeptRows(path).add("one", lambda: {"seconds": 1.0})
    again = workers.KeptRows(path)
    again.add("one", lambda: pytest.fail("it is there"))
    again.add("two", lambda: {"problem": "none"})
    assert workers.KeptRows(path).rows == {"one": {"seconds": 1.0}, "two": {"problem": "none"}}


def test_a_row_whose_process_fails_says_why():
    assert workers.measured("benchmarks.roofline", {"name": "no such model"}, 60)["problem"].startswith("TypeError")
    assert workers.measured("benchmarks.roofline", {}, 0.01) == {"problem": "took more than 0.01 s"}


def test_model_of_cost(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(model_of_cost, "SIZES", (256, 1024))
    monkeypatch.setattr(model_of_cost, "ELEMENTS", (256,))
    monkeypatch.setattr(model_of_cost.probe, "TURNS", 1)
    with fxjit.config.patch(cache_dir=str(tmp_path), small_graphs_as_captured=True):
        for options in ([], ["--reference", "--only", "costs"]):
            model_of_cost.main([*BRIEFLY, *options])
    rows = rows_of(capsys.readouterr().out)
    kinds = {row[0] for row in rows if len(row) == len(model_of_cost.DECISIONS)}
    assert {"a kernel or ATen", "fused or separate", "compiled or as captured"} < kinds
    assert sum(row[0].startswith("LAUNCH") for row in rows) == 2
    assert all(float(row[3]) > 0 for row in rows if len(row) == len(model_of_cost.KERNELS) and row[0] != "kernel")
