/* What the kernels of convolutions and of their weights' gradients share (_convolution.c, _convolution_weights.c): tiles of
 * ROWS x COLUMNS numbers in registers, windows of 3 x 3 by Winograd's algorithm, and weights packed into panels (_convolution_panels.c). */
#ifndef FXJIT_CONVOLUTION_PANELS_H
#define FXJIT_CONVOLUTION_PANELS_H

#include "_wide.h"
#include "_convolution.h"

enum {
    TURNED = 16,  /* numbers for a tile of 4 x 4 pixels */
    TAPS = 9,
};

static inline int64_t
most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of step 1, whose tiles Winograd's algorithm takes. */
static inline int
is_turned(const convolution_sizes_t *s)
{
    return s->rows == 3 && s->columns == 3 && s->stride[0] == 1 && s->stride[1] == 1 && s->dilation[0] == 1 && s->dilation[1] == 1;
}

/* The weights of a panel's results as [depth][COLUMNS results]: all channels of a tap before the next one. */
void fxjit_pack_panel(const convolution_t *convolution, int64_t panel, float *to);
/* The same of a transposed one whose taps are every `apart`th of `all`, from `tap` on, turned over. */
void fxjit_pack_flipped_panel(const convolution_t *convolution, const convolution_sizes_t *all, const int64_t tap[2],
                              const int64_t apart[2], int64_t panel, float *to);
/* A thread's part of the weights in the order of a window's numbers: [results][depth], of a transposed one [depth][results]. */
void fxjit_take_rows(const convolution_t *convolution, int64_t thread, int64_t threads, float *rows);
/* Turned by Winograd's algorithm: [16][channels][COLUMNS results]; squares: the sum of each tap's, infinite where those of one result
 * differ too much. */
void fxjit_turn_panel(const convolution_t *convolution, int64_t panel, float *to, float *squares);
/* The sum of the squares of each pixel's channels, from one pixel up to another. */
void fxjit_take_squares(const float *images, int64_t channels, int64_t from, int64_t to, float *squares);

#endif
