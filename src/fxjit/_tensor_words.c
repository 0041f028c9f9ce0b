/* The words of a TensorImpl: which of them say what kind of tensor it is, and which points to its version counter, if it counts
 * the writes to it.
 *
 * They are learned by comparison of tensors made alike (`_C.tensor_learn`, called by tensor_shim.py). What cannot be told for
 * certain is not used: guards then ask for every fact, and versions are read through Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>

#include "_module.h"
#include "_tensor.h"

#define REFERENCE_WORDS 2 /* the vtable and the reference counts, in front */

static int
is_tensor_tuple(PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        if (!fxjit_tensor_is_plain(PyTuple_GET_ITEM(tuple, i))) {
            return 0;
        }
    }
    return PyTuple_GET_SIZE(tuple) > 1;
}

static uint64_t
impl_word(PyObject *tensors, Py_ssize_t index, int word)
{
    return ((const uint64_t *)fxjit_tensor_impl(PyTuple_GET_ITEM(tensors, index)))[word];
}

/* The three words that every tensor has for itself; the one of its version counter is kept. */
static int
is_own_word(PyObject *twins, PyObject *storages, PyObject *aliases, int word)
{
    int is_object = 1, is_storage = 1, is_version = impl_word(twins, 0, word) != impl_word(twins, 1, word);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(twins); i++) {
        uint64_t found = impl_word(twins, i, word);
        is_object &= found == (uint64_t)(uintptr_t)PyTuple_GET_ITEM(twins, i);
        is_storage &= found == PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(storages, i));
        is_version &= found == impl_word(aliases, i, word); /* x.detach() counts its versions together with x */
    }
    if (is_version && !is_storage && !is_object) {
        fxjit_shim.version_word = word;
    }
    return is_object || is_storage || is_version;
}

/* Bytes at the end of a word that differ between tensors made alike; three at the most. */
static int
is_padding(uint64_t varying)
{
    return varying << 24 == 0 || varying == 0;
}

static int
add_fact(int word)
{
    int n = fxjit_shim.num_fact_ranges;
    if (n > 0 && fxjit_shim.fact_ranges[n - 1].end == word) {
        fxjit_shim.fact_ranges[n - 1].end++;
        return 0;
    }
    if (n == FXJIT_FACT_RANGES) {
        return -1;
    }
    fxjit_shim.fact_ranges[n].begin = word;
    fxjit_shim.fact_ranges[n].end = word + 1;
    fxjit_shim.num_fact_ranges++;
    return 0;
}

/* Which words of a TensorImpl are facts. NULL, or why it cannot be said. */
static const char *
learn_words(PyObject *plain, PyObject *with_grad, PyObject *storages, PyObject *aliases)
{
    int words = (int)(fxjit_shim.keys_offset / (Py_ssize_t)sizeof(uint64_t)) + 1; /* the key set is its last member */
    int autograd = -1;
    if (words > FXJIT_IMPL_WORDS) {
        return "a TensorImpl is larger than expected";
    }
    fxjit_shim.num_fact_ranges = 0;
    fxjit_shim.version_word = 0;
    for (int word = REFERENCE_WORDS; word < words; word++) {
        uint64_t first = impl_word(plain, 0, word), varying = 0, with_grad_varying = 0;
        int grad_set = 1;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain); i++) {
            varying |= impl_word(plain, i, word) ^ first;
            with_grad_varying |= impl_word(with_grad, i, word) ^ first;
            grad_set &= impl_word(with_grad, i, word) != 0;
        }
        if (is_own_word(plain, storages, aliases, word)) {
            continue;
        }
        if (varying == 0 && first == 0 && grad_set && autograd < 0) {
            autograd = word;
            continue;
        }
        fxjit_shim.fact_bits[word] = ~(varying | with_grad_varying);
        if (!is_padding(varying | with_grad_varying)) {
            return "a TensorImpl has a word of its own that is not known";
        }
        if (add_fact(word) < 0) {
            return "the facts are all over the TensorImpl";
        }
    }
    if (autograd < 0) {
        return "the autograd metadata was not found in a TensorImpl";
    }
    if (fxjit_shim.get_layout(fxjit_tensor_handle(PyTuple_GET_ITEM(plain, 0)), &fxjit_shim.strided)) {
        return "torch's C shim does not know the layout of a tensor";
    }
    fxjit_shim.autograd_word = autograd;
    fxjit_shim.impl_words = words;
    return NULL;
}

#define META_BYTES 512

/* Where the autograd metadata of a leaf says whether it requires a gradient: the byte that goes from 1 to 0 when it no
 * longer does. -1 not found (or an exception). */
static Py_ssize_t
find_requires_grad(PyObject *leaf)
{
    const unsigned char *meta = (const unsigned char *)(uintptr_t)impl_word(leaf, 0, fxjit_shim.autograd_word);
    unsigned char before[META_BYTES];
    size_t size = 0;
#ifdef __GLIBC__
    size = Py_MIN(malloc_usable_size((void *)meta), META_BYTES);
#endif
    memcpy(before, meta, size);
    PyObject *done = PyObject_CallMethod(PyTuple_GET_ITEM(leaf, 0), "requires_grad_", "O", Py_False);
    Py_XDECREF(done);
    Py_ssize_t found = -1;
    for (size_t i = 0; done != NULL && i < size; i++) {
        if (before[i] != meta[i]) {
            if (found >= 0 || before[i] != 1 || meta[i] != 0) {
                return -1;
            }
            found = (Py_ssize_t)i;
        }
    }
    return found;
}

