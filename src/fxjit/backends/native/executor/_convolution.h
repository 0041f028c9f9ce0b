/* Convolutions of float32 images by kernels of our own: channels last in one group (_convolution.c), with
 * their derivatives (of the weight: _convolution_weights.c), or depthwise of images that are not (_depthwise.c). */
#ifndef FXJIT_CONVOLUTION_H
#define FXJIT_CONVOLUTION_H

#include <Python.h>
#include <stdint.h>

/* What a convolution is; runtime/own_convolutions.py has the same list.
 * IN_ONE_GROUP: the weight lies as [results, channels, rows, columns], or with its channels last.
 * DEPTHWISE: as [channels][rows, columns], with any distance between channels.
 * TRANSPOSED: the gradient of another's images: a convolution by the weight's windows turned over, with the padding that this
 * takes; `stride` is that of the other, by which these images' pixels are apart. The weight lies as [channels, results, rows, columns], or with its results last.
 * OF_WEIGHT: the gradient of the weight of one in one group, whose sizes they are: `weight` is the gradient of the results, and
 * `out` lies as a weight does. */
enum { IN_ONE_GROUP, DEPTHWISE, TRANSPOSED, OF_WEIGHT };

/* As a program lists them, one after the other. Images and results are dense. */
typedef struct {
    int64_t images, channels, height, width, results, rows, columns, out_height, out_width;
    int64_t stride[2], padding[2], dilation[2];
    int64_t weight_last; /* whether the weight's last two dimensions come before its second */
    int64_t kind, weight_step; /* of a depthwise one: that distance */
} convolution_sizes_t;

typedef struct {
    convolution_sizes_t sizes;
    const float *x, *weight, *bias; /* bias: or NULL */
    float *out;
} convolution_t;

/* Bytes of memory that it takes beside its operands on so many threads, and how many threads it gets. */
int64_t fxjit_convolution_room(const convolution_sizes_t *sizes, int threads);
int fxjit_convolution_threads(const convolution_sizes_t *sizes);
/* On so many threads; `room` is aligned to 64 bytes; 0, or -1 where there is no memory for more. Without the GIL. */
int fxjit_convolve(const convolution_t *convolution, void *room, int threads);
/* What these two are for some kinds. */
int64_t fxjit_depthwise_room(const convolution_sizes_t *sizes, int threads);
void fxjit_convolve_depthwise(const convolution_t *convolution, void *room, int threads);
int64_t fxjit_weights_room(const convolution_sizes_t *sizes, int threads);
void fxjit_convolve_weights(const convolution_t *convolution, void *room, int threads);

PyObject *fxjit_time_convolution(PyObject *module, PyObject *args);

#endif
