/* Attention without its matrix of scores: a block of queries looks at the keys a block at a time, and what it has summed up is scaled
 * to each block's largest score (Dao, Fu, Ermon, Rudra and Re, "FlashAttention", 2022; Milakov and Gimelshein, "Online normalizer
 * calculation for softmax", 2018). The derivative calculates the scores once more from the logarithms of their sums.
 *
 * Products are made by the loops of _gemm_kernels.h. Keys and values are packed into panels once for many queries, as float32,
 * of whatever type they are: so are all sums, and what is rounded to a half type is the result alone. Where the processor
 * multiplies pairs of bfloat16 (_pairs.c), those stay as they are, and probabilities are rounded before they are multiplied with
 * the values, as ATen's. The number of threads changes no result. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_wide.h"
#include "_attention.h"
#include "_exponential.h"
#include "_gemm_kernels.h"
#include "_pairs.h"

#ifdef FXJIT_HAS_WIDE

#pragma GCC optimize("O3")

enum {
    KEYS = 256,           /* of a packed block: with its values 128 KB of the second-level cache where a head is 64 wide */
    QUERIES = (32 / ROWS) * ROWS, /* of a block: their scores are 28 KB */
    BLOCKS = 32,          /* of queries that attend_block a packed block one after the other */
    KEYS_BACK = 128,      /* the same of the derivative, which has two blocks of scores */
    QUERIES_BACK = 4 * ROWS,
    EXTRA = LANES,        /* numbers between rows of scores, which would else lie in the same sets of the cache */
    WORK = 1 << 17,       /* multiplications for which a thread is called */
};

/* How numbers are packed: as floats of one of the three types, or as pairs. */
enum { OF_PAIRS = OF_FLOAT16 + 1 };

static int64_t
whole(int64_t count, int64_t of)
{
    return (count + of - 1) / of * of;
}

/* -- numbers of the three types ------------------------------------------------------------------------------------*/

WIDE INLINED vec_t
load_numbers(const void *from, int64_t at, int64_t count, int kind)
{
    if (kind == OF_FLOAT32) {
        return vec_load_some(first_lanes(count), (const float *)from + at);
    }
    const uint16_t *numbers = (const uint16_t *)from + at;
    uint16_t last[LANES] = {0};
    if (count < LANES) {
        memcpy(last, numbers, (size_t)count * sizeof *last);
        numbers = last;
    }
    return kind == OF_BFLOAT16 ? vec_of_bfloat16(numbers) : vec_of_float16(numbers);
}

WIDE INLINED void
store_numbers(void *to, int64_t at, int64_t count, int kind, vec_t x)
{
    if (kind == OF_FLOAT32) {
        vec_store_some((float *)to + at, first_lanes(count), x);
        return;
    }
    uint16_t last[LANES], *numbers = count < LANES ? last : (uint16_t *)to + at;
    if (kind == OF_BFLOAT16) {
        vec_to_bfloat16(numbers, x);
    }
    else {
        vec_to_float16(numbers, x);
    }
    if (count < LANES) {
        memcpy((uint16_t *)to + at, last, (size_t)count * sizeof *last);
    }
}

static void *
head_of(const heads_t *tensor, int kind, int64_t batch, int64_t head)
{
    return (char *)tensor->data + (batch * tensor->batch + head * tensor->head) * (kind == OF_FLOAT32 ? 4 : 2);
}

/* -- packing -------------------------------------------------------------------------------------------------------*/

/* Rows as columns of panels: `count` rows of `width` numbers become whole(count, COLUMNS) columns, of zeros where there are no rows. */
WIDE INLINED void
turn_rows(const void *from, int64_t row, int64_t count, int64_t width, float *to, int kind)
{
    for (int64_t panel = 0; panel < count; panel += COLUMNS, to += COLUMNS * width) {
        for (int64_t side = 0; side < COLUMNS; side += LANES) {
            for (int64_t at = 0; at < width; at += LANES) {
                vec_t r[LANES];
                UNROLLED for (int64_t i = 0; i < LANES; i++) {
                    int64_t line = panel + side + i;
                    r[i] = line < count ? load_numbers(from, line * row + at, width - at, kind) : vec_zero();
                }
                turn(r);
                for (int64_t i = 0; i < least(LANES, width - at); i++) {
                    vec_store(to + (at + i) * COLUMNS + side, r[i]);
                }
            }
        }
    }
}