PyDoc_STRVAR(tensor_learn_doc,
"tensor_learn(plain, with_grad, storages, aliases) -> str | None\n\n"
"Find out which words of a strided TensorImpl say what kind of tensor it is, from tensors that are alike, the same as\n"
"leaves that require gradients, the addresses of the first's storages, and `x.detach()` of each of the first. None: done;\n"
"else why not, and tensors are asked for every fact on every call.");

static PyObject *
tensor_learn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *plain, *with_grad, *storages, *aliases;
    if (!PyArg_ParseTuple(args, "O!O!O!O!:tensor_learn", &PyTuple_Type, &plain, &PyTuple_Type, &with_grad, &PyTuple_Type,
                          &storages, &PyTuple_Type, &aliases)) {
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(plain);
    if (!fxjit_shim.ready || !is_tensor_tuple(plain) || !is_tensor_tuple(with_grad) || !is_tensor_tuple(aliases) ||
        PyTuple_GET_SIZE(with_grad) != n || PyTuple_GET_SIZE(aliases) != n || PyTuple_GET_SIZE(storages) != n) {
        PyErr_SetString(PyExc_ValueError, "tensor_learn() takes as many plain tensors in each tuple");
        return NULL;
    }
    const char *why = fxjit_shim.impl_requires_grad == NULL ? "torch does not export TensorImpl::requires_grad"
                                                            : learn_words(plain, with_grad, storages, aliases);
    if (why == NULL) {
        fxjit_shim.requires_grad_at = find_requires_grad(with_grad);
        why = fxjit_shim.requires_grad_at < 0 ? "whether a leaf requires a gradient was not found" : NULL;
    }
    if (PyErr_Occurred() || why != NULL) {
        fxjit_shim.impl_words = 0;
        return PyErr_Occurred() ? NULL : PyUnicode_FromString(why);
    }
    Py_RETURN_NONE;
}

/* 1 or 0; -1 where it is not known. An inference tensor counts no writes, nor does it when it was given another's `data`: then
 * it is none any more by its keys. */
static int
counts_writes(PyObject *tensor)
{
    if (!fxjit_shim.impl_words || !fxjit_shim.version_word || !fxjit_tensor_is_plain(tensor)) {
        return -1;
    }
    return ((const uint64_t *)fxjit_tensor_impl(tensor))[fxjit_shim.version_word] != 0;
}

static PyObject *
version_of(PyObject *tensor)
{
    /* torch throws a C++ exception for tensors that count no writes. */
    int counts = fxjit_shim.version != NULL && counts_writes(tensor) == 1 &&
                 !(fxjit_shim.version_keys & ~fxjit_tensor_keys(tensor));
    return counts ? PyLong_FromLongLong(fxjit_shim.version(fxjit_tensor_handle(tensor)))
                  : PyObject_GetAttrString(tensor, "_version");
}

/* The tensor of a tuple that the i-th index of another says, borrowed; NULL with an exception where there is none. */
static PyObject *
tensor_at(PyObject *tensors, PyObject *indices, Py_ssize_t i)
{
    Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(indices, i));
    if (index >= 0 && index < PyTuple_GET_SIZE(tensors)) {
        return PyTuple_GET_ITEM(tensors, index);
    }
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_IndexError, "there is no tensor %zd", index);
    }
    return NULL;
}

PyDoc_STRVAR(tensor_versions_doc,
"tensor_versions(tensors, indices) -> list[int]\n\n"
"How often each of these tensors of a tuple has been written to: their `_version`.");

static PyObject *
tensor_versions(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "tensor_versions() takes a tuple of tensors and one of indices");
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(args[1]);
    PyObject *versions = PyList_New(n);
    for (Py_ssize_t i = 0; versions != NULL && i < n; i++) {
        PyObject *tensor = tensor_at(args[0], args[1], i);
        PyObject *version = tensor == NULL ? NULL : version_of(tensor);
        if (version == NULL) {
            Py_CLEAR(versions);
            break;
        }
        PyList_SET_ITEM(versions, i, version);
    }
    return versions;
}

PyDoc_STRVAR(writes_are_counted_doc,
"writes_are_counted(tensors, indices) -> bool\n\n"
"Whether none of these tensors of a tuple is a former inference tensor, which got another's `data` and still counts no\n"
"writes: eager writes to it, and then raises.");

static PyObject *
writes_are_counted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "writes_are_counted() takes a tuple of tensors and one of indices");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++) {
        PyObject *tensor = tensor_at(args[0], args[1], i);
        if (tensor == NULL) {
            return NULL;
        }
        if (counts_writes(tensor) == 0 && !(fxjit_shim.version_keys & ~fxjit_tensor_keys(tensor))) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"tensor_learn", tensor_learn, METH_VARARGS, tensor_learn_doc},
    {"writes_are_counted", (PyCFunction)(void (*)(void))writes_are_counted, METH_FASTCALL, writes_are_counted_doc},
    {"tensor_versions", (PyCFunction)(void (*)(void))tensor_versions, METH_FASTCALL, tensor_versions_doc},
    {NULL, NULL, 0, NULL},
};

int
fxjit_tensor_words_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
