/* Depthwise convolutions of float32 images that are not channels last, with a step of one pixel: of each channel by its own window.
 *
 * Four rows of 32 results are calculated at a time: each vector that is read serves all of these rows. A band of a plane is copied
 * before, with zeros around it. A sum is a chain of at most CHAIN products, or of one row of a window; chains are added up one after
 * the other. The number of threads changes no result. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_convolution.h"
#include "_wide.h"

#ifdef FXJIT_HAS_WIDE

enum {
    ROWS = 4,
    COLUMNS = 32,
    CHAIN = 64,
    BAND = 64 << 10, /* bytes of the copied rows */
};

/* Of a band: how many rows of results, how far apart the copied rows are, and how many there are, with those that are only read. */
typedef struct {
    const convolution_t *convolution;
    int64_t height, bands, line, lines, room;
    float *copies;
} task_t;

static void
lay_out(task_t *task, const convolution_sizes_t *s)
{
    int64_t reach = (s->rows - 1) * s->dilation[0];
    task->line = (s->width + 2 * s->padding[1] + LANES - 1) / LANES * LANES;
    int64_t most = BAND / (int64_t)sizeof(float) / task->line - reach;
    most = most < 4 * ROWS ? 4 * ROWS : most / ROWS * ROWS;
    task->bands = (s->out_height + most - 1) / most;
    task->height = ((s->out_height + task->bands - 1) / task->bands + ROWS - 1) / ROWS * ROWS;
    task->bands = (s->out_height + task->height - 1) / task->height;
    task->lines = task->height + reach;
    task->room = task->lines * task->line + COLUMNS + (s->columns - 1) * s->dilation[1] + LANES;
    task->room = (task->room + LANES - 1) / LANES * LANES;
}

int64_t
fxjit_depthwise_room(const convolution_sizes_t *sizes, int threads)
{
    task_t task;
    lay_out(&task, sizes);
    return threads * task.room * (int64_t)sizeof(float);
}

/* Rows of a plane from `top` on, in its padding's coordinates, with zeros around. */
static void
copy_band(const task_t *task, const float *plane, int64_t top, float *to)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    for (int64_t row = 0; row < task->lines; row++, to += task->line) {
        int64_t y = top + row - s->padding[0];
        if (y < 0 || y >= s->height) {
            memset(to, 0, (size_t)task->line * sizeof(float));
            continue;
        }
        int64_t before = s->padding[1], after = task->line - before - s->width;
        memset(to, 0, (size_t)before * sizeof(float));
        memcpy(to + before, plane + y * s->width, (size_t)s->width * sizeof(float));
        memset(to + before + s->width, 0, (size_t)after * sizeof(float));
    }
    memset(to, 0, (size_t)(task->room - task->lines * task->line) * sizeof(float));
}

