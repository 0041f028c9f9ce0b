/* Convolutions of float32 images, channels last, in one group, and transposed ones, which are the gradients of their images: those
 * with a step are convolutions without one, each of some of the taps, of which each makes some of the results.
 *
 * Windows of 3 x 3 that move by one pixel go by Winograd's algorithm F(2 x 2, 3 x 3): four results, a tile, are made of 16 products
 * where there were 36. Pixels and weights are turned into 16 numbers each, which are multiplied as matrices, 16 products of tiles
 * by results; a tile's 16 sums are turned back into its four results. All other windows are copied, and multiplied by the weights:
 * by tiles of bfloat16, where the processor has them and the product is large enough, which are not the tiles of Winograd's.
 *
 * A sum is a chain of some products, and chains are added up one after the other, so that errors are those of oneDNN's
 * convolutions of plain images. But an error of Winograd's is one of its whole tile: where the windows of a tile differ
 * much in size, or are not finite, its results are calculated as those of other windows are, and so are all where weights differ
 * much. The number of threads changes no result. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_wide.h"
#include "_convolution.h"
#include "_convolution_panels.h"
#include "_gemm.h"
#include "_gemm_tiles.h"

#ifdef FXJIT_HAS_WIDE

enum {
    LINE = 32,         /* numbers of one row of a block: a constant, so that rows are addressed by constants */
    TURNED_CHAIN = 16, /* products of one sum, of Winograd's; others have those of chain_of() */
    DEPTH = 1152,      /* numbers of a window that are copied at once */
    BLOCK = 512 << 10, /* bytes of the blocks of a thread: half of the second-level cache, of a Zen 3 all of it */
    TOGETHER = 256,    /* tiles that a panel is multiplied by at once, at most */
    TILED_ROWS = 384,  /* windows that tiles multiply at once: what stays in the second-level cache there */
    TILED_DEPTH = 1024, /* and how many of their numbers, */
    TILED_LEAST = 128, /* if a window has so many, at least, */
    TILED_RESULTS = 32, /* and there are so many results */
    SIDE = 32,         /* of their panels */
    WORK = 1 << 20,    /* multiplications for which a thread is called */
};

/* How much the windows of a tile may differ in their sums of squares. */
static const float EVEN = 64;
/* The product of such sums from which numbers might become infinite on the way. */
static const double LARGE = 1e70;

typedef struct {
    const convolution_t *convolution;
    const convolution_sizes_t *all; /* of all taps of a transposed one */
    int turned;               /* by Winograd's algorithm, */
    int by_panels;            /* and then each panel of weights by all tiles, not each block of tiles by all weights; */
    int by_tiles;             /* else its windows by all weights at once, by tiles of bfloat16 (_gemm_tiles.c) */
    int64_t panels, channels; /* of COLUMNS results each; rounded up to whole lines */
    int64_t down, across, tiles, block; /* of tiles: in an image, in all images, and how many a thread multiplies at once */
    int64_t depth, deep, pixels; /* of other windows: numbers of one, how many are copied at once, and pixels likewise */
    int64_t first[2], step[2];   /* of other windows: where their results are */
    int64_t tap[2], apart[2];    /* of a transposed one: its first tap, and the distance to the next, of the weight turned over */
    int64_t of_weights, of_sizes, of_taps, of_tiles, of_block, of_sums, of_list; /* floats; of the list: places */
    float *weights, *squares, *taps, *of_all_tiles, *blocks;
    int64_t *list; /* pixels that Winograd's algorithm does not serve */
    int64_t listed;
    int failed;    /* there is no memory */
} task_t;

static inline int64_t
rounded_up(int64_t size, int64_t to)
{
    return (size + to - 1) / to * to;
}

/* Of so many products, in about as many chains as each of them is long, for the smallest error. */
static int64_t
chain_of(int64_t depth)
{
    int64_t chain = LINE;
    while (chain * chain < depth) {
        chain += LINE;
    }
    return chain;
}

/* Whether all tiles are read for each panel of weights: where they are few, weights that are turned for one panel are still in the
 * cache when they are multiplied, while those of all panels go to memory and come back for each block of tiles. Of 512 channels and
 * results, as fast: 14 x 14 pixels 1.4 to 1.7 times, four of 7 x 7 1.1 to 1.5, 28 x 28 1.05 to 1.2; of 256, one of 14 x 14 1.1, four 0.95. */
