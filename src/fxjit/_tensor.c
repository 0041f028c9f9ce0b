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

/* -- state of the process ------------------------------------------------------------------------------------------*/

static const char *const state_names[FXJIT_NUM_STATES] = {
    "grad_mode", "inference_mode", "autocast", "default_dtype", "deterministic", "torch_function",
    "torch_function_modes", "dispatch_modes", "functorch_levels", "float32_precision",
    "keeps_graph", "jit_tracing",
};

static const char *const state_symbols[FXJIT_NUM_STATES] = {
    "aoti_torch_grad_mode_is_enabled",
    "_ZN3c1013InferenceMode10is_enabledEv",
    "_ZN3c104impl26raw_local_dispatch_key_setE", /* thread-local data: two key sets, included and excluded */
    "_ZN3c1031get_default_dtype_as_scalartypeEv",
    "_ZNK2at7Context23deterministicAlgorithmsEv",
    "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
    "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "_ZN2at9functorch20getDynamicLayerStackEv",
    "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE",
    "_ZN5torch8autograd33get_current_graph_task_keep_graphEv",
    "_ZN5torch3jit6tracer15getTracingStateEv",
};

static void *state_functions[FXJIT_NUM_STATES];
static void *(*global_context)(void);
/* The dispatch keys of autocast on all devices: while autocast is off on a device, its key is excluded. torch keeps the
 * difference from what is excluded by default, which autocast's keys are: a set bit means that it is on. */
static uint64_t autocast_keys;

static void
resolve_states(void)
{
    for (int i = 0; i < FXJIT_NUM_STATES; i++) {
        state_functions[i] = fxjit_torch_symbol(state_symbols[i]);
    }
    global_context = (void *(*)(void))fxjit_torch_symbol("_ZN2at13globalContextEv");
    if (global_context == NULL) {
        state_functions[FXJIT_DETERMINISTIC] = NULL;
        state_functions[FXJIT_FLOAT32_PRECISION] = NULL;
    }
    if (autocast_keys == 0) {
        state_functions[FXJIT_AUTOCAST] = NULL;
    }
}

int
fxjit_state_known(fxjit_state state)
{
    return state_functions[state] != NULL;
}

/* This thread's dispatch keys. dlsym gives a thread-local variable's address in the thread that asks. */
static const uint64_t *
local_keys(void)
{
    static _Thread_local const uint64_t *keys;
    if (keys == NULL) {
        keys = fxjit_torch_symbol(state_symbols[FXJIT_AUTOCAST]);
    }
    return keys;
}

/* What of torch's products round float32 to less: two bits each, at::Float32Precision's TF32 or BF16, else 0. */
static int64_t
float32_precision(int (*precision)(const void *, int backend, int op))
{
    enum { CUDA = 1, MKLDNN = 2, CONV = 1, MATMUL = 3, TF32 = 2, BF16 = 3 };
    static const int products[][2] = {{MKLDNN, MATMUL}, {MKLDNN, CONV}, {CUDA, MATMUL}};
    const void *context = global_context();
    int64_t packed = 0;
    for (int i = 0; i < 3; i++) {
        int64_t found = precision(context, products[i][0], products[i][1]);
        packed |= (found == TF32 || found == BF16 ? found : 0) << 2 * i;
    }
    return packed;
}

int64_t
fxjit_state_now(fxjit_state state)
{
    void *function = state_functions[state];
    switch (state) {
    case FXJIT_GRAD_MODE:
    case FXJIT_INFERENCE_MODE:
    case FXJIT_KEEPS_GRAPH:
        return ((bool (*)(void))function)();
    case FXJIT_AUTOCAST:
        return (local_keys()[1] & autocast_keys) != 0;
    case FXJIT_DEFAULT_DTYPE:
    case FXJIT_TORCH_FUNCTION:
        return ((int8_t(*)(void))function)();
    case FXJIT_DETERMINISTIC:
        return ((bool (*)(const void *))function)(global_context());
    case FXJIT_TORCH_FUNCTION_MODES:
    case FXJIT_DISPATCH_MODES:
        return ((int64_t(*)(void))function)();
    case FXJIT_FUNCTORCH_LEVELS: {
        /* A std::vector's begin and end. */
        void *const *layers = ((void *const *(*)(void))function)();
        return layers[0] != layers[1];
    }
    case FXJIT_JIT_TRACING:
        /* A std::shared_ptr's object. */
        return *((void *const *(*)(void))function)() != NULL;
    case FXJIT_FLOAT32_PRECISION:
        return float32_precision((int (*)(const void *, int, int))function);
    case FXJIT_NUM_STATES:
        break;
    }
    return -1;
}

int
fxjit_state_index(PyObject *name)
{
    for (int i = 0; PyUnicode_Check(name) && i < FXJIT_NUM_STATES; i++) {
        if (PyUnicode_CompareWithASCIIString(name, state_names[i]) == 0 && state_functions[i] != NULL) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "torch exports no state %R", name);
    return -1;
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
    unsigned long long python_keys, autocast, version_keys;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OKKK:tensor_init", &PyType_Type, &cls, &PyTuple_Type, &paths, &PyTuple_Type,
                          &examples, &PyTuple_Type, &keysets, &facts, &python_keys, &autocast,
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
    autocast_keys = autocast;
    resolve_states();
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

/* -- the words of a TensorImpl --------------------------------------------------------------------------------------*/

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
        Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i));
        PyObject *version = NULL;
        if (index < 0 || index >= PyTuple_GET_SIZE(args[0])) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_IndexError, "tensor_versions(): no such tensor");
            }
        }
        else {
            version = version_of(PyTuple_GET_ITEM(args[0], index));
        }
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
        Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i));
        if (index < 0 || index >= PyTuple_GET_SIZE(args[0])) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_IndexError, "writes_are_counted(): no such tensor");
            }
            return NULL;
        }
        PyObject *tensor = PyTuple_GET_ITEM(args[0], index);
        if (counts_writes(tensor) == 0 && !(fxjit_shim.version_keys & ~fxjit_tensor_keys(tensor))) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

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

static PyObject *
state_now(PyObject *Py_UNUSED(module), PyObject *name)
{
    int state = fxjit_state_index(name);
    return state < 0 ? NULL : PyLong_FromLongLong(fxjit_state_now((fxjit_state)state));
}

static PyObject *
tensor_ready(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(fxjit_shim.ready);
}

static PyMethodDef methods[] = {
    {"tensor_init", tensor_init, METH_VARARGS, tensor_init_doc},
    {"tensor_learn", tensor_learn, METH_VARARGS, tensor_learn_doc},
    {"tensor_facts", tensor_facts, METH_O, tensor_facts_doc},
    {"tensor_ready", tensor_ready, METH_NOARGS, PyDoc_STR("tensor_ready() -> bool: whether tensor_init succeeded")},
    {"writes_are_counted", (PyCFunction)(void (*)(void))writes_are_counted, METH_FASTCALL, writes_are_counted_doc},
    {"tensor_versions", (PyCFunction)(void (*)(void))tensor_versions, METH_FASTCALL, tensor_versions_doc},
    {"memory_meets", (PyCFunction)(void (*)(void))memory_meets, METH_FASTCALL, memory_meets_doc},
    {"state_now", state_now, METH_O,
     PyDoc_STR("state_now(name) -> int: state of the process, as C reads it (after tensor_init); else ValueError")},
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
