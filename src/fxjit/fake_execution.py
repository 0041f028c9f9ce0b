"""Fake execution: what torch raises where an operator cannot be run on fake tensors, and torch's decompositions in the place
of composite kernels.

Where a torch lacks one of the exceptions, it is never raised, and what torch raises instead is an operator's own error.
Fake kernels that give another dtype than the operator's are corrected when this module is imported: before a first compile.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any, Final

import torch

from . import fake_strides, torch_compat, torch_private

#: A branch depends on a symbol that only a run knows.
DECIDES_ON_DATA: Final[type[Exception]] = torch_private.optional(
    "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode")
#: A shape or a branch depends on numbers in a tensor.
DATA_DEPENDENT: Final[tuple[type[Exception], ...]] = (
    torch_private.optional("torch._subclasses.fake_tensor.DataDependentOutputException"),
    torch_private.optional("torch._subclasses.fake_tensor.DynamicOutputShapeException"),
    DECIDES_ON_DATA,
)
#: There is no fake kernel for the operator, or for these tensors.
UNSUPPORTED: Final[tuple[type[Exception], ...]] = (
    torch_private.optional("torch._subclasses.fake_tensor.UnsupportedOperatorException"),
    torch_private.optional("torch._subclasses.fake_tensor.UnsupportedFakeTensorException"),
)
#: Symbols that an operator made are nowhere in its result.
SYMBOL_NOT_FOUND: Final[type[Exception]] = torch_private.optional(
    "torch.fx.experimental.symbolic_shapes.PendingUnbackedSymbolNotFound")
#: A context under which composite operators run as torch's decompositions in Python, which do without what their C++ looks at.
python_dispatcher: Final[Callable[[], contextlib.AbstractContextManager[Any]]] = torch_private.get_or(
    "torch._dispatch.python.enable_python_dispatcher", contextlib.nullcontext)


def _with_indices(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A fake kernel of `torch.unique` or its like, with inverse and counts of the dtype that they have: int64."""

    @functools.wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        values, *indices = kernel(*args, **kwargs)
        return values, *(each.new_empty(each.shape, dtype=torch.int64) for each in indices)

    return run


