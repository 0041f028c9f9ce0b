/* The gradient of a convolution's weight: of float32 images, channels last, in one group.
 *
 * It is a product of matrices for each place of the window: of the channels of the pixels that the place met, by the gradients of
 * the results that it made. A tile of ROWS channels by COLUMNS results stays in registers for a block of some hundred pixels, and is then
 * added to its sums, so that a sum is one of chains. Pixels and gradients are copied once a block, in the order in which they are
 * read; pixels outside of the image are left out, not copied as zeros. Threads share the channels and results, so that their number
 * changes no result.
 *
 * Windows of 3 x 3 with step 1 go by Winograd's algorithm (_convolution.c) the other way: tiles of pixels and of gradients are turned
 * into 16 numbers each, 16 products of matrices add up those of all tiles, and 9 taps are made of 16 sums. Not where that were less
 * exact: where what a tap sums is much smaller than what the tiles have. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_wide.h"
#include "_convolution.h"
#include "_convolution_panels.h"

#ifdef FXJIT_HAS_WIDE

enum {
    PIXELS = 192, /* of a block: its gradients, 24 KB, and 14 channels stay in the first-level cache */
    TILES = 48,   /* of a block, by Winograd's algorithm */
    CHUNK = 5,    /* groups of channels that are turned at once: their tiles stay in the second-level cache */
    FEWEST = 32,  /* tiles: of fewer a tap may be that of one pixel, which is zero where its neighbours are not */
    ENERGIES = TAPS + 2,
};

/* How much the products of tiles may be larger than what a tap sums, in squares: 16 where all numbers are alike. */
static const double EVEN = 16 * 64;
/* The share of all tiles' products that one tile may have: a result whose gradient there is small is exact by itself. */
static const double SHARE = 1.0 / 8;
/* Of such sums: from here on numbers might become infinite on the way, or vanish. */
static const double LARGE = 1e70, SMALL = 1e-50;

typedef struct {
    const convolution_t *convolution;
    int64_t taps, panels, groups, height; /* panels of COLUMNS results; groups of so many channels */
    int64_t images, lines;                /* of a block: whole images, or lines of results of one */
    int64_t across, down;                     /* parts: of the groups, and of the panels */
    int64_t most_groups, most_panels;         /* of a part */
    int64_t of_pixels, of_gradients, of_sums; /* floats of a thread */
    int64_t of_squares[2], of_energies;       /* floats; doubles of which */
    int turned;
    double *energies;                         /* [images][ENERGIES] */
    float *squares[2], *room;                 /* of the pixels and of the gradients */
} task_t;

static inline int64_t
parts(int64_t size, int64_t of)
{
    return (size + of - 1) / of;
}

static inline int64_t
tiles_of(int64_t size)
{
    return parts(size, 2);
}

/* Input lines that so many lines of results read at most. */
static int64_t
lines_read(const convolution_sizes_t *s, int64_t lines)
{
    return least(s->height, (lines - 1) * s->stride[0] + (s->rows - 1) * s->dilation[0] + 1);
}

/* Of so many groups, in equal chunks. */
static int64_t
chunk_of(int64_t groups)
{
    return groups < 2 ? 1 : parts(groups, parts(groups, CHUNK));
}

static void
lay_out(task_t *task, const convolution_sizes_t *s, int threads)
{
    task->taps = s->rows * s->columns;
    task->panels = parts(s->results, COLUMNS);
    task->height = parts(s->channels, parts(s->channels, ROWS));
    task->groups = parts(s->channels, task->height);
    int64_t plane = s->out_height * s->out_width, blocks = parts(s->out_height, parts(PIXELS, s->out_width));
    task->lines = parts(s->out_height, blocks);
    task->images = blocks > 1 ? 1 : least(s->images, parts(PIXELS, plane));
    task->turned = is_turned(s) && s->images * tiles_of(s->out_height) * tiles_of(s->out_width) >= FEWEST;
    int64_t best = INT64_MAX;
    for (int64_t across = 1; across <= threads; across++) {
        int64_t down = threads / across, busy = parts(task->groups, across) * parts(task->panels, down);
        if (busy < best) {
            best = busy;
            task->across = across;
            task->down = down;
        }
    }
    task->most_groups = parts(task->groups, task->across);
    task->most_panels = parts(task->panels, task->down);
    task->of_pixels = task->most_groups * task->images * lines_read(s, task->lines) * s->width * ROWS;
    task->of_pixels = parts(task->of_pixels, LANES) * LANES + LANES; /* its last row is written as a whole vector */
    task->of_gradients = task->images * task->lines * s->out_width * COLUMNS;
    task->of_sums = task->most_groups * task->most_panels * task->taps * ROWS * COLUMNS;
    task->of_squares[0] = task->of_squares[1] = task->of_energies = 0;
    if (task->turned) {
        task->of_squares[0] = parts(s->images * s->height * s->width, LANES) * LANES;
        task->of_squares[1] = parts(s->images * plane, LANES) * LANES;
        task->of_energies = parts(s->images * ENERGIES, LANES) * LANES;
        int64_t chunk = least(CHUNK, task->most_groups);
        task->of_pixels = most(task->of_pixels, chunk * TURNED * TILES * LANES);
        task->of_gradients = most(task->of_gradients, TURNED * TILES * COLUMNS);
        task->of_sums = most(task->of_sums, chunk * task->most_panels * TURNED * ROWS * COLUMNS);
    }
}

