/* Runs a compiled graph: `_C.Program` is a callable over a graph's inputs that allocates, launches kernels, multiplies
 * matrices and calls ATen, in the order of a program that codegen/program.py encoded.
 *
 * A program is an array of int64: an instruction's number, then its operands. What sizes are needed stand in a second
 * array, `numbers`; where they vary from call to call a copy is filled in first. Values live in slots. A slot holds an
 * at::Tensor (through torch's stable C shim), a Python object, or memory in the arena, which is one allocation a call.
 * Python objects are made of tensors only where Python is called or where the graph returns them. What the instructions do is
 * in _steps.c. */
#define _GNU_SOURCE /* dladdr */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_module.h"
#include "_program.h"
#include "_ranges.h"

#define MAX_STACK 32

enum {
    I_ALLOC,   /* dst dtype ndim at device index   sizes and strides at numbers[at] */
    I_RAW,     /* dst offset                   memory in the arena */
    I_LAUNCH,  /* kernel unlocked count at slot... */
    I_VIEW,    /* dst src ndim at              sizes, strides, and the offset from src's */
    I_CALL,    /* dst function count names value...    names: -1, or a tuple of the keywords of the last arguments */
    I_ITEM,    /* dst src index */
    I_EXPECT,  /* slot helper ndim at          the strides kernels were compiled for */
    I_GEMM,    /* double? out a b bias unlocked at     see fxjit_step_gemm */
    I_BMM,     /* out a b                      tensors */
    I_FREE,    /* count slot... */
    I_RETURN,  /* count value...               count -1: one value by itself */
    I_OBJECT,  /* dst object */
    I_KERNEL,  /* cell count integers at slot...   a kernel that is a Python object: the one in the list `cell` */
    I_NUMBER,  /* dst src                      the Python number in src, as a double where dst's memory is */
};

enum { S_CONST, S_SYMBOL, S_ADD, S_MUL, S_FLOORDIV, S_MOD, S_MAX, S_MIN, S_STORE, S_END }; /* arithmetic on sizes */

fxjit_torch_t fxjit_torch;

static int
resolve(void)
{
    if (fxjit_torch.ready) {
        return 1;
    }
    if (!fxjit_shim.ready) {
        return 0;
    }
    *(void **)&fxjit_torch.get_data_ptr = fxjit_torch_symbol("aoti_torch_get_data_ptr");
    *(void **)&fxjit_torch.empty_strided = fxjit_torch_symbol("aoti_torch_empty_strided");
    *(void **)&fxjit_torch.reinterpret = fxjit_torch_symbol("aoti_torch__reinterpret_tensor");
    *(void **)&fxjit_torch.delete_handle = fxjit_torch_symbol("aoti_torch_delete_tensor_object");
    *(void **)&fxjit_torch.cpu = fxjit_torch_symbol("aoti_torch_device_type_cpu");
    *(void **)&fxjit_torch.storage_size = fxjit_torch_symbol("aoti_torch_get_storage_size");
    *(void **)&fxjit_torch.bmm_out = fxjit_torch_symbol("aoti_torch_cpu_bmm_out");
    *(void **)&fxjit_torch.wrap = fxjit_torch_symbol("_Z16THPVariable_WrapRKN2at10TensorBaseE");
    /* The BLAS that ATen itself calls, where libtorch exports it: LP64 Fortran names, as MKL and OpenBLAS have them. */
    *(void **)&fxjit_torch.sgemm = fxjit_torch_symbol("sgemm_");
    *(void **)&fxjit_torch.dgemm = fxjit_torch_symbol("dgemm_");
    if (fxjit_torch.get_data_ptr == NULL || fxjit_torch.empty_strided == NULL || fxjit_torch.reinterpret == NULL ||
        fxjit_torch.delete_handle == NULL || fxjit_torch.wrap == NULL) {
        return 0;
    }
    fxjit_torch.ready = 1;
    return 1;
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

typedef int (*step_fn)(frame_t *, const int64_t *);

/* A step that a profiler would not see, in a range of its own. */
static int
show(step_fn step, frame_t *frame, const int64_t *operands, const char *name)
{
    void *range = fxjit_begin_range(name);
    int status = step(frame, operands);
    fxjit_end_range(range);
    return status;
}

static inline int
launch(frame_t *frame, const int64_t *operands)
{
    if (!frame->profiled) {
        return fxjit_step_launch(frame, operands);
    }
    Dl_info found;
    kernel_fn kernel = frame->program->kernels[operands[0]];
    int named = dladdr(*(void **)&kernel, &found) != 0 && found.dli_sname != NULL;
    char name[64]; /* as the kernel is called in the generated code */
    snprintf(name, sizeof(name), "fxjit::%s", named ? found.dli_sname : "kernel");
    return show(fxjit_step_launch, frame, operands, name);
}

static inline int
multiply(step_fn step, frame_t *frame, const int64_t *operands, const char *name)
{
    return frame->profiled ? show(step, frame, operands, name) : step(frame, operands);
}

/* The results, as a list or a tuple. */
static PyObject *
run(frame_t *frame, int as_list)
{
    const int64_t *pc = frame->program->code;
    for (;;) {
        int status = 0;
        switch (*pc++) {
        case I_ALLOC:
            status = fxjit_step_allocate(frame, pc);
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
            status = fxjit_step_kernel(frame, pc);
            pc += 4 + pc[1];
            break;
        case I_VIEW:
            status = fxjit_step_view(frame, pc);
            pc += 4;
            break;
        case I_CALL:
            status = fxjit_step_call(frame, &pc);
            break;
        case I_ITEM:
            status = fxjit_step_item(frame, pc);
            pc += 3;
            break;
        case I_EXPECT:
            status = fxjit_step_expect(frame, pc);
            pc += 6;
            break;
        case I_GEMM:
            status = multiply(fxjit_step_gemm, frame, pc, "fxjit::gemm");
            pc += 7;
            break;
        case I_BMM:
            status = multiply(fxjit_step_bmm, frame, pc, "fxjit::bmm");
            pc += 3;
            break;
        case I_NUMBER:
            status = fxjit_step_number(&frame->slots[pc[0]], &frame->slots[pc[1]]);
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
                return fxjit_build_argument(frame, &pc);
            }
            PyObject *all = as_list ? PyList_New(count) : PyTuple_New(count);
            for (int64_t i = 0; all != NULL && i < count; i++) {
                PyObject *item = fxjit_build_argument(frame, &pc);
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
    frame_t frame = {self, slots, self->numbers, NULL, fxjit_profiled()};
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
        arena = fxjit_allocate_arena(self->arena);
        if (arena == NULL) {
            goto done;
        }
        frame.arena = arena;
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
        can = fxjit_torch.sgemm != NULL && fxjit_torch.dgemm != NULL;
    }
    else if (can && PyUnicode_CompareWithASCIIString(name, "bmm") == 0) {
        can = fxjit_torch.bmm_out != NULL;
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
