/* Deferred signals: exceptions of signal handlers wait, while a frame is compiled, for a safe point.
 *
 * CPython calls a handler between any two bytecodes of the main thread, so that what it raises may pass through any code:
 * an `except Exception` of torch's or ours that takes it for an error of the operator being tried, the `__exit__` of a mode
 * that is then never left. `defer_signals` puts a handler of ours before those of the program. It calls the program's at
 * once, and keeps what that raises. `safe_point`, called where everything can be unwound, raises `Interrupted` for it, which
 * is no Exception; and when the compile has ended, one way or the other, the frame hook raises the program's exception itself
 * (`fx_stop_deferring_signals`): once, where the compiled function was called.
 *
 * Only the handlers that Python knows change: each signal's action of the operating system, with its flags, stays. */
#define PY_SSIZE_T_CLEAN
#include "_signals.h"

#include <signal.h>

#include "_module.h"
#include "cpython_compat.h"

#define MAX_SIGNALS 65

static struct {
    unsigned long owner;                 /* the thread; 0: nobody defers */
    PyObject *raised;                    /* what waits for the end */
    PyObject *handled;                   /* the exception that the program was handling when it began, or NULL */
    PyObject *handlers[MAX_SIGNALS];     /* the program's, kept: it may have taken ours for them */
    char replaced[MAX_SIGNALS];          /* ours stands in its place now */
} deferral;

static PyObject *interrupted, *our_handler;
static PyObject *get_handler, *set_handler; /* of the module signal */

int
fx_signals_are_deferred(void)
{
    return deferral.owner != 0 && deferral.owner == PyThread_get_thread_ident();
}

/* ---- what waits ---- */

/* Takes the exception that is set: one that waits already becomes its context, as if a handler had been interrupted. */
static void
keep_raised(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    PyObject *context = value == NULL || deferral.raised == NULL ? NULL : PyException_GetContext(value);
    if (value != NULL && deferral.raised != NULL && context == NULL && value != deferral.raised) {
        PyException_SetContext(value, Py_NewRef(deferral.raised));
    }
    Py_XDECREF(context);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    if (value != NULL) {
        Py_XSETREF(deferral.raised, value);
    }
}

/* The handler in the place of the program's. */
static PyObject *
on_signal(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    long number = nargs == 2 ? PyLong_AsLong(args[0]) : -1;
    PyObject *handler = number > 0 && number < MAX_SIGNALS ? deferral.handlers[number] : NULL;
    if (handler == NULL) {
        PyErr_SetString(PyExc_TypeError, "called for a signal by CPython alone");
        return NULL;
    }
    Py_INCREF(handler);
    PyObject *result;
    if (!fx_signals_are_deferred()) { /* the program took this for its own handler, and put it back later */
        result = PyObject_Vectorcall(handler, args, 2, NULL);
        Py_DECREF(handler);
        return result;
    }
    /* What the compile is handling is not the context of what the program raises. */
    PyThreadState *tstate = PyThreadState_Get();
    _PyErr_StackItem own = {.exc_value = Py_XNewRef(deferral.handled), .previous_item = NULL}, *before = tstate->exc_info;
    tstate->exc_info = &own;
    result = PyObject_Vectorcall(handler, args, 2, NULL);
    tstate->exc_info = before;
    Py_XDECREF(own.exc_value);
    Py_DECREF(handler);
    if (result == NULL) {
        keep_raised();
        Py_RETURN_NONE;
    }
    return result;
}

/* ---- handlers put in place and back ---- */

/* Whether the exception is signal.signal's own, and no handler's: in a subinterpreter, of a number that has no signal. */
static int
refused(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int own = traceback == NULL && (type == PyExc_ValueError || type == PyExc_OSError);
    PyErr_Restore(type, value, traceback);
    return own;
}

/* signal.signal(number, handler). It calls handlers of signals that have arrived: what those raise is kept too. */
static int
replace_handler(int number, PyObject *handler)
{
    for (;;) {
        struct sigaction action;
        int known = sigaction(number, NULL, &action) == 0;
        PyObject *before = PyObject_CallFunction(set_handler, "iO", number, handler);
        if (known) {
            sigaction(number, &action, NULL);
        }
        if (before != NULL) {
            Py_DECREF(before);
            return 0;
        }
        if (refused()) {
            PyErr_Clear();
            return -1;
        }
        keep_raised();
    }
}

