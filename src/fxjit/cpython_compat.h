/* Every difference between CPython 3.11, 3.12 and 3.13 that the C side knows of. No other C file tests a version.
 *
 * Included first, in place of Python.h, by files that look into frames. What comes out: the fields of a frame that is
 * about to start (`fx_frame_*`), how to get rid of a frame that we answered for (`fx_frame_discard`), and the slot that
 * code objects keep for us (`fx_code_extra_*`). */
#ifndef FXJIT_CPYTHON_COMPAT_H
#define FXJIT_CPYTHON_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "fxjit supports CPython 3.11, 3.12 and 3.13"
#endif
/* What 3.14 changes for the code below, from its headers (pycore_interpframe_structs.h, pycore_interpframe.h):
 *  - the inline functions of frames moved from pycore_frame.h to pycore_interpframe.h;
 *  - f_executable, f_funcobj and each entry of localsplus are a _PyStackRef: a pointer whose low bits say whether it is a
 *    reference of its own (PyStackRef_AsPyObjectBorrow reads it, PyStackRef_CLOSE gives it up). The hook reads localsplus as
 *    an array of pointers, so there it needs a copy;
 *  - `stacktop`, a count, is `stackpointer`, an address one past the last entry;
 *  - only builds without the GIL, which are refused anyway, have another field (tlbc_index);
 *  - f_globals, f_builtins, f_locals and frame_obj, the owners THREAD and GENERATOR, and the evaluator's arguments
 *    (thread state, frame, throwflag) and its setter are as in 3.13. */
#ifdef Py_GIL_DISABLED
#error "fxjit needs the GIL: it does not support free-threaded builds of CPython"
#endif

#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#define FX_PY312 (PY_VERSION_HEX >= 0x030C0000)
#define FX_PY313 (PY_VERSION_HEX >= 0x030D0000)

/* ---- a frame that is about to run its first instruction ---- */

static inline PyCodeObject *
fx_frame_code(_PyInterpreterFrame *frame)
{
#if FX_PY313
    return (PyCodeObject *)frame->f_executable;
#else
    return frame->f_code;
#endif
}

static inline PyObject *
fx_frame_function(_PyInterpreterFrame *frame)
{
#if FX_PY312
    return frame->f_funcobj;
#else
    return (PyObject *)frame->f_func;
#endif
}

/* A frame of a call, as opposed to one that lives in a generator; nothing has looked at it yet. */
static inline int
fx_frame_is_fresh_call(_PyInterpreterFrame *frame)
{
    return frame->owner == FRAME_OWNED_BY_THREAD && frame->frame_obj == NULL && frame->f_locals == NULL;
}

/* Whoever evaluates a frame has to leave it as the caller expects.
 *
 * 3.11: _PyEval_Vector clears the frame and takes it off the data stack itself; an evaluator may just return.
 * 3.12+: the evaluator does both (https://github.com/python/cpython/pull/100718 moved it). A frame that never started
 * holds its arguments, its function and its code, and is linked to nothing, so giving up these references and taking it
 * off the stack is all there is to do. Locals go first: their finalizers may push frames, which must come above this
 * one. */
static inline void
fx_frame_discard(PyThreadState *tstate, _PyInterpreterFrame *frame)
{
#if FX_PY312
    PyObject *code = (PyObject *)fx_frame_code(frame);
    PyObject *func = frame->f_funcobj;
    int filled = frame->stacktop;
    frame->stacktop = 0;
    for (int i = 0; i < filled; i++) {
        Py_XDECREF(frame->localsplus[i]);
    }
    Py_XDECREF(frame->f_locals);
    Py_DECREF(func);
    Py_DECREF(code);
    _PyStackChunk *chunk = tstate->datastack_chunk;
    if ((PyObject **)frame == chunk->data && chunk->previous != NULL) {
        /* The frame opened this chunk of the data stack: the chunk goes with it. Chunks come from the arena allocator
         * (push_chunk in Python/pystate.c). */
        _PyStackChunk *below = chunk->previous;
        tstate->datastack_chunk = below;
        tstate->datastack_top = below->data + below->top;
        tstate->datastack_limit = (PyObject **)((char *)below + below->size);
        PyObjectArenaAllocator arena;
        PyObject_GetArenaAllocator(&arena);
        arena.free(arena.ctx, chunk, chunk->size);
    }
    else {
        tstate->datastack_top = (PyObject **)frame;
    }
#else
    (void)tstate;
    (void)frame;
#endif
}

/* Before 3.12 nothing counts the C stack that a nested evaluator takes, so a raised recursion limit can overrun it. */
#define FX_MUST_WATCH_C_STACK (!FX_PY312)

/* ---- tracers ---- */

/* Whether somebody follows this code line by line: a trace function of the thread (sys.settrace: debuggers, coverage),
 * or from 3.12 a tool of sys.monitoring that asked for the lines of this very code object (a breakpoint in it). */
