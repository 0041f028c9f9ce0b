/* The executor: `_C.Program` is a callable over a compiled graph's inputs that allocates, launches kernels, multiplies matrices
 * and calls ATen, in the order of a program that encode.py made.
 *
 * A program is an array of int64: an instruction's opcode (opcodes.def), then its operands. What sizes are needed stand in a second
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
#include "_bfloat16.h"
#include "_attention.h"
#include "_convolution.h"
#include "_gemm_tiles.h"
#include "_pairs.h"
#include "_program.h"
#include "_ranges.h"
#include "_recurrent.h"

fxjit_torch_t fxjit_torch;

int
fxjit_find_torch(void)
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
    *(void **)&fxjit_torch.convolution = fxjit_torch_symbol("aoti_torch_cpu_convolution");
    *(void **)&fxjit_torch.convolution_backward = fxjit_torch_symbol("aoti_torch_cpu_convolution_backward");
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

/* -- the program ---------------------------------------------------------------------------------------------------*/

/* A step that a profiler would not see, in a range of its own. */
#define SHOWN(frame, name, library, step) \
    do { \
        void *range = fxjit_begin_range(name, library); \
        status = step; \
        fxjit_end_range(range); \
    } while (0)

static int
launch(frame_t *frame, const LAUNCH_operands *o)
{
    if (!frame->profiled) {
        return fxjit_step_launch(frame, o);
    }
    Dl_info found;
    kernel_fn kernel = frame->program->kernels[o->kernel];
    int status, named = dladdr(*(void **)&kernel, &found) != 0 && found.dli_sname != NULL;
    char name[64]; /* as the kernel is called in the generated code */
    snprintf(name, sizeof(name), "fxjit::%s", named ? found.dli_sname : "kernel");
    SHOWN(frame, name, named ? found.dli_fname : NULL, fxjit_step_launch(frame, o));
    return status;
}

