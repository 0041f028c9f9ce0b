/* Elementwise work of one step of LSTM, GRU and RNN, a row of the batch at a time, and its derivative (_recurrent_rows.h). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "_wide.h"
#include "_exponential.h"
#include "_recurrent.h"
#include "_recurrent_rows.h"

#ifdef FXJIT_HAS_WIDE

/* -- functions -----------------------------------------------------------------------------------------------------*/

/* exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), with what its sums lose. */
WIDE static inline vec_t
less_one(vec_t x, vec_t *lost)
{
    vec_t n = vec_round(vec_mul(x, vec_all(0x1.715476p+0f)));
    vec_t high = vec_fma(n, vec_all(-0x1.62e430p-1f), x), low = vec_mul(n, vec_all(0x1.05c610p-29f));
    vec_t square = vec_mul(high, high), p = cubes(high);
    /* r + r^2 / 2 + r^3 p: the first number, and all else */
    vec_t one = vec_all(1), rest = vec_mul(square, vec_fma(p, high, vec_all(0.5f)));
    rest = vec_fma(low, vec_add(one, high), rest);
    vec_t scale = vec_scale(one, n), base = vec_sub(scale, one);
    vec_t first = vec_fma(scale, high, base), error = vec_fma(scale, high, vec_sub(base, first));
    rest = vec_fma(scale, rest, error);
    vec_t sum = vec_add(first, rest);
    *lost = vec_sub(rest, vec_sub(sum, first));
    return sum;
}

/* e / (e + 2), e = exp(2 |x|) - 1, once more with what is left. */
WIDE static inline vec_t
tanh_of(vec_t x)
{
    vec_t sign = vec_and(x, vec_all(-0.0f)), a = vec_andnot(vec_all(-0.0f), x), low;
    a = vec_min(vec_all(10), a); /* NaN stays */
    vec_t e = less_one(vec_add(a, a), &low), two = vec_all(2), d = vec_add(e, two);
    vec_t q = vec_div(e, d), lost = vec_add(vec_sub(e, vec_sub(d, two)), low);
    vec_t left = vec_add(vec_fnma(q, d, e), vec_fnma(q, lost, low));
    q = vec_fma(left, vec_rough_reciprocal(d), q);
    return vec_or(q, sign);
}

/* 1 / (1 + exp(-x)); exp(126) is infinite. */
WIDE static inline vec_t
sigmoid_of(vec_t x)
{
    vec_t y = vec_sub(vec_zero(), x);
    y = vec_max(vec_all(-126), vec_min(vec_all(126), y)); /* NaN stays */
    vec_t one = vec_all(1);
    return vec_div(one, vec_add(exp_of(y), one));
}

/* -- one row of a step ---------------------------------------------------------------------------------------------*/

WIDE static inline vec_t
sum_of(const row_t *row, int gate, int64_t at, lanes_t there)
{
    int64_t wide = gate * row->wide + at;
    vec_t sum = vec_add(vec_load_any(row->bias + wide), vec_load_any(row->sums + wide));
    return row->input == NULL ? sum : vec_add(sum, LOAD(row->input + gate * row->size + at));
}

WIDE static inline __attribute__((always_inline)) void
step_row(const row_t *row, int kind)
{
    int64_t size = row->size;
    for (int64_t at = row->begin; at < row->end; at += LANES) {
        lanes_t there = first_lanes(row->end - at);
        float *gates = row->gates + at;
        vec_t h;
        if (kind == LSTM) {
            vec_t i = sigmoid_of(sum_of(row, 0, at, there)), f = sigmoid_of(sum_of(row, 1, at, there));
            vec_t g = tanh_of(sum_of(row, 2, at, there)), o = sigmoid_of(sum_of(row, 3, at, there));
            vec_t before = LOAD(row->c + at), c = vec_fma(f, before, vec_mul(i, g));
            STORE(row->c + at, c);
            h = vec_mul(o, tanh_of(c));
            if (row->cells != NULL) {
                STORE(gates, i);
                STORE(gates + size, f);
                STORE(gates + 2 * size, g);
                STORE(gates + 3 * size, o);
                STORE(row->cells + at, before);
            }
        }
        else if (kind == GRU) {
            vec_t r = sigmoid_of(sum_of(row, 0, at, there)), z = sigmoid_of(sum_of(row, 1, at, there));
            const float *last = row->sums + 3 * row->wide;
            vec_t inner = vec_add(vec_load_any(last + at), vec_load_any(row->bias + 3 * row->wide + at));
            vec_t n = tanh_of(vec_fma(r, inner, sum_of(row, 2, at, there)));
            h = vec_fma(z, vec_sub(LOAD(row->h + at), n), n);
            if (row->cells != NULL) {
                STORE(gates, r);
                STORE(gates + size, z);
                STORE(gates + 2 * size, n);
                STORE(row->cells + at, inner);
            }
        }
        else {
            vec_t sum = sum_of(row, 0, at, there);
            h = kind == RNN_TANH ? tanh_of(sum) : vec_max(vec_zero(), sum); /* NaN stays */
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

WIDE static inline vec_t
slope_of_sigmoid(vec_t y)
{
    return vec_fnma(y, y, y);
}

WIDE static inline __attribute__((always_inline)) void
step_row_back(const back_row_t *row, int kind)
{
    int64_t size = row->size;
    vec_t one = vec_all(1);
    for (int64_t at = row->begin; at < row->end; at += LANES) {
        lanes_t there = first_lanes(row->end - at);
        const float *gates = row->gates + at;
        float *to = row->d_gates + at;
        vec_t d = LOAD(row->d + at);
        if (row->d_out != NULL) {
            d = vec_add(d, LOAD(row->d_out + at));
        }
        if (kind == LSTM) {
            vec_t i = LOAD(gates), f = LOAD(gates + size), g = LOAD(gates + 2 * size), o = LOAD(gates + 3 * size);
            vec_t before = LOAD(row->cells + at), t = tanh_of(vec_fma(f, before, vec_mul(i, g)));
            vec_t d_o = vec_mul(d, o);
            vec_t d_c = vec_fma(d_o, vec_fnma(t, t, one), LOAD(row->d_c + at));
            STORE(to, vec_mul(vec_mul(d_c, g), slope_of_sigmoid(i)));
            STORE(to + size, vec_mul(vec_mul(d_c, before), slope_of_sigmoid(f)));
            STORE(to + 2 * size, vec_mul(vec_mul(d_c, i), vec_fnma(g, g, one)));
            STORE(to + 3 * size, vec_mul(vec_mul(d, t), slope_of_sigmoid(o)));
            STORE(row->d_c + at, vec_mul(d_c, f));
        }
        else if (kind == GRU) {
            vec_t r = LOAD(gates), z = LOAD(gates + size), n = LOAD(gates + 2 * size);
            vec_t d_n = vec_mul(vec_mul(d, vec_sub(one, z)), vec_fnma(n, n, one));
            vec_t d_z = vec_mul(vec_mul(d, vec_sub(LOAD(row->h_before + at), n)), slope_of_sigmoid(z));
            STORE(to, vec_mul(vec_mul(d_n, LOAD(row->cells + at)), slope_of_sigmoid(r)));
            STORE(to + size, d_z);
            STORE(to + 2 * size, d_n);
            STORE(row->d_inner + at, vec_mul(d_n, r));
            STORE(row->d + at, vec_mul(d, z));
        }
        else {
            vec_t y = LOAD(row->cells + at);
            if (kind == RNN_TANH) {
                d = vec_mul(d, vec_fnma(y, y, one));
            }
            else {
                d = vec_where_positive(y, d);
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