/* Rows as rows of panels, of as many columns each. */
WIDE INLINED void
copy_rows(const void *from, int64_t row, int64_t count, int64_t width, float *to, int kind)
{
    for (int64_t panel = 0; panel < width; panel += COLUMNS) {
        for (int64_t i = 0; i < count; i++, to += COLUMNS) {
            UNROLLED for (int64_t side = 0; side < COLUMNS; side += LANES) {
                int64_t left = width - panel - side;
                vec_t x = left > 0 ? load_numbers(from, i * row + panel + side, left, kind) : vec_zero();
                vec_store(to + side, x);
            }
        }
    }
}

/* Rows one after the other, whole(width, LANES) numbers apart. */
WIDE INLINED void
take_rows_of(const void *from, int64_t row, int64_t count, int64_t width, float *to, int kind)
{
    for (int64_t i = 0; i < count; i++, to += whole(width, LANES)) {
        for (int64_t at = 0; at < width; at += LANES) {
            vec_store(to + at, load_numbers(from, i * row + at, width - at, kind));
        }
    }
}

#define OF_EACH_KIND(NAME, KIND, ...) \
    switch (KIND) { \
        case OF_FLOAT32: \
            NAME(__VA_ARGS__, OF_FLOAT32); \
            break; \
        case OF_BFLOAT16: \
            NAME(__VA_ARGS__, OF_BFLOAT16); \
            break; \
        default: \
            NAME(__VA_ARGS__, OF_FLOAT16); \
    }

WIDE static __attribute__((noinline)) void
turned(const void *from, int64_t row, int64_t count, int64_t width, float *to, int kind)
{
    if (kind == OF_PAIRS) {
        fxjit_pairs_turn(from, row, count, width, (uint32_t *)to);
        return;
    }
    OF_EACH_KIND(turn_rows, kind, from, row, count, width, to)
}

WIDE static __attribute__((noinline)) void
copied(const void *from, int64_t row, int64_t count, int64_t width, float *to, int kind)
{
    if (kind == OF_PAIRS) {
        fxjit_pairs_join(from, row, count, width, (uint32_t *)to);
        return;
    }
    OF_EACH_KIND(copy_rows, kind, from, row, count, width, to)
}

WIDE static __attribute__((noinline)) void
taken(const void *from, int64_t row, int64_t count, int64_t width, float *to, int kind)
{
    if (kind == OF_PAIRS) {
        fxjit_pairs_take(from, row, count, width, (uint32_t *)to);
        return;
    }
    OF_EACH_KIND(take_rows_of, kind, from, row, count, width, to)
}

/* -- products ------------------------------------------------------------------------------------------------------*/

/* Rows of a that are columns in memory, `a_line` apart: a transposed operand where it lies. */
#define ACROSS(R, HALVES) KERNEL(across, R, HALVES, PACKED_AT, a += a_line)
OF_ALL_HEIGHTS(ACROSS, 1)
OF_ALL_HEIGHTS(ACROSS, 2)

#define ACROSS_AT_HEIGHT(R, HALVES) [R] = across_##HALVES##_##R,
static const gemm_kernel_fn across_kernels[2][ROWS + 1] = {
    {OF_ALL_HEIGHTS(ACROSS_AT_HEIGHT, 1)},
    {OF_ALL_HEIGHTS(ACROSS_AT_HEIGHT, 2)},
};

/* Numbers of a row of 32 bits each that a row of so many is packed to. */
static int64_t
packed_width(int64_t width, int packing)
{
    return whole(packing == OF_PAIRS ? (width + 1) / 2 : width, LANES);
}

/* Steps that a product of so many terms takes. */
static int64_t
steps(int64_t terms, int packing)
{
    return packing == OF_PAIRS ? (terms + 1) / 2 : terms;
}

/* out (+)= a b: `rows` rows of a, which lie `a_line` apart, or with `across` are columns that lie so; b in panels of `b_rows` rows,
 * the first `depth` of which are taken; out has whole(columns, LANES) columns. Of pairs, `b_rows` and `depth` count terms. */
