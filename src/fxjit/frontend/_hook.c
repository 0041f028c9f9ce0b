/* The frame hook (PEP 523): sees a frame before its first instruction, in a thread that runs a compiled region, and
 * decides in C what happens to it: run as it is, run a compiled entry whose guards hold, or ask the region's callback.
 *
 *   frame -> flags of its code object -> entries of (code, region's key), in order -> callback -> entry, or as it is
 *
 * There is no policy here: which code is skipped, what is compiled and how much of it is decided in Python and left on
 * the code object as flags and entries. The evaluator is installed while at least one thread needs it. Evaluators that
 * others installed are called for every frame that we don't answer ourselves.
 *
 * All entry points run under the GIL; what a thread is doing is in `here`, what the process is doing in `hook`. */
#include "frontend/_hook.h"

#include <stddef.h>
#include <structmember.h>
#ifdef __GLIBC__
#include <pthread.h>
#endif

#include "_module.h"
#include "_signals.h"
#include "frontend/_continue.h"
#include "frontend/_entries.h"

/* ---- state ---- */

typedef struct {
    FxHookState now;
    int active;                     /* whether this thread is counted in hook.threads */
    _PyInterpreterFrame *delegated; /* the frame that was last passed on to another evaluator */
    FxHandover *handover;           /* what the next frame lets its caller give up; NULL: nothing */
    char *stack_floor;              /* do not recurse below this address; NULL: not looked up yet */
} HookThread;

static _Thread_local HookThread here;

static struct {
    Py_ssize_t threads;            /* threads that need the evaluator */
    _PyFrameEvalFunction previous; /* the evaluator we found when we installed ours */
    int under_tracers;             /* compiled code runs also where somebody follows the lines */
    PyObject *agreement;           /* asked whether an entry that was found is used; NULL: it is */
} hook = {0, NULL, 0, NULL};

static PyObject *hook_evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);

/* ---- installing ---- */

static inline PyInterpreterState *
interpreter(void)
{
    return PyThreadState_GET()->interp;
}

static void
install(void)
{
    _PyFrameEvalFunction found = _PyInterpreterState_GetEvalFrameFunc(interpreter());
    /* Ours can still be there when another evaluator was put over it and taken off after our last region ended. */
    if (found != hook_evaluate) {
        hook.previous = found;
        _PyInterpreterState_SetEvalFrameFunc(interpreter(), hook_evaluate);
    }
}

static void
uninstall(void)
{
    /* An evaluator installed over ours calls us, and will put us back when it goes: then we are inert, and take
     * ourselves off at the first frame we see (`pass_on`). */
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter()) == hook_evaluate) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter(), hook.previous);
    }
}

static inline int
other_evaluator_is_below(void)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter());
    return (current == hook_evaluate ? hook.previous : current) != _PyEval_EvalFrameDefault;
}

/* The thread needs the evaluator in a region, and where it keeps frames away from the evaluators of others. */
static inline void
count_thread(void)
{
    int needed = here.now.region != NULL || (here.now.bypass && other_evaluator_is_below());
    if (needed == here.active) {
        return;
    }
    here.active = needed;
    if (needed) {
        if (hook.threads++ == 0) {
            install();
        }
    }
    else if (--hook.threads == 0) {
        uninstall();
    }
}

#if FX_MUST_WATCH_C_STACK
#define STACK_RESERVE (256 * 1024)

static char *
find_stack_floor(void)
{
    char *floor = (char *)1;
#ifdef __GLIBC__
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        void *lowest;
        size_t size;
        if (pthread_attr_getstack(&attributes, &lowest, &size) == 0 && size > 2 * STACK_RESERVE) {
            floor = (char *)lowest + STACK_RESERVE;
        }
        pthread_attr_destroy(&attributes);
    }
#endif
    return floor;
}

static inline int
stack_is_exhausted(void)
{
    if (here.stack_floor == NULL) {
        here.stack_floor = find_stack_floor();
    }
    return (char *)__builtin_frame_address(0) < here.stack_floor;
}
#else
static inline int
stack_is_exhausted(void)
{
    return 0;
}
#endif

