"""Functions of torch that take the user's functions, in plain Python over tensors."""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.attention.flex_attention
import torch.utils.checkpoint
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles, polyfill
from fxjit.frontend.values.run_later import Recomputed
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.torchfn import call_in_graph

associative_scan: Any = torch_private.optional("torch._higher_order_ops.associative_scan.associative_scan")


@polyfill(associative_scan)
def associative_scan_in_order(combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False,
                              combine_mode: str = "pointwise") -> Any:
    """A sequential scan: any order of combining gives the same, and this one has the fewest requirements on `combine_fn`."""
    leaves, spec = _pytree.tree_flatten(xs)
    length = leaves[0].shape[dim]
    steps = range(length - 1, -1, -1) if reverse else range(length)
    carried = None
    results: list[list[torch.Tensor]] = [[] for _ in leaves]
    for step in steps:
        here = _pytree.tree_unflatten([leaf.select(dim, step) for leaf in leaves], spec)
        carried = here if carried is None else combine_fn(carried, here)
        for result, leaf in zip(results, _pytree.tree_leaves(carried), strict=True):
            result.append(leaf)
    if reverse:
        for result in results:
            result.reverse()
    return _pytree.tree_unflatten([torch.stack(result, dim) for result in results], spec)


@polyfill(torch_private.optional("torch._higher_order_ops.foreach_map.foreach_map"))
def map_over_lists(op: Callable[..., Any], *operands: Any, **settings: Any) -> Any:
    """`op` on the lists' items side by side; what is no list goes to each call."""
    lists = [operand for operand in operands if isinstance(operand, (list, tuple))]
    if not lists:
        return op(*operands)
    shortest = min([len(each) for each in lists])
    return [op(*[each[at] if isinstance(each, (list, tuple)) else each for each in operands]) for at in range(shortest)]


