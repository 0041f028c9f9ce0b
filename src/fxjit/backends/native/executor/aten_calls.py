"""Calls to ATen and Python from compiled graphs: the fastest entry point of each function, by a name that the disk keeps."""

from __future__ import annotations

import functools
import importlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit.counters import counters
from fxjit.homes import module_of
from fxjit.tensor_shim import shim_code

from ..runtime.own_attention import attention, attention_backward, is_preferred
from ..target import scalar_tensor


def with_strides(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor with the strides and the type that kernels were compiled for: what a fake tensor says is not always so (batch
    norm's running numbers in half precision are not the float32 that it has)."""
    if 0 in size:
        # An empty tensor is read by no kernel of ours; oneDNN's LSTM has a workspace that only its fake tensor says is empty.
        return tensor
    if tensor.shape != size:
        raise RuntimeError(f"an operator gave a result of shape {tuple(tensor.shape)} that torch says is {size}")
    if tensor.dtype is dtype and all(n <= 1 or a == b for n, a, b in zip(size, tensor.stride(), stride, strict=True)):
        return tensor
    counters["native"]["unexpected strides"] += 1
    fresh = torch.empty_strided(size, stride, dtype=dtype, device=tensor.device)
    return fresh.copy_(tensor)


def with_strides_if_same_shape(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """The same for what only operators and the caller read: of another shape, it goes to them as it is (an embedding bag of
    halves leaves out what its derivative does not need)."""
    return with_strides(tensor, size, stride, dtype) if tensor.shape == size else tensor


def empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of a type, or on a device, that torch's C shim does not know."""
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def allocate(dtype: int, device: int, index: int, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Memory that torch's C shim did not get, with the shim's numbers of the type and the device: it is there by now, or
    the error is eager's."""
    types = {shim_code("dtype", each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    kinds = {shim_code("device_type", name): name for name in ("cpu", "cuda")}
    where = torch.device("cpu") if kinds[device] == "cpu" else torch.device(kinds[device], index)
    return torch.empty_strided(size, stride, dtype=types[dtype], device=where)


# Views and `item` as tensor methods, and operators as torch's own C functions: both parse arguments faster than an overload.
METHODS: dict[str, str] = {
    "view.default": "view", "_unsafe_view.default": "view", "reshape.default": "reshape", "permute.default": "permute",
    "t.default": "t",
    "transpose.int": "transpose", "expand.default": "expand", "unsqueeze.default": "unsqueeze", "select.int": "select",
    "detach.default": "detach", "_local_scalar_dense.default": "item",
}  # fmt: skip
_functions: Any = torch._C._VariableFunctions
#: Operators whose overload named here is what torch's function of the same name calls with the same positional tensors.
_SAME_NAME = (
    "mm.default", "bmm.default", "addmm.default", "convolution.default", "add.Tensor", "sub.Tensor", "mul.Tensor",
    "div.Tensor",
    "relu.default", "tanh.default", "sigmoid.default", "exp.default", "log.default", "sqrt.default", "rsqrt.default",
    "neg.default",
    "abs.default", "sin.default", "cos.default", "erf.default", "maximum.default", "minimum.default", "where.self",
    "sum.default", "mean.default", "clone.default", "embedding.default",
)  # fmt: skip
DIRECT: dict[str, Callable[..., Any]] = {
    **{name: getattr(_functions, name.partition(".")[0]) for name in _SAME_NAME},
    "linear.default": torch._C._nn.linear,
}


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function that a program calls, by a name that means the same in another process."""

    kind: str
    name: str

    @property
    def label(self) -> str:
        """The operator's readable name."""
        if self.kind == "method":
            return f"torch.Tensor.{METHODS[self.name]}"
        return {"direct": "torch.ops.aten.", "function": "torch._C.", "operator": "torch.ops."}.get(self.kind, "") + self.name

    def find(self) -> Any:
        """The function; AttributeError where torch has none of this name."""
        if self.kind == "direct":
            return DIRECT[self.name]
        if self.kind == "method":
            return getattr(torch.Tensor, METHODS[self.name])
        if self.kind == "helper":
            return HELPERS[self.name] if self.name in HELPERS else _late(self.name)
        if self.kind == "function":
            return getattr(_namespaces()[self.name.partition(".")[0]], self.name.partition(".")[2])
        if self.kind == "python":
            return _PYTHONS[self.name]
        if self.kind == "higher-order":
            home, _, name = self.name.rpartition(".")
            if home.partition(".")[0] != "torch":
                raise ValueError(f"{home} is not torch's")
            importlib.import_module(home)  # which defines it
            return getattr(torch.ops.higher_order, name)
        namespace, packet, overload = self.name.split(".")
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        return found._op if namespace == "aten" and self.kind == "operator" else found  # an "overload" for a graph


def with_effects(token: torch.Tensor, target: torch._ops.OpOverload, *args: Any, **keywords: Any) -> tuple[Any, ...]:
    """The effects of torch's operator of this name (the check of `torch.linalg.inv`, say), without its way through Python."""
    results = target(*args, **keywords)
    return (torch.empty(0), *results) if isinstance(results, tuple) else (torch.empty(0), results)


HELPERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (with_strides, with_strides_if_same_shape, empty_strided, scalar_tensor, with_effects, attention,
                     attention_backward)
}


#: The helpers that stand for operators of ours.
_LATE = ("recurrent", "grouped_mm")
#: The helpers that stand for operators of ATen's where ours are faster, and where the query is among the arguments.
_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": (attention.__name__, 0),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (attention_backward.__name__, 1),
}


def _late(name: str) -> Any:
    """A helper whose module registers operators, which takes longer than to start most stored programs."""
    if name == "recurrent":
        return importlib.import_module("fxjit.backends.native.runtime.own_recurrent").recurrent
    return importlib.import_module("fxjit.backends.native.passes.grouped_products").grouped_mm


#: What calculates with numbers that Python has: its operators and functions, and torch's own of the kind.
_PYTHONS: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in operator.__all__},
    **{f"torch.{name}": getattr(torch, name) for name in ("sym_int", "sym_max", "sym_min", "sym_not", "sym_ite", "sym_sum")},
    **{f"math.{name.removeprefix('_sym_')}": getattr(math, name.removeprefix("_sym_")) for name in vars(torch)
       if name.startswith("_sym_")},
    "float": float,
}
_NAMES = {id(function): name for name, function in _PYTHONS.items()} | {id(torch.sym_float): "float"} | {
    id(function): f"math.{name.removeprefix('_sym_')}" for name, function in vars(torch).items() if name.startswith("_sym_")}


def python_function(target: Any) -> Any:
    """The callable for a function that is no operator: by name, where it calculates with numbers. For plain numbers torch's
    functions for symbols are Python's."""
    for name in HELPERS:
        if HELPERS[name] is target:
            return FunctionName("helper", name)
    if target is torch.ops.higher_order.with_effects:
        return FunctionName("helper", "with_effects")
    if isinstance(target, torch._ops.HigherOrderOperator):
        home, name = module_of(type(target)), target.name()
        own = home.partition(".")[0] == "torch" and getattr(torch.ops.higher_order, name, None) is target
        return FunctionName("higher-order", f"{home}.{name}") if own else target
    return FunctionName("python", _NAMES[id(target)]) if id(target) in _NAMES else target


def aten_function(target: torch._ops.OpOverload, name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> FunctionName:
    """How an operator is called; `name` is what METHODS and DIRECT would call it by, the others what it is called with while
    compiling: fake tensors and plain values."""
    if not keywords and name in DIRECT:
        return FunctionName("direct", name)
    if not keywords and name in METHODS:
        return FunctionName("method", name)
    if target.namespace == "fxjit" and target._opname in ("recurrent", "recurrent_with_dropout"):
        return FunctionName("helper", "recurrent")
    if target.namespace == "fxjit" and target._opname in _LATE:
        return FunctionName("helper", target._opname)
    if target.namespace == "aten" and target._opname in _ATTENTION:
        helper, first = _ATTENTION[target._opname]
        if is_preferred(args[first], args[first + 1], backward=first > 0):
            return FunctionName("helper", helper)
    if target.namespace == "aten":
        key = (target, *(_kind(each) for each in args), *((each, _kind(value)) for each, value in keywords.items()))
        if key not in _found:
            _found[key] = _function_for(target, args, keywords)
        if _found[key] is not None:
            return FunctionName("function", str(_found[key]))
    return FunctionName("operator", f"{target.namespace}.{target._opname}.{target._overloadname}")


# Torch's own functions, which parse arguments in a third of the time that an overload takes. Which overload one comes to is
# decided by the arguments' types; whether it is the wanted one is tried.

_found: dict[Any, str | None] = {}


@functools.cache
def _namespaces() -> dict[str, Any]:
    names = ("_VariableFunctions", "_nn", "_linalg", "_fft", "_special")
    return {name: getattr(torch._C, name) for name in names}


def _kind(value: Any) -> Any:
    """All that decides which overload an argument suits."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim() == 0, value.device.type, value.layout
    if isinstance(value, (list, tuple)):
        return type(value), *map(_kind, value)
    return type(value)


def _function_for(target: torch._ops.OpOverload, args: Sequence[Any], keywords: Mapping[str, Any]) -> str | None:
    name = target._opname
    for namespace, holder in _namespaces().items():
        function = getattr(holder, name, None)
        if callable(function) and _comes_to(function, target, args, keywords):
            return f"{namespace}.{name}"
    return None


class _Reached(Exception):
    """Torch's dispatcher was reached."""


class _Watch(TorchDispatchMode):
    """Notes which operator is called, with what, and ends the call there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reached = func, args, kwargs or {}
        raise _Reached


def _comes_to(function: Any, target: torch._ops.OpOverload, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether the function, given this, calls the operator with the same."""
    watch = _Watch()
    try:
        with torch.no_grad(), watch:
            function(*args, **keywords)
    except _Reached:
        reached, *given = watch.reached
        return reached is target and _same(_complete(target, *given), _complete(target, args, keywords))
    except Exception:
        pass  # it refuses what the operator takes: another function of the same name
    return False


def _complete(target: torch._ops.OpOverload, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """A value for each argument of the schema."""
    arguments = target._schema.arguments
    named = {each.name: value for each, value in zip(arguments, args, strict=False)}
    named.update(keywords)
    return [named.get(each.name, each.default_value) for each in arguments]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))
