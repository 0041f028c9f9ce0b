/* Launches kernels on a GPU through the driver's own library, which is opened when it is first needed.
 *
 * `_C.CudaKernel(...)` is a callable that takes its tensors, then its integers, of which the
 * first `passed` go to the kernel and the others only decide its launch. It launches on the current stream of its device.
 * A compiled kernel relies on facts of its arguments (pointers and sizes that 16 divides, indices of 32 bits); a call for
 * which they do not hold goes to `otherwise`, with the same arguments. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#include "_cuda.h"
#include "_module.h"
#include "_tensor.h"

#define MAX_TENSORS 128
#define MAX_INTEGERS 64
#define MAX_HIDDEN 4
#define MAX_AXES 4
/* As launch_configuration.py has it. */
#define NARROW (((int64_t)1 << 31) - (1 << 13))

typedef int cu_result;

static struct {
    void *library;
    cu_result (*init)(unsigned);
    cu_result (*retain)(void **, int);
    cu_result (*get_current)(void **);
    cu_result (*push)(void *);
    cu_result (*pop)(void **);
    cu_result (*exchange_capture_mode)(int *);
    cu_result (*load)(void **, const void *);
    cu_result (*get_function)(void **, void *, const char *);
    cu_result (*get_attribute)(int *, int, void *);
    cu_result (*set_attribute)(void *, int, int);
    cu_result (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    cu_result (*error_text)(cu_result, const char **);
    PyObject *stream_of;
    int32_t (*current_stream)(int32_t, void **); /* torch's own, where it exports one; else `stream_of` */
} cuda;

/* CUfunction_attribute, of the driver's interface. */
enum { LOCAL_SIZE_BYTES = 3, NUM_REGS = 4, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
/* CUstreamCaptureMode. */
enum { CAPTURE_RELAXED = 2 };

static const struct {
    const char *name;
    void *target;
} entries[] = {
    {"cuInit", &cuda.init},
    {"cuDevicePrimaryCtxRetain", &cuda.retain},
    {"cuCtxGetCurrent", &cuda.get_current},
    {"cuCtxPushCurrent_v2", &cuda.push},
    {"cuCtxPopCurrent_v2", &cuda.pop},
    {"cuThreadExchangeStreamCaptureMode", &cuda.exchange_capture_mode},
    {"cuModuleLoadData", &cuda.load},
    {"cuModuleGetFunction", &cuda.get_function},
    {"cuFuncGetAttribute", &cuda.get_attribute},
    {"cuFuncSetAttribute", &cuda.set_attribute},
    {"cuLaunchKernel", &cuda.launch},
    {"cuGetErrorString", &cuda.error_text},
};

typedef struct {
    int64_t value; /* a size, or the position of the integer that is it */
    int64_t block;
    int is_position;
} axis;

static PyTypeObject kernel_type;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    void *function;
    void *context;
    PyObject *device;
    int32_t index; /* the same as a number */
    PyObject *otherwise;
    Py_ssize_t tensors, integers, passed, hidden, axes;
    unsigned threads, shared;
    axis grid[MAX_AXES];
    int wide, aligned;
    Py_ssize_t span; /* the position of the integer that says how far indices go; -1 where that is known */
    uint64_t divisible;
} kernel_object;

static int
failed(cu_result code, const char *what)
{
    if (code == 0) {
        return 0;
    }
    const char *text = NULL;
    if (cuda.error_text == NULL || cuda.error_text(code, &text) != 0 || text == NULL) {
        text = "unknown error";
    }
    PyErr_Format(PyExc_RuntimeError, "CUDA error: %s (%s, %d)", text, what, code);
    return 1;
}

static PyObject *
cuda_open(PyObject *module, PyObject *args)
{
    const char *path;
    PyObject *stream_of;
    int in_c = 0;
    if (!PyArg_ParseTuple(args, "sO|p", &path, &stream_of, &in_c)) {
        return NULL;
    }
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) {
        PyErr_Format(PyExc_OSError, "the CUDA driver cannot be loaded: %s", dlerror());
        return NULL;
    }
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *found = dlsym(library, entries[i].name);
        if (found == NULL) {
            PyErr_Format(PyExc_OSError, "%s has no %s", path, entries[i].name);
            return NULL;
        }
        *(void **)entries[i].target = found;
    }
    cuda.library = library;
    *(void **)&cuda.current_stream = in_c ? fxjit_torch_symbol("aoti_torch_get_current_cuda_stream") : NULL;
    Py_XSETREF(cuda.stream_of, Py_NewRef(stream_of));
    if (failed(cuda.init(0), "cuInit")) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
