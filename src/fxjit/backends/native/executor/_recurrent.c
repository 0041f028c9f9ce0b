/* Layers of LSTM, GRU and RNN (runtime/own_recurrent.py). What can be done for all steps at once is one product (_gemm.c): inputs of
 * few rows by weights, and gradients of weights and inputs. A step multiplies states by packed weights and goes over the results.
 * Threads share the rows and the directions, each with all of its steps, so that none waits for another; where that leaves them too
 * few rows for weights that are read anew at each step, they share the units, and wait for each other once a step. Sums are chains
 * as in _gemm.c, whose lengths depend on the layer alone: the number of threads changes no result. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_wide.h"
#include "_gemm.h"
#include "_program.h"
#include "_recurrent.h"
#include "_recurrent_rows.h"

#ifdef FXJIT_HAS_WIDE

enum {
    CHAIN = 192,       /* products of one sum */
    INPUTS = 8,       /* rows from which a step multiplies its inputs itself */
    TOGETHER = 28,     /* rows that a thread takes through all steps at once, at least, */
    SUMS = 1 << 17,    /* and then as many as have so many sums */
    AHEAD = 12,        /* rows of weights that are fetched before they are read */
    STEPS = 48,        /* products of one sum over rows of several steps: eager adds up each step by itself */
    PART = 32,         /* rows of a sum over rows that are added up as floats */
    WORK = 1 << 17,    /* multiplications for which a thread is called */
    FEW = 8,           /* rows of a thread below which threads share the units, */
    STEP = 1 << 17,    /* if each then has so many multiplications a step */
};

static const int GATES[] = {[LSTM] = 4, [GRU] = 3, [RNN_TANH] = 1, [RNN_RELU] = 1};

static int64_t
padded(int64_t size)
{
    return (size + COLUMNS - 1) / COLUMNS * COLUMNS;
}

/* -- products of a step --------------------------------------------------------------------------------------------*/

/* R rows, `line` apart, by P packed panels of `depth` rows each, `panel` apart. */
#define KERNEL(R, P) \
    WIDE static void step_##R##_##P(int64_t depth, const float *a, int64_t line, const float *restrict b, int64_t panel, \
                                    float *restrict out, int64_t out_line, int add) \
    { \
        vec_t s[R][2 * P]; \
        const float *from[(R + 3) / 4]; \
        UNROLLED for (int i = 0; i < (R + 3) / 4; i++) { \
            from[i] = a + 4 * i * line; \
        } \
        UNROLLED for (int i = 0; i < R * 2 * P; i++) { \
            s[i / (2 * P)][i % (2 * P)] = vec_zero(); \
        } \
        for (int64_t p = 0; p < depth; p++, b += COLUMNS) { \
            vec_t y[2 * P]; \
            UNROLLED for (int j = 0; j < 2 * P; j++) { \
                y[j] = vec_load(b + j / 2 * panel + j % 2 * LANES); \
                __builtin_prefetch(b + j / 2 * panel + j % 2 * LANES + AHEAD * COLUMNS); \
            } \
            UNROLLED for (int i = 0; i < R; i++) { \
                vec_t x = vec_all(from[i / 4][i % 4 * line + p]); \
                UNROLLED for (int j = 0; j < 2 * P; j++) { \
                    s[i][j] = vec_fma(x, y[j], s[i][j]); \
                } \
            } \
        } \
        UNROLLED for (int i = 0; i < R; i++) { \
            UNROLLED for (int j = 0; j < 2 * P; j++) { \
                float *to = out + i * out_line + j * LANES; \
                vec_store_any(to, add ? vec_add(s[i][j], vec_load_any(to)) : s[i][j]); \
            } \
        } \
    }
#define OF_ONE(R) KERNEL(R, 1)
OF_ALL_HEIGHTS(OF_ONE)
KERNEL(1, 4) OF_TWICE(KERNEL, 2)

typedef void (*step_fn)(int64_t, const float *, int64_t, const float *, int64_t, float *, int64_t, int);
#define ONE_AT_HEIGHT(R) [R] = step_##R##_1,
static const step_fn of_one[ROWS + 1] = {OF_ALL_HEIGHTS(ONE_AT_HEIGHT)};
/* The fewer rows, the more panels at once, so that enough sums are under way. */
#define TWO_AT_HEIGHT(R) [R] = step_##R##_2,
static const step_fn of_several[ROWS + 1] = {[1] = step_1_4, OF_TWICE(TWO_AT_HEIGHT)};

