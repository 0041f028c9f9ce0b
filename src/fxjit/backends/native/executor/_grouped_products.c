/* Products of groups: rows of one matrix by as many matrices as there are groups (a mixture of experts), and the derivatives of such,
 * whose columns or terms are grouped. Each group's product goes to the library that its size is measured to be fastest by. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "../../../_tensor.h"
#include "_products.h"
#include "_program.h"

/* What groups divide. */
enum { BY_ROWS, BY_COLUMNS, BY_TERMS };

/* A matrix in memory; `step` from one group's to the next's, 0 where groups are parts of one. */
typedef struct {
    int64_t row, column, step, offset;
} place_t;

/* Of all groups together: `m`, `n` or `k` is what they divide. */
typedef struct {
    int64_t divided, count, m, n, k;
    place_t a, b, out;
} grouped_t;

/* Where a group ends, as a slice does: from the end where it is negative, and not behind it. */
static int64_t
end_of(const void *ends, int wide, int64_t group, int64_t size)
{
    int64_t end = wide ? ((const int64_t *)ends)[group] : ((const int32_t *)ends)[group];
    end = end < 0 ? end + size : end;
    return Py_MIN(Py_MAX(end, 0), size);
}

static matrix_t
matrix_at(const void *data, const place_t *place, int64_t rows, int64_t columns, int64_t group, int64_t from)
{
    int line;
    int turned = fxjit_leading(rows, columns, place->row, place->column, &line);
    const float *first = (const float *)data + place->offset + group * place->step + from;
    return turned ? (matrix_t){first, 1, line} : (matrix_t){first, line, 1};
}

static void
clear(float *out, int64_t rows, int64_t columns, int64_t line)
{
    for (int64_t row = 0; row < rows && columns > 0; row++) {
        memset(out + row * line, 0, columns * sizeof(float));
    }
}

/* The product of one group, from row, column or term `start` on up to `end`. */
static int
multiply_group(const grouped_t *g, const void *a, const void *b, float *out, int64_t group, int64_t start, int64_t end)
{
    int64_t m = g->divided == BY_ROWS ? end - start : g->m, n = g->divided == BY_COLUMNS ? end - start : g->n;
    int64_t k = g->divided == BY_TERMS ? end - start : g->k;
    int64_t from_a = g->divided == BY_ROWS ? start * g->a.row : g->divided == BY_TERMS ? start * g->a.column : 0;
    int64_t from_b = g->divided == BY_COLUMNS ? start * g->b.column : g->divided == BY_TERMS ? start * g->b.row : 0;
    int64_t to = g->divided == BY_ROWS ? start * g->out.row : g->divided == BY_COLUMNS ? start : 0;
    product_t product = {
        .m = m, .n = n, .k = k, .out = out + g->out.offset + group * g->out.step + to, .line = g->out.row,
        .a = matrix_at(a, &g->a, m, k, group, from_a), .b = matrix_at(b, &g->b, k, n, group, from_b),
    };
    if (m <= 0 || n <= 0) {
        return 0;
    }
    if (k <= 0) {
        clear(product.out, m, n, product.line);
        return 0;
    }
    return fxjit_multiply(&product);
}

/* The numbers are those of grouped_t. What no group covers is zero. */
int
fxjit_step_grouped(frame_t *frame, const GROUPED_operands *o)
{
    grouped_t g;
    memcpy(&g, frame->numbers + o->sizes, sizeof(g));
    void *into, *a, *b, *ends;
    if (slot_data(&frame->slots[o->into], &into) < 0 || slot_data(&frame->slots[o->a], &a) < 0 ||
        slot_data(&frame->slots[o->b], &b) < 0 || slot_data(&frame->slots[o->ends], &ends) < 0) {
        return -1;
    }
    int64_t size = g.divided == BY_ROWS ? g.m : g.divided == BY_COLUMNS ? g.n : g.k, start = 0, last = 0;
    float *out = into;
    int done = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t group = 0; group < g.count && done == 0; group++) {
        int64_t end = end_of(ends, (int)o->wide, group, size);
        done = multiply_group(&g, a, b, out, group, start, Py_MAX(start, end));
        start = end;
        last = Py_MAX(last, end);
    }
    if (g.divided == BY_ROWS) {
        clear(out + g.out.offset + last * g.out.row, g.m - last, g.n, g.out.row);
    }
    else if (g.divided == BY_COLUMNS) {
        clear(out + g.out.offset + last, g.m, g.n - last, g.out.row);
    }
    Py_END_ALLOW_THREADS
    if (done < 0) {
        PyErr_NoMemory();
    }
    return done;
}
