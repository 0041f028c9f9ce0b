"""Prefetch of pages: memory is committed just ahead of the loop that writes it, for results of hundreds of megabytes.

Most of the time of a pass over new memory is the system handing out its pages, one exception each. Asked for some pages at
once (Linux 5.14) it takes a fifth less, and the loop finds what it writes in the cache, where the system has put zeros. A
kernel commits no more than it is about to write, so neither the peak nor what happens when memory runs out is changed.
"""

from __future__ import annotations

from ..hints import Hints
from ..index import Sizes, equal, mul
from ..schedule.fuse import Member

#: Bytes of a result that are committed by pieces. Smaller ones have large pages (runtime/_steps.c), or memory used before.
LARGE = 64 << 20
#: Elements of a loop between two looks at how far the memory is committed.
INTERVAL = 65536

SUPPORT = r"""#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
extern "C" int madvise(void *, unsigned long, int) noexcept;
#endif
#define FX_PIECE ((uint64_t)1 << 18)
/* The pieces of memory that begin in the `bytes` at `at`, and before `end`, are about to be written. */
static FX void fx_ahead(void *at, int64_t bytes, void *end) {
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
  uint64_t past = (uint64_t)at + (uint64_t)bytes, first = ((uint64_t)at + FX_PIECE - 1) & ~(FX_PIECE - 1);
  if (__builtin_expect(first < past, 0)) {
    uint64_t last = (past + FX_PIECE - 1) & ~(FX_PIECE - 1);
    last = (last < (uint64_t)end ? last : (uint64_t)end) & ~(uint64_t)4095;
    /* MADV_POPULATE_WRITE; where the system says no, the loop gets the pages one by one. */
    if (first < last) (void)madvise((void *)first, last - first, 23);
  }
#endif
}
"""


def is_prefetched(member: Member, outer: Sizes, hints: Hints) -> bool:
    """Whether the member's result is large and written from its beginning to its end as the `outer` loops go on."""
    out, stride, count = member.compute.out, member.compute.stride, len(outer)
    if hints(mul(out.extent, out.dtype.itemsize)) < LARGE or not 0 < count <= len(stride):
        return False
    inside = [hints(each) for each in stride[count:]]
    sizes = (*member.compute.size, *member.compute.rsize)[count:]
    reach = sum((hints(size) - 1) * each for size, each in zip(sizes, inside, strict=False))
    in_order = all(equal(stride[k - 1], mul(stride[k], outer[k])) for k in range(1, count))
    return in_order and min(inside, default=0) >= 0 and reach < hints(stride[count - 1])
