/* Runs a compiled graph: `_C.Program` is a callable over a graph's inputs that allocates, launches kernels, multiplies
 * matrices and calls ATen, in the order of a program that codegen/program.py encoded.
 *
 * A program is an array of int64: an instruction's number, then its operands. What sizes are needed stand in a second
 * array, `numbers`; where they vary from call to call a copy is filled in first. Values live in slots. A slot holds an
 * at::Tensor (through torch's stable C shim), a Python object, or memory in the arena, which is one allocation a call.
 * Python objects are made of tensors only where Python is called or where the graph returns them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "_executor.h"
#include "_module.h"
#include "_tensor.h"

#define MAX_POINTERS 256
#define MAX_STACK 32
#define MAX_CALL_ARGS 64
#define ARENA_ALIGNMENT 128
#define LARGE_PAGE (1 << 21)
#define LARGE_PAGES_AT_MOST (64 << 20) /* bytes */
#define LARGE_COUNT (1 << 20) /* elements from which a tensor may be some large pages long */

enum {
    I_ALLOC,   /* dst dtype ndim at device index   sizes and strides at numbers[at] */
    I_RAW,     /* dst offset                   memory in the arena */
    I_LAUNCH,  /* kernel unlocked count at slot... */
    I_VIEW,    /* dst src ndim at              sizes, strides, and the offset from src's */
    I_CALL,    /* dst function count names value...    names: -1, or a tuple of the keywords of the last arguments */
    I_ITEM,    /* dst src index */
    I_EXPECT,  /* slot helper ndim at          the strides kernels were compiled for */
    I_GEMM,    /* double? out a b bias unlocked at     see `multiply` */
    I_BMM,     /* out a b                      tensors */
    I_FREE,    /* count slot... */
    I_RETURN,  /* count value...               count -1: one value by itself */
    I_OBJECT,  /* dst object */
    I_KERNEL,  /* cell count integers at slot...   a kernel that is a Python object: the one in the list `cell` */
    I_NUMBER,  /* dst src                      the Python number in src, as a double where dst's memory is */
};

enum { V_CONST, V_SLOT, V_NUMBER, V_LIST, V_TUPLE }; /* how an argument is made */

enum { S_CONST, S_SYMBOL, S_ADD, S_MUL, S_FLOORDIV, S_MOD, S_MAX, S_MIN, S_STORE, S_END }; /* arithmetic on sizes */

typedef int (*kernel_fn)(void *const *, const int64_t *);
typedef void (*gemm_fn)(const char *, const char *, const int *, const int *, const int *, const void *, const void *,
                        const int *, const void *, const int *, const void *, void *, const int *);

typedef struct {
    PyObject *object; /* owned */
    void *handle;     /* an at::Tensor; owned where there is no object */
    void *data;       /* arena memory */
} slot_t;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t inputs, slots, code_length, num_numbers, num_kernels, num_symbols, arena;
    int64_t *code;
    int64_t *numbers;
    int64_t *symbols;    /* three numbers each: the input, 0 (an integer) 1 (a size) 2 (a stride), the dimension */
    int64_t *arithmetic; /* fills in `numbers` from symbols; NULL where all sizes are known */
    kernel_fn *kernels;
    PyObject *objects;   /* tuple: functions, constants */
    PyObject *keep;      /* what keeps the library loaded */
} program_object;

typedef struct {
    program_object *program;
    slot_t *slots;
    const int64_t *numbers;
    char *arena;
} frame_t;

static struct {
    int ready;
    int32_t (*get_data_ptr)(void *, void **);
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **);
    int32_t (*reinterpret)(void *, int64_t, const int64_t *, const int64_t *, int64_t, void **);
    int32_t (*delete_handle)(void *);
    int32_t (*storage_size)(void *, int64_t *);
    int32_t (*cpu)(void); /* the number of that kind of device */
    int32_t (*bmm_out)(void *, void *, void *);
    PyObject *(*wrap)(const void *); /* THPVariable_Wrap(const at::TensorBase &) */
    gemm_fn sgemm, dgemm;
} shim;

