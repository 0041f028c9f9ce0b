"""What multiplies matrices of float32 and bfloat16: ATen's libraries, or kernels of ours where those are faster: measured.

Products are told apart by classes (_products.c): roughly how many rows, columns and terms, and which operands are transposed. A
class is measured when the first program with such a product is built, on matrices of its size up to `MOST`: up to a tenth of a
second for the largest, once for a processor. What counts is one thread's own time, since others' work would decide otherwise;
our kernels gain as much from more threads as the BLAS does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, config

from .measured import in_turns, may_decide, nanoseconds

#: Rows, columns and terms of a product, and whether its first and its second operand are transposed.
Shape: TypeAlias = tuple[int, int, int, bool, bool]
#: Rows, columns and terms up to which products are measured. Smaller ones do not tell what is faster at large ones: by what was
#: found with up to 320 of each, the products of 17 models took, of the time by the faster library for each, 1.05 in inference
#: of BERT-base and Llama, 1.11 of a mixture of experts, 1.33 of GPT-2; by these 1.00 to 1.02 (a Zen 3, one thread, loaded).
#: What columns have beyond whole vectors stays: 512 rows, 768 terms and 2048 columns take MKL 1.02 of our time, 2049 1.27,
#: 50257 1.29, 50272 1.06.
MOST: Final = (512, 2048, 768)
VECTOR: Final = 8
#: How many calls of each library, of which the shortest counts, and how many of products with more multiplications than so
#: many; how much faster a change of library has to be.
TURNS, TURNS_OF_LARGE, LARGE, MARGIN = 9, 3, 1 << 25, 1.02
#: Rows up to which the weights' bytes take the time, bytes from which weights come from memory rather than from a cache, and
#: how much slower our kernels may be then in the cache, where products are measured: they fetch ahead, the BLAS does not.
#: 1 x 192 x 768 in the cache 3.6 us by MKL, 3.9 by ours; from memory 15 and 31 GB/s of weights.
FEW_ROWS, FROM_MEMORY, SLOWER_IN_CACHE = 4, 1 << 19, 1.3

#: Counts up when the kernels change: what was measured of others is no longer true.
KERNELS: Final = 9


class Library(enum.IntEnum):
    """What multiplies two matrices; the numbers are those of _products.c."""

    BLAS = 0
    VECTORS = 1  #: our kernels, by the processor's vectors of float32
    TILES = 2  #: our kernels, by its tiles of bfloat16, three for each float32


_measured: dict[int, Library] = {}


def choose_libraries(shapes: Iterable[Shape]) -> None:
    """From now on products of these products' classes are multiplied by what is fastest at them."""
    if not _C.program_can("gemm"):
        return
    for shape in shapes:
        number = _C.product_class(*shape)
        if number >= 0:
            _C.set_product_library(number, fastest(shape, number) if config.cpp.own_products else Library.BLAS)


def fastest(shape: Shape, number: int) -> Library:
    """What is fastest at products of this class, by what was measured once."""
    if number not in _measured:
        _measured[number] = _compared(shape, number)
    return _measured[number]


def _compared(shape: Shape, number: int) -> Library:
    m, n, k, a_turned, b_turned = shape
    rows, columns, terms = map(min, (m, n, k), MOST)
    columns += n % VECTOR if columns < n else 0
    turns = TURNS if rows * columns * terms <= LARGE else TURNS_OF_LARGE
    blas, *own = nanoseconds(
        ("own products", KERNELS, number),
        lambda: _C.time_product(rows, columns, terms, a_turned, b_turned, turns),
        "libraries of products compared",
        lambda found: f"products like {m} x {n} x {k}: {found[0] / 1e3:.1f} us by BLAS, by our kernels "
                      + ", ".join(f"{each / 1e3:.1f} us" for each in found[1:]))
    if not _C.program_can("tiles"):  # the system may give one process leave to use them, and not another
        own = own[:1]
    from_memory = m <= FEW_ROWS and b_turned and n * k * 4 >= FROM_MEMORY
    shortest = min(own)
    if shortest >= blas * SLOWER_IN_CACHE if from_memory else shortest * MARGIN >= blas:
        return Library.BLAS
    return Library(1 + own.index(shortest))


# Products of bfloat16

#: Sizes up to which these are measured: rows, columns and terms. Packing shows in fewer.
MOST_OF_PAIRS: Final = (512, 2048, 2048)
#: Multiplications below which a product is ATen's without a measurement.
LEAST_OF_PAIRS: Final = 1 << 16
_pairs: dict[tuple[int, ...], bool] = {}