static int64_t
floats_of(const task_t *task)
{
    return task->of_squares[0] + task->of_squares[1] + 2 * task->of_energies;
}

int64_t
fxjit_weights_room(const convolution_sizes_t *sizes, int threads)
{
    task_t task;
    lay_out(&task, sizes, threads);
    return (floats_of(&task) + threads * (task.of_pixels + task.of_gradients + task.of_sums)) * (int64_t)sizeof(float);
}

/* Pixels that one place of the window met, and gradients of what it made of them; the steps are floats. */
typedef struct {
    int64_t images, lines, pixels;
    int64_t image, line, pixel; /* of the pixels */
    int64_t image_of, line_of;  /* of the gradients */
} run_t;

typedef void (*kernel_fn)(const run_t *, const float *, const float *, float *);

#define KERNEL(R) \
    WIDE static void add_##R(const run_t *run, const float *restrict x, const float *restrict gradient, float *restrict out) \
    { \
        vec_t s[R], t[R]; \
        UNROLLED for (int i = 0; i < R; i++) { \
            s[i] = t[i] = vec_zero(); \
        } \
        int64_t step = run->pixel; \
        for (int64_t image = 0; image < run->images; image++) { \
            for (int64_t line = 0; line < run->lines; line++) { \
                const float *a = x + image * run->image + line * run->line; \
                const float *b = gradient + image * run->image_of + line * run->line_of, *end = b + run->pixels * COLUMNS; \
                for (; b < end; b += COLUMNS, a += step) { \
                    vec_t first = vec_load(b), second = vec_load(b + LANES); \
                    UNROLLED for (int i = 0; i < R; i++) { \
                        vec_t y = vec_all(a[i]); \
                        s[i] = vec_fma(y, first, s[i]); \
                        t[i] = vec_fma(y, second, t[i]); \
                    } \
                } \
            } \
        } \
        UNROLLED for (int i = 0; i < R; i++, out += COLUMNS) { \
            vec_store(out, vec_add(s[i], vec_load(out))); \
            vec_store(out + LANES, vec_add(t[i], vec_load(out + LANES))); \
        } \
    }
OF_ALL_HEIGHTS(KERNEL)
#define AT_HEIGHT(R) [R] = add_##R,
static const kernel_fn kernels[ROWS + 1] = {OF_ALL_HEIGHTS(AT_HEIGHT)};

/* What one thread does: groups of channels and panels of results, from one up to another. */
typedef struct {
    int64_t group, groups, panel, panels;
    float *pixels, *gradients, *sums;
} part_t;

/* Lines of the images, from one on: to[group][image][line][width][ROWS]. */
WIDE static void
copy_pixels(const task_t *task, const part_t *part, int64_t image, int64_t images, int64_t line, int64_t lines)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    float *to = part->pixels;
    for (int64_t group = part->group; group < part->groups; group++) {
        lanes_t there = first_lanes(least(task->height, s->channels - group * task->height));
        for (int64_t i = 0; i < images; i++) {
            const float *from = task->convolution->x + ((image + i) * s->height + line) * s->width * s->channels + group * task->height;
            for (int64_t pixel = 0; pixel < lines * s->width; pixel++, from += s->channels, to += ROWS) {
                vec_store_any(to, vec_load_some(there, from)); /* the next pixel takes the place of what is too much */
            }
        }
    }
}

