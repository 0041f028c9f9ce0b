"""A compiled graph as its callers see it: a program for the executor, over a library of kernels that may still be compiling.

Where no library comes, the graph runs unfused: ATen for every operator, with a warning that says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch.fx

from fxjit import _C, config, progress
from fxjit.backends.graph.interpreter import boxed
from fxjit.counters import counters, timed
from fxjit.errors import CppCompileError, TritonCompileError

from .executor.program import EncodedProgram
from .runtime import cc

Boxed = Callable[[list[Any]], Any]


class CompiledGraph:
    """Takes the list of inputs (and empties it), returns the list of outputs. Without a program the graph runs node by node."""

    _boxed_call = True

    def __init__(
        self, gm: torch.fx.GraphModule | None, compilation: cc.Compilation | cc.Kept | None, encoded: EncodedProgram | None,
        name: str, *, overhead: float = 0.0,
    ) -> None:
        self.gm = gm
        self.compilation, self.name = compilation, name
        self.run: Boxed | None = None
        #: Over plain arguments, with a tuple of results.
        self.program: Any = None
        #: What the disk keeps of it: the program, and which library has its kernels.
        self.encoded = encoded
        self.library_key = None if compilation is None else compilation.key
        #: Microseconds that running it costs besides its work (choose/profitability.py); of a graph that was just compiled.
        self.overhead = overhead
        if encoded is None:
            self.run_unfused()

    def run_unfused(self) -> None:
        """From now on it is the graph, operator by operator."""
        assert self.gm is not None, "only a graph runs without a program"
        self.encoded = self.library_key = None
        self.run = boxed(self.gm)

    def finish(self) -> CompiledGraph:
        """Waits for the compiler; where that failed the graph runs unfused."""
        if self.run is None:
            try:
                self.build()
            except (CppCompileError, TritonCompileError) as error:
                if self.gm is None:
                    raise
                warn_unfused(error)
                self.run_unfused()
        return self

    def build(self) -> None:
        """Makes the program over the library; raises CppCompileError if there is none, and TritonCompileError
        where one for a GPU was refused."""
        assert self.encoded is not None
        _C.want_large_pages(config.large_pages)
        with progress.compiling(self.name), timed("native.cpp", self.name):
            progress.kernels(len(self.encoded.entries) + len(self.encoded.cells))
            progress.stage("their compiler")
            library = None if self.compilation is None else self.compilation.library()
            progress.kernels_done(len(self.encoded.entries))
            self.program = self.encoded.build(library)
        self.run = self.program.boxed
        self.gm = self.compilation = None

    def unboxed(self) -> Callable[..., tuple[Any, ...]]:
        """The same over plain arguments."""
        self.finish()
        return self.program if self.program is not None else lambda *args: tuple(self(list(args)))

    def __call__(self, args: list[Any]) -> Any:
        if self.run is None:
            self.finish()
        assert self.run is not None
        return self.run(args)


def unfused(gm: torch.fx.GraphModule, name: str, error: CppCompileError) -> CompiledGraph:
    """The graph where nothing could even be given to a compiler."""
    warn_unfused(error)
    return CompiledGraph(gm, None, None, name)


_warned: set[str] = set()


def warn_unfused(error: CppCompileError | TritonCompileError) -> None:
    """Warns once of a compiler that is missing or failed; with `config.cpp.require`, raises the error."""
    if config.cpp.require:
        raise error
    counters["native"]["without compiler"] += 1
    cause = str(error).partition("\n")[0].partition(":")[0]  # what follows is about one of the graphs
    if cause not in _warned:
        _warned.add(cause)
        warnings.warn(f"{error}\nfxjit calls ATen for every operator instead, which is slower.", RuntimeWarning, stacklevel=2)