static void
multiply(const float *a, int64_t a_line, int across, const float *b, int64_t b_rows, int64_t rows, int64_t columns, int64_t depth,
         float *out, int64_t line, int add, int packing)
{
    if (packing == OF_PAIRS) {
        fxjit_pairs_multiply((const uint32_t *)a, a_line, across, (const uint32_t *)b, steps(b_rows, packing), rows, columns,
                             steps(depth, packing), out, line, add);
        return;
    }
    const gemm_kernel_fn(*kernels)[ROWS + 1] = across ? across_kernels : direct_kernels;
    const int64_t groups = (rows + ROWS - 1) / ROWS;
    const lanes_t all = first_lanes(LANES);
    for (int64_t column = 0; column < columns; column += COLUMNS, b += COLUMNS * b_rows) {
        const gemm_kernel_fn *of_height = kernels[columns - column > LANES];
        for (int64_t group = 0, row = 0; group < groups; group++) {
            int64_t height = (rows - row + groups - group - 1) / (groups - group);
            of_height[height](depth, a + row * (across ? 1 : a_line), a_line, b, out + row * line + column, line, all, all, add);
            row += height;
        }
    }
}

/* -- scores --------------------------------------------------------------------------------------------------------*/

/* Keys from `first` on that a row of queries looks at in a block. */
typedef struct {
    int64_t batch, head, query, first, count;
} place_t;

/* What a row of products is still to be multiplied with to be scores. */
static float
factor_of(const attention_t *attention)
{
    return attention->mask.data == NULL && attention->scale > 0 ? attention->scale : 1;
}

/* Adds the mask to a row of scores, and has keys that it doesn't see, and columns behind the last one, at minus infinity. */
WIDE static inline void
mask_row(const attention_t *attention, const place_t *at, float *scores)
{
    const vec_t scale = vec_all(attention->scale);
    if (attention->mask.data == NULL && attention->scale <= 0) {
        for (int64_t i = 0; i < at->count; i += LANES) {
            vec_store_any(scores + i, vec_mul(vec_load_any(scores + i), scale));
        }
    }
    if (attention->mask.data != NULL) {
        const int kind = attention->mask_kind;
        const void *mask = head_of(&attention->mask, kind, at->batch, at->head);
        const int64_t from = at->query * attention->mask.row + at->first * attention->mask_column;
        if (attention->mask_column == 0) {
            float one = vec_sum(load_numbers(mask, from, 1, kind));
            for (int64_t i = 0; i < at->count; i += LANES) {
                vec_store_any(scores + i, vec_fma(vec_load_any(scores + i), scale, vec_all(one)));
            }
        }
        else if (kind == OF_FLOAT32) {
            for (int64_t i = 0; i < at->count; i += LANES) {
                vec_t more = load_numbers(mask, from + i, at->count - i, OF_FLOAT32);
                vec_store_any(scores + i, vec_fma(vec_load_any(scores + i), scale, more));
            }
        }
        else {
            for (int64_t i = 0; i < at->count; i += LANES) {
                vec_t more = load_numbers(mask, from + i, at->count - i, kind);
                vec_store_any(scores + i, vec_fma(vec_load_any(scores + i), scale, more));
            }
        }
    }
    int64_t seen = at->count;
    if (attention->causal) {
        seen = at->query < at->first ? 0 : least(seen, at->query - at->first + 1);
    }
    for (int64_t i = seen / LANES * LANES; i < whole(at->count, LANES); i += LANES) {
        vec_store_any(scores + i, vec_first(first_lanes(seen - i), vec_load_any(scores + i), vec_all(-INFINITY)));
    }
}

/* exp(factor scores - top) in their place; their sum. */
WIDE static inline float
exponentials(float *scores, int64_t count, float factor, float top)
{
    const vec_t scale = vec_all(factor), less = vec_all(-top);
    vec_t sum = vec_zero();
    for (int64_t i = 0; i < count; i += LANES) {
        vec_t x = exp_of(vec_fma(vec_load_any(scores + i), scale, less));
        vec_store_any(scores + i, x);
        sum = vec_add(sum, x);
    }
    return vec_sum(sum);
}