static int
goes_by_panels(const task_t *task)
{
    int64_t of_panel = TURNED * task->channels * COLUMNS, of_weights = task->panels * of_panel;
    int64_t room = 2 * BLOCK / (int64_t)sizeof(float);
    return of_panel <= room && of_weights > room && 2 * TURNED * task->channels * task->tiles <= of_weights;
}

/* Whether a result's weights lie one after the other as the numbers of a window do. */
static int
lies_in_rows(const convolution_sizes_t *s)
{
    return s->kind == IN_ONE_GROUP && (s->weight_last || s->rows * s->columns == 1);
}

/* Sizes alone. */
static void
lay_out(task_t *task, const convolution_sizes_t *s, int threads, int with_step)
{
    int64_t all = s->images * s->out_height * s->out_width;
    task->turned = is_turned(s) && !with_step;
    task->panels = (s->results + COLUMNS - 1) / COLUMNS;
    task->channels = rounded_up(s->channels, LINE);
    task->depth = s->rows * s->columns * s->channels;
    int64_t parts = most((task->depth + DEPTH - 1) / DEPTH, 1);
    task->deep = rounded_up((task->depth + parts - 1) / parts, LINE);
    task->pixels = least(most(BLOCK / (int64_t)sizeof(float) / most(task->deep, 1) / ROWS, 1), 8) * ROWS;
    task->of_weights = task->panels * task->depth * COLUMNS;
    task->of_block = task->deep * task->pixels;
    task->of_sums = task->panels * task->pixels * COLUMNS;
    task->of_list = task->of_sizes = task->of_taps = task->of_tiles = task->by_panels = task->by_tiles = 0;
    if (task->turned) {
        task->down = (s->out_height + 1) / 2;
        task->across = (s->out_width + 1) / 2;
        task->tiles = s->images * task->down * task->across;
        int64_t block = most(BLOCK / (int64_t)sizeof(float) / (TURNED * task->channels) / ROWS, 1) * ROWS;
        task->by_panels = goes_by_panels(task);
        int64_t blocks = rounded_up((task->tiles + block - 1) / block, threads);
        task->block = task->by_panels ? least(task->tiles, TOGETHER) : (task->tiles + blocks - 1) / blocks;
        task->of_weights = task->panels * TURNED * s->channels * COLUMNS; /* more than the others */
        if (task->by_panels) {
            task->of_weights = most(task->panels * task->depth, threads * TURNED * s->channels) * COLUMNS;
            task->of_tiles = TURNED * task->channels * task->tiles;
        }
        task->of_sizes = rounded_up(s->images * s->height * s->width, LANES);
        task->of_taps = rounded_up(task->panels * TAPS, LANES);
        task->of_block = task->by_panels ? task->of_block : most(task->of_block, TURNED * task->channels * task->block);
        task->of_sums = most(task->of_sums, TURNED * task->block * COLUMNS);
        task->of_list = all;
    }
    else if (!with_step && task->depth >= TILED_LEAST && s->results >= TILED_RESULTS && all >= SIDE && fxjit_tiles_run()) {
        task->by_tiles = 1;
        parts = (task->depth + TILED_DEPTH - 1) / TILED_DEPTH;
        task->deep = rounded_up((task->depth + parts - 1) / parts, LINE);
        task->pixels = TILED_ROWS;
        task->of_weights = lies_in_rows(s) ? 0 : rounded_up(task->depth * s->results, LANES);
        task->of_block = task->deep * task->pixels;
        task->of_sums = 0;
    }
    else {
        int64_t blocks = rounded_up((all + task->pixels - 1) / task->pixels, threads);
        task->pixels = most((all + blocks - 1) / blocks, 1);
    }
}

/* One of the convolutions that a transposed one with a step is: of the results (row, column), a step apart. A tap of the window,
 * turned over, is of those results whose pixel it falls on: every few taps is. */
