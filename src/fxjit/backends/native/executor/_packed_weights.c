/* Weights that are packed once (config.freezing), for Python: of float32 as _gemm.c packs columns, of bfloat16 as
 * _pairs_product.c does. A program multiplies by them in its own steps (_steps.c). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "../../../_tensor.h"
#include "_gemm.h"
#include "_openmp.h"
#include "_pairs.h"
#include "_products.h"

/* Numbers of torch's types (c10::ScalarType). */
enum { FLOAT32 = 6, BFLOAT16 = 15 };

typedef struct {
    int64_t *sizes, *strides;
    void *data;
    int32_t type;
} plain_t;

/* A plain tensor of so many dimensions; -1 with an exception where it is none. */
static int
plain_of(PyObject *tensor, int64_t dims, plain_t *found)
{
    int64_t dim;
    void *handle = fxjit_tensor_is_plain(tensor) ? fxjit_tensor_handle(tensor) : NULL;
    if (handle == NULL || fxjit_shim.get_dim(handle, &dim) || dim != dims || fxjit_shim.get_sizes(handle, &found->sizes) ||
        fxjit_shim.get_strides(handle, &found->strides) || fxjit_shim.get_data_ptr(handle, &found->data) ||
        fxjit_shim.get_dtype(handle, &found->type)) {
        PyErr_Format(PyExc_TypeError, "a plain tensor of %lld dimensions was expected", (long long)dims);
        return -1;
    }
    return 0;
}

static int
has_kernels(int32_t type)
{
    if (type == FLOAT32 ? fxjit_gemm_runs() : type == BFLOAT16 && fxjit_pairs_run()) {
        return 1;
    }
    PyErr_SetString(PyExc_RuntimeError, "there are no kernels for packed weights of this type on this processor");
    return 0;
}

/* In numbers of the type. */
static int64_t
size_of(int32_t type, int64_t columns, int64_t terms)
{
    return type == FLOAT32 ? fxjit_gemm_packed_columns(columns) * terms : 2 * fxjit_packed_pairs(columns, terms);
}

/* Whether `packed` is a vector that such weights are packed to. */
static int
fits(const plain_t *packed, int32_t type, int64_t columns, int64_t terms)
{
    if (packed->type == type && packed->strides[0] == 1 && packed->sizes[0] == size_of(type, columns, terms)) {
        return 1;
    }
    PyErr_SetString(PyExc_ValueError, "these are other weights than were packed");
    return 0;
}

PyObject *
fxjit_packed_size(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long columns, terms;
    int halves;
    if (!PyArg_ParseTuple(args, "LLp", &columns, &terms, &halves)) {
        return NULL;
    }
    const int32_t type = halves ? BFLOAT16 : FLOAT32;
    return has_kernels(type) ? PyLong_FromLongLong(size_of(type, columns, terms)) : NULL;
}

PyObject *
fxjit_pack_weight(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    plain_t weight, packed;
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "pack_weight() takes 2 arguments, not %zd", count);
    }
    if (plain_of(args[0], 2, &weight) < 0 || plain_of(args[1], 1, &packed) < 0 || !has_kernels(weight.type)) {
        return NULL;
    }
    const int64_t columns = weight.sizes[0], terms = weight.sizes[1], *strides = weight.strides;
    if (strides[0] != 1 && strides[1] != 1) {
        PyErr_SetString(PyExc_TypeError, "pack_weight() takes a matrix whose rows or columns are contiguous");
        return NULL;
    }
    if (!fits(&packed, weight.type, columns, terms)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    if (weight.type == FLOAT32) {
        const matrix_t b = {weight.data, strides[1], strides[0]};
        fxjit_gemm_pack_columns(&b, terms, columns, packed.data);
    }
    else {
        const int by_rows = strides[1] != 1;
        const pairs_product_t product = {.n = columns, .k = terms, .b = weight.data, .by_rows = by_rows,
                                         .b_line = by_rows ? strides[1] : strides[0]};
        fxjit_pairs_pack(&product, packed.data);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *
fxjit_multiply_packed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    plain_t rows, packed, bias = {0}, out;
    if (count != 4) {
        return PyErr_Format(PyExc_TypeError, "multiply_packed() takes 4 arguments, not %zd", count);
    }
    if (plain_of(args[0], 2, &rows) < 0 || plain_of(args[1], 1, &packed) < 0 || plain_of(args[3], 2, &out) < 0 ||
        (args[2] != Py_None && plain_of(args[2], 1, &bias) < 0) || !has_kernels(rows.type)) {
        return NULL;
    }
    const int64_t m = rows.sizes[0], k = rows.sizes[1], n = out.sizes[1];
    const int has_bias = bias.data != NULL;
    if (rows.strides[1] != 1 || out.strides[1] != 1 || out.sizes[0] != m || out.type != rows.type ||
        (has_bias && (bias.sizes[0] != n || bias.strides[0] != 1 || bias.type != rows.type))) {
        PyErr_SetString(PyExc_ValueError, "multiply_packed(): the sizes do not fit");
        return NULL;
    }
    if (!fits(&packed, rows.type, n, k)) {
        return NULL;
    }
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = rows.type == FLOAT32
               ? fxjit_multiply_packed_floats(m, n, k, rows.data, rows.strides[0], packed.data, bias.data, out.data, out.strides[0])
               : fxjit_pairs_product(&(const pairs_product_t){
                     .m = m, .n = n, .k = k, .a = rows.data, .a_line = rows.strides[0], .packed = packed.data, .bias = bias.data,
                     .out = out.data, .line = out.strides[0]});
    Py_END_ALLOW_THREADS
    if (done < 0) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

int
fxjit_multiply_packed_floats(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_line, const float *packed,
                             const float *bias, float *out, int64_t line)
{
    for (int64_t row = 0; row < m && bias != NULL; row++) {
        memcpy(out + row * line, bias, (size_t)n * sizeof(float));
    }
    const product_t product = {.m = m, .n = n, .k = k, .a = {a, a_line, 1}, .packed = packed, .out = out, .line = line,
                               .add = bias != NULL};
    return m > 0 && n > 0 ? fxjit_gemm(&product) : 0;
}