void
fx_defer_signals(void)
{
    if (deferral.owner != 0 || !_PyOS_IsMainThread()) { /* asked without running Python, where a handler could be called */
        return;
    }
    deferral.handled = PyErr_GetHandledException();
    deferral.owner = PyThread_get_thread_ident();
    for (int number = 1; number < MAX_SIGNALS && number < NSIG; number++) {
        if (number == SIGKILL || number == SIGSTOP) {
            continue;
        }
        PyObject *handler = PyObject_CallFunction(get_handler, "i", number);
        if (handler == NULL) {
            PyErr_Clear(); /* ValueError: not one of this system's */
            continue;
        }
        if (handler != our_handler && PyCallable_Check(handler)) {
            Py_XSETREF(deferral.handlers[number], Py_NewRef(handler));
            deferral.replaced[number] = replace_handler(number, our_handler) == 0;
        }
        Py_DECREF(handler);
    }
}

int
fx_stop_deferring_signals(void)
{
    for (int number = 1; number < MAX_SIGNALS; number++) {
        if (!deferral.replaced[number]) {
            continue;
        }
        PyObject *now = PyObject_CallFunction(get_handler, "i", number);
        if (now == NULL) {
            PyErr_Clear();
        }
        else if (now == our_handler) { /* else the program has set another meanwhile, which stays */
            replace_handler(number, deferral.handlers[number]);
        }
        Py_XDECREF(now);
        deferral.replaced[number] = 0;
    }
    deferral.owner = 0;
    Py_CLEAR(deferral.handled);
    return deferral.raised != NULL;
}

void
fx_raise_deferred(void)
{
    PyObject *raised = deferral.raised;
    deferral.raised = NULL;
    if (raised != NULL) {
        PyErr_Restore(Py_NewRef(Py_TYPE(raised)), raised, PyException_GetTraceback(raised));
    }
}

int
fx_is_interrupted(PyObject *payload)
{
    return payload == interrupted;
}

static PyObject *
defer_signals(PyObject *module, PyObject *ignored)
{
    fx_defer_signals();
    Py_RETURN_NONE;
}

static PyObject *
signal_pending(PyObject *module, PyObject *ignored)
{
    return PyBool_FromLong(deferral.raised != NULL && fx_signals_are_deferred());
}

static PyObject *
raise_deferred(PyObject *module, PyObject *ignored)
{
    fx_raise_deferred();
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
safe_point(PyObject *module, PyObject *ignored)
{
    if (deferral.raised != NULL && fx_signals_are_deferred()) {
        PyErr_SetNone(interrupted);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- the module ---- */

static PyMethodDef handler_def = {
    "on_signal", (PyCFunction)(void (*)(void))on_signal, METH_FASTCALL,
    "on_signal(number, frame, /)\n--\n\nCalls the program's handler, and keeps what it raises until the compile has ended."};

static PyMethodDef functions[] = {
    {"defer_signals", defer_signals, METH_NOARGS,
     "defer_signals()\n--\n\nUntil the region's callback returns, exceptions of signal handlers wait for a safe point. On threads "
     "other than the main one, which run no handlers, nothing changes."},
    {"safe_point", safe_point, METH_NOARGS,
     "safe_point()\n--\n\nRaises Interrupted where an exception of a signal handler waits."},
    {"signal_pending", signal_pending, METH_NOARGS,
     "signal_pending()\n--\n\nWhether an exception of a signal handler is pending until this thread's compile ends."},
    {"raise_deferred", raise_deferred, METH_NOARGS,
     "raise_deferred()\n--\n\nRaises the exception that waited until the compile had ended."},
    {NULL},
};

static PyObject *
attribute_of(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *found = imported == NULL ? NULL : PyObject_GetAttrString(imported, name);
    Py_XDECREF(imported);
    return found;
}

int
fxjit_signals_init(PyObject *module)
{
    interrupted = PyErr_NewExceptionWithDoc(
        "fxjit._C.Interrupted", "Signal: a compile ends at a safe point because a signal handler raised.", PyExc_BaseException, NULL);
    our_handler = PyCFunction_New(&handler_def, NULL);
    get_handler = attribute_of("_signal", "getsignal");
    set_handler = attribute_of("_signal", "signal");
    if (interrupted == NULL || our_handler == NULL || get_handler == NULL || set_handler == NULL ||
        PyModule_AddObjectRef(module, "Interrupted", interrupted) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
