"""Elementary functions of kernels: `fx_NAME`, for float and double, no less accurate than ATen's.

libmvec's float functions err by up to 4 units in the last place, ATen's by 0.5 to 1. The frequent ones are written here for
vectors, without tables or jumps: in float, with what the largest sum of each loses added again at the end (0.55 to 0.8), or in
double, rounded once. The others are libmvec's double functions, whose 4 units are none of float. Polynomials: tools/minimax.py.
Of double's functions only `exp` is made here, of a sum in two parts; ATen is called for others (lower/functions.py).

On x86-64 products, fused or not, share two of four units, so that their number is what a function costs: hence Horner's scheme.
With `config.cpp.fast_math` all are libmvec's own.
"""

from __future__ import annotations

import re

from ..ops import MATH, NOT_VECTOR_MATH, SCALARS
from . import polynomials


def horner(coefficients: tuple[str, ...], x: str) -> str:
    """A polynomial's C++ text: coefficients from the constant up, of the variable `x`."""
    text = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        text = f"fx_fused({text}, {x}, {coefficient})"
    return text


def with_polynomials(text: str) -> str:
    """`text`, in which POLYNOMIAL(name, x) stands for one of polynomials.py's."""
    return re.sub(r"POLYNOMIAL\((\w+), (\w+)\)", lambda found: horner(getattr(polynomials, found[1]), found[2]), text)


#: What several functions are made of. 1.5 * 2^23 + n, and 1.5 * 2^52 + n, hold n, rounded, in their last bits.
COMMON = r"""
static FX double fx_double(uint64_t u) { double x; __builtin_memcpy(&x, &u, 8); return x; }
static FX uint64_t fx_bits(double x) { uint64_t u; __builtin_memcpy(&u, &x, 8); return u; }
/* Rounded once, also where the processor has no such instruction: what a product loses is a * b minus it. */
#if defined(__FMA__) || defined(__aarch64__)
static FX float fx_fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
static FX float fx_fused(float a, float b, float c) { return (float)((double)a * b + c); }
#endif
static FX double fx_fused(double a, double b, double c) { return fx_fma(a, b, c); }
/* exp(r) - 1 for |r| <= ln(2) / 2 */
static FX double fx_expm1_small(double r) {
  double q = fx_fma(0x1.a124f19fe89acp-13, r, 0x1.6d43246b523b4p-10);
  q = fx_fma(fx_fma(q, r, 0x1.1110e0f238322p-7), r, 0x1.5554e9063586ep-5);
  q = fx_fma(fx_fma(q, r, 0x1.5555555a78ed4p-3), r, 0x1.0000000b9129bp-1);
  return fx_fma(q, r * r, r);
}
/* 2^n * exp(r) - 1 of a number of moderate size */
static FX double fx_expm1_wide(double x) {
  double t = x * 0x1.71547652b82fep+0 + 0x1.8p52, r = fx_fma(t - 0x1.8p52, -0x1.62e42fefa39efp-1, x);
  double s = fx_double(0x3ff0000000000000u + (fx_bits(t) << 52));
  return fx_fma(s, fx_expm1_small(r), s - 1);
}
/* The logarithm of a positive normal number as k * scale + ln(m) * factor, m from sqrt(1/2) to sqrt(2). */
static FX double fx_log_wide(double x, double scale, double factor) {
  uint64_t u = fx_bits(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  double k = fx_double(0x4330000000000000u | u >> 52) - (0x1p52 + 1023);
  double f = fx_double((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1, s = f / (2 + f), z = s * s;
  double q = fx_fma(fx_fma(0x1.dddae051676cfp-3, z, 0x1.245c0ad6402a0p-2), z, 0x1.9999ebdd89092p-2);
  q = fx_fma(fx_fma(q, z, 0x1.5555554b9ea4ap-1), z, 2.0) * s;
  return fx_fma(k, scale, q * factor);
}
static FX float fx_logarithm(float x, double scale, double factor) {
  float y = (float)fx_log_wide(x, scale, factor);
  y = x < __builtin_inff() ? y : x;
  y = x > 0 ? y : (x == 0 ? -__builtin_inff() : __builtin_nanf(""));
  return x != x ? x : y;
}
"""

