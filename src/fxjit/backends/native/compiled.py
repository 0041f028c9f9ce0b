"""A compiled graph as the rest of fxjit calls it: a program for the executor, over a library of kernels that is on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from fxjit.counters import timed

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
        #: Microseconds that running it costs beside its work (choose/profitability.py); of a graph that was just compiled.
        self.overhead = overhead
        if encoded is None:
            assert gm is not None, "only a graph runs without a program"
            self.run = torch.fx.Interpreter(gm).boxed_run

    def finish(self) -> CompiledGraph:
        """Waits for the compiler; raises CppCompileError if it failed."""
        if self.run is None:
            assert self.encoded is not None
            with timed("native.cpp", self.name):
                library = None if self.compilation is None else self.compilation.library()
                self.compilation = None
                self.program = self.encoded.build(library)
                self.run = self.program.boxed
                self.gm = None
        return self

    def unboxed(self) -> Callable[..., tuple[Any, ...]]:
        """The same over plain arguments."""
        self.finish()
        return self.program if self.program is not None else lambda *args: tuple(self(list(args)))

    def __call__(self, args: list[Any]) -> Any:
        if self.run is None:
            self.finish()
        assert self.run is not None
        return self.run(args)
