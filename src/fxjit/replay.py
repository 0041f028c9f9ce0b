"""`python -m fxjit replay FOLDER` and `bisect FOLDER`: the graphs of a debug folder, or of a script that `repro_after` left,
through the native backend again."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import config
from .backends.native.replay import bisect as bisection
from .backends.native.replay.record import Recorded, read_record
from .backends.native.replay.stages import STAGES, replay
from .errors import AccuracyError, InvalidArgument

#: The stages that can be printed: the graph as the front end captured it, as the folder has it, and the backend's stages.
ALL_STAGES = ("captured", *STAGES)


def recorded_graphs(folder: Path) -> list[Recorded]:
    """The graphs of one compile; InvalidArgument where there is nothing to replay."""
    if not folder.is_dir():
        raise InvalidArgument(f"there is no folder {folder}; FXJIT_DEBUG=1 writes one for each compile, in fxjit_debug")
    files = sorted(folder.glob("aten_*.json"))
    if not files and (folder / "repro.py").is_file():
        return _graphs_of_script(folder / "repro.py")
    if not files:
        inside = sorted(each.parent.name for each in folder.glob("*/aten_*.json"))
        if inside:
            raise InvalidArgument(f"{folder} has folders of several compiles, name one: {', '.join(dict.fromkeys(inside))}")
        raise InvalidArgument(f"{folder} has no aten_*.json: the compile did not reach the native backend, was written by an "
                              "older fxjit, or came from the cache (FXJIT_CACHE_GRAPHS=0 compiles anew)")
    found = []
    for file in files:
        try:
            found.append(read_record(file.read_text(encoding="utf-8")))
        except InvalidArgument as error:
            raise InvalidArgument(f"{file}: {error}") from None
    return found


def _graphs_of_script(script: Path) -> list[Recorded]:
    """The ATen graphs that the native backend makes of what a script of `repro_after` compiles."""
    spec = importlib.util.spec_from_file_location("fxjit_repro", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if getattr(module, "BACKEND", None) not in ("native", "fxjit"):
        raise InvalidArgument(f"{script} is about the backend {getattr(module, 'BACKEND', None)!r}: only native has kernels")
    anew = {"cache_graphs": False, "small_graphs_as_captured": False, "repro_after": None}
    with tempfile.TemporaryDirectory(prefix="fxjit-") as made:
        with config.patch(anew, debug_dir=made), contextlib.suppress(AccuracyError):  # that it differs is known
            module.check()
        compiles = sorted({each.parent for each in Path(made).glob("*/aten_*.json")})
        return [each for compiled in compiles for each in recorded_graphs(compiled)]


def replay_main(folder: Path, stage: str | None, first: str | None, out: Path | None) -> int:
    """Prints what each stage gives, or writes a file a stage to `out`."""
    wanted = _wanted(stage, first)
    graphs = recorded_graphs(folder)
    if "captured" in wanted and (folder / "graph.py").is_file():
        _show("graph", "captured", (folder / "graph.py").read_text(encoding="utf-8"), out)
    for recorded in graphs:
        texts = replay(recorded).texts
        for each in wanted:
            if each in texts:
                _show(recorded.name, each, texts[each], out)
    return 0


def _wanted(stage: str | None, first: str | None) -> Sequence[str]:
    if stage is not None:
        return (stage,)
    return ALL_STAGES[ALL_STAGES.index(first) if first is not None else 0 :]


def _show(name: str, stage: str, text: str, out: Path | None) -> None:
    if out is None:
        print(f"==== {name}: {stage} ====\n{text}")
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}_{stage}.txt").write_text(text, encoding="utf-8")
    print(out / f"{name}_{stage}.txt")


def bisect_main(folder: Path, seed: int) -> int:
    """Says which kernels differ from eager; 1 if any does."""
    worst = 0
    for recorded in recorded_graphs(folder):
        found = bisection.bisect(recorded, seed)
        print(f"{recorded.name}: {found.kernels} kernels, {len(found.differences)} differ")
        for difference in found.differences:
            print(difference)
        for why in found.skipped:
            print(f"not compared: {why}")
        if found.outputs:
            print(f"the compiled graph: {found.outputs}")
            if not found.differences:
                print("no kernel differs by itself: the program that calls them does (python -m fxjit replay --stage program)")
        worst |= bool(found.differences or found.outputs)
    return int(worst)