static int
resolve(void)
{
    if (shim.ready) {
        return 1;
    }
    if (!fxjit_shim.ready) {
        return 0;
    }
    *(void **)&shim.get_data_ptr = fxjit_torch_symbol("aoti_torch_get_data_ptr");
    *(void **)&shim.empty_strided = fxjit_torch_symbol("aoti_torch_empty_strided");
    *(void **)&shim.reinterpret = fxjit_torch_symbol("aoti_torch__reinterpret_tensor");
    *(void **)&shim.delete_handle = fxjit_torch_symbol("aoti_torch_delete_tensor_object");
    *(void **)&shim.cpu = fxjit_torch_symbol("aoti_torch_device_type_cpu");
    *(void **)&shim.storage_size = fxjit_torch_symbol("aoti_torch_get_storage_size");
    *(void **)&shim.bmm_out = fxjit_torch_symbol("aoti_torch_cpu_bmm_out");
    *(void **)&shim.wrap = fxjit_torch_symbol("_Z16THPVariable_WrapRKN2at10TensorBaseE");
    /* The BLAS that ATen itself calls, where libtorch exports it: LP64 Fortran names, as MKL and OpenBLAS have them. */
    *(void **)&shim.sgemm = fxjit_torch_symbol("sgemm_");
    *(void **)&shim.dgemm = fxjit_torch_symbol("dgemm_");
    if (shim.get_data_ptr == NULL || shim.empty_strided == NULL || shim.reinterpret == NULL ||
        shim.delete_handle == NULL || shim.wrap == NULL) {
        return 0;
    }
    shim.ready = 1;
    return 1;
}

/* -- slots ---------------------------------------------------------------------------------------------------------*/

static void
clear_slot(slot_t *slot)
{
    if (slot->object != NULL) {
        Py_CLEAR(slot->object);
    }
    else if (slot->handle != NULL) {
        shim.delete_handle(slot->handle);
    }
    slot->handle = slot->data = NULL;
}

/* Takes the reference. */
static void
fill_slot(slot_t *slot, PyObject *object)
{
    clear_slot(slot);
    slot->object = object;
    if (fxjit_tensor_is_plain(object)) {
        slot->handle = fxjit_tensor_handle(object);
    }
}

/* The slot's Python object, borrowed: a tensor gets one when it is first asked for. */
static PyObject *
slot_object(slot_t *slot)
{
    if (slot->object == NULL) {
        if (slot->handle == NULL) {
            PyErr_SetString(PyExc_SystemError, "a compiled program uses a value that is not there");
            return NULL;
        }
        PyObject *object = shim.wrap(slot->handle);
        if (object == NULL) {
            return NULL;
        }
        shim.delete_handle(slot->handle);
        slot->object = object;
        slot->handle = fxjit_tensor_handle(object);
    }
    return slot->object;
}

static void *
slot_handle(slot_t *slot)
{
    if (slot->handle == NULL) {
        PyErr_Format(PyExc_TypeError, "a compiled graph was given %s where it was compiled for a plain tensor",
                     slot->object == NULL ? "nothing" : Py_TYPE(slot->object)->tp_name);
    }
    return slot->handle;
}

/* The address of the first element; 0 is an error unless the tensor is empty. */
static int
slot_data(slot_t *slot, void **data)
{
    if (slot->data != NULL) {
        *data = slot->data;
        return 0;
    }
    void *handle = slot_handle(slot);
    if (handle == NULL) {
        return -1;
    }
    if (shim.get_data_ptr(handle, data) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "a tensor of a compiled graph has no memory");
        return -1;
    }
    return 0;
}

/* -- arguments of Python calls -------------------------------------------------------------------------------------*/

/* A new reference to the value at *pc, which moves on. */
static PyObject *
build(frame_t *frame, const int64_t **pc)
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
        PyObject *item = build(frame, pc);
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