static void
choose_taps(convolution_sizes_t *one, task_t *task, const convolution_sizes_t *s, int64_t row, int64_t column)
{
    *one = *s;
    int64_t *windows[2] = {&one->rows, &one->columns}, *sizes[2] = {&one->out_height, &one->out_width};
    int64_t firsts[2] = {row, column};
    for (int i = 0; i < 2; i++) {
        int64_t step = s->stride[i], taps = *windows[i], tap = 0, apart = 1;
        while (apart * s->dilation[i] % step != 0) {
            apart++;
        }
        while (tap < apart && (firsts[i] - s->padding[i] + tap * s->dilation[i]) % step != 0) {
            tap++;
        }
        int reached = tap < least(apart, taps);
        task->first[i] = firsts[i];
        task->step[i] = step;
        task->tap[i] = tap;
        task->apart[i] = apart;
        *windows[i] = reached ? (taps - tap + apart - 1) / apart : 0;
        *sizes[i] = (*sizes[i] - firsts[i] + step - 1) / step;
        one->padding[i] = reached ? -(firsts[i] - s->padding[i] + tap * s->dilation[i]) / step : 0;
        one->dilation[i] = apart * s->dilation[i] / step;
        one->stride[i] = 1;
    }
}

static int
has_step(const convolution_sizes_t *s)
{
    return s->kind == TRANSPOSED && (s->stride[0] > 1 || s->stride[1] > 1);
}

/* The same of each of them: the most floats that a thread takes beside weights. */
static int64_t
floats_with_step(const convolution_sizes_t *s, int threads)
{
    int64_t floats = 0;
    for (int64_t at = 0; at < s->stride[0] * s->stride[1]; at++) {
        convolution_sizes_t one;
        task_t task;
        choose_taps(&one, &task, s, at / s->stride[1], at % s->stride[1]);
        if (one.out_height <= 0 || one.out_width <= 0) {
            continue;
        }
        lay_out(&task, &one, threads, 1);
        floats = most(floats, task.of_block + task.of_sums);
    }
    return floats;
}

static int64_t
shared_floats(const task_t *task)
{
    return task->of_weights + task->of_sizes + task->of_taps + task->of_tiles;
}

int64_t
fxjit_convolution_room(const convolution_sizes_t *sizes, int threads)
{
    if (sizes->kind == DEPTHWISE) {
        return fxjit_depthwise_room(sizes, threads);
    }
    if (sizes->kind == OF_WEIGHT) {
        return fxjit_weights_room(sizes, threads);
    }
    task_t task;
    lay_out(&task, sizes, threads, 0);
    if (has_step(sizes)) {
        return (task.of_weights + threads * floats_with_step(sizes, threads)) * (int64_t)sizeof(float);
    }
    int64_t floats = shared_floats(&task) + threads * (task.of_block + task.of_sums);
    return rounded_up(floats * (int64_t)sizeof(float), 64) + task.of_list * (int64_t)sizeof(int64_t);
}

int
fxjit_convolution_threads(const convolution_sizes_t *s)
{
    int64_t work = s->images * s->out_height * s->out_width * s->results * s->rows * s->columns *
                   (s->kind == DEPTHWISE ? 1 : s->channels);
    if (has_step(s)) {
        work /= s->stride[0] * s->stride[1];
    }
    return fxjit_openmp.inside() ? 1 : (int)least(fxjit_openmp.most(), work / WORK + 1);
}

/* -- products ------------------------------------------------------------------------------------------------------*/

typedef void (*kernel_fn)(int64_t, const float *, int64_t, const float *, float *, int);

/* One chain: `depth` numbers of R rows, in blocks of LINE that are `apart`, by as many packed rows of COLUMNS. */
#define KERNEL(R) \
    WIDE static void multiply_##R(int64_t depth, const float *restrict a, int64_t apart, const float *restrict b, \
                                  float *restrict out, int add) \
    { \
        vec_t s[R], t[R]; \
        UNROLLED for (int i = 0; i < R; i++) { \
            s[i] = t[i] = vec_zero(); \
        } \
        for (; depth > 0; depth -= LINE, a += apart) { \
            const float *x = a, *end = a + (depth < LINE ? depth : LINE); \
            for (; x < end; x++, b += COLUMNS) { \
                vec_t first = vec_load(b), second = vec_load(b + LANES); \
                UNROLLED for (int i = 0; i < R; i++) { \
                    vec_t y = vec_all(x[i * LINE]); \
                    s[i] = vec_fma(y, first, s[i]); \
                    t[i] = vec_fma(y, second, t[i]); \
                } \
            } \
        } \
        UNROLLED for (int i = 0; i < R; i++, out += COLUMNS) { \
            if (add) { \
                s[i] = vec_add(s[i], vec_load(out)); \
                t[i] = vec_add(t[i], vec_load(out + LANES)); \
            } \
            vec_store(out, s[i]); \
            vec_store(out + LANES, t[i]); \
        } \
    }