/* Lines of the results' gradients for one panel: [image][line][width][COLUMNS]. */
WIDE static void
copy_gradients(const task_t *task, int64_t panel, int64_t image, int64_t images, int64_t line, int64_t lines, float *to)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t first = panel * COLUMNS;
    lanes_t there[2] = {first_lanes(s->results - first), first_lanes(s->results - first - LANES)};
    for (int64_t i = 0; i < images; i++) {
        const float *from = task->convolution->weight + ((image + i) * s->out_height + line) * s->out_width * s->results + first;
        for (int64_t pixel = 0; pixel < lines * s->out_width; pixel++, from += s->results, to += COLUMNS) {
            vec_store(to, vec_load_some(there[0], from));
            vec_store(to + LANES, vec_load_some(there[1], from + LANES));
        }
    }
}

/* The results, from `from` up to `to`, for which a place of the window lies inside of the image. */
static void
inside(int64_t size, int64_t stride, int64_t offset, int64_t *from, int64_t *to)
{
    while (*from < *to && *from * stride + offset < 0) {
        ++*from;
    }
    while (*to > *from && (*to - 1) * stride + offset >= size) {
        --*to;
    }
}

/* All of a block for one panel: sums[tap][rows of all of the groups][COLUMNS]. */
static void
add_block(const task_t *task, const part_t *part, int64_t panel, int64_t images, int64_t line, int64_t lines, int64_t first_read,
          int64_t read)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t of_group = images * read * s->width * ROWS;
    for (int64_t tap = 0; tap < task->taps; tap++) {
        int64_t row = tap / s->columns * s->dilation[0] - s->padding[0], column = tap % s->columns * s->dilation[1] - s->padding[1];
        int64_t top = line, bottom = line + lines, left = 0, right = s->out_width;
        inside(s->height, s->stride[0], row, &top, &bottom);
        inside(s->width, s->stride[1], column, &left, &right);
        if (top == bottom || left == right) {
            continue;
        }
        run_t run = {
            .images = images, .lines = bottom - top, .pixels = right - left,
            .image = read * s->width * ROWS, .line = s->stride[0] * s->width * ROWS, .pixel = s->stride[1] * ROWS,
            .image_of = lines * s->out_width * COLUMNS, .line_of = s->out_width * COLUMNS,
        };
        int64_t y = top * s->stride[0] + row - first_read, x = left * s->stride[1] + column;
        const float *pixels = part->pixels + (y * s->width + x) * ROWS;
        const float *gradients = part->gradients + ((top - line) * s->out_width + left) * COLUMNS;
        for (int64_t group = part->group; group < part->groups; group++, pixels += of_group) {
            int64_t at = ((panel - part->panel) * task->taps + tap) * task->most_groups + group - part->group;
            kernels[least(task->height, s->channels - group * task->height)](&run, pixels, gradients,
                                                                            part->sums + at * ROWS * COLUMNS);
        }
    }
}

static void
add_blocks(const task_t *task, const part_t *part)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    for (int64_t image = 0; image < s->images; image += task->images) {
        int64_t images = least(task->images, s->images - image);
        for (int64_t line = 0; line < s->out_height; line += task->lines) {
            int64_t lines = least(task->lines, s->out_height - line);
            int64_t first = line * s->stride[0] - s->padding[0], read = lines_read(s, lines);
            first = first < 0 ? 0 : least(first, s->height);
            read = least(read, s->height - first);
            copy_pixels(task, part, image, images, first, read);
            for (int64_t panel = part->panel; panel < part->panels; panel++) {
                copy_gradients(task, panel, image, images, line, lines, part->gradients);
                add_block(task, part, panel, images, line, lines, first, read);
            }
        }
    }
}

/* A group's sums for 16 results, as the weight lies: [results][channels][taps], or with its channels last. */
WIDE static void
write_sums(const task_t *task, const float *sums, int64_t apart, int64_t group, int64_t result)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t channel = group * task->height, channels = least(task->height, s->channels - channel);
    int64_t results = least(LANES, s->results - result), whole = s->channels * task->taps;
    float *out = task->convolution->out + result * whole;
    int64_t runs = s->weight_last ? task->taps : 1, length = s->weight_last ? channels : channels * task->taps;
    for (int64_t run = 0; run < runs; run++) {
        float *first = out + (s->weight_last ? run * s->channels + channel : channel * task->taps);
        for (int64_t at = 0; at < length; at += LANES) {
            vec_t r[LANES];
            UNROLLED for (int i = 0; i < LANES; i++) {
                int64_t place = at + i, tap = s->weight_last ? run : place % task->taps;
                int64_t row = s->weight_last ? place : place / task->taps;
                r[i] = place < length ? vec_load(sums + tap * apart + row * COLUMNS) : vec_zero();
            }
            turn(r);
            for (int i = 0; i < results; i++) {
                vec_store_some(first + i * whole + at, first_lanes(length - at), r[i]);
            }
        }
    }
}

