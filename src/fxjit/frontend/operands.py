"""Operand check: ATen refuses some types of operands that fake tensors accept, so its kernels are queried, with one element.

A graph's kernels would compute `linear` of float64 and float32, or `bitwise_not` of floats, where eager raises. What fake
tensors know are sizes and result types; which types an operator has kernels for, only the kernels know. Each operator is
queried once for each combination of types and ranks, and what it says is kept for the process.
"""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sympy
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fxjit import torch_private
from fxjit.homes import package_of
from fxjit.quiet import quietly
from fxjit.schemas import has_kernel, views_first_argument

#: Elements of all operands up to which operators are queried with the sizes of the program.
QUERIED_ELEMENTS: Final = 1 << 20
_QUERIED: Final = 16_384
_CHECKED: Final = frozenset({torch.Tag.core, torch.Tag.pointwise})
_INTEGERS: Final = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_NUMBERS: Final[dict[type, Any]] = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}


class OperandCheck(TorchDispatchMode):
    """Raises, for operators on fake tensors, what ATen's kernels raise for the types of their operands.

    A mode above that of fake tensors, not a class derived from it: torch looks for rules of operators (`cond`, `while_loop`) by
    the very class of a mode.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.all_accepted = True  # by kernels that were queried with one element: then sizes and numbers are no matter

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if result is not NotImplemented and _is_queried(func):
            self.all_accepted &= _check(func, args, kwargs or {})
        return result


#: Arguments that are the same in every call they are equal in, and that a key may keep.
_PLAIN: Final = (bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
#: Calls whose operators took all their operands; a trace meets most of its calls many times.
_accepted: Final[set[object]] = set()


@contextlib.contextmanager
def checking_operands(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Runs its block, a call on fake tensors, under an `OperandCheck`, unless one of such operands passed before. Derivatives
    take what operators gave that were checked, and what those say of results for autograd alone (the means of a layer norm of
    bfloat16) is not always of the kernels' type."""
    if target is torch.autograd.grad:
        yield
        return
    try:
        call = (target, torch.get_default_dtype(), _kinds((*args, kwargs))) if _is_torchs(target) else None
    except _Unknown:
        call = None
    if call is not None and call in _accepted:
        yield
        return
    with OperandCheck() as check:
        yield
    if call is not None and check.all_accepted and len(_accepted) < _QUERIED:
        _accepted.add(call)


def _is_torchs(target: object) -> bool:
    """Whether a call does the same operators each time: not a function of the program's, and not under autocast."""
    own = isinstance(target, (str, types.BuiltinFunctionType, types.MethodDescriptorType, OpOverload)) or (
        isinstance(target, types.FunctionType) and package_of(target) == "torch")
    return own and not torch._C._is_any_autocast_enabled()


def _kinds(given: Any) -> object:
    """What the choice of kernels depends on: types and ranks of tensors, types of numbers, plain constants as they are."""
    kind = type(given)
    if kind is FakeTensor:
        return given.dtype, given.dim(), given.device
    if kind in (list, tuple, torch.Size):
        return kind, *map(_kinds, given)
    if kind is dict:
        return kind, *((name, _kinds(each)) for name, each in given.items())
    if kind in (int, float, complex, *_NUMBERS):
        return kind
    if kind not in _PLAIN:  # another object would be kept alive, and its `__hash__` may be the program's
        raise _Unknown
    return kind, given


