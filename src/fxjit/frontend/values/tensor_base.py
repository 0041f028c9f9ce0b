"""The base of tensor values: a node of the graph with its fake tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import TupleValue

if TYPE_CHECKING:
    import torch.fx

    from fxjit.guards.source import Source


class GraphTensor(Value):
    """A tensor: `node` computes it, `fake` is it without numbers, `cls` its Python type; `real` the object itself where
    it existed before the frame. tensor.py has its slots."""

    node: torch.fx.Node

    def __init__(self, node: torch.fx.Node, fake: torch.Tensor, cls: type = torch.Tensor, source: Source | None = None,
                 real: torch.Tensor | None = None) -> None:
        super().__init__(source)
        self.node = node
        self.fake = fake
        self.cls = cls
        self.real = real

    def pytype(self) -> type:
        return self.cls

    def describe(self) -> str:
        where = self.source.name if self.source is not None else str(self.node)
        return f"{where}: {self.cls.__name__} {str(self.fake.dtype).removeprefix('torch.')}{list(self.fake.shape)}"

    # -- sizes ---------------------------------------------------------------------------------------------------

    def size(self, t: Tracer, dim: int) -> Value:
        """One size: a constant, or a symbol that the graph computes."""
        size = self.fake.shape[dim]
        if isinstance(size, int):
            return t.make(size)
        return t.emit("size", [self, t.make(dim % self.fake.dim())])

    def shape(self, t: Tracer) -> Value:
        return TupleValue([self.size(t, dim) for dim in range(self.fake.dim())], cls=torch.Size)
