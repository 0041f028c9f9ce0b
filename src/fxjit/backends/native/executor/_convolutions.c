/* Convolutions in programs, by our own kernels (_convolution.c), and the time that they take beside ATen's. plan.py chooses. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../../_tensor.h"
#include "_convolution.h"
#include "_program.h"
#include "_turns.h"

enum { NUMBERS = sizeof(convolution_sizes_t) / sizeof(int64_t) };

/* The numbers are those of convolution_sizes_t. */
int
fxjit_step_convolve(frame_t *frame, const CONVOLVE_operands *o)
{
    convolution_t convolution = {.bias = NULL};
    memcpy(&convolution.sizes, frame->numbers + o->sizes, sizeof(convolution_sizes_t));
    void *out, *x, *weight, *bias = NULL;
    if (slot_data(&frame->slots[o->into], &out) < 0 || slot_data(&frame->slots[o->x], &x) < 0 ||
        slot_data(&frame->slots[o->weight], &weight) < 0 || (o->bias >= 0 && slot_data(&frame->slots[o->bias], &bias) < 0)) {
        return -1;
    }
    if (!fxjit_gemm_runs()) {
        PyErr_SetString(PyExc_RuntimeError, "a compiled graph has a convolution for a processor with AVX2 or AVX-512");
        return -1;
    }
    if (convolution.sizes.images * convolution.sizes.out_height * convolution.sizes.out_width == 0) {
        return 0;
    }
    convolution.x = x;
    convolution.weight = weight;
    convolution.bias = bias;
    convolution.out = out;
    int threads = fxjit_convolution_threads(&convolution.sizes);
    int64_t kept;
    void *room = fxjit_take_arena(fxjit_convolution_room(&convolution.sizes, threads), &kept);
    if (room == NULL) {
        return -1;
    }
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = fxjit_convolve(&convolution, room, threads);
    Py_END_ALLOW_THREADS
    fxjit_give_arena(room, kept);
    if (done < 0) {
        PyErr_NoMemory();
    }
    return done;
}

/* -- for Python: runtime/own_convolutions.py -------------------------------------------------------------------------*/

typedef struct {
    convolution_t convolution;
    void *x, *weight, *out, *room; /* handles, and memory for ours */
} trial_t;

static int
convolve_by_aten(void *data)
{
    const trial_t *trial = data;
    const convolution_sizes_t *s = &trial->convolution.sizes;
    const int64_t none[2] = {0, 0};
    void *made = NULL;
    int32_t failed;
    if (s->kind == OF_WEIGHT) {
        const int32_t wanted[3] = {0, 1, 0};
        void *others[2] = {NULL, NULL};
        failed = fxjit_torch.convolution_backward(trial->weight, trial->x, trial->out, NULL, 0, s->stride, 2, s->padding, 2,
                                                  s->dilation, 2, 0, none, 2, 1, wanted, 3, &others[0], &made, &others[1]);
    }
    else {
        int transposed = s->kind == TRANSPOSED;
        int64_t padding[2] = {s->padding[0], s->padding[1]};
        if (transposed) {
            padding[0] = s->dilation[0] * (s->rows - 1) - padding[0];
            padding[1] = s->dilation[1] * (s->columns - 1) - padding[1];
        }
        failed = fxjit_torch.convolution(trial->x, trial->weight, NULL, s->stride, 2, padding, 2, s->dilation, 2, transposed, none, 2,
                                         s->kind == DEPTHWISE ? s->channels : 1, &made);
    }
    return failed || fxjit_torch.delete_handle(made) ? -1 : 0;
}

static int
convolve_by_own(void *data)
{
    const trial_t *trial = data;
    return fxjit_convolve(&trial->convolution, trial->room, 1);
}

static float *
data_of(PyObject *tensor, void **handle)
{
    void *data = NULL;
    *handle = fxjit_tensor_is_plain(tensor) ? fxjit_tensor_handle(tensor) : NULL;
    if (*handle == NULL || fxjit_torch.get_data_ptr(*handle, &data) != 0) {
        PyErr_SetString(PyExc_TypeError, "time_convolution() takes plain tensors");
        return NULL;
    }
    return data;
}

PyObject *
fxjit_time_convolution(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *x, *weight, *out, *numbers;
    int turns;
    if (!PyArg_ParseTuple(args, "OOOO!i", &x, &weight, &out, &PyTuple_Type, &numbers, &turns)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(numbers) != NUMBERS) {
        PyErr_Format(PyExc_ValueError, "a convolution has %d numbers", (int)NUMBERS);
        return NULL;
    }
    if (!fxjit_gemm_runs() || fxjit_torch.convolution == NULL || fxjit_torch.convolution_backward == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "there are not two libraries to choose from");
        return NULL;
    }
    trial_t trial = {0};
    turns_t compared = {.ways = {convolve_by_aten, convolve_by_own}, .data = &trial, .turns = turns};
    int64_t sizes[NUMBERS];
    for (Py_ssize_t i = 0; i < NUMBERS; i++) {
        sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i));
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    memcpy(&trial.convolution.sizes, sizes, sizeof sizes);
    trial.convolution.x = data_of(x, &trial.x);
    trial.convolution.weight = trial.convolution.x == NULL ? NULL : data_of(weight, &trial.weight);
    trial.convolution.out = trial.convolution.weight == NULL ? NULL : data_of(out, &trial.out);
    if (trial.convolution.out == NULL) {
        return NULL;
    }
    int64_t kept;
    trial.room = fxjit_take_arena(fxjit_convolution_room(&trial.convolution.sizes, 1), &kept);
    if (trial.room == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    fxjit_take_turns(&compared);
    Py_END_ALLOW_THREADS
    fxjit_give_arena(trial.room, kept);
    if (compared.failed) {
        PyErr_SetString(PyExc_RuntimeError, "aten::convolution failed");
        return NULL;
    }
    return Py_BuildValue("LL", (long long)compared.times[0], (long long)compared.times[1]);
}