void
fx_hook_switch(FxRegion *region, int bypass, FxHookState *before)
{
    *before = here.now;
    here.now.region = (FxRegion *)Py_XNewRef(region);
    here.now.bypass = bypass;
    count_thread();
}

void
fx_hook_restore(FxHookState *before)
{
    FxRegion *ended = here.now.region;
    here.now = *before;
    count_thread();
    Py_XDECREF(ended); /* last: it may run code */
}

int
fx_hook_bypass(void)
{
    return here.now.bypass;
}

PyObject *
fx_hook_call_handing_over(PyObject *func, PyObject **slots, Py_ssize_t nslots)
{
    FxHandover handover = {func, slots, nslots, here.handover};
    here.handover = &handover;
    PyObject *result = PyObject_Vectorcall(func, slots, nslots, NULL);
    here.handover = handover.outer;
    return result;
}

/* Whether the frame was called by the function above. The caller's references go: the frame holds its own, so that
 * nothing is finalized by that. */
static inline int
take_handover(_PyInterpreterFrame *frame)
{
    FxHandover *handover = here.handover;
    if (handover == NULL || fx_frame_function(frame) != handover->func) {
        return 0;
    }
    here.handover = handover->outer;
    for (Py_ssize_t i = 0; i < handover->nslots; i++) {
        Py_CLEAR(handover->slots[i]);
    }
    handover->nslots = 0;
    return 1;
}

/* ---- Region ---- */

static PyObject *
region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "callback", NULL};
    PyObject *key, *callback = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Region", names, &key, &callback)) {
        return NULL;
    }
    if (callback != Py_None && !PyCallable_Check(callback)) {
        return PyErr_Format(PyExc_TypeError, "callback must be callable or None, not %.100s",
                            Py_TYPE(callback)->tp_name);
    }
    FxRegion *self = (FxRegion *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->key = Py_NewRef(key);
        self->callback = callback == Py_None ? NULL : Py_NewRef(callback);
    }
    return (PyObject *)self;
}

static int
region_traverse(FxRegion *self, visitproc visit, void *arg)
{
    Py_VISIT(self->key);
    Py_VISIT(self->callback);
    return 0;
}

static int
region_clear(FxRegion *self)
{
    Py_CLEAR(self->key);
    Py_CLEAR(self->callback);
    return 0;
}

static void
region_dealloc(FxRegion *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    region_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
region_repr(FxRegion *self)
{
    return PyUnicode_FromFormat("<%sregion of %R>", self->callback == NULL ? "frozen " : "", self->key);
}

static PyMemberDef region_members[] = {
    {"key", T_OBJECT, offsetof(FxRegion, key), READONLY, "what the entries of this region are filed under, by identity"},
    {"callback", T_OBJECT, offsetof(FxRegion, callback), READONLY, "asked for an entry where none holds; None: frozen"},
    {NULL},
};

PyTypeObject FxRegion_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fxjit._C.Region",
    .tp_doc = "Region(key, callback=None)\n--\n\nWhat a compiled callable activates on its thread while it runs.",
    .tp_basicsize = sizeof(FxRegion),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = region_new,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_traverse = (traverseproc)region_traverse,
    .tp_clear = (inquiry)region_clear,
    .tp_repr = (reprfunc)region_repr,
    .tp_members = region_members,
    .tp_weaklistoffset = offsetof(FxRegion, weakrefs),
};

/* ---- looking up ---- */

/* A debugger or coverage sees the lines of the user's program only if these run. */
static inline int
must_run_by_line(PyThreadState *tstate, const PyCodeObject *code)
{
    return !hook.under_tracers && fx_lines_are_followed(tstate, code);
}

static PyObject *
tuple_of_slots(PyObject *const *slots, Py_ssize_t nslots)
{
    PyObject *args = PyTuple_New(nslots);
    for (Py_ssize_t i = 0; args != NULL && i < nslots; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(slots[i]));
    }
    return args;
}

