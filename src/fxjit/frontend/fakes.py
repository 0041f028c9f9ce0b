"""Corrections of fake tensors: answers that differ from the kernels', and checks stricter than theirs."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.fx
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from fxjit import torch_private

_SELECT: Final = "_select_conv_backend"
_select_convolution: Final = torch_private.optional("torch._C._select_conv_backend")


def _select_unguarded(input: Any, *args: Any, **kwargs: Any) -> Any:
    env = getattr(getattr(input, "fake_mode", None), "shape_env", None)
    if env is None or input.device.type != "cpu":
        return _select_convolution(input, *args, **kwargs)
    with env.suppress_guards():
        return _select_convolution(input, *args, **kwargs)


@contextlib.contextmanager
def unguarded_convolutions() -> Iterator[None]:
    """Evaluates convolutions without guards on the batch size. torch selects a CPU kernel by the batch size among others
    (16 and more), and the results' metadata are the same."""
    if isinstance(_select_convolution, torch_private.Absent):  # then nothing queries it
        yield
        return
    before = getattr(torch._C, _SELECT, None)
    setattr(torch._C, _SELECT, _select_unguarded)
    try:
        yield
    finally:
        setattr(torch._C, _SELECT, before)


def _kept_whole(dropout: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A dropout that drops nothing gives the tensor that it was given. Torch's decomposition, by which fake tensors of symbolic
    sizes go, copies it: writes to the one would not reach the other."""

    def run(input: torch.Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = dropout(input, p, *args, **kwargs)  # which refuses wrong arguments
        train = args[0] if args else kwargs.get("train", kwargs.get("training", True))
        return input if not train or p == 0 else result

    return run


def _by_one_step(layers: Callable[..., Any]) -> Callable[..., Any]:
    """Recurrent layers over a sequence of any length, symbolic ones too: ATen's unroll their steps, of which one tells what the
    results look like."""

    def run(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(args) != _OPTIONS_OF_SEQUENCES or kwargs or not isinstance(args[-1], bool) or input.dim() != 3:
            return layers(input, *args, **kwargs)  # a packed sequence, or wrong arguments
        dim = 1 if args[-1] else 0
        steps = input.shape[dim]
        if isinstance(steps, int) and steps < 2:
            return layers(input, *args)
        out, *states = layers(input.narrow(dim, 0, 1), *args)
        out = out.transpose(0, dim).repeat(steps, 1, 1)
        return (out.transpose(0, dim), *states)

    return run


#: Of ATen's recurrent layers, behind the input: states, parameters, biases, layers, dropout, train, directions, batch first.
_OPTIONS_OF_SEQUENCES: Final = 8
_FAKED: Final = {dropout: _kept_whole(dropout) for dropout in (F.dropout, torch.dropout)} | {
    layers: _by_one_step(layers) for layers in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)}


def faked(target: Callable[..., Any]) -> Callable[..., Any]:
    """A callable that gives `target`'s result over fake tensors."""
    return _FAKED.get(target, target)


def fake_of(node: torch.fx.Node) -> Any:
    """The fake value of a node of the graph."""
    return node.meta["example_value"]


def on_current_gpu(result: object, given: object) -> bool:
    """Whether the result is on the GPU that happens to be current: on one that nothing among the arguments names."""
    if not isinstance(result, torch.Tensor) or result.device.type != "cuda":
        return False
    leaves = pytree.tree_leaves(given)
    named = {fake_of(leaf).device for leaf in leaves if isinstance(leaf, torch.fx.Node)
             if isinstance(fake_of(leaf), torch.Tensor)}
    named |= {torch.device(leaf) for leaf in leaves if isinstance(leaf, (str, torch.device)) and "cuda:" in str(leaf)}
    return result.device not in named


def on_usable_device(result: Any) -> Any:
    """`result`; raises what torch raises where it is on a GPU and this process has none, which fake tensors do not mind."""
    if isinstance(result, torch.Tensor) and result.device.type == "cuda":
        torch.cuda.current_device()
    return result


_tracing = threading.local()


def _is_logged(record: logging.LogRecord) -> bool:
    return not (getattr(_tracing, "quiet", False) and str(record.msg).startswith("failed while attempting to run meta"))


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_logged)


@contextlib.contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """An operator that fails while tracing is no error yet: the program raises its own, or catches it; and what a backend comes
    to, it raises. So torch's report of one on fake tensors is not logged for this thread."""
    before = getattr(_tracing, "quiet", False)
    _tracing.quiet = True
    try:
        yield
    finally:
        _tracing.quiet = before