/* out[rows, panels * COLUMNS] = a[rows, depth] by packed panels, or +=. */
static void
multiply_step(const float *a, int64_t line, int64_t rows, const float *packed, int64_t panels, int64_t depth, float *out,
              int64_t out_line, int add)
{
    int64_t groups = (rows + ROWS - 1) / ROWS, height = (rows + groups - 1) / groups;
    int64_t chains = (depth + CHAIN - 1) / CHAIN, chain = (depth + chains - 1) / chains;
    int64_t wide = height == 1 ? 4 : height <= TWICE ? 2 : 1;
    for (int64_t at = 0; at < panels;) {
        int64_t together = panels - at >= wide ? wide : 1;
        const float *panel = packed + at * COLUMNS * depth;
        for (int64_t p = 0; p < depth; p += chain) {
            for (int64_t i = 0; i < rows; i += height) {
                int64_t count = least(height, rows - i);
                int64_t now = together == 1 || of_several[count] == NULL || (count == 1) != (together == 4) ? 1 : together;
                for (int64_t j = 0; j < together; j += now) {
                    (now == 1 ? of_one : of_several)[count](
                        least(chain, depth - p), a + i * line + p, line, panel + (j * depth + p) * COLUMNS, COLUMNS * depth,
                        out + i * out_line + (at + j) * COLUMNS, out_line, add || p);
                }
            }
        }
        at += together;
    }
}

/* -- scans ---------------------------------------------------------------------------------------------------------*/

/* A layer on its way: what its directions' weights are packed to, and memory. */
typedef struct {
    const layer_t *layer;
    int gates;
    int64_t wide, rows_at_once, jobs, next; /* jobs: rows_at_once rows of a direction */
    float *packed[2], *bias[2];             /* forward: gates * wide columns of `size` rows; backward: `wide` of gates * size */
    float *inputs[2];                       /* gates * wide columns of `features` rows, where a step multiplies its inputs */
    float *memory;                          /* of threads */
    int64_t room;                           /* numbers of each */
    float *d_gates[2], *d_inner[2]; /* (rows, gates * size), (rows, size) */
    int backward, together; /* together: threads share the units of all rows */
} scan_t;

/* What a thread does of a direction: some rows, and of them the units of these panels. */
typedef struct {
    int64_t first, count, panel, panels;
} part_t;

static inline int
is_whole(const scan_t *scan, const part_t *part)
{
    return part->panels - part->panel == scan->wide / COLUMNS;
}

/* Those of so many gates, in lines of `all` sums. */
static void
multiply_gates(const scan_t *scan, const part_t *part, int64_t gates, const float *a, int64_t line, int64_t rows,
               const float *packed, int64_t depth, float *sums, int64_t all, int add)
{
    int64_t wide = scan->wide, from = part->panel * COLUMNS;
    if (is_whole(scan, part)) {
        multiply_step(a, line, rows, packed, gates * wide / COLUMNS, depth, sums, all, add);
        return;
    }
    for (int64_t gate = 0; gate < gates; gate++) {
        multiply_step(a, line, rows, packed + (gate * wide + from) * depth, part->panels - part->panel, depth,
                      sums + gate * wide + from, all, add);
    }
}

/* The rows of a step, of `count` rows from `first` on. */
static int64_t
rows_at(const layer_t *layer, int64_t step, int64_t first, int64_t count)
{
    int64_t there = step < 0 || step >= layer->steps ? 0 : layer->starts[step + 1] - layer->starts[step] - first;
    return there < 0 ? 0 : least(there, count);
}