class _Operand(NamedTuple):
    """What a query knows of a tensor."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    device: torch.device


class _Number(NamedTuple):
    """A number, apart from those of other types that it equals."""

    kind: type
    value: Any


class _Call(NamedTuple):
    func: OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def operands(self) -> list[_Operand]:
        return list(_operands((self.args, self.kwargs)))


class _Refusal(NamedTuple):
    kind: type[Exception]
    message: str
    #: Whether operands of the same sizes and of other types are taken; else something else may be minded (a size, a number).
    of_types: bool


class _Unknown(Exception):
    """Signal: an argument that a query cannot stand for."""


@functools.lru_cache(_QUERIED)
def _is_queried(func: Any) -> bool:
    """Operators on data that torch tags as pointwise or core, or has a decomposition for, or that are made of others
    (`linear`, which is one operator where no gradients are recorded): their kernels check what they are given. Those of one
    library (oneDNN's layers) may abort the process. Views look at no data, and random operators would move a generator."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or views_first_argument(func):
        return False
    if torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if has_kernel(func, "CompositeImplicitAutograd"):
        return True
    decompositions_of = torch_private.get_or("torch._decomp.get_decompositions", lambda operators: {})
    return not _CHECKED.isdisjoint(func.tags) or bool(decompositions_of((func,)))


def _check(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Raises what ATen does, if these types of operands are a reason for it. One element is queried first, which may not tell
    (a group norm of 8 channels has more): whether it did is the result; then the program's own sizes, where they are small
    enough."""
    try:
        refusal = _refusal(_call(func, args, kwargs, _one_element, _NUMBERS.get))
        if refusal is None:
            return True
        call = _call(func, args, kwargs, _sizes_now, lambda kind: None)
        operands = call.operands()
        if operands and sum(math.prod(each.sizes) for each in operands) <= QUERIED_ELEMENTS:
            if refusal.of_types or _may_be_of_types({each.dtype for each in operands}):
                of_one, refusal = refusal, _refusal(call)
                if refusal is not None and of_one.of_types:
                    refusal = refusal._replace(of_types=True)
    except (_Unknown, TypeError):  # an argument that does not hash
        return False
    if refusal is not None and refusal.of_types:
        raise refusal.kind(refusal.message)
    return False


def _may_be_of_types(dtypes: set[torch.dtype]) -> bool:
    """Operands of several types, or of one that not everything computes. Floats of one type are not worth the query."""
    return len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point


def _call(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], sizes: Callable[[torch.Tensor], tuple[int, ...]],
          stand_in: Callable[[type], Any]) -> _Call:
    """The call with what is known of its arguments: `stand_in` has a number for each kind of symbol, or None for what it is
    in this very call."""

    def known(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            if type(arg) is not FakeTensor or arg.layout is not torch.strided or arg.is_quantized:
                raise _Unknown
            if arg.device.type != "cpu":  # an index that is refused on a GPU ends every later call of the process there
                raise _Unknown
            return _Operand(arg.dtype, sizes(arg), arg.device)
        if isinstance(arg, (list, tuple)):
            return tuple(map(known, arg))
        if isinstance(arg, tuple(_NUMBERS)):
            number = stand_in(type(arg))
            arg = _hint(arg) if number is None else number
        if isinstance(arg, (bool, int, float, complex)):
            return _Number(type(arg), "nan" if arg != arg else arg)
        if arg is None or isinstance(arg, (str, torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return arg
        raise _Unknown

    outs = {each.name for each in func._schema.arguments if each.is_out} if sizes is _one_element else ()
    return _Call(func, tuple(map(known, args)), tuple(
        (name, _emptied(known(each)) if name in outs else known(each)) for name, each in kwargs.items()))


def _emptied(given: Any) -> Any:
    """To be resized, which torch warns of where there is something in it."""
    if isinstance(given, _Operand):
        return given._replace(sizes=(0,))
    return tuple(map(_emptied, given)) if type(given) is tuple else given


def _one_element(tensor: torch.Tensor) -> tuple[int, ...]:
    return (1,) * tensor.dim()


def _sizes_now(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(_hint, tensor.shape))


def _hint(number: Any) -> Any:
    """What a symbolic number is in this very call; others as they are."""
    kind = type(number)
    if kind not in _NUMBERS:
        return number
    env = number.node.shape_env
    value = number.node.expr.xreplace(dict(env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val))
    if not (value.is_number or value in (sympy.true, sympy.false)):
        raise _Unknown  # known by data only
    return type(_NUMBERS[kind])(value)


def _operands(given: Any) -> Iterator[_Operand]:
    if isinstance(given, _Operand):
        yield given
    elif isinstance(given, tuple) and not isinstance(given, _Number):
        for each in given:
            yield from _operands(each)


@functools.lru_cache(_QUERIED)
def _refusal(call: _Call) -> _Refusal | None:
    """What ATen raises for such operands, and whether it would take others."""
    dtypes = tuple(each.dtype for each in call.operands())
    error = _raised(call, dtypes) if dtypes else None
    if error is None:
        return None
    others = dict.fromkeys(types for types in _other_types(dtypes) if types != dtypes)
    of_types = any(_raised(call, types) is None for types in others)
    return _Refusal(type(error), str(error), of_types or _raised(_with_integers(call), dtypes) is None)


def _with_integers(call: _Call) -> _Call:
    """The call with 0 and 1 for False and True, which some operators on floats refuse (`x - True`)."""
    def changed(given: Any) -> Any:
        if isinstance(given, _Number):
            return given._replace(kind=int, value=int(given.value)) if given.kind is bool else given
        return tuple(map(changed, given)) if type(given) is tuple else given

    return call._replace(args=changed(call.args), kwargs=tuple((name, changed(each)) for name, each in call.kwargs))


def _other_types(dtypes: tuple[torch.dtype, ...]) -> Iterator[tuple[torch.dtype, ...]]:
    """Types for the operands that an operator of any kind takes: floats with indices, one type for all, another for one."""
    yield tuple(torch.float32 if each.is_floating_point else torch.int64 if each in _INTEGERS else each for each in dtypes)
    for one in (torch.float32, torch.int64, torch.bool, torch.float64, torch.complex64):
        yield (one,) * len(dtypes)
    yield tuple(torch.float32 if each.is_floating_point else torch.int64 for each in dtypes)
    for place in range(len(dtypes)):
        yield tuple(torch.int64 if at == place else torch.float32 for at in range(len(dtypes)))
        for one in dict.fromkeys((*dtypes, torch.float32, torch.int64)):
            yield (*dtypes[:place], one, *dtypes[place + 1:])


def _raised(call: _Call, dtypes: tuple[torch.dtype, ...]) -> Exception | None:
    """What ATen raises for operands of these types; None where it computes something of ones or of zeros: numbers are not what
    is queried (a quotient by zero, an index past the end)."""

    error = None
    # As eager, past all that traces or records; what ATen warns of (a variance of one number) is no matter of the program's.
    with _disable_current_modes(), torch._C._DisablePythonDispatcher(), torch.no_grad():
        for fill in (1, 0):
            build = functools.partial(_tensor, types=iter(dtypes), fill=fill)
            args, kwargs = _filled(call.args, build), {name: _filled(each, build) for name, each in call.kwargs}
            try:
                quietly(functools.partial(call.func, *args, **kwargs))
                return None
            except Exception as raised:
                error = raised.with_traceback(None)
    return error


def _tensor(operand: _Operand, types: Iterator[torch.dtype], fill: int) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.full.default(operand.sizes, fill, dtype=next(types), device=operand.device)
    return made


def _filled(given: Any, build: Callable[[_Operand], torch.Tensor]) -> Any:
    if isinstance(given, _Operand):
        return build(given)
    if isinstance(given, _Number):
        return math.nan if given.value == "nan" else given.value
    return [_filled(each, build) for each in given] if isinstance(given, tuple) else given


def thawed(arguments: Any) -> Any:
    """Lists and dicts as the program has them: FX makes immutable ones."""
    if isinstance(arguments, dict):
        return {key: thawed(item) for key, item in arguments.items()}
    if isinstance(arguments, list):
        return [thawed(item) for item in arguments]
    return tuple([thawed(item) for item in arguments]) if type(arguments) is tuple else arguments
