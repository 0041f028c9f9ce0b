/* What the instructions of a compiled graph's program do (_program.c): Python calls, memory, kernels, matrix products. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "_executor.h"
#include "_program.h"

#define MAX_POINTERS 256
#define MAX_CALL_ARGS 64
#define ARENA_ALIGNMENT 128
#define LARGE_PAGE (1 << 21)
#define LARGE_PAGES_AT_MOST (64 << 20) /* bytes */
#define LARGE_COUNT (1 << 20) /* elements from which a tensor may be some large pages long */

enum { V_CONST, V_SLOT, V_NUMBER, V_LIST, V_TUPLE }; /* how an argument is made */

/* -- arguments of Python calls -------------------------------------------------------------------------------------*/

PyObject *
fxjit_build_argument(frame_t *frame, const int64_t **pc)
{
    int64_t kind = *(*pc)++, n = *(*pc)++;
    switch (kind) {
    case V_CONST:
        return Py_NewRef(PyTuple_GET_ITEM(frame->program->objects, n));
    case V_SLOT:
        return Py_XNewRef(slot_object(&frame->slots[n]));
    case V_NUMBER:
        return PyLong_FromLongLong(frame->numbers[n]);
    default:
        break;
    }
    PyObject *all = kind == V_LIST ? PyList_New(n) : PyTuple_New(n);
    for (int64_t i = 0; all != NULL && i < n; i++) {
        PyObject *item = fxjit_build_argument(frame, pc);
        if (item == NULL) {
            Py_CLEAR(all);
        }
        else if (kind == V_LIST) {
            PyList_SET_ITEM(all, i, item);
        }
        else {
            PyTuple_SET_ITEM(all, i, item);
        }
    }
    return all;
}

int
fxjit_step_call(frame_t *frame, const int64_t **pc)
{
    slot_t *result = &frame->slots[*(*pc)++];
    PyObject *function = PyTuple_GET_ITEM(frame->program->objects, *(*pc)++);
    int64_t count = *(*pc)++, names = *(*pc)++;
    PyObject *args[MAX_CALL_ARGS];
    args[0] = NULL; /* where there are none, their address is passed on all the same */
    PyObject *keywords = names < 0 ? NULL : PyTuple_GET_ITEM(frame->program->objects, names);
    int64_t made = 0;
    while (made < count && (args[made] = fxjit_build_argument(frame, pc)) != NULL) {
        made++;
    }
    PyObject *value = NULL;
    if (made == count) {
        value = PyObject_Vectorcall(function, args, count - (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords)), keywords);
    }
    while (made > 0) {
        Py_DECREF(args[--made]);
    }
    if (value == NULL) {
        return -1;
    }
    fill_slot(result, value);
    return 0;
}

int
fxjit_step_item(frame_t *frame, const int64_t *operands)
{
    slot_t *source = &frame->slots[operands[1]];
    PyObject *whole = slot_object(source);
    PyObject *item = whole == NULL ? NULL : PySequence_GetItem(whole, operands[2]);
    if (item == NULL) {
        return -1;
    }
    fill_slot(&frame->slots[operands[0]], item);
    return 0;
}

/* (number, ...); NULL with an exception. */
static PyObject *
tuple_of(const int64_t *numbers, int64_t count)
{
    PyObject *all = PyTuple_New(count);
    for (int64_t i = 0; all != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(all);
        }
        else {
            PyTuple_SET_ITEM(all, i, number);
        }
    }
    return all;
}

