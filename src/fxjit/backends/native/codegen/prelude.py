"""The prelude of every translation unit: types, conversions, and the functions that `ops.py`'s C++ texts call.

No header is included: parsing <cmath> alone takes longer than compiling a kernel. The vector forms of libm's functions
come from libmvec, through `simd` prototypes; which ones exist depends on the C library and the processor. The form of the
widest vectors also calculates what is left over at a loop's end: as in eager, a function of equal numbers is equal, to the
bit, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from fxjit import config

from ..ops import MATH, NOT_VECTOR_MATH, SCALARS
from ..target import has_libmvec
from . import compensation, elementary, fp16, page_prefetch, tree_reduction

C_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "fx_half", torch.bfloat16: "fx_bf16", torch.bool: "bool",
    torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
}  # fmt: skip

#: What pointers point to. Booleans are bytes: what GCC 12 reads through a `bool *` it converts one by one.
MEMORY_TYPES = {**C_TYPES, torch.bool: "uint8_t"}

BASE = r"""typedef __INT8_TYPE__ int8_t; typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t; typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t; typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t; typedef __UINT64_TYPE__ uint64_t;
struct fx_bf16 { uint16_t bits; };
struct fx_half { uint16_t bits; };
#ifdef _OPENMP
extern "C" int omp_get_max_threads(void);
#define FX_THREADS omp_get_max_threads()
#else
#define FX_THREADS 1
#endif
#if defined(__AVX512F__)
#define FX_VECTOR 64
#elif defined(__AVX__)
#define FX_VECTOR 32
#else
#define FX_VECTOR 16
#endif
#define FX inline __attribute__((always_inline))
static FX float fx_float(uint32_t u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
static FX uint32_t fx_bits(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
static FX float fx_widen(fx_bf16 x) { return fx_float((uint32_t)x.bits << 16); }
/* NaN is made of the number: of one NaN for all, GCC would know what integer it becomes, which is not the processor's. */
static FX fx_bf16 fx_bfloat(float x) {
  uint32_t u = fx_bits(x), r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  fx_bf16 y; y.bits = x != x ? (uint16_t)(u >> 16 | 0x40u) : (uint16_t)r; return y;
}
/* What nothing is known of while compiling. */
template <class T> static FX T fx_hidden(T x) { volatile T y = x; return y; }
/* GCC 12 vectorises no loop with a _Float16 in it. The exponent's bias differs by 112, from infinity's by 224; numbers below
   2^-14 are whole multiples of 2^-24. */
static FX float fx_widen(fx_half x) {
  uint32_t h = x.bits, m = (h & 0x7fffu) << 13;
  float normal = fx_float(m + 0x38000000u + (m >= 0x0f800000u ? 0x38000000u : 0u));
  float small = (float)(int32_t)(h & 0x3ffu) * 0x1p-24f;
  return fx_float(fx_bits(m < 0x00800000u ? small : normal) | (h & 0x8000u) << 16);
}
/* To nearest, ties to even: by adding half of what is cut off; below 2^-14 by a sum whose last bit is 2^-24; from 65536 on all
   is infinity. Infinity and NaN are calculated, not chosen: of one choice more GCC makes jumps, which it does not vectorise. */
static FX fx_half fx_halve(float x) {
  uint32_t u = fx_bits(x), a = u & 0x7fffffffu, m = a < 0x47800000u ? a : 0x47800000u;
  uint32_t normal = (m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13;
  uint32_t small = fx_bits(fx_float(m) + 0.5f) - 0x3f000000u;
  uint32_t r = (m < 0x38800000u ? small : normal) | (0x7f800000u - a) >> 31 << 9;
  fx_half y; y.bits = (uint16_t)(r | (u >> 16 & 0x8000u)); return y;
}
/* The same, back in a float: bits of it that a half has no place for are rounded off. */
static FX float fx_round_half(float x) {
  uint32_t u = fx_bits(x), a = u & 0x7fffffffu, m = a < 0x47800000u ? a : 0x47800000u;
  uint32_t normal = (m + 0xfffu + ((m >> 13) & 1u)) & 0xffffe000u;
  float small = (fx_float(m) + 0.5f) - 0.5f;
  uint32_t r = m < 0x38800000u ? fx_bits(small) : normal;
  r |= r > 0x477fe000u ? 0x7f800000u : 0;
  return fx_float(r | (0x7f800000u - a) >> 31 << 22 | (u & 0x80000000u));
}
/* Asked of the bits: of a condition on numbers GCC makes jumps where the number is a choice itself. */
static FX bool fx_isnan(float x) { return (fx_bits(x) & 0x7fffffffu) > 0x7f800000u; }
static FX bool fx_isnan(double x) {
  uint64_t u; __builtin_memcpy(&u, &x, 8); return (u & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}
template <class T> static FX bool fx_isnan(T) { return false; }
template <class T> static FX T fx_max(T a, T b) { T m = a < b ? b : a; return fx_isnan(b) ? b : m; }
template <class T> static FX T fx_min(T a, T b) { T m = a > b ? b : a; return fx_isnan(b) ? b : m; }
static FX bool fx_isinf(float x) { return __builtin_fabsf(x) == __builtin_inff(); }
static FX bool fx_isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }
#if defined(__FMA__) || defined(__aarch64__)
static FX float fx_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static FX double fx_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
static FX float fx_fma(float a, float b, float c) { return a * b + c; }
static FX double fx_fma(double a, double b, double c) { return a * b + c; }
#endif
static FX float fx_abs(float x) { return __builtin_fabsf(x); }
static FX double fx_abs(double x) { return __builtin_fabs(x); }
template <class T> static FX T fx_abs(T x) { return x < 0 ? (T)-x : x; }
template <class T> static FX T fx_floordiv(T a, T b) { T q = a / b; return (T)(q - (a % b != 0 && ((a < 0) != (b < 0)))); }
template <class T> static FX T fx_truncdiv(T a, T b) { return a / b; }
template <class T> static FX T fx_mod(T a, T b) { T r = a % b; return (T)(r != 0 && ((r < 0) != (b < 0)) ? r + b : r); }
template <class T> static FX T fx_fmod(T a, T b) { return a % b; }
#ifdef __FMA__
/* Exact, and without a branch: each step takes a whole multiple of |b| off that leaves less than 2^-50 of |a|, which double
   holds without rounding. Floats are at most 2^277 of each other. */
static FX double fx_less(double r, double y, double inverse) { return __builtin_fma(-__builtin_trunc(r * inverse), y, r); }
static FX float fx_fmod(float a, float b) {
  const double x = __builtin_fabs((double)a), y = __builtin_fabs((double)b), inverse = 1 / y;
  double r = fx_less(x, y, inverse);
  r = fx_less(r, y, inverse); r = fx_less(r, y, inverse); r = fx_less(r, y, inverse);
  r = fx_less(r, y, inverse); r = fx_less(r, y, inverse);
  r = r < 0 ? r + y : r;
  r = r >= y ? r - y : r;
  r = y == __builtin_inf() ? x - x + x : r;
  return __builtin_copysignf((float)r, a);
}
#else
static inline float fx_fmod(float a, float b) { return fmodf(a, b); }
#endif
static inline double fx_fmod(double a, double b) { return fmod(a, b); }
static FX float fx_mod(float a, float b) { float r = fx_fmod(a, b); return (r != 0) & ((r < 0) != (b < 0)) ? r + b : r; }
static inline double fx_mod(double a, double b) { double r = fmod(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
static FX float fx_floordiv(float a, float b) {
  const float r = fx_fmod(a, b), whole = (a - r) / b, q = (r != 0) & ((b < 0) != (r < 0)) ? whole - 1 : whole;
  const float f = __builtin_floorf(q), near = q - f > 0.5f ? f + 1 : f, zero = __builtin_copysignf(0, a / b);
  return b == 0 ? a / b : q == 0 ? zero : near;
}
static inline double fx_floordiv(double a, double b) {
  if (b == 0) return a / b;
  double r = fmod(a, b), q = (a - r) / b;
  if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
  if (q == 0) return __builtin_copysign(0, a / b);
  double f = __builtin_floor(q); return q - f > 0.5 ? f + 1 : f;
}
static inline int64_t fx_philox(int64_t seed, int64_t number, int64_t index) {
  uint32_t c0 = index, c1 = index >> 32, c2 = number, c3 = number >> 32, k0 = seed, k1 = seed >> 32;
  for (int i = 0; i < 7; i++) {
    uint64_t p = (uint64_t)0xD2511F53u * c0, q = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(q >> 32) ^ c1 ^ k0; c1 = (uint32_t)q; c2 = (uint32_t)(p >> 32) ^ c3 ^ k1; c3 = (uint32_t)p;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return (int64_t)((uint64_t)c1 << 32 | c0);
}
template <class T> static FX T fx_shl(T a, T b) { return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)(a << b); }
template <class T> static FX T fx_shr(T a, T b) {
  T m = (T)(8 * sizeof(T) - 1);
  if ((T)-1 > 0 && b > m) return 0;
  return (T)(a >> (b < 0 || b > m ? m : b));
}
/* Of sizes, which are calculated before it is known that there are any elements. */
static FX int64_t fx_idiv(int64_t a, int64_t b) { return b == 0 ? 0 : fx_floordiv(a, b); }
static FX int64_t fx_imod(int64_t a, int64_t b) { return b == 0 ? 0 : fx_mod(a, b); }
static FX int64_t fx_imax(int64_t a, int64_t b) { return a > b ? a : b; }
static FX int64_t fx_imin(int64_t a, int64_t b) { return a < b ? a : b; }
/* How many of the columns are taken at once, in whole vectors, so that each of the threads has some. */
static FX int64_t fx_step(int64_t columns, int64_t threads, int64_t least, int64_t most) {
  return fx_imax(least, fx_imin(most, (columns / threads + 15) & -16));
}
template <class T> struct fx_limits {
  static FX T low() { T one = 1; return (T)-1 < 0 ? (T)(one << (8 * sizeof(T) - 1)) : (T)0; }
  static FX T high() { return (T)~low(); }
};
template <> struct fx_limits<float> {
  static FX float low() { return -__builtin_inff(); }
  static FX float high() { return __builtin_inff(); }
};
template <> struct fx_limits<double> {
  static FX double low() { return -__builtin_inf(); }
  static FX double high() { return __builtin_inf(); }
};
"""


def reductions() -> str:
    """The reductions OpenMP does not have: maxima and minima that keep NaN."""
    lines = []
    for name, start in (("max", "low"), ("min", "high")):
        types = "float, double, int8_t, uint8_t, int16_t, int32_t, int64_t"
        lines.append(
            f"#pragma omp declare reduction(fx_{name} : {types} : omp_out = fx_{name}(omp_out, omp_in)) "
            f"initializer(omp_priv = fx_limits<decltype(omp_priv)>::{start}())"
        )
    return "\n".join(lines) + "\n"


#: `FX_MATH1(logf, float)` defines `fx_logf`, by which kernels call it, for vectors of every width by the widest that libmvec
#: has. GCC finds those by their names (Vector Function ABI), which say processor, lanes and arguments.
VECTOR_MATH = r"""#if defined(__AVX512F__)
#define FX_WIDE_float "_ZGVeN16"
#define FX_WIDE_double "_ZGVeN8"
#define FX_HALF_float "_ZGVdN8"
#define FX_HALF_double "_ZGVdN4"
#define FX_QUARTER_float "_ZGVbN4"
#define FX_QUARTER_double "_ZGVbN2"
#elif defined(__AVX__)
#ifdef __AVX2__
#define FX_WIDE_float "_ZGVdN8"
#define FX_WIDE_double "_ZGVdN4"
#else
#define FX_WIDE_float "_ZGVcN8"
#define FX_WIDE_double "_ZGVcN4"
#endif
#define FX_HALF_float "_ZGVbN4"
#define FX_HALF_double "_ZGVbN2"
#else
#define FX_WIDE_float "_ZGVbN4"
#define FX_WIDE_double "_ZGVbN2"
#endif
template <class T, int bytes> struct fx_lanes { typedef T type __attribute__((vector_size(bytes))); };
template <class W, class V> static FX W fx_spread(V x) {
  W y;
  for (int i = 0; i < FX_VECTOR; i += (int)sizeof(V)) __builtin_memcpy((char *)&y + i, &x, sizeof(V));
  return y;
}
template <class V, class W> static FX V fx_first(W y) { V x; __builtin_memcpy(&x, &y, sizeof(V)); return x; }
#define FX_LANES(T, parts) fx_lanes<T, FX_VECTOR / parts>::type
#define FX_PART1(name, T, parts, symbol) \
  static __attribute__((used, noinline)) FX_LANES(T, parts) fx_##name##parts(FX_LANES(T, parts) x) noexcept asm(symbol); \
  static FX_LANES(T, parts) fx_##name##parts(FX_LANES(T, parts) x) noexcept { \
    return fx_first<FX_LANES(T, parts)>(fx_wide_##name(fx_spread<FX_LANES(T, 1)>(x))); \
  }
#define FX_PART2(name, T, parts, symbol) \
  static __attribute__((used, noinline)) FX_LANES(T, parts) \
    fx_##name##parts(FX_LANES(T, parts) x, FX_LANES(T, parts) y) noexcept asm(symbol); \
  static FX_LANES(T, parts) fx_##name##parts(FX_LANES(T, parts) x, FX_LANES(T, parts) y) noexcept { \
    return fx_first<FX_LANES(T, parts)>(fx_wide_##name(fx_spread<FX_LANES(T, 1)>(x), fx_spread<FX_LANES(T, 1)>(y))); \
  }
#ifdef FX_HALF_float
#define FX_HALF(n, name, T, args) FX_PART##n(name, T, 2, FX_HALF_##T args "fx_" #name)
#else
#define FX_HALF(n, name, T, args)
#endif
#ifdef FX_QUARTER_float
#define FX_QUARTER(n, name, T, args) FX_PART##n(name, T, 4, FX_QUARTER_##T args "fx_" #name)
#else
#define FX_QUARTER(n, name, T, args)
#endif
#define FX_MATH1(name, T) \
  extern "C" FX_LANES(T, 1) fx_wide_##name(FX_LANES(T, 1)) noexcept asm(FX_WIDE_##T "v_" #name); \
  asm(".weakref " FX_WIDE_##T "v_fx_" #name ", " FX_WIDE_##T "v_" #name); \
  FX_HALF(1, name, T, "v_") FX_QUARTER(1, name, T, "v_") \
  static __attribute__((used, noinline)) T fx_##name##_one(T x) noexcept asm("fx_" #name); \
  static T fx_##name##_one(T x) noexcept { return fx_wide_##name(x - FX_LANES(T, 1){})[0]; }
#define FX_MATH2(name, T) \
  extern "C" FX_LANES(T, 1) fx_wide_##name(FX_LANES(T, 1), FX_LANES(T, 1)) noexcept asm(FX_WIDE_##T "vv_" #name); \
  asm(".weakref " FX_WIDE_##T "vv_fx_" #name ", " FX_WIDE_##T "vv_" #name); \
  FX_HALF(2, name, T, "vv_") FX_QUARTER(2, name, T, "vv_") \
  static __attribute__((used, noinline)) T fx_##name##_one(T x, T y) noexcept asm("fx_" #name); \
  static T fx_##name##_one(T x, T y) noexcept { return fx_wide_##name(x - FX_LANES(T, 1){}, y - FX_LANES(T, 1){})[0]; }
"""


#: clang has no `simd` prototypes: all calls are libm's own.
NAMED = r"""#ifdef __clang__
#define FX_SIMD
#define FX_NAMED(name)
#else
#define FX_SIMD __attribute__((simd("notinbranch")))
#define FX_NAMED(name) asm(name)
#endif
"""


def math_functions(simd: bool, called: Collection[str]) -> tuple[str, str]:
    """(prototypes of libm's functions, definitions of the vector forms of those that are called)"""
    old, new = simd and has_libmvec(22), simd and has_libmvec(35)
    prototypes, definitions = [], []
    for name, from_start in {**MATH, **dict.fromkeys(NOT_VECTOR_MATH)}.items():
        parameters = SCALARS[name].arity
        vector = from_start is not None and (old if from_start else new)
        for function, kind in ((f"{name}f", "float"), (name, "double")):
            plain = f"{kind} {function}({', '.join([kind] * parameters)}) noexcept"
            prototypes.append(f'FX_SIMD {plain} FX_NAMED("fx_{function}");' if vector else f"{plain};")
            if vector and function in called:
                definitions.append(f"FX_MATH{parameters}({function}, {kind})")
    return "\n".join([NAMED + 'extern "C" {', *prototypes, "}", ""]), guarded(definitions)


def guarded(definitions: list[str]) -> str:
    """The definitions and the macros they are made by, for compilers that have `simd` prototypes."""
    return "\n".join(["#ifndef __clang__", VECTOR_MATH + "\n".join(definitions), "#endif", ""]) if definitions else ""


def prelude(source: str, simd: bool = True) -> str:
    """The prelude for `source`; `simd`: with vector forms of libm's functions."""
    elementary_functions, called = elementary.functions(source, config.cpp.fast_math)
    prototypes, definitions = math_functions(simd, called)
    support = (
        ("fx_ahead(", page_prefetch.SUPPORT),
        ("fx_row<", tree_reduction.SUPPORT),
        ("fx_total(", compensation.SUPPORT),
        ("_row(", fp16.CONVERSIONS),
    )
    parts = [text for name, text in support if name in source]
    return prototypes + BASE + "".join(parts) + definitions + elementary_functions + reductions()
