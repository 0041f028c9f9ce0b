/* A tensor seen through torch's stable C shim, without torch's headers. tensor_shim.py calls `_C.tensor_init` before the
 * first compile; until it has succeeded `fxjit_shim.ready` is 0 and nothing else here may be used.
 *
 * A tensor's PyObject holds an `at::Tensor` by value; its address is what the shim calls an AtenTensorHandle. */
#ifndef FXJIT_TENSOR_H
#define FXJIT_TENSOR_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* As much of a TensorImpl as is ever looked at, in words of 8 bytes. */
#define FXJIT_IMPL_WORDS 32
#define FXJIT_FACT_RANGES 4

typedef struct {
    int ready;
    PyTypeObject *tensor_class;     /* torch.Tensor */
    Py_ssize_t handle_offset;       /* of the at::Tensor in the PyObject */
    Py_ssize_t keys_offset;         /* of the dispatch key set in the TensorImpl; -1 if it was not found */
    /* What _C.tensor_learn found out, if it did (impl_words > 0): a strided TensorImpl is that many words long, those
     * in `fact_ranges` say what kind of tensor it is, word `autograd_word` points to its autograd metadata or is 0, and the
     * byte at `requires_grad_at` there is whether it requires a gradient as a leaf. The other words say which one it is:
     * reference counts, storage, version counter, PyObject. */
    int impl_words, autograd_word, version_word; /* of the version counter: 0 where it was not found */
    struct {
        int begin, end;
    } fact_ranges[FXJIT_FACT_RANGES];
    int num_fact_ranges;
    uint64_t fact_bits[FXJIT_IMPL_WORDS]; /* without padding, as far as it was seen */
    Py_ssize_t requires_grad_at;
    int32_t strided; /* the shim's code of this layout */
    uint64_t python_keys;           /* key set bits of tensors whose methods are Python's (subclasses, fake tensors) */
    bool (*impl_requires_grad)(const void *impl); /* NULL where this torch does not export it */
    int64_t (*version)(const void *handle);       /* the same; only of tensors that have all of version_keys */
    uint64_t version_keys;
    int32_t (*get_dim)(void *, int64_t *);
    int32_t (*get_sizes)(void *, int64_t **);
    int32_t (*get_strides)(void *, int64_t **);
    int32_t (*get_storage_offset)(void *, int64_t *);
    int32_t (*get_data_ptr)(void *, void **);
    int32_t (*get_dtype)(void *, int32_t *);
    int32_t (*get_device_type)(void *, int32_t *);
    int32_t (*get_device_index)(void *, int32_t *);
    int32_t (*get_layout)(void *, int32_t *);
} fxjit_shim_t;

extern fxjit_shim_t fxjit_shim;

/* The handle of a tensor (an instance of torch.Tensor, which the caller has checked). */
static inline void *
fxjit_tensor_handle(PyObject *tensor)
{
    return (char *)tensor + fxjit_shim.handle_offset;
}

static inline void *
fxjit_tensor_impl(PyObject *tensor)
{
    return *(void **)fxjit_tensor_handle(tensor);
}

/* The dispatch key set; only where keys_offset is not -1. */
static inline uint64_t
fxjit_tensor_keys(PyObject *tensor)
{
    return *(uint64_t *)((char *)fxjit_tensor_impl(tensor) + fxjit_shim.keys_offset);
}

/* A tensor whose sizes the shim may be asked for: torch's own kind, not one that computes them in Python. */
static inline int
fxjit_tensor_is_plain(PyObject *obj)
{
    return fxjit_shim.ready && fxjit_shim.keys_offset >= 0 && PyObject_TypeCheck(obj, fxjit_shim.tensor_class) &&
           fxjit_tensor_impl(obj) != NULL && !(fxjit_tensor_keys(obj) & fxjit_shim.python_keys);
}

/* tensor.requires_grad: 1, 0, or -1 with an exception. */
int fxjit_tensor_requires_grad(PyObject *tensor);

/* A symbol of torch's libraries, NULL when there is none of this name. */
void *fxjit_torch_symbol(const char *name);

#endif
