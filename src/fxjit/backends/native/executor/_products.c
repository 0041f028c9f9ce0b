/* Which library multiplies two matrices of float32: the BLAS that ATen calls, or our own kernels (_gemm.c). Products are told apart
 * by classes: how many rows, columns and terms there are, roughly, which operands are transposed, and whether all rows of the result
 * begin where a vector may, without which MKL is slower. A class is ours once it was measured that our kernels, by vectors or by
 * tiles, are faster (runtime/own_products.py); until then, and for float64, the BLAS is called, as in eager. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../../_tensor.h"
#include "_gemm_tiles.h"
#include "_pairs.h"
#include "_products.h"
#include "_program.h"
#include "_turns.h"

/* Sizes of one class are up to four times apart, and from 64 on up to twice: 1, 2 to 4, 5 to 16, 17 to 64, 65 to 128, 129 to 256,
 * ..., and from 2049 on. */
enum { SIZES = 10, TWICE_FROM = 64, LAYOUTS = 8, VECTOR = 8, CLASSES = SIZES * SIZES * SIZES * LAYOUTS };
/* Multiplications below which nothing is gained: such products are the BLAS's, and equal eager's to the bit. */
enum { LEAST_WORK = 1 << 14 };

enum { BLAS, VECTORS, TILES, LIBRARIES };

static unsigned char libraries[CLASSES];

static int
size_class(int64_t size)
{
    int found = 0;
    for (int64_t last = 1; found < SIZES - 1 && size > last; last *= last < TWICE_FROM ? 4 : 2) {
        found++;
    }
    return found;
}

static int
class_of(int64_t m, int64_t n, int64_t k, int a_turned, int b_turned)
{
    int layout = 4 * (n % VECTOR != 0) + 2 * a_turned + b_turned;
    return ((size_class(m) * SIZES + size_class(n)) * SIZES + size_class(k)) * LAYOUTS + layout;
}

static int
is_turned(const matrix_t *matrix)
{
    return matrix->column != 1;
}

/* Whether it is one for our kernels; by which of them is said in the product. */
static int
choose_own(product_t *product)
{
    if (product->m * product->n * product->k < LEAST_WORK) {
        return 0;
    }
    int library = libraries[class_of(product->m, product->n, product->k, is_turned(&product->a), is_turned(&product->b))];
    product->by_tiles = library == TILES;
    return library != BLAS;
}

/* Row-major out = a b is column-major out' = b' a'. */
static void
multiply_by_blas(const product_t *product)
{
    int ta = is_turned(&product->a), tb = is_turned(&product->b);
    int m = (int)product->m, n = (int)product->n, k = (int)product->k;
    int lda = (int)(ta ? product->a.column : product->a.row), ldb = (int)(tb ? product->b.column : product->b.row);
    int ldc = (int)product->line;
    const float one = 1, beta = product->add ? 1 : 0;
    fxjit_torch.sgemm(tb ? "T" : "N", ta ? "T" : "N", &n, &m, &k, &one, product->b.data, &ldb, product->a.data, &lda, &beta,
                      product->out, &ldc);
}

int
fxjit_multiply(const product_t *product)
{
    product_t own = *product;
    if (choose_own(&own)) {
        return fxjit_gemm(&own);
    }
    multiply_by_blas(product);
    return 0;
}

int
fxjit_own_batches(product_t *first, const batch_t *batch)
{
    return batch->count > 0 && choose_own(first);
}

/* As Fortran's sgemm, of which alpha is 1 and beta 0 or 1. */
static void
multiply_alone(const char *tb, const char *ta, const int *n, const int *m, const int *k, const void *alpha, const void *b,
               const int *ldb, const void *a, const int *lda, const void *beta, void *out, const int *ldc)
{
    int a_turned = *ta == 'T', b_turned = *tb == 'T';
    product_t product = {
        .m = *m, .n = *n, .k = *k, .out = out, .line = *ldc, .add = *(const float *)beta != 0,
        .a = {a, a_turned ? 1 : *lda, a_turned ? *lda : 1}, .b = {b, b_turned ? 1 : *ldb, b_turned ? *ldb : 1},
    };
    if (!choose_own(&product) || fxjit_gemm_alone(&product) < 0) {
        fxjit_torch.sgemm(tb, ta, n, m, k, alpha, b, ldb, a, lda, beta, out, ldc);
    }
}

PyObject *
fxjit_blas_address(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    int there = fxjit_find_torch() && fxjit_torch.sgemm != NULL;
    return PyLong_FromVoidPtr(there ? *(void **)&(gemm_fn){multiply_alone} : NULL);
}

/* -- for Python: runtime/own_products.py -----------------------------------------------------------------------------*/

/* A plain tensor of so many dimensions, the last of which is contiguous: its memory, or NULL with an exception. */
static uint16_t *
matrix_of(PyObject *tensor, int64_t dims, int64_t **sizes, int64_t **strides)
{
    int64_t dim;
    void *data = NULL, *handle = fxjit_tensor_is_plain(tensor) ? fxjit_tensor_handle(tensor) : NULL;
    if (handle == NULL || fxjit_shim.get_dim(handle, &dim) || dim != dims || fxjit_shim.get_sizes(handle, sizes) ||
        fxjit_shim.get_strides(handle, strides) || (*strides)[dims - 1] != 1 || fxjit_shim.get_data_ptr(handle, &data)) {
        PyErr_SetString(PyExc_TypeError, "multiply_pairs() takes plain tensors of bfloat16 whose rows are contiguous");
        return NULL;
    }
    return data;
}