/* Drops the entry that was found if hook.agreement says so (fxjit/agreement.py). */
static int
agreed_upon(PyObject *key, PyFunctionObject *func, PyObject *const *slots, Py_ssize_t nslots, FxEntry **found)
{
    PyObject *args = tuple_of_slots(slots, nslots);
    if (args == NULL) {
        Py_CLEAR(*found);
        return -1;
    }
    PyObject *agreement = Py_NewRef(hook.agreement);
    PyObject *parameters[] = {key, (PyObject *)func, args, *found == NULL ? Py_False : Py_True};
    FxHookState before;
    fx_hook_switch(NULL, 1, &before);
    PyObject *answer = PyObject_Vectorcall(agreement, parameters, 4, NULL);
    fx_hook_restore(&before);
    Py_DECREF(agreement);
    Py_DECREF(args);
    int agreed = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (agreed != 1) {
        Py_CLEAR(*found);
    }
    return agreed < 0 ? -1 : 0;
}

/* fx_find_entry, where there are entries. Guards that are Python are not for us to compile. */
static inline int
find_entry(CodeExtra *extra, Group *group, PyObject *key, PyFunctionObject *func, PyObject *const *slots,
           Py_ssize_t nslots, FxEntry **found)
{
    *found = NULL;
    if (group == NULL || PyTuple_GET_SIZE(group->entries) == 0) {
        return 0;
    }
    here.now.bypass++;
    int status = fx_find_entry(extra, group, key, func, slots, nslots, found);
    here.now.bypass--;
    return status < 0 || hook.agreement == NULL ? status : agreed_upon(key, func, slots, nslots, found);
}

int
fx_hook_run_entry(FxRegion *region, PyFunctionObject *func, PyObject *const *slots, Py_ssize_t nslots,
                  PyObject **result)
{
    PyCodeObject *code = (PyCodeObject *)func->func_code;
    CodeExtra *extra = find_extra(code);
    Group *group = extra == NULL || extra->flags != 0 ? NULL : find_group(extra, region->key);
    if (group == NULL || must_run_by_line(PyThreadState_GET(), code) || (group->flags & (FX_SKIP | FX_SKIP_RECURSIVE))) {
        return 0;
    }
    if (hook.agreement != NULL) { /* asked once a call: by the frame that starts then, whether or not an entry is found */
        return 0;
    }
    FxEntry *entry;
    Py_INCREF(code); /* and with it `extra`: a guard may give the function other code */
    int failed = find_entry(extra, group, region->key, func, slots, nslots, &entry) < 0;
    Py_DECREF(code);
    if (failed) {
        *result = NULL;
        return 1;
    }
    if (entry == NULL) {
        return 0;
    }
    *result = fx_finish(fx_entry_run(entry, func, slots, nslots));
    Py_DECREF(entry);
    return 1;
}

/* ---- the evaluator ---- */

static inline PyObject *
run_by_cpython(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
}

/* Leaves the frame to whoever was there before us. Two evaluators that were installed over each other in turns can end
 * up calling each other; a frame that comes back to us after we passed it on has seen them all. */
static PyObject *
pass_on(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    if (hook.threads == 0) {
        uninstall();
    }
    if (hook.previous == _PyEval_EvalFrameDefault) {
        return run_by_cpython(tstate, frame, throwflag);
    }
    _PyInterpreterFrame *outer = here.delegated;
    here.delegated = frame;
    PyObject *result = hook.previous(tstate, frame, throwflag);
    here.delegated = outer;
    return result;
}

static PyObject *
pass_on_without_region(PyThreadState *tstate, _PyInterpreterFrame *frame)
{
    FxHookState before;
    fx_hook_switch(NULL, here.now.bypass, &before);
    PyObject *result = pass_on(tstate, frame, 0);
    fx_hook_restore(&before);
    return result;
}

/* The compile is over: what a signal handler raised meanwhile takes the place of how it ended, unless the entry that it gave
 * raises that itself. */
static PyObject *
end_of_deferral(PyObject *answer)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int waits = fx_stop_deferring_signals();
    int raises = answer != NULL && PyObject_TypeCheck(answer, &FxEntry_Type) && fx_is_interrupted(((FxEntry *)answer)->payload);
    if (!waits || raises) {
        PyErr_Restore(type, value, traceback);
        return answer;
    }
    Py_XDECREF(answer); /* these may run code */
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    fx_raise_deferred();
    return NULL;
}

