"""A matrix product by blocks of rows, with the loops that read it, as a C++ function (schedule/product_tiles.py).

Each thread multiplies a block by BLAS into its tile, and runs the loops over these rows. BLAS is called through a pointer that
runtime/library.py sets when the library is loaded.
"""

from __future__ import annotations

import torch

from ..hints import Hints
from ..index import Sizes
from ..schedule.product_tiles import TiledProduct
from .kernel import Kernel, Renderer, canonical, indent, lines, loop
from .prelude import MEMORY_TYPES

#: The pointer's name in a library; the prelude has its type.
BLAS = "fx_sgemm"


class ProductRenderer(Renderer):
    """Renders a `TiledProduct`."""

    def __init__(self, group: TiledProduct, in_registers: frozenset[str], hints: Hints, threads: int) -> None:
        self.tiled = group
        super().__init__(group, in_registers, hints, threads)

    def name_buffers(self) -> None:
        super().name_buffers()
        for name in self.tiled.operands:
            self.name_buffer(name, torch.float32)

    def heads(self, loops: list[str], sizes: Sizes) -> list[str]:
        """The loop over rows is the block's."""
        return [f"for (int64_t {loops[0]} = from; {loops[0]} < to; ++{loops[0]})", *super().heads(loops[1:], sizes[1:])]

    def parallel(self, total: str, weight: int, extra: str = "") -> str:
        return ""  # it is the blocks that threads share

    def unless_empty(self, sizes: Sizes) -> list[str]:
        return []  # a block has rows

    def kernel(self) -> Kernel:
        tiled, product = self.tiled, self.tiled.product
        assert product is not None and tiled.tile is not None
        inside = self.rows() if tiled.reducing else self.pointwise()
        written, tile = {member.compute.out.name for member in tiled.members}, self.pointers[tiled.tile.name]
        head: list[str] = []
        for position, (name, pointer) in enumerate(self.pointers.items()):
            if pointer == tile:  # which BLAS writes to as well
                head.append(f"float *const tiles = (float *)P[{position}];")
                continue
            const, ctype = "" if name in written else "const ", MEMORY_TYPES[self.types[name]]
            head.append(f"{const}{ctype} *__restrict__ {pointer} = ({const}{ctype} *)P[{position}];")
        head += [f"const int64_t {name} = S[{k}];" for k, name in enumerate(self.symbols.values())]
        rows, block = self.c(product.m), tiled.block
        body = [
            f"const int64_t to = fx_imin(from + {block}, {rows});",
            f"float *const sums = tiles + (int64_t)FX_THREAD * {block * int(product.n)};",  # type: ignore[arg-type]  # an int
            *self.multiplication(),
            f"const float *const {tile} = sums - from * {product.n};",
            *inside,
        ]
        shared = f"#pragma omp parallel for schedule(static) num_threads(fx_imin({tiled.threads}, {self.team}))"
        head += [*self.printer.divided_sizes(), *self.printer.opaque_constants(), *([shared] if tiled.threads > 1 else [])]
        text = [*head, f"for (int64_t from = 0; from < {rows}; from += {block}) {{", indent(lines(body)), "}", "return 0;"]
        return Kernel(canonical(indent(lines(text))), list(self.pointers), self.parameters)

    def multiplication(self) -> list[str]:
        """The block's rows of the product, which begin as the bias: out' = b' a', since BLAS goes by columns."""
        product = self.tiled.product
        assert product is not None
        a, b, bias = product.a, product.b, product.bias
        names = [self.pointers[name] for name in self.tiled.operands]
        n, k = self.c(product.n), self.c(product.k)
        turned = not (b.column == 1 or product.n == 1)
        stride, least = (b.column, k) if turned else (b.row, n)
        begun = []
        if bias is not None:
            place = f"{names[2]} + {self.c(bias.offset)}"
            begun = [loop("row", "to - from") + f" __builtin_memcpy(sums + row * {n}, {place}, {n} * sizeof(float));"]
        call = ", ".join((
            str(int(turned)), "to - from", n, k,
            f"{names[1]} + {self.c(b.offset)}", f"fx_imax({self.c(stride)}, {least})",
            f"{names[0]} + {self.c(a.offset)} + from * {self.c(a.row)}", f"fx_imax({self.c(a.row)}, {k})",
            str(int(bias is not None)), "sums",
        ))  # fmt: skip
        return [*begun, f"fx_product({call});"]


SUPPORT = f"""extern "C" {{
#ifdef _OPENMP
int omp_get_thread_num(void);
#endif
/* As Fortran calls it. */
void (*{BLAS})(const char *, const char *, const int *, const int *, const int *, const float *, const float *, const int *,
                 const float *, const int *, const float *, float *, const int *);
}}
#ifdef _OPENMP
#define FX_THREAD omp_get_thread_num()
#else
#define FX_THREAD 0
#endif
static void fx_product(int turned, int64_t m, int64_t n, int64_t k, const float *b, int64_t ldb, const float *a, int64_t lda,
                       float beta, float *out) {{
  const int im = (int)m, in = (int)n, ik = (int)k, ib = (int)ldb, ia = (int)lda;
  const float one = 1;
  {BLAS}(turned ? "T" : "N", "N", &in, &im, &ik, &one, b, &ib, a, &ia, &beta, out, &in);
}}
"""