/* The results, as a list or a tuple, or the only one; the operands of RETURN are at `pc`. */
static PyObject *
results(frame_t *frame, const int64_t *pc, int as_list)
{
    const RETURN_operands *o = (const RETURN_operands *)pc;
    pc = o->values;
    if (!o->several) {
        return fxjit_build_value(frame, &pc);
    }
    PyObject *all = as_list ? PyList_New(o->count) : PyTuple_New(o->count);
    for (int64_t i = 0; all != NULL && i < o->count; i++) {
        PyObject *item = fxjit_build_value(frame, &pc);
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

/* The operands of the instruction at hand, and the words that they take. */
#define OPERANDS(name) ((const name##_operands *)pc)
#define WORDS(name) (sizeof(name##_operands) / sizeof(int64_t))

static PyObject *
run(frame_t *frame, int as_list)
{
    const int64_t *pc = frame->program->code;
    for (;;) {
        int status = 0;
        switch (*pc++) {
        case I_ALLOCATE:
            status = fxjit_step_allocate(frame, OPERANDS(ALLOCATE));
            pc += WORDS(ALLOCATE);
            break;
        case I_ARENA:
            frame->slots[OPERANDS(ARENA)->out].data = frame->arena + OPERANDS(ARENA)->offset;
            pc += WORDS(ARENA);
            break;
        case I_LAUNCH:
            status = launch(frame, OPERANDS(LAUNCH));
            pc += WORDS(LAUNCH) + OPERANDS(LAUNCH)->count;
            if (status < 0 && *pc == I_REPEAT && PyErr_ExceptionMatches(PyExc_IndexError)) {
                PyErr_Clear();
                status = 0;
                pc += 1 + WORDS(REPEAT);
            }
            break;
        case I_REPEAT:
            pc += WORDS(REPEAT) + OPERANDS(REPEAT)->skip;
            break;
        case I_FAIL:
            PyErr_SetObject(PyExc_IndexError, PyTuple_GET_ITEM(frame->program->objects, OPERANDS(FAIL)->text));
            status = -1;
            break;
        case I_CALL_KERNEL:
            status = fxjit_step_call_kernel(frame, OPERANDS(CALL_KERNEL));
            pc += WORDS(CALL_KERNEL) + OPERANDS(CALL_KERNEL)->count;
            break;
        case I_VIEW:
            status = fxjit_step_view(frame, OPERANDS(VIEW));
            pc += WORDS(VIEW);
            break;
        case I_CALL:
            status = fxjit_step_call(frame, &pc);
            break;
        case I_ITEM:
            status = fxjit_step_item(frame, OPERANDS(ITEM));
            pc += WORDS(ITEM);
            break;
        case I_BIND:
            status = fxjit_step_bind(frame, OPERANDS(BIND));
            pc += WORDS(BIND);
            break;
        case I_ASSERT_STRIDES:
            status = fxjit_step_assert_strides(frame, OPERANDS(ASSERT_STRIDES));
            pc += WORDS(ASSERT_STRIDES);
            break;
        case I_GEMM:
            if (frame->profiled) {
                SHOWN(frame, "fxjit::gemm", NULL, fxjit_step_gemm(frame, OPERANDS(GEMM)));
            }
            else {
                status = fxjit_step_gemm(frame, OPERANDS(GEMM));
            }
            pc += WORDS(GEMM);
            break;
        case I_BMM:
            if (frame->profiled) {
                SHOWN(frame, "fxjit::bmm", NULL, fxjit_step_bmm(frame, OPERANDS(BMM)));
            }
            else {
                status = fxjit_step_bmm(frame, OPERANDS(BMM));
            }
            pc += WORDS(BMM);
            break;
        case I_GROUPED:
            if (frame->profiled) {
                SHOWN(frame, "fxjit::grouped_mm", NULL, fxjit_step_grouped(frame, OPERANDS(GROUPED)));
            }
            else {
                status = fxjit_step_grouped(frame, OPERANDS(GROUPED));
            }
            pc += WORDS(GROUPED);
            break;
        case I_CONVOLVE:
            if (frame->profiled) {
                SHOWN(frame, "fxjit::convolve", NULL, fxjit_step_convolve(frame, OPERANDS(CONVOLVE)));
            }
            else {
                status = fxjit_step_convolve(frame, OPERANDS(CONVOLVE));
            }
            pc += WORDS(CONVOLVE);
            break;
        case I_STORE_NUMBER:
            status = fxjit_step_store_number(frame, OPERANDS(STORE_NUMBER));
            pc += WORDS(STORE_NUMBER);
            break;
        case I_FREE:
            for (int64_t i = 0; i < OPERANDS(FREE)->count; i++) {
                clear_slot(&frame->slots[OPERANDS(FREE)->variables[i]]);
            }
            pc += WORDS(FREE) + OPERANDS(FREE)->count;
            break;
        case I_WRITES:
            frame->wrote = 1;
            pc += WORDS(WRITES) + OPERANDS(WRITES)->count;
            break;
        case I_LOAD:
            fill_slot(&frame->slots[OPERANDS(LOAD)->out],
                      Py_NewRef(PyTuple_GET_ITEM(frame->program->objects, OPERANDS(LOAD)->object)));
            pc += WORDS(LOAD);
            break;
        default: /* I_RETURN */
            return results(frame, pc, as_list);
        }
        if (status < 0) {
            return NULL;
        }
    }
}

/* The exception of this thread's last graph, compared only, and whether the graph left its inputs as they were. It is not noted on
   the exception, which is the program's. */
static _Thread_local struct {
    PyObject *error;
    int unwritten;
} told;

static void
tell_whether_written(int wrote)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    told.error = value;
    told.unwritten = !wrote;
    PyErr_Restore(type, value, traceback);
}

/* Runs with the inputs in the first slots. Clears every slot. */
static PyObject *
run_filled(program_object *self, slot_t *slots, int as_list)
{
    frame_t frame = {self, slots, self->numbers, NULL, NULL, fxjit_profiled(), 0};
    PyObject *result = NULL;
    int64_t *numbers = NULL;
    void *arena = NULL;
    int64_t room = 0;
    told.error = NULL;
    if (self->arithmetic != NULL) {
        size_t bytes = sizeof(int64_t) * (self->num_numbers + self->num_symbols);
        numbers = PyMem_Malloc(bytes);
        if (numbers == NULL) {
            PyErr_NoMemory();
            goto done;
        }
        frame.numbers = numbers;
        frame.symbols = numbers + self->num_numbers;
        memcpy(numbers, self->numbers, sizeof(int64_t) * self->num_numbers);
        for (Py_ssize_t i = 0; i < self->num_symbols; i++) {
            const int64_t *symbol = &self->symbols[SYMBOL_WORDS * i];
            if (symbol[0] >= 0 && fxjit_read_symbol(&slots[symbol[0]], symbol[1], symbol[2], &frame.symbols[i]) < 0) {
                goto done;
            }
        }
        if (fxjit_calculate_sizes(self->arithmetic, frame.symbols, numbers) < 0) {
            goto done;
        }
    }
    if (self->arena > 0) {
        arena = fxjit_take_arena(self->arena, &room);
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
    if (arena != NULL) {
        fxjit_give_arena(arena, room);
    }
    PyMem_Free(numbers);
    if (result == NULL) {
        tell_whether_written(frame.wrote);
    }
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
    if (!fxjit_find_torch()) {
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
    self->num_symbols /= SYMBOL_WORDS;
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

PyDoc_STRVAR(want_large_pages_doc,
"want_large_pages(wanted)\n\nWhether weights that products of few rows read often are moved to large pages from now on.");

PyDoc_STRVAR(program_can_doc,
"program_can(name) -> bool\n\nWhether programs can be run at all ('run'), multiply matrices ('gemm'), or batches of them ('bmm'), "
"and convolve images ('convolve') or take recurrent layers ('recurrent'), attention ('attention') and\n"
"products of few rows of bfloat16 ('few rows'), or of pairs of its numbers ('pairs'), by our own kernels.");

static PyObject *
program_can(PyObject *Py_UNUSED(module), PyObject *name)
{
    int can = fxjit_find_torch();
    if (can && PyUnicode_CompareWithASCIIString(name, "gemm") == 0) {
        can = fxjit_torch.sgemm != NULL && fxjit_torch.dgemm != NULL;
    }
    else if (can && PyUnicode_CompareWithASCIIString(name, "bmm") == 0) {
        can = fxjit_torch.bmm_out != NULL;
    }
    else if (can && PyUnicode_CompareWithASCIIString(name, "few rows") == 0) {
        can = fxjit_gemm_runs();
    }
    else if (can && PyUnicode_CompareWithASCIIString(name, "pairs") == 0) {
        can = fxjit_pairs_run();
    }
    else if (can && PyUnicode_CompareWithASCIIString(name, "tiles") == 0) {
        can = fxjit_tiles_run();
    }
    else if (can && (PyUnicode_CompareWithASCIIString(name, "recurrent") == 0 ||
                     PyUnicode_CompareWithASCIIString(name, "attention") == 0)) {
        can = fxjit_gemm_runs();
    }
    else if (can && PyUnicode_CompareWithASCIIString(name, "convolve") == 0) {
        can = fxjit_torch.convolution != NULL && fxjit_torch.convolution_backward != NULL && fxjit_gemm_runs();
    }
    return PyBool_FromLong(can);
}

PyDoc_STRVAR(drop_arenas_doc,
"drop_arenas() -> int\n\nFrees the memory for intermediate values that is kept for later calls; gives how many bytes that were.");

PyDoc_STRVAR(blas_address_doc,
"blas_address() -> int\n\nThe address of a function like Fortran's sgemm, for kernels; 0 where torch exports none.");

PyDoc_STRVAR(vector_bits_doc,
"vector_bits() -> int\n\nHow long the vectors of fxjit's own kernels are: 512 (AVX-512) or 256 bits (AVX2); 0 where there are no such.");

PyDoc_STRVAR(set_vector_bits_doc,
"set_vector_bits(bits, /) -> None\n\nTakes kernels for vectors of so many bits from now on. ValueError where this processor has none.");

PyDoc_STRVAR(multiply_pairs_doc,
"multiply_pairs(rows, columns, bias, out, /) -> None\n\nMatrices of bfloat16 multiplied by our own kernel of pairs: out = rows columns^T "
"(+ bias, or None), of plain tensors whose rows are contiguous. RuntimeError where the processor has no AVX512-BF16.");

PyDoc_STRVAR(packed_size_doc,
"packed_size(columns, terms, halves, /) -> int\n\nHow many numbers so many columns of so many terms are when they are packed: of "
"bfloat16, or of float32. RuntimeError where this processor has no kernels for them.");

PyDoc_STRVAR(pack_weight_doc,
"pack_weight(columns, out, /) -> None\n\nPacks a matrix of float32 or bfloat16, a row for each result, for multiply_packed(): to a "
"vector of packed_size() numbers.");

PyDoc_STRVAR(multiply_packed_doc,
"multiply_packed(rows, packed, bias, out, /) -> None\n\nout = rows columns^T (+ bias, or None), of plain tensors whose rows are "
"contiguous, by columns that pack_weight() packed.");

PyDoc_STRVAR(product_class_doc,
"product_class(m, n, k, a_turned, b_turned, /) -> int\n\nThe class of a product of float32 matrices that one library multiplies; -1 "
"where that is the BLAS which ATen calls: for small products, and on other processors.");

PyDoc_STRVAR(set_product_library_doc,
"set_product_library(number, library, /)\n\nWhat multiplies the products of a class: 0 the BLAS, 1 our kernels, 2 those of tiles.");

PyDoc_STRVAR(time_product_doc,
"time_product(m, n, k, a_turned, b_turned, turns, /) -> tuple[int, ...]\n\nNanoseconds that a product takes one thread by ATen's "
"BLAS, by our own kernels of vectors and, where the processor has them, of tiles: the shortest of some turns of each.");

PyDoc_STRVAR(time_convolution_doc,
"time_convolution(x, weight, out, numbers, turns, /) -> tuple[int, int]\n\nNanoseconds that a convolution takes one thread by ATen and "
"by our own kernels: the shortest of some turns of each. The numbers are those of the instruction CONVOLVE.");

PyDoc_STRVAR(recurrent_forward_doc,
"recurrent_forward(numbers, /)\n\nRuns a recurrent layer. The numbers, addresses among them, are those of a layer_t (_recurrent.h).");

PyDoc_STRVAR(recurrent_backward_doc,
"recurrent_backward(numbers, /)\n\nThe derivative of a recurrent layer, likewise.");

PyDoc_STRVAR(attention_forward_doc,
"attention_forward(query, key, value, mask, out, sums, kind, mask_kind, causal, scale, /) -> bool\n\nAttention of (batch, heads, rows, "
"width) into `out`, and the logarithms of its sums into `sums`. The kinds are the types of the numbers and of the mask's, if there is "
"one: 0 float32, 1 bfloat16, 2 float16. False where the kernels do not run it.");

PyDoc_STRVAR(attention_backward_doc,
"attention_backward(query, key, value, mask, out, sums, d_out, d_query, d_key, d_value, kind, mask_kind, causal, scale, /) -> bool\n\n"
"The derivative of attention, likewise.");

PyDoc_STRVAR(tell_unwritten_doc,
"tell_unwritten(error, unwritten, /)\n\nNotes of what a graph raised whether the graph left its inputs as they were; None: a graph "
"begins.");

static PyObject *
tell_unwritten(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "tell_unwritten() takes an exception and a bool");
        return NULL;
    }
    int unwritten = PyObject_IsTrue(args[1]);
    if (unwritten < 0) {
        return NULL;
    }
    told.error = args[0] == Py_None ? NULL : args[0];
    told.unwritten = unwritten;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(left_unwritten_doc,
"left_unwritten(error, /) -> bool\n\nWhether the graph that raised this, the thread's last, is known to have left its inputs as they "
"were.");

static PyObject *
left_unwritten(PyObject *Py_UNUSED(module), PyObject *error)
{
    return PyBool_FromLong(told.error == error && told.unwritten);
}

static PyMethodDef functions[] = {
    {"left_unwritten", left_unwritten, METH_O, left_unwritten_doc},
    {"tell_unwritten", (PyCFunction)(void (*)(void))tell_unwritten, METH_FASTCALL, tell_unwritten_doc},
    {"blas_address", fxjit_blas_address, METH_NOARGS, blas_address_doc},
    {"vector_bits", fxjit_vector_bits, METH_NOARGS, vector_bits_doc},
    {"set_vector_bits", fxjit_set_vector_bits, METH_O, set_vector_bits_doc},
    {"product_class", fxjit_product_class, METH_VARARGS, product_class_doc},
    {"packed_size", fxjit_packed_size, METH_VARARGS, packed_size_doc},
    {"pack_weight", (PyCFunction)(void (*)(void))fxjit_pack_weight, METH_FASTCALL, pack_weight_doc},
    {"multiply_packed", (PyCFunction)(void (*)(void))fxjit_multiply_packed, METH_FASTCALL, multiply_packed_doc},
    {"multiply_pairs", (PyCFunction)(void (*)(void))fxjit_multiply_pairs, METH_FASTCALL, multiply_pairs_doc},
    {"set_product_library", fxjit_set_product_library, METH_VARARGS, set_product_library_doc},
    {"time_product", fxjit_time_product, METH_VARARGS, time_product_doc},
    {"time_convolution", fxjit_time_convolution, METH_VARARGS, time_convolution_doc},
    {"recurrent_forward", fxjit_recurrent_forward, METH_O, recurrent_forward_doc},
    {"recurrent_backward", fxjit_recurrent_backward, METH_O, recurrent_backward_doc},
    {"attention_forward", (PyCFunction)(void (*)(void))fxjit_attention_forward, METH_FASTCALL, attention_forward_doc},
    {"attention_backward", (PyCFunction)(void (*)(void))fxjit_attention_backward, METH_FASTCALL, attention_backward_doc},
    {"drop_arenas", fxjit_drop_arenas, METH_NOARGS, drop_arenas_doc},
    {"want_large_pages", fxjit_want_large_pages, METH_O, want_large_pages_doc},
    {"program_can", program_can, METH_O, program_can_doc},
    {NULL, NULL, 0, NULL},
};

int
fxjit_program_init(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0 || PyModule_AddType(module, &program_type) < 0 ||
        PyModule_AddIntConstant(module, "SIZE_STACK", SIZE_STACK) < 0) {
        return -1;
    }
    return fxjit_opcodes_init(module);
}