/* Asks the region's callback for an entry: strong reference, or NULL; with an exception set if something failed. */
static FxEntry *
ask_callback(FxRegion *region, PyFunctionObject *func, PyCodeObject *code, PyObject *const *slots, Py_ssize_t nslots,
             int is_resume_function)
{
    PyObject *args = tuple_of_slots(slots, nslots);
    if (args == NULL) {
        return NULL;
    }
    PyObject *closure = func->func_closure == NULL ? Py_None : func->func_closure;
    PyObject *callback = Py_NewRef(region->callback); /* the region may be cleared meanwhile */
    PyObject *parameters[] = {(PyObject *)region, (PyObject *)func,   (PyObject *)code,   args,
                              closure,            func->func_globals, func->func_builtins};
    FxHookState before;
    int deferred = fx_signals_are_deferred(); /* this compile is within another */
    if (is_resume_function) { /* it may be in blocks, and an exception is raised in those */
        fx_defer_signals();
    }
    fx_hook_switch(NULL, 1, &before);
    PyObject *answer = PyObject_Vectorcall(callback, parameters, 7, NULL);
    fx_hook_restore(&before);
    if (!deferred && fx_signals_are_deferred()) {
        answer = end_of_deferral(answer);
    }
    Py_DECREF(callback);
    Py_DECREF(args);
    if (answer == Py_None) {
        Py_DECREF(answer);
        return NULL;
    }
    if (answer != NULL && !PyObject_TypeCheck(answer, &FxEntry_Type)) {
        PyErr_Format(PyExc_TypeError, "the region's callback must return an Entry or None, not %.100s",
                     Py_TYPE(answer)->tp_name);
        Py_CLEAR(answer);
    }
    if (answer != NULL && !fx_entry_fits((FxEntry *)answer, code)) {
        Py_CLEAR(answer);
    }
    return (FxEntry *)answer;
}

/* The frame of a plain function starts in a region, and its code is not to be skipped. `is_resume_function`: whoever runs it
 * will run what it returns a Continue of, too (fx_finish). */
static PyObject *
evaluate_in_region(PyThreadState *tstate, _PyInterpreterFrame *frame, CodeExtra *extra, Group *group, int flags,
                   int is_resume_function)
{
    PyCodeObject *code = fx_frame_code(frame);
    PyFunctionObject *func = (PyFunctionObject *)fx_frame_function(frame);
    Py_ssize_t nslots = fx_argument_slots(code);
    FxRegion *region = (FxRegion *)Py_NewRef(here.now.region);
    FxEntry *entry = NULL;
    PyObject *result = NULL;
    int failed = find_entry(extra, group, region->key, func, frame->localsplus, nslots, &entry) < 0;
    if (!failed && entry == NULL && region->callback != NULL && !(flags & FX_FROZEN)) {
        entry = ask_callback(region, func, code, frame->localsplus, nslots, is_resume_function);
        failed = entry == NULL && PyErr_Occurred() != NULL;
        extra = find_extra(code); /* the callback may have flagged the code: that holds for this call as well */
        flags = flags_for(extra, extra == NULL ? NULL : find_group(extra, region->key));
    }
    Py_DECREF(region);
    if (!failed && entry == NULL) {
        return flags & FX_SKIP_RECURSIVE ? pass_on_without_region(tstate, frame) : pass_on(tstate, frame, 0);
    }
    if (entry != NULL) {
        result = fx_entry_run_for_frame(entry, func, frame->localsplus, nslots);
        Py_DECREF(entry);
        if (!is_resume_function) {
            result = fx_finish(result);
        }
    }
    fx_frame_discard(tstate, frame);
    return result;
}

