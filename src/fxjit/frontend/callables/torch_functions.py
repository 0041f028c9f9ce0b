"""Torch functions: which are operators of the graph, which are known while tracing, and which steer the process.

`default` answers for callables of torch that have no handler of their own: operators become one node, methods spelled as
functions (`torch.Tensor.add(x, y)`) are the tensor's, and state that can only be read is read while tracing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.overrides
from torch.nn.utils.rnn import PackedSequence

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import backend_flags, deferred_numbers, overrides, protocol, tensor_methods
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import Handler, Stage, handles, pass_on, resolves
from fxjit.frontend.values.contexts import autocast_opened
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue, tensors_in
from fxjit.frontend.values.torchfn import call_in_graph, first_argument
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import CallSource, ConstSource
from fxjit.homes import module_of, name_with_module, package_of
from fxjit.tensor_wrappers import storages
from fxjit.torch_private import get, optional

# -- which C functions are operators -------------------------------------------------------------------------------


def _operators() -> dict[int, Any]:
    """The C functions that are ATen operators under a Python name, by id."""
    found: dict[int, Any] = {}
    spaces: list[Any] = [torch, torch._C._VariableFunctions]
    spaces += [getattr(torch._C, name, None) for name in ("_nn", "_fft", "_linalg", "_special", "_nested", "_sparse")]
    for space in filter(None, spaces):
        for name in dir(space):
            fn = getattr(space, name)
            is_builtin = isinstance(fn, types.BuiltinFunctionType)
            if is_builtin and (space is not torch or getattr(torch._C._VariableFunctions, name, None) is fn):
                found[id(fn)] = fn
    return found


_OPERATORS: Final = _operators()
overrides.OPERATORS.update(_OPERATORS)


@resolves(Stage.TORCH)
def default(fn: Any) -> Handler | None:
    """The handler of a callable of torch that has none of its own."""
    if isinstance(fn, types.BuiltinFunctionType):
        module = module_of(fn)
        if id(fn) in _OPERATORS:
            return _node_handler(fn)
        if module == "torch._C" and fn.__name__.startswith(("_get_", "_is_", "_has_", "_cuda_get", "_cuda_is")):
            return _state_handler(fn)
        return None
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        owner: type = fn.__objclass__
        name: str = fn.__name__
        return _method_handler(name) if issubclass(torch.Tensor, owner) and owner is not object else None
    if isinstance(fn, types.MethodWrapperType):
        return _attribute_handler(fn)
    if isinstance(fn, types.FunctionType) and module_of(fn):
        spelled = str(fn.__name__)
        if torch.Tensor.__dict__.get(spelled) is fn and tensor_methods.is_torchs(fn):
            return _method_handler(spelled)
        if spelled in _COMPILING and package_of(fn) in ("torch", "fxjit"):
            return _compiling_handler(_COMPILING[spelled])
    return None


def _node_handler(fn: Any) -> Handler:
    return lambda t, args, kwargs: call_in_graph(t, fn, args, kwargs)


def _method_handler(name: str) -> Handler:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            t.raise_(TypeError, f"unbound method Tensor.{name}() needs an argument")
        receiver = args[0].realize()
        if not isinstance(receiver, TensorValue):
            if issubclass(receiver.pytype(), torch.Tensor):  # of a kind that is not traced, which says why
                return t.call(protocol.getattr_(t, receiver, name), args[1:], kwargs)
            t.raise_(TypeError, f"descriptor '{name}' for 'torch._C.TensorBase' objects doesn't apply to a "
                                f"'{receiver.pytype().__name__}' object")
        return tensor_methods.call_method(t, receiver, name, args[1:], kwargs)
    return call


def _attribute_handler(fn: types.MethodWrapperType) -> Handler | None:
    """Handler of `torch.Tensor.shape.__get__`, the callable that modes receive for an attribute."""
    descriptor: Any = fn.__self__
    if not isinstance(descriptor, property | types.GetSetDescriptorType):
        return None  # methods, such as those that Tensor has of object, are bound
    getter: Any = descriptor.fget if isinstance(descriptor, property) else descriptor
    name: str = getattr(getter, "__name__", "")
    if fn.__name__ != "__get__" or getattr(torch.Tensor, name, None) is not descriptor:
        return None

    def read(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args or protocol.type_lookup(args[0].realize().pytype(), name) is not descriptor:
            t.break_("call-builtin", function=f"Tensor.{name}.__get__", args=", ".join(arg.describe() for arg in args))
        return protocol.getattr_(t, args[0], name)
    return read


# -- what the program may ask --------------------------------------------------------------------------------------

#: Functions of compilers that say whether they are at work, wherever they are imported from.
_COMPILING: Final = {"is_compiling": True, "is_dynamo_compiling": True, "is_exporting": False}


def _known_handler(answer: object) -> Handler:
    return lambda t, args, kwargs: t.make(answer)


def _compiling_handler(answer: bool) -> Handler:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        told = answer and t.break_points.shows_compiler
        t.root.told_of_compiling |= told
        return t.make(told)
    return call


for _name, _told in _COMPILING.items():
    handles(getattr(torch.compiler, _name))(_compiling_handler(_told))
for _fn, _answer in (
    (optional("torch._jit_internal.is_scripting"), False), (optional("torch.jit._trace.is_tracing"), False),
    (torch._C._get_tracing_state, None), (optional("torch._C._is_tracing"), False),
    (torch._C._len_torch_dispatch_stack, 0), (optional("torch.fx._symbolic_trace.is_fx_tracing"), False),
    (optional("torch.fx._symbolic_trace.is_fx_symbolic_tracing"), False),
):
    handles(_fn)(_known_handler(_answer))


def _require_no_transform(t: Tracer, function: str) -> None:
    entered = overrides.entered_transforms(t)
    if entered:
        t.break_("call-higher-order", function=entered[-1], why=f"its function asks for the level it runs at (`{function}`)")


def _level_handler(fn: Any, answer: object) -> Handler:
    """Queries of the level of transforms: known outside of them; the stand-ins of a function that one is given have none."""
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        _require_no_transform(t, name_with_module(fn))
        return t.make(answer)
    return call


for _fn, _answer in (
    (optional("torch._C._functorch.peek_interpreter_stack"), None), (torch._C._functorch.maybe_current_level, None),
    (optional("torch._C._are_functorch_transforms_active"), False),
):
    handles(_fn)(_level_handler(_fn, _answer))


@handles(torch._C._len_torch_function_stack)
def _len_function_stack(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.make(len(overrides.entered_modes(t)))


@handles(torch._C._is_torch_function_enabled)
def _is_function_enabled(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.make(not overrides.disabled_by(t))


@handles(torch._C._is_torch_function_all_disabled)
def _is_function_all_disabled(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.make(torch._C.DisableTorchFunction in overrides.disabled_by(t))


@handles(optional("torch._C._get_torch_function_state"))
def _function_state(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    states, off = get("torch._C._TorchFunctionState"), overrides.disabled_by(t)
    if not off:
        return t.make(states.ENABLED)
    return t.make(states.ALL_DISABLED if torch._C.DisableTorchFunction in off else states.SUBCLASSES_DISABLED)


@handles(optional("torch._C._is_torch_function_mode_enabled"))
def _is_function_mode_enabled(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.make(bool(overrides.entered_modes(t)))


def _state_handler(fn: Callable[..., Any]) -> Handler:
    """Read-only state of the process, as it is while tracing; what matters of it is guarded as ambient state."""
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not all(value.is_constant() for value in (*args, *kwargs.values())):
            t.break_("call-c-extension", function=name_with_module(fn), module="torch")
        return protocol.fold(t, lambda: fn(*[value.as_constant() for value in args],
                                           **{key: value.as_constant() for key, value in kwargs.items()}))
    return call


_STATE: Final[tuple[Callable[..., Any], ...]] = (
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.is_autocast_enabled, torch.is_autocast_cpu_enabled,
    torch.amp.autocast_mode.is_autocast_available, torch.get_default_dtype, torch.get_default_device,
    torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled,
    torch.get_deterministic_debug_mode, torch.get_num_interop_threads,
    torch.cuda.is_available, torch.cuda.device_count, torch.cuda.get_device_capability,
    torch.cuda.get_device_name, torch.cuda.get_device_properties,
    torch.cuda.is_bf16_supported, torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing,
    torch.xpu.is_available, torch.mps.is_available, torch.backends.mps.is_available, torch.backends.mps.is_built,
    torch.backends.mkldnn.is_available, torch.backends.mkl.is_available, torch.backends.openmp.is_available,
    torch.backends.cudnn.is_available, torch.backends.cudnn.version, torch.backends.cuda.is_built,
    torch.distributed.is_available, torch.accelerator.is_available, torch.accelerator.current_accelerator,
    torch.promote_types, torch.can_cast, torch.device, torch.finfo, torch.iinfo, torch.typename,
    optional("torch._C._log_api_usage_once"),
)
for _fn in _STATE:
    handles(_fn)(_state_handler(_fn))


def _switch_handler(fn: Callable[..., Any]) -> Handler:
    """Handler of state that may change between two calls and that no other guard covers: guarded by its value."""
    known = _state_handler(fn)

    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        answer = known(t, args, kwargs)
        if backend_flags.is_set(t, fn):
            return answer
        given = [value.as_constant() for value in args], {name: value.as_constant() for name, value in kwargs.items()}
        asked = functools.partial(fn, *given[0], **given[1]) if args or kwargs else fn
        t.guard(ConstIs(CallSource(ConstSource(asked, fn.__name__)), answer.as_constant()))
        return answer
    return call


def _autocast_handler(fn: Callable[..., Any]) -> Handler:
    """Handler of queries of autocast: answered by a traced block, or by the guard on autocast while it is on, and else a
    switch."""
    known, guarded = _state_handler(fn), _switch_handler(fn)

    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = (value.as_constant() for value in [*args, *kwargs.values()] if value.is_constant())
        device = _AUTOCAST[fn] or next(given, None)
        opened = autocast_opened(t)
        if fn is torch.is_autocast_cache_enabled:
            is_held = bool(opened) or torch._C._is_any_autocast_enabled()  # type: ignore[attr-defined]  # not in the stubs
        else:
            is_held = device in opened or (isinstance(device, str) and torch.is_autocast_enabled(device))
        return (known if is_held else guarded)(t, args, kwargs)
    return call


_SWITCHES: Final[tuple[Callable[..., Any], ...]] = (
    torch.get_num_threads, torch.get_float32_matmul_precision, torch.is_warn_always_enabled, torch.cuda.current_device,
    torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.cudnn_sdp_enabled,
    torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed, torch.backends.mha.get_fastpath_enabled,
    *backend_flags.PRECISIONS, *(query for _, query in backend_flags.FLAGS),
)
for _fn in _SWITCHES:
    handles(_fn)(_switch_handler(_fn))
#: With the device of each query; None: its argument says.
_AUTOCAST: Final[dict[Callable[..., Any], str | None]] = {
    torch.is_autocast_cache_enabled: None, torch.get_autocast_dtype: None, torch.get_autocast_gpu_dtype: "cuda",
    torch.get_autocast_cpu_dtype: "cpu",
}
for _fn in _AUTOCAST:
    handles(_fn)(_autocast_handler(_fn))


def _fact_handler(fn: Callable[..., Any]) -> Handler:
    """Functions of a tensor's metadata, run on its fake."""
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        known = [_stand_in(t, value, fn) for value in args]
        named = {key: _stand_in(t, value, fn) for key, value in kwargs.items()}
        return protocol.fold(t, lambda: fn(*known, **named))
    return call