WIDE static inline float
largest(const float *scores, int64_t count)
{
    vec_t top = vec_all(-INFINITY);
    for (int64_t i = 0; i < count; i += LANES) {
        top = vec_max(vec_load_any(scores + i), top); /* not of NaN, as ATen's */
    }
    return vec_largest(top);
}

/* -- forward -------------------------------------------------------------------------------------------------------*/

/* A thread's memory. */
typedef struct {
    float *q, *keys, *values, *scores, *outputs, *maxima, *denominators;
    int64_t out_line;
} forward_room_t;

typedef struct {
    const attention_t *attention;
    char *room;
    int64_t bytes;
} forward_task_t;

static int64_t
floats_of_forward(const attention_t *attention)
{
    int64_t width = whole(attention->width, COLUMNS), keys = whole(least(attention->keys, KEYS), COLUMNS);
    return QUERIES * width + 2 * keys * width + QUERIES * (keys + EXTRA) + BLOCKS * QUERIES * (width + 2);
}

static forward_room_t
forward_room(const attention_t *attention, float *room)
{
    int64_t width = whole(attention->width, COLUMNS), keys = whole(least(attention->keys, KEYS), COLUMNS);
    forward_room_t made = {.q = room, .out_line = width};
    made.keys = made.q + QUERIES * width;
    made.values = made.keys + keys * width;
    made.scores = made.values + keys * width;
    made.outputs = made.scores + QUERIES * (keys + EXTRA);
    made.maxima = made.outputs + BLOCKS * QUERIES * width;
    made.denominators = made.maxima + BLOCKS * QUERIES;
    return made;
}

/* A block of queries of a head: which ones. */
typedef struct {
    int64_t batch, head, first, count;
} block_t;

static int64_t
blocks_of_head(const attention_t *attention, int64_t most)
{
    return (attention->queries + most - 1) / most;
}

/* Blocks of a head are of the same size but for one query. */
static block_t
block_of(const attention_t *attention, int64_t number, int64_t most)
{
    int64_t blocks = blocks_of_head(attention, most), head = number / blocks, at = number % blocks;
    int64_t first = at * attention->queries / blocks, end = (at + 1) * attention->queries / blocks;
    return (block_t){head / attention->heads, head % attention->heads, first, end - first};
}

/* How many of a packed block's keys the block of queries sees. */
static int64_t
seen_by(const attention_t *attention, const block_t *block, int64_t first, int64_t count)
{
    return attention->causal ? least(count, block->first + block->count - first) : count;
}

static int
packing_of(const attention_t *attention)
{
    return attention->kind == OF_BFLOAT16 && attention->by_pairs ? OF_PAIRS : attention->kind;
}

/* A row of floats as pairs, in its place. */
static void
round_probabilities(float *probabilities, int64_t count, int packing)
{
    if (packing == OF_PAIRS) {
        fxjit_pairs_round(probabilities, whole(count, LANES), probabilities);
    }
}

/* One block of queries looks at the packed block of keys. */
WIDE static void
attend_block(const attention_t *attention, const forward_room_t *room, const block_t *block, int64_t number, int64_t first,
             int64_t packed)
{
    const int64_t width = attention->width, rows = block->count, count = seen_by(attention, block, first, packed);
    const int64_t line = whole(packed, COLUMNS) + EXTRA;
    const float factor = factor_of(attention);
    float *outputs = room->outputs + number * QUERIES * room->out_line;
    float *maxima = room->maxima + number * QUERIES, *denominators = room->denominators + number * QUERIES;
    const int packing = packing_of(attention);
    taken((const char *)head_of(&attention->q, attention->kind, block->batch, block->head) +
              block->first * attention->q.row * (attention->kind == OF_FLOAT32 ? 4 : 2),
          attention->q.row, rows, width, room->q, packing);
    multiply(room->q, packed_width(width, packing), 0, room->keys, width, rows, count, width, room->scores, line, 0, packing);
    for (int64_t i = 0; i < rows; i++) {
        float *scores = room->scores + i * line;
        place_t at = {block->batch, block->head, block->first + i, first, count};
        mask_row(attention, &at, scores);
        float before = first == 0 ? -INFINITY : maxima[i], top = factor * largest(scores, count);
        top = top > before ? top : before;
        if (top == -INFINITY) { /* nothing to look at yet: no part of anything, or NaN */
            maxima[i] = top;
            denominators[i] = exponentials(scores, whole(count, LANES), factor, 0);
            round_probabilities(scores, count, packing);
            continue;
        }
        float total = exponentials(scores, whole(count, LANES), factor, top);
        round_probabilities(scores, count, packing);
        if (first != 0 && top != before) {
            float shrunk = expf(before - top);
            total += denominators[i] * shrunk;
            for (int64_t j = 0; j < room->out_line; j += LANES) {
                float *output = outputs + i * room->out_line + j;
                vec_store(output, vec_mul(vec_load(output), vec_all(shrunk)));
            }
        }
        else if (first != 0) {
            total += denominators[i];
        }
        maxima[i] = top;
        denominators[i] = total;
    }
    multiply(room->scores, line, 0, room->values, packed, rows, width, count, outputs, room->out_line, first != 0, packing);
}

