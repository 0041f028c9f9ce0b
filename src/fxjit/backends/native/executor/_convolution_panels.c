/* A convolution's weights as its products read them (_convolution.c), in panels of two vectors of results, and what Winograd's algorithm asks of
 * weights and pixels before. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_wide.h"
#include "_convolution.h"
#include "_convolution_panels.h"

#ifdef FXJIT_HAS_WIDE

/* How much the taps of one result's weights may differ in their sums of squares. */
static const float EVEN_WEIGHTS = 4096;

/* The weights of LANES channels for as many results: to[tap][channel][LANES results]; where there are no such, zeros. */
WIDE static void
take_weights(const convolution_t *convolution, int64_t result, int64_t channel, float *to)
{
    const convolution_sizes_t *s = &convolution->sizes;
    int64_t taps = s->rows * s->columns, line = taps * s->channels;
    int64_t results = least(LANES, s->results - result), channels = least(LANES, s->channels - channel);
    const float *from = convolution->weight + result * line;
    if (results <= 0) {
        memset(to, 0, (size_t)(taps * LANES * LANES) * sizeof(float));
        return;
    }
    int64_t parts = s->weight_last ? taps : 1, count = s->weight_last ? channels : channels * taps, place = 0, tap = 0;
    for (int64_t part = 0; part < parts; part++) {
        const float *first = from + (s->weight_last ? part * s->channels + channel : channel * taps);
        for (int64_t at = 0; at < count; at += LANES) {
            vec_t r[LANES];
            UNROLLED for (int i = 0; i < LANES; i++) {
                r[i] = i < results ? vec_load_some(first_lanes(count - at), first + i * line + at) : vec_zero();
            }
            turn(r);
            for (int i = 0; i < LANES && at + i < count; i++) {
                if (s->weight_last) {
                    tap = part;
                    place = at + i;
                }
                vec_store(to + (tap * LANES + place) * LANES, r[i]);
                if (!s->weight_last && ++tap == taps) {
                    tap = 0;
                    place++;
                }
            }
        }
    }
}

/* The same of a transposed one: a channel's windows lie behind each other, and are turned over. */
WIDE static void
take_flipped_weights(const convolution_t *convolution, int64_t result, int64_t channel, float *to)
{
    const convolution_sizes_t *s = &convolution->sizes;
    int64_t line = TAPS * s->results, results = least(LANES, s->results - result), channels = least(LANES, s->channels - channel);
    if (results <= 0) {
        memset(to, 0, (size_t)(TAPS * LANES * LANES) * sizeof(float));
        return;
    }
    const float *from = convolution->weight + channel * line + result * (s->weight_last ? 1 : TAPS);
    if (s->weight_last) {
        for (int64_t i = 0; i < channels; i++) {
            for (int64_t tap = 0; tap < TAPS; tap++) {
                vec_t numbers = vec_load_some(first_lanes(results), from + i * line + tap * s->results);
                vec_store(to + ((TAPS - 1 - tap) * LANES + i) * LANES, numbers);
            }
        }
        return;
    }
    float lines[LANES * TAPS * LANES] __attribute__((aligned(64))); /* [result][tap][LANES channels] */
    for (int64_t at = 0; at < results * TAPS; at += LANES) {
        vec_t r[LANES];
        UNROLLED for (int i = 0; i < LANES; i++) {
            lanes_t there = i < channels ? first_lanes(results * TAPS - at) : 0;
            r[i] = vec_load_some(there, from + (there ? i * line + at : 0));
        }
        turn(r);
        UNROLLED for (int i = 0; i < LANES; i++) {
            vec_store(lines + (at + i) * LANES, r[i]);
        }
    }
    for (int64_t tap = 0; tap < TAPS; tap++) {
        vec_t r[LANES];
        UNROLLED for (int i = 0; i < LANES; i++) {
            r[i] = i < results ? vec_load(lines + (i * TAPS + tap) * LANES) : vec_zero();
        }
        turn(r);
        for (int64_t i = 0; i < channels; i++) {
            vec_store(to + ((TAPS - 1 - tap) * LANES + i) * LANES, r[i]);
        }
    }
}

