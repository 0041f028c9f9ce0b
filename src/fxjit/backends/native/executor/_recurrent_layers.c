/* Recurrent layers for Python (runtime/own_recurrent.py): _recurrent.c. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_gemm.h"
#include "_recurrent.h"

/* The numbers of a layer_t, addresses among them. */
static PyObject *
run(PyObject *numbers, int backward)
{
    layer_t layer;
    int64_t words[sizeof(layer_t) / sizeof(int64_t)];
    const Py_ssize_t count = sizeof words / sizeof *words;
    if (!PyTuple_Check(numbers) || PyTuple_GET_SIZE(numbers) != count) {
        return PyErr_Format(PyExc_TypeError, "a recurrent layer has %zd numbers", count);
    }
    if (!fxjit_gemm_runs()) {
        PyErr_SetString(PyExc_RuntimeError, "this processor has neither AVX-512 nor AVX2");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        words[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i));
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    memcpy(&layer, words, sizeof layer);
    if (layer.kind < LSTM || layer.kind > RNN_RELU || layer.directions < 1 || layer.directions > 2) {
        PyErr_SetString(PyExc_ValueError, "there is no such recurrent layer");
        return NULL;
    }
    if (fxjit_run_layer(&layer, backward) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
fxjit_recurrent_forward(PyObject *Py_UNUSED(module), PyObject *numbers)
{
    return run(numbers, 0);
}

PyObject *
fxjit_recurrent_backward(PyObject *Py_UNUSED(module), PyObject *numbers)
{
    return run(numbers, 1);
}