#: exp(high + low) times 2^n, n in the last bits of t: 1 + high, and all else with what that sum loses. `tiny`: the result is
#: below the normal numbers, where rounding has to be to fewer bits: those left beside a larger number, which are its last bits.
EXP_OF_PARTS = r"""
static FX float fx_exp_of_parts(float t, float high, float low, bool tiny) {
  float one = 1 + high, square = high * high, slope = fx_fused(0.455f, square, one);
  float lost = fx_fused(low, slope, high - (one - 1)) + 0.5f * fx_fused(high, high, -square);
  float tail = fx_fused(0.5f, square, fx_fused(square * high, POLYNOMIAL(EXP, high), lost));
  uint32_t n = fx_bits(t) << 23, below = tiny ? 0x00800000u : 0;
  float beside = fx_float(tiny ? 0x00800000u - n : 0), total = one + beside;
  return fx_float(fx_bits(total + ((one - (total - beside)) + tail)) + n - below);
}
"""
#: log(m * 2^n) of m - 1 and n: n * ln(2) + (m - 1), less half its square, with what
#: these sums lose and `rest`, and all else. m is from sqrt(1/2) on.
LOG_OF_PARTS = r"""
static FX float fx_mantissa(uint32_t above) { return fx_float((above & 0x007fffffu) + 0x3f3504f4u) - 1; }
static FX float fx_log_of_parts(float f, float n, float rest) {
  float part = n * 0x1.62e4p-1f, high = part + f, square = f * f;
  float low = fx_fused(n, 0x1.7f7d1cp-20f, f - (high - part)) - 0.5f * fx_fused(f, f, -square) + rest;
  float half = 0.5f * square, sum = high - half;
  return sum + (fx_fused(square * f, POLYNOMIAL(LOG, f), low) + ((high - sum) - half));
}
"""
#: sin(x + turns * pi/2) of |x| up to 2^17: x less n * pi/2 in three parts, of which the first two lose nothing but what `low`
#: holds, then the sine or the cosine of the rest, with what the square, the cube and the two largest sums lose: errors of 0.55
#: and 0.56. Larger numbers are rare, and double's one by one: hence functions of vectors, which may look whether there are any.
#: A processor without fused products has double's for all. ns a number, of double's before and of these, one thread of a Zen 5:
#: sine of float32 0.58 -> 0.41 (AVX2 0.90 -> 0.79), of bfloat16 0.70 -> 0.54, sine times cosine 1.06 -> 0.78.
CIRCULAR = r"""
#if defined(__FMA__) || defined(__aarch64__)
template <int turns> static FX float fx_circular(float x) {
  float t = fx_fused(x, 0x1.45f306p-1f, 0x1.8p23f), n = t - 0x1.8p23f;
  float part = n * 0x1.777a5cp-25f, high = fx_fused(n, -0x1.921fb6p+0f, x), r = high + part;
  float low = fx_fused(n, 0x1.ee59dap-50f, fx_fused(n, 0x1.777a5cp-25f, -part) + (part - (r - high)));
  float square = r * r, of_square = fx_fused(r, r, -square), half = 0.5f * square, w = 1 - half;
  float cube = r * square, of_cube = fx_fused(r, of_square, fx_fused(r, square, -cube));
  float y = fx_fused(cube, -0x1.555556p-3f, r), lost = fx_fused(w, low, fx_fused(cube, -0x1.555556p-3f, r - y));
  float sine = y + fx_fused(cube * square, POLYNOMIAL(SINE, square), fx_fused(of_cube, -0x1.555556p-3f, lost));
  lost = fx_fused(-y, low, fx_fused(-0.5f, of_square, (1 - w) - half));
  float cosine = w + fx_fused(square * square, POLYNOMIAL(COSINE, square), lost);
  uint32_t quarter = fx_bits(t) + turns;
  float turned = fx_float(fx_bits(quarter & 1 ? cosine : sine) ^ (quarter & 2) << 30);
  return turns == 0 && x == 0 ? x : turned; /* of -0 it is -0 */
}
static FX bool fx_turns_far(float x) { return !(__builtin_fabsf(x) <= 0x1p17f); }
#ifdef FX_WIDE_float
typedef float fx_number __attribute__((may_alias)); /* one of a vector */
#define FX_CIRCULAR(name, turns) \
  extern "C" FX_SIMD __attribute__((const)) float fx_own_##name(float) noexcept FX_NAMED("fx_own_" #name); \
  static __attribute__((used, noinline)) FX_LANES(float, 1) \
    fx_wide_own_##name(FX_LANES(float, 1) x) noexcept asm(FX_WIDE_float "v_fx_own_" #name); \
  static FX_LANES(float, 1) fx_wide_own_##name(FX_LANES(float, 1) x) noexcept { \
    FX_LANES(float, 1) y; \
    const fx_number *each = (const fx_number *)&x; \
    fx_number *result = (fx_number *)&y; \
    uint32_t far = 0; \
    _Pragma("omp simd reduction(|: far)") for (int i = 0; i < FX_VECTOR / 4; ++i) { \
      result[i] = fx_circular<turns>(each[i]); \
      far |= fx_turns_far(each[i]); \
    } \
    if (far) for (int i = 0; i < FX_VECTOR / 4; ++i) if (fx_turns_far(each[i])) result[i] = (float)name((double)each[i]); \
    return y; \
  } \
  FX_HALF(1, own_##name, float, "v_") FX_QUARTER(1, own_##name, float, "v_") \
  static __attribute__((used, noinline)) float fx_own_##name##_one(float x) noexcept asm("fx_own_" #name); \
  static float fx_own_##name##_one(float x) noexcept { return fx_wide_own_##name(x - FX_LANES(float, 1){})[0]; } \
  static FX float fx_##name(float x) { return fx_own_##name(x); }
#else
#define FX_CIRCULAR(name, turns) \
  static FX float fx_##name(float x) { return fx_turns_far(x) ? (float)name((double)x) : fx_circular<turns>(x); }
#endif
#else
#define FX_CIRCULAR(name, turns) \
  static FX float fx_##name(float x) { return (float)name((double)x + (turns ? 0.0 : -0.0)); } /* see APART */
#endif
"""
#: From 1/2 on by asin(a) = pi/2 - 2 * asin(s), s = sqrt((1 - a) / 2), with what the root and the largest sum lose.
ARCS = r"""
struct fx_arc { float s, rest; bool far; };
static FX fx_arc fx_arc_of(float a) {
  bool far = a > 0.5f;
  float z = far ? fx_fused(-0.5f, a, 0.5f) : a * a, root = __builtin_sqrtf(z), s = far ? root : a;
  float lost = far ? fx_fused(-root, root, z) * (0.5f / (root + 0x1p-100f)) : 0;
  return {s, fx_fused(s * z, POLYNOMIAL(ASIN, z), lost), far};
}
/* turns * pi/2 + times * what the arc is of */
static FX float fx_quarters(float turns, float times, fx_arc arc) {
  float pi = turns * 0x1.921fb6p+0f, sum = pi + times * arc.s, lost = (pi - sum) + times * arc.s;
  return sum + (lost + fx_fused(turns, -0x1.777a5cp-25f, times * arc.rest));
}
"""
#: Functions of float by themselves, and the functions of double that go with them.
INLINE = {
    "sin": "FX_CIRCULAR(sin, 0)",
    "cos": "FX_CIRCULAR(cos, 1)",
    "asin": r"""static FX float fx_asin(float x) {
  fx_arc arc = fx_arc_of(__builtin_fabsf(x));
  return __builtin_copysignf(fx_quarters(arc.far ? 1 : 0, arc.far ? -2 : 1, arc), x);
}""",
    "acos": r"""static FX float fx_acos(float x) {
  fx_arc arc = fx_arc_of(__builtin_fabsf(x));
  float far = x < 0 ? -2 : 2, near = x < 0 ? 1 : -1;
  return fx_quarters(arc.far ? (x < 0 ? 2 : 0) : 1, arc.far ? far : near, arc);
}""",
    # k * ln(2) / 2 + atanh(s) where (1 + a) / (1 - a) is 2^k * (1 + s) / (1 - s): one division of what double holds exactly.
    "atanh": r"""static FX float fx_atanh(float x) {
  float a = __builtin_fabsf(x);
  uint32_t k = (fx_bits((1 + a) / (1 - a)) - 0x3f3504f4u) >> 23;
  double scale = fx_double(((uint64_t)k + 1023) << 52), d = a;
  double s = fx_fma(d, 1 + scale, 1 - scale) / fx_fma(d, 1 - scale, 1 + scale), z = s * s;
  double q = fx_fma(fx_fma(0x1.ddae051676cfp-4, z, 0x1.245c0ad6402ap-3), z, 0x1.9999ebdd89092p-3);
  q = fx_fma(q, z, 0x1.5555554b9ea4ap-2);
  float y = (float)fx_fma(q * z, s, fx_fma((double)(int32_t)k, 0x1.62e42fefa39efp-2, s));
  y = a < 1 ? y : (a == 1 ? __builtin_inff() : __builtin_nanf(""));
  return x != x ? x : __builtin_copysignf(y, x);
}""",
    # Compared with what is not greater last, NaN and infinity are what they were.
    "exp": r"""static FX float fx_exp(float x) {
  float d = x < -104 ? -104 : x, t = fx_fused(d, 0x1.715476p+0f, 0x1.8p23f), n = t - 0x1.8p23f;
  float y = fx_exp_of_parts(t, fx_fused(n, -0x1.62e430p-1f, d), n * 0x1.05c610p-29f, d < -0x1.5d589ep+6f);
  return x <= 0x1.62e42ep+6f ? y : x + __builtin_inff();
}""",
    "exp2": r"""static FX float fx_exp2(float x) {
  float d = x < -151 ? -151 : x, t = d + 0x1.8p23f, r = d - (t - 0x1.8p23f), high = r * 0x1.62e430p-1f;
  float y = fx_exp_of_parts(t, high, fx_fused(r, -0x1.05c610p-29f, fx_fused(r, 0x1.62e430p-1f, -high)), d < -126);
  return x < 128 ? y : x + __builtin_inff();
}""",
    # Half of 2^n * exp(r) - 1, with what the sums of 2^n - 1, 2^n * r and half its square lose.
    "expm1": r"""static FX float fx_expm1(float x) {
  float d = x < -18 ? -18 : x, t = fx_fused(d, 0x1.715476p+0f, 0x1.8p23f), n = t - 0x1.8p23f;
  float high = fx_fused(n, -0x1.62e430p-1f, d), low = n * 0x1.05c610p-29f, square = high * high;
  float slope = fx_fused(0.455f, square, 1 + high), half = 0.5f * square;
  float rest = fx_fused(square * high, POLYNOMIAL(EXP, high), fx_fused(0.5f, fx_fused(high, high, -square), low * slope));
  float s = fx_float((fx_bits(t) + 126) << 23), base = s - 0.5f, first = fx_fused(s, high, base);
  float sum = fx_fused(s, half, first), lost = fx_fused(s, high, base - first) + fx_fused(s, half, first - sum);
  lost += (s - base) - 0.5f;
  float y = 2 * (sum + fx_fused(s, rest, lost));
  y = __builtin_fabsf(x) < 0x1p-25f ? x : y;
  return x <= 0x1.62e42ep+6f ? y : x + __builtin_inff();
}""",
    # Below the normal numbers of x * 2^23.
    "log": r"""#ifdef __AVX512F__ /* where MKL's, which ATen calls, errs by 0.55 */
static FX float fx_log(float x) { return fx_logarithm(x, 0x1.62e42fefa39efp-1, 1); }
#else
static FX float fx_log(float x) {
  uint32_t less = x < 0x1p-126f ? 0x0b800000u : 0;
  uint32_t u = fx_bits(x * fx_float(0x3f800000u + less)) - 0x3f3504f4u;
  float y = fx_log_of_parts(fx_mantissa(u), (float)((int32_t)(u - less) >> 23), 0);
  y = x < __builtin_inff() ? y : x;
  y = x < 0 ? __builtin_nanf("") : y;
  return x == 0 ? -__builtin_inff() : y;
}
#endif""",
    "log2": "static FX float fx_log2(float x) { return fx_logarithm(x, 1, 0x1.71547652b82fep+0); }",
    "log10": "static FX float fx_log10(float x) { return fx_logarithm(x, 0x1.34413509f79ffp-2, 0x1.bcb7b1526e50ep-2); }",
    # What 1 + x loses of x is added again.
    "log1p": r"""static FX float fx_log1p(float x) {
  float sum = 1 + x, lost = x - (sum - 1);
  uint32_t u = fx_bits(sum) - 0x3f3504f4u, n = u & 0xff800000u;
  float f = fx_mantissa(u), rest = lost * fx_float(0x3f800000u - n) * fx_fused(fx_fused(0.75f, f, -0.96f), f, 1.0f);
  float y = fx_log_of_parts(f, (float)((int32_t)n >> 23), x < 0x1p24f ? rest : 0);
  y = __builtin_fabsf(x) < 0x1p-25f ? x : y;
  y = x < __builtin_inff() ? y : x;
  y = x < -1 ? __builtin_nanf("") : y;
  return x == -1 ? -__builtin_inff() : y;
}""",
    # 2^(y * log2(|x|)) in double. Of 0 and infinity neither is calculated; y is made finite, its product with 0 being 0.
    "pow": r"""static FX float fx_pow(float x, float y) {
  float a = __builtin_fabsf(x);
  uint64_t u = fx_bits((double)a) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  double n = fx_double(0x4330000000000000u | u >> 52) - (0x1p52 + 1023);
  double f = fx_double((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1, s = f / (2 + f), z = s * s;
  uint32_t size = fx_bits(y) & 0x7fffffffu; size = size < 0x7b800000u ? size : 0x7b800000u;
  double p = (double)fx_float(size | (fx_bits(y) & 0x80000000u)) * fx_fused(POLYNOMIAL(LOG2_WIDE, z), s, n);
  p = p > -151 ? p : -151; p = p < 129 ? p : 129;
  double t = p + 0x1.8p52, r = p - (t - 0x1.8p52), e = fx_fused(POLYNOMIAL(EXP2_WIDE, r), r, 1.0);
  float v = (float)fx_double(fx_bits(e) + (fx_bits(t) << 52)), half = 0.5f * y;
  float far = y < 0 ? fx_float(0x7f800000u - fx_bits(a)) : a;
  v = a + a == a ? far : v;
  uint32_t odd = __builtin_floorf(half) != half ? 0x80000000u : 0;
  float whole = fx_float(fx_bits(v) | (odd & fx_bits(x))), broken = x < 0 ? __builtin_nanf("") : v;
  broken = a < __builtin_inff() ? broken : v;
  v = __builtin_floorf(y) == y ? whole : broken;
  v = x != x ? x : v;
  v = y != y ? y : v;
  v = y == 0 ? 1 : v;
  return x == 1 ? 1 : v;
}""",
    "tanh": r"""static FX float fx_tanh(float x) {
  float a = __builtin_fabsf(x);
  double e = fx_expm1_wide(2 * (double)(a > 10 ? 10 : a));
  return __builtin_copysignf((float)(e / (e + 2)), x);
}""",
    # erf(x) = 1 - exp(-x * q(x)), q = -log(erfc(x)) / x, which is 1 in float from 3.92 on.
    "erf": r"""static FX float fx_erf(float x) {
  float a = __builtin_fabsf(x);
  double d = a > 3.94f ? 3.94f : a;
  double q = fx_fma(0x1.e4b42159a3babp-32, d, -0x1.d4bc6ac884d10p-27);
  q = fx_fma(fx_fma(fx_fma(q, d, 0x1.98155814cb89bp-23), d, -0x1.a336b21dbf022p-20), d, 0x1.14ed22db5a377p-17);
  q = fx_fma(fx_fma(fx_fma(q, d, -0x1.d1ff384aa1c11p-16), d, 0x1.8a21e30a721b7p-15), d, 0x1.f0614fb8659b4p-15);
  q = fx_fma(fx_fma(fx_fma(q, d, -0x1.489748230592bp-11), d, 0x1.c35e6d34445d6p-10), d, -0x1.ce71dcbb8383cp-13);
  q = fx_fma(fx_fma(fx_fma(q, d, -0x1.395a1eba15fc0p-6), d, 0x1.a4f4770faa683p-4), d, 0x1.45f30793adb31p-1);
  return __builtin_copysignf((float)-fx_expm1_wide(-d * fx_fma(q, d, 0x1.20dd75035bd0fp+0)), x);
}""",
    # The squares of floats neither leave double's range nor lose a bit there.
    "hypot": r"""static FX float fx_hypot(float x, float y) {
  float h = (float)__builtin_sqrt((double)x * x + (double)y * y);
  return fx_isinf(x) || fx_isinf(y) ? __builtin_inff() : h;
}""",
}

