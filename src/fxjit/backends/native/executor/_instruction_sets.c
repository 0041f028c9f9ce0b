/* Which vectors this processor has: AVX-512 or AVX2, for each of which kernels of our own are compiled (_wide.h), and the functions
 * by which other files call them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "../../../_tensor.h"
#include "_attention.h"
#include "_bfloat16.h"
#include "_convolution.h"
#include "_gemm.h"
#include "_openmp.h"
#include "_recurrent.h"

openmp_t fxjit_openmp;

#if defined(__x86_64__) && defined(__GNUC__)

/* In bits. */
enum { NEITHER = 0, AVX2 = 256, AVX512 = 512 };

static int
find_openmp(void)
{
    *(void **)&fxjit_openmp.parallel = fxjit_torch_symbol("GOMP_parallel");
    *(void **)&fxjit_openmp.barrier = fxjit_torch_symbol("GOMP_barrier");
    *(void **)&fxjit_openmp.thread = fxjit_torch_symbol("omp_get_thread_num");
    *(void **)&fxjit_openmp.threads = fxjit_torch_symbol("omp_get_num_threads");
    *(void **)&fxjit_openmp.most = fxjit_torch_symbol("omp_get_max_threads");
    *(void **)&fxjit_openmp.inside = fxjit_torch_symbol("omp_in_parallel");
    return fxjit_openmp.parallel && fxjit_openmp.barrier && fxjit_openmp.thread && fxjit_openmp.threads &&
           fxjit_openmp.most && fxjit_openmp.inside;
}

static int
vectors_here(void)
{
    if (!__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
        return NEITHER;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw")) {
        return AVX512;
    }
    return __builtin_cpu_supports("avx2") ? AVX2 : NEITHER;
}

static int known = -1;

static int
chosen(void)
{
    if (known < 0) {
        if (!fxjit_shim.ready) {
            return NEITHER; /* libtorch is not there yet */
        }
        known = find_openmp() ? vectors_here() : NEITHER;
    }
    return known;
}

int
fxjit_gemm_runs(void)
{
    return chosen() != NEITHER;
}

int
fxjit_has_avx512(void)
{
    return chosen() == AVX512;
}

#define BY_SET(RESULT, NAME, PARAMETERS, ARGUMENTS) \
    RESULT NAME##_avx512 PARAMETERS; \
    RESULT NAME##_avx2 PARAMETERS; \
    RESULT NAME PARAMETERS \
    { \
        return chosen() == AVX512 ? NAME##_avx512 ARGUMENTS : NAME##_avx2 ARGUMENTS; \
    }

static int
choose(int bits)
{
    int here = vectors_here();
    if (chosen() == NEITHER || bits > here || (bits != AVX2 && bits != AVX512)) {
        return -1;
    }
    known = bits;
    return 0;
}

#else /* another processor, or another compiler: nothing asks for them */

static int
chosen(void)
{
    return 0;
}

static int
choose(int bits)
{
    return -1;
}

int
fxjit_gemm_runs(void)
{
    return 0;
}

int
fxjit_has_avx512(void)
{
    return 0;
}

#define BY_SET(RESULT, NAME, PARAMETERS, ARGUMENTS) \
    RESULT NAME PARAMETERS \
    { \
        Py_FatalError("there are no kernels for this processor"); \
    }

#endif

BY_SET(int, fxjit_gemm, (const product_t *product), (product))
BY_SET(int, fxjit_gemm_by_size, (const product_t *product), (product))
BY_SET(int, fxjit_gemm_alone, (const product_t *product), (product))
BY_SET(int, fxjit_gemm_batch, (const product_t *first, const batch_t *batch), (first, batch))
BY_SET(void, fxjit_gemm_pack_columns, (const matrix_t *b, int64_t depth, int64_t columns, float *to), (b, depth, columns, to))
BY_SET(int64_t, fxjit_gemm_packed_columns, (int64_t columns), (columns))
BY_SET(int64_t, fxjit_convolution_room, (const convolution_sizes_t *sizes, int threads), (sizes, threads))
BY_SET(int, fxjit_convolution_threads, (const convolution_sizes_t *sizes), (sizes))
BY_SET(int, fxjit_convolve, (const convolution_t *convolution, void *room, int threads), (convolution, room, threads))
BY_SET(int, fxjit_attention_threads, (const attention_t *attention, int backward), (attention, backward))
BY_SET(int64_t, fxjit_attention_room, (const attention_t *attention, int backward, int threads), (attention, backward, threads))
BY_SET(void, fxjit_attend, (const attention_t *attention, void *room, int threads), (attention, room, threads))
BY_SET(void, fxjit_attend_backward, (const attention_backward_t *attention, void *room, int threads), (attention, room, threads))
BY_SET(int, fxjit_few_bfloat16, (const few_t *product), (product))
BY_SET(int, fxjit_run_layer, (const layer_t *layer, int backward), (layer, backward))

/* -- one thread ----------------------------------------------------------------------------------------------------*/

typedef struct {
    void (*function)(void *);
    void *data;
} alone_t;

static void
first_of_two(void *data)
{
    alone_t *alone = data;
    if (fxjit_openmp.thread() == 0) {
        alone->function(alone->data);
    }
}

void
fxjit_on_one_thread(void (*function)(void *), void *data)
{
    alone_t alone = {function, data};
    if (!fxjit_gemm_runs() || fxjit_openmp.inside() || fxjit_openmp.most() == 1) {
        function(data);
    }
    else {
        fxjit_openmp.parallel(first_of_two, &alone, 2, 0);
    }
}

/* -- for Python ----------------------------------------------------------------------------------------------------*/

PyObject *
fxjit_vector_bits(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLong(chosen());
}

PyObject *
fxjit_set_vector_bits(PyObject *Py_UNUSED(module), PyObject *bits)
{
    long wanted = PyLong_AsLong(bits);
    if (wanted == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (wanted < 0 || wanted > 512 || choose((int)wanted) < 0) {
        PyErr_SetString(PyExc_ValueError, "there are no kernels for such vectors here");
        return NULL;
    }
    Py_RETURN_NONE;
}
