/* State of the process and of this thread (_process_state.h): the functions of torch that tell it, and asking them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "_module.h"
#include "_process_state.h"
#include "_tensor.h"

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

void
fxjit_states_resolve(uint64_t autocast)
{
    autocast_keys = autocast;
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

static PyObject *
state_now(PyObject *Py_UNUSED(module), PyObject *name)
{
    int state = fxjit_state_index(name);
    return state < 0 ? NULL : PyLong_FromLongLong(fxjit_state_now((fxjit_state)state));
}

static PyMethodDef methods[] = {
    {"state_now", state_now, METH_O,
     PyDoc_STR("state_now(name) -> int: state of the process, as C reads it (after tensor_init); else ValueError")},
    {NULL, NULL, 0, NULL},
};

int
fxjit_process_state_init(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