static int
call_python(frame_t *frame, const int64_t **pc)
{
    slot_t *result = &frame->slots[*(*pc)++];
    PyObject *function = PyTuple_GET_ITEM(frame->program->objects, *(*pc)++);
    int64_t count = *(*pc)++, names = *(*pc)++;
    PyObject *args[MAX_CALL_ARGS];
    PyObject *keywords = names < 0 ? NULL : PyTuple_GET_ITEM(frame->program->objects, names);
    int64_t made = 0;
    while (made < count && (args[made] = build(frame, pc)) != NULL) {
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

static int
take_item(frame_t *frame, const int64_t *operands)
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
static int
expect(frame_t *frame, const int64_t *operands)
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
    if (count >= LARGE_COUNT && shim.storage_size != NULL && shim.storage_size(handle, &bytes) == 0 &&
        shim.get_data_ptr(handle, &data) == 0) {
        ask_for_large_pages(data, bytes);
    }
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

static int
allocate(frame_t *frame, const int64_t *operands)
{
    slot_t *slot = &frame->slots[operands[0]];
    const int64_t *sizes = frame->numbers + operands[3];
    void *handle = NULL;
    if (shim.empty_strided(operands[2], sizes, sizes + operands[2], (int32_t)operands[1], (int32_t)operands[4],
                           (int32_t)operands[5], &handle) != 0) {
        return allocate_in_python(slot, operands, sizes);
    }
    if (shim.cpu != NULL && (int32_t)operands[4] == shim.cpu()) {
        prepare_large(handle, operands[2], sizes);
    }
    clear_slot(slot);
    slot->handle = handle;
    return 0;
}

static int
write_number(slot_t *slot, const slot_t *source)
{
    double number = PyFloat_AsDouble(source->object);
    if (number == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    memcpy(slot->data, &number, sizeof(number));
    return 0;
}

static int
make_view(frame_t *frame, const int64_t *operands)
{
    slot_t *slot = &frame->slots[operands[0]];
    int64_t ndim = operands[2];
    const int64_t *sizes = frame->numbers + operands[3];
    void *source = slot_handle(&frame->slots[operands[1]]), *handle = NULL;
    if (source == NULL) {
        return -1;
    }
    if (shim.reinterpret(source, ndim, sizes, sizes + ndim, sizes[2 * ndim], &handle) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "a view in a compiled graph could not be made");
        return -1;
    }
    clear_slot(slot);
    slot->handle = handle;
    return 0;
}

static int
launch(frame_t *frame, const int64_t *operands)
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

static int
launch_object(frame_t *frame, const int64_t *operands)
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
static int
multiply(frame_t *frame, const int64_t *operands)
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
        shim.dgemm(tb ? "T" : "N", ta ? "T" : "N", &in, &im, &ik, &one_wide, from_b, &ldb, from_a, &lda, &beta_wide, to, &ldc);
    }
    else {
        shim.sgemm(tb ? "T" : "N", ta ? "T" : "N", &in, &im, &ik, &one, from_b, &ldb, from_a, &lda, &beta, to, &ldc);
    }
    if (state != NULL) {
        PyEval_RestoreThread(state);
    }
    return 0;
}

static int
multiply_batches(frame_t *frame, const int64_t *operands)
{
    void *out = slot_handle(&frame->slots[operands[0]]);
    void *a = out == NULL ? NULL : slot_handle(&frame->slots[operands[1]]);
    void *b = a == NULL ? NULL : slot_handle(&frame->slots[operands[2]]);
    if (b == NULL) {
        return -1;
    }
    int32_t problem;
    Py_BEGIN_ALLOW_THREADS
    problem = shim.bmm_out(out, a, b);
    Py_END_ALLOW_THREADS
    if (problem != 0) {
        PyErr_SetString(PyExc_RuntimeError, "aten::bmm failed in a compiled graph");
        return -1;
    }
    return 0;
}

/* -- sizes that vary -----------------------------------------------------------------------------------------------*/

/* The value of a symbol in this call; -1 with an exception on failure. */
static int
read_symbol(slot_t *slots, const int64_t *symbol, int64_t *value)
{
    slot_t *slot = &slots[symbol[0]];
    if (symbol[1] == 0) {
        *value = PyLong_AsLongLong(slot->object);
        return *value == -1 && PyErr_Occurred() ? -1 : 0;
    }
    int64_t *numbers;
    void *handle = slot_handle(slot);
    if (handle == NULL) {
        return -1;
    }
    if ((symbol[1] == 1 ? fxjit_shim.get_sizes : fxjit_shim.get_strides)(handle, &numbers) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim gave an error for a tensor");
        return -1;
    }
    *value = numbers[symbol[2]];
    return 0;
}