OF_ALL_HEIGHTS(KERNEL)
#define AT_HEIGHT(R) [R] = multiply_##R,
static const kernel_fn kernels[ROWS + 1] = {OF_ALL_HEIGHTS(AT_HEIGHT)};

/* Rows of a block by a panel of results. a: [depth / LINE][`apart` floats: rows of LINE], b: [depth][COLUMNS], out: [rows][COLUMNS]. */
static void
multiply(int64_t rows, int64_t depth, int64_t chain, const float *a, int64_t apart, const float *b, float *out, int add)
{
    int64_t groups = (rows + ROWS - 1) / ROWS, height = (rows + groups - 1) / groups;
    for (int64_t at = 0; at < depth; at += chain) { /* these rows of b stay in the first-level cache */
        for (int64_t row = 0; row < rows; row += height) {
            kernels[least(height, rows - row)](least(chain, depth - at), a + at / LINE * apart + at % LINE + row * LINE, apart,
                                               b + at * COLUMNS, out + row * COLUMNS, add || at);
        }
    }
}

/* -- which tiles are Winograd's ------------------------------------------------------------------------------------*/

/* The sum of all weights' squares; negative where the taps of a result differ too much, or not all are finite. */
static double
weigh(const task_t *task)
{
    double total = 0;
    for (int tap = 0; tap < TAPS; tap++) {
        float sum = 0;
        for (int64_t panel = 0; panel < task->panels; panel++) {
            sum += task->taps[panel * TAPS + tap];
        }
        if (!(sum < INFINITY)) {
            return -1;
        }
        total += sum;
    }
    return total;
}

typedef struct {
    int64_t image, y, x; /* the first of its results */
} tile_t;

static inline tile_t
tile_at(const task_t *task, int64_t at)
{
    return (tile_t){at / (task->down * task->across), at / task->across % task->down * 2, at % task->across * 2};
}

/* Whether the tile's windows are of about one size, and finite. */
static int
is_even(const task_t *task, const tile_t *tile, double of_weights)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    float columns[2][4], lowest = INFINITY, highest = 0;
    for (int column = 0; column < 4; column++) {
        float pixels[4];
        int64_t x = tile->x - s->padding[1] + column;
        for (int row = 0; row < 4; row++) {
            int64_t y = tile->y - s->padding[0] + row;
            int inside = y >= 0 && y < s->height && x >= 0 && x < s->width;
            pixels[row] = inside ? task->squares[(tile->image * s->height + y) * s->width + x] : 0;
        }
        columns[0][column] = pixels[0] + pixels[1] + pixels[2];
        columns[1][column] = pixels[1] + pixels[2] + pixels[3];
    }
    for (int i = 0; i < 2 && tile->y + i < s->out_height; i++) {
        for (int j = 0; j < 2 && tile->x + j < s->out_width; j++) {
            float window = columns[i][j] + columns[i][j + 1] + columns[i][j + 2];
            if (!(window < INFINITY)) {
                return 0;
            }
            lowest = window < lowest ? window : lowest;
            highest = window > highest ? window : highest;
        }
    }
    return highest <= EVEN * lowest && (double)highest * of_weights < LARGE;
}

/* -- Winograd's algorithm ------------------------------------------------------------------------------------------*/

static const float zeros[LANES];

