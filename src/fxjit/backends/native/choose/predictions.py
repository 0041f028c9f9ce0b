"""The cost model's counts and ratios, each with the measurement that it comes from. Data only.

What is a time is in units of the machine's numbers (machine.py), which a probe measures; model.py makes predictions of both.
What is a count stays one on each machine: a limit of the size of kernels or of compile time, or what decides in what order a
sum's numbers are added up, which must not depend on the machine. Measured on two cores of an x86-64 server with AVX-512,
GCC 12, on one thread unless it is said otherwise, while other programs ran: ratios are medians of calls that took turns in one
process (docs/performance_kernels.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# A kernel or ATen


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as ATen's a kernel of one operator alone is, from the least to the most of what was measured. The
    range is that of the row: none of its operators has a figure of its own."""

    operators: frozenset[str]
    least: float
    most: float
    elements: tuple[int, ...] = (4096, 131072)
    threads: int = 1
    #: Those of the first tensor that it takes; none: all but those that another row is about.
    dtypes: tuple[torch.dtype, ...] = ()
    #: ATen's are MKL's, which has its fast ways for processors of its maker: elsewhere they take as long as this says.
    by_mkl: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SINGLE, DOUBLE, HALVES = (torch.float32,), (torch.float64,), (torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
#: Rows that say so were measured on one thread of a Zen 5 with torch 2.13: over 32 x 32, 256 x 400 and, of float32 and
#: bfloat16, 2500 x 4000 numbers; the least and the most are those of 256 x 400.
SIZES = (1024, 102400, 10_000_000)

#: Operators that are not listed are ATen's: maxima and products of floats, transposing copies, sums of float32 and of halves,
#: but for those of short rows.
ALONE = (
    Ratio(
        _names(
            """
            add.Tensor add.Scalar sub.Tensor mul.Tensor mul.Scalar div.Tensor relu.default sigmoid.default silu.default
            threshold_backward.default sigmoid_backward.default tanh_backward.default silu_backward.default
            gelu_backward.default linalg_vector_norm.default embedding.default cat.default
            _native_batch_norm_legit_functional.default _native_batch_norm_legit_no_training.default
            _native_batch_norm_legit.no_stats
            native_batch_norm_backward.default native_layer_norm.default native_layer_norm_backward.default
            native_group_norm.default _fused_rms_norm.default _softmax.default _log_softmax.default
            _softmax_backward_data.default _log_softmax_backward_data.default
            _scaled_dot_product_flash_attention_for_cpu.default
            """
        ),
        1.1,
        1.7,
    ),
    Ratio(
        _names(
            """
            var.correction var_mean.correction std.correction where.self index.Tensor tril.default triu.default
            pow.Tensor_Scalar pow.Tensor_Tensor argmax.default argmin.default max.dim min.dim
            max_pool2d_with_indices.default avg_pool2d.default avg_pool2d_backward.default _adaptive_avg_pool2d.default
            _adaptive_avg_pool2d_backward.default upsample_nearest2d.default upsample_nearest2d_backward.default
            """
        ),
        2.0,
        30.0,
    ),
    # Measured since those of float32 are calculated in float (codegen/elementary.py), over 32,768 to 1.5 million elements.
    Ratio(_names("softplus.default elu.default mish.default expm1.default log1p.default"), 1.3, 3.7, (32768, 1572864)),
    Ratio(_names("softplus.default elu.default"), 0.85, 1.1, (32768, 1572864), dtypes=DOUBLE),
    # Rows of float16 are converted in passes of their own (codegen/fp16.py), where ATen's loop does it in registers.
    Ratio(_names("cat.default"), 0.7, 1.0, dtypes=(torch.float16,)),
    # ATen makes no vectors of most of these: where results are booleans, where numbers are chosen, of halves.
    Ratio(
        _names(
            """
            isnan.default isinf.default logical_not.default eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
            eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar logical_and.default logical_or.default
            logical_xor.default masked_fill.Scalar masked_fill.Tensor any.default any.dim any.dims all.default all.dim
            all.dims trunc.default asinh.default acosh.default
            """
        ),
        1.8,
        38.0,
        SIZES,
    ),
    Ratio(
        _names(
            """
            rsqrt.default rsub.Scalar hardsigmoid.default sign.default floor.default ceil.default round.default hardtanh.default
            leaky_relu.default maximum.default minimum.default clamp.default clamp_min.default clamp_max.default lerp.Scalar
            addcmul.default addcdiv.default _to_copy.default index_select.default
            """
        ),
        0.91,
        5.8,
        SIZES,
    ),
    Ratio(_names("_to_copy.default"), 1.0, 4.9, SIZES, dtypes=HALVES),
    Ratio(
        _names("hypot.default fmod.Tensor fmod.Scalar remainder.Tensor remainder.Scalar"),
        1.2,
        2.8,
        SIZES,
        dtypes=SINGLE + HALVES,
    ),
    Ratio(_names("abs.default neg.default"), 1.1, 4.2, SIZES, dtypes=SINGLE + INTEGERS),
    Ratio(_names("copysign.Tensor copysign.Scalar"), 1.1, 3.6, SIZES, dtypes=SINGLE + INTEGERS),
    Ratio(_names("tan.default tanh.default cosh.default sqrt.default erfc.default"), 1.4, 2.3, SIZES, dtypes=HALVES),
    Ratio(
        _names(
            """
            exp.default log.default log2.default log10.default sqrt.default sin.default cos.default tan.default tanh.default
            cosh.default asin.default acos.default atan.default erf.default erfc.default
            """
        ),
        1.2,
        5.6,
        SIZES,
        dtypes=(*SINGLE, *DOUBLE, *INTEGERS),
        by_mkl=True,
    ),
    Ratio(_names("sigmoid.default silu.default"), 0.51, 0.56, SIZES, dtypes=DOUBLE),
    # Of 262,144 numbers, along rows of 16 to 262,144 and other dimensions. Totals of float32 are in double, in eager in float.
    Ratio(_names("sum.default sum.dim_IntList"), 0.5, 1.1, (262144,), dtypes=SINGLE + HALVES),
    Ratio(_names("sum.default sum.dim_IntList"), 0.9, 4.3, (262144,)),
    Ratio(_names("mean.default mean.dim"), 0.7, 1.1, (262144,), dtypes=SINGLE),
    Ratio(_names("mean.default mean.dim"), 1.0, 3.0, (262144,)),
    Ratio(_names("amax.default amin.default prod.default prod.dim_int"), 1.1, 7.0, (262144,), dtypes=HALVES),
    Ratio(_names("amax.default amin.default prod.default prod.dim_int"), 0.92, 16.0, (262144,), dtypes=INTEGERS),
    Ratio(_names("max.default min.default"), 1.2, 3.9, SIZES, dtypes=(*SINGLE, *DOUBLE, *INTEGERS, torch.bfloat16)),
)
#: From this on a kernel of an operator alone is taken: calls of ATen cost more than what is measured here, of some size.
AS_FAST = 0.9
#: Sums and means alone of rows up to this long are kernels in all types: of 4 and 16 numbers 1.2 to 3.9 times ATen's speed, but
#: for float16's of 4. Of 64 numbers float32's have 0.7 and 0.8.
SHORT_SUMS = 32
#: Maxima and products of halves alone along rows are kernels from this length on: of 4 numbers 0.35 to 0.6 times ATen's speed.
SHORT_MAXIMA = 16
#: Totals of float32 and float64 alone over other dimensions than the last are kernels where that has so many numbers: sums of
#: 512 x 384 floats 0.84 times ATen's speed, of 512 x 512 1.1, of 512 x 1536 1.3, of 256 x 4096 1.8; means 0.95, 1.3, 1.5, 2.1;
#: maxima of 8192 x 64 0.93, of 2048 x 128 1.1, of 512 x 384 1.3.
WIDE_COLUMNS = {"sum": 512, "mean": 256, "prod": 512, "amax": 128, "amin": 128}
#: Alone these are kernels where they go along another dimension than the last: 2.1 to 9.8 times ATen's speed, which takes one
#: number after the other, and along the last 1.0 to 1.1 (float16 0.2), where they are ATen's. The last is so for float32 and
#: halves, along another dimension; along the last see LONG_ROWS.
ACROSS = _names("cumsum.default cumprod.default logsumexp.default")
#: Numbers of these types made of float32 or float64 are ATen's, which has instructions for it: 0.55 to 0.85.
ROUNDED = HALVES

#: gelu alone, by its approximation: with "none" ATen's is 0.85 to 1.5 times as fast as a kernel, over the same sizes.
GELU_ALONE = {"none": Ratio(_names("gelu.default"), 0.7, 1.2, (32768, 1572864)),
              "tanh": Ratio(_names("gelu.default"), 3.0, 4.1, (32768, 1572864))}

#: From how many elements a row on a softmax alone, or what is like one, is a kernel: over shorter ones the latency of the
#: maximum and the sum exceeds the work. 65,536 numbers, one thread of a Xeon of the fourth generation, times ATen's speed:
#: softmax 1.04 to 1.6 in float32, 1.3 to 4.5 and 1.05 to 2.5 in float16 and bfloat16; its logarithm 1.2 to 1.3 in float32 and
#: 0.93 to 1.3 in float16 (below that 0.4 to 1.0); logsumexp 0.91 to 1.7, 2.2 to 5.8 and 1.6 to 3.9.
LONG_ROWS = {
    ("_softmax.default", torch.float64): 1,
    ("_softmax.default", torch.float32): 64,
    ("_softmax.default", torch.float16): 16,
    ("_softmax.default", torch.bfloat16): 16,
    ("_log_softmax.default", torch.float64): 1,
    ("_log_softmax.default", torch.float32): 256,
    ("_log_softmax.default", torch.float16): 1000,
    ("_log_softmax.default", torch.bfloat16): 1000,
    ("logsumexp.default", torch.float32): 16,
    ("logsumexp.default", torch.float16): 16,
    ("logsumexp.default", torch.bfloat16): 16,
}
#: The same where a row is whole vectors and at most this many elements more (codegen/tree_reduction.py): 1.4 to 1.8 times
#: ATen's speed, the logarithm of halves 0.93 to 1.2. The last 15 of 31 elements are calculated one by one, which takes longer
#: than the row: 0.75.
VECTOR_TAIL = 8
LONG_ROWS_OF_VECTORS = {
    ("_softmax.default", torch.float32): 16,
}

#: Rows of a softmax alone, or of its logarithm, that are shorter than a vector of ATen's, which it calculates number by number:
#: a kernel from the first length on, to the second. 200,000 elements, one thread: float32 1.6 to 25 times ATen's speed, from 8
#: numbers on the half types 1.4 to 14 times; below 8 those are converted one by one, 0.6 to 2.3 times.
SHORT_ROWS = {torch.float32: (1, 16), torch.bfloat16: (8, 32), torch.float16: (8, 32)}

#: The least of a ratio in the rows above and below, but for few: of ATen's speed, that a kernel of any operator alone has.
SLOWEST = 0.6
#: Calls of an operator of ATen that some take besides their work: those of oneDNN, where torch has it (gelu of 256 numbers 8.4
#: us, of 4096 10.5 where a kernel takes 2.8, of 65,536 36 and 35).
CALLED = {"gelu.default": 5.0}
#: Additions that a unit of work takes as long as, in a chain of additions and multiplications; `ops.work` counts a division or
#: an exp in whole units.
EFFORT = 1.4

# Compiled or as captured: in calls of an operator of ATen from Python (`Machine.call`). Measured by benchmarks.model_of_cost
# with torch 2.13 on two cores of a Xeon of the fourth generation, several runs

#: An autograd node of fxjit's, forward and backward (7 to 11 calls); the same with AOTAutograd's wrappers around it.
NODE, WRAPPED_NODE = 9.0, 77.0
#: A call of ATen in a program and each of its arguments (0.5 to 0.6 with two); a kernel or a matrix product (0.22 to 0.28).
CALL, ARGUMENT, LAUNCH = 0.35, 0.1, 0.25
#: An operator of eager's that autograd records, forward and backward (3.3 to 3.5); a function of torch.nn.functional (softplus
#: 3.3, layer_norm 5.7); a matrix product, whose derivative is two more (4.4 to 6.3); an operator of complex numbers, whose
#: derivative conjugates (6.8); one not recorded (0.5).
RECORDED, FUNCTIONAL, PRODUCT, COMPLEX, UNRECORDED = 3.5, 4.5, 5.0, 6.8, 0.55
#: What a step of a recurrent layer saves where it is ours (runtime/own_recurrent.py): inference of a GRU of 128 over 8 rows, of
#: an RNN of 128 and of an LSTM of 256, one thread of a Zen 5. A derivative saves several times as much.
RECURRENT_STEP = {"lstm": 3.0, "gru": 25.0, "rnn_tanh": 8.0, "rnn_relu": 8.0}
#: What attention saves where it is ours (runtime/own_attention.py), for each number of a query and each key: float32, 128 x 128
#: to 1500 x 1500 of heads of 64, one thread of a Zen 5, 66 to 90 GFLOP/s by ATen and 121 to 191 by ours (24 to 32 us a
#: million). Half types save more.
ATTENTION_PRODUCT = 24e-6

# Threads

#: Teams of threads (`Machine.team`) that a loop takes at least as long as, that threads share: two then gain half of one.
TEAMS = 3.0

# Recomputed or kept: in the units of `ops.work`, about the time of an addition of one element

#: A producer of several readers is recomputed in each of them up to this work: a channel's mean, scale and shift. One whose
#: reader is larger than it is, up to the second.
CHEAP, CHEAP_BROADCAST = 4, 12
#: An expression that reads more places, or takes more work, is kept, so that kernels stay of a size that compilers do well.
MAX_LOADS, MAX_WORK = 10, 400

# Fused or not

#: How many steps back a statement looks for a group to join, but for who makes what it reads: more finds little and costs
#: compile time.
LOOK_BACK = 24
#: The members of a group, and the buffers that it reads.
MAX_MEMBERS, MAX_READS = 32, 64
#: Up to so many rows, of more elements than SHARED, threads share a reduction's own loop, and each part has a total of its own;
#: on a GPU up to so many programs, where each would be busy with more than LONG elements. Those for a GPU are guesses: nothing
#: was measured on one.
FEW_ROWS, SHARED, FEW_PROGRAMS, LONG = 4, 8192, 64, 32768
#: Neighbouring columns that a loop over columns reduces at once: four cache lines of floats, and as many as have totals on the
#: stack where nothing else is kept. Of images of 192 channels and 19 MB a third of each row at a time took 1.9 to 2.3 times as
#: long as whole rows, of 1152 channels and 0.5 MB parts of 64 took 1.7 times as long as parts of 256 (a Xeon, one thread).
COLUMNS_AT_ONCE, COLUMNS_MOST = 64, 256

# Batches of products whose matrices lie across each other in memory (lower/matmul.py)

#: Batches from which vectors go along them; and multiplications of a product up to which loops are faster, for each number that
#: is copied otherwise, of its operands, and of its results where kernels read those. One thread of a Zen 5: a copied number
#: takes ATen 3 ns, a multiplication in our loops 0.07.
LEAST_BATCHES, BATCHES_ACROSS = 16, 16

# Matrix products by blocks of rows (schedule/product_tiles.py)

#: Rows of a block, and the bytes from which a block has fewer, down to half. MKL on two cores of a Zen 3, one thread, of the
#: speed of a call over all rows (6272 x 96 x 384, 1568 x 192 x 768, 392 x 384 x 1536): blocks of 32 rows 0.88, 0.77, 0.71; of
#: 64 rows 0.96, 0.86, 0.86; of 128 rows 0.98, 0.94, 0.88; of 256 rows 1.0, 0.93, 0.90.
TILE_ROWS, TILE_BYTES = 256, 1 << 20  # or half of the second cache, where that is more
#: Rows a thread from which a product has blocks: of fewer, BLAS had better share the columns. And bytes of the product: smaller
#: ones stay in the cache from one kernel to the next.
TILE_ROWS_LEAST = 256
#: Bytes of weights up to which a product has blocks: BLAS packs them anew for each. The same machine, loaded, time of one
#: thread, linear and GELU, times the speed of one call and a kernel: 6272 x 96 x 384 (0.15 MB) 1.11, 1568 x 192 x 768 (0.6 MB)
#: 1.26, 1024 x 256 x 1024 (1 MB) 1.14; 784 x 384 x 1536 (2.4 MB) 1.01, 1024 x 512 x 2048 (4.2 MB) 0.98, 512 x 768 x 3072
#: (9.4 MB) 0.90.
TILE_WEIGHT_BYTES = 1 << 20

# Channels-last images (choose/channels_last.py)

#: Microseconds that an inference graph's convolutions take at the speed of matrix products, from which they have channels-last
#: images: 10 million multiplications on the machine of `REFERENCE`. Two threads, AVX-512, of the
#: speed with plain ones: ResNet-50 at 4 x 224² 1.27, EfficientNet-like at 2 x 224² 2.3, U-Net at 2 x 64² 1.11, ConvNeXt-tiny
#: 1.05 (one run each, on a machine whose eager times differed by up to 40% between runs); eight small networks of 4 to 536
#: million 1.01 to 1.08, with the plain one always first in turn. Since convolutions have kernels of our own, five
#: layers of nn.Conv1d with weight norm of 31 million 1.06 -> 1.77 times eager's speed, in training 1.09 -> 1.91 (one thread).
TURNED_LEAST = 108.0
#: Passes over memory whose time multiplications must take for each element of a tensor that is turned to channels last, or
#: back: 200 to an element on the machine of `REFERENCE`. Two reflecting paddings and instance norms, with 91 to an element, had
#: 0.96 of eager's speed and 0.70 in training; plain, 1.14 and 1.12.
COPIED_PASSES = 7.2

# Where the numbers come from

#: Numbers of this file without a measurement of their own, each with what it rests on. A measurement takes its row out.
UNMEASURED: dict[str, str] = {
    "ALONE": "one range for all operators of a row, from two sizes",
    "WRAPPED_NODE": "as many times NODE as on the machine that both were measured on before",
    "RECORDED": "one figure for all operators that autograd records",
    "FUNCTIONAL": "one figure for all functions of torch.nn.functional",
    "PRODUCT": "one figure for all matrix products",
    "CHEAP": "counts additions (`ops.work`), not a time",
    "CHEAP_BROADCAST": "counts additions (`ops.work`), not a time",
    "MAX_LOADS": "a limit of the size of kernels",
    "MAX_WORK": "a limit of the size of kernels",
    "LOOK_BACK": "a limit of compile time",
    "MAX_MEMBERS": "a limit of the size of kernels",
    "MAX_READS": "a limit of the size of kernels",
    "FEW_PROGRAMS": "a guess: nothing was measured on a GPU",
    "TILE_BYTES": "twice the second cache of the machine that TILE_ROWS was measured on, half of that of another",
    "TILE_ROWS_LEAST": "follows from TILE_ROWS",
    "LONG": "a guess: nothing was measured on a GPU",
}
