/* Layers of LSTM, GRU and RNN of float32 by kernels of our own: _recurrent.c. */
#ifndef FXJIT_RECURRENT_H
#define FXJIT_RECURRENT_H

#include <Python.h>
#include <stdint.h>

enum { LSTM, GRU, RNN_TANH, RNN_RELU };

/* One direction of a layer. What is not there is NULL: biases, an LSTM's cells elsewhere, what nobody wants. Matrices and states
 * are contiguous; `out` and its gradient are columns of the layer's. */
typedef struct {
    const float *w_input, *w_hidden, *b_input, *b_hidden, *h_first, *c_first; /* weights: (gates * size, features or size) */
    float *h_last, *c_last;                                                  /* (batch, size) */
    float *gates;    /* (rows, gates * size): after the activations; forward's memory while it is on */
    /* What else a derivative is made of, (rows, size); NULL where nobody wants one. */
    float *h_before; /* states before each step */
    float *cells;    /* of an LSTM its cells before each step, of a GRU what its reset gate multiplies, of an RNN its states */
    const float *d_h_last, *d_c_last;
    float *d_h_first, *d_c_first, *d_w_input, *d_w_hidden, *d_b_input, *d_b_hidden;
} direction_t;

/* A layer over the rows of `steps` steps: step t has those from starts[t] to starts[t + 1], no more than the step before it. */
typedef struct {
    int64_t kind, steps, batch, features, size, directions, rows;
    const int64_t *starts;
    const float *x, *d_out; /* (rows, features), (rows, directions * size) */
    float *out, *d_x;
    direction_t each[2];
} layer_t;

/* Forward, or what a derivative is made of; 0, or -1 with an exception. */
int fxjit_run_layer(const layer_t *layer, int backward);

PyObject *fxjit_recurrent_forward(PyObject *module, PyObject *numbers);
PyObject *fxjit_recurrent_backward(PyObject *module, PyObject *numbers);

#endif
