"""torch's callable objects (operators by name, custom operators, scripted functions), and the call that becomes one node.

`call_in_graph` makes the node; interp/ calls it for Python functions that skips/ wants in the graph. Which functions of
torch's do become one is in callables/torch_functions.py.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.overrides
import torch.utils._device
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol, torch_rng
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import resolve
from fxjit.frontend.values.contexts import default_device
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue, tensors_in
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import Source
from fxjit.homes import module_of, name_with_module, package_of
from fxjit.overlap import have_common_element
from fxjit.schemas import is_known, overloads_of, target_uses_rng
from fxjit.skips import marks

CustomOpDef: Any = torch_private.optional("torch._library.custom_ops.CustomOpDef")

Args = Sequence[Value]
Kwargs = Mapping[str, Value]


# -- one node ------------------------------------------------------------------------------------------------------


def call_in_graph(t: Tracer, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    """`fn(*args, **kwargs)` as one node of the graph."""
    named = dict(kwargs)
    name = name_with_module(fn)
    if (mark := marks.mark_of(fn)) is marks.Mark.DISALLOW_IN_GRAPH:
        t.break_("user-disallowed", function=fn)
    elif mark is marks.Mark.FORBID_IN_GRAPH:
        t.break_("user-forbidden", function=fn)
    if is_given(named, "generator"):
        sampled = torch_rng.sample(t, fn, args, named)
        if sampled is None:
            t.break_("call-rng-state", function=name)
        return sampled
    if isinstance(fn, types.BuiltinFunctionType):  # a generator that is None chooses an overload without sizes that vary
        named.pop("generator", None)
    is_factory = is_given(named, "requires_grad") and _is_torchs_function(fn)
    makes_leaf = is_factory and protocol.truth(t, named.pop("requires_grad"))
    device = default_device(t)
    if device is not None and not is_given(named, "device"):
        if fn in torch_private.get("torch.utils._device._device_constructors")():
            named["device"] = t.make(device)
    outs = tensors_in([named["out"]]) if is_given(named, "out") else []
    if outs and _is_torchs_function(fn):  # which has a form without `out`
        return _call_with_out(t, fn, list(args), named, outs)
    before = [tuple(out.fake.shape) for out in outs]
    result = t.emit(_as_target(fn), args, named)
    if makes_leaf and isinstance(result, TensorValue):
        result.make_leaf(t, True)
    if before != [tuple(out.fake.shape) for out in outs]:
        t.break_("tensor-out", function=name, why="it is resized")
    return result


def _is_torchs_function(fn: Callable[..., Any]) -> bool:
    """Whether `out` and `requires_grad` mean what they do in torch's functions; to operators by name and to the program's own
    they are arguments like others."""
    is_function = isinstance(fn, (types.BuiltinFunctionType, types.FunctionType))
    return is_function and package_of(fn) in ("", "torch")


def _call_with_out(
    t: Tracer, fn: Callable[..., Any], args: list[Value], named: dict[str, Value], outs: list[TensorValue]
) -> Value:
    """A call with `out=`. The written tensor keeps its strides, whatever those of the operator's own result are.
    AOTAutograd, which turns `out=` into calls without, would give it these: where they differ, the result is copied, unless
    what is written is read too: eager refuses that, or reads as far as it has written."""
    target = _as_target(fn)
    with t.dry_run(name_with_module(fn)):
        made = tensors_in([t.emit(target, args, {key: arg for key, arg in named.items() if key != "out"})])
    if [tuple(each.fake.shape) for each in outs] != [tuple(each.fake.shape) for each in made]:
        t.break_("tensor-out", function=name_with_module(fn), why="it is resized")
    read = tensors_in([*args, *(arg for key, arg in named.items() if key != "out")])
    if read and any(each.fake.dtype != own.fake.dtype for each, own in zip(outs, made, strict=True)) and not _casts(target):
        t.break_("tensor-out", function=name_with_module(fn), why="its type, not that of the result, may be refused")
    if all(map(_laid_out_alike, outs, made)) or any(have_common_element(a.fake, b.fake) for a in outs for b in read):
        return t.emit(target, args, named)
    if any(out.fake.requires_grad for out in outs):  # which eager refuses
        return t.emit(target, args, named)
    if target_uses_rng(target):
        t.break_("tensor-out", function=name_with_module(fn), why="numbers are drawn in the order of its memory")
    fresh = [t.emit(torch.empty_like, [each], {"memory_format": t.make(torch.contiguous_format)}) for each in outs]
    single = isinstance(named["out"], TensorValue)
    result = t.emit(target, args, named | {"out": fresh[0] if single else TupleValue(fresh)})
    for place, value in zip(outs, fresh, strict=True):
        t.emit("copy_", [place, value])
    return outs[0] if single else TupleValue(outs, cls=result.pytype())


def _casts(target: Callable[..., Any]) -> bool:
    """Whether fake tensors know which types of `out` the operator takes, as those of the operators that others are made of do.
    `searchsorted`, `isin` and `multinomial` refuse types that their fake kernels take."""
    return any({torch.Tag.core, torch.Tag.pointwise} & set(each.tags) for each in overloads_of(target))


def _laid_out_alike(a: TensorValue, b: TensorValue) -> bool:
    """Whether the strides are the same where they matter."""
    return all(n == 1 or x == y for n, x, y in zip(a.fake.shape, a.fake.stride(), b.fake.stride(), strict=True))


def _as_target(fn: Callable[..., Any]) -> Callable[..., Any]:
    """FX writes functions of torch by their names: one that only has the name of another needs one of its own."""
    if not isinstance(fn, types.FunctionType) or not hasattr(fn, "__wrapped__"):
        return fn
    found: Any = sys.modules.get(module_of(fn))
    for part in fn.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is fn:
        return fn  # type: ignore[no-any-return]  # narrowed to a FunctionType, which types have as Any

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__name__ = fn.__name__
    if not is_known(fn):
        call.__module__ = fn.__module__
    return call


def first_argument(t: Tracer, fn: Callable[..., Any], args: Args, kwargs: Kwargs, name: str) -> Value:
    """The first argument, which may be given by its name; without one the call raises."""
    if args:
        return args[0]
    return kwargs[name] if name in kwargs else call_in_graph(t, fn, args, kwargs)


def is_given(kwargs: Kwargs, name: str) -> bool:
    """Whether the keyword argument has a value that is not None."""
    value = kwargs.get(name)
    return value is not None and not (value.is_constant() and value.as_constant() is None)


class TorchFunctionValue(Value):
    """A callable object of torch that is one node when called: `torch.ops.aten.add.Tensor` and its like."""

    def __init__(self, fn: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.fn = fn

    def pytype(self) -> type:
        return type(self.fn)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.fn

    def graph_arg(self, t: Tracer) -> Any:
        return self.fn

    def describe(self) -> str:
        return name_with_module(self.fn)

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if isinstance(self.fn, HigherOrderOperator):
            handler = resolve(self.fn)
            if handler is None:
                t.break_("call-higher-order", function=str(self.fn), why="there is no rule for this operator")
            return handler(t, list(args), dict(kwargs))
        return call_in_graph(t, self.fn, args, kwargs)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        try:
            return t.make(getattr(self.fn, name))
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


class OperatorNamespaceValue(TorchFunctionValue):
    """`torch.ops` and the namespaces in it, which make their members when they are looked up."""

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        t.raise_(TypeError, f"'{self.pytype().__name__}' object is not callable")


class CustomOperatorValue(TorchFunctionValue):
    """The result of `torch.library.custom_op`: its operator goes in the graph."""

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return call_in_graph(t, self.fn._opoverload, args, kwargs)


@wraps(CustomOpDef, subclasses=True)
def _wrap_custom_operator(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return CustomOperatorValue(obj, source)


class ScriptFunctionValue(TorchFunctionValue):
    """The result of `torch.jit.script` for a Python function: that function is traced, where torch kept it."""

    def tp_call(self, t: Tracer, args: Args, kwargs: Kwargs) -> Value:
        original = getattr(self.fn, "_torchdynamo_inline", None)
        if original is None:
            t.break_("call-c-extension", function=self.describe(), module="torch.jit")
        return t.call(t.make(original), args, kwargs)


@wraps(torch.jit.ScriptFunction)
def _wrap_script_function(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ScriptFunctionValue(obj, source)


@wraps(OpOverload, OpOverloadPacket, HigherOrderOperator, subclasses=True)
def _wrap_operator(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return TorchFunctionValue(obj, source)


@wraps(type(torch.ops), type(torch.ops.aten))
def _wrap_namespace(t: Tracer, obj: Any, source: Source) -> Value:
    return OperatorNamespaceValue(obj, source)