#: What is needed beside COMMON, and by which of them.
PARTS = (
    (EXP_OF_PARTS, {"exp", "exp2"}), (LOG_OF_PARTS, {"log", "log1p"}), (CIRCULAR, {"sin", "cos"}), (ARCS, {"asin", "acos"}),
)  # fmt: skip

#: exp of double: 1 + r + r*r/2 with what each sum loses, and r^3 * p(r); scaled in two steps, of which none leaves the range.
EXP_OF_DOUBLE = r"""
#if defined(__FMA__) || defined(__aarch64__)
static FX double fx_exp(double x) {
  double d = x < -746 ? -746 : x; d = d > 710 ? 710 : d;
  double t = d * 0x1.71547652b82fep+0 + 0x1.8p52, n = t - 0x1.8p52;
  double high = __builtin_fma(n, -0x1.62e42fefa39efp-1, d), low = n * -0x1.abc9e3b39803fp-56;
  double r = high + low, rest = low - (r - high), half = 0.5 * r, square = half * r;
  double p = fx_fma(0x1.1f66df7fca49fp-29, r, 0x1.af38a9b0ec855p-26);
  p = fx_fma(fx_fma(fx_fma(p, r, 0x1.27e4e1f48534fp-22), r, 0x1.71de0dae63bb3p-19), r, 0x1.a01a01a47b054p-16);
  p = fx_fma(fx_fma(fx_fma(p, r, 0x1.a01a01a7c41d5p-13), r, 0x1.6c16c16c167e1p-10), r, 0x1.11111111109b3p-7);
  p = fx_fma(fx_fma(p, r, 0x1.5555555555555p-5), r, 0x1.5555555555556p-3);
  double one = 1 + r, sum = one + square;
  double beside = (one < 1 ? n - 1 : n) < -1022 ? fx_double(0x0010000000000000u - (fx_bits(t) << 52)) : 0;
  double lost = (r - (one - 1)) + (square - (sum - one)) + (__builtin_fma(half, r, -square) + rest * one);
  double tail = __builtin_fma(square * 2 * r, p, lost), total = sum + beside;
  double y = total + ((sum - (total - beside)) + tail) - beside;
  double t1 = n * 0.5 + 0x1.8p52, t2 = n - (t1 - 0x1.8p52) + 0x1.8p52;
  y *= fx_double(0x3ff0000000000000u + (fx_bits(t1) << 52));
  return y * fx_double(0x3ff0000000000000u + (fx_bits(t2) << 52));
}
#else
static FX double fx_exp(double x) { return exp(x); }
#endif
"""


