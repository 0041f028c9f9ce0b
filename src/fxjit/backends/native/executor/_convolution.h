/* Convolutions of float32 images by kernels of our own for processors with AVX-512: channels last in one group (_convolution.c),
 * or depthwise of images that are not (_depthwise.c). */
#ifndef FXJIT_CONVOLUTION_H
#define FXJIT_CONVOLUTION_H

#include <Python.h>
#include <stdint.h>

/* As a program lists them, one after the other. Images and results are dense; the weight lies as [results, channels, rows, columns],
 * or with its channels last; a depthwise one as [channels][rows, columns], with any distance between channels. */
typedef struct {
    int64_t images, channels, height, width, results, rows, columns, out_height, out_width;
    int64_t stride[2], padding[2], dilation[2];
    int64_t weight_last; /* whether the weight's channels are last */
    int64_t depthwise, weight_step; /* whether it is, and that distance */
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
/* What these two are for depthwise ones. */
int64_t fxjit_depthwise_room(const convolution_sizes_t *sizes, int threads);
void fxjit_convolve_depthwise(const convolution_t *convolution, void *room, int threads);

PyObject *fxjit_time_convolution(PyObject *module, PyObject *args);

#endif
