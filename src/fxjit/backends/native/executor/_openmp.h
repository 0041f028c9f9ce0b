/* OpenMP as libtorch has it, for kernels of our own: not linked, since a second one would have threads of its own. */
#ifndef FXJIT_OPENMP_H
#define FXJIT_OPENMP_H

/* Once fxjit_gemm_runs() is true. */
typedef struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    void (*barrier)(void);
    int (*thread)(void);
    int (*threads)(void);
    int (*most)(void);
    int (*inside)(void);
} openmp_t;

extern openmp_t fxjit_openmp;

#endif