static PyObject *
hook_evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    int is_resume_function = here.handover != NULL && take_handover(frame);
    if (here.now.bypass || frame == here.delegated) {
        return run_by_cpython(tstate, frame, throwflag);
    }
    /* tracing: the frame belongs to a trace or profile function, or to a callback of sys.monitoring */
    if (here.now.region == NULL || throwflag || tstate->tracing || !fx_frame_is_fresh_call(frame)) {
        return pass_on(tstate, frame, throwflag);
    }
    if (stack_is_exhausted()) {
        PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: the C stack of the thread is used up");
        fx_frame_discard(tstate, frame);
        return NULL;
    }
    PyCodeObject *code = fx_frame_code(frame);
    CodeExtra *extra = find_extra(code);
    Group *group = extra == NULL ? NULL : find_group(extra, here.now.region->key);
    int flags = flags_for(extra, group);
    if (flags & FX_TRANSFORMED) {
        return run_by_cpython(tstate, frame, throwflag);
    }
    if (flags & FX_SKIP_RECURSIVE) {
        return pass_on_without_region(tstate, frame);
    }
    PyObject *func = fx_frame_function(frame);
    if ((flags & FX_SKIP) || !is_plain_function(code) || func == NULL || !PyFunction_Check(func) ||
        must_run_by_line(tstate, code)) {
        return pass_on(tstate, frame, throwflag);
    }
    return evaluate_in_region(tstate, frame, extra, group, flags, is_resume_function);
}

/* ---- functions of the module ---- */

static PyObject *
set_region(PyObject *module, PyObject *region)
{
    if (region != Py_None && !PyObject_TypeCheck(region, &FxRegion_Type)) {
        return PyErr_Format(PyExc_TypeError, "set_region() takes a Region or None, not %.100s",
                            Py_TYPE(region)->tp_name);
    }
    FxHookState before;
    fx_hook_switch(region == Py_None ? NULL : (FxRegion *)region, region == Py_None ? here.now.bypass : 0, &before);
    if (before.region == NULL) {
        Py_RETURN_NONE;
    }
    return (PyObject *)before.region;
}

static PyObject *
current_region(PyObject *module, PyObject *ignored)
{
    return Py_NewRef(here.now.region == NULL ? Py_None : (PyObject *)here.now.region);
}

static PyObject *
hook_info(PyObject *module, PyObject *ignored)
{
    int on_top = _PyInterpreterState_GetEvalFrameFunc(interpreter()) == hook_evaluate;
    return Py_BuildValue("{s:N,s:n,s:N,s:N}", "installed", PyBool_FromLong(on_top), "threads", hook.threads, "bypass",
                         PyBool_FromLong(here.now.bypass != 0), "chained",
                         PyBool_FromLong(other_evaluator_is_below()));
}

/* In the child of a fork only this thread is left, whatever the others were doing. */
static PyObject *
forget_other_threads(PyObject *module, PyObject *ignored)
{
    hook.threads = here.active;
    if (hook.threads == 0) {
        uninstall();
    }
    Py_RETURN_NONE;
}

static PyObject *
compile_under_tracers(PyObject *module, PyObject *value)
{
    int yes = PyObject_IsTrue(value);
    if (yes < 0) {
        return NULL;
    }
    PyObject *before = PyBool_FromLong(hook.under_tracers);
    hook.under_tracers = yes;
    return before;
}

static PyObject *
set_agreement(PyObject *module, PyObject *function)
{
    if (function != Py_None && !PyCallable_Check(function)) {
        return PyErr_Format(PyExc_TypeError, "set_agreement() takes a callable or None, not %.100s",
                            Py_TYPE(function)->tp_name);
    }
    Py_XSETREF(hook.agreement, function == Py_None ? NULL : Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_region", set_region, METH_O, "set_region(region, /)\n--\n\nSet this thread's region; returns the previous."},
    {"current_region", current_region, METH_NOARGS, "current_region()\n--\n\nThis thread's region, or None."},
    {"hook_info", hook_info, METH_NOARGS, "hook_info()\n--\n\nWhether the evaluator is installed, and for how many."},
    {"forget_other_threads", forget_other_threads, METH_NOARGS,
     "forget_other_threads()\n--\n\nFor the child of a fork: no other thread is in a region."},
    {"set_agreement", set_agreement, METH_O,
     "set_agreement(function, /)\n--\n\nWhere a code object has entries, function(key, func, args, held) is asked at each look-up "
     "whether what was found is used; None: it is."},
    {"compile_under_tracers", compile_under_tracers, METH_O,
     "compile_under_tracers(yes, /)\n--\n\nWhether frames whose lines a tracer follows are compiled and run compiled "
     "(they are not, from the start); returns the previous."},
    {NULL},
};

int
fxjit_hook_init(PyObject *module)
{
    hook.previous = _PyEval_EvalFrameDefault;
    if (PyModule_AddType(module, &FxRegion_Type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