def pairs_are_faster(m: int, n: int, k: int) -> bool:
    """Whether our kernel of pairs is faster than oneDNN at such a product: of sizes that are powers of two, the next ones."""
    if not may_decide() or m * n * k < LEAST_OF_PAIRS:
        return False
    sizes = _measured_sizes(m, n, k, MOST_OF_PAIRS)
    return _second_is_faster(
        _pairs, sizes, ("pairs", KERNELS, sizes), lambda: _compare_pairs(*sizes), "products of bfloat16 compared",
        lambda found: f"products of halves like {sizes}: {found[0] / 1e3:.1f} us by oneDNN, {found[1] / 1e3:.1f} by pairs")


def _second_is_faster(known: dict[Any, bool], key: Any, facts: tuple[Any, ...], compare: Callable[[], list[int]], counter: str,
                      said: Callable[[Sequence[int]], str]) -> bool:
    """Whether the second of two ways that `compare` measures takes less time, by more than the margin: found once."""
    if key not in known:
        first, second = nanoseconds(facts, compare, counter, said)
        known[key] = second * MARGIN < first
    return known[key]


def _measured_sizes(m: int, n: int, k: int, most: tuple[int, int, int]) -> tuple[int, ...]:
    """The sizes that are measured for these: powers of two, the next ones, up to some."""
    return tuple(min(1 << (size - 1).bit_length(), limit) for size, limit in zip((m, n, k), most, strict=True))


def _compare_pairs(m: int, n: int, k: int) -> list[int]:
    with _disable_current_modes(), torch.no_grad():
        rows, weight, bias = (torch.ones(sizes, dtype=torch.bfloat16) for sizes in ((m, k), (n, k), (n,)))
        out, columns = torch.empty(m, n, dtype=torch.bfloat16), weight.t()
        return in_turns(lambda: torch.addmm(bias, rows, columns), lambda: _C.multiply_pairs(rows, weight, bias, out))


# Products by packed weights

#: Sizes up to which those of float32 are measured.
MOST_OF_FLOATS: Final = (320, 320, 320)
_packed: dict[tuple[torch.dtype, int, int, int], bool] = {}


def packed_is_faster(dtype: torch.dtype, m: int, n: int, k: int) -> bool:
    """Whether our kernel is faster at a product of float32 or bfloat16 by weights that were packed before than what would
    multiply them as they are; of sizes that are powers of two, the next ones."""
    if not may_decide() or m * n * k < LEAST_OF_PAIRS:
        return False
    most = MOST_OF_FLOATS if dtype is torch.float32 else MOST_OF_PAIRS
    m, n, k = _measured_sizes(m, n, k, most)
    return _second_is_faster(
        _packed, (dtype, m, n, k), ("packed weights", KERNELS, str(dtype), (m, n, k)), lambda: _compare_packed(dtype, m, n, k),
        "products by packed weights compared",
        lambda found: f"products like {m} x {n} x {k}: {found[0] / 1e3:.1f} us, by packed weights {found[1] / 1e3:.1f}")


def _compare_packed(dtype: torch.dtype, m: int, n: int, k: int) -> list[int]:
    with _disable_current_modes(), torch.no_grad():
        rows, weight = (torch.ones(sizes, dtype=dtype) for sizes in ((m, k), (n, k)))
        packed, out, columns = weight.new_empty(_C.packed_size(n, k, dtype is torch.bfloat16)), rows.new_empty(m, n), weight.t()
        _C.pack_weight(weight, packed)
        found = in_turns(lambda: torch.mm(rows, columns), lambda: _C.multiply_packed(rows, packed, None, out))
    own = _C.time_product(m, n, k, False, True, TURNS)[1] if dtype is torch.float32 else found[0]
    return [min(found[0], own), found[1]]


# Products of 8-bit integers

#: Sizes up to which those are measured.
MOST_OF_INTEGERS: Final = (64, 512, 512)
_integers: dict[tuple[int, ...], bool] = {}


def integers_are_faster_as_floats(m: int, n: int, k: int) -> bool:
    """Whether matrices of int8 are multiplied faster by way of float32 than by ATen; of sizes that are powers of two, the next
    ones."""
    if not may_decide() or m * n * k < LEAST_OF_PAIRS:
        return False
    sizes = _measured_sizes(m, n, k, MOST_OF_INTEGERS)
    return _second_is_faster(
        _integers, sizes, ("integers", KERNELS, sizes), lambda: _compare_integers(*sizes), "products of integers compared",
        lambda found: f"products of int8 like {sizes}: {found[0] / 1e3:.1f} us by ATen, {found[1] / 1e3:.1f} as floats")


def _compare_integers(m: int, n: int, k: int) -> list[int]:
    with _disable_current_modes(), torch.no_grad():
        rows, columns = torch.ones(m, k, dtype=torch.int8), torch.ones(n, k, dtype=torch.int8).t()
        return in_turns(lambda: torch.ops.aten._int_mm.default(rows, columns),
                        lambda: torch.mm(rows.float(), columns.float()).to(torch.int32), turns=TURNS_OF_LARGE)
