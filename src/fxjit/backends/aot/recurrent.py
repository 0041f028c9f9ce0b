"""Recurrent layers as one operator, `fxjit::recurrent`, in graphs and derivatives: no graph of one is unrolled over its steps.

AOTAutograd would take `lstm`, `gru`, `rnn_tanh` and `rnn_relu` apart into the operators of each step. While it traces, they go
by the kernels here instead. The operator runs ATen's own layer (eager's numbers, in any type, also under autocast and of packed
sequences), or an engine that a backend puts in its place (`call_by`). In training the layer records its own autograd graph,
which lives as long as the *handle*, the operator's last result: a saved activation like any other. `fxjit::recurrent_backward`
walks it, as often as it is asked to.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch._C import DispatchKey
from torch.utils._python_dispatch import _disable_current_modes

from fxjit.tensor_wrappers import is_wrapper

Tensor = torch.Tensor
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_OPTIONS = ("str kind, Tensor x, Tensor? batch_sizes, Tensor[] states, Tensor[] parameters, bool biases, int layers, "
            "float dropout, bool train, bool both_ways, bool batch_first, ScalarType? autocast, bool[] wanted")
#: Bytes of a handle: its number.
_HANDLE = 8


class CannotKeepWhole(RuntimeError):
    """A recurrent layer under a transform, or of tensors of a wrapper subclass, which know nothing of our operator."""


@dataclass(frozen=True, slots=True)
class Layers:
    """A call of `fxjit::recurrent`: a stack of recurrent layers and what it is called with.

    x: (steps, batch, features), (batch, steps, features) if `batch_first`, or the rows of a packed sequence. states: h0, and
    c0 of an LSTM, (layers * directions, batch, size). parameters: as ATen takes them, flat. autocast: the type that autocast
    is on for. wanted: which of x, the states and the parameters have a gradient; none where nothing is recorded.
    """

    kind: str
    x: Tensor
    batch_sizes: Tensor | None
    states: list[Tensor]
    parameters: list[Tensor]
    biases: bool
    layers: int
    dropout: float
    train: bool
    both_ways: bool
    batch_first: bool
    autocast: torch.dtype | None
    wanted: list[bool]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x, *self.states, *self.parameters]

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """ATen's arguments, of these tensors."""
        count = 1 + len(self.states)
        x, states, parameters = tensors[0], list(tensors[1:count]), list(tensors[count:])
        options = (parameters, self.biases, self.layers, self.dropout, self.train, self.both_ways)
        hidden: Any = states if self.kind == "lstm" else states[0]
        if self.batch_sizes is not None:
            return (x, self.batch_sizes, hidden, *options)
        return (x, hidden, *options, self.batch_first)


#: What the forward pass of an engine leaves for its derivative: the gradients of `tensors`, given those of the results.
Derivative = Callable[[Sequence["Tensor | None"]], Sequence["Tensor | None"]]
#: The results of a call (out, h, and c of an LSTM), and its derivative where one is wanted; None for a call it does not run.
Engine = Callable[[Layers], "tuple[Sequence[Tensor], Derivative | None] | None"]


# ATen's layers


@contextlib.contextmanager
def _as_in_eager(call: Layers, grad: bool) -> Iterator[None]:
    """The dispatcher's state of a call from a program: autograd records, and autocast is as it was where the layer was
    captured. Operators of our own run below both."""
    device = call.x.device.type
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "AutogradOther", f"Autocast{device.upper()}", "ADInplaceOrView"):
        key = getattr(DispatchKey, name, None)
        if key is not None and excluded.has(key):
            excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.set_grad_enabled(grad), \
            torch.autocast(device, call.autocast, call.autocast is not None):
        yield


