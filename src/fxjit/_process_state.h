/* State of the process and of this thread, as one number each. Apart from grad mode these are asked of functions that
 * torch exports without promising to; tensor_shim.py compares each with what Python says before it is used. */
#ifndef FXJIT_PROCESS_STATE_H
#define FXJIT_PROCESS_STATE_H

#include <Python.h>
#include <stdint.h>

typedef enum {
    FXJIT_GRAD_MODE,
    FXJIT_INFERENCE_MODE,
    FXJIT_AUTOCAST,              /* 0: off for every device */
    FXJIT_DEFAULT_DTYPE,         /* the shim's code */
    FXJIT_DETERMINISTIC,
    FXJIT_TORCH_FUNCTION,        /* 0: in force */
    FXJIT_TORCH_FUNCTION_MODES,  /* how many */
    FXJIT_DISPATCH_MODES,        /* how many */
    FXJIT_FUNCTORCH_LEVELS,      /* 0: none */
    FXJIT_FLOAT32_PRECISION,     /* 0: float32 is multiplied in full; process_state.py has the rest */
    FXJIT_KEEPS_GRAPH,           /* inside backward: whether the autograd graph is retained */
    FXJIT_JIT_TRACING,           /* 0: torch.jit.trace is not at work */
    FXJIT_NUM_STATES,
} fxjit_state;

/* Whether torch exports what it takes. */
int fxjit_state_known(fxjit_state state);
/* Only where fxjit_state_known. */
int64_t fxjit_state_now(fxjit_state state);
/* The state of this name; -1 with an exception if there is none, or it is not known. */
int fxjit_state_index(PyObject *name);

/* Finds torch's functions; `autocast_keys` are the dispatch keys of autocast on all devices. Called by _C.tensor_init. */
void fxjit_states_resolve(uint64_t autocast_keys);

#endif