cuda_load(PyObject *module, PyObject *args)
{
    Py_buffer binary;
    const char *name;
    int shared, device;
    if (!PyArg_ParseTuple(args, "y*sii", &binary, &name, &shared, &device)) {
        return NULL;
    }
    void *context = NULL, *loaded = NULL, *function = NULL, *ignored;
    int registers = 0, local = 0, mode = CAPTURE_RELAXED;
    if (cuda.library == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the CUDA driver is not open");
        goto error;
    }
    if (failed(cuda.retain(&context, device), "cuDevicePrimaryCtxRetain") || failed(cuda.push(context), "cuCtxPushCurrent")) {
        goto error;
    }
    /* A kernel may be needed first while a graph is recorded: loading it is no part of the graph, and allowed. */
    cuda.exchange_capture_mode(&mode);
    int wrong = failed(cuda.load(&loaded, binary.buf), "cuModuleLoadData") ||
                failed(cuda.get_function(&function, loaded, name), "cuModuleGetFunction") ||
                (shared > 49152 &&
                 failed(cuda.set_attribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared), "cuFuncSetAttribute")) ||
                failed(cuda.get_attribute(&registers, NUM_REGS, function), "cuFuncGetAttribute") ||
                failed(cuda.get_attribute(&local, LOCAL_SIZE_BYTES, function), "cuFuncGetAttribute");
    cuda.exchange_capture_mode(&mode);
    cuda.pop(&ignored);
    if (wrong) {
        goto error;
    }
    PyBuffer_Release(&binary);
    return Py_BuildValue("NNii", PyLong_FromVoidPtr(function), PyLong_FromVoidPtr(context), registers, local);
error:
    PyBuffer_Release(&binary);
    return NULL;
}

/* The number of programs; -1 with an exception. */
static int64_t
programs(kernel_object *self, const int64_t *integers)
{
    int64_t total = 1;
    for (Py_ssize_t i = 0; i < self->axes; i++) {
        const axis *each = &self->grid[i];
        int64_t size = each->is_position ? integers[each->value] : each->value;
        int64_t blocks = size <= 0 ? 0 : (size - 1) / each->block + 1;
        if (blocks != 0 && total > INT32_MAX / blocks) {
            PyErr_SetString(PyExc_ValueError, "a tensor too large for one kernel launch");
            return -1;
        }
        total *= blocks;
    }
    return total;
}

/* Launches in the kernel's own context, whichever is current. */
static int
launch(kernel_object *self, unsigned grid, void *stream, void **parameters)
{
    void *current = NULL, *ignored;
    cu_result code = cuda.get_current(&current);
    int elsewhere = current != self->context;
    if (code == 0 && elsewhere) {
        code = cuda.push(self->context);
    }
    if (code == 0) {
        code = cuda.launch(self->function, grid, 1, 1, self->threads, 1, 1, self->shared, stream, parameters, NULL);
        if (elsewhere) {
            cuda.pop(&ignored);
        }
    }
    return code;
}

