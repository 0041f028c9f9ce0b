/* Attention for Python (runtime/own_attention.py): _attention.c. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "../../../_tensor.h"
#include "_attention.h"
#include "_gemm.h"
#include "_pairs.h"
#include "_program.h"

/* What a derivative's memory may be: it has the gradients of a set's queries as floats. */
enum { MOST_BYTES = 256 << 20 };

/* A tensor of four dimensions whose rows are contiguous: its sizes; 0 where it is none. */
static int
take_heads(PyObject *tensor, heads_t *heads, int64_t sizes[4])
{
    int64_t dim, *size, *stride;
    if (!fxjit_tensor_is_plain(tensor)) {
        return 0;
    }
    void *handle = fxjit_tensor_handle(tensor);
    if (fxjit_shim.get_dim(handle, &dim) || dim != 4 || fxjit_shim.get_sizes(handle, &size) ||
        fxjit_shim.get_strides(handle, &stride) || fxjit_shim.get_data_ptr(handle, &heads->data)) {
        return 0;
    }
    for (int i = 0; i < 4; i++) {
        sizes[i] = size[i];
    }
    heads->batch = stride[0];
    heads->head = stride[1];
    heads->row = stride[2];
    return heads->data != NULL && (stride[3] == 1 || size[3] == 1);
}

static int
is_like(PyObject *tensor, heads_t *heads, const int64_t wanted[4])
{
    int64_t sizes[4];
    return take_heads(tensor, heads, sizes) && memcmp(sizes, wanted, sizeof sizes) == 0;
}

/* A mask of up to four dimensions, each as long as that of the scores or of one. */
static int
take_mask(PyObject *tensor, attention_t *attention)
{
    const int64_t scores[4] = {attention->batch, attention->heads, attention->queries, attention->keys};
    int64_t dim, *size, *stride, steps[4] = {0, 0, 0, 0};
    if (tensor == Py_None) {
        return 1;
    }
    if (!fxjit_tensor_is_plain(tensor)) {
        return 0;
    }
    void *handle = fxjit_tensor_handle(tensor);
    if (fxjit_shim.get_dim(handle, &dim) || dim < 1 || dim > 4 || fxjit_shim.get_sizes(handle, &size) ||
        fxjit_shim.get_strides(handle, &stride) || fxjit_shim.get_data_ptr(handle, &attention->mask.data)) {
        return 0;
    }
    for (int i = 0; i < dim; i++) {
        int at = 4 - (int)dim + i;
        if (size[i] != scores[at] && size[i] != 1) {
            return 0;
        }
        steps[at] = size[i] == 1 ? 0 : stride[i];
    }
    attention->mask.batch = steps[0];
    attention->mask.head = steps[1];
    attention->mask.row = steps[2];
    attention->mask_column = steps[3];
    return attention->mask.data != NULL && (steps[3] == 0 || steps[3] == 1);
}

/* The logarithms of the sums: three dimensions, however they lie. */
static int
take_logsumexp(PyObject *tensor, attention_t *attention)
{
    int64_t dim, *size, *stride;
    if (!fxjit_tensor_is_plain(tensor)) {
        return 0;
    }
    void *handle = fxjit_tensor_handle(tensor);
    if (fxjit_shim.get_dim(handle, &dim) || dim != 3 || fxjit_shim.get_sizes(handle, &size) ||
        fxjit_shim.get_strides(handle, &stride) || fxjit_shim.get_data_ptr(handle, &attention->logsumexp.data)) {
        return 0;
    }
    attention->logsumexp.batch = stride[0];
    attention->logsumexp.head = stride[1];
    attention->logsumexp.row = stride[2];
    return size[0] == attention->batch && size[1] == attention->heads && size[2] == attention->queries;
}

/* The first six arguments, and the last four. 1; 0 where the kernels do not run it, -1 with an exception. */
static int
take_attention(PyObject *const *args, PyObject *const *last, attention_t *attention)
{
    int64_t q[4], k[4];
    attention->kind = (int)PyLong_AsLong(last[0]);
    attention->mask_kind = (int)PyLong_AsLong(last[1]);
    attention->causal = PyObject_IsTrue(last[2]);
    attention->by_pairs = fxjit_pairs_run();
    attention->scale = (float)PyFloat_AsDouble(last[3]);
    if (PyErr_Occurred()) {
        return -1;
    }
    if (!fxjit_gemm_runs() || !take_heads(args[0], &attention->q, q) || !take_heads(args[1], &attention->k, k)) {
        return 0;
    }
    attention->batch = q[0];
    attention->heads = q[1];
    attention->queries = q[2];
    attention->width = q[3];
    attention->key_heads = k[1];
    attention->keys = k[2];
    if (k[0] != q[0] || k[3] != q[3] || k[1] == 0 || q[1] % k[1] != 0 || q[0] * q[1] * q[2] * q[3] * k[2] == 0) {
        return 0;
    }
    return is_like(args[2], &attention->v, k) && take_mask(args[3], attention) && is_like(args[4], &attention->out, q) &&
           take_logsumexp(args[5], attention);
}

PyObject *
fxjit_attention_forward(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    attention_t attention = {0};
    if (count != 10) {
        return PyErr_Format(PyExc_TypeError, "attention_forward() takes 10 arguments, not %zd", count);
    }
    int takes = take_attention(args, args + 6, &attention);
    if (takes <= 0) {
        return takes < 0 ? NULL : PyBool_FromLong(0);
    }
    const int threads = fxjit_attention_threads(&attention, 0);
    int64_t kept;
    void *room = fxjit_take_arena(fxjit_attention_room(&attention, 0, threads), &kept);
    if (room == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    fxjit_attend(&attention, room, threads);
    Py_END_ALLOW_THREADS
    fxjit_give_arena(room, kept);
    Py_RETURN_TRUE;
}

PyObject *
fxjit_attention_backward(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    attention_backward_t attention = {0};
    attention_t *forward = &attention.forward;
    if (count != 14) {
        return PyErr_Format(PyExc_TypeError, "attention_backward() takes 14 arguments, not %zd", count);
    }
    int takes = take_attention(args, args + 10, forward);
    if (takes < 0) {
        return NULL;
    }
    const int64_t q[4] = {forward->batch, forward->heads, forward->queries, forward->width};
    const int64_t k[4] = {forward->batch, forward->key_heads, forward->keys, forward->width};
    if (!takes || !is_like(args[6], &attention.d_out, q) || !is_like(args[7], &attention.d_q, q) ||
        !is_like(args[8], &attention.d_k, k) || !is_like(args[9], &attention.d_v, k)) {
        Py_RETURN_FALSE;
    }
    const int threads = fxjit_attention_threads(forward, 1);
    const int64_t bytes = fxjit_attention_room(forward, 1, threads);
    if (bytes / threads > MOST_BYTES) {
        Py_RETURN_FALSE;
    }
    int64_t kept;
    void *room = fxjit_take_arena(bytes, &kept);
    if (room == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    fxjit_attend_backward(&attention, room, threads);
    Py_END_ALLOW_THREADS
    fxjit_give_arena(room, kept);
    Py_RETURN_TRUE;
}
