/* Convolutions of float32 images, channels last, by kernels of our own for processors with AVX-512: _convolution.c. */
#ifndef FXJIT_CONVOLUTION_H
#define FXJIT_CONVOLUTION_H

#include <Python.h>
#include <stdint.h>

/* As a program lists them, one after the other. Images, results and channels are dense, channels last; the weight lies as
 * [results, channels, rows, columns], or with its channels last. */
typedef struct {
    int64_t images, channels, height, width, results, rows, columns, out_height, out_width;
    int64_t stride[2], padding[2], dilation[2];
    int64_t weight_last; /* whether the weight's channels are last */
} convolution_sizes_t;

typedef struct {
    convolution_sizes_t sizes;
    const float *x, *weight, *bias; /* bias: or NULL */
    float *out;
} convolution_t;

/* Bytes of memory that it takes beside its operands on so many threads, and how many threads it gets. */
int64_t fxjit_convolution_room(const convolution_sizes_t *sizes, int threads);
int fxjit_convolution_threads(const convolution_sizes_t *sizes);
/* On so many threads; `room` is aligned to 64 bytes. Without the GIL. */
void fxjit_convolve(const convolution_t *convolution, void *room, int threads);

PyObject *fxjit_time_convolution(PyObject *module, PyObject *args);

#endif
