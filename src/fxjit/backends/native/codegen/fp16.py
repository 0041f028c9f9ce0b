"""Numbers of half types on their way into and out of a vector loop: rows of them are converted at once, by the processor's own
instructions where it has them, in arrays on the stack that the loop reads and writes in their place.

GCC 12 vectorises none of those instructions. In a loop, a number is widened and rounded in integers, in ten operations each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

#: Elements that are converted at once: an array takes 4 KiB of the stack.
ROW = 1024
#: Rows shorter than this are converted in the loop.
LEAST = 16

#: A bfloat16 is widened by a shift and rounded in a few instructions, which loops do themselves. But numbers of 16 bits double
#: the vectors that each iteration has: rows up to this length that are read again and again are faster without them.
SHORT = 256
#: Up to so many elements a loop of bfloat16 has one vector of floats, and fewer than one of 16 bits, for which GCC takes
#: vectors of half the width. There both ways are by rows: GELU of 16 numbers at a time takes 0.45 ns each on a Zen 5, and 0.74
#: in a loop.
ONE_VECTOR = 31

#: `to` of the first function has a length that is a multiple of 16, as `from` of the second; what is behind `n` is never used.
CONVERSIONS = r"""#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__clang__)
typedef short fx_halves __attribute__((vector_size(32)));
typedef float fx_floats __attribute__((vector_size(64)));
static FX void fx_widen_row(float *to, const fx_half *from, int64_t n) {
  fx_halves x; fx_floats y; int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    __builtin_memcpy(&x, from + k, 32);
    y = __builtin_ia32_vcvtph2ps512_mask(x, fx_floats{}, (short)-1, 4);
    __builtin_memcpy(to + k, &y, 64);
  }
  if (k < n) {
    x = __builtin_ia32_loaddquhi256_mask((const short *)(from + k), fx_halves{}, (short)((1 << (n - k)) - 1));
    y = __builtin_ia32_vcvtph2ps512_mask(x, fx_floats{}, (short)-1, 4);
    __builtin_memcpy(to + k, &y, 64);
  }
}
static FX void fx_narrow_row(fx_half *to, const float *from, int64_t n) {
  fx_halves x; fx_floats y; int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    __builtin_memcpy(&y, from + k, 64);
    x = __builtin_ia32_vcvtps2ph512_mask(y, 0, fx_halves{}, (short)-1);
    __builtin_memcpy(to + k, &x, 32);
  }
  if (k < n) {
    __builtin_memcpy(&y, from + k, 64);
    x = __builtin_ia32_vcvtps2ph512_mask(y, 0, fx_halves{}, (short)-1);
    __builtin_ia32_storedquhi256_mask((short *)(to + k), x, (short)((1 << (n - k)) - 1));
  }
}
#elif defined(__F16C__) && !defined(__clang__)
typedef short fx_halves __attribute__((vector_size(16)));
typedef float fx_floats __attribute__((vector_size(32)));
static FX void fx_widen_row(float *to, const fx_half *from, int64_t n) {
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    fx_halves x; __builtin_memcpy(&x, from + k, 16);
    fx_floats y = __builtin_ia32_vcvtph2ps256(x); __builtin_memcpy(to + k, &y, 32);
  }
  for (; k < n; ++k) to[k] = fx_widen(from[k]);
}
static FX void fx_narrow_row(fx_half *to, const float *from, int64_t n) {
  int64_t k = 0;
  for (; k + 8 <= n; k += 8) {
    fx_floats y; __builtin_memcpy(&y, from + k, 32);
    fx_halves x = __builtin_ia32_vcvtps2ph256(y, 0); __builtin_memcpy(to + k, &x, 16);
  }
  for (; k < n; ++k) to[k] = fx_halve(from[k]);
}
#else
static FX void fx_widen_row(float *to, const fx_half *from, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] = fx_widen(from[k]);
}
static FX void fx_narrow_row(fx_half *to, const float *from, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] = fx_halve(from[k]);
}
#endif
typedef uint16_t fx_shorts __attribute__((vector_size(FX_VECTOR / 2)));
typedef uint32_t fx_words __attribute__((vector_size(FX_VECTOR)));
static FX void fx_widen_row(float *to, const fx_bf16 *from, int64_t n) {
  fx_shorts x; fx_words y; int64_t k = 0;
  for (; k + FX_VECTOR / 4 <= n; k += FX_VECTOR / 4) {
    __builtin_memcpy(&x, from + k, FX_VECTOR / 2);
    y = __builtin_convertvector(x, fx_words) << 16;
    __builtin_memcpy(to + k, &y, FX_VECTOR);
  }
  for (; k < n; ++k) to[k] = fx_widen(from[k]);
}
static FX void fx_narrow_row(fx_bf16 *to, const float *from, int64_t n) {
  fx_words x, y; fx_shorts z; int64_t k = 0;
  for (; k + FX_VECTOR / 4 <= n; k += FX_VECTOR / 4) {
    __builtin_memcpy(&x, from + k, FX_VECTOR);
    y = (x + 0x7fffu + (x >> 16 & 1u)) >> 16;
    y = (x & 0x7fffffffu) > 0x7f800000u ? x >> 16 | 0x40u : y;
    z = __builtin_convertvector(y, fx_shorts);
    __builtin_memcpy(to + k, &z, FX_VECTOR / 2);
  }
  for (; k < n; ++k) to[k] = fx_bfloat(from[k]);
}
"""


@dataclass(slots=True)
class ConvertedRows:
    """The arrays of converted values of one vector loop.

    `loop` is the name of the loop's variable among those of an expression's dimensions, `start` its first value, `place` an
    element's place in the arrays, `count` how many there are. `kept` names the arrays that are filled, by what they are filled
    with: loops over the same whole rows share it. `declared` are the declarations of all arrays of the kernel. Of `both` half
    types numbers are widened, or of float16 alone.
    """

    loop: str
    start: str
    place: str
    count: str
    size: int
    kept: dict[tuple[str, str], str]
    declared: list[str]
    both: bool = False
    rounds: bool = False
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    used: bool = False

    def widens(self, dtype: torch.dtype) -> bool:
        return dtype is torch.float16 or (self.both and dtype is torch.bfloat16)

    def narrows(self, dtype: torch.dtype) -> bool:
        return dtype is torch.float16 or (self.rounds and dtype is torch.bfloat16)

    def at_start(self, loops: list[str]) -> list[str]:
        return [self.start if name == self.loop else name for name in loops]

    def array(self) -> str:
        name = f"w{len(self.declared)}"
        self.declared.append(f"alignas(64) float {name}[{self.size}];")
        self.used = True
        return name

    def widened(self, first: str) -> str:
        """The element of this iteration of the row in memory that begins at `first`."""
        self.used = True
        name = self.kept.get((first, self.count))
        if name is None:
            name = self.kept[first, self.count] = self.array()
            self.before.append(f"fx_widen_row({name}, &{first}, {self.count});")
        return f"{name}[{self.place}]"

    def narrowed(self, first: str) -> str:
        """Where this iteration's element of the row in memory that begins at `first` is put."""
        name = self.array()
        self.after.append(f"fx_narrow_row(&{first}, {name}, {self.count});")
        buffer = first.partition("[")[0]
        for key in [key for key in self.kept if key[0].partition("[")[0] == buffer]:
            del self.kept[key]
        return f"{name}[{self.place}]"
