"""Compiled graphs on the disk: what a captured graph became (backends/plan.py, the programs, which library has their kernels),
so that the next process that captures the same graph does not trace, lower and schedule it again.

A graph is found by a hash of its text (backends/fingerprint.py), the settings, compiler, processor, torch and fxjit's
own code. Its entry is JSON of plain values (runtime/plain.py); functions are kept by name (executor/aten_calls.py), so that
nothing from the disk is run but the kernels' library, an entry of its own. What cannot be said so is compiled each time.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxjit import _C, config, logs, process_state, tensor_shim
from fxjit.backends.aot.backend import CompileResult
from fxjit.backends.fingerprint import NoText, assumptions, fingerprint, shape_env_of
from fxjit.backends.operators import TORCHS, Unknown, operator_text
from fxjit.counters import counters, timed
from fxjit.errors import CppCompileError

from .compiled import CompiledGraph
from .decompositions import define_own_operators
from .executor.aten_calls import FunctionName
from .executor.program import EncodedProgram
from .runtime import cc
from .runtime.cache import get_facts, put_facts
from .runtime.plain import NotPlain, pack, unpack

log = logs.artifact("cache")
#: Logs that show stages which a graph from the disk does not go through.
STAGES = ("aot_graphs", "fusion", "output_code")
#: Numbers that say what a graph was compiled to: they are counted for one from the disk, too.
COUNTED = ("native",)


class StoredGraph:
    """The entry of one captured graph: it is found, or kept after a compile under `recording`."""

    def __init__(self, key: str, env: ShapeEnv | None) -> None:
        self.key, self.env = key, env
        self.assumes_more = False
        self.asked: list[str] = []
        self.counted: list[tuple[str, str, int]] = []

    def find(self) -> CompileResult | None:
        """The call plan and the compiled graphs, if they are there whole, or the rule by which the graph runs as captured."""
        with timed("native.disk"):
            entry = get_facts(self.key)
            found = None if entry is None else self._read(entry)
        counters["cache"]["graph hit" if found else "graph miss"] += 1
        log.info("%s %s", "graph hit" if found else "graph miss", self.key)
        return found

    def _read(self, entry: Any) -> CompileResult | None:
        try:
            if any(operator_text(FunctionName("operator", name).find()) != text for name, text in entry["operators"].items()):
                raise ValueError("an operator is another one now")
            graphs = {name: _build(name, unpack(program), library) for name, (program, library) in entry["graphs"].items()}
            found = CompileResult(graphs, unpack(entry["plan"]), rule=entry["rule"])
            asked, counted = list(entry["asked"]), [(group, name, int(number)) for group, name, number in entry["counted"]]
        except Exception as problem:  # its library was removed, perhaps; whatever the entry says, the graph can be made again
            log.info("the graph %s is made again: %s", self.key, problem)
            return None
        for name in asked:
            process_state.query(name)
        for group, name, number in counted:
            counters[group][name] += number
        return found

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the compile of a graph that was not found."""
        before = {group: Counter(counters[group]) for group in COUNTED}
        assumed = assumptions(self.env)
        with process_state.queried() as asked:
            yield
        self.assumes_more = assumptions(self.env) != assumed
        for name in asked:
            process_state.query(name)
        self.asked = sorted(asked)
        self.counted = [(group, name, number - before[group][name]) for group in COUNTED
                        for name, number in counters[group].items() if number > before[group][name]]

    def keep(self, result: CompileResult) -> None:
        """Writes the entry; does nothing where it cannot be said in plain values, or holds only for some of the sizes that
        the graph was captured for."""
        if self.assumes_more:
            log.info("a graph is not kept on the disk: its code assumes more of sizes that vary than the graph does")
            return
        try:
            programs = {name: _program_of(graph) for name, graph in result.graphs.items()}
            entry = {"plan": pack(result.plan), "rule": result.rule, "graphs": programs, "asked": self.asked,
                     "counted": self.counted, "operators": _operators_of(result.graphs)}
        except (NotPlain, Unknown) as why:
            log.info("a graph is not kept on the disk: %s", why)
            return
        put_facts(self.key, entry)


def store_entry(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> StoredGraph | None:
    """The place of a graph on the disk; None for one that is not kept, or where somebody wants to see it being compiled."""
    pipeline = sys.modules.get("fxjit.backends.native.pipeline")
    watched = any(map(logs.enabled, STAGES)) or getattr(pipeline, "verifier", None) or config.debug or config.debug_dir
    wanted = config.disk_cache and config.cache_graphs and not config.repro_after and not watched
    if not wanted or cc.compiler() is None or not tensor_shim.ensure():
        return None
    try:
        text = "\0".join([fingerprint(gm, example_inputs), *_surroundings()])
    except (NoText, CppCompileError) as why:
        log.info("a graph is not kept on the disk: %s", why)
        counters["cache"]["graph not kept"] += 1
        return None
    return StoredGraph(hashlib.sha256(text.encode()).hexdigest()[:40], shape_env_of(gm))


def _surroundings() -> Iterator[str]:
    """All that a graph's code depends on beside its text."""
    yield from ("graph", torch.__version__, str(torch.version.git_version), sys.version, _own_code())
    yield repr((config.cache_key(), config.num_threads))
    yield cc.identity()


@functools.cache
def _own_code() -> str:
    """A hash of the code that compiles graphs, that they call, and that runs them."""
    package = Path(__file__).parents[2]
    found = hashlib.sha256()
    for path in [*sorted(package.rglob("*.py")), Path(str(_C.__file__))]:
        found.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _program_of(graph: Callable[..., Any]) -> tuple[Any, str | None]:
    if not isinstance(graph, CompiledGraph) or graph.encoded is None:
        raise NotPlain("a graph that is no program")
    if graph.encoded.cells:
        raise NotPlain("kernels for a GPU")
    return pack(graph.encoded), graph.library_key


def _operators_of(graphs: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
    """The operators of other packages that the programs call, which the captured graph need not have named, with their
    definitions. Raises Unknown."""
    callees = {each for graph in graphs.values() if isinstance(graph, CompiledGraph) and graph.encoded is not None
               for each in graph.encoded.objects if isinstance(each, FunctionName) and each.kind == "operator"}
    return {each.name: operator_text(each.find()) for each in callees
            if each.name.partition(".")[0] not in (*TORCHS, "fxjit")}


def _build(name: str, program: EncodedProgram, library: str | None) -> CompiledGraph:
    if any(isinstance(each, FunctionName) and each.name.startswith("fxjit.") for each in program.objects):
        define_own_operators()
    return CompiledGraph(None, None if library is None else cc.kept(library), program, name).finish()
