/* The steps of the executor: what the instructions of a program do. Python calls, memory, kernels, matrix products. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/_cuda.h"
#include "_bfloat16.h"
#include "_pairs.h"
#include "_program.h"

/* Kernels of more tensors, and calls of more values, take their arrays from the heap. */
#define FEW_POINTERS 256
#define FEW_VALUES 64
#define LARGE_COUNT (1 << 20) /* elements from which a tensor may be some large pages long */

/* -- values of Python calls ----------------------------------------------------------------------------------------*/

static PyObject *
build_sequence(frame_t *frame, const int64_t **pc, int64_t n, int as_list)
{
    PyObject *all = as_list ? PyList_New(n) : PyTuple_New(n);
    for (int64_t i = 0; all != NULL && i < n; i++) {
        PyObject *item = fxjit_build_value(frame, pc);
        if (item == NULL) {
            Py_CLEAR(all);
        }
        else if (as_list) {
            PyList_SET_ITEM(all, i, item);
        }
        else {
            PyTuple_SET_ITEM(all, i, item);
        }
    }
    return all;
}

static PyObject *
build_slice(frame_t *frame, const int64_t **pc, int64_t n)
{
    PyObject *parts = build_sequence(frame, pc, n, 0);
    PyObject *made = parts == NULL ? NULL : PySlice_New(PyTuple_GET_ITEM(parts, 0), PyTuple_GET_ITEM(parts, 1),
                                                        PyTuple_GET_ITEM(parts, 2));
    Py_XDECREF(parts);
    return made;
}