/* Stack code: see `S_...`. Divisors are sizes, and not 0. */
static int
calculate(const int64_t *pc, const int64_t *symbols, int64_t *numbers)
{
    int64_t stack[MAX_STACK];
    int top = -1;
    for (;;) {
        int64_t code = *pc++;
        switch (code) {
        case S_END:
            return 0;
        case S_CONST:
            stack[++top] = *pc++;
            continue;
        case S_SYMBOL:
            stack[++top] = symbols[*pc++];
            continue;
        case S_STORE:
            numbers[*pc++] = stack[top--];
            continue;
        default:
            break;
        }
        int64_t b = stack[top--], a = stack[top];
        if ((code == S_FLOORDIV || code == S_MOD) && b == 0) {
            PyErr_SetString(PyExc_ZeroDivisionError, "integer division or modulo by zero");
            return -1;
        }
        switch (code) {
        case S_ADD:
            stack[top] = a + b;
            break;
        case S_MUL:
            stack[top] = a * b;
            break;
        case S_FLOORDIV:
            stack[top] = a / b - (a % b != 0 && (a < 0) != (b < 0));
            break;
        case S_MOD:
            stack[top] = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
            break;
        case S_MAX:
            stack[top] = a > b ? a : b;
            break;
        default:
            stack[top] = a < b ? a : b;
            break;
        }
    }
}

/* -- the program ---------------------------------------------------------------------------------------------------*/

