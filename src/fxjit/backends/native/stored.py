"""The native backend's programs, as the store keeps them, and which graphs it keeps."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from fxjit import config, logs, tensor_shim
from fxjit.backends.store import serialisation
from fxjit.backends.store.fingerprints import NoText
from fxjit.backends.store.graphs import StoredGraph, entry_of
from fxjit.backends.store.operators import TORCHS, operator_text
from fxjit.backends.store.serialisation import NotSerialisable
from fxjit.backends.tiers import deferrable
from fxjit.counters import counters
from fxjit.errors import CppCompileError

from .choose import probe
from .compiled import CompiledGraph
from .decompositions import define_own_operators
from .executor.aten_calls import FunctionName
from .executor.inner_graphs import InnerGraph, Place, described
from .executor.program import EncodedProgram
from .folded import CONSTANTS, FoldedGraph, FoldedProgram
from .runtime import cc

log = logs.artifact("cache")
#: Logs that show stages which a graph from the disk does not go through.
STAGES = ("aot_graphs", "fusion", "output_code")
serialisation.register(EncodedProgram, FoldedProgram, FunctionName, InnerGraph, Place)


def store_entry(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> StoredGraph | None:
    """The store's entry for a graph, or one for the pipe of a helper process; None for a graph that is not kept, or whose
    compile is to be observed."""
    pipeline = sys.modules.get("fxjit.backends.native.pipeline")
    observed = any(map(logs.enabled, STAGES)) or getattr(pipeline, "verifier", None) or config.debug or config.debug_dir
    on_disk = config.disk_cache and config.cache_graphs
    wanted = (on_disk or deferrable() is not None) and not config.repro_after and not observed
    if not wanted or cc.compiler() is None or not tensor_shim.ensure():
        return None
    try:
        return entry_of(gm, example_inputs, NativePrograms(), "\0".join([cc.identity(), probe.text()]), on_disk)
    except (NoText, CppCompileError) as why:
        log.info("a graph is not kept on the disk: %s", why)
        counters["cache"]["graph not kept"] += 1
        return None


class NativePrograms:
    """A program as plain values: functions are kept by name (executor/aten_calls.py), its library by key."""

    def pack(self, graph: Callable[..., Any]) -> tuple[Any, str | None]:
        if isinstance(graph, FoldedGraph):
            programs = FoldedProgram(_described(graph.graph), _described(graph.constants), graph.inputs)
            return serialisation.pack(programs), graph.graph.library_key
        if not isinstance(graph, CompiledGraph):
            raise NotSerialisable("a graph that is no program")
        return serialisation.pack(_described(graph)), graph.library_key

    def build(self, name: str, packed: Any, library: str | None) -> CompiledGraph | FoldedGraph:
        program: EncodedProgram | FoldedProgram = serialisation.unpack(packed)
        if isinstance(program, FoldedProgram):
            constants = _built(CONSTANTS, program.constants, None)
            return FoldedGraph(_built(name, program.graph, library), constants, program.inputs)
        return _built(name, program, library)

    def operators(self, graphs: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
        """Of other packages; the captured graph need not have named them."""
        called = {each for graph in graphs.values() for program in _programs_of(graph) for each in program.objects
                  if isinstance(each, FunctionName) and each.kind == "operator"}
        return {each.name: operator_text(each.find()) for each in called
                if each.name.partition(".")[0] not in (*TORCHS, "fxjit")}

    def definition(self, operator: str) -> str:
        return operator_text(FunctionName("operator", operator).find())


def _programs_of(graph: Callable[..., Any]) -> list[EncodedProgram]:
    if isinstance(graph, FoldedGraph):
        return [*_programs_of(graph.graph), *_programs_of(graph.constants)]
    return [graph.encoded] if isinstance(graph, CompiledGraph) and graph.encoded is not None else []


def _described(graph: CompiledGraph) -> EncodedProgram:
    if graph.encoded is None:
        raise NotSerialisable("a graph that is no program")
    if graph.encoded.cells:
        raise NotSerialisable("kernels for a GPU")
    return dataclasses.replace(graph.encoded, objects=tuple(map(described, graph.encoded.objects)))


def _built(name: str, program: EncodedProgram, library: str | None) -> CompiledGraph:
    if any(isinstance(each, FunctionName) and each.name.startswith("fxjit.") for each in program.objects):
        define_own_operators()
    return CompiledGraph(None, None if library is None else cc.kept(library), program, name).finish()
