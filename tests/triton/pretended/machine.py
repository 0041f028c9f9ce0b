"""Python's half of a pretended GPU: what kernels do. For a process with cuda.cpp loaded before torch (test_pretended.py).

Operators of ATen on CUDA tensors are the processor's, over the same memory; kernels that fxjit launches through the driver run
in Triton's interpreter, with the blocks and sizes that the launch says, once the pointers were looked at. What is launched on
a stream that records a graph runs when the graph is launched, and not before.
"""

from __future__ import annotations

import ctypes
import os
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves, tree_map

import fxjit

LIBRARY = ctypes.CDLL(os.environ["LD_PRELOAD"])
LIBRARY.pretended_extent.restype = ctypes.c_size_t
LIBRARY.pretended_extent.argtypes = [ctypes.c_void_p]
#: The graphs that are being recorded, and what each does, by number.
recording: list[int] = []
graphs: dict[int, list[Callable[[], Any]]] = {}
one_at_a_time = threading.Lock()
#: Each launch of a kernel: its grid, and the stream.
launches: list[tuple[int, int]] = []
#: What was wrong with a launch: a program that goes on in eager after it is wrong all the same.
failures: list[str] = []
#: Each call of a kernel for attention, by the function that stands for it.
attentions: list[str] = []


def memory_at(address: int, size: int) -> Any:
    return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), size)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CUDA tensor's memory as a tensor of the processor's."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    host = torch.empty(0, dtype=tensor.dtype)
    return host.set_(memory_at(storage.data_ptr(), storage.nbytes()), tensor.storage_offset(), tensor.shape, tensor.stride())


def do(work: Callable[[], Any]) -> None:
    """Now, or whenever the graph is launched that is being recorded."""
    if recording:
        graphs[recording[-1]].append(work)
    else:
        work()


# Operators

#: What a program asks of the processor's operators is not asked of a GPU's.
NOT_ON_A_GPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def called(operator: Any, given: Any, named: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(NOT_ON_A_GPU):
        return operator(*given, **named)


#: What is right as it is: it allocates, or looks at a tensor without its numbers.
OWN = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor", "aten::set_", "aten::resize_", "aten::record_stream", "aten::is_set_to", "aten::is_pinned",
    "aten::_fused_sdp_choice",
}  # fmt: skip


def argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return on_host(value) if value.is_cuda else value
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return None if isinstance(value, torch.Generator) else value