WIDE static void
finish_block(const attention_t *attention, const forward_room_t *room, const block_t *block, int64_t number)
{
    char *out = head_of(&attention->out, attention->kind, block->batch, block->head);
    float *logarithms = head_of(&attention->logsumexp, OF_FLOAT32, block->batch, block->head);
    for (int64_t i = 0; i < block->count; i++) {
        const float *outputs = room->outputs + (number * QUERIES + i) * room->out_line;
        float top = room->maxima[number * QUERIES + i], total = room->denominators[number * QUERIES + i];
        int nothing = top == -INFINITY;
        vec_t divisor = vec_all(total == 0 ? 1 : total);
        for (int64_t j = 0; j < attention->width; j += LANES) {
            vec_t x = vec_div(vec_load(outputs + j), divisor);
            store_numbers(out, (block->first + i) * attention->out.row + j, attention->width - j, attention->kind, x);
        }
        logarithms[(block->first + i) * attention->logsumexp.row] = nothing ? total : top + logf(total);
    }
}

/* Blocks from `begin` to `end`, all of which look at one head of the keys. */
static void
attend_tile(const attention_t *attention, const forward_room_t *room, int64_t begin, int64_t end)
{
    const block_t last = block_of(attention, end - 1, QUERIES), some = block_of(attention, begin, QUERIES);
    const int64_t key_head = some.head / (attention->heads / attention->key_heads), size = attention->kind == OF_FLOAT32 ? 4 : 2;
    const char *keys = head_of(&attention->k, attention->kind, some.batch, key_head);
    const char *values = head_of(&attention->v, attention->kind, some.batch, key_head);
    /* Of one head the last block sees the most keys. */
    int64_t seen = attention->causal && some.head == last.head ? last.first + last.count : attention->queries;
    seen = attention->causal ? least(attention->keys, seen) : attention->keys;
    for (int64_t first = 0; first < seen; first += KEYS) {
        int64_t count = least(KEYS, seen - first);
        turned(keys + first * attention->k.row * size, attention->k.row, count, attention->width, room->keys, packing_of(attention));
        copied(values + first * attention->v.row * size, attention->v.row, count, attention->width, room->values, packing_of(attention));
        for (int64_t number = begin; number < end; number++) {
            block_t block = block_of(attention, number, QUERIES);
            if (attention->causal && block.first + block.count <= first) {
                continue;
            }
            attend_block(attention, room, &block, number - begin, first, count);
        }
    }
    for (int64_t number = begin; number < end; number++) {
        block_t block = block_of(attention, number, QUERIES);
        finish_block(attention, room, &block, number - begin);
    }
}

static void
attend_share(const forward_task_t *task, int64_t thread, int64_t threads)
{
    const attention_t *attention = task->attention;
    const int64_t in_key_head = blocks_of_head(attention, QUERIES) * (attention->heads / attention->key_heads);
    const int64_t all = attention->batch * attention->key_heads * in_key_head, end = all * (thread + 1) / threads;
    const forward_room_t room = forward_room(attention, (float *)(task->room + thread * task->bytes));
    for (int64_t begin = all * thread / threads; begin < end;) {
        int64_t next = least(least(end, begin + BLOCKS), (begin / in_key_head + 1) * in_key_head);
        attend_tile(attention, &room, begin, next);
        begin = next;
    }
}