def run_aten(call: Layers) -> tuple[Sequence[Tensor], Derivative | None]:
    """ATen's own layer, and its autograd graph."""
    function = getattr(torch, call.kind)
    if not any(call.wanted):
        with _as_in_eager(call, grad=False):
            return function(*call.with_tensors(call.tensors)), None
    with _as_in_eager(call, grad=True):
        leaves = [each.detach().requires_grad_(wanted) for each, wanted in zip(call.tensors, call.wanted, strict=True)]
        results = function(*call.with_tensors(leaves))
    sources = [leaf for leaf in leaves if leaf.requires_grad]

    def derivative(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
        with _as_in_eager(call, grad=True):
            found = iter(torch.autograd.grad([result for result, _ in pairs], sources, [grad for _, grad in pairs],
                                             retain_graph=True, allow_unused=True))
        return [next(found) if leaf.requires_grad else None for leaf in leaves]

    return [each.detach() for each in results], derivative


def _run(call: Layers, engines: Sequence[Engine]) -> tuple[Sequence[Tensor], Derivative | None]:
    return next(found for engine in engines if (found := engine(call)) is not None)


# Handles


class _Owner(numpy.ndarray[Any, Any]):
    """The memory of a handle, which owns a derivative: both end with the tensor."""

    derivative: Derivative


_derivatives: weakref.WeakValueDictionary[int, _Owner] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
_lock = threading.Lock()


def _handle_of(derivative: Derivative | None) -> Tensor:
    if derivative is None:
        return torch.empty(_HANDLE, dtype=torch.uint8)
    number = next(_numbers)
    owner = numpy.array([number], dtype=numpy.int64).view(numpy.uint8).view(_Owner)
    owner.derivative = derivative
    with _lock:
        _derivatives[number] = owner
    return torch.from_numpy(owner)


def _derivative_of(handle: Tensor) -> Derivative | None:
    with _lock:
        owner = _derivatives.get(int(handle.cpu().view(torch.int64).item()))
    return None if owner is None else owner.derivative


# The operators


def call_by(engines: Sequence[Engine], *arguments: Any) -> tuple[Tensor, ...]:
    """The operator by the first of these engines that runs such a call."""
    call = Layers(*arguments)
    results, derivative = _run(call, engines)
    cells = results[2:] or [call.x.new_empty(0)]
    return (*results[:2], *cells, _handle_of(derivative))


def _recurrent(*arguments: Any) -> tuple[Tensor, ...]:
    return call_by((run_aten,), *arguments)


def _recurrent_backward(handle: Tensor, out: Tensor | None, h: Tensor | None, c: Tensor | None,
                        *arguments: Any) -> list[Tensor]:
    call = Layers(*arguments)
    derivative = _derivative_of(handle)
    if derivative is None:  # somebody kept a copy of the handle, as hooks on saved tensors do: the layer runs once more
        if call.dropout and call.train and call.layers > 1:
            raise RuntimeError("A hook on saved tensors copied the activations of a recurrent layer with dropout between its "
                               "layers, whose random numbers are gone. Call the layer outside of the compiled function.")
        _, derivative = run_aten(call)
    assert derivative is not None
    grads = derivative([out, h, c] if call.kind == "lstm" else [out, h])
    pairs = zip(call.tensors, grads, call.wanted, strict=True)
    likes = iter(_fake_backward(handle, out, h, c, *arguments))
    return [_laid_out_like(next(likes), grad) for _, grad, wanted in pairs if wanted]


def _laid_out_like(like: Tensor, grad: Tensor | None) -> Tensor:
    """The gradient in the layout that its fake tensor promises."""
    if grad is None:
        return like.zero_()
    return grad if grad.stride() == like.stride() and grad.dtype is like.dtype else like.copy_(grad)


def _fake(*arguments: Any) -> tuple[Tensor, ...]:
    call = Layers(*arguments)
    directions, hidden = 2 if call.both_ways else 1, call.states[0]
    types = result_types(call.kind, call.x.dtype, tuple(each.dtype for each in call.states), call.parameters[0].dtype,
                         call.autocast, call.states[0].shape[-1] != call.states[-1].shape[-1], call.x.device.type)
    sizes = [*call.x.shape[:-1], hidden.shape[-1] * directions]
    if call.batch_first:
        out = call.x.new_empty([sizes[1], sizes[0], sizes[2]], dtype=types[0]).transpose(0, 1)
    else:
        out = call.x.new_empty(sizes, dtype=types[0])
    states = [each.new_empty(each.shape, dtype=dtype) for each, dtype in zip(call.states, types[1:], strict=True)]
    cells = states[1:] or [call.x.new_empty(0)]
    return (out, states[0], *cells, torch.empty(_HANDLE, dtype=torch.uint8))


@functools.cache
def result_types(kind: str, x: torch.dtype, states: tuple[torch.dtype, ...], parameters: torch.dtype,
                 autocast: torch.dtype | None, projected: bool, device: str) -> tuple[torch.dtype, ...]:
    """The types of the results, which differ by layer under autocast: of a layer of one element."""
    size = 2 if projected else 1
    gates = {"lstm": 4, "gru": 3}.get(kind, 1) * size
    with _disable_current_modes(), torch._C._DisablePythonDispatcher():
        given = [torch.zeros(gates, 1, dtype=parameters, device=device)] * 2
        given += [torch.zeros(1, size, dtype=parameters, device=device)] if projected else []
        hidden = [torch.zeros(1, 1, size if place else 1, dtype=each, device=device) for place, each in enumerate(states)]
        step = torch.zeros(1, 1, 1, dtype=x, device=device)
        call = Layers(kind, step, None, hidden, given, False, 1, 0.0, False, False, False, autocast, [])
        try:
            results, _ = run_aten(call)
        except RuntimeError:  # which the layer itself then raises
            return (x, *states)
    return tuple(each.dtype for each in results)


def _fake_backward(handle: Tensor, out: Tensor | None, h: Tensor | None, c: Tensor | None, *arguments: Any) -> list[Tensor]:
    call = Layers(*arguments)
    likes = [torch.empty_like(each) for each, wanted in zip(call.tensors, call.wanted, strict=True) if wanted]
    if call.batch_first and call.wanted[0]:  # the layer itself has the steps first
        likes[0] = torch.empty_like(call.x.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)
    return likes


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    call = Layers(*inputs)
    sizes = () if call.batch_sizes is None else (call.batch_sizes,)
    ctx.save_for_backward(output[-1], *sizes, *call.tensors)
    ctx.call = (call.kind, bool(sizes), len(call.states), inputs[5:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, out: Tensor | None, h: Tensor | None, c: Tensor | None, _handle: Tensor | None) -> tuple[Any, ...]:
    kind, packed, count, options = ctx.call
    handle, *saved = ctx.saved_tensors
    sizes = saved.pop(0) if packed else None
    arguments = (kind, saved[0], sizes, list(saved[1:1 + count]), list(saved[1 + count:]), *options)
    wanted: list[bool] = options[-1]
    nothing: list[Any] = [None] * len(saved)
    if any(wanted) and not (out is None and h is None and c is None):
        found = iter(torch.ops.fxjit.recurrent_backward(handle, out, h, c, *arguments))
        nothing = [next(found) if each else None for each in wanted]
    return (None, nothing[0], None, nothing[1:1 + count], nothing[1 + count:], *[None] * len(options))


_library = torch.library.Library("fxjit", "FRAGMENT")


def _define(name: str, tags: tuple[torch.Tag, ...] = ()) -> Any:
    _library.define(f"{name}({_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)", tags=tags)
    _library.impl(name, _recurrent, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fxjit::{name}", _fake, lib=_library)
    torch.library.register_autograd(f"fxjit::{name}", _differentiate, setup_context=_save, lib=_library)
    return getattr(torch.ops.fxjit, name).default


_library.define(f"recurrent_backward(Tensor handle, Tensor? out, Tensor? h, Tensor? c, {_OPTIONS}) -> Tensor[]")
_library.impl("recurrent_backward", _recurrent_backward, "CompositeExplicitAutograd")
torch.library.register_fake("fxjit::recurrent_backward", _fake_backward, lib=_library)
RECURRENT = _define("recurrent")
RECURRENT_WITH_DROPOUT = _define("recurrent_with_dropout", (torch.Tag.nondeterministic_seeded,))
OPERATORS = RECURRENT, RECURRENT_WITH_DROPOUT
BACKWARD = torch.ops.fxjit.recurrent_backward.default


# In the place of ATen's operators while a graph is traced


def kernels() -> Iterator[tuple[Any, Any, Callable[..., Any]]]:
    """ATen's recurrent operators with kernels that call ours, for `torch_patches.replaced_kernels`."""
    for kind in KINDS:
        packet = getattr(torch.ops.aten, kind)
        for key in _KEYS:
            yield packet.input, key, functools.partial(_of_sequences, kind)
            yield packet.data, key, functools.partial(_of_packed, kind)


def _of_sequences(kind: str, x: Tensor, hx: Any, parameters: list[Tensor], *options: Any) -> tuple[Tensor, ...]:
    return _whole(kind, x, None, hx, parameters, *options)


def _of_packed(kind: str, x: Tensor, batch_sizes: Tensor, hx: Any, parameters: list[Tensor],
               *options: Any) -> tuple[Tensor, ...]:
    return _whole(kind, x, batch_sizes, hx, parameters, *options, False)


def _whole(kind: str, x: Tensor, batch_sizes: Tensor | None, hx: Any, parameters: list[Tensor],
           *options: Any) -> tuple[Tensor, ...]:
    states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    tensors = [x, *states, *parameters]
    transformed = torch._C._functorch.maybe_current_level() is not None or torch.autograd.forward_ad._current_level >= 0
    if transformed or any(map(is_wrapper, tensors)) or not parameters:
        raise CannotKeepWhole(f"torch.{kind}")
    device = x.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    recording = torch.is_grad_enabled()
    wanted = [recording and each.requires_grad for each in tensors]
    _, layers, dropout, train, *_ = options
    operator = RECURRENT_WITH_DROPOUT if dropout and train and layers > 1 else RECURRENT
    *results, _ = operator(kind, x, batch_sizes, states, parameters, *options, autocast, wanted)
    return tuple(results if kind == "lstm" else results[:2])
