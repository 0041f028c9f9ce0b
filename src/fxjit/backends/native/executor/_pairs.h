/* Products of bfloat16 by pairs of numbers (AVX512-BF16): each step multiplies two numbers of a row with two of a column, and adds
 * both to a float: _pairs.c. Numbers below 2^-126 count as zero there. */
#ifndef FXJIT_PAIRS_H
#define FXJIT_PAIRS_H

#include <stdint.h>

enum {
    FXJIT_PAIR_COLUMNS = 32, /* of a panel */
    FXJIT_PAIR_ROWS = 14,    /* of a that registers hold */
};

/* Whether this processor has them. */
int fxjit_pairs_run(void);

/* out (+)= a b. Of a: `rows` rows of pairs, `a_line` pairs apart, or with `across` columns of pairs that lie so; of b: panels of
 * `b_rows` rows of pairs, the first `depth` of which are taken. The result has `columns` columns, and more of its room is written to,
 * up to a multiple of 16. */
void fxjit_pairs_multiply(const uint32_t *a, int64_t a_line, int across, const uint32_t *b, int64_t b_rows, int64_t rows,
                          int64_t columns, int64_t depth, float *out, int64_t line, int add);

/* `count` rows of `width` numbers, `row` apart: as columns of panels, pairs of neighbours in a row; */
void fxjit_pairs_turn(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to);
/* as rows of panels, pairs of neighbours in a column; the last of an odd count has zeros; */
void fxjit_pairs_join(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to);
/* and as they are, each filled up with zeros to a multiple of 16 pairs. */
void fxjit_pairs_take(const uint16_t *from, int64_t row, int64_t count, int64_t width, uint32_t *to);

/* A multiple of 16 floats, rounded to nearest; `to` may be where they are. */
void fxjit_pairs_round(const float *from, int64_t count, void *to);
/* Two rows of floats as pairs of neighbours in a column; the second may be NULL, for zeros. */
void fxjit_pairs_of_rows(const float *first, const float *second, int64_t count, uint32_t *to);

/* Rounds `rows` rows of sums to bfloat16, a bias added to each before, if there is one. */
void fxjit_pairs_finish(const float *sums, int64_t sums_line, const uint16_t *bias, int64_t rows, int64_t columns, uint16_t *out,
                        int64_t line);

/* The same of sums whose rows are the result's columns: `rows` of them, a bias for each. */
void fxjit_pairs_finish_turned(const float *sums, int64_t sums_line, const uint16_t *bias, int64_t rows, int64_t columns,
                               uint16_t *out, int64_t line);

/* out[m, n] = a[m, k] b[k, n] (+ bias[n], or NULL): rows of a and out are contiguous, and columns of b, or with `by_rows` its rows;
 * they are as far apart as their lines say. On the threads that OpenMP gives; 0, or -1 where there is no memory. Without the GIL. */
typedef struct {
    int64_t m, n, k, a_line, b_line, line;
    int by_rows;
    const uint16_t *a, *b, *bias;
    const uint32_t *packed; /* columns that fxjit_pairs_pack packed, in the place of b; or NULL */
    uint16_t *out;
} pairs_product_t;

int fxjit_pairs_product(const pairs_product_t *product);

/* How many pairs `columns` columns of `terms` numbers are when all of them are packed; and packs those of a product. */
int64_t fxjit_packed_pairs(int64_t columns, int64_t terms);
void fxjit_pairs_pack(const pairs_product_t *product, uint32_t *to);

#endif