def _stand_in(t: Tracer, value: Value, fn: Callable[..., Any]) -> Any:
    if isinstance(value, TensorValue):
        return value.fake
    if not value.is_constant():
        t.break_("tensor-argument", function=name_with_module(fn), value=value.describe(), type=value.pytype().__name__)
    return value.as_constant()


_FACTS: Final[tuple[Callable[..., Any], ...]] = (
    torch.is_floating_point, torch.is_complex, torch.is_signed, torch.is_conj, torch.is_neg, torch.is_inference,
    torch.result_type, torch.get_device, torch.is_same_size,
)
for _fn in _FACTS:
    handles(_fn)(_fact_handler(_fn))


@handles(torch.is_tensor)
def _is_tensor(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = first_argument(t, torch.is_tensor, args, kwargs, "obj")
    return t.make(issubclass(obj.pytype(), torch.Tensor))


@handles(torch.is_storage)
def _is_storage(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = first_argument(t, torch.is_storage, args, kwargs, "obj")
    return t.make(obj.pytype() in torch_private.get("torch._storage_classes"))


@handles(torch.numel)
def _numel(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return protocol.call_method(t, first_argument(t, torch.numel, args, kwargs, "input"), "numel")


@handles(torch.nn.functional.one_hot)
def _one_hot(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Its result lies in rows. What torch does in its place on fake tensors takes the layout of the classes over."""
    classes = args[0].realize() if args else None
    if isinstance(classes, TensorValue) and not classes.fake.is_contiguous():
        args = [protocol.call_method(t, classes, "contiguous"), *args[1:]]
    return call_in_graph(t, torch.nn.functional.one_hot, args, kwargs)


@handles(torch.is_distributed)
def _is_distributed(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return protocol.call_method(t, first_argument(t, torch.is_distributed, args, kwargs, "input"), "is_distributed")


@handles(torch.is_nonzero)
def _is_nonzero(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.call(t.make(bool), args or [first_argument(t, torch.is_nonzero, args, kwargs, "input")], None)


@handles(torch.allclose)
def _allclose(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What it is made of, where the bool may be known when the graph has run."""
    later = None
    if _are_plain(t, [*args, *kwargs.values()]):
        later = deferred_numbers.truth(t, t.emit("all", [call_in_graph(t, torch.isclose, args, kwargs)]))
    return call_in_graph(t, torch.allclose, args, kwargs) if later is None else later


@handles(torch.equal)
def _equal(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The same, where torch compares elements: not of tensors that may be one in memory, as it does not look at NaN there."""
    one, other = args if len(args) == 2 and not kwargs else (None, None)
    later = None
    if isinstance(one, TensorValue) and isinstance(other, TensorValue) and _are_plain(t, args):
        facts = [(each.fake.dtype, each.fake.device, each.fake.dim()) for each in (one, other)]
        apart = _are_apart(one, other) or not (one.fake.is_floating_point() or one.fake.is_complex())
        if facts[0] == facts[1] and apart and tuple(one.fake.shape) == tuple(other.fake.shape):
            later = deferred_numbers.truth(t, t.emit("all", [t.emit(torch.eq, [one, other])]))
    return call_in_graph(t, torch.equal, args, kwargs) if later is None else later


def _are_plain(t: Tracer, args: list[Value]) -> bool:
    """Whether nothing but torch's own operators has a say in what is done with the tensors among these."""
    tensors = [arg for arg in map(Value.realize, args) if isinstance(arg, TensorValue)]
    return overrides.innermost(t) is None and all(
        each.cls in (torch.Tensor, torch.nn.Parameter) and each.fake.layout is torch.strided for each in tensors)


def _are_apart(one: TensorValue, other: TensorValue) -> bool:
    """Whether two tensors share no memory in any call: one of them is in memory that the graph makes."""
    graph, memories = one.node.graph, [storages(each.fake) for each in (one, other)]
    given: set[int] = set()
    for node in graph.nodes:
        fake = node.meta.get("example_value")
        if node.op in ("placeholder", "get_attr") and isinstance(fake, torch.Tensor):
            given |= storages(fake)
    return memories[0].isdisjoint(memories[1]) and any(memory.isdisjoint(given) for memory in memories)


# -- __torch_function__ --------------------------------------------------------------------------------------------


@handles(optional("torch._C._has_torch_function"))
def _has_torch_function(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.make(overrides.innermost(t) is not None or bool(overrides.overriding_arguments(t, args[:1])))


@handles(optional("torch._C._has_torch_function_unary"), optional("torch._C._has_torch_function_variadic"))
def _has_torch_function_of(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    asked = overrides.overriding_arguments(t, [arg for arg in args if arg.pytype() not in (list, tuple)])
    return t.make(overrides.innermost(t) is not None or bool(asked))


@handles(torch.overrides.is_tensor_like)
def _is_tensor_like(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].pytype()
    return t.make(cls is torch.Tensor or hasattr(cls, "__torch_function__"))


# -- calls whose outcome depends on sizes --------------------------------------------------------------------------


def _recurrent_layer(forward: Callable[..., Any]) -> None:
    @handles(forward)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The sizes of a packed sequence's batches say how often the layer's cell runs."""
        if any(arg.pytype() is PackedSequence for arg in (*args, *kwargs.values())):
            t.break_("tensor-data", function=f"{forward.__qualname__} of a packed sequence")
        return pass_on(t, forward, args, kwargs)


for _layer in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
    _recurrent_layer(_layer.forward)


def _recurrent_stack(fn: Callable[..., Any]) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        inputs: list[Any] = [tensor.fake for tensor in tensors_in(args[:1])]
        if any(map(torch.backends.cudnn.is_acceptable, inputs)):
            t.break_("tensor-recurrent-cudnn", function=f"torch.{fn.__name__}")
        return t.emit(fn, args, kwargs)


for _stack in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    _recurrent_stack(_stack)


@handles(torch.Size)
def _size(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue(protocol.unpack_hinted(t, args[0]) if args else [], cls=torch.Size)


@handles(torch.broadcast_shapes)
def _broadcast_shapes(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    shapes = [[arg] if arg.pytype() is int else protocol.unpack(t, arg) for arg in args]
    result: list[Value] = []
    for position in range(1, max(map(len, shapes), default=0) + 1):
        sizes = [shape[-position] for shape in shapes if position <= len(shape)]
        wide = [size for size in sizes if not protocol.equal(t, size, t.make(1))]
        if any(not protocol.equal(t, size, wide[0]) for size in wide[1:]):
            t.raise_(RuntimeError, "Shape mismatch: objects cannot be broadcast to a single shape")
        result.insert(0, wide[0] if wide else sizes[0])
    return TupleValue(result, cls=torch.Size)


_INFER_SIZE: Final = optional("torch._C._infer_size")


@handles(_INFER_SIZE)
def _infer_size(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The shape that two shapes are broadcast to, with the operators' own words where they do not fit."""
    shapes = [protocol.unpack(t, arg) for arg in args]
    if all(size.is_constant() for shape in shapes for size in shape):
        return protocol.fold(t, _INFER_SIZE, *(torch.Size([size.as_constant() for size in shape]) for shape in shapes))
    return _broadcast_shapes(t, args, kwargs)


# -- checks --------------------------------------------------------------------------------------------------------


@handles(optional("torch._assert"))
def _assert(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("condition", "message"), args, strict=False)) | kwargs
    condition, message = given["condition"], given["message"]
    if isinstance(condition, TensorValue):
        return t.emit(torch_private.get("torch._assert_async"), [condition, message])
    if not protocol.truth(t, condition):
        t.raise_(AssertionError, message.as_constant() if message.is_constant() else "")
    return t.make(None)


def _raise_as_torch(t: Tracer, error: type[Exception], cond: Any) -> None:
    """Raises what torch raises where `cond` is no truth, and the program has no words of its own for it."""
    try:
        torch_private.get("torch._check_with")(error, cond, None)
    except Exception as failure:
        t.raise_(type(failure), *failure.args)


def _checked(t: Tracer, error: type[Exception], cond: Value, message: Value | None = None) -> Value:
    """What is known while tracing is looked at here; a condition of numbers that vary is an assertion of the graph, behind
    which the call runs eagerly and raises what the program raises."""
    if cond.node is not None and not isinstance(cond, TensorValue):
        return t.emit(torch_private.get("torch._check"), [cond])
    if cond.is_constant() and type(cond.as_constant()) is not bool:
        _raise_as_torch(t, error, cond.as_constant())
    if protocol.truth(t, cond):
        return t.make(None)
    if message is None or (message.is_constant() and message.as_constant() is None):
        _raise_as_torch(t, error, False)
    assert message is not None
    t.raise_(error, protocol.str_(t, t.call(message, [], None)).as_constant())
    return t.make(None)


def _all_checked(t: Tracer, error: type[Exception], cond: Value, message: Value | None = None) -> Value:
    """That all elements of a tensor are true: an assertion of the graph, with the same words as where it fails eagerly."""
    if not isinstance(cond, TensorValue) or cond.fake.dtype is not torch.bool:
        t.break_("call-skipped-module", function="torch._check_tensor_all", module="torch", rule="no tensor of truths")
    return t.emit(torch_private.get("torch._assert_async"), [t.emit(torch.all, [cond]), t.make("Expected cond to be True")])


def _add_checks() -> None:
    """The handlers of torch's checks: with an exception of their own, and those that are told one."""
    def known(check: Callable[..., Value], error: type[Exception]) -> Handler:
        def handler(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            return check(t, error, *args, **kwargs)
        return handler

    def asking(check: Callable[..., Value]) -> Handler:
        def handler(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            given = dict(zip(("error_type", "cond", "message"), args, strict=False)) | kwargs
            error = given.pop("error_type").as_constant()
            if error.__module__ != "builtins":
                t.break_("call-skipped-module", function="torch._check_with", module="torch", rule="its own exception")
            return check(t, error, **given)
        return handler

    for fn, error in ((optional("torch._check"), RuntimeError), (optional("torch._check_index"), IndexError),
                      (optional("torch._check_value"), ValueError), (optional("torch._check_type"), TypeError),
                      (optional("torch._check_not_implemented"), NotImplementedError)):
        handles(fn)(known(_checked, error))
    handles(optional("torch._check_tensor_all"))(known(_all_checked, RuntimeError))
    handles(optional("torch._check_with"))(asking(_checked))
    handles(optional("torch._check_tensor_all_with"))(asking(_all_checked))


_add_checks()


@handles(optional("torch._check_is_size"))
def _check_is_size(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.emit(torch_private.get("torch._check_is_size"), args, kwargs) if args[0].node is not None else t.make(None)


# -- what steers the process ---------------------------------------------------------------------------------------


def _refuse(reason: str, *functions: Any, **context: str) -> None:
    for fn in dict.fromkeys(functions):
        def refuse(t: Tracer, args: list[Value], kwargs: dict[str, Value], fn: Any = fn) -> Value:
            t.break_(reason, function=name_with_module(fn), why=f"the result of {name_with_module(fn)}", **context)
        handles(fn)(refuse)


_refuse("value-global-state", torch.set_num_threads,
        torch.set_num_interop_threads, torch.set_flush_denormal,
        torch.set_autocast_enabled, torch.set_autocast_dtype, torch.set_autocast_cache_enabled,
        torch.set_autocast_cpu_enabled, torch.set_autocast_cpu_dtype, torch.set_autocast_gpu_dtype,
        torch.autocast_increment_nesting, torch.autocast_decrement_nesting, torch.clear_autocast_cache,
        torch.cuda.synchronize, torch.cuda.set_device, torch.set_default_tensor_type)


@handles(torch.cuda.empty_cache)
def _empty_cache(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Nothing to do for a process without a GPU, as everywhere in programs that were written on one."""
    if torch.cuda.is_available() or args or kwargs:
        t.break_("value-global-state", function="torch.cuda.empty_cache")
    return t.make(None)


_refuse("call-rng-state", torch.seed, torch.initial_seed,
        torch.cuda.manual_seed, torch.cuda.manual_seed_all)
_refuse("call-compile-api", torch.jit.script, torch.jit.trace)
_refuse("tensor-data", torch.frombuffer, torch.save, torch.load, optional("torch._C._to_dlpack"))
# The fakes of quantized tensors are float tensors, which forget what they stand for.
_refuse("tensor-layout", torch.quantize_per_tensor, torch.quantize_per_channel, torch.quantize_per_tensor_dynamic,
        optional("torch._empty_affine_quantized"), optional("torch._empty_per_channel_affine_quantized"), layout="quantized")
