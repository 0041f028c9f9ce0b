/* Elementwise work of one step of LSTM, GRU and RNN, a row of the batch at a time, and its derivative (_recurrent_rows.h). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "_recurrent.h"
#include "_recurrent_rows.h"
#include "_wide.h"

#ifdef FXJIT_HAS_WIDE

/* -- functions -----------------------------------------------------------------------------------------------------*/

/* (exp(r) - 1 - r - r^2 / 2) / r^3 for |r| <= ln(2) / 2: codegen/polynomials.py */
WIDE static inline __m512
cubes(__m512 r)
{
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0x1.9dfba2p-13f), r, _mm512_set1_ps(0x1.6d4cbap-10f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.11130ep-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.5554e8p-5f));
    return _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.555554p-3f));
}

/* exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), with what its sums lose. */
WIDE static inline __m512
less_one(__m512 x, __m512 *lost)
{
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 high = _mm512_fmadd_ps(n, _mm512_set1_ps(-0x1.62e430p-1f), x), low = _mm512_mul_ps(n, _mm512_set1_ps(0x1.05c610p-29f));
    __m512 square = _mm512_mul_ps(high, high), p = cubes(high);
    /* r + r^2 / 2 + r^3 p: the first number, and all else */
    __m512 one = _mm512_set1_ps(1), rest = _mm512_mul_ps(square, _mm512_fmadd_ps(p, high, _mm512_set1_ps(0.5f)));
    rest = _mm512_fmadd_ps(low, _mm512_add_ps(one, high), rest);
    __m512 scale = _mm512_scalef_ps(one, n), base = _mm512_sub_ps(scale, one);
    __m512 first = _mm512_fmadd_ps(scale, high, base), error = _mm512_fmadd_ps(scale, high, _mm512_sub_ps(base, first));
    rest = _mm512_fmadd_ps(scale, rest, error);
    __m512 sum = _mm512_add_ps(first, rest);
    *lost = _mm512_sub_ps(rest, _mm512_sub_ps(sum, first));
    return sum;
}

/* e / (e + 2), e = exp(2 |x|) - 1, once more with what is left. */
WIDE static inline __m512
tanh_of(__m512 x)
{
    __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f)), a = _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x), low;
    a = _mm512_min_ps(_mm512_set1_ps(10), a); /* NaN stays */
    __m512 e = less_one(_mm512_add_ps(a, a), &low), two = _mm512_set1_ps(2), d = _mm512_add_ps(e, two);
    __m512 q = _mm512_div_ps(e, d), lost = _mm512_add_ps(_mm512_sub_ps(e, _mm512_sub_ps(d, two)), low);
    __m512 left = _mm512_add_ps(_mm512_fnmadd_ps(q, d, e), _mm512_fnmadd_ps(q, lost, low));
    q = _mm512_fmadd_ps(left, _mm512_rcp14_ps(d), q);
    return _mm512_or_ps(q, sign);
}

/* 1 / (1 + exp(-x)); exp(126) is infinite. */
WIDE static inline __m512
sigmoid_of(__m512 x)
{
    __m512 y = _mm512_sub_ps(_mm512_setzero_ps(), x);
    y = _mm512_max_ps(_mm512_set1_ps(-126), _mm512_min_ps(_mm512_set1_ps(126), y)); /* NaN stays */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(y, _mm512_set1_ps(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0x1.62e430p-1f), y), one = _mm512_set1_ps(1);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(0x1.05c610p-29f), r);
    __m512 p = cubes(r);
    p = _mm512_fmadd_ps(_mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f)), _mm512_mul_ps(r, r), r);
    return _mm512_div_ps(one, _mm512_add_ps(_mm512_scalef_ps(_mm512_add_ps(p, one), n), one));
}

/* -- one row of a step ---------------------------------------------------------------------------------------------*/

WIDE static inline __m512
sum_of(const row_t *row, int gate, int64_t at, __mmask16 there)
{
    int64_t wide = gate * row->wide + at;
    __m512 sum = _mm512_add_ps(_mm512_loadu_ps(row->bias + wide), _mm512_loadu_ps(row->sums + wide));
    return row->input == NULL ? sum : _mm512_add_ps(sum, LOAD(row->input + gate * row->size + at));
}

