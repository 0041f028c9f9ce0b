/* Attention of float32, bfloat16 and float16 by kernels of our own: _attention.c. */
#ifndef FXJIT_ATTENTION_H
#define FXJIT_ATTENTION_H

#include <Python.h>
#include <stdint.h>

enum { OF_FLOAT32, OF_BFLOAT16, OF_FLOAT16 };

/* A tensor of (batch, heads, rows, width): how many numbers its batches, heads and rows are apart; those of a row are contiguous. */
typedef struct {
    void *data;
    int64_t batch, head, row;
} heads_t;

/* softmax(scale q k^T + mask) v for each head. Heads of the queries share those of the keys (grouped-query attention): the first
 * heads / key_heads of them look at the first one, and so on. */
typedef struct {
    int64_t batch, heads, key_heads, queries, keys, width;
    int kind, mask_kind; /* of the numbers, and of the mask's, which has as many dimensions where there is one */
    int causal;          /* query i sees keys up to i */
    int by_pairs;        /* bfloat16 is multiplied as such (_pairs.h) */
    float scale;
    heads_t q, k, v, out, mask;
    int64_t mask_column; /* 0 or 1 */
    /* The logarithms of the sums of exponentials, (batch, heads, queries), which a derivative asks for. */
    heads_t logsumexp;
} attention_t;

typedef struct {
    attention_t forward;
    heads_t d_out, d_q, d_k, d_v; /* gradients: what is given, and what is made */
} attention_backward_t;

int fxjit_attention_threads(const attention_t *attention, int backward);
/* Bytes of memory that so many threads calculate in. */
int64_t fxjit_attention_room(const attention_t *attention, int backward, int threads);
/* On as many threads as the room is for. Without the GIL. */
void fxjit_attend(const attention_t *attention, void *room, int threads);
void fxjit_attend_backward(const attention_backward_t *attention, void *room, int threads);

PyObject *fxjit_attention_forward(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *fxjit_attention_backward(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