#: Those that are not libm's, and the elementary functions that they call.
OTHERS = {
    "exp_below": ("exp",), "sigmoid": ("exp",), "silu": ("exp",), "gelu": ("erfc", "exp"), "gelu_slope": ("erfc", "exp"),
    "normal_cdf": ("erfc", "exp"),
    "softplus": ("exp", "log1p"), "logaddexp": ("exp", "log1p"),
}  # fmt: skip
EXP_BELOW = r"""
/* exp of what is not positive, or NaN: 2^n times exp of what is left, as 1 + f + f*f*q(f); 0 below the least normal result. */
#ifndef __ASSOCIATIVE_MATH__
static FX float fx_exp_below(float x) {
  float r = fx_fused(x, 0x1.715476p+0f, 0x1.8000fep+23f), n = r - 0x1.8000fep+23f; /* n + 127 in r's last bits */
  float f = fx_fused(n, 0x1.05c610p-29f, fx_fused(n, -0x1.62e430p-1f, x));
  float q = fx_fused(0x1.6a241cp-10f, f, 0x1.1239f6p-7f);
  q = fx_fused(fx_fused(fx_fused(q, f, 0x1.5558f2p-5f), f, 0x1.555492p-3f), f, 0x1.fffffcp-2f);
  float y = (1 + fx_fused(q, f * f, f)) * fx_float(fx_bits(r) << 23);
  return x < -87.33f ? 0 : y;
}
#else
static FX float fx_exp_below(float x) { return fx_exp(x); }
#endif
static FX double fx_exp_below(double x) { return fx_exp(x); }
"""
#: exp of -|x| with results below the normal numbers, which the sigmoids of what is below -87 are: scaled in two steps.
SIGMOIDS = r"""
#ifndef __ASSOCIATIVE_MATH__
static FX float fx_exp_of_negated(float x) {
  float a = -__builtin_fabsf(x); a = a < -104 ? -104 : a;
  float r = fx_fused(a, 0x1.715476p+0f, 0x1.80017ep+23f), n = r - 0x1.80017ep+23f; /* n + 191 in r's last bits */
  float f = fx_fused(n, 0x1.05c610p-29f, fx_fused(n, -0x1.62e430p-1f, a));
  float q = fx_fused(0x1.6d30d2p-10f, f, 0x1.120c8ep-7f);
  q = fx_fused(fx_fused(fx_fused(q, f, 0x1.555500p-5f), f, 0x1.5554dcp-3f), f, 0.5f);
  float one = 1 + f, y = one + fx_fused(q, f * f, f - (one - 1));
  return y * fx_float(fx_bits(r) << 23) * 0x1p-64f;
}
#else
static FX float fx_exp_of_negated(float x) { return fx_exp(-__builtin_fabsf(x)); }
#endif
static FX float fx_sigmoid(float x) { float e = fx_exp_of_negated(x); return (x < 0 ? e : 1) / (1 + e); }
static FX float fx_silu(float x) { float e = fx_exp_of_negated(x); return (x < 0 ? x * e : x) / (1 + e); }
static FX double fx_sigmoid(double x) { return 1 / (1 + fx_exp(-x)); }
static FX double fx_silu(double x) { return x / (1 + fx_exp(-x)); }
"""
#: x * cdf(x) and its derivative, cdf the normal distribution's. Its tail above a = |x| is exp(-a^2/2) * (1 - u) / 4 * q(u),
#: u = a / (a + 4); from 16 on 0. x - x is NaN of an infinity, which is what gelu(-inf) is. What times g is a number of a half
#: type may itself be below the normal numbers: it is calculated 2^64 times as large.
GELU = r"""
#ifndef __ASSOCIATIVE_MATH__
static FX float fx_normal(float a) { /* exp(-a^2/2) * 2^64, a from 0 to 16 */
  float s = a * a, t = fx_fused(s, -0x1.715476p-1f, 0x1.80008p23f), g = fx_fused(s, -0x1.715476p-1f, 0x1.80008p23f - t);
  return fx_float(fx_bits(fx_fused(POLYNOMIAL(EXP2, g), g, 1.0f)) + (fx_bits(t) << 23));
}
static FX float fx_gelu(float x) {
  float a = __builtin_fabsf(x), u = a / (a + 4), e = fx_normal(a) * u * POLYNOMIAL(MILLS, u) * 0x1p-64f;
  e = a >= 16 ? 0 : e;
  float y = x - (x < 0 ? x : 0) - e;
#ifdef __AVX512F__ /* where ATen's, oneDNN's, errs by less than 2 units around 0 */
  float s = x * x;
  y = a < 1 ? x * fx_fused(x, POLYNOMIAL(CENTRE, s), 0.5f) : y;
#endif
  return __builtin_copysignf(y, x); /* x - x is 0, where it is -0 */
}
static FX float fx_normal_cdf(float x) {
  float a = __builtin_fabsf(x), u = a / (a + 4), tail = POLYNOMIAL(MILLS, u) * (0.25f - 0.25f * u), s = x * x;
  float e = fx_normal(a) * tail * 0x1p-64f;
  e = a >= 16 ? 0 : e;
  e = x < 0 ? e : 1 - e;
  return a < 1 ? fx_fused(x, POLYNOMIAL(CENTRE, s), 0.5f) : e;
}
static FX float fx_gelu_slope(float x) {
  float a = __builtin_fabsf(x), u = a / (a + 4), tail = POLYNOMIAL(MILLS, u) * (0.25f - 0.25f * u);
  float e = fx_normal(a) * fx_fused(-0x1.988454p-2f, a, tail) * 0x1p-64f;
  e = a >= 16 ? 0 * a : e;
  return x < 0 ? e : 1 - e;
}
#else
static FX float fx_normal_cdf(float x) { return 0.5f * fx_erfc(-0x1.6a09e6p-1f * x); }
static FX float fx_gelu(float x) { return 0.5f * x * fx_erfc(-0x1.6a09e6p-1f * x); }
static FX float fx_gelu_slope(float x) {
  return 0.5f * fx_erfc(-0x1.6a09e6p-1f * x) + 0x1.988454p-2f * x * fx_exp(-0.5f * x * x);
}
#endif
static FX double fx_normal_cdf(double x) { return 0.5 * fx_erfc(-0x1.6a09e667f3bcdp-1 * x); }
static FX double fx_gelu(double x) { return 0.5 * x * fx_erfc(-0x1.6a09e667f3bcdp-1 * x); }
static FX double fx_gelu_slope(double x) {
  return 0.5 * fx_erfc(-0x1.6a09e667f3bcdp-1 * x) + 0x1.9884533d43651p-2 * x * fx_exp(-0.5 * x * x);
}
"""
#: log(1 + exp(x)): of e = exp(-|x|) as e - s * (e - s^2 * q(s^2)), s = e / (2 + e), with what rounding e, s and the sum with x
#: lost.
SOFTPLUS = r"""
#ifndef __ASSOCIATIVE_MATH__
static FX float fx_softplus(float x) {
  float a = -__builtin_fabsf(x), d = a < -104 ? -104 : a, t = fx_fused(d, 0x1.715476p+0f, 0x1.8p23f), n = t - 0x1.8p23f;
  float high = fx_fused(n, -0x1.62e430p-1f, d), low = n * 0x1.05c610p-29f, one = 1 + high, square = high * high;
  float lost = fx_fused(low, fx_fused(0.455f, square, one), high - (one - 1));
  float tail = fx_fused(0.5f, square, fx_fused(square * high, POLYNOMIAL(EXP, high), lost));
  float y = one + tail, scale = fx_float((fx_bits(t) + 191) << 23), e = y * scale * 0x1p-64f; /* n + 191: above 0 */
  float rest = (tail - (y - one)) * scale * 0x1p-64f, sum = 2 + e, s = e / sum, z = s * s;
  float of_s = fx_fused(-s, e - (sum - 2), fx_fused(-s, sum, e)) * s;
  rest = fx_fused(-s, fx_fused(-z, POLYNOMIAL(ATANH, z), e), fx_fused(rest, fx_fused(s, -1.5f, 1.0f), -of_s));
  float top = x > 0 ? x : 0, whole = top + e, larger = top > e ? top : e, smaller = top > e ? e : top;
  return top > 90 ? top : whole + (rest + (smaller - (whole - larger)));
}
#else
static FX float fx_softplus(float x) { return (x > 0 ? x : 0) + fx_log1p(fx_exp(-__builtin_fabsf(x))); }
#endif
static FX double fx_softplus(double x) { return (x > 0 ? x : 0) + fx_log1p(fx_exp(-__builtin_fabs(x))); }
"""
LOGADDEXP = r"""static inline double fx_logaddexp(double a, double b) {
  double low = (b < a || b != b) ? b : a, high = (b > a || b != b) ? b : a;
  return low == high && fx_isinf(low) ? a : fx_log1p(fx_exp(low - high)) + high;
}"""
#: Functions that are not libm's, in the order they call each other: those defined by a text, and the text.
HELPERS = (
    (("exp_below",), EXP_BELOW), (("sigmoid", "silu"), SIGMOIDS), (("gelu", "gelu_slope", "normal_cdf"), GELU),
    (("softplus",), SOFTPLUS), (("logaddexp",), LOGADDEXP),
)  # fmt: skip