static void
attend(void *data)
{
    attend_share(data, fxjit_openmp.thread(), fxjit_openmp.threads());
}

/* -- derivative ----------------------------------------------------------------------------------------------------*/

typedef struct {
    /* Of a block of queries: rows, and panels of them; the gradient's likewise. */
    float *q, *q_panels, *grad, *grad_panels;
    /* Of a block of keys: columns of panels, and rows of them; values as columns; their derivatives. */
    float *keys, *key_rows, *values, *d_keys, *d_values;
    float *probabilities, *d_scores, *probability_pairs, *d_score_pairs; /* the last two of rows, with pairs */
    /* Of all queries of a head of the keys: each one's gradient times its result, and derivatives. */
    float *deltas, *d_q;
    int64_t width, line;
} backward_room_t;

typedef struct {
    const attention_backward_t *attention;
    char *room;
    int64_t bytes;
} backward_task_t;

static backward_room_t
backward_room(const attention_t *attention, float *room, int64_t *floats)
{
    const int64_t width = whole(attention->width, COLUMNS), line = KEYS_BACK + EXTRA;
    const int64_t of_queries = QUERIES_BACK * width, of_keys = KEYS_BACK * width, of_scores = QUERIES_BACK * line;
    const int64_t queries = attention->queries * (attention->heads / attention->key_heads);
    const int64_t sizes[] = {of_queries, of_queries, of_queries, of_queries, of_keys, of_keys, of_keys, of_keys, of_keys,
                             of_scores, of_scores, of_scores / 2, of_scores / 2, whole(queries, LANES), queries * width};
    backward_room_t made = {.width = width, .line = line};
    float **const parts[] = {&made.q, &made.q_panels, &made.grad, &made.grad_panels, &made.keys, &made.key_rows, &made.values,
                             &made.d_keys, &made.d_values, &made.probabilities, &made.d_scores, &made.probability_pairs,
                             &made.d_score_pairs, &made.deltas, &made.d_q};
    *floats = 0;
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) {
        *parts[i] = room == NULL ? NULL : room + *floats;
        *floats += sizes[i];
    }
    return made;
}

/* Each query's gradient times its result. */
WIDE INLINED void
products_of_rows(const void *a, int64_t a_row, const void *b, int64_t b_row, int64_t rows, int64_t width, float *to, int kind)
{
    for (int64_t i = 0; i < rows; i++) {
        vec_t sum = vec_zero();
        for (int64_t j = 0; j < width; j += LANES) {
            sum = vec_fma(load_numbers(a, i * a_row + j, width - j, kind), load_numbers(b, i * b_row + j, width - j, kind), sum);
        }
        to[i] = vec_sum(sum);
    }
}

WIDE static __attribute__((noinline)) void
products_of(const void *a, int64_t a_row, const void *b, int64_t b_row, int64_t rows, int64_t width, float *to, int kind)
{
    OF_EACH_KIND(products_of_rows, kind, a, a_row, b, b_row, rows, width, to)
}

WIDE static void
store_rows(const float *from, int64_t line, float scale, void *to, int64_t row, int64_t count, int64_t width, int kind)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < width; j += LANES) {
            store_numbers(to, i * row + j, width - j, kind, vec_mul(vec_load(from + i * line + j), vec_all(scale)));
        }
    }
}

/* Shares from scores, and the scores' derivatives in the place of the probabilities'. */
WIDE static void
derive_scores(const attention_t *attention, const backward_room_t *room, const block_t *block, const float *deltas, int64_t first,
              int64_t count)
{
    const float *logarithms = head_of(&attention->logsumexp, OF_FLOAT32, block->batch, block->head);
    const vec_t factor = vec_all(factor_of(attention));
    for (int64_t i = 0; i < block->count; i++) {
        float *probabilities = room->probabilities + i * room->line, *d_scores = room->d_scores + i * room->line;
        place_t at = {block->batch, block->head, block->first + i, first, count};
        mask_row(attention, &at, probabilities);
        vec_t less = vec_all(-logarithms[(block->first + i) * attention->logsumexp.row]), delta = vec_all(deltas[block->first + i]);
        for (int64_t j = 0; j < whole(count, LANES); j += LANES) {
            vec_t probability = exp_of(vec_fma(vec_load_any(probabilities + j), factor, less));
            vec_store_any(probabilities + j, probability);
            vec_store_any(d_scores + j, vec_mul(probability, vec_sub(vec_load_any(d_scores + j), delta)));
        }
    }
}

