/* What ends generated code at a graph break (_continue.c): a call that whoever ran the code makes when its frame is gone. */
#ifndef FXJIT_CONTINUE_H
#define FXJIT_CONTINUE_H

#include "cpython_compat.h"

extern PyTypeObject FxContinue_Type;

/* What entry code came to in the end: where it returned a Continue, runs the resume function, and that one's. Takes the
 * reference and gives a new one; NULL is passed through. */
PyObject *fx_finish(PyObject *result);

#endif