/* An operator that does not keep its promise is put right by `helper(tensor, size, stride, dtype)`. */
int
fxjit_step_expect(frame_t *frame, const int64_t *operands)
{
    slot_t *slot = &frame->slots[operands[0]];
    int64_t ndim = operands[2], dim;
    const int64_t *sizes = frame->numbers + operands[3], *strides = sizes + ndim;
    int64_t *actual_sizes, *actual_strides;
    if (slot->object == Py_None) {
        return 0; /* an undefined tensor, which operators take as well: the workspace of an LSTM whose input needs no gradient */
    }
    void *handle = slot_handle(slot);
    if (handle == NULL) {
        return -1;
    }
    int32_t dtype;
    if (fxjit_shim.get_dim(handle, &dim) || fxjit_shim.get_sizes(handle, &actual_sizes) ||
        fxjit_shim.get_strides(handle, &actual_strides) || fxjit_shim.get_dtype(handle, &dtype)) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim gave an error for a tensor");
        return -1;
    }
    int same = dim == ndim && dtype == operands[4] && memcmp(sizes, actual_sizes, sizeof(int64_t) * ndim) == 0, empty = 0;
    for (int64_t i = 0; i < ndim && same; i++) {
        empty |= sizes[i] == 0;
    }
    for (int64_t i = 0; i < ndim && same && !empty; i++) {
        same = sizes[i] == 1 || strides[i] == actual_strides[i];
    }
    if (same) {
        return 0;
    }
    PyObject *tensor = slot_object(slot), *size = tuple_of(sizes, ndim), *stride = tuple_of(strides, ndim), *right = NULL;
    if (tensor != NULL && size != NULL && stride != NULL) {
        PyObject *helper = PyTuple_GET_ITEM(frame->program->objects, operands[1]);
        PyObject *type = PyTuple_GET_ITEM(frame->program->objects, operands[5]);
        right = PyObject_CallFunctionObjArgs(helper, tensor, size, stride, type, NULL);
    }
    Py_XDECREF(size);
    Py_XDECREF(stride);
    if (right == NULL) {
        return -1;
    }
    fill_slot(slot, right);
    return 0;
}

/* -- memory and kernels --------------------------------------------------------------------------------------------*/

/* Most of the time of a pass over large new memory is the kernel handing out its pages: asks for large ones, which change
 * nothing but that. Pages that do not lie in the memory as a whole stay as they are. Not for hundreds of megabytes: on a
 * virtual machine that gives its free large pages back to its host, each of them is asked for anew (400 MB: 6 s for 1). */
static void
ask_for_large_pages(void *data, int64_t bytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t first = ((uintptr_t)data + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1);
    uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) & ~(uintptr_t)(LARGE_PAGE - 1);
    if (first < end && bytes <= LARGE_PAGES_AT_MOST) {
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE); /* a kernel without them says no, which is no error */
    }
#else
    (void)data;
    (void)bytes;
#endif
}

static void
prepare_large(void *handle, int64_t ndim, const int64_t *sizes)
{
    int64_t count = 1, bytes = 0;
    void *data = NULL;
    for (int64_t i = 0; i < ndim; i++) {
        count *= sizes[i];
    }
    if (count >= LARGE_COUNT && fxjit_torch.storage_size != NULL && fxjit_torch.storage_size(handle, &bytes) == 0 &&
        fxjit_torch.get_data_ptr(handle, &data) == 0) {
        ask_for_large_pages(data, bytes);
    }
}

void *
fxjit_allocate_arena(int64_t bytes)
{
    void *arena = NULL;
    if (posix_memalign(&arena, ARENA_ALIGNMENT, (size_t)bytes) != 0) {
        PyErr_NoMemory();
        return NULL;
    }
    if (bytes >= LARGE_COUNT) {
        ask_for_large_pages(arena, bytes);
    }
    return arena;
}

/* What the shim had no memory for, asked for again in Python: that raises what eager would. */
static int
allocate_in_python(slot_t *slot, const int64_t *operands, const int64_t *sizes)
{
    int64_t ndim = operands[2];
    PyObject *tensor = NULL, *size = tuple_of(sizes, ndim), *stride = tuple_of(sizes + ndim, ndim);
    PyObject *module = PyImport_ImportModule("fxjit.backends.native.runtime.callees");
    if (size != NULL && stride != NULL && module != NULL) {
        tensor = PyObject_CallMethod(module, "allocated", "LLLOO", (long long)operands[1], (long long)operands[4],
                                     (long long)operands[5], size, stride);
    }
    Py_XDECREF(size);
    Py_XDECREF(stride);
    Py_XDECREF(module);
    if (tensor == NULL) {
        return -1;
    }
    fill_slot(slot, tensor);
    return 0;
}