/* Rows of the window from one to another: four rows of 32 sums. */
WIDE static void
add_taps(const task_t *task, const float *x, const float *weight, int64_t from, int64_t to, __m512 sums[ROWS][2])
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t columns = s->columns, apart = s->dilation[1];
    __m512 a[ROWS], b[ROWS];
    UNROLLED for (int i = 0; i < ROWS; i++) {
        a[i] = b[i] = _mm512_setzero_ps();
    }
    if (s->dilation[0] == 1) {
        for (int64_t row = from; row < to + ROWS - 1; row++) { /* of pixels: it is tap row - i of the result's row i */
            const float *pixels = x + row * task->line, *taps = weight + row * columns;
            int used[ROWS];
            UNROLLED for (int i = 0; i < ROWS; i++) {
                used[i] = row - i >= from && row - i < to;
            }
            for (int64_t j = 0; j < columns; j++, pixels += apart) {
                __m512 first = _mm512_loadu_ps(pixels), second = _mm512_loadu_ps(pixels + LANES);
                UNROLLED for (int i = 0; i < ROWS; i++) {
                    if (used[i]) {
                        __m512 tap = _mm512_set1_ps(taps[j - i * columns]);
                        a[i] = _mm512_fmadd_ps(tap, first, a[i]);
                        b[i] = _mm512_fmadd_ps(tap, second, b[i]);
                    }
                }
            }
        }
    }
    else {
        for (int64_t row = from; row < to; row++) {
            for (int64_t j = 0; j < columns; j++) {
                const float *pixels = x + row * s->dilation[0] * task->line + j * apart;
                __m512 tap = _mm512_set1_ps(weight[row * columns + j]);
                UNROLLED for (int i = 0; i < ROWS; i++) {
                    a[i] = _mm512_fmadd_ps(tap, _mm512_loadu_ps(pixels + i * task->line), a[i]);
                    b[i] = _mm512_fmadd_ps(tap, _mm512_loadu_ps(pixels + i * task->line + LANES), b[i]);
                }
            }
        }
    }
    UNROLLED for (int i = 0; i < ROWS; i++) {
        sums[i][0] = _mm512_add_ps(sums[i][0], a[i]);
        sums[i][1] = _mm512_add_ps(sums[i][1], b[i]);
    }
}

WIDE static void
convolve_band(const task_t *task, int64_t plane, int64_t band, float *copy)
{
    const convolution_t *convolution = task->convolution;
    const convolution_sizes_t *s = &convolution->sizes;
    int64_t channel = plane % s->channels, top = band * task->height, bottom = least(top + task->height, s->out_height);
    int64_t together = CHAIN / s->columns > 1 ? CHAIN / s->columns : 1;
    const float *weight = convolution->weight + channel * s->weight_step;
    __m512 bias = _mm512_set1_ps(convolution->bias ? convolution->bias[channel] : 0);
    copy_band(task, convolution->x + plane * s->height * s->width, top, copy);
    for (int64_t y = top; y < bottom; y += ROWS) {
        for (int64_t x = 0; x < s->out_width; x += COLUMNS) {
            __m512 sums[ROWS][2];
            UNROLLED for (int i = 0; i < ROWS; i++) {
                sums[i][0] = sums[i][1] = _mm512_setzero_ps();
            }
            for (int64_t row = 0; row < s->rows; row += together) {
                add_taps(task, copy + (y - top) * task->line + x, weight, row, least(row + together, s->rows), sums);
            }
            float *out = convolution->out + (plane * s->out_height + y) * s->out_width + x;
            __mmask16 left = first_lanes(s->out_width - x), right = first_lanes(s->out_width - x - LANES);
            for (int i = 0; i < ROWS && y + i < bottom; i++, out += s->out_width) {
                _mm512_mask_storeu_ps(out, left, _mm512_add_ps(sums[i][0], bias));
                if (right) {
                    _mm512_mask_storeu_ps(out + LANES, right, _mm512_add_ps(sums[i][1], bias));
                }
            }
        }
    }
}

/* Each thread. */
static void
convolve(void *data)
{
    task_t *task = data;
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads(), all = s->images * s->channels * task->bands;
    float *copy = task->copies + thread * task->room;
    for (int64_t at = all * thread / threads; at < all * (thread + 1) / threads; at++) {
        convolve_band(task, at / task->bands, at % task->bands, copy);
    }
}

void
fxjit_convolve_depthwise(const convolution_t *convolution, void *room, int threads)
{
    task_t task = {.convolution = convolution, .copies = room};
    lay_out(&task, &convolution->sizes);
    fxjit_openmp.parallel(convolve, &task, (unsigned)threads, 0);
}

#else

int64_t
fxjit_depthwise_room(const convolution_sizes_t *sizes, int threads)
{
    (void)sizes;
    (void)threads;
    return 0;
}

void
fxjit_convolve_depthwise(const convolution_t *convolution, void *room, int threads)
{
    (void)convolution;
    (void)room;
    (void)threads;
}

#endif
