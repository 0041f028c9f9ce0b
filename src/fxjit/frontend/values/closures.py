"""Cells: the boxes that closures share, found in functions that exist or made while tracing.

The interpreter's DEREF instructions read and write them; functions.py holds them in closures. A cell found outside
comes with its source and reads its contents lazily; one made here is a real cell only once something that needs it is rebuilt.
"""

from __future__ import annotations

import types
from collections.abc import Iterator

from fxjit import _C
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Lazy, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import function
from fxjit.frontend.values.traits import Places
from fxjit.frontend.values.wrap import creates, wraps
from fxjit.guards.kinds import PythonCheck, TypeIs
from fxjit.guards.source import CellContentsSource, ClosureCellSource, ClosureSource, ConstSource, Source


class CellValue(Places):
    """A cell. `contents` is None while it is empty; a Lazy until it is read."""

    shell = True
    #: Filled only when what is being rebuilt is complete: a function's closure may hold the function itself.
    fills_late = True

    def __init__(self, contents: Value | None = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.contents = contents
        self._found_empty = contents is None and source is not None

    def pytype(self) -> type:
        return types.CellType

    def get(self, t: Tracer) -> Value | None:
        """The content of the cell; None when it is empty."""
        t.effects.note_read(self)
        contents = self.contents
        if contents is None:
            if self._found_empty and self.source is not None:
                t.guard(PythonCheck((self.source,), _is_empty, "an empty cell"))
            return None
        if type(contents) is Lazy:
            contents = self.contents = contents.realize()
        return contents

    def set(self, t: Tracer, value: Value | None) -> None:
        """Put `value` in; None empties the cell."""
        t.effects.mutate(self)
        self.contents = value
        self._found_empty = False

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "cell_contents":
            contents = self.get(t)
            if contents is None:
                t.raise_(ValueError, "Cell is empty")
            return contents
        return super().tp_getattro(t, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        if name == "cell_contents":
            self.set(t, value)
            return
        super().tp_setattro(t, name, value)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        """By what they hold (Objects/cellobject.c); an empty one is less than any other."""
        if not isinstance(other, CellValue):
            return NOT_IMPLEMENTED
        mine, theirs = self.get(t), other.get(t)
        if mine is None or theirs is None:
            return protocol.compare(t, op, t.make(theirs is None), t.make(mine is None))
        return protocol.compare(t, op, mine, theirs)

    def describe(self) -> str:
        return f"cell `{self.source.name}`" if self.source is not None else "cell"

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(types.CellType)

    def fill(self, cg: Rebuilder) -> None:
        if self.contents is None:
            return
        cg.asm.dup()
        self.write_back(cg)

    def places(self) -> Iterator[tuple[Source, Value]]:
        if self.source is not None and self.contents is not None:
            yield _contents_source(self.source), self.contents

    def write_back(self, cg: Rebuilder) -> None:
        if self.contents is None:
            cg.asm.delete_attr("cell_contents")
            return
        cg.push(self.contents)
        cg.asm.swap(2)
        cg.asm.store_attr("cell_contents")


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - whether it raises is the question
    except ValueError:
        return True
    return False


def _contents_source(source: Source) -> Source:
    """Where the contents of the cell at `source` are: the frame's own cells have a shorter way."""
    if isinstance(source, ClosureCellSource):
        return ClosureSource(str(source.accessor[1]))
    return CellContentsSource(source)


@wraps(types.CellType)
def wrap_cell(t: Tracer, cell: types.CellType, source: Source) -> Value:
    if not isinstance(source, ClosureCellSource):
        t.guard(TypeIs(source, types.CellType))
    try:
        contents = cell.cell_contents
    except ValueError:
        return CellValue(None, source)
    return CellValue(Lazy(t, contents, _contents_source(source)), source)


@function(_C.read_cell)
def read_cell(t: Tracer, cell: Value, name: Value) -> Value:
    """Run-time helper of resume functions: reads a variable of the frame's own code that may be unbound."""
    assert isinstance(cell, CellValue)
    contents = cell.get(t)
    if contents is None:
        t.raise_(UnboundLocalError,
                 f"cannot access local variable '{name.as_constant()}' where it is not associated with a value")
    return contents


@creates(types.CellType)
def make_cell(t: Tracer, cell: types.CellType) -> Value:
    return wrap_cell(t, cell, ConstSource(cell, "cell"))
