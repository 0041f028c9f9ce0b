/* Deferred signals: exceptions of signal handlers wait, while a frame is compiled, for a safe point. */
#ifndef FXJIT_SIGNALS_H
#define FXJIT_SIGNALS_H

#include <Python.h>

/* Whether this thread defers what its signal handlers raise. */
int fx_signals_are_deferred(void);

/* What `_C.defer_signals` does. No handler is called outside of the deferral that it begins. */
void fx_defer_signals(void);

/* Ends what `_C.defer_signals()` began on this thread; whether an exception waits, for `fx_raise_deferred`. */
int fx_stop_deferring_signals(void);

/* Raises the exception that waited; nothing where none did. */
void fx_raise_deferred(void);

/* Whether this object is `_C.Interrupted`: the payload of an entry whose code raises what waited itself. */
int fx_is_interrupted(PyObject *payload);

#endif
