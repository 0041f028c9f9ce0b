"""Strides of results on fake tensors, where operands do not lie in memory as new tensors do.

Fake kernels give other strides than ATen where a dimension of size 1 has another stride than in a new tensor, or an empty
tensor has, and of some operators where an operand's dimensions lie in another order. Strides are told to the program, and one
image counts as channels-last or not by them. Of small operands ATen itself is asked, by a call on tensors of zeros. Of larger
ones an elementwise operator is known by its call on a small tensor: it gives the result new strides where all operands have its
shape and are contiguous (or all are channels-last), or it keeps the operand's, or it takes their dimensions in the order of
their strides. `x[positions]` does the last with x and the positions. Other operators on larger operands, and all of them on
symbolic sizes, are looked at with small operands of the same order: where fake kernel and ATen differ there, the result's
dimensions lie as ATen's do.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from . import torch_private
from .quiet import quietly


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
        if func is torch.ops.aten.index.Tensor:
            return _laid_out(mode, [_of_positions(result, *args)], [result])[0]
        if not _makes_its_results(func):
            return result
        operands = [each for each in pytree.tree_leaves((args, dict(kwargs))) if isinstance(each, torch.Tensor)]
        results = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(results, (tuple, list)) or not all(isinstance(each, torch.Tensor) for each in results):
            return result
        is_odd = any(has_noncanonical_stride(each) or _is_empty(each) for each in operands)
        if not is_odd and not any(map(_is_in_another_order, operands)) and not any(map(_is_expanded, results)):
            return result
        strides = _by_aten(func, args, kwargs, results, operands)
        if strides is None and _is_elementwise(func) and results[0] is result and (is_odd or all(map(_is_known, operands))):
            strides = [_strides(func, args, kwargs, result, operands)]
        if strides in (None, [None]) and not is_odd:
            strides = _by_small_ones(functools.partial(dispatch, mode, func, types), mode, func, (args, kwargs), results)
        if strides is None:
            return result
        right = _laid_out(mode, strides, results)
        if all(map(operator.is_, right, results)):
            return result
        if results[0] is result:
            return right[0]
        return type(result)(*right) if hasattr(result, "_fields") else type(result)(right)  # type: ignore[call-arg]  # some have names

    return run


def _laid_out(mode: Any, strides: Sequence[tuple[Any, ...] | None], results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results, with these strides where they are not the ones that torch gave."""
    found = []
    for mine, each in zip(strides, results, strict=True):
        if mine is not None and not all(map(_is_written_alike, mine, each.stride())):
            with mode:
                each = torch.empty_strided(each.shape, mine, dtype=each.dtype, device=each.device)
        found.append(each)
    return found


@functools.cache
def _makes_its_results(func: Any) -> bool:
    """Whether it is an operator of ATen that gives new tensors. It may write to others, such as statistics."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    if not all("Tensor" in str(each.type) for each in func._schema.returns):  # torch's dispatcher does not know `sym_size`
        return False
    name = func.name()
    if not torch._C._dispatch_has_kernel(name) or torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"):
        return False  # its parts are looked at
    return bool(func._schema.returns) and all(each.alias_info is None for each in func._schema.returns)


@functools.cache
def _is_elementwise(func: OpOverload) -> bool:
    if torch.Tag.pointwise not in func.tags or torch.Tag.nondeterministic_seeded in func.tags or len(func._schema.returns) != 1:
        return False
    # The caller of `clone` and its like says which strides.
    return not any(each.name == "memory_format" for each in func._schema.arguments)


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as those of no new tensor do: the fakes of torch 2.11 keep an expanded operand's strides
    in `select_scatter` and its like."""
    return tensor.layout is torch.strided and any(
        isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size <= 1)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


_PLAIN: Final = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
#: As many elements as the operands of a call may have that only asks for strides.
_FEW = 1 << 14


def _by_aten(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], results: Sequence[torch.Tensor],
           operands: list[torch.Tensor]) -> list[tuple[int, ...] | None] | None:
    """Those that ATen gives the results of few elements; None where it was not asked, or had no answer."""
    if sum(_extent(each) if _is_known(each) else _FEW + 1 for each in (*operands, *results)) > _FEW:
        return None
    leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
    others = [(type(each), each) for each in leaves if not isinstance(each, torch.Tensor)]
    if not all(issubclass(kind, _PLAIN) for kind, _ in others):
        return None
    facts = tuple((tuple(each.shape), each.stride(), each.dtype) for each in operands)
    key = (func, facts, tuple(others), structure)
    if key not in _known_strides:
        if len(_known_strides) >= _MOST_KNOWN:
            _known_strides.clear()
        _known_strides[key] = _run_aten(func, args, kwargs)
    answer = _known_strides[key]
    if answer is None or [shape for shape, _ in answer] != [tuple(each.shape) for each in results]:
        return None
    return [strides for _, strides in answer]


