/* Depthwise convolutions of float32 images that are not channels last, with a step of one pixel: of each channel by its own window.
 *
 * Four rows of two vectors of results are calculated at a time: each vector that is read serves all of these rows. A band of a plane is copied
 * before, with zeros around it. A sum is a chain of at most CHAIN products, or of one row of a window; chains are added up one after
 * the other. The number of threads changes no result. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_wide.h"
#include "_convolution.h"

#ifdef FXJIT_HAS_WIDE

enum {
    HEIGHT = 4,
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
    most = most < 4 * HEIGHT ? 4 * HEIGHT : most / HEIGHT * HEIGHT;
    task->bands = (s->out_height + most - 1) / most;
    task->height = ((s->out_height + task->bands - 1) / task->bands + HEIGHT - 1) / HEIGHT * HEIGHT;
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

/* Rows of the window from one to another: four rows of two vectors of sums. */
WIDE static void
add_taps(const task_t *task, const float *x, const float *weight, int64_t from, int64_t to, vec_t sums[HEIGHT][2])
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t columns = s->columns, apart = s->dilation[1];
    vec_t a[HEIGHT], b[HEIGHT];
    UNROLLED for (int i = 0; i < HEIGHT; i++) {
        a[i] = b[i] = vec_zero();
    }
    if (s->dilation[0] == 1) {
        for (int64_t row = from; row < to + HEIGHT - 1; row++) { /* of pixels: it is tap row - i of the result's row i */
            const float *pixels = x + row * task->line, *taps = weight + row * columns;
            int used[HEIGHT];
            UNROLLED for (int i = 0; i < HEIGHT; i++) {
                used[i] = row - i >= from && row - i < to;
            }
            for (int64_t j = 0; j < columns; j++, pixels += apart) {
                vec_t first = vec_load_any(pixels), second = vec_load_any(pixels + LANES);
                UNROLLED for (int i = 0; i < HEIGHT; i++) {
                    if (used[i]) {
                        vec_t tap = vec_all(taps[j - i * columns]);
                        a[i] = vec_fma(tap, first, a[i]);
                        b[i] = vec_fma(tap, second, b[i]);
                    }
                }
            }
        }
    }
    else {
        for (int64_t row = from; row < to; row++) {
            for (int64_t j = 0; j < columns; j++) {
                const float *pixels = x + row * s->dilation[0] * task->line + j * apart;
                vec_t tap = vec_all(weight[row * columns + j]);
                UNROLLED for (int i = 0; i < HEIGHT; i++) {
                    a[i] = vec_fma(tap, vec_load_any(pixels + i * task->line), a[i]);
                    b[i] = vec_fma(tap, vec_load_any(pixels + i * task->line + LANES), b[i]);
                }
            }
        }
    }
    UNROLLED for (int i = 0; i < HEIGHT; i++) {
        sums[i][0] = vec_add(sums[i][0], a[i]);
        sums[i][1] = vec_add(sums[i][1], b[i]);
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
    vec_t bias = vec_all(convolution->bias ? convolution->bias[channel] : 0);
    copy_band(task, convolution->x + plane * s->height * s->width, top, copy);
    for (int64_t y = top; y < bottom; y += HEIGHT) {
        for (int64_t x = 0; x < s->out_width; x += COLUMNS) {
            vec_t sums[HEIGHT][2];
            UNROLLED for (int i = 0; i < HEIGHT; i++) {
                sums[i][0] = sums[i][1] = vec_zero();
            }
            for (int64_t row = 0; row < s->rows; row += together) {
                add_taps(task, copy + (y - top) * task->line + x, weight, row, least(row + together, s->rows), sums);
            }
            float *out = convolution->out + (plane * s->out_height + y) * s->out_width + x;
            lanes_t left = first_lanes(s->out_width - x), right = first_lanes(s->out_width - x - LANES);
            for (int i = 0; i < HEIGHT && y + i < bottom; i++, out += s->out_width) {
                vec_store_some(out, left, vec_add(sums[i][0], bias));
                if (right) {
                    vec_store_some(out + LANES, right, vec_add(sums[i][1], bias));
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

#endif
