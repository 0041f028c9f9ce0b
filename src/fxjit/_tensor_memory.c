/* The memory of tensors: whether what is written to meets another one (overlap.py). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

#include "_module.h"
#include "_tensor.h"

/* The memory that a tensor's elements lie in, from the first byte to behind the last. */
typedef struct {
    uintptr_t begin, end;
    int written;
} extent_t;

/* 0: it has no elements, or none that the shim could tell the place of. */
static int
find_extent(PyObject *tensor, Py_ssize_t itemsize, extent_t *extent)
{
    int64_t dim, *sizes, *strides, last = 0;
    void *handle = fxjit_tensor_handle(tensor), *data;
    if (fxjit_shim.get_dim(handle, &dim) || fxjit_shim.get_sizes(handle, &sizes) ||
        fxjit_shim.get_strides(handle, &strides) || fxjit_shim.get_data_ptr(handle, &data) || data == NULL) {
        return 0;
    }
    for (int64_t i = 0; i < dim; i++) {
        if (sizes[i] == 0) {
            return 0;
        }
        last += (sizes[i] - 1) * strides[i];
    }
    extent->begin = (uintptr_t)data;
    extent->end = (uintptr_t)data + (uintptr_t)((last + 1) * itemsize);
    return 1;
}

static int
compare_extents(const void *a, const void *b)
{
    const extent_t *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Whether one that is written to meets another. */
static int
extents_meet(extent_t *extents, Py_ssize_t n)
{
    uintptr_t end = 0, written_end = 0;
    qsort(extents, (size_t)n, sizeof(extent_t), compare_extents);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (extents[i].begin < (extents[i].written ? end : written_end)) {
            return 1;
        }
        end = Py_MAX(end, extents[i].end);
        if (extents[i].written) {
            written_end = Py_MAX(written_end, extents[i].end);
        }
    }
    return 0;
}

PyDoc_STRVAR(memory_meets_doc,
"memory_meets(values, itemsizes) -> bool\n\n"
"Whether the memory from the first to the last element of one of these strided tensors that is written to meets that of\n"
"another one. The tuple `itemsizes` has the bytes of an element of each, negative if it is written to, 0 for what is not\n"
"looked at.");

static PyObject *
memory_meets(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) ||
        PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "memory_meets() takes two tuples of one length");
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(args[0]), found = 0;
    extent_t *extents = PyMem_New(extent_t, n);
    if (extents == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t itemsize = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i));
        PyObject *value = PyTuple_GET_ITEM(args[0], i);
        if (itemsize == 0 || !fxjit_tensor_is_plain(value)) {
            continue;
        }
        extents[found].written = itemsize < 0;
        found += find_extent(value, Py_ABS(itemsize), &extents[found]);
    }
    int meet = extents_meet(extents, found);
    PyMem_Free(extents);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(meet);
}

static PyMethodDef methods[] = {
    {"memory_meets", (PyCFunction)(void (*)(void))memory_meets, METH_FASTCALL, memory_meets_doc},
    {NULL, NULL, 0, NULL},
};

int
fxjit_tensor_memory_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
