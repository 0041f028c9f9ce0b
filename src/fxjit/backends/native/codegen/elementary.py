"""Elementary functions of kernels: `fx_NAME`, for float and double, no less accurate than ATen's.

libmvec's float functions err by up to 4 units in the last place, ATen's by 0.5 to 1. Those here compute in double and round
once (0.51), also in vectors: the frequent ones inline, without tables or jumps, the others by libmvec's double functions, whose
4 units of double are none of float. The polynomials are Chebyshev fits (mpmath.chebyfit, 40 digits) to relative errors of 2^-31
and less. Of double's functions only `exp` is made here, of a sum in two parts; ATen is called for others (lower/accuracy.py).

With `config.cpp.fast_math` all are libmvec's own.
"""

from __future__ import annotations

import re

from ..ops import MATH, NOT_VECTOR_MATH, SCALARS

#: What several functions are made of. `fx_scale` holds n in the last bits of 1.5 * 2^52 + n.
COMMON = r"""
static FX double fx_double(uint64_t u) { double x; __builtin_memcpy(&x, &u, 8); return x; }
static FX uint64_t fx_bits(double x) { uint64_t u; __builtin_memcpy(&u, &x, 8); return u; }
/* exp(r) - 1 for |r| <= ln(2) / 2 */
static FX double fx_expm1_small(double r) {
  double q = fx_fma(0x1.a124f19fe89acp-13, r, 0x1.6d43246b523b4p-10);
  q = fx_fma(fx_fma(q, r, 0x1.1110e0f238322p-7), r, 0x1.5554e9063586ep-5);
  q = fx_fma(fx_fma(q, r, 0x1.5555555a78ed4p-3), r, 0x1.0000000b9129bp-1);
  return fx_fma(q, r * r, r);
}
/* 2^n * exp(r), and minus 1, of a number of moderate size: n is rounded off by adding 1.5 * 2^52. */
static FX double fx_exp_wide(double x) {
  double t = x * 0x1.71547652b82fep+0 + 0x1.8p52, r = fx_fma(t - 0x1.8p52, -0x1.62e42fefa39efp-1, x);
  return fx_double(fx_bits(1 + fx_expm1_small(r)) + (fx_bits(t) << 52));
}
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
static FX float fx_between(float x, float low, float high) { x = x < low ? low : x; return x > high ? high : x; }
"""

