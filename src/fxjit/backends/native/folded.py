"""A compiled graph some of whose inputs are calculated of module state alone: once, and again when that has changed.

Of each state the results are kept with it: an entry is found by the first tensor that it was calculated of, and holds for the
addresses and versions that the tensors had. It keeps their memory, so that no other tensor gets the same address meanwhile,
until the first of them ends. A write that counts no version is not noticed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from fxjit import _C
from fxjit.counters import counters

from .compiled import CompiledGraph
from .executor.program import EncodedProgram

#: The name of a graph of what depends on module state alone.
CONSTANTS: Final = "constants"


@dataclass(frozen=True, slots=True)
class FoldedProgram:
    """What the disk keeps of it: both programs, of which only the first has kernels."""

    graph: EncodedProgram
    constants: EncodedProgram
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """The results for one state of the tensors that they depend on."""

    first: weakref.ref[torch.Tensor]
    #: The tensors' memory, with their addresses and versions.
    memory: tuple[torch.Tensor, ...]
    addresses: tuple[int, ...]
    versions: tuple[int, ...]
    results: tuple[torch.Tensor, ...]


def _is_as_it_was(state: Sequence[torch.Tensor], entry: _Entry) -> bool:
    try:
        for tensor, address, version in zip(state, entry.addresses, entry.versions, strict=True):
            if tensor.data_ptr() != address or tensor._version != version:
                return False
    except RuntimeError:  # an inference tensor, which has no version
        return False
    return True


def _forget(entries: dict[int, _Entry], key: int, ended: object) -> None:
    """A tensor ended, and another one may get its identity."""
    entries.pop(key, None)


class FoldedGraph:
    """Takes the list of inputs (and empties it), returns the list of outputs, as CompiledGraph does."""

    _boxed_call = True

    def __init__(self, graph: CompiledGraph, constants: CompiledGraph, inputs: Sequence[int]) -> None:
        #: `graph` has the results of `constants` as its last inputs; those of `constants` are these of its other ones.
        self.graph, self.constants, self.inputs = graph, constants, tuple(inputs)
        self._entries: dict[int, _Entry] = {}
        _C.set_flags(self.results.__func__.__code__, _C.TRANSFORMED)  # type: ignore[attr-defined]  # a method

    def finish(self) -> FoldedGraph:
        self.graph.finish()
        self.constants.finish()
        return self

    def results(self, args: Sequence[Any]) -> Sequence[torch.Tensor]:
        """The constants for these inputs, calculated if they are not known."""
        state = [args[place] for place in self.inputs]
        entry = self._entries.get(id(state[0]))
        if entry is not None and entry.first() is state[0] and _is_as_it_was(state, entry):
            return entry.results
        return self._calculate(state)

    def _calculate(self, state: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        counters["native"]["constants calculated"] += 1
        counted = not any(map(torch.Tensor.is_inference, state))  # inference tensors count no writes
        versions = tuple(each._version for each in state) if counted else ()
        with torch.inference_mode(False), torch.no_grad():  # they are there for calls outside of it, too
            results = tuple(self.constants(list(state)))
        if counted:
            first, key = state[0], id(state[0])
            memory = tuple(each.detach() for each in state)
            ended = weakref.ref(first, functools.partial(_forget, self._entries, key))
            addresses = tuple(each.data_ptr() for each in memory)
            self._entries[key] = _Entry(ended, memory, addresses, versions, results)
        return results

    def unboxed(self) -> Callable[..., tuple[Any, ...]]:
        """The same over plain arguments."""
        run, results = self.graph.unboxed(), self.results

        def call(*args: Any) -> tuple[Any, ...]:
            return run(*args, *results(args))

        _C.set_flags(call.__code__, _C.TRANSFORMED)
        return call

    def __call__(self, args: list[Any]) -> Any:
        args.extend(self.results(args))
        return self.graph(args)