#: What is added to an argument so that GCC makes no one call of the sine and the cosine of a number, for which there is no
#: vector form: 12 ns an element on a Zen 5, where two calls of vectors take 1.1. Nothing but the sign of a zero changes. Where
#: signs of zeros do not count (`cpp.fast_math`) it makes that call all the same.
APART = {"cos": " + 0.0"}


def called_functions(source: str) -> list[str]:
    """The elementary functions of libm's names that `source` needs."""
    called = set(re.findall(r"\bfx_(\w+)(?=\()", source))
    called.update(*(OTHERS[name] for name in called & OTHERS.keys()))
    return [name for name in (*MATH, *NOT_VECTOR_MATH) if name in called and name != "fmod"]


def functions(source: str, fast: bool) -> tuple[str, list[str]]:
    """(definitions of what `source` calls, the functions of libm that these call)"""
    names = called_functions(source)
    needed = [text for text, of in PARTS if of & {*names}]
    parts: list[str] = [] if fast or not names else [COMMON, *needed]
    calls: list[str] = []
    for name in names:
        arguments = ("x",) if SCALARS[name].arity == 1 else ("x", "y")
        single = forward(name, "float", f"{name}f", arguments) if fast else forward(name, "float", name, arguments, "(double)")
        parts.append(single if fast else INLINE.get(name, single))
        parts.append(EXP_OF_DOUBLE if name == "exp" and not fast else forward(name, "double", name, arguments))
        calls += [f"{name}f", name] if fast else [name]
    parts += [text for calls_of, text in HELPERS if any(f"fx_{call}(" in source for call in calls_of)]
    return with_polynomials("".join(part + "\n" for part in parts)), calls


def forward(name: str, ctype: str, call: str, arguments: tuple[str, ...], cast: str = "") -> str:
    """A function that is libm's of the same arguments."""
    parameters = ", ".join(f"{ctype} {each}" for each in arguments)
    given = ", ".join(cast + each + APART.get(name, "") for each in arguments)
    return f"static FX {ctype} fx_{name}({parameters}) {{ return ({ctype}){call}({given}); }}"