def tensors_of(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def device_of(values: Any) -> torch.device:
    leaves = tree_leaves(values)
    devices = [each.device for each in leaves if isinstance(each, torch.Tensor) and each.is_cuda]
    devices += [each for each in leaves if isinstance(each, torch.device) and each.index is not None]
    return devices[0] if devices else torch.device("cuda", torch.cuda.current_device())


def makes(operator: Any) -> Callable[..., Any]:
    """The operator where its results are new tensors."""

    def run(*args: Any, **kwargs: Any) -> Any:
        device = device_of((args, kwargs))
        given, named = tree_map(argument, (args, kwargs))
        found = called(operator, given, named)
        if recording and not all(isinstance(each, torch.Tensor) for each in tree_leaves(found)):
            raise RuntimeError(f"{operator} waits for the GPU while a graph is recorded")

        def placed(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)

        results = tree_map(placed, found)
        places = list(map(on_host, tensors_of(results)))

        def work(found: Any) -> None:
            for place, value in zip(places, tensors_of(found), strict=True):
                place.copy_(value)

        if recording:
            do(lambda: work(called(operator, given, named)))
        else:
            work(found)
        return results

    return run


def writes(operator: Any) -> Callable[..., Any]:
    """The operator where it writes to arguments, and returns those."""
    arguments, returns = operator._schema.arguments, operator._schema.returns
    names = [next((each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write
                   and each.alias_info.before_set == result.alias_info.before_set), None) for result in returns
             if result.alias_info is not None]  # fmt: skip

    def run(*args: Any, **kwargs: Any) -> Any:
        given, named = tree_map(argument, (args, kwargs))
        pairs = list(zip(tensors_of((args, kwargs)), tensors_of((given, named)), strict=True))

        def work() -> None:
            called(operator, given, named)
            for there, host in pairs:
                if there.shape != host.shape:  # an `out` that was resized
                    there.resize_(host.shape)
                    on_host(there).copy_(host)

        do(work)
        by_name = {each.name: value for each, value in zip(arguments, args, strict=False)} | kwargs
        results = tuple(by_name[name] for name in names if name is not None)
        return results[0] if len(results) == 1 else results or None

    return run


def copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    to, given = argument(self), argument(source)
    do(lambda: to.copy_(given))
    return self


def number(tensor: torch.Tensor) -> Any:
    if recording:
        raise RuntimeError("a number is read while a graph is recorded")
    return on_host(tensor).item()


def missing(name: str) -> Callable[..., Any]:
    """An operator of which the processor has no kernel: torch's own would do nothing here."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name} on a pretended GPU")

    return call


def rms_norm_backward(grad: Any, given: Any, shape: Any, rstd: Any, weight: Any, wanted: Any) -> tuple[Any, Any]:
    results = (torch.empty_like(given) if wanted[0] else None, torch.empty_like(weight) if wanted[1] else None)
    hosts = [on_host(each) for each in (grad, given, rstd)] + [argument(weight)]
    own = tuple(range(given.dim() - len(shape), given.dim()))

    def compute() -> tuple[Any, Any]:
        outside, inside, scale = (each.double() for each in hosts[:3])
        scaled, normal = outside if weight is None else outside * hosts[3].double(), inside * scale
        average = (normal * scaled).mean(own, keepdim=True)
        return (scaled - normal * average) * scale, (outside * normal).sum(tuple(range(own[0])))

    fill(results, compute)
    return results


def take_over_operators() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in torch._C._dispatch_get_all_op_names():
            packet, _, overload = name.removeprefix("aten::").partition(".")
            operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if operator is None or not name.startswith("aten::") or name in OWN or not has(name, "CUDA"):
                continue
            schema = operator._schema
            is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
            if not is_view:
                on_processor = any(has(name, key) for key in ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"))
                made = (writes if schema.is_mutable else makes)(operator) if on_processor else missing(name)
                library.impl(name.removeprefix("aten::"), fxjit.disable(made), "CUDA")
        library.impl("_fused_rms_norm_backward", fxjit.disable(rms_norm_backward), "CUDA", allow_override=True)
        library.impl("copy_", fxjit.disable(copy), "CUDA", allow_override=True)
        library.impl("_local_scalar_dense", fxjit.disable(number), "CUDA", allow_override=True)
    return library


# Attention, of which the processor has no kernel by these names: its results lie in memory as those of a GPU's do.


def scores(query: Any, key: Any, bias: Any, causal: bool, scale: float | None) -> torch.Tensor:
    found = query.double() @ key.double().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        found = found + bias.double()
    return found.masked_fill(torch.ones_like(found, dtype=torch.bool).triu(1), float("-inf")) if causal else found


def attention(query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float | None) -> tuple[Any, Any]:
    """The result and the logarithms of sums of exponentials, on the processor."""
    found = scores(query, key, bias, causal, scale)
    return found.softmax(-1) @ value.double(), found.logsumexp(-1).float()


def attention_backward(given: Any, bias: Any, causal: bool, scale: float | None) -> tuple[Any, Any, Any, Any]:
    """Gradients of the query, key, value and bias; `given` as the operator's first arguments, without the bias."""
    grad, query, key, value, out, sums = (each.double() for each in given)
    weights = (scores(query, key, bias, causal, scale) - sums[..., : query.shape[2], None]).exp()
    inner = weights * (grad @ value.mT - (grad * out).sum(-1, keepdim=True))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return inner @ key * factor, inner.mT @ query * factor, weights.mT @ grad, inner


def fill(places: Any, compute: Callable[[], Any]) -> None:
    def work() -> None:
        for place, found in zip(places, compute(), strict=True):
            if place is not None:
                on_host(place).copy_(found)

    do(work)


def flash(query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, mask: bool = False, *,
          scale: float | None = None) -> Any:  # fmt: skip
    assert not dropout and query.dtype in (torch.float16, torch.bfloat16)
    attentions.append("flash")
    out, sums = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    given = [*map(on_host, (query, key, value)), None, causal, scale]
    fill((out, sums), lambda: attention(*given))
    seed, unused = (torch.empty(size, dtype=torch.uint64, device=query.device) for size in ((2,), ()))
    return out, sums, None, None, query.shape[2], key.shape[2], seed, unused, query.new_empty(0)


def flash_backward(*args: Any, scale: float | None = None) -> Any:
    query, key, value, dropout, causal = *args[1:4], args[10], args[11]
    assert not dropout and args[6] is args[7] is None and args[8:10] == (query.shape[2], key.shape[2])
    assert args[12].dtype is torch.uint64 and args[12].shape == (2,)
    grads, given = [torch.empty_like(each) for each in (query, key, value)], [on_host(each) for each in args[:6]]
    fill(grads, lambda: attention_backward(given, None, causal, scale)[:3])
    return tuple(grads)


def efficient(query: Any, key: Any, value: Any, bias: Any, wants_sums: bool, dropout: float = 0.0, causal: bool = False, *,
              scale: float | None = None) -> Any:  # fmt: skip
    assert not dropout
    attentions.append("efficient")
    rows = -(-query.shape[2] // 32) * 32 if wants_sums else 0
    out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3]).transpose(1, 2)
    sums = query.new_empty((*query.shape[:2], rows), dtype=torch.float32)
    given = [*map(argument, (query, key, value, bias)), causal, scale]
    fill((out, sums[..., : query.shape[2]] if rows else None), lambda: attention(*given))
    # The two numbers are on the processor unless a graph is recorded.
    drawn = [torch.zeros((), dtype=torch.int64, device=query.device if recording else "cpu") for _ in range(2)]
    return out, sums, *drawn