/* -- Winograd's algorithm -------------------------------------------------------------------------------------------*/

typedef struct {
    int64_t image, y, x; /* the first of its results */
} tile_t;

static inline tile_t
tile_at(const convolution_sizes_t *s, int64_t at)
{
    int64_t across = tiles_of(s->out_width), down = tiles_of(s->out_height);
    return (tile_t){at / (across * down), at / across % down * 2, at % across * 2};
}

/* For each tap the sum of products of squares, of the pixels and the gradients that it multiplies, in one image; and tiles' squares
 * by their gradients', the sum and the largest. */
static void
take_energies(const task_t *task, int64_t image, double *energies)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    const float *pixels = task->squares[0] + image * s->height * s->width;
    const float *gradients = task->squares[1] + image * s->out_height * s->out_width;
    memset(energies, 0, ENERGIES * sizeof(double));
    for (int64_t top = 0; top < s->out_height; top += 2) {
        for (int64_t left = 0; left < s->out_width; left += 2) {
            double of_pixels[4][4], all = 0, of_gradients = 0;
            for (int i = 0; i < TURNED; i++) {
                int64_t y = top - s->padding[0] + i / 4, x = left - s->padding[1] + i % 4;
                int is_inside = y >= 0 && y < s->height && x >= 0 && x < s->width;
                of_pixels[i / 4][i % 4] = is_inside ? (double)pixels[y * s->width + x] : 0;
                all += of_pixels[i / 4][i % 4];
            }
            for (int64_t y = 0; y < least(2, s->out_height - top); y++) {
                for (int64_t x = 0; x < least(2, s->out_width - left); x++) {
                    double gradient = (double)gradients[(top + y) * s->out_width + left + x];
                    of_gradients += gradient;
                    for (int tap = 0; tap < TAPS; tap++) {
                        energies[tap] += gradient * of_pixels[y + tap / 3][x + tap % 3];
                    }
                }
            }
            energies[TAPS] += all * of_gradients;
            energies[TAPS + 1] = all * of_gradients > energies[TAPS + 1] ? all * of_gradients : energies[TAPS + 1];
        }
    }
}

/* Whether no tap's sum is much smaller than what is added to it and taken away again. */
static int
is_even(const task_t *task)
{
    double sums[TAPS + 1] = {0}, largest = 0;
    for (int64_t image = 0; image < task->convolution->sizes.images; image++) {
        const double *energies = task->energies + image * ENERGIES;
        for (int i = 0; i <= TAPS; i++) {
            sums[i] += energies[i];
        }
        largest = energies[TAPS + 1] > largest ? energies[TAPS + 1] : largest;
    }
    int even = sums[TAPS] < LARGE && sums[TAPS] > SMALL && largest <= SHARE * sums[TAPS]; /* and no number is missing */
    for (int tap = 0; tap < TAPS; tap++) {
        even = even && sums[TAPS] <= EVEN * sums[tap];
    }
    return even;
}

static const float zeros[LANES];

/* Tiles of pixels for some groups: to[group][16][tiles][LANES]. */
WIDE static void
turn_pixels(const task_t *task, int64_t group, int64_t groups, int64_t from, int64_t tiles, float *to)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t apart = tiles * LANES;
    for (; group < groups; group++, to += TURNED * apart) {
        int64_t channel = group * task->height;
        lanes_t there = first_lanes(least(task->height, s->channels - channel));
        for (int64_t i = 0; i < tiles; i++) {
            tile_t tile = tile_at(s, from + i);
            const float *image = task->convolution->x + tile.image * s->height * s->width * s->channels + channel;
            vec_t d[4][4], e[4][4];
            UNROLLED for (int k = 0; k < TURNED; k++) {
                int64_t y = tile.y - s->padding[0] + k / 4, x = tile.x - s->padding[1] + k % 4;
                int is_inside = y >= 0 && y < s->height && x >= 0 && x < s->width;
                d[k / 4][k % 4] = vec_load_some(there, is_inside ? image + (y * s->width + x) * s->channels : zeros);
            }
            UNROLLED for (int j = 0; j < 4; j++) {
                e[0][j] = vec_sub(d[0][j], d[2][j]);
                e[1][j] = vec_add(d[1][j], d[2][j]);
                e[2][j] = vec_sub(d[2][j], d[1][j]);
                e[3][j] = vec_sub(d[1][j], d[3][j]);
            }
            float *line = to + i * LANES;
            UNROLLED for (int j = 0; j < 4; j++, line += 4 * apart) {
                vec_store(line, vec_sub(e[j][0], e[j][2]));
                vec_store(line + apart, vec_add(e[j][1], e[j][2]));
                vec_store(line + 2 * apart, vec_sub(e[j][2], e[j][1]));
                vec_store(line + 3 * apart, vec_sub(e[j][1], e[j][3]));
            }
        }
    }
}