static void
scan_forward(const scan_t *scan, int which, const part_t *part, float *memory)
{
    const layer_t *layer = scan->layer;
    const direction_t *own = &layer->each[which];
    int64_t size = layer->size, wide = scan->wide, line = layer->directions * size, features = layer->features;
    int64_t gates = scan->gates * size, is_gru = layer->kind == GRU, first = part->first, count = part->count;
    int64_t all = (scan->gates + is_gru) * wide, from = part->panel * COLUMNS, to = least(part->panels * COLUMNS, size);
    size_t bytes = (size_t)(to > from ? to - from : 0) * sizeof(float);
    const float *packed = scan->packed[which], *inputs = scan->inputs[which];
    float *h = memory, *h_next = h + count * wide, *c = h_next + count * wide, *sums = c + count * wide;
    int64_t before = 0;
    for (int64_t s = 0; s < layer->steps; s++) {
        int64_t step = which ? layer->steps - 1 - s : s, start = layer->starts[step] + first;
        int64_t now = rows_at(layer, step, first, count), after = rows_at(layer, which ? step - 1 : step + 1, first, count);
        for (int64_t i = before; i < now; i++) {
            memcpy(h + i * wide + from, own->h_first + (first + i) * size + from, bytes);
            if (layer->kind == LSTM) {
                memcpy(c + i * wide + from, own->c_first + (first + i) * size + from, bytes);
            }
        }
        if (scan->together) { /* all units of the states are there */
            fxjit_openmp.barrier();
        }
        if (now > 0) {
            if (inputs != NULL) {
                multiply_gates(scan, part, scan->gates, layer->x + start * features, features, now, inputs, features, sums, all, 0);
            }
            else if (is_gru) {
                for (int64_t i = 0; i < now; i++) {
                    memset(sums + i * all + 2 * wide + from, 0, bytes);
                }
            }
            multiply_gates(scan, part, is_gru ? 2 : scan->gates, h, wide, now, packed, size, sums, all, inputs != NULL);
            if (is_gru) {
                multiply_gates(scan, part, 1, h, wide, now, packed + 2 * wide * size, size, sums + 3 * wide, all, 0);
            }
        }
        for (int64_t i = 0; i < now; i++) {
            row_t row = {
                .size = size, .wide = wide, .begin = from, .end = to, .sums = sums + i * all, .bias = scan->bias[which],
                .h = h + i * wide, .gates = own->gates + (start + i) * gates, .h_next = h_next + i * wide,
                .input = inputs != NULL ? NULL : own->gates + (start + i) * gates,
                .out = layer->out + (start + i) * line + which * size, .c = c + i * wide,
                .cells = own->cells == NULL ? NULL : own->cells + (start + i) * size,
            };
            if (own->h_before != NULL) {
                memcpy(own->h_before + (start + i) * size + from, row.h + from, bytes);
            }
            fxjit_forward_rows[layer->kind](&row);
        }
        for (int64_t i = after; i < now; i++) {
            memcpy(own->h_last + (first + i) * size + from, h_next + i * wide + from, bytes);
            if (layer->kind == LSTM) {
                memcpy(own->c_last + (first + i) * size + from, c + i * wide + from, bytes);
            }
        }
        float *other = h;
        h = h_next;
        h_next = other;
        before = now;
    }
    if (scan->together) { /* before others use the memory */
        fxjit_openmp.barrier();
    }
}

/* A part of a gradient's row, zeros where there is none. */
static void
take_row(float *to, const float *from, int64_t place, size_t bytes)
{
    if (from == NULL) {
        memset(to, 0, bytes);
    }
    else {
        memcpy(to, from + place, bytes);
    }
}

