/* A tensor seen through torch's stable C shim: finding the shim's functions and the layout of a tensor's PyObject.
 *
 * Nothing is taken for granted. `_C.tensor_init` gets example tensors with what Python says about them; it finds by
 * search where a tensor's PyObject holds its `at::Tensor`, and where a TensorImpl holds its dispatch key set, and then
 * asks the shim about each example. Any difference, and the shim is not used: tensor_shim.py says so, and guards read
 * tensors through Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>

#include "_module.h"
#include "_process_state.h"
#include "_tensor.h"

#define MAX_LIBRARIES 8
/* How far to look, in words: behind the PyObject's header, and into the TensorImpl (about 200 bytes in torch 2). */
#define IMPL_WORDS 24

fxjit_shim_t fxjit_shim;

static void *libraries[MAX_LIBRARIES];
static int num_libraries;

void *
fxjit_torch_symbol(const char *name)
{
    for (int i = 0; i < num_libraries; i++) {
        void *symbol = dlsym(libraries[i], name);
        if (symbol != NULL) {
            return symbol;
        }
    }
    return NULL;
}

/* Opens the libraries named in `paths` that are loaded already. */
static int
open_libraries(PyObject *paths)
{
    num_libraries = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths) && num_libraries < MAX_LIBRARIES; i++) {
        const char *path = PyUnicode_AsUTF8(PyTuple_GET_ITEM(paths, i));
        if (path == NULL) {
            return -1;
        }
        void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        if (library != NULL) {
            libraries[num_libraries++] = library;
        }
    }
    return 0;
}

static const char *
resolve_functions(void)
{
    const struct {
        const char *name;
        void **target;
        int required;
    } symbols[] = {
        {"aoti_torch_get_dim", (void **)&fxjit_shim.get_dim, 1},
        {"aoti_torch_get_sizes", (void **)&fxjit_shim.get_sizes, 1},
        {"aoti_torch_get_strides", (void **)&fxjit_shim.get_strides, 1},
        {"aoti_torch_get_storage_offset", (void **)&fxjit_shim.get_storage_offset, 1},
        {"aoti_torch_get_data_ptr", (void **)&fxjit_shim.get_data_ptr, 1},
        {"aoti_torch_get_dtype", (void **)&fxjit_shim.get_dtype, 1},
        {"aoti_torch_get_device_type", (void **)&fxjit_shim.get_device_type, 1},
        {"aoti_torch_get_device_index", (void **)&fxjit_shim.get_device_index, 1},
        {"aoti_torch_get_layout", (void **)&fxjit_shim.get_layout, 1},
        /* Not of the stable shim, but exported by libc10 under these names for years: used where they are there. */
        {"_ZNK3c1010TensorImpl13requires_gradEv", (void **)&fxjit_shim.impl_requires_grad, 0},
        {"_ZNK2at10TensorBase8_versionEv", (void **)&fxjit_shim.version, 0},
    };
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].target = fxjit_torch_symbol(symbols[i].name);
        if (*symbols[i].target == NULL && symbols[i].required) {
            return symbols[i].name;
        }
    }
    return NULL;
}

/* -- the layout of a tensor ----------------------------------------------------------------------------------------*/

/* tensor.<name> as a number; (uint64_t)-1 with an exception on failure. */
static uint64_t
word_attribute(PyObject *tensor, const char *name)
{
    PyObject *value = PyObject_GetAttrString(tensor, name);
    if (value == NULL) {
        return (uint64_t)-1;
    }
    uint64_t word = PyLong_AsUnsignedLongLongMask(value);
    Py_DECREF(value);
    return word;
}

/* The first offset in [begin, end) at which every example's memory holds its word; -1 if there is none. The examples'
 * words differ so much that a second place with all of them is not to be feared; looking no further also keeps
 * the search inside the object. */
static Py_ssize_t
find_word(char *const *memory, const uint64_t *words, Py_ssize_t n, Py_ssize_t begin, Py_ssize_t end)
{
    for (Py_ssize_t offset = begin; offset + (Py_ssize_t)sizeof(uint64_t) <= end; offset += sizeof(uint64_t)) {
        Py_ssize_t i = 0;
        while (i < n && memcmp(memory[i] + offset, &words[i], sizeof(uint64_t)) == 0) {
            i++;
        }
        if (i == n) {
            return offset;
        }
    }
    return -1;
}

#define MAX_EXAMPLES 16

