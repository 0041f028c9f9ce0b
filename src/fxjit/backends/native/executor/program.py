"""A program as data: what encode.py makes, the disk keeps, and `_C.Program` is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxjit import _C

from ..runtime import allocator, cc
from ..runtime.own_products import Shape, choose_libraries
from .aten_calls import FunctionName
from .inner_graphs import InnerGraph


@dataclass(frozen=True, slots=True)
class EncodedProgram:
    """The arguments of `_C.Program`, but for the kernels' addresses."""

    inputs: int
    slots: int
    code: bytes
    numbers: bytes
    symbols: bytes
    arithmetic: bytes
    arena: int
    objects: tuple[Any, ...]
    entries: tuple[str, ...]
    #: Places among the objects of the kernels that no C++ compiler makes, and what gives their cells.
    cells: dict[str, int]
    others: Callable[[], dict[str, list[Any]]] = dict
    #: The products that it has, of the sizes that were seen.
    products: tuple[Shape, ...] = ()
    #: Whether it convolves by our own kernels, which not all processors have.
    convolves: bool = False

    def build(self, library: Any) -> Any:
        if self.convolves and not _C.program_can("convolve"):
            raise RuntimeError("this program has convolutions for a processor with AVX2 or AVX-512")
        allocator.keep_freed_memory()
        choose_libraries(self.products)
        kernels = tuple(cc.address(library, entry) for entry in self.entries)
        objects = [each.find() if isinstance(each, (FunctionName, InnerGraph)) else each for each in self.objects]
        found = self.others()
        for entry, place in self.cells.items():
            objects[place] = found[entry]
        return _C.Program(self.inputs, self.slots, self.code, self.numbers, self.symbols, self.arithmetic, self.arena,
                          tuple(objects), kernels, library)
