"""Strides of elementwise results on fake tensors, where a size is 1.

ATen gives the result of an elementwise operator new strides where all operands have its shape and are contiguous (or all are
channels-last), whatever strides they have in dimensions of size 1; for tensors without memory it keeps those. They are told to
the program, and one image counts as channels-last or not by them. Operators that make their result otherwise (`hardtanh`,
`x * 2`) are known by a call on a small tensor. Where operands are broadcast torch's answer is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch._ops import OpOverload

from . import torch_private


def correct_elementwise_strides() -> None:
    """For all fake tensors of the process."""
    modes = torch_private.get_or("torch._subclasses.fake_tensor.FakeTensorMode", None)
    dispatch = getattr(modes, "_dispatch_impl", None)
    if dispatch is not None:
        modes._dispatch_impl = _corrected(dispatch)


def _corrected(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(dispatch)
    def run(mode: Any, func: Any, types: Sequence[type], args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        result = dispatch(mode, func, types, args, kwargs)
        if not _is_elementwise(func) or not isinstance(result, torch.Tensor):
            return result
        operands = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if not any(map(_has_noncanonical_stride, operands)):
            return result
        strides = _strides(func, args, kwargs, result, operands)
        if strides is None or strides == result.stride():
            return result
        with mode:
            return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)

    return run


@functools.cache
def _is_elementwise(func: Any) -> bool:
    if not isinstance(func, OpOverload) or torch.Tag.pointwise not in func.tags:
        return False
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return False  # its parts are looked at
    returns = func._schema.returns
    if any(each.name == "memory_format" for each in func._schema.arguments):
        return False  # the caller says which strides, as of `clone`
    alone = len(returns) == 1 and returns[0].alias_info is None and not func._schema.is_mutable
    return alone and torch.Tag.nondeterministic_seeded not in func.tags


def _has_noncanonical_stride(tensor: torch.Tensor) -> bool:
    """Whether a dimension of size 1 has another stride than in a new tensor."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    shape, strides = tensor.shape, tensor.stride()
    for at, size in enumerate(shape):
        if type(size) is int and size == 1:
            expected = strides[at + 1] * shape[at + 1] if at + 1 < len(shape) else 1
            if type(strides[at]) is int and type(expected) is int and strides[at] != expected:
                return True
    return False


def _strides(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: torch.Tensor,
             operands: list[torch.Tensor]) -> tuple[int, ...] | None:
    """Those of the result in ATen; None where torch's answer is right."""
    if any(each.layout is not torch.strided or each.shape != result.shape for each in operands):
        return None
    answer = _answer(func, args, kwargs)
    first = operands[0]
    alike = all(each.stride() == first.stride() for each in operands) and _is_dense(first)
    if answer is _Answer.MADE_ANEW:
        for layout in (torch.contiguous_format, *([torch.channels_last] if result.dim() == 4 else [])):
            if all(each.is_contiguous(memory_format=layout) for each in operands):
                return torch.empty(result.shape, device="meta", memory_format=layout).stride()
    return first.stride() if alike and answer is not _Answer.UNKNOWN else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory, in some order of the dimensions, and no two are in one place."""
    dimensions = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
    if not all(type(each) is int for dimension in dimensions for each in dimension):
        return False
    expected = 1
    for stride, size in sorted(dimensions):
        if stride != expected:
            return False
        expected *= size
    return True


class _Answer(Enum):
    """What an operator does with the strides that a contiguous operand has where a size is 1."""

    MADE_ANEW = "the result has those of a new tensor"
    KEPT = "the result has the operand's"
    UNKNOWN = "neither, as where a number is an operand, too: torch's answer is right; or the operator takes no such tensor"


#: Strides of a small tensor of 2 x 1 x 2 x 3. The three answers differ for it.
_SMALL = (6, 2, 3, 1)


_answers: dict[tuple[OpOverload, tuple[object, ...]], _Answer] = {}


def _answer(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> _Answer:
    """ATen's, for such arguments."""
    kinds = (*map(_kind, args), *((name, _kind(each)) for name, each in kwargs.items()))
    if (func, kinds) not in _answers:
        _answers[func, kinds] = _tried(func, args, kwargs)
    return _answers[func, kinds]


def _kind(argument: object) -> object:
    """What of an argument may decide on strides: not which number it is."""
    if isinstance(argument, torch.Tensor):
        return "tensor", argument.dtype
    return argument if isinstance(argument, (torch.dtype, str, bool)) else type(argument)


def _tried(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> _Answer:
    def small(argument: object) -> object:
        if not isinstance(argument, torch.Tensor):
            return argument
        return torch.ones(12, dtype=argument.dtype).as_strided((2, 1, 2, 3), _SMALL)

    with torch_private.get("torch.utils._python_dispatch._disable_current_modes")(), torch.no_grad():
        try:
            result = func(*map(small, args), **{name: small(each) for name, each in kwargs.items()})
        except Exception:  # what it takes, the operator itself has said
            return _Answer.UNKNOWN
    return {(6, 6, 3, 1): _Answer.MADE_ANEW, _SMALL: _Answer.KEPT}.get(result.stride(), _Answer.UNKNOWN)