/* A tile's 4 x 4 pixels as 16 numbers for each channel: to[channels / LINE][16][tiles][LINE]. */
WIDE static void
turn_pixels(const task_t *task, const tile_t *tile, int64_t place, int64_t tiles, float *to)
{
    const convolution_t *convolution = task->convolution;
    const convolution_sizes_t *s = &convolution->sizes;
    const float *pixels[TURNED];
    int64_t apart = tiles * LINE, steps[TURNED];
    for (int i = 0; i < TURNED; i++) {
        int64_t y = tile->y - s->padding[0] + i / 4, x = tile->x - s->padding[1] + i % 4;
        int inside = y >= 0 && y < s->height && x >= 0 && x < s->width;
        pixels[i] = inside ? convolution->x + ((tile->image * s->height + y) * s->width + x) * s->channels : zeros;
        steps[i] = inside;
    }
    for (int64_t channel = 0; channel < s->channels; channel += LANES) {
        lanes_t there = first_lanes(s->channels - channel);
        vec_t d[4][4], e[4][4];
        UNROLLED for (int i = 0; i < TURNED; i++) {
            d[i / 4][i % 4] = vec_load_some(there, pixels[i] + channel * steps[i]);
        }
        UNROLLED for (int j = 0; j < 4; j++) {
            e[0][j] = vec_sub(d[0][j], d[2][j]);
            e[1][j] = vec_add(d[1][j], d[2][j]);
            e[2][j] = vec_sub(d[2][j], d[1][j]);
            e[3][j] = vec_sub(d[1][j], d[3][j]);
        }
        float *line = to + (channel / LINE * TURNED * tiles + place) * LINE + channel % LINE;
        UNROLLED for (int i = 0; i < 4; i++, line += 4 * apart) {
            vec_store(line, vec_sub(e[i][0], e[i][2]));
            vec_store(line + apart, vec_add(e[i][1], e[i][2]));
            vec_store(line + 2 * apart, vec_sub(e[i][2], e[i][1]));
            vec_store(line + 3 * apart, vec_sub(e[i][1], e[i][3]));
        }
    }
}

/* A tile's sums, [16][tiles][COLUMNS], as its four results. */
WIDE static void
turn_back(const task_t *task, const tile_t *tile, const float *sums, int64_t tiles, int64_t first)
{
    const convolution_t *convolution = task->convolution;
    const convolution_sizes_t *s = &convolution->sizes;
    int below = tile->y + 1 < s->out_height, beside = tile->x + 1 < s->out_width;
    for (int64_t result = first; result < least(first + COLUMNS, s->results); result += LANES, sums += LANES) {
        lanes_t there = first_lanes(s->results - result);
        vec_t m[4][4], n[2][4];
        vec_t bias = convolution->bias ? vec_load_some(there, convolution->bias + result) : vec_zero();
        UNROLLED for (int i = 0; i < TURNED; i++) {
            m[i / 4][i % 4] = vec_load(sums + i * tiles * COLUMNS);
        }
        UNROLLED for (int j = 0; j < 4; j++) {
            n[0][j] = vec_add(vec_add(m[0][j], m[1][j]), m[2][j]);
            n[1][j] = vec_sub(vec_sub(m[1][j], m[2][j]), m[3][j]);
        }
        float *to = convolution->out + ((tile->image * s->out_height + tile->y) * s->out_width + tile->x) * s->results + result;
        UNROLLED for (int i = 0; i < 2; i++, to += s->out_width * s->results) {
            vec_t left = vec_add(vec_add(n[i][0], n[i][1]), n[i][2]);
            vec_t right = vec_sub(vec_sub(n[i][1], n[i][2]), n[i][3]);
            if (i == 0 || below) {
                vec_store_some(to, there, vec_add(left, bias));
                if (beside) {
                    vec_store_some(to + s->results, there, vec_add(right, bias));
                }
            }
        }
    }
}

/* Notes the results of a tile that is not even. */
static void
list_tile(task_t *task, const tile_t *tile)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    for (int64_t y = tile->y; y < least(tile->y + 2, s->out_height); y++) {
        for (int64_t x = tile->x; x < least(tile->x + 2, s->out_width); x++) {
            int64_t place = __atomic_fetch_add(&task->listed, 1, __ATOMIC_RELAXED);
            task->list[place] = (tile->image * s->out_height + y) * s->out_width + x;
        }
    }
}

/* Some tiles, of which one channel's turned pixels are `tiles` lines apart, by the turned weights of one panel. */
static void
multiply_turned(const task_t *task, int64_t from, int64_t count, const float *block, int64_t tiles, const float *weights,
                int64_t panel, float *sums)
{
    int64_t channels = task->convolution->sizes.channels;
    for (int64_t k = 0; k < TURNED; k++) {
        multiply(count, channels, TURNED_CHAIN, block + k * tiles * LINE, TURNED * tiles * LINE, weights + k * channels * COLUMNS,
                 sums + k * count * COLUMNS, 0);
    }
    for (int64_t i = 0; i < count; i++) {
        tile_t tile = tile_at(task, from + i);
        turn_back(task, &tile, sums + i * COLUMNS, count, panel * COLUMNS);
    }
}