/* What tiles' results were turned back from, for their gradients: to[16][tiles][COLUMNS]. */
WIDE static void
turn_gradients(const task_t *task, int64_t panel, int64_t from, int64_t tiles, float *to)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t apart = tiles * COLUMNS;
    for (int64_t i = 0; i < tiles; i++) {
        tile_t tile = tile_at(s, from + i);
        int below = tile.y + 1 < s->out_height, beside = tile.x + 1 < s->out_width;
        const float *gradient = task->convolution->weight +
                                ((tile.image * s->out_height + tile.y) * s->out_width + tile.x) * s->results + panel * COLUMNS;
        for (int64_t side = 0; side < COLUMNS; side += LANES) {
            lanes_t there = first_lanes(s->results - panel * COLUMNS - side);
            const float *y = gradient + (there ? side : 0);
            vec_t d[2][2], e[4][2];
            d[0][0] = vec_load_some(there, y);
            d[0][1] = vec_load_some(beside ? there : 0, y + (beside ? s->results : 0));
            y += below ? s->out_width * s->results : 0;
            d[1][0] = vec_load_some(below ? there : 0, y);
            d[1][1] = vec_load_some(below && beside ? there : 0, y + (beside ? s->results : 0));
            UNROLLED for (int j = 0; j < 2; j++) {
                e[0][j] = d[0][j];
                e[1][j] = vec_add(d[0][j], d[1][j]);
                e[2][j] = vec_sub(d[0][j], d[1][j]);
                e[3][j] = vec_sub(vec_zero(), d[1][j]);
            }
            float *line = to + i * COLUMNS + side;
            UNROLLED for (int j = 0; j < 4; j++, line += 4 * apart) {
                vec_store(line, e[j][0]);
                vec_store(line + apart, vec_add(e[j][0], e[j][1]));
                vec_store(line + 2 * apart, vec_sub(e[j][0], e[j][1]));
                vec_store(line + 3 * apart, vec_sub(vec_zero(), e[j][1]));
            }
        }
    }
}

WIDE static inline __attribute__((always_inline)) void
turn_four(const vec_t u[4], vec_t out[3])
{
    const vec_t half = vec_all(0.5f);
    vec_t both = vec_mul(half, vec_add(u[1], u[2]));
    out[0] = vec_add(u[0], both);
    out[1] = vec_mul(half, vec_sub(u[1], u[2]));
    out[2] = vec_add(both, u[3]);
}

/* A group's 16 sums become those of its 9 taps, in their place: sums[16][`apart`: rows of COLUMNS]. */
WIDE static void
turn_sums(float *sums, int64_t apart)
{
    for (int64_t at = 0; at < ROWS * COLUMNS; at += LANES, sums += LANES) {
        vec_t u[4][4], h[3][4];
        UNROLLED for (int i = 0; i < TURNED; i++) {
            u[i % 4][i / 4] = vec_load(sums + i * apart);
        }
        UNROLLED for (int column = 0; column < 4; column++) {
            vec_t made[3];
            turn_four(u[column], made);
            UNROLLED for (int row = 0; row < 3; row++) {
                h[row][column] = made[row];
            }
        }
        UNROLLED for (int row = 0; row < 3; row++) {
            vec_t made[3];
            turn_four(h[row], made);
            UNROLLED for (int column = 0; column < 3; column++) {
                vec_store(sums + (3 * row + column) * apart, made[column]);
            }
        }
    }
}