/* The current stream of the kernel's device; -1 with an exception. */
static int
stream_now(kernel_object *self, void **stream)
{
    if (cuda.current_stream != NULL) {
        if (cuda.current_stream(self->index, stream) == 0) {
            return 0;
        }
        PyErr_SetString(PyExc_RuntimeError, "torch has no current stream for a kernel's device");
        return -1;
    }
    PyObject *number = PyObject_CallOneArg(cuda.stream_of, self->device);
    if (number == NULL) {
        return -1;
    }
    *stream = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return *stream == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Whether what the binary relies on holds. */
static int
fits(kernel_object *self, void *const *data, const int64_t *integers)
{
    uintptr_t bits = 0;
    for (Py_ssize_t i = 0; i < self->tensors; i++) {
        bits |= (uintptr_t)data[i];
    }
    if (self->aligned && (bits & 15)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < self->passed; i++) {
        if ((self->divisible >> i & 1) && (integers[i] & 15)) {
            return 0;
        }
    }
    return self->wide || self->span < 0 || integers[self->span] < NARROW;
}

/* The address of a tensor's first element; -1 with an exception. */
static int
data_pointer(PyObject *tensor, void **out)
{
    if (fxjit_shim.ready && fxjit_tensor_is_plain(tensor) &&
        fxjit_shim.get_data_ptr(fxjit_tensor_handle(tensor), out) == 0) {
        return 0;
    }
    PyObject *address = PyObject_CallMethod(tensor, "data_ptr", NULL);
    if (address == NULL) {
        return -1;
    }
    *out = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return *out == NULL && PyErr_Occurred() ? -1 : 0;
}

int
fxjit_is_cuda_kernel(PyObject *object)
{
    return Py_IS_TYPE(object, &kernel_type);
}

int
fxjit_cuda_run(PyObject *kernel, void **data, Py_ssize_t tensors, const int64_t *given, Py_ssize_t integers)
{
    kernel_object *self = (kernel_object *)kernel;
    if (tensors != self->tensors || integers != self->integers) {
        PyErr_Format(PyExc_TypeError, "this kernel takes %zd tensors and %zd integers", self->tensors, self->integers);
        return -1;
    }
    int64_t grid = programs(self, given);
    if (grid <= 0) {
        return grid < 0 ? -1 : 1;
    }
    if (!fits(self, data, given)) {
        return 0;
    }
    void *parameters[MAX_TENSORS + MAX_INTEGERS + MAX_HIDDEN], *nothing = NULL, *stream = NULL;
    for (Py_ssize_t i = 0; i < tensors; i++) {
        parameters[i] = &data[i];
    }
    for (Py_ssize_t i = 0; i < self->passed; i++) {
        /* One of 32 bits is the lower half: all machines with such a GPU are little-endian. */
        parameters[tensors + i] = (void *)&given[i];
    }
    for (Py_ssize_t i = 0; i < self->hidden; i++) {
        parameters[tensors + self->passed + i] = &nothing;
    }
    if (stream_now(self, &stream) < 0) {
        return -1;
    }
    cu_result code;
    Py_BEGIN_ALLOW_THREADS
    code = launch(self, (unsigned)grid, stream, parameters);
    Py_END_ALLOW_THREADS
    return failed(code, "cuLaunchKernel") ? -1 : 1;
}

static PyObject *
kernel_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    kernel_object *self = (kernel_object *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    if (given != self->tensors + self->integers || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0)) {
        PyErr_Format(PyExc_TypeError, "this kernel takes %zd tensors and %zd integers", self->tensors, self->integers);
        return NULL;
    }
    void *data[MAX_TENSORS];
    int64_t integers[MAX_INTEGERS];
    for (Py_ssize_t i = 0; i < self->tensors; i++) {
        if (data_pointer(args[i], &data[i]) < 0) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < self->integers; i++) {
        integers[i] = PyLong_AsLongLong(args[self->tensors + i]);
        if (integers[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    int done = fxjit_cuda_run(callable, data, self->tensors, integers, self->integers);
    if (done == 0) {
        return PyObject_Vectorcall(self->otherwise, args, given, NULL);
    }
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* `grid`: is it a position, the size or position, the block; for each axis. */
static int
read_grid(kernel_object *self, PyObject *grid)
{
    Py_ssize_t length = PyTuple_GET_SIZE(grid);
    self->axes = length / 3;
    if (length % 3 != 0 || self->axes > MAX_AXES) {
        PyErr_SetString(PyExc_ValueError, "a grid is up to four times three numbers");
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->axes; i++) {
        int64_t numbers[3];
        for (int k = 0; k < 3; k++) {
            numbers[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(grid, 3 * i + k));
            if (numbers[k] == -1 && PyErr_Occurred()) {
                return -1;
            }
        }
        if (numbers[2] <= 0 || (numbers[0] && (numbers[1] < 0 || numbers[1] >= self->integers))) {
            PyErr_SetString(PyExc_ValueError, "a block of nothing, or a size that is no argument");
            return -1;
        }
        self->grid[i] = (axis){.value = numbers[1], .block = numbers[2], .is_position = numbers[0] != 0};
    }
    return 0;
}

static PyObject *
kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "context", "device", "tensors", "integers", "passed", "hidden", "warps", "shared",
                            "grid", "wide", "span", "aligned", "divisible", "otherwise", NULL};
    PyObject *function, *context, *device, *grid, *otherwise;
    kernel_object given = {0};
    int warps, shared;
    unsigned long long divisible;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!$nnnniiO!pnpKO:CudaKernel", names, &function, &context, &PyLong_Type,
                                     &device, &given.tensors, &given.integers, &given.passed, &given.hidden, &warps, &shared,
                                     &PyTuple_Type, &grid, &given.wide, &given.span, &given.aligned, &divisible, &otherwise)) {
        return NULL;
    }
    if (given.tensors > MAX_TENSORS || given.integers > MAX_INTEGERS || given.hidden > MAX_HIDDEN ||
        given.passed > given.integers || given.span >= given.integers || cuda.library == NULL) {
        PyErr_SetString(PyExc_ValueError, "too many arguments for a kernel, or the CUDA driver is not open");
        return NULL;
    }
    given.function = PyLong_AsVoidPtr(function);
    given.context = PyLong_AsVoidPtr(context);
    if (PyErr_Occurred() || read_grid(&given, grid) < 0) {
        return NULL;
    }
    kernel_object *self = (kernel_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    given.ob_base = self->ob_base;
    *self = given;
    self->vectorcall = kernel_call;
    self->threads = 32 * (unsigned)warps;
    self->shared = (unsigned)shared;
    self->divisible = divisible;
    self->device = Py_NewRef(device);
    self->index = (int32_t)PyLong_AsLong(device);
    self->otherwise = Py_NewRef(otherwise);
    return (PyObject *)self;
}

static int
kernel_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((kernel_object *)self)->otherwise);
    return 0;
}

static int
kernel_clear(PyObject *self)
{
    Py_CLEAR(((kernel_object *)self)->otherwise);
    return 0;
}

static void
kernel_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    kernel_clear(self);
    Py_CLEAR(((kernel_object *)self)->device);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject kernel_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fxjit._C.CudaKernel",
    .tp_doc = "A kernel on a GPU: called with its tensors, then its integers.",
    .tp_basicsize = sizeof(kernel_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = kernel_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(kernel_object, vectorcall),
    .tp_traverse = kernel_traverse,
    .tp_clear = kernel_clear,
    .tp_dealloc = kernel_dealloc,
};

static PyMethodDef methods[] = {
    {"cuda_open", cuda_open, METH_VARARGS, "Opens the driver's library; `stream_of(device)` gives the current stream, or a function of torch's does."},
    {"cuda_load", cuda_load, METH_VARARGS, "A kernel of a binary: (function, context, registers, bytes of local memory)."},
    {NULL, NULL, 0, NULL},
};

int
fxjit_cuda_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods) < 0 ? -1 : PyModule_AddType(module, &kernel_type);
}