static void
convolve_tiles(task_t *task, int64_t from, int64_t count, double of_weights, float *block, float *sums)
{
    int64_t channels = task->convolution->sizes.channels;
    for (int64_t i = 0; i < count; i++) {
        tile_t tile = tile_at(task, from + i);
        turn_pixels(task, &tile, i, count, block);
        if (!is_even(task, &tile, of_weights)) {
            list_tile(task, &tile);
        }
    }
    for (int64_t panel = 0; panel < task->panels; panel++) {
        multiply_turned(task, from, count, block, count, task->weights + panel * TURNED * channels * COLUMNS, panel, sums);
    }
}

/* Each panel of a thread by all tiles. Which tiles are even is known when the weights of all panels are. */
static void
convolve_by_panels(task_t *task, float *sums)
{
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads(), channels = task->convolution->sizes.channels;
    float *weights = task->weights + thread * TURNED * channels * COLUMNS;
    for (int64_t i = task->tiles * thread / threads; i < task->tiles * (thread + 1) / threads; i++) {
        tile_t tile = tile_at(task, i);
        turn_pixels(task, &tile, i, task->tiles, task->of_all_tiles);
    }
    fxjit_openmp.barrier();
    for (int64_t panel = task->panels * thread / threads; panel < task->panels * (thread + 1) / threads; panel++) {
        fxjit_turn_panel(task->convolution, panel, weights, task->taps + panel * TAPS);
        for (int64_t from = 0; from < task->tiles; from += task->block) {
            multiply_turned(task, from, least(task->block, task->tiles - from), task->of_all_tiles + from * LINE, task->tiles, weights,
                            panel, sums);
        }
    }
    fxjit_openmp.barrier();
    double of_weights = weigh(task);
    for (int64_t i = task->tiles * thread / threads; of_weights >= 0 && i < task->tiles * (thread + 1) / threads; i++) {
        tile_t tile = tile_at(task, i);
        if (!is_even(task, &tile, of_weights)) {
            list_tile(task, &tile);
        }
    }
}

/* -- other windows -------------------------------------------------------------------------------------------------*/

/* Numbers of a result's window, from one place to another, into a row of a block. */
WIDE static void
copy_window(const convolution_t *convolution, int64_t at, int64_t from, int64_t end, int64_t apart, float *to)
{
    const convolution_sizes_t *s = &convolution->sizes;
    int64_t image = at / (s->out_height * s->out_width), tap = from / s->channels, channel = from % s->channels;
    int64_t top = at / s->out_width % s->out_height * s->stride[0] - s->padding[0];
    int64_t left = at % s->out_width * s->stride[1] - s->padding[1];
    int64_t row = tap / s->columns, column = tap % s->columns, place = 0, line = 0;
    while (from < end) {
        int64_t y = top + row * s->dilation[0], x = left + column * s->dilation[1];
        int inside = y >= 0 && y < s->height && x >= 0 && x < s->width;
        const float *pixel = convolution->x + ((image * s->height + y) * s->width + x) * s->channels + channel;
        int64_t last = least(s->channels - channel, end - from);
        int64_t i = 0;
        for (; place == 0 && i + LINE <= last; i += LINE, line++) {
            float *whole = to + line * apart;
            UNROLLED for (int lane = 0; lane < LINE; lane += LANES) {
                vec_store(whole + lane, inside ? vec_load_any(pixel + i + lane) : vec_zero());
            }
        }
        while (i < last) {
            int64_t count = least(least(LANES, last - i), LINE - place);
            lanes_t there = first_lanes(count);
            vec_t numbers = inside ? vec_load_some(there, pixel + i) : vec_zero();
            vec_store_some(to + line * apart + place, there, numbers);
            i += count;
            place += count;
            if (place == LINE) {
                place = 0;
                line++;
            }
        }
        from += last;
        channel = 0;
        if (++column == s->columns) {
            column = 0;
            row++;
        }
    }
}

/* The pixel of a result. */
static inline int64_t
place_of(const task_t *task, int64_t at)
{
    const convolution_sizes_t *s = &task->convolution->sizes, *all = task->all;
    if (s == all) {
        return at;
    }
    int64_t image = at / (s->out_height * s->out_width), y = at / s->out_width % s->out_height, x = at % s->out_width;
    return (image * all->out_height + task->first[0] + y * task->step[0]) * all->out_width + task->first[1] + x * task->step[1];
}