static void
scan_backward(const scan_t *scan, int which, const part_t *part, float *memory)
{
    const layer_t *layer = scan->layer;
    const direction_t *own = &layer->each[which];
    int64_t size = layer->size, wide = scan->wide, line = layer->directions * size, gates = scan->gates * size;
    int64_t first = part->first, count = part->count, panels = part->panels - part->panel;
    int64_t from = part->panel * COLUMNS, to = least(part->panels * COLUMNS, size);
    size_t bytes = (size_t)(to > from ? to - from : 0) * sizeof(float);
    float *d = memory, *d_c = d + count * wide;
    int is_gru = layer->kind == GRU;
    int64_t later = 0;
    for (int64_t s = layer->steps - 1; s >= 0; s--) {
        int64_t step = which ? layer->steps - 1 - s : s, start = layer->starts[step] + first;
        int64_t previous = s == 0 ? -1 : which ? step + 1 : step - 1;
        int64_t now = rows_at(layer, step, first, count), before = rows_at(layer, previous, first, count);
        if (now == 0) {
            continue;
        }
        for (int64_t i = later; i < now; i++) {
            take_row(d + i * wide + from, own->d_h_last, (first + i) * size + from, bytes);
            if (layer->kind == LSTM) {
                take_row(d_c + i * wide + from, own->d_c_last, (first + i) * size + from, bytes);
            }
        }
        for (int64_t i = 0; i < now; i++) {
            int64_t at = start + i;
            back_row_t row = {
                .size = size, .begin = from, .end = to, .gates = own->gates + at * gates, .cells = own->cells + at * size,
                .h_before = own->h_before + at * size, .d = d + i * wide, .d_c = d_c + i * wide,
                .d_out = layer->d_out == NULL ? NULL : layer->d_out + at * line + which * size,
                .d_gates = scan->d_gates[which] + at * gates, .d_inner = is_gru ? scan->d_inner[which] + at * size : NULL,
            };
            fxjit_backward_rows[layer->kind](&row);
        }
        if (scan->together) { /* those of all units are there */
            fxjit_openmp.barrier();
        }
        int64_t deep = is_gru ? 2 * size : gates;
        const float *packed = scan->packed[which];
        multiply_step(scan->d_gates[which] + start * gates, gates, now, packed + from * deep, panels, deep, d + from, wide, is_gru);
        if (is_gru) {
            multiply_step(scan->d_inner[which] + start * size, size, now, packed + deep * wide + from * size, panels, size, d + from,
                          wide, 1);
        }
        for (int64_t i = before; i < now; i++) {
            if (own->d_h_first != NULL) {
                memcpy(own->d_h_first + (first + i) * size + from, d + i * wide + from, bytes);
            }
            if (own->d_c_first != NULL) {
                memcpy(own->d_c_first + (first + i) * size + from, d_c + i * wide + from, bytes);
            }
        }
        later = now;
    }
}

/* A thread's share of the packing, of panels by number. */
static void
pack_share(const scan_t *scan, int64_t thread, int64_t threads)
{
    const layer_t *layer = scan->layer;
    int64_t size = layer->size, wide = scan->wide, panels = wide / COLUMNS;
    for (int64_t which = 0; which < layer->directions; which++) {
        const float *weights = layer->each[which].w_hidden;
        if (scan->backward) { /* rows of the weights are rows here, a GRU's last gate by itself */
            int64_t parts = layer->kind == GRU ? 2 : 1, rows = scan->gates * size, row = 0;
            for (int64_t part = 0; part < parts; part++) {
                int64_t deep = parts == 1 ? rows : part == 0 ? 2 * size : size;
                matrix_t from = {weights + row * size, size, 1};
                for (int64_t panel = thread; panel < panels; panel += threads) {
                    int64_t column = panel * COLUMNS;
                    fxjit_gemm_pack(&from, deep, column, least(COLUMNS, size - column),
                                    scan->packed[which] + row * wide + column * deep);
                }
                row += deep;
            }
            continue;
        }
        for (int64_t each = thread; each < panels * scan->gates; each += threads) {
            int64_t gate = each / panels, column = each % panels * COLUMNS;
            matrix_t from = {weights + gate * size * size, 1, size};
            fxjit_gemm_pack(&from, size, column, least(COLUMNS, size - column), scan->packed[which] + each * COLUMNS * size);
            if (scan->inputs[which] != NULL) {
                int64_t features = layer->features;
                from = (matrix_t){layer->each[which].w_input + gate * size * features, 1, features};
                fxjit_gemm_pack(&from, features, column, least(COLUMNS, size - column),
                                scan->inputs[which] + each * COLUMNS * features);
            }
        }
    }
}

static void
scan_share(void *data)
{
    scan_t *scan = data;
    int64_t thread = fxjit_openmp.thread(), threads = fxjit_openmp.threads(), per = scan->jobs / scan->layer->directions;
    pack_share(scan, thread, threads);
    if (threads > 1) {
        fxjit_openmp.barrier();
    }
    int64_t panels = scan->wide / COLUMNS, own = 0;
    for (;;) {
        int64_t job = scan->together ? own++ : __atomic_fetch_add(&scan->next, 1, __ATOMIC_RELAXED);
        if (job >= scan->jobs) {
            return;
        }
        part_t part = {.first = job % per * scan->rows_at_once, .panels = panels};
        part.count = least(scan->rows_at_once, scan->layer->batch - part.first);
        if (scan->together) {
            part.panel = panels * thread / threads;
            part.panels = panels * (thread + 1) / threads;
        }
        float *memory = scan->memory + (scan->together ? 0 : thread * scan->room);
        (scan->backward ? scan_backward : scan_forward)(scan, (int)(job / per), &part, memory);
    }
}