/* The results, as a list or a tuple. */
static PyObject *
run(frame_t *frame, int as_list)
{
    const int64_t *pc = frame->program->code;
    for (;;) {
        int status = 0;
        switch (*pc++) {
        case I_ALLOC:
            status = allocate(frame, pc);
            pc += 6;
            break;
        case I_RAW:
            frame->slots[pc[0]].data = frame->arena + pc[1];
            pc += 2;
            break;
        case I_LAUNCH:
            status = launch(frame, pc);
            pc += 4 + pc[2];
            break;
        case I_KERNEL:
            status = launch_object(frame, pc);
            pc += 4 + pc[1];
            break;
        case I_VIEW:
            status = make_view(frame, pc);
            pc += 4;
            break;
        case I_CALL:
            status = call_python(frame, &pc);
            break;
        case I_ITEM:
            status = take_item(frame, pc);
            pc += 3;
            break;
        case I_EXPECT:
            status = expect(frame, pc);
            pc += 6;
            break;
        case I_GEMM:
            status = multiply(frame, pc);
            pc += 7;
            break;
        case I_BMM:
            status = multiply_batches(frame, pc);
            pc += 3;
            break;
        case I_NUMBER:
            status = write_number(&frame->slots[pc[0]], &frame->slots[pc[1]]);
            pc += 2;
            break;
        case I_FREE:
            for (int64_t i = 1; i <= pc[0]; i++) {
                clear_slot(&frame->slots[pc[i]]);
            }
            pc += 1 + pc[0];
            break;
        case I_OBJECT:
            fill_slot(&frame->slots[pc[0]], Py_NewRef(PyTuple_GET_ITEM(frame->program->objects, pc[1])));
            pc += 2;
            break;
        default: { /* I_RETURN */
            int64_t count = *pc++;
            if (count < 0) {
                return build(frame, &pc);
            }
            PyObject *all = as_list ? PyList_New(count) : PyTuple_New(count);
            for (int64_t i = 0; all != NULL && i < count; i++) {
                PyObject *item = build(frame, &pc);
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
        }
        if (status < 0) {
            return NULL;
        }
    }
}

/* Runs with the inputs in the first slots. Clears every slot. */
static PyObject *
run_filled(program_object *self, slot_t *slots, int as_list)
{
    frame_t frame = {self, slots, self->numbers, NULL};
    PyObject *result = NULL;
    int64_t *numbers = NULL;
    void *arena = NULL;
    if (self->arithmetic != NULL) {
        size_t bytes = sizeof(int64_t) * (self->num_numbers + self->num_symbols);
        numbers = PyMem_Malloc(bytes);
        if (numbers == NULL) {
            PyErr_NoMemory();
            goto done;
        }
        int64_t *symbols = numbers + self->num_numbers;
        memcpy(numbers, self->numbers, sizeof(int64_t) * self->num_numbers);
        for (Py_ssize_t i = 0; i < self->num_symbols; i++) {
            if (read_symbol(slots, &self->symbols[3 * i], &symbols[i]) < 0) {
                goto done;
            }
        }
        if (calculate(self->arithmetic, symbols, numbers) < 0) {
            goto done;
        }
        frame.numbers = numbers;
    }
    if (self->arena > 0) {
        if (posix_memalign(&arena, ARENA_ALIGNMENT, self->arena) != 0) {
            PyErr_NoMemory();
            goto done;
        }
        frame.arena = arena;
        if (self->arena >= LARGE_COUNT) {
            ask_for_large_pages(arena, self->arena);
        }
    }
    result = run(&frame, as_list);
done:
    for (Py_ssize_t i = 0; i < self->slots; i++) {
        clear_slot(&slots[i]);
    }
    free(arena);
    PyMem_Free(numbers);
    return result;
}

#define SMALL_FRAME 128

static PyObject *
run_over(program_object *self, PyObject *const *args, PyObject *emptied)
{
    slot_t small[SMALL_FRAME];
    slot_t *slots = small;
    if (self->slots > SMALL_FRAME) {
        slots = PyMem_Malloc(sizeof(slot_t) * self->slots);
        if (slots == NULL) {
            return PyErr_NoMemory();
        }
    }
    memset(slots, 0, sizeof(slot_t) * self->slots);
    for (Py_ssize_t i = 0; i < self->inputs; i++) {
        fill_slot(&slots[i], Py_NewRef(args[i]));
    }
    PyObject *result = NULL;
    if (emptied != NULL && PyList_SetSlice(emptied, 0, PyList_GET_SIZE(emptied), NULL) < 0) {
        for (Py_ssize_t i = 0; i < self->inputs; i++) {
            clear_slot(&slots[i]);
        }
    }
    else {
        result = run_filled(self, slots, emptied != NULL);
    }
    if (slots != small) {
        PyMem_Free(slots);
    }
    return result;
}

static int
check_count(program_object *self, Py_ssize_t given)
{
    if (given != self->inputs) {
        PyErr_Format(PyExc_TypeError, "this compiled graph takes %zd inputs, not %zd", self->inputs, given);
        return -1;
    }
    return 0;
}

static PyObject *
program_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    program_object *self = (program_object *)callable;
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0) {
        PyErr_SetString(PyExc_TypeError, "a compiled graph takes no keywords");
        return NULL;
    }
    if (check_count(self, PyVectorcall_NARGS(nargsf)) < 0) {
        return NULL;
    }
    return run_over(self, args, NULL);
}

PyDoc_STRVAR(boxed_doc,
"boxed(args) -> list\n\nThe same over a list of the inputs, which is emptied, so that an input dies with its last use.");

static PyObject *
program_boxed(PyObject *callable, PyObject *list)
{
    program_object *self = (program_object *)callable;
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "a compiled graph takes a list of its inputs, not %.100s", Py_TYPE(list)->tp_name);
        return NULL;
    }
    if (check_count(self, PyList_GET_SIZE(list)) < 0) {
        return NULL;
    }
    return run_over(self, ((PyListObject *)list)->ob_item, list);
}

/* A copy of the int64 in a bytes object. */
static int64_t *
copy_numbers(PyObject *bytes, Py_ssize_t *count)
{
    Py_ssize_t size = PyBytes_GET_SIZE(bytes);
    int64_t *copy = PyMem_Malloc(size > 0 ? size : 1);
    if (copy == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy, PyBytes_AS_STRING(bytes), size);
    *count = size / (Py_ssize_t)sizeof(int64_t);
    return copy;
}