/* Results from one place of the list to another; of all of them, where there is no list. */
WIDE static void
convolve_windows(const task_t *task, const int64_t *list, int64_t from, int64_t to, float *block, float *sums)
{
    const convolution_t *convolution = task->convolution;
    const convolution_sizes_t *s = &convolution->sizes;
    for (; from < to; from += task->pixels) {
        int64_t count = least(task->pixels, to - from), apart = count * LINE;
        if (task->depth == 0) { /* no tap falls on a pixel */
            memset(sums, 0, (size_t)(task->panels * count * COLUMNS) * sizeof(float));
        }
        for (int64_t at = 0; at < task->depth; at += task->deep) {
            int64_t deep = least(task->deep, task->depth - at);
            for (int64_t i = 0; i < count; i++) {
                copy_window(convolution, list ? list[from + i] : from + i, at, at + deep, apart, block + i * LINE);
            }
            for (int64_t panel = 0; panel < task->panels; panel++) {
                multiply(count, deep, chain_of(task->depth), block, apart, task->weights + (panel * task->depth + at) * COLUMNS,
                         sums + panel * count * COLUMNS, at > 0);
            }
        }
        for (int64_t i = 0; i < count; i++) {
            float *out = convolution->out + place_of(task, list ? list[from + i] : from + i) * s->results;
            for (int64_t result = 0; result < s->results; result += LANES) {
                lanes_t there = first_lanes(s->results - result);
                vec_t sum = vec_load(sums + (result / COLUMNS * count + i) * COLUMNS + result % COLUMNS);
                if (convolution->bias) {
                    sum = vec_add(sum, vec_load_some(there, convolution->bias + result));
                }
                vec_store_some(out + result, there, sum);
            }
        }
    }
}

/* -- other windows by tiles of bfloat16 ------------------------------------------------------------------------------*/

/* Results from one to another, by all weights; negative where there is no memory. */
static int
convolve_by_tiles(const task_t *task, int64_t from, int64_t to, float *block)
{
    const convolution_t *convolution = task->convolution;
    const convolution_sizes_t *s = &convolution->sizes;
    const float *weights = lies_in_rows(s) ? convolution->weight : task->weights;
    int64_t row = s->kind == TRANSPOSED ? s->results : 1, column = s->kind == TRANSPOSED ? 1 : task->depth;
    for (; from < to; from += task->pixels) {
        int64_t count = least(task->pixels, to - from);
        float *out = convolution->out + from * s->results;
        for (int64_t i = 0; convolution->bias && i < count; i++) {
            memcpy(out + i * s->results, convolution->bias, (size_t)s->results * sizeof(float));
        }
        for (int64_t at = 0; at < task->depth; at += task->deep) {
            int64_t deep = least(task->deep, task->depth - at);
            for (int64_t i = 0; i < count; i++) {
                copy_window(convolution, from + i, at, at + deep, LINE, block + i * task->deep);
            }
            product_t product = {
                .m = count, .n = s->results, .k = deep, .a = {block, task->deep, 1}, .b = {weights + at * row, row, column},
                .out = out, .line = s->results, .add = at > 0 || convolution->bias != NULL,
            };
            const part_t all = {.to_row = count, .to_column = s->results};
            if (fxjit_gemm_by_tiles(&product, &all) < 0) { /* whatever the last block's size, which threads change */
                return -1;
            }
        }
    }
    return 0;
}

/* -- calls ---------------------------------------------------------------------------------------------------------*/

static void
convolve_windows_together(task_t *task, const int64_t *list, int64_t count, float *block, float *sums)
{
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads();
    for (int64_t panel = task->panels * thread / threads; panel < task->panels * (thread + 1) / threads; panel++) {
        int transposed = task->convolution->sizes.kind == TRANSPOSED;
        float *to = task->weights + panel * task->depth * COLUMNS;
        if (transposed) {
            fxjit_pack_flipped_panel(task->convolution, task->all, task->tap, task->apart, panel, to);
        }
        else {
            fxjit_pack_panel(task->convolution, panel, to);
        }
    }
    fxjit_openmp.barrier();
    convolve_windows(task, list, count * thread / threads, count * (thread + 1) / threads, block, sums);
}

