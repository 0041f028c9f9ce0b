"""Tree reductions of short rows: vectors are combined pairwise, where the compiler would go lane by lane.

For a `reduction` GCC 12 has as many totals as a vector has lanes (64 for bytes, in memory for maxima) and combines them one
after the other, which took a third of a softmax's time over rows of 64 floats and four fifths with a mask. Here the loop puts
its values down in an array instead, mostly registers once all is unrolled, and `fold` combines those.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..index import Size

#: Rows of so many elements; over longer ones the lanes' end matters less than another pass over the first cache.
LEAST, MOST = 16, 512
#: The longest where floats are gathered, and the loop reads nothing as narrow as a byte: beyond, the compiler's own way is
#: faster. One thread of a Zen 5, times the speed with an array, rows of 48 / 64 / 128 / 256 / 512 floats: a sum 0.61 / 0.92 /
#: 1.15 / 1.48 / 1.89, softmax 0.90 / 1.13 / 1.10 / 1.09 / 1.23, layer norm 0.73 / 1.24 / 1.41 / 2.56 / 2.01, a maximum from 64
#: on 1.20 / 1.33 / 1.58 / 1.69; of bfloat16 a layer norm 0.87 / 1.06 / 1.33 / 1.50 / 1.35. With a mask of booleans in the loop,
#: softmax 0.73 / 0.41 / 0.53 / 0.58.
MOST_OF_FLOATS = 63
#: The most lanes that a vector has: a row of a multiple of these has no end of its own.
WIDTH = 16
KINDS = ("sum", "max", "min")
TYPES = ("float", "double", "int32_t", "int64_t")

SUPPORT = r"""#if defined __AVX512F__ && !defined __clang__
typedef float fx_v8sf __attribute__((vector_size(32)));
typedef double fx_v8df __attribute__((vector_size(64)));
#endif
template <class T> struct fx_bits_of { typedef T type; enum : T { magnitude = 0, infinity = 1 }; };
template <> struct fx_bits_of<float> {
  typedef int32_t type; enum : int32_t { magnitude = 0x7fffffff, infinity = 0x7f800000 };
};
template <> struct fx_bits_of<double> {
  typedef int64_t type; enum : int64_t { magnitude = 0x7fffffffffffffff, infinity = 0x7ff0000000000000 };
};
template <class T> struct fx_row {
  typedef fx_bits_of<T> B;
  typedef typename B::type U;
  enum { lanes = FX_VECTOR / sizeof(T) };
  typedef T V __attribute__((vector_size(FX_VECTOR)));
  typedef U I __attribute__((vector_size(FX_VECTOR)));
  static FX I nan(V v) { return ((I)v & (U)B::magnitude) > (U)B::infinity; }
  struct sum {
    static FX V both(V a, V b) { return a + b; }
    static FX T one(T a, T b) { return a + b; }
  };
  struct max {
    static FX V both(V a, V b) { V m = a < b ? b : a; return nan(b) ? b : m; }
    static FX T one(T a, T b) { return fx_max(a, b); }
  };
  struct min {
    static FX V both(V a, V b) { V m = a > b ? b : a; return nan(b) ? b : m; }
    static FX T one(T a, T b) { return fx_min(a, b); }
  };
#ifdef __clang__
  template <class F> static FX T across(V v) {
    for (int h = lanes / 2; h > 0; h /= 2) {
      V w = v;
      for (int l = 0; l < h; l++) w[l] = v[l + h];
      v = F::both(v, w);
    }
    return v[0];
  }
#else
  template <class F, int h, int... l> static FX V halves(V v) { return F::both(v, __builtin_shuffle(v, I{(l ^ h)...})); }
  template <class F, int h = lanes / 2> static FX T across(V v) {
    if constexpr (h == 0) return v[0];
    else return across<F, h / 2>(halves<F, h, __integer_pack(lanes)...>(v));
  }
#endif
  static FX V at(const T *w) { V v; __builtin_memcpy(&v, w, sizeof(V)); return v; }
  /* Numbers of another type are converted on the way: floats to a total in double. */
  template <class S> static FX V at(const S *w) {
    typedef S N __attribute__((vector_size(lanes * sizeof(S))));
    N v; __builtin_memcpy(&v, w, sizeof(N)); return widened(v);
  }
  template <class N> static FX V widened(N v) {
#if defined __AVX512F__ && !defined __clang__  /* GCC 12 converts halves, and puts them together */
    if constexpr (lanes == 8)
      return (V)__builtin_ia32_cvtps2pd512_mask((fx_v8sf)v, (fx_v8df)V{}, (unsigned char)-1, 4);
#endif
    return __builtin_convertvector(v, V);
  }
  template <class F, int n, class S> static FX T fold(const S *w) {
    constexpr int count = n / lanes, chains = count < 4 ? count : 4, rest = count % chains;
    V v[chains];
    for (int j = 0; j < chains; j++) v[j] = at(w + j * lanes);
    for (int k = chains; k + chains <= count; k += chains)
      for (int j = 0; j < chains; j++) v[j] = F::both(v[j], at(w + (k + j) * lanes));
    for (int j = 0; j < rest; j++) v[j] = F::both(v[j], at(w + (count - rest + j) * lanes));
    for (int j = 1; j < chains; j++) v[0] = F::both(v[0], v[j]);
    if constexpr (n % lanes == 0) return across<F>(v[0]);
    /* One by one: as a vector they would have to wait until the narrower stores of the loop's end are out. */
    T last = w[count * lanes];
    for (int k = count * lanes + 1; k < n; k++) last = F::one(last, w[k]);
    return F::one(across<F>(v[0]), last);
  }
};
"""


def is_applicable(count: Size, totals: Sequence[tuple[str | None, str]], most: int = MOST) -> bool:
    """Whether the totals, (kind, C type) each, over rows of `count` elements, at `most` so many, are made here."""
    short = isinstance(count, int) and LEAST <= count <= most
    return short and bool(totals) and all(kind in KINDS and ctype in TYPES for kind, ctype in totals)


def total(name: str, ctype: str, kind: str, count: Size) -> str:
    """The total of the kind over an array of that name."""
    return f"fx_row<{ctype}>::fold<fx_row<{ctype}>::{kind}, {count}>({name})"