WIDE void
fxjit_pack_panel(const convolution_t *convolution, int64_t panel, float *to)
{
    const convolution_sizes_t *s = &convolution->sizes;
    int64_t taps = s->rows * s->columns, line = taps * s->channels;
    float tile[LANES * LANES] __attribute__((aligned(64)));
    for (int64_t side = 0; side < COLUMNS; side += LANES) {
        int64_t result = panel * COLUMNS + side, results = least(LANES, s->results - result);
        const float *from = convolution->weight + result * line;
        int64_t tap = 0, channel = 0; /* of the weight's next number */
        for (int64_t at = 0; at < line; at += LANES) {
            int64_t count = least(LANES, line - at);
            vec_t r[LANES];
            UNROLLED for (int i = 0; i < LANES; i++) {
                r[i] = i < results ? vec_load_some(first_lanes(count), from + i * line + at) : vec_zero();
            }
            turn(r);
            UNROLLED for (int i = 0; i < LANES; i++) {
                vec_store(tile + i * LANES, r[i]);
            }
            for (int64_t i = 0; i < count; i++) {
                int64_t row = s->weight_last ? at + i : tap * s->channels + channel;
                vec_store(to + row * COLUMNS + side, vec_load(tile + i * LANES));
                if (++tap == taps) {
                    tap = 0;
                    channel++;
                }
            }
        }
    }
}

WIDE void
fxjit_pack_flipped_panel(const convolution_t *convolution, const convolution_sizes_t *all, const int64_t tap[2],
                         const int64_t apart[2], int64_t panel, float *to)
{
    const convolution_sizes_t *s = &convolution->sizes;
    int64_t taps = all->rows * all->columns, line = taps * s->results, step = s->weight_last ? 1 : taps;
    for (int64_t side = 0; side < COLUMNS; side += LANES) {
        int64_t result = panel * COLUMNS + side;
        lanes_t there = first_lanes(s->results - result);
        const float *first = convolution->weight + (there ? result * step : 0);
        for (int64_t some = 0; some < s->channels; some += LANES) { /* whose weights stay in the cache from tap to tap */
            for (int64_t at = 0; at < s->rows * s->columns; at++) {
                int64_t row = tap[0] + at / s->columns * apart[0], column = tap[1] + at % s->columns * apart[1];
                int64_t place = taps - 1 - (row * all->columns + column);
                for (int64_t channel = some; channel < least(some + LANES, s->channels); channel++) {
                    const float *from = first + channel * line + place * (s->weight_last ? s->results : 1);
                    vec_t numbers = s->weight_last ? vec_load_some(there, from)
                                                    : vec_gather_some(there, from, step);
                    vec_store(to + (at * s->channels + channel) * COLUMNS + side, numbers);
                }
            }
        }
    }
}

/* `count` numbers that are `step` apart. */
WIDE static inline void
take_apart(const float *from, int64_t step, int64_t count, float *to)
{
    for (; count > 0; count -= LANES, from += LANES * step, to += LANES) {
        lanes_t there = first_lanes(count);
        vec_store_some(to, there, vec_gather_some(there, from, step));
    }
}

WIDE void
fxjit_take_rows(const convolution_t *convolution, int64_t thread, int64_t threads, float *rows)
{
    const convolution_sizes_t *s = &convolution->sizes;
    const float *from = convolution->weight;
    int64_t taps = s->rows * s->columns, depth = taps * s->channels;
    if (s->kind != TRANSPOSED) {
        for (int64_t result = s->results * thread / threads; result < s->results * (thread + 1) / threads; result++) {
            const float *line = from + result * depth;
            float *to = rows + result * depth;
            for (int64_t channel = 0; channel < s->channels; channel += LANES) { /* whose weights are in the first-level cache */
                for (int64_t tap = 0; tap < taps; tap++) {
                    take_apart(line + channel * taps + tap, taps, least(LANES, s->channels - channel),
                               to + tap * s->channels + channel);
                }
            }
        }
        return;
    }
    for (int64_t channel = s->channels * thread / threads; channel < s->channels * (thread + 1) / threads; channel++) {
        const float *line = from + channel * taps * s->results;
        for (int64_t result = 0; result < s->results; result += LANES) {
            for (int64_t tap = 0; tap < taps; tap++) {
                int64_t place = taps - 1 - tap, step = s->weight_last ? 1 : taps;
                take_apart(line + place * (s->weight_last ? s->results : 1) + result * step, step, least(LANES, s->results - result),
                           rows + (tap * s->channels + channel) * s->results + result);
            }
        }
    }
}