#: Functions of float by themselves, and the functions of double that go with them.
INLINE = {
    # As of double (below), in half the time that double takes: 0.53.
    "exp": r"""
#if defined(__FMA__) || defined(__aarch64__)
static FX float fx_exp(float x) {
  float d = fx_between(x, -104, 89), t = __builtin_fmaf(d, 0x1.715476p+0f, 0x1.8p23f), n = t - 0x1.8p23f;
  float high = __builtin_fmaf(n, -0x1.62e430p-1f, d), low = n * 0x1.05c610p-29f;
  float r = high + low, rest = low - (r - high), half = 0.5f * r, square = half * r;
  float q = __builtin_fmaf(0x1.a0f89ap-13f, r, 0x1.6d113cp-10f);
  q = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(q, r, 0x1.1110f6p-7f), r, 0x1.55551ap-5f), r, 0x1.555556p-3f);
  float one = 1 + r, sum = one + square;
  float lost = (r - (one - 1)) + (square - (sum - one)) + __builtin_fmaf(rest, one, __builtin_fmaf(half, r, -square));
  float tail = __builtin_fmaf(square * 2 * r, q, lost);
  /* Below the normal numbers rounding has to be to fewer bits: those left beside a larger number. */
  int32_t k = (int32_t)(fx_bits(t) - 0x4b400000u), k1 = k >> 1;
  float beside = k < -126 + (one < 1) ? fx_float((uint32_t)(1 - k) << 23) : 0, total = sum + beside;
  float y = total + ((sum - (total - beside)) + tail) - beside;
  return y * fx_float((uint32_t)(k1 + 127) << 23) * fx_float((uint32_t)(k - k1 + 127) << 23);
}
#else
static FX float fx_exp(float x) { return (float)fx_exp_wide(fx_between(x, -104, 89)); }
#endif""",
    "exp2": r"""static FX float fx_exp2(float x) {
  double d = fx_between(x, -151, 129), t = d + 0x1.8p52, r = (d - (t - 0x1.8p52)) * 0x1.62e42fefa39efp-1;
  return (float)fx_double(fx_bits(1 + fx_expm1_small(r)) + (fx_bits(t) << 52));
}""",
    "expm1": r"""static FX float fx_expm1(float x) {
  float y = (float)fx_expm1_wide(fx_between(x, -104, 89));
  return x == 0 ? x : y;
}""",
    "log": "static FX float fx_log(float x) { return fx_logarithm(x, 0x1.62e42fefa39efp-1, 1); }",
    "log2": "static FX float fx_log2(float x) { return fx_logarithm(x, 1, 0x1.71547652b82fep+0); }",
    "log10": "static FX float fx_log10(float x) { return fx_logarithm(x, 0x1.34413509f79ffp-2, 0x1.bcb7b1526e50ep-2); }",
    # What 1 + x loses of x is added again.
    "log1p": r"""static FX float fx_log1p(float x) {
  double d = x, u = 1 + d, lost = d < 1 ? d - (u - 1) : 0;
  float y = (float)(fx_log_wide(u, 0x1.62e42fefa39efp-1, 1) + lost);
  y = x < __builtin_inff() ? y : x;
  y = x > -1 ? y : (x == -1 ? -__builtin_inff() : __builtin_nanf(""));
  return x != x || x == 0 ? x : y;
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
OTHERS = {"exp_below": ("exp",), "logaddexp": ("exp", "log1p")}
EXP_BELOW = r"""
/* exp of what is not positive, or NaN: 2^n times exp of what is left, as 1 + f + f*f*q(f); 0 below the least normal result. */
#if (defined(__FMA__) || defined(__aarch64__)) && !defined(__ASSOCIATIVE_MATH__)
static FX float fx_exp_below(float x) {
  float r = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.8000fep+23f), n = r - 0x1.8000fep+23f; /* n + 127 in r's last bits */
  float f = __builtin_fmaf(n, 0x1.05c610p-29f, __builtin_fmaf(n, -0x1.62e430p-1f, x));
  float q = __builtin_fmaf(0x1.6a241cp-10f, f, 0x1.1239f6p-7f);
  q = __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(q, f, 0x1.5558f2p-5f), f, 0x1.555492p-3f), f, 0x1.fffffcp-2f);
  float y = (1 + __builtin_fmaf(q, f * f, f)) * fx_float(fx_bits(r) << 23);
  return x < -87.33f ? 0 : y;
}
#else
static FX float fx_exp_below(float x) { return fx_exp(x); }
#endif
static FX double fx_exp_below(double x) { return fx_exp(x); }
"""
LOGADDEXP = r"""static inline double fx_logaddexp(double a, double b) {
  double low = (b < a || b != b) ? b : a, high = (b > a || b != b) ? b : a;
  return low == high && fx_isinf(low) ? a : fx_log1p(fx_exp(low - high)) + high;
}"""


def called_functions(source: str) -> list[str]:
    """The elementary functions of libm's names that `source` needs."""
    called = set(re.findall(r"\bfx_(\w+)(?=\()", source))
    called.update(*(OTHERS[name] for name in called & OTHERS.keys()))
    return [name for name in (*MATH, *NOT_VECTOR_MATH) if name in called and name != "fmod"]


def functions(source: str, fast: bool) -> tuple[str, list[str]]:
    """(definitions of what `source` calls, the functions of libm that these call)"""
    names = called_functions(source)
    parts: list[str] = [] if fast or not names else [COMMON]
    calls: list[str] = []
    for name in names:
        arguments = ("x",) if SCALARS[name].arity == 1 else ("x", "y")
        single = forward(name, "float", f"{name}f", arguments) if fast else forward(name, "float", name, arguments, "(double)")
        parts.append(single if fast else INLINE.get(name, single))
        parts.append(EXP_OF_DOUBLE if name == "exp" and not fast else forward(name, "double", name, arguments))
        calls += [f"{name}f", name] if fast else [name]
    parts += [text for call, text in (("fx_exp_below(", EXP_BELOW), ("fx_logaddexp(", LOGADDEXP)) if call in source]
    return "".join(part + "\n" for part in parts), calls


def forward(name: str, ctype: str, call: str, arguments: tuple[str, ...], cast: str = "") -> str:
    """A function that is libm's of the same arguments."""
    parameters = ", ".join(f"{ctype} {each}" for each in arguments)
    given = ", ".join(cast + each for each in arguments)
    return f"static FX {ctype} fx_{name}({parameters}) {{ return ({ctype}){call}({given}); }}"
