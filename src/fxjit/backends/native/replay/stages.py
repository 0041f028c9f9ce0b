"""A recorded graph through the stages of the native backend again, each as text: what `python -m fxjit replay` prints.

The pipeline itself runs; the texts are those that its log and the debug folder have, so there is no second list of stages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.fx

from fxjit import config, debug

from .. import pipeline
from ..lower.table import Lowering
from ..printer import program_text
from ..schedule.fuse import Step
from .record import Recorded

#: In order: the graph as AOTAutograd gave it, after the graph passes, lowered to loops, fused into kernels, C++, program.
STAGES = ("aten", "passes", "loops", "schedule", "cpp", "program")


@dataclass(slots=True)
class Replayed:
    """The results of each stage, as text, and the data that `bisect` continues with."""

    texts: dict[str, str] = field(default_factory=dict)
    compiled: Any = None
    low: Lowering | None = None
    steps: list[Step] = field(default_factory=list)


def replay(recorded: Recorded) -> Replayed:
    """Compiles the graph anew, with a look at what each stage makes."""
    found, gm = Replayed(), recorded.gm
    found.texts["aten"] = graph_text(gm)

    def watch(stage: str, low: Lowering, what: Any) -> None:
        if stage == "lower":
            found.texts["passes"] = graph_text(gm)
            found.texts["loops"] = program_text(what)
        else:
            found.low, found.steps = low, list(what)

    with _stages_given_to(watch), tempfile.TemporaryDirectory() as place, config.patch(cache_graphs=False):
        with debug.writing_to(Path(place)):
            found.compiled = pipeline.compile_graph(gm, recorded.example_inputs(), recorded.name)
        found.texts["schedule"] = _text(Path(place) / "fusion.txt")
        output = _text(Path(place) / "output_code.txt")
    head, separator, program = output.partition("def call(")
    found.texts["cpp"], found.texts["program"] = head, separator + program
    return found


def graph_text(gm: torch.fx.GraphModule) -> str:
    """One line a node: name, shape and type, the operator and its arguments."""
    return "".join(f"{line}\n" for line in map(_node_text, gm.graph.nodes))


def _node_text(node: torch.fx.Node) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    shape = f": {str(value.dtype).removeprefix('torch.')}{[*value.shape]}" if isinstance(value, torch.Tensor) else ""
    if node.op == "placeholder":
        return f"{node.name}{shape} = input"
    if node.op == "output":
        return f"return {node.args[0]}"
    arguments = [*map(str, node.args), *(f"{key}={value}" for key, value in node.kwargs.items())]
    return f"{node.name}{shape} = {_target_text(node.target)}({', '.join(arguments)})"


def _target_text(target: Any) -> str:
    """An operator, method or attribute by its name, a Python function by its module's and its own."""
    if isinstance(target, (str, torch._ops.OpOverload)):
        return str(target)
    return f"{getattr(target, '__module__', None) or 'builtins'}.{getattr(target, '__name__', target)}"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


@contextmanager
def _stages_given_to(watch: Any) -> Iterator[None]:
    before = pipeline.verifier

    def both(*stage: Any) -> None:
        if before is not None:
            before(*stage)
        watch(*stage)

    pipeline.verifier = both
    try:
        yield
    finally:
        pipeline.verifier = before