/* Finds the two offsets. Returns 1 found, 0 not found (with *why), -1 exception. */
static int
find_layout(PyObject *examples, PyObject *keysets, const char **why)
{
    Py_ssize_t n = PyTuple_GET_SIZE(examples);
    char *objects[MAX_EXAMPLES], *impls[MAX_EXAMPLES];
    uint64_t pointers[MAX_EXAMPLES], keys[MAX_EXAMPLES];
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *tensor = PyTuple_GET_ITEM(examples, i);
        objects[i] = (char *)tensor;
        pointers[i] = word_attribute(tensor, "_cdata");
        keys[i] = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(keysets, i));
        if (PyErr_Occurred()) {
            return -1;
        }
        impls[i] = (char *)(uintptr_t)pointers[i];
    }
    Py_ssize_t size = fxjit_shim.tensor_class->tp_basicsize;
    fxjit_shim.handle_offset = find_word(objects, pointers, n, sizeof(PyObject), size);
    if (fxjit_shim.handle_offset < 0) {
        *why = "a tensor's PyObject does not hold its at::Tensor where it can be found";
        return 0;
    }
    Py_ssize_t impl_size = IMPL_WORDS * sizeof(uint64_t);
#ifdef __GLIBC__
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t usable = (Py_ssize_t)malloc_usable_size(impls[i]);
        impl_size = Py_MIN(impl_size, usable);
    }
#endif
    fxjit_shim.keys_offset = find_word(impls, keys, n, 0, impl_size);
    if (fxjit_shim.keys_offset < 0) {
        *why = "the dispatch key set was not found in a tensor";
        return 0;
    }
    return 1;
}

static PyObject *
ints(const int64_t *numbers, int64_t n)
{
    PyObject *tuple = PyTuple_New(n);
    for (int64_t i = 0; tuple != NULL && i < n; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

int
fxjit_tensor_requires_grad(PyObject *tensor)
{
    if (fxjit_shim.impl_requires_grad != NULL) {
        return fxjit_shim.impl_requires_grad(fxjit_tensor_impl(tensor));
    }
    PyObject *value = PyObject_GetAttrString(tensor, "requires_grad");
    if (value == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* (dtype, device type, device index, layout, requires_grad, keys, sizes, strides, offset), codes as the shim's. */
static PyObject *
facts_of(PyObject *tensor)
{
    void *handle = fxjit_tensor_handle(tensor);
    int64_t dim, offset;
    int64_t *sizes, *strides;
    int32_t dtype, device_type, device_index, layout;
    if (fxjit_shim.get_dim(handle, &dim) || fxjit_shim.get_sizes(handle, &sizes) ||
        fxjit_shim.get_strides(handle, &strides) || fxjit_shim.get_storage_offset(handle, &offset) ||
        fxjit_shim.get_dtype(handle, &dtype) || fxjit_shim.get_device_type(handle, &device_type) ||
        fxjit_shim.get_device_index(handle, &device_index) || fxjit_shim.get_layout(handle, &layout)) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim gave an error for a tensor");
        return NULL;
    }
    PyObject *size_tuple = ints(sizes, dim), *stride_tuple = ints(strides, dim);
    if (size_tuple == NULL || stride_tuple == NULL) {
        Py_XDECREF(size_tuple);
        Py_XDECREF(stride_tuple);
        return NULL;
    }
    int requires_grad = fxjit_tensor_requires_grad(tensor);
    if (requires_grad < 0) {
        Py_DECREF(size_tuple);
        Py_DECREF(stride_tuple);
        return NULL;
    }
    return Py_BuildValue("(iiiiOKNNL)", dtype, device_type, device_index, layout, requires_grad ? Py_True : Py_False,
                         (unsigned long long)fxjit_tensor_keys(tensor), size_tuple, stride_tuple, (long long)offset);
}

/* 1 if the shim says of each example what Python says of it. */
static int
verify(PyObject *examples, PyObject *expected)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(examples); i++) {
        PyObject *facts = facts_of(PyTuple_GET_ITEM(examples, i));
        if (facts == NULL) {
            return -1;
        }
        int same = PyObject_RichCompareBool(facts, PyTuple_GET_ITEM(expected, i), Py_EQ);
        Py_DECREF(facts);
        if (same != 1) {
            return same;
        }
    }
    return 1;
}

PyDoc_STRVAR(tensor_init_doc,
"tensor_init(tensor_class, libraries, examples, keysets, facts, python_keys, autocast_keys, version_keys)\n-> str | None\n\n"
"Find torch's C shim and the layout of tensors. `facts(codes)` gives, for each example, what `tensor_facts` must say of\n"
"it; `codes` looks up a number of the shim by name. None: all is well; else what is wrong, and the shim is not used.");

static PyObject *codes_function;

static PyObject *
tensor_init(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *cls, *paths, *examples, *keysets, *facts;
    unsigned long long python_keys, autocast_keys, version_keys;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OKKK:tensor_init", &PyType_Type, &cls, &PyTuple_Type, &paths, &PyTuple_Type,
                          &examples, &PyTuple_Type, &keysets, &facts, &python_keys, &autocast_keys,
                          &version_keys)) {
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(examples);
    if (n < 1 || n > MAX_EXAMPLES || PyTuple_GET_SIZE(keysets) != n) {
        PyErr_SetString(PyExc_ValueError, "tensor_init: 1 to 16 examples, and a key set for each");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (Py_TYPE(PyTuple_GET_ITEM(examples, i)) != (PyTypeObject *)cls) {
            PyErr_SetString(PyExc_TypeError, "tensor_init: examples must be plain tensors");
            return NULL;
        }
    }
    fxjit_shim.ready = 0;
    fxjit_shim.impl_words = 0;
    if (open_libraries(paths) < 0) {
        return NULL;
    }
    fxjit_states_resolve(autocast_keys);
    const char *missing = resolve_functions();
    if (missing != NULL) {
        return PyUnicode_FromFormat("torch does not export %s", missing);
    }
    Py_XSETREF(fxjit_shim.tensor_class, (PyTypeObject *)Py_NewRef(cls));
    fxjit_shim.python_keys = python_keys;
    fxjit_shim.version_keys = version_keys;
    const char *why = NULL;
    int found = find_layout(examples, keysets, &why);
    if (found <= 0) {
        return found < 0 ? NULL : PyUnicode_FromString(why);
    }
    PyObject *expected = PyObject_CallOneArg(facts, codes_function);
    if (expected == NULL) {
        return NULL;
    }
    int same = -1;
    if (!PyTuple_Check(expected) || PyTuple_GET_SIZE(expected) != n) {
        PyErr_SetString(PyExc_ValueError, "tensor_init: facts() must give a tuple, one entry an example");
    }
    else {
        same = verify(examples, expected);
    }
    Py_DECREF(expected);
    if (same <= 0) {
        return same < 0 ? NULL : PyUnicode_FromString("torch's C shim says of a tensor what is not so");
    }
    fxjit_shim.ready = 1;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(shim_code_doc,
"shim_code(name) -> int | None\n\n"
"The number the shim gives to a dtype, device type or layout: shim_code('dtype_float32'). None: it knows no such thing.");

static PyObject *
shim_code(PyObject *Py_UNUSED(module), PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL) {
        return NULL;
    }
    char symbol[128];
    if (snprintf(symbol, sizeof(symbol), "aoti_torch_%s", text) >= (int)sizeof(symbol)) {
        Py_RETURN_NONE;
    }
    int32_t (*code)(void) = (int32_t(*)(void))fxjit_torch_symbol(symbol);
    if (code == NULL) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(code());
}

