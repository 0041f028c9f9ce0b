/* The exponential function of vectors, for kernels of our own (_wide.h comes first). */
#ifndef FXJIT_EXPONENTIAL_H
#define FXJIT_EXPONENTIAL_H

#include "_wide.h"

/* (exp(r) - 1 - r - r^2 / 2) / r^3 for |r| <= ln(2) / 2: codegen/polynomials.py */
WIDE INLINED vec_t
cubes(vec_t r)
{
    vec_t p = vec_fma(vec_all(0x1.9dfba2p-13f), r, vec_all(0x1.6d4cbap-10f));
    p = vec_fma(p, r, vec_all(0x1.11130ep-7f));
    p = vec_fma(p, r, vec_all(0x1.5554e8p-5f));
    return vec_fma(p, r, vec_all(0x1.555554p-3f));
}

/* exp(x) for x <= 126, to an ulp; zero below -128, and of minus infinity. NaN stays. */
WIDE INLINED vec_t
exp_of(vec_t x)
{
    x = vec_max(vec_all(-128), x);
    vec_t n = vec_round(vec_mul(x, vec_all(0x1.715476p+0f))), r = vec_fma(n, vec_all(-0x1.62e430p-1f), x);
    r = vec_fma(n, vec_all(0x1.05c610p-29f), r);
    vec_t p = vec_fma(vec_fma(cubes(r), r, vec_all(0.5f)), vec_mul(r, r), r);
    return vec_scale(vec_add(p, vec_all(1)), n);
}

#endif