def efficient_backward(*args: Any, scale: float | None = None) -> Any:
    query, key, value, bias, dropout, wanted, causal = *args[1:5], args[9], args[10], (*args, False)[11]
    assert not dropout and args[7].dtype is torch.int64
    grads = [torch.empty_like(each) if asked and each is not None else None
             for each, asked in zip((query, key, value, bias), wanted, strict=True)]  # fmt: skip
    given, host_bias = [on_host(each) for each in (args[0], query, key, value, *args[5:7])], argument(bias)
    fill(grads, lambda: attention_backward(given, host_bias, causal, scale))
    return tuple(grads)


def cudnn(query: Any, key: Any, value: Any, bias: Any, wants_sums: bool, dropout: float = 0.0, causal: bool = False,
          mask: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    assert not dropout and query.dtype in (torch.float16, torch.bfloat16)
    attentions.append("cudnn")
    out, sums = torch.empty_like(query), query.new_empty((*query.shape[:3], 1), dtype=torch.float32)
    given = [*map(argument, (query, key, value, bias)), causal, scale]
    fill((out, sums[..., 0]), lambda: attention(*given))
    drawn = [torch.zeros((), dtype=torch.int64, device=query.device) for _ in range(2)]
    return out, sums, None, None, query.shape[2], key.shape[2], *drawn, None


def cudnn_backward(*args: Any, scale: float | None = None) -> Any:
    query, key, value, bias, dropout, causal = *args[1:4], args[8], args[13], args[14]
    assert not dropout and args[9] is args[10] is None and args[5].shape == (*query.shape[:3], 1)
    grads, given = [torch.empty_like(each) for each in (query, key, value)], [on_host(each) for each in args[:6]]
    host_bias = argument(bias)
    fill(grads, lambda: attention_backward([*given[:5], given[5][..., 0]], host_bias, causal, scale)[:3])
    return tuple(grads)


ATTENTION = {"flash": (flash, flash_backward), "efficient": (efficient, efficient_backward), "cudnn": (cudnn, cudnn_backward)}


def take_over_attention(library: torch.library.Library) -> None:
    for name, (forward, backward) in ATTENTION.items():
        library.impl(f"_scaled_dot_product_{name}_attention", fxjit.disable(forward), "CUDA", allow_override=True)
        library.impl(f"_scaled_dot_product_{name}_attention_backward", fxjit.disable(backward), "CUDA", allow_override=True)


# Convolutions, whose results lie in memory as cuDNN's do, and group norms, which ATen has for plain images alone

#: For each convolution and derivative whether its images were channels last.
convolved: list[bool] = []


def layout(x: torch.Tensor, weight: torch.Tensor, *how: Any) -> torch.memory_format:
    last = x.dim() == 4 and any(suggest_memory_format(each) is torch.channels_last for each in (x, weight))
    return torch.channels_last if last else torch.contiguous_format


def convolution(x: Any, weight: Any, bias: Any, *how: Any) -> Any:
    call, hosts = torch.ops.aten.convolution.default, [on_host(x), argument(weight), argument(bias)]
    convolved.append(layout(x, x) is torch.channels_last)
    shape = call(*(None if each is None else each.to("meta") for each in (x, weight, bias)), *how).shape
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout(x, weight))
    fill((out,), lambda: (call(*hosts, *how),))
    return out


def convolution_backward(grad: Any, x: Any, weight: Any, sizes: Any, *how: Any) -> Any:
    call, hosts = torch.ops.aten.convolution_backward.default, [on_host(each) for each in (grad, x, weight)]
    convolved.append(layout(x, x) is torch.channels_last)
    shapes = zip((x.shape, weight.shape, weight.shape[:1]), how[-1], strict=True)
    kept, kind = layout(x, weight), torch.contiguous_format
    grads = [torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=kept if len(shape) == 4 else kind)
             if asked else None for shape, asked in shapes]  # fmt: skip
    fill(grads, lambda: call(*hosts, sizes, *how))
    return tuple(grads)