/* Sums over rows of the columns from one to another. */
WIDE static void
sum_rows(const float *from, int64_t rows, int64_t line, int64_t begin, int64_t end, float *to)
{
    for (int64_t at = begin; at < end; at += LANES) {
        lanes_t there = first_lanes(end - at);
        doubles_t sums = doubles_zero();
        for (int64_t top = 0; top < rows; top += PART) {
            vec_t part = vec_zero();
            for (int64_t i = top; i < least(top + PART, rows); i++) {
                part = vec_add(part, LOAD(from + i * line + at));
            }
            sums = doubles_add(sums, part);
        }
        STORE(to + at, doubles_rounded(sums));
    }
}

static void
sum_biases(const scan_t *scan, int which)
{
    const layer_t *layer = scan->layer;
    const direction_t *own = &layer->each[which];
    int64_t size = layer->size, gates = scan->gates * size, common = layer->kind == GRU ? 2 * size : gates;
    float *first = own->d_b_input != NULL ? own->d_b_input : own->d_b_hidden;
    if (first == NULL) {
        return;
    }
    sum_rows(scan->d_gates[which], layer->rows, gates, 0, own->d_b_input != NULL ? gates : common, first);
    if (own->d_b_hidden != NULL) {
        if (own->d_b_hidden != first) {
            memcpy(own->d_b_hidden, first, (size_t)common * sizeof(float));
        }
        if (common < gates) {
            sum_rows(scan->d_inner[which], layer->rows, size, 0, size, own->d_b_hidden + common);
        }
    }
}

/* The products for all steps behind a derivative's scan. */
static int
multiply_back(const scan_t *scan)
{
    const layer_t *layer = scan->layer;
    int64_t rows = layer->rows, size = layer->size, features = layer->features, gates = scan->gates * size;
    for (int which = 0; which < layer->directions; which++) {
        const direction_t *own = &layer->each[which];
        const float *d = scan->d_gates[which];
        product_t product = {.m = rows, .n = features, .k = gates, .a = {d, gates, 1}, .b = {own->w_input, features, 1},
                             .out = layer->d_x, .line = features, .add = which};
        if (layer->d_x != NULL && fxjit_gemm_by_size(&product) < 0) {
            return -1;
        }
        product = (product_t){.m = gates, .n = features, .k = rows, .a = {d, 1, gates}, .b = {layer->x, features, 1},
                              .out = own->d_w_input, .line = features};
        if (own->d_w_input != NULL && fxjit_gemm_by_size(&product) < 0) {
            return -1;
        }
        product = (product_t){.m = layer->kind == GRU ? 2 * size : gates, .n = size, .k = rows, .a = {d, 1, gates},
                              .b = {own->h_before, size, 1}, .out = own->d_w_hidden, .line = size, .chain = STEPS};
        if (own->d_w_hidden != NULL && fxjit_gemm_by_size(&product) < 0) {
            return -1;
        }
        if (layer->kind == GRU && own->d_w_hidden != NULL) {
            product.m = size;
            product.a = (matrix_t){scan->d_inner[which], 1, size};
            product.out += 2 * size * size;
            if (fxjit_gemm_by_size(&product) < 0) {
                return -1;
            }
        }
        sum_biases(scan, which);
    }
    return 0;
}

/* The biases of gates in lines of `wide`; those of a GRU's last gate are two. */
static void
gather_biases(const scan_t *scan, int which)
{
    const layer_t *layer = scan->layer;
    const direction_t *own = &layer->each[which];
    int64_t size = layer->size;
    for (int64_t gate = 0; gate < scan->gates; gate++) {
        float *to = scan->bias[which] + gate * scan->wide;
        int apart = layer->kind == GRU && gate == 2;
        for (int64_t at = 0; own->b_input != NULL && at < size; at++) {
            float hidden = own->b_hidden[gate * size + at];
            to[at] = own->b_input[gate * size + at] + (apart ? 0 : hidden);
            if (apart) {
                to[scan->wide + at] = hidden;
            }
        }
    }
}