/* Sums of some groups, [panel][16][group][ROWS][COLUMNS], of all tiles. */
static void
add_tiles(const task_t *task, const part_t *part, int64_t group, int64_t groups)
{
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t tiles = s->images * tiles_of(s->out_height) * tiles_of(s->out_width), blocks = parts(tiles, TILES), count = groups - group;
    int64_t block = parts(tiles, blocks);
    for (int64_t from = 0; from < tiles; from += block) {
        int64_t here = least(block, tiles - from);
        run_t run = {.images = 1, .lines = 1, .pixels = here, .pixel = LANES};
        turn_pixels(task, group, groups, from, here, part->pixels);
        float *sums = part->sums;
        for (int64_t panel = part->panel; panel < part->panels; panel++) {
            turn_gradients(task, panel, from, here, part->gradients);
            for (int64_t k = 0; k < TURNED; k++) {
                for (int64_t i = 0; i < count; i++, sums += ROWS * COLUMNS) {
                    kernels[least(task->height, s->channels - (group + i) * task->height)](
                        &run, part->pixels + (i * TURNED + k) * here * LANES, part->gradients + k * here * COLUMNS, sums);
                }
            }
        }
    }
}

/* -- calls ---------------------------------------------------------------------------------------------------------*/

/* Writes the sums of some groups, which lie [panel][taps, or what is turned into them][group][ROWS][COLUMNS]. */
static void
write_groups(const task_t *task, const part_t *part, int64_t group, int64_t groups, int turned, int64_t apart)
{
    int64_t kept = turned ? TURNED : task->taps;
    for (int64_t panel = part->panel; panel < part->panels; panel++) {
        for (int64_t i = group; i < groups; i++) {
            float *sums = part->sums + (panel - part->panel) * kept * apart + (i - group) * ROWS * COLUMNS;
            if (turned) {
                turn_sums(sums, apart);
            }
            for (int64_t side = 0; side < COLUMNS && panel * COLUMNS + side < task->convolution->sizes.results; side += LANES) {
                write_sums(task, sums + side, apart, i, panel * COLUMNS + side);
            }
        }
    }
}

/* A part of the groups and panels. */
static void
take_part(const task_t *task, int64_t at, int turned, float *room)
{
    int64_t across = at % task->across, down = at / task->across;
    part_t part = {
        .group = task->groups * across / task->across, .groups = task->groups * (across + 1) / task->across,
        .panel = task->panels * down / task->down, .panels = task->panels * (down + 1) / task->down,
        .gradients = room, .sums = room + task->of_gradients, .pixels = room + task->of_gradients + task->of_sums,
    };
    if (!turned) {
        memset(part.sums, 0, (size_t)task->of_sums * sizeof(float));
        add_blocks(task, &part);
        write_groups(task, &part, part.group, part.groups, 0, task->most_groups * ROWS * COLUMNS);
        return;
    }
    int64_t chunk = chunk_of(part.groups - part.group);
    for (int64_t group = part.group; group < part.groups; group += chunk) {
        int64_t groups = least(group + chunk, part.groups);
        memset(part.sums, 0, (size_t)task->of_sums * sizeof(float));
        add_tiles(task, &part, group, groups);
        write_groups(task, &part, group, groups, 1, (groups - group) * ROWS * COLUMNS);
    }
}

/* Each thread. */
static void
take_parts(void *data)
{
    const task_t *task = data;
    const convolution_sizes_t *s = &task->convolution->sizes;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads();
    int64_t of_thread = task->of_pixels + task->of_gradients + task->of_sums;
    int turned = task->turned;
    if (turned) {
        int64_t pixels = s->images * s->height * s->width, made = s->images * s->out_height * s->out_width;
        fxjit_take_squares(task->convolution->x, s->channels, pixels * thread / threads, pixels * (thread + 1) / threads,
                           task->squares[0]);
        fxjit_take_squares(task->convolution->weight, s->results, made * thread / threads, made * (thread + 1) / threads,
                           task->squares[1]);
        fxjit_openmp.barrier();
        for (int64_t image = thread; image < s->images; image += threads) {
            take_energies(task, image, task->energies + image * ENERGIES);
        }
        fxjit_openmp.barrier();
        turned = is_even(task);
    }
    for (int64_t part = thread; part < task->across * task->down; part += threads) {
        take_part(task, part, turned, task->room + thread * of_thread);
    }
}

void
fxjit_convolve_weights(const convolution_t *convolution, void *room, int threads)
{
    task_t task = {.convolution = convolution};
    lay_out(&task, &convolution->sizes, threads);
    task.energies = room;
    task.squares[0] = (float *)room + 2 * task.of_energies;
    task.squares[1] = task.squares[0] + task.of_squares[0];
    task.room = (float *)room + floats_of(&task);
    fxjit_openmp.parallel(take_parts, &task, (unsigned)threads, 0);
}

#endif