def of_plain(operator: Any) -> Callable[..., Any]:
    made = makes(operator)

    def run(*args: Any) -> Any:
        refused = [each.stride() for each in args if isinstance(each, torch.Tensor) and not each.is_contiguous()]
        assert not refused, f"{operator} of {refused}"
        return made(*args)

    return run


def take_over_images(library: torch.library.Library) -> None:
    for function in (convolution, convolution_backward):
        library.impl(function.__name__, fxjit.disable(function), "CUDA", allow_override=True)
    for name in ("native_group_norm", "native_group_norm_backward"):
        library.impl(name, fxjit.disable(of_plain(getattr(torch.ops.aten, name).default)), "CUDA", allow_override=True)
    torch._C._conv_determine_backend_memory_format = layout


# Graphs and kernels

GRAPH = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_long)
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)


@GRAPH
def on_graph(what: int, graph: int) -> None:
    if what == 0:
        graphs[graph] = []
        recording.append(graph)
    elif what == 1:
        recording.remove(graph)
    else:
        for work in graphs[graph]:
            work()


#: The kernel, variant, configuration and binary of each function that was loaded.
loaded: dict[int, tuple[Any, Any, Any, Any]] = {}


@LAUNCH
def on_launch(function: int, grid: int, threads: int, stream: int | None, parameters: Any) -> int:
    try:
        launches.append((grid, stream or 0))
        do(interpreted(function, grid, threads, parameters))
    except BaseException:
        failures.append(traceback.format_exc())
        return 719
    return 0


def interpreted(function: int, grid: int, threads: int, parameters: Any) -> Callable[[], None]:
    """What the launch does; the arguments are what the binary relies on."""
    from fxjit.backends.native.codegen.triton_ops import POINTERS
    from fxjit.backends.native.runtime.interpreted import InterpretedKernel, as_on_gpu

    kernel, variant, chosen, binary = loaded[function]
    tensors, count = len(kernel.pointers), kernel.passed

    def read(place: int, kind: Any) -> int:
        return int(ctypes.cast(parameters[place], ctypes.POINTER(kind))[0])

    addresses = [read(k, ctypes.c_uint64) for k in range(tensors)]
    sizes = [read(tensors + k, ctypes.c_int64 if variant.wide else ctypes.c_int32) for k in range(count)]
    assert threads == 32 * chosen.warps
    assert not variant.aligned or all(each % 16 == 0 for each in addresses), "a pointer that 16 does not divide"
    assert all(size % 16 == 0 for k, size in enumerate(sizes) if variant.divisible >> k & 1), "a size that 16 does not divide"
    assert all(read(k, ctypes.c_uint64) == 0 for k in range(tensors + count, binary.parameters)), "scratch memory"
    types = {text: dtype for dtype, text in POINTERS.items()}
    given = []
    for address, dtype in zip(addresses, (types[each] for each in kernel.pointers), strict=True):
        extent = LIBRARY.pretended_extent(address) // dtype.itemsize
        assert extent or not address, f"{address:#x} is in no GPU's memory"
        memory = memory_at(address, extent * dtype.itemsize) if extent else torch.UntypedStorage(0)
        given.append(torch.empty(0, dtype=dtype, device="cpu").set_(memory, 0, (extent,), (1,)))
    made = InterpretedKernel(kernel)

    def run() -> None:
        with one_at_a_time, np.errstate(all="ignore"), as_on_gpu():
            made.function[(grid,)](*given, *sizes, **dict(chosen.blocks), WIDE=variant.wide)

    return run


def watch_launchers() -> None:
    from fxjit.backends.native.runtime import gpu

    plain = gpu.launcher

    def launcher(kernel: Any, variant: Any, chosen: Any, binary: Any, otherwise: Any) -> Any:
        made = plain(kernel, variant, chosen, binary, otherwise)
        loaded[gpu.load(binary, kernel.device.index or 0)[0]] = kernel, variant, chosen, binary
        return made

    gpu.launcher = launcher


def start() -> torch.library.Library:
    """The machine runs as long as what this returns is kept."""
    LIBRARY.pretended_on_graph(on_graph)
    LIBRARY.pretended_on_launch(on_launch)
    torch.cuda.init()
    # The processor has no kernels of these names.
    torch.backends.cudnn.enabled = False
    library = take_over_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        take_over_attention(library)
        take_over_images(library)
    watch_launchers()
    return library