def _with_eagers_strides(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A fake kernel of `view`, with the strides that eager gives dimensions of size 1. They matter: a tensor with one image
    counts as channels-last or not by them, and what follows takes its own layout from it."""

    @functools.wraps(kernel)
    def run(mode: Any, operator: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = kernel(mode, operator, tensor, *args, **kwargs)
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
            return result
        single = [at for at, size in enumerate(result.shape) if type(size) is int and size == 1]
        if not tensor.dim() or not single or _is_known(lambda: result.numel() == 0):
            return result
        strides = list(result.stride())
        for at in reversed(single):
            last = at == len(strides) - 1
            strides[at] = tensor.stride(-1) if last else strides[at + 1] * result.shape[at + 1]
        if _is_known(lambda: strides == list(result.stride())):
            return result
        return result.as_strided(result.shape, strides)

    return run


def _is_known(condition: Callable[[], Any]) -> bool:
    """Whether a condition on sizes holds, as far as anybody knows before the graph runs: sizes may depend on data."""
    try:
        return bool(condition())
    except DECIDES_ON_DATA:
        return False


def _checking_dimension(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A fake kernel with the check that eager's has: the second argument is a dimension of the first."""

    @functools.wraps(kernel)
    def run(mode: Any, operator: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dim, last = args[0] if args else kwargs.get("dim"), max(tensor.dim(), 1) - 1
        if type(dim) is int and not -last - 1 <= dim <= last:
            raise IndexError(f"Dimension out of range (expected to be in range of [{-last - 1}, {last}], but got {dim})")
        return kernel(mode, operator, tensor, *args, **kwargs)

    return run


def _checking_source(kernel: Callable[..., Any], view: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A fake kernel that puts `source` where `view` of the tensor lies, with eager's checks: there is such a place, and of its
    size."""

    @functools.wraps(kernel)
    def run(mode: Any, operator: Any, tensor: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if all(each is None or type(each) is int for each in (*args, *kwargs.values())):
            found, wanted = list(source.shape), list(view(tensor, *args, **kwargs).shape)
            if all(type(each) is int for each in found + wanted) and found != wanted:
                raise RuntimeError("expected src to have a size equal to the slice of self. "
                                   f"src size = {found}, slice size = {wanted}")
        return kernel(mode, operator, tensor, source, *args, **kwargs)

    return run


def _checking_index(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The fake kernel of `select` with eager's check, which torch 2.11 lacks: there is such a place."""

    @functools.wraps(kernel)
    def run(mode: Any, operator: Any, tensor: torch.Tensor, dim: int, index: Any) -> Any:
        size = tensor.shape[dim] if -tensor.dim() <= dim < tensor.dim() else None
        if type(size) is int and type(index) is int and not -size <= index < size:
            raise IndexError(f"select(): index {index} out of range for tensor of size {list(tensor.shape)} at dimension {dim}")
        return kernel(mode, operator, tensor, dim, index)

    return run


def _laid_out(kernel: Callable[..., Any], layout: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A fake kernel whose first result has the strides that it has on processors: those of `layout(result, *args)`. Torch's
    answer for tensors of its arguments' sizes tells the rest."""

    @functools.wraps(kernel)
    def run(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        known = all(type(each) is int for tensor in tensors for each in tensor.shape)
        if not known or any(each.device.type != "cpu" for each in tensors) or all(map(_is_plain, tensors)):
            return kernel(mode, operator, *args, **kwargs)
        with mode:
            plain = [torch.empty_like(each, memory_format=torch.contiguous_format) if isinstance(each, torch.Tensor) else each
                     for each in args]
            result = operator(*plain, **kwargs)
            several = isinstance(result, (tuple, list))
            first, others = (result[0], result[1:]) if several else (result, ())
            first = torch.empty_strided(first.shape, layout(first, *args).stride(), dtype=first.dtype, device=first.device)
            return (first, *others) if several else first

    return run


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its strides are those of a new tensor."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _elementwise(result: torch.Tensor, first: torch.Tensor, second: Any, *args: Any) -> torch.Tensor:
    """As of any operator on each two elements: `maximum`'s are told by ATen."""
    tensors = [each for each in (first, second) if isinstance(each, torch.Tensor)]
    return torch.maximum(tensors[0], tensors[-1])


def _as_first(result: torch.Tensor, first: torch.Tensor, *args: Any) -> torch.Tensor:
    return torch.empty_like(first) if result.shape == first.shape else result


def _contiguous(result: torch.Tensor, *args: Any) -> torch.Tensor:
    return torch.empty_like(result, memory_format=torch.contiguous_format)


def _as_images(result: torch.Tensor, first: torch.Tensor, *args: Any) -> torch.Tensor:
    layout = torch_private.get("torch._prims_common.suggest_memory_format")(first)
    return torch.empty_like(result, memory_format=layout)


def _fitting(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The fake kernel of a loss whose result has the sizes of its first argument, with eager's check: it is of both's."""

    @functools.wraps(kernel)
    def run(mode: Any, operator: Any, first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if all(type(each) is int for tensor in (first, second) for each in tensor.shape):
            wanted = torch.broadcast_shapes(first.shape, second.shape)
            if wanted != first.shape:
                raise RuntimeError(f"output with shape {list(first.shape)} doesn't match the broadcast shape {list(wanted)}")
        return kernel(mode, operator, first, second, *args, **kwargs)

    return run


def _dividing(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The fake kernel of `celu` with eager's check: it divides by alpha."""

    @functools.wraps(kernel)
    def run(mode: Any, operator: Any, tensor: torch.Tensor, alpha: Any = 1.0) -> Any:
        if isinstance(alpha, (int, float)) and alpha == 0:
            raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
        return kernel(mode, operator, tensor, alpha)

    return run


def _torchs_kernel(*args: Any, **kwargs: Any) -> Any:
    """What a table of fake kernels has for an operator that torch knows otherwise what to do with."""
    return NotImplemented


def _by_parts(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A fake kernel that runs a decomposition, as torch does where there is no kernel."""

    def run(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return decomposition(*args, **kwargs)

    return run


#: Of torch 2.13, but for group_norm, which loses its layout in 2.14.
_LAYOUTS: Final = {
    _elementwise: (torch.ops.aten.copysign.Tensor, torch.ops.aten.floor_divide.default),
    _as_first: (torch.ops.aten.binary_cross_entropy.default,),
    _contiguous: (torch.ops.aten.native_layer_norm.default, torch.ops.aten.isin.Tensor_Tensor, torch.ops.aten.pow.Scalar,
                  torch.ops.aten.log_sigmoid_forward.default),
    _as_images: (torch.ops.aten.native_group_norm.default, torch.ops.aten.max_unpool2d.default,
                 torch.ops.aten.reflection_pad3d.default, torch.ops.aten.replication_pad3d.default),
}


def _correct_kernels() -> None:
    """Replaces the fake kernels of torch that give wrong dtypes or strides, or take what eager refuses, for all fake tensors of
    the process: AOTAutograd's, too."""
    kernels = torch_private.get_or("torch._subclasses.fake_impls.op_implementations_dict", {})
    aten = torch.ops.aten
    for operator in (aten.view.default, aten._unsafe_view.default):
        if operator in kernels:
            kernels[operator] = _with_eagers_strides(kernels[operator])
    kernels[aten._softmax.default] = _checking_dimension(kernels.get(aten._softmax.default, _torchs_kernel))
    for operator, view in ((aten.select_scatter.default, aten.select.int), (aten.slice_scatter.default, aten.slice.Tensor),
                           (aten.diagonal_scatter.default, aten.diagonal.default)):
        kernels[operator] = _checking_source(kernels.get(operator, _torchs_kernel), view)
    kernels[aten.select.int] = _checking_index(kernels.get(aten.select.int, _torchs_kernel))
    # Fake tensors go by a decomposition before they look for a kernel, but where the second of these tables has one.
    decompositions = torch_private.get_or("torch._decomp.decomposition_table", {})
    metas = torch_private.get_or("torch._decomp.meta_table", {})
    for operator in (aten.soft_margin_loss.default, aten.celu.default, *itertools.chain(*_LAYOUTS.values())):
        if operator in decompositions:
            metas.setdefault(operator, decompositions[operator])
            kernels.setdefault(operator, _by_parts(decompositions[operator]))
    kernels[aten.soft_margin_loss.default] = _fitting(kernels.get(aten.soft_margin_loss.default, _torchs_kernel))
    for operator in (aten.celu.default, aten.celu_.default):
        kernels[operator] = _dividing(kernels.get(operator, _torchs_kernel))
    for layout, operators in _LAYOUTS.items():
        for operator in operators:
            kernels[operator] = _laid_out(kernels.get(operator, _torchs_kernel), layout)
    if torch_compat.gives_indices_the_dtype_of_values(torch.__version__):
        for operator in (aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default):
            if operator in kernels:
                kernels[operator] = _with_indices(kernels[operator])


_correct_kernels()
fake_strides.correct_elementwise_strides()
