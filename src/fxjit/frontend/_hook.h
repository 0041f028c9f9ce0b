/* What the call path (_call.c) needs of the frame hook (_hook.c): regions, switching them on this thread, and running a
 * compiled entry for arguments that are already bound. */
#ifndef FXJIT_HOOK_H
#define FXJIT_HOOK_H

#include "cpython_compat.h"

/* What a compiled callable activates while it runs: which entries may be used (`key`) and who is asked when none fits. */
typedef struct {
    PyObject_HEAD
    PyObject *key;      /* compared by identity */
    PyObject *callback; /* NULL: frozen, entries only */
    PyObject *weakrefs;
} FxRegion;

extern PyTypeObject FxRegion_Type;

/* What a thread does with frames that start on it. */
typedef struct {
    FxRegion *region; /* owned; NULL: no region */
    int bypass;       /* not 0: frames run as they are, evaluators of others are not asked either */
} FxHookState;

/* Switches this thread over and hands out what it did before; every switch is undone by one restore, also on errors. */
void fx_hook_switch(FxRegion *region, int bypass, FxHookState *before);
void fx_hook_restore(FxHookState *before);
int fx_hook_bypass(void);

/* Runs the first entry of (code of func, region's key) whose guards hold for these argument slots.
 * 1: one ran, `*result` is what it gave (NULL with an exception set where it raised, or a guard did). 0: none holds.
 * The region must be the thread's current one. */
int fx_hook_run_entry(FxRegion *region, PyFunctionObject *func, PyObject *const *slots, Py_ssize_t nslots,
                      PyObject **result);

/* References that a caller gives up as soon as the frame it calls has its own: generated code that stands in for a frame
 * must not keep the frame's arguments alive for the whole call. */
typedef struct FxHandover {
    PyObject *func; /* the function that is about to be called */
    PyObject **slots;
    Py_ssize_t nslots;
    struct FxHandover *outer;
} FxHandover;

/* Calls func(*slots), with references that are given up (NULL in `slots` afterwards) once its frame has begun, if our
 * evaluator sees it. */
PyObject *fx_hook_call_handing_over(PyObject *func, PyObject **slots, Py_ssize_t nslots);

/* How many argument slots the frame of this code starts with. */
static inline Py_ssize_t
fx_argument_slots(const PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
           ((code->co_flags & CO_VARKEYWORDS) != 0);
}

#endif