/* Rows of one direction that a thread takes at once: all threads have some, or share the units of all. */
static void
share(scan_t *scan, int64_t threads)
{
    const layer_t *layer = scan->layer;
    int64_t batch = layer->batch, directions = layer->directions;
    int64_t parts = (threads + directions - 1) / directions, per = (batch + parts - 1) / parts;
    int64_t of_step = batch * scan->gates * layer->size * layer->size / threads;
    scan->together = parts > 1 && per < FEW && of_step >= STEP && layer->rows == batch * layer->steps &&
                     scan->wide / COLUMNS >= threads;
    if (scan->together) {
        per = batch;
    }
    int64_t most = SUMS / (scan->gates * scan->wide);
    most = most < TOGETHER ? TOGETHER : most;
    parts = (per + most - 1) / most;
    scan->rows_at_once = (per + parts - 1) / parts;
    scan->jobs = (batch + scan->rows_at_once - 1) / scan->rows_at_once * directions;
}

static int64_t
aligned(int64_t count)
{
    return (count + LANES - 1) / LANES * LANES;
}

static float *
part_of(uintptr_t memory, int64_t at)
{
    return (float *)(memory + (uintptr_t)at * sizeof(float));
}

/* The parts of memory at an address; their length. */
static int64_t
lay_out(scan_t *scan, int64_t threads, uintptr_t memory)
{
    const layer_t *layer = scan->layer;
    int64_t size = layer->size, at = 0, gates = scan->gates;
    for (int64_t which = 0; which < layer->directions; which++) {
        scan->packed[which] = part_of(memory, at);
        at += gates * size * scan->wide;
        scan->inputs[which] = NULL;
        if (!scan->backward && layer->batch >= INPUTS) {
            scan->inputs[which] = part_of(memory, at);
            at += gates * layer->features * scan->wide;
        }
        scan->bias[which] = part_of(memory, at);
        at += (gates + 1) * scan->wide;
        if (scan->backward) {
            scan->d_gates[which] = part_of(memory, at);
            at += aligned(layer->rows * gates * size);
            scan->d_inner[which] = part_of(memory, at);
            at += layer->kind == GRU ? aligned(layer->rows * size) : 0;
        }
    }
    scan->memory = part_of(memory, at);
    scan->room = scan->rows_at_once * scan->wide * (scan->backward ? 2 : 4 + gates);
    return at + (scan->together ? 1 : threads) * scan->room;
}

int
fxjit_run_layer(const layer_t *layer, int backward)
{
    scan_t scan = {.layer = layer, .gates = GATES[layer->kind], .wide = padded(layer->size), .backward = backward};
    int64_t work = layer->rows * scan.gates * layer->size * layer->size * layer->directions;
    int64_t threads = fxjit_openmp.inside() ? 1 : least(fxjit_openmp.most(), work / WORK + 1), kept;
    share(&scan, threads);
    threads = scan.together ? threads : least(threads, scan.jobs);
    float *memory = fxjit_take_arena(lay_out(&scan, threads, 0) * (int64_t)sizeof(float), &kept);
    if (memory == NULL) {
        return -1;
    }
    lay_out(&scan, threads, (uintptr_t)memory);
    int failed = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int which = 0; !backward && which < layer->directions; which++) {
        const direction_t *own = &layer->each[which];
        int64_t columns = scan.gates * layer->size;
        product_t product = {.m = layer->rows, .n = columns, .k = layer->features, .a = {layer->x, layer->features, 1},
                             .b = {own->w_input, 1, layer->features}, .out = own->gates, .line = columns};
        failed |= scan.inputs[which] == NULL && fxjit_gemm_by_size(&product) < 0;
        memset(scan.bias[which], 0, (size_t)((scan.gates + 1) * scan.wide) * sizeof(float));
        gather_biases(&scan, which);
    }
    if (!failed) {
        fxjit_openmp.parallel(scan_share, &scan, (unsigned)threads, 0);
        failed = backward && multiply_back(&scan) < 0;
    }
    Py_END_ALLOW_THREADS
    fxjit_give_arena(memory, kept);
    if (failed) {
        PyErr_NoMemory();
    }
    return failed ? -1 : 0;
}

#endif