int
fxjit_step_allocate(frame_t *frame, const int64_t *operands)
{
    slot_t *slot = &frame->slots[operands[0]];
    const int64_t *sizes = frame->numbers + operands[3];
    void *handle = NULL;
    if (fxjit_torch.empty_strided(operands[2], sizes, sizes + operands[2], (int32_t)operands[1], (int32_t)operands[4],
                           (int32_t)operands[5], &handle) != 0) {
        return allocate_in_python(slot, operands, sizes);
    }
    if (fxjit_torch.cpu != NULL && (int32_t)operands[4] == fxjit_torch.cpu()) {
        prepare_large(handle, operands[2], sizes);
    }
    clear_slot(slot);
    slot->handle = handle;
    return 0;
}

int
fxjit_step_number(slot_t *slot, const slot_t *source)
{
    double number = PyFloat_AsDouble(source->object);
    if (number == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    memcpy(slot->data, &number, sizeof(number));
    return 0;
}

int
fxjit_step_view(frame_t *frame, const int64_t *operands)
{
    slot_t *slot = &frame->slots[operands[0]];
    int64_t ndim = operands[2];
    const int64_t *sizes = frame->numbers + operands[3];
    void *source = slot_handle(&frame->slots[operands[1]]), *handle = NULL;
    if (source == NULL) {
        return -1;
    }
    if (fxjit_torch.reinterpret(source, ndim, sizes, sizes + ndim, sizes[2 * ndim], &handle) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "a view in a compiled graph could not be made");
        return -1;
    }
    clear_slot(slot);
    slot->handle = handle;
    return 0;
}

int
fxjit_step_launch(frame_t *frame, const int64_t *operands)
{
    kernel_fn function = frame->program->kernels[operands[0]];
    int64_t count = operands[2];
    const int64_t *sizes = frame->numbers + operands[3];
    void *data[MAX_POINTERS];
    for (int64_t i = 0; i < count; i++) {
        if (slot_data(&frame->slots[operands[4 + i]], &data[i]) < 0) {
            return -1;
        }
    }
    int problem;
    if (operands[1]) {
        Py_BEGIN_ALLOW_THREADS
        problem = function(data, sizes);
        Py_END_ALLOW_THREADS
    }
    else {
        problem = function(data, sizes);
    }
    if (problem != 0) {
        PyErr_SetString(PyExc_IndexError, "index out of range in self");
        return -1;
    }
    return 0;
}

