"""A compiled graph as the rest of fxjit calls it: an executor (a program, or Python text) over a library on its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.fx

from fxjit.counters import counters, timed

from .runtime import cc
from .runtime.encoded import Encoded

if TYPE_CHECKING:
    from .codegen.wrapper import Texts

Boxed = Callable[[list[Any]], Any]


class CompiledGraph:
    """Takes the list of inputs (and empties it), returns the list of outputs."""

    _boxed_call = True

    def __init__(
        self, gm: torch.fx.GraphModule | None, compilation: cc.Compilation | cc.Kept | None,
        executor: Encoded | Texts | None, name: str, *, overhead: float = 0.0,
    ) -> None:
        self.gm = gm
        self.compilation, self.executor, self.name = compilation, executor, name
        self.run: Boxed | None = None
        #: Over plain arguments, with a tuple of results: of a program.
        self.program: Any = None
        self.first: Boxed | None = None
        self.over_arguments: list[Any] = []
        #: What the disk keeps of it (stored.py): the program, and which library has its kernels.
        self.encoded = executor if isinstance(executor, Encoded) else None
        self.library_key = None if compilation is None else compilation.key
        #: Microseconds that running it costs beside its work (choose/profitability.py); of a graph that was just compiled.
        self.overhead = overhead
        if executor is None:
            assert gm is not None, "only a graph runs without an executor"
            self.run = torch.fx.Interpreter(gm).boxed_run

    def finish(self) -> CompiledGraph:
        """Waits for the compiler; raises CppCompileError if it failed."""
        if self.executor is None:
            return self
        executor, self.executor = self.executor, None
        with timed("native.cpp", self.name):
            library = None if self.compilation is None else self.compilation.library()
            self.compilation = None
            if isinstance(executor, Encoded):
                self.program = executor.build(library)
                self.run = self.program.boxed
                self.gm = None
            else:
                self.run_later, self.first, *self.over_arguments = executor.build(library)
        return self

    def unboxed(self, num_inputs: int) -> Callable[..., tuple[Any, ...]]:
        """The same over plain arguments: a program, or one function with nothing around the graph after its first call."""
        self.finish()
        if self.program is not None:
            return self.program  # type: ignore[no-any-return]  # made by C code
        if self.first is None:
            return lambda *args: tuple(self(list(args)))
        quick, first = self.over_arguments
        odd: list[str] = first.__globals__["_odd"]

        def settle(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
            chosen = first if odd else quick
            counters["native"]["unexpected strides"] += len(odd)
            function.__code__ = chosen.__code__
            self.gm = None
            return outputs

        # A function over the same globals, whose code is replaced by the code of `quick` once the first call was seen.
        names = ", ".join(f"a{index}" for index in range(num_inputs))
        scope = first.__globals__
        scope.update(_first=first, _settle=settle)
        exec(f"def run({names}):\n    return _settle(_first({names}))\n", scope)
        function: Any = scope["run"]
        return function  # type: ignore[no-any-return]  # exec made it

    def __call__(self, args: list[Any]) -> Any:
        if self.run is None:
            self.finish()
        if self.run is not None:
            return self.run(args)
        assert self.first is not None
        outputs = self.first(args)
        odd = self.first.__globals__["_odd"]  # type: ignore[attr-defined]  # a function that exec made
        # An operator that does not keep its promise of strides is put right at each call.
        self.run = self.first if odd else self.run_later
        if odd:
            counters["native"]["unexpected strides"] += len(odd)
        self.gm = None
        return outputs
