"""Matrix products with their epilogue on a CPU: BLAS multiplies a block of rows, and the loops that read the product run over
it while it is in the cache.

The product has no memory of its own then but a tile for each thread. What is multiplied, and in what order a row's sums are
added up, is BLAS's as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.fx

from ..choose.model import tile_bytes
from ..choose.predictions import TILE_ROWS, TILE_ROWS_LEAST, TILE_WEIGHT_BYTES
from ..hints import Hints
from ..index import Sizes, equal, same_sizes
from ..ir import Buffer, Extern
from ..lower.blas import Operand, Product, origin, product_of
from ..lower.table import Lowering
from ..target import by_triton
from .collapse import collapse
from .fuse import Group, Member, Step, readers_of, writers_of, writes_of
from .product_fusion import over_result


@dataclass(eq=False, slots=True)
class TiledProduct(Group):
    """A group over the rows of a product, which is multiplied in it. `tile` stands for the product: `block` rows for each of
    `threads` threads."""

    product: Product | None = None
    step: Extern | None = None
    tile: Buffer | None = None
    block: int = 0
    threads: int = 1
    #: The buffers of a, b and the bias.
    operands: tuple[str, ...] = ()

    def reads(self) -> set[str]:
        assert self.tile is not None
        inside = {name for member in self.members for name in member.compute.reads}
        return (inside - {self.tile.name}) | set(self.operands)

    def origins(self) -> frozenset[torch.fx.Node]:
        assert self.step is not None
        return frozenset({self.step.node}).union(*(member.compute.origins for member in self.members))


def tiled_products(
    steps: Sequence[Step], low: Lowering, escaping: frozenset[str], hints: Hints, threads: int
) -> dict[Group, TiledProduct]:
    """The groups that had better run over a product's rows while they are in the cache, each with what it becomes. `escaping`
    are the buffers that the graph returns."""
    if not torch.backends.mkl.is_available():
        return {}  # of others it is not known whether several threads may call them, each for itself
    found: dict[Group, TiledProduct] = {}
    readers, writers = readers_of(steps), writers_of(steps)
    for at, step in enumerate(steps):
        if isinstance(step, Extern) and (product := product_of(step.node, low)) is not None:
            name = low.storage[step.node]
            read_by = readers.get(name, set())
            alone = name not in escaping and len(read_by) == 1 and writers[name] == {at}
            group = as_reader(steps[min(read_by)]) if alone else None
            if group is not None and group not in found:
                made = tiled(group, step, product, low, hints, threads)
                if made is not None and is_settled(steps, at, group, made):
                    found[group] = made
    return found


def with_tiles(steps: Sequence[Step], tiles: dict[Group, TiledProduct]) -> list[Step]:
    """The steps, with products multiplied in the groups that read them."""
    multiplied = {made.step for made in tiles.values()}
    return [tiles.get(step, step) if isinstance(step, Group) else step for step in steps if step not in multiplied]


def as_reader(step: Step) -> Group | None:
    """The step, if it is a group that can run over blocks of the rows that it reads."""
    if not isinstance(step, Group) or step.scatters or step.split or step.column_reduction or by_triton(step.device):
        return None
    return step


def tiled(
    group: Group, step: Extern, product: Product, low: Lowering, hints: Hints, threads: int
) -> TiledProduct | None:
    """The group over blocks of the product's rows, if its loops go along these and there are enough of them."""
    name = low.storage[step.node]
    buffer = low.buffers[name]
    each = hints(product.m) // threads
    if buffer.dtype is not torch.float32 or not isinstance(product.n, int) or each < TILE_ROWS_LEAST:
        return None
    operands = [product.a, product.b, *([] if product.bias is None else [product.bias])]
    names = tuple(low.storage.get(origin(operand.node), "") for operand in operands)
    if not (has_plain_rows(product.a) and is_known(product.b) and all(names)) or group.writes() & set(names):
        return None
    if hints(product.m) * product.n * buffer.dtype.itemsize < tile_bytes():
        return None
    if hints(product.k) * product.n * buffer.dtype.itemsize > TILE_WEIGHT_BYTES:
        return None  # BLAS packs all of b anew for each block
    shaped = over_rows(group, (product.m, product.n))
    if shaped is None or not all(reads_its_row(member, name, product.n) for member in shaped.members):
        return None
    block = rows_of_a_block(each, product.n * buffer.dtype.itemsize)
    tile = replace(buffer, size=(threads * block, product.n), stride=(product.n, 1), kind="temp")
    return TiledProduct(shaped.outer, shaped.members, reducing=shaped.reducing, product=product, step=step, tile=tile,
                        block=block, threads=threads, operands=names)


def rows_of_a_block(rows: int, row_bytes: int) -> int:
    """About `TILE_ROWS`, fewer of long rows, in blocks of one size for each thread."""
    most = max(min(TILE_ROWS, tile_bytes() // row_bytes), TILE_ROWS // 2)
    count = max(1, round(rows / most))
    return -(-rows // count // 8) * 8


def over_rows(group: Group, size: Sizes) -> Group | None:
    """The group with the product's rows as its first loop: over rows and columns, or, where it reduces, rows alone."""
    if any(gather for member in group.members for gather in member.compute.gathers()):
        return None
    if group.reducing:
        merged = collapse(group)
        return merged if len(merged.outer) == 1 and equal(merged.outer[0], size[0]) else None
    members = [over_result(member, group.outer, size) for member in group.members]
    return None if None in members else Group(size, members)  # type: ignore[arg-type]  # none is None


def reads_its_row(member: Member, name: str, columns: int) -> bool:
    """Whether all it reads of the product in an iteration of the first loop is that row."""
    loads = [load for load in member.compute.loads() if load.buffer == name]
    return all(same_sizes(load.strides, (columns, 1)) and equal(load.offset, 0) for load in loads)


def has_plain_rows(operand: Operand) -> bool:
    return operand.column == 1 and isinstance(operand.row, int)


def is_known(operand: Operand) -> bool:
    return isinstance(operand.row, int) and isinstance(operand.column, int)


def is_settled(steps: Sequence[Step], at: int, group: Group, made: TiledProduct) -> bool:
    """Whether the product may be multiplied where the group is: what it reads is not written to in between."""
    between = steps[at + 1 : steps.index(group)]
    return not any(writes_of(step) & set(made.operands) for step in between)