static int
take_kernels(program_object *self, PyObject *addresses)
{
    self->num_kernels = PyTuple_GET_SIZE(addresses);
    self->kernels = PyMem_Calloc(self->num_kernels + 1, sizeof(kernel_fn));
    if (self->kernels == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->num_kernels; i++) {
        self->kernels[i] = (kernel_fn)PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
        if (self->kernels[i] == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a kernel's address cannot be 0");
            }
            return -1;
        }
    }
    return 0;
}

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"inputs", "slots", "code", "numbers", "symbols", "arithmetic", "arena", "objects", "kernels",
                            "keep", NULL};
    Py_ssize_t inputs, slots, arena, ignored;
    PyObject *code, *numbers, *symbols, *arithmetic, *objects, *kernels, *keep;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nnSSSSnO!O!O:Program", names, &inputs, &slots, &code, &numbers, &symbols,
                                     &arithmetic, &arena, &PyTuple_Type, &objects, &PyTuple_Type, &kernels, &keep)) {
        return NULL;
    }
    if (!resolve()) {
        PyErr_SetString(PyExc_RuntimeError, "torch does not export what a program takes");
        return NULL;
    }
    if (inputs < 0 || slots < inputs || arena < 0) {
        PyErr_SetString(PyExc_ValueError, "a program has at least a slot for each input");
        return NULL;
    }
    program_object *self = (program_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = program_call;
    self->inputs = inputs;
    self->slots = slots;
    self->arena = arena;
    self->objects = Py_NewRef(objects);
    self->keep = Py_NewRef(keep);
    if ((self->code = copy_numbers(code, &self->code_length)) == NULL ||
        (self->numbers = copy_numbers(numbers, &self->num_numbers)) == NULL ||
        (self->symbols = copy_numbers(symbols, &self->num_symbols)) == NULL ||
        (PyBytes_GET_SIZE(arithmetic) > 0 && (self->arithmetic = copy_numbers(arithmetic, &ignored)) == NULL) ||
        take_kernels(self, kernels) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->num_symbols /= 3;
    return (PyObject *)self;
}

static int
program_traverse(PyObject *object, visitproc visit, void *arg)
{
    program_object *self = (program_object *)object;
    Py_VISIT(self->objects);
    Py_VISIT(self->keep);
    return 0;
}

static int
program_clear(PyObject *object)
{
    program_object *self = (program_object *)object;
    Py_CLEAR(self->objects);
    Py_CLEAR(self->keep);
    return 0;
}

static void
program_dealloc(PyObject *object)
{
    program_object *self = (program_object *)object;
    PyObject_GC_UnTrack(object);
    program_clear(object);
    PyMem_Free(self->code);
    PyMem_Free(self->numbers);
    PyMem_Free(self->symbols);
    PyMem_Free(self->arithmetic);
    PyMem_Free(self->kernels);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"boxed", program_boxed, METH_O, boxed_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject program_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fxjit._C.Program",
    .tp_doc = "A compiled graph: called with its inputs, gives the tuple of its outputs.",
    .tp_basicsize = sizeof(program_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = program_new,
    .tp_call = PyVectorcall_Call,
    .tp_methods = methods,
    .tp_vectorcall_offset = offsetof(program_object, vectorcall),
    .tp_traverse = program_traverse,
    .tp_clear = program_clear,
    .tp_dealloc = program_dealloc,
};

PyDoc_STRVAR(program_can_doc,
"program_can(name) -> bool\n\nWhether programs can be run at all ('run'), multiply matrices ('gemm'), or batches of them ('bmm').");

static PyObject *
program_can(PyObject *Py_UNUSED(module), PyObject *name)
{
    int can = resolve();
    if (can && PyUnicode_CompareWithASCIIString(name, "gemm") == 0) {
        can = shim.sgemm != NULL && shim.dgemm != NULL;
    }
    else if (can && PyUnicode_CompareWithASCIIString(name, "bmm") == 0) {
        can = shim.bmm_out != NULL;
    }
    return PyBool_FromLong(can);
}

static PyMethodDef functions[] = {
    {"program_can", program_can, METH_O, program_can_doc},
    {NULL, NULL, 0, NULL},
};

int
fxjit_program_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) < 0 ? -1 : PyModule_AddType(module, &program_type);
}
