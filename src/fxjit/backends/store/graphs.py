"""Captured graphs on the disk: what each was compiled to (its call plan, its programs, which library has their kernels), or
the rule by which it runs as captured, so that the next process that captures it does not trace, lower and schedule it again.

A graph is found by a hash of its text (fingerprints.py), the settings, torch, fxjit's own code, and what the backend adds. Its
entry is JSON of plain values (serialisation.py), so that nothing from the disk is run but the kernels' library, an entry of its
own. What cannot be said so is compiled each time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.fx

from fxjit import _C, config, logs, process_state
from fxjit.backends.aot.backend import CompileResult
from fxjit.counters import counters, timed

from ..tiers import Refused
from .artifacts import FACTS, LIBRARY, get_facts, lookup, open_cache, put_facts, unshared
from .fingerprints import assumptions, fingerprint, shape_env_of
from .operators import Unknown
from .serialisation import NotSerialisable, pack, unpack

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

log = logs.artifact("cache")
#: Numbers that say what a graph was compiled to: they are counted for one from the disk, too.
COUNTED = ("native",)


class ProgramFormat(Protocol):
    """How a backend says its compiled graphs in plain values."""

    def pack(self, graph: Callable[..., Any]) -> tuple[Any, str | None]:
        """The graph, and the key of the library that has its kernels. Raises NotSerialisable."""

    def build(self, name: str, packed: Any, library: str | None) -> Callable[[list[Any]], Any]: ...

    def operators(self, graphs: Mapping[str, Callable[..., Any]]) -> dict[str, str]:
        """The operators of other packages that the graphs call, with their definitions. Raises Unknown."""

    def definition(self, operator: str) -> str:
        """The definition of an operator as it is now. Raises Unknown."""


class StoredGraph:
    """The entry of one captured graph: it is found, or kept after a compile under `recording`."""

    def __init__(self, key: str, env: ShapeEnv | None, programs: ProgramFormat, on_disk: bool = True) -> None:
        self.key, self.env, self.programs = key, env, programs
        #: Whether it is looked up and kept there, or only handed from process to process.
        self.on_disk = on_disk
        self.assumes_more = False
        #: Whether the entry is on the disk: it was found there, or written.
        self.is_kept = False
        self.asked: list[str] = []
        self.counted: list[tuple[str, str, int]] = []

    def find(self) -> CompileResult | None:
        """The call plan and the compiled graphs, if they are there whole, or the rule by which the graph runs as captured."""
        if not self.on_disk:
            return None
        with timed("native.disk"):
            entry = get_facts(self.key)
            found = None if entry is None else self._read(entry)
        self.is_kept = found is not None
        counters["cache"]["graph hit" if found else "graph miss"] += 1
        log.info("%s %s", "graph hit" if found else "graph miss", self.key)
        return found

    def _read(self, entry: Any) -> CompileResult | None:
        try:
            if any(self.programs.definition(name) != text for name, text in entry["operators"].items()):
                raise ValueError("an operator is another one now")
            graphs = {name: self.programs.build(name, program, library) for name, (program, library) in entry["graphs"].items()}
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
        if not self.on_disk:
            return
        try:
            put_facts(self.key, self._facts(result))
            self.is_kept = True
        except (NotSerialisable, Unknown) as why:
            log.info("a graph is not kept on the disk: %s", why)

    def _facts(self, result: CompileResult) -> Any:
        """The result as plain values. Raises NotSerialisable, Unknown."""
        if self.assumes_more:
            raise NotSerialisable("code that assumes more of sizes that vary than the graph does")
        if result.call is not None:
            raise NotSerialisable("AOTAutograd's runtime wrappers, which have work to do")
        programs = {name: self.programs.pack(graph) for name, graph in result.graphs.items()}
        return {"plan": pack(result.plan), "rule": result.rule, "graphs": programs, "asked": self.asked,
                "counted": self.counted, "operators": self.programs.operators(result.graphs)}

    def message(self, result: CompileResult) -> bytes:
        """The result for another process to `receive`, with the libraries that are not on the disk. What has no plain form
        is described in words."""
        try:
            facts = self._facts(result)
        except (NotSerialisable, Unknown) as why:
            return json.dumps({"refused": str(why)}).encode()
        keys = [library for _, library in facts["graphs"].values() if library is not None]
        libraries = {key: pack(content) for key, content in unshared(keys)}
        return json.dumps({"facts": facts, "libraries": libraries, "kept": self.is_kept}).encode()

    def receive(self, message: bytes) -> CompileResult:
        """The result from a `message`. Raises Refused."""
        told = json.loads(message)
        if "refused" in told:
            raise Refused(told["refused"])
        for key, content in told["libraries"].items():
            open_cache().put(key, LIBRARY, unpack(content))
        found = self._read(told["facts"])
        if found is None:
            raise Refused("its kernels are gone from the disk")
        self.is_kept = told["kept"]
        return found


def entry_of(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], programs: ProgramFormat, backend: str,
             on_disk: bool) -> StoredGraph:
    """The entry of a graph; `backend` is all that its code depends on of the backend. Raises NoText."""
    depends = ("graph", torch.__version__, str(torch.version.git_version), sys.version, own_code(),
               repr((config.cache_key(), config.num_threads)), backend)
    text = "\0".join([fingerprint(gm, example_inputs), *depends])
    return StoredGraph(hashlib.sha256(text.encode()).hexdigest()[:40], shape_env_of(gm), programs, on_disk)


def entries_of_graph(key: str) -> dict[str, bytes]:
    """The entries that a stored graph consists of, by name: what was compiled, and the libraries. LookupError where one is
    gone."""
    facts = get_facts(key)
    if facts is None:
        raise LookupError(f"the compiled graph {key} is gone from the cache")
    found = {f"{key}{FACTS}": json.dumps(facts).encode()}
    for _, library in facts["graphs"].values():
        content = None if library is None else lookup(library, LIBRARY)
        if content is not None:
            found[f"{library}{LIBRARY}"] = content
        elif library is not None:
            raise LookupError(f"the library {library} is gone from the cache")
    return found


@functools.cache
def own_code() -> str:
    """A hash of the code that compiles graphs, that they call, and that runs them."""
    package = str(Path(__file__).parents[2])
    found = hashlib.sha256()
    for path in [*sorted(_sources(package)), str(_C.__file__)]:
        with open(path, "rb", buffering=0) as file:
            found.update(path.removeprefix(package).encode() + b"\0")
            found.update(file.readall())
    return found.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    """The Python files in it; each process reads them, and pathlib takes three times as long."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path