_MOST_KNOWN = 4096
_known_strides: dict[tuple[object, ...], list[tuple[tuple[int, ...], tuple[int, ...]]] | None] = {}


def _is_known(tensor: torch.Tensor) -> bool:
    """Whether it is a strided tensor of a processor, whose numbers are no symbols."""
    return (tensor.layout is torch.strided and tensor.device.type == "cpu"
            and all(type(each) is int for each in (*tensor.shape, *tensor.stride())))


def _extent(tensor: torch.Tensor) -> int:
    """How many elements of memory lie between the first of a tensor and its last."""
    return 1 + sum(max(size - 1, 0) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _run_aten(func: OpOverload, args: Sequence[object],
         kwargs: Mapping[str, object]) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    def zeros(each: object) -> object:
        if not isinstance(each, torch.Tensor):
            return each
        return torch.zeros(_extent(each), dtype=each.dtype).as_strided(each.shape, each.stride())

    seeded = torch.Tag.nondeterministic_seeded in func.tags
    same_numbers = torch.random.fork_rng(devices=[]) if seeded else contextlib.nullcontext()
    with torch_private.get("torch.utils._python_dispatch._disable_current_modes")(), torch.no_grad(), same_numbers:
        try:
            real_args, real_kwargs = pytree.tree_map(zeros, (list(args), dict(kwargs)))
            made = quietly(functools.partial(func, *real_args, **real_kwargs))
        except Exception:  # what it takes, the operator itself has said
            return None
    return _facts_of(made)


def _facts_of(made: object) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Sizes and strides of what an operator gave: tensors."""
    results = [made] if isinstance(made, torch.Tensor) else list(made) if isinstance(made, (tuple, list)) else []
    if not results or not all(isinstance(each, torch.Tensor) for each in results):
        return None
    return [(tuple(each.shape), each.stride()) for each in results]


def has_noncanonical_stride(tensor: torch.Tensor) -> bool:
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


def _is_in_another_order(tensor: torch.Tensor) -> bool:
    """Whether its dimensions lie in memory in another order than in a new tensor, by the numbers that symbols stand for."""
    layout = _numbers_of(tensor)
    if layout is None:
        return False
    strides = [stride for size, stride in zip(layout.shape, layout.strides, strict=True) if size > 1 and stride]
    return strides != sorted(strides, reverse=True)


def _numbers_of(tensor: torch.Tensor) -> _Layout | None:
    """Sizes and strides of a strided tensor of a processor, in the numbers that its symbols stand for in the trace."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    return _hinted(_layout_of(tensor))


#: Sizes up to this one may mean something to an operator (complex numbers, coordinates) and are kept in small operands.
_MOST_KEPT: Final = 3
#: So many different ones above it may be in one call.
_MOST_SIZES: Final = 8


def _by_small_ones(dispatch: Callable[..., Any], mode: Any, func: OpOverload, given: tuple[object, ...],
                   results: Sequence[torch.Tensor]) -> list[tuple[int, ...] | None] | None:
    """Those of an operator that is called with small tensors whose dimensions lie in the order of the given ones', where its
    fake kernel differs from ATen there; else None."""
    leaves, structure = pytree.tree_flatten(given)
    operands = [each for each in leaves if isinstance(each, torch.Tensor)]
    others = [(type(each), each) for each in leaves if not isinstance(each, torch.Tensor)]
    if not all(issubclass(kind, _PLAIN) for kind, _ in others):
        return None
    numbers = [layout for each in (*operands, *results) if (layout := _numbers_of(each)) is not None]
    taken, made = numbers[: len(operands)], numbers[len(operands) :]
    if len(numbers) != len(operands) + len(results) or not all(map(_fills_its_memory, operands, taken)):
        return None
    sizes = sorted({size for each in numbers for size in each.shape if size > _MOST_KEPT})
    if len(sizes) > _MOST_SIZES:
        return None
    small = {size: at for at, size in enumerate(sizes, _MOST_KEPT + 1)}

    facts = [(shape := _small_shape(own, small), _dense_in_order(shape, own.strides), each.dtype)
             for own, each in zip(taken, operands, strict=True)]

    def shrunk(device: str) -> Any:
        small_ones = (torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in facts)
        return pytree.tree_unflatten(
            [next(small_ones) if isinstance(each, torch.Tensor) else each for each in leaves], structure)

    key = func, tuple(facts), tuple(others), structure
    if key not in _known_orders:
        if len(_known_orders) >= _MOST_KNOWN:
            _known_orders.clear()
        with torch_private.get("torch.utils._python_dispatch._disable_current_modes")():
            right = _run_aten(func, *shrunk("meta"))
        with mode:
            told = None if right is None else _facts_of(dispatch(*shrunk("cpu")))
        _known_orders[key] = right, right == told
    answer, is_told = _known_orders[key]
    if is_told and all(map(_is_known, (*operands, *results))):  # of symbolic sizes torch has other fake kernels
        return None
    if answer is None or [shape for shape, _ in answer] != [_small_shape(each, small) for each in made]:
        return None
    return [_dense_in_order(each.shape, strides) if min(own.shape, default=0) > 1 else None
            for each, own, (_, strides) in zip(results, made, answer, strict=True)]


def _fills_its_memory(tensor: torch.Tensor, numbers: _Layout) -> bool:
    """Whether it has no gaps; of symbolic sizes, whether its strides are written as the products that this takes."""
    if _is_known(tensor):
        return _is_dense(tensor)
    return all(_is_written_alike(one, other)
               for one, other in zip(tensor.stride(), _dense_in_order(tensor.shape, numbers.strides), strict=True))


def _is_written_alike(one: Any, other: Any) -> bool:
    """Whether two numbers are equal as far as their text says, so that nothing is guarded."""
    texts = [each.node.expr if isinstance(each, torch.SymInt) else each for each in (one, other)]
    return bool(texts[0] == texts[1])


def _small_shape(layout: _Layout, small: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(small.get(size, size) for size in layout.shape)


#: What ATen says, and whether the fake kernel says the same.
_known_orders: dict[tuple[object, ...], tuple[list[tuple[tuple[int, ...], tuple[int, ...]]] | None, bool]] = {}


def _dense_in_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps whose dimensions lie in the order of these."""
    made, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim)):
        made[dim] = step
        step *= shape[dim]
    return tuple(made)


def _is_empty(tensor: torch.Tensor) -> bool:
    """Whether it has no element, but dimensions that can lie in another order than in a new tensor."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.dim() > 1 and any(type(size) is int and size == 0 for size in tensor.shape)


def _strides(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], result: torch.Tensor,
             operands: list[torch.Tensor]) -> tuple[int, ...] | None:
    """Those of the result in ATen; None where torch's answer is right."""
    if any(each.layout is not torch.strided for each in operands):
        return None
    answer = _answer(func, args, kwargs)
    if answer is _Answer.ORDERED or (answer is _Answer.MADE_ANEW and any(each.shape != result.shape for each in operands)):
        layouts = [*map(_layout_of, operands)]
        if not all(type(number) is int for each in (_layout_of(result), *layouts) for number in (*each.shape, *each.strides)):
            return None
        return _in_order(result.shape, layouts)
    if any(each.shape != result.shape for each in operands):
        return None
    first = operands[0]
    alike = all(each.stride() == first.stride() for each in operands) and _is_dense(first)
    if answer is _Answer.MADE_ANEW:
        for layout in (torch.contiguous_format, *([torch.channels_last] if result.dim() == 4 else [])):
            if all(each.is_contiguous(memory_format=layout) for each in operands):
                return torch.empty(result.shape, device="meta", memory_format=layout).stride()
    return first.stride() if alike and answer is not _Answer.UNKNOWN else None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes and strides, numbers or symbols."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]


def _hinted(layout: _Layout) -> _Layout | None:
    """With the numbers that its symbols stand for in the trace, if they all stand for one."""
    shape, strides = ([each.node.hint if isinstance(each, torch.SymInt) else each for each in numbers]
                      for numbers in (layout.shape, layout.strides))
    return None if None in shape or None in strides else _Layout(tuple(shape), tuple(strides))


def _layout_of(tensor: torch.Tensor) -> _Layout:
    return _Layout(tuple(tensor.shape), tensor.stride())


def _of_positions(result: torch.Tensor, given: Any, indices: Any) -> tuple[Any, ...] | None:
    """The strides of `given[indices]`: of ATen's iterator over what is given, with the indexed dimensions replaced by those of
    the indices, and over these. None where torch's answer is right, or nothing is known."""
    tensors = [each for each in indices if each is not None]
    if any(each.layout is not torch.strided or each.device.type != "cpu" for each in (result, given, *tensors)):
        return None
    if any(each.dtype in (torch.bool, torch.uint8) for each in tensors):
        return None  # as many positions as data says
    places = [at for at, each in enumerate(indices) if each is not None]
    count = result.dim() - (given.dim() - len(places))
    first = places[0] if places == [*range(places[0], places[-1] + 1)] else 0  # apart, they come to the front
    kept = [given.stride(dim) for dim in range(given.dim()) if dim not in places]
    ahead, behind = (1,) * first, (1,) * (result.dim() - first - count)
    places_of = tuple(result.shape)[first : first + count]
    spread = [_spread(_layout_of(each), places_of) for each in tensors]
    operands = [_Layout(tuple(result.shape), (*kept[:first], *[0] * count, *kept[first:]))]
    operands += [_Layout((*ahead, *each.shape, *behind), (
        *[_of_ones_ahead(each)] * first, *each.strides, *(each.strides[-1:] or (1,)) * len(behind))) for each in spread]
    answer, numbers = _hinted(_layout_of(result)), [*map(_hinted, operands)]
    if answer is None or None in numbers:
        return None
    for at, each in enumerate(map(_hinted, spread), 1):  # the strides of dimensions of size 1 are those of a view
        assert each is not None, "it has the sizes and strides of an operand"
        view = torch.empty_strided(each.shape, each.strides, device="meta").view((*ahead, *each.shape, *behind))
        numbers[at] = _layout_of(view)
    if _in_order(answer.shape, [each for each in numbers if each is not None]) == answer.strides:
        return None
    if all(type(number) is int for each in operands for number in (*each.shape, *each.strides)):
        return _in_order(answer.shape, [each for each in numbers if each is not None])
    return _in_order(tuple(result.shape), operands)  # each comparison is a guard


def _of_ones_ahead(layout: _Layout) -> Any:
    """The stride that a view gives to new dimensions of size 1 before those of the tensor."""
    strides = layout.strides
    last = 0
    while last + 1 < len(strides) and (
            layout.shape[last] == 1 or strides[last] == layout.shape[last + 1] * strides[last + 1]):
        last += 1
    return math.prod(layout.shape[: last + 1]) * strides[last] if strides else 1


def _spread(layout: _Layout, shape: tuple[Any, ...]) -> _Layout:
    """As `expand` makes it."""
    missing = len(shape) - len(layout.shape)
    own = [0 if type(size) is int and size == 1 and not (type(wanted) is int and wanted == 1) else stride
           for size, wanted, stride in zip(layout.shape, shape[missing:], layout.strides, strict=True)]
    return _Layout(shape, (*[0] * missing, *own))


def _in_order(shape: Sequence[int], operands: Sequence[_Layout]) -> tuple[int, ...]:
    """The strides that make the result's dimensions lie as the operands' do, the first operand's first: those of ATen's
    iterator over operands that are broadcast."""
    ndim = len(shape)
    strides = []
    for each in operands:
        missing = ndim - len(each.shape)
        own = [0 if size == 1 and shape[missing + at] != 1 else stride
               for at, (size, stride) in enumerate(zip(each.shape, each.strides, strict=True))]
        strides.append([0] * missing + own)

    def compared(one: int, other: int) -> int:
        for own in strides:
            if own[one] == 0 or own[other] == 0:
                continue
            if own[one] != own[other]:
                return 1 if own[one] > own[other] else -1
            if shape[one] > shape[other]:
                return 1
        return 0

    order = list(range(ndim))[::-1]
    for at in range(1, ndim):
        mine = at
        for before in reversed(range(at)):
            found = compared(order[before], order[mine])
            if found > 0:
                order[before], order[mine] = order[mine], order[before]
                mine = before
            elif found < 0:
                break
    made, step = [0] * ndim, 1
    for dim in order:
        made[dim] = step
        step *= shape[dim]
    if order == list(range(ndim))[::-1]:
        return torch.empty(tuple(shape), device="meta").stride()
    return tuple(made)


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
    ORDERED = "the result's dimensions are in the order of the operand's strides, as where a number is an operand, too"
    UNKNOWN = "none of these: torch's answer is right; or the operator takes no such tensor"


#: Strides of a small tensor of 2 x 1 x 2 x 3. The answers differ for it.
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
    lists = [each for each in (*args, *kwargs.values()) if isinstance(each, (list, tuple))]
    if any(isinstance(each, torch.SymInt) for given in lists for each in given):
        return _Answer.UNKNOWN

    def small(argument: object) -> object:
        if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):  # which would be fixed to be what it is now
            return {torch.SymInt: 2, torch.SymFloat: 2.0, torch.SymBool: True}[type(argument)]
        if not isinstance(argument, torch.Tensor):
            return argument
        return torch.ones(12, dtype=argument.dtype).as_strided((2, 1, 2, 3), _SMALL)

    with torch_private.get("torch.utils._python_dispatch._disable_current_modes")(), torch.no_grad():
        try:
            result = func(*map(small, args), **{name: small(each) for name, each in kwargs.items()})
        except Exception:  # what it takes, the operator itself has said
            return _Answer.UNKNOWN
    known = {(6, 6, 3, 1): _Answer.MADE_ANEW, _SMALL: _Answer.KEPT, (6, 3, 3, 1): _Answer.ORDERED}
    return known.get(result.stride(), _Answer.UNKNOWN)
