/* One row of a step of a recurrent layer: gates, cells and state of its units out of the products of the step (_recurrent.c). */
#ifndef FXJIT_RECURRENT_ROWS_H
#define FXJIT_RECURRENT_ROWS_H

#include <stdint.h>

/* Of the lanes that are `there`. */
#define LOAD(from) vec_load_some(there, from)
#define STORE(to, what) vec_store_some(to, there, what)

/* sums: products of the states, `wide` apart, a GRU's last gate behind that of its inputs; input: those of the inputs, NULL where
 * `sums` has them; gates: for a derivative. */
typedef struct {
    int64_t size, wide, begin, end; /* the units from one to another */
    const float *sums, *input, *bias, *h;
    float *gates, *h_next, *out, *c, *cells;
} row_t;

/* Of the derivative: `d` is the gradient of this step's state, to which `d_out` is added where there is one, and then a part of
 * that of the state before. */
typedef struct {
    int64_t size, begin, end;
    const float *gates, *cells, *h_before, *d_out;
    float *d, *d_c, *d_gates, *d_inner; /* d_inner: a GRU's, of what its reset gate multiplies */
} back_row_t;

/* By the layer's kind. */
extern void (*const fxjit_forward_rows[])(const row_t *);
extern void (*const fxjit_backward_rows[])(const back_row_t *);

#endif