PyDoc_STRVAR(tensor_facts_doc,
"tensor_facts(tensor) -> tuple\n\n"
"What the shim says of a strided tensor that is no Python subclass's: (dtype, device type, device index, layout,\n"
"requires_grad, dispatch keys, sizes, strides, storage offset).");

static PyObject *
tensor_facts(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    if (!fxjit_shim.ready) {
        PyErr_SetString(PyExc_RuntimeError, "torch's C shim is not in use (tensor_shim.ensure)");
        return NULL;
    }
    if (!fxjit_tensor_is_plain(tensor)) {
        PyErr_Format(PyExc_TypeError, "tensor_facts() takes a plain tensor, not %.100s", Py_TYPE(tensor)->tp_name);
        return NULL;
    }
    return facts_of(tensor);
}

static PyObject *
tensor_ready(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(fxjit_shim.ready);
}

static PyMethodDef methods[] = {
    {"tensor_init", tensor_init, METH_VARARGS, tensor_init_doc},
    {"tensor_facts", tensor_facts, METH_O, tensor_facts_doc},
    {"tensor_ready", tensor_ready, METH_NOARGS, PyDoc_STR("tensor_ready() -> bool: whether tensor_init succeeded")},
    {"shim_code", shim_code, METH_O, shim_code_doc},
    {NULL, NULL, 0, NULL},
};

int
fxjit_tensor_init(PyObject *module)
{
    if (PyModule_AddFunctions(module, methods) < 0) {
        return -1;
    }
    codes_function = PyObject_GetAttrString(module, "shim_code");
    return codes_function == NULL ? -1 : 0;
}