WIDE static inline __attribute__((always_inline)) void
step_row(const row_t *row, int kind)
{
    int64_t size = row->size;
    for (int64_t at = row->begin; at < row->end; at += LANES) {
        __mmask16 there = first_lanes(row->end - at);
        float *gates = row->gates + at;
        __m512 h;
        if (kind == LSTM) {
            __m512 i = sigmoid_of(sum_of(row, 0, at, there)), f = sigmoid_of(sum_of(row, 1, at, there));
            __m512 g = tanh_of(sum_of(row, 2, at, there)), o = sigmoid_of(sum_of(row, 3, at, there));
            __m512 before = LOAD(row->c + at), c = _mm512_fmadd_ps(f, before, _mm512_mul_ps(i, g));
            STORE(row->c + at, c);
            h = _mm512_mul_ps(o, tanh_of(c));
            if (row->cells != NULL) {
                STORE(gates, i);
                STORE(gates + size, f);
                STORE(gates + 2 * size, g);
                STORE(gates + 3 * size, o);
                STORE(row->cells + at, before);
            }
        }
        else if (kind == GRU) {
            __m512 r = sigmoid_of(sum_of(row, 0, at, there)), z = sigmoid_of(sum_of(row, 1, at, there));
            const float *last = row->sums + 3 * row->wide;
            __m512 inner = _mm512_add_ps(_mm512_loadu_ps(last + at), _mm512_loadu_ps(row->bias + 3 * row->wide + at));
            __m512 n = tanh_of(_mm512_fmadd_ps(r, inner, sum_of(row, 2, at, there)));
            h = _mm512_fmadd_ps(z, _mm512_sub_ps(LOAD(row->h + at), n), n);
            if (row->cells != NULL) {
                STORE(gates, r);
                STORE(gates + size, z);
                STORE(gates + 2 * size, n);
                STORE(row->cells + at, inner);
            }
        }
        else {
            __m512 sum = sum_of(row, 0, at, there);
            h = kind == RNN_TANH ? tanh_of(sum) : _mm512_max_ps(_mm512_setzero_ps(), sum); /* NaN stays */
            if (row->cells != NULL) {
                STORE(row->cells + at, h);
            }
        }
        STORE(row->h_next + at, h);
        STORE(row->out + at, h);
    }
}

#define STEP(kind) \
    WIDE static void forward_##kind(const row_t *row) \
    { \
        step_row(row, kind); \
    }
STEP(LSTM) STEP(GRU) STEP(RNN_TANH) STEP(RNN_RELU)
void (*const fxjit_forward_rows[])(const row_t *) = {forward_LSTM, forward_GRU, forward_RNN_TANH, forward_RNN_RELU};

WIDE static inline __m512
slope_of_sigmoid(__m512 y)
{
    return _mm512_fnmadd_ps(y, y, y);
}

WIDE static inline __attribute__((always_inline)) void
step_row_back(const back_row_t *row, int kind)
{
    int64_t size = row->size;
    __m512 one = _mm512_set1_ps(1);
    for (int64_t at = row->begin; at < row->end; at += LANES) {
        __mmask16 there = first_lanes(row->end - at);
        const float *gates = row->gates + at;
        float *to = row->d_gates + at;
        __m512 d = LOAD(row->d + at);
        if (row->d_out != NULL) {
            d = _mm512_add_ps(d, LOAD(row->d_out + at));
        }
        if (kind == LSTM) {
            __m512 i = LOAD(gates), f = LOAD(gates + size), g = LOAD(gates + 2 * size), o = LOAD(gates + 3 * size);
            __m512 before = LOAD(row->cells + at), t = tanh_of(_mm512_fmadd_ps(f, before, _mm512_mul_ps(i, g)));
            __m512 d_o = _mm512_mul_ps(d, o);
            __m512 d_c = _mm512_fmadd_ps(d_o, _mm512_fnmadd_ps(t, t, one), LOAD(row->d_c + at));
            STORE(to, _mm512_mul_ps(_mm512_mul_ps(d_c, g), slope_of_sigmoid(i)));
            STORE(to + size, _mm512_mul_ps(_mm512_mul_ps(d_c, before), slope_of_sigmoid(f)));
            STORE(to + 2 * size, _mm512_mul_ps(_mm512_mul_ps(d_c, i), _mm512_fnmadd_ps(g, g, one)));
            STORE(to + 3 * size, _mm512_mul_ps(_mm512_mul_ps(d, t), slope_of_sigmoid(o)));
            STORE(row->d_c + at, _mm512_mul_ps(d_c, f));
        }
        else if (kind == GRU) {
            __m512 r = LOAD(gates), z = LOAD(gates + size), n = LOAD(gates + 2 * size);
            __m512 d_n = _mm512_mul_ps(_mm512_mul_ps(d, _mm512_sub_ps(one, z)), _mm512_fnmadd_ps(n, n, one));
            __m512 d_z = _mm512_mul_ps(_mm512_mul_ps(d, _mm512_sub_ps(LOAD(row->h_before + at), n)), slope_of_sigmoid(z));
            STORE(to, _mm512_mul_ps(_mm512_mul_ps(d_n, LOAD(row->cells + at)), slope_of_sigmoid(r)));
            STORE(to + size, d_z);
            STORE(to + 2 * size, d_n);
            STORE(row->d_inner + at, _mm512_mul_ps(d_n, r));
            STORE(row->d + at, _mm512_mul_ps(d, z));
        }
        else {
            __m512 y = LOAD(row->cells + at);
            if (kind == RNN_TANH) {
                d = _mm512_mul_ps(d, _mm512_fnmadd_ps(y, y, one));
            }
            else {
                d = _mm512_mask_mov_ps(d, _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LE_OQ), _mm512_setzero_ps());
            }
            STORE(to, d);
        }
    }
}

#define STEP_BACK(kind) \
    WIDE static void backward_##kind(const back_row_t *row) \
    { \
        step_row_back(row, kind); \
    }
STEP_BACK(LSTM) STEP_BACK(GRU) STEP_BACK(RNN_TANH) STEP_BACK(RNN_RELU)
void (*const fxjit_backward_rows[])(const back_row_t *) = {backward_LSTM, backward_GRU, backward_RNN_TANH, backward_RNN_RELU};

#endif
