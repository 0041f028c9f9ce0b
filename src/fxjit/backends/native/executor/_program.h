/* The executor's inside: a compiled graph's program, the frame of one call of it, and the steps that its instructions take.
 * _program.c reads the program, _steps.c has what its instructions do, _sizes.c the numbers that vary. */
#ifndef FXJIT_PROGRAM_H
#define FXJIT_PROGRAM_H

#include <Python.h>
#include <stdint.h>

#include "_opcodes.h"
#include "_products.h"
#include "_tensor.h"

typedef int (*kernel_fn)(void *const *, const int64_t *);

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
    int64_t *symbols;    /* SYMBOL_WORDS each: the input, its origin, the dimension; input -1: an instruction finds it */
    int64_t *arithmetic; /* fills in `numbers` from symbols; NULL where all sizes are known */
    kernel_fn *kernels;
    PyObject *objects;   /* tuple: functions, constants */
    PyObject *keep;      /* what keeps the library loaded */
} program_object;

typedef struct {
    program_object *program;
    slot_t *slots;
    int64_t *numbers; /* the program's own, or a copy of this call's where they vary */
    int64_t *symbols; /* this call's */
    char *arena;
    int profiled; /* kernels are shown to torch's profiler */
    int wrote;    /* to inputs, in a way that a second run would not do again */
} frame_t;

typedef struct {
    int ready;
    int32_t (*get_data_ptr)(void *, void **);
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **);
    int32_t (*reinterpret)(void *, int64_t, const int64_t *, const int64_t *, int64_t, void **);
    int32_t (*delete_handle)(void *);
    int32_t (*storage_size)(void *, int64_t *);
    int32_t (*cpu)(void); /* the number of that kind of device */
    int32_t (*bmm_out)(void *, void *, void *);
    int32_t (*convolution)(void *, void *, void **, const int64_t *, int64_t, const int64_t *, int64_t, const int64_t *, int64_t,
                           int32_t, const int64_t *, int64_t, int64_t, void **);
    int32_t (*convolution_backward)(void *, void *, void *, const int64_t **, int64_t, const int64_t *, int64_t, const int64_t *,
                                    int64_t, const int64_t *, int64_t, int32_t, const int64_t *, int64_t, int64_t,
                                    const int32_t *, int64_t, void **, void **, void **);
    PyObject *(*wrap)(const void *); /* THPVariable_Wrap(const at::TensorBase &) */
    gemm_fn sgemm, dgemm;
} fxjit_torch_t;

extern fxjit_torch_t fxjit_torch;
/* Fills in what is used of libtorch; whether programs can run with it. Libraries may be loaded before the first program is made. */
int fxjit_find_torch(void);

/* -- slots ---------------------------------------------------------------------------------------------------------*/

static inline void
clear_slot(slot_t *slot)
{
    if (slot->object != NULL) {
        Py_CLEAR(slot->object);
    }
    else if (slot->handle != NULL) {
        fxjit_torch.delete_handle(slot->handle);
    }
    slot->handle = slot->data = NULL;
}

/* Takes the reference. */
static inline void
fill_slot(slot_t *slot, PyObject *object)
{
    clear_slot(slot);
    slot->object = object;
    if (fxjit_tensor_is_plain(object)) {
        slot->handle = fxjit_tensor_handle(object);
    }
}

/* The slot's Python object, borrowed: a tensor gets one when it is first asked for. */
static inline PyObject *
slot_object(slot_t *slot)
{
    if (slot->object == NULL) {
        if (slot->handle == NULL) {
            PyErr_SetString(PyExc_SystemError, "a compiled program uses a value that is not there");
            return NULL;
        }
        PyObject *object = fxjit_torch.wrap(slot->handle);
        if (object == NULL) {
            return NULL;
        }
        fxjit_torch.delete_handle(slot->handle);
        slot->object = object;
        slot->handle = fxjit_tensor_handle(object);
    }
    return slot->object;
}

static inline void *
slot_handle(slot_t *slot)
{
    if (slot->handle == NULL) {
        PyErr_Format(PyExc_TypeError, "a compiled graph was given %s where it was compiled for a plain tensor",
                     slot->object == NULL ? "nothing" : Py_TYPE(slot->object)->tp_name);
    }
    return slot->handle;
}

/* The address of the first element; 0 is an error unless the tensor is empty. */
static inline int
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
    if (fxjit_torch.get_data_ptr(handle, data) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "a tensor of a compiled graph has no memory");
        return -1;
    }
    return 0;
}

/* -- sizes that vary: _sizes.c ---------------------------------------------------------------------------------------*/

#define SYMBOL_WORDS 3
/* Numbers on the stack of the arithmetic, at most. */
#define SIZE_STACK 32

/* The value of a symbol, which is found at the slot; -1 with an exception on failure. */
int fxjit_read_symbol(slot_t *slot, int64_t origin, int64_t dim, int64_t *value);
/* Runs the stack code at `pc` (S_...), which fills in numbers. */
int fxjit_calculate_sizes(const int64_t *pc, const int64_t *symbols, int64_t *numbers);

/* -- memory: _arena.c -----------------------------------------------------------------------------------------------*/

/* Memory for what lives in the arena, and how many bytes it has; NULL with an exception. Goes back by the second. */
void *fxjit_take_arena(int64_t bytes, int64_t *room);
void fxjit_give_arena(void *arena, int64_t room);
void fxjit_advise_large_pages(void *data, int64_t bytes);
/* Frees what is kept for later calls; how many bytes that were. */
PyObject *fxjit_drop_arenas(PyObject *module, PyObject *ignored);

/* -- pages of weights: _weight_pages.c -----------------------------------------------------------------------------*/

/* A product of few rows is about to read this memory. Lets other threads run where it is moved. */
void fxjit_note_weight_read(const void *data, int64_t bytes);
/* Whether pages are moved from now on. */
PyObject *fxjit_want_large_pages(PyObject *module, PyObject *wanted);

/* -- steps: _steps.c -----------------------------------------------------------------------------------------------*/

/* A new reference to the value at *pc, which moves on. */
PyObject *fxjit_build_value(frame_t *frame, const int64_t **pc);

/* Each takes the operands of its instruction; 0, or -1 with an exception. */
int fxjit_step_call(frame_t *frame, const int64_t **pc); /* moves on behind them */
int fxjit_step_item(frame_t *frame, const ITEM_operands *o);
int fxjit_step_bind(frame_t *frame, const BIND_operands *o);
int fxjit_step_assert_strides(frame_t *frame, const ASSERT_STRIDES_operands *o);
int fxjit_step_allocate(frame_t *frame, const ALLOCATE_operands *o);
int fxjit_step_store_number(frame_t *frame, const STORE_NUMBER_operands *o);
int fxjit_step_view(frame_t *frame, const VIEW_operands *o);
int fxjit_step_launch(frame_t *frame, const LAUNCH_operands *o);
int fxjit_step_call_kernel(frame_t *frame, const CALL_KERNEL_operands *o);
int fxjit_step_gemm(frame_t *frame, const GEMM_operands *o);
int fxjit_step_bmm(frame_t *frame, const BMM_operands *o);
int fxjit_step_grouped(frame_t *frame, const GROUPED_operands *o);
int fxjit_step_convolve(frame_t *frame, const CONVOLVE_operands *o); /* _convolutions.c */

#endif