PyObject *
fxjit_multiply_pairs(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    pairs_product_t product = {0};
    int64_t *rows, *columns, *results, *more, *row_strides, *column_strides, *result_strides, *strides;
    if (count != 4) {
        return PyErr_Format(PyExc_TypeError, "multiply_pairs() takes 4 arguments, not %zd", count);
    }
    if (!fxjit_pairs_run()) {
        PyErr_SetString(PyExc_RuntimeError, "this processor multiplies no pairs of bfloat16");
        return NULL;
    }
    product.a = matrix_of(args[0], 2, &rows, &row_strides);
    product.b = product.a == NULL ? NULL : matrix_of(args[1], 2, &columns, &column_strides);
    product.out = product.b == NULL ? NULL : matrix_of(args[3], 2, &results, &result_strides);
    product.bias = product.out == NULL || args[2] == Py_None ? NULL : matrix_of(args[2], 1, &more, &strides);
    if (PyErr_Occurred()) {
        return NULL;
    }
    product.m = rows[0];
    product.k = rows[1];
    product.n = columns[0];
    product.a_line = row_strides[0];
    product.b_line = column_strides[0];
    product.line = result_strides[0];
    if (columns[1] != product.k || results[0] != product.m || results[1] != product.n || (product.bias != NULL && more[0] != product.n)) {
        PyErr_SetString(PyExc_ValueError, "multiply_pairs(): the sizes do not fit");
        return NULL;
    }
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = fxjit_pairs_product(&product);
    Py_END_ALLOW_THREADS
    if (done < 0) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

PyObject *
fxjit_product_class(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long m, n, k;
    int a_turned, b_turned;
    if (!PyArg_ParseTuple(args, "LLLpp", &m, &n, &k, &a_turned, &b_turned)) {
        return NULL;
    }
    int here = m * n * k >= LEAST_WORK && fxjit_gemm_runs();
    return PyLong_FromLong(here ? class_of(m, n, k, a_turned, b_turned) : -1);
}

PyObject *
fxjit_set_product_library(PyObject *Py_UNUSED(module), PyObject *args)
{
    int which, library;
    if (!PyArg_ParseTuple(args, "ii", &which, &library)) {
        return NULL;
    }
    if (which < 0 || which >= CLASSES || !fxjit_gemm_runs()) {
        PyErr_SetString(PyExc_ValueError, "there is no such class of products");
        return NULL;
    }
    if (library < 0 || library >= LIBRARIES || (library == TILES && !fxjit_tiles_run())) {
        PyErr_SetString(PyExc_ValueError, "there is no such library of products");
        return NULL;
    }
    libraries[which] = (unsigned char)library;
    Py_RETURN_NONE;
}

static int
time_blas(void *product)
{
    multiply_by_blas(product);
    return 0;
}

static int
time_own(void *product)
{
    return fxjit_gemm_alone(product);
}

static int
time_tiles(void *product)
{
    product_t tiles = *(const product_t *)product;
    tiles.by_tiles = 1;
    return fxjit_gemm_alone(&tiles);
}

/* Tensors begin where a line of the cache does, and so do the operands of a trial. */
enum { LINE_BYTES = 64, LINE_FLOATS = 16 };

static int64_t
whole_lines(int64_t floats)
{
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

PyObject *
fxjit_time_product(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long m, n, k;
    int a_turned, b_turned, turns;
    if (!PyArg_ParseTuple(args, "LLLppi", &m, &n, &k, &a_turned, &b_turned, &turns)) {
        return NULL;
    }
    if (!fxjit_gemm_runs() || fxjit_torch.sgemm == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "there are not two libraries to choose from");
        return NULL;
    }
    /* A line of one number would be one of the other layout. */
    int64_t a_line = a_turned ? Py_MAX(m, 2) : k, b_line = b_turned ? Py_MAX(k, 2) : n;
    int64_t of_a = whole_lines(a_line * (a_turned ? k : m)), of_b = whole_lines(b_line * (b_turned ? n : k));
    int64_t count = of_a + of_b + m * n;
    void *room = NULL;
    if (posix_memalign(&room, LINE_BYTES, (size_t)count * sizeof(float)) != 0) {
        return PyErr_NoMemory();
    }
    float *memory = room;
    for (int64_t i = 0; i < count; i++) {
        memory[i] = 1; /* of zeros all pages may be one */
    }
    product_t product = {
        .m = m, .n = n, .k = k, .out = memory + of_a + of_b, .line = n,
        .a = {memory, a_turned ? 1 : a_line, a_turned ? a_line : 1},
        .b = {memory + of_a, b_turned ? 1 : b_line, b_turned ? b_line : 1},
    };
    turns_t trial = {.ways = {time_blas, time_own, fxjit_tiles_run() ? time_tiles : NULL}, .data = &product, .turns = turns};
    Py_BEGIN_ALLOW_THREADS
    fxjit_take_turns(&trial);
    Py_END_ALLOW_THREADS
    free(room);
    if (trial.failed) {
        return PyErr_NoMemory();
    }
    PyObject *times = PyTuple_New(fxjit_tiles_run() ? LIBRARIES : TILES);
    for (Py_ssize_t way = 0; times != NULL && way < PyTuple_GET_SIZE(times); way++) {
        PyTuple_SET_ITEM(times, way, PyLong_FromLongLong(trial.times[way]));
        if (PyTuple_GET_ITEM(times, way) == NULL) {
            Py_CLEAR(times);
        }
    }
    return times;
}