/* Shares and derivatives of scores as pairs: of neighbours in a column, and the latter in its place of those in a row. */
static void
pair_scores(const backward_room_t *room, int64_t rows, int64_t count)
{
    const int64_t all = whole(count, LANES);
    for (int64_t i = 0; i < rows; i += 2) {
        const float *probabilities = room->probabilities + i * room->line, *d_scores = room->d_scores + i * room->line;
        const int64_t next = i + 1 < rows ? room->line : 0, to = i / 2 * room->line;
        fxjit_pairs_of_rows(probabilities, next ? probabilities + next : NULL, all, (uint32_t *)room->probability_pairs + to);
        fxjit_pairs_of_rows(d_scores, next ? d_scores + next : NULL, all, (uint32_t *)room->d_score_pairs + to);
    }
    for (int64_t i = 0; i < rows; i++) {
        fxjit_pairs_round(room->d_scores + i * room->line, all, room->d_scores + i * room->line);
    }
}

/* A block of queries looks at the packed block of keys: derivatives of both grow. */
WIDE static void
derive_block(const attention_backward_t *task, const backward_room_t *room, const block_t *block, int64_t head, int64_t first,
          int64_t keys)
{
    const attention_t *attention = &task->forward;
    const int packing = packing_of(attention);
    const int64_t count = seen_by(attention, block, first, keys), packed = packed_width(attention->width, packing);
    const int64_t width = attention->width, rows = block->count, kind = attention->kind, size = kind == OF_FLOAT32 ? 4 : 2;
    const char *q = (char *)head_of(&attention->q, kind, block->batch, block->head) + block->first * attention->q.row * size;
    const char *grad = (char *)head_of(&task->d_out, kind, block->batch, block->head) + block->first * task->d_out.row * size;
    taken(q, attention->q.row, rows, width, room->q, packing);
    copied(q, attention->q.row, rows, width, room->q_panels, packing);
    taken(grad, task->d_out.row, rows, width, room->grad, packing);
    copied(grad, task->d_out.row, rows, width, room->grad_panels, packing);
    multiply(room->q, packed, 0, room->keys, width, rows, count, width, room->probabilities, room->line, 0, packing);
    multiply(room->grad, packed, 0, room->values, width, rows, count, width, room->d_scores, room->line, 0, packing);
    derive_scores(attention, room, block, room->deltas + head * attention->queries, first, count);
    if (packing == OF_PAIRS) {
        pair_scores(room, rows, count);
    }
    const float *probabilities = packing == OF_PAIRS ? room->probability_pairs : room->probabilities;
    const float *d_scores = packing == OF_PAIRS ? room->d_score_pairs : room->d_scores;
    multiply(probabilities, room->line, 1, room->grad_panels, rows, count, width, rows, room->d_values, room->width, 1, packing);
    multiply(d_scores, room->line, 1, room->q_panels, rows, count, width, rows, room->d_keys, room->width, 1, packing);
    float *d_q = room->d_q + (head * attention->queries + block->first) * room->width;
    multiply(room->d_scores, room->line, 0, room->key_rows, keys, rows, width, count, d_q, room->width, first != 0, packing);
}