WIDE static inline __attribute__((always_inline)) void
turn_three(const vec_t g[3], vec_t out[4])
{
    const vec_t half = vec_all(0.5f);
    vec_t outer = vec_mul(half, vec_add(g[0], g[2])), inner = vec_mul(half, g[1]);
    out[0] = g[0];
    out[1] = vec_add(outer, inner);
    out[2] = vec_sub(outer, inner);
    out[3] = g[2];
}

/* Whether the taps of one of a vector's results differ too much: what the algorithm adds and takes away again is then larger than what
 * the result is made of. */
WIDE static inline int
are_uneven(const vec_t squares[TAPS])
{
    vec_t lowest = squares[0], highest = squares[0];
    UNROLLED for (int i = 1; i < TAPS; i++) {
        lowest = vec_min(lowest, squares[i]);
        highest = vec_max(highest, squares[i]);
    }
    return vec_any_less(vec_mul(lowest, vec_all(EVEN_WEIGHTS)), highest);
}

WIDE void
fxjit_turn_panel(const convolution_t *convolution, int64_t panel, float *to, float *squares)
{
    const convolution_sizes_t *s = &convolution->sizes;
    float taps[TAPS * LANES * LANES] __attribute__((aligned(64)));
    int64_t apart = s->channels * COLUMNS;
    UNROLLED for (int i = 0; i < TAPS; i++) {
        squares[i] = 0;
    }
    for (int64_t side = 0; side < COLUMNS; side += LANES) {
        vec_t sums[TAPS];
        UNROLLED for (int i = 0; i < TAPS; i++) {
            sums[i] = vec_zero();
        }
        for (int64_t channel = 0; channel < s->channels; channel += LANES) {
            (s->kind == TRANSPOSED ? take_flipped_weights : take_weights)(convolution, panel * COLUMNS + side, channel, taps);
            for (int64_t i = 0; i < least(LANES, s->channels - channel); i++) {
                vec_t g[3][3], h[3][4];
                UNROLLED for (int t = 0; t < TAPS; t++) {
                    vec_t x = vec_load(taps + (t * LANES + i) * LANES);
                    sums[t] = vec_fma(x, x, sums[t]);
                    g[t % 3][t / 3] = x;
                }
                UNROLLED for (int column = 0; column < 3; column++) {
                    turn_three(g[column], h[column]);
                }
                float *line = to + (channel + i) * COLUMNS + side;
                UNROLLED for (int row = 0; row < 4; row++) {
                    vec_t of_row[3] = {h[0][row], h[1][row], h[2][row]}, made[4];
                    turn_three(of_row, made);
                    UNROLLED for (int column = 0; column < 4; column++) {
                        vec_store(line + (4 * row + column) * apart, made[column]);
                    }
                }
            }
        }
        UNROLLED for (int i = 0; i < TAPS; i++) {
            squares[i] += are_uneven(sums) ? INFINITY : vec_sum(sums[i]);
        }
    }
}

WIDE void
fxjit_take_squares(const float *images, int64_t channels, int64_t from, int64_t to, float *squares)
{
    for (int64_t pixel = from; pixel < to; pixel++) {
        const float *x = images + pixel * channels;
        vec_t sum = vec_zero();
        for (int64_t at = 0; at < channels; at += LANES) {
            vec_t y = vec_load_some(first_lanes(channels - at), x + at);
            sum = vec_fma(y, y, sum);
        }
        squares[pixel] = vec_sum(sum);
    }
}

#endif