/* Each thread. */
static void
convolve(void *data)
{
    task_t *task = data;
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads(), all = s->images * s->out_height * s->out_width;
    float *block = task->blocks + thread * (task->of_block + task->of_sums), *sums = block + task->of_block;
    if (task->by_tiles) {
        if (!lies_in_rows(s)) {
            fxjit_take_rows(task->convolution, thread, threads, task->weights);
            fxjit_openmp.barrier();
        }
        int64_t panels = (all + SIDE - 1) / SIDE; /* whole ones, so that they are the same for all numbers of threads */
        int64_t from = panels * thread / threads * SIDE, to = least(panels * (thread + 1) / threads * SIDE, all);
        if (convolve_by_tiles(task, from, to, block) < 0) {
            __atomic_store_n(&task->failed, 1, __ATOMIC_RELAXED);
        }
        return;
    }
    if (!task->turned) {
        convolve_windows_together(task, NULL, all, block, sums);
        return;
    }
    int64_t pixels = s->images * s->height * s->width;
    fxjit_take_squares(task->convolution->x, s->channels, pixels * thread / threads, pixels * (thread + 1) / threads, task->squares);
    if (task->by_panels) {
        convolve_by_panels(task, sums);
    }
    else {
        for (int64_t panel = task->panels * thread / threads; panel < task->panels * (thread + 1) / threads; panel++) {
            float *to = task->weights + panel * TURNED * s->channels * COLUMNS;
            fxjit_turn_panel(task->convolution, panel, to, task->taps + panel * TAPS);
        }
    }
    fxjit_openmp.barrier();
    double of_weights = weigh(task);
    if (of_weights < 0) {
        fxjit_openmp.barrier(); /* the weights were not packed for this */
        convolve_windows_together(task, NULL, all, block, sums);
        return;
    }
    int64_t end = task->tiles * (thread + 1) / threads;
    for (int64_t from = task->tiles * thread / threads; from < end && !task->by_panels; from += task->block) {
        convolve_tiles(task, from, least(task->block, end - from), of_weights, block, sums);
    }
    fxjit_openmp.barrier();
    if (task->listed > 0) {
        convolve_windows_together(task, task->list, task->listed, block, sums);
    }
}

/* A transposed one with a step, one of those that it is after the other. */
static void
convolve_with_step(const convolution_t *convolution, float *room, int threads)
{
    const convolution_sizes_t *s = &convolution->sizes;
    for (int64_t at = 0; at < s->stride[0] * s->stride[1]; at++) {
        convolution_t one = *convolution;
        task_t task = {.convolution = &one, .all = s};
        choose_taps(&one.sizes, &task, s, at / s->stride[1], at % s->stride[1]);
        if (one.sizes.out_height <= 0 || one.sizes.out_width <= 0) {
            continue;
        }
        lay_out(&task, &one.sizes, threads, 1);
        task.weights = room;
        task.blocks = task.weights + task.of_weights;
        fxjit_openmp.parallel(convolve, &task, (unsigned)threads, 0);
    }
}

int
fxjit_convolve(const convolution_t *convolution, void *room, int threads)
{
    if (convolution->sizes.kind == DEPTHWISE) {
        fxjit_convolve_depthwise(convolution, room, threads);
        return 0;
    }
    if (convolution->sizes.kind == OF_WEIGHT) {
        fxjit_convolve_weights(convolution, room, threads);
        return 0;
    }
    if (has_step(&convolution->sizes)) {
        convolve_with_step(convolution, room, threads);
        return 0;
    }
    task_t task = {.convolution = convolution, .all = &convolution->sizes, .apart = {1, 1}};
    lay_out(&task, &convolution->sizes, threads, 0);
    task.weights = room;
    task.squares = task.weights + task.of_weights;
    task.taps = task.squares + task.of_sizes;
    task.of_all_tiles = task.taps + task.of_taps;
    task.blocks = task.of_all_tiles + task.of_tiles;
    int64_t floats = shared_floats(&task) + threads * (task.of_block + task.of_sums);
    task.list = (int64_t *)((char *)room + rounded_up(floats * (int64_t)sizeof(float), 64));
    fxjit_openmp.parallel(convolve, &task, (unsigned)threads, 0);
    return task.failed ? -1 : 0;
}

#endif