/* All that looks at one head of the keys. */
static void
derive_key_head(const attention_backward_t *task, const backward_room_t *room, int64_t batch, int64_t key_head)
{
    const attention_t *attention = &task->forward;
    const int64_t group = attention->heads / attention->key_heads, kind = attention->kind, size = kind == OF_FLOAT32 ? 4 : 2;
    const int64_t blocks = blocks_of_head(attention, QUERIES_BACK), width = attention->width, queries = attention->queries;
    const char *keys = head_of(&attention->k, kind, batch, key_head), *values = head_of(&attention->v, kind, batch, key_head);
    char *d_keys = head_of(&task->d_k, kind, batch, key_head), *d_values = head_of(&task->d_v, kind, batch, key_head);
    for (int64_t head = 0; head < group; head++) {
        products_of(head_of(&task->d_out, kind, batch, key_head * group + head), task->d_out.row,
                  head_of(&attention->out, kind, batch, key_head * group + head), attention->out.row, queries, width,
                  room->deltas + head * queries, kind);
    }
    for (int64_t first = 0; first < attention->keys; first += KEYS_BACK) {
        const int64_t count = least(KEYS_BACK, attention->keys - first);
        memset(room->d_keys, 0, (size_t)(count * room->width) * sizeof(float));
        memset(room->d_values, 0, (size_t)(count * room->width) * sizeof(float));
        turned(keys + first * attention->k.row * size, attention->k.row, count, width, room->keys, packing_of(attention));
        copied(keys + first * attention->k.row * size, attention->k.row, count, width, room->key_rows, packing_of(attention));
        turned(values + first * attention->v.row * size, attention->v.row, count, width, room->values, packing_of(attention));
        for (int64_t number = 0; number < group * blocks; number++) {
            block_t block = block_of(attention, ((batch * attention->heads) + key_head * group) * blocks + number, QUERIES_BACK);
            if (attention->causal && block.first + block.count <= first) {
                continue;
            }
            derive_block(task, room, &block, number / blocks, first, count);
        }
        store_rows(room->d_keys, room->width, attention->scale, d_keys + first * task->d_k.row * size, task->d_k.row, count, width,
                   kind);
        store_rows(room->d_values, room->width, 1, d_values + first * task->d_v.row * size, task->d_v.row, count, width, kind);
    }
    for (int64_t head = 0; head < group; head++) {
        store_rows(room->d_q + head * queries * room->width, room->width, attention->scale,
                   head_of(&task->d_q, kind, batch, key_head * group + head), task->d_q.row, queries, width, kind);
    }
}

static void
derive_share(const backward_task_t *task, int64_t thread, int64_t threads)
{
    const attention_t *attention = &task->attention->forward;
    int64_t floats;
    const backward_room_t room = backward_room(attention, (float *)(task->room + thread * task->bytes), &floats);
    for (int64_t i = thread; i < attention->batch * attention->key_heads; i += threads) {
        derive_key_head(task->attention, &room, i / attention->key_heads, i % attention->key_heads);
    }
}

static void
attend_backward(void *data)
{
    derive_share(data, fxjit_openmp.thread(), fxjit_openmp.threads());
}

/* -- calls ---------------------------------------------------------------------------------------------------------*/

/* Of one thread: in whole lines of the cache, and one more. */
static int64_t
bytes_of(const attention_t *attention, int backward)
{
    int64_t floats = backward ? 0 : floats_of_forward(attention);
    if (backward) {
        (void)backward_room(attention, NULL, &floats);
    }
    return whole(floats * (int64_t)sizeof(float), 64) + 64;
}

int64_t
fxjit_attention_room(const attention_t *attention, int backward, int threads)
{
    return threads * bytes_of(attention, backward);
}

int
fxjit_attention_threads(const attention_t *attention, int backward)
{
    int64_t products = attention->batch * attention->heads * attention->queries * attention->keys * attention->width;
    int64_t tasks = attention->batch * attention->key_heads;
    tasks *= backward ? 1 : blocks_of_head(attention, QUERIES) * (attention->heads / attention->key_heads);
    return fxjit_openmp.inside() ? 1 : (int)least(least(fxjit_openmp.most(), tasks), 2 * products / WORK + 1);
}

void
fxjit_attend(const attention_t *attention, void *room, int threads)
{
    forward_task_t task = {attention, room, bytes_of(attention, 0)};
    if (threads == 1) {
        attend_share(&task, 0, 1);
        return;
    }
    fxjit_openmp.parallel(attend, &task, (unsigned)threads, 0);
}

void
fxjit_attend_backward(const attention_backward_t *attention, void *room, int threads)
{
    backward_task_t task = {attention, room, bytes_of(&attention->forward, 1)};
    if (threads == 1) {
        derive_share(&task, 0, 1);
        return;
    }
    fxjit_openmp.parallel(attend_backward, &task, (unsigned)threads, 0);
}

#endif