/* The kernel as Python calls it: with tensors, then integers. */
static int
call_kernel(frame_t *frame, PyObject *kernel, const int64_t *slots, int64_t count, const int64_t *integers, int64_t more)
{
    PyObject *args[MAX_POINTERS + MAX_CALL_ARGS], *result = NULL;
    for (int64_t i = 0; i < count; i++) {
        if ((args[i] = slot_object(&frame->slots[slots[i]])) == NULL) {
            return -1;
        }
    }
    int64_t made = 0;
    while (made < more && (args[count + made] = PyLong_FromLongLong(integers[made])) != NULL) {
        made++;
    }
    if (made == more) {
        result = PyObject_Vectorcall(kernel, args, count + more, NULL);
    }
    while (made > 0) {
        Py_DECREF(args[count + --made]);
    }
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

int
fxjit_step_kernel(frame_t *frame, const int64_t *operands)
{
    PyObject *kernel = Py_NewRef(PyList_GET_ITEM(PyTuple_GET_ITEM(frame->program->objects, operands[0]), 0));
    int64_t count = operands[1], more = operands[2];
    const int64_t *integers = frame->numbers + operands[3], *slots = operands + 4;
    int done = 0;
    if (fxjit_is_cuda_kernel(kernel)) {
        void *data[MAX_POINTERS];
        for (int64_t i = 0; i < count && done == 0; i++) {
            done = slot_data(&frame->slots[slots[i]], &data[i]);
        }
        if (done == 0) {
            done = fxjit_cuda_run(kernel, data, count, integers, more);
        }
    }
    if (done == 0) {
        done = call_kernel(frame, kernel, slots, count, integers, more);
    }
    Py_DECREF(kernel);
    return done < 0 ? -1 : 0;
}

/* -- matrix products -----------------------------------------------------------------------------------------------*/

/* One operand as BLAS wants it: whether it is transposed, and the distance of its rows (or columns). Its rows are contiguous,
 * or its columns are; codegen/program.py saw to that. */
static int
leading(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int *ld)
{
    int transposed = !(column_stride == 1 || columns == 1);
    int64_t lines = transposed ? columns : rows, least = transposed ? rows : columns;
    int64_t stride = transposed ? column_stride : row_stride;
    *ld = (int)(lines > 1 ? stride : Py_MAX(least, 1));
    return transposed;
}

/* out[m, n] (+)= a[m, k] b[k, n], row after row; with a bias each row of out starts as that. numbers[at]: m n k, then for a,
 * b and out each: row stride, column stride, offset; then the bias's stride and offset. Calls the BLAS as ATen does. */
int
fxjit_step_gemm(frame_t *frame, const int64_t *operands)
{
    const int64_t *s = frame->numbers + operands[6];
    int64_t m = s[0], n = s[1], k = s[2];
    int wide = (int)operands[0], has_bias = operands[4] >= 0;
    size_t item = wide ? sizeof(double) : sizeof(float);
    void *out, *a, *b, *bias = NULL;
    if (slot_data(&frame->slots[operands[1]], &out) < 0 || slot_data(&frame->slots[operands[2]], &a) < 0 ||
        slot_data(&frame->slots[operands[3]], &b) < 0 ||
        (has_bias && slot_data(&frame->slots[operands[4]], &bias) < 0)) {
        return -1;
    }
    if (m == 0 || n == 0) {
        return 0;
    }
    char *to = (char *)out + s[11] * item;
    const char *from_a = (const char *)a + s[5] * item, *from_b = (const char *)b + s[8] * item;
    int lda, ldb, ldc = (int)(m <= 1 || s[9] < n ? n : s[9]);
    int ta = leading(m, k, s[3], s[4], &lda), tb = leading(k, n, s[6], s[7], &ldb);
    int im = (int)m, in = (int)n, ik = (int)k;
    const float one = 1, beta = has_bias ? 1 : 0;
    const double one_wide = 1, beta_wide = has_bias ? 1 : 0;
    PyThreadState *state = operands[5] ? PyEval_SaveThread() : NULL;
    if (has_bias) {
        const char *first = (const char *)bias + s[13] * item;
        for (int64_t row = 0; row < m; row++) {
            memcpy(to + row * ldc * item, first, n * item);
        }
    }
    /* Row-major out = a b is column-major out' = b' a'. */
    if (wide) {
        fxjit_torch.dgemm(tb ? "T" : "N", ta ? "T" : "N", &in, &im, &ik, &one_wide, from_b, &ldb, from_a, &lda, &beta_wide, to,
                          &ldc);
    }
    else {
        fxjit_torch.sgemm(tb ? "T" : "N", ta ? "T" : "N", &in, &im, &ik, &one, from_b, &ldb, from_a, &lda, &beta, to, &ldc);
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    return 0;
}

int
fxjit_step_bmm(frame_t *frame, const int64_t *operands)
{
    void *out = slot_handle(&frame->slots[operands[0]]);
    void *a = out == NULL ? NULL : slot_handle(&frame->slots[operands[1]]);
    void *b = a == NULL ? NULL : slot_handle(&frame->slots[operands[2]]);
    if (b == NULL) {
        return -1;
    }
    int32_t problem;
    Py_BEGIN_ALLOW_THREADS
    problem = fxjit_torch.bmm_out(out, a, b);
    Py_END_ALLOW_THREADS
    if (problem != 0) {
        PyErr_SetString(PyExc_RuntimeError, "aten::bmm failed in a compiled graph");
        return -1;
    }
    return 0;
}