static PyObject *
build_dict(frame_t *frame, const int64_t **pc, int64_t n)
{
    PyObject *made = PyDict_New();
    for (int64_t i = 0; made != NULL && i < n; i++) {
        PyObject *key = fxjit_build_value(frame, pc), *value = key == NULL ? NULL : fxjit_build_value(frame, pc);
        if (value == NULL || PyDict_SetItem(made, key, value) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return made;
}

PyObject *
fxjit_build_value(frame_t *frame, const int64_t **pc)
{
    int64_t kind = *(*pc)++, n = *(*pc)++;
    switch (kind) {
    case V_CONSTANT:
        return Py_NewRef(PyTuple_GET_ITEM(frame->program->objects, n));
    case V_VARIABLE:
        return Py_XNewRef(slot_object(&frame->slots[n]));
    case V_NUMBER:
        return PyLong_FromLongLong(frame->numbers[n]);
    case V_SLICE:
        return build_slice(frame, pc, n);
    case V_DICT:
        return build_dict(frame, pc, n);
    default:
        return build_sequence(frame, pc, n, kind == V_LIST);
    }
}

int
fxjit_step_call(frame_t *frame, const int64_t **pc)
{
    const CALL_operands *o = (const CALL_operands *)*pc;
    PyObject *function = PyTuple_GET_ITEM(frame->program->objects, o->function);
    PyObject *few[FEW_VALUES], **args = o->count <= FEW_VALUES ? few : PyMem_Malloc(sizeof(PyObject *) * o->count);
    if (args == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    args[0] = NULL; /* where there are none, their address is passed on all the same */
    PyObject *keywords = o->keywords < 0 ? NULL : PyTuple_GET_ITEM(frame->program->objects, o->keywords);
    int64_t made = 0;
    *pc = o->values;
    while (made < o->count && (args[made] = fxjit_build_value(frame, pc)) != NULL) {
        made++;
    }
    PyObject *value = NULL;
    if (made == o->count) {
        value = PyObject_Vectorcall(function, args, o->count - (keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords)), keywords);
    }
    while (made > 0) {
        Py_DECREF(args[--made]);
    }
    if (args != few) {
        PyMem_Free(args);
    }
    if (value == NULL) {
        return -1;
    }
    fill_slot(&frame->slots[o->out], value);
    return 0;
}

int
fxjit_step_item(frame_t *frame, const ITEM_operands *o)
{
    PyObject *whole = slot_object(&frame->slots[o->sequence]);
    PyObject *item = whole == NULL ? NULL : PySequence_GetItem(whole, o->index);
    if (item == NULL) {
        return -1;
    }
    fill_slot(&frame->slots[o->out], item);
    return 0;
}

int
fxjit_step_bind(frame_t *frame, const BIND_operands *o)
{
    if (fxjit_read_symbol(&frame->slots[o->source], o->origin, o->dim, &frame->symbols[o->symbol]) < 0) {
        return -1;
    }
    if (o->arithmetic < 0) {
        return 0;
    }
    return fxjit_calculate_sizes(frame->program->arithmetic + o->arithmetic, frame->symbols, frame->numbers);
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

/* A result of other strides, or of another type, than its fake tensor had is copied by `helper(tensor, size, stride, dtype)`. */
int
fxjit_step_assert_strides(frame_t *frame, const ASSERT_STRIDES_operands *o)
{
    slot_t *slot = &frame->slots[o->tensor];
    int64_t ndim = o->ndim, dim;
    const int64_t *sizes = frame->numbers + o->sizes, *strides = sizes + ndim;
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
    int same = dim == ndim && dtype == o->dtype && memcmp(sizes, actual_sizes, sizeof(int64_t) * ndim) == 0, empty = 0;
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
        PyObject *helper = PyTuple_GET_ITEM(frame->program->objects, o->helper);
        PyObject *type = PyTuple_GET_ITEM(frame->program->objects, o->torch_dtype);
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
        fxjit_advise_large_pages(data, bytes);
    }
}

/* What the shim had no memory for, asked for again in Python: that raises what eager would. */
static int
allocate_in_python(slot_t *slot, const ALLOCATE_operands *o, const int64_t *sizes)
{
    int64_t ndim = o->ndim;
    PyObject *tensor = NULL, *size = tuple_of(sizes, ndim), *stride = tuple_of(sizes + ndim, ndim);
    PyObject *module = PyImport_ImportModule("fxjit.backends.native.executor.aten_calls");
    if (size != NULL && stride != NULL && module != NULL) {
        tensor = PyObject_CallMethod(module, "allocate", "LLLOO", (long long)o->dtype, (long long)o->device,
                                     (long long)o->device_index, size, stride);
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
fxjit_step_allocate(frame_t *frame, const ALLOCATE_operands *o)
{
    slot_t *slot = &frame->slots[o->out];
    const int64_t *sizes = frame->numbers + o->sizes;
    void *handle = NULL;
    if (fxjit_torch.empty_strided(o->ndim, sizes, sizes + o->ndim, (int32_t)o->dtype, (int32_t)o->device,
                                  (int32_t)o->device_index, &handle) != 0) {
        return allocate_in_python(slot, o, sizes);
    }
    if (fxjit_torch.cpu != NULL && (int32_t)o->device == fxjit_torch.cpu()) {
        prepare_large(handle, o->ndim, sizes);
    }
    clear_slot(slot);
    slot->handle = handle;
    return 0;
}

int
fxjit_step_store_number(frame_t *frame, const STORE_NUMBER_operands *o)
{
    double number = PyFloat_AsDouble(frame->slots[o->number].object);
    if (number == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    memcpy(frame->slots[o->into].data, &number, sizeof(number));
    return 0;
}

int
fxjit_step_view(frame_t *frame, const VIEW_operands *o)
{
    slot_t *slot = &frame->slots[o->out];
    int64_t ndim = o->ndim;
    const int64_t *sizes = frame->numbers + o->sizes;
    void *source = slot_handle(&frame->slots[o->base]), *handle = NULL;
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

/* The addresses of the slots' memory. */
static int
pointers_of(frame_t *frame, const int64_t *slots, int64_t count, void **data)
{
    for (int64_t i = 0; i < count; i++) {
        if (slot_data(&frame->slots[slots[i]], &data[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
launch(frame_t *frame, const LAUNCH_operands *o, void **data)
{
    kernel_fn function = frame->program->kernels[o->kernel];
    const int64_t *sizes = frame->numbers + o->sizes;
    if (pointers_of(frame, o->buffers, o->count, data) < 0) {
        return -1;
    }
    int problem;
    if (o->unlocked) {
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

int
fxjit_step_launch(frame_t *frame, const LAUNCH_operands *o)
{
    void *few[FEW_POINTERS];
    if (o->count <= FEW_POINTERS) {
        return launch(frame, o, few);
    }
    void **data = PyMem_Malloc(sizeof(void *) * o->count);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int status = launch(frame, o, data);
    PyMem_Free(data);
    return status;
}

/* The kernel as Python calls it: with tensors, then integers. `args` has room for all of them. */
static int
call_kernel(frame_t *frame, PyObject *kernel, const CALL_KERNEL_operands *o, PyObject **args)
{
    const int64_t *integers = frame->numbers + o->sizes;
    PyObject *result = NULL;
    for (int64_t i = 0; i < o->count; i++) {
        if ((args[i] = slot_object(&frame->slots[o->buffers[i]])) == NULL) {
            return -1;
        }
    }
    int64_t made = 0;
    while (made < o->num_sizes && (args[o->count + made] = PyLong_FromLongLong(integers[made])) != NULL) {
        made++;
    }
    if (made == o->num_sizes) {
        result = PyObject_Vectorcall(kernel, args, o->count + o->num_sizes, NULL);
    }
    while (made > 0) {
        Py_DECREF(args[o->count + --made]);
    }
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* By the driver where the kernel is one of a GPU, whose binary suits these arguments; else as Python calls it. */
static int
run_kernel(frame_t *frame, PyObject *kernel, const CALL_KERNEL_operands *o, void **data)
{
    int done = 0;
    if (fxjit_is_cuda_kernel(kernel)) {
        done = pointers_of(frame, o->buffers, o->count, data);
        if (done == 0) {
            done = fxjit_cuda_run(kernel, data, o->count, frame->numbers + o->sizes, o->num_sizes);
        }
    }
    return done != 0 ? done : call_kernel(frame, kernel, o, (PyObject **)data);
}

int
fxjit_step_call_kernel(frame_t *frame, const CALL_KERNEL_operands *o)
{
    void *few[FEW_POINTERS], **data = few;
    if (o->count + o->num_sizes > FEW_POINTERS && (data = PyMem_Malloc(sizeof(void *) * (o->count + o->num_sizes))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject *kernel = Py_NewRef(PyList_GET_ITEM(PyTuple_GET_ITEM(frame->program->objects, o->cell), 0));
    int done = run_kernel(frame, kernel, o, data);
    Py_DECREF(kernel);
    if (data != few) {
        PyMem_Free(data);
    }
    return done < 0 ? -1 : 0;
}

/* -- matrix products -----------------------------------------------------------------------------------------------*/

/* The types of products, of their results as well; EIGHTHS: of halves by integers of eight bits; PAIRS: more rows of halves. */
enum { FLOATS, DOUBLES, HALVES, EIGHTHS, PAIRS, PACKED_PAIRS, PACKED_FLOATS };

/* By our kernel for few rows of bfloat16, with the numbers of fxjit_step_gemm. */
static int
multiply_few(const int64_t *s, void *out, void *a, void *b, void *bias, int narrow, int unlocked)
{
    few_t product = {
        .m = s[0], .n = s[1], .k = s[2], .a = (uint16_t *)a + s[5], .out = (uint16_t *)out + s[11],
        .b = (char *)b + s[8] * (narrow ? sizeof(int8_t) : sizeof(uint16_t)), .narrow = narrow,
        .bias = bias == NULL ? NULL : (uint16_t *)bias + s[13], .a_line = s[3], .b_line = s[7], .line = s[9],
    };
    if (!fxjit_gemm_runs() || product.m > FXJIT_FEW_ROWS) {
        PyErr_SetString(PyExc_RuntimeError, "a compiled graph has a product for a processor with AVX2 or AVX-512");
        return -1;
    }
    fxjit_note_weight_read(product.b, ((product.n - 1) * product.b_line + product.k) * (int64_t)(narrow ? 1 : sizeof(uint16_t)));
    PyThreadState *state = unlocked ? PyEval_SaveThread() : NULL;
    int done = fxjit_few_bfloat16(&product);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (done < 0) {
        PyErr_NoMemory();
    }
    return done;
}

/* More rows of bfloat16, by pairs, with the same numbers, but none of b where that is packed. */
static int
multiply_pairs(const int64_t *s, void *out, void *a, void *b, void *bias, int packed, int unlocked)
{
    const int by_rows = s[6] != 1;
    const pairs_product_t product = {
        .m = s[0], .n = s[1], .k = s[2], .a = (uint16_t *)a + s[5], .b = (uint16_t *)b + s[8], .out = (uint16_t *)out + s[11],
        .bias = bias == NULL ? NULL : (uint16_t *)bias + s[13], .a_line = s[3], .b_line = by_rows ? s[6] : s[7], .line = s[9],
        .by_rows = by_rows, .packed = packed ? b : NULL,
    };
    if (!fxjit_pairs_run()) {
        PyErr_SetString(PyExc_RuntimeError, "a compiled graph has a product for a processor with AVX512-BF16");
        return -1;
    }
    if (product.m <= FXJIT_SHORT_ROWS && !packed) {
        int64_t lines = by_rows ? product.k : product.n, length = by_rows ? product.n : product.k;
        fxjit_note_weight_read(product.b, ((lines - 1) * product.b_line + length) * (int64_t)sizeof(uint16_t));
    }
    PyThreadState *state = unlocked ? PyEval_SaveThread() : NULL;
    int done = fxjit_pairs_product(&product);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (done < 0) {
        PyErr_NoMemory();
    }
    return done;
}

/* The same of float32 by packed weights. */
static int
multiply_packed(const int64_t *s, void *out, void *a, void *b, void *bias, int unlocked)
{
    if (!fxjit_gemm_runs()) {
        PyErr_SetString(PyExc_RuntimeError, "a compiled graph has a product for a processor with AVX2 or AVX-512");
        return -1;
    }
    PyThreadState *state = unlocked ? PyEval_SaveThread() : NULL;
    int done = fxjit_multiply_packed_floats(s[0], s[1], s[2], (const float *)a + s[5], s[3], b,
                                            bias == NULL ? NULL : (const float *)bias + s[13], (float *)out + s[11], s[9]);
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (done < 0) {
        PyErr_NoMemory();
    }
    return done;
}

/* into[m, n] (+)= a[m, k] b[k, n], row after row; with a bias each row starts as that. The numbers: m n k, then for a, b and
 * into each: row stride, column stride, offset; then the bias's stride and offset. Calls the BLAS as ATen does. */
int
fxjit_step_gemm(frame_t *frame, const GEMM_operands *o)
{
    const int64_t *s = frame->numbers + o->sizes;
    int64_t m = s[0], n = s[1], k = s[2];
    int wide = o->type == DOUBLES, has_bias = o->bias >= 0;
    size_t item = wide ? sizeof(double) : sizeof(float);
    void *out, *a, *b, *bias = NULL;
    if (slot_data(&frame->slots[o->into], &out) < 0 || slot_data(&frame->slots[o->a], &a) < 0 ||
        slot_data(&frame->slots[o->b], &b) < 0 || (has_bias && slot_data(&frame->slots[o->bias], &bias) < 0)) {
        return -1;
    }
    if (m == 0 || n == 0) {
        return 0;
    }
    if (o->type == HALVES || o->type == EIGHTHS) {
        return multiply_few(s, out, a, b, bias, o->type == EIGHTHS, (int)o->unlocked);
    }
    if (o->type == PAIRS || o->type == PACKED_PAIRS) {
        return multiply_pairs(s, out, a, b, bias, o->type == PACKED_PAIRS, (int)o->unlocked);
    }
    if (o->type == PACKED_FLOATS) {
        return multiply_packed(s, out, a, b, bias, (int)o->unlocked);
    }
    char *to = (char *)out + s[11] * item;
    const char *from_a = (const char *)a + s[5] * item, *from_b = (const char *)b + s[8] * item;
    int lda, ldb, ldc = (int)(m <= 1 || s[9] < n ? n : s[9]);
    int ta = fxjit_leading(m, k, s[3], s[4], &lda), tb = fxjit_leading(k, n, s[6], s[7], &ldb);
    int im = (int)m, in = (int)n, ik = (int)k, done = 0;
    const double one_wide = 1, beta_wide = has_bias ? 1 : 0;
    if (m <= FXJIT_SHORT_ROWS && k > 0) {
        int64_t lines = tb ? n : k, line = tb ? k : n;
        fxjit_note_weight_read(from_b, ((lines - 1) * ldb + line) * (int64_t)item);
    }
    PyThreadState *state = o->unlocked ? PyEval_SaveThread() : NULL;
    if (has_bias) {
        const char *first = (const char *)bias + s[13] * item;
        for (int64_t row = 0; row < m; row++) {
            memcpy(to + row * ldc * item, first, n * item);
        }
    }
    /* Row-major out = a b is column-major out' = b' a'. BLAS wants leading dimensions also of operands without elements. */
    if (k == 0) {
        for (int64_t row = 0; row < m && !has_bias; row++) {
            memset(to + row * ldc * item, 0, n * item);
        }
    }
    else if (wide) {
        fxjit_torch.dgemm(tb ? "T" : "N", ta ? "T" : "N", &in, &im, &ik, &one_wide, from_b, &ldb, from_a, &lda, &beta_wide, to,
                          &ldc);
    }
    else {
        product_t product = {
            .m = m, .n = n, .k = k, .out = (float *)to, .line = ldc, .add = has_bias,
            .a = {(const float *)from_a, ta ? 1 : lda, ta ? lda : 1}, .b = {(const float *)from_b, tb ? 1 : ldb, tb ? ldb : 1},
        };
        done = fxjit_multiply(&product);
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    if (done < 0) {
        PyErr_NoMemory();
    }
    return done;
}

/* A batch of matrices of a contiguous or transposed layout; 0 where our kernels do not take it. */
static int
batch_operand(void *handle, int64_t sizes[3], matrix_t *matrix, int64_t *step)
{
    int64_t dim, *size, *stride;
    void *data;
    if (fxjit_shim.get_dim(handle, &dim) || dim != 3 || fxjit_shim.get_sizes(handle, &size) ||
        fxjit_shim.get_strides(handle, &stride) || fxjit_torch.get_data_ptr(handle, &data)) {
        return 0;
    }
    memcpy(sizes, size, 3 * sizeof(int64_t));
    *matrix = (matrix_t){data, stride[1], stride[2]};
    *step = stride[0];
    int64_t line = stride[2] == 1 ? stride[1] : stride[2], columns = stride[2] == 1 ? size[2] : size[1];
    return (stride[1] == 1 || stride[2] == 1) && line >= columns;
}

/* The batch as our kernels take it, where it is one of float32 that they multiply faster. */
static int
own_batch(void *out, void *a, void *b, product_t *first, batch_t *batch)
{
    int64_t sizes[3][3];
    matrix_t into;
    if (!batch_operand(out, sizes[0], &into, &batch->out) || !batch_operand(a, sizes[1], &first->a, &batch->a) ||
        !batch_operand(b, sizes[2], &first->b, &batch->b) || into.column != 1) {
        return 0;
    }
    first->m = sizes[0][1];
    first->n = sizes[0][2];
    first->k = sizes[1][2];
    first->out = (float *)into.data;
    first->line = into.row;
    first->add = 0;
    batch->count = sizes[0][0];
    return first->m > 0 && first->n > 0 && first->k > 0 && fxjit_own_batches(first, batch);
}

int
fxjit_step_bmm(frame_t *frame, const BMM_operands *o)
{
    void *out = slot_handle(&frame->slots[o->into]);
    void *a = out == NULL ? NULL : slot_handle(&frame->slots[o->a]);
    void *b = a == NULL ? NULL : slot_handle(&frame->slots[o->b]);
    if (b == NULL) {
        return -1;
    }
    int32_t problem;
    product_t first = {0};
    batch_t batch;
    int by_own = o->float32 && own_batch(out, a, b, &first, &batch);
    Py_BEGIN_ALLOW_THREADS
    problem = by_own ? fxjit_gemm_batch(&first, &batch) : fxjit_torch.bmm_out(out, a, b);
    Py_END_ALLOW_THREADS
    if (by_own && problem != 0) {
        PyErr_NoMemory();
        return -1;
    }
    if (problem != 0) {
        PyErr_SetString(PyExc_RuntimeError, "aten::bmm failed in a compiled graph");
        return -1;
    }
    return 0;
}
