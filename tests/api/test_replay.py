"""`python -m fxjit replay` and `bisect`: a debug folder's graphs through each stage again, and the kernel, and statement, that
differs from eager."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fxjit
from fxjit.__main__ import main
from fxjit.backends.native import ops, pipeline
from fxjit.backends.native.replay.record import graph_record, read_record
from fxjit.replay import ALL_STAGES


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., Path]:
    """Compiles and runs a function, and gives the debug folder of its compile."""

    def make(fn: Callable[..., Any], *args: Any, **options: Any) -> Path:
        fxjit.reset()
        with fxjit.config.patch(debug_dir=str(tmp_path / "debug")):
            result = fxjit.compile(fn, **options)(*args)
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.sum().backward()
        (folder,) = (tmp_path / "debug").iterdir()
        return folder

    return make


def rows(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Kernels before and after a product."""
    product = (x.cos() * y) @ y
    return torch.softmax(product, -1), product.sigmoid().sum(0), product.abs().amax(0)


def two(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, size), torch.randn(size, size)


# -- replay --------------------------------------------------------------------------------------------------------


def test_every_stage_again(folder_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(rows, *two())
    assert main(["replay", str(folder)]) == 0
    said = capsys.readouterr().out
    heads = [line.strip("= ") for line in said.splitlines() if line.startswith("====")]
    assert heads == ["graph: captured", *(f"inference: {stage}" for stage in ALL_STAGES[1:])]
    assert "torch.softmax" in said and "aten.mm.default" in said and "kernel over" in said
    assert 'extern "C" int k0' in said and "def call(" in said


def test_the_stages_are_those_that_the_compile_had(folder_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(rows, *two())
    assert main(["replay", str(folder), "--stage", "schedule"]) == 0
    schedule = capsys.readouterr().out.partition("\n")[2]
    assert schedule.strip() == (folder / "fusion.txt").read_text().strip()
    assert main(["replay", str(folder), "--from", "cpp"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line for line in output if line and not line.startswith("====")] == [
        line for line in (folder / "output_code.txt").read_text().splitlines() if line]


def test_stages_as_files(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU())
    folder = folder_of(model, torch.randn(3, 4))
    assert main(["replay", str(folder), "--from", "loops", "--out", str(tmp_path / "out")]) == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        f"{name}_{stage}.txt" for name in ("forward", "backward") for stage in ("loops", "schedule", "cpp", "program")}


def test_sizes_that_vary_are_those_of_the_compile(folder_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(lambda x: x.sum(0) / x.shape[0], torch.randn(7, 3), dynamic=True)
    assert main(["replay", str(folder), "--stage", "loops"]) == 0
    assert "over [7]" in capsys.readouterr().out


@pytest.mark.parametrize("value", [
    2, 2.5, float("inf"), -float("inf"), 1j, None, "mean", [1, [2, None]], (1, (2, "x")), slice(1, None, 2), torch.float16,
    torch.device("cpu"), torch.strided, torch.channels_last, True,
])
def test_arguments_are_read_back_as_they_were(value: Any) -> None:
    from fxjit.backends.native.replay.record import _plain, _value

    assert repr(_value(json.loads(json.dumps(_plain(value))), {})) == repr(value)


def test_constants_are_kept() -> None:
    graph, root = torch.fx.Graph(), torch.nn.Module()
    root.register_buffer("table", torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16))
    root.register_buffer("turn", torch.tensor([1j, 2.0 - 1j]))
    graph.output((graph.get_attr("table"), graph.get_attr("turn")))
    gm = torch.fx.GraphModule(root, graph)
    for node in gm.graph.nodes:
        node.meta["val"] = getattr(root, node.target) if node.op == "get_attr" else None
    table, turn = read_record(graph_record(gm, "inference")).gm()
    assert torch.equal(table, root.table) and table.dtype is torch.bfloat16 and torch.equal(turn, root.turn)


# -- bisect --------------------------------------------------------------------------------------------------------


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.reshape(-1) + 1

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    return {
        "rows": (rows, two()),
        "training": (model, (torch.randn(2, 3, 8, 8),)),
        "writes": (writes, (torch.randn(3, 4).t(),)),
        "indices": (torch.nn.functional.embedding, (torch.tensor([1, 0, 2]), torch.randn(5, 4))),
        "random": (lambda x: torch.nn.functional.dropout(x, 0.5) * 2 + x.exp(), (torch.randn(64),)),
        "half": (lambda x: torch.softmax(x * 2, -1).cumsum(0), (torch.randn(6, 8).bfloat16(),)),
    }


@pytest.mark.parametrize("name", programs())
def test_nothing_differs_where_nothing_is_wrong(name: str, folder_of: Callable[..., Path], capsys: Any) -> None:
    fn, args = programs()[name]
    assert main(["bisect", str(folder_of(fn, *args))]) == 0
    said = capsys.readouterr().out
    assert " 0 differ" in said and "0 kernels" not in said and "not compared" not in said


@pytest.mark.parametrize(("op", "wrong", "node", "output"), [
    ("cos", "(0.5f * {0})", "cos", 0), ("sigmoid", "(fx_sigmoid({0}) + 1)", "sigmoid", 1),
])
def test_a_fault_in_a_kernel_is_found(
    op: str, wrong: str, node: str, output: int, folder_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The C++ text of one scalar operation is another: the kernel and the statement that have it are named."""
    folder = folder_of(rows, *two())
    monkeypatch.setitem(ops.SCALARS, op, dataclasses.replace(ops.SCALARS[op], cpp=wrong))
    assert main(["bisect", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "1 differ" in said and "differs from its loops" in said and f"the compiled graph: output {output} differs" in said
    (statement,) = [line for line in said.splitlines() if line.strip().startswith("statement:")]
    assert f"{op}(" in statement and f"({node}" in said


def test_a_fault_in_the_loops_is_found(
    folder_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A lowering that says something else than the operator: its kernel does what the loops say."""
    folder = folder_of(rows, *two())
    monkeypatch.setitem(ops.SCALARS, "cos", dataclasses.replace(ops.SCALARS["sin"], name="cos"))
    assert main(["bisect", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "has loops that differ from eager" in said and "cos" in said


def test_a_fault_in_the_program_is_told_from_one_in_a_kernel(
    folder_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = folder_of(rows, *two())
    compile_graph = pipeline.compile_graph

    def swapped(*args: Any, **options: Any) -> Any:
        compiled = compile_graph(*args, **options)
        return lambda inputs: [result + 1 for result in compiled(inputs)]

    monkeypatch.setattr(pipeline, "compile_graph", swapped)
    assert main(["bisect", str(folder)]) == 1
    said = capsys.readouterr().out
    assert " 0 differ" in said and "no kernel differs by itself" in said


# -- what cannot be replayed ---------------------------------------------------------------------------------------


def refused(arguments: list[str], capsys: Any) -> str:
    assert main(arguments) == 2
    return capsys.readouterr().err


def test_folders_that_have_nothing(folder_of: Callable[..., Path], tmp_path: Path, capsys: Any) -> None:
    assert "there is no folder" in refused(["replay", str(tmp_path / "none")], capsys)
    (tmp_path / "empty").mkdir()
    assert "has no aten_*.json" in refused(["bisect", str(tmp_path / "empty")], capsys)
    folder = folder_of(rows, *two())
    assert f"name one: {folder.name}" in refused(["replay", str(folder.parent)], capsys)


def test_records_that_are_damaged_or_of_another_torch(folder_of: Callable[..., Path], capsys: Any) -> None:
    folder = folder_of(rows, *two())
    file = folder / "aten_inference.json"
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    assert "this is no record of a graph" in refused(["replay", str(folder)], capsys)
    file.write_text(json.dumps(json.loads(whole) | {"torch": "2.9.0"}))
    assert "was recorded with torch 2.9.0" in refused(["replay", str(folder)], capsys)
    file.write_text(whole.replace("aten.mm.default", "aten.no_such.default"))
    assert "is damaged" in refused(["bisect", str(folder)], capsys)
    file.write_text(whole.replace("aten.mm.default", "os:system"))
    assert "os:system is no operator" in refused(["bisect", str(folder)], capsys)


def test_a_stage_that_does_not_exist(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["replay", str(tmp_path), "--stage", "tokens"])
    assert "there is no stage tokens" in capsys.readouterr().err


def test_the_help_names_both(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "replay" in said and "bisect" in said