static inline int
fx_lines_are_followed(PyThreadState *tstate, const PyCodeObject *code)
{
    if (tstate->c_tracefunc != NULL) {
        return 1;
    }
#if FX_PY312
    const int line_event = 5; /* PY_MONITORING_EVENT_LINE, which 3.12 has in an internal header only */
    return code->_co_monitoring != NULL && code->_co_monitoring->local_monitors.tools[line_event] != 0;
#else
    (void)code;
    return 0;
#endif
}

/* ---- the slot of a code object that is ours ---- */

static inline Py_ssize_t
fx_code_extra_request(freefunc release)
{
#if FX_PY312
    return PyUnstable_Eval_RequestCodeExtraIndex(release);
#else
    return _PyEval_RequestCodeExtraIndex(release);
#endif
}

static inline int
fx_code_extra_get(PyCodeObject *code, Py_ssize_t index, void **extra)
{
#if FX_PY312
    return PyUnstable_Code_GetExtra((PyObject *)code, index, extra);
#else
    return _PyCode_GetExtra((PyObject *)code, index, extra);
#endif
}

static inline int
fx_code_extra_set(PyCodeObject *code, Py_ssize_t index, void *extra)
{
#if FX_PY312
    return PyUnstable_Code_SetExtra((PyObject *)code, index, extra);
#else
    return _PyCode_SetExtra((PyObject *)code, index, extra);
#endif
}

/* ---- classes that have not changed ---- */

/* A class's own namespace; borrowed from the class, which holds it. */
static inline PyObject *
fx_type_dict(PyTypeObject *type)
{
#if FX_PY312
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict);
    return dict;
#else
    return type->tp_dict;
#endif
}

/* The version of a class: another number after each change of what looking a name up in it or in its bases can give, and no
 * other class's. 0: it has none now. */
static inline unsigned int
fx_type_version_now(const PyTypeObject *type)
{
    return type->tp_version_tag;
}

/* The same, of a class that gets one where it has none and the Python has numbers left. On 3.11 a look-up gives it one, which
 * keeps what it finds under that number. */
static inline unsigned int
fx_type_version(PyTypeObject *type)
{
#if FX_PY312
    (void)PyUnstable_Type_AssignVersionTag(type);
#else
    if (type->tp_version_tag == 0) {
        PyObject *name = PyUnicode_InternFromString("__class__");
        if (name == NULL) {
            PyErr_Clear();
            return 0;
        }
        (void)_PyType_Lookup(type, name);
        Py_DECREF(name);
    }
#endif
    return type->tp_version_tag;
}

/* ---- dicts that have not changed ---- */

/* 3.11 gives each state of each dict a version that no other state of any dict ever has. From 3.12 somebody can be told
 * before a dict changes, and the versions are on their way out (gone in 3.13). */
#define FX_DICTS_ARE_WATCHED FX_PY312

#if !FX_DICTS_ARE_WATCHED
static inline const uint64_t *
fx_dict_version(PyObject *dict)
{
    return &((PyDictObject *)dict)->ma_version_tag; /* deprecated from 3.12 */
}
#endif

/* In 3.13 an instance dict can share its values with the object that it is of, and a store to an attribute of that object
 * then tells nobody. Makes the dict have values of its own, with the same items in the same order: that is what taking an
 * item out of it does. 0, or -1 where it cannot (perhaps with an exception). */
static inline int
fx_dict_separate(PyObject *dict)
{
#if FX_PY313
    if (((PyDictObject *)dict)->ma_values != NULL) {
        if (PyDict_GET_SIZE(dict) == 0) {
            return -1;
        }
        PyObject *last = PyObject_CallMethod(dict, "popitem", NULL);
        if (last == NULL) {
            return -1;
        }
        int status = PyDict_SetItem(dict, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1));
        Py_DECREF(last);
        return status < 0 || ((PyDictObject *)dict)->ma_values != NULL ? -1 : 0;
    }
#else
    (void)dict;
#endif
    return 0;
}

/* Looking up a str in such a dict runs no Python code. The head of a PyDictKeysObject is the same in 3.11 to 3.13; its
 * header cannot be included next to the public ones in each of them. */
static inline int
fx_dict_has_only_str_keys(PyObject *dict)
{
    const struct {
        Py_ssize_t refcount;
        uint8_t log2_size, log2_index_bytes, kind;
    } *keys = (const void *)((PyDictObject *)dict)->ma_keys;
    return keys->kind != 0; /* DICT_KEYS_GENERAL */
}

/* ---- small things ---- */

/* Whether this thread is the one that runs the handlers of signals. Exported by each Python, but declared in headers that
 * differ, in 3.13 in an internal one. */
PyAPI_FUNC(int) _PyOS_IsMainThread(void);

static inline int
fx_interpreter_is_finalizing(void)
{
#if FX_PY313
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* The object a weak reference points to, borrowed, or NULL when it is gone. */
static inline PyObject *
fx_weakref_target(PyObject *ref)
{
#if FX_PY313
    PyObject *target = NULL;
    if (PyWeakref_GetRef(ref, &target) <= 0) {
        return NULL;
    }
    Py_DECREF(target); /* the caller looks at the address or holds the object by other means */
    return target;
#else
    PyObject *target = PyWeakref_GET_OBJECT(ref);
    return target == Py_None ? NULL : target;
#endif
}

#endif