@polyfill(torch_private.optional("torch._higher_order_ops.invoke_subgraph.invoke_subgraph_placeholder"))
def nested_region(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call itself: graphs are compiled whole."""
    return func(*args, **kwargs)


@polyfill(torch.jit.annotate)
def annotate(the_type: Any, the_value: Any) -> Any:
    return the_value


@handles(torch.jit.isinstance)
def _isinstance_of_torchscript(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Python's own, of classes; what containers hold, as of `List[int]`, is looked at by torch."""
    target = args[1].as_constant() if len(args) == 2 and not kwargs and args[1].is_constant() else None
    targets = target if type(target) is tuple else (target,)
    if not all(isinstance(each, type) and typing.get_origin(each) is None for each in targets):
        t.break_("call-builtin", function="torch.jit.isinstance", args=", ".join(each.describe() for each in args))
    return t.call(t.make(isinstance), args, {})


@polyfill(torch_private.optional("torch._shape_as_tensor"))
def shape_as_tensor(self: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(self.shape), dtype=torch.int64)


def call_checkpointed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@handles(call_checkpointed)
def _call_checkpointed(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Where gradients are recorded, eager code calls it once more in the backward."""
    function, *given = args
    if not torch.is_grad_enabled():
        return t.call(function, given, kwargs)
    return Recomputed(t, t.steps, function, given, kwargs).call()


#: What torch says of a checkpoint that does not choose its kind, as long as it has a default.
_ASKS_FOR_A_KIND: Final[str | None] = next(
    (text for text in inspect.unwrap(torch.utils.checkpoint.checkpoint).__code__.co_consts
     if isinstance(text, str) and "the use_reentrant parameter should be passed" in text), None)


@polyfill(torch.utils.checkpoint.checkpoint)
def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, context_fn: Any = None,
               determinism_check: str = "default", debug: bool = False, early_stop: bool = True, **kwargs: Any) -> Any:
    """The call itself: what is kept for the backward is decided by whoever compiles the graph."""
    kwargs.pop("preserve_rng_state", None)
    if use_reentrant is None and _ASKS_FOR_A_KIND is not None:
        warnings.warn(_ASKS_FOR_A_KIND, stacklevel=2)
    if use_reentrant is False:
        return call_checkpointed(function, *args, **kwargs)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if (context_fn is not None and context_fn is not torch.utils.checkpoint.noop_context_fn) or debug is not False:
        raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
    if not torch.is_grad_enabled() or any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        return call_checkpointed(function, *args)
    warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=2)
    with torch.no_grad():  # the backward of the reentrant kind belongs to its arguments
        return function(*args)


@polyfill(torch.backends.cuda.sdp_kernel)
def sdp_kernel(enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True,
               enable_cudnn: bool = True) -> Any:
    """The old name of `sdpa_kernel`, and what it says of that."""
    warnings.warn(torch.backends.cuda.sdp_kernel.__deprecated__, FutureWarning, stacklevel=2)  # type: ignore[attr-defined]  # of the decorator
    wanted = ((enable_flash, SDPBackend.FLASH_ATTENTION), (enable_mem_efficient, SDPBackend.EFFICIENT_ATTENTION),
              (enable_math, SDPBackend.MATH), (enable_cudnn, SDPBackend.CUDNN_ATTENTION))
    return sdpa_kernel([kernel for enabled, kernel in wanted if enabled])


@polyfill(torch_private.optional("torch._C._group_tensors_by_device_and_dtype"))
def group_tensors(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, Any]:
    """Parallel lists of tensors, grouped by device and dtype of the first list's tensors; for optimizers and clip_grad."""
    groups: dict[Any, Any] = {}
    for index, tensor in enumerate(lists[0]):
        key = (tensor.device, tensor.dtype)
        if key not in groups:
            groups[key] = ([[] for _ in lists], [])
        split, indices = groups[key]
        for into, each in zip(split, lists):
            if len(each) > 0:
                into.append(each[index])
        if with_indices:
            indices.append(index)
    return groups


@polyfill(torch_private.optional("torch.optim.optimizer._get_value"))
def number_of_step(x: Any) -> Any:
    """The number in a tensor of an optimizer's state, with which eager goes on calculating as Python's floats."""
    return x.double() if isinstance(x, torch.Tensor) and x.dtype is torch.float32 and x.dim() == 0 else x


def _pools_by_a_kernel_of_its_own(fn: Callable[..., Any]) -> None:
    """Where no gradient is asked for, processors have one for `max_pool1d`: of floats, into a new layout."""
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = args[0] if args else kwargs.get("input")
        result = call_in_graph(t, fn, args, kwargs)
        if not isinstance(given, TensorValue) or not isinstance(result, TensorValue) or given.fake.device.type != "cpu":
            return result  # with indices, it is pooling of images
        if (given.fake.requires_grad and torch.is_grad_enabled()) or overrides.entered_transforms(t):
            return result
        if not given.fake.is_floating_point():
            t.break_("operator-raised", operator="max_pool1d", error=f"it is not implemented for {given.fake.dtype}")
        return t.emit("contiguous", [result])


for _pool in (torch.max_pool1d, torch.nn.functional.max_pool1d):
    _pools_by_a_kernel_of_its_own(_pool)


def _foreach_with_factors(tensors: Any, first: Any, second: Any, factors: Any, divide: bool) -> None:
    for x, a, b, factor in zip(tensors, first, second, factors.unbind()):
        if divide:
            x.addcdiv_(a, b, value=factor)
        else:
            x.addcmul_(a, b, value=factor)


def _factors_in_a_tensor(fn: Any, divide: bool) -> None:
    """A tensor of factors, one for each tensor of the lists: eager reads its numbers, the graph multiplies."""
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) == 4 and isinstance(args[3], TensorValue) and args[3].fake.dim() == 1:
            return t.inline(t.make(_foreach_with_factors), [*args, t.make(divide)], {})
        return call_in_graph(t, fn, args, kwargs)


_factors_in_a_tensor(torch_private.optional("torch._foreach_addcdiv_"), True)
_factors_in_a_tensor(torch_private.optional("torch._foreach_addcmul_"), False)


def blocks_in_a_mask(num_blocks_in_row: torch.Tensor, col_indices: torch.Tensor, num_cols: int | None = None) -> torch.Tensor:
    """torch's own goes through `vmap` to write rows of blocks; one column more takes what is out of bounds."""
    columns = col_indices.shape[-1] if num_cols is None else num_cols
    mask = col_indices.new_zeros((*col_indices.shape[:-1], columns + 1), dtype=torch.int32)
    counted = torch.arange(col_indices.shape[-1], dtype=torch.int, device=col_indices.device)
    within = torch.where(counted < num_blocks_in_row.unsqueeze(-1), col_indices, columns)
    return mask.scatter(-1, within.to(torch.int64), 1)[..., :columns].contiguous()


polyfill(torch_private.optional("torch.nn.attention.flex_attention._ordered_to_dense"))(blocks_in_a_mask)


@handles(torch.compiler.nested_compile_region)
def _nested_compile_region(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The function itself, or the decorator; what it takes besides says how torch's compiler is to reuse a region."""
    if args and not (args[0].is_constant() and args[0].as_constant() is None):
        return args[0]
    return t.make(_same)


def _same(fn: Any) -> Any:
    return fn
