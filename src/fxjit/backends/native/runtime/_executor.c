/* Launches compiled kernels. `_C.Kernel(address, tensors, integers, keep)` is a callable for a function
 * `int f(void *const *data, const int64_t *sizes)` in a loaded library: it is called with that many tensors, then that many
 * integers, reads the tensors' data pointers through torch's shim and runs the function without the GIL.
 * A result that is not 0 means that an index was out of bounds, and raises IndexError as eager does. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#include "_executor.h"
#include "_module.h"
#include "_tensor.h"

#define MAX_ARGS 256

typedef int (*kernel_fn)(void *const *, const int64_t *);
typedef int32_t (*data_ptr_fn)(void *, void **);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    kernel_fn function;
    Py_ssize_t tensors;
    Py_ssize_t integers;
    PyObject *keep; /* what keeps the library loaded */
} kernel_object;

static data_ptr_fn get_data_ptr;
static PyObject *data_ptr_name;

void
fxjit_find_data_pointer(void)
{
    if (get_data_ptr == NULL && fxjit_shim.ready) {
        get_data_ptr = (data_ptr_fn)fxjit_torch_symbol("aoti_torch_get_data_ptr");
    }
}

int
fxjit_data_pointer(PyObject *tensor, void **out)
{
    if (get_data_ptr != NULL && fxjit_tensor_is_plain(tensor)) {
        if (get_data_ptr(fxjit_tensor_handle(tensor), out) == 0) {
            return 0;
        }
    }
    PyObject *address = PyObject_CallMethodNoArgs(tensor, data_ptr_name);
    if (address == NULL) {
        return -1;
    }
    *out = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return *out == NULL && PyErr_Occurred() ? -1 : 0;
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
    void *data[MAX_ARGS];
    int64_t sizes[MAX_ARGS];
    for (Py_ssize_t i = 0; i < self->tensors; i++) {
        if (fxjit_data_pointer(args[i], &data[i]) < 0) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < self->integers; i++) {
        sizes[i] = PyLong_AsLongLong(args[self->tensors + i]);
        if (sizes[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    int problem;
    Py_BEGIN_ALLOW_THREADS
    problem = self->function(data, sizes);
    Py_END_ALLOW_THREADS
    if (problem != 0) {
        PyErr_SetString(PyExc_IndexError, "index out of range in self");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "tensors", "integers", "keep", NULL};
    PyObject *address, *keep;
    Py_ssize_t tensors, integers;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnnO:Kernel", names, &address, &tensors, &integers, &keep)) {
        return NULL;
    }
    if (tensors < 0 || integers < 0 || tensors > MAX_ARGS || integers > MAX_ARGS) {
        PyErr_Format(PyExc_ValueError, "a kernel takes at most %d tensors and %d integers", MAX_ARGS, MAX_ARGS);
        return NULL;
    }
    void *function = PyLong_AsVoidPtr(address);
    if (function == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "a kernel's address cannot be 0");
        }
        return NULL;
    }
    fxjit_find_data_pointer();
    kernel_object *self = (kernel_object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = kernel_call;
    self->function = (kernel_fn)function;
    self->tensors = tensors;
    self->integers = integers;
    self->keep = Py_NewRef(keep);
    return (PyObject *)self;
}

static int
kernel_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((kernel_object *)self)->keep);
    return 0;
}

static int
kernel_clear(PyObject *self)
{
    Py_CLEAR(((kernel_object *)self)->keep);
    return 0;
}

static void
kernel_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    kernel_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject kernel_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fxjit._C.Kernel",
    .tp_doc = "A compiled kernel: called with its tensors, then its integers.",
    .tp_basicsize = sizeof(kernel_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = kernel_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(kernel_object, vectorcall),
    .tp_traverse = kernel_traverse,
    .tp_clear = kernel_clear,
    .tp_dealloc = kernel_dealloc,
};

int
fxjit_executor_init(PyObject *module)
{
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    if (data_ptr_name == NULL) {
        return -1;
    }
    return PyModule_AddType(module, &kernel_type);
}
